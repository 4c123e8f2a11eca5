"""Trainings with lag in storms (tests/loop/chaos.py): nothing is lost, nothing is there twice, nobody hangs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.loop.chaos import faults_of
from tests.loop.runs import start


def weather(root: Path, seed: int, seconds: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("chaos.py")), str(root), str(seed), str(seconds)],
        capture_output=True,
        text=True,
        timeout=seconds + 600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return json.loads(done.stdout.splitlines()[-1])


def harm(found: dict[str, Any]) -> list[str]:
    """What storms did to trainings that they must not do."""
    out = [*found["faults"], *(f"{left} is left" for left in found["left"])]
    out += [f"{found['hung']} processes hung"] if found["hung"] else []
    return out + [f"exit code {code}" for code in found["exit_codes"] if code not in ("0", "1", "-9")]


def test_a_minute_of_storms_loses_no_group_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = weather(tmp_path, 3, 60)
    assert harm(found) == []
    assert found["processes"] >= found["runs"] >= 1 and sum(found["struck"].values()) > 0  # there was a storm


@pytest.mark.slow
def test_ten_minutes_of_storms_lose_no_group_and_leave_nothing_behind(tmp_path: Path) -> None:
    found = weather(tmp_path, 4, 600)
    assert harm(found) == []
    assert min(found["struck"][what] for what in ("disk full", "NaN", "engine killed", "training killed")) > 0


def test_what_storms_are_looked_at_for_is_found(tmp_path: Path) -> None:
    """The control: a run in calm weather is clean; an episode twice, one missing, or a step missing is named."""
    changes = {"stages.0.steps": 3, "stages.1.steps": 10, "max_lag": 1, "preflight.tasks": 0}
    start(tmp_path / "run", changes)
    assert faults_of(tmp_path / "run", 1) == []
    assert any("lag 1 of 0" in fault for fault in faults_of(tmp_path / "run", 0))
    for name, change in (
        ("episodes", lambda lines: [*lines, lines[-1]]),
        ("episodes", lambda lines: [line for line in lines if b"train-000007" not in line]),
        ("metrics", lambda lines: lines[:-2]),
    ):
        path = tmp_path / "run" / f"{name}.jsonl"
        before = path.read_bytes()
        path.write_bytes(b"".join(change(before.splitlines(keepends=True))))
        assert faults_of(tmp_path / "run", 1)
        path.write_bytes(before)
    assert faults_of(tmp_path / "run", 1) == []
