"""Small runs of the whole loop, and what has to be equal of two of them."""

import asyncio
import copy
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record, stored_plan
from strop.core.world import World
from strop.learn import checkpoint
from strop.loop.assemble import assemble
from strop.loop.plan import Plan
from strop.loop.preflight import Preflight
from strop.loop.train import StepDone, Training
from strop.watch.run_folder import Keep, RunFolder

Tables = dict[str, Any]

BASE: Tables = {
    "env": "guess",
    "world": {"numbers": 4, "attempts": 2},
    "model": {"preset": "tiny(16, 1, 2)"},
    "rollout": {"groups": 4, "group_size": 4, "turns": 2, "turn_tokens": 2, "tokens": 4, "context": 32},
    "algorithm": {"base": "dr_grpo", "terms": ["entropy(0.02, end=0.0)"]},
    "learner": {"lr": 0.004, "lr_end": 0.2},
    "stages": [
        {"kind": "warm_start", "steps": 4, "groups": 16, "lr": 0.08},
        {"kind": "reinforce", "steps": 4},
    ],
    "evaluate": {"every": 2, "episodes": 2},
    "keep": {"steps": 3, "last": 3},
    "preflight": {"tasks": 2, "members": 2},
}


def tables(changes: Mapping[str, Any] | None = None) -> Tables:
    """The base run file with flat changes: `{"learner.lr": 1e-3, "stages.1.publish_every": 2}`."""
    out = copy.deepcopy(BASE)
    for key, value in (changes or {}).items():
        *path, last = key.split(".")
        spot: Any = out
        for part in path:
            spot = spot[int(part)] if isinstance(spot, list) else spot.setdefault(part, {})
        spot[last] = value
    if not any(stage["kind"] == "reinforce" for stage in out["stages"]) and "rounds" not in out["algorithm"]:
        out.pop("algorithm", None)  # it would have no effect, and is refused then
    return out


def planned(changes: Mapping[str, Any] | None = None) -> tuple[Plan, World]:
    return plan_of(resolve(tables(changes), {}))


def toml(given: Tables) -> str:
    """Tables as a TOML text (the few kinds of value that run files have)."""
    top = [f"{key} = {json.dumps(value)}" for key, value in given.items() if not isinstance(value, dict | list)]
    for key, value in given.items():
        items = value if isinstance(value, list) else [value]
        for item in items:
            if isinstance(item, dict):
                top.append(f"[[{key}]]" if isinstance(value, list) else f"[{key}]")
                top += [f"{k} = {json.dumps(v)}" for k, v in item.items()]
    return "\n".join(top) + "\n"


def start(path: Path, changes: Mapping[str, Any] | None = None, until: int | None = None) -> list[StepDone | Preflight]:
    """A new run, to its end or to a step."""
    resolved = resolve(tables(changes), {})
    plan, world = plan_of(resolved)
    folder = RunFolder.create(path, run_record(resolved), _keep(plan))
    return _go(plan, world, folder, None, until)


def resume(path: Path, until: int | None = None) -> list[StepDone | Preflight]:
    """A run taken up from its newest checkpoint, from the folder alone and with parts made anew."""
    _, plan, world = stored_plan(RunFolder.open(path).run())
    newest, _ = checkpoint.newest(path / "checkpoints")
    assert newest is not None
    return _go(plan, world, RunFolder.open(path, _keep(plan)), checkpoint.load(newest), until)


def _keep(plan: Plan) -> Keep:
    return Keep(plan.logging.episodes_mb, plan.logging.samples, updates=plan.logging.updates)


def _go(
    plan: Plan, world: World, folder: RunFolder, saved: checkpoint.Checkpoint | None, until: int | None
) -> list[StepDone | Preflight]:
    training = Training(plan, assemble(plan, world), folder)
    return drive(training, folder, saved, lambda: until is not None and training.position.total >= until)


def drive(
    training: Training, folder: RunFolder, saved: checkpoint.Checkpoint | None, stop: Callable[[], bool]
) -> list[StepDone | Preflight]:
    async def steps() -> list[StepDone | Preflight]:
        return [event async for event in training.run(stop)]

    with folder.lock():
        if saved is not None:
            folder.resumed(int(saved.state["position"]["total"]))
            training.resume(saved)
        return asyncio.run(steps())


TIMING = re.compile(r".*(_seconds|_per_second)$")


@dataclass(frozen=True)
class Outcome:
    """All of a run that must not depend on interruptions. Tensors by the hash of their files."""

    tensors: Mapping[str, str]
    state: Mapping[str, Any]
    episodes: list[Mapping[str, Any]]
    samples: list[Mapping[str, Any]]
    metrics: list[Mapping[str, Any]]


def outcome(path: Path) -> Outcome:
    newest, _ = checkpoint.newest(path / "checkpoints")
    assert newest is not None
    folder = RunFolder.open(path)
    files = sorted(newest.glob("*.safetensors"))
    return Outcome(
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        json.loads((newest / "state.json").read_bytes()),
        list(folder.episodes()),
        list(folder.samples()),
        [{k: v for k, v in record.items() if not TIMING.fullmatch(k)} for record in folder.metrics()],
    )


def differences(one: Outcome, other: Outcome) -> list[str]:
    """Names of what differs, in words, so that a failure says where to look."""
    out = [f"tensors {name}" for name in one.tensors if one.tensors[name] != other.tensors.get(name)]
    out += [f"state {key}" for key in one.state if one.state[key] != other.state.get(key)]
    for name in ("episodes", "samples", "metrics"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if len(ours) != len(theirs):
            out.append(f"{name}: {len(ours)} and {len(theirs)}")
        out += [f"{name} of step {a['step']}" for a, b in zip(ours, theirs, strict=False) if a != b]
    return list(dict.fromkeys(out))
