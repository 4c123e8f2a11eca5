"""Data sets of the optional package `reasoning-gym` as subjects. They are trusted code, so they are called in this process.
Invariant: the answer that passes is the one that earns as much as the data set's own; part of a score is no pass."""

import contextlib
import importlib
import io
import warnings
from collections.abc import Mapping
from typing import Any

from strop.audit.local import Local
from strop.core.errors import UsageError

PREFIX = "reasoning-gym:"
TASKS = 4
SKIPPED = ("composite",)
"""Data sets that are made of others."""


def names() -> list[str]:
    """All data sets. Raises `UsageError` where the package is not installed."""
    return sorted(name for name in _registry() if name not in SKIPPED)


def _registry() -> Mapping[str, Any]:
    try:
        with quietly():
            return importlib.import_module("reasoning_gym.factory").DATASETS
    except ModuleNotFoundError:
        raise UsageError("the package reasoning-gym is not installed; pip install 'strop[gym]'") from None


@contextlib.contextmanager
def quietly() -> Any:
    """Swallow what graders print and warn of."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def gym(name: str, size: int = TASKS, seed: int = 0) -> Local:
    """The subject of one data set.

    Args:
        name: of the data set.
        size: tasks to make.
        seed: of the data set's generator.

    Raises:
        UsageError: it is unknown, or cannot be made.
    """
    if name not in _registry() or name in SKIPPED:
        raise UsageError(f"reasoning-gym has no data set {name!r}; known: {', '.join(names())}, or all")
    try:
        with quietly():
            made: Any = importlib.import_module("reasoning_gym").create_dataset(name, size=size, seed=seed)
            entries = [made[k] for k in range(size)]
    except Exception as problem:
        raise UsageError(f"reasoning-gym's {name} cannot be made: {type(problem).__name__}: {problem}") from None

    def judge(task: Mapping[str, Any], answer: Any) -> float:
        entry = {**task["entry"], **({"answer": task["reference"]} if "reference" in task else {})}
        with quietly():
            return float(made.score_answer(answer, entry))

    tasks = [
        {"id": f"{name}-{k}", "prompt": str(entry["question"]), "kind": "text", "entry": entry, **_reference(entry)}
        for k, entry in enumerate(entries)
    ]
    return Local(f"{PREFIX}{name}", tasks, judge)


def _reference(entry: Mapping[str, Any]) -> dict[str, str]:
    """The reference of an entry; some data sets have none, since many answers are right."""
    return {} if entry["answer"] is None else {"reference": str(entry["answer"])}
