"""`strop audit` and the gate of `strop train`: exit codes, JSON, replay, the page, and mistakes."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from strop import UsageError, run
from strop.audit.finding import TIERS, rate
from strop.cli import train as _train  # noqa: F401 (the command line loads)
from strop.report.audit_page import audit_page
from strop.watch.run_folder import RunFolder
from tests.command import Ran, commander
from tests.loop.runs import tables, toml

MINE = """
tasks = [{"id": f"t{k}", "prompt": f"{k} + {k}?", "reference": str(2 * k)} for k in range(11, 16)]

def loose(task, answer):
    return float(task["reference"] in answer)

def strict(task, answer):
    return float(answer.strip() == task["reference"])

def one_argument(answer):
    return 1.0

def dies(task, answer):
    import os
    os._exit(3)

def prints(task, answer):
    print('{"score": 1.0, "invalid": null}')
    return strict(task, answer)

def hangs(task, answer):
    while not answer.strip().isdigit():
        pass
    return strict(task, answer)
"""

CHEATED = """
from dataclasses import replace
from strop import Verdict, World
from strop.envs.guess import guess

def cheated() -> World:
    return replace(guess(4, 2), verify=lambda task, trajectory: Verdict(float(trajectory.turns[0].message.content == "")))
"""


@pytest.fixture
def strop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """The command line, in a folder with a module of verifiers."""
    tmp_path.chmod(0o755)  # the sandbox runs as another user where the tests run as root
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "cheatedworld.py").write_text(CHEATED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cheatedworld", raising=False)

    return commander(capsys, monkeypatch)


def test_a_fault_is_exit_code_1_and_json_holds_findings_rates_and_what_was_not_checked(
    strop: Callable[..., Ran],
) -> None:
    ran = strop("audit", "mine:loose", "--json")
    report = json.loads(ran.out)
    assert ran.code == 1
    assert {"findings", "rates", "not_checked"} <= report.keys()
    found = next(f for f in report["findings"] if f["replay"]["name"] == "many answers")
    assert {"tier": 3, "kind": "confirmed", "task": "t11"}.items() <= found.items()
    assert found["claim"].startswith("many answers at once pass")
    assert report["rates"]["false positives"]["hits"] > 0
    assert any("tier 8" in text for text in report["not_checked"])


def test_a_sound_verifier_is_exit_code_0_unless_leads_are_to_count(strop: Callable[..., Ran]) -> None:
    assert strop("audit", "mine:strict").code == 0
    assert strop("audit", "mine:strict", "--fail-on", "lead").code == 1
    assert strop("audit", "mine:loose", "--fail-on", "none").code == 0
    assert strop("audit", "guess", "--json").code == 0


def test_a_report_is_replayed_and_findings_are_gone_when_the_verifier_is_mended(
    strop: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "r.json").write_text(strop("audit", "mine:loose", "--json").out)
    again = strop("audit", "--replay", "r.json", "--json")
    held = json.loads(again.out)["findings"]
    assert again.code == 1
    assert held
    assert all(finding["holds"] for finding in held)
    (tmp_path / "mine.py").write_text(
        MINE.replace('task["reference"] in answer', 'task["reference"] == answer.strip()')
    )
    mended = strop("audit", "--replay", "r.json", "--json")
    assert mended.code == 0
    assert not any(f["holds"] for f in json.loads(mended.out)["findings"] if f["kind"] == "confirmed")


def test_only_the_asked_tiers_run_and_the_others_are_listed(strop: Callable[..., Ran]) -> None:
    report = json.loads(strop("audit", "mine:loose", "--json", "--tiers", "1,2").out)
    assert report["tiers"] == [1, 2]
    assert {f["tier"] for f in report["findings"]} <= {1, 2}
    left_out = [text for text in report["not_checked"] if text.startswith("tier ")]
    assert len(left_out) == len(TIERS) - 2


def test_a_task_folder_is_audited(strop: Callable[..., Ran], tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "verifier.py").write_text("def verify(task, answer):\n    return task['reference'] in answer\n")
    lines = [{"id": f"a{k}", "prompt": f"{k}*3?", "reference": str(3 * k)} for k in range(11, 15)]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    report = json.loads(strop("audit", "sums", "--json").out)
    assert report["subject"] == "sums"
    assert "many answers" in {f["replay"]["name"] for f in report["findings"]}
    (tmp_path / "empty").mkdir()
    assert strop("audit", "empty").code == 2


def test_a_world_takes_options_and_its_report_remembers_them(strop: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "2+2?", "answer": "4"}\n{"prompt": "4*7?", "answer": "28"}\n')
    ran = strop("audit", "jsonl", "file=p.jsonl", "world.reward=contains", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["options"] == {"file": "p.jsonl", "reward": "contains"}
    (tmp_path / "r.json").write_text(ran.out)
    assert strop("audit", "--replay", "r.json").code == 1
    assert strop("audit", "jsonl", "file=p.jsonl", "reward=exact").code == 0


def test_a_verifier_that_dies_prints_or_hangs_is_invalid_and_never_a_pass(strop: Callable[..., Ran]) -> None:
    dead = json.loads(strop("audit", "mine:dies", "--json", "--tiers", "2", "--seconds", "4").out)
    assert {f["replay"]["name"] for f in dead["findings"] if f["kind"] == "confirmed"} == {"reference"}
    assert "died" in dead["findings"][0]["claim"]
    assert strop("audit", "mine:prints", "--tiers", "1,2,3").code == 0


MISTAKES: list[tuple[list[str], str]] = [
    (["audit"], "give what to audit"),
    (["audit", "guess", "--replay", "x"], "one of the two"),
    (["audit", "gues"], "did you mean 'guess'"),
    (["audit", "nothere:x"], "cannot find the module 'nothere'"),
    (["audit", "mine:absent"], "has no attribute 'absent'"),
    (["audit", "mine:strict", "numbers=3"], "takes no options"),
    (["audit", "guess", "numbers"], "write it as key=value"),
    (["audit", "guess", "numbrs=3"], "world.numbrs is no option"),
    (["audit", "guess", "--tiers", "9"], "known: 1 static"),
    (["audit", "guess", "--tiers", "8"], "give --model RUN"),
    (["audit", "guess", "--tiers", "1", "--model", "x"], "--model is for tier 8"),
    (["audit", "guess", "--fail-on", "all"], "confirmed, lead, none"),
    (["audit", "guess", "--seconds", "0"], "it must be above 0"),
    (["audit", "guess", "--html", "no/such/place.html", "--tiers", "1"], "cannot be written"),
    (["audit", "mine:strict", "--model", "x"], "--model plays in the world of its run"),
    (["audit", "guess", "--model", "x"], "is no run folder"),
    (["audit", "guess", *["--model", "x"] * 3], "give one run, or two"),
    (["audit", "--replay", "absent.json"], "no such file"),
    (["audit", "--replay", "mine.py"], "this is no report"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], words: str, strop: Callable[..., Ran]) -> None:
    ran = strop(*arguments)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_without_the_optional_package_its_data_sets_say_what_to_install(
    strop: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    ran = strop("audit", "reasoning-gym:all")
    assert ran.code == 2
    assert "pip install 'strop[gym]'" in ran.err


def test_the_page_stands_alone_and_escapes_what_it_shows(strop: Callable[..., Ran], tmp_path: Path) -> None:
    assert strop("audit", "mine:loose", "--html", "a.html", "--json").code == 1
    page = (tmp_path / "a.html").read_text()
    assert "many answers at once pass" in page
    assert "caps the score near" in page
    assert "http" not in page.replace("https://", "http://")
    report: dict[str, Any] = json.loads(strop("audit", "mine:loose", "--json").out)
    report["findings"][0]["claim"] = "<script>alert(1)</script>"
    report["subject"] = "<b>"
    shown = audit_page([report])
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "<b>" not in shown


# --- the gate of `strop train`


def test_training_refuses_a_verifier_that_fails_its_audit_unless_told(
    strop: Callable[..., Ran], tmp_path: Path
) -> None:
    changes = {"env": "cheatedworld:cheated", "world": {}, "stages": [{"kind": "reinforce", "steps": 1}]}
    (tmp_path / "r.toml").write_text(toml({**tables({"evaluate.every": 0}), **changes}))
    refused = strop("train", "r.toml", "--run", "run")
    assert refused.code == 2
    assert "fails its audit" in refused.err
    assert "an empty answer passes" in refused.err
    assert not (tmp_path / "run").exists()
    assert strop("train", "r.toml", "--run", "run", "--unaudited").code == 0
    assert RunFolder.open(tmp_path / "run").run()["audit"] == {"unaudited": True, "tiers": [], "ceiling": None}


def test_a_sound_world_trains_and_the_run_keeps_that_it_was_audited_also_when_resumed(
    strop: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(toml(tables({"evaluate.every": 0, "stages.0.steps": 1, "stages.1.steps": 1})))
    assert strop("train", "r.toml", "--run", "run").code == 0
    audited = {"unaudited": False, "tiers": [1, 2], "ceiling": asdict(rate(4, 4))}
    assert RunFolder.open(tmp_path / "run").run()["audit"] == audited
    assert strop("train", "--resume", "run", "--unaudited").code == 2
    assert strop("train", "--resume", "run", "--set", "stages.1.steps=2").code == 0
    assert RunFolder.open(tmp_path / "run").run()["audit"] == audited


def test_the_ceiling_of_an_audit_is_handed_to_a_run_and_a_report_that_is_none_is_refused(
    strop: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(toml(tables({"evaluate.every": 0, "stages.0.steps": 1, "stages.1.steps": 1})))
    report = json.loads(strop("audit", "guess", "--json", "--tiers", "4").out)
    hit = {**report["ceiling"], "hits": report["ceiling"]["of"] - 1, "rate": "forged"}
    (tmp_path / "a.json").write_text(json.dumps({**report, "ceiling": hit}))
    refused = strop("train", "r.toml", "--run", "run", "--audit", "r.toml")
    assert refused.code == 2
    assert "r.toml is no audit of one world" in refused.err
    assert not (tmp_path / "run").exists()
    assert strop("train", "r.toml", "--run", "run", "--audit", "a.json").code == 0
    audited = RunFolder.open(tmp_path / "run").run()["audit"]
    assert audited["report"] == "guess"
    assert audited["ceiling"] == asdict(rate(hit["hits"], hit["of"])) != report["ceiling"]
    assert strop("train", "--resume", "run", "--audit", "a.json").code == 2


def test_the_door_of_the_library_has_the_same_gate(strop: Callable[..., Ran], tmp_path: Path) -> None:
    """It is shut before a model is loaded: here none could be."""
    (tmp_path / "empty").mkdir()
    changes = {"env": "cheatedworld:cheated", "world": {}, "stages": [{"kind": "reinforce", "steps": 1}]}
    recipe = {**tables({"evaluate.every": 0}), "model": {"path": str(tmp_path / "empty")}, **changes}
    with pytest.raises(UsageError, match=r"fails its audit .*unaudited=True"):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="empty"):
        run(recipe, tmp_path / "run", unaudited=True)
    sound = tables({"evaluate.every": 0, "stages.0.steps": 1, "stages.1.steps": 1})
    run(sound, tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").run()["audit"]["tiers"] == [1, 2]


def test_the_attempts_of_a_run_say_what_can_be_reached(strop: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(toml(tables({"evaluate.every": 0, "stages.0.steps": 1, "stages.1.steps": 1})))
    assert strop("train", "r.toml", "--run", "run").code == 0
    ran = strop("audit", "guess", "numbers=4", "attempts=2", "--model", "run", "--tiers", "2,8", "--json")
    reach = json.loads(ran.out)["reach"]
    assert reach["all_pass"] + reach["mixed"] + reach["all_fail"] == 4
    assert {task["of"] for task in reach["tasks"]} == {8}
    wrong = strop("audit", "craft", "--model", "run", "--tiers", "8")
    assert wrong.code == 2
    assert "is a run in 'guess'" in wrong.err


def test_a_stronger_run_shows_that_what_another_never_solves_can_be_done(
    strop: Callable[..., Ran], tmp_path: Path
) -> None:
    for name, steps, numbers in (("weak", 1, 8), ("strong", 12, 8), ("other", 1, 6)):
        changes = {"evaluate.every": 0, "stages.0.steps": steps, "stages.1.steps": 0, "stages.0.groups": 32}
        made = tables({**changes, "world": {"numbers": numbers, "attempts": 2}, "learner.lr": 0.01})
        (tmp_path / "r.toml").write_text(toml(made))
        assert strop("train", "r.toml", "--run", name).code == 0

    def evidence(*more: str) -> list[str]:
        given = ("audit", "guess", "numbers=8", "attempts=2", "--tiers", "8", "--model", "weak", "--json", *more)
        tasks = json.loads(strop(*given).out)["reach"]["tasks"]
        return [task["evidence"] for task in tasks if task["cause"] == "capability"]

    alone, beside = evidence(), evidence("--model", "strong")
    assert len(alone) == len(beside) > 0
    assert not any(text.startswith("a stronger model passes") for text in alone)
    assert any(text.startswith("a stronger model passes") for text in beside)
    refused = strop("audit", "guess", "numbers=8", "--tiers", "8", "--model", "weak", "--model", "other")
    assert refused.code == 2
    assert "other has other tasks than weak" in refused.err
