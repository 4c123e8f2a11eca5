"""What a loss must never do, for any batch: look at masked tokens, depend on micro-batches, or hide what is broken."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.core.algorithm import (
    KL,
    Algorithm,
    Divergence,
    Entropy,
    GroupTokenMean,
    NoClip,
    NoRatio,
    Observations,
    PPOClip,
    PrefixRatio,
    Term,
    TokenRatio,
)
from strop.core.metrics import values
from strop.model.forward import token_columns
from strop.objective.columns import Columns, Totals
from strop.objective.objective import Moment, loss, needs
from tests.objective.batches import (
    AGGREGATES,
    TABLE,
    Step,
    algorithm,
    columns,
    fitted,
    head_policy,
    merged,
    part,
    per_token,
    run,
    step,
    totals_of,
)

SOME = settings(max_examples=100, deadline=None, database=None)

ENTROPY, OBSERVED = Entropy(0.02, 0.01), Observations(0.05)
MODES = {**AGGREGATES, "group-token-mean": GroupTokenMean()}
RULES: dict[str, Algorithm] = {
    **TABLE,
    **{f"ppo {mode}": algorithm(TokenRatio(), PPOClip(), mode_) for mode, mode_ in MODES.items()},
    **{f"is {mode}": algorithm(TokenRatio(), NoClip(), mode_) for mode, mode_ in MODES.items()},
    "grpo with terms": replace(TABLE["grpo"], terms=(ENTROPY, OBSERVED, KL(0.1), KL(0.1, "exact"))),
    "sft with terms": replace(TABLE["sft"], terms=(OBSERVED, ENTROPY)),
    "gae with terms": replace(TABLE["ppo"], terms=(ENTROPY, KL(0.1, "k2", weighted=True), Divergence(0.2))),
}
rules = st.sampled_from(list(RULES))


@st.composite
def batches(draw: st.DrawFn, trained: int = 0) -> Columns:
    """Ragged trajectories of any mask and turns in one or several groups; some may have no trained token at all."""
    masks = draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=6))
    if trained:
        masks[0] = [*masks[0], *[True] * trained]
    stream = np.random.default_rng(draw(st.integers(0, 2**32)))
    logps = [[-float(stream.exponential()) for _ in mask] for mask in masks]
    old = [[x + float(stream.normal(0, 0.4)) for x in row] for row in logps]
    groups = [draw(st.integers(0, 2)) for _ in masks]
    batch, _ = columns(logps, old, [float(stream.normal()) for _ in masks], masks, groups)
    turn = torch.tensor([int(k) for mask in masks for k in np.sort(stream.integers(0, 3, len(mask)))])
    return replace(
        batch, turn=turn, entropy=torch.rand(len(batch.logp), dtype=torch.float64, generator=_seeded(stream))
    )


def _seeded(stream: np.random.Generator) -> torch.Generator:
    return torch.Generator().manual_seed(int(stream.integers(2**31)))


Loss = Callable[[Algorithm, Columns, Totals], Step]


def with_noise(batch: Columns, noise: float) -> Columns:
    """The same batch with something else wherever nothing was sampled; logp only if no term observes."""
    masked = ~batch.sampled
    spoilt: dict[str, torch.Tensor] = {}
    for name, column in per_token(batch).items():
        if column.is_floating_point():
            spoilt[name] = torch.where(masked, torch.tensor(noise, dtype=torch.float64), column)
        elif name in ("order", "turn"):
            spoilt[name] = torch.where(masked, 10**6, column)
    return replace(batch, **spoilt)


def unaffected(step_: Loss, rule: Algorithm, batch: Columns, noise: float) -> bool:
    """Whether loss, gradients and metrics are bit for bit those of the batch without the noise, and 0 where masked."""
    a, b = step_(rule, batch, totals_of(batch)), step_(rule, with_noise(batch, noise), totals_of(batch))
    return (
        repr(a.value) == repr(b.value)
        and all(torch.equal(grad, b.gradients[name]) for name, grad in a.gradients.items())
        and a.metrics == b.metrics
        and not any(grad[~batch.sampled].any() for grad in b.gradients.values())
    )


def by_multiplication(rule: Algorithm, batch: Columns, totals: Totals) -> Step:
    """The fault: exponentiate first, multiply by the mask afterwards."""
    logp = batch.logp.detach().clone().requires_grad_()
    ratio = (logp - batch.behaviour_logp).exp()
    value = (-ratio * batch.advantage * batch.sampled).sum() / max(totals.tokens, 1)
    value.backward()
    assert logp.grad is not None
    return Step(value.item(), {"logp": logp.grad}, {})


@SOME
@given(rules, batches(), st.sampled_from([1e3, -1e3, 89.0, 0.0, math.nan, math.inf, -math.inf]))
def test_whatever_stands_at_masked_tokens_changes_nothing(name: str, batch: Columns, noise: float) -> None:
    rule = RULES[name]
    if needs(rule).observations is not None:
        rule = replace(rule, terms=tuple(term for term in rule.terms if not isinstance(term, Observations)))
    assert unaffected(step, rule, fitted(rule, batch), noise)


@pytest.mark.parametrize("noise", [1e3, math.nan, math.inf])
def test_masking_by_multiplication_would_be_noticed(noise: float) -> None:
    mask = [[True, False, True], [False, True]]
    batch, _ = columns([[-1.0, -2.0, -0.5], [-1.0, -1.0]], [[-1.1, -1.0, -0.4], [-2.0, -1.0]], [1.0, -1.0], mask)
    batch = replace(batch, entropy=torch.ones(5, dtype=torch.float64))
    spoilt = replace(with_noise(batch, 0.0), logp=with_noise(batch, noise).logp)
    clean, broken = (by_multiplication(TABLE["grpo"], b, totals_of(batch)) for b in (batch, spoilt))
    assert not torch.equal(clean.gradients["logp"], broken.gradients["logp"])
    assert unaffected(step, TABLE["grpo"], batch, noise)
    everything = replace(batch, sampled=torch.ones(5, dtype=torch.bool))
    for name in ("grpo", "ppo", "process_reward", "on_policy_distillation", "decoupled_ppo"):
        told = fitted(TABLE[name], batch)
        assert not unaffected(
            lambda r, b, t: step(r, replace(b, sampled=everything.sampled), t), TABLE[name], told, 7.0
        )


def same(a: float | None, b: float | None) -> bool:
    """Whether two metrics agree; None is "nothing was counted"."""
    return a is b is None or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-10, abs_tol=1e-12))


def agree(whole: Step, parts: list[Step], bins: list[list[int]], batch: Columns) -> bool:
    """Whether summed losses, gradients put back in place, and combined metrics are those of the whole batch."""
    places = torch.cat(
        [torch.nonzero(torch.isin(batch.trajectory, torch.tensor(members))).flatten() for members in bins]
    )

    def together(name: str) -> torch.Tensor:
        grad = torch.zeros_like(whole.gradients[name])
        grad[places] = torch.cat([p.gradients[name] for p in parts])
        return grad

    both, other = values(whole.metrics), values(merged([p.metrics for p in parts]))
    both.pop("policy_loss", None), other.pop("policy_loss", None)
    return (
        math.isclose(whole.value, sum(p.value for p in parts), rel_tol=1e-10, abs_tol=1e-12)
        and all(torch.allclose(grad, together(n), rtol=1e-12, atol=1e-15) for n, grad in whole.gradients.items())
        and all(same(both.get(k), other.get(k)) for k in both.keys() | other.keys())
    )


@SOME
@given(rules, batches(), st.randoms(use_true_random=False))
def test_any_split_into_micro_batches_gives_the_same_step(name: str, batch: Columns, draw) -> None:
    n = len(batch.trajectory_tokens)
    order = draw.sample(range(n), n)
    cuts = sorted(draw.sample(range(1, n), draw.randint(0, n - 1)))
    bins = [order[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    batch = fitted(RULES[name], batch)
    totals = totals_of(batch)
    whole = step(RULES[name], batch, totals)
    assert agree(whole, [step(RULES[name], part(batch, members), totals) for members in bins], bins, batch)


@pytest.mark.parametrize("name", RULES)
def test_denominators_of_the_micro_batch_would_be_noticed(name: str) -> None:
    batch, _ = columns([[-1.0], [-2.0, -3.0]], [[-1.2], [-2.0, -2.8]], [1.0, -1.0])
    batch = fitted(RULES[name], replace(batch, entropy=torch.tensor([0.5, 0.6, 0.7], dtype=torch.float64)))
    totals = totals_of(batch)
    whole = step(RULES[name], batch, totals)
    singles = [part(batch, [0]), part(batch, [1])]
    assert agree(whole, [step(RULES[name], one, totals) for one in singles], [[0], [1]], batch)
    alone = [replace(one, group_tokens=one.trajectory_tokens) for one in singles]
    assert not agree(whole, [step(RULES[name], one, totals_of(one)) for one in alone], [[0], [1]], batch)


@SOME
@given(rules, batches(trained=2), st.randoms(use_true_random=False))
def test_a_trajectory_weighs_the_same_whatever_rows_its_tokens_are_stored_in(name: str, batch: Columns, draw) -> None:
    # Rows of one trajectory lie apart in a micro-batch: any order of its tokens is the same batch.
    n = len(batch.logp)
    batch = fitted(RULES[name], batch)
    order = torch.tensor(draw.sample(range(n), n))
    mixed = replace(batch, **{name: column[order] for name, column in per_token(batch).items()})
    totals = totals_of(batch)
    a, b = step(RULES[name], batch, totals), step(RULES[name], mixed, totals)
    assert a.value == pytest.approx(b.value, rel=1e-10, abs=1e-12)
    for column, grad in a.gradients.items():
        assert torch.allclose(grad[order], b.gradients[column], rtol=1e-12, atol=1e-15)


def test_tokens_that_lost_their_number_in_the_trajectory_would_be_noticed() -> None:
    """Negative control of the above: a prefix is told by `order`, not by where a token lies."""
    batch, totals = columns([[-1.0, -2.0, -0.5]], [[-1.3, -1.5, -0.9]], [1.0])
    rule = algorithm(PrefixRatio(), NoClip())
    mixed = replace(batch, **{name: column.flip(0) for name, column in per_token(batch).items()})
    whole = step(rule, batch, totals).gradients["logp"]
    assert torch.allclose(step(rule, mixed, totals).gradients["logp"].flip(0), whole, atol=1e-15)
    lost = replace(mixed, order=batch.order)
    assert not torch.allclose(step(rule, lost, totals).gradients["logp"].flip(0), whole, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_a_trajectory_cut_into_five_rows_pulls_as_hard_as_one_row(mode: str) -> None:
    rule = algorithm(aggregate=MODES[mode])
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
    batch, _ = columns(logps, behaviour, [-1.0, 1.0])
    batch = fitted(RULES[name], replace(batch, entropy=torch.ones(3, dtype=torch.float64)))
    floats = {name: column.float() for name, column in per_token(batch).items() if column.is_floating_point()}
    single = replace(batch, **floats)
    found = step(RULES[name], single, totals_of(batch))
    assert math.isfinite(found.value)
    assert all(torch.isfinite(grad).all() for grad in found.gradients.values())
    assert all(v is None or math.isfinite(v) for v in values(found.metrics).values())
    assert found.metrics["log_ratio_abs_max"].value == 20.0
    assert not torch.isfinite((single.logp - single.behaviour_logp).exp()).all()  # what an unbounded exponent gives


FIELDS = ("logp", "behaviour_logp", "anchor_logp", "advantage", "correction", "value", "process", "divergence")


def used(rule: Algorithm) -> set[str]:
    """The columns that the loss of a row stands on."""
    wanted = needs(rule)
    out = {"logp"}
    if rule.credited:
        out |= {"advantage"} | (set() if isinstance(rule.ratio, NoRatio) else {"anchor_logp"})
    asked = {
        "correction": rule.correction is not None,
        "value": wanted.critic is not None,
        "process": wanted.labels,
        "divergence": wanted.divergence is not None,
    }
    return out | {name for name, on in asked.items() if on}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("field", FIELDS)
def test_a_nan_at_a_trained_token_stays_visible(name: str, field: str) -> None:
    batch, _ = columns([[-1.0, -2.0], [-1.0]], [[-1.0, -2.1], [-1.0]], [-1.0, 1.0])
    batch = fitted(TABLE[name], batch)
    if field not in per_token(batch):
        assert field not in used(TABLE[name])
        return
    spoilt = getattr(batch, field).detach().clone()
    spoilt[1] = math.nan
    found = step(TABLE[name], replace(batch, **{field: spoilt}), totals_of(batch))
    assert math.isnan(found.value) == (field in used(TABLE[name]))
    assert math.isfinite(step(TABLE[name], batch, totals_of(batch)).value)


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
    lengths, turns = [[0.0] * len(targets)], [sampled.tolist()]
    blank, _ = columns(lengths, advantages=[advantage], sampled=turns)
    given = replace(blank, logp=logp, entropy=entropy, behaviour_logp=logp.detach(), anchor_logp=logp.detach())
    return given, totals_of(given)


def gradient(rule: Algorithm, advantage: float, progress: float = 0.0) -> torch.Tensor:
    bias, targets = sampled_head()
    bias.requires_grad_()
    batch, _ = with_head(bias, targets, advantage)
    batch = fitted(rule, batch)
    value, _ = loss(rule, batch, totals_of(batch), Moment(progress))
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
        rule = replace(TABLE["grpo"], terms=(Entropy(coefficient),))
        grad = gradient(rule, 0.0)
        assert (entropy_of(bias - grad) > entropy_of(bias)) == rises
    assert not gradient(TABLE["grpo"], 0.0).any()


def test_the_entropy_term_is_a_token_mean_at_its_scheduled_coefficient() -> None:
    rule = replace(TABLE["rloo"], terms=(Entropy(0.4, 0.2),))
    bias, _ = sampled_head()
    bias.requires_grad_()
    p = bias.log_softmax(0)
    (unit,) = torch.autograd.grad(-(p.exp() @ p), bias)
    for progress, coefficient in ((0.0, 0.4), (0.5, 0.3), (1.0, 0.2), (7.0, 0.2)):
        assert torch.allclose(gradient(rule, 0.0, progress), -coefficient * unit, atol=1e-12)


NOTHING: dict[Term, Term] = {
    Entropy(0.0): ENTROPY,
    Observations(0.0): OBSERVED,
    KL(0.0): KL(0.1),
    KL(0.0, "k2", weighted=True): KL(0.1, "k2", weighted=True),
}


@pytest.mark.parametrize("term", NOTHING, ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_a_term_with_coefficient_0_changes_no_bit(name: str, term: Term) -> None:
    base = gradient(TABLE[name], 0.7)
    assert torch.equal(base, gradient(replace(TABLE[name], terms=(*TABLE[name].terms, term)), 0.7))
    live = replace(TABLE[name], terms=(*TABLE[name].terms, NOTHING[term]))
    assert not torch.equal(base, gradient(live, 0.7))


@pytest.mark.parametrize("name", TABLE)
def test_a_term_with_coefficient_0_asks_for_nothing(name: str) -> None:
    nothing = (*NOTHING, KL(0.0, "exact"), Divergence(0.0))
    assert needs(replace(TABLE[name], terms=(*TABLE[name].terms, *nothing))) == needs(TABLE[name])
    live = replace(TABLE[name], terms=(*TABLE[name].terms, OBSERVED, KL(0.1), KL(0.1, "exact")))
    wanted = needs(live)
    assert (wanted.observations, wanted.reference, wanted.reference_kl) == (OBSERVED, True, True)


@pytest.mark.parametrize("name", TABLE)
def test_the_observation_term_touches_observed_tokens_only_and_has_its_own_normaliser(name: str) -> None:
    mask = [[True, False, False, True], [False, True]]
    batch, _ = columns([[-1.0, -2.0, -0.5, -0.7], [-4.0, -1.0]], None, [1.0, -1.0], mask)
    batch = fitted(TABLE[name], batch)
    totals = totals_of(batch)
    rule = replace(TABLE[name], terms=(*TABLE[name].terms, Observations(0.3)))
    base, full = step(TABLE[name], batch, totals), step(rule, batch, totals)
    for column, grad in base.gradients.items():
        assert torch.equal(grad[batch.sampled], full.gradients[column][batch.sampled])
    assert full.gradients["logp"][~batch.sampled].tolist() == pytest.approx([-0.3 / 3] * 3, abs=1e-15)
    assert full.value - base.value == pytest.approx(0.3 * 6.5 / 3, abs=1e-12)
    assert full.metrics["observation_nll"].value == pytest.approx(6.5 / 3)
    ten = {field: 10 * getattr(totals, field) for field in ("tokens", "trajectories", "groups", "values", "labels")}
    more = step(rule, batch, replace(totals, **ten))
    assert torch.equal(more.gradients["logp"][~batch.sampled], full.gradients["logp"][~batch.sampled])
    assert any(
        not torch.equal(grad[batch.sampled], full.gradients[column][batch.sampled])
        for column, grad in more.gradients.items()
    )


def test_an_entropy_term_without_its_column_is_an_error() -> None:
    batch, totals = columns([[-1.0]])
    with pytest.raises(RuntimeError, match="ask the forward"):
        run(replace(TABLE["grpo"], terms=(ENTROPY,)), batch, totals)
