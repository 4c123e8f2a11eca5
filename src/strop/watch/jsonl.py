"""Append-only files of JSON lines, and what a resumed run makes void in them.

Invariant: a file is a sequence of whole lines, each one JSON value; only its end may be torn (a process was killed
while it wrote), and nothing is ever appended behind a torn end. After `{"resumed": s}`, what stood before it of steps
above s never happened.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import orjson

from strop.core.errors import RunError, UsageError

MARKER = b'{"resumed":'
"""How the line of a resumed run begins (see `marker`); no other record may have `resumed` as its first key."""

BLOCK = 1 << 16


def encode(record: Any) -> bytes:
    """One JSON line, newline included. NaN and infinities become null; numpy arrays become lists.

    What JSON takes but orjson does not is made plain, so that a log never stops a run over a model's text: lone
    surrogates become `?`, integers beyond 64 bits and keys that are no strings become strings. Raises `UsageError` for
    values that have no JSON form.
    """
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    try:
        return orjson.dumps(record, default=_default, option=options)
    except TypeError:
        pass
    try:
        return orjson.dumps(_plain(record), default=_default, option=options)
    except (TypeError, RecursionError) as error:
        raise UsageError(
            f"a record cannot be written as JSON: {error}. Allowed are text, numbers, booleans, None, lists, dicts and "
            "numpy arrays; make artefacts and infos of these."
        ) from error


def marker(step: int) -> bytes:
    """The line that says: the run went on from step `step`, what was written of later steps is void."""
    return MARKER + str(step).encode() + b"}\n"


def append(target: Path | io.FileIO, record: Any) -> int:
    """Append one record and return the bytes written. An open file must come from `open_append`."""
    if isinstance(target, Path):
        with open_append(target) as handle:
            return write_line(handle, encode(record))
    return write_line(target, encode(record))


def open_append(path: Path) -> io.FileIO:
    """Open for appending: a torn end is cut off first, and each record is one unbuffered write."""
    heal(path)
    return open(path, "ab", buffering=0)


def write_line(handle: io.FileIO, line: bytes) -> int:
    """Write one line whole or not at all. Raises `RunError` when the disk refuses."""
    start = handle.seek(0, io.SEEK_END)
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[handle.write(rest) or 0 :]
    except OSError as error:
        handle.truncate(start)  # else the next line would stand behind half a line
        raise RunError(
            f"{handle.name!s} could not be written: {error}. All records before are kept; free some space and resume."
        ) from error
    return len(line)


def heal(path: Path) -> int:
    """Cut off a torn end (no newline, or a last line that is no JSON) and return how many bytes went. No file: 0."""
    if not path.exists():
        return 0
    with open(path, "rb+") as handle:
        size = handle.seek(0, io.SEEK_END)
        end = _line_start(handle, size)
        start = _line_start(handle, end - 1) if end else 0
        handle.seek(start)
        if end and _is_json(handle.read(end - start)):
            start = end
        if start < size:
            handle.truncate(start)
        return size - start


def read(path: Path) -> Iterator[Any]:
    """Records in order. A torn end is skipped; a broken line before it raises `UsageError`, with its number."""
    with open(path, "rb") as handle:
        for _, _, record in _decoded(path.name, handle):
            yield record


def read_current(files: Sequence[tuple[str, IO[bytes]]], markers: bool = False) -> Iterator[dict[str, Any]]:
    """Records that still hold, of files that continue each other; one record is in memory at a time.

    Args:
        files: (name for messages, open and seekable file) in the order in which they were written. They are read
            twice: once for the markers, once for the records. What is appended meanwhile is left out.
        markers: whether the `resumed` records are given too.
    """
    found: list[tuple[tuple[int, int], int]] = []  # ((file, line), step) of each marker
    counts: list[int] = []
    for index, (_, handle) in enumerate(files):
        handle.seek(0)
        number = 0
        for number, line in enumerate(_whole(handle), 1):
            if line.startswith(MARKER) and _is_json(line):
                found.append(((index, number), int(orjson.loads(line)["resumed"])))
        counts.append(number)
    for later in range(len(found) - 2, -1, -1):  # a marker also speaks for the lower ones that come after it
        found[later] = (found[later][0], min(found[later][1], found[later + 1][1]))
    ahead = 0
    for index, (name, handle) in enumerate(files):
        handle.seek(0)
        for number, line, record in _decoded(name, handle, counts[index]):
            while ahead < len(found) and found[ahead][0] <= (index, number):
                ahead += 1
            if line.startswith(MARKER):
                holds = markers
            else:
                step = record.get("step")
                holds = step is None or ahead == len(found) or step <= found[ahead][1]
            if holds:
                yield record


def _decoded(name: str, handle: IO[bytes], limit: int | None = None) -> Iterator[tuple[int, bytes, Any]]:
    """(number from 1, line, record) of the whole lines, at most `limit`; a last line that is no JSON is left out."""
    lines = enumerate(_whole(handle), 1)
    for number, line in lines:
        if limit is not None and number > limit:
            return
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if next(lines, None) is None:
                return
            raise UsageError(
                f"{name}, line {number} is no JSON ({error}), and more lines follow: the file was damaged after it was "
                "written. Restore it, or remove that line to read the rest."
            ) from error
        yield number, line, record


def _whole(handle: IO[bytes]) -> Iterator[bytes]:
    """Lines that end with a newline."""
    return (line for line in handle if line.endswith(b"\n"))


def _line_start(handle: IO[bytes], end: int) -> int:
    """Offset behind the last newline before `end`; 0 when there is none."""
    while end > 0:
        start = max(0, end - BLOCK)
        handle.seek(start)
        found = handle.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _default(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):  # not contiguous, or a type that orjson does not know
        return cast("np.ndarray[Any, Any]", value).tolist()
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_plain(key if isinstance(key, str) else str(key)): _plain(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return value
