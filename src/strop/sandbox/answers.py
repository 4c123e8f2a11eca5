"""What a program said, made into outcomes. Invariant: lines count in order and once, each for the call whose turn it is; the
first line that is not as the driver writes it, and all after it, are answers that were never given (`missing`)."""

import json
from typing import Any, cast

from strop.core.sandbox import Outcome
from strop.sandbox.plain import decode, describe

TEXT = 500
LINE = 200_000  # bytes


def read_outcomes(data: bytes, calls: int, why: str) -> tuple[Outcome, ...]:
    """Outcomes of one case.

    Args:
        data: what came out of the pipe for answers.
        calls: number of calls of the case.
        why: the text of an outcome that is missing.
    """
    found: list[Outcome] = []
    for line in data.split(b"\n", calls)[:calls]:
        outcome = _read(line)
        if outcome is None:
            break
        found.append(outcome)
    return (*found, *[Outcome("missing", None, why)] * (calls - len(found)))


def _read(line: bytes) -> Outcome | None:
    if len(line) > LINE:
        return None
    try:
        read: Any = json.loads(line)
        if not isinstance(read, list) or len(cast("list[Any]", read)) != 2:
            return None
        kind, text = cast("list[Any]", read)
        if not isinstance(kind, str) or not isinstance(text, str):
            return None
        if kind == "value":
            value = decode(text)
            return Outcome("value", value, describe(value))
    except (ValueError, RecursionError):
        return None
    if kind in ("raised", "not_plain", "missing"):
        return Outcome(kind, None, text[:TEXT])
    return None
