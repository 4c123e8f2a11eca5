"""Environments that do as a test says, and what counts them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from strop.codec.chat import ChatCodec
from strop.core.message import Message
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Trajectory
from strop.core.world import World
from strop.model.tiny import tiny

CODEC = ChatCodec(tiny((), 16, 1, 2)[1])
"""Each character is one token; a message of n characters is n + 2 ids, and the header of a reply is one."""

END = CODEC.terminator


def say(text: str, **more: Any) -> Step:
    return Step((Message("user", text),), **more)


Answer = Step | BaseException | Callable[[Message], Any] | None


class Scripted(Env):
    """Answers from a list, the last one for ever; an exception is raised, a function is called (and awaited)."""

    def __init__(self, start: Answer, *answers: Answer, close: Answer = None, artefacts: Any = None) -> None:
        self.opening, self.answers, self.closing, self.left = start, answers, close, artefacts
        self.heard: list[str] = []
        self.closed = 0

    async def start(self) -> Step:
        return await _give(self.opening, Message("user", ""))

    async def step(self, message: Message) -> Step:
        self.heard.append(message.content)
        return await _give(self.answers[min(len(self.heard), len(self.answers)) - 1], message)

    def artefacts(self) -> dict[str, Any]:
        if isinstance(self.left, BaseException):
            raise self.left
        return {"heard": list(self.heard)} if self.left is None else self.left

    async def close(self) -> None:
        self.closed += 1
        if self.closing is not None:
            await _give(self.closing, Message("user", ""))


async def _give(answer: Answer, message: Message) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    if callable(answer):
        answer = answer(message)
        if asyncio.iscoroutine(answer):
            answer = await answer
    return answer


async def hang(_: Any = None) -> Any:
    await asyncio.Event().wait()


def won(task: Task, trajectory: Trajectory) -> Verdict:
    return Verdict(1.0, reason="fine")


def world(env: Callable[[Task, int], Env], verify: Any = won, tasks: Sequence[Task] = (Task("a"),)) -> World:
    return World("test", {"train": list(tasks)}, env=env, verify=verify)
