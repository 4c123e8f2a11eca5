"""The record of a step's timeline: intervals against sets of moments, states as an exact partition, sizes kept."""

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strop.core.spans import KINDS, Kind, Span, Taken
from strop.watch import jsonl
from strop.watch.run_folder import Keep, RunFolder
from strop.watch.timeline import (
    LANES,
    Intervals,
    Lane,
    coarse,
    measure,
    spent,
    states,
    timeline_record,
    union,
)

END = 40
PAIRS = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)
BUSY = st.dictionaries(st.sampled_from(KINDS), PAIRS.map(union))


def moments(intervals: Any) -> set[int]:
    return {moment for start, end in intervals for moment in range(start, end)}


def well_formed(intervals: Intervals) -> bool:
    return all(start < end for start, end in intervals) and all(
        before[1] < after[0] for before, after in itertools.pairwise(intervals)
    )


@given(PAIRS)
def test_a_union_holds_the_moments_of_all_and_is_in_order(pairs: Intervals) -> None:
    found = union(pairs)
    assert well_formed(found)
    assert moments(found) == moments(pairs)
    assert measure(found) == len(moments(pairs))


@given(PAIRS, st.integers(1, 8))
def test_intervals_for_a_picture_take_the_cells_that_are_half_full_and_mark_the_others(
    pairs: Intervals, cells: int
) -> None:
    fine = union(pairs)
    found = coarse(fine, (0, END), cells)
    if len(fine) <= cells:
        assert found == fine
        return
    edges = [END * n // cells for n in range(cells + 1)]
    inside = {low: len(moments(fine) & set(range(low, high))) / (high - low) for low, high in itertools.pairwise(edges)}
    assert len(found) <= cells
    assert well_formed([pair for pair in found if pair[0] < pair[1]])
    assert {low for low in edges[:-1] if low in moments(found)} == {
        low for low, share in inside.items() if share >= 0.5
    }
    assert {low for low, high in found if low == high} == {low for low, share in inside.items() if 0 < share < 0.5}


def truth(lane: Lane, at: set[Kind], lag: int) -> str:
    """What a lane is said to do at a moment at which these kinds are at work."""
    learning = bool(at & {"annotate", "update"})
    if lane == "learner":
        for kind in ("annotate", "update", "publish", "evaluate"):
            if kind in at:
                return kind
        words = {"engine": "generation", "environment": "tools", "verify": "verifier", "generate": "rollout"}
        return next((word for kind, word in words.items() if kind in at), "loop")
    if lane in at:
        return lane
    if lane == "environment" and "engine" in at:
        return "generation"
    if "generate" in at:
        return "rollout"
    if "environment" in at:
        return "tools"
    if "verify" in at:
        return "verifier"
    if learning:
        return "lag" if lag else "learner"
    return next((kind for kind in ("publish", "evaluate") if kind in at), "loop")


def by_moment(lane: Lane, busy: dict[Kind, Intervals], lag: int) -> list[str]:
    return [truth(lane, {k for k, when in busy.items() if moment in moments(when)}, lag) for moment in range(END)]


@given(BUSY, st.sampled_from(LANES), st.integers(0, 1))
def test_the_states_of_a_lane_are_what_a_look_at_every_moment_says(
    busy: dict[Kind, Intervals], lane: Lane, lag: int
) -> None:
    found = states(lane, (0, END), busy, lag)
    said = {moment: state for state, when in found.items() for moment in moments(when)}
    assert sum(measure(when) for when in found.values()) == END
    assert [said[moment] for moment in range(END)] == by_moment(lane, busy, lag)
    assert spent((0, END), busy, lag)[lane] == Counter(by_moment(lane, busy, lag))


def test_a_cause_called_by_another_name_would_be_seen() -> None:
    """Negative control of the comparison above: the same moments under another bound."""
    busy: dict[Kind, Intervals] = {"update": [(3, 9)]}
    assert by_moment("engine", busy, 0) != by_moment("engine", busy, 1)
    assert measure(states("engine", (0, END), busy, 0)["learner"]) == 6
    assert measure(states("engine", (0, END), busy, 1)["lag"]) == 6


SPANS = [
    Span("generate", 1_000_000, 1_400_000, "train-000007/0"),
    Span("generate", 1_000_000, 1_300_000, "train-000007/1"),
    Span("environment", 1_400_000, 1_450_500, "train-000007/0"),
    Span("verify", 1_450_500, 1_500_000, "train-000007/0"),
    Span("engine", 1_000_000, 1_100_000),
    Span("engine", 1_100_400, 1_350_000),
    Span("update", 1_600_000, 1_900_001),
]


def test_a_record_says_what_was_recorded() -> None:
    record = timeline_record(Taken(1_000_000, 2_000_000, SPANS, 0), origin=500_000, lag=0)
    assert (record["start"], record["end"], record["wall_us"]) == (0.5, 1.5, 1_000_000)
    assert record["states_us"] == {
        "learner": {
            "update": 300_001,
            "generation": 349_600,
            "tools": 50_500,
            "verifier": 49_500,
            "rollout": 50_400,
            "loop": 199_999,
        },
        "engine": {
            "engine": 349_600,
            "rollout": 50_400,
            "tools": 50_500,
            "verifier": 49_500,
            "learner": 300_001,
            "loop": 199_999,
        },
        "environment": {
            "environment": 50_500,
            "generation": 349_600,
            "rollout": 50_400,
            "verifier": 49_500,
            "learner": 300_001,
            "loop": 199_999,
        },
    }
    assert record["at_work"]["generate"] == 0.7
    assert record["lanes"]["engine"] == [
        0.5,
        0.85,
    ]  # half a millisecond between two steps is not shown, but counted above
    assert record["busy_us"]["engine"] == 349_600
    assert record["groups"] == [["train-000007", 2, 0.5, 1.0, 0.7, 0.051, 0.05, 0.2]]


def test_groups_stand_in_launch_order_and_the_time_of_their_members_is_all_told() -> None:
    chance = random.Random(3)
    spans = [
        Span(chance.choice(KINDS[:4]), start, start + 900, f"train-{group:06d}/{member}")
        for group in range(50)
        for member in range(3)
        for start in [1000 * (group // 2) + 10_000 * chance.randint(0, 3)]
    ]
    record = timeline_record(Taken(0, 10**6, spans, 0), 0, 0)
    names = [group[0] for group in record["groups"]]
    assert record["groups_in_all"] == 50 and len(names) == 32
    first = {g: min(s.start for s in spans if s.who.startswith(g)) for g in {s.who.rpartition("/")[0] for s in spans}}
    assert names == sorted(first, key=lambda name: (first[name], name))[:32]


def test_a_record_stays_small_whatever_was_played() -> None:
    chance = random.Random(5)
    spans: list[Span] = []
    start = 10**11  # a run of more than a day
    for member in range(4000):
        for kind in ("generate", "environment", "verify", "engine"):
            at = start + chance.randrange(0, 600_000_000)
            spans.append(Span(kind, at, at + chance.randrange(1, 40_000), f"train-{member // 8:06d}/{member % 8}"))
    for kind in ("annotate", "update", "publish", "evaluate"):
        spans += [Span(kind, start + 10**7 * n, start + 10**7 * n + 5_000_000) for n in range(8)]
    record = timeline_record(Taken(start, start + 600_040_000, spans, 0), 0, 2)
    assert len(record["lanes"]["verify"]) > 80  # else it would be small because little happened
    assert len(jsonl.encode(record)) < 20_000


# --- in the run folder


def logged(step: int) -> dict[str, Any]:
    return {"origin": 0.0, **timeline_record(Taken(1000 * step, 1000 * step + 1000, [], 0), 0, 0)}


def test_steps_that_a_resume_made_void_are_not_shown(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    with folder.lock():
        for step in range(5):
            folder.log_timeline(step, "first", logged(step))
    assert [(r["step"], r["stage"]) for r in folder.timeline()] == [(n, "first") for n in range(5)]
    with folder.lock():
        folder.resumed(2)
        folder.log_timeline(3, "second", logged(3))
    assert [(r["step"], r["stage"]) for r in folder.timeline()] == [
        (0, "first"), (1, "first"), (2, "first"), (3, "second"),
    ]  # fmt: skip


def test_a_long_timeline_keeps_its_first_and_newest_steps_within_the_limit(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", keep=Keep(timeline_mb=0.02))
    sizes: list[int] = []
    with folder.lock():
        for step in range(40):
            folder.log_timeline(step, "first", logged(step))
        folder.resumed(20)
        for step in range(21, 400):
            folder.log_timeline(step, "second", logged(step))
            sizes.append((folder.path / "timeline.jsonl").stat().st_size)
    steps = [record["step"] for record in folder.timeline()]
    assert max(sizes) <= 20_000 < 400 * len(jsonl.encode(logged(1)))
    assert steps == sorted(set(steps)) and steps[:4] == [0, 1, 2, 3] and steps[-1] == 399
    holes = [(a, b) for a, b in itertools.pairwise(steps) if b != a + 1]
    assert len(holes) == 1
    assert all(record["stage"] == ("first" if record["step"] <= 20 else "second") for record in folder.timeline())
