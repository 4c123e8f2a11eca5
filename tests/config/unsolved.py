"""Worlds that have no reference solution: only those that were played, or none at all."""

from dataclasses import replace

from strop.core.world import World
from strop.envs.guess import guess


def unsolved() -> World:
    """Guess, with a solution of successes only."""
    return replace(guess(4, 2), solution=lambda task, won: None if won is None else str(task.data["secret"]))


def silent() -> World:
    """Guess, with no solution at all."""
    return replace(guess(4, 2), name="silent", solution=None)
