"""Prompts and answers from a JSON-lines file: one turn, judged by a reward function.

Each line is an object with `prompt` (text, or a list of messages) and whatever the reward function reads, usually
`answer`; `id` and `split` are optional. Invariant: a line that does not fit is named before anything is trained.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Trajectory
from strop.core.world import World

Reward = Callable[[str, Mapping[str, Any]], "float | Verdict | Awaitable[float | Verdict]"]
"""(reply text, fields of the line) -> score or verdict."""


def exact(reply: str, line: Mapping[str, Any]) -> float:
    """1 if the reply is the answer, white space at the ends aside."""
    return float(reply.strip() == str(line["answer"]).strip())


def contains(reply: str, line: Mapping[str, Any]) -> float:
    """1 if the answer stands somewhere in the reply. Easy to cheat: many answers at once pass."""
    return float(str(line["answer"]).strip() in reply)


REWARDS: dict[str, Reward] = {"exact": exact, "contains": contains}


class Prompt(Env):
    """One question, one reply."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)

    async def start(self) -> Step:
        """The prompt."""
        return Step(self.messages)

    async def step(self, message: Message) -> Step:
        """The reply ends the episode."""
        return Step(done=True)


def prompts(file: str, reward: Reward) -> World:
    """The world of a file of prompts.

    Args:
        file: path of the JSON-lines file.
        reward: the reward function.
    """
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"the prompts file {file} does not exist; give world.file the path of a JSON-lines file")
    tasks: dict[str, list[Task]] = {}
    seen: set[str] = set()
    for number, text in enumerate(_text(path).split("\n"), 1):  # JSON allows other line separators inside text
        if text.strip():
            task, split = _read(file, number, text)
            if task.id in seen:
                raise UsageError(f"{file}, line {number}: the id {task.id!r} stands twice; ids must be distinct")
            seen.add(task.id)
            tasks.setdefault(split, []).append(task)

    async def verify(task: Task, trajectory: Trajectory) -> Verdict:
        found = reward(trajectory.turns[-1].message.content, task.data)
        if inspect.isawaitable(found):
            found = await found
        return found if isinstance(found, Verdict) else Verdict(float(found))

    return World(path.stem, tasks, env=lambda task, seed: Prompt(_messages(task.data["prompt"])), verify=verify)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        raise UsageError(f"{path} is not UTF-8 (byte {problem.start}); convert it") from None


def _read(file: str, number: int, text: str) -> tuple[Task, str]:
    try:
        line = json.loads(text)
    except json.JSONDecodeError as problem:
        raise UsageError(f"{file}, line {number}: not JSON ({problem.msg}); each line is one object") from None
    if not isinstance(line, dict) or "prompt" not in line:
        raise UsageError(f"{file}, line {number}: must be an object with the key 'prompt'")
    data: dict[str, Any] = {str(key): value for key, value in line.items()}  # type: ignore[reportUnknownVariableType]
    try:
        empty = not _messages(data["prompt"])
    except (TypeError, KeyError):
        empty = True
    if empty:
        raise UsageError(f"{file}, line {number}: 'prompt' must be text or a list of {{role, content}}")
    return Task(str(data.get("id", f"line-{number}")), data), str(data.get("split", "train"))


def _messages(prompt: Any) -> list[Message]:
    if isinstance(prompt, str):
        return [Message("user", prompt)]
    return [Message(str(message["role"]), str(message["content"])) for message in prompt]
