"""`strop play`: watch the agent play an episode, or play one yourself."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from strop.config.stored import find_run, stored_plan
from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Task
from strop.core.trajectory import Trajectory
from strop.core.world import World

if TYPE_CHECKING:
    from strop.loop.plan import Plan


def play(
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    task: Annotated[str | None, typer.Option("--task", help="Id of the task; drawn at random by default.")] = None,
    me: Annotated[bool, typer.Option("--me", help="You play; the agent watches.")] = False,
    greedy: Annotated[bool, typer.Option("--greedy", help="The agent takes its most probable tokens.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Names the episode's random stream.")] = 0,
) -> None:
    """Watch the agent play one episode, or play it yourself with --me."""
    path = find_run(run)
    from strop.watch.run_folder import RunFolder

    _, plan, world = stored_plan(RunFolder.open(path).run())
    chosen = pick(world, task, seed)
    if me:
        if greedy:
            raise UsageError("--greedy is about the agent; with --me it has no effect. Leave one out.")
        asyncio.run(_mine(world, chosen, seed))
        return
    trajectory = asyncio.run(_agents(plan, world, run, chosen, greedy, seed))
    for message in trajectory.messages:
        print(f"{message.role:>9}: {message.content}")
    _verdict(trajectory)


def pick(world: World, task: str | None, seed: int) -> Task:
    """The task of any split with this id, or an evaluation task by the seed."""
    tasks = world.split("eval")
    if task is None:
        return tasks[seed * 7919 % len(tasks)]
    for candidate in (candidate for split in world.tasks.values() for candidate in split):
        if candidate.id == task:
            return candidate
    raise UsageError(
        f"no task {task!r} in world {world.name}; there are {tasks[0].id} to {tasks[-1].id} ({len(tasks)} tasks)"
    )


async def _agents(plan: "Plan", world: World, run: str, task: Task, greedy: bool, seed: int) -> Trajectory:
    from strop.core.engine import Sampling
    from strop.loop.restore import restored
    from strop.rollout.group import play_group

    parts, name = restored(plan, world, find_run(run))
    print(f"{name}, task {task.id}")
    sampling = Sampling(plan.limits.turn_tokens, 0.0 if greedy else plan.temperature)
    group = await play_group(parts.table, task, 1, parts.examiner, sampling, "play", seed)
    return group.trajectories[0]


async def _mine(world: World, task: Task, seed: int) -> None:
    from strop.rollout.episode import judge

    env = world.env(task, seed)
    messages: list[Message] = []
    try:
        step = await env.start()
        while True:
            for message in step.messages:
                print(f"{message.role:>9}: {message.content}")
            messages.extend(step.messages)
            if step.done or step.truncated:
                break
            print("      you: ", end="", flush=True)
            answer = sys.stdin.readline()
            if not answer:
                print("\nno more input; the episode is left")
                return
            messages.append(Message("assistant", answer.rstrip("\n")))
            step = await env.step(messages[-1])
        played = person(task, messages, env.artefacts())
        _verdict(await judge(world, played))
    finally:
        await env.close()


def person(task: Task, messages: list[Message], artefacts: "dict[str, object] | object") -> Trajectory:
    """A person's episode as a trajectory without tokens, for the verifier."""
    import numpy as np

    from strop.core.trajectory import Completion, Turn

    nothing = np.zeros(0, dtype=np.int32)
    none = Completion(nothing, np.zeros(0, dtype=np.float32), nothing, "stop")
    turns = tuple(Turn(nothing, none, m) for m in messages if m.role == "assistant")
    return Trajectory(task, turns, nothing, "done", tuple(messages), dict(artefacts))  # type: ignore[call-overload]


def _verdict(trajectory: Trajectory) -> None:
    verdict = trajectory.verdict
    if verdict is None:
        print(f"the episode failed: {trajectory.error}")
    else:
        print(f"score {verdict.score}  ({verdict.reason or verdict.invalid or trajectory.end})")
