"""What is true of every batch: methods that are one at ratio 1, symmetries, limits, and losses that nothing breaks.

Each family has a control: a neighbour of which it is not true. Gradients written by hand are in `test_gradients.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strop.core.algorithm import (
    GAE,
    KL,
    Above,
    Aggregate,
    Algorithm,
    Band,
    BatchMean,
    Clip,
    Constant,
    Correction,
    Credit,
    Decoupled,
    Divergence,
    GroupMean,
    GroupTokenMean,
    GrowingClip,
    LeaveOneOut,
    MaskClip,
    NoClip,
    NoRatio,
    OffPolicyMask,
    One,
    PPOClip,
    PrefixRatio,
    Ratio,
    RewardToGo,
    SecondMoment,
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
)
from strop.credit.assign import assign
from strop.credit.correction import correction_weights
from strop.credit.outcome import Outcome
from strop.learn.annotate import columns_of, forward
from strop.learn.pack import count, pack
from strop.model.divergence import divergence_of
from strop.objective.columns import Columns, Totals
from strop.objective.objective import Moment, loss
from tests.learn.rows import fresh, learner_of, some_rows, tiny_policy
from tests.objective.batches import TABLE, algorithm, columns, finals, fitted, part, run, step, totals_of

SOME = settings(max_examples=25, deadline=None, database=None)
FEW = settings(max_examples=6, deadline=None, database=None)
"""For tests that go through every ratio, clip or aggregation on each batch."""
INF = math.inf

RATIOS: dict[str, Ratio] = {
    "token": TokenRatio(),
    "turn": TurnRatio(),
    "prefix": PrefixRatio(),
    "trajectory": TrajectoryRatio(),
    "sequence": SequenceRatio(),
    "gspo-token": SequenceRatio("token"),
}
CLIPS: dict[str, Clip] = {
    "none": NoClip(),
    "ppo": PPOClip(0.2, 0.28),
    "dual": PPOClip(0.2, 0.2, 3.0),
    "weight": WeightClip(0.5, 2.0),
    "growing": GrowingClip(0.1, 0.2, 0.5),
    "growing-dual": GrowingClip(0.1, 0.2, 0.5, 0.7),
    "mask": MaskClip(0.2),
    "soft": SoftGate(),
}
MODES: dict[str, Aggregate] = {
    "token-mean": TokenMean(),
    "group-token-mean": GroupTokenMean(),
    "sequence-mean": SeqMeanTokenMean(),
    "token-sum": SeqMeanTokenSum(),
    "constant": Constant(8.0),
}
CORRECTIONS: dict[str, Correction] = {
    "decoupled": Decoupled(),
    "truncate": Truncate(2.0),
    "truncate-sequence": Truncate(2.0, "sequence"),
    "band": Band(0.5, 5.0),
    "band-geometric": Band(0.8, 1.25, "geometric"),
    "second-moment": SecondMoment(0.04),
    "off-policy-mask": OffPolicyMask(0.1),
}
NUMBERS = (0.3, 0.6, 0.9, 1.06, 1.5, 2.5, 3.7)
"""Token ratios: off every bound above by 0.05 and more, below 0.3 and above 3.7 by products."""


@st.composite
def batches(draw: st.DrawFn, constant: bool = False) -> Columns:
    """Ragged trajectories of several turns in several groups, with ratios from `NUMBERS` (and no probability above 1).

    Args:
        draw: of hypothesis.
        constant: one advantage for each trajectory, not one for each token.
    """
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    stream = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = [[-1.4 - float(stream.exponential()) for _ in range(n)] for n in lengths]
    ratios = [[float(stream.choice(NUMBERS)) for _ in range(n)] for n in lengths]
    logp = [[o + math.log(r) for o, r in zip(*rows, strict=True)] for rows in zip(old, ratios, strict=True)]
    groups = sorted(int(stream.integers(0, 3)) for _ in lengths)
    advantages = [float(stream.choice([-1.5, -0.5, 0.7, 2.0])) for _ in lengths]
    batch, _ = columns(logp, old, advantages, groups=groups)
    turn = torch.tensor([k for n in lengths for k in sorted(stream.integers(0, 3, n).tolist())])
    credit = batch.advantage
    if not constant:
        credit = torch.tensor(stream.choice([-1.5, -0.5, 0.7, 2.0], len(credit)))
    return replace(batch, turn=turn, advantage=credit)


F1, F1_TOTALS = columns(
    [
        [-0.5, -0.9768564486857902, -0.6566749439387325],
        [-1.5945348918918356, -1.187682072451781],
        [-1.747, -0.793, -0.7],
    ],
    [[-0.5, -1.2, -0.3], [-2.0, -0.9], [-3.0, -0.1, -0.7]],
    [1.0, -1.0, -1.0],
)
"""A batch with active and inactive tokens of both signs, and a large ratio of a negative one."""


def gradient(parts: Algorithm, batch: Columns, totals: Totals | None = None) -> torch.Tensor:
    return run(parts, batch, totals or totals_of(batch))[1]


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-12) -> bool:
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def weighted(correction: Correction, batch: Columns, proximal: torch.Tensor) -> list[np.ndarray]:
    """Weights of a correction, by trajectory."""
    sizes = batch.trajectory_tokens.tolist()
    cut: list[list[np.ndarray]] = [
        [x.numpy() for x in column.detach().split(sizes)]
        for column in (proximal, batch.behaviour_logp, batch.advantage)
    ]
    return correction_weights(correction, *cut)


# --- A1: at ratio 1 they are one method


def at_ratio_1(batch: Columns) -> Columns:
    return replace(batch, logp=batch.behaviour_logp.clone())


@pytest.mark.parametrize("mode", MODES)
@FEW
@given(batches(constant=True))
def test_on_fresh_data_every_ratio_and_clip_is_reinforce(mode: str, batch: Columns) -> None:
    now = at_ratio_1(batch)
    plain = gradient(algorithm(NoRatio(), NoClip(), MODES[mode]), now)
    for ratio in RATIOS.values():
        for clip in CLIPS.values():
            assert same(gradient(algorithm(ratio, clip, MODES[mode]), now), plain)
    for correction in CORRECTIONS.values():
        assert all((w == 1).all() for w in weighted(correction, now, now.behaviour_logp))


def test_away_from_ratio_1_no_two_of_them_are_the_same() -> None:
    batch = replace(F1, turn=torch.tensor([0, 1, 1, 0, 0, 0, 1, 1]))
    found = {
        (name, clip): gradient(algorithm(ratio, CLIPS[clip], SeqMeanTokenSum()), batch, F1_TOTALS)
        for name, ratio in RATIOS.items()
        for clip in CLIPS
        if name != "gspo-token"  # one method with GSPO as long as credit is constant in a trajectory
    }
    kinds = {tuple(round(x, 9) for x in g.tolist()) for g in found.values()}
    plain = gradient(algorithm(NoRatio(), NoClip(), SeqMeanTokenSum()), batch, F1_TOTALS)
    assert len(kinds) > 0.6 * len(found)
    assert not any(same(g, plain, 1e-6) for g in found.values())


def test_aggregations_differ_by_their_weights_and_by_nothing_else() -> None:
    batch = replace(F1, group_tokens=torch.tensor([5, 5, 3]))
    totals = replace(F1_TOTALS, groups=2)
    sums = gradient(algorithm(TokenRatio(), NoClip(), SeqMeanTokenSum()), batch, totals) * 3
    lengths = torch.tensor([3.0, 3, 3, 2, 2, 3, 3, 3], dtype=torch.float64)
    group = torch.tensor([5.0] * 5 + [3.0] * 3, dtype=torch.float64)
    shares = {
        "token-mean": 1 / 8,
        "group-token-mean": 1 / (2 * group),
        "sequence-mean": 1 / (3 * lengths),
        "token-sum": 1 / 3,
        "constant": 1 / (3 * 8.0),
    }
    found = {mode: gradient(algorithm(TokenRatio(), NoClip(), MODES[mode]), batch, totals) for mode in MODES}
    for mode, share in shares.items():
        assert same(found[mode], sums * share)
        assert sum(same(found[mode], sums * other, 1e-6) for other in shares.values()) == 1


# --- C1: symmetries of credit

returns = st.lists(st.floats(-5, 5).map(lambda x: round(x, 2)), min_size=2, max_size=6)
RELATIVE: dict[str, Credit] = {
    "mean": GroupMean(),
    "population": GroupMean("population"),
    "sample": GroupMean("sample"),
    "batch deviation": GroupMean("batch"),
    "batch": BatchMean(),
    "others": LeaveOneOut(),
    "to go": RewardToGo(),
}
SHIFTS = ("mean", "population", "sample", "batch deviation", "batch", "others")
SCALES = ("population", "sample", "batch deviation", "batch")


def credits(name: str, groups: Sequence[Sequence[float]]) -> list[float]:
    given_ = assign(RELATIVE[name], [finals(group) for group in groups], {}).advantages
    return [float(a[0]) for group in given_ for a in group if a is not None]


@SOME
@given(st.lists(returns, min_size=1, max_size=3), st.floats(-3, 3), st.floats(0.5, 4))
def test_credit_forgets_what_its_baseline_takes_away(groups: list[list[float]], shift: float, scale: float) -> None:
    assume(all(max(g) - min(g) > 0.05 for g in groups))
    for name in RELATIVE:
        base = credits(name, groups)
        moved = credits(name, [[r + shift for r in group] for group in groups])
        grown = credits(name, [[r * scale for r in group] for group in groups])
        turned = credits(name, [[-r for r in group] for group in groups])
        if name in SHIFTS:
            assert moved == pytest.approx(base, abs=1e-8)
        assert grown == pytest.approx([a * (1 if name in SCALES else scale) for a in base], abs=1e-8)
        assert turned == pytest.approx([-a for a in base], abs=1e-8)


@SOME
@given(returns)
def test_leaving_oneself_out_is_the_mean_grown_by_its_bias(group: list[float]) -> None:
    n = len(group)
    assert credits("others", [group]) == pytest.approx([a * n / (n - 1) for a in credits("mean", [group])], abs=1e-9)


def test_credit_that_keeps_a_shift_or_a_scale_would_be_noticed() -> None:
    group, moved, grown = [0.0, 1.0, 3.0], [1.0, 2.0, 4.0], [0.0, 2.0, 6.0]
    assert credits("to go", [group]) != pytest.approx(credits("to go", [moved]), abs=0.1)
    for name in ("mean", "others", "to go"):
        assert credits(name, [group]) != pytest.approx(credits(name, [grown]), abs=0.1)
    assert credits("others", [group]) != pytest.approx(credits("mean", [group]), abs=0.1)
    # the deviation of a group does not make two groups alike where that of the batch keeps their sizes
    both = [group, [10 * r for r in group]]
    assert credits("population", both)[:3] == pytest.approx(credits("population", both)[3:])
    assert credits("batch deviation", both)[:3] != pytest.approx(credits("batch deviation", both)[3:], abs=0.1)


# --- C2: the order of trajectories


@pytest.mark.parametrize("mode", MODES)
@FEW
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_trajectories_and_groups_changes_nothing(mode: str, batch: Columns, draw: Any) -> None:
    n = len(batch.trajectory_tokens)
    order = draw.sample(range(n), n)
    sizes = batch.trajectory_tokens.tolist()
    mixed = Columns(
        **{
            name: torch.cat([column.split(sizes)[i] for i in order])
            for name, column in (
                (f, getattr(batch, f))
                for f in ("logp", "sampled", "behaviour_logp", "advantage", "order", "turn", "anchor_logp")
            )
        },
        entropy=None,
        trajectory=torch.arange(n).repeat_interleave(batch.trajectory_tokens[order]),
        trajectory_tokens=batch.trajectory_tokens[order],
        group_tokens=batch.group_tokens[order],
    )
    totals = totals_of(batch)
    for ratio in RATIOS.values():
        parts = algorithm(ratio, PPOClip(), MODES[mode])
        a, b = run(parts, batch, totals), run(parts, mixed, totals)
        assert a[0] == pytest.approx(b[0], rel=1e-12, abs=1e-12)
        assert same(torch.cat([a[1].split(sizes)[i] for i in order]), b[1])


def test_a_mean_over_each_micro_batch_would_depend_on_the_split() -> None:
    pieces = [part(F1, [0]), part(F1, [1, 2])]
    for mode in MODES.values():
        parts = algorithm(TokenRatio(), PPOClip(), mode)
        whole = run(parts, F1, F1_TOTALS)[0]
        assert sum(run(parts, p, F1_TOTALS)[0] for p in pieces) == pytest.approx(whole, abs=1e-12)
        local = sum(run(parts, p, totals_of(p))[0] for p in pieces) / len(pieces)  # the fault: local denominators
        assert local != pytest.approx(whole, abs=1e-3)


# --- C3: who gets no gradient


def test_references_and_teachers_get_no_gradient() -> None:
    terms = (KL(0.2), KL(0.1, "exact"), Divergence(0.3, "jsd"))
    learner = learner_of(tiny_policy(), replace(TABLE["grpo"], terms=terms), token_budget=10_000)
    others = [learner.models.reference, learner.models.teacher]
    for other in others:
        assert other is not None
        for parameter in other.model.parameters():
            parameter.requires_grad_(True)  # even if somebody let them learn
    rows = fresh(learner, some_rows(learner.policy), noise=0.3)
    with torch.no_grad():
        for parameter in learner.policy.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    assert learner.algorithm is not None
    [micro] = pack(rows, 10_000, None, learner.policy.device)
    out = forward(learner.models, micro, learner.wanted, 1.0)
    value, _ = loss(learner.algorithm, columns_of(micro, out, learner.algorithm), count(rows, False), Moment())
    value.backward()
    for other in others:
        assert other is not None
        assert all(p.grad is None for p in other.model.parameters())
    assert any(p.grad is not None and p.grad.any() for p in learner.policy.model.parameters())


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("clip", CLIPS)
def test_the_policy_that_a_ratio_divides_by_gets_no_gradient(ratio: str, clip: str) -> None:
    anchor = F1.anchor_logp.clone().requires_grad_()
    parts = algorithm(RATIOS[ratio], CLIPS[clip])
    value, _ = loss(
        parts, replace(F1, logp=F1.logp.detach().clone().requires_grad_(), anchor_logp=anchor), F1_TOTALS, Moment()
    )
    [grad] = torch.autograd.grad(value, anchor, allow_unused=True)
    assert grad is None or not grad.any()
    ours = (F1.logp.detach() - anchor).exp().sum()  # the fault would be seen: a ratio that is not detached
    assert torch.autograd.grad(ours, anchor)[0].any()


# --- C4: scale


@pytest.mark.parametrize("clip", CLIPS)
@FEW
@given(batches(), st.floats(0.1, 5))
def test_credit_twice_as_large_pulls_twice_as_hard(clip: str, batch: Columns, scale: float) -> None:
    totals = totals_of(batch)
    for ratio in RATIOS.values():
        parts = algorithm(ratio, CLIPS[clip])
        a, b = run(parts, batch, totals), run(parts, replace(batch, advantage=scale * batch.advantage), totals)
        assert b[0] == pytest.approx(scale * a[0], rel=1e-9, abs=1e-12)
        assert same(b[1], scale * a[1], 1e-9)
        none = run(parts, replace(batch, advantage=0 * batch.advantage), totals)
        assert none[0] == 0
        assert not none[1].any()


def test_a_clip_has_a_sign() -> None:
    parts = algorithm(TokenRatio(), PPOClip())
    turned = gradient(parts, replace(F1, advantage=-F1.advantage), F1_TOTALS)
    assert not same(turned, -gradient(parts, F1, F1_TOTALS), 1e-3)
    plain = algorithm(TokenRatio(), NoClip())
    assert same(gradient(plain, replace(F1, advantage=-F1.advantage), F1_TOTALS), -gradient(plain, F1, F1_TOTALS))


@pytest.mark.parametrize("name", TABLE)
def test_returns_that_are_all_equal_move_nothing_in_methods_that_compare(name: str) -> None:
    compares = isinstance(TABLE[name].credit, GroupMean | LeaveOneOut | BatchMean)
    [given_] = assign(TABLE[name].credit, [finals([0.7] * 3)], {}).advantages if compares else [[]]
    if compares:
        advantages = [float(a[0]) for a in given_ if a is not None]
        batch = replace(fitted(TABLE[name], F1), advantage=torch.tensor(advantages).double()[F1.trajectory])
        assert not step(TABLE[name], batch, F1_TOTALS).gradients["logp"].any()
        assert step(TABLE[name], replace(batch, advantage=F1.advantage), F1_TOTALS).gradients["logp"].any()


# --- D1: limits of ratios and clips

# (a part at its limit, what it becomes, the part inside its limit)
LIMITS: dict[str, tuple[Clip, Clip, Clip]] = {
    "ppo without bounds": (PPOClip(INF, INF), NoClip(), PPOClip()),
    "a dual bound far away": (PPOClip(0.2, 0.2, 1e9), PPOClip(), PPOClip(0.2, 0.2, 1.5)),
    "growing without bounds": (GrowingClip(INF, INF), NoClip(), GrowingClip()),
    "growing that does not grow": (
        GrowingClip(-math.log(0.8), math.log(1.2), 0.0, math.log(3.0)),
        PPOClip(0.2, 0.2, 3.0),
        GrowingClip(-math.log(0.8), math.log(1.2), 0.5, math.log(3.0)),
    ),
    "a weight without bounds": (WeightClip(), NoClip(), WeightClip(0.0, 1.2)),
    "a mask that nothing reaches": (MaskClip(1.0), NoClip(), MaskClip(0.05)),
    "a gate that is wide open": (SoftGate(1e-7, 1e-7), NoClip(), SoftGate()),
}


@pytest.mark.parametrize("name", LIMITS)
@FEW
@given(batches())
def test_at_its_limit_a_clip_is_another(name: str, batch: Columns) -> None:
    limit, other, _ = LIMITS[name]
    for ratio in RATIOS.values():
        found, wanted = (gradient(algorithm(ratio, clip), batch) for clip in (limit, other))
        assert same(found, wanted, 1e-4 if isinstance(limit, SoftGate) else 1e-12)


@pytest.mark.parametrize("name", LIMITS)
def test_inside_its_limit_a_clip_is_not_the_other(name: str) -> None:
    _, other, inside = LIMITS[name]
    longer = replace(F1, order=F1.order + 5)  # for the bounds that grow: late tokens
    found, wanted = (gradient(algorithm(TokenRatio(), clip), longer, F1_TOTALS) for clip in (inside, other))
    assert not same(found, wanted, 1e-3)


@SOME
@given(batches(), st.integers(0, 1000))
def test_at_their_limits_corrections_are_the_decoupled_weight_or_none(batch: Columns, seed: int) -> None:
    proximal = batch.behaviour_logp + 0.5 * torch.randn(
        len(batch.logp), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    decoupled = np.concatenate(weighted(Decoupled(), batch, proximal))
    for correction in (Truncate(INF), Band(0.0, INF), SecondMoment(INF)):
        assert (np.concatenate(weighted(correction, batch, proximal)) == decoupled).all()
    assert (np.concatenate(weighted(OffPolicyMask(INF), batch, proximal)) == 1).all()
    assert not np.concatenate(weighted(Truncate(0.0), batch, proximal)).any()
    tight = np.concatenate(weighted(Truncate(1e-3), batch, proximal))
    assert (tight != decoupled).any()
    product = weighted(Truncate(INF, "sequence"), batch, proximal)
    means = weighted(Truncate(INF, "geometric"), batch, proximal)
    for p, m, n in zip(product, means, batch.trajectory_tokens.tolist(), strict=True):
        assert p == pytest.approx(m**n, rel=1e-9)


@FEW
@given(st.integers(1, 6), st.integers(0, 1000))
def test_a_trajectory_of_one_token_has_one_ratio(n: int, seed: int) -> None:
    stream = np.random.default_rng(seed)
    rows = [[-float(stream.exponential())] for _ in range(n)]
    old = [[row[0] - math.log(stream.choice(NUMBERS))] for row in rows]
    batch, totals = columns(rows, old, [float(stream.normal()) for _ in rows])
    for clip in CLIPS.values():
        plain = gradient(algorithm(TokenRatio(), clip), batch, totals)
        for ratio in RATIOS.values():
            assert same(gradient(algorithm(ratio, clip), batch, totals), plain)


@FEW
@given(batches())
def test_turns_are_tokens_or_trajectories_where_they_are_as_long(batch: Columns) -> None:
    short, long = replace(batch, turn=batch.order), replace(batch, turn=batch.order * 0)
    for clip in CLIPS.values():
        by_turn = algorithm(TurnRatio(), clip)
        assert same(gradient(by_turn, short), gradient(algorithm(TokenRatio(), clip), batch))
        assert same(gradient(by_turn, long), gradient(algorithm(TrajectoryRatio(), clip), batch))
    last = batch.order == batch.trajectory_tokens[batch.trajectory] - 1
    prefix, whole = (gradient(algorithm(ratio), batch) for ratio in (PrefixRatio(), TrajectoryRatio()))
    assert same(prefix[last], whole[last])
    first = batch.order == 0
    assert same(prefix[first], gradient(algorithm(TokenRatio()), batch)[first])


def test_ratios_of_longer_units_are_not_those_of_tokens() -> None:
    plain = gradient(algorithm(TokenRatio()), F1, F1_TOTALS)
    for name in ("turn", "prefix", "trajectory", "sequence"):
        assert not same(gradient(algorithm(RATIOS[name]), F1, F1_TOTALS), plain, 1e-3)


# --- D2: limits of values


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    turns = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    stream = np.random.default_rng(draw(st.integers(0, 2**32)))
    return Outcome(
        stream.normal(size=len(turns)),
        float(stream.normal()),
        np.repeat(np.arange(len(turns)), turns),
        values=stream.normal(size=sum(turns)),
        bootstrap=float(stream.normal()),
    )


def estimate(credit: Credit, member: Outcome) -> np.ndarray:
    [[found]] = assign(credit, [[member]], {}).advantages
    assert found is not None
    return found


@SOME
@given(outcomes())
def test_lambda_1_is_the_return_from_here_on_and_lambda_0_the_next_step(member: Outcome) -> None:
    values = member.values
    assert values is not None
    to_go = estimate(RewardToGo(level="token"), member)
    assert estimate(GAE(1.0), member) == pytest.approx(to_go + member.bootstrap - values, abs=1e-9)
    rewards = to_go - np.append(to_go[1:], 0.0)
    after = np.append(values[1:], member.bootstrap)
    assert estimate(GAE(0.0), member) == pytest.approx(rewards + after - values, abs=1e-9)
    between = estimate(GAE(0.5), member)
    if len(values) > 1:
        assert between[0] != pytest.approx(estimate(GAE(1.0), member)[0], abs=1e-9)
    assert between[-1] == pytest.approx(estimate(GAE(1.0), member)[-1], abs=1e-12)


@SOME
@given(outcomes(), st.floats(-2, 1.4))
def test_one_turn_and_a_constant_value_are_reinforce_with_a_baseline(member: Outcome, b: float) -> None:
    n = len(member.turns)
    single = Outcome(np.zeros(1), 1.5, np.zeros(n, dtype=np.int64), values=np.full(n, b))
    for lam in (0.0, 0.5, 1.0):
        turn = estimate(GAE(lam, level="turn"), single)
        assert turn == pytest.approx(estimate(RewardToGo(b), single), abs=1e-12)
        token = estimate(GAE(lam), single)
        assert token[-1] == pytest.approx(1.5 - b, abs=1e-12)
        assert (n == 1 or token[0] == pytest.approx(1.5 - b, abs=1e-9)) == (n == 1 or lam == 1.0)
    # one token a turn: steps of turns are steps of tokens
    split = replace(member, turn_rewards=np.zeros(n), turns=np.arange(n))
    assert estimate(GAE(0.7, 0.9), split) == pytest.approx(estimate(GAE(0.7, 0.9, "turn"), split), abs=1e-12)


# --- D3: divergences at their limits

logits = st.lists(st.floats(-4, 4), min_size=3, max_size=3)
KINDS = ("forward", "reverse", "jsd")


def divergence(
    kind: str, student: Sequence[float], teacher: Sequence[float], beta: float = 0.5
) -> tuple[float, torch.Tensor]:
    own = torch.tensor([student], dtype=torch.float64, requires_grad=True)
    theirs = torch.tensor([teacher], dtype=torch.float64).log_softmax(-1)
    value = divergence_of(kind, own.log_softmax(-1), theirs, beta).sum()
    return value.item(), torch.autograd.grad(value, own)[0][0]


@SOME
@given(logits, logits, st.floats(0.05, 0.95))
def test_divergences_are_0_for_the_same_policy_and_positive_for_others(
    a: list[float], b: list[float], beta: float
) -> None:
    for kind in KINDS:
        value, grad = divergence(kind, a, a, beta)
        assert value == pytest.approx(0.0, abs=1e-14)
        assert grad.abs().max() < 1e-14
        assert divergence(kind, a, b, beta)[0] > -1e-14
    assert divergence("forward", a, b)[0] == pytest.approx(divergence("reverse", b, a)[0], abs=1e-12)
    assert divergence("jsd", a, b, beta)[0] == pytest.approx(divergence("jsd", b, a, 1 - beta)[0], abs=1e-12)
    mixed, forward_, reverse = (divergence(kind, a, b, beta)[0] for kind in ("jsd", "forward", "reverse"))
    assert mixed <= min(beta * forward_, (1 - beta) * reverse) + 1e-12
    small = 1e-7
    assert divergence("jsd", a, b, small)[0] / small == pytest.approx(forward_, rel=1e-3, abs=1e-6)
    assert divergence("jsd", a, b, 1 - small)[0] / small == pytest.approx(reverse, rel=1e-3, abs=1e-6)


def test_a_divergence_over_the_likeliest_ids_alone_would_not_be_0_for_the_same_policy() -> None:
    own = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    logp = own.log_softmax(0)
    top = logp.detach()[:2]
    truncated = (top.exp() * (top - logp[:2])).sum()
    assert torch.autograd.grad(truncated, own)[0].abs().max() > 0.1


# --- D5: imitation and reinforcement


@SOME
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(1, 4)), min_size=1, max_size=6))
def test_imitating_the_successes_is_reinforce_without_a_baseline(played: list[tuple[float, int]]) -> None:
    members = [finals([reward], n)[0] for reward, n in played]
    rows = [[-1.0 - 0.1 * k for k in range(n)] for _, n in played]
    sums = {}
    for name, credit in (("imitation", Above()), ("reinforce", RewardToGo())):
        [given_] = assign(credit, [members], {}).advantages
        kept = [i for i, a in enumerate(given_) if a is not None]
        total = torch.zeros(len(rows), dtype=torch.float64)
        if kept:
            advantages = [float(a[0]) for a in given_ if a is not None]
            batch, totals = columns([rows[i] for i in kept], advantages=advantages)
            grad = gradient(algorithm(aggregate=SeqMeanTokenSum()), batch, totals)
            total[kept] = grad.new_zeros(len(kept)).index_add_(0, batch.trajectory, grad) * len(kept)
        sums[name] = total
    assert same(sums["imitation"], sums["reinforce"])


def test_imitation_of_everything_is_a_threshold_below_everything() -> None:
    members = finals([-3.0, 0.0, 0.4, 1.0])
    for credit, right in ((Above(-INF), True), (Above(0.0), False)):
        [found] = assign(credit, [members], {}).advantages
        [everything] = assign(One(), [members], {}).advantages
        assert ([a is not None for a in found] == [a is not None for a in everything]) == right
    # graded returns: reinforcement weighs what a filter only keeps
    [weights] = assign(RewardToGo(), [members], {}).advantages
    assert [float(a[0]) for a in weights if a is not None] != [1.0] * 4


# --- G: what must not break a loss


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("clip", CLIPS)
def test_a_token_that_became_impossible_leaves_finite_numbers_where_a_ratio_stands(ratio: str, clip: str) -> None:
    logp = F1.logp.detach().clone()
    logp[1] = -INF
    value, grad, _, _ = run(
        algorithm(RATIOS[ratio], CLIPS[clip], SeqMeanTokenMean()), replace(F1, logp=logp), F1_TOTALS
    )
    assert torch.isfinite(grad).all()
    # a log-probability itself is infinite, and the learner skips such a step
    assert math.isfinite(value) == (clip != "weight")


@pytest.mark.parametrize("ratio", ["turn", "prefix", "trajectory"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_product_of_many_ratios_is_bounded_before_it_is_exponentiated(ratio: str, clip: str, sign: float) -> None:
    logp, old = [[-0.1] * 40], [[-0.1 - 4.0 * sign] * 40]
    batch, totals = columns(logp, old, [-1.0])
    single = {
        name: getattr(batch, name).detach().float() for name in ("logp", "behaviour_logp", "anchor_logp", "advantage")
    }
    value, grad, _, metrics = run(algorithm(RATIOS[ratio], CLIPS[clip]), replace(batch, **single), totals)
    assert math.isfinite(value)
    assert torch.isfinite(grad).all()
    assert metrics["unit_ratio_max"].value <= math.exp(20) * 1.001
    assert not math.isfinite(torch.tensor(160.0).exp())  # what the product is in float32


@pytest.mark.parametrize("name", TABLE)
def test_a_batch_without_a_trained_token_has_loss_0(name: str) -> None:
    batch, totals = columns([[-1.0, -2.0], [-0.5]], sampled=[[False, False], [False]])
    assert totals.tokens == totals.trajectories == 0
    told = fitted(TABLE[name], batch)
    found = step(TABLE[name], told, totals)
    assert found.value == 0.0
    assert all(not g.any() for g in found.gradients.values())
    one, some = columns([[-1.0, -2.0], [-0.5]], sampled=[[False, False], [True]])
    told = fitted(TABLE[name], one)
    if TABLE[name].critic is None and told.process is None:
        alone, only = columns([[-0.5]])
        assert step(TABLE[name], told, some).value == pytest.approx(
            step(TABLE[name], part(told, [1]), replace(only, observations=2)).value, abs=1e-15
        )
        assert alone.sampled.all()
