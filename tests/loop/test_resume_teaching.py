"""Runs that learn from a teacher, from saved episodes, from a share of demonstrations, or from a data set that grows: stopped
anywhere and taken up again, they are the runs that were never stopped, bit for bit."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from strop.core.errors import UsageError
from strop.learn.checkpoint import Checkpoint
from strop.loop.rounds import Grown
from strop.loop.train import StepDone, Training
from tests.loop.runs import Outcome, differences, outcome, resume, start
from tests.loop.teaching import taught

STEPS = 8
SOME = (2, 4, 6)  # in the middle of the first stage, at its end, in the middle of the second

GROWN = {"stages.1.kind": "rounds", "stages.1.algorithm": "rest"}
MIXED = {"stages.1.algorithm": "on_policy_distillation", "stages.1.demonstrated": 0.5, "algorithm": {}}
VARIANTS: dict[str, dict[str, Any]] = {
    "union": GROWN,
    "union that restarts": {
        "stages.1.kind": "rounds",
        "algorithm": {"base": "rest_em", "rounds": "rounds(restart=true, cap=3, distinct=true, union=true)"},
    },
    "unfiltered": {"stages.1.kind": "rounds", "stages.1.algorithm": "unfiltered_rounds"},
    "teacher": {"stages.0.demonstrations": "teacher", "model.teacher": "TEACHER"},
    "saved": {"stages.0.demonstrations": "RUN", "stages.0.select": "kept(0.0, cap=5, distinct=true)"},
    "share of a teacher": {**MIXED, "stages.1.demonstrations": "teacher", "model.teacher": "TEACHER"},
    "share of saved": {**MIXED, "stages.1.demonstrations": "RUN", "model.teacher": "TEACHER"},
    "share of the player": {**MIXED, "model.teacher": "TEACHER"},
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return taught(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def changes(places: tuple[Path, Path]) -> Callable[[str], Mapping[str, Any]]:
    """A variant with the teacher and the run in their places."""
    there = {"TEACHER": str(places[0]), "RUN": str(places[1])}

    def of(variant: str) -> Mapping[str, Any]:
        return {k: there.get(v, v) if isinstance(v, str) else v for k, v in VARIANTS[variant].items()}

    return of


@pytest.fixture(scope="module")
def straight(
    tmp_path_factory: pytest.TempPathFactory, changes: Callable[[str], Mapping[str, Any]]
) -> Callable[[str], Outcome]:
    """Undisturbed runs, made once."""
    done: dict[str, Outcome] = {}

    def of(variant: str) -> Outcome:
        if variant not in done:
            path = tmp_path_factory.mktemp("straight") / "run"
            start(path, changes(variant))
            done[variant] = outcome(path)
        return done[variant]

    return of


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_is_taught_is_the_same_when_it_was_stopped(
    variant: str, tmp_path: Path, straight: Callable[[str], Outcome], changes: Callable[[str], Mapping[str, Any]]
) -> None:
    expected = straight(variant)
    assert [r["gradient_norm"] > 0 for r in expected.metrics if r["stage"] != "start"] == [True] * STEPS
    for k in SOME:
        path = tmp_path / str(k)
        start(path, changes(variant), until=k)
        rest = resume(path)
        assert [e.step for e in rest if isinstance(e, StepDone)] == list(range(k + 1, STEPS + 1))
        assert differences(expected, outcome(path)) == [], f"stopped after step {k}"


@pytest.mark.parametrize("variant", ["union", "share of a teacher"])
def test_a_run_that_is_taught_is_the_same_when_it_was_stopped_after_every_step(
    variant: str, tmp_path: Path, straight: Callable[[str], Outcome], changes: Callable[[str], Mapping[str, Any]]
) -> None:
    start(tmp_path / "run", changes(variant), until=1)
    for k in range(2, STEPS + 1):
        resume(tmp_path / "run", until=k)
    assert differences(straight(variant), outcome(tmp_path / "run")) == []


def test_a_run_goes_on_without_the_file_that_it_learns_from(
    tmp_path: Path, places: tuple[Path, Path], straight: Callable[[str], Outcome]
) -> None:
    """Its copy in the run folder counts; a run that lost the copy too says so, and one with another copy is seen."""
    shutil.copytree(places[1], tmp_path / "source")
    given = {**VARIANTS["saved"], "stages.0.demonstrations": str(tmp_path / "source")}
    for name in ("kept", "lost", "other"):
        start(tmp_path / name, given, until=2)
    shutil.rmtree(tmp_path / "source")
    resume(tmp_path / "kept")
    assert differences(straight("saved"), outcome(tmp_path / "kept")) == []
    copy = tmp_path / "other/data/stage-0.jsonl"
    copy.write_bytes(b"".join(reversed(copy.read_bytes().splitlines(keepends=True))))
    resume(tmp_path / "other")
    assert "episodes of step 3" in differences(straight("saved"), outcome(tmp_path / "other"))
    (tmp_path / "lost/data/stage-0.jsonl").unlink()
    with pytest.raises(UsageError, match="source do not exist"):
        resume(tmp_path / "lost")


def forget_demonstrations(saved: Checkpoint) -> None:
    saved.state["position"]["ledger"]["demonstrations"] = 0


def forget_drawn(saved: Checkpoint) -> None:
    saved.state["position"]["ledger"]["drawn"] = 0


@pytest.mark.parametrize(
    ("variant", "lose", "stopped", "seen"),
    [
        ("teacher", forget_demonstrations, 2, "episodes of step 3"),
        ("saved", forget_demonstrations, 2, "episodes of step 3"),
        ("share of a teacher", forget_drawn, 6, "episodes of step 7"),
        ("share of saved", forget_drawn, 6, "episodes of step 7"),
    ],
)
def test_a_place_in_the_demonstrations_that_is_forgotten_is_seen(
    variant: str,
    lose: Callable[[Checkpoint], None],
    stopped: int,
    seen: str,
    tmp_path: Path,
    straight: Callable[[str], Outcome],
    changes: Callable[[str], Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Training.resume

    def lossy(self: Training, saved: Checkpoint) -> None:
        lose(saved)
        whole(self, saved)

    start(tmp_path / "run", changes(variant), until=stopped)
    monkeypatch.setattr(Training, "resume", lossy)
    resume(tmp_path / "run")
    assert seen in differences(straight(variant), outcome(tmp_path / "run"))


@pytest.mark.parametrize("variant", ["union", "union that restarts"])
def test_a_data_set_that_is_forgotten_is_seen_and_one_that_is_gone_is_told(
    variant: str,
    tmp_path: Path,
    straight: Callable[[str], Outcome],
    changes: Callable[[str], Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("run", "gone"):
        start(tmp_path / name, changes(variant), until=6)
    (tmp_path / "gone/data/round-000005.jsonl").unlink()
    with pytest.raises(UsageError, match=r"round-000005.jsonl cannot be read .* Restore it, or start a new run"):
        resume(tmp_path / "gone")
    monkeypatch.setattr(Grown, "load", lambda self, steps: None)
    resume(tmp_path / "run")
    assert "tensors model.safetensors" in differences(straight(variant), outcome(tmp_path / "run"))
