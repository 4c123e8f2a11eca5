"""A run that stale data ends, and the same run with the guard: `python -m benchmarks.guard --folder F --seeds 0 1 2 3 4`.

Resumable: each arm of each seed leaves one JSON file. All arms of a seed start from the same weights (a warm start and 20
steps of reinforcement on `guess` with 8 numbers and 4 attempts). The disturbed ones then play 40 batches with weights that
are not published, at four times the rate, and correct that by the exact ratio of whole trajectories without a clip. The
steps after it are the same in all arms. `replayed` takes a recorded batch of that kind and learns from it with and without
rules.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np

from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record, stored_plan
from strop.core.errors import RunError
from strop.core.guard import OnUpdate, ShareAbove, WeightAbove
from strop.core.metrics import values
from strop.learn import checkpoint
from strop.lecture.drawing import drawn
from strop.lecture.figure import Curve, Panel
from strop.loop.assemble import assemble
from strop.loop.replay import recorded
from strop.loop.restore import restored
from strop.loop.train import StepDone, Training
from strop.model.load import save
from strop.watch.run_folder import Keep, RunFolder

BEFORE, STALE, AFTER = 4, 40, 100
RATE, FASTER = 1e-3, 4e-3
LIMIT = 1000.0
SKIP, CAP = f"ratio({LIMIT:g}, skip)", "share(0.5, cap)"
ARMS: dict[str, tuple[bool, list[str]]] = {
    "undisturbed": (False, []),
    "disturbed": (True, []),
    "disturbed, guard": (True, [SKIP, "ess(0.3, skip)", CAP]),
    "disturbed, guard without ess": (True, [SKIP, CAP]),
}
"""Whether the data is stale, and the rules of the guard. The last one says which rule it is that helps."""


def tables(seed: int, model: dict[str, Any], stages: list[dict[str, Any]], rules: list[str]) -> dict[str, Any]:
    """A run file."""
    return {
        "env": "guess",
        "seed": seed,
        "world": {"numbers": 8, "attempts": 4},
        "model": model,
        "rollout": {"turns": 4, "turn_tokens": 4, "tokens": 16, "context": 64, "groups": 16, "group_size": 8},
        "learner": {"lr": RATE, "lr_end": 1.0},
        "evaluate": {"every": 0, "episodes": 16},
        "preflight": {"tasks": 0},
        "keep": {"steps": 0, "last": 1, "best": False, "episodes_mb": 8.0},
        "guard": {"rules": rules},
        "stages": stages,
    }


def stages(stale: bool) -> list[dict[str, Any]]:
    """The stages of an arm."""
    middle: dict[str, Any] = {"steps": STALE, "groups": 64}
    if stale:
        middle |= {"lr": FASTER, "publish_every": STALE}
    return [{"kind": "reinforce", **given} for given in ({"steps": BEFORE}, middle, {"steps": AFTER})]


def played(run: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """A run to its end: the values of all its steps."""
    if any(stage["kind"] == "reinforce" for stage in run["stages"]):
        run = {**run, "algorithm": {"base": "grpo", "ratio": "trajectory", "clip": "none"}}
    resolved = resolve(run, {})
    plan, world = plan_of(resolved)
    home = RunFolder.create(folder, run_record(resolved), Keep(8.0, 0.0, updates=1))
    steps: list[dict[str, Any]] = []

    async def train() -> None:
        async for done in Training(plan, assemble(plan, world), home).run():
            if isinstance(done, StepDone):
                steps.append({"step": done.step, **done.values})

    with home.lock():
        asyncio.run(train())
    return steps


def begun(seed: int, home: Path) -> Path:
    """The weights from which all arms of a seed start, as a plain model directory."""
    out = home / "model"
    if not (out / "config.json").is_file():
        warm = {"kind": "warm_start", "steps": 150, "groups": 64, "lr": 2e-3, "terms": ["observations(1.0)"]}
        free(home / "begin")
        played(tables(seed, {"preset": "tiny"}, [warm, {"kind": "reinforce", "steps": 20}], []), home / "begin")
        _, plan, world = stored_plan(RunFolder.open(home / "begin").run())
        save(restored(plan, world, home / "begin")[0].policy, out)
    return out


def free(folder: Path) -> None:
    """Put a run aside that was broken off: steps are not kept, so it starts anew."""
    if folder.is_dir():
        folder.rename(folder.with_name(f"{folder.name}-broken-{len(list(folder.parent.iterdir()))}"))


def result(folder: Path, arm: str, seed: int) -> dict[str, Any]:
    """One arm of one seed; made if missing."""
    home = folder / f"seed{seed}"
    done = home / f"{arm.replace(' ', '_').replace(',', '')}.json"
    if not done.is_file():
        stale, rules = ARMS[arm]
        model = begun(seed, home)
        free(done.with_suffix(""))
        steps = played(tables(seed, {"path": str(model)}, stages(stale), rules), done.with_suffix(""))
        found = {
            "arm": arm,
            "seed": seed,
            "success": steps[-1]["eval_sampled_success"],
            "greedy": steps[-1]["eval_greedy_success"],
            "largest_weight": max(step["unit_ratio_max"] for step in steps),
            "skipped": sum(step["skipped_updates"] for step in steps),
            "curve": [(step["step"], step["success"], step["unit_effective_tokens"]) for step in steps],
        }
        done.write_text(json.dumps(found))
    return json.loads(done.read_text())


def replayed(folder: Path, seed: int) -> dict[str, Any]:
    """The first batch with a weight above the limit, learned from once more: without rules, capped, and left out.

    A run with `ratio(1000, stop)` ends before the update: its checkpoint has the weights and the optimizer that the update
    would have met, and its rows are kept. What moved is told as the mean |change of log-probability| of the batch's tokens.
    """
    home = folder / f"seed{seed}"
    done = home / "replayed.json"
    if not done.is_file():
        model, run = begun(seed, home), home / "stopped"
        free(run)
        try:
            played(tables(seed, {"path": str(model)}, stages(True), [f"ratio({LIMIT:g}, stop)"]), run)
            done.write_text(json.dumps({"seed": seed, "reached": False}))
        except RunError:
            done.write_text(json.dumps({"seed": seed, "reached": True, **_replay(run)}))
    return json.loads(done.read_text())


def _replay(run: Path) -> dict[str, Any]:
    _, plan, world = stored_plan(RunFolder.open(run).run())
    newest, _ = checkpoint.newest(run / "checkpoints")
    if newest is None:
        raise RuntimeError("a run that a rule has stopped has a checkpoint")
    step = recorded(RunFolder.open(run), plan, checkpoint.step_of(newest))
    ways: dict[str, tuple[OnUpdate, ...]] = {
        "without": (),
        "cap": (ShareAbove(0.5, "cap"),),
        "skip": (WeightAbove(LIMIT, "skip"),),
    }
    out: dict[str, Any] = {"step": step.step}
    for name, rules in ways.items():
        parts = assemble(plan, world)
        Training(plan, parts, RunFolder.open(run)).resume(checkpoint.load(newest))
        parts.learner.rules = rules
        before = parts.learner.annotate(step.rows, ["logp"])
        report = parts.learner.step(step.rows)
        after = parts.learner.annotate(step.rows, ["logp"])
        moved = [abs(b.columns["logp"] - a.columns["logp"])[a.sampled] for a, b in zip(before, after, strict=True)]
        out[name] = {
            "moved": float(np.concatenate(moved).mean()),
            "gradient_norm": values(report.metrics)["gradient_norm"],
            "named": [trip.sentence for trip in report.trips],
        }
    return out


def table(folder: Path, seeds: list[int]) -> str:
    """One line an arm: where each seed ended."""
    lines = ["| | success, sampled (seeds) | largest weight | updates left out |", "|---|---|---|---|"]
    for arm in ARMS:
        runs = [result(folder, arm, seed) for seed in seeds]
        ends = ", ".join(f"{r['success']:.3f}" for r in runs)
        weights = ", ".join(f"{r['largest_weight']:.3g}" for r in runs)
        skipped = ", ".join(f"{r['skipped']:.0f}" for r in runs)
        lines.append(f"| {arm} | {ends} | {weights} | {skipped} |")
    return "\n".join(lines)


def picture(folder: Path, seed: int) -> str:
    """Success of the played batches, and the share of the tokens that count, of all arms of a seed."""
    total = BEFORE + STALE + AFTER

    names = ("sound", "stale", "guard", "no ess")

    def curve(arm: str, name: str, column: int) -> Curve:
        rows = result(folder, arm, seed)["curve"]
        return Curve(name, tuple((row[0] / total, row[column] or 0.0) for row in rows))

    def panel(column: int, title: str) -> Panel:
        curves = tuple(curve(arm, name, column) for arm, name in zip(ARMS, names, strict=True))
        return Panel(f"{title}, seed {seed}", "share of the run", title, curves)

    return drawn([panel(1, "success"), panel(2, "effective share of tokens")])


def main() -> None:
    """Run what is missing; print a line of JSON for each arm, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/guard"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--svg", nargs=2, metavar=("FILE", "SEED"), default=None)
    given = parser.parse_args()
    for seed in given.seeds:
        for arm in ARMS:
            print(json.dumps({k: v for k, v in result(given.folder, arm, seed).items() if k != "curve"}), flush=True)
        print(json.dumps(replayed(given.folder, seed)), flush=True)
    print(table(given.folder, given.seeds))
    if given.svg:
        Path(given.svg[0]).write_text(picture(given.folder, int(given.svg[1])))


if __name__ == "__main__":
    main()
