"""Numbers that know how they combine. Invariant: sums and counts are kept and divided once, when read."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean kept as sum and count. NaN and infinity are not hidden: they show in the value."""

    total: float
    count: float = 1.0

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float | None:
        """Sum over count; None when nothing was counted."""
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class Total:
    """A plain sum."""

    total: float

    def __add__(self, other: "Total") -> "Total":
        return Total(self.total + other.total)

    @property
    def value(self) -> float:
        """The sum."""
        return self.total


@dataclass(frozen=True, slots=True)
class Peak:
    """A maximum."""

    peak: float

    def __add__(self, other: "Peak") -> "Peak":
        return Peak(math.nan if math.isnan(self.peak + other.peak) else max(self.peak, other.peak))

    @property
    def value(self) -> float:
        """The largest number seen."""
        return self.peak


Metric = Mean | Total | Peak
Metrics = dict[str, Metric]


def combine(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """Combine metrics of disjoint parts (micro-batches, updates, groups) by name; kinds must agree."""
    out: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            if name not in out:
                out[name] = metric
            elif type(out[name]) is type(metric):
                out[name] = out[name] + metric  # type: ignore[operator]  # the kinds were just compared
            else:
                raise TypeError(f"metric {name} is {type(metric).__name__} here and {type(out[name]).__name__} there")
    return out


def values(metrics: Mapping[str, Metric]) -> dict[str, float | None]:
    """Read every metric: the only place where sums are divided."""
    return {name: metric.value for name, metric in metrics.items()}
