"""Ways to learn from a teacher, side by side: `python -m benchmarks.teachers --folder F --seeds 0 1 2`. Resumable.

All arms of a world and a seed start from the same weak warm start (but `grpo alone`, which starts from nothing) and stop
when so many tokens were sampled for training, by whoever sampled them: player, teacher or student. Learner tokens are what
went through the learner, contexts and passes included; passes are chosen so that they are about equal, and both are
printed. Self-distillation has a table of its own (`benchmarks.selfdistil`), since its start must have seen solutions. The
teacher is the same warm start after GRPO with four times the tokens, made once a seed and kept in the folder.
"""

import argparse
import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import WORLDS, warm
from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record, stored_plan
from strop.loop.assemble import assemble
from strop.loop.restore import restored
from strop.loop.train import StepDone, Training
from strop.model.load import save
from strop.watch.run_folder import Keep, RunFolder

REPAIR: dict[str, Any] = {
    "env": "repair",
    "world": {"tasks": 4000, "skill": 0.2},
    "rollout": {"turns": 6, "turn_tokens": 40, "tokens": 128, "context": 256, "groups": 20},
    "tokens": 200_000,
    "lr": 3e-4,
}
PLACES = {**WORLDS, "repair": REPAIR}
TOKENS = {"guess": 120_000, "craft": 100_000, "repair": 200_000}
EPISODES = {"guess": 128, "craft": 128, "repair": 160}
"""Episodes a batch, whoever plays them."""

ROUND = {"guess": 28, "craft": 7, "repair": 12}
"""Batches that one round of self-training samples: six or seven rounds a run."""

KEPT = {"kind": "warm_start", "demonstrations": "teacher", "select": "kept(0.0)"}
TAUGHT = {**KEPT, "select": "kept(-1.0)"}
OWN = {"kind": "reinforce"}
ARMS: dict[str, dict[str, Any]] = {
    "SFT on the player": {"stage": {"kind": "warm_start"}, "row": "sft"},
    "SFT on the teacher": {"stage": TAUGHT, "row": "sft"},
    "rejection sampling": {"stage": KEPT, "row": "sft"},
    "ReST": {"stage": {"kind": "rounds"}, "row": "rest"},
    "ReST-EM": {"stage": {"kind": "rounds", "epochs": 16}, "row": "rest_em"},
    "unfiltered control": {"stage": {"kind": "rounds"}, "row": "unfiltered_rounds"},
    "distillation, saved, forward": {"stage": TAUGHT, "row": "distillation"},
    "on-policy, reverse": {"stage": OWN, "row": "on_policy_distillation"},
    "on-policy, forward": {"stage": OWN, "row": "on_policy_distillation", "terms": ["divergence(1.0, forward)"]},
    "on-policy, JSD": {"stage": OWN, "row": "gkd"},
    "on-policy, sampled token": {"stage": OWN, "row": "opd_sampled"},
    "on-policy, top 4": {"stage": OWN, "row": "on_policy_distillation", "terms": ["divergence(1.0, reverse, top=4)"]},
    "grpo alone": {"stage": OWN, "row": "grpo", "start": "nothing"},
    "warm start + grpo": {"stage": OWN, "row": "grpo"},
}
"""Stage, row, and what the row's terms are replaced by."""

HEAD = "| | sampled (seeds) | greedy | sampled tokens | learner tokens | entropy |\n|---|---|---|---|---|---|"


def tables(place: str, seed: int, model: dict[str, Any], stage: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A run file."""
    w = PLACES[place]
    return {
        "env": w["env"],
        "seed": seed,
        "world": w["world"],
        "model": model,
        "rollout": w["rollout"],
        "algorithm": row,
        "learner": {"lr": w["lr"], "lr_end": 1.0},
        "evaluate": {"every": 0, "episodes": 8},
        "preflight": {"tasks": 0},
        "keep": {"steps": 0, "last": 1, "best": False, "episodes_mb": 8.0},
        "stages": [stage],
    }


def recipe(place: str, seed: int, arm: str, home: Path) -> dict[str, Any]:
    """The run file of an arm."""
    given, many = ARMS[arm], EPISODES[place]
    stage = {"steps": 100_000, **given["stage"]}
    if stage["kind"] == "warm_start":
        stage["groups"] = many
    if stage["kind"] == "rounds":  # ReST-EM keeps few games of a task, so that it cuts them into fewer parts
        parts = 2 if given["row"] == "rest_em" else 2 * ROUND[place]
        stage |= {"groups": PLACES[place]["rollout"]["groups"] * ROUND[place], "group_size": 8, "minibatches": parts}
    model: dict[str, Any] = {"path": str(home / "warm" / "model")}
    if given.get("start") == "nothing":
        model = {"preset": PLACES[place].get("preset", "tiny")}
    if stage.get("demonstrations") == "teacher" or "distillation" in arm or "on-policy" in arm:
        model["teacher"] = str(home / "teacher")
    row = {"base": given["row"]} | ({"terms": given["terms"]} if "terms" in given else {})
    return tables(place, seed, model, stage, row)


def spent(values: dict[str, Any]) -> float:
    """Tokens that were sampled for a step: by the engine, or by who demonstrated."""
    return max(values.get("engine_tokens") or 0.0, values.get("sampled_tokens") or 0.0)


async def _train(run: dict[str, Any], folder: Path, most: int) -> dict[str, Any]:
    resolved = resolve(run, {})
    plan, world = plan_of(resolved)
    home = RunFolder.create(folder, run_record(resolved), Keep(8.0, 0.0, updates=0))
    used: Counter[str] = Counter()
    entropy = 0.0
    with home.lock():
        training = Training(plan, assemble(plan, world), home)
        start = await training.examine()
        async for done in training.run(lambda: used["tokens"] >= most):
            if isinstance(done, StepDone):
                values = done.values
                passed = (values["learner_tokens_per_second"] or 0) * (values["learner_seconds"] or 0)
                used.update(tokens=round(spent(dict(values))), learner_tokens=round(passed), steps=1)
                entropy = values.get("entropy") or entropy
        end = await training.examine()
    return {
        "start": start.sampled_success,
        "sampled": end.sampled_success,
        "greedy": end.greedy_success,
        "held_out": end.of_world.get("held_out_success"),
        **used,
        "entropy": entropy,
    }


def _saved(run: dict[str, Any], folder: Path, out: Path, most: int) -> Path:
    """The weights at the end of a run, as a model directory; made if missing."""
    if not (out / "config.json").is_file():
        _set_aside(folder)
        asyncio.run(_train(run, folder, most))
        _, plan, made = stored_plan(RunFolder.open(folder).run())
        save(restored(plan, made, folder)[0].policy, out)
    return out


def _set_aside(folder: Path) -> None:
    """Make place for a run that was broken off."""
    if folder.is_dir():
        folder.rename(folder.with_name(f"{folder.name}-broken-{len(list(folder.parent.iterdir()))}"))


def prepared(place: str, seed: int, home: Path) -> None:
    """Warm start and teacher of a seed. The warm start of repair is made by `benchmarks.rivals`."""
    if place != "repair":
        warm(place, seed, home / "warm")
    stage = {"kind": "reinforce", "steps": 100_000}
    run = tables(place, seed, {"path": str(home / "warm" / "model")}, stage, {"base": "grpo"})
    _saved(run, home / "teaching", home / "teacher", 4 * TOKENS[place])


def result(place: str, seed: int, arm: str, home: Path) -> dict[str, Any]:
    """The result of an arm; made if missing."""
    done = home / f"{arm.replace(' ', '_').replace(',', '').replace('+', 'and')}.json"
    if not done.is_file():
        folder = done.with_suffix("")
        _set_aside(folder)
        found = asyncio.run(_train(recipe(place, seed, arm, home), folder, TOKENS[place]))
        done.write_text(json.dumps(found))
    return json.loads(done.read_text())


def main() -> None:
    """Run what is missing and print one table a world."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/teachers"))
    parser.add_argument("--worlds", nargs="+", default=["guess", "craft"], choices=list(PLACES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    asked = parser.parse_args()
    for place in asked.worlds:
        for seed in asked.seeds:
            prepared(place, seed, asked.folder / place / f"seed{seed}")
        print(f"\n{place}\n\n{HEAD}")
        for arm in asked.arms:
            runs = [result(place, seed, arm, asked.folder / place / f"seed{seed}") for seed in asked.seeds]
            each = ", ".join(f"{r['sampled']:.2f}" for r in runs)
            mean, greedy, used, learned, entropy = (
                float(np.mean([r[k] for r in runs]))
                for k in ("sampled", "greedy", "tokens", "learner_tokens", "entropy")
            )
            print(
                f"| {arm} | **{mean:.2f}** ({each}) | {greedy:.2f} | {used:,.0f} | {learned:,.0f} | {entropy:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
