"""Task, environment and verdict: what a user brings. Invariant: an environment gives rewards, only a verifier a score."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strop.core.message import Message

if TYPE_CHECKING:
    from strop.core.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `id` is a stable identity: curriculum, audit and resume key on it.

    Example:
        `Task("secret-11", {"secret": 11}, tags=("train",))`
    """

    id: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment answers.

    Args:
        messages: new messages for the agent (none when the episode is over and nothing is left to say).
        rewards: rewards of the agent's last message, by name. Success is not among them: that is the verifier's.
        done: the task itself has ended (terminated).
        truncated: the environment cut the episode short (bootstrapping may apply); never true together with `done`.
        info: notes for logs, never seen by the agent.
        seat: who speaks next, for worlds with several agents.
    """

    messages: tuple[Message, ...] = ()
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    done: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seat: str = "agent"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an episode went.

    Args:
        score: success, usually 0 or 1; None when it could not be told (unscored is not zero).
        checks: named checks and whether each passed.
        aux: auxiliary rewards by name; logged apart from the score, trained together with it.
        reason: one sentence for people.
        invalid: why no score could be given (verifier timed out, crashed, ...); None for a valid verdict.
        info: numbers about the judging (a judge's noise, its parts); kept in the record, never part of a reward.
    """

    score: float | None
    checks: Mapping[str, bool] = field(default_factory=dict[str, bool])
    aux: Mapping[str, float] = field(default_factory=dict[str, float])
    reason: str = ""
    invalid: str | None = None
    info: Mapping[str, float] = field(default_factory=dict[str, float])


class Env:
    """One single-use conversation about one task: `start` once, `step` per reply, `close` once.

    Subclass it and write `start` and `step`. An environment must not raise on bad model text: it answers it.
    """

    async def start(self) -> Step:
        """Give the opening messages."""
        raise NotImplementedError(f"{type(self).__name__} must define start()")

    async def step(self, message: Message) -> Step:
        """Answer one message of the agent."""
        raise NotImplementedError(f"{type(self).__name__} must define step(message)")

    def artefacts(self) -> Mapping[str, Any]:
        """What the episode leaves for the verifier (JSON values): files, final state, moves."""
        return {}

    async def close(self) -> None:
        """Free what the environment holds. Called exactly once, also after an error."""


Verifier = Callable[[Task, "Trajectory"], "Verdict | Awaitable[Verdict]"]
