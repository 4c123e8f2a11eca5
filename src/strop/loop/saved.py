"""Reading episodes that somebody saved: a run folder, a file of its episodes, or conversations as JSON lines.

Invariant: a line that cannot be read is an error with its number and what is allowed, never skipped; and no model or
tokenizer is needed to say so. Imports no torch.
"""

import gzip
import hashlib
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Trajectory, Turn
from strop.loop.plan import Plan
from strop.watch.records import trajectory_from_record
from strop.watch.run_folder import RunFolder

Place = tuple[str, Trajectory]
"""Where an episode stands, for messages, and the episode: its turns have ids only where the file has them."""

ROLES = ("system", "user", "assistant", "tool")
ALLOWED = (
    'a line is an episode as a run folder has it, or {"messages": [{"role": "user", "content": "..."}, ...]} with at least one '
    "assistant message behind another one, and optional task (text) and score (a number)"
)
NOTHING = np.zeros(0, dtype=np.int32)


def read_saved(path: str | Path) -> list[Place]:
    """The episodes of a run folder or a file, in order.

    Raises:
        UsageError: there is no such place, or a line cannot be read.
    """
    place = Path(path).expanduser()
    if place.is_dir() and str(path).strip():
        records = RunFolder.open(place).episodes()
        return [(f"{path}: episode {record['id']}", _read(f"{path}", record)) for record in records]
    if not place.is_file():
        raise UsageError(
            f"demonstrations {path} do not exist; give player, teacher, a run folder, or a file of JSON lines: {ALLOWED}"
        )
    found: list[tuple[int, Place]] = []
    for number, record in _lines(place):
        if "resumed" in record:  # what a run wrote of later steps before it was taken up again never happened
            found = [one for one in found if one[0] <= record["resumed"]]
        else:
            step = record.get("step", -1)
            where = f"{path} line {number}"
            found.append((step if isinstance(step, int) else -1, (where, _read(where, record))))
    return [one for _, one in found]


def check_sources(plan: Plan) -> None:
    """Read all files that the stages of a new run learn from, so that a fault is told before a model loads."""
    for stage in plan.stages:
        if stage.demonstrating.path is not None:
            read_saved(stage.demonstrating.path)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(_whole(path, file), 1):
            if not line.strip():
                continue
            try:
                record = orjson.loads(line)
            except ValueError as problem:
                raise UsageError(f"{path} line {number} is no JSON ({problem}); {ALLOWED}") from None
            if not isinstance(record, dict):
                raise UsageError(f"{path} line {number} is no object; {ALLOWED}")
            yield number, cast("dict[str, Any]", record)


def _whole(path: Path, file: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise UsageError(f"{path} is no whole gzip file ({problem}); give it again, or without .gz") from None


def _read(where: str, record: Mapping[str, Any]) -> Trajectory:
    try:
        if "turns" in record:
            return trajectory_from_record(record)[2]
        return _conversation(record)
    except _LineError as problem:
        raise UsageError(f"{where}: {problem}; {ALLOWED}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        raise UsageError(f"{where} is no episode ({type(problem).__name__}: {problem}); {ALLOWED}") from None


class _LineError(Exception):
    """What is wrong with a line, in words."""


def _conversation(record: Mapping[str, Any]) -> Trajectory:
    """An episode of which there is text only."""
    given = record.get("messages")
    if not isinstance(given, list) or not given:
        raise _LineError("it has no list of messages")
    messages = [_message(item) for item in cast("list[Any]", given)]
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        raise _LineError("no message is the assistant's, so that there is nothing to learn")
    if roles[0] == "assistant":
        raise _LineError("the assistant's message stands first, where nothing was asked yet")
    if any(one == two == "assistant" for one, two in pairwise(roles)):
        raise _LineError("two assistant messages stand in a row; join them to one")
    task, score = record.get("task"), record.get("score")
    if not (task is None or isinstance(task, str)):
        raise _LineError(f"task is {task!r}, and not a text")
    if score is not None and (
        isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score)
    ):
        raise _LineError(f"score is {score!r}, and not a number")
    silent = Completion(NOTHING, np.zeros(0, np.float32), NOTHING, "stop")
    return Trajectory(
        task=Task(_same_question(messages) if task is None else task),
        turns=tuple(Turn(NOTHING, silent, message) for message in messages if message.role == "assistant"),
        tail=NOTHING,
        end="done",
        messages=tuple(messages),
        verdict=None if score is None else Verdict(float(score)),
    )


def _message(item: Any) -> Message:
    if not isinstance(item, dict):
        raise _LineError("a message is no object")
    said = cast("dict[str, Any]", item)
    role, content = said.get("role"), said.get("content")
    if role not in ROLES:
        raise _LineError(f"the role {role!r} is none of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise _LineError(f"the content of a message of {role} is no text")
    if said.get("tool_calls"):
        raise _LineError(
            "tool_calls of a message are not read; write a call into its content, as the model has to write it"
        )
    return Message(role, content, tool_call_id=said.get("tool_call_id"))


def _same_question(messages: Sequence[Message]) -> str:
    """A name for the task of a line that names none: lines that ask the same have one."""
    first = next(index for index, message in enumerate(messages) if message.role == "assistant")
    asked = repr([(message.role, message.content) for message in messages[:first]])
    return f"asked-{hashlib.sha256(asked.encode('utf-8', 'replace')).hexdigest()[:16]}"
