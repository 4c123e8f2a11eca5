"""Every ratio, clip, correction and aggregation against numbers that were made elsewhere, in float64 and to 1e-9.

Each algorithm is put together from parts and run through `objective.loss`. Compared are the loss, its gradient in every
log-probability, and the loss of each token: the loss is linear in the column `correction`, so its gradient there is weight
x loss of the token. Every case has a neighbour (one part replaced by a plausible fault) that must not give the numbers.

A ratio of a whole sequence stands at each of its tokens. Where a vector counts a sequence once (rloo.sequence_ppo_trl), the
gradient under the sum over tokens is the vector's, and its loss is the mean over tokens. Where a sequence is one action with
token credits that differ (gspo.tokenadv.differs, first form), loss and gradient are compared, not the loss of each token.

Negative control, a number that must not come out: ppo.clip.token-sum-norm-verl (a constant without the number of
trajectories).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from strop.core.algorithm import (
    KL,
    Algorithm,
    Band,
    Clip,
    Constant,
    Correction,
    Decoupled,
    GroupTokenMean,
    GrowingClip,
    LeaveOneOut,
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
)
from strop.credit.assign import assign
from strop.credit.correction import correction_weights
from strop.objective.columns import Columns, Totals
from strop.objective.objective import Moment, loss
from strop.objective.parts import MAX_LOG_RATIO, Places, log_ratio, surrogate, unit_log_ratio
from strop.objective.terms import kl_loss
from tests.objective.batches import AGGREGATES, VECTORS, algorithm, columns, finals, rows_as_lists, run

TOLERANCE = 1e-9
Inputs = dict[str, Any]
Ragged = Sequence[Sequence[float]]
KINDS: dict[str, Ratio] = {
    "token": TokenRatio(),
    "prefix": PrefixRatio(),
    "trajectory": TrajectoryRatio(),
    "sequence": SequenceRatio(),
    "gspo-token": SequenceRatio("token"),
}


def ppo(i: Inputs) -> PPOClip:
    return PPOClip(i["eps_low"], i["eps_high"], i.get("c"))


def growing(i: Inputs) -> GrowingClip:
    return GrowingClip(i["log_eps_low"], i["log_eps_high"], i["power"], i["dual_log_c"])


def rule(
    ratio: str,
    clip: Callable[[Inputs], Clip] = ppo,
    correction: Correction | None = None,
    kl: Callable[[Inputs], KL] | None = None,
) -> Callable[[Inputs], Algorithm]:
    """How a vector's inputs make an algorithm."""

    def build(i: Inputs) -> Algorithm:
        parts = algorithm(KINDS[ratio], clip(i), AGGREGATES[i["aggregation"]])
        return replace(parts, correction=correction, terms=(kl(i),) if kl else ())

    return build


# id: (its algorithm, a neighbour that must not agree)
CASES: dict[str, tuple[Callable[[Inputs], Algorithm], Callable[[Inputs], Algorithm]]] = {
    "dapo.cliphigher.token-mean": (rule("token"), rule("token", lambda i: PPOClip(i["eps_low"], i["eps_low"]))),
    "ppo.dualclip.token-mean": (rule("token"), rule("token", lambda i: PPOClip(i["eps_low"], i["eps_high"]))),
    "grpo.paper.seq-mean": (
        rule("token", kl=lambda i: KL(i["beta"], i["kl"])),
        rule("token", kl=lambda i: KL(i["beta"], "k2")),
    ),
    "cispo.eps_high_5.one_plus": (
        rule("token", lambda i: WeightClip(i["ratio_min"], i["ratio_max"])),
        rule("token", lambda i: WeightClip(high=5.0)),
    ),
    "cispo.epsmax_5.absolute": (
        rule("token", lambda i: WeightClip(i["ratio_min"], i["ratio_max"])),
        rule("token", lambda i: WeightClip(high=6.0)),
    ),
    "cispo.verl_default_02": (
        rule("token", lambda i: WeightClip(i["ratio_min"], i["ratio_max"])),
        rule("token", lambda i: WeightClip(high=i["ratio_max"])),
    ),
    "gspo.seq.wide": (rule("sequence"), rule("token")),
    "gspo.token.wide": (rule("gspo-token"), rule("trajectory")),
    "gspo.seq.paper_eps": (rule("sequence"), rule("sequence", lambda i: PPOClip(i["eps_low"], 0.27))),
    "ctpo.paper_eps": (rule("prefix", growing), rule("token", growing)),
    "ctpo.code_eps_dual": (rule("prefix", growing), rule("prefix", lambda i: replace(growing(i), dual=None))),
    "ctpo.wide": (rule("prefix", growing), rule("sequence", growing)),
    "fullratio.noclip": (rule("trajectory", lambda i: WeightClip()), rule("prefix", lambda i: WeightClip())),
    "areal.decoupled.token-mean": (rule("token", correction=Decoupled()), rule("token", correction=Truncate())),
    "tis.token.C2.ppo": (rule("token", correction=Truncate(2.0)), rule("token", correction=Truncate(2.4))),
    "mis.token.C2.ppo": (rule("token", correction=Band(0.0, 2.0)), rule("token", correction=Truncate(2.0))),
    "icepop.token.05_5.ppo": (rule("token", correction=Band(0.5, 5.0)), rule("token", correction=Band(0.0, 5.0))),
    "tis.seq.C2.ppo": (
        rule("token", correction=Truncate(2.0, "sequence")),
        rule("token", correction=Truncate(2.0, "geometric")),
    ),
    "mis.seq.C3.ppo": (
        rule("token", correction=Band(0.0, 3.0, "sequence")),
        rule("token", correction=Band(0.0, 3.0, "geometric")),
    ),
}


def flat(rows: Ragged) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def stale(correction: Correction, inputs: Inputs) -> list[np.ndarray]:
    """Weights of a correction: the old policy is the proximal one, the rollout's the behaviour."""
    proximal, behaviour = ([np.array(row) for row in inputs[name]] for name in ("old_logp", "rollout_logp"))
    credit = [np.full(len(row), a) for row, a in zip(proximal, inputs["advantages"], strict=True)]
    return correction_weights(correction, proximal, behaviour, credit)


def batch_of(inputs: Inputs, correction: Correction | None = None) -> tuple[Columns, Totals]:
    """Columns of a vector's sequences; the ratio is around `old_logp`."""
    batch, totals = columns(inputs["logp"], inputs["old_logp"], inputs.get("advantages"))
    if "token_advantages" in inputs:
        batch = replace(batch, advantage=flat(inputs["token_advantages"]))
    if "ref_logp" in inputs:
        batch = replace(batch, reference_logp=flat(inputs["ref_logp"]))
    if "rollout_logp" in inputs:
        batch = replace(batch, behaviour_logp=flat(inputs["rollout_logp"]), anchor_logp=flat(inputs["old_logp"]))
    if correction is not None:
        batch = replace(batch, correction=torch.tensor(np.concatenate(stale(correction, inputs))))
    return batch, totals


def token_losses(parts: Algorithm, batch: Columns) -> torch.Tensor:
    """Loss of each token before aggregation, from the loss with every weight 1."""
    weight = torch.ones_like(batch.logp).detach() if batch.correction is None else batch.correction
    weight = weight.clone().requires_grad_()
    value, _ = loss(replace(parts, aggregate=TokenMean()), replace(batch, correction=weight), Totals(1, 1), Moment())
    found = weight.detach() * torch.autograd.grad(value, weight)[0]
    for term in parts.terms:
        assert isinstance(term, KL)
        found = found + term.coefficient * kl_loss(term, batch).detach()
    return found


def near(found: torch.Tensor, expected: Ragged) -> bool:
    rows = rows_as_lists(found, [len(row) for row in expected])
    return all(a == pytest.approx(b, abs=TOLERANCE) for a, b in zip(rows, expected, strict=True))


def agreement(parts: Algorithm, inputs: Inputs, expected: dict[str, Any]) -> tuple[bool, bool, bool]:
    """Whether the loss, its gradient and the loss of each token are the expected ones."""
    batch, totals = batch_of(inputs, parts.correction)
    value, grad, _, _ = run(parts, batch, totals)
    return (
        value == pytest.approx(expected["loss"], abs=TOLERANCE),
        near(grad, expected["grad_logp"]),
        near(token_losses(parts, batch), expected["per_token_loss"]),
    )


def places(batch: Columns) -> Places:
    return Places(batch.trajectory, batch.order, batch.turn, batch.trajectory_tokens)


def ratios(kind: Ratio, batch: Columns) -> list[list[float]]:
    """The ratio at each token, by trajectory."""
    log_r = log_ratio(batch.logp, batch.anchor_logp)
    return rows_as_lists(unit_log_ratio(kind, log_r, places(batch)).exp(), batch.trajectory_tokens.tolist())


@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_token_losses_are_the_known_ones(name: str) -> None:
    vector = VECTORS[name]
    right, neighbour = (build(vector["inputs"]) for build in CASES[name])
    assert agreement(right, vector["inputs"], vector["expected"]) == (True, True, True)
    assert not all(agreement(neighbour, vector["inputs"], vector["expected"]))


@pytest.mark.parametrize("name", [name for name in CASES if name != "areal.decoupled.token-mean" and "is." in name])
def test_weights_of_corrections_are_the_known_ones(name: str) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    part = CASES[name][0](inputs).correction
    assert part is not None
    assert near(torch.tensor(np.concatenate(stale(part, inputs))), expected["weights"])
    for unit, known in (("sequence", "seq_weight"), ("geometric", "seq_geomean")):
        uncut = stale(Truncate(1e6, unit), inputs)  # type: ignore[arg-type]
        assert [w[0] for w in uncut] == pytest.approx(expected[known], abs=TOLERANCE)
        assert all((w == w[0]).all() for w in uncut)


def test_a_correction_that_divides_by_the_tokens_it_keeps_is_another_loss() -> None:
    inputs, expected = VECTORS["mis.token.C2.ppo"]["inputs"], VECTORS["mis.token.C2.ppo"]["expected"]
    batch, totals = batch_of(inputs, Band(0.0, 2.0))
    assert batch.correction is not None
    kept = replace(totals, tokens=int((batch.correction > 0).sum()))
    assert kept.tokens == 8
    parts = algorithm(TokenRatio(), PPOClip())
    assert run(parts, batch, totals)[0] == pytest.approx(expected["loss"], abs=TOLERANCE)
    assert run(parts, batch, kept)[0] == pytest.approx(expected["loss"] * 10 / 8, abs=TOLERANCE)


def test_a_ratio_around_the_behaviour_policy_and_a_correction_count_the_gap_twice() -> None:
    inputs, expected = (
        VECTORS["areal.decoupled.token-mean"]["inputs"],
        VECTORS["areal.decoupled.token-mean"]["expected"],
    )
    batch, totals = batch_of(inputs, Decoupled())
    parts = algorithm(TokenRatio(), PPOClip())
    assert near(run(parts, batch, totals)[1], expected["grad_logp"])
    assert not near(run(parts, replace(batch, anchor_logp=batch.behaviour_logp), totals)[1], expected["grad_logp"])


def test_a_constant_divides_by_the_trajectories_too() -> None:
    vector = VECTORS["ppo.clip.token-sum-norm-verl"]
    batch, totals = batch_of(vector["inputs"])
    value, grad, _, _ = run(algorithm(TokenRatio(), ppo(vector["inputs"]), Constant(8.0)), batch, totals)
    assert value == pytest.approx(vector["expected"]["loss"] / 4, abs=TOLERANCE)
    assert value != pytest.approx(vector["expected"]["loss"], abs=0.1)
    assert not near(grad, vector["expected"]["grad_logp"])


@pytest.mark.parametrize("name", ["gspo.seq.wide", "gspo.token.wide"])
def test_a_sequence_ratio_is_the_geometric_mean(name: str) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    batch, _ = batch_of(inputs)
    found = ratios(KINDS["sequence"], batch)
    for row, want in zip(found, expected["seq_ratio"], strict=True):
        assert row == pytest.approx([want] * len(row), abs=TOLERANCE)
    product = [row[0] for row in ratios(TrajectoryRatio(), batch)]
    assert product != pytest.approx(expected["seq_ratio"], abs=1e-2)


@pytest.mark.parametrize(("form", "known"), [("sequence", "seq_ratio_variant"), ("token", "token_variant")])
def test_one_action_takes_the_mean_of_its_credit_and_tokens_keep_their_own(form: Any, known: str) -> None:
    vector = VECTORS["gspo.tokenadv.differs"]
    parts = algorithm(SequenceRatio(form), ppo(vector["inputs"]), SeqMeanTokenMean())
    value, gradient, tokens = agreement(parts, vector["inputs"], vector["expected"][known])
    assert (value, gradient, tokens) == (True, True, form == "token")
    other = "token_variant" if form == "sequence" else "seq_ratio_variant"
    assert not agreement(parts, vector["inputs"], vector["expected"][other])[1]


@pytest.mark.parametrize("name", ["ctpo.paper_eps", "ctpo.code_eps_dual", "ctpo.wide"])
def test_prefix_ratios_and_the_bounds_that_grow_with_them_are_the_known_ones(name: str) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    batch, _ = batch_of(inputs)
    assert near(flat(ratios(PrefixRatio(), batch)), expected["cumulative_ratio"])
    assert not near(flat(ratios(TokenRatio(), batch)), expected["cumulative_ratio"])
    clip = replace(growing(inputs), dual=None)
    for sign, known in ((1.0, "upper_bound"), (-1.0, "lower_bound")):
        far = torch.full_like(batch.logp, 1e6 if sign > 0 else 1e-6)
        credit = torch.full_like(batch.logp, sign)
        found, clipped = surrogate(clip, far, batch.logp, credit, batch.order, batch.anchor_logp)
        assert near(-sign * found.detach(), expected[known])
        assert clipped.all()
        fixed, _ = surrogate(replace(clip, power=0.0), far, batch.logp, credit, batch.order, batch.anchor_logp)
        assert not near(-sign * fixed.detach(), expected[known])


def test_one_action_of_many_tokens_is_clipped_by_its_product() -> None:
    inputs, expected = VECTORS["rloo.sequence_ppo_trl"]["inputs"], VECTORS["rloo.sequence_ppo_trl"]["expected"]
    [given] = assign(LeaveOneOut(), [finals(inputs["rewards"])], {}).advantages
    inputs = {**inputs, "advantages": [float(a[0]) for a in given if a is not None]}
    batch, totals = batch_of(inputs)
    assert [row[0] for row in ratios(TrajectoryRatio(), batch)] == pytest.approx(expected["sequence_ratio"], abs=1e-9)
    clip = PPOClip(inputs["eps"], inputs["eps"])
    assert near(run(algorithm(TrajectoryRatio(), clip, SeqMeanTokenSum()), batch, totals)[1], expected["grad_logp"])
    once = run(algorithm(TrajectoryRatio(), clip, SeqMeanTokenMean()), batch, totals)[0]
    assert once == pytest.approx(expected["loss"], abs=TOLERANCE)
    # a trajectory of one turn is that turn; token by token it would be another gradient
    assert near(run(algorithm(TurnRatio(), clip, SeqMeanTokenSum()), batch, totals)[1], expected["grad_logp"])
    by_token = run(algorithm(TokenRatio(), clip, SeqMeanTokenSum()), batch, totals)[1]
    assert not near(by_token, expected["grad_logp"])


def single(logp: float, anchor: float, advantage: float) -> tuple[Columns, Totals]:
    return columns([[logp]], [[anchor]], [advantage])


CURVES: dict[str, Clip] = {
    "ppo": PPOClip(0.2, 0.2),
    "clip_higher_028": PPOClip(0.2, 0.28),
    "dual_clip_3": PPOClip(0.2, 0.2, 3.0),
    "cispo_cap5": WeightClip(high=5.0),
}


@pytest.mark.parametrize("row", VECTORS["clip.activity_table"]["expected"]["rows"], ids=lambda r: f"{r['A']}-{r['r']}")
def test_which_signs_and_ratios_still_carry_a_gradient(row: dict[str, float]) -> None:
    batch, totals = single(math.log(row["r"]) - 3.0, -3.0, row["A"])
    found = {name: run(algorithm(TokenRatio(), clip), batch, totals)[1].item() for name, clip in CURVES.items()}
    assert found == pytest.approx({name: row[name] for name in CURVES}, abs=TOLERANCE)
    ratio, zero = [np.array([math.log(row["r"])])], [np.zeros(1)]
    for part, known in ((Truncate(2.0), "tis_C2_weight"), (Band(0.5, 5.0), "icepop_05_5_weight")):
        assert correction_weights(part, ratio, zero, zero)[0].tolist() == pytest.approx([row[known]], abs=TOLERANCE)


def test_the_activity_table_tells_its_clips_apart() -> None:
    rows = VECTORS["clip.activity_table"]["expected"]["rows"]
    names = [*CURVES, "tis_C2_weight", "icepop_05_5_weight"]
    curves = {name: tuple(row[name] for row in rows) for name in names}
    assert len(set(curves.values())) == len(names)


def test_a_token_that_moved_too_far_in_probability_is_dropped() -> None:
    inputs, expected = VECTORS["dppo.binary_tv"]["inputs"], VECTORS["dppo.binary_tv"]["expected"]
    for p, old, a, kept, moved in zip(
        inputs["p_theta"], inputs["p_old"], inputs["advantages"], expected["keep"], expected["delta_p"], strict=True
    ):
        batch, totals = single(math.log(p), math.log(old), a)
        value, grad, _, metrics = run(algorithm(TokenRatio(), MaskClip(inputs["delta"])), batch, totals)
        assert value == pytest.approx(-a * p / old, abs=TOLERANCE)
        assert grad.item() == pytest.approx(-a * p / old * kept, abs=TOLERANCE)
        assert (metrics["clipped_up"].value or 0) + (metrics["clipped_down"].value or 0) == 1 - kept
        # its own distance decides: a bound on either side of it, in the direction of the advantage
        towards = moved * a
        for delta in (abs(towards) - 1e-9, abs(towards) + 1e-9):
            masked = run(algorithm(TokenRatio(), MaskClip(delta)), batch, totals)[1].item() == 0
            assert masked == (towards > delta)
    by_ratio = run(algorithm(TokenRatio(), PPOClip()), *single(math.log(0.35), math.log(0.3), 1.0))[1].item()
    assert by_ratio != 0  # and PPO's bound of 0.2 is on the ratio:
    assert run(algorithm(TokenRatio(), PPOClip(0.1, 0.1)), *single(math.log(0.35), math.log(0.3), 1.0))[1].item() == 0


@pytest.mark.parametrize("row", VECTORS["sapo.gate"]["expected"]["rows"], ids=lambda r: f"{r['A']}-{r['r']}")
def test_the_soft_gate_has_the_known_loss_and_gradient(row: dict[str, float]) -> None:
    inputs = VECTORS["sapo.gate"]["inputs"]
    gate = SoftGate(inputs["tau_pos"], inputs["tau_neg"])
    batch, totals = single(math.log(row["r"]) - 2.0, -2.0, row["A"])
    value, grad, _, _ = run(algorithm(TokenRatio(), gate), batch, totals)
    assert (value, grad.item()) == pytest.approx((row["loss"], row["grad"]), abs=TOLERANCE)
    hard = run(algorithm(TokenRatio(), PPOClip(100.0, 100.0)), batch, totals)[1].item()
    assert (hard == pytest.approx(row["grad"], abs=1e-6)) == (row["r"] == 1.0)
    swapped = run(algorithm(TokenRatio(), SoftGate(inputs["tau_neg"], inputs["tau_pos"])), batch, totals)[0]
    assert swapped != pytest.approx(row["loss"], abs=1e-3)


def test_importance_sampling_corrects_the_lectures_expectation() -> None:
    inputs, expected = VECTORS["seed.is_weights"]["inputs"], VECTORS["seed.is_weights"]["expected"]
    parts = algorithm(TokenRatio(), NoClip())
    sums = {"E_mu_wR": 0.0, "E_mu_w": 0.0, "uncorrected": 0.0}
    for pi, mu, reward, weight in zip(inputs["pi"], inputs["mu"], inputs["rewards"], expected["weights"], strict=True):
        batch, totals = single(math.log(pi), math.log(mu), float(reward))
        [[found]] = ratios(TokenRatio(), batch)
        assert found == pytest.approx(weight, abs=TOLERANCE)
        sums["E_mu_wR"] -= mu * run(parts, batch, totals)[0]
        sums["E_mu_w"] -= mu * run(parts, *single(math.log(pi), math.log(mu), 1.0))[0]
        sums["uncorrected"] += mu * reward
    assert sums["E_mu_wR"] == pytest.approx(expected["E_mu_wR"], abs=TOLERANCE)
    assert sums["E_mu_wR"] == pytest.approx(expected["E_pi_R"], abs=TOLERANCE)
    assert sums["E_mu_w"] == pytest.approx(expected["E_mu_w"], abs=TOLERANCE)
    assert sums["uncorrected"] != pytest.approx(expected["E_pi_R"], abs=0.1)


def test_a_product_of_ratios_explodes_where_their_geometric_mean_does_not() -> None:
    inputs, expected = VECTORS["seed.ratio_product"]["inputs"], VECTORS["seed.ratio_product"]["expected"]
    step = math.log(inputs["ratio"])
    for k, n in enumerate(inputs["n"]):
        batch, _ = columns([[step - 1.0] * n], [[-1.0] * n])
        [product], [mean] = ratios(TrajectoryRatio(), batch), ratios(SequenceRatio(), batch)
        assert product == pytest.approx([expected["product"][k]] * n, abs=TOLERANCE)
        assert mean == pytest.approx([expected["gspo"][k]] * n, abs=TOLERANCE)
        logs = unit_log_ratio(TrajectoryRatio(), log_ratio(batch.logp, batch.anchor_logp), places(batch))
        assert logs.tolist() == pytest.approx([expected["log_product"][k]] * n, abs=TOLERANCE)
        assert ratios(PrefixRatio(), batch)[0][0] == pytest.approx(inputs["ratio"], abs=TOLERANCE)


def test_the_prefix_of_a_token_counts_for_it() -> None:
    inputs, expected = VECTORS["seed.prefix_quarter"]["inputs"], VECTORS["seed.prefix_quarter"]["expected"]
    batch, _ = columns([[math.log(p) for p in inputs["pi"]]], [[math.log(p) for p in inputs["mu"]]])
    known = {
        TokenRatio(): expected["token_ratio"],
        PrefixRatio(): expected["cumulative"],
        TrajectoryRatio(): [expected["full"]] * 2,
        SequenceRatio(): [expected["gspo"]] * 2,
    }
    for kind, want in known.items():
        assert ratios(kind, batch)[0] == pytest.approx(want, abs=TOLERANCE)
    assert ratios(TokenRatio(), batch)[0] != pytest.approx(expected["cumulative"], abs=0.1)


@pytest.mark.parametrize("k", range(4))
def test_the_deviation_of_a_log_prefix_grows_like_the_root_and_so_do_its_bounds(k: int) -> None:
    """The log prefix ratio is linear in the token log-ratios, so independent steps of variance s^2 give s^2 sum c^2."""
    inputs, expected = VECTORS["ctpo.std_growth"]["inputs"], VECTORS["ctpo.std_growth"]["expected"]
    t, sigma = inputs["t"][k], inputs["sigma"]
    squares = 0.0
    for first in range(0, t, 100):
        moved = range(first, min(first + 100, t))  # one trajectory for each token that moves by sigma
        rows = [[0.0] * j + [sigma] + [0.0] * (t - j - 1) for j in moved]
        log_r = torch.tensor(rows, dtype=torch.float64).flatten()
        owner = torch.arange(len(rows)).repeat_interleave(t)
        at = Places(owner, torch.arange(t).repeat(len(rows)), torch.zeros_like(owner), torch.full((len(rows),), t))
        last = unit_log_ratio(PrefixRatio(), log_r, at).view(len(rows), t)[:, -1]
        squares += float((last**2).sum())
    assert squares == pytest.approx(expected["var_log"][k], abs=TOLERANCE)
    assert squares**0.5 == pytest.approx(expected["std_log"][k], abs=TOLERANCE)
    one = torch.ones(1, dtype=torch.float64)
    bound, _ = surrogate(GrowingClip(sigma, sigma), one * 1e9, -one, one, torch.tensor([t - 1]), -one)
    assert -bound.item() == pytest.approx(expected["clip_high"][k], rel=TOLERANCE)
    assert (math.exp(sigma * t) == pytest.approx(expected["clip_high"][k], rel=1e-6)) == (t == 1)  # if it grew like t


@pytest.mark.parametrize("name", ["ess.uniform", "ess.mixed", "ess.one"])
def test_the_effective_share_of_tokens_is_kishs(name: str) -> None:
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    weights = inputs["weights"]
    batch, totals = columns([[math.log(w) - 9.0] for w in weights], [[-9.0]] * len(weights))
    assert max(abs(math.log(w)) for w in weights) < MAX_LOG_RATIO
    metrics = run(algorithm(TokenRatio()), batch, totals)[3]
    for metric in ("effective_tokens", "unit_effective_tokens"):
        share = metrics[metric].value
        assert share == pytest.approx(expected["ess_fraction"], abs=TOLERANCE)
        assert share == pytest.approx(expected["verl_form"], abs=TOLERANCE)
        assert share * len(weights) == pytest.approx(expected["ess"], abs=TOLERANCE)
    # the fault: weights clamped before they are counted look better than they are
    clamped = np.clip(weights, 0.5, 2.0)
    kish = clamped.sum() ** 2 / (len(weights) * (clamped**2).sum())
    assert (kish == pytest.approx(expected["ess_fraction"], abs=1e-3)) == (name == "ess.uniform")


def test_a_mean_over_groups_is_not_the_mean_over_all_tokens() -> None:
    inputs, expected = VECTORS["agg.dapo_group_vs_batch"]["inputs"], VECTORS["agg.dapo_group_vs_batch"]["expected"]
    groups = [inputs["group1"], inputs["group2"]]

    def batch(chosen: Sequence[Ragged]) -> tuple[Columns, Totals]:
        """Tokens whose loss is the given number: log-probability -1 and that advantage."""
        rows = [row for group in chosen for row in group]
        made, totals = columns([[-1.0] * len(row) for row in rows])
        sizes = [sum(map(len, group)) for group in chosen for _ in group]
        made = replace(made, advantage=flat(rows), group_tokens=torch.tensor(sizes))
        return made, replace(totals, groups=len(chosen))

    each = [run(algorithm(aggregate=GroupTokenMean()), *batch([group]))[0] for group in groups]
    assert each == pytest.approx(expected["per_group"], abs=TOLERANCE)
    both = run(algorithm(NoRatio(), NoClip(), GroupTokenMean()), *batch(groups))[0]
    assert both == pytest.approx(expected["mean_of_groups"], abs=TOLERANCE)
    overall = run(algorithm(NoRatio(), NoClip(), TokenMean()), *batch(groups))[0]
    assert overall == pytest.approx(expected["global_token_mean"], abs=TOLERANCE)
    assert both != pytest.approx(overall, abs=1e-2)
