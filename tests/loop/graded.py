"""The guessing game with graded tasks, two of them for evaluation only, and a count of who was played."""

from collections import Counter
from dataclasses import replace

from strop import World
from strop.core.task import Env, Task
from strop.envs.guess import guess

PLAYED: Counter[str] = Counter()
"""Episodes by task, of all worlds of this process."""


def graded(numbers: int, attempts: int) -> World:
    """The game; the difficulty of a secret is the secret, and every third is for evaluation only."""
    made = guess(numbers, attempts)
    tasks = made.split("train")
    held = [task for task in tasks if task.data["secret"] % 3 == 0]

    def env(task: Task, seed: int) -> Env:
        PLAYED[task.id] += 1
        return made.env(task, seed)

    return replace(
        made,
        tasks={"train": [task for task in tasks if task not in held], "eval": held},
        env=env,
        difficulty=lambda task: float(task.data["secret"]),
    )
