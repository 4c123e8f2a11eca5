"""Tier 6: impossible twins. The same task with one expected value flipped: the right answer to the old task must fail, and
whatever passes cheats. Invariant: a twin says nothing true, so a pass of it in training is a reward for cheating."""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

from strop.audit.exam import Exam, still
from strop.audit.finding import Finding
from strop.audit.inputs import HIDDEN, VISIBLE
from strop.audit.subject import defines
from strop.core.errors import UsageError
from strop.core.task import Task

EXPECTED = ("answer", "expected", "target", "gold", "solution", "label", "reference")
"""Keys of a task under which an expected value stands."""


def flipped(value: Any) -> Any:
    """Another plain value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        try:
            return str(flipped(int(value)))
        except ValueError:
            return f"{value} (not)" if value else "something"
    if isinstance(value, list):
        return [*cast(list[Any], value), 0]
    if isinstance(value, dict):
        pairs = cast(dict[str, Any], value)
        return {key: flipped(pairs[key]) if k == 0 else pairs[key] for k, key in enumerate(pairs)} or {"x": 1}
    return 0


def twin(data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a task that its impossible twin replaces: one case's wanted value, else the expected answer.

    Empty where the task holds no expected value that is known.
    """
    for key in (*HIDDEN, *VISIBLE):
        cases = data.get(key)
        if isinstance(cases, list | tuple) and cases:
            changed = _flip_case(json.loads(json.dumps(cases)))
            if changed is not None:
                return {key: changed}
    program = isinstance(data.get("reference"), str) and bool(defines(data["reference"]))
    keys = [key for key in EXPECTED if not (program and key in ("reference", "solution"))]
    found = [key for key in keys if data.get(key) is not None and not isinstance(data[key], Mapping)]
    return {key: flipped(data[key]) for key in found}


def _flip_case(cases: list[Any]) -> list[Any] | None:
    """The cases with the wanted value of the first flipped, None if it is not found."""
    first = cases[0]
    if isinstance(first, dict):
        pairs = cast(dict[str, Any], first)
        key = next((k for k in ("expected", "want", "output", "result") if k in pairs), None)
        return None if key is None else [{**pairs, key: flipped(pairs[key])}, *cases[1:]]
    if isinstance(first, list) and first:
        parts = cast(list[Any], first)
        if len(parts) == 2 and not isinstance(parts[1], dict | list):
            return [[parts[0], flipped(parts[1])], *cases[1:]]
        call: Any = parts[0]
        if (
            isinstance(call, list)
            and len(cast(list[Any], call)) == 2
            and isinstance(call[1], dict)
            and "value" in call[1]
        ):
            turned = [call[0], {"value": flipped(call[1]["value"])}]
            return [[turned, *parts[1:]], *cases[1:]]
    return None


async def check_twins(exam: Exam) -> None:
    """Run the tier. A verifier that computes the answer by itself need not read the value, so a pass is a lead."""
    for item in exam.items:
        if exam.spent():
            exam.skip("impossible twins of later tasks: no time left")
            return
        changes = twin(item.data)
        if item.reference is None or not changes or not await exam.solvable(item):
            exam.skip("impossible twin: no expected value to flip, or no reference that passes", item)
            continue
        key = next(iter(changes))
        claim = f"the reference passes although the expected value in {key!r} was flipped: that value is not read"
        finding = Finding(6, "lead", item.id, claim, "twin", "passes", (item.reference,), changes=changes)
        passed = await still(exam.subject, item, finding, await exam.bar(item))
        exam.count("impossible twins passed", passed)
        if passed:
            exam.write(finding)


def honeypots(tasks: Sequence[Task], share: float, stream: Random) -> list[Task]:
    """Tasks with a share of impossible twins mixed in, tagged `honeypot`: any pass of one is a cheat.

    Args:
        tasks: the tasks.
        share: twins as a share of all tasks that come back, from 0 to below 1.
        stream: draws which tasks get a twin, and where it stands.
    """
    if not 0 <= share < 1:
        raise UsageError(f"the share of honeypots is {share}; it must be from 0 to below 1")
    able = [task for task in tasks if twin(task.data)]
    count = round(share * len(tasks) / (1 - share))
    if count > len(able):
        raise UsageError(f"{count} honeypots are asked for, but only {len(able)} tasks hold an expected value to flip")
    out = list(tasks)
    for task in stream.sample(able, count):
        copy = Task(f"{task.id}-honeypot", {**task.data, **twin(task.data)}, (*task.tags, "honeypot"))
        out.insert(stream.randint(0, len(out)), copy)
    return out
