"""Drawing tasks by a sampler: the live side of `strop.teach.curriculum`.

Invariant: the task of a draw is a function of what the run remembers (`Position.sampler`), the number of the draw and the
seed. So a run that is taken up again draws what the undisturbed one draws. The record moves once a batch, when the batch
was learned from: draws of one batch see one record. With lag, groups are launched before the batches ahead of them are
learned from, and are drawn by the record of that moment.

Honeypots are outside every sampler: each keeps the share that a uniform draw would give it, and is counted nowhere. The
tasks of the evaluation are neither drawn nor counted (`strop.config.sampling` refuses a stage on them).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from strop.core.metrics import Mean, Metrics
from strop.core.sampler import Retire, Sampler, Target, Uniform
from strop.core.seeds import generator, stream_key
from strop.core.task import Task
from strop.core.trajectory import Group
from strop.core.world import World
from strop.teach.curriculum import COUNTING, Numbers, Pool, after, chances, effective, estimated, progress_of, solved
from strop.watch.behaviour import is_honeypot

Record = Mapping[str, Any]


class Drawing:
    """Draws the tasks of a run, and remembers how they went.

    Args:
        sampler: how; not `Uniform`, which the batches draw by themselves.
        world: whose tasks.
        seed: the run's seed.
    """

    def __init__(self, sampler: Sampler, world: World, seed: int) -> None:
        self.sampler, self.world, self.seed = sampler, world, seed
        self.known = frozenset(task.id for name, tasks in world.tasks.items() if name != "eval" for task in tasks)
        self._splits: dict[str, tuple[list[Task], Pool]] = {}
        self._last: tuple[Record, str, Numbers] | None = None

    def task(self, record: Record, split: str, number: int) -> Task:
        """The task of a draw.

        Args:
            record: what the run remembers, `Position.sampler`.
            split: which tasks.
            number: running number of the draw.
        """
        if self._last is None or self._last[0] is not record or self._last[1] != split:
            self._last = (record, split, self.all_chances(record, split).cumsum())
        tasks, cumulative = self._tasks(split)[0], self._last[2]
        spot = generator(stream_key(self.seed, "sampler", number)).random() * cumulative[-1]
        return tasks[int(np.searchsorted(cumulative, spot, side="right"))]

    def draws(self, split: str, record: Callable[[], Record]) -> Callable[[int], Task]:
        """The task of each draw number of a split, by what is remembered when it is drawn."""
        return lambda number: self.task(record(), split, number)

    def all_chances(self, record: Record, split: str) -> Numbers:
        """The chance of each task of a split, in the order of their ids; honeypots with the share of a uniform draw."""
        tasks, pool = self._tasks(split)
        out = np.full(len(tasks), 1 / len(tasks))
        honest = np.array([not is_honeypot(task) for task in tasks])
        if pool.ids:
            out[honest] = chances(self.sampler, progress_of(record), pool) * honest.mean()
        return out

    def step(self, record: Record, split: str, groups: Sequence[Group]) -> tuple[dict[str, Any], Metrics]:
        """What is remembered after a batch, and metrics of what was remembered before it, by which it was drawn.

        Args:
            record: before it.
            split: what the batch was drawn from.
            groups: all that was sampled, trained on or turned away.
        """
        pool, progress = self._tasks(split)[1], progress_of(record)
        if not pool.ids:
            return dict(record), {}
        batch = [
            (group.task.id, [t.score for t in group.own.trajectories if t.score is not None])
            for group in groups
            if not is_honeypot(group.task)
        ]
        found = after(self.sampler, progress, batch, pool, self.known)
        metrics: Metrics = {"sampler_tasks": Mean(effective(chances(self.sampler, progress, pool)))}
        if isinstance(self.sampler, Target):
            target = pool.hardness.min() if progress.target is None else progress.target
            metrics["sampler_target"] = Mean(float(target))
        if isinstance(self.sampler, COUNTING):
            mean, unseen = estimated(progress, pool)
            metrics["sampler_unseen"] = Mean(unseen)
            if mean is not None:
                metrics["sampler_success"] = Mean(mean)
        if isinstance(self.sampler, Retire):
            metrics["sampler_solved"] = Mean(float(solved(self.sampler, progress, pool).mean()))
        return found.record(), metrics

    def _tasks(self, split: str) -> tuple[list[Task], Pool]:
        """The tasks of a split, sorted by id, and the pool of the honest ones."""
        if split not in self._splits:
            tasks = sorted(self.world.split(split), key=lambda task: task.id)
            honest = [task for task in tasks if not is_honeypot(task)]
            difficulty = self.world.difficulty
            hard = None if difficulty is None else np.array([difficulty(task) for task in honest], np.float64)
            self._splits[split] = (tasks, Pool(tuple(task.id for task in honest), hard))
        return self._splits[split]


def drawing(sampler: Sampler, world: World, seed: int) -> Drawing | None:
    """Who draws the tasks of a run; None: the batches themselves, each task once an epoch."""
    return None if isinstance(sampler, Uniform) else Drawing(sampler, world, seed)
