"""Which episodes of a data set are learned from: once each, and at most so many of a task.

Invariant: the choice depends on the order of the episodes alone (draw order, then the member of the group), never on
chance; so the same data set gives the same choice in every run.
"""

from collections import Counter

from strop.core.metrics import Mean, Metrics
from strop.core.selection import Kept
from strop.core.trajectory import Trajectory


class Sieve:
    """Takes or leaves the episodes of one data set as they come.

    Args:
        cap: most episodes of one task; None for no cap.
        distinct: whether episodes of a task with the same ids are taken once.

    Attributes:
        passed, distinct, kept: episodes that came, different ones among them, and those that were taken.
        largest: most episodes that were taken of one task.
    """

    def __init__(self, cap: int | None, distinct: bool) -> None:
        self.cap, self.once = cap, distinct
        self.passed = self.kept = 0
        self._seen: set[tuple[str, bytes]] = set()
        self._of_task: Counter[str] = Counter()

    @property
    def distinct(self) -> int:
        """Different episodes that came, those that were left included."""
        return len(self._seen)

    @property
    def largest(self) -> int:
        """Most episodes that were taken of one task."""
        return max(self._of_task.values(), default=0)

    def takes(self, task: str, content: bytes) -> bool:
        """Whether the next episode is taken; `content` is what makes it the same as another one of its task."""
        self.passed += 1
        again = (task, content) in self._seen
        self._seen.add((task, content))
        if (self.once and again) or (self.cap is not None and self._of_task[task] >= self.cap):
            return False
        self._of_task[task] += 1
        self.kept += 1
        return True


class Filter:
    """A rule on episodes, and what became of those that came: rejection sampling.

    Attributes:
        sampled, unscored: episodes that came, and those of them without a score.
        best: the best score seen; None before there was one.
    """

    def __init__(self, rule: Kept | None) -> None:
        self.rule = rule
        self.sieve = Sieve(rule.cap, rule.distinct) if rule is not None else Sieve(None, False)
        self.sampled = self.unscored = 0
        self.best: float | None = None

    def takes(self, trajectory: Trajectory) -> bool:
        """Whether an episode is kept; without a rule all are."""
        score = trajectory.score
        self.sampled += 1
        self.unscored += score is None
        if score is not None:
            self.best = score if self.best is None else max(self.best, score)
        if self.rule is not None and (score is None or score <= self.rule.threshold):
            return False
        return self.sieve.takes(trajectory.task.id, content(trajectory))

    def metrics(self) -> Metrics:
        """The sizes of the data set: sampled, kept, different among those above the threshold, most of one task."""
        sizes = {
            "sampled": self.sampled,
            "kept": self.sieve.kept,
            "distinct": self.sieve.distinct,
            "task_max": self.sieve.largest,
        }
        return {f"demonstrations_{name}": Mean(float(size)) for name, size in sizes.items()}


def content(trajectory: Trajectory) -> bytes:
    """All ids of an episode in order, as one value: context and completion of each turn."""
    parts = [part.tobytes() for turn in trajectory.turns for part in (turn.context, turn.completion.tokens)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
