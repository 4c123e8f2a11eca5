"""The guessing game with a tag for each half of the numbers, and further tasks without any."""

from dataclasses import replace

from strop import World
from strop.envs.guess import guess


def tagged(numbers: int, attempts: int) -> World:
    """Tasks of `train` are `low` or `high`; those of `drill` have no tag."""
    made = guess(numbers, attempts)
    tasks = made.tasks["train"]
    train = [replace(task, tags=("low" if i < len(tasks) // 2 else "high",)) for i, task in enumerate(tasks)]
    drill = [replace(task, id=f"{task.id}-drill", tags=()) for task in tasks]
    return replace(made, tasks={**made.tasks, "train": train, "drill": drill})
