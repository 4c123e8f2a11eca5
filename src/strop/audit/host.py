"""Runs inside the sandbox: imports a user's verifier and answers requests about it, one JSON line each.

Standard library only. Invariant: what the verifier prints, reads or raises never reaches the channel of the answers, so that an
answer is always the verifier's own return value.
"""

import asyncio
import importlib
import inspect
import json
import math
import os
import sys
import traceback
from typing import Any


def channel() -> tuple[Any, Any]:
    """Requests and answers on descriptors of their own; standard input and output lead nowhere afterwards."""
    requests, answers = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return requests, answers


class Held:
    """The user's object: its tasks, and the function that judges."""

    def __init__(self, module: str, attribute: str) -> None:
        before = dict(os.environ)
        self.module = importlib.import_module(module)
        self.environment = {name: value for name, value in os.environ.items() if before.get(name) != value}
        found: Any = self.module
        for part in attribute.split("."):
            found = getattr(found, part)
        self.tasks: list[Any] = []
        self.verify: Any = None
        self.kind = "world"
        if is_world(found) or makes_world(found):
            return
        made: Any = found() if callable(found) and (inspect.isclass(found) or not takes_answer(found)) else found
        if is_world(made):
            return
        self.kind = "subject"
        self.owner = made if hasattr(made, "tasks") else self.module
        self.verify = made.verify if hasattr(made, "verify") else made
        tasks: Any = getattr(self.owner, "tasks", None) or beside(self.module)
        if not callable(self.verify) or tasks is None:
            raise TypeError(f"{module}:{attribute} needs `tasks` and `verify(task, answer)`")
        tasks = tasks() if callable(tasks) else tasks
        self.tasks = list(tasks.values() if isinstance(tasks, dict) else tasks)

    def describe(self) -> dict[str, Any]:
        """What the audit wants to know first."""
        owner = getattr(self, "owner", None)
        facts = {name: getattr(owner, name) for name in ("network", "writable", "environment") if hasattr(owner, name)}
        if self.environment:
            facts["environment"] = {**self.environment, **facts.get("environment", {})}
        try:
            source = inspect.getsource(self.module)
        except (OSError, TypeError):
            source = None
        name = getattr(self.verify, "__name__", "verify")
        threshold = getattr(owner, "threshold", None)
        head = {"kind": self.kind, "tasks": len(self.tasks), "facts": facts, "verifier": name}
        code: Any = getattr(inspect.unwrap(self.verify), "__code__", None)
        place = {"line": getattr(code, "co_firstlineno", 0), "owner": type(owner).__name__}
        return {**head, **place, "source": source, "threshold": threshold}

    def task(self, index: int) -> Any:
        """One task as a JSON value; a `Task` is its data with its id."""
        task = self.tasks[index]
        if not isinstance(task, dict) and hasattr(task, "id") and hasattr(task, "data"):
            return {"id": task.id, **task.data}
        return dict(task) if hasattr(task, "keys") else repr(task)

    def ask(self, index: int, answer: Any, changes: dict[str, Any] | None) -> dict[str, Any]:
        """The verdict of one answer."""
        task = self.tasks[index]
        if changes:
            task = {**self.task(index), **changes}
        try:
            given = self.verify(task, answer)
            if inspect.isawaitable(given):
                given = asyncio.run(_wait(given))
        except BaseException as problem:
            if isinstance(problem, KeyboardInterrupt):
                raise
            return {"score": None, "invalid": f"raised {type(problem).__name__}: {problem}"[:500]}
        return read(given)


def beside(module: Any) -> Any:
    """The tasks of a task folder: `tasks.jsonl` beside the module, one object a line; None where there is none."""
    path = os.path.join(os.path.dirname(module.__file__ or ""), "tasks.jsonl")
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file.read().split("\n") if line.strip()]


def is_world(found: Any) -> bool:
    """Whether an object is a World: it makes environments."""
    return not inspect.isclass(found) and all(hasattr(found, name) for name in ("tasks", "verify", "env"))


def makes_world(found: Any) -> bool:
    """Whether a function says that it returns a World."""
    try:
        told = inspect.signature(found).return_annotation if inspect.isfunction(found) else None
    except (TypeError, ValueError):
        return False
    return getattr(told, "__name__", told) == "World"


def takes_answer(found: Any) -> bool:
    """Whether a function has the two parameters task and answer."""
    try:
        return len(inspect.signature(found).parameters) >= 2
    except (TypeError, ValueError):
        return False


async def _wait(given: Any) -> Any:
    return await given


def read(given: Any) -> dict[str, Any]:
    """What a verifier returned, as a JSON value: a number, a truth value, or an object with `score` and `invalid`."""
    invalid: Any = getattr(given, "invalid", None)
    value: Any = getattr(given, "score", given)
    if invalid is not None or (value is None and hasattr(given, "score")):
        return {"score": None, "invalid": str(invalid or "the verifier gave no score")[:500]}
    try:
        number = float(value if value is not None else "none")
    except (TypeError, ValueError):
        return {"score": None, "invalid": f"raised: the verifier returned {type(given).__name__}, not a number"}
    if not math.isfinite(number):
        return {"score": None, "invalid": f"raised: the score is {number}, which is no number"}
    return {"score": number, "invalid": None}


def serve(module: str, attribute: str) -> None:
    """Answer requests until they end."""
    requests, answers = channel()
    held: Held | None = None
    wrong = ""
    try:
        held = Held(module, attribute)
    except BaseException as problem:
        trace = traceback.extract_tb(problem.__traceback__)[-1:]
        where = f" ({os.path.basename(trace[0].filename)}, line {trace[0].lineno})" if trace else ""
        wrong = f"{type(problem).__name__}: {problem}{where}"
    for line in requests:
        request = json.loads(line)
        if held is None:
            answer: dict[str, Any] = {"error": wrong}
        elif request["op"] == "describe":
            answer = held.describe()
        elif request["op"] == "task":
            answer = {"task": held.task(request["index"])}
        else:
            answer = held.ask(request["index"], request["answer"], request.get("changes"))
        answers.write(json.dumps(answer, default=repr) + "\n")
        answers.flush()


if __name__ == "__main__":
    sys.path[:0] = sys.argv[3:]
    serve(sys.argv[1], sys.argv[2])
