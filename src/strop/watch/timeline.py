"""The timeline of a step: recorded spans as intervals, and the whole time of each lane divided by what it was spent on.

Invariant: the states of a lane are a partition. Their times are integers of microseconds and add up to the time of the step
exactly, whatever was recorded. They are measured on all spans; only the intervals for the picture are made coarser.
"""

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
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
"""Most intervals of a kind in a record."""

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


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """All moments that lie in both."""
    out: Intervals = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            out.append((start, end))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return out


def difference(a: Intervals, b: Intervals) -> Intervals:
    """All moments of `a` that do not lie in `b`."""
    out: Intervals = []
    j = 0
    for start, end in a:
        while j < len(b) and b[j][1] <= start:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            if start < b[k][0]:
                out.append((start, b[k][0]))
            start = max(start, b[k][1])
            k += 1
        if start < end:
            out.append((start, end))
    return out


def measure(intervals: Intervals) -> int:
    """Their length in all."""
    return sum(end - start for start, end in intervals)


def coarse(intervals: Intervals, most: int) -> Intervals:
    """At most `most` intervals that hold all the given ones: the smallest gaps between them are closed."""
    surplus = len(intervals) - most
    if surplus <= 0:
        return intervals
    gaps = ((after[0] - before[1], i) for i, (before, after) in enumerate(itertools.pairwise(intervals)))
    closed = {i for _, i in heapq.nsmallest(surplus, gaps)}
    out = [intervals[0]]
    for i, interval in enumerate(intervals[1:]):
        if i in closed:
            out[-1] = (out[-1][0], interval[1])
        else:
            out.append(interval)
    return out


def states(lane: Lane, window: tuple[int, int], busy: Mapping[Kind, Intervals], lag: int) -> dict[State, Intervals]:
    """The time of a lane divided by what it was spent on; together they are the window.

    Args:
        lane: which.
        window: start and end.
        busy: when each kind was at work.
        lag: the bound on the lag of the data, in steps; it says how the wait for a learner is called.
    """
    rest = union([window])
    found: dict[State, Intervals] = {}
    for name, kinds in _RULES[lane]:
        state: State = "lag" if name == "learner" and lag > 0 else name
        work = union(pair for kind in kinds for pair in busy.get(kind, []))
        found[state] = intersection(rest, work)
        rest = difference(rest, work)
    found["loop"] = rest
    return found


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
        "states_us": {
            lane: {state: measure(when) for state, when in states(lane, window, busy, lag).items() if when}
            for lane in LANES
        },
        "busy_us": {kind: measure(when) for kind, when in busy.items()},
        "at_work": {k: round(sum(e - s for s, e in p) / max(1, wall), 3) for k, p in by_kind.items() if p},
        "lanes": {
            kind: [seconds(moment) for pair in coarse(_joined(when), INTERVALS) for moment in pair]
            for kind, when in busy.items()
        },
        "groups": [
            [name, len(group.members), seconds(group.start), seconds(group.end), *_split(group)]
            for name, group in groups[:GROUPS]
        ],
        "groups_in_all": len(groups),
        "lost": taken.lost,
    }


def _joined(intervals: Intervals) -> Intervals:
    """Intervals with the gaps closed that a record's milliseconds cannot show."""
    out: Intervals = []
    for start, end in intervals:
        if out and start < out[-1][1] + 1000:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return out


def _groups(spans: Sequence[Span]) -> list[tuple[str, _Played]]:
    """The groups that have spans, in launch order: by their first moment, then by name."""
    found: dict[str, _Played] = {}
    for span in spans:
        name, slash, _ = span.who.rpartition("/")
        if not slash:
            continue
        group = found.setdefault(name, _Played(span.start, span.end))
        group.start, group.end = min(group.start, span.start), max(group.end, span.end)
        group.members.add(span.who)
        group.times[span.kind] = group.times.get(span.kind, 0) + span.end - span.start
    return sorted(found.items(), key=lambda item: (item[1].start, item[0]))


def _split(group: _Played) -> list[float]:
    """Seconds of all members in generate, environment, verify, and waiting for the others."""
    whole = len(group.members) * (group.end - group.start)
    known = [group.times.get(kind, 0) for kind in _PLAYED]
    return [round(time / 1e6, 3) for time in (*known, whole - sum(known))]
