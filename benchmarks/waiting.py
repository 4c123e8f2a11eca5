"""A world whose tools take real time: guess the number, with a wait before every answer."""

import asyncio
import itertools

import numpy as np

from strop.core.message import Message
from strop.core.task import Env, Step, Task
from strop.core.world import World
from strop.envs.guess import Guess, guess


class Waiting(Guess):
    """A game in which each answer takes its own time."""

    def __init__(self, task: Task, waits: np.ndarray) -> None:
        super().__init__(task.data["secret"], task.data["numbers"], len(waits))
        self.waits = waits

    async def step(self, message: Message) -> Step:
        """The answer, after a while."""
        await asyncio.sleep(float(self.waits[len(self.guesses)]))
        return await super().step(message)


def waiting(median: float = 0.1, sigma: float = 1.0, straggler: int = 0) -> World:
    """Guess with 16 numbers and 4 attempts.

    Args:
        median: of the time that a tool takes, in seconds.
        sigma: of its logarithm; 0 for equal times.
        straggler: every so many episodes one takes four times as long; 0 for none.
    """
    made, played = guess(16, 4), itertools.count(1)

    def env(task: Task, seed: int) -> Env:
        waits = median * np.random.default_rng(seed).lognormal(0, sigma, 4) if sigma else np.full(4, median)
        slow = straggler and next(played) % straggler == 0
        return Waiting(task, waits * 4 if slow else waits)

    return World(
        "waiting",
        made.tasks,
        env=env,
        verify=made.verify,
        demonstrate=made.demonstrate,
        best_possible=made.best_possible,
        pieces=made.pieces,
        closed=True,
        turns=4,
    )
