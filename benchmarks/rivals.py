"""What else could have taught the coding agent: `python -m benchmarks.rivals --folder DIR`. Resumable.

All arms start from one warm start of their seed (`recipes/repair.toml` without its last stage) and are measured on the 640
held-out instances. `reinforced` is the recipe's last stage. `supervised` goes on imitating the player for as long as that
took, `successes` the same on those of his demonstrations that are right; `own successes` imitates the agent's own successes,
batch by batch (expert iteration), and `shuffled` reinforces with the scores of other episodes.
"""

import argparse
import asyncio
import json
import random
import tomllib
from collections.abc import Awaitable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import strop
from strop.config.stored import stored_plan
from strop.core.seeds import python_random
from strop.core.task import Task, Verdict
from strop.core.trajectory import Trajectory
from strop.core.world import World
from strop.envs.repair.world import repair
from strop.loop.evaluate import evaluate
from strop.loop.restore import restored
from strop.model.load import save
from strop.watch.run_folder import RunFolder

RECIPE = Path("recipes/repair.toml")
ARMS = ("reinforced", "supervised", "successes", "own successes", "shuffled")
POOL = 16


def shuffled(tasks: int = 4000, skill: float = 0.2) -> World:
    """Repair whose verifier gives the score of another of the newest episodes: as many successes, none of them earned."""
    made = repair(tasks, skill)
    pool: list[Verdict] = []
    stream: random.Random = python_random((0, 77))

    async def verify(task: Task, trajectory: Trajectory) -> Verdict:
        own = await cast("Awaitable[Verdict]", made.verify(task, trajectory))
        pool.append(own)
        return pool.pop(stream.randrange(len(pool))) if len(pool) > POOL else replace(own, score=0.0)

    return replace(made, name="shuffled", verify=verify)


def seconds(folder: Path, stage: int) -> tuple[float, int]:
    """Time spent in a stage of a run, in seconds, and its steps."""
    lines = [m for m in RunFolder.open(folder).metrics() if m.get("stage_index") == stage and "learner_seconds" in m]
    return sum(m["rollout_seconds"] + m["learner_seconds"] for m in lines), len(lines)


def tables(arm: str, seed: int, home: Path) -> dict[str, Any]:
    """The run file of an arm."""
    recipe: dict[str, Any] = {**tomllib.loads(RECIPE.read_text()), "seed": seed}
    drill, warm, reinforce = recipe["stages"]
    if arm == "warm":
        return recipe | {"stages": [drill, warm, reinforce | {"steps": 0}]}
    recipe["model"] = {"path": str(home / "warm-model")}
    if arm in ("reinforced", "shuffled"):
        env = "benchmarks.rivals:shuffled" if arm == "shuffled" else "repair"
        return recipe | {"env": env, "stages": [reinforce], "preflight": {"tasks": 0}}
    if arm == "own successes":
        stage = {"kind": "rounds", "steps": reinforce["steps"], "lr": 1e-3}
        return recipe | {"algorithm": {"base": "expert_iteration"}, "stages": [stage], "preflight": {"tasks": 0}}
    budget, _ = seconds(home / "reinforced", 0)
    spent, steps = seconds(home / "warm", 1)
    more = warm | {"steps": round(budget / (spent / steps)), "lr": 1e-3}
    out = recipe | {"stages": [more]}
    out.pop("algorithm")
    if arm == "successes":
        out["algorithm"] = {"base": "sft", "credit": "above(0.0)"}
    return out


def run(arm: str, seed: int, home: Path) -> dict[str, Any]:
    """The result of an arm; made if missing."""
    done = home / f"{arm.replace(' ', '_')}.json"
    if done.is_file():
        return json.loads(done.read_text())
    folder = home / arm.replace(" ", "_")
    if folder.is_dir():  # broken off
        folder.rename(folder.with_name(f"{folder.name}-broken-{len(list(home.iterdir()))}"))
    strop.run(tables(arm, seed, home), folder, unaudited=True)
    _, plan, _ = stored_plan(RunFolder.open(folder).run())
    parts, _ = restored(plan, repair().judged_on("held_out"), folder)
    if arm == "warm":
        save(parts.policy, home / "warm-model")
    found = asyncio.run(evaluate(parts.table, parts.examiner, plan.temperature, 1))
    stages = len(plan.stages)
    result = asdict(found) | {"seconds": sum(seconds(folder, stage)[0] for stage in range(stages))}
    done.write_text(json.dumps(result))
    return result


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    asked = parser.parse_args()
    print("| | seed | sampled | greedy | seconds |\n|---|---|---|---|---|")
    for seed in asked.seeds:
        home = asked.folder / f"seed{seed}"
        home.mkdir(parents=True, exist_ok=True)
        for arm in ("warm", *asked.arms):
            found = run(arm, seed, home)
            numbers = f"{found['sampled_success']:.3f} | {found['greedy_success']:.3f} | {found['seconds']:.0f}"
            print(f"| {arm} | {seed} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
