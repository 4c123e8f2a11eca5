"""Demonstrations: episodes that another one than the policy plays or played. Invariant: they go through the same rollout and
rows, and their ids carry no log-probability and no version: the policy that learns from them did not sample them.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strop.core.engine import Engine, Sampling
from strop.core.errors import UsageError
from strop.core.seeds import Domain, draw_order, python_random, stream_key
from strop.core.task import Task
from strop.core.trajectory import Completion, Group, Ints, Stop, Trajectory, Turn
from strop.rollout.episode import player_agent
from strop.rollout.group import Table, play_group, play_scripted

Demonstrator = Callable[[Task, Domain, int, int], Coroutine[Any, Any, Group]]
"""(task, domain, draw, members) -> the group of that draw. Domain and draw name its random streams, and the group."""


def scripted(table: Table) -> Demonstrator:
    """The world's own player.

    Raises:
        UsageError: the world has none.
    """
    demonstrate = table.world.demonstrate
    if demonstrate is None:
        raise UsageError(
            f"world {table.world.name!r} has no scripted player, so it cannot give demonstrations. Remove the stage, name a "
            "file or a teacher as its `demonstrations`, or give the World a `demonstrate`."
        )

    def play(task: Task, domain: Domain, draw: int, members: int) -> Coroutine[Any, Any, Group]:
        agents = [
            player_agent(demonstrate(task, python_random(stream_key(table.seed, domain, draw, member))), table.codec)
            for member in range(members)
        ]
        return play_scripted(table, task, agents, domain, draw)

    return play


def taught(table: Table, engine: Callable[[Task], Engine], sampling: Sampling) -> Demonstrator:
    """A teacher, which plays in the same world at the same temperature (sequence-level distillation, Kim & Rush 2016).

    Args:
        table: what is played.
        engine: gives the engine that samples from the teacher of a task.
        sampling: how.
    """

    async def play(task: Task, domain: Domain, draw: int, members: int) -> Group:
        group = await play_group(table, task, members, engine(task), sampling, domain, draw)
        return replace(group, trajectories=tuple(map(unsampled, group.trajectories)))

    return play


def saved(episodes: Sequence[Trajectory], seed: int) -> Demonstrator:
    """Saved episodes. A drawn task gives the file's episodes of it, one after the other; where the file knows it not, a task
    of the file that the draw chooses takes its place."""
    of_task: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        of_task.setdefault(episode.task.id, []).append(episode)
    names = list(of_task)

    async def give(task: Task, domain: Domain, draw: int, members: int) -> Group:
        name = task.id if task.id in of_task else names[draw_order(seed, draw, len(names))]
        own = of_task[name]
        chosen = [own[draw_order(seed, draw * members + member, len(own))] for member in range(members)]
        return Group(f"{domain}-{draw:06d}", chosen[0].task, tuple(chosen))

    return give


async def demonstrations(play: Demonstrator, tasks: Sequence[Task], seed: int, draws: range) -> list[Group]:
    """Groups of one demonstration each; a draw has the task that it has in every run of this seed."""
    plays = [play(tasks[draw_order(seed, draw, len(tasks))], "demonstrate", draw, 1) for draw in draws]
    return list(await asyncio.gather(*plays))


def replayed(episodes: Sequence[Trajectory], seed: int, draws: range) -> list[Group]:
    """Saved episodes as groups of one: each epoch of draws has every episode once, in its own order."""
    chosen = [(draw, episodes[draw_order(seed, draw, len(episodes))]) for draw in draws]
    return [Group(f"demonstrate-{draw:06d}", episode.task, (episode,)) for draw, episode in chosen]


def unsampled(trajectory: Trajectory) -> Trajectory:
    """The episode as a demonstration: log-probabilities NaN, versions -1."""
    return replace(trajectory, turns=tuple(map(_unsampled, trajectory.turns)))


def _unsampled(turn: Turn) -> Turn:
    tokens = turn.completion.tokens
    return replace(turn, completion=demonstrated_completion(tokens, turn.completion.stop))


def demonstrated_completion(tokens: Ints, stop: Stop) -> Completion:
    """Ids that the policy did not sample, as a completion."""
    n = len(tokens)
    return Completion(tokens, np.full(n, np.nan, np.float32), np.full(n, -1, np.int32), stop)


def is_demonstration(group: Group) -> bool:
    """Whether the group was played by another one than the policy: it has turns, and no policy's version stands at an id."""
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    return bool(turns) and all((turn.completion.versions == -1).all() for turn in turns)
