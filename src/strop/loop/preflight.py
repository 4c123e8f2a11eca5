"""A look before training: are there groups to learn from? Invariant: it advises; it blocks only when asked to."""

import asyncio
from dataclasses import dataclass

import numpy as np

from strop.core.seeds import draw_order
from strop.core.trajectory import Group
from strop.credit.admission import informative
from strop.loop.assemble import Parts
from strop.loop.plan import Preflighting
from strop.rollout.group import play_group
from strop.rollout.rows import rows_of
from strop.watch.behaviour import is_honeypot

SIZES = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a few sampled groups showed.

    Args:
        tasks, members: how much was sampled.
        all_fail, all_pass, mixed, unscored: groups of each kind.
        success: mean success.
        useful: expected share of mixed groups by group size, 1 - p^G - (1 - p)^G averaged over the tasks.
        advice: what to do, in plain words.
        hopeless: nothing could be learned from these tasks as they are.
        ratio_error, kl, clipped: engine against learner on the same tokens before any update (a self-test at learning
            rate 0): largest |ratio - 1|, mean KL (k3), share of tokens outside 1 +- 0.2.
    """

    tasks: int
    members: int
    all_fail: int
    all_pass: int
    mixed: int
    unscored: int
    success: float | None
    useful: dict[int, float]
    advice: str
    hopeless: bool
    ratio_error: float
    kl: float
    clipped: float


async def preflight(parts: Parts, settings: Preflighting, seed: int) -> Preflight:
    """Sample a few groups and say what they mean for training."""
    tasks = [task for task in parts.world.split("train") if not is_honeypot(task)]
    chosen = [tasks[draw_order(seed, i, len(tasks))] for i in range(min(settings.tasks, len(tasks)))]
    groups = await asyncio.gather(
        *(
            play_group(parts.table, task, settings.members, parts.examiner, parts.sampling, "preflight", i)
            for i, task in enumerate(chosen)
        )
    )
    return read(groups, settings.members, agreement(parts, groups))


def read(groups: list[Group], members: int, test: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Preflight:
    """The findings from played groups."""
    scores = [[t.score for t in g.trajectories if t.score is not None] for g in groups]
    judged = [s for s in scores if s]
    fail = sum(max(s) <= 0 for s in judged)
    passed = sum(min(s) >= 1 for s in judged)
    rates = [float(np.mean(s)) for s in judged]
    useful = {size: float(np.mean([informative(p, size) for p in rates])) if rates else 0.0 for size in SIZES}
    advice, hopeless = _advise(len(judged), fail, passed, len(groups))
    return Preflight(
        len(groups),
        members,
        fail,
        passed,
        len(judged) - fail - passed,
        len(groups) - len(judged),
        float(np.mean([x for s in judged for x in s])) if judged else None,
        useful,
        advice,
        hopeless,
        *test,
    )


def _advise(judged: int, fail: int, passed: int, played: int) -> tuple[str, bool]:
    if judged == 0:
        return "no episode could be judged: look at the environment and the verifier before training", True
    if fail == judged:
        return (
            "every group failed: there is nothing to reinforce. Warm start on demonstrations, or expert_iteration with "
            "many samples, or easier tasks; and suspect the verifier: does a known-good answer pass?"
        ), True
    if passed == judged:
        return "every group passed: there is nothing left to learn here. Take harder tasks, or check the verifier", True
    if fail > 0.8 * judged:
        return (
            "most groups failed: a longer warm start, expert_iteration first, larger groups or easier tasks help",
            False,
        )
    if passed > 0.8 * judged:
        return "most groups passed: harder tasks give more signal", False
    if judged < played:
        return "some groups could not be judged: look at their errors with `strop read`", False
    return "mixed groups: reinforcement has something to work with", False


def agreement(parts: Parts, groups: list[Group]) -> tuple[float, float, float]:
    """Engine against learner on sampled tokens: largest |ratio - 1|, mean k3, share outside 1 +- 0.2."""
    rows = [
        row
        for group in groups
        for member, trajectory in enumerate(group.trajectories)
        for row in rows_of(group.id, member, trajectory, None)
    ]
    gaps = [
        (row.columns["logp"] - row.behaviour_logp)[row.sampled]
        for row in parts.learner.annotate(rows, ["logp"])
        if row.trained
    ]
    if not gaps:
        return 0.0, 0.0, 0.0
    gap = np.concatenate(gaps).astype(np.float64)
    ratio = np.exp(gap)
    return float(np.abs(ratio - 1).max()), float((ratio - 1 - gap).mean()), float((np.abs(ratio - 1) > 0.2).mean())
