"""Groups of episodes of one task. Invariant: a member that fails leaves the group, never stops it."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strop.core.engine import Codec, Engine, Sampling
from strop.core.faults import PARTIAL, Failed, Refill, Retry
from strop.core.seeds import Domain, stream_key
from strop.core.spans import OFF, SILENT, Spans, Track
from strop.core.task import Task
from strop.core.trajectory import Group, Trajectory
from strop.core.world import World
from strop.rollout.episode import NOTHING, Agent, engine_agent, judge, play
from strop.rollout.limits import Limits

MAX_SESSIONS = 1024
"""Episodes that are played at one time where many are asked for: the clock of an episode that waits for room runs."""

GRACE = 5.0
"""Seconds that a cancelled episode has to close its environment before nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class Table:
    """What all episodes of a run share: the table at which they are played.

    Args:
        world: tasks, environments and verifier.
        codec: between messages and ids.
        limits: bounds of an episode.
        append_only: see `play`.
        seed: the run's seed.
        failed: what becomes of a group when an episode of it fails.
        spans: where training episodes note who was at work when; other episodes note nothing.
    """

    world: World
    codec: Codec
    limits: Limits
    append_only: bool
    seed: int
    failed: Failed = PARTIAL
    spans: Spans = OFF

    def track(self, domain: Domain, session: str) -> Track:
        """The track of an episode. Evaluation and preflight have none: as a whole they are spans of the loop."""
        return Track(self.spans, session) if domain in ("train", "demonstrate") else SILENT


async def episode(table: Table, task: Task, agent: Agent, key: tuple[int, ...], track: Track = SILENT) -> Trajectory:
    """Play and judge one episode; a world that cannot even make its environment gives a failed trajectory."""
    try:
        with track.during("environment"):
            env = table.world.env(task, hash_key(key))
    except Exception as problem:
        failed = f"making the environment raised {type(problem).__name__}: {problem}"
        return Trajectory(task, (), NOTHING, "error", (), error=failed)
    played = await play(env, task, agent, table.codec, table.limits, table.append_only, track=track)
    with track.during("verify"):
        return await judge(table.world, played, table.limits.seconds)


def hash_key(key: tuple[int, ...]) -> int:
    """A 31-bit seed for an environment from the name of a stream."""
    out = 0
    for part in key:
        out = (out * 1_000_003 + part + 1) & 0x7FFFFFFF
    return out


async def play_group(
    table: Table, task: Task, members: int, engine: Engine, sampling: Sampling, domain: Domain, draw: int
) -> Group:
    """Play `members` episodes of one task side by side, and what `table.failed` asks for when some of them fail.

    Args:
        table: what episodes share.
        task: the task drawn.
        members: size of the group.
        engine: who samples.
        sampling: how.
        domain, draw: with seed and member they name the random streams, and the group: `train-000041`.
    """
    name, rule = f"{domain}-{draw:06d}", table.failed

    async def attempt(index: int, number: int) -> Trajectory:
        key = stream_key(table.seed, domain, draw, index)[:-1]
        again = f"#{number}" if number else ""  # an attempt has a session of its own: late answers find nobody
        session = f"{name}/{index}{again}"
        try:
            agent = engine_agent(engine, sampling, key, session)
            return await episode(table, task, agent, key, table.track(domain, session))
        finally:
            await engine.end(session)

    async def member(index: int) -> Trajectory:
        number, most = 0, rule.attempts if isinstance(rule, Retry) else 0
        while (played := await bounded(attempt(index, number), task, table.limits)).error is not None and number < most:
            number += 1
        return replace(played, attempt=number) if number else played

    played = await _together([member(i) for i in range(members)])
    if isinstance(rule, Refill):
        left = rule.most
        while left and (lacking := members - sum(t.error is None for t in played)):
            first, more = len(played), min(lacking, left)
            left -= more
            played += await _together([member(i) for i in range(first, first + more)])
    return Group(name, task, tuple(played))


async def _together(members: Sequence[Coroutine[Any, Any, Trajectory]]) -> list[Trajectory]:
    """Play side by side; if one raises (the engine is lost), nobody plays on."""
    jobs = [asyncio.create_task(member) for member in members]
    try:
        return await asyncio.gather(*jobs)
    finally:
        late = [job for job in jobs if not job.done()]
        for job in late:
            job.cancel()
        if late:
            await asyncio.wait(late, timeout=2 * GRACE)


async def bounded(playing: Coroutine[Any, Any, Trajectory], task: Task, limits: Limits) -> Trajectory:
    """Play to the end, or give up an episode that neither ends in its time nor stops when it is told to.

    Playing, judging and closing have `limits.seconds` each, and are cancelled after that; code that swallows the
    cancellation is left behind, where it can change nothing that is trained.
    """
    job = asyncio.create_task(playing)
    job.add_done_callback(_forget)
    try:
        done, _ = await asyncio.wait({job}, timeout=3 * limits.seconds + GRACE)
    except asyncio.CancelledError:
        job.cancel()
        await asyncio.wait({job}, timeout=GRACE)
        _abandon(job)
        raise
    if done and job.cancelled():  # nobody cancelled this: the world let a cancellation of its own escape
        return Trajectory(task, (), NOTHING, "error", (), error="the episode was cancelled from within")
    if done:
        return job.result()
    job.cancel()
    await asyncio.wait({job}, timeout=GRACE)
    _abandon(job)
    return Trajectory(task, (), NOTHING, "error", (), error="the episode did not stop when it was cancelled")


def _abandon(job: asyncio.Task[Trajectory]) -> None:
    """Take an episode that does not stop out of what `asyncio.run` waits for at its end."""
    if not job.done():
        asyncio._unregister_task(job)
        job._log_destroy_pending = False  # type: ignore[attr-defined]


def _forget(job: asyncio.Task[Trajectory]) -> None:
    """Take note of how an episode ended, so that asyncio does not complain where nobody asks."""
    if not job.cancelled():
        job.exception()


async def play_groups(
    table: Table, tasks: Sequence[Task], members: int, engine: Engine, sampling: Sampling, names: tuple[Domain, range]
) -> list[Group]:
    """Play a group of each task, some of them at a time; `names` holds the domain and the draw number of each."""
    domain, draws = names
    at_once = max(1, MAX_SESSIONS // members)
    groups: list[Group] = []
    for first in range(0, len(tasks), at_once):
        some = zip(tasks[first : first + at_once], draws[first : first + at_once], strict=True)
        plays = (play_group(table, task, members, engine, sampling, domain, draw) for task, draw in some)
        groups += await asyncio.gather(*plays)
    return groups


async def play_scripted(table: Table, task: Task, agents: Sequence[Agent], domain: Domain, draw: int) -> Group:
    """A group of one episode for each scripted agent (demonstrations)."""
    name = f"{domain}-{draw:06d}"
    plays = [
        episode(
            table, task, agent, stream_key(table.seed, domain, draw, member), table.track(domain, f"{name}/{member}")
        )
        for member, agent in enumerate(agents)
    ]
    return Group(name, task, tuple(await asyncio.gather(*plays)))
