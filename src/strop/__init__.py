"""Strop trains language-model agents by reinforcement learning and distillation, on rewards that were tested first.

What a user needs to bring a world is here; it imports no torch. `run` is the plain door to the loop.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.core.algorithm import Algorithm
from strop.core.errors import RunError, StropError, UsageError
from strop.core.message import Message
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Group, Row, Trajectory
from strop.core.world import World

__all__ = [
    "Algorithm",
    "Env",
    "Group",
    "Message",
    "Row",
    "RunError",
    "Step",
    "StropError",
    "Task",
    "Trajectory",
    "UsageError",
    "Verdict",
    "World",
    "run",
]


def run(
    recipe: str | Path | Mapping[str, Any],
    folder: str | Path,
    sets: Sequence[str] = (),
    unaudited: bool = False,
    audit: str | Path | None = None,
) -> list[Mapping[str, Any]]:
    """Train as a run file says, from start to end, without printing.

    Args:
        recipe: path of a run file, or its tables.
        folder: the new run's folder.
        sets: changes as `--set` takes them (`learner.lr=1e-3`).
        unaudited: whether to train also on a verifier that fails the first two tiers of the audit; it is not asked then.
        audit: a file that `strop audit ENV --json` wrote; its ceiling is held against a plateau.

    Returns:
        The evaluations of the run, first to last, as they stand in `metrics.jsonl`.

    Raises:
        UsageError: the request cannot work, or the verifier fails its audit; nothing was trained, no model was loaded for
            it, and the folder can be used again.
        RunError: the run had to stop; what was done is in the folder.
    """
    # Imported here so that `import strop` stays light: the command line answers bad input before torch is loaded.
    import asyncio

    from strop.audit.gate import require_sound
    from strop.config.planning import plan_of
    from strop.config.resolve import apply_sets, read_file, resolve
    from strop.config.stored import run_record
    from strop.loop.assemble import Parts, assemble
    from strop.loop.saved import check_sources
    from strop.loop.train import Training
    from strop.report.summary import evaluations
    from strop.watch.run_folder import Keep, RunFolder

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UsageError(
            "strop.run has an event loop of its own and was called inside another one (a notebook has one): write "
            "await asyncio.to_thread(strop.run, recipe, folder)"
        )
    if isinstance(sets, str):
        raise UsageError(f"sets is the text {sets!r}; give a list of texts: sets=[{sets!r}]")
    tables = dict(recipe) if isinstance(recipe, Mapping) else read_file(Path(recipe))
    resolved = resolve(tables, apply_sets(tables, sets))
    plan, world = plan_of(resolved)
    RunFolder.check_free(folder)
    check_sources(plan)
    audited = require_sound(plan.env, world, unaudited, audit)
    keep = Keep(plan.logging.episodes_mb, plan.logging.samples, updates=plan.logging.updates)
    home = RunFolder.create(folder, {**run_record(resolved), "audit": audited}, keep)

    async def train(parts: Parts) -> None:
        async for _ in Training(plan, parts, home).run():
            pass

    with home.lock():
        try:
            parts = assemble(plan, world)
        except UsageError:
            (home.path / "run.json").unlink()  # nothing has run: the folder is free for the mended request
            raise
        try:
            asyncio.run(train(parts))
        finally:
            parts.close()
    return evaluations(home.metrics())
