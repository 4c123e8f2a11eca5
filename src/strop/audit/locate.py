"""From a name to a subject. Invariant: a user's verifier is imported inside the sandbox only; a World is imported here, as
training would."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.audit.guarded import guarded
from strop.audit.gym import PREFIX, gym
from strop.audit.played import subject_of
from strop.audit.subject import Subject
from strop.core.errors import UsageError
from strop.core.world import World
from strop.envs.catalogue import WORLDS, nearest, world

DEMONSTRATING = 20.0
"""Seconds for finding demonstrations that succeed."""


async def locate(name: str, options: Mapping[str, Any], most: int) -> Subject:
    """The subject of a name.

    Args:
        name: a shipped world, `reasoning-gym:NAME`, `module:attribute`, a task folder (or a folder of them), or a folder
            with `verifier.py` that defines `verify`, and `tasks` in it or in `tasks.jsonl` beside it.
        options: options of a world.
        most: tasks to look at.

    Raises:
        UsageError: there is nothing of this name, or it cannot be audited.
        SandboxError: a user's verifier, and there is no sandbox.
    """
    if name.startswith(PREFIX):
        return gym(name.removeprefix(PREFIX))
    if (Path(name) / "verifier.py").is_file():
        found = await guarded("verifier:verify", most, Path(name).resolve())
        if found is None:
            raise UsageError(f"{name}/verifier.py: `verify` must be a function of (task, answer)")
        found.name = name
        return found
    if Path(name).is_dir():
        return await _played(world("folder", {"path": name, **options}), name, options, most)
    if name not in WORLDS:
        if ":" not in name:
            raise UsageError(
                f"env {name!r} is unknown; {nearest(name, tuple(WORLDS))} Or give a task folder, or 'module:attribute' of "
                "your own environment or verifier."
            )
        found = await guarded(name, most)
        if found is not None:
            if options:
                await found.close()
                raise UsageError(f"{name!r} is no World and takes no options; remove {', '.join(options)}")
            return found
    return await _played(world(name, options), name, options, most)


async def _played(made: World, name: str, options: Mapping[str, Any], most: int) -> Subject:
    subject = await subject_of(made, most, DEMONSTRATING, name)
    subject.options = dict(options)
    return subject
