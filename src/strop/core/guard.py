"""The rules of the guard, as frozen data, and what a rule says when it trips. Invariant: a rule is a limit and an action;
what it compares is in one place (`learn/inspect.py` before an update, `watch/guard.py` after a step).

Rules on an update see it before it is applied, so that they can leave it out (`skip`) or bound it (`cap`); with `stop` and
`rollback` they leave it out as well. Rules on a step see what was logged of it: the step is taken then.
"""

from dataclasses import dataclass
from typing import Literal

from strop.core.trajectory import Origin

Late = Literal["note", "stop", "rollback"]
Early = Literal["note", "skip", "stop", "rollback"]
Capping = Literal["note", "cap", "skip", "stop", "rollback"]
Action = Capping

LASTING = 10
"""Steps over which `signal` takes its mean."""


@dataclass(frozen=True, slots=True)
class WeightAbove:
    """Update: the largest importance weight of a token that moves the update is above `limit`.

    The weight is correction x ratio, as the algorithm uses it (of the token, the turn, the trajectory, ...), after a clip
    that bounds it. A token that clipping took has no gradient and is not looked at.
    """

    limit: float = 1000.0
    action: Early = "note"


@dataclass(frozen=True, slots=True)
class EffectiveBelow:
    """Update: (sum w)^2 / (n sum w^2) over the weights w of the n tokens that move it is below `limit` (Kish)."""

    limit: float = 0.05
    action: Early = "note"


@dataclass(frozen=True, slots=True)
class GradientAbove:
    """Update: the policy's gradient norm is above `limit` times the median of up to 32 updates before it (at least 8)."""

    limit: float = 20.0
    action: Early = "note"


@dataclass(frozen=True, slots=True)
class ShareAbove:
    """Update: one trajectory carries more than `limit` of sum |dL/dlogp|; see `learn/inspect.py` for when it applies.

    A token is part of its trajectory, so that this bounds tokens too. `cap` scales the trajectory's advantage.
    """

    limit: float = 0.5
    action: Capping = "note"


@dataclass(frozen=True, slots=True)
class ClippedAbove:
    """Step: the share of trained tokens that clipping took or bounded is above `limit`."""

    limit: float = 0.5
    action: Late = "note"


@dataclass(frozen=True, slots=True)
class KLAbove:
    """Step: the KL to the reference policy, a token mean, is above `limit` (only where an algorithm has a KL term)."""

    limit: float = 1.0
    action: Late = "note"


@dataclass(frozen=True, slots=True)
class EntropyBelow:
    """Step: the mean entropy of the policy at the trained tokens is below `limit`, in nats."""

    limit: float = 0.01
    action: Late = "note"


@dataclass(frozen=True, slots=True)
class EntropyAbove:
    """Step: the mean entropy is above `limit` times that of the stage's first 5 steps."""

    limit: float = 3.0
    action: Late = "note"


@dataclass(frozen=True, slots=True)
class RepetitionAbove:
    """Step: one token is more than `limit` of all that was sampled (ends of turns left out), and was not at the start."""

    limit: float = 0.9
    action: Late = "note"


@dataclass(frozen=True, slots=True)
class LengthAbove:
    """Step: sampled tokens an episode are above `limit` times those of the stage's first 5 steps."""

    limit: float = 3.0
    action: Late = "note"


@dataclass(frozen=True, slots=True)
class LengthBelow:
    """Step: sampled tokens an episode are below `limit` times those of the stage's first 5 steps."""

    limit: float = 0.3
    action: Late = "note"


@dataclass(frozen=True, slots=True)
class SignalBelow:
    """Step: the share of trajectories with an advantage that is not 0, over the newest 10 steps, is below `limit`."""

    limit: float = 0.02
    action: Late = "note"


@dataclass(frozen=True, slots=True)
class NoSuccess:
    """Step: for more than `steps` steps in a row no episode succeeded: nothing can pull the policy back."""

    steps: int = 20
    action: Late = "note"


@dataclass(frozen=True, slots=True)
class MismatchAbove:
    """Step: engine and learner differ by more than `limit` in a log-probability on fresh data (lag 0, first update)."""

    limit: float = 0.5
    action: Late = "note"


OnUpdate = WeightAbove | EffectiveBelow | GradientAbove | ShareAbove
OnStep = (
    ClippedAbove
    | KLAbove
    | EntropyBelow
    | EntropyAbove
    | RepetitionAbove
    | LengthAbove
    | LengthBelow
    | SignalBelow
    | NoSuccess
    | MismatchAbove
)
Rule = OnUpdate | OnStep

DEFAULT: tuple[Rule, ...] = (
    WeightAbove(action="skip"),
    EffectiveBelow(),
    GradientAbove(),
    ShareAbove(),
    ClippedAbove(),
    KLAbove(),
    EntropyBelow(),
    EntropyAbove(),
    RepetitionAbove(),
    LengthAbove(),
    LengthBelow(),
    SignalBelow(),
    NoSuccess(),
    MismatchAbove(),
)
"""The rules of a run that names none. Only the first one acts: a token that counts a thousand times, which no clip bounds,
says nothing about the batch, and clipping the gradient's norm keeps its direction. The others depend on the task."""


@dataclass(frozen=True, slots=True)
class Trip:
    """A rule that tripped.

    Args:
        rule: its name in run files.
        value, limit: what was compared.
        action: what follows.
        sentence: what was seen, for people.
        origin: the row of the token that did it, for rules on an update.
        position: index of that token in its row.
        update: number of the update in its step, from 0.
    """

    rule: str
    value: float
    limit: float
    action: Action
    sentence: str
    origin: Origin | None = None
    position: int = -1
    update: int = 0
