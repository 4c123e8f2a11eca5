"""The recorder of spans: nothing is lost or doubled, whoever notes and whenever it is taken."""

import itertools
import threading

import pytest

from strop.core.spans import KINDS, OFF, SILENT, Span, Spans, Track, clock


def test_a_span_lies_between_its_entry_and_its_exit() -> None:
    spans = Spans()
    before = clock()
    with spans.during("environment", "train-000041/3"):
        inside = clock()
    after = clock()
    [span] = spans.take().spans
    assert (span.kind, span.who) == ("environment", "train-000041/3")
    assert before <= span.start <= inside <= span.end <= after


def test_what_raises_was_at_work_too() -> None:
    spans = Spans()
    with pytest.raises(RuntimeError), spans.during("verify"):
        while clock() == spans.origin:
            pass
        raise RuntimeError
    assert [span.kind for span in spans.take().spans] == ["verify"]
    assert spans.take().spans == []  # it is over


def test_takes_cover_the_time_without_gap_or_overlap() -> None:
    spans = Spans()
    first, second = spans.take(), spans.take()
    assert first.start == spans.origin
    assert first.end == second.start <= second.end


def test_a_span_that_is_open_at_a_take_is_cut_there_and_goes_on() -> None:
    spans = Spans()
    with spans.during("update"):
        while clock() == spans.origin:
            pass
        first = spans.take()
        while clock() == first.end:
            pass
    second = spans.take()
    [early], [late] = first.spans, second.spans
    assert early.end == first.end == late.start
    assert early.start >= first.start and late.end <= second.end
    assert spans.take().spans == []


def test_a_span_noted_late_is_cut_to_the_time_since_the_last_take() -> None:
    spans = Spans()
    start = spans.take().end
    while clock() < start + 3:
        pass
    assert spans.note("engine", start - 500, start + 2) == 502e-6
    spans.note("engine", start - 500, start)  # all of it is past
    assert spans.take().spans == [Span("engine", start, start + 2)]


def test_a_recorder_that_is_off_gives_nothing_and_still_tells_lengths() -> None:
    spans = Spans(on=False)
    with spans.during("update"), SILENT.during("generate"), Track(spans, "x/0").during("verify"):
        assert spans.note("engine", 10, 2_000_010) == 2.0
    assert spans.take().spans == OFF.take().spans == []


def test_spans_beyond_the_room_are_counted_and_a_take_makes_room() -> None:
    spans = Spans(most=3)
    for _ in range(5):
        spans.note("engine", spans.origin - 1, clock() + 10)
    taken = spans.take()
    assert (len(taken.spans), taken.lost) == (3, 2)
    spans.note("engine", 0, clock() + 1_000_000)
    assert (len(spans.take().spans), spans.take().lost) == (1, 0)


def test_threads_that_note_while_another_takes_lose_nothing() -> None:
    spans, each = Spans(), 2000
    ready = threading.Barrier(len(KINDS) + 1)

    def work(name: int) -> None:
        ready.wait()
        for number in range(each):
            with spans.during(KINDS[name], f"{name}/{number}"):
                start = clock()
                while clock() == start:  # so that each has a length
                    pass

    workers = [threading.Thread(target=work, args=(name,)) for name in range(len(KINDS))]
    for worker in workers:
        worker.start()
    ready.wait()
    taken = []
    while any(worker.is_alive() for worker in workers):
        taken.append(spans.take())
    taken.append(spans.take())
    assert all(a.end == b.start for a, b in itertools.pairwise(taken))
    assert all(take.start <= span.start < span.end <= take.end for take in taken for span in take.spans)
    pieces: dict[str, list[Span]] = {}
    for take in taken:
        for span in take.spans:
            pieces.setdefault(span.who, []).append(span)
    assert set(pieces) == {f"{name}/{number}" for name in range(len(KINDS)) for number in range(each)}
    for own in pieces.values():  # a span cut by takes has no gap
        assert all(a.end == b.start for a, b in itertools.pairwise(own))
