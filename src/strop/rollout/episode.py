"""One episode: an agent against an environment, token by token.

Invariant: the prompt of a turn is the earlier ids + the sampled ids + the ids of the new messages; nothing that was
sampled is encoded again. What goes wrong inside an episode becomes data (`end`, `error`), never an exception.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from strop.core.engine import Codec, Engine, Sampling
from strop.core.errors import EngineLost, UsageError
from strop.core.message import Message
from strop.core.spans import SILENT, Track
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Completion, End, Ints, Trajectory, Turn
from strop.core.world import Player, World
from strop.rollout.limits import Limits

Agent = Callable[[Ints, Sequence[Message], int, int], Awaitable[Completion]]
"""(prompt ids, messages so far, turn, most tokens) -> completion. A rollout needs no more of an agent than this."""

NOTHING = np.zeros(0, dtype=np.int32)


def engine_agent(engine: Engine, sampling: Sampling, key: tuple[int, ...], session: str) -> Agent:
    """An agent that samples from an engine; `key` names its random stream, to which the turn is added."""

    async def act(prompt: Ints, messages: Sequence[Message], turn: int, most: int) -> Completion:
        bounded = Sampling(most, sampling.temperature, sampling.top_p, sampling.top_k)
        return await engine.sample(prompt, bounded, (*key, turn), session)

    return act


def player_agent(player: Player, codec: Codec) -> Agent:
    """An agent that is a scripted player: its tokens are those of its text and carry no log-probability."""

    async def act(prompt: Ints, messages: Sequence[Message], turn: int, most: int) -> Completion:
        tokens = codec.reply(player(messages))
        kept = tokens[:most]
        stop = "stop" if len(kept) == len(tokens) else "length"
        return Completion(kept, np.full(len(kept), np.nan, np.float32), np.full(len(kept), -1, np.int32), stop)

    return act


@dataclass(slots=True)
class Conversation:
    """The state of an episode while it is played: ids so far and the transcript; its `track` says who was at work when."""

    codec: Codec
    ids: list[int]
    messages: list[Message]
    turns: list[Turn]
    context: Ints
    append_only: bool
    track: Track = SILENT
    sampled: int = 0

    def observe(self, messages: Sequence[Message]) -> None:
        """Append what the environment said, or rebuild the history where the template asks for it."""
        self.messages.extend(messages)
        if self.turns and self.append_only:
            self.prompt(self.codec.extension(messages, self.turns[-1].completion), fresh=False)
        else:
            self.prompt(self.codec.opening(self.messages), fresh=True)

    def prompt(self, context: Ints, fresh: bool) -> None:
        """Put these ids before the next reply: behind all that is there, or with `fresh` in its place."""
        self.context = context
        if fresh:
            self.ids = context.tolist()
        else:
            self.ids.extend(context.tolist())

    def reply(self, completion: Completion) -> Message:
        """Take in a completion and return its text view."""
        message = Message("assistant", self.codec.text(completion))
        fresh = bool(self.turns) and not self.append_only
        return self._keep(Turn(self.context, completion, message, fresh=fresh))

    def recall(self, turn: Turn) -> Message:
        """Take in a turn that was played before, with its stored ids, and return its text view."""
        self.prompt(turn.context, turn.fresh)
        return self._keep(turn)

    def _keep(self, turn: Turn) -> Message:
        self.turns.append(turn)
        self.messages.append(turn.message)
        self.ids.extend(turn.completion.tokens.tolist())
        self.sampled += len(turn.completion.tokens)
        self.context = NOTHING
        return turn.message

    def credit(self, step: Step) -> None:
        """Write the environment's rewards to the turn that earned them; one that is not finite ends the episode."""
        for name, value in step.rewards.items():
            if not np.isfinite(value):
                raise ValueError(f"the environment gave the reward {name} = {value}")
        if step.rewards:
            last = self.turns[-1]
            self.turns[-1] = Turn(last.context, last.completion, last.message, dict(step.rewards), last.fresh)


Begin = Callable[[Env, Conversation], Awaitable[Step]]
"""(fresh environment, empty conversation) -> the step in hand when the agent is first asked, already observed."""


class ReplayError(UsageError):
    """An environment does not repeat itself where it must: the world is at fault, so this is no episode's data."""


async def begin_anew(env: Env, talk: Conversation) -> Step:
    """Start an episode at its opening."""
    with talk.track.during("environment"):
        step = await env.start()
    talk.observe(step.messages)
    return step


async def play(
    env: Env,
    task: Task,
    agent: Agent,
    codec: Codec,
    limits: Limits,
    append_only: bool,
    begin: Begin = begin_anew,
    track: Track = SILENT,
) -> Trajectory:
    """Play one episode to its end and close the environment. Never raises for what happens inside it; the loss of the
    engine (`EngineLost`) does not: it is passed on.

    Args:
        env: a fresh environment for the task.
        task: the task.
        agent: who plays.
        codec: between messages and ids.
        limits: when to stop.
        append_only: append for ever, or rebuild the history for every turn (each turn is then its own row).
        begin: what comes before the agent is first asked; a replay may raise `ReplayError`, which is passed on.
        track: where the time goes.
    """
    talk = Conversation(codec, [], [], [], NOTHING, append_only, track)
    end: End = "error"
    error: str | None = None
    artefacts = {}
    try:
        end = await _timed(env, agent, talk, limits, begin)
        artefacts = dict(env.artefacts())
    except (ReplayError, EngineLost):
        raise
    except Exception as problem:  # a bad rollout is data: the group goes on without it, and it is counted
        end, error = "error", f"{type(problem).__name__}: {problem}"
    finally:  # also when the episode is cancelled
        with track.during("environment"):
            closing = await _close(env, limits.seconds)
    if closing is not None:
        end, error = "error", error or closing
    return Trajectory(task, tuple(talk.turns), talk.context, end, tuple(talk.messages), artefacts, error=error)


async def _timed(env: Env, agent: Agent, talk: Conversation, limits: Limits, begin: Begin) -> End:
    """Play within the wall time; a `TimeoutError` of the environment's own is its error, not the limit."""
    clock = asyncio.timeout(limits.seconds)
    try:
        async with clock:
            end = await _turns(env, agent, talk, limits, begin)
    except TimeoutError:
        if not clock.expired():
            raise
        return "timeout"
    return "timeout" if clock.expired() else end


async def _answered(call: Awaitable[Step], seconds: float) -> Step:
    """The environment's answer, if it comes in time; one that comes after a cancellation that was swallowed does not."""
    clock = asyncio.timeout(seconds)
    late = f"the environment gave no answer within {seconds:g} s (rollout.step_seconds)"
    try:
        async with clock:
            step = await call
    except TimeoutError:
        if not clock.expired():
            raise
        raise RuntimeError(late) from None
    if clock.expired():
        raise RuntimeError(late)
    return step


async def _close(env: Env, seconds: float) -> str | None:
    """Close an environment; what went wrong, if anything did."""
    try:
        async with asyncio.timeout(seconds):
            await env.close()
    except Exception as problem:
        return f"closing the environment raised {type(problem).__name__}: {problem}"
    return None


async def _turns(env: Env, agent: Agent, talk: Conversation, limits: Limits, begin: Begin) -> End:
    opening = begin(env, talk)
    step = await (_answered(opening, limits.step_seconds) if begin is begin_anew else opening)  # a replay is many calls
    while not (step.done or step.truncated):
        if len(talk.turns) >= limits.turns:
            return "turns"
        most, limit = limits.room(talk.sampled, len(talk.ids))
        if most <= 0:
            return cast(End, limit)
        prompt = np.array(talk.ids, dtype=np.int32)
        with talk.track.during("generate"):
            completion = await agent(prompt, talk.messages, len(talk.turns), most)
        if completion.stop == "abort":
            raise RuntimeError("the engine aborted the completion")
        reply = talk.reply(completion)
        with talk.track.during("environment"):
            step = await _answered(env.step(reply), limits.step_seconds)
        talk.credit(step)
        if step.messages and not (step.done or step.truncated):
            talk.observe(step.messages)
        elif not (step.done or step.truncated):
            raise RuntimeError("the environment is not done and gave no message; the agent has nothing to answer")
        elif step.messages:
            talk.messages.extend(step.messages)
            talk.context = talk.codec.extension(step.messages, completion) if talk.append_only else NOTHING
    return "done" if step.done else "truncated"


async def judge(world: World, trajectory: Trajectory, seconds: float | None = None) -> Trajectory:
    """Ask the world's verifier. A failed rollout stays unjudged; a verifier that raises gives an invalid verdict.

    Args:
        world: whose verifier to ask.
        trajectory: what was played.
        seconds: wall time that the verifier may take while it waits; None for no limit.
    """
    if trajectory.error is not None or not trajectory.turns:
        return trajectory
    try:
        async with asyncio.timeout(seconds):
            given: Any = world.verify(trajectory.task, trajectory)
            verdict: Any = await given if inspect.isawaitable(given) else given
        return trajectory.judged(_valid(verdict))
    except EngineLost:  # of a judge that is a model
        raise
    except Exception as problem:  # "could not tell" is not "wrong"
        return trajectory.judged(Verdict(None, invalid=f"verifier raised {type(problem).__name__}: {problem}"))


def _valid(verdict: Any) -> Verdict:
    """The verdict, made invalid where a number in it is none: NaN would spread over the whole batch."""
    if not isinstance(verdict, Verdict):
        return Verdict(None, invalid=f"verifier returned {type(verdict).__name__}, not a Verdict")
    numbers = {"the score": verdict.score, **{f"aux {name}": value for name, value in verdict.aux.items()}}
    for name, value in numbers.items():
        if value is not None and not np.isfinite(value):
            return Verdict(None, invalid=f"verifier returned {name} {value}")
    return verdict
