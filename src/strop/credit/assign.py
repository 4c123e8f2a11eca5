"""Credit of every sampled token: the one place where the credit part of an algorithm is interpreted.

Invariant: the key of a group is the group itself as it was drawn; order of groups and rows changes nothing, except for a
moving average, which is a stream by nature and is fed in launch order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strop.core.algorithm import (
    GAE,
    Above,
    BatchMean,
    Credit,
    GroupMean,
    LeaveOneOut,
    MonteCarlo,
    MovingAverage,
    One,
    ProcessGroup,
    RewardToGo,
    TurnLeaveOneOut,
    Zero,
)
from strop.credit.baselines import (
    all_equal,
    batch_mean,
    group_mean,
    leave_one_out,
    moving_average,
    turn_leave_one_out,
)
from strop.credit.gae import gae, token_rewards
from strop.credit.outcome import Outcome
from strop.credit.process import group_process
from strop.credit.returns import reward_to_go, token_reward_to_go

Array = npt.NDArray[np.float64]
State = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Credits:
    """Advantages of a batch.

    Args:
        advantages: by group and member, one number per sampled token; None for a member that is not trained on.
        state: moving averages after the batch; goes into the checkpoint.
        equal: groups whose scored returns are all equal (two members at least).
        singletons: groups with only one scored member.
        unscored: members without a score.
        targets: what the critic should say, by group and member, NaN at tokens where it is not trained; empty without one.
    """

    advantages: list[list[Array | None]]
    state: State
    equal: int
    singletons: int
    unscored: int
    targets: list[list[Array | None]]


def assign(credit: Credit, groups: Sequence[Sequence[Outcome]], state: State) -> Credits:
    """Turn a batch of groups into one number per sampled token.

    Args:
        credit: the credit part of the algorithm.
        groups: outcomes of the members of each group, in launch order.
        state: moving averages by task family.
    """
    after = dict(state)
    scored = [np.array([m.reward for m in members if m.reward is not None]) for members in groups]
    every = np.concatenate([*scored, np.zeros(0)])
    pairs = [[(a, t) for a, t in _group(credit, members, after, every)] for members in groups]
    has_targets = isinstance(credit, GAE)
    return Credits(
        [[a for a, _ in members] for members in pairs],
        after,
        equal=sum(len(r) > 1 and all_equal(r) for r in scored),
        singletons=sum(len(r) == 1 for r in scored),
        unscored=sum(m.reward is None for members in groups for m in members),
        targets=[[t for _, t in members] for members in pairs] if has_targets else [],
    )


Pair = tuple[Array | None, Array | None]


def _group(credit: Credit, members: Sequence[Outcome], state: dict[str, float], every: Array) -> list[Pair]:
    """(advantages, value targets) of each member."""
    rewards = [m.reward for m in members]
    match credit:
        case GroupMean(scale):
            return _spread(group_mean(rewards, scale, every), members)
        case LeaveOneOut():
            return _spread(leave_one_out(rewards), members)
        case TurnLeaveOneOut():
            return [(a, None) for a in _against_others(members, credit)]
        case BatchMean():
            return _spread(batch_mean(rewards, every), members)
        case One():
            return [(np.ones(len(m.turns)), None) for m in members]
        case Zero():
            return [(np.zeros(len(m.turns)), None) for m in members]
        case Above(threshold):
            scores = [m.score for m in members]
            return _spread([1.0 if s is not None and s > threshold else None for s in scores], members)
        case RewardToGo():
            return [(_to_go(m, credit, state), None) for m in members]
        case GAE():
            return [_estimated(m, credit) for m in members]
        case MonteCarlo():
            return [(_continued(m, credit), None) for m in members]
        case ProcessGroup():
            return _process(members)


def _spread(values: Sequence[float | None], members: Sequence[Outcome]) -> list[Pair]:
    return [
        (None if v is None else np.full(len(m.turns), v), None) for v, m in zip(values, members, strict=True)
    ]  # fmt: skip


def _to_go(member: Outcome, credit: RewardToGo, state: dict[str, float]) -> Array | None:
    if member.final is None or member.reward is None:
        return None
    if isinstance(credit.baseline, MovingAverage):
        average = credit.baseline
        [b], after = moving_average([member.reward], state.get(member.family, average.start), average.decay)
        state[member.family] = after
    else:
        b = credit.baseline
    if credit.level == "token":
        rewards = token_rewards(member.turn_rewards, member.final, member.turns)
        return token_reward_to_go(rewards + _penalties(member), credit.discount) - b
    per_turn = reward_to_go(member.turn_rewards, member.final, credit.discount)
    return (per_turn - b)[member.turns] + token_reward_to_go(_penalties(member), 1.0)


def _against_others(members: Sequence[Outcome], credit: TurnLeaveOneOut) -> list[Array | None]:
    """Each member's return from a turn on, less the mean of the others' from the same turn on."""
    scored = [i for i, m in enumerate(members) if m.final is not None and m.reward is not None]
    togo = [reward_to_go(m.turn_rewards, m.final or 0.0, 1.0) for m in (members[i] for i in scored)]
    values = iter(turn_leave_one_out(togo, credit.scale is not None))
    out: list[Array | None] = []
    for i, member in enumerate(members):
        own = next(values)[member.turns] if i in scored else None
        out.append(None if own is None else own + token_reward_to_go(_penalties(member), 1.0))
    return out


def _penalties(member: Outcome) -> Array:
    return np.zeros(len(member.turns)) if member.token_rewards is None else member.token_rewards


def _estimated(member: Outcome, credit: GAE) -> Pair:
    """GAE and its value targets; the critic is trained where its value was used."""
    if member.final is None:
        return None, None
    if member.values is None:
        raise RuntimeError("gae needs values; annotate the rows with the critic first")
    if credit.level == "token":
        rewards = token_rewards(member.turn_rewards, member.final, member.turns) + _penalties(member)
        advantages = gae(rewards, member.values, member.bootstrap, credit.discount, credit.lam)
        return advantages, advantages + member.values
    first = np.unique(member.turns, return_index=True)[1]
    played = member.turns[first]
    rewards = _turn_rewards(member)[played]
    per_turn = gae(rewards, member.values[first], member.bootstrap, credit.discount, credit.lam)
    targets = np.full(len(member.turns), np.nan)
    targets[first] = per_turn + member.values[first]
    return per_turn[np.searchsorted(played, member.turns)], targets


def _turn_rewards(member: Outcome) -> Array:
    """Turn rewards, the final one with the last turn and token rewards with theirs."""
    rewards = member.turn_rewards.copy()
    np.add.at(rewards, member.turns, _penalties(member))
    rewards[-1] += member.final or 0.0
    return rewards


def _continued(member: Outcome, credit: MonteCarlo) -> Array | None:
    if member.final is None:
        return None
    if member.turn_values is None:
        raise RuntimeError("monte_carlo needs values from continuations")
    rewards = _turn_rewards(member)
    return gae(rewards, member.turn_values, member.bootstrap, credit.discount, credit.lam)[member.turns]


def _process(members: Sequence[Outcome]) -> list[Pair]:
    scored = [m for m in members if m.final is not None]
    if any(m.process is None for m in scored):
        raise RuntimeError("process_group needs process scores; annotate the rows first")
    credits = iter(group_process([m.process for m in scored if m.process is not None]))
    return [(None if m.final is None else next(credits)[m.turns], None) for m in members]
