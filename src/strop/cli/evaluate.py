"""`strop eval`: success with intervals, beside the best possible."""

import asyncio
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strop.config.planning import check_path, plan_of
from strop.config.resolve import apply_sets, resolve
from strop.config.stored import find_run, stored_plan
from strop.core.errors import UsageError

if TYPE_CHECKING:
    from strop.loop.evaluate import Evaluation


def evaluate(
    run: Annotated[str | None, typer.Argument(help="Folder of a run.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="A model directory or hub id instead of a run.")] = None,
    env: Annotated[str | None, typer.Option("--env", help="With --model: the environment.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="With --model: world.numbers=8 and the like.")] = None,
    episodes: Annotated[int | None, typer.Option("--episodes", min=1, help="Sampled episodes per task.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint instead of the newest.")] = False,
    split: Annotated[str, typer.Option("--split", help="Which of the world's splits to play.")] = "eval",
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout (always, if it is no terminal).")] = False,
) -> None:
    """Evaluate a run, or any model in an environment: one JSON object on stdout."""
    if (run is None) == (model is None):
        raise UsageError("give the folder of a run, or --model DIR --env NAME, one of the two")
    if run is not None:
        if env is not None or sets:
            raise UsageError("--env and --set go with --model; a run brings its own environment")
        found = _of_run(run, episodes, best, split)
    else:
        if env is None:
            raise UsageError("--model needs --env, for example --env guess")
        if best:
            raise UsageError(
                "--best chooses among the checkpoints of a run; with --model there are none. Leave it out."
            )
        found = _of_model(str(model), env, sets or [], episodes, split)
    if as_json or not sys.stdout.isatty():
        print(json.dumps(found))
        return
    print("\n".join(readable(found)))


def readable(found: dict[str, Any]) -> list[str]:
    """What was found as lines of a terminal: a number, an interval or a word each; what was not measured is left out."""
    out: list[str] = []
    for key, value in found.items():
        if isinstance(value, dict):
            rest = {name: v for name, v in value.items() if v is not None and name not in found.get("measures", {})}
            lines = readable(value if key == "measures" else rest)
            out += [f"{key}:", *(f"  {line}" for line in lines)] if lines else []
        elif isinstance(value, list | tuple):
            out.append(f"{key:22} {' to '.join(_short(v) for v in value)}")
        elif value is not None:
            out.append(f"{key:22} {_short(value)}")
    return out


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _of_run(run: str, episodes: int | None, best: bool, split: str) -> dict[str, Any]:
    path = find_run(run)
    from strop.watch.run_folder import RunFolder

    _, plan, world = stored_plan(RunFolder.open(path).run())
    world = world.judged_on(split)
    from strop.loop.evaluate import evaluate as measure
    from strop.loop.restore import restored

    parts, name = restored(plan, world, path, best)
    result = asyncio.run(measure(parts.table, parts.examiner, plan.temperature, episodes or plan.evaluating.episodes))
    return {"run": run, "checkpoint": name, "split": split, **_plain(result)}


def _of_model(model: str, env: str, sets: list[str], episodes: int | None, split: str) -> dict[str, Any]:
    check_path(model)
    tables: dict[str, Any] = {"env": env, "model": {"path": model}, "stages": [{"kind": "reinforce", "steps": 1}]}
    plan, world = plan_of(resolve(tables, apply_sets(tables, sets)))
    world = world.judged_on(split)
    from strop.loop.assemble import assemble
    from strop.loop.evaluate import evaluate as measure

    parts = assemble(plan, world)
    for note in parts.notes:
        print(f"note: {note}", file=sys.stderr)
    result = asyncio.run(measure(parts.table, parts.examiner, plan.temperature, episodes or plan.evaluating.episodes))
    return {"model": model, "env": env, "split": split, **_plain(result)}


def _plain(result: "Evaluation") -> dict[str, Any]:
    return asdict(result)
