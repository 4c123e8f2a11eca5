"""Monte-Carlo continuations from the middle of a trajectory, and the values of its states that they estimate.

VinePPO (Kazemnejad 2410.01679, section 4) plays on from a state of a text; here a state has an environment too, which is
made anew with its seed and fed the stored replies. Invariant: a continuation stands behind the ids that were stored and
before an environment that has answered as it did the first time, or it is refused; its random streams are its own.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from strop.core.engine import Engine, Sampling
from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.seeds import DOMAINS, Domain, stream_key
from strop.core.task import Env, Step
from strop.core.trajectory import Group, Trajectory
from strop.credit.outcome import outcome
from strop.credit.returns import reward_to_go
from strop.rollout.episode import NOTHING, Agent, Conversation, ReplayError, engine_agent, judge, play
from strop.rollout.group import MAX_SESSIONS, Table, hash_key

Place = tuple[Domain, int, int]
"""(domain, draw, member): how `play_group` names an episode, and so the seed of its environment."""

SHOWN = 200
"""Characters of an answer that an error message quotes."""

_T = TypeVar("_T")


async def continuations(
    table: Table,
    trajectory: Trajectory,
    turn: int,
    count: int,
    engine: Engine,
    sampling: Sampling,
    place: Place,
) -> list[Trajectory]:
    """Play `count` episodes that share the first `turn` turns with a trajectory and go on freely, side by side.

    The environment is the same in each, chance of its own included: what varies is what the agent samples. All limits
    count the shared turns. What goes wrong with a continuation is data, as in `play`; one whose time ran out before it
    had a turn of its own is not judged.

    Args:
        table: what the trajectory was played with.
        trajectory: as `play_group` left it, or as a record of it was read with its task.
        turn: turns to share. 0 starts from the opening. The number of turns is the state after the last observation: it
            goes on where a limit (to be raised in `table`) or the environment cut the episode short.
        count: continuations, at least 1.
        engine: who samples.
        sampling: how.
        place: of the trajectory. With the seed, `turn` and its own index it names the streams of a continuation.

    Returns:
        Judged trajectories that begin with the very turns of the original; `parent` is (`train-000041/3`, turn).

    Raises:
        UsageError: the trajectory has no such state; or `ReplayError`: the environment answers the stored replies
            otherwise than it did, so that the state cannot be had again.
    """
    _check(trajectory, turn, count)
    domain, draw, member = place
    replay = _Replay(table.world.name, f"{domain}-{draw:06d}/{member}", trajectory, turn)
    seed = hash_key(stream_key(table.seed, domain, draw, member)[:-1])

    async def one(index: int) -> Trajectory:
        key = (*stream_key(table.seed, "branch", draw, member, turn), index)
        session = f"{replay.name}@{turn}/{index}"
        try:
            return await _continue(table, replay, seed, engine_agent(engine, sampling, key, session))
        finally:
            await engine.end(session)

    return await _together([one(index) for index in range(count)])


async def branch_values(
    table: Table, group: Group, count: int, engine: Engine, sampling: Sampling, discount: float = 1.0
) -> list[list[float | None]]:
    """V(h_k), the value of the state before turn k, for every turn of every scored member: a mean over continuations.

    A continuation counts sum over j >= k of discount^(j - k) r_j, its score and auxiliary rewards with its last turn
    (`reward_to_go`). Members with one opening have state 0 in common: it is sampled once, as the first scored member's.
    An estimate knows nothing of what the member did from turn k on, so as a baseline it adds no bias. Where the
    environment has chance of its own, that is as in the member's episode: the seed is the same.

    Args:
        table: what the group was played with.
        group: as `play_group` left it; its id names the streams.
        count: continuations of a state. All of a group are played at once, up to `MAX_SESSIONS`.
        engine: who samples.
        sampling: how.
        discount: per turn, 1 for none.

    Returns:
        By member, by turn; None where no continuation could be scored, an empty list for a member without a score.

    Raises:
        UsageError: as `continuations`, or the group's id names no draw.
    """
    domain, draw = _drawn(group.id)
    scored = {m: t for m, t in enumerate(group.trajectories) if t.score is not None and t.turns}
    openings: dict[bytes, int] = {}
    first = {m: openings.setdefault(t.turns[0].context.tobytes(), m) for m, t in scored.items()}
    states = [(m, k) for m, t in scored.items() for k in range(len(t.turns)) if k > 0 or first[m] == m]
    room = asyncio.Semaphore(max(1, MAX_SESSIONS // max(1, count)))

    async def value(member: int, turn: int) -> float | None:
        async with room:
            place = (domain, draw, member)
            played = await continuations(table, scored[member], turn, count, engine, sampling, place)
        return _mean_to_go(played, turn, discount)

    values = dict(zip(states, await _together([value(*state) for state in states]), strict=True))
    found: list[list[float | None]] = [[] for _ in group.trajectories]
    for member, trajectory in scored.items():
        found[member] = [values[member if k else first[member], k] for k in range(len(trajectory.turns))]
    return found


@dataclass(frozen=True, slots=True)
class _Replay:
    """The way back to a state: a fresh environment is fed the stored replies and must answer as it did."""

    world: str
    name: str
    trajectory: Trajectory
    turn: int

    async def begin(self, env: Env, talk: Conversation) -> Step:
        """Lead environment and conversation to the state; ids are taken as they were stored (see `play`)."""
        turns, tail = self.trajectory.turns, self.trajectory.tail
        step = await env.start()
        self._compare(step, talk, 0)
        for k, past in enumerate(turns[: self.turn], 1):
            step = await env.step(talk.recall(past))
            if dict(step.rewards) != dict(past.rewards):
                raise self._differs(k, f"rewards {dict(past.rewards)}", f"rewards {dict(step.rewards)}")
            self._compare(step, talk, k)
        if self.turn < len(turns):
            talk.prompt(turns[self.turn].context, turns[self.turn].fresh)
        elif len(tail):
            talk.prompt(tail, fresh=not talk.append_only)
        else:  # cut short by the environment where histories are rebuilt: nobody has encoded this state yet
            talk.observe(())
        return replace(step, truncated=False)

    def _compare(self, step: Step, talk: Conversation, k: int) -> None:
        """Take in what the environment said before turn k (or behind the last), if it is what it said then."""
        told, turns, at = self.trajectory.messages, self.trajectory.turns, len(talk.messages)
        talk.messages.extend(step.messages)
        last = k == len(turns)
        cut = last and self.trajectory.end == "truncated"
        if (step.done, step.truncated) != (False, cut):
            raise self._differs(k, f"done=False, truncated={cut}", f"done={step.done}, truncated={step.truncated}")
        said = list(step.messages) if last else [*step.messages, turns[k].message]  # no more and no less was answered
        before = told[at:] if last else told[at : at + len(said)]
        if [(m.role, m.content) for m in said] != [(m.role, m.content) for m in before]:
            raise self._differs(k, _quote(before), _quote(said))

    def _differs(self, k: int, before: str, now: str) -> ReplayError:
        answer = "the opening" if k == 0 else f"the answer to turn {k - 1}"
        return ReplayError(
            f"world {self.world} does not replay: {answer} of {self.name} was {before} and is now {now}. The world is "
            "not deterministic for its seed, so Monte-Carlo values are not available. Let it draw all chance from the "
            "seed that it is given, or use a critic."
        )


async def _continue(table: Table, replay: _Replay, seed: int, agent: Agent) -> Trajectory:
    """Play and judge one continuation."""
    task, parent = replay.trajectory.task, (replay.name, replay.turn)
    try:
        env = table.world.env(task, seed)
    except Exception as problem:
        failed = f"making the environment raised {type(problem).__name__}: {problem}"
        return Trajectory(task, (), NOTHING, "error", (), error=failed, parent=parent)
    played = await play(env, task, agent, table.codec, table.limits, table.append_only, replay.begin)
    branched = replace(played, parent=parent)
    if branched.end == "timeout" and len(branched.turns) <= replay.turn:
        return branched  # the original's turns, or some of them: nothing was done that could be judged
    return await judge(table.world, branched, table.limits.seconds)


async def _together(jobs: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Results of all; if one raises, the others are cancelled and its exception is raised."""
    try:
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(job) for job in jobs]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _check(trajectory: Trajectory, turn: int, count: int) -> None:
    """Refuse states that the trajectory does not have."""
    if count < 1:
        raise UsageError(f"count is {count}; a state needs at least 1 continuation")
    turns, told = trajectory.turns, trajectory.messages
    unanswered = bool(told) and (not turns or told[-1] != turns[-1].message)
    states = len(turns) + (unanswered and trajectory.end not in ("done", "error"))
    if not 0 <= turn < states:
        allowed = f"0 to {states - 1} are allowed" if states else "it has no state to go on from"
        raise UsageError(
            f"turn is {turn}; the trajectory has {len(turns)} turns and ended as {trajectory.end}: {allowed}"
        )


def _drawn(group: str) -> tuple[Domain, int]:
    """Domain and draw number of a group's id."""
    name, _, draw = group.rpartition("-")
    for domain in DOMAINS:
        if domain == name and draw.isdecimal():
            return domain, int(draw)
    raise UsageError(f"group {group!r} names no draw; it must be as `play_group` writes it, such as train-000041")


def _mean_to_go(played: Sequence[Trajectory], turn: int, discount: float) -> float | None:
    """Mean return from a turn on over the scored continuations; None if there are none."""
    returns: list[float] = []
    for end in map(outcome, played):
        if end.final is not None:
            rest = reward_to_go(end.turn_rewards[turn:], end.final, discount)
            returns.append(float(rest[0]) if len(rest) else end.final)
    return sum(returns) / len(returns) if returns else None


def _quote(messages: Sequence[Message]) -> str:
    text = repr([(message.role, message.content) for message in messages])
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
