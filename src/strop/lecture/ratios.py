"""Figures of importance ratios and clips: what old data is worth, and what it may still move.

Invariant: ratios and pulls come from `objective.parts` and `objective.objective`; products are taken in logarithms there.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import torch

from strop.core.algorithm import (
    Clip,
    GrowingClip,
    One,
    PPOClip,
    PrefixRatio,
    Ratio,
    SequenceRatio,
    TokenRatio,
    TrajectoryRatio,
    WeightClip,
)
from strop.core.metrics import EffectiveShare
from strop.core.notation import written
from strop.core.seeds import generator, stream_key
from strop.lecture.enumeration import columns, expectation, places_of, plain, token_pull
from strop.lecture.figure import Cell, Curve, Figure, Panel, Table
from strop.objective.parts import Places, importance_ratio, surrogate, unit_log_ratio

RATIO = "objective.parts.importance_ratio"


def _ratios(ratio: Ratio, pi: Sequence[float], mu: Sequence[float]) -> list[float]:
    """The importance ratio at each token of one trajectory, from its probabilities under both policies."""
    logp, old = (torch.tensor(row, dtype=torch.float64).log() for row in (pi, mu))
    batch, _ = columns([logp], [old], [[0.0] * len(pi)])
    found = importance_ratio(ratio, batch.logp, batch.anchor_logp, places_of(batch))
    return [] if found is None else found.tolist()


def importance() -> Figure:
    """An expectation under pi, from what mu does."""
    mu, pi, rewards = (0.4, 0.4, 0.2), (0.7, 0.2, 0.1), (1.0, 0.0, 0.0)
    weights = [_ratios(TokenRatio(), [p], [m])[0] for p, m in zip(pi, mu, strict=True)]
    rows = [(f"outcome {i}", *row) for i, row in enumerate(zip(mu, pi, rewards, weights, strict=True), 1)]
    share = EffectiveShare(expectation(mu, weights), expectation(mu, [w * w for w in weights]), 1.0).value
    means: list[tuple[Cell, ...]] = [
        ("E_mu[R], uncorrected", expectation(mu, rewards)),
        ("E_mu[w R]", expectation(mu, [w * r for w, r in zip(weights, rewards, strict=True)])),
        ("E_pi[R]", expectation(pi, rewards)),
        ("E_mu[w]", expectation(mu, weights)),
        ("effective share of the samples", share or 0.0),
    ]
    tables = Table(("", "mu", "pi", "R", "w = pi/mu"), tuple(rows), 2), Table(("", "value"), tuple(means), 3)
    return Figure(tables, (RATIO, "core.metrics.EffectiveShare"))


def product() -> Figure:
    """A ratio of 1.05 at every token, over 1, 10 and 100 tokens."""
    lengths = (1, 10, 100)
    kinds = (TokenRatio(), TrajectoryRatio(), PrefixRatio(), SequenceRatio())
    rows = [
        (written(kind), *(_ratios(kind, [0.525] * n, [0.5] * n)[-1] for n in lengths)) for kind in kinds
    ]  # fmt: skip
    return Figure((Table(("ratio of the last token", *(f"n={n}" for n in lengths)), tuple(rows)),), (RATIO,))


def prefix() -> Figure:
    """A history whose probability has fallen to a quarter, and a next token as likely as before."""
    mu, pi = (0.4, 0.5), (0.1, 0.5)
    kinds = (TokenRatio(), PrefixRatio(), TrajectoryRatio(), SequenceRatio())
    rows = [(written(kind), *_ratios(kind, pi, mu)) for kind in kinds]
    return Figure((Table(("ratio", "token 1", "token 2"), tuple(rows), 2),), (RATIO,))


SIGMA, WALKS, LENGTH = 0.05, 4000, 100
STOPS = (1, 4, 25, 100)


def _prefix_logs(steps: torch.Tensor) -> torch.Tensor:
    """Logarithm of the prefix ratio at every token of trajectories whose token log-ratios are given; [walks, tokens]."""
    walks, length = steps.shape
    trajectory = torch.arange(walks).repeat_interleave(length)
    order, turn = torch.arange(length).repeat(walks), torch.zeros_like(trajectory)
    places = Places(trajectory, order, turn, torch.full((walks,), length))
    return unit_log_ratio(PrefixRatio(), steps.flatten(), places).reshape(steps.shape)


def growth() -> Figure:
    """Measured spread of the log weight over trajectories, token by token.

    Token log-ratios are +0.05 or -0.05 by a coin: once a coin of its own for each token, once one coin for a trajectory.
    """
    coins = 2.0 * generator(stream_key(0, "play")).integers(0, 2, size=(WALKS, LENGTH)) - 1.0
    steps = SIGMA * torch.tensor(coins, dtype=torch.float64)
    own, shared = _prefix_logs(steps), _prefix_logs(steps[:, :1].expand(-1, LENGTH).contiguous())
    rows: list[tuple[Cell, ...]] = []
    for t in STOPS:
        variances = (found[:, t - 1].var(correction=0).item() for found in (own, shared))
        first, second = variances
        rows.append((f"n={t}", first, t * SIGMA**2, sqrt(first), SIGMA * sqrt(t), second))
    head = ("", "variance", "n sigma^2", "std", "sqrt(n) sigma", "variance, one coin")
    bounds = [(f"t={t}", *_bounds(GrowingClip(SIGMA, SIGMA), t)) for t in (*STOPS, 2500)]
    clip = Table((written(GrowingClip(SIGMA, SIGMA)), "lower", "upper"), tuple(bounds))
    return Figure((Table(head, tuple(rows)), clip), ("objective.parts.unit_log_ratio", "objective.parts.surrogate"))


def _bounds(clip: Clip, t: int) -> tuple[float, float]:
    """The bounds of a clip at token t, read from the loss of ratios far beyond them."""
    log_r = torch.tensor([-15.0, 15.0], dtype=torch.float64)
    sign = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    loss, _ = surrogate(clip, log_r.exp(), log_r, sign, torch.tensor([t - 1, t - 1]), torch.zeros_like(log_r))
    low, high = (-sign * loss).tolist()
    return low, high


POINTS = (0.5, 0.9, 1.0, 1.1, 1.25, 1.5, 4.0)
SIGNS = (1.0, -1.0)
PPO, CISPO = PPOClip(), WeightClip(0.8, 1.2)


def _pull(clip: Clip, ratios: Sequence[float], sign: float) -> list[float]:
    return token_pull(plain(One(), TokenRatio(), clip), ratios, sign)


def clip() -> Figure:
    """The weight on grad log pi of one token, by its ratio: PPO's clip beside a clipped, detached weight."""
    parts = (PPO, CISPO)
    pulls = [_pull(part, POINTS, sign) for sign in SIGNS for part in parts]
    head = ("r", *(f"{name}, A={sign:+.0f}" for sign in SIGNS for name in ("PPO", "CISPO")))
    rows = [(f"{r:g}", *(pull[i] for pull in pulls)) for i, r in enumerate(POINTS)]
    grid = [i / 100 for i in range(1, 201)]
    panels = [
        Panel(
            f"A = {sign:+.0f}",
            "ratio r",
            "weight on grad log pi",
            tuple(
                Curve(f"{name} {written(part)}", tuple(zip(grid, _pull(part, grid, sign), strict=True)))
                for name, part in zip(("PPO", "CISPO"), parts, strict=True)
            ),
        )
        for sign in SIGNS
    ]
    code = ("objective.parts.surrogate", "objective.objective.policy_loss")
    return Figure((Table(head, tuple(rows), 2),), code, tuple(panels))


def cispo() -> Figure:
    """Which tokens still have a gradient, under the clips that papers and trainers call by these names."""
    parts = (PPO, PPOClip(high=0.28), PPOClip(dual=3.0), CISPO, WeightClip(high=1.2), WeightClip(high=5.0))
    tables = [
        Table(
            (f"A={sign:+.0f}", *(f"r={r:g}" for r in POINTS)),
            tuple((written(part), *_pull(part, POINTS, sign)) for part in parts),
            2,
        )
        for sign in SIGNS
    ]
    return Figure(tuple(tables), ("objective.parts.surrogate", "objective.objective.policy_loss"))


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "importance": importance,
    "product": product,
    "prefix": prefix,
    "growth": growth,
    "clip": clip,
    "cispo": cispo,
}
"""By the name of the command."""
