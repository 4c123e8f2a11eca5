"""What a rollout leaves behind: completions, turns, trajectories, groups and rows.

Invariant: ids that an engine sampled are stored as they were sampled, once, and never encoded again; the arrays of one
row have one length by construction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from strop.core.message import Message
from strop.core.task import Task, Verdict

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

Stop = Literal["stop", "length", "abort"]
End = Literal["done", "turns", "length", "context", "timeout", "truncated", "error"]


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled for one prompt.

    Args:
        tokens: sampled ids, the stop token included when `stop == "stop"`; int32 [n].
        logprobs: natural log-probability of each under the sampled (tempered) distribution; float32 [n]. NaN where
            nobody sampled (demonstrations): using it by mistake shows at once.
        versions: policy version that sampled each; int32 [n].
        stop: `stop` (a stop id was sampled), `length` (the cap was reached), `abort` (the engine gave up).

    Example:
        `Completion(array([8, 2]), array([-2.8, -0.1]), array([3, 3]), "stop")`
    """

    tokens: Ints
    logprobs: Floats
    versions: Ints
    stop: Stop

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            lengths = (len(self.tokens), len(self.logprobs), len(self.versions))
            raise ValueError(f"a completion's tokens, logprobs and versions must have one length, got {lengths}")


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: what was appended to the context, what was sampled, and what it earned.

    Args:
        context: ids appended before sampling (observation and template scaffold). With `fresh`, the whole prompt.
        completion: what the engine sampled.
        message: the sampled text as a message (a view).
        rewards: the environment's rewards for this turn, by name.
        fresh: the history was rebuilt by the chat template, so this turn starts a new row.
    """

    context: Ints
    completion: Completion
    message: Message
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One played episode.

    Args:
        task: the task that was played.
        turns: its turns in order.
        tail: ids of the observation after the last completion (the final state, for value bootstrapping).
        end: how it ended: `done` (the task ended), `turns`, `length` (tokens), `context` (window), `timeout`,
            `truncated` (the environment cut it short) or `error`.
        messages: the transcript.
        artefacts: what the environment left for the verifier.
        verdict: the verifier's judgement, None before judging or when the rollout failed.
        error: what went wrong in the rollout, None if nothing did.
        seat: which agent played.
        parent: (trajectory id, turn) that this one branched from.
        attempt: how many attempts at this member failed before this one.
        guided: the help that it is, for a group in which nobody succeeded (`strop.core.guide`); "" for the agent's own.
    """

    task: Task
    turns: tuple[Turn, ...]
    tail: Ints
    end: End
    messages: tuple[Message, ...]
    artefacts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    verdict: Verdict | None = None
    error: str | None = None
    seat: str = "agent"
    parent: tuple[str, int] | None = None
    attempt: int = 0
    guided: Literal["", "demonstration", "hint"] = ""

    @property
    def score(self) -> float | None:
        """Success by the verifier; None when unscored."""
        return None if self.verdict is None or self.verdict.invalid else self.verdict.score

    @property
    def reward(self) -> float | None:
        """Return: score + sum of auxiliary rewards + sum of turn rewards; None when unscored."""
        if self.score is None or self.verdict is None:
            return None
        turns = sum(sum(turn.rewards.values()) for turn in self.turns)
        return self.score + sum(self.verdict.aux.values()) + turns

    @property
    def sampled_tokens(self) -> int:
        """Number of ids that were sampled in all turns."""
        return sum(len(turn.completion.tokens) for turn in self.turns)

    def judged(self, verdict: Verdict) -> "Trajectory":
        """The same trajectory with a verdict."""
        return replace(self, verdict=verdict)


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one drawn task: the unit of credit, admission and lag.

    `id` is made when the task is drawn (`train-000041`); it never depends on text or position.
    """

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def own(self) -> "Group":
        """The group without the help that joined it: what success rates count."""
        if not any(t.guided for t in self.trajectories):
            return self
        return replace(self, trajectories=tuple(t for t in self.trajectories if not t.guided))

    def rewards(self) -> list[float | None]:
        """The members' returns in order, None for unscored ones."""
        return [trajectory.reward for trajectory in self.trajectories]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row came from: group id, member of the group, and part (a trajectory may be several rows)."""

    group: str
    member: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Twin:
    """A row as a teacher sees it who is told more: another prompt, then the same ids.

    A target for a row's sampled tokens, and never part of the row: no student reads these ids.

    Args:
        tokens: ids; int32 [m].
        sampled: True where the row's sampled ids stand, in their order; bool [m].
    """

    tokens: Ints
    sampled: Bools


@dataclass(frozen=True, slots=True)
class Row:
    """A flat token sequence with a mask: all that training ever sees.

    Args:
        tokens: ids; int32 [n].
        sampled: True where the policy (or the demonstrator) chose the id; bool [n]. Only these are trained.
        behaviour_logp: log-probability when sampled, NaN elsewhere; float32 [n]. Never recomputed.
        versions: policy version that sampled each id, -1 elsewhere; int32 [n].
        turns: index of the turn that an id belongs to (context belongs to the turn it precedes); int32 [n].
        origin: where the row came from.
        columns: further per-token arrays of the same length by name (`advantage`, annotations), [n] or [n, k].
        final_value: bootstrap value of the state after the last id, for truncated trajectories.
        twin: the row as a teacher sees it who is told the solution; its sampled ids are the row's, one by one.

    Example:
        tokens `P0 P1 A0 A1 O0 A2`, sampled `0 0 1 1 0 1`, turns `0 0 0 0 1 1`.
    """

    tokens: Ints
    sampled: Bools
    behaviour_logp: Floats
    versions: Ints
    turns: Ints
    origin: Origin
    columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict[str, "npt.NDArray[Any]"])
    final_value: float | None = None
    twin: Twin | None = None

    def __post_init__(self) -> None:
        n = len(self.tokens)
        named: dict[str, Sequence[Any] | npt.NDArray[Any]] = {
            "sampled": self.sampled,
            "behaviour_logp": self.behaviour_logp,
            "versions": self.versions,
            "turns": self.turns,
            **self.columns,
        }
        wrong = {name: len(column) for name, column in named.items() if len(column) != n}
        if wrong:
            raise ValueError(f"row {self.origin}: every array must have the length of tokens ({n}); got {wrong}")
        twin = self.twin
        if twin is not None and not np.array_equal(twin.tokens[twin.sampled], self.tokens[self.sampled]):
            raise ValueError(f"row {self.origin}: the sampled ids of its twin are not its own, one by one")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def trained(self) -> int:
        """Number of sampled ids."""
        return int(self.sampled.sum())

    def with_columns(self, **columns: npt.NDArray[Any]) -> "Row":
        """The same row with more (or replaced) columns."""
        return replace(self, columns={**self.columns, **columns})
