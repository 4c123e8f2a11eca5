"""Credit of every sampled token: the one place where the credit part of an algorithm is interpreted.

Invariant: the key of a group is the group itself as it was drawn; order of groups and rows changes nothing, except for a
moving average, which is a stream by nature and is fed in launch order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strop.core.algorithm import Above, Credit, GroupMean, LeaveOneOut, MovingAverage, One, RewardToGo
from strop.core.trajectory import Trajectory
from strop.credit.baselines import all_equal, group_mean, leave_one_out, moving_average
from strop.credit.returns import reward_to_go

Array = npt.NDArray[np.float64]
State = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What credit needs to know of one trajectory.

    Args:
        turn_rewards: the environment's reward of each turn; [turns].
        final: score plus auxiliary rewards; None when unscored.
        turns: turn index of each sampled token, in order; [sampled tokens].
        family: moving averages are kept apart by it (the task's first tag).
    """

    turn_rewards: Array
    final: float | None
    turns: npt.NDArray[np.int64]
    family: str = ""

    @property
    def reward(self) -> float | None:
        """The return: final plus the sum of the turn rewards."""
        return None if self.final is None else self.final + float(self.turn_rewards.sum())


def outcome(trajectory: Trajectory) -> Outcome:
    """The outcome of a trajectory."""
    lengths = [len(turn.completion.tokens) for turn in trajectory.turns]
    rewards = np.array([sum(turn.rewards.values()) for turn in trajectory.turns], dtype=np.float64)
    final = None
    if trajectory.score is not None and trajectory.verdict is not None:
        final = trajectory.score + sum(trajectory.verdict.aux.values())
    tags = trajectory.task.tags
    return Outcome(rewards, final, np.repeat(np.arange(len(lengths)), lengths), tags[0] if tags else "")


@dataclass(frozen=True, slots=True)
class Credits:
    """Advantages of a batch.

    Args:
        advantages: by group and member, one number per sampled token; None for a member that is not trained on.
        state: moving averages after the batch; goes into the checkpoint.
        equal: groups whose scored returns are all equal (two members at least).
        singletons: groups with only one scored member.
        unscored: members without a score.
    """

    advantages: list[list[Array | None]]
    state: State
    equal: int
    singletons: int
    unscored: int


def assign(credit: Credit, groups: Sequence[Sequence[Outcome]], state: State) -> Credits:
    """Turn a batch of groups into one number per sampled token.

    Args:
        credit: the credit part of the algorithm.
        groups: outcomes of the members of each group, in launch order.
        state: moving averages by task family.
    """
    after = dict(state)
    advantages = [_group(credit, members, after) for members in groups]
    scored = [np.array([m.reward for m in members if m.reward is not None]) for members in groups]
    return Credits(
        advantages,
        after,
        equal=sum(len(r) > 1 and all_equal(r) for r in scored),
        singletons=sum(len(r) == 1 for r in scored),
        unscored=sum(m.reward is None for members in groups for m in members),
    )


def _group(credit: Credit, members: Sequence[Outcome], state: dict[str, float]) -> list[Array | None]:
    rewards = [m.reward for m in members]
    match credit:
        case GroupMean(scale):
            return [_spread(a, m) for a, m in zip(group_mean(rewards, scale), members, strict=True)]
        case LeaveOneOut():
            return [_spread(a, m) for a, m in zip(leave_one_out(rewards), members, strict=True)]
        case One():
            return [np.ones(len(m.turns)) for m in members]
        case Above(threshold):
            return [
                _spread(1.0, m) if r is not None and r > threshold else None
                for r, m in zip(rewards, members, strict=True)
            ]
        case RewardToGo(baseline, discount):
            return [_to_go(m, baseline, discount, state) for m in members]


def _spread(value: float | None, member: Outcome) -> Array | None:
    return None if value is None else np.full(len(member.turns), value)


def _to_go(member: Outcome, baseline: float | MovingAverage, discount: float, state: dict[str, float]) -> Array | None:
    if member.final is None or member.reward is None:
        return None
    per_turn = reward_to_go(member.turn_rewards, member.final, discount)
    if isinstance(baseline, MovingAverage):
        [b], after = moving_average([member.reward], state.get(member.family, baseline.start), baseline.decay)
        state[member.family] = after
    else:
        b = baseline
    return (per_turn - b)[member.turns]
