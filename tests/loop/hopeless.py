"""The guessing game that nobody wins: every group has equal rewards."""

from dataclasses import replace

from strop import Verdict, World
from strop.envs.guess import guess


def hopeless(numbers: int, attempts: int) -> World:
    """The game with a verifier that always says 0."""
    return replace(guess(numbers, attempts), verify=lambda task, trajectory: Verdict(0.0))
