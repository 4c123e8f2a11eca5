"""What is kept of a data set: strictly above the threshold, each once, so many a task, in draw order. Sizes by hand."""

import numpy as np
import pytest

from strop.core.message import Message
from strop.core.metrics import values
from strop.core.selection import Kept
from strop.core.task import Task, Verdict
from strop.core.trajectory import Trajectory, Turn
from strop.teach.demonstrations import demonstrated_completion
from strop.teach.selection import Filter, Sieve, content
from tests.objective.batches import VECTORS


def episode(score: float | None, ids: list[int], task: str = "a", context: list[int] | None = None) -> Trajectory:
    said = demonstrated_completion(np.array(ids, np.int32), "stop")
    turn = Turn(np.array(context or [9], np.int32), said, Message("assistant", str(ids)))
    empty = np.zeros(0, np.int32)
    return Trajectory(Task(task), (turn,), empty, "done", (), verdict=None if score is None else Verdict(score))


def kept(rule: Kept | None, episodes: list[Trajectory]) -> list[int]:
    sieve = Filter(rule)
    return [index for index, given in enumerate(episodes) if sieve.takes(given)]


def test_a_threshold_keeps_what_is_strictly_above_it() -> None:
    inputs, expected = VECTORS["rest.thresholds"]["inputs"], VECTORS["rest.thresholds"]["expected"]
    episodes = [episode(score, [n]) for n, score in enumerate(inputs["rewards"])]
    for threshold, indices in zip(inputs["thresholds"], expected["kept"], strict=True):
        assert kept(Kept(threshold), episodes) == indices
    assert kept(Kept(0.4), episodes) == [2, 3, 4, 5]  # 0.4 itself is dropped
    assert kept(Kept(0.39), episodes) == [1, 2, 3, 4, 5]


def test_a_cap_keeps_the_first_ones_of_each_task() -> None:
    inputs, expected = VECTORS["restem.cap"]["inputs"], VECTORS["restem.cap"]["expected"]
    episodes = [episode(float(flag), [n]) for n, flag in enumerate(inputs["correct_flags"])]
    assert kept(Kept(cap=inputs["cap"]), episodes) == expected["kept_indices"]
    assert kept(Kept(), episodes) == [0, 1, 3, 4, 5]
    two = [episode(1.0, [n], task) for n, task in enumerate("aabab")]
    assert kept(Kept(cap=1), two) == [0, 2]


def test_what_is_there_twice_is_kept_once_and_does_not_count_towards_the_cap() -> None:
    episodes = [episode(1.0, ids, task) for ids, task in (([1], "a"), ([1], "a"), ([1], "b"), ([2], "a"), ([3], "a"))]
    assert kept(Kept(distinct=True), episodes) == [0, 2, 3, 4]
    assert kept(Kept(cap=2, distinct=True), episodes) == [0, 2, 3]
    assert kept(Kept(cap=2), episodes) == [0, 1, 2]
    # what failed is no first one
    assert kept(Kept(distinct=True), [episode(0.0, [1]), episode(1.0, [1])]) == [1]


def test_the_same_reply_to_another_answer_is_another_episode() -> None:
    assert kept(Kept(distinct=True), [episode(1.0, [1], context=[8]), episode(1.0, [1], context=[7])]) == [0, 1]
    assert content(episode(1.0, [1, 2], context=[8])) != content(episode(1.0, [2], context=[8, 1]))  # the border counts
    assert content(episode(1.0, [1], "a")) == content(episode(0.0, [1], "b"))


def test_without_a_rule_everything_is_kept_and_with_one_nothing_that_is_unscored() -> None:
    episodes = [episode(None, [1]), episode(0.0, [1]), episode(1.0, [1])]
    assert kept(None, episodes) == [0, 1, 2]
    assert kept(Kept(-1.0), episodes) == [1, 2]


def test_the_sizes_are_those_that_are_counted_by_hand() -> None:
    sieve = Filter(Kept(0.5, cap=2, distinct=True))
    given = (1.0, [1], "a"), (1.0, [1], "a"), (0.5, [2], "a"), (1.0, [3], "a"), (1.0, [4], "a"), (1.0, [1], "b")
    for one in given:
        sieve.takes(episode(*one))
    sieve.takes(episode(None, [5]))
    told = values(sieve.metrics())
    names = ("sampled", "kept", "distinct", "task_max")
    assert [told[f"demonstrations_{name}"] for name in names] == [7, 3, 4, 2]
    assert (sieve.best, sieve.unscored) == (1.0, 1)


@pytest.mark.parametrize(("cap", "largest"), [(None, 3), (2, 2)])
def test_the_largest_task_is_that_of_what_is_taken(cap: int | None, largest: int) -> None:
    sieve = Sieve(cap, False)
    for task in "abbbc":
        sieve.takes(task, b"")
    assert (sieve.passed, sieve.distinct, sieve.largest) == (5, 3, largest)
