"""The algorithm of a stage: a row of the table with parts replaced, and the combinations that mean nothing.

Invariant: what is refused is refused here, with the reason and what to change, before a model loads; and what is accepted
has an effect.
"""

from dataclasses import replace
from typing import Any

from strop.algorithms import ALGORITHMS
from strop.config.sections import RunSection, StageSection
from strop.core.algorithm import (
    GAE,
    KL,
    Algorithm,
    Band,
    Constant,
    Credit,
    Divergence,
    Entropy,
    EntropyTarget,
    GroupMean,
    GrowingClip,
    LeaveOneOut,
    MonteCarlo,
    NoClip,
    NoRatio,
    One,
    Overlong,
    Potential,
    PPOClip,
    ProcessGroup,
    ProcessLabels,
    RewardToGo,
    SequenceRatio,
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
    if isinstance(row.aggregate, Constant) and row.aggregate.length is None:
        row = replace(row, aggregate=Constant(float(limits.longest)))
    return name, row


def _replaced(row: Algorithm, run: RunSection) -> Algorithm:
    parts: dict[str, Any] = {}
    for key in ("credit", "ratio", "clip", "aggregate"):
        text = getattr(run.algorithm, key)
        if text is not None:
            parts[key] = read(key, text, f"algorithm.{key}")
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
        _credit_fault(name, algorithm.credit, size),
        _ratio_fault(name, algorithm),
        _number_fault(algorithm),
        _term_fault(algorithm, world, teacher),
    ):
        if fault is not None:
            raise UsageError(f"{where}: {fault}")


def _credit_fault(name: str, credit: Credit, size: int) -> str | None:
    what = "a group mean" if isinstance(credit, GroupMean) else "leave-one-out"
    if isinstance(credit, GroupMean | LeaveOneOut) and size < 2:
        return f"group_size is {size}; {what} ({name}) needs at least 2. Use reinforce or raise rollout.group_size."
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
    if isinstance(a.credit, One | Zero) and not isinstance(a.ratio, NoRatio):
        return (
            "imitation and term-only rows have no importance ratio: nothing was sampled for credit. Use ratio = none."
        )
    return None


def _number_fault(a: Algorithm) -> str | None:
    """Values out of range."""
    checks: list[tuple[bool, str]] = []
    match a.clip:
        case PPOClip(low, high, dual):
            checks = [(low >= 0 and high >= 0, "ppo's bounds"), (dual is None or dual > 1, "ppo's dual (above 1)")]
        case GrowingClip(low, high, _, dual):
            checks = [(low >= 0 and high >= 0, "growing's bounds"), (dual is None or dual > 0, "growing's dual")]
        case WeightClip(low, high):
            checks = [(low >= 0 and (high is None or high > low), "weight's bounds (0 <= low < high)")]
        case _:
            pass
    match a.correction:
        case Truncate(cap):
            checks.append((cap > 0, "truncate's cap (above 0)"))
        case Band(low, high):
            checks.append((0 <= low < high, "band's bounds (0 <= low < high)"))
        case _:
            pass
    if isinstance(a.credit, GAE | MonteCarlo):
        checks.append((0 <= a.credit.lam <= 1, "lam (0 to 1)"))
    if isinstance(a.credit, GAE | MonteCarlo | RewardToGo):
        checks.append((0 <= a.credit.discount <= 1, "discount (0 to 1)"))
    if isinstance(a.credit, MonteCarlo):
        checks.append((a.credit.count >= 1, "monte_carlo's count (at least 1)"))
    if isinstance(a.aggregate, Constant):
        checks.append((a.aggregate.length is None or a.aggregate.length > 0, "constant's length (above 0)"))
    for term in a.terms:
        coefficient = getattr(term, "coefficient", 0.0)
        checks.append((coefficient >= 0, f"the coefficient of a {type(term).__name__} term (0 or more)"))
        if isinstance(term, Overlong):
            checks.append((0 < term.cache <= term.length, "overlong's cache (1 to length)"))
    bad = [what for fine, what in checks if not fine]
    return f"out of range: {', '.join(bad)}" if bad else None


def _term_fault(a: Algorithm, world: World, teacher: bool) -> str | None:
    kinds: list[type[Term]] = [type(t) for t in a.terms]
    for kind in set(kinds):
        if kinds.count(kind) > 1 and kind is not KL:
            return f"{kind.__name__} stands twice among the terms; give it once"
    if kinds.count(Entropy) and kinds.count(EntropyTarget):
        return "entropy and entropy_target would both set the entropy bonus; keep one"
    for term in a.terms:
        match term:
            case KL(estimator="k1", place="loss", weighted=False):
                return (
                    "kl(k1) as a loss has no expected gradient: it adds noise only. Use k2 or exact (KL(pi || ref)), k3 "
                    "(KL(ref || pi)), or place = reward."
                )
            case KL(estimator=estimator, place="reward") if estimator != "k1":
                return f"kl({estimator}) in the reward has a wrong gradient; in the reward use k1"
            case Divergence() if not teacher:
                return "a divergence needs a teacher; set model.teacher to its path"
            case StepReward() | Potential() if isinstance(a.credit, One | Zero):
                return "process rewards have no effect without credit; set a credit, or remove the term"
            case ProcessLabels(kind="given") if world.label is None:
                return f"process labels are `given`, but world {world.name!r} has no `label`; use soft or hard"
            case _:
                pass
    return None


def stale_fault(a: Algorithm) -> bool:
    """Whether the algorithm takes stale data for fresh."""
    return isinstance(a.ratio, NoRatio) and not isinstance(a.credit, One | Zero)


def uses_process(a: Algorithm) -> bool:
    """Whether process scores are needed, so that an earlier stage must have trained them."""
    started = isinstance(a.credit, GAE) and a.credit.critic.start == "process"
    return started or isinstance(a.credit, ProcessGroup) or any(isinstance(t, StepReward | Potential) for t in a.terms)


def trains_process(a: Algorithm) -> bool:
    """Whether the stage trains the process reward model."""
    return any(isinstance(t, ProcessLabels) for t in a.terms)
