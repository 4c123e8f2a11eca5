"""`strop explain`, `strop compare` and `strop algorithms`: what they print, and what they refuse."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strop.algorithms import ALGORITHMS
from strop.cli.main import main
from tests.loop.runs import start

ROOT = Path(__file__).parents[2]


@pytest.fixture
def strop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["strop", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        monkeypatch.setenv("COLUMNS", "80")
        code = 0
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "run"
    start(path, {"algorithm": {"base": "grpo"}, "learner.lr": 0.02})
    return path


def test_explain_prints_every_trained_token_of_the_episode_asked_for(
    strop: Callable[..., tuple[int, str, str]], trained: Path
) -> None:
    code, out, _ = strop("explain", trained, "--most", 1)
    assert code == 0
    head, *lines = out.splitlines()
    assert head.startswith("step 8, grpo: ")
    assert "of the update" in lines[1]
    episode = lines[1].split(":")[0]
    again = strop("explain", trained, "--episode", episode)
    assert again[0] == 0
    assert again[1].splitlines()[2:] == lines[1:]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--step", "77"), "are not kept"),
        (("--episode", "nonsense"), "write it as group/member"),
        (("--episode", "train-999999/0"), "had no trained token"),
    ],
)
def test_explain_refuses_what_is_not_there_in_one_line(
    strop: Callable[..., tuple[int, str, str]], trained: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = strop("explain", trained, *arguments)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_compare_lists_every_on_policy_row_once_and_grpo_first(
    strop: Callable[..., tuple[int, str, str]], trained: Path
) -> None:
    code, out, _ = strop("compare", trained, "--json")
    rows = json.loads(out)
    assert code == 0
    assert rows[0]["name"] == "grpo"
    assert rows[0]["distance"] == 0
    expected = {n for n, a in ALGORITHMS.items() if a.data == "on_policy"} - {
        "process_reward",
        *(name for name, row in ALGORITHMS.items() if row.taught),
        "self_distillation",
        "self_distillation_own",
    }
    assert {row["name"] for row in rows} == expected
    assert len(rows) == len(expected)
    plain = strop("compare", trained)[1].splitlines()
    assert len(plain) == len(rows) + 2
    assert max(map(len, plain)) <= 80


def test_compare_refuses_a_step_of_imitation(strop: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    start(tmp_path / "run", {"stages.1.steps": 0})
    code, _, err = strop("compare", tmp_path / "run")
    assert code == 2
    assert "no reinforcement step" in err


def test_the_page_of_the_table_is_what_the_command_prints(strop: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = strop("algorithms", "--markdown")
    assert code == 0
    assert out == (ROOT / "docs" / "algorithms.md").read_text(), "run: strop algorithms --markdown > docs/algorithms.md"
    assert all(f"| {name} |" in out for name in ALGORITHMS)


def test_the_printed_table_fits_80_columns_and_has_its_columns(strop: Callable[..., tuple[int, str, str]]) -> None:
    lines = strop("algorithms")[1].splitlines()
    assert max(map(len, lines)) <= 80
    head = " ".join(lines[:3])
    assert all(word in head for word in ("reward weight", "critic", "ratio", "clip", "aggregation", "source"))
    listed = json.loads(strop("algorithms", "--json")[1])
    assert {"name", "credit", "critic", "ratio", "clip", "aggregate", "source"} <= set(listed[0])
