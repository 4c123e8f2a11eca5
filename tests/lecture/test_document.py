"""docs/lecture.md is what the commands print, and its code names exist."""

import importlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from strop.core.errors import UsageError
from strop.lecture.contents import ENTRIES
from strop.lecture.document import START, block, rewritten
from strop.lecture.drawing import axes, drawn
from strop.lecture.figure import Curve, Panel
from strop.lecture.symbols import SYMBOLS, symbol_lines
from tests.lecture.shown import FIGURES, figure

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "lecture.md").read_text()
REMAKE = "run: strop lecture --write docs/lecture.md"


def printed(name: str) -> str:
    lines = symbol_lines() if name == "symbols" else figure(name).lines()
    return block(name, ENTRIES[name], lines)


def standing(name: str) -> str:
    found = re.search(rf"<!-- strop lecture {name} -->\n(.*?)<!-- end -->", DOCUMENT, re.DOTALL)
    assert found is not None, f"docs/lecture.md has no block {name}"
    return found[1]


@pytest.mark.parametrize("name", ENTRIES)
def test_a_block_of_the_document_is_what_the_command_prints(name: str) -> None:
    assert standing(name) == printed(name), REMAKE


def test_the_document_has_every_block_once() -> None:
    assert START.findall(DOCUMENT) == list(ENTRIES)


def test_writing_the_document_again_changes_nothing_and_mends_what_was_changed() -> None:
    assert rewritten(DOCUMENT, printed) == DOCUMENT
    spoiled = DOCUMENT.replace("0.30  -0.20  -0.40", "0.30  -0.20  -0.50")
    assert spoiled != DOCUMENT
    assert rewritten(spoiled, printed) == DOCUMENT


def test_text_outside_of_blocks_stays() -> None:
    text = "before\n<!-- strop lecture gae -->\nold\n<!-- end -->\nafter <!-- end -->\n"
    assert rewritten(text, str.upper) == "before\n<!-- strop lecture gae -->\nGAE<!-- end -->\nafter <!-- end -->\n"


@pytest.mark.parametrize(
    "text", ["<!-- strop lecture gae -->\nx\n", "<!-- strop lecture gae -->\n<!-- strop lecture clip -->\n<!-- end -->"]
)
def test_a_block_without_an_end_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="gae"):
        rewritten(text, str.upper)


def test_the_explanations_are_two_to_four_sentences() -> None:
    sentences = {name: len(re.findall(r"[.!?](?:\s|$)", entry.text)) for name, entry in ENTRIES.items()}
    assert {name: n for name, n in sentences.items() if not 2 <= n <= 4} == {}


# --- names


def exists(name: str) -> bool:
    """Whether a name below `strop` can be had: the longest module, then attributes."""
    words = ["strop", *name.split(".")]
    for cut in range(len(words), 1, -1):
        try:
            found: object = importlib.import_module(".".join(words[:cut]))
        except ModuleNotFoundError:
            continue
        for word in words[cut:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False


def test_every_code_name_of_the_symbol_table_exists() -> None:
    assert [name for _, _, names in SYMBOLS for name in names if not exists(name)] == []


def test_every_code_name_under_a_figure_exists() -> None:
    assert [(name, code) for name in FIGURES for code in figure(name).code if not exists(code)] == []


@pytest.mark.parametrize("name", ["core.algorithm.GAE.lambda_", "objective.columns.Columns.mu", "nowhere.at.all"])
def test_a_code_name_that_does_not_exist_is_noticed(name: str) -> None:
    assert not exists(name)


def test_every_symbol_of_the_lecture_is_in_the_table() -> None:
    told = {symbol for symbol, _, _ in SYMBOLS}
    wanted = (
        "x y_i G u_t h_t m_t pi_theta pi_old mu pi_ref r_t w_t rho_t s_i A V R delta_t gamma lambda eps beta alpha J L"
    )
    assert set(wanted.split()) <= told
    assert len(told) == len(SYMBOLS)


# --- the drawing

SPACE = "{http://www.w3.org/2000/svg}"


def test_the_picture_in_the_documents_is_what_the_command_draws() -> None:
    assert (DOCS / "lecture-clip.svg").read_text() == drawn(figure("clip").panels), (
        "run: strop lecture clip --svg docs/lecture-clip.svg"
    )
    assert "](lecture-clip.svg)" in DOCUMENT


def test_the_drawn_curves_go_through_the_weights() -> None:
    panels = figure("clip").panels
    picture = ET.fromstring(drawn(panels))
    lines = [line.attrib["points"].split() for line in picture.iter(f"{SPACE}polyline")]
    frame = axes(panels)
    # (panel, curve): ratio and weight; PPO first
    known = {(0, 0): (1.5, 0.0), (0, 1): (1.5, 1.2), (1, 0): (1.5, -1.5), (1, 1): (1.5, -1.2)}
    for (panel, curve), (r, weight) in known.items():
        x, y = frame.place(panel, r, weight)
        assert f"{x:.2f},{y:.2f}" in lines[2 * panel + curve]
        x, y = frame.place(panel, r, weight + 0.1)
        assert f"{x:.2f},{y:.2f}" not in lines[2 * panel + curve]
    legend = [text.text for text in picture.iter(f"{SPACE}text")]
    assert {"A = +1", "A = -1", "PPO ppo", "CISPO weight(0.8, 1.2)"} <= set(legend)


def test_words_in_a_drawing_are_escaped() -> None:
    picture = drawn([Panel("a < b", "x & y", "z", (Curve("c", ((0.0, 0.0), (1.0, 1.0))),))])
    assert [text.text for text in ET.fromstring(picture).iter(f"{SPACE}text")][:2] == ["a < b", "x & y"]
