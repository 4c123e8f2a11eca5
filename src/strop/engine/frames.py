"""Frames: how a trainer and an engine in another process talk (`docs/engine.md`).

A frame on the wire is its length (4 bytes, big-endian), a header in JSON, a line feed, and the bytes of its arrays, one after
the other, little-endian. Invariant: `decode(encode(f)) == f`, and bytes that are no frame are refused by name, whatever they
are. Nothing is unpickled, and nothing here imports torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import orjson

from strop.core.errors import EngineError

PROTOCOL = 1
"""Number of this protocol; two sides with different numbers refuse each other."""

MAX_FRAME = 64 * 2**20
"""Bytes of a frame behind its length. A prompt of a million ids has 4 MB; weights travel as files."""

LENGTH = 4
"""Bytes of the length itself."""

TYPES = {"int32": np.dtype("<i4"), "float32": np.dtype("<f4")}


class FrameError(EngineError):
    """Bytes that are no frame, or a frame that cannot be sent."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Args:
        kind: what it is; see the table in `docs/engine.md`.
        number: of the request that it makes or answers; 0 where no answer is due.
        fields: JSON values.
        arrays: int32 or float32 arrays of one dimension.
    """

    kind: str
    number: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict[str, npt.NDArray[Any]])


def encode(frame: Frame) -> bytes:
    """The bytes of a frame, its length first. Raises `FrameError` where it cannot be sent."""
    shapes: list[tuple[str, str, int]] = []
    blocks: list[bytes] = []
    for name, array in frame.arrays.items():
        kind = array.dtype.name
        if kind not in TYPES or array.ndim != 1:
            raise FrameError(
                f"{frame.kind}: {name} is {kind} of shape {array.shape}; {' or '.join(TYPES)} in one dimension is allowed"
            )
        shapes.append((name, kind, len(array)))
        blocks.append(array.astype(TYPES[kind], copy=False).tobytes())
    header = {"kind": frame.kind, "number": frame.number, "fields": dict(frame.fields), "arrays": shapes}
    try:
        body = b"".join([orjson.dumps(header), b"\n", *blocks])
    except TypeError as error:
        raise FrameError(f"{frame.kind}: its fields are no JSON values of 64 bits ({error})") from error
    if len(body) > MAX_FRAME:
        raise FrameError(f"{frame.kind}: {len(body)} bytes; a frame has at most {MAX_FRAME}. Send less at once.")
    return len(body).to_bytes(LENGTH, "big") + body


def decode(body: bytes) -> Frame:
    """The frame of these bytes, which stood behind a length. Raises `FrameError`."""
    head, feed, rest = body.partition(b"\n")
    try:
        header: Any = orjson.loads(head)
    except ValueError as error:
        raise FrameError(f"a frame's header is no JSON: {head[:80]!r}") from error
    if not feed or not isinstance(header, dict):
        raise FrameError(f"a frame's header is a JSON object and a line feed, not {head[:80]!r}")
    given = cast("dict[str, Any]", header)
    kind, number, fields, shapes = (given.get(name) for name in ("kind", "number", "fields", "arrays"))
    if not (isinstance(kind, str) and type(number) is int and isinstance(fields, dict) and isinstance(shapes, list)):
        raise FrameError(f"a frame's header has kind, number, fields and arrays; got {head[:80]!r}")
    return Frame(kind, number, cast("dict[str, Any]", fields), _arrays(cast("list[Any]", shapes), rest))


def _arrays(shapes: list[Any], data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays that a header names, cut from the bytes behind it, which must be exactly theirs."""
    out: dict[str, npt.NDArray[Any]] = {}
    at = 0
    for shape in shapes:
        match shape:
            case [str(name), str(kind), int(count)] if kind in TYPES and count >= 0 and name not in out:
                end = at + count * TYPES[kind].itemsize
            case _:
                raise FrameError(f"a frame's array is [name, {' or '.join(TYPES)}, count], not {shape!r:.80}")
        if end > len(data):
            raise FrameError(f"{name} is cut: {len(data)} bytes stand behind the header, {end} were announced")
        out[name] = np.frombuffer(data[at:end], TYPES[kind]).astype(kind)
        at = end
    if at != len(data):
        raise FrameError(f"{len(data)} bytes stand behind the header, {at} were announced")
    return out


def read(stream: BinaryIO) -> Frame | None:
    """The next frame of a buffered stream; None where the stream ends between two frames. Raises `FrameError`."""
    length = stream.read(LENGTH)
    if not length:
        return None
    size = int.from_bytes(length, "big")
    if len(length) == LENGTH and size > MAX_FRAME:
        raise FrameError(f"a frame of {size} bytes was announced; at most {MAX_FRAME} are allowed")
    body = stream.read(size) if len(length) == LENGTH else b""
    if len(length) < LENGTH or len(body) < size:
        raise FrameError(f"the stream ended inside a frame: {len(length)} bytes of length, {len(body)} of {size}")
    return decode(body)
