"""Rates kept as sums over groups, and how sure a difference between two of them is.

Invariant: episodes of one group are not independent, so that a group is one observation: a rate's error comes from how
groups differ. Everything is a sum, so that windows add up and order within a step cannot matter.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sums:
    """A ratio T / N over k groups, with the squares that its error needs.

    Args:
        groups: k, groups that had anything to count.
        total, count: sums over the groups of t and n (say successes and episodes).
        tt, tn, nn: sums over the groups of t^2, t n and n^2.
    """

    groups: float = 0.0
    total: float = 0.0
    count: float = 0.0
    tt: float = 0.0
    tn: float = 0.0
    nn: float = 0.0

    @property
    def value(self) -> float:
        """T / N; NaN when nothing was counted."""
        return self.total / self.count if self.count else math.nan


def add(parts: Iterable[Sums]) -> Sums:
    """The sum of some sums, exactly rounded, so that it does not depend on their order."""
    rows = [(s.groups, s.total, s.count, s.tt, s.tn, s.nn) for s in parts]
    return Sums(*map(math.fsum, zip(*rows, strict=True)))


def by_group(items: Iterable[tuple[str, float, float]]) -> Sums:
    """Sums of (group, numerator, denominator) of some episodes; groups without a denominator are left out."""
    members: dict[str, list[tuple[float, float]]] = {}
    for group, t, n in items:
        members.setdefault(group, []).append((t, n))
    pairs = [(math.fsum(t for t, _ in m), math.fsum(n for _, n in m)) for m in members.values()]
    return add(Sums(1.0, t, n, t * t, t * n, n * n) for t, n in pairs if n)


@dataclass(frozen=True, slots=True)
class Rise:
    """How much a rate rose, the standard error of that (NaN where there is nothing to compare), and the spread between
    groups (standard deviation of a group's own rate)."""

    rise: float
    error: float
    spread: float = 0.0

    def above(self, z: float) -> float:
        """The least rise that `z` standard errors leave: rise - z error; -infinity where nothing is known."""
        return -math.inf if math.isnan(self.error) else self.rise - z * self.error


def rise(before: Sums, after: Sums) -> Rise:
    """The difference of two rates, with the pooled, group-wise error of ratio estimates.

    error^2 = s^2 (k_b / N_b^2 + k_a / N_a^2), s^2 = (TT - 2 m TN + m^2 NN) / (k - 1) over the groups of both, m = T / N of
    both (Cochran, Sampling Techniques, 1977, section 6.3, pooled as under "no difference"). Since the spread that a
    difference makes is part of s^2, z can never exceed about the root of the number of groups.
    """
    both = add([before, after])
    if both.groups < 3 or not before.count or not after.count:
        return Rise(0.0, math.nan)
    m = both.value
    spread = max(0.0, both.tt - 2 * m * both.tn + m * m * both.nn) / (both.groups - 1)
    error = math.sqrt(spread * (before.groups / before.count**2 + after.groups / after.count**2))
    return Rise(after.value - before.value, error, math.sqrt(spread) * both.groups / both.count)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of names (actions, phrases) in one step, of which only the most frequent are kept.

    Args:
        groups: groups that had any.
        count: what the shares are of (actions, or episodes with words).
        counts: how often each kept name occurred.
        floor: no name that was not kept occurred more often than this.
    """

    groups: float
    count: float
    counts: Mapping[str, float]
    floor: float = 0.0

    def at_most(self, name: str) -> float:
        """The largest count that the name can have had."""
        return self.counts.get(name, self.floor)


def most_frequent(groups: int, count: int, counts: Mapping[str, int], kept: int) -> Shares:
    """The `kept` most frequent names (ties by name)."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    floor = order[kept][1] if len(order) > kept else 0
    return Shares(float(groups), float(count), {name: float(n) for name, n in order[:kept]}, float(floor))
