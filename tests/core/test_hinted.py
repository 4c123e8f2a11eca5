"""Tasks whose opening tells the solution: what is told is enough to win by, and no other task tells it."""

import asyncio
from random import Random

import pytest

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Task
from strop.core.trajectory import Trajectory
from strop.core.world import World, told, with_hinted
from strop.envs.craft import craft
from strop.envs.guess import guess
from strop.envs.repair.world import repair

MADE = {"guess": guess, "craft": lambda: craft(tasks=40), "repair": lambda: repair(tasks=40)}


def opening(world: World, task: Task) -> tuple[Message, ...]:
    env = world.env(task, 0)
    first = asyncio.run(env.start())
    asyncio.run(env.close())
    return first.messages


@pytest.mark.parametrize("name", MADE)
def test_a_hinted_task_is_a_train_task_whose_opening_ends_with_its_solution(name: str) -> None:
    world = MADE[name]()
    pairs = list(zip(world.split("train"), world.split("hinted"), strict=True))
    assert world.solution is not None
    for plain, hinted in pairs[:8]:
        told_to = opening(world, hinted)
        solution = world.solution(plain, None)
        assert solution and told_to == told(opening(world, plain), solution)
        assert not opening(world, plain)[-1].content.endswith(solution)


async def played(world: World, task: Task) -> float | None:
    assert world.demonstrate is not None
    player, env = world.demonstrate(task, Random(0)), world.env(task, 0)
    step = await env.start()
    messages = list(step.messages)
    for _ in range(world.turns or 0):
        messages.append(Message("assistant", player(messages)))
        step = await env.step(messages[-1])
        messages += step.messages
        if step.done:
            break
    ended = Trajectory(task, (), None, "done", tuple(messages), env.artefacts())  # type: ignore[arg-type]
    verdict = world.verify(task, ended)
    return (verdict if not asyncio.iscoroutine(verdict) else await verdict).score  # type: ignore[union-attr]


@pytest.mark.parametrize("name", MADE)
def test_the_player_wins_every_hinted_task_and_not_every_plain_one(name: str) -> None:
    world = MADE[name]()
    assert all(asyncio.run(played(world, task)) == 1.0 for task in world.split("hinted")[:12])
    assert not all(asyncio.run(played(world, task)) == 1.0 for task in world.split("train")[:12])


def test_a_world_without_a_solution_can_hint_nothing() -> None:
    made = guess()
    bare = World("bare", made.tasks, made.env, made.verify)
    with pytest.raises(UsageError, match="no `solution`"):
        with_hinted(bare)
