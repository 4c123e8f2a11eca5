"""Which task to draw next: `python -m benchmarks.curriculum --folder runs/curriculum --seeds 0 1 2`. Resumable.

`craft` without turn rewards, 140 tasks with shortest plans of 2 to 8 actions in equal shares. All samplers of a seed start
from one warm start and stop one batch after the tokens sampled for training have come to the same number. What is
compared is success on the fixed evaluation tasks, by the length of their shortest plan; success in training depends on
the draw.
"""

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import WORLDS, tables, train
from strop.config.stored import stored_plan
from strop.loop.assemble import Parts
from strop.loop.evaluate import evaluate
from strop.loop.restore import restored
from strop.model.load import save
from strop.watch.run_folder import RunFolder

SAMPLERS = {
    "uniform": "uniform",
    "learnable": "learnable",
    "failing": "failing",
    "target": "target(nearest=20)",
    "easy_to_hard": "easy_to_hard([{}])",
    "retire": "retire",
}
"""The samplers, in the notation of run files; the levels of `easy_to_hard` open at about even shares of the run."""
LEVELS, BATCH = 4, 2500
"""Levels of `easy_to_hard`, and tokens that a batch samples, roughly."""
EPISODES = 8
"""Sampled episodes of each evaluation task."""


def run_file(seed: int, model: dict[str, Any], stage: dict[str, Any], sampler: str = "uniform") -> dict[str, Any]:
    """A run file."""
    rollout = {**WORLDS["craft"]["rollout"], "sampler": sampler}
    return tables("craft", seed, model, [stage], rollout=rollout) | {"world": {"tasks": 140}}


def warm(seed: int, home: Path) -> Path:
    """The warm start of a seed, as a plain model directory."""
    out = home / "model"
    if not (out / "config.json").is_file():
        stage = {"kind": "warm_start", **WORLDS["craft"]["warm"]}
        train(run_file(seed, {"preset": "tiny"}, stage), home / "run", None)
        save(_parts(home / "run").policy, out)
        (home / "depth.json").write_text(json.dumps(by_depth(home / "run")))
    return out


def _parts(run: Path) -> Parts:
    _, plan, world = stored_plan(RunFolder.open(run).run())
    return restored(plan, world, run)[0]


def by_depth(run: Path) -> dict[str, float]:
    """Sampled success of a run's last weights on the evaluation tasks, by the length of the shortest plan, and of all."""
    parts = _parts(run)
    tasks = parts.world.split("eval")
    depths = sorted({int(task.data["shortest"]) for task in tasks})
    return {str(depth): _success(parts, depth) for depth in depths} | {"all": _success(parts, None)}


def _success(parts: Parts, depth: int | None) -> float:
    chosen = [task for task in parts.world.split("eval") if depth in (None, task.data["shortest"])]
    table = replace(parts.table, world=replace(parts.world, tasks={"train": chosen, "eval": chosen}))
    return float(asyncio.run(evaluate(table, parts.examiner, 1.0, EPISODES)).sampled_success or 0.0)


def result(folder: Path, seed: int, name: str, tokens: int) -> dict[str, Any]:
    """What one sampler came to; made or gone on with if it is missing."""
    home = folder / f"seed{seed}"
    done = home / f"{name}-{tokens}.json"
    if not done.is_file():
        model = warm(seed, home / "warm")
        steps = tokens // BATCH
        opens = ", ".join(str(max(steps * level // LEVELS, level)) for level in range(1, LEVELS))
        stage = {"kind": "reinforce", "steps": 100_000, "algorithm": "grpo"}
        run = run_file(seed, {"path": str(model)}, stage, SAMPLERS[name].format(opens))
        metrics = [m for m in train(run, home / f"{name}-{tokens}", tokens) if m["step"]]
        signal = [m["nonzero_advantage"] for m in metrics if m.get("nonzero_advantage") is not None]
        found = {
            "depth": by_depth(home / f"{name}-{tokens}"),
            "steps": len(metrics),
            "tokens": sum(m.get("engine_tokens") or 0.0 for m in metrics),
            "signal": float(np.mean(signal)),
            "tasks": [m.get("sampler_tasks") for m in metrics],
            "target": [m.get("sampler_target") for m in metrics],
            "seconds": sum(m["rollout_seconds"] + m["learner_seconds"] for m in metrics),
        }
        done.write_text(json.dumps(found))
    return json.loads(done.read_text())


def table(folder: Path, seeds: list[int], names: list[str], tokens: int) -> str:
    """One line a sampler: success of all tasks by seed, means by depth, share of episodes with an advantage."""
    start = [json.loads((folder / f"seed{seed}" / "warm" / "depth.json").read_text()) for seed in seeds]
    depths = [depth for depth in start[0] if depth != "all"]
    head = ["sampler", "success (seeds)", *(f"{depth} actions" for depth in depths), "with a signal", "batches"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines.append(_line("warm start", start, depths, ["", ""]))
    for name in names:
        found = [result(folder, seed, name, tokens) for seed in seeds]
        more = [f"{np.mean([f['signal'] for f in found]):.2f}", f"{np.mean([f['steps'] for f in found]):.0f}"]
        lines.append(_line(name, [f["depth"] for f in found], depths, more))
    return "\n".join(lines)


def _line(name: str, found: list[dict[str, float]], depths: list[str], more: list[str]) -> str:
    ends = ", ".join(f"{f['all']:.2f}" for f in found)
    cells = [name, f"**{np.mean([f['all'] for f in found]):.2f}** ({ends})"]
    cells += [f"{np.mean([f[depth] for f in found]):.2f}" for depth in depths]
    return f"| {' | '.join([*cells, *more])} |"


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/curriculum"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--tokens", type=int, default=200_000)
    given = parser.parse_args()
    for seed in given.seeds:
        for name in given.samplers:
            found = result(given.folder, seed, name, given.tokens)
            print(f"seed {seed} {name}: {found['depth']['all']:.3f} in {found['steps']} batches", flush=True)
    print(table(given.folder, given.seeds, given.samplers, given.tokens))


if __name__ == "__main__":
    main()
