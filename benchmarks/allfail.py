"""Tasks in which everybody fails, and what helps: `python -m benchmarks.allfail --folder F --seeds 0 1 2`. Resumable.

The tasks are those of `craft` that a weak start solves in none of 32 samples; with `--least 7` only those of them whose
shortest plan has at least 7 actions, where no easier task of the set opens the way. All arms of a seed go on from that
start, on these tasks alone, and stop at the same number of tokens for training, whoever made them: the agent, the agent
with a hint (tries that failed are counted too), or the player (those that joined, and all of a warm start). A group is
mixed if the agent's own members have different scores; what joined a group never counts.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import WORLDS
from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record, stored_plan
from strop.core.engine import Sampling
from strop.core.world import World
from strop.envs.craft import craft
from strop.loop.assemble import assemble
from strop.loop.restore import restored
from strop.loop.train import StepDone, Training
from strop.model.load import save
from strop.rollout.group import play_groups
from strop.watch.run_folder import Keep, RunFolder

TASKS, SAMPLES = 256, 32
"""Training tasks of craft, and samples of each that the weak start has to fail."""
SKILL = 0.9
"""Of the player that demonstrates hard tasks: he wins 0.94 of them; at craft's own 0.4 it would be 0.24."""
WARM = [
    {"kind": "warm_start", "steps": 60, "groups": 128, "lr": 2e-3, "terms": ["observations(1.0)"]},
    {"kind": "warm_start", "split": "hinted", "steps": 60, "groups": 128, "lr": 2e-3},
]
"""The weak start: first the tasks as they are, by a player of skill 0.4, then tasks whose solution is told."""
REINFORCED = {"kind": "reinforce", "steps": 100_000, "algorithm": "grpo"}
SHOWN = {"kind": "warm_start", "steps": 10, "groups": 128, "lr": 1e-3}
ARMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "warm start, then grpo": {"stages": [SHOWN, REINFORCED], "algorithm": {"base": "sft", "credit": "above(0.0)"}},
    "guide = hint": {"guide": "hint"},
    "guide = demonstration": {"guide": "demonstration"},
}
"""What differs from `grpo`. The warm start imitates successes of the player, as only they join a group."""


def hard(ids: str, skill: float = SKILL) -> World:
    """Craft with the tasks alone whose ids a JSON file lists, for training and for evaluation."""
    made, wanted = craft(tasks=TASKS, skill=skill), set(json.loads(Path(ids).read_text()))
    chosen = [task for task in made.split("train") if task.id in wanted]
    return replace(made, name="hard craft", tasks={"train": chosen, "eval": chosen})


def tables(seed: int, env: str, world: dict[str, Any], model: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A run file."""
    place = WORLDS["craft"]
    return {
        "env": env,
        "seed": seed,
        "world": world,
        "model": model,
        "rollout": place["rollout"],
        "learner": {"lr": place["lr"], "lr_end": 1.0},
        "evaluate": {"every": 0, "episodes": 8},
        "preflight": {"tasks": 0},
        "keep": {"steps": 0, "last": 1, "best": False, "episodes_mb": 8.0},
        **more,
    }


def spent(values: dict[str, Any]) -> float:
    """Tokens of a step: what the engine sampled, or, where a player played too, what stands in the episodes."""
    return max(values.get("engine_tokens") or 0.0, values.get("sampled_tokens") or 0.0)


async def _train(run: dict[str, Any], folder: Path, most: float) -> dict[str, Any]:
    """Train until so many tokens are used; success on the evaluation tasks before and after."""
    resolved = resolve(run, {})
    plan, world = plan_of(resolved)
    home = RunFolder.create(folder, run_record(resolved), Keep(8.0, 0.0, updates=0))
    used: list[float] = []
    with home.lock():
        training = Training(plan, assemble(plan, world), home)
        start = await training.examine()
        async for done in training.run(lambda: sum(used) >= most):
            if isinstance(done, StepDone):
                used.append(spent(dict(done.values)))
        end = await training.examine()
    return {
        "start": start.sampled_success,
        "end": end.sampled_success,
        "greedy": end.greedy_success,
        "tokens": sum(used),
    }


def _set_aside(folder: Path) -> Path:
    """The folder itself; what a broken-off run left there is moved out of the way."""
    if folder.is_dir():
        folder.rename(folder.with_name(f"{folder.name}-broken-{len(list(folder.parent.iterdir()))}"))
    return folder


def prepared(seed: int, home: Path) -> Path:
    """The weak start as a model directory, and `counts.json`, how often it solved each task; made if missing."""
    model, run, counts = home / "warm" / "model", home / "warm" / "run", home / "counts.json"
    if not (model / "config.json").is_file():
        first = tables(seed, "craft", {"tasks": TASKS}, {"preset": "tiny"}, stages=WARM)
        asyncio.run(_train(first, _set_aside(run), float("inf")))
        _, plan, made = stored_plan(RunFolder.open(run).run())
        save(restored(plan, made, run)[0].policy, model)
    if not counts.is_file():
        counts.write_text(json.dumps(solved(run)))
    return model


def chosen(home: Path, least: int, tokens: int) -> Path:
    """The folder of a set and a budget; `ids.json` in it lists the tasks that were never solved."""
    folder = home / f"least-{least}-{tokens}"
    folder.mkdir(parents=True, exist_ok=True)
    counts = json.loads((home / "counts.json").read_text())
    long = {task.id for task in craft(tasks=TASKS).split("train") if task.data["shortest"] >= least}
    (folder / "ids.json").write_text(json.dumps([task for task, n in counts.items() if not n and task in long]))
    return folder


def solved(run: Path) -> dict[str, int]:
    """How many of `SAMPLES` episodes of each training task a run's last weights solve, by id."""
    _, plan, made = stored_plan(RunFolder.open(run).run())
    parts = restored(plan, made, run)[0]
    tasks = made.split("train")
    sampling = Sampling(plan.limits.turn_tokens, 1.0)
    numbers = range(10**6, 10**6 + len(tasks))
    playing = play_groups(parts.table, tasks, SAMPLES, parts.examiner, sampling, ("eval", numbers))
    return {group.task.id: sum(t.score == 1 for t in group.trajectories) for group in asyncio.run(playing)}


def result(seed: int, arm: str, home: Path, least: int, tokens: int) -> dict[str, Any]:
    """What an arm came to; made if missing."""
    place = chosen(home, least, tokens)
    done = place / f"{arm.replace(' ', '_').replace(',', '').replace('=', 'is')}.json"
    folder = done.with_suffix("")
    if not done.is_file():
        given = ARMS[arm]
        world, model = {"ids": str(place / "ids.json")}, {"path": str(prepared(seed, home))}
        run = tables(seed, "benchmarks.allfail:hard", world, model)
        run["stages"] = given.get("stages", [REINFORCED])
        run["rollout"] = {**run["rollout"], "guide": given.get("guide", "none")}
        run |= {"algorithm": given["algorithm"]} if "algorithm" in given else {}
        done.write_text(json.dumps(asyncio.run(_train(run, _set_aside(folder), tokens))))
    return {**json.loads(done.read_text()), **quarters(list(RunFolder.open(folder).metrics()))}


def quarters(metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares of groups in the first and the last quarter of the reinforcement: mixed, all failed, helped; its steps; and the
    tokens of the whole run before the first batch with a mixed group (all of them if there was none).

    Without rewards of turns the rewards are the scores, so that a group without variance has equal scores.
    """
    steps = [m for m in metrics if m["step"] and m["stage"] == "reinforce"]
    size = max(len(steps) // 4, 1)
    first = next((m["step"] for m in steps if m["zero_variance_groups"] < 1), float("inf"))
    out: dict[str, Any] = {"steps": len(steps), "until": sum(spent(m) for m in metrics if m["step"] < first)}
    for name, some in (("first", steps[:size]), ("last", steps[-size:])):
        out[name] = {
            "mixed": float(np.mean([1 - m["zero_variance_groups"] for m in some])),
            "all_fail": float(np.mean([m["all_fail_groups"] for m in some])),
            "helped": float(np.mean([m.get("guided_groups") or 0.0 for m in some])),
        }
    return out


def table(folder: Path, seeds: Sequence[int], arms: Sequence[str], least: int, tokens: int) -> str:
    """One line an arm: shares of groups (first quarter, last quarter), success before and after, tokens."""
    lines = [
        "| | mixed | tokens until mixed | all failed | helped | success before | after (seeds) | greedy | tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        runs = [result(seed, arm, folder / f"seed{seed}", least, tokens) for seed in seeds]
        cells = [f"`{arm}`"]
        for share in ("mixed", "all_fail", "helped"):
            cells.append(", ".join(f"{np.mean([run[q][share] for run in runs]):.2f}" for q in ("first", "last")))
        cells.insert(2, f"{np.mean([run['until'] for run in runs]):,.0f}")
        ends = ", ".join(f"{run['end']:.2f}" for run in runs)
        mean = {k: float(np.mean([run[k] for run in runs])) for k in ("start", "end", "greedy", "tokens")}
        cells += [
            f"{mean['start']:.3f}",
            f"**{mean['end']:.2f}** ({ends})",
            f"{mean['greedy']:.2f}",
            f"{mean['tokens']:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/allfail"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument(
        "--least", type=int, default=2, help="shortest plans of the tasks have at least so many actions"
    )
    parser.add_argument("--tokens", type=int, default=100_000)
    asked = parser.parse_args()
    for seed in asked.seeds:
        home = asked.folder / f"seed{seed}"
        prepared(seed, home)
        ids = json.loads((chosen(home, asked.least, asked.tokens) / "ids.json").read_text())
        print(f"seed {seed}: {len(ids)} of {TASKS} tasks, none solved in {SAMPLES} samples", flush=True)
    print(table(asked.folder, asked.seeds, asked.arms, asked.least, asked.tokens))


if __name__ == "__main__":
    main()
