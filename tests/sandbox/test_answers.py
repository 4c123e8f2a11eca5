"""Reading what came out of the pipe for answers."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.core.sandbox import Outcome
from strop.sandbox.answers import read_outcomes
from strop.sandbox.plain import encode

WHY = "it died"
MISSING = Outcome("missing", None, WHY)


def line(kind: str, value: Any) -> bytes:
    return json.dumps([kind, encode(value) if kind == "value" else value]).encode() + b"\n"


GOOD = line("value", 7)
SEVEN = Outcome("value", 7, "7")


def test_lines_count_in_order() -> None:
    data = line("value", 1) + line("raised", "ValueError: x") + line("not_plain", "an object")
    assert read_outcomes(data, 3, WHY) == (
        Outcome("value", 1, "1"),
        Outcome("raised", None, "ValueError: x"),
        Outcome("not_plain", None, "an object"),
    )


def test_what_was_never_answered_is_missing() -> None:
    assert read_outcomes(GOOD, 3, WHY) == (SEVEN, MISSING, MISSING)
    assert read_outcomes(b"", 2, WHY) == (MISSING, MISSING)


def test_more_answers_than_calls_are_nobodys() -> None:
    assert read_outcomes(GOOD * 50, 2, WHY) == (SEVEN, SEVEN)


def test_a_line_without_its_end_is_no_answer() -> None:
    assert read_outcomes(GOOD + line("value", 12)[:-3], 2, WHY) == (SEVEN, MISSING)


@pytest.mark.parametrize(
    "bad",
    [
        b"\n",
        b"garbage\n",
        b"[]\n",
        b'["value"]\n',
        b'["value", 7]\n',
        b'["value", "7", 1]\n',
        b'["value", "{}"]\n',
        b'{"value": "7"}\n',
        b'["good", "7"]\n',
        b'[1, "7"]\n',
        b'[["value"], "7"]\n',
        b'["value", "NaN"]\n',
        b"\xff\xfe\n",
        b"9" * 6000 + b"\n",
        b"[" * 150_000 + b"\n",
        b'["raised", "' + b"x" * 300_000 + b'"]\n',
    ],
    ids=lambda bad: repr(bad[:16]),
)
def test_nothing_after_a_bad_line_counts(bad: bytes) -> None:
    assert read_outcomes(GOOD + bad + GOOD, 3, WHY) == (SEVEN, MISSING, MISSING)
    assert read_outcomes(GOOD + GOOD, 3, WHY) == (SEVEN, SEVEN, MISSING)


def test_a_message_is_cut() -> None:
    assert read_outcomes(line("raised", "x" * 9000), 1, WHY) == (Outcome("raised", None, "x" * 500),)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_as_many_outcomes_as_calls(data: bytes) -> None:
    outcomes = read_outcomes(data, 3, WHY)
    assert len(outcomes) == 3 and all(isinstance(outcome, Outcome) for outcome in outcomes)
