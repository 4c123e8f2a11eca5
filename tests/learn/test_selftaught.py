"""The divergence to the told teacher: nothing where nothing is told, no gradient into the teacher, one loss however packed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from strop.core.algorithm import Algorithm, Divergence, NoClip, NoRatio, Observations, TokenMean, Zero
from strop.core.metrics import values
from strop.core.trajectory import Row, Twin
from strop.learn.learner import LocalLearner
from strop.learn.pack import count, pack
from strop.learn.schedule import Optimisation
from strop.learn.selftaught import pack_twins, twin_divergence
from strop.model.attention import RowsLayout
from strop.model.divergence import divergence_of, log_distribution
from strop.model.policy import Policy
from tests.learn.rows import equal, gradient, some_rows, tiny_policy, weights, with_some_twins

KINDS = ("forward", "reverse", "jsd")
CPU = torch.device("cpu")


def rule(kind: str = "forward", **options: str) -> Algorithm:
    term = Divergence(1.0, kind, teacher="self", **options)  # type: ignore[arg-type]
    return Algorithm(Zero(), NoRatio(), NoClip(), TokenMean(), "test", terms=(term,))


def learner_of(policy: Policy, kind: str = "forward", **settings: float) -> LocalLearner:
    learner = LocalLearner(policy, 1.0, 0)
    learner.begin(rule(kind), Optimisation(**settings), 10)  # type: ignore[arg-type]
    return learner


def untold(rows: Sequence[Row]) -> list[Row]:
    """Each row with itself as its twin: the empty solution."""
    return [replace(row, twin=Twin(row.tokens, row.sampled)) for row in rows]


# --- nothing told, nothing learned


@pytest.mark.parametrize("kind", KINDS)
def test_with_an_empty_solution_and_equal_weights_the_loss_is_exactly_0_and_so_is_its_gradient(kind: str) -> None:
    """The gradient is p_S - p_T or p_S times 0: what is left of it is the rounding of a sum of probabilities to 1.

    jsd goes by a mixture, whose logarithm is rounded: there the loss too is 0 but for that.
    """
    policy = tiny_policy()
    rows = some_rows(policy)
    none, said = gradient(learner_of(policy, kind), untold(rows))
    some, told = gradient(learner_of(policy, kind), with_some_twins(rows))
    assert said["teacher_divergence"] == (pytest.approx(0.0, abs=1e-8) if kind == "jsd" else 0.0)
    assert none.norm() < 1e-6 * some.norm()
    assert told["teacher_divergence"] is not None and told["teacher_divergence"] > 1e-3  # the comparison's control


def test_with_an_empty_solution_the_divergence_is_0_at_every_token_and_of_other_weights_at_none() -> None:
    policy, other = tiny_policy(), tiny_policy(seed=1)
    [micro] = pack(untold(some_rows(policy)), 10_000, None, CPU)
    hidden = policy.hidden(micro.ids, micro.positions, micro.layout)[micro.predictors]
    same, _, taught = twin_divergence((policy, policy), micro, hidden, 1.0, Divergence(1.0, "forward", teacher="self"))
    away, _, _ = twin_divergence((policy, other), micro, hidden, 1.0, Divergence(1.0, "forward", teacher="self"))
    assert taught.all()
    assert not same.any()
    assert (away > 0).all()


# --- where targets stand


def test_each_sampled_token_is_held_against_its_own_partner_row_by_row() -> None:
    """A pack against every row alone, and against targets that stand one token late."""
    policy, other = tiny_policy(), tiny_policy(seed=1)
    term = Divergence(1.0, "reverse", teacher="self")
    rows = with_some_twins(some_rows(policy))
    [micro] = pack(rows, 10_000, None, CPU)
    hidden = policy.hidden(micro.ids, micro.positions, micro.layout)[micro.predictors]
    found, _, taught = twin_divergence((policy, other), micro, hidden, 0.7, term)
    assert 0 < taught.sum() < len(taught)

    def alone(who: Policy, ids: np.ndarray, sampled: np.ndarray, late: int) -> torch.Tensor:
        told = torch.as_tensor(ids.astype(np.int64))
        states = who.hidden(told, torch.arange(len(ids)), RowsLayout([len(ids)], CPU))
        places = torch.as_tensor(np.flatnonzero(sampled) - 1 + late)
        return log_distribution(who, states[places], 0.7)

    def expected(row: Row, late: int) -> torch.Tensor:
        if row.twin is None:
            return torch.zeros(row.trained)
        student = alone(policy, row.tokens, row.sampled, 0)
        return divergence_of("reverse", student, alone(other, row.twin.tokens, row.twin.sampled, late))

    for late, close in ((0, True), (1, False)):
        whole = torch.cat([expected(row, late) for row in micro.rows])
        assert torch.allclose(found, whole, atol=1e-6) == close
    told = torch.cat([torch.full((row.trained,), row.twin is not None) for row in micro.rows])
    assert torch.equal(taught, told)


def test_twins_of_other_ids_never_reach_the_loss() -> None:
    policy = tiny_policy()
    [micro] = pack(untold(some_rows(policy)), 10_000, None, CPU)
    hidden = policy.hidden(micro.ids, micro.positions, micro.layout)[micro.predictors]
    crossed = replace(micro, rows=micro.rows[::-1])  # the rows of the pack in another order than its tokens
    with pytest.raises((RuntimeError, IndexError)):
        twin_divergence((policy, policy), crossed, hidden, 1.0, Divergence(1.0, "forward", teacher="self"))


def test_rows_without_a_twin_are_outside_of_the_mean_and_a_batch_of_them_gives_no_term() -> None:
    policy = tiny_policy()
    rows = with_some_twins(some_rows(policy))
    told = [row for row in rows if row.twin is not None]
    assert len(told) < len(rows)
    assert count(rows, False).taught == sum(row.trained for row in told) < count(rows, False).tokens
    one, said = gradient(learner_of(policy), rows)
    other, same = gradient(learner_of(policy), told)
    assert (one - other).norm() < 1e-6 * other.norm()
    assert said["teacher_divergence"] == pytest.approx(same["teacher_divergence"], rel=1e-6)
    none, said = gradient(learner_of(policy), [replace(row, twin=None) for row in rows])
    assert not none.any()
    assert said["teacher_divergence"] is None


def test_a_batch_with_observations_has_its_targets_at_sampled_tokens_only() -> None:
    policy = tiny_policy()
    rows = with_some_twins(some_rows(policy))
    [micro] = pack(rows, 10_000, Observations(1.0), CPU)
    twins = pack_twins(micro)
    assert twins is not None
    assert not (twins.taught & ~micro.sampled).any()
    assert torch.equal(micro.targets[twins.taught], twins.targets)


# --- packing


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_does_not_depend_on_micro_batches_or_on_the_order_of_rows(kind: str) -> None:
    policy = tiny_policy()
    rows = with_some_twins(some_rows(policy, groups=4, members=3))
    whole, said = gradient(learner_of(policy, kind), rows)
    for budget in (1, 20, 45):
        assert len(pack(rows, budget, None, CPU)) > 1
        for order in (rows, rows[::-1]):
            split, same = gradient(learner_of(policy, kind, token_budget=budget), order)
            assert (split - whole).norm() < 1e-5 * whole.norm()
            assert same["teacher_divergence"] == pytest.approx(said["teacher_divergence"], rel=1e-6)
    moved, _ = gradient(learner_of(policy, kind), rows[1:])  # the comparison's control
    assert (moved - whole).norm() > 1e-2 * whole.norm()


# --- the teacher


def test_the_teacher_gets_no_gradient_and_never_changes_while_the_student_does() -> None:
    policy = tiny_policy()
    learner = learner_of(policy, lr=0.01)
    teacher = learner.models.reference
    assert teacher is not None
    first, own = weights(teacher), weights(policy)
    assert equal(first, own)
    rows = with_some_twins(some_rows(policy))
    said = [values(learner.step(rows).metrics)["teacher_divergence"] for _ in range(5)]
    assert equal(weights(teacher), first)
    assert all(p.grad is None and not p.requires_grad for p in teacher.model.parameters())
    assert not equal(weights(policy), own)
    assert said[0] is not None and said[-1] is not None and said[-1] < said[0]


def test_a_stage_begins_with_the_policy_of_its_start_as_teacher() -> None:
    policy = tiny_policy()
    learner = learner_of(policy, lr=0.01)
    learner.step(with_some_twins(some_rows(policy)))
    learner.begin(rule(), Optimisation(), 1)
    assert learner.models.reference is not None
    assert equal(weights(learner.models.reference), weights(policy))
