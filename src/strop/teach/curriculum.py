"""The formulas of curricula: from what was seen of the tasks to the chance of each, and what a batch adds to it.

Invariant: pure, and keyed by the ids of tasks. Chances are a function of sampler, progress and pool; their order is that
of the pool's ids, which are sorted, so that the order of the tasks in their split means nothing. The progress is bounded
(see `MOST` and `FORGOTTEN`) and comes back equal from JSON. A task that is not in it is at the prior.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from strop.core.sampler import EasyToHard, Failing, Learnable, Retire, Sampler, Target

Numbers = npt.NDArray[np.float64]

COUNTING = (Learnable, Failing, Retire)
"""Samplers that look at the success of each task."""
PRIOR = 1.0
"""Both numbers of the Beta prior of a success rate: uniform from 0 to 1."""
EVIDENCE = 4.0
"""Counted episodes (decayed) that it takes to call a task solved."""
FORGOTTEN = 0.1
"""A task of which fewer episodes are left after decay is forgotten."""
MOST = 50_000
"""Tasks that are remembered; beyond them those with the least evidence are forgotten."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The tasks that a sampler chooses from: sorted ids and, if the world tells them, difficulties [tasks]."""

    ids: tuple[str, ...]
    difficulties: Numbers | None = None

    @property
    def hardness(self) -> Numbers:
        """The difficulties [tasks]; the plan of a run refuses samplers that need them where there are none."""
        if self.difficulties is None:
            raise ValueError("this pool has no difficulties; the world must tell them (World.difficulty)")
        return self.difficulties


@dataclass(frozen=True, slots=True)
class Progress:
    """What was seen so far.

    Args:
        batches: batches that were drawn and learned from.
        target: where the target difficulty stands; None before the first batch, and for samplers that have none.
        counts: successes and scored episodes by task, decayed.
    """

    batches: int = 0
    target: float | None = None
    counts: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    def record(self) -> dict[str, Any]:
        """The progress as JSON values; `progress_of` reads it."""
        counts = {task: list(pair) for task, pair in self.counts.items()}
        return {"batches": self.batches, "target": self.target, "counts": counts}


def progress_of(record: Mapping[str, Any]) -> Progress:
    """The progress of a record; an empty one is that of a run that has not begun."""
    if not record:
        return Progress()
    counts = {task: (float(s), float(n)) for task, (s, n) in record["counts"].items()}
    return Progress(record["batches"], record["target"], counts)


def learnability(successes: Numbers, episodes: Numbers, prior: float = PRIOR) -> Numbers:
    """E[p (1 - p)] = a b / ((a + b) (a + b + 1)) of Beta(a, b), a = prior + s, b = prior + n - s. Source: 2502.12272.

    A task that was never seen has 1/6, and with a prior above 0 no task has 0.

    Args:
        successes: s; [tasks].
        episodes: n; [tasks].
        prior: of both kinds; as it goes to 0 (and n grows) this is p (1 - p) of the plain rate.
    """
    a, b = prior + successes, prior + episodes - successes
    return a * b / ((a + b) * (a + b + 1))


def failure(successes: Numbers, episodes: Numbers, prior: float = PRIOR) -> Numbers:
    """E[1 - p] = b / (a + b), names as in `learnability`; [tasks]. Source: 2501.12599."""
    return (prior + episodes - successes) / (2 * prior + episodes)


def mixed(weights: Numbers, floor: float = 0.0) -> Numbers:
    """Chances in proportion to weights, a share of `floor` of them uniform; all uniform if no weight is above 0; [tasks]."""
    total, count = float(weights.sum()), len(weights)
    if total <= 0:
        return np.full(count, 1 / count)
    return (1 - floor) * weights / total + floor / count


def moved(target: float, success: float, low: float, high: float, by: Target) -> float:
    """The next target difficulty, clip(T + eta (high - low) tanh(alpha (success - level)), low, high).

    Source: AdaRFT, 2504.05520; there eta is in units of difficulty.
    """
    step = by.eta * (high - low) * math.tanh(by.alpha * (success - by.level))
    return min(max(target + step, low), high)


def levels(difficulties: Numbers, count: int) -> npt.NDArray[np.int64]:
    """The level of each task, from 0: its rank in difficulty cut into `count` parts of equal size; [tasks].

    Equally difficult tasks are in one level, that of the easiest rank among them; so a level may be empty.
    """
    easier = np.searchsorted(np.sort(difficulties), difficulties, side="left")
    return easier * count // len(difficulties)


def chances(sampler: Sampler, progress: Progress, pool: Pool) -> Numbers:
    """The chance of each task of the pool to be the next one; [tasks], their sum is 1."""
    match sampler:
        case Learnable():
            return mixed(learnability(*_counts(progress, pool)), sampler.floor)
        case Failing():
            return mixed(failure(*_counts(progress, pool)), sampler.floor)
        case Target():
            hardness = pool.hardness
            away = np.abs(hardness - (hardness.min() if progress.target is None else progress.target))
            farthest = np.sort(away)[min(sampler.nearest, len(away)) - 1]
            return mixed((away <= farthest).astype(np.float64))
        case EasyToHard():
            level = levels(pool.hardness, len(sampler.steps) + 1)
            opened = sum(progress.batches >= step for step in sampler.steps)
            newest = int(level[level <= opened].max())
            return _shared(level == newest, level < newest, sampler.earlier)
        case Retire():
            done = solved(sampler, progress, pool)
            return _shared(~done, done, sampler.revisit)
        case _:
            return mixed(np.ones(len(pool.ids)))


def solved(sampler: Retire, progress: Progress, pool: Pool) -> npt.NDArray[np.bool_]:
    """Which tasks are solved by the plain rate s / n, with enough evidence; [tasks]. Decay leaves the rate as it is."""
    successes, episodes = _counts(progress, pool)
    return (episodes >= EVIDENCE) & (successes >= sampler.solved * episodes)


def estimated(progress: Progress, pool: Pool) -> tuple[float | None, float]:
    """Mean of E[p] over the tasks of the pool that were seen (None: none was), and the share of those that were not."""
    successes, episodes = _counts(progress, pool)
    seen = episodes > 0
    if not seen.any():
        return None, 1.0
    return float((1 - failure(successes, episodes))[seen].mean()), float((~seen).mean())


def effective(chance: Numbers) -> float:
    """The effective number of tasks, exp of the entropy of their chances: n where n tasks have equal chances."""
    some = chance[chance > 0]
    return float(np.exp(-(some * np.log(some)).sum()))


def after(
    sampler: Sampler,
    progress: Progress,
    batch: Sequence[tuple[str, Sequence[float]]],
    pool: Pool,
    known: Collection[str],
) -> Progress:
    """The progress after a batch.

    Args:
        sampler: says what is counted.
        progress: before it.
        batch: id and scores of the scored members of every group that was sampled, trained on or turned away. Scores are
            cut to 0 to 1.
        pool: what was drawn from; its difficulties bound the target.
        known: ids of the world's training tasks; others are forgotten.
    """
    scores = [min(max(score, 0.0), 1.0) for _, group in batch for score in group]
    target = progress.target
    if isinstance(sampler, Target):
        low, high = float(pool.hardness.min()), float(pool.hardness.max())
        target = low if target is None else target
        target = moved(target, sum(scores) / len(scores), low, high, sampler) if scores else target
    counts: dict[str, tuple[float, float]] = {}
    if isinstance(sampler, COUNTING):
        counts = {task: (s * sampler.decay, n * sampler.decay) for task, (s, n) in progress.counts.items()}
        for task, group in batch:
            s, n = counts.get(task, (0.0, 0.0))
            counts[task] = (s + sum(min(max(score, 0.0), 1.0) for score in group), n + len(group))
    return Progress(progress.batches + 1, target, _bounded(counts, known))


def _counts(progress: Progress, pool: Pool) -> tuple[Numbers, Numbers]:
    pairs = np.array([progress.counts.get(task, (0.0, 0.0)) for task in pool.ids], np.float64)
    return pairs[:, 0], pairs[:, 1]


def _shared(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_], share: float) -> Numbers:
    """Uniform chances: `share` of them on the second tasks, the rest on the first; all on one where the other is empty."""
    if not first.any() or not second.any():
        return mixed((first | second).astype(np.float64))
    return (1 - share) * mixed(first.astype(np.float64)) + share * mixed(second.astype(np.float64))


def _bounded(counts: Mapping[str, tuple[float, float]], known: Collection[str]) -> dict[str, tuple[float, float]]:
    """The counts without tasks that are gone or forgotten, and at most `MOST` of them, sorted by id."""
    kept = [task for task, (_, n) in counts.items() if n >= FORGOTTEN and task in known]
    if len(kept) > MOST:
        kept = sorted(kept, key=lambda task: (-counts[task][1], task))[:MOST]
    return {task: counts[task] for task in sorted(kept)}
