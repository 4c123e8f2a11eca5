"""Episodes made by hand for tests of the watch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Group, Trajectory, Turn

NONE = np.zeros(0, np.int32)
HONEYPOT = Task("trap", tags=("honeypot",))


def turn(said: str, calls: Sequence[str] = (), rewards: Mapping[str, float] | None = None) -> Turn:
    """A turn in which the agent says a text and calls tools."""
    completion = Completion(NONE, np.zeros(0, np.float32), NONE, "stop")
    message = Message("assistant", said, tuple({"name": name, "arguments": {}} for name in calls))
    return Turn(NONE, completion, message, rewards or {})


def episode(
    verdict: Verdict | None, said: Sequence[str | Turn] = ("a",), task: Task | None = None, **artefacts: Any
) -> Trajectory:
    """An episode in which the agent says some texts and is judged so."""
    turns = tuple(text if isinstance(text, Turn) else turn(text) for text in said)
    return Trajectory(task or Task("t"), turns, NONE, "done", (), artefacts, verdict)


def group(name: str, *members: Trajectory) -> Group:
    """A group of the first member's task."""
    return Group(name, members[0].task, members)
