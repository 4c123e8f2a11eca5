"""A round of self-training: sample (Grow), keep what is above a threshold, imitate it (Improve), one pass a threshold.

    D <- samples, or D u samples with `union`;  for j: L_j = - sum over D of 1[score > tau_j] log pi,  tau_1 < tau_2 < ...

(ReST 2308.08998; ReST-EM 2312.06585 starts each round from the weights of the stage's start). Invariant: what a round learns
from is a function of the samples of its stage, in draw order, and all of them that can be learned from again stand in the
run folder: `data/round-000012.jsonl`, one file a step, written before the step learns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from strop.core.algorithm import Above, Algorithm, Credit, One, Rounds
from strop.core.learner import StepReport
from strop.core.metrics import Mean, Metrics, combine
from strop.core.trajectory import Group, Row
from strop.core.world import World
from strop.loop.assemble import Parts
from strop.loop.lesson import Lesson, lesson
from strop.loop.plan import StagePlan
from strop.teach.selection import Sieve
from strop.watch.dataset import read_groups, tasks_by_id, write_groups

MOST = 50_000
"""Episodes that a grown data set holds at most: the newest rounds that have room, the last one whatever its size."""


@dataclass(slots=True)
class Grown:
    """The data set of a stage of rounds, which grows with each of them.

    A group is kept whole if one of its members is above the lowest threshold: the others can never be learned from.

    Args:
        folder: `data/` of the run folder.
        stage: the stage.
        world: finds tasks again.
        most: episodes that it holds at most, see `MOST`.
        rounds: groups of each round that is held, oldest first.
    """

    folder: Path
    stage: StagePlan
    world: World
    most: int = MOST
    rounds: list[list[Group]] = field(default_factory=list[list[Group]])

    def load(self, steps: range) -> None:
        """Take back what the rounds of these steps added; what a run wrote of later steps never happened."""
        tasks = tasks_by_id(self.world, self.stage.split)
        self.rounds = []
        for step in reversed(steps):
            self.rounds.insert(0, read_groups(self._file(step), tasks))
            if self._size() > self.most:
                break
        self._bound()

    def add(self, step: int, groups: Sequence[Group]) -> None:
        """Add the samples of a round, in the folder too."""
        fit = [group for group in groups if any(self._passes(t.score) for t in group.trajectories)]
        write_groups(self._file(step), fit, step, self.stage.kind)
        self.rounds.append(fit)
        self._bound()

    @property
    def groups(self) -> list[Group]:
        """All groups that are held, oldest first."""
        return [group for groups in self.rounds for group in groups]

    def _file(self, step: int) -> Path:
        return self.folder / f"round-{step:06d}.jsonl"

    def _passes(self, score: float | None) -> bool:
        algorithm = self.stage.algorithm
        if isinstance(algorithm.credit, One):
            return True
        return score is not None and score > min(algorithm.rounds.thresholds)

    def _size(self) -> int:
        return sum(len(group.trajectories) for groups in self.rounds for group in groups)

    def _bound(self) -> None:
        while len(self.rounds) > 1 and self._size() > self.most:
            self.rounds.pop(0)


def passes(algorithm: Algorithm) -> list[Credit]:
    """The filter of each pass of a round; with credit one there is a single pass, over everything."""
    if isinstance(algorithm.credit, One):
        return [algorithm.credit]
    return [Above(threshold) for threshold in algorithm.rounds.thresholds]


async def learn_round(
    parts: Parts, algorithm: Algorithm, groups: Sequence[Group], state: dict[str, float]
) -> tuple[list[Lesson], StepReport]:
    """Learn from a data set, one pass after the other; a pass whose set is empty changes nothing.

    Args:
        parts: the learner, and what lessons need.
        algorithm: the row of the stage.
        groups: the data set, in draw order.
        state: moving averages.

    Returns:
        The lesson of each pass, and the report of all.
    """
    learner, spans, rate = parts.learner, parts.table.spans, parts.learner.rate
    if algorithm.rounds.restart:
        learner.rewind()
    lessons: list[Lesson] = []
    reports: list[StepReport] = []
    sizes: Metrics = {}
    try:
        for index, credit in enumerate(passes(algorithm)):
            with spans.during("annotate"):
                given, sieve = sieved(await lesson(parts, algorithm, credit, groups, state), algorithm.rounds)
            sizes |= _sizes(index, sieve)
            learner.rate = rate * algorithm.rounds.decay**index
            with spans.during("update"):
                reports.append(learner.step(given.rows))
            lessons.append(given)
    finally:
        learner.rate = rate
    if algorithm.rounds.union:
        sizes["union"] = Mean(float(sum(len(group.trajectories) for group in groups)))
    return lessons, _together(reports, sizes)


def sieved(given: Lesson, rounds: Rounds) -> tuple[Lesson, Sieve]:
    """The lesson of a pass with at most `cap` episodes of a task and each once, in draw order, and what was counted."""
    sieve = Sieve(rounds.cap, rounds.distinct)
    rows: list[Row] = []
    for (group, _), parts in groupby(given.rows, key=lambda row: (row.origin.group, row.origin.member)):
        own = list(parts)
        if sieve.takes(given.tasks[group], b"|".join(row.tokens.tobytes() for row in own)):
            rows += own
    return replace(given, rows=rows), sieve


def _sizes(index: int, sieve: Sieve) -> Metrics:
    found = {"kept": sieve.kept, "distinct": sieve.distinct, "task_max": sieve.largest}
    return {f"{name}_{index}": Mean(float(size)) for name, size in found.items()}


def _together(reports: Sequence[StepReport], sizes: Metrics) -> StepReport:
    skipped: dict[str, int] = {}
    for report in reports:
        for reason, number in report.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + number
    trips = tuple(trip for report in reports for trip in report.trips)
    metrics = {**combine([report.metrics for report in reports]), **sizes}
    return StepReport(metrics, sum(report.updates for report in reports), skipped, trips)


def empty(algorithm: Algorithm, groups: Sequence[Group]) -> str:
    """Why no pass of a round had anything to learn from, and what to do about it."""
    scores = [t.score for group in groups for t in group.trajectories]
    scored = [score for score in scores if score is not None]
    best = f"the best score is {max(scored):g}" if scored else "none was scored"
    return (
        f"the round kept nothing: none of {len(scores)} episodes is above the threshold {min(algorithm.rounds.thresholds):g} "
        f"({best}; {len(scores) - len(scored)} unscored). Start warm, take easier tasks (stages.*.split), sample more "
        "(rollout.groups, rollout.group_size), or lower the threshold (algorithm.rounds); then start anew"
    )
