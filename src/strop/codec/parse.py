"""Parsers for what models write. Invariant: any text is answered, none raises."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

# A sign counts only where no word or number stands before it; 3.5 and version-like 1.2.3 are not integers.
_INTEGER = re.compile(r"(?<![0-9.,])(?:(?<!\w)[-\u2212])?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?![0-9]|[.,][0-9])")
_DIGITS = 1000  # beyond this, no answer; Python refuses to read more than 4,300 digits


def last_integer(text: str) -> int | None:
    """The last integer in a text, None if there is none.

    Example:
        `last_integer("3 apples, so -1,250.") == -1250`
    """
    for found in reversed(list(_INTEGER.finditer(text))):
        digits = found.group().replace(",", "").replace("\u2212", "-")
        if len(digits) <= _DIGITS:
            return int(digits)
    return None


def split_thinking(text: str) -> tuple[str, str]:
    """Thinking and answer of a reply, both stripped.

    A missing `<think>` (the template's header may have written it) and a missing `</think>` (cut, all the rest is
    thinking) are tolerated; text before the block belongs to the answer.

    Example:
        `split_thinking("<think>add</think>4") == ("add", "4")`
    """
    inside, closed, after = text.partition("</think>")
    before, opened, thinking = inside.partition("<think>")
    if opened:
        return thinking.strip(), (before + after).strip()
    return (inside.strip(), after.strip()) if closed else ("", text.strip())


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as a model wrote it; `invalid` says what is wrong with one that cannot be carried out."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    invalid: str | None = None


_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_LONGEST_CALL = 20_000
_MOST_CALLS = 16


def tool_calls(text: str) -> list[ToolCall]:
    """The tool calls of a reply in order: each `<tool_call>{...}</tool_call>`, or the whole reply if it is one object.

    A call that is no JSON, no object, or without a name and an object of arguments is kept with what is wrong, so that every
    call gets one answer. At most 16 are read.

    Example:
        `tool_calls('{"name": "view", "arguments": {}}') == [ToolCall("view")]`
    """
    bodies = _CALL.findall(text)
    if not bodies and text.strip().startswith("{"):
        bodies = [text]
    return [_tool_call(body.strip()) for body in bodies[:_MOST_CALLS]]


def _tool_call(body: str) -> ToolCall:
    if len(body) > _LONGEST_CALL:
        return ToolCall(invalid=f"the call is longer than {_LONGEST_CALL} characters")
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ToolCall(invalid="the call is not JSON")
    if not isinstance(found, dict):
        return ToolCall(invalid="the call must be an object")
    call = cast("dict[str, Any]", found)
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str):
        return ToolCall(invalid="the call has no name")
    if not isinstance(arguments, dict):
        return ToolCall(name[:100], invalid="arguments must be an object")
    return ToolCall(name[:100], cast("dict[str, Any]", arguments))
