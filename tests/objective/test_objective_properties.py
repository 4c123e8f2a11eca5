"""What a loss must never do, for any batch: look at masked tokens, depend on micro-batches, or hide what is broken."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.core.algorithm import Algorithm, CrossEntropy, Entropy, NoClip, PPOClip, Schedule, TokenRatio
from strop.core.metrics import values
from strop.model.forward import token_columns
from strop.objective.columns import Columns, Totals
from strop.objective.objective import needs
from tests.objective.batches import AGGREGATES, TABLE, algorithm, columns, head_policy, merged, part, run, totals_of

SOME = settings(max_examples=40, deadline=None, database=None)

ENTROPY, OBSERVED = Entropy(Schedule(0.02, 0.01)), CrossEntropy(0.05)
RULES: dict[str, Algorithm] = {
    **TABLE,
    **{f"ppo {mode}": algorithm(TokenRatio(), PPOClip(), mode_) for mode, mode_ in AGGREGATES.items()},
    **{f"is {mode}": algorithm(TokenRatio(), NoClip(), mode_) for mode, mode_ in AGGREGATES.items()},
    "grpo with terms": replace(TABLE["grpo"], terms=(ENTROPY, OBSERVED)),
    "sft with terms": replace(TABLE["sft"], terms=(OBSERVED, ENTROPY)),
}
rules = st.sampled_from(list(RULES))


@st.composite
def batches(draw: st.DrawFn, trained: int = 0) -> Columns:
    """Ragged trajectories with any mask; some trajectories may have no trained token at all."""
    masks = draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=6))
    if trained:
        masks[0] = [*masks[0], *[True] * trained]
    stream = np.random.default_rng(draw(st.integers(0, 2**32)))
    logps = [[-float(stream.exponential()) for _ in mask] for mask in masks]
    old = [[x + float(stream.normal(0, 0.4)) for x in row] for row in logps]
    batch, _ = columns(logps, old, [float(stream.normal()) for _ in masks], masks)
    return replace(batch, entropy=torch.rand(len(batch.logp), dtype=torch.float64, generator=_seeded(stream)))


def _seeded(stream: np.random.Generator) -> torch.Generator:
    return torch.Generator().manual_seed(int(stream.integers(2**31)))


Loss = Callable[[Algorithm, Columns, Totals], tuple[float, torch.Tensor, torch.Tensor, dict]]


def with_noise(batch: Columns, noise: float) -> Columns:
    """The same batch with something else wherever nothing was sampled; logp only if no term observes."""
    masked = ~batch.sampled
    spoilt = {
        name: torch.where(masked, torch.tensor(noise, dtype=torch.float64), getattr(batch, name))
        for name in ("logp", "behaviour_logp", "advantage", "entropy")
    }
    return replace(batch, **spoilt)


def unaffected(run_: Loss, rule: Algorithm, batch: Columns, noise: float) -> bool:
    """Whether loss, gradients and metrics are bit for bit those of the batch without the noise, and 0 where masked."""
    a, b = run_(rule, batch, totals_of(batch)), run_(rule, with_noise(batch, noise), totals_of(batch))
    return (
        repr(a[0]) == repr(b[0])
        and torch.equal(a[1], b[1])
        and torch.equal(a[2], b[2])
        and a[3] == b[3]
        and not b[1][~batch.sampled].any()
        and not b[2][~batch.sampled].any()
    )


def by_multiplication(
    rule: Algorithm, batch: Columns, totals: Totals
) -> tuple[float, torch.Tensor, torch.Tensor, dict]:
    """The fault: exponentiate first, multiply by the mask afterwards."""
    logp = batch.logp.detach().clone().requires_grad_()
    ratio = (logp - batch.behaviour_logp).exp()
    value = (-ratio * batch.advantage * batch.sampled).sum() / max(totals.tokens, 1)
    value.backward()
    assert logp.grad is not None
    return value.item(), logp.grad, torch.zeros_like(logp), {}


@SOME
@given(rules, batches(), st.sampled_from([1e3, -1e3, 89.0, 0.0, math.nan, math.inf, -math.inf]))
def test_whatever_stands_at_masked_tokens_changes_nothing(name: str, batch: Columns, noise: float) -> None:
    rule = RULES[name]
    if needs(rule).observations:
        rule = replace(rule, terms=tuple(term for term in rule.terms if not isinstance(term, CrossEntropy)))
    assert unaffected(run, rule, batch, noise)


@pytest.mark.parametrize("noise", [1e3, math.nan, math.inf])
def test_masking_by_multiplication_would_be_noticed(noise: float) -> None:
    mask = [[True, False, True], [False, True]]
    batch, _ = columns([[-1.0, -2.0, -0.5], [-1.0, -1.0]], [[-1.1, -1.0, -0.4], [-2.0, -1.0]], [1.0, -1.0], mask)
    batch = replace(batch, entropy=torch.ones(5, dtype=torch.float64))
    spoilt = replace(with_noise(batch, 0.0), logp=with_noise(batch, noise).logp)
    clean, broken = (by_multiplication(TABLE["grpo"], b, totals_of(batch)) for b in (batch, spoilt))
    assert not torch.equal(clean[1], broken[1])
    assert unaffected(run, TABLE["grpo"], batch, noise)
    everything = replace(batch, sampled=torch.ones(5, dtype=torch.bool))
    assert not unaffected(lambda r, b, t: run(r, replace(b, sampled=everything.sampled), t), TABLE["grpo"], batch, 7.0)


def same(a: float | None, b: float | None) -> bool:
    """Whether two metrics agree; None is "nothing was counted"."""
    return a is b is None or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-10, abs_tol=1e-12))


def agree(whole: tuple, parts: list[tuple], bins: list[list[int]], batch: Columns) -> bool:
    """Whether summed losses, gradients put back in place, and combined metrics are those of the whole batch."""
    grads = {1: torch.zeros_like(whole[1]), 2: torch.zeros_like(whole[2])}
    places = torch.cat(
        [torch.nonzero(torch.isin(batch.trajectory, torch.tensor(members))).flatten() for members in bins]
    )
    for k in grads:
        grads[k][places] = torch.cat([p[k] for p in parts])
    both, other = values(whole[3]), values(merged([p[3] for p in parts]))
    both.pop("policy_loss"), other.pop("policy_loss")
    return (
        math.isclose(whole[0], sum(p[0] for p in parts), rel_tol=1e-10, abs_tol=1e-12)
        and torch.allclose(whole[1], grads[1], rtol=1e-12, atol=1e-15)
        and torch.allclose(whole[2], grads[2], rtol=1e-12, atol=1e-15)
        and all(same(both.get(k), other.get(k)) for k in both.keys() | other.keys())
    )


@SOME
@given(rules, batches(), st.randoms(use_true_random=False))
def test_any_split_into_micro_batches_gives_the_same_step(name: str, batch: Columns, draw) -> None:
    n = len(batch.trajectory_tokens)
    order = draw.sample(range(n), n)
    cuts = sorted(draw.sample(range(1, n), draw.randint(0, n - 1)))
    bins = [order[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    totals = totals_of(batch)
    whole = run(RULES[name], batch, totals)
    assert agree(whole, [run(RULES[name], part(batch, members), totals) for members in bins], bins, batch)


@pytest.mark.parametrize("name", RULES)
def test_denominators_of_the_micro_batch_would_be_noticed(name: str) -> None:
    batch, totals = columns([[-1.0], [-2.0, -3.0]], [[-1.2], [-2.0, -2.8]], [1.0, -1.0])
    batch = replace(batch, entropy=torch.tensor([0.5, 0.6, 0.7], dtype=torch.float64))
    whole = run(RULES[name], batch, totals)
    singles = [part(batch, [0]), part(batch, [1])]
    assert agree(whole, [run(RULES[name], one, totals) for one in singles], [[0], [1]], batch)
    assert not agree(whole, [run(RULES[name], one, totals_of(one)) for one in singles], [[0], [1]], batch)


@SOME
@given(rules, batches(trained=2), st.randoms(use_true_random=False))
def test_a_trajectory_weighs_the_same_whatever_rows_its_tokens_are_stored_in(name: str, batch: Columns, draw) -> None:
    # Rows of one trajectory lie apart in a micro-batch: any order of its tokens is the same batch.
    n = len(batch.logp)
    order = torch.tensor(draw.sample(range(n), n))
    mixed = replace(
        batch,
        **{
            field: getattr(batch, field)[order]
            for field in ("logp", "entropy", "sampled", "behaviour_logp", "advantage", "trajectory")
        },
    )
    totals = totals_of(batch)
    a, b = run(RULES[name], batch, totals), run(RULES[name], mixed, totals)
    assert a[0] == pytest.approx(b[0], rel=1e-10, abs=1e-12)
    assert torch.allclose(a[1][order], b[1], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("mode", AGGREGATES)
def test_a_trajectory_cut_into_five_rows_pulls_as_hard_as_one_row(mode: str) -> None:
    rule = algorithm(aggregate=AGGREGATES[mode])
    shared = [[-0.5] * 5, [-0.5] * 5]  # one parameter moves all ten log-probabilities
    batch, totals = columns(shared, advantages=[1.0, -1.0])
    grad = run(rule, batch, totals)[1]
    assert grad.sum().item() == pytest.approx(0.0, abs=1e-15)
    rows, counted = columns([[-0.5] * 5, *[[-0.5]] * 5], advantages=[1.0, *[-1.0] * 5])  # the fault: weight per row
    wrong = run(rule, rows, counted)[1]
    assert (abs(wrong.sum().item()) > 1e-3) == (mode == "seq-mean-token-mean")
    assert counted.trajectories == 6


@pytest.mark.parametrize("name", RULES)
def test_a_log_ratio_that_overflows_is_bounded(name: str) -> None:
    logps = [[-0.0, -100.0], [-1.0]]
    behaviour = [[-89.0, -11.0], [-1.0]]
    batch, totals = columns(logps, behaviour, [-1.0, 1.0])
    single = replace(
        batch,
        logp=batch.logp.float(),
        behaviour_logp=batch.behaviour_logp.float(),
        advantage=batch.advantage.float(),
        entropy=torch.ones(3),
    )
    value, grad, _, metrics = run(RULES[name], single, totals)
    assert math.isfinite(value)
    assert torch.isfinite(grad).all()
    assert all(v is None or math.isfinite(v) for v in values(metrics).values())
    assert metrics["log_ratio_abs_max"].value == 20.0
    assert not torch.isfinite((single.logp - single.behaviour_logp).exp()).all()  # what an unbounded exponent gives


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("field", ["logp", "behaviour_logp", "advantage"])
def test_a_nan_at_a_trained_token_stays_visible(name: str, field: str) -> None:
    batch, totals = columns([[-1.0, -2.0], [-1.0]], [[-1.0, -2.1], [-1.0]], [-1.0, 1.0])
    spoilt = getattr(batch, field).detach().clone()
    spoilt[1] = math.nan
    value = run(TABLE[name], replace(batch, **{field: spoilt}), totals)[0]
    used = field != "behaviour_logp" or isinstance(TABLE[name].ratio, TokenRatio)
    assert math.isnan(value) == used


def test_demonstrations_without_behaviour_probabilities_report_their_nll() -> None:
    batch, totals = columns([[-1.0, -2.0], [-3.0]], [[math.nan, math.nan], [-3.0]])
    metrics = values(run(TABLE["sft"], batch, totals)[3])
    assert (metrics["nll"], metrics["ratio"]) == (1.5, 1.0)
    alone = values(run(TABLE["sft"], part(batch, [1]), totals)[3])
    assert "nll" not in alone


# --- terms


def sampled_head(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A random head of 5 ids without hidden states, and 40 targets."""
    draw = torch.Generator().manual_seed(seed)
    bias = torch.randn(5, dtype=torch.float64, generator=draw)
    return bias, torch.randint(5, (40,), generator=draw)


def with_head(bias: torch.Tensor, targets: torch.Tensor, advantage: float) -> tuple[Columns, Totals]:
    """Columns of one trajectory whose every token was drawn from one distribution; every fourth was observed."""
    policy = head_policy(torch.zeros(5, 1, dtype=torch.float64), bias)
    hidden = torch.zeros(len(targets), 1, dtype=torch.float64)
    logp, entropy = token_columns(policy, hidden, targets, 1.0, True)
    sampled = torch.arange(len(targets)) % 4 > 0
    zero = torch.zeros(len(targets), dtype=torch.int64)
    given = Columns(
        logp, entropy, sampled, logp.detach(), torch.full((len(targets),), advantage), zero, sampled.sum()[None]
    )
    return given, totals_of(given)


def gradient(rule: Algorithm, advantage: float, progress: float = 0.0) -> torch.Tensor:
    from strop.objective.objective import loss

    bias, targets = sampled_head()
    bias.requires_grad_()
    value, _ = loss(rule, *with_head(bias, targets, advantage), progress)
    return torch.autograd.grad(value, bias)[0]


def entropy_of(bias: torch.Tensor) -> float:
    return -(bias.log_softmax(0).exp() @ bias.log_softmax(0)).item()


def test_the_reported_entropy_is_between_nothing_and_the_uniform_one() -> None:
    bias, targets = sampled_head()
    for scaled in (bias * 0, bias, bias * 20):
        rule = replace(TABLE["grpo"], terms=(ENTROPY,))
        found = run(rule, *with_head(scaled, targets, 1.0))[3]["entropy"].value
        assert found == pytest.approx(entropy_of(scaled), abs=1e-12)
        assert 0 <= found <= math.log(5) + 1e-12
    assert entropy_of(bias * 0) == pytest.approx(math.log(5))


def test_the_entropy_term_raises_the_entropy_and_its_sign_matters() -> None:
    bias, _ = sampled_head()
    for coefficient, rises in ((0.1, True), (-0.1, False)):
        rule = replace(TABLE["grpo"], terms=(Entropy(Schedule(coefficient, coefficient)),))
        grad = gradient(rule, 0.0)
        assert (entropy_of(bias - grad) > entropy_of(bias)) == rises
    assert not gradient(TABLE["grpo"], 0.0).any()


def test_the_entropy_term_is_a_token_mean_at_its_scheduled_coefficient() -> None:
    rule = replace(TABLE["rloo"], terms=(Entropy(Schedule(0.4, 0.2)),))
    bias, _ = sampled_head()
    bias.requires_grad_()
    p = bias.log_softmax(0)
    (unit,) = torch.autograd.grad(-(p.exp() @ p), bias)
    for progress, coefficient in ((0.0, 0.4), (0.5, 0.3), (1.0, 0.2), (7.0, 0.2)):
        assert torch.allclose(gradient(rule, 0.0, progress), -coefficient * unit, atol=1e-12)


@pytest.mark.parametrize("term", [Entropy(Schedule(0.0, 0.0)), CrossEntropy(0.0)])
@pytest.mark.parametrize("name", TABLE)
def test_a_term_with_coefficient_0_changes_no_bit(name: str, term: Entropy | CrossEntropy) -> None:
    base = gradient(TABLE[name], 0.7)
    assert torch.equal(base, gradient(replace(TABLE[name], terms=(term,)), 0.7))
    live = replace(TABLE[name], terms=(ENTROPY if isinstance(term, Entropy) else OBSERVED,))
    assert not torch.equal(base, gradient(live, 0.7))
    assert not needs(replace(TABLE[name], terms=(CrossEntropy(0.0),))).observations


@pytest.mark.parametrize("name", TABLE)
def test_the_observation_term_touches_observed_tokens_only_and_has_its_own_normaliser(name: str) -> None:
    mask = [[True, False, False, True], [False, True]]
    batch, totals = columns([[-1.0, -2.0, -0.5, -0.7], [-4.0, -1.0]], None, [1.0, -1.0], mask)
    rule = replace(TABLE[name], terms=(CrossEntropy(0.3),))
    base, full = run(TABLE[name], batch, totals), run(rule, batch, totals)
    assert torch.equal(base[1][batch.sampled], full[1][batch.sampled])
    assert full[1][~batch.sampled].tolist() == pytest.approx([-0.3 / 3] * 3, abs=1e-15)
    assert full[0] - base[0] == pytest.approx(0.3 * 6.5 / 3, abs=1e-12)
    assert full[3]["observation_nll"].value == pytest.approx(6.5 / 3)
    more = run(rule, batch, replace(totals, tokens=totals.tokens * 10, trajectories=totals.trajectories * 10))
    assert torch.equal(more[1][~batch.sampled], full[1][~batch.sampled])
    assert not torch.equal(more[1][batch.sampled], full[1][batch.sampled])


def test_an_entropy_term_without_its_column_is_an_error() -> None:
    batch, totals = columns([[-1.0]])
    with pytest.raises(RuntimeError, match="ask the forward"):
        run(replace(TABLE["grpo"], terms=(ENTROPY,)), batch, totals)
