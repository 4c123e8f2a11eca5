"""What the watch remembers from step to step: the start of each curve, its newest steps, and which alarms stand.

Invariant: bounded, and equal after a way to JSON and back, so that it is a part of a checkpoint and a resumed run raises
the same alarms. It takes in sights in the order of steps and forgets everything older than `KEPT` of them, but the start;
of success it keeps `STRETCH` steps more coarsely, in blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from strop.watch.sight import Sight
from strop.watch.sums import Shares, Sums, add

START, RECENT, KEPT = 5, 10, 30
"""Steps that make the start of a curve, its newest part, and all that is remembered of it after the start."""
BLOCK, STRETCH = 10, 200
"""Steps of a block, and of the long stretch in which success is followed by blocks."""
TRACKS = 64
"""Curves that are remembered; new names beyond them are not watched."""


@dataclass(frozen=True, slots=True)
class Track:
    """One curve: the sum of its first `started` steps, and each of the newest steps after them, oldest first."""

    start: Sums = field(default_factory=Sums)
    started: int = 0
    last: tuple[Sums, ...] = ()

    def recent(self) -> Sums:
        """The newest part."""
        return add(self.last[-RECENT:])

    def remembered(self) -> Sums:
        """All that is remembered after the start: surer than the newest part, and later to see a change."""
        return add(self.last)

    def earlier(self) -> Sums | None:
        """The oldest part that is remembered, once it does not meet the newest one."""
        return add(self.last[:RECENT]) if len(self.last) == KEPT else None


@dataclass(frozen=True, slots=True)
class Memory:
    """State of the watch.

    Args:
        tracks: curves by name.
        shares: the newest steps of each kind of share, oldest first.
        best: the best full newest part that `success` has had.
        blocks: success in the newest full blocks of `BLOCK` steps, oldest first, `STRETCH` steps of them at most.
        block, filled: success in the block that is being filled, and its steps.
        tripped: alarms that stand, by key, and in how many tests since they were clear.
    """

    tracks: Mapping[str, Track] = field(default_factory=dict[str, Track])
    shares: Mapping[str, tuple[Shares, ...]] = field(default_factory=dict[str, "tuple[Shares, ...]"])
    best: Sums | None = None
    blocks: tuple[Sums, ...] = ()
    block: Sums = field(default_factory=Sums)
    filled: int = 0
    tripped: Mapping[str, int] = field(default_factory=dict[str, int])

    def after(self, sight: Sight) -> "Memory":
        """The memory with one sight more."""
        tracks, shares = dict(self.tracks), dict(self.shares)
        streams = dict(sight.streams)
        if "success" in streams:  # a turn reward that nobody earned is 0, also before it was first earned
            absent = (name for name in tracks if name.startswith("turn_") and name not in streams)
            streams |= {name: _nothing(streams["success"]) for name in absent}
        for name, sums in sorted(streams.items()):
            if name not in tracks and name.startswith("turn_") and len(tracks) < TRACKS and "success" in self.tracks:
                past = self.tracks["success"]
                tracks[name] = Track(_nothing(past.start), past.started, tuple(map(_nothing, past.last)))
            if name in tracks or len(tracks) < TRACKS:
                tracks[name] = _longer(tracks.get(name, Track()), sums, 1 if name.startswith("eval_") else START)
        for kind, step in sight.shares.items():
            shares[kind] = (*shares.get(kind, ()), step)[-KEPT:]
        best, success = self.best, tracks.get("success")
        if success is not None and len(success.last) >= RECENT:
            now = success.recent()
            best = now if best is None or now.value > best.value else best
        return replace(self, tracks=tracks, shares=shares, best=best)._stretched(sight)

    def _stretched(self, sight: Sight) -> "Memory":
        """The memory with the success of one sight more in its blocks."""
        if "success" not in sight.streams:
            return self
        block, filled = add([self.block, sight.streams["success"]]), self.filled + 1
        if filled < BLOCK:
            return replace(self, block=block, filled=filled)
        return replace(self, blocks=(*self.blocks, block)[-STRETCH // BLOCK :], block=Sums(), filled=0)

    def record(self) -> dict[str, Any]:
        """The memory as JSON values; `memory_of` reads it."""
        return {
            "tracks": {
                name: {
                    "start": list(astuple(t.start)),
                    "started": t.started,
                    "last": [list(astuple(s)) for s in t.last],
                }
                for name, t in self.tracks.items()
            },
            "shares": {kind: [asdict(step) for step in steps] for kind, steps in self.shares.items()},
            "best": None if self.best is None else list(astuple(self.best)),
            "blocks": [list(astuple(s)) for s in (*self.blocks, self.block)],
            "filled": self.filled,
            "tripped": dict(self.tripped),
        }


def memory_of(record: Mapping[str, Any]) -> Memory:
    """The memory of a record; an empty one is that of a run that has not begun."""
    if not record:
        return Memory()
    return Memory(
        {
            name: Track(Sums(*t["start"]), t["started"], tuple(Sums(*s) for s in t["last"]))
            for name, t in record["tracks"].items()
        },
        {kind: tuple(Shares(**step) for step in steps) for kind, steps in record["shares"].items()},
        None if record["best"] is None else Sums(*record["best"]),
        *_blocks(record.get("blocks", [[]])),
        record.get("filled", 0),
        dict(record["tripped"]),
    )


def _blocks(rows: Sequence[Sequence[float]]) -> tuple[tuple[Sums, ...], Sums]:
    *full, block = (Sums(*row) for row in rows)
    return tuple(full), block


def _nothing(sums: Sums) -> Sums:
    """The same groups and episodes with nothing earned."""
    return Sums(sums.groups, 0.0, sums.count, 0.0, 0.0, sums.nn)


def _longer(track: Track, sums: Sums, start: int) -> Track:
    """The track with one step more; an evaluation is compared with the last one only, so its newest part is one step."""
    if track.started < start:
        return Track(add([track.start, sums]), track.started + 1)
    kept = 1 if start == 1 else KEPT
    return replace(track, last=(*track.last, sums)[-kept:])
