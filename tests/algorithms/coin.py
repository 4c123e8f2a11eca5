"""The guessing game judged by a coin: a negative control for learning."""

from dataclasses import replace
from zlib import crc32

from strop import Task, Trajectory, Verdict, World
from strop.envs.guess import guess


def toss(task: Task, trajectory: Trajectory) -> Verdict:
    """1 for half of all episodes, by a checksum of the sampled log-probabilities: chance to the policy."""
    noise = b"".join(turn.completion.logprobs.tobytes() for turn in trajectory.turns)
    return Verdict(float(crc32(noise) & 1))


def coin(numbers: int, attempts: int) -> World:
    """The game with the coin for a verifier."""
    return replace(guess(numbers, attempts), verify=toss)
