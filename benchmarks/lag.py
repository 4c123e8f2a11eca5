"""What stale data costs, and which correction pays for it: `python -m benchmarks.lag --folder F --seeds 0 1 2`. Resumable.

Every arm of a seed starts from the same weights and plays the same number of games of `guess`: the row at lag 0, and rows with
and without a correction at lag 4, at a rate at which the policy moves during five batches. Without any correction there is
no importance ratio at all: stale episodes are taken as if the current policy had played them.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.explore import warm
from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record
from strop.loop.assemble import assemble
from strop.loop.train import StepDone, Training
from strop.watch.run_folder import Keep, RunFolder

ARMS: dict[str, tuple[int, dict[str, Any]]] = {
    "grpo, lag 0": (0, {"base": "grpo"}),
    "decoupled_ppo, lag 0": (0, {"base": "decoupled_ppo"}),
    "decoupled_ppo, lag 4": (4, {"base": "decoupled_ppo"}),
    "cispo, lag 0": (0, {"base": "cispo"}),
    "cispo, lag 4": (4, {"base": "cispo"}),
    "gspo, lag 0": (0, {"base": "gspo"}),
    "gspo, lag 4": (4, {"base": "gspo"}),
    "no correction, lag 4": (4, {"base": "grpo", "ratio": "none", "clip": "none"}),
}
"""Lag and algorithm. Lag 0 of each row is the measure of its lag 4."""


def tables(seed: int, model: Path, arm: str, steps: int, lr: float) -> dict[str, Any]:
    """The run file of an arm."""
    lag, algorithm = ARMS[arm]
    return {
        "env": "guess",
        "seed": seed,
        "max_lag": lag,
        "world": {"numbers": 16, "attempts": 4},
        "model": {"path": str(model)},
        "rollout": {"turns": 4, "turn_tokens": 4, "tokens": 16, "context": 64, "groups": 32, "group_size": 8},
        "algorithm": {**algorithm, "terms": ["entropy(0.05, end=0.0)"]},
        "learner": {"lr": lr, "minibatches": 4},
        "stages": [{"kind": "reinforce", "steps": steps}],
        "evaluate": {"every": 0, "episodes": 64},
        "preflight": {"tasks": 0},
        "keep": {"steps": 0, "last": 1, "best": False, "episodes_mb": 8.0},
    }


async def _run(run: dict[str, Any], folder: Path) -> dict[str, float]:
    resolved = resolve(run, {})
    plan, world = plan_of(resolved)
    home = RunFolder.create(folder, run_record(resolved), Keep(8.0, 0.0, updates=0))
    steps: list[dict[str, float | None]] = []
    with home.lock():
        parts = assemble(plan, world)
        async for done in Training(plan, parts, home).run():
            if isinstance(done, StepDone):
                steps.append(done.values)
        parts.close()
    tail = steps[-20:]
    return {
        "sampled": float(steps[-1]["eval_sampled_success"] or 0),
        "greedy": float(steps[-1]["eval_greedy_success"] or 0),
        "trained": float(np.mean([s["success"] or 0 for s in tail])),
        "lag": float(np.mean([s.get("lag") or 0 for s in steps])),
        "lag_max": float(max(s.get("lag_max") or 0 for s in steps)),
        "tokens": float(sum(s["sampled_tokens"] or 0 for s in steps)),
        "ratio_max": float(max(s.get("ratio_max") or 0 for s in steps)),
    }


def result(folder: Path, seed: int, arm: str, steps: int, lr: float) -> dict[str, float]:
    """The result of one arm; made if missing."""
    home = folder / f"seed{seed}"
    done = home / f"{arm.replace(' ', '_').replace(',', '')}.json"
    if not done.is_file():
        model = warm(seed, home / "warm")
        target = done.with_suffix("")
        if target.is_dir():  # broken off
            target.rename(target.with_name(f"{target.name}-broken-{len(list(home.iterdir()))}"))
        done.write_text(json.dumps(asyncio.run(_run(tables(seed, model, arm, steps, lr), target))))
    return json.loads(done.read_text())


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/lag"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--lr", type=float, default=5e-4)
    asked = parser.parse_args()
    print("| arm | sampled (seeds) | mean | greedy | lag: mean, greatest | largest ratio |\n|---|---|---|---|---|---|")
    for arm in asked.arms:
        runs = [result(asked.folder, seed, arm, asked.steps, asked.lr) for seed in asked.seeds]
        each, greedy = (", ".join(f"{r[name]:.2f}" for r in runs) for name in ("sampled", "greedy"))
        mean = np.mean([r["sampled"] for r in runs])
        lags = f"{np.mean([r['lag'] for r in runs]):.1f}, {max(r['lag_max'] for r in runs):.0f}"
        print(
            f"| {arm} | {each} | {mean:.3f} | {greedy} | {lags} | {max(r['ratio_max'] for r in runs):.3g} |", flush=True
        )


if __name__ == "__main__":
    main()
