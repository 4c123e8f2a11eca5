"""What `strop watch` prints: alarms with advice and curves, from the folder alone, in 80 columns."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from strop.cli.main import main
from strop.report.alarms import Curve, alarms, curves, lines
from strop.watch.alarms import ADVICE, Alarm
from strop.watch.run_folder import RunFolder

ALARM = Alarm(
    21, "proxy_gap", "proxy_gap", 0.1, 0.05, "the gap is 0.41; it was 0.19 at the start", ("train-000096/0", "b/1")
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with one alarm."""
    with (folder := RunFolder.create(tmp_path / "run")).lock():
        folder.log_step(0, "start", {"eval_proxy_gap": 0.0, "eval_sampled_success": 0.1})
        folder.log_step(1, "warm_start", {"success": 0.9, "check_x": 1.0})
        folder.log_step(2, "reinforce", {"success": 0.25, "tool_run": 0.5, "aux_a": None, "entropy": 1.0})
        folder.log_step(3, "reinforce", {"success": 0.5, "proxy_gap": 0.125, "aux_a": 2.0})
        told = ALARM.record()
        folder.log_alarm(told.pop("step"), told.pop("name"), told)
    return tmp_path / "run"


def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["strop", *map(str, arguments)])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 0
    return capsys.readouterr().out


def test_curves_have_first_and_last_values_in_the_order_of_the_watch(run: Path) -> None:
    assert curves(RunFolder.open(run).metrics()) == [
        Curve("success", 0.25, 0.5, 3),
        Curve("proxy_gap", 0.125, 0.125, 3),
        Curve("eval_sampled_success", 0.1, 0.1, 0),
        Curve("eval_proxy_gap", 0.0, 0.0, 0),
        Curve("aux_a", 2.0, 2.0, 3),
        Curve("tool_run", 0.5, 0.5, 2),
    ]


def test_an_alarm_comes_back_as_it_was_raised_with_the_advice_of_its_rule(run: Path) -> None:
    [found] = alarms(RunFolder.open(run).alarms())
    assert found == {**ALARM.record(), "advice": ADVICE["proxy_gap"]}


def test_the_page_fits_80_columns(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = command(capsys, monkeypatch, "watch", run)
    told = out.splitlines()
    assert max(map(len, told)) <= 80
    assert told[0] == "step 21  proxy_gap  the gap is 0.41; it was 0.19 at the start"
    assert told[1] == "    seen in: train-000096/0, b/1"
    assert "1 alarm" in told
    assert ADVICE["proxy_gap"] in " ".join(out.split())
    long: dict[str, Any] = {**ALARM.record(), "sentence": "word " * 60, "advice": "a " * 90}
    assert max(map(len, lines([long, long], []))) <= 80
    assert "2 alarms" in list(lines([long, long], []))


def test_a_run_without_alarms_says_so() -> None:
    assert list(lines([], [])) == ["no alarms"]


def test_json_holds_the_same(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(command(capsys, monkeypatch, "watch", run, "--json"))
    assert found["alarms"] == alarms(RunFolder.open(run).alarms())
    assert [curve["name"] for curve in found["curves"]] == [c.name for c in curves(RunFolder.open(run).metrics())]
