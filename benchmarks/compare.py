"""Every row of the table on one world from one warm start, at equal sampled tokens: `python -m benchmarks.compare`.

Resumable: a run that is done is read, one that was broken off goes on from its newest checkpoint. Data is stale on purpose
(`publish_every = 4`) where a row has a ratio, and each row takes its own number of updates a batch, since at ratio 1 all
ratios and clips are one gradient. Rows without a ratio get fresh data. Tokens are all that the engine sampled for training,
continuations and rejected groups included.
"""

import argparse
import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from strop.algorithms import ALGORITHMS
from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record, stored_plan
from strop.core.algorithm import Divergence, NoRatio, ProcessGroup, ProcessLabels
from strop.learn import checkpoint
from strop.loop.assemble import assemble
from strop.loop.explain import compared, distance
from strop.loop.replay import recorded
from strop.loop.restore import restored
from strop.loop.train import StepDone, Training
from strop.model.load import save
from strop.watch.run_folder import Keep, RunFolder

WORLDS: dict[str, dict[str, Any]] = {
    "guess": {
        "env": "guess",
        "world": {"numbers": 16, "attempts": 4},
        "rollout": {"turns": 4, "turn_tokens": 4, "tokens": 16, "context": 64, "groups": 16},
        "warm": {"steps": 300, "groups": 128, "lr": 2e-3, "terms": ["observations(1.0)"]},
        "tokens": 120_000,
        "lr": 5e-4,
    },
    "craft": {
        "env": "craft",
        "world": {"achievements": 0.1},
        "rollout": {"turns": 10, "turn_tokens": 4, "tokens": 40, "context": 128, "groups": 16},
        "warm": {"steps": 150, "groups": 128, "lr": 2e-3, "terms": ["observations(1.0)"]},
        "tokens": 200_000,
        "lr": 5e-4,
    },
}


def tables(world: str, seed: int, model: dict[str, Any], stages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A run file."""
    w = WORLDS[world]
    return {
        "env": w["env"],
        "seed": seed,
        "world": w["world"],
        "model": model,
        "rollout": w["rollout"],
        "learner": {"lr": w["lr"], "lr_end": 1.0},
        "evaluate": {"every": 0, "episodes": 8},
        "preflight": {"tasks": 0},
        "keep": {"steps": 50, "last": 1, "best": False, "episodes_mb": 8.0},
        "stages": stages,
        **more,
    }


def warm(world: str, seed: int, home: Path) -> Path:
    """The warm start of a world and a seed, as a plain model directory."""
    out = home / "model"
    if not (out / "config.json").is_file():
        stage = {"kind": "warm_start", **WORLDS[world]["warm"]}
        train(tables(world, seed, {"preset": "tiny"}, [stage]), home / "run", None)
        _, plan, made = stored_plan(RunFolder.open(home / "run").run())
        parts, _ = restored(plan, made, home / "run")
        save(parts.policy, out)
    return out


def recipe(world: str, seed: int, name: str, model: Path, teacher: Path | None, steps: int) -> dict[str, Any]:
    """The run file of a row."""
    row = ALGORITHMS[name]
    main: dict[str, Any] = {
        "kind": "rounds" if row.data == "rounds" else "reinforce",
        "steps": steps,
        "algorithm": name,
    }
    if row.rounds.restart:  # each round starts from the base again, so that it needs much data and many updates
        main |= {"groups": 128, "epochs": 8, "minibatches": 8, "lr": 2 * WORLDS[world]["lr"]}
    more: dict[str, Any] = {}
    source: dict[str, Any] = {"path": str(model)}
    if row.data == "on_policy" and not any(isinstance(t, ProcessLabels) for t in row.terms):
        main["publish_every"] = 1 if isinstance(row.ratio, NoRatio) else 4
        # Sixteen updates a batch at the full rate undo each other.
        main["lr"] = WORLDS[world]["lr"] / max(row.updates / 4, 1)
    stages = [main]
    if isinstance(row.credit, ProcessGroup):
        stages = [{"kind": "reinforce", "steps": 20, "algorithm": "process_reward"}, main]
    if any(isinstance(t, Divergence) for t in row.terms):
        source["teacher"] = str(teacher)
    return tables(world, seed, source, stages, **more)


def train(run: dict[str, Any], folder: Path, tokens: int | None) -> list[dict[str, Any]]:
    """Train, or go on, until so many tokens were sampled; returns the metrics."""
    asyncio.run(_train(run, folder, tokens))
    return list(RunFolder.open(folder).metrics())


async def _train(run: dict[str, Any], folder: Path, tokens: int | None) -> None:
    resolved = resolve(run, {})
    plan, world = plan_of(resolved)
    again = (folder / "run.json").is_file()
    home = (
        RunFolder.open(folder) if again else RunFolder.create(folder, run_record(resolved), Keep(8.0, 0.0, updates=2))
    )
    with home.lock():
        training = Training(plan, assemble(plan, world), home)
        newest, _ = checkpoint.newest(home.checkpoints)
        if newest is not None:
            training.resume(checkpoint.load(newest))
        home.resumed(training.position.total)

        spent = Counter(used=int(sum(m.get("engine_tokens") or 0.0 for m in home.metrics())))
        if tokens is None or spent["used"] < tokens:
            async for done in training.run(lambda: tokens is not None and spent["used"] >= tokens):
                if isinstance(done, StepDone):
                    spent["used"] += int(done.values.get("engine_tokens") or 0)
        (folder / "result.json").write_text(json.dumps(await _examine(training)))


async def _examine(training: Training) -> dict[str, float | None]:
    found = await training.examine()
    return {"greedy": found.greedy_success, "sampled": found.sampled_success, **found.of_world}


def result(world: str, seed: int, name: str, home: Path, teacher: Path | None) -> dict[str, Any]:
    """Result of one row: success before and after, tokens, clipped share."""
    folder, done = home / name, home / name / "summary.json"
    if done.is_file():
        return json.loads(done.read_text())
    model = home / "warm" / "model"
    metrics = train(recipe(world, seed, name, model, teacher, 100_000), folder, WORLDS[world]["tokens"])
    steps = [m for m in metrics if m["step"]]
    end = json.loads((folder / "result.json").read_text())
    clipped = [(m.get("clipped_up") or 0.0) + (m.get("clipped_down") or 0.0) for m in steps]
    summary = {
        "start": metrics[0]["eval_sampled_success"],
        "end": end["sampled"],
        "greedy": end["greedy"],
        "held_out": end.get("held_out_success"),
        "steps": len(steps),
        "tokens": sum(m.get("engine_tokens") or 0.0 for m in steps),
        "seconds": sum(m["rollout_seconds"] + m["learner_seconds"] for m in steps),
        "clipped": float(np.mean(clipped)),
    }
    done.write_text(json.dumps(summary))
    return summary


def distances(folder: Path) -> dict[str, float]:
    """How far each row's token weights are from grpo's on the last batch of a run."""
    home = RunFolder.open(folder)
    _, plan, _ = stored_plan(home.run())
    found = recorded(home, plan, None)
    longest = float(plan.limits.longest)
    rows = {n: a.within(longest) for n, a in {"grpo": ALGORITHMS["grpo"], **ALGORITHMS}.items()}
    comparisons = compared(rows, found.rows, found.groups)
    return {c.name: distance(c.weights, comparisons[0].weights) for c in comparisons}


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/compare"))
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", default=None)
    given = parser.parse_args()
    skipped = {"sft", "distillation", "process_reward"}
    names = given.rows or ["grpo", *(n for n in ALGORITHMS if n not in skipped and n != "grpo")]
    for world in given.worlds:
        for seed in given.seeds:
            home = given.folder / world / f"seed{seed}"
            warm(world, seed, home / "warm")
            for name in names:
                found = result(world, seed, name, home, _teacher(world, seed, home))
                print(f"{world} seed {seed} {name}: {found['start']:.3f} -> {found['end']:.3f}", flush=True)
    print(table(given.folder, given.worlds, given.seeds, names))


def _teacher(world: str, seed: int, home: Path) -> Path | None:
    """What grpo learned, as a teacher."""
    out = home / "teacher"
    if not (home / "grpo" / "summary.json").is_file():
        return None
    if not (out / "config.json").is_file():
        _, plan, made = stored_plan(RunFolder.open(home / "grpo").run())
        parts, _ = restored(plan, made, home / "grpo")
        save(parts.policy, out)
    return out


def table(folder: Path, worlds: list[str], seeds: list[int], names: list[str]) -> str:
    """The results as markdown."""
    far = {}
    first = folder / worlds[0] / f"seed{seeds[0]}" / "grpo"
    if first.is_dir():
        far = distances(first)
    head = ["row", *(f"{w}: before, after (seeds)" for w in worlds), "clipped", "distance", "seconds"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name in names:
        cells, clipped, seconds = [name], [], 0.0
        for world in worlds:
            found = [folder / world / f"seed{s}" / name / "summary.json" for s in seeds]
            read = [json.loads(path.read_text()) for path in found if path.is_file()]
            ends = ", ".join(f"{r['end']:.2f}" for r in read)
            mean = float(np.mean([r["end"] for r in read])) if read else float("nan")
            start = float(np.mean([r["start"] for r in read])) if read else float("nan")
            held = [r["held_out"] for r in read if r.get("held_out") is not None]
            apart = f"; held out {np.mean(held):.2f}" if held else ""
            cells.append(f"{start:.2f}, **{mean:.2f}** ({ends}){apart}")
            clipped += [r["clipped"] for r in read]
            seconds += sum(r["seconds"] for r in read)
        cells += [
            f"{np.mean(clipped):.3f}" if clipped else "",
            f"{far[name]:.2f}" if name in far else "",
            f"{seconds:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
