"""`strop timeline`: picture, figures and SVG of a run folder, and mistakes with exit code 2."""

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from strop.cli.main import main
from strop.core.spans import Span, Taken
from strop.report.timeline import as_json, lines
from strop.watch.run_folder import RunFolder
from strop.watch.timeline import timeline_record

SECOND = 1_000_000
Strop = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder of steps 1 to 6, each half generation and a quarter update; step 6 was made void by a resume."""
    with (folder := RunFolder.create(tmp_path / "run")).lock():
        for step in range(1, 7):
            if step == 6:
                folder.resumed(5)
            start = step * SECOND
            spans = [Span("engine", start, start + SECOND // 2), Span("update", start + SECOND // 2, start + 750_000)]
            record = timeline_record(Taken(start, start + SECOND, spans, 0), 0, 0)
            folder.log_timeline(step, "reinforce", {"origin": 0.0, **record})
        folder.resumed(5)
    return tmp_path / "run"


@pytest.fixture
def strop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Strop:
    monkeypatch.setenv("COLUMNS", "80")

    def ask(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["strop", "timeline", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        told = capsys.readouterr()
        return int(leaving.value.code or 0), told.out, told.err

    return ask


def test_the_newest_steps_that_hold_are_shown_in_80_columns(run: Path, strop: Strop) -> None:
    code, out, err = strop(run)
    assert (code, err) == (0, "")
    assert out == "\n".join(lines(list(RunFolder.open(run).timeline())[1:])) + "\n"
    assert "steps 2 to 5: 4 s" in out and "|6" not in out
    assert max(map(len, out.splitlines())) == 80


def test_json_holds_the_figures_of_the_steps_asked_for(run: Path, strop: Strop) -> None:
    code, out, _ = strop(run, "--steps", "4:5", "--json")
    found = json.loads(out)
    assert code == 0
    assert found == {"run": str(run), **json.loads(json.dumps(as_json(list(RunFolder.open(run).timeline())[3:])))}
    assert found["states_us"]["learner"] == {"update": SECOND // 2, "generation": SECOND, "loop": SECOND // 2}
    assert [each["step"] for each in found["each"]] == [4, 5]


def test_the_picture_is_written_where_it_is_asked_for(run: Path, strop: Strop, tmp_path: Path) -> None:
    code, out, _ = strop(run, "--steps", "3", "--svg", tmp_path / "picture.svg")
    assert code == 0 and "step 3: 1 s" in out
    assert ET.parse(tmp_path / "picture.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "5:6"], "has a timeline of steps 1 to 5. Choose among these"),
        (["--steps", "first"], "write it as 10:14"),
        (["--steps", "4:2"], "Write it as 2:4"),
        (["--svg", "absent/picture.svg"], "Give a file in a folder that is there"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    arguments: list[str], said: str, run: Path, strop: Strop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = strop(run, *arguments)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1
