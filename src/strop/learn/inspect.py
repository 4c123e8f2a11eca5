"""What an update is made of, looked at before it is applied. Invariant: pure; a figure is a function of the tokens of the
whole optimizer step, never of how they were cut into micro-batches, and looking changes no gradient.

Share. c_i = sum over the tokens of trajectory i of |dL/dlogp|. A limit L on c_i / sum c would trip on every small batch, so
it applies only where it is far from an even split and one group cannot explain it: at least 4 / L trajectories in at least 3
groups carry anything. (Within a group credit sums to about 0, so that the one winner of a group carries half of it.)

Cap. The gradient of the policy's loss is linear in the advantage for factors above 0, of the whole trajectory also where the
trajectory is one action. The capped ones get the level u with u = L sum min(c, u), so that each carries exactly L. A KL
term in the loss is not scaled: it does not come from the batch's rewards.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from strop.core.algorithm import Algorithm, NoRatio, WeightClip
from strop.core.guard import EffectiveBelow, GradientAbove, OnUpdate, ShareAbove, Trip, WeightAbove
from strop.core.metrics import EffectiveShare, Metrics, Peak
from strop.core.notation import word
from strop.core.trajectory import Origin, Row
from strop.learn.pack import Pack
from strop.objective.columns import Columns
from strop.objective.parts import MAX_LOG_RATIO, Places, log_ratio, unit_log_ratio

Array = npt.NDArray[np.float64]
Member = tuple[str, int]
"""Group and member: a trajectory."""

MEMORY, KNOWN = 32, 8
"""Gradient norms that are remembered, and that must be known before one can stand out."""
EVEN, GROUPS = 4.0, 3
"""A share applies from so many times an even split on, and from so many groups."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The trained tokens of some rows of an update.

    Args:
        pull: |dL/dlogp|; [N].
        weight: importance weight as the algorithm uses it; NaN where there is none; [N].
        row: index of the token's row in `origins`; [N].
        position: index of the token in its row; [N].
        origins: the rows.
    """

    pull: Array
    weight: Array
    row: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    origins: tuple[Origin, ...]


def carried(algorithm: Algorithm, micro: Pack, columns: Columns) -> Carried:
    """What the tokens of one micro-batch carry, after its backward pass."""
    chosen = columns.sampled
    at = chosen.cpu().numpy()
    row, position = (np.asarray(index[at], dtype=np.int64) for index in micro.places)
    grad = columns.logp.grad
    pull = torch.zeros_like(columns.logp) if grad is None else grad.abs()
    origins = tuple(r.origin for r in micro.rows)
    weight = _weights(algorithm, columns)
    return Carried(pull.double().cpu().numpy()[at], weight.double().cpu().numpy(), row, position, origins)


def _weights(algorithm: Algorithm, columns: Columns) -> torch.Tensor:
    """Correction x ratio of the trained tokens, bounded as a weight clip bounds it; NaN without any; [N]."""
    chosen = columns.sampled
    logp = columns.logp.detach()[chosen]
    weight = torch.ones_like(logp) if columns.correction is not None else torch.full_like(logp, math.nan)
    if not isinstance(algorithm.ratio, NoRatio):
        lengths = columns.trajectory_tokens.clamp(min=1)
        places = Places(columns.trajectory[chosen], columns.order[chosen], columns.turn[chosen], lengths)
        logs = unit_log_ratio(algorithm.ratio, log_ratio(logp, columns.anchor_logp[chosen]), places)
        weight = logs.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        if isinstance(algorithm.clip, WeightClip):
            weight = weight.clamp(algorithm.clip.low, algorithm.clip.high)
    return weight if columns.correction is None else weight * columns.correction[chosen]


def together(parts: Sequence[Carried]) -> Carried:
    """All micro-batches of an update as one."""
    starts = np.cumsum([0, *(len(part.origins) for part in parts)])
    return Carried(
        np.concatenate([part.pull for part in parts]),
        np.concatenate([part.weight for part in parts]),
        np.concatenate([part.row + start for part, start in zip(parts, starts, strict=False)]),
        np.concatenate([part.position for part in parts]),
        tuple(origin for part in parts for origin in part.origins),
    )


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the rules say of an update.

    Args:
        trips: rules that tripped.
        metrics: what they compared (`guard_RULE`), tripped or not.
        factors: by which to scale the advantages of trajectories; empty where nothing is capped.
    """

    trips: tuple[Trip, ...]
    metrics: Metrics
    factors: Mapping[Member, float]

    @property
    def refused(self) -> str | None:
        """Why the update must not be taken: `guard_RULE`, or None."""
        first = next((t for t in self.trips if t.action in ("skip", "stop", "rollback")), None)
        return None if first is None else f"guard_{first.rule}"


def inspect(rules: Sequence[OnUpdate], tokens: Carried, update: int = 0) -> Inspection:
    """Hold an update against the rules on what its tokens carry (`GradientAbove` has `jumped`).

    Args:
        rules: those in force.
        tokens: of the whole update.
        update: its number in the step.
    """
    trips: list[Trip] = []
    metrics: Metrics = {}
    factors: dict[Member, float] = {}
    live = (tokens.pull > 0) & ~np.isnan(tokens.weight)
    for rule in rules:
        match rule:
            case WeightAbove() if live.any():
                trips += _heaviest(rule, tokens, live, metrics)
            case EffectiveBelow() if live.any():
                trips += _effective(rule, tokens, live, metrics)
            case ShareAbove():
                found = _share(rule, tokens, metrics)
                trips += found
                if found and rule.action == "cap":
                    factors = capped(shares(tokens), rule.limit)
            case _:
                pass
    return Inspection(tuple(replace(t, update=update) for t in trips), metrics, factors)


def _named(tokens: Carried, at: int) -> tuple[Origin, int, str]:
    origin, position = tokens.origins[int(tokens.row[at])], int(tokens.position[at])
    return origin, position, f"token {position} of {origin.group}/{origin.member}"


def _heaviest(rule: WeightAbove, tokens: Carried, live: npt.NDArray[np.bool_], metrics: Metrics) -> list[Trip]:
    at = int(np.argmax(np.where(live, tokens.weight, -np.inf)))
    value = float(tokens.weight[at])
    metrics["guard_ratio"] = Peak(value)
    if value <= rule.limit:
        return []
    origin, position, name = _named(tokens, at)
    return [
        Trip(
            word(rule),
            value,
            rule.limit,
            rule.action,
            f"{name} has an importance weight of {value:.3g}",
            origin,
            position,
        )
    ]


def _effective(rule: EffectiveBelow, tokens: Carried, live: npt.NDArray[np.bool_], metrics: Metrics) -> list[Trip]:
    w = tokens.weight[live]
    counted = EffectiveShare(float(w.sum()), float((w * w).sum()), float(len(w)))
    metrics["guard_ess"] = counted
    value = counted.value
    if value is None or value >= rule.limit:
        return []
    origin, position, name = _named(tokens, int(np.argmax(np.where(live, tokens.weight, -np.inf))))
    sentence = f"the weights of {len(w)} tokens count as those of {value * len(w):.1f}; the largest is {name}'s"
    return [Trip(word(rule), value, rule.limit, rule.action, sentence, origin, position)]


def shares(tokens: Carried) -> dict[Member, float]:
    """What each trajectory carries, sum |dL/dlogp|; those that carry nothing are left out."""
    out: dict[Member, float] = {}
    by_row = np.bincount(tokens.row, weights=tokens.pull, minlength=len(tokens.origins))
    for origin, pull in zip(tokens.origins, by_row.tolist(), strict=True):
        if pull > 0:
            key = origin.group, origin.member
            out[key] = out.get(key, 0.0) + pull
    return out


def applies(carrying: Mapping[Member, float], limit: float) -> bool:
    """Whether so many trajectories and groups carry something that a share above the limit says something."""
    return len(carrying) * limit >= EVEN and len({group for group, _ in carrying}) >= GROUPS


def _share(rule: ShareAbove, tokens: Carried, metrics: Metrics) -> list[Trip]:
    carrying = shares(tokens)
    if not applies(carrying, rule.limit):
        return []
    top, most = max(carrying.items(), key=lambda item: item[1])
    value = most / math.fsum(carrying.values())
    metrics["guard_share"] = Peak(value)
    if value <= rule.limit:
        return []
    mine = np.array([(o.group, o.member) == top for o in tokens.origins])[tokens.row]
    at = int(np.argmax(np.where(mine, tokens.pull, -1.0)))
    origin, position, name = _named(tokens, at)
    sentence = (
        f"{top[0]}/{top[1]} carries {value:.2f} of the update of {len(carrying)} trajectories; most of it is {name}'s "
        f"({tokens.pull[at] / most:.2f})"
    )
    return [Trip(word(rule), value, rule.limit, rule.action, sentence, origin, position)]


def capped(carrying: Mapping[Member, float], limit: float) -> dict[Member, float]:
    """Factors at most 1 under which no trajectory carries more than `limit`, and each that is scaled carries just that.

    Args:
        carrying: what each carries.
        limit: above 1 / trajectories; see `applies`.
    """
    order = sorted(carrying.items(), key=lambda item: -item[1])
    rests = np.cumsum([carry for _, carry in reversed(order)])[
        ::-1
    ]  # from the smallest up: differences would lose them
    for k, (_, most) in enumerate(order):
        level = limit * float(rests[k]) / (1 - k * limit)  # where the k largest stand at the level
        if most <= level:
            return {name: level / carry for name, carry in order[:k]}
    return {}


def scaled(rows: Sequence[Row], factors: Mapping[Member, float]) -> list[Row]:
    """The rows with the advantages of some trajectories scaled."""
    return [
        row.with_columns(advantage=(row.columns["advantage"] * f).astype(np.float32))
        if (f := factors.get((row.origin.group, row.origin.member))) is not None
        else row
        for row in rows
    ]


def jumped(rules: Sequence[OnUpdate], norm: float, before: Sequence[float], update: int) -> Inspection:
    """Hold a gradient's norm against the median of those before it.

    Args:
        rules: those in force.
        norm: of the policy's gradient, before it is clipped.
        before: norms of earlier updates, those that were left out too: what lasts is the new measure, not a jump.
        update: number of the update in the step.
    """
    rule = next((r for r in rules if isinstance(r, GradientAbove)), None)
    if rule is None or len(before) < KNOWN:
        return Inspection((), {}, {})
    usual = statistics.median(before)
    value = norm / usual
    metrics: Metrics = {"guard_gradient": Peak(value)}
    if value <= rule.limit:
        return Inspection((), metrics, {})
    sentence = (
        f"the gradient's norm is {norm:.3g}, {value:.1f} times the median {usual:.3g} of {len(before)} updates before"
    )
    return Inspection((Trip(word(rule), value, rule.limit, rule.action, sentence, update=update),), metrics, {})


def remembered(norms: Sequence[float], norm: float) -> list[float]:
    """The norms with one more; one of 0 (nothing to learn) says nothing about what is usual."""
    return [*norms, norm][-MEMORY:] if norm > 0 else list(norms)
