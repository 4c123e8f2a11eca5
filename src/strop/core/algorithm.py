"""The parts that algorithms are made of, as frozen data. Invariant: parts say what, `credit/`, `objective/` and `learn/`
say how; a part is written in a run file as it is printed (`core/notation.py`).

An algorithm is credit x importance ratio x clip x aggregation, plus terms. The dispatch over each kind of part is in one
place, next to the formulas.
"""

from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["token", "turn"]


@dataclass(frozen=True, slots=True)
class MovingAverage:
    """Baseline b <- decay b + (1 - decay) R, used before it takes the return in (Williams 1992, section 4)."""

    decay: float = 0.95
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class Critic:
    """A value function V(h_t), read where token t is predicted, and how it is trained.

    Args:
        kind: `separate` (a body of its own, Ouyang 2022 C.4), `stopgrad` (a linear head on the policy's body, which the
            value loss does not reach; Ranzato 2016, 3.2.1) or `shared` (both losses train the body; 1707.06347, eq. 9).
        loss: `squared`, `clipped` (max of both squares, change bounded by `bound`) or `bce` (values in [0, 1]).
        coefficient: weight of the value loss (a token mean).
        warmup: first updates of the stage in which only the critic learns (VAPO 2504.05118). Use 0 with `shared`:
            there the value loss alone pulls the policy's body apart (measured in `docs/credit.md`).
        rate: learning rate of the critic's own weights, as a multiple of the policy's.
        start: `zero` (V = 0 at first) or `process` (head and body of the process reward model, which was trained at the last
            token of a turn, while V is read where the next token is predicted).
        bound: of the clipped loss.
    """

    kind: Literal["separate", "stopgrad", "shared"] = "separate"
    loss: Literal["squared", "clipped", "bce"] = "squared"
    coefficient: float = 0.5
    warmup: int = 0
    rate: float = 1.0
    start: Literal["zero", "process"] = "zero"
    bound: float = 0.2


@dataclass(frozen=True, slots=True)
class RewardToGo:
    """A = sum of the rewards from here on - baseline (Williams 1992, section 5).

    `level` turn: every token of turn k gets R_k, discounts count turns. `level` token: rewards sit on the last token of
    the turn that earned them, discounts count tokens (credit then depends on how a turn was tokenised).
    """

    baseline: float | MovingAverage = 0.0
    discount: float = 1.0
    level: Level = "turn"


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """A_i = R_i - mean of the others' returns (RLOO, 2402.14740)."""


@dataclass(frozen=True, slots=True)
class TurnLeaveOneOut:
    """A_ik = R_ik - mean over the others of R_jk: each turn's return from here on against the group's from the same turn.

    R_jk is 0 once member j has ended: that is its return from there on. The baseline does not depend on what member i does, so
    that the gradient is that of reward-to-go (Williams 1992, section 5) with less noise. `scale` divides by the population
    deviation of the members' whole returns, as GRPO does.
    """

    scale: Literal["population"] | None = None


@dataclass(frozen=True, slots=True)
class GroupMean:
    """A_i = R_i - mean of the group, over a standard deviation if `scale` names one (2402.03300, 4.1.2).

    `population` and `sample` are those of the group; `batch` is the sample deviation of all returns of the batch.
    """

    scale: Literal["population", "sample", "batch"] | None = None


@dataclass(frozen=True, slots=True)
class BatchMean:
    """A_i = (R_i - mean of the batch) / population deviation of the batch (REINFORCE++, 2501.03262)."""


@dataclass(frozen=True, slots=True)
class GAE:
    """Generalised advantage estimation on the sampled tokens, or on turns (1506.02438, eq. 16); lam = 0 is the TD error.

    Observations neither decay nor add. Truncated episodes bootstrap from the value of their last state.
    """

    lam: float = 1.0
    discount: float = 1.0
    level: Level = "token"
    critic: Critic = Critic()


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """GAE on turns with values that are means over `count` continuations from each turn (VinePPO, 2410.01679)."""

    count: int = 4
    lam: float = 0.0
    discount: float = 1.0


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Process scores, normalised over all turns of the group, summed from the turn on (2402.03300, 4.1.3)."""


@dataclass(frozen=True, slots=True)
class Above:
    """Credit 1 where the verifier's score is strictly above the threshold; the rest is not trained on (ReST's F,
    2308.08998). Auxiliary rewards do not count: they would let failures in."""

    threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class One:
    """Credit 1 for every sampled token: imitation."""


@dataclass(frozen=True, slots=True)
class Zero:
    """No credit: only the terms train."""


Credit = (
    RewardToGo | LeaveOneOut | TurnLeaveOneOut | GroupMean | BatchMean | GAE | MonteCarlo | ProcessGroup | Above | One | Zero
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NoRatio:
    """No importance ratio: the data is taken as on-policy."""


@dataclass(frozen=True, slots=True)
class TokenRatio:
    """r_t = pi(u_t|h_t) / old(u_t|h_t), each token on its own (1707.06347)."""


@dataclass(frozen=True, slots=True)
class TurnRatio:
    """The product of the token ratios of a turn: the turn is the action."""


@dataclass(frozen=True, slots=True)
class PrefixRatio:
    """rho_t = product of the token ratios up to t; the gradient flows through token t only (CTPO, 2605.07331)."""


@dataclass(frozen=True, slots=True)
class TrajectoryRatio:
    """The product of all token ratios of the trajectory."""


@dataclass(frozen=True, slots=True)
class SequenceRatio:
    """s_i = geometric mean of the token ratios (GSPO, 2507.18071).

    `sequence`: one action, which gets the mean of its tokens' credit. `token`: each token keeps its own (GSPO-token).
    """

    form: Literal["sequence", "token"] = "sequence"


Ratio = NoRatio | TokenRatio | TurnRatio | PrefixRatio | TrajectoryRatio | SequenceRatio


@dataclass(frozen=True, slots=True)
class NoClip:
    """No clipping."""


@dataclass(frozen=True, slots=True)
class PPOClip:
    """min(r A, clip(r, 1 - low, 1 + high) A) (1707.06347, eq. 7); `dual` c > 1 bounds A < 0 by c A (1912.09729)."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None


@dataclass(frozen=True, slots=True)
class WeightClip:
    """sg(clip(r, low, high)) A log pi: the ratio is a weight, no token loses its gradient (CISPO, 2506.13585, eq. 4).

    Bounds are absolute: high = 5 is a cap of 5 (ScaleRL, 2510.13786); the paper's is 1 + eps_high, without a lower one.
    """

    low: float = 0.0
    high: float | None = None


@dataclass(frozen=True, slots=True)
class GrowingClip:
    """PPO's clip with bounds exp(-low t^power) and exp(high t^power), t the trained token's number from 1 (CTPO).

    `dual` d bounds A < 0 by exp(d t^power) A.
    """

    low: float = 0.025
    high: float = 0.05
    power: float = 0.5
    dual: float | None = None


@dataclass(frozen=True, slots=True)
class MaskClip:
    """Drops a token that moved by more than `delta` in probability in the direction of A (DPPO's binary TV)."""

    delta: float = 0.2


@dataclass(frozen=True, slots=True)
class SoftGate:
    """-A sigmoid(tau (r - 1)) 4 / tau: a gate in place of a clip (SAPO, 2511.20347)."""

    positive: float = 1.0
    negative: float = 1.05


Clip = NoClip | PPOClip | WeightClip | GrowingClip | MaskClip | SoftGate

Unit = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True, slots=True)
class Decoupled:
    """Weight w = proximal / behaviour; the ratio is around the proximal policy (2505.24298, section 5)."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Weight min(w, cap) (truncated importance sampling). `unit`: token, product or geometric mean of the sequence."""

    cap: float = 2.0
    unit: Unit = "token"


@dataclass(frozen=True, slots=True)
class Band:
    """Weight w where low <= w <= high, else 0: masked importance sampling (low 0) and IcePop (0.5, 5)."""

    low: float = 0.5
    high: float = 5.0
    unit: Unit = "token"


@dataclass(frozen=True, slots=True)
class SecondMoment:
    """Weight w, 0 for the tokens with the largest (log w)^2 until the mean over the kept is at most tau (M2PO)."""

    tau: float = 0.04


@dataclass(frozen=True, slots=True)
class OffPolicyMask:
    """Weight 0 for a trajectory with A < 0 whose mean of log behaviour - log proximal is above delta (DeepSeek-V3.2, 9).

    The ratio stays around the behaviour policy.
    """

    delta: float = 0.1


Correction = Decoupled | Truncate | Band | SecondMoment | OffPolicyMask


@dataclass(frozen=True, slots=True)
class TokenMean:
    """Sum over tokens / all trained tokens of the optimizer step."""


@dataclass(frozen=True, slots=True)
class GroupTokenMean:
    """Mean over groups of (sum over the group's tokens / trained tokens of the group) (DAPO 2503.14476, eq. 8)."""


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


Aggregate = TokenMean | GroupTokenMean | SeqMeanTokenMean | SeqMeanTokenSum | Constant


@dataclass(frozen=True, slots=True)
class Entropy:
    """- coefficient x mean entropy over the trained tokens (always their token mean), at the sampling temperature.

    The coefficient goes linearly to `end` over the stage, if `end` is given.
    """

    coefficient: float
    end: float | None = None

    def at(self, progress: float) -> float:
        """Coefficient at a share of the stage, 0 to 1."""
        end = self.coefficient if self.end is None else self.end
        return self.coefficient + (end - self.coefficient) * min(max(progress, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class EntropyTarget:
    """An entropy bonus whose coefficient is on while the last update's entropy was at most `target`.

    After each update the coefficient moves by `delta` up (entropy at most target) or down, within [low, high]
    (Skywork-OR1; constants as in TRL).
    """

    target: float = 0.2
    delta: float = 0.005
    start: float = 0.01
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True, slots=True)
class Observations:
    """coefficient x cross-entropy on tokens that were not sampled, over all of them (ECHO, 2605.24517).

    `select` names which are predicted: `all`, or `answers` (not the opening prompt). The denominator is always the number
    of all observation tokens of the optimizer step.
    """

    coefficient: float
    select: Literal["all", "answers"] = "all"


@dataclass(frozen=True, slots=True)
class KL:
    """coefficient x KL to the reference policy, which is the policy at the start of the stage.

    In the `loss`: `k2` follows the gradient of KL(pi || ref), `k3` that of KL(ref || pi) (GRPO's), `exact` is the full
    sum over the vocabulary and its gradient. k1 as a loss has no expected gradient and is refused. `weighted` multiplies
    by the ratio, for stale data (then k1 and k3 follow KL(pi || ref)). In the `reward`: k1 per token, before baselines.
    `target` makes the coefficient adaptive with `horizon` (Ziegler 2019).
    """

    coefficient: float
    estimator: Literal["k1", "k2", "k3", "exact"] = "k3"
    place: Literal["loss", "reward"] = "loss"
    weighted: bool = False
    target: float | None = None
    horizon: float = 10000.0


@dataclass(frozen=True, slots=True)
class Divergence:
    """coefficient x divergence to the teacher's next-token distribution at the trained tokens, their token mean.

    `forward` KL(teacher || student), `reverse` KL(student || teacher), `jsd` with weight `beta` on the teacher (GKD,
    2306.13649, eq. 2).

    The teacher is an `other` model, or the policy it`self` as it was at the start of the stage, with a solution of the task
    in its prompt (OPSD, 2601.18734): an own `success`, another member's of the group and never the row's own episode, the
    world's `reference`, or `either`, a success where there is one. A row without one is outside of the mean.

    Args:
        top: keep the likeliest `top` ids only: the teacher's for `forward`, those of either for `reverse` and `jsd`.
        tail: what becomes of the other ids: one `bucket` (never negative, 0 where both agree on the kept ids and on
            the rest, at most the whole divergence), `renormalised` without them (a student may move mass there for
            free), or `truncated` (forward and reverse may be negative).
        cap: bound of what each id adds, before the sum (OPSD, 2601.18734); an id above it has no gradient, so the sum
            may point away from the teacher. None for no bound.
    """

    coefficient: float = 1.0
    kind: Literal["forward", "reverse", "jsd"] = "reverse"
    beta: float = 0.5
    top: int | None = None
    tail: Literal["bucket", "renormalised", "truncated"] = "bucket"
    cap: float | None = None
    teacher: Literal["other", "self"] = "other"
    solution: Literal["success", "reference", "either"] = "either"


@dataclass(frozen=True, slots=True)
class SampledDivergence:
    """Adds coefficient x (log teacher - log student) of the sampled token to its advantage, after the task's credit.

    Its expected gradient at a history is that of -KL(student || teacher) there; later histories are held (discount 0).
    The student is the policy at the start of the step; nothing flows through the number (Thinking Machines, October
    2025; with a task's credit beside it, the combination that slime and tinker train).

    Args:
        coefficient: weight beside the task's credit.
        baseline: add KL(student || teacher) of the history: same mean, less variance (vOPD, 2605.07865).
        bound: most nats, up or down, that a token's number may have before the coefficient; biased. None for no bound.
    """

    coefficient: float = 1.0
    baseline: bool = False
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Overlong:
    """Reward 0 up to length - cache sampled tokens, then falling to -1 at length (DAPO, eq. 13)."""

    length: int
    cache: int


@dataclass(frozen=True, slots=True)
class StepReward:
    """coefficient x process score, as a reward of each turn. Changes the objective: many good turns collect more."""

    coefficient: float = 1.0


@dataclass(frozen=True, slots=True)
class Potential:
    """Turn rewards + discount Phi(next) - Phi(now), Phi the process score (Ng 1999): the best policy stays the same."""

    discount: float = 1.0


@dataclass(frozen=True, slots=True)
class ProcessLabels:
    """Trains the process reward model: cross-entropy at the last token of each turn (2305.20050; 2312.08935).

    Labels are the world's own (`given`), or come from `count` continuations after each turn: `soft` is the share that
    succeeded (an estimate of V), `hard` whether any did.
    """

    count: int = 4
    kind: Literal["soft", "hard", "given"] = "soft"


Term = (
    Entropy
    | EntropyTarget
    | Observations
    | KL
    | Divergence
    | SampledDivergence
    | Overlong
    | StepReward
    | Potential
    | ProcessLabels
)


@dataclass(frozen=True, slots=True)
class Rounds:
    """How a round of grow and improve learns.

    Args:
        thresholds: one pass of imitation for each, on the episodes strictly above it (ReST's rising thresholds).
        restart: each round starts from the weights that the stage started from (ReST-EM).
        cap: most episodes that a task gives to one round; None for no cap.
        distinct: episodes of a task with the same ids are learned from once.
        union: a round learns from the episodes of all rounds of its stage, D = D u samples (ReST's Grow).
        decay: the rate of each further pass of a round, as a multiple of that of the pass before.
    """

    thresholds: tuple[float, ...] = (0.0,)
    restart: bool = False
    cap: int | None = None
    distinct: bool = False
    union: bool = False
    decay: float = 1.0


Data = Literal["on_policy", "demonstrations", "rounds"]
Admit = Literal["all", "mixed", "varied"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row of the table.

    Args:
        credit, ratio, clip, aggregate: the four parts of the policy-gradient term.
        source: paper, section and the setting that the row stands for.
        correction: weight for stale data; with one, the ratio is around the proximal policy.
        terms: further terms, each with its own mask and normaliser.
        admit: which groups are trained on: all, `mixed` scores (dynamic sampling, 2503.14476), `varied` returns.
        updates: optimizer steps per batch in the paper's setting.
        data: where rows come from: `on_policy` groups, `demonstrations`, or `rounds` (sampled, filtered, imitated).
        rounds: how rounds learn.
    """

    credit: Credit
    ratio: Ratio
    clip: Clip
    aggregate: Aggregate
    source: str
    correction: Correction | None = None
    terms: tuple[Term, ...] = ()
    admit: Admit = "all"
    updates: int = 1
    data: Data = "on_policy"
    rounds: Rounds = Rounds()

    @property
    def critic(self) -> Critic | None:
        """The critic that the credit needs."""
        return self.credit.critic if isinstance(self.credit, GAE) else None

    @property
    def sampled_divergence(self) -> SampledDivergence | None:
        """The teacher's part of the advantages, where it weighs anything."""
        return next((t for t in self.terms if isinstance(t, SampledDivergence) and t.coefficient), None)

    @property
    def credited(self) -> bool:
        """Whether sampled tokens carry an advantage: the task's, a teacher's or both."""
        return not isinstance(self.credit, Zero) or self.sampled_divergence is not None

    @property
    def weighs(self) -> bool:
        """Whether anything is weighed by the ratio to who sampled."""
        return not isinstance(self.ratio, NoRatio) or any(isinstance(t, KL) and t.weighted for t in self.terms)

    @property
    def rewarded(self) -> bool:
        """Whether anything is learned from how episodes were judged."""
        return not isinstance(self.credit, Zero | One)

    @property
    def taught(self) -> bool:
        """Whether a term that weighs anything asks a teacher of its own files (`model.teacher`)."""
        return any(
            isinstance(t, Divergence | SampledDivergence)
            and t.coefficient
            and not (isinstance(t, Divergence) and t.teacher == "self")
            for t in self.terms
        )

    def kl(self, place: Literal["loss", "reward"]) -> KL | None:
        """The KL term in the loss or in the reward."""
        return next((t for t in self.terms if isinstance(t, KL) and t.place == place), None)

    def within(self, longest: float) -> "Algorithm":
        """The algorithm with the constant that its row leaves open: the most tokens that a trajectory may sample."""
        if isinstance(self.aggregate, Constant) and self.aggregate.length is None:
            return replace(self, aggregate=Constant(longest))
        return self
