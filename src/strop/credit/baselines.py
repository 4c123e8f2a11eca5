"""Baselines over one group or a stream of returns. Invariant: returns that are all equal give exactly zero credit.

Returns arrive as float64; None is "unscored", which takes no part in any statistic and gets no credit.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Returns closer than this share of their size are equal: what is left is float residue, and dividing by it amplifies.
EQUAL = 1e-6


def all_equal(returns: Array) -> bool:
    """Whether the spread of the returns is float residue only."""
    if len(returns) < 2:
        return True
    return float(returns.max() - returns.min()) <= EQUAL * max(1.0, float(np.abs(returns).max()))


def group_mean(
    returns: Sequence[float | None],
    scale: Literal["population", "sample", "batch"] | None,
    batch: Array | None = None,
) -> list[float | None]:
    """A_i = R_i - mean R, over std R if `scale` names a standard deviation (DeepSeekMath 2402.03300, section 4.1.2).

    Without scale this is Dr.GRPO's advantage (2503.20783). The population deviation without epsilon gives the lecture's
    +-1 and 1.73/-0.58; the paper does not say which it uses, most trainers use the sample deviation. The estimate with
    the mean is the true gradient times (1 - 1/G), since the mean holds the member's own return.

    Args:
        returns: the group's returns; unscored members are None.
        scale: divide by the population or the sample standard deviation of the group, by the sample deviation of all
            returns of the batch, or not at all.
        batch: all scored returns of the batch, for the scale `batch`.

    Returns:
        One advantage per member, None for unscored ones; all 0 for a group of one or of equal returns.
    """
    scored = np.array([r for r in returns if r is not None], dtype=np.float64)
    if all_equal(scored):
        return [None if r is None else 0.0 for r in returns]
    mean = float(scored.mean())
    match scale:
        case None:
            width = 1.0
        case "batch":
            width = float((scored if batch is None else batch).std(ddof=1))
        case _:
            width = float(scored.std(ddof=0 if scale == "population" else 1))
    return [None if r is None else (r - mean) / width for r in returns]


def batch_mean(returns: Sequence[float | None], batch: Array) -> list[float | None]:
    """A_i = (R_i - mean of the batch) / population deviation of the batch (REINFORCE++, 2501.03262); None for unscored.

    All 0 where the batch's returns are equal. Tasks of different difficulty get each other's baseline.
    """
    if all_equal(batch):
        return [None if r is None else 0.0 for r in returns]
    mean, width = float(batch.mean()), float(batch.std())
    return [None if r is None else (r - mean) / width for r in returns]


def leave_one_out(returns: Sequence[float | None]) -> list[float | None]:
    """A_i = R_i - mean of the other scored members' returns (RLOO, 2402.14740, section 4.2). Exactly unbiased.

    Returns:
        One advantage per member, None for unscored ones; 0 for a group of one (there is no other member).
    """
    scored = np.array([r for r in returns if r is not None], dtype=np.float64)
    if all_equal(scored):
        return [None if r is None else 0.0 for r in returns]
    factor = len(scored) / (len(scored) - 1)
    mean = float(scored.mean())
    return [None if r is None else factor * (r - mean) for r in returns]


def turn_leave_one_out(togo: Sequence[Array], scaled: bool) -> list[Array]:
    """A_ik = R_ik - mean over j != i of R_jk, for returns from each turn on; R_jk = 0 beyond the last turn of j.

    Unbiased: what the others earn does not depend on what member i does (Williams 1992, section 5, with a baseline that
    differs by turn). At turn 0 it is `leave_one_out`.

    Args:
        togo: the scored members' returns from each turn on; [turns of the member] each.
        scaled: divide by the population deviation of the whole returns (2402.03300, 4.1.2), if they differ.

    Returns:
        As `togo`; all 0 for a group of one, and where every turn's returns are equal.
    """
    if len(togo) < 2:
        return [np.zeros(len(own)) for own in togo]
    width = max(map(len, togo))
    table = np.zeros((len(togo), width))
    for row, own in zip(table, togo, strict=True):
        row[: len(own)] = own
    others = (table.sum(0) - table) / (len(togo) - 1)
    credit = table - others
    for k in range(width):
        if all_equal(table[:, k]):
            credit[:, k] = 0.0
    if scaled and not all_equal(table[:, 0]):
        credit /= table[:, 0].std()
    return [row[: len(own)] for row, own in zip(credit, togo, strict=True)]


def moving_average(returns: Sequence[float], start: float, decay: float) -> tuple[list[float], float]:
    """Baseline of each return in order, before that return is folded in, and the baseline after the last.

    b <- decay b + (1 - decay) R (Williams 1992, section 4). Using the value before the update keeps it independent of
    the sampled actions.
    """
    baselines: list[float] = []
    b = start
    for r in returns:
        baselines.append(b)
        b = decay * b + (1 - decay) * r
    return baselines, b
