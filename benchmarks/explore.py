"""Why a run locks into a search tree of 14 of 16, and what helps: `python -m benchmarks.explore`. Resumable.

Each run starts from the same warm start of its seed and is looked at while it goes on: entropy, distinct action sequences,
and the probabilities of the next number at two fixed histories (the opening, and 8 answered `higher`). A first guess g leads
to 1 + s(g - 1) + s(16 - g) secrets at best, s what three more guesses can find: 15 for 8 and 9, 14 for 7 and 10, 12 for 5.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record, stored_plan
from strop.core.message import Message
from strop.core.trajectory import Completion
from strop.envs.guess import opening, solvable
from strop.lecture.drawing import drawn
from strop.lecture.figure import Curve, Panel
from strop.loop.assemble import Parts, assemble
from strop.loop.restore import restored
from strop.loop.train import StepDone, Training
from strop.model.attention import RowsLayout
from strop.model.load import save
from strop.watch.run_folder import Keep, RunFolder

NUMBERS, ATTEMPTS = 16, 4
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "entropy 0.01, decaying": {"algorithm.terms": ["entropy(0.01, end=0)"]},
    "entropy 0.05, decaying": {"algorithm.terms": ["entropy(0.05, end=0)"]},
    "entropy 0.05, kept": {"algorithm.terms": ["entropy(0.05)"]},
    "clip higher": {"algorithm.clip": "ppo(0.2, 0.28)", "learner.minibatches": 4},
    "temperature 1.3": {"rollout.temperature": 1.3},
    "groups of 16": {"rollout.groups": 16, "rollout.group_size": 16},
}
"""What differs from `grpo` with 32 groups of 8. Clip-higher needs several updates a batch to do anything."""


def tables(seed: int, model: dict[str, Any], stages: list[dict[str, Any]], changes: dict[str, Any]) -> dict[str, Any]:
    """A run file."""
    out: dict[str, Any] = {
        "env": "guess",
        "seed": seed,
        "world": {"numbers": NUMBERS, "attempts": ATTEMPTS},
        "model": model,
        "rollout": {"turns": 4, "turn_tokens": 4, "tokens": 16, "context": 64, "groups": 32, "group_size": 8},
        "learner": {"lr": 5e-4},
        "evaluate": {"every": 0, "episodes": 16},
        "preflight": {"tasks": 0},
        "keep": {"steps": 0, "last": 1, "best": False, "episodes_mb": 8.0},
        "stages": stages,
    }
    for key, value in changes.items():
        section, name = key.split(".")
        out.setdefault(section, {})[name] = value
    return out


def warm(seed: int, home: Path) -> Path:
    """The warm start of a seed, as a plain model directory."""
    out = home / "model"
    if not (out / "config.json").is_file():
        stage = {"kind": "warm_start", "steps": 300, "groups": 128, "lr": 2e-3, "terms": ["observations(1.0)"]}
        asyncio.run(_run(tables(seed, {"preset": "tiny"}, [stage], {}), home / "run", 1000))
        _, plan, world = stored_plan(RunFolder.open(home / "run").run())
        save(restored(plan, world, home / "run")[0].policy, out)
    return out


async def _run(run: dict[str, Any], folder: Path, every: int) -> list[dict[str, Any]]:
    resolved = resolve(run, {})
    plan, world = plan_of(resolved)
    home = RunFolder.create(folder, run_record(resolved), Keep(8.0, 0.0, updates=1))
    looks: list[dict[str, Any]] = []
    with home.lock():
        parts = assemble(plan, world)
        looks.append({"step": 0, **look(parts)})
        async for done in Training(plan, parts, home).run():
            if isinstance(done, StepDone) and (done.step % every == 0 or done.step == done.steps):
                kept = ("success", "entropy", "distinct_sequences", "zero_variance_groups")
                ends = ("eval_greedy_success", "eval_sampled_success")
                read = {k: done.values.get(k) for k in (*kept, *ends)}
                looks.append({"step": done.step, **read, **look(parts)})
    return looks


def look(parts: Parts) -> dict[str, list[float]]:
    """Probability of each number as the first guess, and after 8 was answered `higher`."""
    codec = parts.table.codec
    start = codec.opening([Message("user", opening(NUMBERS, ATTEMPTS))])
    said = codec.reply("8")
    n = len(said)
    completion = Completion(said, np.zeros(n, np.float32), np.zeros(n, np.int32), "stop")
    after = np.concatenate([start, said, codec.extension([Message("user", "higher")], completion)])
    return {"first": next_number(parts, start), "second": next_number(parts, after)}


def next_number(parts: Parts, ids: np.ndarray) -> list[float]:
    """Probabilities of the sixteen numbers as the next token."""
    policy = parts.policy
    tokens = [int(parts.table.codec.reply(str(g))[0]) for g in range(1, NUMBERS + 1)]
    with torch.no_grad():
        hidden = policy.hidden(
            torch.tensor(ids.tolist()), torch.arange(len(ids)), RowsLayout([len(ids)], policy.device)
        )
        p = torch.softmax(policy.logits(hidden[-1]), -1)
    return [float(p[t]) for t in tokens]


def reachable(first: list[float]) -> tuple[int, int]:
    """The most probable first guess and the number of secrets that it can lead to."""
    g = int(np.argmax(first)) + 1
    return g, 1 + solvable(g - 1, ATTEMPTS - 1) + solvable(NUMBERS - g, ATTEMPTS - 1)


def result(folder: Path, name: str, seed: int, steps: int) -> list[dict[str, Any]]:
    """The looks of one run; made if missing."""
    home = folder / f"seed{seed}"
    done = home / f"{name.replace(' ', '_').replace(',', '')}.json"
    if not done.is_file():
        model = warm(seed, home / "warm")
        stage = {"kind": "reinforce", "steps": steps}
        run = tables(seed, {"path": str(model)}, [stage], CONFIGS[name])
        target = done.with_suffix("")
        if target.is_dir():  # broken off: looks are not kept, so it starts anew
            target.rename(target.with_name(f"{target.name}-broken-{len(list(home.iterdir()))}"))
        done.write_text(json.dumps(asyncio.run(_run(run, target, 20))))
    return json.loads(done.read_text())


def table(folder: Path, seeds: list[int], names: list[str], steps: int) -> str:
    """One line a configuration: where each seed ended."""
    lines = [
        "| | success, sampled (seeds) | first guess, secrets in reach | entropy half-way, at the end |",
        "|---|---|---|---|",
    ]
    for name in names:
        runs = [result(folder, name, seed, steps) for seed in seeds]
        ends = ", ".join(f"{r[-1]['eval_sampled_success']:.2f}" for r in runs)
        tree = ", ".join("{}: {}".format(*reachable(r[-1]["first"])) for r in runs)
        half = float(np.mean([r[len(r) // 2]["entropy"] for r in runs]))
        last = float(np.mean([r[-1]["entropy"] for r in runs]))
        lines.append(f"| {name} | {ends} | {tree} | {half:.2f}, {last:.2f} |")
    return "\n".join(lines)


def picture(folder: Path, pair: list[tuple[str, int]], steps: int) -> str:
    """Probabilities of first guesses over time, for two runs side by side."""
    panels: list[Panel] = []
    for name, seed in pair:
        looks = result(folder, name, seed, steps)
        top = np.argsort([-x for x in looks[-1]["first"]])[:2].tolist()
        shown = list(dict.fromkeys([*top, 7, 8]))[:4]
        curves = tuple(
            Curve(f"first guess {g + 1}", tuple((look["step"] / steps, look["first"][g]) for look in looks))
            for g in shown
        )
        panels.append(Panel(f"{name}, seed {seed}", "share of the run", "probability", curves))
    return drawn(panels)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/explore"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--configs", nargs="+", default=list(CONFIGS))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--svg", nargs=3, metavar=("FILE", "CONFIG:SEED", "CONFIG:SEED"), default=None)
    given = parser.parse_args()
    print(table(given.folder, given.seeds, given.configs, given.steps))
    if given.svg:
        pair = [(text.rsplit(":", 1)[0], int(text.rsplit(":", 1)[1])) for text in given.svg[1:]]
        Path(given.svg[0]).write_text(picture(given.folder, pair, given.steps))


if __name__ == "__main__":
    main()
