"""The codec on a chat template. Invariant: what an engine sampled is never encoded again, and ids are only appended.

What follows a reply is found by rendering a short fixed conversation with the new messages behind it and keeping what
comes after the fixed reply, so the cost is linear in the new messages.

Where a template rewrites older turns (drops thinking, trims spaces, moves the end marker), appending shows the model
another text than a server would that renders anew. Which of the two is trained is the user's choice (`history`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers, tokenizers and torch are partly untyped)

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from strop.codec.template import PROBE_REPLY, PROBE_USER, Template
from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.trajectory import Completion, Ints

History = Literal["keep", "as_template"]

_DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\\n' + message['content'] + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)

_MEMO_TEXT, _MEMO_SIZE = 1000, 4096

# What older turns may suffer, and a reply that shows it.
_PROBES = (
    ("older turns are rendered differently once messages follow", "four"),
    ("thinking in older turns is removed or rewritten", "<think>\nadd them\n</think>\n\nfour"),
    ("spaces around an assistant's text are trimmed", "  four \n"),
)


class ChatCodec:
    """Messages to ids by a tokenizer's chat template; implements `strop.core.engine.Codec`.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template (see `with_default_template`).
        generation_stop_ids: end-of-sequence ids of the model's generation config.
        user_stop: further stops; a string must be one token.
        history: for templates that are not append-only: `keep` appends all the same, `as_template` renders every turn
            anew, as a chat server does (each turn is then a row of its own).

    Attributes:
        stop_ids: ids that end a turn: generation config, the template's terminators, the tokenizer's eos, the user's.
        terminator: id that the template writes behind an assistant's text.
        keeps_prefix: whether the template was proven append-only on probe conversations, at construction.
        prefix_note: why not, or a remark; None when there is nothing to say.
        notes: how the template was adapted (missing roles).

    Raises:
        UsageError: no template, no control token behind an assistant's text, a stop that is not one token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        generation_stop_ids: Iterable[int] = (),
        user_stop: Iterable[str | int] = (),
        history: History = "as_template",
    ) -> None:
        self.tokenizer: Any = tokenizer  # its methods are untyped
        self.history: History = history
        self._template = Template(tokenizer)
        self._memo: dict[tuple[str, tuple[Message, ...]], Ints] = {}
        self.notes = tuple(self._template.notes)
        self._gap, ends = self._find_terminators()
        ids: list[int] = self.tokenizer.convert_tokens_to_ids(ends)
        self.terminator = ids[0]
        stops = {*generation_stop_ids, *ids, *(self._one_token(stop) for stop in user_stop)}
        if self.tokenizer.eos_token_id is not None:
            stops.add(self.tokenizer.eos_token_id)
        self.stop_ids: frozenset[int] = frozenset(stops)
        self.keeps_prefix: bool
        self.prefix_note: str | None
        self.keeps_prefix, self.prefix_note = self._prove(ends)

    @property
    def append_only(self) -> bool:
        """Whether a conversation is only appended to; if not, every turn is `fresh` and starts a new row."""
        return self.keeps_prefix or self.history == "keep"

    def opening(self, messages: Sequence[Message]) -> Ints:
        """Ids of a whole conversation up to and including the header of the agent's next turn; int32 [n]."""
        return self._once("opening", messages, lambda: self._template.ids(self._template.text(messages, True)))

    def fresh(self, messages: Sequence[Message]) -> Ints:
        """The whole conversation rendered anew, replies encoded again: the prompt of a turn that starts a new row.

        For `append_only == False` only. The reply of each turn is still trained as it was sampled.
        """
        return self.opening(messages)

    def extension(self, messages: Sequence[Message], last: Completion) -> Ints:
        """Ids to append after a completion: the rest of its turn, the new messages, the header of the next turn.

        Args:
            messages: what is new since the completion.
            last: the completion. If it stopped by a stop id, that id stands where the template's terminator would
                (also when it is another one, such as eos instead of end-of-turn), and only what the template writes
                behind the terminator follows. If it was cut, the terminator is appended, as context: nobody sampled it.

        Returns:
            int32 [n].
        """
        return self._once(last.stop, messages, lambda: self._extend(messages, last.stop == "stop"))

    def _extend(self, messages: Sequence[Message], stopped: bool) -> list[int]:
        after = self._after(messages, True)
        found = self._template.control.match(after, len(self._gap)) if after.startswith(self._gap) else None
        if found is None:
            roles = ", ".join(message.role for message in messages)
            raise UsageError(
                f"the chat template ends a reply with no control token when it is followed by {roles or 'no message'}. "
                "Let the environment answer with other roles, or give the tokenizer another chat template."
            )
        if stopped:
            return self._template.ids(after[found.start() :])[1:]
        return self._template.ids(after)

    def _once(self, what: str, messages: Sequence[Message], encode: Callable[[], list[int]]) -> Ints:
        """Encode short messages once: members of a group, and worlds with few answers, say the same again and again."""
        key = (what, tuple(messages))
        if sum(len(m.content) for m in messages) > _MEMO_TEXT or any(m.tool_calls for m in messages):
            return _ints(encode())
        if key not in self._memo:
            if len(self._memo) >= _MEMO_SIZE:
                self._memo.clear()
            self._memo[key] = _ints(encode())
            self._memo[key].flags.writeable = False  # shared by all who ask
        return self._memo[key]

    def reply(self, text: str) -> Ints:
        """Ids of an agent's turn written by a script: the text, special tokens in it as plain text, and the terminator.

        No part of the header or of what follows the terminator; int32 [n].
        """
        return _ints([*self._template.literal(text), self.terminator])

    def text(self, completion: Completion) -> str:
        """Text of a completion without the stop id that ended it; other special tokens are shown."""
        tokens = completion.tokens.tolist()
        if completion.stop == "stop" and tokens and tokens[-1] in self.stop_ids:
            tokens.pop()
        return self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _one_token(self, stop: str | int) -> int:
        if isinstance(stop, int):
            return stop
        ids: list[int] = self.tokenizer.encode(stop, add_special_tokens=False)
        if len(ids) != 1:
            raise UsageError(
                f"stop {stop!r} is {len(ids)} tokens of this tokenizer; a stop must be one token. Choose another "
                "string or cut the text in the environment."
            )
        return ids[0]

    def _after(self, messages: Sequence[Message], header: bool) -> str:
        """Marked text behind the reply of the fixed conversation, when `messages` follow it."""
        text = self._template.text((PROBE_USER, PROBE_REPLY, *messages), header)
        start = text.find(PROBE_REPLY.content)
        if start < 0:
            raise UsageError("the chat template does not write an assistant's text as it is. Choose another template.")
        return text[start + len(PROBE_REPLY.content) :]

    def _find_terminators(self) -> tuple[str, list[str]]:
        """Blanks before the terminator, and the terminators before a user, before a tool and (if any) of the last turn.

        Some templates end a turn with the header of the next role only, so that there are several.
        """
        after = self._after((PROBE_USER,), True)
        older = self._template.control.search(after)
        if older is None or after[: older.start()].strip():
            raise UsageError(
                "the chat template ends an assistant's text with no control token, so a model cannot learn where to "
                "stop. Use a template that writes an end marker (a special token) behind assistant messages."
            )
        others = (self._after((Message("tool", "observed"),), True), self._after((), False))
        found = (older, *(self._template.control.search(other) for other in others))
        return after[: older.start()], [end.group() for end in found if end is not None]

    def _prove(self, ends: Sequence[str]) -> tuple[bool, str | None]:
        """Whether a render of a longer conversation starts with prompt + reply + extension, turn after turn."""
        if len(ends) == 3 and ends[-1] != ends[0]:
            return False, f"an older turn ends with {ends[0]}, the last one with {ends[-1]}"
        same_ids = True
        for reason, words in _PROBES:
            for role in ("user", "tool"):
                reply, answer = Message("assistant", words), Message(role, "Good. And three and three?")
                talk = (Message("system", "Be brief."), PROBE_USER, reply, answer, reply, answer, reply, answer)
                for turn in (2, 4, 6):
                    before, following = talk[:turn], talk[turn + 1 : turn + 2]
                    prompt, rendered = self._template.text(before, True), self._template.text(talk[: turn + 2], True)
                    after = self._after(following, True)
                    if rendered != prompt + self._template.mark(reply)["content"] + after:
                        return False, reason
                    parts = (self._template.ids(prompt), self._template.literal(words), self._template.ids(after))
                    same_ids = same_ids and [i for part in parts for i in part] == self._template.ids(rendered)
        if same_ids:
            return True, None
        return True, "the tokenizer joins letters across the border of some replies: a re-render can differ in its ids"


def with_default_template(tokenizer: PreTrainedTokenizerBase) -> tuple[PreTrainedTokenizerBase, str | None]:
    r"""The tokenizer as it is, or a copy with a plain template, and what to say about it.

    The template writes `role:\ncontent<eos>\n` for each message. Where the tokenizer puts a BOS before plain text, the
    template opens with it. Raises `UsageError` if there is no eos token to end a turn with.
    """
    if tokenizer.chat_template:
        return tokenizer, None
    if tokenizer.eos_token is None:  # type: ignore[attr-defined]  # special tokens are dynamic attributes
        raise UsageError(
            "the tokenizer has neither a chat template nor an eos token, so nothing can end a turn. Set its eos_token "
            "or its chat_template and save it beside the model."
        )
    plain: Any = copy.deepcopy(tokenizer)
    opens = plain.bos_token_id is not None and plain.encode("a")[:1] == [plain.bos_token_id]
    plain.chat_template = ("{{ bos_token }}" if opens else "") + _DEFAULT_TEMPLATE
    return plain, (
        "the tokenizer has no chat template: messages are written as `role:` lines, each ended by the eos token. Role "
        "names are plain text there, so a message could imitate them (its end marker it cannot)"
    )


def _ints(ids: Sequence[int]) -> Ints:
    return np.asarray(ids, dtype=np.int32)
