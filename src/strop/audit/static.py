"""Tier 1, static: what can be read in a task and in the verifier's text, without asking it. Invariant: confirmed is only that
the answer is never read, or stands whole where the agent can read it; a suspicious line is a lead."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from strop.audit.exam import Exam
from strop.audit.finding import Finding, Kind
from strop.audit.subject import Item, is_test

Function = ast.FunctionDef | ast.AsyncFunctionDef
LONG = 20
"""Characters from which a reference that stands in a file did not get there by chance."""
NETWORK = {"socket", "requests", "urllib", "httpx", "http", "aiohttp", "openai", "anthropic"}
CHANCE = {"random", "secrets", "uuid", "time", "datetime"}


async def check_static(exam: Exam) -> None:
    """Run the tier."""
    for item in exam.items:
        check_places(exam, item)
    check_facts(exam)
    if exam.subject.source is None:
        exam.skip("the verifier's text: it is not known")
        return
    try:
        tree = ast.parse(exam.subject.source)
    except SyntaxError:
        exam.skip("the verifier's text: it cannot be parsed")
        return
    check_source(exam, tree)


def _write(exam: Exam, kind: Kind, name: str, claim: str, task: str = "") -> None:
    exam.write(Finding(1, kind, task, claim, name))


# --- the task


def check_places(exam: Exam, item: Item) -> None:
    """The answer inside the prompt, the workspace or the environment variables."""
    reference = item.program(item.reference) if item.sort == "program" else item.reference
    if not isinstance(reference, str) or not reference.strip():
        return
    text = reference.strip()
    if len(text) >= 4 and text in item.prompt:
        sure = item.sort == "program" and len(text) >= LONG
        claim = "the prompt holds the reference"
        _write(exam, "confirmed" if sure else "lead", "answer in prompt", claim, item.id)
    files: Any = item.data.get("files") or item.data.get("workspace") or {}
    for path, content in cast(Mapping[str, Any], files).items() if isinstance(files, Mapping) else ():
        if isinstance(content, str) and len(text) >= 4 and text in content and content != item.program(item.start):
            claim = f"the workspace file {path} holds the reference"
            _write(exam, "confirmed" if len(text) >= LONG else "lead", "answer in workspace", claim, item.id)
        if "hidden" in path:
            _write(exam, "lead", "hidden test in workspace", f"{path} stands in the workspace", item.id)
    for where in (item.data, exam.subject.facts):
        variables: Any = where.get("environment") or where.get("env") or {}
        for name, value in cast(Mapping[str, Any], variables).items() if isinstance(variables, Mapping) else ():
            if len(text) >= 4 and text in str(value):
                claim = f"the environment variable {name} holds the reference"
                _write(exam, "confirmed", "answer in environment", claim, item.id)


def check_facts(exam: Exam) -> None:
    """Writable tests and an open network, as tasks or the subject declare them."""
    for item_id, facts in [("", exam.subject.facts), *((item.id, item.data) for item in exam.items)]:
        inner = [
            cast(Mapping[str, Any], v)
            for k, v in facts.items()
            if k in ("sandbox", "limits") and isinstance(v, Mapping)
        ]
        for key, value in [pair for part in (facts, *inner) for pair in part.items()]:
            if "writable" in key and (tests := writable_tests(key, value)):
                _write(exam, "confirmed", "writable tests", f"the agent may write the tests ({tests})", item_id)
            if ("network" in key or "internet" in key) and value in (True, "open", "host", "on", "yes", "full"):
                claim = f"the network is declared to be open to the agent ({key} = {value!r})"
                _write(exam, "confirmed", "open network", claim, item_id)


def writable_tests(key: str, value: Any) -> str:
    """Which tests a declaration lets the agent write, for people; empty if none."""
    if value is True:
        return f"{key} = True" if "test" in key else ""
    paths = [str(path) for path in cast(Sequence[Any], value)] if isinstance(value, list | tuple) else []
    return ", ".join(path for path in paths if is_test(path) or "test" in path or path in ("", ".", "*", "/"))


# --- the verifier


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions of a module."""
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def check_source(exam: Exam, tree: ast.Module) -> None:
    """Look at the verifier's functions, and at all others for what rewards an error."""
    place = exam.subject.verifier
    named = [f for f in functions(tree) if f.name == place.name and place.line in (0, first_line(f))]
    for function in named:
        check_reads_answer(exam, function)
    if not named:
        exam.skip(f"whether the answer is read: no function {place.name!r} in the verifier's text")
    aliases = {name: module for node in ast.walk(tree) for name, module in imported(node) if module in NETWORK | CHANCE}
    for function in reached(tree, named, place.owner) if named else functions(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and broad(node) and any(rewards(s) for s in node.body):
                claim = f"{function.name}, line {node.lineno}: what catches every error gives a reward"
                _write(exam, "lead", "except that rewards", claim)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                claim = f"{function.name}, line {node.lineno}: {node.func.id} runs text in the verifier's own process"
                _write(exam, "lead", "runs text in its own process", claim)
            if isinstance(node, ast.Name) and (module := aliases.get(node.id)):
                what = "asks the network" if module in NETWORK else "depends on chance or the clock"
                claim = f"{function.name}, line {node.lineno}: the verifier uses {module}, so it perhaps {what}"
                _write(exam, "lead", f"uses {module}", claim)


def first_line(function: Function) -> int:
    """The line that a function begins in, its decorators included."""
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def reached(tree: ast.Module, named: Sequence[Function], owner: str) -> list[Function]:
    """The functions of a module that the verifier can reach, by the names that they mention.

    Of several functions of one name, that of the class `owner` is meant, if there is one.
    """
    known: dict[str, list[Function]] = {}
    for function in functions(tree):
        known.setdefault(function.name, []).append(function)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            known |= {f.name: [f] for f in node.body if isinstance(f, Function)}
    out, ahead = list(named), list(named)
    while ahead:
        for node in ast.walk(ahead.pop()):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            for function in known.get(name, ()):
                if function not in out:
                    out.append(function)
                    ahead.append(function)
    return out


def imported(node: ast.AST) -> list[tuple[str, str]]:
    """(name in the module, top name of the module it comes from) of what a statement imports."""
    if isinstance(node, ast.Import):
        return [(alias.asname or alias.name.split(".")[0], alias.name.split(".")[0]) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [(alias.asname or alias.name, node.module.split(".")[0]) for alias in node.names]
    return []


def check_reads_answer(exam: Exam, function: Function) -> None:
    """The verifier reads its second argument (after self)."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    if len(names) < 2:
        exam.skip(f"whether {function.name} reads the answer: it has not the parameters task and answer")
        return
    used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    if names[1] not in used and not used & {"locals", "vars", "inspect", "sys"}:
        claim = f"{function.name} never reads its argument {names[1]!r}, the answer"
        _write(exam, "confirmed", "answer never read", claim)


def broad(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches every error."""
    kinds = [handler.type] if not isinstance(handler.type, ast.Tuple) else list(handler.type.elts)
    return handler.type is None or any(
        isinstance(k, ast.Name) and k.id in ("Exception", "BaseException") for k in kinds
    )


def rewards(statement: ast.stmt) -> bool:
    """Whether a statement returns, or gives a name such as `score`, a value that is a pass."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Return) and node.value is not None and positive(node.value):
            return True
        if isinstance(node, ast.Assign) and positive(node.value):
            names = {t.id for t in node.targets if isinstance(t, ast.Name)}
            if names & {"score", "reward", "passed", "ok", "success", "result", "correct"}:
                return True
    return False


def positive(value: ast.expr) -> bool:
    """Whether an expression is True, a number from 0.5, or a `Verdict` of one."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, bool | int | float) and value.value >= 0.5
    if isinstance(value, ast.Call) and getattr(value.func, "id", getattr(value.func, "attr", "")) in (
        "Verdict",
        "float",
    ):
        return any(positive(argument) for argument in value.args[:1])
    return False
