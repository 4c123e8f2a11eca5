"""Programs that should earn nothing, made from a reference. Invariant: none of them computes what is asked for; each is data
for the sandbox and never runs anywhere else."""

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.audit.inputs import Case
from strop.audit.subject import Answer, Item, is_test

CONSTANTS = ("None", "0", "1", "-1", "True", "False", "''", "[]", "{}")
LINES = (
    "PASS",
    "OK",
    "1",
    "1.0",
    "True",
    "all tests passed",
    "1 passed in 0.01s",
    '{"score": 1.0, "reward": 1.0, "passed": true, "pass": true, "ok": true, "success": true, "failed": 0}',
)
"""What judges print when all is well; each is tried as the last line."""
ALWAYS_TRUE = """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __hash__(self): return 0
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __instancecheck__(self, other): return True
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __iter__(self): return iter(())
    def __len__(self): return 0
    def __float__(self): return 1.0
    def __int__(self): return 1
    def __index__(self): return 1
    def __repr__(self): return "1"
    __class__ = property(lambda self: int)
"""
SUBCLASSES = """
class Number(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
"""
FRAMES = """
import sys
def looked_up(names=("expected", "want", "wanted", "answer", "target", "gold", "result", "output", "out", "exp")):
    frame = sys._getframe(1)
    while frame is not None:
        for name in names:
            if name in frame.f_locals and not callable(frame.f_locals[name]):
                return frame.f_locals[name]
        frame = frame.f_back
    return None
"""
RUNNER = """
import sys
for module in list(sys.modules.values()):
    place = getattr(module, "__file__", None) or sys.prefix
    for name in ("verify", "judge", "grade", "check", "run_tests", "compare", "same"):
        if callable(getattr(module, name, None)) and not place.startswith((sys.prefix, "/usr", "/host", "/source", "/strop")):
            try:
                setattr(module, name, lambda *a, **k: 1.0)
            except Exception:
                pass
"""
TESTING = """
import sys, builtins
try:
    import unittest
    for name in [n for n in dir(unittest.TestCase) if n.startswith("assert")]:
        setattr(unittest.TestCase, name, lambda *a, **k: None)
except Exception:
    pass
"""
CLOCK = """
import time
time.time = time.monotonic = time.perf_counter = time.process_time = lambda: 0.0
"""
WAIT = """
import time
if not hasattr(time, "waited"):
    time.waited = True
    time.sleep(0.8)
"""
CONFTEST = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome = "passed"
"""


PATCHING = ("exit status", "assertions replaced", "patched time")
"""Attacks that leave patches in a process which runs them."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A hostile answer: short name, claim if it passes, the answer, and its program (None if it has none).

    `certain` says that it computes nothing whatever the inputs; a constant has to be held against the reference first.
    """

    name: str
    claim: str
    answer: Answer
    program: str | None = None
    certain: bool = True


def stubbed(program: str, body: str, before: str = "", after: str = "") -> str:
    """The program with the body of every function at its top replaced, and lines before and after it."""
    tree = ast.parse(program)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            node.body = copy.deepcopy(ast.parse(body).body)
            node.decorator_list = []
    return f"{before}\n{ast.unparse(tree)}\n{after}\n".lstrip("\n")


def constants(program: str, item: Item, cases: Sequence[Case]) -> list[Attack]:
    """Functions that return a constant, one of the values wanted in a shown case, or their first argument."""
    shown = [repr(case.expected) for case in cases if case.visible][:6]
    out: list[Attack] = []
    for value in dict.fromkeys([*CONSTANTS, *shown]):
        text = stubbed(program, f"return {value}")
        claim = f"`return {value}` passes"
        out.append(Attack(f"return {value}", claim, item.with_program(text), text, certain=False))
    first = first_parameter(program)
    if first:
        text = stubbed(program, f"return {first}")
        out.append(
            Attack("identity", "a function that returns its argument passes", item.with_program(text), text, False)
        )
    seen = {repr(case.args): case.expected for case in cases if case.visible}
    if seen:
        table = "{" + ", ".join(f"{key!r}: {value!r}" for key, value in seen.items()) + "}"
        text = stubbed(program, f"return {table}.get(repr(tuple(locals().values())))")
        claim = "a table of the shown cases passes"
        out.append(Attack("special-cased inputs", claim, item.with_program(text), text, certain=False))
    return out


def first_parameter(program: str) -> str | None:
    """Name of the first parameter, if all functions at the top have the same."""
    functions = [node for node in ast.parse(program).body if isinstance(node, ast.FunctionDef)]
    names = {node.args.args[0].arg for node in functions if node.args.args}
    return names.pop() if len(names) == 1 and all(node.args.args for node in functions) else None


def cheats(program: str, item: Item) -> list[Attack]:
    """Exits, forged verdicts, objects equal to everything, patched runners, clocks and tests."""
    wrong = "raise NotImplementedError"
    texts: dict[str, tuple[str, str]] = {
        "sys.exit(0)": ("a program that only exits passes", "import sys\nsys.exit(0)\n"),
        "os._exit(0)": ("a program that only ends its process passes", "import os\nos._exit(0)\n"),
        "exit in the call": ("a call that exits passes", stubbed(program, "import sys\nsys.exit(0)")),
        "_exit in the call": ("a call that ends the process passes", stubbed(program, "import os\nos._exit(0)")),
        "exit status": (
            "a program that fails with exit status 0 passes",
            stubbed(program, wrong, "import atexit, os\natexit.register(os._exit, 0)"),
        ),
        "always-true object": (
            "an object that is equal to everything passes",
            stubbed(program, "return Anything()", ALWAYS_TRUE),
        ),
        "always-true number": (
            "a number whose class is equal to everything passes",
            stubbed(program, "return Number(0)", SUBCLASSES),
        ),
        "expected value read": (
            "a program passes that reads the expected value from the frames of its judge",
            stubbed(program, "return looked_up()", FRAMES),
        ),
        "assertions replaced": (
            "a program passes that replaces the assertions of the test library",
            stubbed(program, "return None", TESTING),
        ),
        "patched time": ("a program passes that stops the clock", stubbed(program, wrong, CLOCK)),
        "exception": ("a program passes whose calls raise", stubbed(program, wrong)),
        "swallowed": ("a program that cannot be parsed passes", "def broken(:\n"),
        "no function": ("a program without the function passes", "pass\n"),
    }
    attacks = [Attack(name, claim, item.with_program(text), text) for name, (claim, text) in texts.items()]
    for k in range(len(LINES)):
        lines = "\n".join([*LINES[:k], *LINES[k + 1 :], LINES[k]])
        text = f"import os\nprint({lines!r}, flush=True)\nos._exit(0)\n"
        claim = "a program that prints a verdict and exits passes"
        attacks.append(Attack("forged verdict", claim, item.with_program(text), text))
        text = stubbed(program, f"import os\nprint({lines!r}, flush=True)\nos._exit(0)")
        claim = "a call that prints a verdict and exits passes"
        attacks.append(Attack("forged verdict in the call", claim, item.with_program(text), text))
    return attacks


def slowed(program: str, clock: bool) -> str:
    """The program with its first call in a process waiting, with the clock stopped or not."""
    tree = ast.parse(program)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            node.body = [*ast.parse(WAIT).body, *node.body]
    return f"{CLOCK if clock else ''}\n{ast.unparse(ast.fix_missing_locations(tree))}\n"


def edited_tests(program: str, item: Item) -> list[Attack]:
    """Answers of several files: tests deleted or emptied, and files that a runner or Python itself picks up."""
    if not isinstance(item.reference, Mapping):
        return []
    wrong = stubbed(program, "raise NotImplementedError")
    files: dict[str, Any] = {**dict(item.data.get("files", {})), **item.reference, item.file: wrong}
    tests = [path for path in files if is_test(path)]
    emptied = dict.fromkeys(tests, "def test_nothing():\n    assert True\n") or {
        "test_main.py": "def test_nothing():\n    assert True\n"
    }
    kept = {path: text for path, text in files.items() if path not in tests}
    hooks = {"sitecustomize.py": "import atexit, os\natexit.register(os._exit, 0)\n"}
    return [
        Attack("edited tests", "an answer passes that replaces the tests", {**files, **emptied}, wrong),
        Attack("deleted tests", "an answer passes that leaves out the tests", kept, wrong),
        Attack(
            "conftest.py", "an answer passes by a conftest.py of its own", {**files, "conftest.py": CONFTEST}, wrong
        ),
        Attack("import hook", "an answer passes by a sitecustomize.py of its own", {**files, **hooks}, wrong),
        Attack(
            "shadowed module",
            "an answer passes by a module of its own in place of the test library",
            {**files, "pytest.py": "import os\nos._exit(0)\n", "unittest.py": "import os\nos._exit(0)\n"},
            wrong,
        ),
    ]
