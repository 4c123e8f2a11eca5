"""Which groups are trained on. Invariant: a rejected group is counted, never lost."""

from strop.core.algorithm import Admit
from strop.core.trajectory import Group


def admitted(rule: Admit, group: Group) -> bool:
    """Whether a group is trained on: `all` takes every group that has a scored member."""
    match rule:
        case "all":
            return any(trajectory.reward is not None for trajectory in group.trajectories)
