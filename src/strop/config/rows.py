"""The algorithm of a stage: a row of the table with parts replaced, and the combinations that mean nothing.

Invariant: what is refused is refused here, with the reason and what to change, before a model loads; and what is accepted
has an effect.
"""

from dataclasses import replace
from typing import Any

from strop.algorithms import ALGORITHMS
from strop.config.sections import RunSection, StageSection
from strop.config.taught import teacher_fault, teacher_ranges
from strop.config.teaching import rounds_of
from strop.core.algorithm import (
    GAE,
    KL,
    Above,
    Algorithm,
    Band,
    Constant,
    Credit,
    Entropy,
    EntropyTarget,
    GroupMean,
    GrowingClip,
    LeaveOneOut,
    MaskClip,
    MonteCarlo,
    MovingAverage,
    NoClip,
    NoRatio,
    OffPolicyMask,
    One,
    Overlong,
    Potential,
    PPOClip,
    ProcessGroup,
    ProcessLabels,
    RewardToGo,
    SecondMoment,
    SequenceRatio,
    SoftGate,
    StepReward,
    Term,
    TokenMean,
    Truncate,
    WeightClip,
    Zero,
)
from strop.core.errors import UsageError
from strop.core.notation import read
from strop.core.world import World
from strop.envs.catalogue import nearest
from strop.rollout.limits import Limits

DATA = {"warm_start": "demonstrations", "rounds": "rounds", "reinforce": "on_policy"}
DEFAULTS = {"warm_start": "sft", "rounds": "expert_iteration"}


def name_of(run: RunSection, stage: StageSection, where: str) -> str:
    """The row of a stage: its own, the run's where that learns from the stage's kind of data, else the kind's default."""
    base = run.algorithm.base
    for name, key in ((base, "algorithm.base"), (stage.algorithm, f"{where}.algorithm")):
        if name is not None and name not in ALGORITHMS:
            raise UsageError(f"{key} {name!r} is not in the table; {nearest(name, tuple(ALGORITHMS))}")
    if stage.algorithm is not None:
        name = stage.algorithm
    elif stage.kind in DEFAULTS and ALGORITHMS[base].data != DATA[stage.kind]:
        name = DEFAULTS[stage.kind]
    else:
        name = base
    row = ALGORITHMS[name]
    if row.data != DATA[stage.kind]:
        fitting = [n for n, a in ALGORITHMS.items() if a.data == DATA[stage.kind]]
        kind = next(k for k, data in DATA.items() if data == row.data)
        raise UsageError(
            f"{where} is a {stage.kind} stage, but {name} learns from {row.data.replace('_', '-')} data. Use kind = "
            f'"{kind}", or one of {", ".join(fitting)}.'
        )
    return name


def algorithm_of(run: RunSection, stage: StageSection, where: str, limits: Limits) -> tuple[str, Algorithm]:
    """Name and algorithm of a stage. The parts of [algorithm] belong to its base row; `terms` of a stage are added."""
    name = name_of(run, stage, where)
    row = ALGORITHMS[name]
    if name == run.algorithm.base:
        row = _replaced(row, run)
    row = replace(row, terms=(*row.terms, *(read("terms", t, f"{where}.terms") for t in stage.terms)))
    return name, row.within(float(limits.longest))


def _replaced(row: Algorithm, run: RunSection) -> Algorithm:
    parts: dict[str, Any] = {}
    for key in ("credit", "ratio", "clip", "aggregate"):
        text = getattr(run.algorithm, key)
        if text is not None:
            parts[key] = read(key, text, f"algorithm.{key}")
    rounds = rounds_of(row, parts.get("credit", row.credit), run.algorithm.rounds, "credit" in parts)
    if rounds != row.rounds:
        parts["rounds"] = rounds
    if run.algorithm.correction is not None:
        text = run.algorithm.correction
        parts["correction"] = None if text == "none" else read("correction", text, "algorithm.correction")
    if run.algorithm.admit is not None:
        parts["admit"] = run.algorithm.admit
    if run.algorithm.terms is not None:
        parts["terms"] = tuple(read("terms", text, "algorithm.terms") for text in run.algorithm.terms)
    return replace(row, **parts)


def check(name: str, algorithm: Algorithm, size: int, world: World, teacher: bool, where: str) -> None:
    """Refuse what makes no sense, with the reason.

    Args:
        name: of the row, for messages.
        algorithm: what the stage optimises.
        size: members of a group.
        world: what it is played on.
        teacher: whether a teacher is given.
        where: `stages.1`.
    """
    for fault in (
        _credit_fault(name, algorithm, size),
        _ratio_fault(name, algorithm),
        _number_fault(algorithm),
        _term_fault(algorithm, world),
        teacher_fault(algorithm, teacher),
    ):
        if fault is not None:
            raise UsageError(f"{where}: {fault}")


def _credit_fault(name: str, a: Algorithm, size: int) -> str | None:
    what = "a group mean" if isinstance(a.credit, GroupMean) else "leave-one-out"
    if isinstance(a.credit, GroupMean | LeaveOneOut) and size < 2:
        return f"group_size is {size}; {what} ({name}) needs at least 2. Use reinforce or raise rollout.group_size."
    if a.data == "rounds" and not isinstance(a.credit, Above | One):
        return (
            f"the rounds of {name} keep what is above a threshold, or everything, and know no other credit; use credit = "
            "above(0.5), or one"
        )
    return None


def _ratio_fault(name: str, a: Algorithm) -> str | None:
    if isinstance(a.ratio, NoRatio) and not isinstance(a.clip, NoClip):
        return f"the clip of {name} has no effect without an importance ratio; set a ratio, or clip = none"
    if isinstance(a.ratio, NoRatio) and a.correction is not None:
        return "a correction for stale data needs a ratio around it; set ratio = token, or correction = none"
    if isinstance(a.ratio, SequenceRatio) and isinstance(a.aggregate, TokenMean):
        return (
            "a sequence ratio with a token mean weighs sequences by their length, which is no sequence objective; use "
            "aggregate = sequence_mean"
        )
    sampled = a.data == "on_policy" and a.sampled_divergence is not None
    imitation = isinstance(a.credit, One | Zero) or a.data == "demonstrations"
    if imitation and not sampled and not isinstance(a.ratio, NoRatio):
        return (
            "imitation and term-only rows have no importance ratio: nothing was sampled for credit. Use ratio = none."
        )
    return None


def _number_fault(a: Algorithm) -> str | None:
    """Values out of range."""
    checks = [*_credit_ranges(a.credit), *_ratio_ranges(a)]
    if isinstance(a.aggregate, Constant):
        checks.append((a.aggregate.length is None or a.aggregate.length > 0, "constant's length (above 0)"))
    for term in a.terms:
        checks += _term_ranges(term)
    bad = [what for fine, what in checks if not fine]
    return f"out of range: {', '.join(bad)}" if bad else None


Checks = list[tuple[bool, str]]
"""Whether a value is fine, and what it is called with its range."""


def _credit_ranges(credit: Credit) -> Checks:
    checks: Checks = []
    if isinstance(credit, GAE | MonteCarlo):
        checks.append((0 <= credit.lam <= 1, "lam (0 to 1)"))
    if isinstance(credit, GAE | MonteCarlo | RewardToGo):
        checks.append((0 <= credit.discount <= 1, "discount (0 to 1)"))
    if isinstance(credit, MonteCarlo):
        checks.append((credit.count >= 1, "monte_carlo's count (at least 1)"))
    if isinstance(credit, RewardToGo) and isinstance(credit.baseline, MovingAverage):
        checks.append((0 <= credit.baseline.decay <= 1, "moving_average's decay (0 to 1)"))
    if isinstance(credit, GAE):
        critic = credit.critic
        checks.append((min(critic.coefficient, critic.rate, critic.warmup) >= 0, "critic's numbers (0 or more)"))
        checks.append((critic.bound > 0, "critic's bound (above 0)"))
    return checks


def _ratio_ranges(a: Algorithm) -> Checks:
    """Ranges of clip and correction."""
    checks: Checks = []
    match a.clip:
        case PPOClip(low, high, dual):
            checks = [
                (0 <= low <= 1 and high >= 0, "ppo's bounds (low 0 to 1, high from 0)"),
                (dual is None or dual > 1, "ppo's dual (above 1)"),
            ]
        case GrowingClip(low, high, _, dual):
            checks = [(low >= 0 and high >= 0, "growing's bounds"), (dual is None or dual > 0, "growing's dual")]
        case WeightClip(low, high):
            checks = [(low >= 0 and (high is None or high > low), "weight's bounds (0 <= low < high)")]
        case MaskClip(delta):
            checks = [(delta >= 0, "mask's delta (0 or more)")]
        case SoftGate(positive, negative):
            checks = [(positive > 0 and negative > 0, "soft's temperatures (above 0)")]
        case NoClip():
            pass
    match a.correction:
        case Truncate(cap):
            checks.append((cap > 0, "truncate's cap (above 0)"))
        case OffPolicyMask(delta):
            checks.append((delta >= 0, "off_policy_mask's delta (from 0)"))
        case Band(low, high):
            checks.append((0 <= low < high, "band's bounds (0 <= low < high)"))
        case SecondMoment(tau):
            checks.append((tau >= 0, "second_moment's tau (0 or more)"))
        case _:
            pass
    return checks


def _term_ranges(term: Term) -> Checks:
    coefficient = getattr(term, "coefficient", 0.0)
    checks: Checks = [(coefficient >= 0, f"the coefficient of a {type(term).__name__} term (0 or more)")]
    checks += teacher_ranges(term)
    match term:
        case Entropy(_, end):
            checks.append((end is None or end >= 0, "entropy's end (0 or more)"))
        case EntropyTarget(_, delta, start, low, high):
            checks.append(
                (delta >= 0 and 0 <= low <= start <= high, "entropy_target's numbers (0 <= low <= start <= high)")
            )
        case KL(target=target, horizon=horizon):
            checks.append(((target is None or target > 0) and horizon > 0, "kl's target and horizon (above 0)"))
        case Overlong(length, cache):
            checks.append((0 < cache <= length, "overlong's cache (1 to length)"))
        case Potential(discount):
            checks.append((0 <= discount <= 1, "potential's discount (0 to 1)"))
        case ProcessLabels(count):
            checks.append((count >= 1, "process_labels' count (at least 1)"))
        case _:
            pass
    return checks


def _term_fault(a: Algorithm, world: World) -> str | None:
    kinds: list[type[Term]] = [type(t) for t in a.terms]
    for kind in set(kinds):
        places = [t.place for t in a.terms if isinstance(t, KL)]
        if kinds.count(kind) > 1 and (kind is not KL or len(set(places)) < len(places)):
            return f"{kind.__name__} stands twice among the terms; give it once"
    if sum(isinstance(t, KL) and t.target is not None for t in a.terms) > 1:
        return "two kl terms with a target would share one coefficient; give a target to one of them"
    if kinds.count(ProcessLabels) and not isinstance(a.credit, Zero):
        return "process_labels trains the process reward model alone; use row process_reward in a stage of its own"
    if kinds.count(Entropy) and kinds.count(EntropyTarget):
        return "entropy and entropy_target would both set the entropy bonus; keep one"
    unrewarded = One | Zero | ProcessGroup
    for term in a.terms:
        match term:
            case KL(estimator="k1", place="loss", weighted=False):
                return (
                    "kl(k1) as a loss has no expected gradient: it adds noise only. Use k2 or exact (KL(pi || ref)), k3 "
                    "(KL(ref || pi)), or place = reward."
                )
            case KL(estimator=estimator, place="reward") if estimator != "k1":
                return f"kl({estimator}) in the reward has a wrong gradient; in the reward use k1"
            case KL(weighted=True) if a.data == "demonstrations":
                return (
                    "kl(weighted) needs the probabilities that sampled the data; demonstrations have none. Leave it out"
                )
            case StepReward() | Potential() | Overlong() | KL(place="reward") if isinstance(a.credit, unrewarded):
                return (
                    f"{type(term).__name__} changes rewards, which this credit does not look at; set another credit, or remove "
                    "the term"
                )
            case ProcessLabels(kind="given") if world.label is None:
                return f"process labels are `given`, but world {world.name!r} has no `label`; use soft or hard"
            case _:
                pass
    return None


def stale_fault(a: Algorithm) -> bool:
    """Whether the algorithm takes stale data for fresh."""
    weighed = not isinstance(a.credit, One | Zero) or a.sampled_divergence is not None
    return isinstance(a.ratio, NoRatio) and weighed


def uses_process(a: Algorithm) -> bool:
    """Whether process scores are needed, so that an earlier stage must have trained them."""
    started = isinstance(a.credit, GAE) and a.credit.critic.start == "process"
    return started or isinstance(a.credit, ProcessGroup) or any(isinstance(t, StepReward | Potential) for t in a.terms)


def trains_process(a: Algorithm) -> bool:
    """Whether the stage trains the process reward model."""
    return any(isinstance(t, ProcessLabels) for t in a.terms)
