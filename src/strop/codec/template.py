"""One chat template: messages to text, text to ids. Invariant: only the template writes control tokens.

Control tokens inside messages are wrapped in the markers of `transformers` (`mark_control_tokens`) and encoded as plain
text (`encode_marked_chat`). This is what `apply_chat_template(..., sanitize_control_tokens=True)` does, taken apart for
two reasons: an extension encodes only the text behind the last reply, and an assistant's own `<think>` or `<tool_call>`
(added tokens that are not special) must stay the id that the model samples, while in anybody else's text it is text.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers, tokenizers and torch are partly untyped)

import re
from collections.abc import Sequence
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import encode_marked_chat, mark_control_tokens

from strop.core.errors import UsageError
from strop.core.message import Message

ROLES = ("system", "user", "assistant", "tool")

PROBE_USER = Message("user", "What is two and two?")
PROBE_REPLY = Message("assistant", "Let me say four")

_FAILURES = (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError)


def whole(text: str) -> str:
    """The text with lone surrogates (from JSON escapes) replaced: tokenizers refuse them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _pattern(tokens: set[str]) -> re.Pattern[str]:
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # (?!) never matches


class Template:
    """A tokenizer's chat template with the roles it cannot render mapped to ones that it can.

    Args:
        tokenizer: has a chat template; `UsageError` otherwise, or when plain text can become a control token.

    Attributes:
        notes: what was adapted, one sentence each.
        control: matches every control token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise UsageError("the tokenizer has no chat template. Set one, or use codec.chat.with_default_template.")
        self.tokenizer: Any = tokenizer  # its methods are untyped
        self.notes: list[str] = []
        self._roles: dict[str, str] = {}
        self._merge = False
        self._learn_roles()
        self._learn_controls()

    def _learn_roles(self) -> None:
        """Find the roles that the template refuses or drops, and whether it wants users and assistants to alternate."""
        self.control = self._special = _pattern(set())  # probes hold no control tokens
        if self._attempt(PROBE_USER, PROBE_REPLY, PROBE_USER) is None:
            raise UsageError(
                "the chat template cannot render a user and an assistant message. Give the tokenizer another template."
            )
        for role, before in (("system", ()), ("tool", (PROBE_USER, PROBE_REPLY))):
            probe = Message(role, "observed words")
            text = self._attempt(*before, probe, *(() if before else (PROBE_USER,)))
            if text is None or probe.content not in text:
                self._roles[role] = "user"
                self._merge = self._merge or role == "system"
                self.notes.append(f"the chat template has no {role} role: such messages are given as the user's")
        if self._attempt(PROBE_USER, PROBE_USER, PROBE_REPLY) is None:
            self._merge = True
            self.notes.append("the chat template wants turns to alternate: neighbouring user messages are joined")

    def _learn_controls(self) -> None:
        """Control tokens: all special ones, and added ones that the template writes (as `transformers` decides it)."""
        written = self.tokenizer.get_chat_template() + self.text((PROBE_USER, PROBE_REPLY, PROBE_USER), True)
        named = set(self.tokenizer.chat_control_tokens or ())
        special: set[str] = set()
        control: set[str] = set()
        for token in self.tokenizer.added_tokens_decoder.values():
            if token.special:
                special.add(token.content)
            elif token.content in named or (token.content in written and not token.content.isspace()):
                control.add(token.content)
        self._special = _pattern(special)
        self.control = _pattern(special | control)
        for token in special | control:
            try:
                self.ids(mark_control_tokens(token, self.control))
            except ValueError as error:
                raise UsageError(
                    f"the tokenizer turns the plain text {token!r} into a control token, so a message could forge a "
                    "turn. Use a tokenizer whose control tokens are added tokens only."
                ) from error
        opening = self.text((PROBE_USER,), True)
        last = max((found.start() for found in self.control.finditer(opening)), default=len(opening))
        self._header = opening[last:]

    def _attempt(self, *messages: Message) -> str | None:
        try:
            return self.tokenizer.apply_chat_template([m.as_dict() for m in messages], tokenize=False)
        except _FAILURES:
            return None

    def text(self, messages: Sequence[Message], header: bool) -> str:
        """Render messages to marked text.

        Args:
            messages: the conversation, not empty.
            header: whether the header of the agent's next turn follows.

        Raises:
            UsageError: no message, an unknown role, or a conversation that the template refuses.
        """
        if not messages:
            raise UsageError("a conversation must open with at least one message; the environment's start() gave none")
        marked = [self.mark(message) for message in self._adapted(messages)]
        try:
            return self.tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=header)
        except _FAILURES as error:
            roles = ", ".join(m.role for m in messages)
            raise UsageError(
                f"the chat template refuses a conversation of roles {roles}: {error}. Change the environment's "
                "messages or give the tokenizer another chat template."
            ) from error

    def mark(self, message: Message) -> dict[str, Any]:
        """The message as the template takes it, with every control token in it wrapped in markers."""
        pattern = self._special if message.role == "assistant" else self.control
        return mark_control_tokens({**message.as_dict(), "content": whole(message.content)}, pattern)

    def _adapted(self, messages: Sequence[Message]) -> list[Message]:
        out: list[Message] = []
        for message in messages:
            if message.role not in ROLES:  # a template may build a control token from it
                raise UsageError(f"a message has role {message.role!r}; allowed: {', '.join(ROLES)}")
            if message.role in self._roles:
                message = Message(self._roles[message.role], message.content)
            if self._merge and out and message.role == out[-1].role == "user":
                message = Message("user", f"{out.pop().content}\n\n{message.content}")
            out.append(message)
        return out

    def ids(self, marked: str) -> list[int]:
        """Ids of marked text; nothing is added (a BOS only where the template wrote one)."""
        return encode_marked_chat(self.tokenizer, marked)

    def literal(self, text: str) -> list[int]:
        """Ids of an assistant's text as a render has them; special tokens in it become plain text.

        The text is encoded behind the header of a turn, which is then cut off: some tokenizers put a space before the
        start of a string. Where letters join across that border, the text is encoded alone: a model samples it so too.
        """
        marked = mark_control_tokens(whole(text), self._special)
        ids, header = self.ids(self._header + marked), self.ids(self._header)
        return ids[len(header) :] if ids[: len(header)] == header else self.ids(marked)
