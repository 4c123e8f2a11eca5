"""What credit must never do, for any returns: act on equal rewards, on missing scores, or across groups."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Zero,
)
from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Trajectory, Turn
from strop.credit.assign import assign
from strop.credit.outcome import Outcome, outcome
from tests.objective.batches import finals

SOME = settings(max_examples=100, deadline=None, database=None)
RELATIVE: dict[str, Credit] = {
    "leave one out": LeaveOneOut(),
    "mean": GroupMean(),
    "population": GroupMean("population"),
    "sample": GroupMean("sample"),
    "deviation of the batch": GroupMean("batch"),
}
ESTIMATED: dict[str, Credit] = {
    "gae": GAE(0.9, 0.95),
    "gae of turns": GAE(0.9, 0.95, "turn"),
    "continuations": MonteCarlo(2, 0.5, 0.9),
    "process scores": ProcessGroup(),
}
EVERY: dict[str, Credit] = {
    **RELATIVE,
    **ESTIMATED,
    "batch": BatchMean(),
    "to go": RewardToGo(0.5, 0.9),
    "to go of tokens": RewardToGo(0.5, 0.9, "token"),
    "above": Above(0.3),
    "one": One(),
    "zero": Zero(),
}
FLAT = (*RELATIVE, "batch", "above", "one", "zero")
"""Credits that give every token of a trajectory the same number."""
relative = st.sampled_from(list(RELATIVE))
rewards = st.floats(-10, 10).map(lambda x: round(x, 3))
scores = st.lists(st.one_of(st.none(), rewards), min_size=1, max_size=8)


def values(credit: Credit, group: list[float | None]) -> list[float | None]:
    return [None if a is None else float(a[0]) for a in assign(credit, [finals(group)], {}).advantages[0]]


def annotated(member: Outcome) -> Outcome:
    """The outcome with values and process scores that differ by token and turn."""
    tokens, turns = np.arange(len(member.turns)), np.arange(len(member.turn_rewards))
    return replace(member, values=0.3 + 0.1 * tokens, turn_values=0.2 + 0.1 * turns, process=0.6 - 0.2 * turns)


def naive(group: list[float], epsilon: float = 1e-8) -> np.ndarray:
    """The fault: float32 statistics and a small number in the denominator."""
    r = np.array(group, dtype=np.float32)
    return (r - r.mean()) / (r.std(ddof=1) + np.float32(epsilon))


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("reward", [0.2, 0.7, 0.35, 0.1, 1.0, 0.0, -1 / 3, 1e6 / 7])
@pytest.mark.parametrize("size", [1, 2, 4, 7, 64])
def test_equal_rewards_give_exactly_zero_credit(name: str, reward: float, size: int) -> None:
    assert values(RELATIVE[name], [reward] * size) == [0.0] * size


def test_float_residue_of_equal_rewards_would_have_been_amplified() -> None:
    assert abs(naive([0.7] * 7)).max() > 0.1  # so the test above can fail
    sums = [sum([0.1] * 3), 0.3, 0.1 + 0.2]  # equal returns that came about by different sums
    assert len(set(sums)) > 1
    for credit in RELATIVE.values():
        assert values(credit, sums) == [0.0] * 3


def test_one_member_that_differs_stays_of_its_size() -> None:
    advantages = values(LeaveOneOut(), [0.95] + [0.35] * 7)
    assert advantages[0] == pytest.approx(0.6)
    assert max(abs(a) for a in advantages if a is not None) < 10


@SOME
@given(relative, scores)
def test_unscored_members_get_no_credit_and_enter_no_statistic(name: str, group: list[float | None]) -> None:
    got = values(RELATIVE[name], group)
    alone = values(RELATIVE[name], [r for r in group if r is not None])
    assert [a is None for a in got] == [r is None for r in group]
    assert [a for a in got if a is not None] == alone


def test_no_score_is_not_a_score_of_zero() -> None:
    group = [-1.0, -1.0, None, -0.5]
    assert values(GroupMean(), group) == pytest.approx([-1 / 6, -1 / 6, None, 1 / 3])
    zero_filled = values(GroupMean(), [r or 0.0 for r in group])
    assert zero_filled[2] == pytest.approx(0.625)
    assert values(GroupMean(), [None, None]) == [None, None]
    for credit in (RewardToGo(), RewardToGo(MovingAverage()), Above(-9.0), BatchMean()):
        assert values(credit, [None, 1.0])[0] is None
    for credit in ESTIMATED.values():
        played = [annotated(m) for m in finals([None, 1.0, 0.0])]
        [found] = assign(credit, [played], {}).advantages
        [without] = assign(credit, [played[1:]], {}).advantages
        assert [None if a is None else a.tolist() for a in found] == [
            None,
            *(a.tolist() for a in without if a is not None),
        ]


def test_unscored_members_do_not_move_the_average() -> None:
    credit = RewardToGo(MovingAverage(0.5))
    assert (
        assign(credit, [finals([None, 1.0, None])], {}).state == assign(credit, [finals([1.0])], {}).state == {"": 0.5}
    )


@SOME
@given(relative, st.lists(rewards, min_size=2, max_size=8))
def test_the_credit_of_a_group_sums_to_zero(name: str, group: list[float]) -> None:
    got = [a for a in values(RELATIVE[name], group) if a is not None]
    assert abs(sum(got)) < 1e-9 * max(1.0, max(map(abs, got)))
    assert all(a == 0 for a in got) or max(got) > 0 > min(got)


@SOME
@given(st.lists(rewards, min_size=2, max_size=8), st.floats(-5, 5))
def test_mean_and_leave_one_out_forget_a_shift_and_keep_a_scale(group: list[float], shift: float) -> None:
    group = [round(r, 2) for r in group]
    for credit in (GroupMean(), LeaveOneOut()):
        base = values(credit, group)
        assert values(credit, [r + shift for r in group]) == pytest.approx(base, abs=1e-9)
        assert values(credit, [3 * r for r in group]) == pytest.approx([3 * (a or 0) for a in base], abs=1e-9)
    scaled = values(GroupMean("population"), [3 * r + shift for r in group])
    assert scaled == pytest.approx(values(GroupMean("population"), group), abs=1e-6)


@SOME
@given(st.lists(rewards, min_size=2, max_size=8))
def test_leave_one_out_is_the_return_minus_the_mean_of_the_others(group: list[float]) -> None:
    got = values(LeaveOneOut(), group)
    for i, r in enumerate(group):
        others = [x for j, x in enumerate(group) if j != i]
        assert got[i] == pytest.approx(
            r - sum(others) / len(others), abs=1e-4 if max(group) - min(group) < 1e-4 else 1e-9
        )


@SOME
@given(relative, st.lists(scores, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_groups_and_members_changes_nothing(name: str, groups: list[list[float | None]], draw) -> None:
    places = [(g, m) for g, group in enumerate(groups) for m in range(len(group))]
    first = assign(RELATIVE[name], [finals(group) for group in groups], {}).advantages
    order = draw.sample(range(len(groups)), len(groups))
    members = [draw.sample(range(len(group)), len(group)) for group in groups]
    second = assign(RELATIVE[name], [finals([groups[g][m] for m in members[g]]) for g in order], {}).advantages
    for g, m in places:
        a, b = first[g][m], second[order.index(g)][members[g].index(m)]
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.tolist() == pytest.approx(b.tolist(), abs=1e-9)


def test_groups_are_told_apart_by_themselves_and_never_mixed() -> None:
    two = [finals([1.0, 1.0]), finals([0.0, 0.0])]  # the same prompt text twice, all rewards equal in each
    mixed = [[*two[0], *two[1]]]
    for credit in RELATIVE.values():
        apart = assign(credit, two, {})
        assert [a.tolist() for group in apart.advantages for a in group if a is not None] == [[0.0]] * 4
        assert apart.equal == 2
        assert all(a is not None and a[0] != 0 for a in assign(credit, mixed, {}).advantages[0])  # the fault


def test_groups_of_one_get_zero_and_are_counted() -> None:
    for credit in RELATIVE.values():
        credits = assign(credit, [finals([1.0]), finals([1.0, 0.0]), finals([1.0, 0.0, None, 1.0]), finals([None])], {})
        assert [a.tolist() for a in credits.advantages[0] if a is not None] == [[0.0]]
        assert (credits.singletons, credits.unscored, credits.equal) == (1, 2, 0)
        found = [a[0] for group in credits.advantages[1:3] for a in group if a is not None]
        assert np.isfinite(found).all()
        assert np.all(np.array(found) != 0)


@pytest.mark.parametrize("name", EVERY)
def test_credit_has_one_number_for_each_sampled_token(name: str) -> None:
    members = [
        annotated(Outcome(np.array([0.25, 0.5]), 1.0, np.array([0, 0, 1]), score=1.0)),
        annotated(Outcome(np.array([0.0]), 0.0, np.array([0, 0, 0, 0]), score=0.0)),
    ]
    credits = assign(EVERY[name], [members], {})
    [advantages] = credits.advantages
    assert [len(a) for a in advantages if a is not None] == ([3] if name == "above" else [3, 4])
    assert all(np.isfinite(a).all() for a in advantages if a is not None)
    if name == "to go":
        assert [a.tolist() for a in advantages if a is not None] == [
            pytest.approx([0.25 + 0.9 * 1.5 - 0.5] * 2 + [1.0]),
            [-0.5] * 4,
        ]
    assert (name in FLAT) == all(len(set(a.tolist())) == 1 for a in advantages if a is not None)
    assert bool(credits.targets) == name.startswith("gae")
    for advantage, target in zip(advantages, *(credits.targets or [[None, None]]), strict=True):
        assert target is None or (advantage is not None and len(target) == len(advantage))


@pytest.mark.parametrize("name", ESTIMATED)
def test_credit_from_estimates_that_nobody_made_is_an_error(name: str) -> None:
    with pytest.raises(RuntimeError, match="needs"):
        assign(ESTIMATED[name], [finals([1.0, 0.0])], {})
    assert assign(ESTIMATED[name], [finals([None])], {}).advantages == [[None]]


def test_families_have_moving_averages_of_their_own() -> None:
    [one] = finals([1.0])
    other = replace(one, family="other")
    credits = assign(RewardToGo(MovingAverage(0.5)), [[one], [other], [one]], {"other": 0.25})
    assert [float(a[0]) for [a] in credits.advantages if a is not None] == [1.0, 0.75, 0.5]
    assert credits.state == {"": 0.75, "other": 0.625}


def played(rewards: list[dict[str, float]], verdict: Verdict | None) -> Trajectory:
    nothing = np.zeros(0, dtype=np.int32)
    turns = []
    for k, reward in enumerate(rewards):
        n = k + 1
        completion = Completion(np.arange(n, dtype=np.int32), np.zeros(n, np.float32), np.zeros(n, np.int32), "stop")
        turns.append(Turn(nothing, completion, Message("assistant", ""), reward))
    return Trajectory(Task("t", tags=("maths", "easy")), tuple(turns), nothing, "done", (), verdict=verdict)


def test_the_outcome_of_a_trajectory_keeps_turn_rewards_and_the_final_reward_apart() -> None:
    found = outcome(played([{"a": 0.25, "b": 0.5}, {}], Verdict(1.0, aux={"style": -0.125})))
    assert (found.turn_rewards.tolist(), found.final, found.reward) == ([0.75, 0.0], 0.875, 1.625)
    assert (found.turns.tolist(), found.family) == ([0, 1, 1], "maths")
    assert outcome(played([{}], None)).reward is None
    assert outcome(played([{"a": 1.0}], Verdict(None, invalid="timed out"))).reward is None
    assert outcome(played([{}], Verdict(0.0))).reward == 0.0
