"""Process scores: labels, solution scores, shaping, and group credit. Invariant: the outcome's score is never among them;
what they add to the return is told apart."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from strop.credit.baselines import all_equal

Array = npt.NDArray[np.float64]


def soft_label(outcomes: Sequence[float]) -> float:
    """Share of continuations that succeeded: an estimate of V (Math-Shepherd 2312.08935, eq. 4)."""
    return float(np.mean(outcomes))


def hard_label(outcomes: Sequence[float]) -> float:
    """1 if any continuation succeeded (Math-Shepherd, eq. 3)."""
    return float(max(outcomes) > 0)


def solution_score(scores: Sequence[float], rule: str) -> float:
    """Score of a solution from the probabilities of its steps: their `product` (2305.20050) or `min` (2312.08935)."""
    return float(np.prod(scores)) if rule == "product" else float(min(scores))


def group_process(scores: Sequence[Array]) -> list[Array]:
    """A_k = sum over turns j >= k of the normalised score of turn j (DeepSeekMath 2402.03300, section 4.1.3).

    Scores are normalised by mean and population deviation over all turns of the group (the paper does not say which
    deviation); scores that are all equal give 0.

    Args:
        scores: process scores of each member; [turns] each.
    """
    every = np.concatenate([*scores, np.zeros(0)])
    if all_equal(every):
        return [np.zeros(len(s)) for s in scores]
    mean, width = every.mean(), every.std()
    return [np.cumsum(((s - mean) / width)[::-1])[::-1] for s in scores]


def potential_rewards(turn_rewards: Array, potentials: Array, discount: float) -> Array:
    """r_k + discount Phi(h_(k+1)) - Phi(h_k), with Phi = 0 after the last turn (Ng 1999): the sum is R - Phi(h_0).

    Args:
        turn_rewards: [turns]; the final reward is not among them or on the last.
        potentials: Phi before each turn; [turns].
        discount: per turn.
    """
    following = np.append(potentials[1:], 0.0)
    return turn_rewards + discount * following - potentials


def overlong_penalty(tokens: int, length: int, cache: int) -> float:
    """0 up to length - cache, then ((length - cache) - n) / cache, -1 beyond length (DAPO 2503.14476, eq. 13)."""
    if tokens > length:
        return -1.0
    return min(0.0, (length - cache - tokens) / cache)
