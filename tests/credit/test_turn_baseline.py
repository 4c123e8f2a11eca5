"""Each turn's return from here on against the others' from the same turn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.core.algorithm import LeaveOneOut, RewardToGo, TurnLeaveOneOut
from strop.credit.assign import assign
from strop.credit.baselines import leave_one_out, turn_leave_one_out
from strop.credit.outcome import Outcome

TURNS = st.lists(st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=1, max_size=4), min_size=2, max_size=5)


def member(turn_rewards: list[float], final: float | None, tokens: int = 2) -> Outcome:
    turns = np.repeat(np.arange(len(turn_rewards)), tokens)
    return Outcome(np.array(turn_rewards, dtype=np.float64), final, turns)


def test_by_hand_a_member_that_has_ended_counts_as_nothing_more_to_earn() -> None:
    """Returns from each turn on: (1.5, 1), (0.5), (0, 0, 0); the others' means at turn 1 are 0, -, 0.5 and at turn 2 0."""
    togo = [np.array([1.5, 1.0]), np.array([0.5]), np.zeros(3)]
    found = turn_leave_one_out(togo, False)
    assert [x.tolist() for x in found] == [[1.25, 1.0], [-0.25], [-1.0, -0.5, 0.0]]


@given(TURNS)
def test_at_the_first_turn_it_is_leave_one_out_and_equal_returns_earn_exactly_nothing(
    rewards: list[list[float]],
) -> None:
    members = [member(turns, 0.0) for turns in rewards]
    [given_] = assign(TurnLeaveOneOut(), [members], {}).advantages
    whole = leave_one_out([m.reward for m in members])
    for credit, expected in zip(given_, whole, strict=True):
        assert credit is not None and expected is not None
        assert credit[0] == pytest.approx(expected, abs=1e-12)
    same = [member(rewards[0], 1.0) for _ in rewards]
    assert all(not np.any(a) for a in assign(TurnLeaveOneOut(), [same], {}).advantages[0] if a is not None)


@given(TURNS)
def test_what_was_earned_before_a_turn_is_no_part_of_its_credit(rewards: list[list[float]]) -> None:
    """Adding to the first turn's reward changes the first turn's credit and no later one; the return's credit it changes."""
    richer = [[rewards[0][0] + 3.0, *rewards[0][1:]], *rewards[1:]]
    before, after = (
        assign(TurnLeaveOneOut(), [[member(r, 0.0) for r in given_]], {}).advantages[0] for given_ in (rewards, richer)
    )
    for old, new, turns in zip(before, after, rewards, strict=True):
        assert old is not None and new is not None
        assert np.allclose(old[2:], new[2:], atol=1e-12) and len(old) == 2 * len(turns)
    whole = [
        assign(LeaveOneOut(), [[member(r, 0.0) for r in given_]], {}).advantages[0][0] for given_ in (rewards, richer)
    ]
    assert whole[0] is not None and whole[1] is not None
    assert np.abs(whole[0] - whole[1]).min() > 1  # every token's, those of later turns too


def test_the_scale_is_the_deviation_of_whole_returns_and_an_unscored_member_takes_no_part() -> None:
    group = [member([0.0, 1.0], 1.0), member([0.0, 0.0], 0.0), member([0.5], None)]
    plain = assign(TurnLeaveOneOut(), [group], {}).advantages[0]
    scaled = assign(TurnLeaveOneOut("population"), [group], {}).advantages[0]
    assert plain[2] is None and scaled[2] is None
    assert plain[0] is not None and scaled[0] is not None
    assert plain[0].tolist() == [2.0] * 4
    assert scaled[0].tolist() == [2.0] * 4  # the deviation of returns 2 and 0 is 1
    alone = assign(TurnLeaveOneOut(), [[group[0]]], {}).advantages[0][0]
    assert alone is not None and not alone.any()


def test_it_is_reward_to_go_with_a_baseline() -> None:
    """The difference from plain reward-to-go at a turn is one number for it, whatever the member's own rewards are."""
    others = [[0.0, 1.0], [1.0]]
    gaps = []
    for own in ([0.0, 0.0], [2.0, -1.0]):
        group = [member(r, 0.0) for r in (own, *others)]
        against = assign(TurnLeaveOneOut(), [group], {}).advantages[0][0]
        plain = assign(RewardToGo(), [group], {}).advantages[0][0]
        assert against is not None and plain is not None
        gaps.append((plain - against).tolist())
    assert gaps[0] == pytest.approx(gaps[1])
    assert gaps[0][0] != pytest.approx(gaps[0][2])
