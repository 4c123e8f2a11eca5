"""What a student learns from a teacher that knows the answer: `python -m benchmarks.selfdistil --folder F`. Resumable.

All rows start from one warm start of a seed. It mixes tasks as they are with tasks whose opening tells the solution, both
played by a player who errs, so that the model knows what a told solution is good for, also after a mistake. On `guess` the
student cannot know what the teacher is told; on `craft` it could find it out. A run is looked at every few steps, by
episodes that no training sees, and runs are compared at the sampled tokens that the shortest of them took in all.
"""

import argparse
import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.explore import next_number
from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record, stored_plan
from strop.core.engine import Sampling
from strop.core.message import Message
from strop.core.metrics import combine, values
from strop.core.task import Task
from strop.core.trajectory import Group
from strop.core.world import HINTED, Player, World, is_hinted
from strop.envs import craft as crafts
from strop.envs import guess as guesses
from strop.loop.assemble import Parts, assemble
from strop.loop.restore import restored
from strop.loop.train import StepDone, Training
from strop.model.load import save
from strop.rollout.group import play_groups
from strop.watch.measure import measure_groups
from strop.watch.run_folder import Keep, RunFolder

NUMBERS, ATTEMPTS = 16, 4
TOLD_SKILL = 0.75
"""How often the told player of the warm start does what it was told."""

EVERY = 10
"""Steps between two looks."""

ROWS = ("grpo", "self_distillation", "self_distillation_own")
WORLDS: dict[str, dict[str, Any]] = {
    "guess": {
        "env": "benchmarks.selfdistil:guess",
        "rollout": {"turns": 4, "turn_tokens": 4, "tokens": 16, "context": 64, "groups": 16, "group_size": 8},
        "warm": {"steps": 300, "groups": 128, "lr": 2e-3},
        "steps": 150,
        "episodes": 16,
    },
    "craft": {
        "env": "benchmarks.selfdistil:craft",
        "rollout": {"turns": 10, "turn_tokens": 4, "tokens": 40, "context": 128, "groups": 16, "group_size": 8},
        "warm": {"steps": 200, "groups": 128, "lr": 2e-3, "terms": ["observations(1.0)"]},
        "steps": 100,
        "episodes": 4,
    },
}

# --- worlds


def guess() -> World:
    """Guess 1 to 16 in four, with a split `both`."""
    world = guesses.guess(NUMBERS, ATTEMPTS)

    def told(task: Task, stream: Random) -> Player:
        def reply(messages: Sequence[Message]) -> str:
            return str(task.data["secret"] if stream.random() < TOLD_SKILL else stream.randint(1, NUMBERS))

        return reply if is_hinted(task) else guesses.player(task, stream, 0.2)

    return _both(replace(world, demonstrate=told))


def craft() -> World:
    """Craft with plans of at most eight actions, with a split `both`."""

    def played(task: Task, stream: Random) -> Player:
        return crafts.player(task, stream, TOLD_SKILL if is_hinted(task) else 0.4)

    return _both(replace(crafts.craft(), demonstrate=played))


def _both(world: World) -> World:
    pairs = zip(world.split("train"), world.split(HINTED), strict=True)
    return replace(world, tasks={**world.tasks, "both": [task for pair in pairs for task in pair]})


# --- runs


def tables(world: str, seed: int, model: dict[str, Any], stages: list[dict[str, Any]]) -> dict[str, Any]:
    """A run file."""
    return {
        "env": WORLDS[world]["env"],
        "seed": seed,
        "model": model,
        "rollout": WORLDS[world]["rollout"],
        "learner": {"lr": 5e-4},
        "stages": stages,
        "evaluate": {"every": 0, "episodes": 1},
        "preflight": {"tasks": 0},
        "keep": {"steps": 0, "last": 1, "best": False, "episodes_mb": 8.0},
    }


def warm(world: str, seed: int, home: Path) -> Path:
    """The warm start of a seed, as a plain model directory."""
    out = home / "model"
    if not (out / "config.json").is_file():
        stage = {"kind": "warm_start", "split": "both", **WORLDS[world]["warm"]}
        target = _unused(home / "run")
        asyncio.run(_run(world, tables(world, seed, {"preset": "tiny"}, [stage]), target, 0))
        _, plan, made = stored_plan(RunFolder.open(target).run())
        save(restored(plan, made, target)[0].policy, out)
    return out


def _unused(target: Path) -> Path:
    """The path itself; what a broken-off run left there is moved aside, since its looks are not kept."""
    if target.is_dir():
        target.rename(target.with_name(f"{target.name}-broken-{len(list(target.parent.iterdir()))}"))
    return target


async def _run(world: str, run: dict[str, Any], folder: Path, every: int) -> list[dict[str, Any]]:
    resolved = resolve(run, {})
    plan, made = plan_of(resolved)
    home = RunFolder.create(folder, run_record(resolved), Keep(8.0, 0.0, updates=1))
    looks: list[dict[str, Any]] = []
    spent = 0.0
    with home.lock():
        parts = assemble(plan, made)
        if every:
            told = await look(world, parts, HINTED)
            looks.append({"step": 0, "tokens": 0, **await look(world, parts, "eval"), "told": told["success"]})
        async for done in Training(plan, parts, home).run():
            if not isinstance(done, StepDone):
                continue
            spent += done.values.get("engine_tokens") or 0.0
            if every and (done.step % every == 0 or done.step == done.steps):
                kept = ("entropy", "teacher_divergence", "told_rows", "distinct_sequences")
                read = {f"train_{name}": done.values.get(name) for name in kept}
                looks.append({"step": done.step, "tokens": spent, **read, **await look(world, parts, "eval")})
    return looks


# --- looks


async def look(world: str, parts: Parts, split: str) -> dict[str, Any]:
    """What the policy does on a split, by episodes that nobody learns from."""
    tasks = list(parts.world.split(split))[:: max(1, len(parts.world.split(split)) // 64)]
    await parts.examiner.load(None, 0)
    numbers = range(10**6, 10**6 + len(tasks))
    sampling = Sampling(parts.table.limits.turn_tokens, 1.0)
    groups = await play_groups(
        parts.table, tasks, WORLDS[world]["episodes"], parts.examiner, sampling, ("eval", numbers)
    )
    names = ("success", "turns", "distinct_sequences", "infeasible_guesses", "dead_ends", "wasted_actions")
    read = values(combine([measure_groups(parts.world, groups)]))
    out: dict[str, Any] = {name: read[name] for name in (*names, "held_out_success") if name in read}
    if world == "guess":
        out |= asked(groups)
        start = parts.table.codec.opening([Message("user", guesses.opening(NUMBERS, ATTEMPTS))])
        out["first"] = next_number(parts, start)
    return out


def asked(groups: Sequence[Group]) -> dict[str, float]:
    """How games ask: the share whose first guess is the secret, and the bits that a guess inside the interval asks for.

    Bits are the entropy of the answer over the secrets that the answers so far allow: how much a guess can be expected to
    tell. Halving sixteen numbers asks for 1.27 bits, their smallest or largest for 0.34.
    """
    first, games, bits, inside = 0, 0, 0.0, 0
    for group in groups:
        secret = group.task.data["secret"]
        for trajectory in group.trajectories:
            played: list[int | None] = trajectory.artefacts["guesses"]
            first, games = first + (played[0] == secret), games + 1
            for k, guess in enumerate(played):
                low, high = guesses.feasible(played[:k], secret, NUMBERS)
                if guess is not None and low <= guess <= high and high > low:
                    bits, inside = bits + _bits([guess - low, 1, high - guess]), inside + 1
    return {"first_is_secret": first / games, "bits": bits / max(inside, 1)}


def _bits(counts: Sequence[int]) -> float:
    total = sum(counts)
    return -sum(n / total * math.log2(n / total) for n in counts if n)


def result(folder: Path, world: str, row: str, seed: int, steps: int) -> list[dict[str, Any]]:
    """The looks of one run; made if missing."""
    home = folder / world / f"seed{seed}"
    done = home / f"{row}-{steps}.json"
    if not done.is_file():
        model = warm(world, seed, home / "warm")
        stage = {"kind": "reinforce", "algorithm": row, "steps": steps}
        run = tables(world, seed, {"path": str(model)}, [stage])
        done.write_text(json.dumps(asyncio.run(_run(world, run, _unused(done.with_suffix("")), EVERY))))
    return json.loads(done.read_text())


# --- tables


def at(looks: Sequence[Mapping[str, Any]], tokens: float) -> Mapping[str, Any]:
    """The last look at not more than these sampled tokens."""
    return [one for one in looks if one["tokens"] <= tokens][-1]


SHOWN: dict[str, tuple[tuple[str, str], ...]] = {
    "guess": (
        ("success", "success"),
        ("turns", "turns"),
        ("outside the interval", "infeasible_guesses"),
        ("bits a guess asks for", "bits"),
        ("first guess is the secret", "first_is_secret"),
        ("distinct games", "distinct_sequences"),
        ("entropy", "train_entropy"),
    ),
    "craft": (
        ("success", "success"),
        ("of held-out goals", "held_out_success"),
        ("turns", "turns"),
        ("dead ends", "dead_ends"),
        ("actions wasted", "wasted_actions"),
        ("distinct games", "distinct_sequences"),
        ("entropy", "train_entropy"),
    ),
}


def table(folder: Path, world: str, seeds: Sequence[int], steps: int) -> str:
    """One line a row: means over the seeds at equal sampled tokens; successes of the seeds behind them."""
    runs = {row: [result(folder, world, row, seed, steps) for seed in seeds] for row in ROWS}
    least = min(looks[-1]["tokens"] for row in runs.values() for looks in row)
    shown = SHOWN[world]
    lines = [
        f"`{world}`, {least:.0f} sampled tokens",
        "",
        f"| row | {' | '.join(head for head, _ in shown)} |",
        f"|---|{'---|' * len(shown)}",
        _line("warm start", [looks[0] for looks in runs["grpo"]], shown),
        *(_line(f"`{row}`", [at(looks, least) for looks in runs[row]], shown) for row in ROWS),
    ]
    told = [looks[0]["told"] for looks in runs["grpo"]]
    halves = [at(runs[row][0], least).get("train_teacher_divergence") for row in ROWS[1:]]
    lines += ["", f"The teacher, told the reference, wins {np.mean(told):.2f}. Divergence left to it: {halves}."]
    return "\n".join(lines)


def _line(name: str, looks: Sequence[Mapping[str, Any]], shown: Sequence[tuple[str, str]]) -> str:
    cells: list[str] = []
    for _, key in shown:
        found = [look[key] for look in looks if look.get(key) is not None]
        cell = f"{np.mean(found):.2f}" if found else ""
        if key == "success" and len(found) > 1:
            cell += f" ({', '.join(f'{x:.2f}' for x in found)})"
        cells.append(cell)
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/selfdistil"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--steps", type=int, default=None, help="steps of each row; the world's own if left out")
    given = parser.parse_args()
    for world in given.worlds:
        print(table(given.folder, world, given.seeds, given.steps or WORLDS[world]["steps"]), end="\n\n")


if __name__ == "__main__":
    main()
