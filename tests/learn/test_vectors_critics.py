"""Where the gradients of value and policy go in a real model, for each way to make a critic.

The numbers of critic.{separate,stopgrad,shared} are those of a model with one weight (tests/objective/test_vectors_terms.py);
what they stand for is checked here on every weight of a tiny transformer: exactly nothing reaches what it must not reach.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from strop.core.algorithm import GAE, Critic
from strop.core.trajectory import Row
from strop.learn.annotate import columns_of, forward
from strop.learn.learner import LocalLearner
from strop.learn.pack import count, pack
from strop.learn.schedule import Optimisation
from strop.learn.values import ValueNet
from strop.objective.objective import Moment, loss
from tests.learn.rows import learner_of, some_rows, tiny_policy, waken
from tests.objective.batches import TABLE

KINDS = ("separate", "stopgrad", "shared")
Grads = dict[str, list[torch.Tensor]]


def critic_of(kind: Any, trained_head: bool = True) -> LocalLearner:
    """A learner with a critic; a head of zeros would pass nothing back whatever stands behind it."""
    learner = LocalLearner(tiny_policy(), 1.0, 0)
    learner.begin(replace(TABLE["ppo"], credit=GAE(critic=Critic(kind))), Optimisation(token_budget=10_000), 1)
    if trained_head:
        waken(learner)
    return learner


def taught(rows: Sequence[Row], target: float) -> list[Row]:
    """Rows with values of before the step and with targets (NaN for none) at their sampled tokens."""

    def column(row: Row, number: float) -> np.ndarray:
        return np.where(row.sampled, number, np.nan).astype(np.float32)

    return [row.with_columns(value=column(row, 0.0), value_target=column(row, target)) for row in rows]


def gradients(learner: LocalLearner, rows: Sequence[Row], policy: bool) -> Grads:
    """Gradients of the production loss in the policy's weights, the critic's head, and a body of its own."""
    assert learner.algorithm is not None
    net = learner.models.critic
    assert net is not None
    [micro] = pack(rows, 10_000, None, learner.policy.device)
    out = forward(learner.models, micro, learner.wanted, 1.0)
    columns = columns_of(micro, out, learner.algorithm)
    value, _ = loss(learner.algorithm, columns, count(rows, False), Moment(policy=policy))
    body = [] if net.body is None else list(net.body.model.base_model.parameters())
    named = {"policy": list(learner.policy.model.parameters()), "head": list(net.head.parameters()), "body": body}
    flat = torch.autograd.grad(value, [p for group in named.values() for p in group], allow_unused=True)
    found = iter(flat)
    return {
        name: [torch.zeros_like(p) if g is None else g for p, g in ((p, next(found)) for p in group)]
        for name, group in named.items()
    }


def reached(grads: Sequence[torch.Tensor]) -> tuple[bool, bool]:
    """Whether any weight, and whether every tensor of weights, gets a gradient."""
    touched = [bool(g.any()) for g in grads]
    return any(touched), all(touched)


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_loss_reaches_the_weights_that_its_kind_names_and_no_other(kind: str) -> None:
    learner = critic_of(kind)
    grads = gradients(learner, taught(some_rows(learner.policy), 1.0), policy=False)
    assert reached(grads["policy"]) == ((True, True) if kind == "shared" else (False, False))
    assert reached(grads["head"]) == (True, True)
    assert bool(grads["body"]) == (kind == "separate")
    assert reached(grads["body"])[0] == (kind == "separate")


@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_loss_never_reaches_the_critic(kind: str) -> None:
    learner = critic_of(kind)
    rows = some_rows(learner.policy)
    without = gradients(learner, taught(rows, np.nan), policy=True)
    assert reached(without["policy"])[0]
    assert not reached(without["head"])[0]
    assert not reached(without["body"])[0]
    # and together they are the sum: nothing is weighed by how the other one goes
    value, both = (gradients(learner, taught(rows, 1.0), policy=p) for p in (False, True))
    for name in ("policy", "head", "body"):
        for a, b, c in zip(without[name], value[name], both[name], strict=True):
            assert torch.allclose(a + b, c, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(a, c) for a, c in zip(without["policy"], both["policy"], strict=True)) == (kind != "shared")


def test_a_new_head_says_0_of_everything_and_passes_nothing_back_at_first() -> None:
    for kind in KINDS:
        learner = critic_of(kind, trained_head=False)
        rows = learner.annotate(some_rows(learner.policy), ["value"])
        assert all((row.columns["value"][row.sampled] == 0).all() for row in rows)
        grads = gradients(learner, taught(rows, 1.0), policy=False)
        assert not reached(grads["policy"])[0]
        assert reached(grads["head"])[0]
        warm = critic_of(kind).annotate(some_rows(learner.policy), ["value"])
        assert all((row.columns["value"][row.sampled] != 0).any() for row in warm)


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_has_seen_the_history_and_not_its_token_and_a_process_score_has_seen_both(kind: str) -> None:
    learner = critic_of(kind)
    learner.models.process = ValueNet(learner.policy, "separate")
    with torch.no_grad():
        learner.models.process.head.weight.fill_(0.3)
    row = some_rows(learner.policy)[0]
    at = int(np.flatnonzero(row.sampled)[-2])
    tokens = row.tokens.copy()
    tokens[at] = (tokens[at] + 1) % learner.policy.vocabulary
    before, after = learner.annotate([row, replace(row, tokens=tokens)], ["value", "process"])
    values, scores = ([r.columns[name][row.sampled] for r in (before, after)] for name in ("value", "process"))
    changed = [not np.isclose(a, b, atol=1e-6) for a, b in zip(*values, strict=True)]
    moved = [not np.isclose(a, b, atol=1e-6) for a, b in zip(*scores, strict=True)]
    n = int(row.sampled.sum())
    assert changed == [False] * (n - 1) + [True]  # the last token's value has seen the one that was changed
    assert moved == [False] * (n - 2) + [True, True]  # a score stands at the token itself


def test_process_labels_train_their_own_model_alone() -> None:
    learner = learner_of(tiny_policy(), TABLE["process_reward"], token_budget=10_000)
    net = learner.models.process
    assert learner.algorithm is not None
    assert net is not None
    assert net.body is not None
    rows = [
        row.with_columns(process_label=np.where(row.sampled, 1.0, np.nan).astype(np.float32))
        for row in some_rows(learner.policy)
    ]
    [micro] = pack(rows, 10_000, None, learner.policy.device)
    columns = columns_of(micro, forward(learner.models, micro, learner.wanted, 1.0), learner.algorithm)
    value, _ = loss(learner.algorithm, columns, count(rows, False), learner._moment())
    value.backward()
    assert all(p.grad is None or not p.grad.any() for p in learner.policy.model.parameters())
    assert all(p.grad is not None and p.grad.any() for p in net.head.parameters())
    assert any(p.grad is not None and p.grad.any() for p in net.body.model.base_model.parameters())
