"""The world of task folders. Invariant: what is judged is the workspace's declared files alone, in a fresh sandbox, with every
file that is not the agent's put back."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.sandbox import Bounds, Sandbox
from strop.core.task import Task, Verdict
from strop.core.trajectory import Trajectory
from strop.core.world import Player, World
from strop.envs.folder.bench import Bench, action_name
from strop.envs.folder.paths import FILES, clash, path_fault
from strop.envs.folder.script import judge_by_script, solve
from strop.envs.folder.tasks import LONGEST_FILE, editable, modules_of, read_splits
from strop.envs.repair.desk import LIMIT
from strop.sandbox.bubblewrap import shared
from strop.verify.program import check_cases, verdict_of

PIECE = LIMIT - 128
"""Characters of a file that one reply of the player writes, beside the name of the file."""


def folder(path: str, tools: str = "text") -> World:
    """The world of a user's own tasks, one folder each; see docs/tasks.md.

    Args:
        path: a task folder, or a folder of them.
        tools: `text` (plain actions for small models) or `json` (tool calls of chat models).

    Tasks whose judge is a script carry the tag `forgeable`.
    """
    if tools not in ("text", "json"):
        raise UsageError(f"tools is {tools!r}; it must be text or json")
    splits = read_splits(path)
    sandbox = shared()
    known: dict[str, Mapping[str, str]] = {}

    async def verify(task: Task, trajectory: Trajectory) -> Verdict:
        return await grade(sandbox, task, trajectory.artefacts["files"])

    def demonstrate(task: Task, _: Any) -> Player:
        if task.id not in known:
            known[task.id] = _reference_now(task)
        return player(task, known[task.id], tools == "json")

    solved = all(task.data["solve"] or task.data["reference"] for tasks in splits.values() for task in tasks)
    return World(
        "folder",
        splits,
        env=lambda task, _: Bench(task, sandbox, tools == "json"),
        verify=verify,
        demonstrate=demonstrate if solved else None,
        actions=action_name,
    )


async def reference_of(task: Task, sandbox: Sandbox | None = None) -> dict[str, str] | None:
    """The workspace of a task's solution, None where it has none.

    Args:
        task: a task of this world.
        sandbox: where solution/solve.sh runs, if that is the solution; the shared one by default.

    Raises:
        UsageError: solve.sh fails.
    """
    if task.data["solve"]:
        return await solve(sandbox or shared(), task)
    found = task.data["reference"]
    return None if found is None else dict(found)


def judged_files(task: Task, files: Mapping[str, Any]) -> dict[str, str]:
    """The workspace as it is judged: the agent's own files, and all others as they were.

    Raises:
        ValueError: these are no files of a workspace.
    """
    mine = {path: text for path, text in files.items() if editable(task, path)}
    for path, text in mine.items():
        fault = path_fault(path) or clash(path, {**task.data["files"], **mine})
        if fault or not isinstance(text, str) or len(text) > LONGEST_FILE:
            raise ValueError(f"{path[:60]!r}: {fault or f'it must be text of at most {LONGEST_FILE} characters'}")
        text.encode()
    if len(mine) > FILES:
        raise ValueError(f"{len(mine)} files are more than {FILES}")
    return {**{path: text for path, text in task.data["files"].items() if not editable(task, path)}, **mine}


async def grade(sandbox: Sandbox, task: Task, files: Mapping[str, Any]) -> Verdict:
    """The verdict on a workspace: of the hidden cases, compared outside of the sandbox, or of tests/test.sh."""
    try:
        judged = judged_files(task, files)
    except ValueError as problem:
        return Verdict(0.0, reason=f"it is no workspace: {problem}")
    if task.data["judge"] == "script":
        return await judge_by_script(sandbox, task, judged)
    seconds = float(task.data["seconds"])
    bounds = Bounds(cpu_seconds=seconds, wall_seconds=seconds, memory_mb=task.data["memory_mb"])
    name = f"{task.data['module']}.{task.data['function']}"
    return verdict_of(await check_cases(sandbox, modules_of(judged), name, task.data["cases"], bounds))


def player(task: Task, reference: Mapping[str, str], calls: bool = False) -> Player:
    """A player that writes what the solution changes, tests where it can, and submits."""
    changed = {path: text for path, text in reference.items() if task.data["files"].get(path) != text}
    steps = [step for path, text in changed.items() for step in _written(path, text)]
    steps += [("test", {})] if task.data["visible"] is not None else []
    steps.append(("submit", {}))
    said = [_as_call(name, values) if calls else " ".join([name, *map(str, values.values())]) for name, values in steps]

    def reply(messages: Sequence[Message]) -> str:
        return said[min(sum(m.role == "assistant" for m in messages), len(said) - 1)]

    return reply


def _written(path: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    """The actions that write a file: one, or for a long one its first lines and then, by edits of the last line, the others."""
    lines = text.split("\n")[:-1] or [""]
    steps: list[tuple[str, dict[str, Any]]] = []
    done = 0
    while done < len(lines):
        # An edit replaces the last line that is there, so that it says that line again.
        first = max(0, done - 1)
        end, room = done + 1, PIECE - len("\n".join(lines[first : done + 1]))
        while end < len(lines) and len(lines[end]) < room:
            room -= len(lines[end]) + 1
            end += 1
        while done + 1 < end < len(lines) and not lines[end - 1].strip():
            end -= 1  # a reply's end is no place for an empty line: it would be stripped
        part = "\n".join(lines[first:end])
        if done:
            steps.append(("edit", {"file": path, "first": done, "text": part}))
        else:
            steps.append(("write", {"file": path, "text": part + "\n"}))
        done = end
    return steps


def _as_call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def _reference_now(task: Task) -> Mapping[str, str]:
    """The reference where nobody can wait for it: in a thread with a loop of its own."""
    if not task.data["solve"]:
        return task.data["reference"]
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(asyncio.run, reference_of(task)).result()
    assert found is not None
    return found
