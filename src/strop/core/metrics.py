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


@dataclass(frozen=True, slots=True)
class EffectiveShare:
    """Kish's effective sample size of weights over their number, (sum w)^2 / (n sum w^2); 1 for equal weights."""

    total: float
    square: float
    count: float

    def __add__(self, other: "EffectiveShare") -> "EffectiveShare":
        return EffectiveShare(self.total + other.total, self.square + other.square, self.count + other.count)

    @property
    def value(self) -> float | None:
        """The share; None when nothing was counted or all weights are 0."""
        return self.total**2 / (self.count * self.square) if self.count and self.square else None


@dataclass(frozen=True, slots=True)
class Explained:
    """Explained variance 1 - Var(G - V) / Var(G), from the sums of G - V and G and of their squares."""

    gap: float
    gap_square: float
    target: float
    target_square: float
    count: float

    def __add__(self, other: "Explained") -> "Explained":
        return Explained(
            self.gap + other.gap,
            self.gap_square + other.gap_square,
            self.target + other.target,
            self.target_square + other.target_square,
            self.count + other.count,
        )

    @property
    def value(self) -> float | None:
        """The share of the returns' variance that the values explain; None where the returns do not vary."""
        if not self.count:
            return None
        variance = self.target_square / self.count - (self.target / self.count) ** 2
        left = self.gap_square / self.count - (self.gap / self.count) ** 2
        return 1 - left / variance if variance > 1e-12 else None


Metric = Mean | Total | Peak | EffectiveShare | Explained
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


def wilson(successes: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a proportion, z = 1.96 for 95 %; (0, 1) when nothing was counted.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n). Source: Wilson 1927.

    Raises:
        ValueError: more successes than were counted, or fewer than none.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no proportion")
    if n == 0:
        return 0.0, 1.0
    p, spread = successes / n, z * z / n
    half = z * math.sqrt(p * (1 - p) / n + spread / (4 * n))
    low = 0.0 if successes == 0 else (p + spread / 2 - half) / (1 + spread)
    high = 1.0 if successes == n else (p + spread / 2 + half) / (1 + spread)
    return low, high
