"""Protocol of the learner. Invariant: a learner sees rows only; it has never heard of environments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from strop.core.guard import Trip
from strop.core.metrics import Metric
from strop.core.trajectory import Row


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one learner step did.

    Args:
        metrics: sums and counts over all updates of the step.
        updates: optimizer steps taken.
        skipped: updates not taken, by reason (`non-finite`, `nothing to train`, `guard_RULE`).
        trips: rules of the guard that an update tripped, in order.
    """

    metrics: Mapping[str, Metric]
    updates: int
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])
    trips: tuple[Trip, ...] = ()


class Learner(Protocol):
    """Four verbs; a remote or a sharded one has the same four."""

    def annotate(self, rows: Sequence[Row], needs: Sequence[str]) -> list[Row]:
        """Add columns that other models say of the rows (`logp`, `entropy`, ...)."""
        ...

    def step(self, rows: Sequence[Row]) -> StepReport:
        """Learn from one batch: one or several optimizer steps."""
        ...

    def publish(self, version: int) -> Any:
        """Weights for the engine, or None where they are shared."""
        ...

    def state(self) -> Mapping[str, Any]:
        """All that a resumed run needs."""
        ...
