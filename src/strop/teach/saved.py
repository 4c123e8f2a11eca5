"""Saved episodes as demonstrations. Invariant: text becomes ids once, on the path on which a played conversation becomes ids
(the codec only appends); the ids of a reply that were saved are kept where they say the saved text.
"""

from collections import deque
from dataclasses import replace

import numpy as np

from strop.core.engine import Codec
from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.trajectory import Completion, Trajectory, Turn
from strop.rollout.episode import NOTHING, Conversation
from strop.teach.demonstrations import demonstrated_completion


def encoded(given: Trajectory, codec: Codec, append_only: bool) -> Trajectory:
    """A saved episode with the ids of this run's codec, as a demonstration.

    Args:
        given: its messages, and its turns in order; their messages stand among them. A turn without ids is text only.
        codec: of the run.
        append_only: as in a rollout; else each turn gets its history rebuilt and is a row of its own.

    Raises:
        UsageError: the chat template refuses the messages, or they lack a reply.
    """
    talk = Conversation(codec, [], [], [], NOTHING, append_only)
    heard: list[Message] = []  # since the last reply
    left = deque(given.turns)
    for message in given.messages:
        if left and message == left[0].message:
            turn = left.popleft()
            talk.observe(heard)
            heard = []
            talk.reply(_completion(turn, codec))
            talk.turns[-1] = replace(talk.turns[-1], rewards=turn.rewards)
        else:
            heard.append(message)
    if left:
        raise UsageError(
            "a reply of the episode does not stand among its messages, so that nobody can say what it answered"
        )
    return replace(given, turns=tuple(talk.turns), tail=NOTHING, messages=(*talk.messages, *heard))


def _completion(turn: Turn, codec: Codec) -> Completion:
    """The ids of a reply: the saved ones if they say its text to this codec, else those of the text."""
    saved, text = turn.completion, turn.message.content
    if len(saved.tokens) and saved.tokens.min() >= 0 and codec.text(saved) == text:
        return demonstrated_completion(np.array(saved.tokens, dtype=np.int32), saved.stop)
    tokens = codec.reply(text)
    if saved.stop == "stop":
        return demonstrated_completion(tokens, "stop")
    return demonstrated_completion(tokens[:-1], "length")  # it was cut there: nobody chose to end the turn
