"""Episodes that a run learns from more than once, in its folder: saved demonstrations, and the samples of each round.

Invariant: a file stands whole or not at all, and what is read from it is what was written, ids and numbers bit for bit, so
that a resumed run learns from what the undisturbed one learned from. Tasks are found again by their ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from strop.core.errors import UsageError
from strop.core.task import Task
from strop.core.trajectory import Group, Trajectory
from strop.core.world import World
from strop.watch import jsonl
from strop.watch.records import episode_record, trajectory_from_record
from strop.watch.run_folder import write_whole


def write_groups(path: Path, groups: Sequence[Group], step: int, stage: str) -> None:
    """Write groups to a file of JSON lines, one an episode, as in `episodes.jsonl`; a file that is there is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        jsonl.encode(episode_record(group, member, trajectory, step, stage))
        for group in groups
        for member, trajectory in enumerate(group.trajectories)
    ]
    write_whole(path, b"".join(lines))


def read_groups(path: Path, tasks: Mapping[str, Task]) -> list[Group]:
    """The groups of a file, in the order in which they were written.

    Args:
        path: what `write_groups` wrote.
        tasks: by id; a task that is not among them comes back as its id alone.

    Raises:
        UsageError: the file is gone or damaged.
    """
    try:
        found = [trajectory_from_record(orjson.loads(line)) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UsageError(
            f"{path} cannot be read ({type(problem).__name__}: {problem}), and the run learns from it. Restore it, or start a "
            "new run."
        ) from problem
    members: dict[str, list[Trajectory]] = {}
    for name, _, trajectory in found:
        task = tasks.get(trajectory.task.id, trajectory.task)
        members.setdefault(name, []).append(replace(trajectory, task=task))
    return [Group(name, own[0].task, tuple(own)) for name, own in members.items()]


def tasks_by_id(world: World, split: str) -> dict[str, Task]:
    """The tasks of all splits of a world by id; of one id, that of `split`."""
    every = {task.id: task for tasks in world.tasks.values() for task in tasks}
    return {**every, **{task.id: task for task in world.split(split)}}
