"""Scripted players of repair: an imperfect one for warm starts, and one that copies lines for the drill.

A model built from nothing must first learn to copy: nearly all of an edit is copied from the statement or the file. The
favourite wrong fix is deliberate: were wrong fixes spread out, the right one would be the most likely and greedy play good
before any reinforcement.
"""

from collections.abc import Sequence
from random import Random

from strop.core.message import Message
from strop.core.task import Task
from strop.core.world import Player

TEMPTED = 0.8
"""How often a wrong fix is the favourite one."""
REVISED = 0.5
"""How often the player tries again after a failed test."""


def player(task: Task, stream: Random, skill: float, tempting: int = 0) -> Player:
    """A player that views, edits, tests, perhaps revises, and submits; an edit is right with probability `skill`.

    `tempting` says which wrong fix of the task's list is its favourite.
    """
    data = task.data

    def edit() -> str:
        if stream.random() < skill:
            return f"edit {data['line']} {data['fix']}"
        wrong = data["wrong"]
        return (
            f"edit {data['line']} {wrong[tempting % len(wrong)] if stream.random() < TEMPTED else stream.choice(wrong)}"
        )

    def reply(messages: Sequence[Message]) -> str:
        said = [m.content for m in messages if m.role == "assistant"]
        last = messages[-1].content
        if not said:
            return "view"
        if said[-1] == "view":
            return edit()
        if said[-1].startswith("edit"):
            return "test"
        if last != "pass" and len(said) <= 3 and stream.random() < REVISED:
            return edit()
        return "submit"

    return reply


def copier(task: Task) -> Player:
    """The player of the drill: it says what the message says, three times."""
    return lambda messages: str(task.data["reply"])
