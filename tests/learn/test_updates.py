"""Updates: nothing broken enters the weights, minibatches are whole, small steps survive, a restored learner goes on."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from strop.core.algorithm import KL, Algorithm, Critic, Entropy, EntropyTarget
from strop.core.metrics import values
from strop.core.trajectory import Row
from strop.learn.learner import LocalLearner
from strop.learn.schedule import Optimisation, learning_rate
from tests.learn.rows import ALGORITHMS, equal, fresh, gradient, learner_of, some_rows, tiny_policy, weights
from tests.objective.batches import TABLE

# --- nothing broken enters the weights


def snapshot(learner: LocalLearner) -> list[torch.Tensor]:
    """Weights and every tensor of the optimizer."""
    state = learner.state()["tensors"]
    return [t.clone() for t in (*weights(learner.policy), *(t for group in state.values() for t in group.values()))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_in_one_row_leaves_weights_and_optimizer_as_they_were(
    value: float, dtype: str
) -> None:
    policy = tiny_policy(dtype=dtype)
    learner = learner_of(policy, TABLE["grpo"], planned=4, lr=0.01, token_budget=40)
    rows = fresh(learner, some_rows(policy))
    assert learner.step(rows).updates == 1
    before = snapshot(learner)
    bad = rows[2].columns["advantage"].copy()
    bad[np.flatnonzero(rows[2].sampled)[0]] = value
    report = learner.step([*rows[:2], rows[2].with_columns(advantage=bad), *rows[3:]])
    assert (report.updates, dict(report.skipped)) == (0, {"non-finite": 1})
    assert equal(before, snapshot(learner))
    assert learner.update == 2  # a skipped update is an update of the schedule
    assert all(m.grad is None for m in (*learner.masters, *learner.parameters))
    assert learner.step(rows).updates == 1
    assert not equal(before, snapshot(learner))


def test_a_batch_without_a_trained_token_changes_nothing_and_says_so() -> None:
    policy = tiny_policy()
    for rule in ALGORITHMS.values():
        learner = learner_of(policy, rule, planned=4, lr=0.01)
        rows = [replace(row, sampled=np.zeros(len(row), np.bool_)) for row in some_rows(policy)]
        before = snapshot(learner)
        for batch in (rows, []):
            report = learner.step(batch)
            assert (report.updates, dict(report.skipped)) == (0, {"nothing to train": 1})
            assert not any(v is not None and math.isnan(v) for v in values(report.metrics).values())
        assert equal(before, snapshot(learner))
        assert learner.step(fresh(learner, some_rows(policy))).updates == 1


def test_rows_without_a_trained_token_beside_others_count_for_nothing() -> None:
    policy = tiny_policy()
    rows = fresh(learner_of(policy, TABLE["grpo"]), some_rows(policy), noise=0.3)
    empty = replace(rows[0], sampled=np.zeros(len(rows[0]), np.bool_), origin=replace(rows[0].origin, member=9))
    whole, metrics = gradient(learner_of(policy, TABLE["grpo"]), rows)
    padded, same = gradient(learner_of(policy, TABLE["grpo"]), [*rows, empty])
    assert torch.equal(whole, padded)
    assert same == metrics


def test_a_row_that_starts_with_a_sampled_token_is_refused() -> None:
    policy = tiny_policy()
    [row] = some_rows(policy, groups=1, members=1)
    with pytest.raises(ValueError, match="starts with a sampled token"):
        learner_of(policy, TABLE["sft"]).step([replace(row, sampled=np.ones(len(row), np.bool_))])


def test_the_gradient_is_cut_to_its_largest_norm() -> None:
    for cut in (0.0, 0.05):
        policy = tiny_policy()
        learner = learner_of(policy, TABLE["rloo"], clip_norm=cut, lr=0.0)
        found = values(learner.step(fresh(learner, some_rows(policy))).metrics)["gradient_norm"]
        first = [m for name, m in learner.state()["tensors"]["optimizer"].items() if name.endswith(".exp_avg")]
        taken = torch.cat([m.flatten() for m in first]).norm().item() / 0.1  # Adam keeps a tenth of the first gradient
        assert found > 0.5
        assert taken == pytest.approx(cut or found, rel=1e-5)


# --- minibatches


def dealt(monkeypatch: pytest.MonkeyPatch, **settings: int) -> tuple[list[Row], list[list[Row]], LocalLearner]:
    """The rows of a step and the minibatches that its updates saw."""
    policy = tiny_policy()
    learner = learner_of(policy, TABLE["grpo"], planned=9, **settings)
    rows = some_rows(policy, groups=7)
    seen: list[list[Row]] = []
    right = LocalLearner._update

    def watch(self: LocalLearner, batch: Sequence[Row]) -> Any:
        seen.append(list(batch))
        return right(self, batch)

    fresh_rows = fresh(learner, rows)
    with monkeypatch.context() as patch:
        patch.setattr(LocalLearner, "_update", watch)
        report = learner.step(fresh_rows)
    assert report.updates == len(seen)
    return rows, seen, learner


def check_minibatches(rows: list[Row], seen: list[list[Row]], minibatches: int) -> None:
    """Every pass has every row once, and no group is in two minibatches."""
    origins = sorted((row.origin.group, row.origin.member, row.origin.part) for row in rows)
    assert len(seen) % minibatches == 0
    for start in range(0, len(seen), minibatches):
        one_pass = seen[start : start + minibatches]
        found = [(r.origin.group, r.origin.member, r.origin.part) for batch in one_pass for r in batch]
        assert sorted(found) == origins
        groups = [{r.origin.group for r in batch} for batch in one_pass]
        assert sum(map(len, groups)) == len(set().union(*groups)) == 7
        assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_minibatches_are_whole_groups_and_cover_every_row_once_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, seen, learner = dealt(monkeypatch, minibatches=3, epochs=2)
    check_minibatches(rows, seen, 3)
    orders = [[r.origin.group for batch in seen[i : i + 3] for r in batch] for i in (0, 3)]
    assert orders[0] != orders[1]
    assert learner.update == 6
    again = dealt(monkeypatch, minibatches=3, epochs=2)[1]
    assert [[r.origin for r in batch] for batch in again] == [[r.origin for r in batch] for batch in seen]


def test_minibatches_that_tear_groups_or_lose_rows_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(self: LocalLearner, rows: Sequence[Row], epoch: int) -> list[list[Row]]:
        return [list(rows[k::3]) for k in range(3)]

    monkeypatch.setattr(LocalLearner, "_minibatches", torn)
    rows, seen, _ = dealt(monkeypatch, minibatches=3)
    with pytest.raises(AssertionError):
        check_minibatches(rows, seen, 3)


# --- schedule


def test_the_learning_rate_rises_over_the_warmup_and_falls_to_its_end() -> None:
    settings = Optimisation(lr=1.0, lr_end=0.1, warmup=2)
    found = [learning_rate(settings, update, 6) for update in range(8)]
    assert found == pytest.approx([0.5, 1.0, 1.0, 0.7, 0.4, 0.1, 0.1, 0.1], abs=1e-12)
    flat = Optimisation(lr=0.5, lr_end=1.0)
    assert [learning_rate(flat, update, 4) for update in range(5)] == [0.5] * 5
    assert learning_rate(Optimisation(lr=1.0), 0, 1) == 1.0
    assert [learning_rate(Optimisation(lr=1.0, lr_end=0.0), u, 3) for u in range(3)] == [1.0, 0.5, 0.0]


def test_the_scheduled_rate_is_the_one_that_is_applied() -> None:
    policy = tiny_policy()
    learner = learner_of(policy, TABLE["rloo"], planned=3, lr=0.01, lr_end=0.1, warmup=1)
    rows = fresh(learner, some_rows(policy))
    for update in range(3):
        before = weights(policy)
        report = learner.step(rows)
        largest = max((a - b).abs().max().item() for a, b in zip(before, weights(policy), strict=True))
        rate = (0.01, 0.01, 0.001)[update]
        assert values(report.metrics)["learning_rate"] == pytest.approx(rate)
        assert 0.5 * rate < largest < 1.5 * rate  # Adam moves a weight by about the rate


# --- precision


def test_small_updates_survive_in_the_masters_of_a_bf16_model() -> None:
    policy = tiny_policy(dtype="bfloat16")
    learner = learner_of(policy, TABLE["rloo"], lr=1e-6, lr_end=1.0)
    names = [name for name, _ in policy.model.named_parameters()]
    which = next(i for i, name in enumerate(names) if name.endswith("norm.weight"))
    assert bool((learner.parameters[which] == 1).all())
    naive = torch.ones(4, dtype=torch.bfloat16)  # the fault: the optimizer works on the weight itself
    for _ in range(1000):
        for master in learner.masters:
            master.grad = torch.ones_like(master)
        learner._apply([0.0], 1e-6)
        naive -= 1e-6
    assert learner.masters[which].dtype == torch.float32
    assert learner.masters[which].mean().item() == pytest.approx(0.999, abs=5e-5)
    assert bool((naive == 1).all())
    for parameter, master in zip(learner.parameters, learner.masters, strict=True):
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, master.bfloat16())
    assert learner.step(fresh(learner, some_rows(policy))).updates == 1


# --- state


STATEFUL: dict[str, Algorithm] = {
    "grpo": replace(TABLE["grpo"], terms=(Entropy(0.05, 0.0),)),
    "adaptive": replace(TABLE["grpo"], terms=(EntropyTarget(6.0, 0.01), KL(0.1, "k3", target=0.01, horizon=20.0))),
    "ppo": TABLE["ppo"],
    "ppo_shared": ALGORITHMS["ppo_shared"],
    "process_reward": TABLE["process_reward"],
}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in STATEFUL), ("grpo", "bfloat16"), ("ppo", "bfloat16")]
)
def test_a_restored_learner_goes_on_bit_for_bit(name: str, dtype: str) -> None:
    settings: dict[str, Any] = {"lr": 0.01, "warmup": 2, "minibatches": 2, "epochs": 2, "weight_decay": 0.1}
    steps, rule = 4, STATEFUL[name]
    if rule.critic is not None and rule.critic.warmup:  # half of the updates are the critic's own
        rule = replace(rule, credit=replace(rule.credit, critic=replace(rule.critic, warmup=8)))  # type: ignore[arg-type]

    def begun() -> LocalLearner:
        return learner_of(tiny_policy(dtype=dtype), rule, planned=16, **settings)

    def went_on(learner: LocalLearner, state: dict[str, Any]) -> LocalLearner:
        policy = tiny_policy(dtype=dtype)
        policy.model.load_state_dict(learner.policy.model.state_dict())
        second = learner_of(policy, rule, planned=16, **settings)
        state = copy.deepcopy(state)  # an optimizer takes tensors as they are and changes them in place
        second.restore(state["counters"], state["tensors"])
        for batch in batches[k:]:
            second.step(batch)
        return second

    straight = begun()
    batches = [fresh(straight, some_rows(straight.policy, seed, groups=4)) for seed in range(steps)]
    for batch in batches:
        straight.step(batch)
    for k in range(steps):
        first = begun()
        for batch in batches[:k]:
            first.step(batch)
        saved = copy.deepcopy(first.state())
        second = went_on(first, saved)
        assert equal(snapshot(straight), snapshot(second)), k
        assert second.state()["counters"] == straight.state()["counters"]
        assert (second.update, second.steps) == (16, 4)
        if k:  # the faults: moments start again, and one by one all else that is kept
            zeros = {key: torch.zeros_like(t) for key, t in saved["tensors"]["optimizer"].items()}
            spoilt = [{"counters": saved["counters"], "tensors": {**saved["tensors"], "optimizer": zeros}}]
            for group in saved["tensors"].keys() - {"optimizer"} if k == steps - 1 else ():
                kept = {key: named for key, named in saved["tensors"].items() if key != group}
                spoilt.append({"counters": saved["counters"], "tensors": kept})
            if saved["counters"]["adaptive"]:
                blank = {**saved["counters"], "adaptive": begun().state()["counters"]["adaptive"]}
                spoilt.append({"counters": blank, "tensors": saved["tensors"]})
            for state in spoilt:
                assert not equal(snapshot(straight), snapshot(went_on(first, state)))


def test_a_stage_starts_with_a_fresh_optimizer_and_schedule() -> None:
    policy = tiny_policy()
    learner = learner_of(policy, TABLE["rloo"], planned=2, lr=0.01)
    learner.step(fresh(learner, some_rows(policy)))
    assert learner.state()["tensors"]["optimizer"]
    learner.begin(TABLE["grpo"], Optimisation(), 1)
    assert learner.state() == {"counters": {"update": 0, "steps": 0, "adaptive": {}, "norms": []}, "tensors": {}}


def test_a_stage_starts_with_a_critic_that_knows_nothing_and_keeps_the_process_scores() -> None:
    policy = tiny_policy()
    learner = learner_of(policy, TABLE["process_reward"], planned=1, lr=0.01)
    learner.step(fresh(learner, some_rows(policy)))
    learned = {name: t.clone() for name, t in learner.state()["tensors"]["process"].items()}
    learner.begin(ALGORITHMS["ppo"], Optimisation(lr=0.01), 1)
    for row in learner.annotate(some_rows(policy), ["value"]):
        assert set(row.columns["value"][row.sampled].tolist()) == {0.0}
    assert learner.step(fresh(learner, some_rows(policy))).updates == 1
    assert any(row.columns["value"][row.sampled].any() for row in learner.annotate(some_rows(policy), ["value"]))
    learner.begin(ALGORITHMS["ppo"], Optimisation(), 1)
    assert not any(row.columns["value"][row.sampled].any() for row in learner.annotate(some_rows(policy), ["value"]))
    kept = learner.state()["tensors"]["process"]
    assert kept.keys() == learned.keys()
    assert all(torch.equal(kept[name], t) for name, t in learned.items())


def test_while_a_critic_warms_up_the_policy_stands_still() -> None:
    credit = replace(ALGORITHMS["ppo"].credit, critic=Critic("separate", warmup=2))  # type: ignore[arg-type]
    policy = tiny_policy()
    learner = learner_of(policy, replace(ALGORITHMS["ppo"], credit=credit), planned=4, lr=0.01, weight_decay=0.1)
    rows = fresh(learner, some_rows(policy))
    for update in range(4):
        before = weights(policy), copy.deepcopy(learner.state()["tensors"]["critic"])
        assert learner.step(rows).updates == 1
        after = learner.state()["tensors"]["critic"]
        assert equal(before[0], weights(policy)) == (update < 2)
        assert not torch.equal(before[1]["head.weight"], after["head.weight"])


def test_a_published_snapshot_does_not_move_with_the_weights() -> None:
    policy = tiny_policy()
    learner = learner_of(policy, TABLE["rloo"], lr=0.01)
    published = learner.publish(1)
    before = {name: t.clone() for name, t in published.items()}
    assert learner.step(fresh(learner, some_rows(policy))).updates == 1
    assert all(torch.equal(before[name], t) for name, t in published.items())
    assert any(not torch.equal(before[name], t) for name, t in policy.model.state_dict().items())
