"""`strop train`: start or resume a run. Bad input is answered before torch is imported."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strop.config.resolve import Resolved, apply_sets, read_file, resolve
from strop.core.errors import UsageError
from strop.core.world import World
from strop.loop.plan import Plan

if TYPE_CHECKING:
    from strop.learn.checkpoint import Checkpoint
    from strop.loop.assemble import Parts
    from strop.watch.run_folder import RunFolder


def train(
    recipe: Annotated[str | None, typer.Argument(help="A run file (TOML), such as recipes/guess.toml.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Folder of the new run.")] = None,
    resume: Annotated[str | None, typer.Option("--resume", help="Continue the run in this folder.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change a key: learner.lr=1e-3. Repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done and leave.")] = False,
    unaudited: Annotated[bool, typer.Option("--unaudited", help="Train even if the audit's gate fails.")] = False,
    audit: Annotated[
        str | None,
        typer.Option("--audit", help="What strop audit --json printed: its ceiling is held against a plateau."),
    ] = None,
) -> None:
    """Train an agent as a run file says, or continue a run."""
    if (recipe is None) == (resume is None):
        raise UsageError("give a run file (strop train recipes/guess.toml) or --resume RUN, one of the two")
    if resume is not None:
        if run is not None:
            raise UsageError("--run names a new folder; a resumed run stays where it is. Leave out --run.")
        if unaudited or audit is not None:
            raise UsageError("--unaudited and --audit are for a new run, and stay written in it. Leave them out.")
        _resume(resume, sets or [], dry_run)
        return
    from strop.config.planning import plan_of

    path = Path(str(recipe))
    tables = read_file(path)
    resolved = resolve(tables, apply_sets(tables, sets or []))
    plan, world = plan_of(resolved)
    if dry_run:
        from strop.cli.dry_run import describe
        from strop.loop.saved import check_sources

        check_sources(plan)
        describe(plan, world)
        return
    from strop.watch.run_folder import RunFolder

    folder = Path(run or f"runs/{path.stem}-{datetime.now():%Y%m%d-%H%M%S}")
    RunFolder.check_free(folder)
    from strop.audit.gate import require_sound
    from strop.loop.saved import check_sources

    check_sources(plan)

    if not unaudited:
        print(f"auditing {plan.env} (tiers 1 and 2)", flush=True)
    _start(resolved, plan, world, folder, require_sound(plan.env, world, unaudited, audit))


def _start(resolved: Resolved, plan: Plan, world: World, path: Path, audited: dict[str, Any]) -> None:
    from strop.config.stored import run_record
    from strop.watch.run_folder import RunFolder

    folder = RunFolder.create(path, {**run_record(resolved), "audit": audited}, _keep(plan))
    with folder.lock():
        try:
            parts = _parts(plan, world)
        except UsageError:
            (path / "run.json").unlink()  # nothing has run: the folder is free for the mended command
            raise
        _run(plan, parts, folder, None)


def _resume(run: str, sets: list[str], dry_run: bool) -> None:
    from strop.config.stored import find_run, run_record, stored_plan
    from strop.watch.run_folder import RunFolder

    path = find_run(run)
    record = RunFolder.open(path).run()
    resolved, plan, world = stored_plan(record, sets)
    if dry_run:
        from strop.cli.dry_run import describe

        describe(plan, world)
        return
    from strop.learn import checkpoint

    folder = RunFolder.open(path, _keep(plan))
    with folder.lock():
        newest, skipped = checkpoint.newest(folder.checkpoints)
        for name, reason in skipped:
            print(f"skipped {name}: {reason}", file=sys.stderr)
        saved = None if newest is None else checkpoint.load(newest)
        done = 0 if saved is None else int(saved.state["position"]["total"])
        if saved is not None:
            check_steps(plan, saved.state["position"])
        if saved is not None and done >= plan.steps:
            raise UsageError(
                f"all {plan.steps} planned steps of {run} are done; there is nothing to resume. Raise them with --set "
                f"stages.{len(plan.stages) - 1}.steps=..."
            )
        print(f"resuming {run} after step {done}" + ("" if newest else " (it has no checkpoint yet)"))
        kept = {"audit": record["audit"]} if "audit" in record else {}
        folder.write_run({**run_record(resolved), **kept})
        folder.resumed(-1 if saved is None else done)  # without a checkpoint, the first evaluation is made again too
        _run(plan, _parts(plan, world), folder, saved)


def check_steps(plan: Plan, position: dict[str, Any]) -> None:
    """Refuse new steps for what is done: the steps of earlier stages, and of the current one below where it stands."""
    before = sum(stage.steps for stage in plan.stages[: position["stage"]])
    if before != position["total"] - position["step"]:
        raise UsageError(
            f"the steps of stages before stages.{position['stage']} are done and cannot be changed; set only "
            f"stages.{position['stage']}.steps and later ones"
        )
    now = plan.stages[position["stage"]].steps
    if now < position["step"]:
        raise UsageError(
            f"stages.{position['stage']}.steps is {now}, but {position['step']} of its steps are done; give at least that"
        )


def _keep(plan: Plan) -> Any:
    from strop.watch.run_folder import Keep

    return Keep(plan.logging.episodes_mb, plan.logging.samples, updates=plan.logging.updates)


def _parts(plan: Plan, world: World) -> "Parts":
    """The live parts; what was assumed is said aloud."""
    from strop.loop.assemble import assemble

    parts = assemble(plan, world)
    for note in parts.notes:
        print(f"note: {note}")
    return parts


def _run(plan: Plan, parts: "Parts", folder: "RunFolder", saved: "Checkpoint | None") -> None:
    """Look, train, sum up."""
    stop, restore = _signals()
    began = time.monotonic()
    try:
        finished = asyncio.run(_train(plan, parts, folder, saved, stop))
    finally:
        restore()
        parts.close()
    _summary(folder, time.monotonic() - began, finished)
    if not finished:
        raise typer.Exit(130)  # so that `strop train ... && strop export ...` does not go on with half a run


async def _train(
    plan: Plan, parts: "Parts", folder: "RunFolder", saved: "Checkpoint | None", stop: Callable[[], bool]
) -> bool:
    from strop.cli.progress import Display
    from strop.loop.train import Training

    training = Training(plan, parts, folder)
    if saved is not None:
        training.resume(saved)
    with Display(plan) as display:
        async for event in training.run(stop):
            display.show(event)
    return training.position.total >= plan.steps


def _signals() -> tuple[Callable[[], bool], Callable[[], None]]:
    """First Ctrl-C or SIGTERM: stop after the step, with a checkpoint. A second one stops at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            print("strop: stopped at once", file=sys.stderr)
            raise KeyboardInterrupt  # typer makes exit code 130 of it
        asked = True
        print("\nstopping after this step, with a checkpoint; once more stops at once", file=sys.stderr)

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return (lambda: asked), restore


def _summary(folder: "RunFolder", seconds: float, finished: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from strop.report.summary import evaluations, rows

    found = rows(evaluations(folder.metrics()))
    if found:
        table = Table(box=None, pad_edge=False)
        for column in ("", "step", "greedy success", "sampled success (95 %)", "best possible"):
            table.add_column(column)
        for row in found:
            table.add_row(*row)
        Console().print(table)
    kept = folder.kept()
    first = "" if not kept.get("dropped_parts") else f" (from step {kept['first_step']}; older ones were dropped)"
    if raised := sum(1 for _ in folder.alarms()):
        print(f"alarms raised: {raised}; look with strop watch {folder.path}")
    print(f"{seconds:.0f} s; episodes kept: {kept['bytes'] / 1e6:.1f} MB of {folder.keep.episodes_mb:g} MB{first}")
    if finished:
        print(
            f"run: {folder.path}   next: strop play {folder.path} | strop read {folder.path} | strop export {folder.path} DIR"
        )
    else:
        print(f"stopped; continue with: strop train --resume {folder.path}")
