"""The text of plain values: exact both ways, and nothing else gets through."""

import enum
import json
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.sandbox.plain import BITS, DEPTH, KEYS, NODES, NotPlainError, decode, encode

KEY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()) | st.binary(),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)
VALUE = st.recursive(
    KEY | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(KEY, max_size=4)
        | st.dictionaries(KEY, inner, max_size=4)
    ),
    max_leaves=12,
)


def shape(value: Any) -> Any:
    """A value with its types, without the order of sets; repr tells -0.0 from 0.0 and NaN equals itself."""
    if isinstance(value, dict):
        return dict, [(shape(key), shape(member)) for key, member in value.items()]
    if isinstance(value, set):
        return set, sorted((shape(member) for member in value), key=repr)
    if isinstance(value, list | tuple):
        return type(value), [shape(member) for member in value]
    return type(value), repr(value)


def same(a: Any, b: Any) -> bool:
    """Equal with equal types all the way down, order of dicts included."""
    return shape(a) == shape(b)


@given(VALUE)
@settings(max_examples=300, deadline=None)
def test_a_plain_value_comes_back_exactly(value: Any) -> None:
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize(
    ("a", "b"), [(1, True), (1, 1.0), ((1,), [1]), (0.0, -0.0), ("a", b"a"), ({1: 2}, {True: 2}), (None, "null")]
)
def test_the_comparison_tells_neighbours_apart(a: Any, b: Any) -> None:
    assert same(decode(encode(a)), a) and not same(decode(encode(a)), b)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1 << 62, -(1 << 62), (1 << BITS) - 1, "\ud800", set(), {}]
)
def test_the_edges_come_back_exactly(value: Any) -> None:
    assert same(decode(encode(value)), value)


class Colour(enum.IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Point(1),
        Text("a"),
        OrderedDict(a=1),
        frozenset({1}),
        bytearray(b"a"),
        object(),
        1j,
        int,
        range(3),
        [Text("a")],
        {Colour.RED: 1},
        1 << BITS,
        list(range(NODES)),
        set(range(KEYS + 1)),
        dict.fromkeys(range(KEYS + 1)),
    ],
)
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(NotPlainError):
        encode(value)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_depth_is_bounded_on_both_sides() -> None:
    assert decode(encode(nested(DEPTH))) == nested(DEPTH)
    with pytest.raises(NotPlainError):
        encode(nested(DEPTH + 1))
    with pytest.raises(ValueError):
        decode('["l",' * (DEPTH + 1) + "1" + "]" * (DEPTH + 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.5",
        "NaN",
        "Infinity",
        "9" * 5000,
        str(1 << 62),
        "{}",
        '{"a": 1}',
        "[]",
        "[1]",
        '["x"]',
        '["i"]',
        '["i", "zz"]',
        '["i", 5]',
        '["i", "0x' + "f" * 5000 + '"]',
        '["f", "1e999999x"]',
        '["f", "0x1p99999"]',
        '["b", "0"]',
        '["d", 1]',
        '["d", ["l"], 1]',
        '["s", ["l"]]',
        '["s", ["d"]]',
        '["l"' + ",1" * NODES + "]",
        '["s"' + "".join(f",{n}" for n in range(KEYS + 1)) + "]",
        "[" * 100_000,
        '["l",' * 100_000,
        "[" * 100_000 + "]" * 100_000,
        b"\xff",
        b"\x00",
    ],
    ids=lambda text: repr(text)[:20],
)
def test_a_text_that_was_not_written_so_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        decode(text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=8))
@settings(max_examples=200, deadline=None)
def test_any_json_gives_a_plain_value_or_a_value_error(tree: Any) -> None:
    try:
        value = decode(json.dumps(tree))
    except ValueError:
        return
    assert same(decode(encode(value)), value)
