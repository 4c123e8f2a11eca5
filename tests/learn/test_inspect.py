"""An update is looked at before it is applied: what stands out is named, and is left out or bounded exactly."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.core.algorithm import Algorithm, Entropy, NoClip, TrajectoryRatio, Truncate, WeightClip
from strop.core.guard import EffectiveBelow, GradientAbove, OnUpdate, ShareAbove, Trip, WeightAbove
from strop.core.metrics import values
from strop.core.trajectory import Origin, Row
from strop.learn.inspect import MEMORY, Carried, Inspection, applies, capped, inspect, jumped, remembered, shares
from strop.learn.learner import LocalLearner
from tests.learn.rows import equal, fresh, gradient, learner_of, some_rows, tiny_policy, weights
from tests.objective.batches import TABLE

FREE = replace(TABLE["grpo"], clip=NoClip())
"""Token ratios without a clip: nothing but the guard stands between a weight and the weights."""
PLACE = 4
"""The row that is tampered with: group 2, member 0."""


def planted(algorithm: Algorithm = FREE, factor: float = 1e4, groups: int = 5) -> tuple[LocalLearner, list[Row], int]:
    """A learner, fresh rows, and the place of a token of one of them that counts `factor` times."""
    policy = tiny_policy()
    learner = learner_of(policy, algorithm, planned=20, lr=0.01)
    rows = fresh(learner, some_rows(policy, groups=groups, members=2))
    index = next(i for i, row in enumerate(rows) if row.origin == Origin("train-000002", 0))
    place = int(np.flatnonzero(rows[index].sampled)[1])
    logp = rows[index].behaviour_logp.copy()
    logp[place] -= math.log(factor)
    rows[index] = replace(rows[index], behaviour_logp=logp)
    return learner, rows, place


def snapshot(learner: LocalLearner) -> list[torch.Tensor]:
    tensors = [t for group in learner.state()["tensors"].values() for t in group.values()]
    return [*weights(learner.policy), *(t.clone() for t in tensors)]


# --- weights


def test_a_token_with_a_weight_of_ten_thousand_is_left_out_and_named() -> None:
    learner, _, _ = planted()
    learner.rules = (WeightAbove(1000.0, "skip"),)
    clean = fresh(learner, some_rows(learner.policy, groups=5))
    assert learner.step(clean).updates == 1  # so that the optimizer has a state to lose
    behind = fresh(learner, some_rows(learner.policy, groups=5))
    row = replace(behind[PLACE], behaviour_logp=behind[PLACE].behaviour_logp.copy())
    place = int(np.flatnonzero(row.sampled)[1])
    row.behaviour_logp[place] -= math.log(1e4)
    before = snapshot(learner)
    report = learner.step([*behind[:PLACE], row, *behind[PLACE + 1 :]])
    assert (report.updates, dict(report.skipped)) == (0, {"guard_ratio": 1})
    assert equal(before, snapshot(learner))
    assert learner.update == 2  # a skipped update is an update of the schedule
    assert all(p.grad is None for p in learner.parameters)
    [trip] = report.trips
    assert (trip.rule, trip.action, trip.origin, trip.position) == ("ratio", "skip", row.origin, place)
    assert trip.value == pytest.approx(1e4, rel=1e-3)
    assert row.origin.group in trip.sentence
    assert learner.step(behind).updates == 1  # the control: the same rows without it
    assert not equal(before, snapshot(learner))


def test_without_the_rule_the_token_is_the_update() -> None:
    """Negative control: the gradient is that of the one row, and the weights move."""
    learner, rows, _ = planted()
    before = weights(learner.policy)
    assert (learner.step(rows).updates, learner.step(rows).trips) == (1, ())
    assert not equal(before, weights(learner.policy))
    learner, rows, _ = planted()
    whole, _ = gradient(learner, rows)
    learner, rows, _ = planted()
    [own] = [row for row in rows if row.origin == Origin("train-000002", 0)]
    alone, _ = gradient(learner, [own])
    assert torch.cosine_similarity(whole, alone, dim=0) > 0.99


@pytest.mark.parametrize("action", ["note", "skip", "stop", "rollback"])
def test_only_a_note_lets_an_update_pass(action: str) -> None:
    learner, rows, _ = planted()
    learner.rules = (WeightAbove(1000.0, action),)  # type: ignore[arg-type]
    report = learner.step(rows)
    assert report.updates == (action == "note")
    assert [trip.action for trip in report.trips] == [action]


def test_what_a_clip_bounds_does_not_trip() -> None:
    """PPO takes the token's gradient where it is good already, a weight clip bounds its weight, a correction truncates."""
    for sign in (1.0, -1.0):
        learner, rows, _ = planted(TABLE["grpo"])
        learner.rules = (WeightAbove(1000.0),)
        rows = [row.with_columns(advantage=np.where(row.sampled, sign, 0).astype(np.float32)) for row in rows]
        assert len(learner.step(rows).trips) == (sign < 0)
    learner, rows, _ = planted(replace(FREE, clip=WeightClip(high=5.0)))
    learner.rules = (WeightAbove(4.9),)
    [trip] = learner.step(rows).trips
    assert trip.value == 5.0


def test_a_weight_of_a_correction_is_looked_at_as_it_is_used() -> None:
    learner, rows, _ = planted(replace(FREE, correction=Truncate()))
    learner.rules = (WeightAbove(1000.0),)
    assert learner.step(rows).trips == ()  # the ratio is around the proximal policy, and it is 1
    learner, rows, _ = planted(replace(FREE, correction=Truncate()))
    learner.rules = (WeightAbove(1000.0),)
    heavy = [row.with_columns(correction=row.columns["correction"] * 5000) for row in rows]
    [trip] = learner.step(heavy).trips
    assert 2400 < trip.value < 7600


def test_the_weight_is_that_of_the_unit() -> None:
    """Every token of the trajectory carries the product, the heaviest token's own ratio is a hundredth of it."""
    policy = tiny_policy()
    algorithm = replace(FREE, ratio=TrajectoryRatio())
    learner = learner_of(policy, algorithm)
    rows = fresh(learner, some_rows(policy, groups=5, members=1))
    logp = rows[2].behaviour_logp.copy()
    logp[np.flatnonzero(rows[2].sampled)[:2]] -= math.log(100.0)
    rows[2] = replace(rows[2], behaviour_logp=logp)
    learner.rules = (WeightAbove(1.0),)
    [trip] = learner.step(rows).trips
    assert trip.value == pytest.approx(1e4, rel=1e-3)
    assert trip.origin == rows[2].origin


def test_few_effective_tokens_trip_and_equal_weights_do_not() -> None:
    learner, rows, place = planted()
    learner.rules = (EffectiveBelow(0.1, "skip"),)
    report = learner.step(rows)
    assert dict(report.skipped) == {"guard_ess": 1}
    n = sum(row.trained for row in rows)
    assert report.trips[0].value == pytest.approx(1 / n, rel=0.1)
    assert report.trips[0].position == place
    learner, rows, _ = planted(factor=1.0)
    learner.rules = (EffectiveBelow(0.1, "skip"),)
    assert learner.step(rows).trips == ()


# --- shares


def test_a_trajectory_with_too_large_a_share_is_capped_to_just_the_limit_and_named() -> None:
    learner, rows, place = planted()
    learner.rules = (ShareAbove(0.5, "cap"),)
    report = learner.step(rows)
    [trip] = report.trips
    assert (trip.rule, trip.action, trip.position) == ("share", "cap", place)
    assert trip.origin == Origin("train-000002", 0)
    assert trip.value > 0.9
    assert (report.updates, dict(report.skipped)) == (1, {})
    pulls = {row.origin: float(np.nansum(np.abs(row.columns["weight"]))) for row in learner.traced(rows)}
    assert pulls[trip.origin] / sum(pulls.values()) == pytest.approx(0.5, abs=1e-5)


def test_a_capped_update_is_the_update_with_a_scaled_advantage() -> None:
    """The same step from rows whose advantage was scaled by hand; without the cap it is another one."""
    mine = Origin("train-000002", 0)

    def pull(learner: LocalLearner, rows: list[Row]) -> float:
        return float(sum(np.nansum(np.abs(r.columns["weight"])) for r in learner.traced(rows) if r.origin == mine))

    learner, rows, _ = planted()
    learner.rules = (ShareAbove(0.5, "cap"),)
    found, _ = gradient(learner, rows)
    plain, rows, _ = planted()
    uncapped, _ = gradient(plain, rows)
    factor = np.float32(pull(learner, rows) / pull(plain, rows))
    by_hand = [
        row.with_columns(advantage=row.columns["advantage"] * factor) if row.origin == mine else row for row in rows
    ]
    wanted, _ = gradient(planted()[0], by_hand)
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-8)
    assert (found - uncapped).norm() > 10 * found.norm()


def test_a_sound_batch_is_neither_capped_nor_changed() -> None:
    """Rules that trip on nothing: weights, optimizer and metrics of a run without rules, bit for bit."""
    everything: tuple[OnUpdate, ...] = (
        WeightAbove(1000.0, "skip"),
        EffectiveBelow(0.05, "skip"),
        GradientAbove(1000.0, "skip"),
        ShareAbove(0.5, "cap"),
    )
    taken: list[list[torch.Tensor]] = []
    for rules in ((), everything):
        learner, rows, _ = planted(replace(FREE, terms=(Entropy(0.05),)), factor=1.0)
        learner.rules = rules
        reports = [learner.step(rows) for _ in range(12)]
        assert all(report.updates == 1 and report.trips == () for report in reports)
        assert ("guard_share" in reports[-1].metrics, "guard_gradient" in reports[-1].metrics) == (bool(rules),) * 2
        taken.append(snapshot(learner))
    assert equal(*taken)


def test_a_share_says_nothing_where_there_are_too_few_to_share() -> None:
    many = {(f"g{i}", j): 1.0 for i in range(4) for j in range(4)}
    assert applies(many, 0.5)
    assert applies(many, 0.25)
    assert not applies(many, 0.2)  # 16 trajectories are less than four times 5
    assert not applies({key: c for key, c in many.items() if key[0] in ("g0", "g1")}, 0.5)  # two groups
    learner, rows, _ = planted(groups=3)  # six trajectories
    learner.rules = (ShareAbove(0.5, "cap"),)
    report = learner.step(rows)
    assert (report.trips, "guard_share" in report.metrics) == ((), False)


def test_the_one_winner_of_a_group_is_not_too_much() -> None:
    """Credit within a group sums to 0, so that a winner among losers carries half of its group, and an even part of three."""
    carrying = {(f"g{i}", j): 7.0 if j == 0 else 1.0 for i in range(3) for j in range(8)}
    assert inspect((ShareAbove(0.5),), tokens_of(carrying)).trips == ()
    assert len(inspect((ShareAbove(0.15),), tokens_of(carrying)).trips) == 0  # 24 trajectories do not support 0.15
    assert len(inspect((ShareAbove(0.1667),), tokens_of({**carrying, ("g0", 0): 7.1})).trips) == 1


def tokens_of(carrying: dict[tuple[str, int], float]) -> Carried:
    """One token a trajectory."""
    n = len(carrying)
    origins = tuple(Origin(group, member) for group, member in carrying)
    return Carried(np.array(list(carrying.values())), np.full(n, np.nan), np.arange(n), np.ones(n, np.int64), origins)


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=8, max_size=40), st.sampled_from([0.5, 0.3, 0.2]))
def test_after_a_cap_nobody_carries_more_than_the_limit_and_who_was_scaled_carries_just_that(
    pulls: Sequence[float], limit: float
) -> None:
    carrying = {(f"g{i}", 0): pull for i, pull in enumerate(pulls)}
    if not applies(carrying, limit):
        return
    factors = capped(carrying, limit)
    now = {name: pull * factors.get(name, 1.0) for name, pull in carrying.items()}
    total = math.fsum(now.values())
    assert max(now.values()) <= limit * total * (1 + 1e-9)
    assert all(0 < f <= 1 and now[name] == pytest.approx(limit * total, rel=1e-6) for name, f in factors.items())
    assert bool(factors) == (max(pulls) > limit * math.fsum(pulls)) or max(pulls) == pytest.approx(
        limit * math.fsum(pulls)
    )


def test_rows_of_one_trajectory_are_one_share() -> None:
    origins = (Origin("a", 0, 0), Origin("a", 0, 1), Origin("a", 1), Origin("b", 0))
    tokens = Carried(np.array([1.0, 2.0, 0.0, 4.0]), np.ones(4), np.arange(4), np.ones(4, np.int64), origins)
    assert shares(tokens) == {("a", 0): 3.0, ("b", 0): 4.0}


def test_the_cut_into_micro_batches_does_not_change_what_is_seen() -> None:
    found: list[tuple[Trip, ...]] = []
    for budget in (16384, 20):
        learner, rows, _ = planted()
        learner.settings = replace(learner.settings, token_budget=budget)
        learner.rules = (WeightAbove(1000.0), ShareAbove(0.5, "cap"))
        found.append(learner.step(rows).trips)
    assert [t.rule for t in found[0]] == ["ratio", "share"]
    for whole, cut in zip(*found, strict=True):
        assert (whole.origin, whole.position) == (cut.origin, cut.position)
        assert whole.value == pytest.approx(cut.value, rel=1e-4)


# --- gradients


def test_a_gradient_far_above_the_median_is_left_out_and_a_lasting_change_becomes_the_measure() -> None:
    rule = GradientAbove(5.0, "skip")
    norms: list[float] = []
    refused: list[int] = []
    for number, norm in enumerate([1.0] * 20 + [6.0] + [1.0] * 5 + [6.0] * 40):
        found = jumped((rule,), norm, norms, 0)
        norms = remembered(norms, norm)
        refused += [number] * (found.refused == "guard_gradient")
    assert refused[0] == 20
    assert 26 in refused
    assert 60 not in refused  # half of the memory has the new norm
    assert len(norms) == MEMORY
    assert jumped((rule,), 4.9, [1.0] * 8, 0).refused is None
    assert jumped((rule,), 100.0, [1.0] * 7, 0) == Inspection((), {}, {})  # too few are known


def test_a_learner_leaves_a_jump_out_and_its_memory_of_norms_is_part_of_its_state() -> None:
    learner, rows, _ = planted(factor=1.0)
    learner.rules = (GradientAbove(50.0, "skip"),)
    loud = [row.with_columns(advantage=row.columns["advantage"] * 100) for row in rows]
    for _ in range(8):
        assert learner.step(rows).updates == 1
    kept = learner.state()
    assert len(kept["counters"]["norms"]) == 8
    before = snapshot(learner)
    report = learner.step(loud)
    assert (dict(report.skipped), report.trips[0].rule) == ({"guard_gradient": 1}, "gradient")
    assert equal(before, snapshot(learner))
    assert values(report.metrics)["guard_gradient"] == report.trips[0].value
    other, _, _ = planted(factor=1.0)
    other.rules = learner.rules
    other.restore(kept["counters"], kept["tensors"])
    other.policy.model.load_state_dict(learner.policy.model.state_dict())
    assert other.step(loud).trips == report.trips
    forgetful, _, _ = planted(factor=1.0)
    forgetful.rules = learner.rules
    forgetful.policy.model.load_state_dict(learner.policy.model.state_dict())
    assert forgetful.step(loud).trips == ()


def test_a_step_that_teaches_nothing_is_not_what_is_usual() -> None:
    assert remembered([2.0], 0.0) == [2.0]
    assert remembered([2.0], 1.0) == [2.0, 1.0]


def test_the_number_of_the_update_is_told() -> None:
    learner, rows, _ = planted()
    learner.settings = replace(learner.settings, minibatches=5, epochs=2)
    learner.rules = (WeightAbove(1000.0, "skip"),)
    report = learner.step(rows)
    assert report.skipped == {"guard_ratio": 2}
    first, second = (trip.update for trip in report.trips)
    assert 0 <= first < 5 <= second < 10
