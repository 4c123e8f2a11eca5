"""Who was at work when, and what the others waited for: figures and a text picture of a range of steps, from the run folder.

Invariant: figures are sums of what the records measured, so that the states of a lane add up to the time of the steps exactly.
The picture shows of each slice of time the state that took most of it.
"""

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from strop.core.errors import UsageError
from strop.core.spans import KINDS, Kind
from strop.watch.timeline import AT_WORK, LANES, Intervals, Lane, State, states, union

Record = Mapping[str, Any]

SHOWN = 4
"""Steps that are shown where none are asked for: the newest."""

WORDS: Mapping[State, str] = {
    "annotate": "annotate",
    "update": "update",
    "engine": "at work",
    "environment": "at work",
    "generation": "generation",
    "tools": "tools",
    "verifier": "verifier",
    "learner": "learner",
    "lag": "lag bound",
    "publish": "publish",
    "evaluate": "evaluation",
    "rollout": "rollout code",
    "loop": "loop",
}

SIGNS: Mapping[State, str] = {
    "annotate": "A",
    "update": "U",
    "engine": "#",
    "environment": "#",
    "generation": "g",
    "tools": "t",
    "verifier": "v",
    "learner": "l",
    "lag": "b",
    "publish": "p",
    "evaluate": "e",
    "rollout": "r",
    "loop": ".",
}

PLAIN: tuple[Kind, ...] = ("verify", "publish", "evaluate")
"""Kinds that have a lane of their own without causes of being idle."""

LABEL = 13
"""Characters before a lane."""


# --- which steps


def chosen(run: str, records: Iterable[Record], steps: str | None) -> list[Record]:
    """The records of the steps asked for, `10:14`, `10:`, `:14` or `10`, both ends included; None for the newest.

    Raises:
        UsageError: there is no timeline, the text is no range, or none of its steps is there.
    """
    found = list(records)
    if not found:
        raise UsageError(
            f"{run} has no timeline: no step of it is done, or an older Strop made it. Look again after a step, or train anew."
        )
    if steps is None:
        trained = [record for record in found if record["step"] > 0]
        return trained[-SHOWN:] or found
    first, last = _range(steps)
    there = [int(record["step"]) for record in found]
    kept = [record for record in found if first <= record["step"] and (last is None or record["step"] <= last)]
    if not kept or first > there[-1] or (last is not None and last > there[-1]):
        raise UsageError(f"--steps {steps}: {run} has a timeline of {_ranges(there)}. Choose among these.")
    return kept


def _range(steps: str) -> tuple[int, int | None]:
    first, colon, last = steps.partition(":")
    texts = [text for text in (first, last) if text]
    if not texts or not all(text.isdecimal() for text in texts):
        raise UsageError(f"--steps {steps!r}: write it as 10:14 (both included), 10:, :14 or 10.")
    low = int(first) if first else 0
    high = int(last) if last else (None if colon else low)
    if high is not None and high < low:
        raise UsageError(f"--steps {steps!r}: the last step lies before the first. Write it as {high}:{low}.")
    return low, high


def _ranges(steps: Sequence[int]) -> str:
    """Which steps there are, in words: of a long run, the middle was dropped."""
    out: list[list[int]] = []
    for step in steps:
        if out and step <= out[-1][1] + 1:
            out[-1][1] = step
        else:
            out.append([step, step])
    words = [f"step {a}" if a == b else f"steps {a} to {b}" for a, b in out]
    return ", ".join(words)


# --- figures


@dataclass(frozen=True, slots=True)
class Figures:
    """What a range of steps took.

    Args:
        first, last: its steps.
        wall: its time, in microseconds.
        states: of each lane the time in each state, in microseconds; they add up to `wall`.
        at_work: how many episodes (or other workers) were at work on average, by kind.
        lost: spans that were too many to be kept.
    """

    first: int
    last: int
    wall: int
    states: Mapping[Lane, Mapping[State, int]]
    at_work: Mapping[Kind, float]
    lost: int

    def share(self, lane: Lane, *which: State) -> float:
        """Share of the time that a lane spent in some states."""
        return sum(self.states[lane].get(state, 0) for state in which) / max(1, self.wall)

    def busy(self, lane: Lane) -> float:
        """Share of the time that a lane was at work."""
        return self.share(lane, *AT_WORK[lane])

    def idle(self, lane: Lane) -> list[tuple[State, float]]:
        """Causes for which a lane was idle and their shares of the time, largest first."""
        causes: list[State] = [state for state in self.states[lane] if state not in AT_WORK[lane]]
        return sorted(((cause, self.share(lane, cause)) for cause in causes), key=lambda item: -item[1])


def figures(records: Sequence[Record]) -> Figures:
    """The figures of some steps together."""
    wall = sum(int(record["wall_us"]) for record in records)
    sums: dict[Lane, dict[State, int]] = {lane: {} for lane in LANES}
    for record in records:
        for lane in LANES:
            given = cast("Mapping[State, int]", record["states_us"][lane])
            for state, time in given.items():
                sums[lane][state] = sums[lane].get(state, 0) + time
    at_work: dict[Kind, float] = {}
    for kind in KINDS:
        time = sum(record["at_work"].get(kind, 0.0) * record["wall_us"] for record in records)
        at_work[kind] = time / max(1, wall)
    lost = sum(int(record["lost"]) for record in records)
    return Figures(int(records[0]["step"]), int(records[-1]["step"]), wall, sums, at_work, lost)


# --- the steps laid end to end


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a group that lies in one step: times on the strip, its members, and how their seconds were spent.

    `spent` is (generate, environment, verify, waiting for the other members).
    """

    group: str
    start: int
    end: int
    members: int
    spent: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Strip:
    """Some steps laid end to end, in milliseconds from the start of the first.

    Args:
        length: of all.
        marks: (where it starts, step) of each step.
        breaks: where time is missing: the run was resumed, or steps in between were dropped.
        states: of each lane the intervals of each state.
        plain: intervals of the other kinds; one shorter than a millisecond is a point.
        groups: their pieces.
    """

    length: int
    marks: list[tuple[int, int]]
    breaks: list[int]
    states: dict[Lane, dict[State, Intervals]]
    plain: dict[Kind, list[tuple[int, int]]]
    groups: list[Piece]


def strip(records: Sequence[Record]) -> Strip:
    """Lay the records of some steps end to end."""
    out = Strip(0, [], [], {lane: {} for lane in LANES}, {kind: [] for kind in PLAIN}, [])
    at = 0
    for before, record in zip([None, *records], records, strict=False):
        start, end = _ms(record["start"]), _ms(record["end"])
        if before is not None and (before["origin"], before["end"]) != (record["origin"], record["start"]):
            out.breaks.append(at)
        out.marks.append((at, int(record["step"])))
        shift = at - start
        raw: dict[Kind, list[tuple[int, int]]] = {
            kind: [(_ms(a) + shift, _ms(b) + shift) for a, b in _pairs(record["lanes"].get(kind, []))] for kind in KINDS
        }
        busy: dict[Kind, Intervals] = {kind: union(pairs) for kind, pairs in raw.items()}
        for lane in LANES:
            for state, when in states(lane, (at, end + shift), busy, int(record["lag"])).items():
                out.states[lane].setdefault(state, []).extend(when)
        for kind in PLAIN:
            out.plain[kind].extend(raw[kind])
        for name, members, first, last, *spent in record["groups"]:
            out.groups.append(Piece(name, _ms(first) + shift, _ms(last) + shift, members, tuple(spent)))
        at = end + shift
    return Strip(max(1, at), out.marks, out.breaks, out.states, out.plain, out.groups)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _pairs(flat: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def overlaps(intervals: Iterable[tuple[int, int]], length: int, columns: int) -> list[float]:
    """How much of each of `columns` equal slices of 0 to `length` the intervals take, in the unit of `length`."""
    out = [0.0] * columns
    for start, end in intervals:
        first, last = start * columns // length, min(columns - 1, end * columns // length)
        for column in range(first, last + 1):
            low, high = max(start, column * length / columns), min(end, (column + 1) * length / columns)
            out[column] += max(0.0, high - low)
    return out


def slices(lane: Mapping[State, Intervals], length: int, columns: int) -> list[State]:
    """Of each of `columns` equal slices of time the state that took most of it."""
    taken: dict[State, list[float]] = {state: overlaps(when, length, columns) for state, when in lane.items() if when}
    if not taken:
        return ["loop"] * columns
    return [max(taken, key=lambda state: taken[state][column]) for column in range(columns)]


# --- as text


def lines(records: Sequence[Record], width: int = 80) -> Iterator[str]:
    """The picture and its figures in lines of at most `width` characters."""
    shown, found = strip(records), figures(records)
    columns = max(20, width - LABEL)
    seconds = found.wall / 1e6
    name = f"step {found.first}" if found.first == found.last else f"steps {found.first} to {found.last}"
    yield from textwrap.wrap(f"{name}: {seconds:.3g} s; one column is {seconds * 1000 / columns:.3g} ms", width)
    yield ""
    yield f"{'step':{LABEL}}{_ruler(shown, columns)}"
    signs: set[State] = set()
    for lane in LANES:
        states_shown = slices(shown.states[lane], shown.length, columns)
        signs |= set(states_shown)
        yield f"{lane:{LABEL}}{''.join(SIGNS[state] for state in states_shown)}"
    for kind in PLAIN:
        if shown.plain[kind]:
            yield f"{kind:{LABEL}}{_marks(shown.plain[kind], shown.length, columns)}".rstrip()
    yield ""
    yield from textwrap.wrap(_legend(signs, bool(shown.breaks)), width)
    yield ""
    yield from _table(found, width)
    if found.lost:
        yield from textwrap.wrap(f"{found.lost} spans were too many to be kept: the figures miss them", width)


def _ruler(shown: Strip, columns: int) -> str:
    """Where each step starts, with its number where there is room; ! where time is missing before it."""
    out = [" "] * columns
    for start, step in shown.marks:
        at = min(columns - 1, start * columns // shown.length)
        text = ("!" if start in shown.breaks else "|") + str(step)
        room = all(sign == " " for sign in out[at : at + len(text) + 1]) and at + len(text) <= columns
        for place, sign in enumerate(text if room else text[:1]):
            out[at + place] = sign
    return "".join(out).rstrip()


def _marks(pairs: Sequence[tuple[int, int]], length: int, columns: int) -> str:
    """# where a kind is at work for half of a slice or more, + where it is for less."""
    taken = overlaps(union(pairs), length, columns)
    touched = {min(columns - 1, start * columns // length) for start, _ in pairs}
    half = length / columns / 2
    return "".join("#" if t >= half else "+" if t or column in touched else " " for column, t in enumerate(taken))


def _legend(signs: set[State], broken: bool) -> str:
    learning: tuple[State, ...] = ("annotate", "update")
    work = [*(f"{SIGNS[state]} {WORDS[state]}" for state in learning if state in signs), "# at work"]
    causes: list[State] = [
        state for state in WORDS if state in signs and not any(state in own for own in AT_WORK.values())
    ]
    waits = [f"{SIGNS[state]} {WORDS[state]}" for state in causes]
    text = ", ".join([*work, "+ for less than half of the column"])
    text += f"; idle because of: {', '.join(waits)}" if waits else ""
    return text + ("; ! time is missing (resumed, or steps dropped)" if broken else "")


def _table(found: Figures, width: int) -> Iterator[str]:
    yield f"{'':{LABEL}}{'busy':>7}   idle because of"
    for lane in LANES:
        causes = ", ".join(f"{WORDS[cause]} {share:.1%}" for cause, share in found.idle(lane) if share >= 0.0005)
        head = f"{lane:{LABEL}}{found.busy(lane):7.1%}   "
        yield from textwrap.wrap(causes or "-", width, initial_indent=head, subsequent_indent=" " * len(head))
    shown: tuple[Kind, ...] = ("generate", "environment", "verify")
    numbers = ", ".join(f"{kind} {found.at_work[kind]:.3g}" for kind in shown)
    yield from textwrap.wrap(f"episodes at one time, on average: {numbers}", width)


def as_json(records: Sequence[Record]) -> dict[str, Any]:
    """Figures of the range and of each step, for programs; times in microseconds."""
    found = figures(records)
    return {
        "steps": [found.first, found.last],
        "wall_us": found.wall,
        "states_us": found.states,
        "at_work": found.at_work,
        "lost": found.lost,
        "each": [
            {key: record[key] for key in ("step", "stage", "origin", "start", "end", "wall_us", "states_us")}
            for record in records
        ],
    }


def rows_of_groups(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Rows without overlap: each group in the first row that is free when it begins; pieces of one group share a row."""
    rows: list[list[Piece]] = []
    ordered = sorted(pieces, key=lambda piece: (piece.group, piece.start))
    whole = [list(own) for _, own in itertools.groupby(ordered, key=lambda piece: piece.group)]
    for own in sorted(whole, key=lambda own: (own[0].start, own[0].group)):
        for row in rows:
            if row[-1].end <= own[0].start:
                row.extend(own)
                break
        else:
            rows.append(own)
    return rows
