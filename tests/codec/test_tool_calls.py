"""Tool calls as models write them: each is read, or kept with what is wrong with it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.codec.parse import ToolCall, tool_calls


def wrapped(body: str) -> str:
    return f"I will look. <tool_call>{body}</tool_call>"


def test_a_call_is_read_with_its_arguments() -> None:
    assert tool_calls(wrapped('{"name": "edit", "arguments": {"first": 2, "text": "x"}}')) == [
        ToolCall("edit", {"first": 2, "text": "x"})
    ]


def test_a_bare_object_is_one_call_and_plain_words_are_none() -> None:
    assert tool_calls('{"name": "view"}') == [ToolCall("view")]
    assert tool_calls("view the file") == []


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ('{"a": 1', "not JSON"),
        ("[1]", "must be an object"),
        ("5", "must be an object"),
        ("null", "must be an object"),
        ('{"arguments": {}}', "no name"),
        ('{"name": 3}', "no name"),
        ('{"name": "view", "arguments": [1]}', "arguments must be"),
        ("[" * 9_000, "not JSON"),
        ("x" * 100_000, "longer than"),
    ],
)
def test_a_broken_call_is_one_call_with_what_is_wrong(body: str, wrong: str) -> None:
    (call,) = tool_calls(wrapped(body))
    assert call.invalid is not None and wrong in call.invalid


def test_two_calls_with_one_broken_are_two_in_their_order() -> None:
    found = tool_calls(wrapped('{"name": "view"}') + wrapped("{"))
    assert [c.invalid is None for c in found] == [True, False]


def test_a_call_that_was_cut_off_is_still_answered() -> None:
    assert len(tool_calls('<tool_call>{"name": "vi')) == 1


def test_at_most_sixteen_calls_are_read() -> None:
    assert len(tool_calls(wrapped('{"name": "view"}') * 50)) == 16


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_text_raises(text: str) -> None:
    for call in tool_calls(text) + tool_calls(wrapped(text)):
        assert call.invalid is not None or isinstance(call.name, str)


@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=4), st.text(min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_what_is_written_as_json_is_read_back(arguments: dict[str, int], name: str) -> None:
    body = json.dumps({"name": name, "arguments": arguments})
    assert tool_calls(wrapped(body)) == [ToolCall(name, arguments)]
