"""Parsers answer any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.codec.parse import last_integer, split_thinking


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("no number", None),
        ("42", 42),
        ("42.", 42),
        ("3 apples, so -1,250.", -1250),
        ("from 5-3 we get", 3),
        ("x = -7!", -7),
        ("\u22127", -7),
        ("pi is 3.14", None),
        ("2 then 3.14", 2),
        ("1,2", None),
        ("1, 2", 2),
        ("$1,234,567", 1234567),
        ("007", 7),
        ("9" * 5000, None),
        ("8 " + "9" * 5000, 8),
        ("٣", None),
    ],
)
def test_the_last_integer_is_found(text: str, expected: int | None) -> None:
    assert last_integer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", ("", "4")),
        ("<think>add</think>4", ("add", "4")),
        ("<think>\nadd\n</think>\n\n4 ", ("add", "4")),
        ("add</think>4", ("add", "4")),
        ("<think>add and", ("add and", "")),
        ("so <think>add</think> 4", ("add", "so  4")),
        ("<think></think>4", ("", "4")),
        ("", ("", "")),
    ],
)
def test_thinking_is_split_from_the_answer(text: str, expected: tuple[str, str]) -> None:
    assert split_thinking(text) == expected


@given(st.text(alphabet="-0123456789,.\u2212a \n<think>/"))
def test_no_text_makes_a_parser_raise(text: str) -> None:
    found = last_integer(text)
    assert found is None or str(abs(found)) in text.replace(",", "").replace("0", "") or "0" in text
    split_thinking(text)
