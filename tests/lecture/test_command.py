"""`strop lecture`: the list, one figure, the document and the picture; mistakes are one line and exit code 2."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strop.cli.main import main
from strop.lecture.contents import ENTRIES
from strop.lecture.drawing import drawn
from strop.lecture.symbols import SYMBOLS
from tests.lecture.shown import figure


@pytest.fixture
def lecture(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["strop", "lecture", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


Lecture = Callable[..., tuple[int, str, str]]


def test_without_a_name_every_name_is_listed_with_its_title(lecture: Lecture) -> None:
    code, out, err = lecture()
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == list(ENTRIES)
    for entry in ENTRIES.values():
        assert entry.title in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_a_name_prints_title_explanation_and_numbers(lecture: Lecture) -> None:
    code, out, err = lecture("gae")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == ENTRIES["gae"].title
    assert ENTRIES["gae"].text in " ".join(out.split())
    assert out.endswith("\n".join(figure("gae").lines()) + "\n")


@pytest.mark.parametrize("name", ["objective", "prefix", "collapse", "symbols"])
def test_every_module_of_the_lecture_can_be_reached_and_fits_the_screen(lecture: Lecture, name: str) -> None:
    code, out, _ = lecture(name)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    known = [n for _, _, names in SYMBOLS for n in names] if name == "symbols" else figure(name).lines()
    assert all(line in out for line in known)


def test_a_misspelt_name_is_answered_with_the_nearest_one(lecture: Lecture) -> None:
    for typo, meant in (("gea", "gae"), ("clips", "clip"), ("zzz", "")):
        code, out, err = lecture(typo)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1 and repr(typo) in err and f"did you mean {meant}" in err


def test_the_curves_are_drawn_into_a_file_where_there_are_any(lecture: Lecture, tmp_path: Path) -> None:
    picture = tmp_path / "clip.svg"
    code, _, _ = lecture("clip", "--svg", picture)
    assert code == 0
    assert picture.read_text() == drawn(figure("clip").panels)
    for arguments in (("gae", "--svg", picture), ("--svg", picture), ("clip", "--svg", tmp_path / "no" / "x.svg")):
        code, out, err = lecture(*arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1


def test_a_document_is_written_anew_and_an_unknown_block_is_refused(lecture: Lecture, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n<!-- strop lecture gae -->\n<!-- end -->\n")
    code, out, _ = lecture("--write", page)
    assert (code, out) == (0, "")
    assert "\n".join(["$ strop lecture gae", *figure("gae").lines()]) in page.read_text()
    assert page.read_text().startswith("# Mine\n")
    page.write_text(before := "<!-- strop lecture gea -->\n<!-- end -->\n")
    code, _, err = lecture("--write", page)
    assert code == 2 and "did you mean gae" in err
    assert page.read_text() == before
    assert lecture("--write", tmp_path / "missing.md")[0] == 2


def test_the_list_and_figures_of_credit_need_no_torch() -> None:
    code = "import sys; from strop.cli.lecture import lecture; lecture(); lecture('gae'); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torch = code.replace("lecture('gae')", "lecture('prefix')")  # this one does need it
    assert "AssertionError" in subprocess.run([sys.executable, "-c", torch], capture_output=True, text=True).stderr
