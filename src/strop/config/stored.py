"""What a run folder remembers of its configuration, and back. Invariant: a resumed run is planned from `run.json` alone."""

import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from strop.config.planning import plan_of
from strop.config.resolve import RESUMABLE, Resolved, apply_sets, resolve
from strop.core.errors import UsageError
from strop.core.world import World
from strop.loop.plan import Plan

PACKAGES = ("strop", "torch", "transformers", "numpy", "safetensors")


def run_record(resolved: Resolved) -> dict[str, Any]:
    """The content of `run.json`: the resolved configuration, the source of each value, the seed, and versions."""
    return {
        "config": resolved.run.model_dump(exclude_unset=True),
        "resolved": {key: {"value": value, "source": source} for key, (value, source) in resolved.sources.items()},
        "seed": resolved.run.seed,
        "versions": {"python": sys.version.split()[0], "machine": platform.machine(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def stored_plan(record: Mapping[str, Any], sets: Sequence[str] = ()) -> tuple[Resolved, Plan, World]:
    """Plan a stored run again, with changes of the keys that a resumed run may change.

    Raises:
        UsageError: a key that a resumed run cannot change, or a world that is no longer there.
    """
    tables: dict[str, Any] = dict(record["config"])
    done = apply_sets(tables, sets)
    for key in done:
        generic = ".".join("*" if part.isdigit() else part for part in key.split("."))
        if not any(
            generic == allowed or (allowed.endswith(".") and generic.startswith(allowed)) for allowed in RESUMABLE
        ):
            allowed = ", ".join(f"{key}*" if key.endswith(".") else key for key in RESUMABLE)
            raise UsageError(
                f"--set {key}: a resumed run may change only {allowed}. Start a new run for other changes."
            )
    resolved = resolve(tables, {**_set_before(record), **done})
    plan, world = plan_of(resolved)
    return resolved, plan, world


def _set_before(record: Mapping[str, Any]) -> dict[str, str]:
    """Keys that an earlier `--set` gave their values."""
    entries: Mapping[str, Mapping[str, Any]] = record.get("resolved", {})
    return {key: str(entry["value"]) for key, entry in entries.items() if entry["source"] == "--set"}


def find_run(path: str) -> Path:
    """The folder of a run; a missing one is a `UsageError`."""
    if not (Path(path) / "run.json").is_file():
        raise UsageError(f"{path} is no run folder (it has no run.json); give the folder that `strop train` named")
    return Path(path)
