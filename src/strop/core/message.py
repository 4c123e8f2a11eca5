"""Chat messages: the text view of a conversation. Invariant: text is a view, token ids are the truth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message.

    Args:
        role: `system`, `user`, `assistant` or `tool`.
        content: the text as it is shown to people and to chat templates.
        tool_calls: calls that an assistant message makes, each `{"name": ..., "arguments": {...}}`.
        tool_call_id: for a `tool` message, the call that it answers.

    Example:
        `Message("user", "higher")`
    """

    role: str
    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The message as chat templates and JSON lines take it; empty fields are left out."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            out["tool_calls"] = [{"type": "function", "function": dict(call)} for call in self.tool_calls]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out
