"""Help for a group in which nobody succeeded: demonstrations or hinted episodes join it.

Invariant: the agent's own members stay as they were; what joins has succeeded, is marked (`Trajectory.guided`), and
carries NaN for log-probabilities wherever its tokens were not sampled from the prompt that is learned from.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import numpy as np

from strop.core.engine import Codec, Engine, Sampling
from strop.core.guide import Demonstration, Guide
from strop.core.seeds import python_random, stream_key
from strop.core.task import Env, Task
from strop.core.trajectory import Completion, Group, Trajectory
from strop.core.world import Hinted
from strop.rollout.episode import Agent, engine_agent, player_agent
from strop.rollout.group import Table, bounded, episode

TRIES = 4
"""Episodes that are played at most for each that joins; those that fail are left out."""


def all_failed(group: Group) -> bool:
    """Whether some member has a score and none has one above 0."""
    scores = [t.score for t in group.trajectories if t.score is not None]
    return bool(scores) and max(scores) <= 0


async def guided(
    table: Table, playing: Awaitable[Group], guide: Guide, engine: Engine, sampling: Sampling, draw: int
) -> Group:
    """The group when it has been played, with help if all of it failed.

    Args:
        table: what episodes share.
        playing: the group under way.
        guide: the help.
        engine, sampling: who plays with a hint, and how.
        draw: with the seed it names the random streams of the help.
    """
    group = await playing
    if not all_failed(group):
        return group
    place = range(len(group.trajectories), len(group.trajectories) + guide.count)

    async def joins(index: int) -> Trajectory | None:
        for number in range(TRIES):
            found = await _help(
                table, group, guide, (engine, sampling), stream_key(table.seed, "guide", draw, index, number)
            )
            if found is None or (found.error is None and (found.score or 0) > 0):
                return found
        return None

    helped = [t for t in await asyncio.gather(*map(joins, place)) if t is not None]
    return replace(group, trajectories=(*group.trajectories, *helped))


async def _help(
    table: Table, group: Group, guide: Guide, of: tuple[Engine, Sampling], key: tuple[int, ...]
) -> Trajectory | None:
    """One episode of help, marked; None where there is none for this task."""
    task, world = group.task, table.world
    if isinstance(guide, Demonstration):
        if world.demonstrate is None:
            return None
        agent = player_agent(world.demonstrate(task, python_random(key)), table.codec)
        played = await bounded(episode(table, task, agent, key), task, table.limits)
        return replace(played, guided="demonstration")
    solution = None if world.solution is None else world.solution(task, None)
    if solution is None:
        return None

    def opened(task: Task, seed: int) -> Env:
        return Hinted(world.env(task, seed), solution)

    shown = replace(table, world=replace(world, env=opened))
    session = f"{group.id}/hint{'.'.join(map(str, key[-2:]))}"
    played = await _sampled(shown, task, engine_agent(*of, key, session), of[0], key, session)
    if guide.keep or played.error is not None or not played.turns:
        return replace(played, guided="hint")
    return without_hint(played, solution, table.codec)


async def _sampled(
    table: Table, task: Task, agent: Agent, engine: Engine, key: tuple[int, ...], session: str
) -> Trajectory:
    try:
        return await bounded(episode(table, task, agent, key), task, table.limits)
    finally:
        await engine.end(session)


def without_hint(played: Trajectory, solution: str, codec: Codec) -> Trajectory:
    """A hinted episode as if the opening had not told the solution: the same replies behind the plain opening.

    Its log-probabilities are NaN and its versions -1: the tokens were sampled from another prompt.
    """
    first = next(i for i, message in enumerate(played.messages) if message.role == "assistant")
    *before, last = played.messages[:first]
    plain = (*before, replace(last, content=last.content.removesuffix(solution)))
    turns = [replace(turn, completion=_unsampled(turn.completion)) for turn in played.turns]
    turns[0] = replace(turns[0], context=codec.opening(plain))
    return replace(played, turns=tuple(turns), messages=(*plain, *played.messages[first:]), guided="hint")


def _unsampled(completion: Completion) -> Completion:
    n = len(completion.tokens)
    return replace(completion, logprobs=np.full(n, np.nan, np.float32), versions=np.full(n, -1, np.int32))
