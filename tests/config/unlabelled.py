"""The guessing game without a judge of single turns."""

from dataclasses import replace

from strop import World
from strop.envs.guess import guess


def unlabelled() -> World:
    """The game, whose turns nobody labels."""
    return replace(guess(4, 2), name="unlabelled", label=None)
