"""The picture of a run: shares that add up, slices that show what took most of them, bars that fill their lane."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.core.errors import UsageError
from strop.core.spans import KINDS, Span, Taken
from strop.report.timeline import Piece, Strip, as_json, chosen, figures, lines, rows_of_groups, slices, strip
from strop.report.timeline_drawing import PLOT, drawn
from strop.watch.timeline import LANES, timeline_record

SECOND = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def record(step: int, spans: list[Span], window: tuple[int, int], lag: int = 0, origin: float = 7.0) -> dict[str, Any]:
    taken = Taken(*window, spans, 0)
    return {"step": step, "stage": "reinforce", "origin": origin, **timeline_record(taken, 0, lag)}


def a_step(start: int, step: int, lag: int = 0, origin: float = 7.0) -> dict[str, Any]:
    """One second: 0.5 s of generation by two groups, 0.1 s of tools, 0.1 s of verdicts, 0.2 s of update, 0.1 s of logs."""

    def span(kind: Any, first: int, last: int, who: str = "") -> Span:
        return Span(kind, start + first * 1000, start + last * 1000, who)

    spans = [
        span("generate", 0, 500, f"train-{2 * step:06d}/0"),
        span("generate", 0, 400, f"train-{2 * step:06d}/1"),
        span("generate", 0, 500, f"train-{2 * step + 1:06d}/0"),
        span("environment", 500, 600, f"train-{2 * step:06d}/0"),
        span("verify", 600, 700, f"train-{2 * step:06d}/0"),
        span("engine", 0, 500),
        span("annotate", 700, 750),
        span("update", 750, 900),
        Span("publish", start + 899_950, start + 900_000),  # inside the update, so that the times below stay round
    ]
    return record(step, spans, (start, start + SECOND), lag, origin)


TWO = [a_step(0, 1), a_step(SECOND, 2)]


# --- figures


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A few steps with spans of any kind anywhere."""
    out: list[dict[str, Any]] = []
    start = 0
    for step in range(draw(st.integers(1, 4))):
        end = start + draw(st.integers(1, 3_000_000))
        moments = st.integers(start, end)
        pairs = draw(st.lists(st.tuples(st.sampled_from(KINDS), moments, moments), max_size=15))
        spans = [Span(kind, min(a, b), max(a, b), f"train-{n % 3:06d}/{n}") for n, (kind, a, b) in enumerate(pairs)]
        out.append(record(step, spans, (start, end), draw(st.integers(0, 1))))
        start = end
    return out


@given(runs())
def test_the_states_of_every_lane_add_up_to_the_time_exactly(records: list[dict[str, Any]]) -> None:
    found = figures(records)
    assert found.wall == round(records[-1]["wall_us"] + sum(r["wall_us"] for r in records[:-1]))
    for lane in LANES:
        assert sum(found.states[lane].values()) == found.wall
    assert sum(r["wall_us"] for r in as_json(records)["each"]) == found.wall


@settings(max_examples=25)
@given(runs(), st.integers(40, 200))
def test_no_line_is_wider_than_asked_and_every_picture_is_xml(records: list[dict[str, Any]], width: int) -> None:
    assert max(map(len, lines(records, width))) <= width
    check_bars(ET.fromstring(drawn(records)))


def test_shares_and_causes_of_a_step_that_is_known() -> None:
    found = figures(TWO)
    assert found.busy("learner") == 0.2
    assert found.idle("learner") == [("generation", 0.5), ("tools", 0.1), ("verifier", 0.1), ("loop", 0.1)]
    assert found.busy("engine") == 0.5
    assert found.idle("engine") == [("learner", 0.2), ("tools", 0.1), ("verifier", 0.1), ("loop", 0.1)]
    assert found.at_work["generate"] == pytest.approx(1.4)
    later = figures([a_step(0, 1, lag=2)])
    assert later.share("engine", "lag") == 0.2 and later.share("engine", "learner") == 0


# --- slices


@given(runs().filter(lambda records: records[-1]["end"] > 0.01))
def test_a_slice_of_a_millisecond_shows_what_held_in_it(records: list[dict[str, Any]]) -> None:
    shown = strip(records)
    for lane in LANES:
        said = slices(shown.states[lane], shown.length, shown.length)
        for state, when in shown.states[lane].items():
            assert all(said[ms] == state for start, end in when for ms in range(start, end))
        assert sum(end - start for when in shown.states[lane].values() for start, end in when) == shown.length


def test_a_slice_shows_the_state_that_took_most_of_it() -> None:
    lane: Any = {"update": [(0, 14), (20, 26)], "loop": [(14, 20), (26, 30)]}
    assert slices(lane, 30, 3) == ["update", "loop", "update"]
    assert slices(lane, 30, 2) == ["update", "loop"]
    assert slices({"update": [(0, 10)], "loop": [(10, 30)]}, 30, 3) == ["update", "loop", "loop"]


PICTURE = """\
steps 1 to 2: 2 s; one column is 50 ms

step         |1                  |2
learner      ggggggggggttvvAUUU..ggggggggggttvvAUUU..
engine       ##########ttvvllll..##########ttvvllll..
environment  gggggggggg##vvllll..gggggggggg##vvllll..
verify                   ##                  ##
publish                        +                   +

A annotate, U update, # at work, + for less than half
of the column; idle because of: g generation, t
tools, v verifier, l learner, . loop

                busy   idle because of
learner        20.0%   generation 50.0%, tools 10.0%,
                       verifier 10.0%, loop 10.0%
engine         50.0%   learner 20.0%, tools 10.0%,
                       verifier 10.0%, loop 10.0%
environment    10.0%   generation 50.0%, learner
                       20.0%, verifier 10.0%, loop
                       10.0%
episodes at one time, on average: generate 1.4,
environment 0.1, verify 0.1
"""


def test_the_picture_of_a_step_that_is_known() -> None:
    assert "\n".join(lines(TWO, 53)) + "\n" == PICTURE


def test_where_time_is_missing_the_picture_says_so() -> None:
    resumed = [*TWO, a_step(0, 3, origin=99.0), a_step(3 * SECOND, 7, origin=99.0)]
    assert strip(TWO).breaks == []
    assert strip(resumed).breaks == [2000, 3000]
    told = list(lines(resumed))
    assert re.findall(r"[|!]\d+", told[2]) == ["|1", "|2", "!3", "!7"]
    assert "! time is missing" in " ".join(" ".join(told).split()) and "missing" not in "\n".join(lines(TWO))
    assert drawn(resumed).count("time is missing before it") == 2
    assert "missing" not in drawn(TWO)


# --- groups


def piece(group: int, start: int, end: int) -> Piece:
    return Piece(f"train-{group:06d}", start, end, 4, (1.0, 0.0, 0.0, 0.0))


def test_groups_that_overlap_stand_in_rows_of_their_own_and_a_group_stays_in_its_row() -> None:
    pieces = [piece(1, 0, 10), piece(2, 2, 10), piece(2, 10, 14), piece(3, 10, 12), piece(4, 14, 20)]
    rows = [[(p.group[-1], p.start) for p in row] for row in rows_of_groups(pieces)]
    assert rows == [[("1", 0), ("3", 10), ("4", 14)], [("2", 2), ("2", 10)]]


# --- SVG


def check_bars(picture: ET.Element) -> dict[str, dict[str, int]]:
    """That the bars of each lane fill it side by side; the pixels of each state."""
    out: dict[str, dict[str, int]] = {}
    for lane in LANES:
        bars = [r for r in picture.iter(f"{SVG}rect") if r.get("class", "").startswith(f"{lane} ")]
        at = int(bars[0].get("x", ""))
        out[lane] = {}
        for bar in bars:
            assert int(bar.get("x", "")) == at
            at += int(bar.get("width", ""))
            state = bar.get("class", "").split()[1]
            out[lane][state] = out[lane].get(state, 0) + int(bar.get("width", ""))
        assert sum(out[lane].values()) == PLOT
    return out


def test_bars_are_as_long_as_their_shares() -> None:
    found, pixels = figures(TWO), check_bars(ET.fromstring(drawn(TWO)))
    for lane in LANES:
        for state, time in found.states[lane].items():
            assert pixels[lane][state] == pytest.approx(PLOT * time / found.wall, abs=2)
    assert pixels["learner"]["generation"] > 3 * pixels["learner"]["update"]


def test_a_bar_that_leaves_a_hole_would_be_seen() -> None:
    """Negative control of the check on every picture above."""
    text = drawn(TWO)
    bar = re.search(r'<rect class="engine learner" x="\d+" y="\d+" width="(\d+)"', text)
    assert bar is not None
    shorter = bar[0].replace(f'width="{bar[1]}"', f'width="{int(bar[1]) - 1}"')
    with pytest.raises(AssertionError):
        check_bars(ET.fromstring(text.replace(bar[0], shorter, 1)))


def test_the_bar_of_a_group_is_divided_as_its_members_spent_their_time() -> None:
    picture = ET.fromstring(drawn([a_step(0, 1)]))
    first = next(g for g in picture.iter(f"{SVG}g"))
    title = first.find(f"{SVG}title")
    assert title is not None
    assert title.text == "train-000002, 2 members: generate 64%, environment 7%, verify 7%, waiting 21%"
    widths = {r.get("class", "").split()[1]: float(r.get("width", "")) for r in first.iter(f"{SVG}rect")}
    assert sum(widths.values()) == pytest.approx(0.7 * PLOT, abs=0.05)
    assert widths["generate"] == pytest.approx(0.9 / 1.4 * 0.7 * PLOT, abs=0.01)


def test_text_from_outside_is_escaped() -> None:
    spans = [Span("generate", 0, SECOND, "<b>&/0")]
    picture = ET.fromstring(drawn([record(1, spans, (0, SECOND))]))
    assert any((title.text or "").startswith("<b>&, 1 members") for title in picture.iter(f"{SVG}title"))


def test_a_step_without_any_span_is_a_picture_too() -> None:
    empty = [record(1, [], (0, 10))]  # less than a millisecond
    assert figures(empty).states["engine"] == {"loop": 10}
    check_bars(ET.fromstring(drawn(empty)))
    assert "engine" in "\n".join(lines(empty))


# --- which steps


RUN: list[Mapping[str, Any]] = [{"step": n} for n in (0, 1, 2, 3, 8, 9, 10)]


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        (None, [3, 8, 9, 10]),
        ("2", [2]),
        ("2:3", [2, 3]),
        ("3:8", [3, 8]),
        ("9:", [9, 10]),
        (":1", [0, 1]),
    ],
)
def test_a_range_of_steps_includes_both_ends(steps: str | None, kept: list[int]) -> None:
    assert [r["step"] for r in chosen("run", RUN, steps)] == kept


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("4:7", "steps 0 to 3, steps 8 to 10"),
        ("9:11", "steps 0 to 3, steps 8 to 10"),
        ("11:", "steps 0 to 3, steps 8 to 10"),
        ("3:2", "2:3"),
        ("x", "10:14"),
        (":", "10:14"),
        ("1:2:3", "10:14"),
    ],
)
def test_steps_that_are_not_there_are_refused_with_those_that_are(steps: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        chosen("run", RUN, steps)
    with pytest.raises(UsageError, match="has no timeline"):
        chosen("run", [], steps)


def test_only_the_evaluation_before_training_is_shown_where_there_is_nothing_else() -> None:
    assert chosen("run", RUN[:1], None) == RUN[:1]


def test_a_strip_is_as_long_as_its_steps() -> None:
    found = strip(TWO)
    assert isinstance(found, Strip)
    assert (found.length, found.marks) == (2000, [(0, 1), (1000, 2)])
    assert found.groups[3].start == 1000
