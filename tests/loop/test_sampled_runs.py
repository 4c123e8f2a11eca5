"""Whole runs with a sampler: a resumed one is the undisturbed one, and the evaluation is what it always was."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from strop.learn.checkpoint import Checkpoint
from strop.loop.train import Training
from strop.watch.run_folder import RunFolder
from tests.loop.graded import PLAYED
from tests.loop.runs import differences, outcome, resume, start

GRADED: dict[str, Any] = {
    "env": "tests.loop.graded:graded",
    "world.numbers": 8,
    "evaluate.every": 3,
    "stages.1.steps": 8,
}
SAMPLERS = {
    "learnable": "learnable(0.0, 0.9)",
    "failing": "failing(0.0)",
    "target": "target(0.05, 1.0, nearest=1)",
    "easy_to_hard": "easy_to_hard([2, 5])",
    "retire": "retire(0.2, 0.1, 1.0)",
}


def sampled(name: str) -> dict[str, Any]:
    return {**GRADED, "rollout.sampler": SAMPLERS[name]}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_stopped_run_with_a_sampler_goes_on_as_if_it_had_not_been(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path / "straight", sampled(name))
    expected = outcome(tmp_path / "straight")
    memory = expected.state["position"]["sampler"]
    assert memory["batches"] == 8 and (memory["counts"] or memory["target"] or name == "easy_to_hard")
    start(tmp_path / "stopped", sampled(name), until=8)
    resume(tmp_path / "stopped")
    assert differences(expected, outcome(tmp_path / "stopped")) == []

    whole = Training.resume

    def lossy(self: Training, saved: Checkpoint) -> None:
        saved.state["position"]["sampler"] = {}
        whole(self, saved)

    monkeypatch.setattr(Training, "resume", lossy)  # the control: a resume that forgets what was seen
    start(tmp_path / "forgetful", sampled(name), until=8)
    resume(tmp_path / "forgetful")
    assert "state position" in differences(expected, outcome(tmp_path / "forgetful"))
    tasks = [[e["task"] for e in found.episodes] for found in (expected, outcome(tmp_path / "forgetful"))]
    assert tasks[0] != tasks[1]


def test_rejected_groups_are_remembered_too(tmp_path: Path) -> None:
    start(
        tmp_path / "run",
        {**sampled("learnable"), "rollout.sampler": "learnable(decay=1.0)", "algorithm.admit": "mixed"},
    )
    episodes = [e for e in RunFolder.open(tmp_path / "run").episodes() if e["stage"] == "reinforce"]
    played = Counter(e["task"] for e in episodes)
    counts = outcome(tmp_path / "run").state["position"]["sampler"]["counts"]
    assert {task: n for task, (_, n) in counts.items()} == played
    assert len(episodes) > 8 * 4 * 4  # some groups were turned away


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return evaluated(tmp_path_factory.mktemp("uniform") / "run", GRADED)


def evaluated(path: Path, changes: dict[str, Any]) -> dict[str, int]:
    """Episodes of the evaluation's own tasks in a whole run."""
    PLAYED.clear()
    start(path, changes)
    return {task: PLAYED[task] for task in ("secret-3", "secret-6")}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_evaluation_is_played_on_the_same_tasks_as_often_whatever_is_drawn(
    name: str, plain: dict[str, int], tmp_path: Path
) -> None:
    assert plain["secret-3"] == plain["secret-6"] > 0
    assert evaluated(tmp_path / "run", sampled(name)) == plain
    assert not plain.keys() & outcome(tmp_path / "run").state["position"]["sampler"]["counts"].keys()


def test_an_evaluation_task_that_is_drawn_would_be_seen(plain: dict[str, int], tmp_path: Path) -> None:
    assert evaluated(tmp_path / "run", {**GRADED, "stages.1.split": "eval"}) != plain


def test_with_lag_every_drawn_task_is_trained_once_and_counted_once(tmp_path: Path) -> None:
    changes = {**GRADED, "rollout.sampler": "learnable(decay=1.0)", "max_lag": 1}
    changes["algorithm.base"] = "grpo"
    start(tmp_path / "stopped", changes, until=6)
    resume(tmp_path / "stopped")
    episodes = [e for e in RunFolder.open(tmp_path / "stopped").episodes() if e["stage"] == "reinforce"]
    assert sorted((e["group"], e["member"]) for e in episodes) == [
        (f"train-{n:06d}", m) for n in range(32) for m in range(4)
    ]
    counts = outcome(tmp_path / "stopped").state["position"]["sampler"]["counts"]
    assert {task: n for task, (_, n) in counts.items()} == Counter(e["task"] for e in episodes)


def test_rounds_draw_by_the_sampler_as_well(tmp_path: Path) -> None:
    start(tmp_path / "run", {**sampled("easy_to_hard"), "stages.1.kind": "rounds"})
    drawn = {e["step"]: set[str]() for e in RunFolder.open(tmp_path / "run").episodes() if e["stage"] == "rounds"}
    for e in RunFolder.open(tmp_path / "run").episodes():
        if e["stage"] == "rounds":
            drawn[e["step"]].add(e["task"])
    easy = {"secret-1", "secret-2"}
    assert drawn[5] <= easy and drawn[6] <= easy  # the first level, for two batches
    assert (drawn[7] | drawn[8] | drawn[9]) - easy
