"""The parts that algorithms are made of, as frozen data. Invariant: parts say what, `credit/` and `objective/` say how.

An algorithm is credit x importance ratio x clip x aggregation, plus terms. The dispatch over each kind of part is in one
place, next to the formulas.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MovingAverage:
    """Baseline b <- decay b + (1 - decay) R, used before it takes the return in (Williams 1992, section 4)."""

    decay: float = 0.95
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class RewardToGo:
    """A_k = sum of the rewards from turn k on - baseline; every token of turn k gets A_k (Williams 1992, section 5)."""

    baseline: float | MovingAverage = 0.0
    discount: float = 1.0


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """A_i = R_i - mean of the others' returns (RLOO, 2402.14740)."""


@dataclass(frozen=True, slots=True)
class GroupMean:
    """A_i = R_i - mean of the group, divided by the group's standard deviation if `scale` names one (2402.03300, 4.1.2)."""

    scale: Literal["population", "sample"] | None = None


@dataclass(frozen=True, slots=True)
class Above:
    """Credit 1 where the return is strictly above the threshold; the rest is not trained on (ReST's F, 2308.08998)."""

    threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class One:
    """Credit 1 for every sampled token: imitation."""


Credit = RewardToGo | LeaveOneOut | GroupMean | Above | One


@dataclass(frozen=True, slots=True)
class NoRatio:
    """No importance ratio: the data is taken as on-policy."""


@dataclass(frozen=True, slots=True)
class TokenRatio:
    """r_t = pi(u_t|h_t) / behaviour(u_t|h_t), each token on its own (1707.06347)."""


Ratio = NoRatio | TokenRatio


@dataclass(frozen=True, slots=True)
class NoClip:
    """No clipping."""


@dataclass(frozen=True, slots=True)
class PPOClip:
    """min(r A, clip(r, 1 - low, 1 + high) A) (1707.06347, eq. 7)."""

    low: float = 0.2
    high: float = 0.2


Clip = NoClip | PPOClip


@dataclass(frozen=True, slots=True)
class TokenMean:
    """Sum over tokens / all trained tokens of the optimizer step."""


@dataclass(frozen=True, slots=True)
class SeqMeanTokenMean:
    """Mean over trajectories of the mean over their tokens."""


@dataclass(frozen=True, slots=True)
class SeqMeanTokenSum:
    """Mean over trajectories of the sum over their tokens."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Sum over tokens / (trajectories x length) (2503.20783).

    `length` is the most tokens that a trajectory may sample; a row of the table leaves it open and a run fills it in.
    """

    length: float | None = None


Aggregate = TokenMean | SeqMeanTokenMean | SeqMeanTokenSum | Constant


@dataclass(frozen=True, slots=True)
class Schedule:
    """A coefficient that goes linearly from `start` to `end` over a stage."""

    start: float
    end: float

    def at(self, progress: float) -> float:
        """Value at a share of the stage, 0 to 1."""
        return self.start + (self.end - self.start) * min(max(progress, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Entropy:
    """- coefficient x mean entropy over the trained tokens (always their token mean), at the sampling temperature."""

    coefficient: Schedule


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """coefficient x cross-entropy on the tokens that were not sampled (observations), with its own token mean."""

    coefficient: float


Term = Entropy | CrossEntropy
Data = Literal["on_policy", "demonstrations", "rounds"]
Admit = Literal["all"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row of the table.

    Args:
        credit, ratio, clip, aggregate: the four parts of the policy-gradient term.
        terms: further terms, each with its own mask and normaliser.
        admit: which groups are trained on.
        updates: optimizer steps per batch in the paper's setting.
        data: where rows come from: `on_policy` groups, `demonstrations`, or `rounds` (sampled, filtered, imitated).
        source: paper, section and the setting that the row stands for.
    """

    credit: Credit
    ratio: Ratio
    clip: Clip
    aggregate: Aggregate
    source: str
    terms: tuple[Term, ...] = ()
    admit: Admit = "all"
    updates: int = 1
    data: Data = "on_policy"
