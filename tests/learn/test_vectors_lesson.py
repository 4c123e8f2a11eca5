"""From played groups to credit: the KL in the reward and the cap of a round against known numbers, to 1e-9.

The learner here says the vector's log-probabilities of whatever row it is shown; all else is production code.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from strop.core.algorithm import KL, Above, Credit, LeaveOneOut, RewardToGo, Rounds
from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Group, Row, Trajectory, Turn
from strop.loop.lesson import Lesson, lesson
from strop.loop.rounds import sieved
from tests.objective.batches import VECTORS, algorithm

TOLERANCE = 1e-9


def played(task: Task, tokens: int, score: float) -> Trajectory:
    """One turn of some tokens after one token of context."""
    ids = np.arange(tokens, dtype=np.int32)
    completion = Completion(ids, np.full(tokens, -1.0, np.float32), np.zeros(tokens, np.int32), "stop")
    turn = Turn(np.array([9], np.int32), completion, Message("assistant", ""))
    return Trajectory(task, (turn,), np.zeros(0, np.int32), "done", (), verdict=Verdict(score))


def group(name: str, task: str, scores: Sequence[float], tokens: int = 1) -> Group:
    made = Task(task)
    return Group(name, made, tuple(played(made, tokens, score) for score in scores))


class Told:
    """A learner that knows the log-probabilities of the sampled tokens of each member."""

    def __init__(self, columns: Sequence[dict[str, Sequence[float]]]) -> None:
        self.columns = columns

    def annotate(self, rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
        out = []
        for row in rows:
            told = {name: np.zeros(len(row)) for name in names}
            for name in names:
                told[name][row.sampled] = self.columns[row.origin.member][name]
            out.append(row.with_columns(**told))
        return out

    def coefficient(self, name: str, otherwise: float) -> float:
        return otherwise


def taught(parts: Any, credit: Credit, groups: Sequence[Group], learner: Told | None = None) -> Lesson:
    async def aside(work: Any) -> Any:
        return work()

    given: Any = SimpleNamespace(learner=learner, aside=aside, teachers=(), endpoint=None)
    return asyncio.run(lesson(given, parts, credit, groups, {}))


@pytest.mark.parametrize("level", ["turn", "token"])
def test_a_kl_in_the_reward_is_paid_by_each_token_and_by_those_before_it(level: Any) -> None:
    inputs, expected = VECTORS["kl.in_reward"]["inputs"], VECTORS["kl.in_reward"]["expected"]
    told = Told([{"proximal_logp": inputs["logp"], "reference_logp": inputs["ref_logp"]}])
    parts = replace(algorithm(), terms=(KL(inputs["beta"], "k1", "reward"),))
    one = [group("train-000000", "t", [inputs["final_reward"]], 3)]
    [[found]] = taught(parts, RewardToGo(level=level), one, told).credits.advantages
    assert found is not None
    assert found.tolist() == pytest.approx(expected["reward_to_go"], abs=TOLERANCE)
    own = found - np.append(found[1:], 0.0)
    assert own.tolist() == pytest.approx(expected["token_rewards"], abs=TOLERANCE)
    penalties = own - np.array([0.0, 0.0, inputs["final_reward"]])
    assert (-penalties / inputs["beta"]).tolist() == pytest.approx(expected["k1"], abs=TOLERANCE)
    [[bare]] = taught(algorithm(), RewardToGo(level=level), one, told).credits.advantages
    assert bare is not None
    assert bare.tolist() == [inputs["final_reward"]] * 3


def test_a_baseline_over_the_group_sees_the_return_after_the_kl() -> None:
    inputs, expected = VECTORS["kl.in_reward"]["inputs"], VECTORS["kl.in_reward"]["expected"]
    told = {"proximal_logp": inputs["logp"], "reference_logp": inputs["ref_logp"]}
    still = dict.fromkeys(told, inputs["ref_logp"])
    parts = replace(algorithm(), terms=(KL(inputs["beta"], "k1", "reward"),))
    two = [group("train-000000", "t", [inputs["final_reward"], 0.0], 3)]
    [given] = taught(parts, LeaveOneOut(), two, Told([told, still])).credits.advantages
    first, second = (a.tolist() for a in given if a is not None)
    assert first == pytest.approx([expected["sequence_reward"]] * 3, abs=TOLERANCE)
    assert second == pytest.approx([-expected["sequence_reward"]] * 3, abs=TOLERANCE)
    assert expected["sequence_reward"] != pytest.approx(inputs["final_reward"], abs=1e-2)


def test_a_round_keeps_the_first_right_answers_of_a_task_up_to_its_cap() -> None:
    inputs, expected = VECTORS["restem.cap"]["inputs"], VECTORS["restem.cap"]["expected"]
    flags, cap = [float(f) for f in inputs["correct_flags"]], inputs["cap"]
    found = taught(algorithm(), Above(), [group("train-000000", "t", flags)])
    assert [row.origin.member for row in found.rows] == [i for i, f in enumerate(flags) if f]
    assert [row.origin.member for row in sieved(found, Rounds(cap=cap))[0].rows] == expected["kept_indices"]
    assert [row.origin.member for row in sieved(found, Rounds())[0].rows] == [row.origin.member for row in found.rows]
    # a task that is drawn twice still has one cap, and another task its own
    groups = [
        group("train-000000", "t", flags[:2]),
        group("train-000001", "u", flags),
        group("train-000002", "t", flags[2:]),
    ]
    kept = [
        (row.origin.group, row.origin.member)
        for row in sieved(taught(algorithm(), Above(), groups), Rounds(cap=cap))[0].rows
    ]
    assert [place for place in kept if place[0] != "train-000001"] == [
        ("train-000000", 0),
        ("train-000000", 1),
        ("train-000002", 1),
    ]
    assert [m for name, m in kept if name == "train-000001"] == expected["kept_indices"]
