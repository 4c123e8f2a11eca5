"""Demonstrations of a scripted player, played in the world itself. Invariant: they go through the same rollout and rows."""

import asyncio

from strop.core.errors import UsageError
from strop.core.seeds import draw_order, python_random, stream_key
from strop.core.task import Task
from strop.core.trajectory import Group
from strop.rollout.episode import Agent, player_agent
from strop.rollout.group import Table, play_scripted


async def demonstrations(table: Table, count: int, first_draw: int, split: str = "train") -> list[Group]:
    """Play `count` demonstrations, each a group of one; draws are numbered from `first_draw`, tasks are those of `split`.

    Raises:
        UsageError: the world has no scripted player.
    """
    demonstrate = table.world.demonstrate
    if demonstrate is None:
        raise UsageError(
            f"world {table.world.name!r} has no scripted player, so it cannot give demonstrations. Remove the warm_start "
            "stage, or give the World a `demonstrate`."
        )
    tasks = table.world.split(split)

    def agent(draw: int) -> "tuple[Task, Agent]":
        key = stream_key(table.seed, "demonstrate", draw)
        task = tasks[draw_order(table.seed, draw, len(tasks))]
        return task, player_agent(demonstrate(task, python_random(key)), table.codec)

    plays = []
    for draw in range(first_draw, first_draw + count):
        task, player = agent(draw)
        plays.append(play_scripted(table, task, lambda _, p=player: p, "demonstrate", draw))
    return list(await asyncio.gather(*plays))
