"""The models of a run file: the policy's and the teachers'. Imports no torch.

Invariant: a teacher that is a run is the model of that run's own file, so that its checkpoint fits it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from strop.config.resolve import Resolved, resolve
from strop.config.sections import RunSection
from strop.config.selfteacher import needs_other
from strop.core.errors import UsageError
from strop.core.notation import read
from strop.core.source import ModelSource, Tiny
from strop.core.teacher import ANY, TeacherSource, tag_of
from strop.core.world import World
from strop.envs.catalogue import world
from strop.loop.plan import StagePlan


def model_of(resolved: Resolved) -> ModelSource:
    """The policy that a run file names, checked."""
    m = resolved.run.model
    if (m.path is None) == (m.preset is None):
        raise UsageError('give model.path (a directory or hub id) or model.preset = "tiny", and not both')
    tiny = Tiny()
    if m.path is not None:
        check_path(m.path, "model.path")
    else:
        tiny = read("preset", m.preset or "", "model.preset")
        if tiny.width < 8 or tiny.layers < 1 or tiny.heads < 1 or tiny.width % (2 * tiny.heads) or tiny.width % 8:
            raise UsageError(
                f"model.preset {m.preset} cannot be built: width must be a multiple of 8 and of twice heads, layers at least "
                "1. For example tiny(64, 2, 4) is width 64, 2 layers, 4 heads."
            )
        if m.checkpointing and tiny.layers < 2:
            raise UsageError("model.checkpointing saves nothing in a model of one layer; remove it")
    return ModelSource(
        path=m.path,
        preset=None if m.preset is None else "tiny",
        width=tiny.width,
        layers=tiny.layers,
        heads=tiny.heads,
        context=resolved.run.rollout.context,
        dtype=m.dtype,
        device=m.device,
        seed=resolved.run.seed,
        checkpointing=m.checkpointing,
    )


def check_path(path: str, key: str = "model.path") -> None:
    """Refuse a model path that looks local and does not exist; a hub id (`name` or `owner/name`) is left to the hub."""
    local = path.startswith((".", "/", "~")) or path.endswith(".gguf") or path.count("/") > 1
    place = Path(path).expanduser()
    if not path or (local and not place.exists()):
        raise UsageError(f"{key} {path} does not exist; give a model directory, a .gguf file or a hub id")


def teachers_of(run: RunSection, model: ModelSource) -> dict[str, TeacherSource]:
    """The teachers of a run file by tag, in order; one teacher for all tasks is the entry `*`.

    Args:
        run: the run file.
        model: the policy; teachers compute where and in what it does.
    """
    given = run.model.teacher
    if given is None:
        if run.model.teacher_ids is not None:
            raise UsageError("model.teacher_ids has no effect without model.teacher; remove it, or name a teacher")
        return {}
    if given == {}:
        raise UsageError('model.teacher is an empty table; give it a path, or entries such as "*" = "runs/teacher"')
    entries = {ANY: given} if isinstance(given, str) else given
    keys = {tag: "model.teacher" if isinstance(given, str) else f"model.teacher.{tag}" for tag in entries}
    return {tag: _teacher(path, keys[tag], model) for tag, path in entries.items()}


def _teacher(path: str, key: str, model: ModelSource) -> TeacherSource:
    """A run folder, a checkpoint of one (`RUN/checkpoints/NAME`, `best` for the best), a served model, or a model."""
    if path.startswith(("http://", "https://")):
        return TeacherSource(path, None)
    place = Path(path).expanduser()
    folder, name = (place.parent.parent, place.name) if place.parent.name == "checkpoints" else (place, None)
    if not (folder / "run.json").is_file():
        check_path(path, key)
        return TeacherSource(path, replace(model, path=path, preset=None))
    _check_checkpoint(folder, name, key)
    record: Mapping[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    resolved = resolve(record["config"], {})
    made = world(resolved.run.env, resolved.run.world)
    own = replace(model_of(resolved), dtype=model.dtype, device=model.device, checkpointing=False)
    if own.preset is not None:
        own = replace(own, pieces=made.pieces, closed=made.closed)
    return TeacherSource(path, own, str(folder), name)


def _check_checkpoint(run: Path, name: str | None, key: str) -> None:
    """Refuse a run that has nothing to teach by, before anything is loaded."""
    place = run / "checkpoints"
    there = sorted(p.name for p in place.iterdir() if p.name.startswith("step-")) if place.is_dir() else []
    if not there:
        raise UsageError(f"{key}: the run {run} has no checkpoint; train it first, or name a model")
    if name not in (None, "best", *there):
        raise UsageError(f"{key}: the run {run} has no checkpoint {name}; it has {', '.join(there)}, and best")


def check_teachers(
    teachers: Mapping[str, TeacherSource], cut: int | None, stages: Sequence[StagePlan], made: World
) -> None:
    """Refuse teachers that nobody asks, tasks of a taught stage that have none, and a cut that would reward its gaps.

    Args:
        teachers: by tag.
        cut: `model.teacher_ids`.
        stages: of the plan.
        made: its world.

    Raises:
        UsageError: as it says.
    """
    if not teachers:
        return
    plays = any(stage.demonstrating.source == "teacher" for stage in stages)
    if not plays and not any(needs_other(stage.algorithm) for stage in stages):
        raise UsageError(
            "model.teacher has no effect: no stage has a divergence term to another model or takes its demonstrations from "
            "the teacher. Remove it, or add the term."
        )
    sampled = [stage.algorithm.sampled_divergence for stage in stages]
    if cut is not None and any(term is not None and not term.baseline for term in sampled):
        raise UsageError(
            "model.teacher_ids gives ids beyond it a credit of 0, and the others -KL(student || teacher) on average, so that "
            "sampled_divergence would teach the student to leave the shared ids. Use sampled_divergence(baseline=True)."
        )
    tags = tuple(teachers)
    asking = [s for s in stages if s.algorithm.taught or s.demonstrating.source == "teacher"]
    named = {tag_of(task, tags) for stage in asking for task in made.split(stage.split)}
    idle = [tag for tag in tags if tag not in named]
    if idle and named:
        raise UsageError(
            f"model.teacher.{idle[0]} has no effect: no task of a taught stage has this tag for its own. Remove it."
        )
