"""Plain values as JSON text and back, with exact types. Used on both sides of the sandbox's wall.

Invariant: `decode` builds nothing but None, bool, int, float, str, bytes, list, tuple, set and dict, whatever the text says,
in bounded depth and size; a text that `encode` would not write is refused with ValueError. Standard library only.

    None, bool, str, int of 63 bits     themselves
    ["i", "0x1f"]                       a longer int
    ["f", "0x1.8p+1"]                   float (nan, inf too)
    ["b", "00ff"]                       bytes
    ["l" | "t" | "s", value, ...]       list, tuple, set
    ["d", key, value, key, value, ...]  dict, in order
"""

import json
from typing import Any, cast

DEPTH = 32  # of nested containers
NODES = 10_000  # values in one value, itself and the leaves included
KEYS = 2_000  # members of one set or dict: hashes of ints can be made to collide, which costs their square
BITS = 14_000  # of an int: below 4300 decimal digits, so that it can be printed
SHORT = 1 << 62


class NotPlainError(ValueError):
    """A value that has no exact text: another type, a subclass, or too deep or too large."""


def encode(value: Any) -> str:
    """JSON text of a plain value. Raises `NotPlainError` for anything else, subclasses of plain types included."""
    return json.dumps(_write(value, DEPTH, [NODES]), ensure_ascii=True, separators=(",", ":"))


def _write(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0:
        raise NotPlainError(f"more than {NODES} values")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        if -SHORT < value < SHORT:
            return value
        if value.bit_length() > BITS:
            raise NotPlainError(f"an int of more than {BITS} bits")
        return ["i", hex(value)]
    if kind is float:
        return ["f", value.hex()]
    if kind is bytes:
        return ["b", value.hex()]
    tag = {list: "l", tuple: "t", set: "s", dict: "d"}.get(kind)
    if tag is None:
        raise NotPlainError(f"a {kind.__name__} is not a plain value")
    if depth == 0:
        raise NotPlainError(f"nested deeper than {DEPTH}")
    if tag in "sd" and len(value) > KEYS:
        raise NotPlainError(f"a {kind.__name__} of more than {KEYS} members")
    members = [part for pair in value.items() for part in pair] if tag == "d" else value
    return [tag, *(_write(member, depth - 1, left) for member in members)]


def decode(text: str | bytes) -> Any:
    """The plain value of a text that `encode` wrote. Raises ValueError for every other text, also for bombs of any kind."""
    try:
        read = json.loads(text, parse_float=_refuse, parse_constant=_refuse)
        return _read(read, DEPTH, [NODES])
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not the text of a plain value: {error}") from None


def _refuse(text: str) -> Any:
    raise ValueError(f"{text[:20]} is not written so")


def _read(node: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"more than {NODES} values")
    if node is None or isinstance(node, bool | str):
        return node
    if isinstance(node, int):
        if not -SHORT < node < SHORT:
            raise ValueError("a long int is written in hexadecimal")
        return node
    if not isinstance(node, list) or not node or depth == 0:
        raise ValueError("not the text of a plain value")
    tag, *members = cast("list[Any]", node)
    if tag in ("i", "f", "b"):
        return _scalar(tag, members)
    if tag not in ("l", "t", "s", "d"):
        raise ValueError("an unknown tag")
    if tag in ("s", "d") and len(members) > (KEYS if tag == "s" else 2 * KEYS):
        raise ValueError(f"more than {KEYS} members")
    values = [_read(member, depth - 1, left) for member in members]
    if tag == "l":
        return values
    if tag == "t":
        return tuple(values)
    if tag == "s":
        return set(values)
    if len(values) % 2:
        raise ValueError("a key without a value")
    return dict(zip(values[::2], values[1::2], strict=True))


def _scalar(tag: str, members: list[Any]) -> Any:
    if len(members) != 1 or not isinstance(members[0], str):
        raise ValueError("a number or bytes without its digits")
    text: str = members[0]
    if tag == "b":
        return bytes.fromhex(text)
    if tag == "f":
        return float.fromhex(text)
    value = int(text, 16)
    if value.bit_length() > BITS:
        raise ValueError(f"an int of more than {BITS} bits")
    return value


def describe(value: Any, limit: int = 200) -> str:
    """repr of a plain value, cut to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
