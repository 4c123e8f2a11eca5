"""Worlds as subjects: an answer is a script of replies that is played in the world itself. Invariant: the world's own verifier
judges what its own environment left; no token and no model is involved."""

import asyncio
import contextlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from strop.audit.subject import Answer, Item, Place, Subject, guess_sort, prompt_text, verdict_of
from strop.core.message import Message
from strop.core.seeds import python_random
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Trajectory, Turn
from strop.core.world import World

TURNS = 16
"""Turns of an episode where the world does not say."""
TRIES = 64
"""Demonstrations that are played to find one that succeeds: scripted players are meant to be imperfect."""
SEED = 0
NOTHING = np.zeros(0, dtype=np.int32)
NO_TOKENS = Completion(NOTHING, np.zeros(0, dtype=np.float32), NOTHING, "stop")

Reply = Callable[[Sequence[Message]], str]


async def play_text(world: World, task: Task, reply: Reply, seconds: float, most: int | None = None) -> Trajectory:
    """Play one episode with a function from messages to a reply. What goes wrong stands in the trajectory's `error`.

    Args:
        world, task: what is played.
        reply: the player.
        seconds: time by the clock.
        most: turns; None: those of the world.
    """
    limit = (world.turns or TURNS) if most is None else most
    try:
        env = world.env(task, SEED)
    except Exception as problem:
        failed = f"making the environment raised {type(problem).__name__}: {problem}"
        return Trajectory(task, (), NOTHING, "error", (), error=failed)
    messages: list[Message] = []
    turns: list[Turn] = []
    error: str | None = None
    artefacts: Mapping[str, Any] = {}
    try:
        async with asyncio.timeout(seconds):
            step = await env.start()
            messages.extend(step.messages)
            while not (step.done or step.truncated) and len(turns) < limit:
                message = Message("assistant", reply(messages))
                messages.append(message)
                step = await env.step(message)
                turns.append(Turn(NOTHING, NO_TOKENS, message, dict(step.rewards)))
                messages.extend(step.messages)
        artefacts = dict(env.artefacts())
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    finally:
        with contextlib.suppress(Exception):
            await env.close()
    return Trajectory(
        task, tuple(turns), NOTHING, "error" if error else "done", tuple(messages), artefacts, error=error
    )


def follow(script: Sequence[str]) -> Reply:
    """A player that gives the replies of a script in order, and the last one for ever."""

    def reply(messages: Sequence[Message]) -> str:
        said = sum(message.role == "assistant" for message in messages)
        return script[min(said, len(script) - 1)] if script else ""

    return reply


class Played(Subject):
    """A world: answers are scripts, or texts where an episode is one turn, or programs where it leaves one."""

    def __init__(self, world: World, items: Sequence[Item], tasks: Mapping[str, Task], name: str = "") -> None:
        self.world, self.items, self.tasks = world, tuple(items), tasks
        self.name = name or world.name
        self.left: dict[str, Mapping[str, Any]] = {}
        self.source, self.verifier = source_of(world.verify)

    async def verify(self, item: Item, answer: Answer, changes: Mapping[str, Any] | None = None) -> Verdict:
        """Play the script and judge it; a program is put where the world leaves its own."""
        task = self.tasks[item.id]
        task = Task(task.id, {**task.data, **changes}, task.tags) if changes else task
        if item.sort == "program":
            return await self.judge(task, await self._with_program(item, task, answer))
        script = [answer] if isinstance(answer, str) else [str(part) for part in cast(Sequence[Any], answer)]
        return await self.judge(task, await play_text(self.world, task, follow(script), self.seconds))

    async def _with_program(self, item: Item, task: Task, answer: Answer) -> Trajectory:
        if item.id not in self.left:
            played = await play_text(self.world, self.tasks[item.id], follow(["submit"]), self.seconds)
            self.left[item.id] = played.artefacts
        whole = isinstance(answer, Mapping)
        files = dict(cast(Mapping[str, Any], answer)) if whole else {**self.left[item.id]["files"], item.file: answer}
        turn = Turn(NOTHING, NO_TOKENS, Message("assistant", "submit"))
        return Trajectory(task, (turn,), NOTHING, "done", (turn.message,), {**self.left[item.id], "files": files})

    async def judge(self, task: Task, played: Trajectory) -> Verdict:
        """The world's verdict on what was played; see `Subject.verify` for what goes wrong."""
        if played.error is not None or not played.turns:
            return Verdict(None, invalid=f"raised in the environment: {played.error or 'no turn was played'}")
        try:
            async with asyncio.timeout(self.seconds):
                given: Any = self.world.verify(task, played)
                return verdict_of(await given if inspect.isawaitable(given) else given)
        except TimeoutError:
            return Verdict(None, invalid=f"slow: no verdict within {self.seconds:g} s")
        except Exception as problem:
            return Verdict(None, invalid=f"raised {type(problem).__name__}: {problem}")

    async def demonstrations(self, item: Item, kind: str, count: int) -> Sequence[Answer]:
        """Scripts of the world's player, or of random actions: the world's pieces, or replies of demonstrations."""
        if kind == "random":
            stream = python_random((SEED, 1, *item.id.encode()))
            known = [r for other in self.items if isinstance(other.reference, list) for r in other.reference]
            words = sorted(set(known)) or [w for w in self.world.pieces if w.strip()]
            turns = self.world.turns or TURNS
            return [stream.choices(words, k=turns) for _ in range(count)] if words else ()
        return [script for script, _ in [await self.demonstrate(item.id, n) for n in range(count)] if script]

    async def demonstrate(self, task_id: str, number: int) -> tuple[list[str], Verdict]:
        """One demonstration as a script, with its verdict; nothing where the world has no player."""
        if self.world.demonstrate is None:
            return [], Verdict(None, invalid="no player")
        task = self.tasks[task_id]
        try:
            player = self.world.demonstrate(task, python_random((SEED, 2, number)))
        except Exception as problem:
            return [], Verdict(None, invalid=f"raised in the player: {problem}")
        played = await play_text(self.world, task, player, self.seconds)
        return [turn.message.content for turn in played.turns], await self.judge(task, played)


def source_of(verify: Any) -> tuple[str | None, Place]:
    """Text of the module of a verifier, and where it stands in it."""
    try:
        module = inspect.getmodule(verify)
        line = getattr(getattr(verify, "__code__", None), "co_firstlineno", 0)
        return (inspect.getsource(module) if module else None), Place(getattr(verify, "__name__", "verify"), line)
    except (OSError, TypeError):
        return None, Place()


async def subject_of(world: World, most: int, seconds: float = math.inf, name: str = "") -> Played:
    """The subject of a world: up to `most` tasks of its train split, evenly taken, with what is known to succeed.

    Args:
        world: the world.
        most: tasks to look at.
        seconds: time for finding demonstrations that succeed; afterwards tasks go without.
        name: name for the report.
    """
    tasks = list(world.split("train"))
    picked = tasks if len(tasks) <= most else [tasks[k * len(tasks) // most] for k in range(most)]
    until = asyncio.get_running_loop().time() + seconds
    subject = Played(world, (), {task.id: task for task in picked}, name)
    items: list[Item] = []
    for task in picked:
        opening = await prompt_of(world, task, subject.seconds)
        item = await _item(subject, task, opening)
        if item.sort == "turns" and world.demonstrate is not None:
            number = 0
            while number < TRIES and asyncio.get_running_loop().time() < until:
                script, verdict = await subject.demonstrate(task.id, number)
                if verdict.score is not None and verdict.score >= 1 and verdict.invalid is None:
                    item = Item(item.id, item.prompt, "turns", script, data=item.data)
                    break
                number += 1
        items.append(item)
    subject.items = tuple(items)
    return subject


async def prompt_of(world: World, task: Task, seconds: float) -> str:
    """The opening messages of a task as text."""
    played = await play_text(world, task, lambda _: "", seconds, 0)
    return prompt_text([message.as_dict() for message in played.messages])


async def _item(subject: Played, task: Task, opening: str) -> Item:
    """A task as an item: a program where the episode leaves its start as a file, a text where one reply ends it."""
    data: dict[str, Any] = {str(key): value for key, value in task.data.items()}
    played = await play_text(subject.world, task, follow(["submit"]), subject.seconds)
    files: Any = played.artefacts.get("files")
    start, reference = data.get("start"), data.get("reference")
    if isinstance(files, Mapping) and isinstance(start, str) and isinstance(reference, str):
        path = next((p for p, text in cast(Mapping[str, Any], files).items() if text == start), None)
        if path is not None:
            data = {"answer_file": path, **data}
            equivalents = tuple(data.get("equivalents", ()))
            return Item(task.id, opening, "program", reference, (), equivalents, start, data, behaviour=True)
    workspace: Any = data.get("files")
    if isinstance(files, Mapping) and isinstance(workspace, Mapping) and dict(files) == dict(workspace):
        found = reference if isinstance(reference, Mapping) else await _left_by_player(subject, task)
        return Item(task.id, opening, "program", found, (), (), dict(workspace), data, behaviour=True)
    declared = reference is not None
    known = reference if declared else data.get("answer")
    if len(played.turns) == 1 and subject.world.turns in (None, 1) and played.error is None:
        answer = known if isinstance(known, str | None) else str(known)
        sort = guess_sort(answer) if declared else "text"
        negatives, equivalents = tuple(data.get("negatives", ())), tuple(data.get("equivalents", ()))
        return Item(task.id, opening, sort, answer, negatives, equivalents, None, data, declared)
    return Item(task.id, opening, "turns", None, data=data)


async def _left_by_player(subject: Played, task: Task) -> Mapping[str, Any] | None:
    """The files that a demonstration leaves, if it succeeds."""
    if subject.world.demonstrate is None:
        return None
    try:
        player = subject.world.demonstrate(task, python_random((SEED, 2, 0)))
    except Exception:  # the solution of a user's task may fail; then there is no reference
        return None
    played = await play_text(subject.world, task, player, subject.seconds)
    verdict = await subject.judge(task, played)
    return played.artefacts.get("files") if verdict.score is not None and verdict.score >= 1 else None
