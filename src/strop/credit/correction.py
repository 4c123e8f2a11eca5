"""Weights that correct for stale data: known before the update, one per sampled token.

Invariant: weights are detached numbers; the aggregation's denominators stay those of all tokens, also of dropped ones.
w = proximal / behaviour; the ratio in the objective is then around the proximal policy, so that nothing is corrected twice.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from strop.core.algorithm import Band, Correction, Decoupled, OffPolicyMask, SecondMoment, Truncate, Unit

Array = npt.NDArray[np.float64]
MAX_LOG = 20.0


def around_proximal(correction: Correction | None) -> bool:
    """Whether the objective's ratio divides by the proximal policy."""
    return correction is not None and not isinstance(correction, OffPolicyMask)


def correction_weights(
    correction: Correction, proximal: Sequence[Array], behaviour: Sequence[Array], advantages: Sequence[Array]
) -> list[Array]:
    """Weight of each sampled token of each trajectory; [tokens] each.

    Args:
        correction: the part; its docstring has the formula and the source.
        proximal, behaviour: log-probabilities at the start of the step and when sampled.
        advantages: credit.

    A trajectory that nobody sampled (behaviour NaN at every token: a guided one) has nothing to be corrected for: weight 1,
    and it is in no mean.
    """
    given = [len(b) > 0 and bool(np.isnan(b).all()) for b in behaviour]
    own = [i for i, without in enumerate(given) if not without]
    found = iter(_weights(correction, *([column[i] for i in own] for column in (proximal, behaviour, advantages))))
    return [np.ones(len(b)) if without else next(found) for b, without in zip(behaviour, given, strict=True)]


def _weights(
    correction: Correction, proximal: Sequence[Array], behaviour: Sequence[Array], advantages: Sequence[Array]
) -> list[Array]:
    logs = [np.clip(p - b, -MAX_LOG, MAX_LOG) for p, b in zip(proximal, behaviour, strict=True)]
    match correction:
        case Decoupled():
            return [np.exp(log) for log in logs]
        case Truncate(cap, unit):
            return [np.minimum(_weight(log, unit), cap) for log in logs]
        case Band(low, high, unit):
            weights = [_weight(log, unit) for log in logs]
            return [np.where((low <= w) & (w <= high), w, 0.0) for w in weights]
        case SecondMoment(tau):
            kept = second_moment_mask(np.concatenate([*logs, np.zeros(0)]), tau)
            parts = np.split(kept, np.cumsum([len(log) for log in logs])[:-1])
            return [np.exp(log) * keep for log, keep in zip(logs, parts, strict=True)]
        case OffPolicyMask(delta):
            return [
                np.full(len(log), float(not (len(log) > 0 and a.mean() < 0 and -log.mean() > delta)))
                for log, a in zip(logs, advantages, strict=True)
            ]


def _weight(log: Array, unit: Unit) -> Array:
    """w of the token, or the product or geometric mean over the trajectory at each of its tokens."""
    if unit == "token" or not len(log):
        return np.exp(log)
    total = log.sum() if unit == "sequence" else log.mean()
    return np.full(len(log), np.exp(np.clip(total, -MAX_LOG, MAX_LOG)))


def second_moment_mask(logs: Array, tau: float) -> Array:
    """0 for the tokens with the largest (log w)^2 until the mean over the kept is at most tau, else 1 (2510.01161)."""
    squares = logs**2
    order = np.argsort(squares, kind="stable")
    means = np.cumsum(squares[order]) / np.arange(1, len(order) + 1)
    keep = np.zeros(len(logs))
    keep[order[means <= tau]] = 1.0
    return keep
