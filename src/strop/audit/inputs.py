"""Inputs of programs: those that a task shows, mutations of them by type, and whether an input lies in the declared domain.
Invariant: the domain is what was seen in the task's cases; outside of it a difference proves nothing."""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from strop.audit.subject import Item, defines, is_test

VISIBLE = ("visible", "visible_cases", "visible_tests", "examples")
"""Keys of cases that the agent is shown."""
HIDDEN = ("hidden", "hidden_cases", "hidden_tests", "cases", "tests")
"""Keys of cases that judge; nothing says that an agent sees them, and any finite list can be looked up by who does."""
GRID: tuple[Any, ...] = (0, 1, 2, -1, 7, "", "a", "ab c", None, True, [], [3, 1, 2], 1.5, {"a": 1}, [[1, 2], [0]])
"""Values tried for each parameter where a task shows no case."""


@dataclass(frozen=True, slots=True)
class Case:
    """A call with plain arguments; `expected` is what the task says it gives (None also where it says nothing)."""

    function: str
    args: tuple[Any, ...]
    expected: Any = None
    visible: bool = True


def cases_of(item: Item) -> list[Case]:
    """The cases that a task holds: lists under the known keys, and `assert f(1) == 2` in texts and test files."""
    program = item.program(item.reference) or ""
    names = defines(program)
    default = str(item.data.get("function") or next((n for n in names if not n.startswith("_")), ""))
    out: list[Case] = []
    for keys, visible in ((VISIBLE, True), (HIDDEN, False)):
        for key in keys:
            found: Any = item.data.get(key)
            found = cast(Mapping[str, Any], found).get("cases") if isinstance(found, Mapping) else found
            if isinstance(found, str):
                out += asserted(found, visible)
            elif isinstance(found, Sequence):
                out += [case for value in cast(Sequence[Any], found) for case in _read(value, default, visible)]
    files: Any = item.data.get("files")
    for path, text in cast(Mapping[str, Any], files).items() if isinstance(files, Mapping) else ():
        if is_test(path) and isinstance(text, str):
            out += asserted(text, True)
    shown = re.findall(r"(\w+\([^()\n]*\))\s*(?:==|->|=>|returns|gives|must be|should be|is)\s*([^\n]+)", item.prompt)
    for call, value in shown:
        words = value.strip().rstrip(".,;`").strip()
        out += asserted(f"assert {call} == {words}") or asserted(f"assert {call} == {words.split()[0] if words else 0}")
    return [case for case in out if case.function and case.function.split(".")[-1] in names]


def _read(value: Any, default: str, visible: bool) -> list[Case]:
    """A case of a mapping (args or input, expected or want or output) or of a pair."""
    if isinstance(value, str):
        return asserted(value, visible)
    if isinstance(value, Mapping):
        data = cast(Mapping[str, Any], value)
        args = next((data[key] for key in ("args", "arguments", "input", "inputs") if key in data), None)
        expected = next((data[key] for key in ("expected", "want", "output", "result") if key in data), None)
        name = str(data.get("function", default)).split(".")[-1]
        if args is None:
            return []
        return [Case(name, tuple(args) if isinstance(args, list | tuple) else (args,), expected, visible)]
    if _is_call(value):
        value = [value]
    if isinstance(value, list | tuple) and value and all(map(_is_call, cast(Sequence[Any], value))):
        calls = cast(Sequence[Any], value)  # several calls of one case, as `verify.program` takes them
        return [Case(default, tuple(args), want.get("value"), visible) for args, want in calls if "value" in want]
    if isinstance(value, list | tuple) and len(cast(Sequence[Any], value)) == 2:
        args, expected = cast(Sequence[Any], value)
        return [Case(default, tuple(args) if isinstance(args, list | tuple) else (args,), expected, visible)]
    return []


def _is_call(value: Any) -> bool:
    """Whether a value is `[arguments, {"value": ...}]` or `[arguments, {"raises": ...}]`."""
    if not isinstance(value, list | tuple) or len(cast(Sequence[Any], value)) != 2:
        return False
    args, want = cast(Sequence[Any], value)
    return isinstance(args, list | tuple) and isinstance(want, Mapping) and bool({"value", "raises"} & want.keys())


def asserted(text: str, visible: bool = True) -> list[Case]:
    """Cases of `assert f(1, 2) == 3`, `assertEqual(f(1), 2)` in a program text."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    out: list[Case] = []
    for node in ast.walk(tree):
        pair: tuple[ast.expr, ast.expr] | None = None
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.Is):
            pair = node.left, node.comparators[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "assertEqual":
            pair = (node.args[0], node.args[1]) if len(node.args) >= 2 else None
        if pair is None or not isinstance(pair[0], ast.Call):
            continue
        call, function = pair[0], pair[0].func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        try:
            args = tuple(ast.literal_eval(argument) for argument in call.args)
            out.append(Case(str(name), args, ast.literal_eval(pair[1]), visible))
        except ValueError:
            continue
    return out


def parameters(program: str) -> dict[str, int]:
    """Number of the required positional parameters of each public function at the top of a program."""
    out: dict[str, int] = {}
    for node in ast.parse(program).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            places = [*node.args.posonlyargs, *node.args.args]
            out[node.name] = max(len(places) - len(node.args.defaults), min(len(places), 1))
    return out


def guessed(program: str, stream: Random, most: int = 40) -> list[Case]:
    """Calls with values of the grid, for programs whose task shows no case."""
    out: list[Case] = []
    for name, count in parameters(program).items():
        if count <= 1:
            out += [Case(name, (value,) * count) for value in GRID]
        else:
            out += [Case(name, tuple(stream.choices(GRID, k=count))) for _ in range(most)]
            out += [Case(name, (value,) * count) for value in GRID]
    return out


# --- mutation by type


def mutations(value: Any) -> list[Any]:
    """Other values of the same type, small and at edges."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 0, 1, -value, value * 2, value + 10, 2]
    if isinstance(value, float):
        return [value + 0.5, -value, 0.0, value * 2]
    if isinstance(value, str):
        return [value[::-1], value + value, value[1:], "", value.upper(), value + " x", "a"]
    if isinstance(value, list):
        items = cast(list[Any], value)
        grown = [
            [*items[:k], other, *items[k + 1 :]] for k in range(min(2, len(items))) for other in mutations(items[k])[:3]
        ]
        return [items[::-1], items[1:], [*items, *items[:1]], sorted(items, key=repr), [], *grown]
    if isinstance(value, tuple):
        return [tuple(other) for other in mutations(list(cast(tuple[Any, ...], value)))]
    if isinstance(value, dict):
        pairs = cast(dict[Any, Any], value)
        return [{}, *({**pairs, key: other} for key, old in list(pairs.items())[:2] for other in mutations(old)[:2])]
    return []


def mutated(cases: Sequence[Case], stream: Random, most: int = 60) -> list[Case]:
    """New calls made from known ones by changing one argument, or two; without repetition, the nearest first."""
    out: list[Case] = []
    known = {repr((case.function, case.args)) for case in cases}
    for case in cases:
        for place, value in enumerate(case.args):
            for other in mutations(value):
                out.append(Case(case.function, (*case.args[:place], other, *case.args[place + 1 :])))
    double = [case for case in out if len(case.args) > 1]
    for case in stream.sample(double, min(len(double), most)):
        place = stream.randrange(len(case.args))
        for other in mutations(case.args[place])[:2]:
            out.append(Case(case.function, (*case.args[:place], other, *case.args[place + 1 :])))
    fresh: list[Case] = []
    for case in out:
        key = repr((case.function, case.args))
        if key not in known:
            known.add(key)
            fresh.append(case)
    return fresh if len(fresh) <= most else stream.sample(fresh, most)


# --- the declared domain


def inside(case: Case, cases: Iterable[Case]) -> bool:
    """Whether an input lies in the domain that the cases span: types, and ranges of numbers and lengths, by position."""
    seen = [other.args for other in cases if other.function == case.function and len(other.args) == len(case.args)]
    return bool(seen) and all(_inside(value, [args[k] for args in seen]) for k, value in enumerate(case.args))


def _inside(value: Any, seen: Sequence[Any]) -> bool:
    alike = [other for other in seen if type(other) is type(value)]
    if not alike:
        return False
    if isinstance(value, bool) or value is None:
        return value in alike
    if isinstance(value, int | float):
        return min(alike) <= value <= max(alike)
    if isinstance(value, str):
        letters = {c for other in alike for c in other}
        return min(map(len, alike)) <= len(value) <= max(map(len, alike)) and set(value) <= letters
    if isinstance(value, list | tuple):
        parts = [part for other in alike for part in other]
        lengths = [len(other) for other in alike]
        whole = cast(Sequence[Any], value)
        return min(lengths) <= len(whole) <= max(lengths) and all(_inside(part, parts) for part in whole)
    if isinstance(value, dict):
        values = [part for other in alike for part in other.values()]
        keys = {key for other in alike for key in other}
        pairs = cast(dict[Any, Any], value)
        return set(pairs) <= keys and all(_inside(part, values) for part in pairs.values())
    return False
