"""Gradients of every method, written by hand token by token, as central differences, at kinks, and as expectations.

Where no gradient is stopped, central differences of the loss are its gradient; where one is stopped on purpose, they are
not, and what they are then is said. Each family has a control: a neighbour whose gradient is another.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strop.core.algorithm import (
    KL,
    Algorithm,
    Band,
    Clip,
    Constant,
    Correction,
    Critic,
    GroupTokenMean,
    GrowingClip,
    MaskClip,
    NoClip,
    NoRatio,
    PPOClip,
    PrefixRatio,
    Ratio,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SequenceRatio,
    SoftGate,
    TokenMean,
    TokenRatio,
    TrajectoryRatio,
    Truncate,
    TurnRatio,
    WeightClip,
    Zero,
)
from strop.credit.correction import correction_weights
from strop.objective.columns import Columns, Totals
from strop.objective.objective import Moment, loss
from strop.objective.terms import value_error
from tests.objective.batches import algorithm, columns, run, totals_of
from tests.objective.test_identities import (
    CLIPS,
    CORRECTIONS,
    F1,
    F1_TOTALS,
    FEW,
    INF,
    MODES,
    RATIOS,
    SOME,
    batches,
    divergence,
    gradient,
    same,
    weighted,
)

# --- E1: gradients written out by hand


def unit_ratios(ratio: Ratio, batch: Columns) -> list[float]:
    """The ratio at each token, summed in plain Python."""
    logs = (batch.logp.detach() - batch.anchor_logp).tolist()
    owner, order, turn = (column.tolist() for column in (batch.trajectory, batch.order, batch.turn))
    out = []
    for t in range(len(logs)):
        mine = [s for s in range(len(logs)) if owner[s] == owner[t]]
        chosen = {
            TokenRatio: [t],
            TurnRatio: [s for s in mine if turn[s] == turn[t]],
            PrefixRatio: [s for s in mine if order[s] <= order[t]],
            TrajectoryRatio: mine,
            SequenceRatio: mine,
        }[type(ratio)]
        total = sum(logs[s] for s in chosen)
        out.append(math.exp(total / len(mine) if isinstance(ratio, SequenceRatio) else total))
    return out


def slope(clip: Clip, r: float, a: float, order: int, p: float, anchor: float) -> float:
    """d loss / d log pi of one token before aggregation."""
    match clip:
        case NoClip():
            return -a * r
        case PPOClip(low, high, dual):
            stopped = (a > 0 and r > 1 + high) or (a < 0 and (r < 1 - low or (dual is not None and r > dual)))
            return 0.0 if stopped else -a * r
        case GrowingClip(low, high, power, dual):
            width = (order + 1) ** power
            over = a > 0 and r > math.exp(high * width)
            under = a < 0 and (r < math.exp(-low * width) or (dual is not None and r > math.exp(dual * width)))
            return 0.0 if over or under else -a * r
        case WeightClip(low, high):
            return -a * min(max(r, low), INF if high is None else high)
        case MaskClip(delta):
            return 0.0 if (a > 0 and p - anchor > delta) or (a < 0 and p - anchor < -delta) else -a * r
        case SoftGate(positive, negative):
            gate = 1 / (1 + math.exp(-(positive if a > 0 else negative) * (r - 1)))
            return -4 * a * gate * (1 - gate) * r


def by_hand(parts: Algorithm, batch: Columns, totals: Totals) -> torch.Tensor:
    """The gradient of policy loss and KL in every log-probability."""
    ratios = unit_ratios(parts.ratio, batch)
    logp, anchor, credit = (x.detach().tolist() for x in (batch.logp, batch.anchor_logp, batch.advantage))
    owner = batch.trajectory.tolist()
    out = []
    for t, r in enumerate(ratios):
        i = owner[t]
        length, group = int(batch.trajectory_tokens[i]), int(batch.group_tokens[i])
        a = credit[t]
        if isinstance(parts.ratio, SequenceRatio) and parts.ratio.form == "sequence":
            mine = [credit[s] for s in range(len(owner)) if owner[s] == i]
            a = sum(mine) / len(mine)
        g = slope(parts.clip, r, a, int(batch.order[t]), math.exp(logp[t]), math.exp(anchor[t]))
        g *= 1.0 if batch.correction is None else float(batch.correction[t])
        for term in parts.terms:
            assert isinstance(term, KL)
            assert batch.reference_logp is not None
            d = logp[t] - float(batch.reference_logp[t])
            value, change = {
                "k1": (d, 1.0),
                "k2": (d * d / 2, d),
                "k3": (math.exp(-d) - 1 + d, 1 - math.exp(-d)),
            }[term.estimator]
            stale = math.exp(logp[t] - float(batch.behaviour_logp[t]))
            g += term.coefficient * (stale * (value + change) if term.weighted else change)
        weight = {
            TokenMean: 1 / totals.tokens,
            GroupTokenMean: 1 / (totals.groups * group),
            SeqMeanTokenMean: 1 / (totals.trajectories * length),
            SeqMeanTokenSum: 1 / totals.trajectories,
            Constant: 1 / (totals.trajectories * 8.0),
        }[type(parts.aggregate)]
        out.append(weight * g)
    return torch.tensor(out, dtype=torch.float64)


def near_a_kink(parts: Algorithm, batch: Columns, width: float = 1e-3) -> bool:
    """Whether a small change of some ratio or probability would switch a token on or off."""
    credit, logp, anchor = (x.detach().tolist() for x in (batch.advantage, batch.logp, batch.anchor_logp))
    for t, r in enumerate(unit_ratios(parts.ratio, batch)):
        a, order, p, old = credit[t], int(batch.order[t]), math.exp(logp[t]), math.exp(anchor[t])
        probes = [slope(parts.clip, r * (1 + e), a, order, p + e, old) / (r * (1 + e)) for e in (-width, 0.0, width)]
        smooth = isinstance(parts.clip, WeightClip | SoftGate)
        if not smooth and max(probes) - min(probes) > 1e-9:
            return True
    return False


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("clip", CLIPS)
@FEW
@given(batch=batches(), mode=st.sampled_from(list(MODES)))
def test_autograd_gives_the_gradient_that_is_written_by_hand(ratio: str, clip: str, batch: Columns, mode: str) -> None:
    parts = algorithm(RATIOS[ratio], CLIPS[clip], MODES[mode])
    totals = totals_of(batch)
    assert same(gradient(parts, batch, totals), by_hand(parts, batch, totals), 1e-9)


@pytest.mark.parametrize("correction", CORRECTIONS)
@FEW
@given(batch=batches(), estimator=st.sampled_from(["k1", "k2", "k3"]), doubled=st.booleans(), seed=st.integers(0, 99))
def test_so_it_does_with_a_correction_and_a_kl(
    correction: str, batch: Columns, estimator: Any, doubled: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    proximal, reference = (
        batch.behaviour_logp + 0.4 * torch.randn(len(batch.logp), dtype=torch.float64, generator=draw) for _ in range(2)
    )
    weights = torch.tensor(np.concatenate(weighted(CORRECTIONS[correction], batch, proximal)))
    told = replace(batch, anchor_logp=proximal, correction=weights, reference_logp=reference)
    base = algorithm(TokenRatio(), PPOClip(), SeqMeanTokenMean())
    parts = replace(base, terms=(KL(0.1, estimator, weighted=doubled),))
    assume(not near_a_kink(base, told, 1e-6))
    totals = totals_of(told)
    found = gradient(parts, told, totals)
    assert same(found, by_hand(parts, told, totals), 1e-9)


def test_a_kl_that_the_correction_weighs_too_would_be_noticed() -> None:
    weights = torch.full((8,), 2.0, dtype=torch.float64)
    told = replace(F1, correction=weights, reference_logp=F1.behaviour_logp - 0.3)
    parts = replace(algorithm(TokenRatio(), PPOClip()), terms=(KL(0.1),))
    found = gradient(parts, told, F1_TOTALS)
    assert same(found, by_hand(parts, told, F1_TOTALS))
    inside = by_hand(parts, replace(told, correction=None), F1_TOTALS) * weights
    assert not same(found, inside, 1e-3)


def test_a_gradient_with_another_bound_would_be_noticed() -> None:
    for name, clip in CLIPS.items():
        parts = algorithm(TokenRatio(), clip)
        wrong = algorithm(TokenRatio(), NoClip() if name != "none" else PPOClip())
        assert same(gradient(parts, F1, F1_TOTALS), by_hand(parts, F1, F1_TOTALS))
        assert not same(gradient(parts, F1, F1_TOTALS), by_hand(wrong, F1, F1_TOTALS), 1e-3)


# --- E2: central differences


SMOOTH = [name for name in CLIPS if name not in ("weight", "mask")]
"""Clips that stop no gradient but where the loss itself is flat."""


def differences(value: Callable[[torch.Tensor], float], at: torch.Tensor, h: float = 1e-6) -> torch.Tensor:
    out = torch.zeros_like(at)
    for t in range(len(at)):
        up, down = at.clone(), at.clone()
        up[t] += h
        down[t] -= h
        out[t] = (value(up) - value(down)) / (2 * h)
    return out


def of_logp(parts: Algorithm, batch: Columns, with_anchor: bool = False) -> torch.Tensor:
    """Differences of the loss in every log-probability; the anchor moves along where a weight is not to change."""
    totals, start = totals_of(batch), batch.logp.detach()

    def value(logp: torch.Tensor) -> float:
        moved = {"anchor_logp": batch.anchor_logp + logp - start} if with_anchor else {}
        return loss(parts, replace(batch, logp=logp, **moved), totals, Moment())[0].item()

    return differences(value, start)


@pytest.mark.parametrize("clip", SMOOTH)
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=5, deadline=None, database=None)
@given(batch=batches())
def test_differences_of_the_loss_are_its_gradient(clip: str, mode: str, batch: Columns) -> None:
    parts = algorithm(TokenRatio(), CLIPS[clip], MODES[mode])
    assume(not near_a_kink(parts, batch))
    assert same(of_logp(parts, batch), gradient(parts, batch), 1e-6)


@FEW
@given(batch=batches(constant=True))
def test_differences_of_a_sequence_ratio_are_its_gradient_under_the_sequence_mean(batch: Columns) -> None:
    for ratio in (SequenceRatio(), SequenceRatio("token")):
        parts = algorithm(ratio, PPOClip(), SeqMeanTokenMean())
        assume(not near_a_kink(parts, batch))
        assert same(of_logp(parts, batch), gradient(parts, batch), 1e-6)


@FEW
@given(batch=batches(constant=True))
def test_differences_of_a_product_count_its_tokens_once(batch: Columns) -> None:
    """Each token of a unit carries the unit's loss, so the loss as it is printed counts it once a token."""
    lengths = batch.trajectory_tokens[batch.trajectory]
    parts = algorithm(TrajectoryRatio(), PPOClip(), SeqMeanTokenSum())
    assume(not near_a_kink(parts, batch))
    assert same(of_logp(parts, batch), lengths * gradient(parts, batch), 1e-5)
    single = replace(batch, turn=batch.order * 0)
    assert same(of_logp(algorithm(TurnRatio(), PPOClip(), SeqMeanTokenSum()), single), of_logp(parts, batch), 1e-6)


@FEW
@given(batch=batches())
def test_differences_of_a_prefix_ratio_are_its_gradient_where_no_token_follows(batch: Columns) -> None:
    parts = algorithm(PrefixRatio(), GrowingClip(0.1, 0.2, 0.5))
    assume(not near_a_kink(parts, batch))
    last = batch.order == batch.trajectory_tokens[batch.trajectory] - 1
    assert same(of_logp(parts, batch)[last], gradient(parts, batch)[last], 1e-6)


@FEW
@given(batch=batches())
def test_differences_at_a_fixed_weight_are_the_gradient_of_a_weighted_log_probability(batch: Columns) -> None:
    for ratio in RATIOS.values():
        parts = algorithm(ratio, WeightClip(0.5, 2.0))
        if isinstance(ratio, TokenRatio | TrajectoryRatio):
            assert same(of_logp(parts, batch, with_anchor=True), gradient(parts, batch), 1e-6)


def test_gradients_that_are_stopped_on_purpose_are_not_the_differences() -> None:
    for parts in (algorithm(TokenRatio(), WeightClip()), algorithm(TokenRatio(), MaskClip()), algorithm(PrefixRatio())):
        assert not same(of_logp(parts, F1), gradient(parts, F1, F1_TOTALS), 1e-2)


@SOME
@given(batches(), st.sampled_from(["k1", "k2", "k3"]), st.booleans(), st.integers(0, 99))
def test_differences_of_the_kl_are_its_gradient(batch: Columns, estimator: Any, doubled: bool, seed: int) -> None:
    noise = torch.randn(len(batch.logp), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    told = replace(batch, reference_logp=batch.behaviour_logp + noise)
    parts = Algorithm(Zero(), NoRatio(), NoClip(), TokenMean(), "", terms=(KL(0.3, estimator, weighted=doubled),))
    assert same(of_logp(parts, told), gradient(parts, told), 1e-6)


@SOME
@given(st.sampled_from(["squared", "clipped", "bce"]), st.integers(0, 1000))
def test_differences_of_the_value_loss_are_its_gradient(kind: Any, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    value, old = (torch.randn(6, dtype=torch.float64, generator=draw) for _ in range(2))
    target = torch.rand(6, dtype=torch.float64, generator=draw)
    critic = Critic(loss=kind)
    near, far = (
        (value - old).abs() - 0.2,
        ((old + (value - old).clamp(-0.2, 0.2)) - target).abs() - (value - target).abs(),
    )
    assume(kind != "clipped" or bool((near.abs() > 1e-3).all() and ((far.abs() > 1e-3) | (near < 0)).all()))
    at = value.clone().requires_grad_()
    [grad] = torch.autograd.grad(value_error(critic, at, old, target).sum(), at)
    found = differences(lambda v: value_error(critic, v, old, target).sum().item(), value)
    assert same(found, grad, 1e-6)
    by_hand_ = {"squared": 2 * (value - target), "bce": value.sigmoid() - target}
    if kind in by_hand_:
        assert same(grad, by_hand_[kind], 1e-9)
    else:
        taken = torch.where((near > 0) & (far > 0), torch.zeros_like(value), 2 * (value - target))
        assert same(grad, taken, 1e-9)


# --- E3: jumps at kinks

# clip: (advantage, ratio below, ratio above, gradient below, gradient above)
JUMPS: list[tuple[Clip, float, float, float, float, float]] = [
    (PPOClip(0.2, 0.2), 1.0, 1.199, 1.201, -1.199, 0.0),
    (PPOClip(0.2, 0.28), 1.0, 1.279, 1.281, -1.279, 0.0),
    (PPOClip(0.2, 0.2), -1.0, 0.799, 0.801, 0.0, 0.801),
    (PPOClip(0.2, 0.2), -1.0, 1.199, 1.201, 1.199, 1.201),
    (PPOClip(0.2, 0.2), 1.0, 0.799, 0.801, -0.799, -0.801),
    (PPOClip(0.2, 0.2, 3.0), -1.0, 2.999, 3.001, 2.999, 0.0),
    (PPOClip(0.2, 5.0, 3.0), 1.0, 2.999, 3.001, -2.999, -3.001),
    (WeightClip(0.8, 1.2), 1.0, 1.199, 1.201, -1.199, -1.2),
    (WeightClip(0.8, 1.2), -1.0, 0.799, 0.801, 0.8, 0.801),
    (GrowingClip(0.025, 0.05), 1.0, math.exp(0.05) - 1e-3, math.exp(0.05) + 1e-3, 1e-3 - math.exp(0.05), 0.0),
    (GrowingClip(0.025, 0.05), -1.0, math.exp(-0.025) - 1e-3, math.exp(-0.025) + 1e-3, 0.0, math.exp(-0.025) + 1e-3),
    (MaskClip(0.2), 1.0, 1.399, 1.401, -1.399, 0.0),
    (MaskClip(0.2), -1.0, 0.599, 0.601, 0.0, 0.601),
]  # fmt: skip


@pytest.mark.parametrize("row", JUMPS, ids=str)
def test_gradients_jump_at_a_bound_and_only_in_its_direction(
    row: tuple[Clip, float, float, float, float, float],
) -> None:
    clip, advantage, below, above, left, right = row
    found = [
        gradient(algorithm(TokenRatio(), clip), *columns([[math.log(0.5 * r)]], [[math.log(0.5)]], [advantage])).item()
        for r in (below, above)
    ]
    assert found == pytest.approx([left, right], abs=1e-12)
    values = [
        run(algorithm(TokenRatio(), clip), *columns([[math.log(0.5 * r)]], [[math.log(0.5)]], [advantage]))[0]
        for r in (below, above)
    ]
    if not isinstance(clip, WeightClip):  # the value has no jump, whatever the gradient does
        assert values[0] == pytest.approx(values[1], abs=3e-3)


@pytest.mark.parametrize("order", [0, 3, 99])
def test_a_bound_that_grows_jumps_later_for_later_tokens(order: int) -> None:
    bound = math.exp(0.05 * math.sqrt(order + 1))
    for r, active in ((bound - 1e-3, True), (bound + 1e-3, False)):
        batch, totals = columns([[math.log(0.3 * r)]], [[math.log(0.3)]])
        late = replace(batch, order=batch.order + order)
        assert bool(gradient(algorithm(TokenRatio(), GrowingClip()), late, totals).any()) == active


def test_weights_jump_at_a_band_and_bend_at_a_cap() -> None:
    def weight(correction: Correction, w: float) -> float:
        zero = np.zeros(1)
        return float(correction_weights(correction, [np.array([math.log(w)])], [zero], [zero])[0][0])

    assert [weight(Band(0.5, 5.0), w) for w in (0.499, 0.501, 4.999, 5.001)] == pytest.approx([0.0, 0.501, 4.999, 0.0])
    assert [weight(Truncate(2.0), w) for w in (0.499, 1.999, 2.001)] == pytest.approx([0.499, 1.999, 2.0])


# --- E4: which KL an estimator follows

probabilities = st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3).map(lambda w: [x / sum(w) for x in w])


def kl_gradient(term: KL, p: Sequence[float], drawn: Sequence[float], reference: Sequence[float]) -> torch.Tensor:
    """Exact expectation of the term's gradient in the logits of one token, drawn from `drawn`."""
    z = torch.tensor(p, dtype=torch.float64).log().requires_grad_()
    logp = z.log_softmax(0)
    parts = Algorithm(Zero(), NoRatio(), NoClip(), TokenMean(), "", terms=(term,))
    total = torch.zeros(3, dtype=torch.float64)
    for token, chance in enumerate(drawn):
        batch, totals = columns([[logp[token].item()]], [[math.log(chance)]])
        told = replace(batch, reference_logp=torch.tensor([math.log(reference[token])], dtype=torch.float64))
        total += chance * torch.autograd.grad(logp[token], z, gradient(parts, told, totals)[0], retain_graph=True)[0]
    return total


@SOME
@given(probabilities, probabilities, probabilities)
def test_each_estimator_follows_its_own_divergence(p: list[float], mu: list[float], q: list[float]) -> None:
    own, theirs = ([math.log(x) for x in row] for row in (p, q))
    reverse, forward_ = (divergence(kind, own, theirs)[1] for kind in ("reverse", "forward"))
    assert same(kl_gradient(KL(1.0, "k1"), p, p, q), torch.zeros(3, dtype=torch.float64))
    assert same(kl_gradient(KL(1.0, "k2"), p, p, q), reverse, 1e-10)
    assert same(kl_gradient(KL(1.0, "k3"), p, p, q), forward_, 1e-10)
    for estimator in ("k1", "k3"):  # with the ratio in front they are right on any data
        assert same(kl_gradient(KL(1.0, estimator, weighted=True), p, mu, q), reverse, 1e-10)  # type: ignore[arg-type]


def test_estimators_that_follow_another_divergence_would_be_noticed() -> None:
    p, mu, q = [0.2, 0.5, 0.3], [0.4, 0.4, 0.2], [0.1, 0.3, 0.6]
    own, theirs = ([math.log(x) for x in row] for row in (p, q))
    _, reverse = divergence("reverse", own, theirs)
    wrong = (KL(1.0, "k1"), KL(1.0, "k3"), KL(1.0, "k2", weighted=True))
    assert not any(same(kl_gradient(term, p, p, q), reverse, 1e-3) for term in wrong)
    assert not same(kl_gradient(KL(1.0, "k2"), p, mu, q), reverse, 1e-3)  # right on fresh data only
