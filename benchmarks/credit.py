"""Which credit finds the turn that mattered, and at what noise: `python -m benchmarks.credit [--folder F] [--write PAGE]`.

Also: what a critic gains by starting from a process reward model, and what ECHO gains. Resumable: what was trained or
measured in the folder is read again. Invariant: advantages come from the lesson and token weights from the learner, as in
training; the truth comes from continuations with other random streams than any credit's own.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from benchmarks.compare import train
from benchmarks.ratios import number, replaced, table
from strop.config.stored import stored_plan
from strop.core.algorithm import Algorithm, NoClip, NoRatio, Observations, SeqMeanTokenSum, Zero
from strop.core.metrics import values
from strop.core.notation import read
from strop.core.seeds import draw_order, python_random, stream_key
from strop.core.task import Task
from strop.core.trajectory import Group, Row, Trajectory
from strop.envs.guess import feasible, read_guess
from strop.learn import checkpoint
from strop.learn.pack import pack
from strop.learn.schedule import Optimisation
from strop.loop.assemble import Parts
from strop.loop.evaluate import wilson
from strop.loop.explain import WHOLE
from strop.loop.lesson import lesson
from strop.loop.restore import restored
from strop.model.forward import token_columns
from strop.model.load import save
from strop.model.policy import Policy
from strop.rollout.branch import continuations
from strop.rollout.episode import player_agent
from strop.rollout.group import episode, play_group, play_groups
from strop.watch.run_folder import RunFolder

Tables = dict[str, Any]
NUMBERS, ATTEMPTS = 16, 4
PLACE = 7
"""Member of the group that is scripted; the policy samples those before it."""
TURNS = (1, 2)
"""Turns (from 0) where something is planted: after the first guess, and not the last."""
REPEATS = {"mistake": 2, "helpful": 8}
"""Planted episodes for each secret and turn."""
TRUTH, TRUTH_SEED = 200, 1
"""Continuations of a state for the truth; seed of their streams."""
BATCH, MANY = 128, 8
"""Groups of the batch whose gradient is measured, and how many times as many the true gradient is estimated from."""
SEEDS = (0, 1, 2)

# --- what is trained

GAME: Tables = {
    "env": "guess",
    "world": {"numbers": NUMBERS, "attempts": ATTEMPTS},
    "rollout": {"turns": ATTEMPTS, "turn_tokens": 4, "tokens": 16, "context": 64, "groups": 32, "group_size": 8},
    "learner": {"lr": 5e-4, "lr_end": 1.0},
    "evaluate": {"every": 0, "episodes": 32},
    "preflight": {"tasks": 0},
    "keep": {"steps": 0, "last": 1, "best": False, "episodes_mb": 4.0},
}
CRAFT: Tables = {
    **GAME,
    "env": "craft",
    "world": {},
    "rollout": {"turns": 10, "turn_tokens": 4, "tokens": 40, "context": 128, "groups": 16, "group_size": 8},
    "evaluate": {"every": 0, "episodes": 8},
}
STILL, MOVING = "warmup=100000", "warmup=0"
"""A critic that warms up for ever, so that the policy is not trained, and one that learns beside it."""
FAST: Tables = {"minibatches": 4, "lr": 2e-3}
PROCESS: Tables = {"kind": "reinforce", "algorithm": "process_reward", "steps": 25, "groups": 16, **FAST}
WARM: Tables = {"kind": "warm_start", "steps": 200, "groups": 128, "lr": 2e-3, "terms": ["observations(1.0)"]}


def run_file(game: Tables, stages: Sequence[Tables], model: Path | None = None, **more: Any) -> Tables:
    """A run of a game from a model directory, or from nothing."""
    source = {"preset": "tiny"} if model is None else {"path": str(model)}
    return {**game, "model": source, "stages": list(stages), **more}


def critic_run(model: Path, critic: str, stage: Tables, before: Sequence[Tables] = ()) -> Tables:
    """A run that trains a critic alone, after a process reward model if there is one to start from."""
    main = {"kind": "reinforce", "steps": 40, "algorithm": "ppo", "lr": 2e-3, **stage}
    return run_file(GAME, [*before, main], model, algorithm={"base": "ppo", "credit": f"gae(critic=critic({critic}))"})


def runs_of(model: Path) -> dict[str, Tables]:
    """Every run from the policy that is judged, by name."""
    given = {"base": "process_reward", "terms": ["process_labels(kind=given)"]}
    runs = {
        "separate": critic_run(model, f"separate, {STILL}", {}),
        "stopgrad": critic_run(model, f"stopgrad, rate=10, {STILL}", {}),
        "shared": critic_run(model, f"shared, {MOVING}", {"steps": 24, "lr": 5e-4}),
        "shared-still": critic_run(model, f"shared, {STILL}", {"steps": 8, "lr": 5e-4}),
        "given": run_file(GAME, [PROCESS], model, algorithm=given),
    }
    for seed in SEEDS:
        short = {"groups": 16, "minibatches": 1, "steps": 32}
        zero = critic_run(model, f"separate, loss=bce, {STILL}", short)
        process = critic_run(model, f"separate, loss=bce, start=process, {STILL}", short, [PROCESS])
        runs |= {f"zero-{seed}": {**zero, "seed": seed}, f"process-{seed}": {**process, "seed": seed}}
    return runs


def model_of(folder: Path, run: Tables) -> Path:
    """The model directory that a run ends in."""
    out = folder / "model"
    if not (out / "config.json").is_file():
        train(run, folder / "run", None)
        parts, _ = opened(folder / "run")
        save(parts.policy, out)
    return out


def trained(folder: Path, run: Tables, tokens: int | None = None) -> None:
    """Train a run to its end, or until it has sampled so many tokens, unless that was done."""
    if not (folder / "result.json").is_file():
        print(f"training {folder.name}", flush=True)
        train(run, folder, tokens)


def opened(run: Path) -> tuple[Parts, Mapping[str, Any]]:
    """Parts with the weights that a run ended in, and all tensors of its checkpoint."""
    _, plan, world = stored_plan(RunFolder.open(run).run())
    parts, name = restored(plan, world, run)
    return parts, checkpoint.load(run / "checkpoints" / name).tensors


# --- what is planted


def others(low: int, high: int) -> list[int]:
    """The numbers outside an interval."""
    return [n for n in range(1, NUMBERS + 1) if not low <= n <= high]


def openings(secret: int) -> list[int]:
    """First guesses that leave two numbers at least."""
    return [n for n in others(secret, secret) if np.ptp(feasible([n], secret, NUMBERS)) > 0]


def mistake(secret: int, turn: int, first: int, stream: Random) -> list[int]:
    """Guesses that win, all feasible but the one at `turn`, which earlier answers had excluded."""
    while True:
        length = stream.randint(turn + 2, ATTEMPTS)
        guesses = [first]
        for k in range(1, length - 1):
            low, high = feasible(guesses, secret, NUMBERS)
            choices = others(low, high) if k == turn else [n for n in range(low, high + 1) if n != secret]
            if not choices:
                break
            guesses.append(stream.choice(choices))
        else:
            return [*guesses, secret]


def helpful(secret: int, turn: int, first: int, stream: Random) -> list[int]:
    """Guesses that lose, wasted after the first but for the one at `turn`, which leaves as few numbers as a miss can.

    That is half of them (rounded up) at most. A wasted guess is excluded already, or takes one number off an end.
    """
    guesses = [first]
    for k in range(1, ATTEMPTS):
        low, high = feasible(guesses, secret, NUMBERS)
        inside = [n for n in range(low, high + 1) if n != secret]
        wasted = [*others(low, high), *(n for n in inside if n in (low, high))]
        best = sorted(inside, key=lambda n: high - n if n < secret else n - low)[:1]  # by the numbers that are left
        guesses.append(stream.choice((best if k == turn else []) or wasted))
    return guesses


KINDS: dict[str, Callable[[int, int, int, Random], list[int]]] = {"mistake": mistake, "helpful": helpful}
SIGN = {"mistake": -1.0, "helpful": 1.0}


@dataclass(frozen=True, slots=True)
class Planted:
    """A group whose last member is scripted.

    Args:
        kind, turn: what was planted where.
        group: seven members of the policy and the scripted one.
        truth, error: Q - V of the planted turn by continuations of its task, and its standard error.
    """

    kind: str
    turn: int
    group: Group
    truth: float
    error: float

    @property
    def sure(self) -> bool:
        """Whether the sign is the planted one, beyond two standard errors."""
        return self.truth * SIGN[self.kind] > 2 * self.error


async def scripted(parts: Parts, task: Task, guesses: Sequence[int], draw: int) -> Trajectory:
    """A played and judged episode of these guesses, as the last member of a draw."""
    words = iter(map(str, guesses))
    agent = player_agent(lambda _: next(words), parts.table.codec)
    return await episode(parts.table, task, agent, stream_key(parts.table.seed, "play", draw, PLACE)[:-1])


async def worth(parts: Parts, trajectory: Trajectory, turn: int, draw: int) -> tuple[float, float]:
    """Mean score of continuations of the state before a turn, and the variance of that mean."""
    apart = replace(parts.table, seed=parts.table.seed + TRUTH_SEED)
    played = await continuations(apart, trajectory, turn, TRUTH, parts.engine, parts.sampling, ("play", draw, PLACE))
    scores = np.array([t.score for t in played if t.score is not None])
    return float(scores.mean()), float(scores.var(ddof=1)) / len(scores)


async def planted(parts: Parts, kind: str, turn: int, secret: int, draw: int) -> Planted:
    """One planted group, with its truth. The scripted member opens as a member of the policy did."""
    task = next(t for t in parts.world.split("train") if t.data["secret"] == secret)
    group = await play_group(parts.table, task, PLACE, parts.engine, parts.sampling, "play", draw)
    said = [read_guess(t.turns[0].message.content, NUMBERS) for t in group.trajectories]
    stream = python_random((draw, PLACE))
    first = stream.choice([g for g in said if g in openings(secret)] or openings(secret))
    own = await scripted(parts, task, KINDS[kind](secret, turn, first, stream), draw)
    (before, noise), (after, more) = [await worth(parts, own, k, draw) for k in (turn, turn + 1)]
    members = (*group.trajectories, own)
    return Planted(kind, turn, replace(group, trajectories=members), after - before, float(np.sqrt(noise + more)))


# --- what is judged


@dataclass(frozen=True, slots=True)
class Way:
    """A credit, in the notation of run files.

    Args:
        credit: the part.
        terms: shaping of rewards.
        run: whose critic or process reward model it reads; the policy's own run where it needs none.
        untrained: the critic is as it started.
    """

    credit: str
    terms: tuple[str, ...] = ()
    run: str = "policy"
    untrained: bool = False

    @property
    def key(self) -> str:
        """Name in tables and files."""
        of = "" if self.run == "policy" else f" [{self.run}{', as it started' if self.untrained else ''}]"
        return " + ".join((self.credit, *self.terms)) + of

    @property
    def algorithm(self) -> Algorithm:
        """The credit without ratio and clip, summed over tokens: dL/dlogp is -A / trajectories."""
        terms = tuple(read("terms", text, "terms") for text in self.terms)
        credit = read("credit", self.credit, "credit")
        return Algorithm(credit, NoRatio(), NoClip(), SeqMeanTokenSum(), "benchmark", terms=terms)


def _process_ways(run: str) -> list[Way]:
    return [
        Way("process_group", run=run),
        Way("reward_to_go", ("potential",), run),
        Way("reward_to_go(discount=0)", ("potential",), run),
    ]


BCE = "critic=critic(start=process, loss=bce)"
WAYS = (
    *(Way(text) for text in ("group_mean(population)", "leave_one_out", "reward_to_go(0.5)")),
    *(
        Way(f"gae({lam}, level={level}, critic=critic({kind}))", run=kind)
        for kind in ("separate", "stopgrad", "shared")
        for level in ("token", "turn")
        for lam in ("1", "0.95", "0")
    ),
    *(Way(text) for text in ("monte_carlo(4)", "monte_carlo(16)")),
    *_process_ways("process-0"),
    Way(f"gae(0, level=turn, {BCE})", run="process-0", untrained=True),
    Way(f"gae(0, level=turn, {BCE})", run="process-0"),
    *_process_ways("given"),
)


def prepare(way: Way, parts: Parts, tensors: Mapping[str, Any]) -> Algorithm:
    """Give the learner the way's algorithm and the trained models that it reads, at a learning rate of 0."""
    if "process" in tensors:
        parts.learner.models.load({"process": tensors["process"]})
    parts.learner.begin(way.algorithm, Optimisation(lr=0.0), 1)
    if "critic" in tensors and not way.untrained:
        parts.learner.models.load({"critic": tensors["critic"]})
    return way.algorithm


async def weighed(parts: Parts, algorithm: Algorithm, groups: Sequence[Group]) -> list[Row]:
    """The rows of groups with advantages, and with dL/dlogp as the learner has it."""
    rows = (await lesson(parts, algorithm, algorithm.credit, groups, {})).rows
    parts.learner.step(rows)
    return parts.learner.traced(rows)


def turn_advantage(rows: Iterable[Row], group: str, turn: int) -> float:
    """Mean advantage over the tokens of a turn of the scripted member."""
    mine = [row for row in rows if (row.origin.group, row.origin.member) == (group, PLACE)]
    return float(np.concatenate([r.columns["advantage"][r.sampled & (r.turns == turn)] for r in mine]).mean())


def pulls(policy: Policy, rows: Sequence[Row]) -> Iterator[np.ndarray]:
    """The gradient of each group: sum over its tokens of dL/dlogp x d logp / d theta; [parameters] each."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.origin.group, []).append(row)
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    for members in groups.values():
        micro = pack(members, WHOLE, None, policy.device)[0]
        hidden = policy.hidden(micro.ids, micro.positions, micro.layout)[micro.predictors]
        logp, _ = token_columns(policy, hidden, micro.targets, 1.0, False)
        pull = torch.from_numpy(np.concatenate([row.columns["weight"][row.sampled] for row in micro.rows]))
        yield torch.cat([g.flatten() for g in torch.autograd.grad(logp, weights, pull)]).numpy()


def noise_of(each: np.ndarray, tasks: Sequence[str], true: np.ndarray) -> list[float]:
    """Noise and cosine of a batch gradient.

    Args:
        each: gradients of groups; [groups, parameters].
        tasks: task of each group. Tasks are drawn evenly, so that only spread within a task is noise.
        true: an estimate of the true gradient from many more groups; [parameters].

    Returns:
        Trace of the covariance over squared length (of the expected squared length, it is the part that is noise), cosine
        with `true`.
    """
    total = each.sum(0)
    same = [each[[t == task for t in tasks]] for task in dict.fromkeys(tasks)]
    variance = sum(len(some) * float(some.var(0, ddof=1).sum()) for some in same)
    return [variance / float(total @ total), cosine(total, true)]


async def judge(
    home: Path, ways: Sequence[Way] = WAYS, repeats: Mapping[str, int] = REPEATS, groups: int = BATCH
) -> Tables:
    """Signs and gradient noise of all credits on the policy of `home`; see `signs_block` for the form."""
    parts, tensors = opened(home / "policy" / "run")
    plans = [(k, t, s) for k in KINDS for _ in range(repeats[k]) for t in TURNS for s in range(1, NUMBERS + 1)]
    every = [await planted(parts, *plan, draw) for draw, plan in enumerate(plans)]
    cases = [case for case in every if case.sure]
    batch = await sampled(parts, groups, len(plans))
    many = await sampled(parts, groups * MANY, len(plans) + groups)
    loo = prepare(Way("leave_one_out"), parts, tensors)
    rows = [await weighed(parts, loo, half) for half in (many[: len(many) // 2], many[len(many) // 2 :])]
    halves = [sum(pulls(parts.policy, half), np.zeros(1)) for half in rows]
    signs, noise = Tables(), Tables()
    for way in ways:
        here, known = (parts, tensors) if way.run == "policy" else opened(home / way.run)
        algorithm = prepare(way, here, known)
        rows = (await lesson(here, algorithm, algorithm.credit, [case.group for case in cases], {})).rows
        signs[way.key] = [turn_advantage(rows, case.group.id, case.turn) for case in cases]
        each = np.stack(list(pulls(parts.policy, await weighed(here, algorithm, batch))))
        noise[way.key] = noise_of(each, [group.task.id for group in batch], halves[0] + halves[1])
    told = [{"kind": c.kind, "turn": c.turn, "truth": c.truth, "error": c.error, "sure": c.sure} for c in every]
    facts = {"halves": cosine(*halves), "ceiling": ceiling(many)}
    return {"cases": told, "advantages": signs, "noise": noise, "facts": facts}


def ceiling(groups: Sequence[Group]) -> float:
    """Explained variance of turn and interval as a table: means over one half of the groups, judged on the other."""
    pairs: list[tuple[tuple[int, int, int], float]] = []
    for t in (t for group in groups for t in group.trajectories):
        guesses = t.artefacts["guesses"]
        states = [(k, *feasible(guesses[:k], t.task.data["secret"], NUMBERS)) for k in range(len(guesses))]
        pairs += [(state, t.score or 0.0) for state in states]
    known: dict[tuple[int, int, int], list[float]] = {}
    for state, score in pairs[: len(pairs) // 2]:
        known.setdefault(state, []).append(score)
    rest = pairs[len(pairs) // 2 :]
    scores, told = np.array([(score, np.mean(known.get(state, [0.5]))) for state, score in rest]).T
    return float(1 - (scores - told).var() / scores.var())


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """Of two gradients."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


async def sampled(parts: Parts, count: int, start: int = 0) -> list[Group]:
    """Groups of eight of the policy, tasks drawn evenly."""
    tasks = parts.world.split("train")
    drawn = [tasks[draw_order(0, i, len(tasks))] for i in range(start, start + count)]
    names = ("play", range(start, start + count))
    return await play_groups(parts.table, drawn, 8, parts.engine, parts.sampling, names)


# --- ECHO

ECHO = "observations(0.05, select=answers)"


def echo_starts(home: Path) -> dict[str, tuple[Path, Tables, int, Sequence[int]]]:
    """Where GRPO starts: a folder with run and model, the game, the tokens that a run may sample, the seeds."""
    untaught = {**WARM, "steps": 150, "terms": []}
    model_of(home / "echo" / "warm-guess", run_file(GAME, [untaught]))
    model_of(home / "echo" / "warm-craft", run_file(CRAFT, [{**WARM, "steps": 150}]))
    return {
        "guess": (home / "echo" / "warm-guess", GAME, 80_000, SEEDS),
        "guess-taught": (home / "policy", GAME, 50_000, SEEDS[:2]),
        "craft-taught": (home / "echo" / "warm-craft", CRAFT, 70_000, SEEDS[:2]),
    }


async def answers(parts: Parts, groups: Sequence[Group]) -> float:
    """Cross-entropy of the answers in some groups, in nats a token."""
    predict = Algorithm(Zero(), NoRatio(), NoClip(), SeqMeanTokenSum(), "", terms=(Observations(1.0, "answers"),))
    parts.learner.begin(predict, Optimisation(lr=0.0), 1)
    rows = (await lesson(parts, predict, predict.credit, groups, {})).rows
    return values(parts.learner.step(rows).metrics)["observation_nll"] or 0.0


async def echo(start: Path, folder: Path) -> Tables:
    """What one run of GRPO came to; it is trained already."""
    (before, _), (after, _) = opened(start / "run"), opened(folder)
    steps = [m for m in RunFolder.open(folder).metrics() if m["step"]]
    common = await sampled(before, 32)
    return {
        "start": json.loads((start / "run" / "result.json").read_text())["sampled"],
        "end": json.loads((folder / "result.json").read_text())["sampled"],
        "mean": float(np.mean([m["success"] for m in steps])),
        "tokens": _tokens(steps),
        "before": await answers(before, common),
        "common": await answers(after, common),
        "own": await answers(after, await sampled(after, 32)),
    }


# --- the page


def share(right: int, n: int) -> str:
    """A rate with its 95 % interval."""
    low, high = wilson(right, n)
    return f"{right / n:.2f} ({low:.2f} to {high:.2f})" if n else ""


def cases_block(found: Tables) -> str:
    """What was planted and what was dropped."""
    lines: list[list[str]] = []
    for kind, turn in product(KINDS, TURNS):
        some = [c for c in found["cases"] if (c["kind"], c["turn"]) == (kind, turn)]
        true = [c["truth"] for c in some if c["sure"]]
        other = sum(c["truth"] * SIGN[kind] < -2 * c["error"] for c in some)
        told = [len(some), len(true), other, number(float(np.mean(true))) if true else ""]
        lines.append([kind, str(turn + 1), *map(str, told)])
    return table(("planted", "turn", "episodes", "kept", "other sign for sure", "mean Q - V of the kept"), lines)


def signs_block(found: Tables) -> str:
    """Signs and noise of every credit.

    Args:
        found: `cases` (kind, sure, ... of each planted episode), `advantages` by credit of the sure ones, `noise` by credit
            (see `noise_of`).
    """
    kinds = [c["kind"] for c in found["cases"] if c["sure"]]
    lines: list[list[str]] = []
    for name, advantages in found["advantages"].items():
        of = {k: [a * SIGN[k] > 0 for a, kind in zip(advantages, kinds, strict=True) if kind == k] for k in KINDS}
        cells = [f"`{name}`", *(share(sum(of[k]), len(of[k])) for k in KINDS)]
        both = np.mean([np.mean(right) for right in of.values()])
        lines.append([*cells, f"{both:.2f}", str(advantages.count(0.0)), *(f"{x:.2f}" for x in found["noise"][name])])
    return table(("credit", "mistakes right", "helpful right", "both", "zero", "noise", "cosine"), lines)


def critics_block(home: Path) -> str:
    """What the critics and process reward models came to."""
    lines: list[list[str]] = []
    for name in ("separate", "stopgrad", "shared", "shared-still", "process-0", "given"):
        metrics = [m for m in RunFolder.open(home / name).metrics() if m["step"]]
        end = json.loads((home / name / "result.json").read_text())["sampled"]
        process = [m for m in metrics if m.get("process_loss") is not None]
        values = [m["explained_variance"] for m in metrics[-5:] if m.get("explained_variance") is not None]
        losses = (
            [process[0]["process_loss"], float(np.mean([m["process_loss"] for m in process[-5:]]))] if process else []
        )
        told = f"{losses[0]:.3f}, {losses[1]:.3f}" if losses else ""
        lines.append(
            [name, f"{_tokens(metrics):,.0f}", number(float(np.mean(values))) if values else "", told, f"{end:.2f}"]
        )
    return table(("run", "tokens", "explained variance", "process loss, first and last", "success after"), lines)


SHOWN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def start_block(home: Path) -> str:
    """Explained variance over the first updates of critics from zero and from a process reward model."""
    lines: list[list[str]] = []
    for arm in ("zero", "process"):
        runs = [[m for m in RunFolder.open(home / f"{arm}-{s}").metrics() if m["step"]] for s in SEEDS]
        curves = [[m for m in run if m.get("explained_variance") is not None] for run in runs]
        before = float(np.mean([_tokens(run) - _tokens(curve) for run, curve in zip(runs, curves, strict=True)]))
        for update in SHOWN:
            values = [curve[update - 1]["explained_variance"] for curve in curves]
            tokens = float(np.mean([_tokens(curve[:update]) for curve in curves]))
            each = ", ".join(f"{v:.2f}" for v in values)
            lines.append(
                [arm, str(update), f"{tokens:,.0f}", f"{tokens + before:,.0f}", f"{np.mean(values):.2f}", each]
            )
    return table(("start", "update", "tokens", "with those of the reward model", "explained variance", "seeds"), lines)


def _tokens(metrics: Sequence[Tables]) -> float:
    return float(sum(m["engine_tokens"] for m in metrics))


def echo_block(found: Mapping[str, Sequence[Tables]]) -> str:
    """GRPO with and without ECHO, results by start and arm."""
    lines: list[list[str]] = []
    for name, some in found.items():
        cells = [name, f"{np.mean([f['tokens'] for f in some]):,.0f}"]
        for key in ("start", "end", "mean", "before", "common", "own"):
            each = "" if key in ("start", "before") else f" ({', '.join(f'{f[key]:.2f}' for f in some)})"
            cells.append(f"{np.mean([f[key] for f in some]):.3f}{each}")
        lines.append(cells)
    head = ("GRPO from", "tokens", "success before", "after", "mean over the run")
    return table((*head, "answers before", "after, same text", "after, own text"), lines)


# --- all of it


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """What the file says, or what was made and written there."""
    if not path.is_file():
        print(f"measuring {path.stem}", flush=True)
        path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


def main() -> None:
    """Train what is missing, measure, and print or write into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/credit"))
    parser.add_argument("--write", type=Path, default=None, help="the page whose blocks are replaced")
    given = parser.parse_args()
    torch.set_num_threads(1)
    home = given.folder
    grpo = {"base": "grpo", "terms": ["entropy(0.02)"]}
    model = model_of(home / "policy", run_file(GAME, [WARM, {"kind": "reinforce", "steps": 100}], algorithm=grpo))
    for name, run in runs_of(model).items():
        trained(home / name, run)
    found = kept(home / "judged.json", lambda: asyncio.run(judge(home)))
    echoes: dict[str, list[Tables]] = {}
    for name, (start, game, tokens, seeds) in echo_starts(home).items():
        for arm, seed in product(("without", "with"), seeds):
            folder = home / "echo" / f"{name}-{arm}-{seed}"
            terms = [ECHO] if arm == "with" else []
            stage = {"kind": "reinforce", "steps": 100_000, "algorithm": "grpo", "terms": terms}
            trained(folder, run_file(game, [stage], start / "model", seed=seed), tokens)
            said = kept(folder.with_suffix(".json"), lambda a=start, b=folder: asyncio.run(echo(a, b)))
            echoes.setdefault(f"{name}, {arm} ECHO", []).append(said)
    facts = found["facts"]
    best, explained = np.sqrt(2 * facts["halves"] / (1 + facts["halves"])), facts["ceiling"]
    blocks = {
        "facts": f"Largest cosine: {best:.2f}. Explained variance of turn and interval as a table: {explained:.2f}.",
        "cases": cases_block(found),
        "signs": signs_block(found),
        "critics": critics_block(home),
        "start": start_block(home),
        "echo": echo_block(echoes),
    }
    for name, content in blocks.items():
        print(f"## {name}\n\n{content}\n")
        if given.write is not None:
            given.write.write_text(replaced(given.write.read_text(), name, content))


if __name__ == "__main__":
    main()
