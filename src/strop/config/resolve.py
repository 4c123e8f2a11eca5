"""Run files: TOML, then `--set`, then defaults, to checked sections. Imports no torch: bad input is answered at once.

Invariant: an unknown or misplaced key is an error with the nearest known one; every value knows its source.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from strop.config.sections import RunSection, Section, StageSection
from strop.core.errors import UsageError

RESUMABLE = ("stages.*.steps", "evaluate.", "keep.", "watch.", "guard.")
"""Keys that `--set` may change on resume."""


_TRUNCATED = (
    "training needs the log-probabilities of the distribution that was sampled, and a truncated or penalised one is not "
    "what the learner computes, so ratios would be off from the first step. Lower rollout.temperature instead."
)
REFUSED = dict.fromkeys(("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"), _TRUNCATED)
"""Keys that other trainers have and Strop refuses, with the reason."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A checked run file: the sections, and for each flat key its value and source (`file`, `--set`, `default`)."""

    run: RunSection
    sources: Mapping[str, tuple[Any, str]]


def known_keys() -> list[str]:
    """Every key of a run file, flat (`learner.lr`, `stages.*.steps`); options of worlds are theirs."""
    out: list[str] = []
    for name, field in RunSection.model_fields.items():
        section = _section(name)
        if section is None:
            out.append(name if field.annotation != dict[str, Any] else f"{name}.*")
        else:
            prefix = "stages.*" if name == "stages" else name
            out += [f"{prefix}.{key}" for key in section.model_fields]
    return out


def _section(name: str) -> type[Section] | None:
    annotation = RunSection.model_fields[name].annotation
    if name == "stages":
        return StageSection
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def read_file(path: Path) -> dict[str, Any]:
    """The tables of a run file; a missing or broken one is a `UsageError`."""
    if not path.is_file():
        raise UsageError(f"the run file {path} does not exist; give the path of a TOML file such as recipes/guess.toml")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{path} is not valid TOML: {problem}") from None


def apply_sets(tables: dict[str, Any], sets: Sequence[str]) -> dict[str, str]:
    """Write `key=value` pairs into the tables; returns the flat keys that were set, with the text of their values."""
    done: dict[str, str] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {text!r}: write it as key=value, for example --set learner.lr=1e-3")
        spot: Any = tables
        *path, last = key.strip().split(".")
        for part in path:
            spot = _descend(spot, part, key)
        if isinstance(spot, list):
            raise UsageError(f"--set {key}: name a key of the stage, for example stages.0.steps")
        if not isinstance(spot, dict):
            raise UsageError(f"--set {key}: {path[-1]!r} is not a section")
        spot[last] = _value(value)
        done[key.strip()] = value
    return done


def _descend(spot: Any, part: str, key: str) -> Any:
    if isinstance(spot, list):
        if not part.isdigit() or int(part) >= len(spot):  # type: ignore[reportUnknownArgumentType]
            raise UsageError(f"--set {key}: there is no stage {part}; stages are numbered 0 to {len(spot) - 1}")  # type: ignore[reportUnknownArgumentType]
        return spot[int(part)]  # type: ignore[reportUnknownVariableType]
    if not isinstance(spot, dict):
        raise UsageError(f"--set {key}: {part!r} is not inside a section")
    return spot.setdefault(part, {})  # type: ignore[reportUnknownVariableType]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def resolve(tables: Mapping[str, Any], from_set: Mapping[str, str]) -> Resolved:
    """Check tables against the sections and note where each value came from."""
    try:
        run = RunSection.model_validate(dict(tables))
    except ValidationError as problem:
        raise UsageError(_first(problem)) from None
    sources: dict[str, tuple[Any, str]] = {}
    for key, value in _flat(run.model_dump()).items():
        source = "--set" if key in from_set else "file" if key in _flat(tables) else "default"
        sources[key] = (value, source)
    return Resolved(run, sources)


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            out |= _flat(value, f"{name}.")  # type: ignore[reportUnknownArgumentType]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for index, item in enumerate(value):  # type: ignore[reportUnknownArgumentType,reportUnknownVariableType]
                out |= _flat(item, f"{name}.{index}.")  # type: ignore[reportUnknownArgumentType]
        else:
            out[name] = value
    return out


def _first(problem: ValidationError) -> str:
    """One line for the first fault of a run file."""
    fault = problem.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        if (leaf := str(fault["loc"][-1])) in REFUSED:
            return f"{where} is not offered: {REFUSED[leaf]}"
        generic = ".".join("*" if str(p).isdigit() else str(p) for p in fault["loc"])
        return f"unknown key {where!r}; {_nearest(generic)}"
    if fault["type"] == "missing":
        return f"the key {where!r} is missing; add it to the run file"
    return f"{where} is {fault['input']!r}: {fault['msg'].lower()}"


def _nearest(key: str) -> str:
    known = [*known_keys(), *RunSection.model_fields]
    if "." not in key and (section := difflib.get_close_matches(key, RunSection.model_fields, n=1)):
        return f"did you mean {section[0]!r}?"
    leaf = key.rsplit(".", 1)[-1].replace("-", "_")
    same = [k for k in known if k.rsplit(".", 1)[-1] == leaf]
    close = same or difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.6)
    if not close:
        leaves = {k.rsplit(".", 1)[-1]: k for k in known}
        close = [leaves[m] for m in difflib.get_close_matches(leaf, list(leaves), n=1)]
    if close and close[0] != key.split(".")[0]:
        return f"did you mean {close[0]!r}?"
    section = key.split(".")[0]
    inside = [k for k in known_keys() if k.startswith(f"{section}.")] or list(RunSection.model_fields)
    return f"known: {', '.join(inside)}"
