"""What a student does after a wrong first move: `python -m benchmarks.exposure --folder F --seeds 0 1 2`. Resumable.

One student imitates the teacher on trajectories that the teacher sampled, one on its own (`benchmarks.teachers` trains both,
from one warm start, at equal sampled tokens). Then both play on from a history that a script has begun. `right` is a move
that the teacher makes too, so that what differs between `right` and `wrong` is the history and not the script.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.teachers import prepared, result, tables
from strop.codec.chat import ChatCodec
from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import stored_plan
from strop.core.engine import Sampling
from strop.core.message import Message
from strop.core.seeds import stream_key
from strop.core.task import Task
from strop.core.trajectory import Completion, Ints, Trajectory
from strop.envs.guess import feasible, solvable
from strop.loop.assemble import Parts, assemble
from strop.loop.restore import restored
from strop.model.load import save
from strop.rollout.episode import Agent, engine_agent, player_agent
from strop.rollout.group import MAX_SESSIONS, bounded, episode
from strop.watch.run_folder import RunFolder

STUDENTS = {
    "teacher's trajectories": "distillation, saved, forward",
    "its own histories": "on-policy, reverse",
    "its own histories, forward": "on-policy, forward",
}
"""Students and their arms in `benchmarks.teachers`. The third has the divergence of the first and the data of the second."""
MOVES = ("free", "right", "wrong")


@dataclass(frozen=True, slots=True)
class Place:
    """How a first move is forced in a world.

    Args:
        moves: the replies of the script for a task, by name; None where the task is left out.
        astray: whether an episode went astray after so many replies of the script.
        best: best possible success from there on, by name.
        episodes: episodes of each task.
    """

    moves: Callable[[Task, str], Sequence[str] | None]
    astray: Callable[[Trajectory, int], bool]
    best: dict[str, float]
    episodes: int


def guess_moves(task: Task, name: str) -> Sequence[str] | None:
    """`8` (right), or `8, higher, 2` (wrong: 2 is ruled out). Only secrets above 8 are answered so."""
    if name == "free":
        return ()
    return None if task.data["secret"] <= 8 else ("8",) if name == "right" else ("8", "2")


def ruled_out(played: Trajectory, forced: int) -> bool:
    """Whether a guess after the forced ones is none, or one that the answers rule out."""
    guesses, data = played.artefacts["guesses"], played.task.data
    for k in range(forced, len(guesses)):
        low, high = feasible(guesses[:k], data["secret"], data["numbers"])
        if guesses[k] is None or not low <= guesses[k] <= high:
            return True
    return False


def repair_moves(task: Task, name: str) -> Sequence[str] | None:
    """`view` (right), or `view` and an edit with the most tempting wrong fix."""
    wrong = f"edit {task.data['line']} {task.data['wrong'][0]}"
    return {"free": (), "right": ("view",), "wrong": ("view", wrong)}[name]


def no_edit(played: Trajectory, forced: int) -> bool:
    """Whether no edit came after the forced replies."""
    return "edit" not in played.artefacts["actions"][forced:]


PLACES = {
    "guess": Place(
        guess_moves,
        ruled_out,
        {"free": solvable(16, 4) / 16, "right": solvable(8, 3) / 8, "wrong": solvable(8, 2) / 8},
        128,
    ),
    "repair": Place(repair_moves, no_edit, dict.fromkeys(MOVES, 1.0), 4),
}

# --- playing


def forced(first: Sequence[str], codec: ChatCodec, then: Agent) -> Agent:
    """An agent that makes the replies of a script, through the codec, and then is another agent."""
    scripted = player_agent(lambda messages: first[sum(m.role == "assistant" for m in messages)], codec)

    async def act(prompt: Ints, messages: Sequence[Message], turn: int, most: int) -> Completion:
        return await (scripted if turn < len(first) else then)(prompt, messages, turn, most)

    return act


async def played(parts: Parts, place: Place, name: str) -> list[tuple[Trajectory, int]]:
    """Episodes of the evaluation tasks, sampled at temperature 1, and how many replies of each were forced."""
    table, engine = parts.table, parts.examiner
    sampling = Sampling(table.limits.turn_tokens, 1.0)
    tasks = [(task, first) for task in table.world.split("eval") if (first := place.moves(task, name)) is not None]
    jobs = [(n, k, *of) for n, of in enumerate(tasks) for k in range(place.episodes)]

    async def one(n: int, k: int, task: Task, first: Sequence[str]) -> tuple[Trajectory, int]:
        key, session = stream_key(table.seed, "play", n, k)[:-1], f"{name}-{n}/{k}"
        agent = forced(first, table.codec, engine_agent(engine, sampling, key, session))
        try:
            return await bounded(episode(table, task, agent, key), task, table.limits), len(first)
        finally:
            await engine.end(session)

    out: list[tuple[Trajectory, int]] = []
    for at in range(0, len(jobs), MAX_SESSIONS):
        out += await asyncio.gather(*(one(*job) for job in jobs[at : at + MAX_SESSIONS]))
    return out


def shares(parts: Parts, place: Place) -> dict[str, dict[str, float]]:
    """Success, share of episodes that went astray, and number of judged episodes, by name of the moves."""
    out: dict[str, dict[str, float]] = {}
    for name in MOVES:
        found = [(t, n) for t, n in asyncio.run(played(parts, place, name)) if t.score is not None]
        success = float(np.mean([t.score for t, _ in found]))
        astray = float(np.mean([place.astray(t, n) for t, n in found]))
        out[name] = {"success": success, "astray": astray, "episodes": float(len(found))}
    return out


# --- students


def parts_of(world: str, seed: int, model: Path) -> Parts:
    """Live parts around a model directory."""
    stage = {"kind": "reinforce", "steps": 1}
    return assemble(*plan_of(resolve(tables(world, seed, {"path": str(model)}, stage, {"base": "grpo"}), {})))


def student(world: str, seed: int, name: str, home: Path) -> tuple[Path, dict[str, Any]]:
    """A student's model directory and what its training came to; made if missing."""
    arm = STUDENTS[name]
    found = result(world, seed, arm, home)
    run, out = home / arm.replace(" ", "_").replace(",", ""), home / "students" / name.replace(" ", "_")
    if not (out / "config.json").is_file():
        _, plan, made = stored_plan(RunFolder.open(run).run())
        save(restored(plan, made, run)[0].policy, out)
    return out, found


def measured(world: str, seed: int, name: str, home: Path) -> dict[str, Any]:
    """What the warm start, the teacher or a student does, free and forced; made if missing."""
    done = home / "exposure" / f"{name.replace(' ', '_')}.json"
    if not done.is_file():
        fixed = {"warm start": home / "warm" / "model", "teacher": home / "teacher"}
        model, trained = (fixed[name], {}) if name in fixed else student(world, seed, name, home)
        found = shares(parts_of(world, seed, model), PLACES[world])
        done.parent.mkdir(parents=True, exist_ok=True)
        done.write_text(json.dumps({**trained, **found}))
    return json.loads(done.read_text())


def table(folder: Path, world: str, seeds: Sequence[int], students: Sequence[str]) -> str:
    """One line for each who plays: success by moves (seeds), astray after the wrong one, tokens."""
    lines = [
        "| world | who plays | free (seeds) | after a right move | after a wrong one | then astray | sampled, learner tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("warm start", "teacher", *students):
        runs = [measured(world, seed, name, folder / world / f"seed{seed}") for seed in seeds]
        cells = [world, name]
        for move in MOVES:
            each = [run[move]["success"] for run in runs]
            cells.append(f"**{np.mean(each):.2f}** ({', '.join(f'{x:.2f}' for x in each)})")
        cells.append(f"{np.mean([run['wrong']['astray'] for run in runs]):.2f}")
        used = [np.mean([run.get(k, 0) for run in runs]) for k in ("tokens", "learner_tokens")]
        cells.append(f"{used[0]:,.0f}, {used[1]:,.0f}" if name in students else "")
        lines.append(f"| {' | '.join(cells)} |")
    best = PLACES[world].best
    lines.append(
        f"| {world} | best possible | {best['free']:.2f} | {best['right']:.2f} | {best['wrong']:.2f} | 0.00 | |"
    )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing and print one table a world."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/exposure"))
    parser.add_argument("--worlds", nargs="+", default=["guess", "repair"], choices=list(PLACES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--students", nargs="+", default=list(STUDENTS)[:2], choices=list(STUDENTS))
    asked = parser.parse_args()
    for world in asked.worlds:
        for seed in asked.seeds:
            prepared(world, seed, asked.folder / world / f"seed{seed}")
        print(table(asked.folder, world, asked.seeds, asked.students), flush=True)


if __name__ == "__main__":
    main()
