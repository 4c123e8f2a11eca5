"""The timeline of a step: recorded spans as intervals, and the whole time of each lane divided by what it was spent on.

Invariant: the states of a lane are a partition. Their times are integers of microseconds and add up to the time of the step
exactly, whatever was recorded. They are measured on all spans; only the intervals for the picture are made coarser.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from strop.core.spans import KINDS, Kind, Span, Taken

Intervals = list[tuple[int, int]]
"""Half-open, in order, apart from each other and none of them empty."""

Lane = Literal["learner", "engine", "environment"]

LANES: tuple[Lane, ...] = ("learner", "engine", "environment")

State = Literal[
    "annotate",
    "update",
    "engine",
    "environment",
    "generation",
    "tools",
    "verifier",
    "learner",
    "lag",
    "publish",
    "evaluate",
    "rollout",
    "loop",
]
"""What a lane does, or what it is idle for.

At work: annotate and update (learner), engine, environment. Idle because: generation (the engine samples), tools (only
environments are at work), verifier, learner (it learns, and at lag 0 nothing may be launched meanwhile), lag (it learns, and
the lag bound allows no further launch), publish, evaluate, rollout (a request waits, and Python works between the engine's
steps: an environment that does not await counts here), loop (nobody: metrics, logs, checkpoints).
"""

AT_WORK: Mapping[Lane, tuple[State, ...]] = {
    "learner": ("annotate", "update"),
    "engine": ("engine",),
    "environment": ("environment",),
}

# For each lane (state, whose work makes it so): at each moment the first that applies holds, and `loop` where none does.
# The loop is one sequence, so while it publishes or evaluates the learner waits for that. An engine that does not step while
# a request waits is held up by Python, not by tools: these are the cause only when all episodes wait for them.
_LEARNING: tuple[Kind, ...] = ("annotate", "update")
_PLAYED: tuple[Kind, ...] = ("generate", "environment", "verify")
_RULES: Mapping[Lane, tuple[tuple[State, tuple[Kind, ...]], ...]] = {
    "learner": (
        ("annotate", ("annotate",)),
        ("update", ("update",)),
        ("publish", ("publish",)),
        ("evaluate", ("evaluate",)),
        ("generation", ("engine",)),
        ("tools", ("environment",)),
        ("verifier", ("verify",)),
        ("rollout", ("generate",)),
    ),
    "engine": (
        ("engine", ("engine",)),
        ("rollout", ("generate",)),
        ("tools", ("environment",)),
        ("verifier", ("verify",)),
        ("learner", _LEARNING),
        ("publish", ("publish",)),
        ("evaluate", ("evaluate",)),
    ),
    "environment": (
        ("environment", ("environment",)),
        ("generation", ("engine",)),
        ("rollout", ("generate",)),
        ("verifier", ("verify",)),
        ("learner", _LEARNING),
        ("publish", ("publish",)),
        ("evaluate", ("evaluate",)),
    ),
}

INTERVALS = 160
"""Most intervals of a kind in a record; see `coarse`."""

GROUPS = 32
"""Most groups in a record, in launch order."""


# --- intervals


def union(pairs: Iterable[tuple[int, int]]) -> Intervals:
    """All moments that lie in any of the pairs (start, end)."""
    out: Intervals = []
    for start, end in sorted(pairs):
        if start >= end:
            continue
        if out and start <= out[-1][1]:
            if end > out[-1][1]:
                out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return out


def measure(intervals: Intervals) -> int:
    """Their length in all."""
    return sum(end - start for start, end in intervals)


def coarse(intervals: Intervals, window: tuple[int, int], cells: int) -> list[tuple[int, int]]:
    """The intervals for a picture: as they are, or where there are more than `cells`, by cells of the window.

    Of `cells` equal parts of the window, those that the intervals take half of or more are taken whole; of the others that
    they touch, the start is given as a point (start, start). So short work that comes in great numbers does not look like
    long work, nor like none.
    """
    if len(intervals) <= cells:
        return intervals
    start, length = window[0], window[1] - window[0]
    edges = [start + length * i // cells for i in range(cells + 1)]
    out: list[tuple[int, int]] = []
    at = 0
    for low, high in itertools.pairwise(edges):
        taken, place = 0, at
        while place < len(intervals) and intervals[place][0] < high:
            taken += max(0, min(high, intervals[place][1]) - max(low, intervals[place][0]))
            at = place
            place += 1
        if taken == 0:
            continue
        if 2 * taken < high - low:
            out.append((low, low))
        elif out and out[-1][0] < out[-1][1] == low:
            out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
    return out


def segments(window: tuple[int, int], busy: Mapping[Kind, Intervals]) -> Iterator[tuple[int, int, frozenset[Kind]]]:
    """The window cut wherever somebody begins or stops, in order: (start, end, kinds at work)."""
    low, high = window
    changes: list[tuple[int, Kind]] = sorted(
        (min(max(moment, low), high), kind) for kind, when in busy.items() for pair in when for moment in pair
    )
    at = low
    working: frozenset[Kind] = frozenset()
    for moment, kind in changes:
        if moment > at:
            yield at, moment, working
            at = moment
        own: set[Kind] = {kind}
        working ^= own  # intervals of a kind lie apart, so that each moment begins or stops it
    if high > at:
        yield at, high, working


def state_of(lane: Lane, working: frozenset[Kind], lag: int) -> State:
    """What a lane does, or is idle for, while these kinds are at work.

    Args:
        lane: which.
        working: kinds at work.
        lag: the bound on the lag of the data, in steps; it says how the wait for a learner is called.
    """
    for state, kinds in _RULES[lane]:
        if not working.isdisjoint(kinds):
            return "lag" if state == "learner" and lag > 0 else state
    return "loop"


def states(lane: Lane, window: tuple[int, int], busy: Mapping[Kind, Intervals], lag: int) -> dict[State, Intervals]:
    """The window divided by what a lane does in it (see `state_of`)."""
    found: dict[State, list[tuple[int, int]]] = {}
    for start, end, working in segments(window, busy):
        found.setdefault(state_of(lane, working, lag), []).append((start, end))
    return {state: union(when) for state, when in found.items()}


def spent(window: tuple[int, int], busy: Mapping[Kind, Intervals], lag: int) -> dict[Lane, dict[State, int]]:
    """How much of the window each lane is in each state; for each lane it is the window in all."""
    times: dict[frozenset[Kind], int] = {}
    for start, end, working in segments(window, busy):
        times[working] = times.get(working, 0) + end - start
    out: dict[Lane, dict[State, int]] = {lane: {} for lane in LANES}
    for working, time in times.items():
        for lane, own in out.items():
            state = state_of(lane, working, lag)
            own[state] = own.get(state, 0) + time
    return out


# --- the record of a step


@dataclass(slots=True)
class _Played:
    """What the episodes of a group did: who they are, from when to when, and their time by kind, in microseconds."""

    start: int
    end: int
    members: set[str] = field(default_factory=set[str])
    times: dict[Kind, int] = field(default_factory=dict[Kind, int])


def timeline_record(taken: Taken, origin: int, lag: int) -> dict[str, Any]:
    """What `timeline.jsonl` says of the time that was taken. All times are seconds since `origin`, but for those in `_us`.

    `wall_us` is the time in all, `states_us` its division for each lane, `busy_us` how long at least one was at work and
    `at_work` how many were on average, by kind. `lanes` has start, end, start, end ... of when they were. Each group has
    [id, members, start, end, generate, environment, verify, waiting], the last four in seconds of all its members together.

    Args:
        taken: the spans.
        origin: moment 0, on the clock of the spans.
        lag: the bound on the lag of the data.
    """
    window = (taken.start, taken.end)
    by_kind: dict[Kind, list[tuple[int, int]]] = {kind: [] for kind in KINDS}
    for span in taken.spans:
        by_kind[span.kind].append((span.start, span.end))
    busy: dict[Kind, Intervals] = {kind: union(pairs) for kind, pairs in by_kind.items() if pairs}
    wall = taken.end - taken.start

    def seconds(moment: int) -> float:
        return round((moment - origin) / 1e6, 3)

    groups = _groups(taken.spans)
    return {
        "start": seconds(taken.start),
        "end": seconds(taken.end),
        "lag": lag,
        "wall_us": wall,
        "states_us": spent(window, busy, lag),
        "busy_us": {kind: measure(when) for kind, when in busy.items()},
        "at_work": {k: round(sum(e - s for s, e in p) / max(1, wall), 3) for k, p in by_kind.items() if p},
        "lanes": {kind: _flat(coarse(when, window, INTERVALS), origin) for kind, when in busy.items()},
        "groups": [
            [name, len(group.members), seconds(group.start), seconds(group.end), *_split(group)]
            for name, group in groups[:GROUPS]
        ],
        "groups_in_all": len(groups),
        "lost": taken.lost,
    }


def _flat(pairs: Iterable[tuple[int, int]], origin: int) -> list[float]:
    """Start, end, start, end ... in seconds since the origin; what milliseconds cannot tell apart is one."""
    out: list[tuple[float, float]] = []
    for pair in pairs:
        start, end = (round((moment - origin) / 1e6, 3) for moment in pair)
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return [moment for pair in out for moment in pair]


def _groups(spans: Sequence[Span]) -> list[tuple[str, _Played]]:
    """The groups that have spans, in launch order: by their first moment, then by name."""
    found: dict[str, _Played] = {}
    for span in spans:
        name, slash, _ = span.who.rpartition("/")
        if not slash:
            continue
        group = found.get(name)
        if group is None:
            group = found[name] = _Played(span.start, span.end)
        group.start, group.end = min(group.start, span.start), max(group.end, span.end)
        group.members.add(span.who)
        group.times[span.kind] = group.times.get(span.kind, 0) + span.end - span.start
    return sorted(found.items(), key=lambda item: (item[1].start, item[0]))


def _split(group: _Played) -> list[float]:
    """Seconds of all members in generate, environment, verify, and waiting for the others."""
    whole = len(group.members) * (group.end - group.start)
    known = [group.times.get(kind, 0) for kind in _PLAYED]
    return [round(time / 1e6, 3) for time in (*known, whole - sum(known))]
