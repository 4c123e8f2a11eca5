"""Which groups are trained on. Invariant: a rejected group is counted, never lost."""

import numpy as np

from strop.core.algorithm import Admit
from strop.core.trajectory import Group
from strop.credit.baselines import all_equal


def admitted(rule: Admit, group: Group) -> bool:
    """Whether a group is trained on.

    `all` takes every group with a scored member. `mixed` takes those whose scores differ: 0 < successes < members (dynamic
    sampling, DAPO 2503.14476, eq. 11; success alone counts, so that a length penalty cannot make a group informative).
    `varied` takes those whose returns differ. Kept groups weigh tasks near p = 1/2 more: success must be reported over all.
    """
    match rule:
        case "all":
            return any(trajectory.reward is not None for trajectory in group.trajectories)
        case "mixed":
            return not all_equal(np.array([t.score for t in group.trajectories if t.score is not None]))
        case "varied":
            return not all_equal(np.array([r for r in group.rewards() if r is not None]))


def informative(success: float, size: int) -> float:
    """P(a group is mixed) = 1 - p^G - (1 - p)^G; 1 over it is the expected number of groups to sample for one."""
    return 1 - success**size - (1 - success) ** size
