"""Rounds of self-training: what each pass learns from, how the data set grows, and what an empty one means."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.algorithms import ALGORITHMS
from strop.core.algorithm import Above, One, Rounds
from strop.core.errors import RunError
from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Group, Trajectory, Turn
from strop.envs.guess import guess
from strop.learn.learner import LocalLearner
from strop.learn.schedule import Optimisation
from strop.loop.plan import StagePlan
from strop.loop.rounds import Grown, empty, passes
from strop.watch.run_folder import RunFolder
from tests.loop.runs import start

GROWN = {"stages.1.kind": "rounds", "stages.1.algorithm": "rest", "keep.updates": 10}


def steps(path: Path) -> list[Mapping[str, Any]]:
    return [record for record in RunFolder.open(path).metrics() if record["stage"] == "rounds"]


def won(path: Path, until: int, since: int = 5) -> list[tuple[str, int]]:
    records = RunFolder.open(path).episodes()
    return [(r["group"], r["member"]) for r in records if since <= r["step"] <= until and r["score"] == 1]


def learned(path: Path, step: int) -> list[tuple[str, int]]:
    update = RunFolder.open(path).update(step)
    rows = zip(update["row_draw"].tolist(), update["row_member"].tolist(), strict=True)
    return [(f"train-{draw:06d}", member) for draw, member in rows]


def test_a_data_set_that_grows_has_the_successes_of_all_rounds_of_its_stage(tmp_path: Path) -> None:
    start(tmp_path / "run", GROWN)
    found = steps(tmp_path / "run")
    for record in found:
        mine = won(tmp_path / "run", record["step"])
        assert learned(tmp_path / "run", record["step"]) == mine * 2  # both thresholds keep the successes
        assert record["kept_0"] == record["kept_1"] == len(mine)
        assert record["updates"] == 2
    sizes = [record["kept_0"] for record in found]
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0] > 0
    of_one = [len(won(tmp_path / "run", n, n)) for n in range(5, 9)]
    assert sizes != of_one  # without the union
    # held whole: the groups with a success
    whole = {r["group"] for r in RunFolder.open(tmp_path / "run").episodes() if r["stage"] == "rounds" and r["score"]}
    assert found[-1]["union"] == 4 * len(whole)


def test_a_pass_has_its_share_of_the_rate_and_the_next_round_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    whole = LocalLearner.step

    def step(self: LocalLearner, rows: Any) -> Any:
        rates.append(self.rate)
        return whole(self, rows)

    monkeypatch.setattr(LocalLearner, "step", step)
    start(tmp_path / "run", GROWN)
    assert rates == [1.0] * 4 + [1.0, 0.5] * 4


def test_each_round_that_starts_from_the_base_has_the_whole_schedule(tmp_path: Path) -> None:
    schedule = {**GROWN, "learner.lr_end": 0.1, "stages.1.epochs": 3}
    start(tmp_path / "again", {**schedule, "stages.1.algorithm": "rest_em"})
    start(tmp_path / "on", {**schedule, "stages.1.algorithm": "expert_iteration"})
    again, on = ([record["learning_rate"] for record in steps(tmp_path / name)] for name in ("again", "on"))
    assert again == pytest.approx([0.004 * 0.55] * 4)  # the mean of 1, 0.55 and 0.1
    assert on == sorted(on, reverse=True)
    assert on[-1] < 0.5 * on[0]


def test_rounds_without_a_filter_learn_from_every_episode(tmp_path: Path) -> None:
    start(tmp_path / "run", {**GROWN, "stages.1.algorithm": "unfiltered_rounds"})
    assert [record["kept_0"] for record in steps(tmp_path / "run")] == [16] * 4
    assert "kept_1" not in steps(tmp_path / "run")[0]
    assert passes(ALGORITHMS["unfiltered_rounds"]) == [One()]
    assert passes(ALGORITHMS["rest"]) == [Above(0.0), Above(0.5)]
    everything = replace(ALGORITHMS["rest"], credit=One())
    assert passes(everything) == [One()]


def test_equal_games_of_a_task_are_learned_from_once(tmp_path: Path) -> None:
    rows = {"distinct": "rounds(distinct=true)", "plain": "rounds", "capped": "rounds(cap=2)"}
    found: dict[str, Mapping[str, Any]] = {}
    for name, rounds in rows.items():
        given = {"stages.1.kind": "rounds", "algorithm": {"base": "expert_iteration", "rounds": rounds}}
        start(tmp_path / name, {**given, "stages.1.groups": 8}, until=5)
        [found[name]] = steps(tmp_path / name)
    games: dict[str, set[str]] = {}
    for record in RunFolder.open(tmp_path / "plain").episodes():
        if record["step"] == 5 and record["score"] == 1:
            said = str([m["content"] for m in record["messages"]])
            games.setdefault(record["task"], set()).add(said)
    different = sum(map(len, games.values()))
    assert found["distinct"]["kept_0"] == found["distinct"]["distinct_0"] == found["plain"]["distinct_0"] == different
    assert found["plain"]["kept_0"] == len(won(tmp_path / "plain", 5)) > different
    assert found["distinct"]["task_max_0"] == max(map(len, games.values()))
    assert found["capped"]["task_max_0"] == 2 < found["plain"]["task_max_0"]


# --- nothing to learn from


@pytest.mark.parametrize("row", ["expert_iteration", "rest"])
def test_a_round_that_keeps_nothing_stops_the_run_with_advice(row: str, tmp_path: Path) -> None:
    hopeless = {"env": "tests.loop.hopeless:hopeless", "stages.0.steps": 0, **GROWN, "stages.1.algorithm": row}
    with pytest.raises(RunError) as told:
        start(tmp_path / "run", hopeless)
    wanted = ("none of 16 episodes", "the threshold 0", "the best score is 0", "0 unscored", "algorithm.rounds")
    if row == "rest":  # its data set holds nothing either, and says what was sampled
        assert "the round kept nothing" in str(told.value)
    assert [text for text in wanted if text not in str(told.value)] == []
    assert len(list(RunFolder.open(tmp_path / "run").episodes())) == 16  # what was played can be read


def test_a_pass_that_keeps_nothing_is_passed_over_and_said(tmp_path: Path) -> None:
    given = {"stages.1.kind": "rounds", "algorithm": {"base": "rest", "rounds": "rounds([0.0, 1.0], union=true)"}}
    start(tmp_path / "run", given)
    said = [e for e in RunFolder.open(tmp_path / "run").events() if e.get("event") == "pass_skipped"]
    assert [(e["step"], e["nothing_passed"]) for e in said] == [(n, "above(1.0)") for n in range(5, 9)]
    assert [(r["kept_0"] > 0, r["kept_1"], r["updates"]) for r in steps(tmp_path / "run")] == [(True, 0, 1)] * 4


# --- the data set


def sampled(draw: int, scores: Sequence[float | None], task: str = "secret-1") -> Group:
    def one(score: float | None) -> Trajectory:
        completion = Completion(
            np.array([3, draw], np.int32), np.array([-0.1, -1.7], np.float32), np.full(2, 4, np.int32), "stop"
        )
        turn = Turn(np.array([5], np.int32), completion, Message("assistant", "1"))
        verdict = Verdict(score, invalid=None if score is not None else "no judge")
        return Trajectory(Task(task), (turn,), np.zeros(0, np.int32), "done", (turn.message,), verdict=verdict)

    return Group(f"train-{draw:06d}", Task(task), tuple(map(one, scores)))


def grown(path: Path, rounds: Rounds, most: int = 100) -> Grown:
    algorithm = replace(ALGORITHMS["rest"], rounds=rounds)
    return Grown(path, StagePlan("rounds", "rest", algorithm, 4, 2, 2, Optimisation()), guess(4, 2), most)


def ids(data: Grown) -> list[str]:
    return [group.id for group in data.groups]


def test_a_data_set_keeps_groups_with_something_above_the_lowest_threshold(tmp_path: Path) -> None:
    data = grown(tmp_path, Rounds((0.2, 0.5), union=True))
    data.add(5, [sampled(0, [0.0, 0.2]), sampled(1, [0.0, 0.3]), sampled(2, [None, None])])
    data.add(6, [sampled(3, [0.9, None])])
    assert ids(data) == ["train-000001", "train-000003"]
    again = grown(tmp_path, Rounds((0.2, 0.5), union=True))
    again.load(range(5, 7))
    for mine, theirs in zip(data.groups, again.groups, strict=True):
        assert [t.score for t in theirs.trajectories] == [t.score for t in mine.trajectories]
        assert theirs.task == again.world.split("train")[0]  # the whole task, found by its id
        for one, other in zip(mine.trajectories, theirs.trajectories, strict=True):
            assert other.turns[0].completion.logprobs.tobytes() == one.turns[0].completion.logprobs.tobytes()
    again.load(range(5, 6))
    assert ids(again) == ["train-000001"]  # what was written of later steps never happened


def test_a_failure_with_auxiliary_rewards_is_kept_by_no_round(tmp_path: Path) -> None:
    group = sampled(0, [0.0, 1.0])
    paid = [replace(t, turns=(replace(t.turns[0], rewards={"craft": 0.7}),)) for t in group.trajectories]
    data = grown(tmp_path, Rounds((0.0, 0.5), union=True))
    data.add(
        5, [replace(group, trajectories=tuple(paid[:1])), replace(group, id="train-000001", trajectories=tuple(paid))]
    )
    assert ids(data) == ["train-000001"]
    lost = replace(group, trajectories=tuple(paid[:1]))
    assert "the best score is 0;" in empty(ALGORITHMS["rest"], [lost])


def test_a_data_set_is_bounded_by_letting_the_oldest_rounds_go(tmp_path: Path) -> None:
    rounds = Rounds(union=True)
    data = grown(tmp_path, rounds, most=5)
    for step in range(5, 9):
        data.add(step, [sampled(step, [1.0, 0.0])])
    assert ids(data) == ["train-000007", "train-000008"]
    again = grown(tmp_path, rounds, most=5)
    again.load(range(5, 9))
    assert ids(again) == ids(data)
    data.add(9, [sampled(9, [1.0] * 8)])
    assert ids(data) == ["train-000009"]  # the newest whatever its size
    again.load(range(5, 10))
    assert ids(again) == ids(data)
