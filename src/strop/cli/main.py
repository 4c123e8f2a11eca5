"""The command line: verbs, and how errors leave it. Invariant: a user's mistake is one line and exit code 2, no traceback."""

import sys
from typing import Annotated

import typer

from strop.cli.algorithms import algorithms
from strop.cli.audit import audit
from strop.cli.evaluate import evaluate
from strop.cli.explain import compare, explain
from strop.cli.export import export
from strop.cli.lecture import lecture
from strop.cli.masks import masks
from strop.cli.play import play
from strop.cli.read import read
from strop.cli.timeline import timeline
from strop.cli.train import train
from strop.cli.watch import watch
from strop.core.errors import StropError, UsageError
from strop.core.sandbox import SandboxError

app = typer.Typer(
    name="strop",
    help="Train language-model agents by reinforcement learning and distillation, on rewards that were tested first.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start with: strop train recipes/guess.toml",
)

app.command(epilog="Example: strop train recipes/guess.toml --set learner.lr=1e-3 --run runs/first")(train)
app.command("eval", epilog="Example: strop eval runs/first --json")(evaluate)
app.command(epilog="Example: strop play runs/first --task secret-11")(play)
app.command(epilog="Example: strop read runs/first --last 2")(read)
app.command(epilog="Example: strop masks runs/first --episode train-000003/0")(masks)
app.command(epilog="Example: strop explain runs/first --step 120 --most 2")(explain)
app.command(epilog="Example: strop compare runs/first --json")(compare)
app.command(epilog="Example: strop watch runs/first --json")(watch)
app.command(epilog="Example: strop timeline runs/first --steps 10:14")(timeline)
app.command(epilog="Example: strop algorithms --json")(algorithms)
app.command(epilog="Example: strop audit guess --json")(audit)
app.command(epilog="Example: strop lecture gae")(lecture)
app.command(epilog="Example: strop export runs/first exported")(export)


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Train language-model agents by reinforcement learning and distillation, on rewards that were tested first."""
    if version:
        from importlib.metadata import version as installed

        print(f"strop {installed('strop')}")
        raise typer.Exit


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except StropError as problem:
        print(f"strop: {problem}", file=sys.stderr)
        sys.exit(2 if isinstance(problem, UsageError | SandboxError) else 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as problem:  # of the machine: a full disk, a folder that may not be written
        print(f"strop: {problem}", file=sys.stderr)
        sys.exit(1)
