"""JSON lines: what is written is read back, a torn end is survived, a damaged middle is not hidden."""

import errno
import io
import math
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.core.errors import RunError, UsageError
from strop.watch import jsonl

LINES = [{"step": 1, "text": "erste Zeile"}, {"step": 2, "text": "zweite\nZeile ü"}, {"step": 3, "n": [1, 2.5, None]}]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def written(folder: Path, records: list[Any]) -> Path:
    path = folder / "log.jsonl"
    for record in records:
        jsonl.append(path, record)
    return path


@given(st.lists(values, max_size=5))
def test_records_come_back_as_they_were_written(records: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        path = written(Path(folder), [{"x": record} for record in records])
        if records:
            assert repr(list(jsonl.read(path))) == repr([{"x": record} for record in records])
            path.write_bytes(path.read_bytes().replace(b'{"x":', b'{"y":', 1))
            assert list(jsonl.read(path)) != [{"x": record} for record in records]


def test_nan_and_infinity_are_null_and_arrays_are_lists(tmp_path: Path) -> None:
    every_second = np.arange(6, dtype=np.int32)[::2]
    path = written(tmp_path, [{"a": math.nan, "b": np.float32("inf"), "c": every_second, "d": np.float32(0.1)}])
    assert list(jsonl.read(path)) == [{"a": None, "b": None, "c": [0, 2, 4], "d": 0.1}]


def test_hostile_text_and_large_numbers_never_stop_a_log(tmp_path: Path) -> None:
    path = written(tmp_path, [{"a": "x\ud800y", "b": 2**70, 3: "key", "c": [{"d": "\udcff"}], "t": True}])
    expected = {"a": "x?y", "b": str(2**70), "3": "key", "c": [{"d": "?"}], "t": True}
    assert list(jsonl.read(path)) == [expected]


def test_what_has_no_json_form_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, LINES)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="not JSON serializable: object"):
        jsonl.append(path, {"a": object()})
    assert path.read_bytes() == before


def test_a_last_line_torn_at_any_byte_is_skipped_and_then_cut_off(tmp_path: Path) -> None:
    whole = written(tmp_path, LINES).read_bytes()
    start = len(whole) - len(jsonl.encode(LINES[-1]))
    path = tmp_path / "torn.jsonl"
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        assert list(jsonl.read(path)) == LINES[:2]
        jsonl.append(path, {"step": 9})
        assert list(jsonl.read(path)) == [*LINES[:2], {"step": 9}]
    path.write_bytes(whole)
    assert list(jsonl.read(path)) == LINES
    assert jsonl.heal(path) == 0 and path.read_bytes() == whole


def test_a_last_line_with_a_newline_that_is_no_json_is_skipped_and_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path, LINES)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": \n')
    assert list(jsonl.read(path)) == LINES
    assert jsonl.heal(path) == 10
    assert path.read_bytes() == whole


def test_healing_works_where_lines_are_longer_than_a_block(tmp_path: Path) -> None:
    long = {"text": "x" * (2 * jsonl.BLOCK + 7)}
    path = written(tmp_path, [long, long])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert jsonl.heal(path) == len(whole) // 2 - 1
    assert list(jsonl.read(path)) == [long]
    path.write_bytes(b"\0" * 70_000)
    assert jsonl.heal(path) == 70_000 and path.read_bytes() == b""


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, LINES)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:-5] + b"\n" + lines[2])
    with pytest.raises(UsageError, match=r"log\.jsonl, line 2"):
        list(jsonl.read(path))


class FullDisk(io.FileIO):
    """Takes three bytes of what it is given and then has no space left."""

    room = 3

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= (taken := min(self.room, len(data)))
        return super().write(bytes(data[:taken]))


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = written(tmp_path, LINES)
    before = path.read_bytes()
    with FullDisk(str(path), "ab") as handle, pytest.raises(RunError, match="free some space"):
        jsonl.append(handle, {"step": 4})
    assert path.read_bytes() == before
    with FullDisk(str(path), "ab") as handle, pytest.raises(OSError, match="No space"):
        while True:  # without the care: three bytes stand there
            handle.write(b"abcdef")
    assert path.read_bytes() == before + b"abc"


@given(
    st.lists(st.integers(1, 6) | st.tuples(st.integers(0, 6)), max_size=14),
    st.lists(st.integers(0, 14), max_size=2),
)
def test_superseded_records_are_dropped_wherever_the_files_were_cut(script: list[Any], cuts: list[int]) -> None:
    """A number logs a step, a tuple resumes; the truth is a list that a resume shortens."""
    truth: list[dict[str, Any]] = []
    lines: list[bytes] = []
    for number, entry in enumerate(script):
        if isinstance(entry, tuple):
            truth = [record for record in truth if record["step"] <= entry[0]]
            lines.append(jsonl.marker(entry[0]))
        else:
            truth.append({"step": entry, "n": number})
            lines.append(jsonl.encode(truth[-1]))
    edges = [0, *sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    parts = [io.BytesIO(b"".join(lines[a:b])) for a, b in pairwise(edges)]
    assert list(jsonl.read_current([("part", part) for part in parts])) == truth


def test_markers_are_given_only_on_request_and_a_record_without_step_always_holds() -> None:
    lines = [{"note": "start"}, {"step": 1}, {"step": 2}, {"resumed": 1}, {"step": 2, "again": True}]
    file = io.BytesIO(b"".join(jsonl.encode(line) for line in lines))
    assert list(jsonl.read_current([("f", file)])) == [lines[0], lines[1], lines[4]]
    assert list(jsonl.read_current([("f", file)], markers=True)) == [lines[0], lines[1], lines[3], lines[4]]
