"""task.toml, in the layout of Harbor tasks. Invariant: every key is known, checked and documented (docs/tasks.md), or refused
with the file, the key and what is allowed."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from strop.core.errors import UsageError
from strop.envs.folder.container import IMAGE

LONGEST_SECONDS = 600.0
MEMORY = (64, 16_384)
"""Least and most MiB."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a task.toml says and a task here has a use for.

    Args:
        seconds: wall time of the judge; None where the file does not say.
        memory_mb: address space of each process of the judge, MiB.
        editable: patterns of paths that are the agent's to write; `*` matches `/` too.
    """

    seconds: float | None = None
    memory_mb: int = 512
    editable: tuple[str, ...] = ("*",)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(value: Any) -> bool:
    return _is_number(value) and 0 < value < float("inf")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_editable(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, str) and x for x in cast("list[Any]", value))


Check = tuple[Callable[[Any], bool], str]
_VERSION: Check = (lambda v: isinstance(v, str) and bool(re.fullmatch(r"1\.[0-9]+", v)), '"1.0" or another "1.N"')
_SECONDS: Check = (lambda v: _positive(v) and v <= LONGEST_SECONDS, f"seconds above 0 and up to {LONGEST_SECONDS:g}")
_ABOVE_ZERO: Check = (_positive, "a number above 0")
_MEMORY: Check = (
    lambda v: isinstance(v, int) and _is_number(v) and MEMORY[0] <= v <= MEMORY[1],
    f"MiB from {MEMORY[0]} to {MEMORY[1]}",
)
_IMAGE: Check = (
    lambda v: isinstance(v, str) and bool(IMAGE.fullmatch(v)),
    '"python:TAG", since there is no container here',
)
_INTERNET: Check = (lambda v: v is False, "false: there is no network where code runs")
_EDITABLE: Check = (_is_editable, 'a list of patterns, for example ["*.py"]')
_TEXT: Check = (_is_text, "text")
_LIST: Check = (_is_list, "a list")

KEYS: Mapping[str, Mapping[str, Check]] = {
    "": {"version": _VERSION, "schema_version": _VERSION},
    "task": {"name": _TEXT, "description": _TEXT, "authors": _LIST, "keywords": _LIST},
    "verifier": {"timeout_sec": _SECONDS},
    "agent": {"timeout_sec": _ABOVE_ZERO},
    "environment": {
        "build_timeout_sec": _ABOVE_ZERO,
        "cpus": _ABOVE_ZERO,
        "memory_mb": _MEMORY,
        "storage_mb": _ABOVE_ZERO,
        "docker_image": _IMAGE,
        "allow_internet": _INTERNET,
    },
    "strop": {"editable": _EDITABLE},
}
"""Keys by table, `""` for the top; [metadata] may hold anything."""


def read_settings(file: Path) -> Settings:
    """The settings of a task.toml. Raises `UsageError` for what is not TOML, an unknown key or a value that cannot be."""
    try:
        read = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{file}: not TOML ({problem})") from None
    tables = [name for name in KEYS if name]
    for key, value in read.items():
        if key == "metadata" or key in tables:
            if not isinstance(value, dict):
                raise UsageError(f"{file}: {key} must be a table, [{key}]")
        elif key not in KEYS[""]:
            allowed = ", ".join([*KEYS[""], *(f"[{name}]" for name in ("metadata", *tables))])
            raise UsageError(
                f"{file}: {key} is not supported here; allowed: {allowed}. Remove it or bring a World in Python."
            )
    for table in KEYS:
        _check(file, table, cast("Mapping[str, Any]", read.get(table, {}) if table else read))
    verifier, environment = read.get("verifier", {}), read.get("environment", {})
    seconds = verifier.get("timeout_sec")
    return Settings(
        None if seconds is None else float(seconds),
        int(environment.get("memory_mb", Settings().memory_mb)),
        tuple(read.get("strop", {}).get("editable", Settings().editable)),
    )


def _check(file: Path, table: str, found: Mapping[str, Any]) -> None:
    keys = KEYS[table]
    for key, value in found.items():
        name = f"{table}.{key}" if table else key
        if key in keys:
            fits, allowed = keys[key]
            if not fits(value):
                raise UsageError(f"{file}: {name} is {value!r}; it must be {allowed}")
        elif table:
            raise UsageError(
                f"{file}: {name} is not supported here; allowed in [{table}]: {', '.join(keys)}. Remove it or bring a World "
                "in Python."
            )
