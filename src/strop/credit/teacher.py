"""A teacher's part of the credit: what it says of each sampled token, joined to the task's advantages.

Invariant: numbers in, numbers out; no gradient flows through them. A token that the teacher cannot judge (NaN) gets 0 from
it and is counted, and no later token's number reaches an earlier one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strop.core.algorithm import SampledDivergence
from strop.core.metrics import Mean, Metrics

Array = npt.NDArray[np.float64]

MAX_LOG = 20.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What a teacher says of the sampled tokens of one trajectory; [sampled tokens], NaN where it cannot judge.

    Args:
        student, teacher: log-probability under the policy at the start of the step and under the teacher, over the ids
            that both have and at the sampling temperature.
        kl: KL(student || teacher) of the history before each token; None where no baseline asks for it.
    """

    student: Array
    teacher: Array
    kl: Array | None = None


def signal(term: SampledDivergence, heard: Heard) -> Array:
    """What the teacher adds to each token's advantage; [sampled tokens].

    coefficient x clip(log T - log S + b, -bound, bound) with b = KL(S || T) of the history if the term has a baseline, else
    0. E over S of log T - log S is -KL(S || T), so that b takes the mean away and leaves the expected gradient as it is.
    """
    return term.coefficient * _bounded(term, _raw(term, heard))


def _raw(term: SampledDivergence, heard: Heard) -> Array:
    gap = heard.teacher - heard.student
    if term.baseline:
        if heard.kl is None:
            raise RuntimeError("the baseline needs the column teacher_kl; annotate the rows")
        gap = gap + heard.kl
    # -inf: the teacher never says it. A finite number keeps the step alive, and it is as far as log-ratios go elsewhere.
    return np.where(np.isnan(gap), 0.0, np.clip(gap, -MAX_LOG, MAX_LOG))


def _bounded(term: SampledDivergence, gap: Array) -> Array:
    return gap if term.bound is None else np.clip(gap, -term.bound, term.bound)


def teacher_metrics(term: SampledDivergence, heard: Sequence[Heard]) -> Metrics:
    """Sums over the tokens that the teacher judges.

    `teacher_logp`; `kl_teacher_k1`, the mean of log S - log T, which may be negative; `kl_teacher`, never negative: the
    mean of KL(S || T) where it is known, else of k3; the share of tokens that `bound` bounded, and of those not judged.
    """
    student, teacher = (np.concatenate([getattr(h, name) for h in heard]) for name in ("student", "teacher"))
    judged = ~np.isnan(teacher)
    n = float(judged.sum())
    d = np.clip(student[judged] - teacher[judged], -MAX_LOG, MAX_LOG)
    kls = [h.kl for h in heard if h.kl is not None]
    exact = np.concatenate(kls)[judged] if kls else np.expm1(-d) + d
    metrics: Metrics = {
        "teacher_logp": Mean(float(teacher[judged].sum()), n),
        "kl_teacher_k1": Mean(float(d.sum()), n),
        "kl_teacher": Mean(float(exact.sum()), n),
        "teacher_silent": Mean(float((~judged).sum()), float(len(judged))),
    }
    if term.bound is not None:
        raw = np.concatenate([_raw(term, h) for h in heard])[judged]
        metrics["teacher_bounded"] = Mean(float((np.abs(raw) > term.bound).sum()), n)
    return metrics
