"""A run that learns from itself: the student plays as in any other run, and the steps say what was told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.loop.train import StepDone
from strop.watch.run_folder import RunFolder
from tests.loop.runs import start
from tests.loop.test_train import steps

SELF: dict[str, Any] = {
    "algorithm.base": "self_distillation",
    "algorithm.terms": ["divergence(1.0, forward, teacher=self)"],
}


def games(path: Path, step: int) -> list[Any]:
    return [r for r in RunFolder.open(path).episodes() if r["step"] == step]


def test_nothing_that_the_teacher_is_told_reaches_the_play(tmp_path: Path) -> None:
    """The first batch of a stage is played by the same weights, whatever it will be used for: so it is the same play."""
    start(tmp_path / "self", SELF)
    start(tmp_path / "other", {"algorithm.base": "grpo"})
    assert games(tmp_path / "self", 5) == games(tmp_path / "other", 5) != []
    assert games(tmp_path / "self", 6) != games(tmp_path / "other", 6)  # they learned different things from it


def test_the_rows_that_were_trained_hold_what_was_played_and_no_more(tmp_path: Path) -> None:
    start(tmp_path / "run", SELF)
    columns = RunFolder.open(tmp_path / "run").update(8)
    seen = [[i for turn in r["turns"] for i in (*turn["context"], *turn["tokens"])] for r in games(tmp_path / "run", 8)]
    rows = [row.tolist() for row in np.split(columns["tokens"], np.cumsum(columns["row_length"])[:-1])]
    assert sorted(rows) == sorted(seen)


def test_a_step_says_how_many_rows_were_told_and_by_whom(tmp_path: Path) -> None:
    start(tmp_path / "run", SELF)
    found = steps(tmp_path / "run")[4:]
    assert [r["told_rows"] for r in found] == [1.0] * 4  # the world has a reference of every task
    assert any(0 < r["told_successes"] < 1 for r in found)
    assert all(r["teacher_divergence"] > 0 for r in found)
    assert all(r["policy_loss"] == 0 for r in found)


@pytest.mark.parametrize(("source", "learns"), [("success", False), ("either", True)])
def test_a_batch_without_any_success_teaches_nothing_where_successes_are_asked_for(
    source: str, learns: bool, tmp_path: Path
) -> None:
    term = f"divergence(1.0, forward, teacher=self, solution={source})"
    changes = {**SELF, "algorithm.terms": [term], "env": "tests.loop.hopeless:hopeless", "stages.0.steps": 0}
    done = [event for event in start(tmp_path / "run", changes) if isinstance(event, StepDone)]
    assert all((event.sentence is None) == learns for event in done)
    assert all((event.values["gradient_norm"] > 0) == learns for event in done)  # type: ignore[operator]
    if not learns:
        assert done[0].sentence == "nothing was learned: no row had a solution that its teacher could be told"
