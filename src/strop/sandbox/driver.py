"""Executes a program's modules and calls, inside the sandbox, in the process that may be hostile a moment later.

Invariant: it writes one line for each call, in order, each a claim of the program about itself; nothing that it says is
trusted out there. It runs in a process that was forked for one case, so that no state of another case exists.
Standard library only.
"""

import builtins
import importlib
import json
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType
from typing import Any

from strop.sandbox.plain import NotPlainError, decode, encode

# Imported once before all runs, since programs use them most and each case would import them anew.
COMMON = (
    *("abc", "bisect", "collections", "copy", "dataclasses", "datetime", "enum", "functools", "heapq", "itertools"),
    *("math", "operator", "random", "re", "string", "struct", "time", "typing"),
)
OURS = (
    "strop",
    "strop.sandbox",
    *(f"strop.sandbox.{name}" for name in ("plain", "kernel", "seccomp", "driver", "inside")),
)
REHEARSED = json.dumps(
    {
        "main": "def f(text):\n"
        "    found = {}\n"
        "    for word in text.split():\n"
        "        found[word] = found.get(word, 0) + 1\n"
        "    return [(name, count) for name, count in sorted(found.items())]\n"
    }
).encode()
TEXT = 500  # characters of an exception's message
VALUE = 65_536  # bytes of an encoded value


class Given(SourceFileLoader):
    """Finds and loads the program's own modules from their texts, by dotted name, before those of the library.

    A loader of files by its class alone, since `importlib.abc` brings forty modules along; no file is read.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        names = [name.split(".") for name in texts]
        self.packages = {".".join(parts[:k]) for parts in names for k in range(1, len(parts))}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module's spec where it is one of the program's."""
        if fullname not in self.texts and fullname not in self.packages:
            return None
        return ModuleSpec(fullname, self, origin=f"<{fullname}>", is_package=self.is_package(fullname))

    def is_package(self, fullname: str) -> bool:
        """Whether another module's name goes through it."""
        return fullname in self.packages

    def get_source(self, fullname: str) -> str:
        """The text, which tracebacks show too; nothing for a package that only holds others."""
        return self.texts.get(fullname, "")

    def get_code(self, fullname: str) -> CodeType:
        """The compiled text. The name of its file is for tracebacks, there is no such file."""
        return compile(self.get_source(fullname), f"<{fullname}>", "exec", dont_inherit=True)


def preload() -> None:
    """Import what programs use most. Trusted code: it runs before any program."""
    for name in COMMON:
        importlib.import_module(name)


def rehearse() -> None:
    """Execute a trusted program and forget it, so that what any program needs is at hand when time counts.

    A forked interpreter copies each page that it writes to; those of the parser, the loader and the answers are then copied
    ahead of the program.
    """
    out = os.open("/dev/null", os.O_WRONLY)
    execute(REHEARSED, b'[["main.f", "[\\"t\\",\\"a b a\\"]", "[\\"d\\"]"]]', out)
    os.close(out)
    del sys.modules["main"], sys.meta_path[0]


def execute(modules: bytes, case: bytes, out: int) -> None:
    """Load what the calls name and call it, one line to descriptor `out` for each call.

    Args:
        modules: JSON object, texts by dotted name.
        case: JSON list of [dotted name, encoded arguments, encoded keyword arguments].
        out: descriptor to write `[kind, text]` lines to.
    """
    write, dumps = os.write, json.dumps
    texts: dict[str, str] = json.loads(modules)
    calls: list[tuple[str, str, str]] = json.loads(case)
    # By name: to look through all modules would touch, and so copy, the pages of all.
    for name in (*texts, *OURS):
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Given(texts))
    # Programs are told of them by every tutorial, and the site module that makes them is not loaded.
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    for name, args, kwargs in calls:
        line = dumps(_answer(texts, name, decode(args), decode(kwargs))).encode() + b"\n"
        while line:
            line = line[write(out, line) :]


def _answer(texts: dict[str, str], name: str, args: Any, kwargs: Any) -> tuple[str, str]:
    parts = name.split(".")
    here = next((k for k in range(len(parts), 0, -1) if ".".join(parts[:k]) in texts), 0)
    if not here:
        return "missing", f"{name}: the program has no such module"
    try:
        found: Any = importlib.import_module(".".join(parts[:here]))
    except BaseException as error:
        return "missing", "did not load: " + _describe(error)
    try:
        for part in parts[here:]:
            found = getattr(found, part)
        value = found(*args, **kwargs)
    except BaseException as error:
        return "raised", _describe(error)
    try:
        text = encode(value)
    except NotPlainError as error:
        return "not_plain", str(error)[:TEXT]
    except BaseException as error:
        return "not_plain", _describe(error)
    return ("value", text) if len(text) <= VALUE else ("not_plain", f"larger than {VALUE} bytes")


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:TEXT]
    except BaseException:
        return type(error).__name__[:TEXT]
