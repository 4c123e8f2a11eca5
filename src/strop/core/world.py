"""World: all that a user brings (tasks, environment, verifier) in one value. Invariant: a world holds no episode state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Env, Step, Task, Verifier

if TYPE_CHECKING:
    from strop.core.trajectory import Trajectory

Player = Callable[[Sequence[Message]], str]
"""A scripted player: reads the messages so far and returns the text of its next reply."""


@dataclass(frozen=True, slots=True)
class World:
    """Tasks by split, an environment for each, and the verifier that judges it.

    Args:
        name: short name for logs.
        tasks: tasks by split; `train` must exist, `eval` falls back to `train`.
        env: makes a fresh, single-use environment for (task, seed).
        verify: judges a finished trajectory; may be a coroutine function.
        demonstrate: makes a scripted player for (task, random stream), for warm starts.
        best_possible: the exact best success rate over the evaluation tasks, where it is known.
        pieces: strings that a model built from nothing should have as one token each.
        turns: replies that an episode may take; a run must allow as many, or its best possible success is another.
        closed: messages and useful replies are made of the pieces alone, so that such a model needs no other token.
        measures: named numbers of one trajectory as (sum, count), logged as sum over count.
        label: how good each turn of a trajectory was, from 0 to 1, to train a process reward model on; [turns].
        independent: a second judge of another make, asked on held-out and on a few training episodes. It only measures:
            what it says is never part of a reward.
        actions: names the action of a message of the agent, None for a message that is none; without it, the names of
            a message's tool calls are its actions.
        solution: words that give a task's solution away, as they are appended to the opening's last message: from the
            success given, or from the reference where none is; None if there is none. For teachers that may see it
            (self-distillation) and for hints; a student's prompt never has it unless a hint was asked for.
        difficulty: how hard a task is, in any unit, finite and higher for harder ones; curricula by difficulty need it.

    Example:
        `World("echo", {"train": [Task("a")]}, env=lambda task, seed: Echo(), verify=judge)`
    """

    name: str
    tasks: Mapping[str, Sequence[Task]]
    env: Callable[[Task, int], Env]
    verify: Verifier
    demonstrate: Callable[[Task, Random], Player] | None = None
    best_possible: float | None = None
    pieces: tuple[str, ...] = ()
    closed: bool = False
    turns: int | None = None
    measures: "Callable[[Task, Trajectory], Mapping[str, tuple[float, float]]] | None" = None
    label: "Callable[[Task, Trajectory], Sequence[float]] | None" = None
    independent: Verifier | None = None
    actions: Callable[[Message], str | None] | None = None
    solution: "Callable[[Task, Trajectory | None], str | None] | None" = None
    difficulty: Callable[[Task], float] | None = None

    def judged_on(self, split: str) -> "World":
        """The same world with another split as its evaluation tasks. Raises `UsageError` for an empty or unknown one."""
        return replace(self, tasks={**self.tasks, "eval": self.split(split)})

    def split(self, name: str) -> Sequence[Task]:
        """Tasks of one split; `eval` falls back to `train`. Raises `UsageError` for an empty or unknown split."""
        found = self.tasks.get(name) or (self.tasks.get("train") if name == "eval" else None)
        if not found:
            known = ", ".join(k for k, v in self.tasks.items() if v) or "none"
            raise UsageError(f"world {self.name} has no tasks in split {name!r}; splits with tasks: {known}")
        return found


HINTED = "hinted"
"""Tag of the tasks whose opening tells the solution, and name of their split."""


def is_hinted(task: Task) -> bool:
    """Whether the task's opening tells its solution."""
    return HINTED in task.tags


def told(messages: Sequence[Message], solution: str) -> tuple[Message, ...]:
    """Opening messages with a solution at the end of the last one."""
    *before, last = messages
    return (*before, replace(last, content=last.content + solution))


class Hinted(Env):
    """An environment whose opening also tells a solution; all else is the environment's own."""

    def __init__(self, env: Env, solution: str) -> None:
        self.env, self.solution = env, solution

    async def start(self) -> Step:
        """The opening with the solution at its end."""
        first = await self.env.start()
        return replace(first, messages=told(first.messages, self.solution))

    async def step(self, message: Message) -> Step:
        """The environment's answer."""
        return await self.env.step(message)

    def artefacts(self) -> Mapping[str, Any]:
        """What the environment leaves."""
        return self.env.artefacts()

    async def close(self) -> None:
        """Free what the environment holds."""
        await self.env.close()


def with_hinted(world: World) -> World:
    """The world with a split `hinted`: the tasks of `train`, each with its solution in the opening.

    A warm start on it teaches a model built from nothing what a solution in a prompt is good for; `demonstrate` is asked
    to play these tasks by their solution.
    """
    solution, env = world.solution, world.env
    if solution is None:
        raise UsageError(f"world {world.name} has no `solution`, so that nothing can be hinted")
    tell = solution
    tasks = tuple(
        Task(f"{task.id}-{HINTED}", task.data, (*task.tags, HINTED))
        for task in world.split("train")
        if tell(task, None) is not None
    )

    def opened(task: Task, seed: int) -> Env:
        made = env(task, seed)
        return Hinted(made, tell(task, None) or "") if is_hinted(task) else made

    return replace(world, tasks={**world.tasks, HINTED: tasks}, env=opened)
