"""Who was at work when: a recorder of spans of time, for the picture of a run.

Recording changes nothing that is computed: it reads a clock and appends to a list. Invariant: what is taken covers the time
since the last take and no other; a span that is open at that moment is cut there, its rest is given with the next take.
"""

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

Kind = Literal["generate", "engine", "environment", "verify", "annotate", "update", "publish", "evaluate"]

KINDS: tuple[Kind, ...] = (
    "generate",  # an episode waits for its next turn
    "engine",  # a packed forward
    "environment",  # an environment is made, starts, answers or closes
    "verify",  # a verifier judges
    "annotate",  # the lesson of a batch: annotations, continuations, credit
    "update",  # optimizer steps
    "publish",  # weights go to the engine
    "evaluate",  # all that only measures: evaluation, preflight, second opinions
)

MOST = 200_000
"""Spans kept between two takes (about 50 MB); further ones are counted and lost."""


def clock() -> int:
    """The time in microseconds. Monotonic, and on Linux common to all processes of a machine."""
    return time.monotonic_ns() // 1000


@dataclass(frozen=True, slots=True)
class Span:
    """Work of one kind from `start` to `end`, in microseconds of `clock`; `who` is a session, such as train-000041/3."""

    kind: Kind
    start: int
    end: int
    who: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What was recorded from `start` (the last take) to `end` (this one), in no order, and how many spans were lost."""

    start: int
    end: int
    spans: list[Span]
    lost: int


class _Open(AbstractContextManager[None]):
    """A span that is not over. A class of its own, since a generator's context costs twice as much."""

    __slots__ = ("kind", "spans", "start", "who")

    def __init__(self, spans: "Spans", kind: Kind, who: str) -> None:
        self.spans = spans
        self.kind: Kind = kind
        self.who = who
        self.start = 0

    def __enter__(self) -> None:
        self.spans.begin(self)

    def __exit__(self, *_: object) -> None:
        self.spans.end(self)


_NOTHING = nullcontext()


class Spans:
    """A recorder. Any thread may note spans; one takes them.

    Args:
        on: whether it records; one that is off costs next to nothing and gives nothing.
        most: spans kept between two takes.

    Example:
        with spans.during("environment", "train-000041/3"):
            step = await env.step(reply)
    """

    def __init__(self, on: bool = True, most: int = MOST) -> None:
        self.on = on
        self.origin = clock()
        self.began = time.time()  # what `origin` is on the clock on the wall, in seconds since 1970
        self._most = most
        self._lock = threading.Lock()
        self._since = self.origin
        self._done: list[Span] = []
        self._lost = 0
        self._open: dict[int, _Open] = {}

    def during(self, kind: Kind, who: str = "") -> AbstractContextManager[None]:
        """A context whose time is a span, also when it is left by an exception."""
        return _Open(self, kind, who) if self.on else _NOTHING

    def begin(self, begun: "_Open") -> None:
        """Begin an open span; `during` does it."""
        with self._lock:
            begun.start = clock()
            self._open[id(begun)] = begun

    def end(self, begun: "_Open") -> None:
        """End an open span; `during` does it."""
        with self._lock:
            del self._open[id(begun)]
            self._keep(begun.kind, begun.start, clock(), begun.who)

    def note(self, kind: Kind, start: int, end: int | None = None, who: str = "") -> float:
        """Record a span from `start` to `end` (now, if None), in microseconds of `clock`; returns its length in seconds.

        For who knows the span only when it is over. What lies before the last take is never seen.
        """
        until = clock() if end is None else end
        if self.on:
            with self._lock:
                self._keep(kind, start, until, who)
        return (until - start) / 1e6

    def take(self) -> Taken:
        """What was recorded since this was last asked, spans that are open cut at this moment."""
        with self._lock:
            now = clock()
            for begun in self._open.values():
                self._keep(begun.kind, begun.start, now, begun.who)
                begun.start = now
            taken = Taken(self._since, now, self._done, self._lost)
            self._since, self._done, self._lost = now, [], 0
        return taken

    def _keep(self, kind: Kind, start: int, end: int, who: str) -> None:
        """Keep a span, cut to the time since the last take, if there is room. The lock is held."""
        if end <= self._since:
            return
        if len(self._done) < self._most:
            self._done.append(Span(kind, max(start, self._since), end, who))
        else:
            self._lost += 1


OFF = Spans(on=False)
"""Records nothing."""


@dataclass(frozen=True, slots=True)
class Track:
    """The spans of one episode: a recorder, and who it is."""

    spans: Spans = OFF
    who: str = ""

    def during(self, kind: Kind) -> AbstractContextManager[None]:
        """See `Spans.during`."""
        return self.spans.during(kind, self.who)


SILENT = Track()
"""The track of an episode that nobody follows."""
