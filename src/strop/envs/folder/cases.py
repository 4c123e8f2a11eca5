"""cases.json and visible.json: calls and what they must give. Invariant: a case that could not be run or compared is refused
when the file is read, with its number."""

import json
import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from strop.core.errors import UsageError
from strop.sandbox.plain import NotPlainError, encode
from strop.verify.program import Cases

FORM = (
    'it must be {"module": "main", "function": "f", "cases": [...]}, each case a call [[arguments], {"value": ...}] or '
    '[[arguments], {"raises": "KeyError"}], or a list of calls on one freshly executed module; "visible": true beside value '
    "shows it to the agent"
)
MOST = 500
"""Cases of a file."""


@dataclass(frozen=True, slots=True)
class CaseFile:
    """Cases for one function.

    Args:
        module, function: what is called, `MODULE.FUNCTION`.
        cases: all of them, in the notation of `verify/program.py`.
        visible: those that the agent may run.
    """

    module: str
    function: str
    cases: Cases
    visible: Cases


def read_cases(file: Path) -> CaseFile:
    """Read a file of cases. Raises `UsageError` for one that does not have the form."""
    try:
        read: Any = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{file}: not JSON ({problem})") from None
    if not isinstance(read, dict) or set(cast("dict[Any, Any]", read)) != {"module", "function", "cases"}:
        raise UsageError(f"{file}: {FORM}")
    found = cast("dict[str, Any]", read)
    module, function, listed = found["module"], found["function"], found["cases"]
    for name, value in (("module", module), ("function", function)):
        if not isinstance(value, str) or not all(_is_name(part) for part in value.split(".")):
            raise UsageError(f"{file}: {name} is {value!r}; it must be a name in Python, such as 'main'")
    if not isinstance(listed, list) or not 1 <= len(cast("list[Any]", listed)) <= MOST:
        raise UsageError(f"{file}: cases must be a list of 1 to {MOST} cases")
    cases: list[Any] = []
    visible: list[Any] = []
    for number, item in enumerate(cast("list[Any]", listed), 1):
        case, shown = _read_case(file, number, item)
        cases.append(case)
        if shown:
            visible.append(case)
    return CaseFile(module, function, cases, visible)


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _read_case(file: Path, number: int, item: Any) -> tuple[list[Any], bool]:
    """(calls, whether one of them is marked visible)."""
    calls: Any = [item] if _is_call(item) else item
    if not isinstance(calls, list) or not calls or not all(map(_is_call, cast("list[Any]", calls))):
        raise UsageError(f"{file}, case {number}: {FORM}")
    out: list[Any] = []
    shown = False
    for args, want in cast("list[tuple[list[Any], dict[str, Any]]]", calls):
        mark = want.get("visible", False)
        kept = {key: value for key, value in want.items() if key != "visible"}
        wrong = not isinstance(mark, bool) or list(kept) not in (["value"], ["raises"])
        if wrong or not isinstance(kept.get("raises", ""), str):
            raise UsageError(f"{file}, case {number}: {FORM}")
        try:
            encode([args, kept])
        except NotPlainError as problem:
            raise UsageError(f"{file}, case {number}: it is too large or too deep ({problem})") from None
        shown = shown or mark
        out.append([args, kept])
    return out, shown


def _is_call(item: Any) -> bool:
    if not isinstance(item, list) or len(cast("list[Any]", item)) != 2:
        return False
    args, want = cast("list[Any]", item)
    return isinstance(args, list) and isinstance(want, Mapping)
