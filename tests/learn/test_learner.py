"""The learner on a tiny real model: same gradient however rows are packed, nothing broken ever enters the weights."""

import asyncio
import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from tests.learn.rows import ALGORITHMS, equal, fresh, learner_of, some_rows, tiny_policy, weights
from tests.objective.batches import TABLE
from transformers import GPT2Config, GPT2LMHeadModel

from strop.core.algorithm import Entropy, Schedule
from strop.core.engine import Sampling
from strop.core.metrics import values
from strop.core.trajectory import Row
from strop.credit.assign import outcome
from strop.engine.local import LocalEngine
from strop.envs.guess import guess
from strop.learn import learner as learner_module
from strop.learn.learner import LocalLearner
from strop.learn.pack import count, pack
from strop.learn.schedule import Optimisation, learning_rate
from strop.loop.assemble import chat
from strop.model.load import ModelSource, load, prepare
from strop.model.policy import Policy
from strop.model.tiny import tiny
from strop.objective.columns import Columns
from strop.objective.objective import needs
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.rollout.rows import group_rows

CPU = torch.device("cpu")
SAME = 5e-6
"""Distance of gradients that differ by the order of float32 sums only."""


def gradient(learner: LocalLearner, rows: Sequence[Row]) -> tuple[torch.Tensor, dict[str, float | None]]:
    """The gradient that a step would apply, and its metrics; nothing is applied."""
    seen: list[torch.Tensor] = []

    def keep(norm: float, lr: float) -> None:
        seen.extend(m.grad.flatten().double() for m in learner.masters if m.grad is not None)
        learner._clear()

    learner._apply = keep  # type: ignore[method-assign]
    report = learner.step(rows)
    assert report.updates == 1
    return torch.cat(seen), values(report.metrics)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def budgets(rows: Sequence[Row], observations: bool) -> dict[int, int]:
    """A token budget for each number of micro-batches that some budget gives."""
    return {len(pack(rows, b, observations, CPU)): b for b in range(sum(map(len, rows)) + 1, 0, -1)}


# --- micro-batches


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradients_and_metrics_do_not_depend_on_the_number_of_micro_batches(name: str) -> None:
    policy = tiny_policy()
    rule = ALGORITHMS[name]
    rows = fresh(learner_of(policy, rule), some_rows(policy), noise=0.3)
    whole, metrics = gradient(learner_of(policy, rule), rows)
    found = budgets(rows, needs(rule).observations)
    assert {1, 2, 3, 4} <= found.keys()
    for parts in (1, 2, 3, 4):
        split, same = gradient(learner_of(policy, rule, token_budget=found[parts]), rows)
        assert distance(split, whole) < SAME
        assert same == pytest.approx(metrics, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_order_of_rows_changes_nothing(name: str) -> None:
    policy = tiny_policy()
    rule = ALGORITHMS[name]
    rows = fresh(learner_of(policy, rule), some_rows(policy), noise=0.3)
    whole, metrics = gradient(learner_of(policy, rule), rows)
    for seed in range(3):
        mixed = Random(seed).sample(rows, len(rows))
        other, same = gradient(learner_of(policy, rule, token_budget=40), mixed)
        assert distance(other, whole) < SAME
        assert same == pytest.approx(metrics, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["grpo", "sft", "rloo"])
def test_denominators_of_each_micro_batch_would_be_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    rule = ALGORITHMS[name]
    rows = fresh(learner_of(policy, rule), some_rows(policy), noise=0.3)
    whole, _ = gradient(learner_of(policy, rule), rows)
    right = LocalLearner._loss

    def local(self: LocalLearner, micro: Any, wanted: Any, totals: Any, progress: float) -> Any:
        return right(self, micro, wanted, count(micro.rows, False), progress)

    monkeypatch.setattr(LocalLearner, "_loss", local)
    split, _ = gradient(learner_of(policy, rule, token_budget=budgets(rows, False)[3]), rows)
    assert distance(split, whole) > 1e-2


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "sft"])
def test_a_trajectory_in_two_rows_is_one_trajectory(name: str) -> None:
    policy = tiny_policy()
    rows = fresh(learner_of(policy, ALGORITHMS[name]), some_rows(policy, members=2), noise=0.3)
    assert {row.origin.part for row in rows} == {0, 1}
    whole, _ = gradient(learner_of(policy, ALGORITHMS[name]), rows)
    apart = [replace(row, origin=replace(row.origin, member=row.origin.member + 10 * row.origin.part)) for row in rows]
    torn, _ = gradient(learner_of(policy, ALGORITHMS[name]), apart)  # the fault: each row counts as a trajectory
    assert (distance(torn, whole) < 1e-6) == (name == "sft")  # the token mean knows no trajectories


def test_masked_tokens_carry_no_gradient_through_the_model() -> None:
    policy = tiny_policy()
    rows = fresh(learner_of(policy, TABLE["grpo"]), some_rows(policy), noise=0.3)
    whole, metrics = gradient(learner_of(policy, TABLE["grpo"]), rows)

    def spoil(row: Row, where: np.ndarray) -> Row:
        advantage = np.where(where, 1e3, row.columns["advantage"]).astype(np.float32)
        logp = np.where(where, 1e3, row.behaviour_logp).astype(np.float32)
        return replace(row, behaviour_logp=logp).with_columns(advantage=advantage)

    spoilt, same = gradient(learner_of(policy, TABLE["grpo"]), [spoil(row, ~row.sampled) for row in rows])
    assert torch.equal(spoilt, whole)
    assert same == metrics
    broken, _ = gradient(learner_of(policy, TABLE["grpo"]), [spoil(row, row.sampled) for row in rows])
    assert distance(broken, whole) > 0.1


def test_checkpointed_activations_give_the_same_gradient() -> None:
    plain, frugal = tiny_policy(), tiny_policy(checkpointing=True)
    rows = fresh(learner_of(plain, TABLE["grpo"]), some_rows(plain), noise=0.3)
    calls = {"plain": 0, "frugal": 0}
    found = {}
    for name, policy in (("plain", plain), ("frugal", frugal)):
        body: Any = policy.model.base_model

        def note(*_: Any, name: str = name) -> None:
            calls[name] += 1

        body.layers[0].mlp.register_forward_pre_hook(note)
        found[name], _ = gradient(learner_of(policy, ALGORITHMS["grpo with terms"]), rows)
    assert distance(found["frugal"], found["plain"]) < 1e-6
    assert calls["frugal"] == 2 * calls["plain"]  # they were recomputed indeed


# --- on-policy data has ratio 1


def tiny_player() -> Policy:
    return load(ModelSource(preset="tiny", width=16, layers=2, heads=2, pieces=guess(4, 2).pieces))


def gpt2_with_dropout() -> Policy:
    _, tokenizer = tiny(guess(4, 2).pieces, width=16, layers=1, heads=2)
    vocabulary = len(tokenizer.get_vocab())
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=128, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1
    )
    assert config.resid_pdrop == config.embd_pdrop == config.attn_pdrop == 0.1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
    model.generation_config.eos_token_id = None
    return prepare(model, tokenizer)


def sampled_rows(policy: Policy, temperature: float) -> tuple[Policy, list[Row]]:
    """Rows of games that the local engine played through the real codec."""
    policy, codec, _ = chat(policy, (), "as_template")
    world = guess(4, 2)
    table = Table(world, codec, Limits(turns=2, turn_tokens=5, context=128), codec.append_only, 3)
    engine = LocalEngine(policy, codec.stop_ids, slots=8, length=128)

    async def play() -> list[Row]:
        rows = []
        for draw, task in enumerate(world.split("train")[:2]):
            group = await play_group(table, task, 4, engine, Sampling(5, temperature), "train", draw)
            members = [outcome(t) for t in group.trajectories]
            assert all(m.reward is not None for m in members)
            spread = np.linspace(-1, 1, len(members))  # some credit, whoever won
            rows += group_rows(group, [np.full(len(m.turns), a) for m, a in zip(members, spread, strict=True)])
        return rows

    return policy, asyncio.run(play())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("make", [tiny_player, gpt2_with_dropout])
def test_fresh_data_has_ratio_1_at_every_temperature_and_with_dropout_modules(make: Any, temperature: float) -> None:
    policy, rows = sampled_rows(make(), temperature)
    before = weights(policy)
    learner = LocalLearner(policy, temperature, 0)
    learner.begin(TABLE["grpo"], Optimisation(lr=0.0), 1)
    report = learner.step(rows)
    found = values(report.metrics)
    assert found["log_ratio_abs_max"] < 1e-5
    assert found["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert abs(found["kl_behaviour"]) < 1e-9
    assert found["clipped_up"] == found["clipped_down"] == 0.0
    assert equal(before, weights(policy))
    forgetful = LocalLearner(policy, temperature * 1.5, 0)  # the fault: another temperature in the trainer
    forgetful.begin(TABLE["grpo"], Optimisation(lr=0.0), 1)
    assert values(forgetful.step(rows).metrics)["log_ratio_abs_max"] > 1e-3


def test_dropout_that_is_left_on_would_be_noticed() -> None:
    policy, rows = sampled_rows(gpt2_with_dropout(), 1.0)
    for module in policy.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    policy.model.train()
    found = values(learner_of(policy, TABLE["grpo"], lr=0.0).step(rows).metrics)
    assert found["log_ratio_abs_max"] > 1e-2


def by_hand(policy: Policy, row: Row) -> np.ndarray:
    """Log-probabilities of a row's sampled tokens by the model's own forward, one row alone."""
    model: Any = copy.deepcopy(policy.model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(row.tokens.astype(np.int64))[None], use_cache=False).logits[0]
    logp = logits[:-1].log_softmax(1).gather(1, torch.from_numpy(row.tokens[1:].astype(np.int64))[:, None])[:, 0]
    return logp.numpy()[row.sampled[1:]]


def test_the_second_pass_compares_new_weights_with_the_recorded_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    plain = some_rows(policy)
    rows = fresh(learner_of(policy, TABLE["grpo"]), Random(1).sample(plain, len(plain)))
    learner = learner_of(policy, TABLE["grpo"], planned=2, lr=0.02, epochs=2, token_budget=40)
    packs = pack(rows, 40, False, CPU)
    assert len(packs) > 2
    seen: list[list[torch.Tensor]] = [[], []]
    expected: list[dict[int, np.ndarray]] = []
    right = learner_module.loss

    def watch(rule: Any, columns: Columns, *rest: Any) -> Any:
        epoch = learner.update - 1
        if len(expected) == epoch:
            expected.append({id(row.tokens): np.exp(by_hand(policy, row) - row.behaviour_logp[row.sampled]) for row in rows})
        seen[epoch].append((columns.logp - columns.behaviour_logp).exp().detach())
        return right(rule, columns, *rest)

    monkeypatch.setattr(learner_module, "loss", watch)
    report = learner.step(rows)
    assert report.updates == 2
    moved = []
    for epoch in (0, 1):
        for micro, ratio in zip(packs, seen[epoch], strict=True):
            for index, row in enumerate(micro.rows):
                got = ratio.numpy()[micro.places[0] == index]
                assert got == pytest.approx(expected[epoch][id(row.tokens)], abs=2e-5)
                moved.append((epoch, np.abs(got - 1).max()))
    assert max(m for epoch, m in moved if epoch == 0) < 1e-5
    assert min(m for epoch, m in moved if epoch == 1) > 1e-3
    total = sum(float(r.sum()) for r in (*seen[0], *seen[1]))
    assert report.metrics["ratio"].total == pytest.approx(total, rel=1e-6)


def test_annotations_stand_at_the_token_they_describe() -> None:
    policy = tiny_policy()
    rows = some_rows(policy)
    for row in learner_of(policy, TABLE["grpo"], token_budget=30).annotate(rows, ["logp", "entropy"]):
        assert row.columns["logp"][row.sampled] == pytest.approx(by_hand(policy, row), abs=1e-5)
        assert np.isnan(row.columns["logp"][~row.sampled]).all()
        assert ((row.columns["entropy"][row.sampled] > 0) & (row.columns["entropy"][row.sampled] < 6.2)).all()
        off_by_one = np.roll(row.columns["logp"], 1)[row.sampled]
        assert off_by_one != pytest.approx(by_hand(policy, row), abs=1e-2)


# --- nothing broken enters the weights


def snapshot(learner: LocalLearner) -> list[torch.Tensor]:
    """Weights and every tensor of the optimizer."""
    state = learner.state()
    return [t.clone() for t in (*weights(learner.policy), *state["optimizer"].values(), *state["masters"].values())]


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
        first = [m for name, m in learner.state()["optimizer"].items() if name.endswith(".exp_avg")]
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
        learner._apply(0.0, 1e-6)
        naive -= 1e-6
    assert learner.masters[which].dtype == torch.float32
    assert learner.masters[which].mean().item() == pytest.approx(0.999, abs=5e-5)
    assert bool((naive == 1).all())
    for parameter, master in zip(learner.parameters, learner.masters, strict=True):
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, master.bfloat16())
    assert learner.step(fresh(learner, some_rows(policy))).updates == 1


# --- state


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_learner_goes_on_bit_for_bit(dtype: str) -> None:
    settings: dict[str, Any] = {"lr": 0.01, "warmup": 2, "minibatches": 2, "epochs": 2, "weight_decay": 0.1}
    steps, rule = 4, replace(TABLE["grpo"], terms=(Entropy(Schedule(0.05, 0.0)),))

    def begun() -> LocalLearner:
        return learner_of(tiny_policy(dtype=dtype), rule, planned=16, **settings)

    straight = begun()
    batches = [fresh(straight, some_rows(straight.policy, seed, groups=4)) for seed in range(steps)]
    for batch in batches:
        straight.step(batch)
    for k in range(steps):
        first = begun()
        for batch in batches[:k]:
            first.step(batch)
        saved = copy.deepcopy(first.state())
        second = begun()
        second.policy.model.load_state_dict(first.policy.model.state_dict())
        second.restore(saved)
        for batch in batches[k:]:
            second.step(batch)
        assert equal(snapshot(straight), snapshot(second)), k
        assert second.state()["counters"] == straight.state()["counters"] == {"update": 16, "steps": 4}
        if k:
            saved["optimizer"] = {name: torch.zeros_like(t) for name, t in saved["optimizer"].items()}
            forgetful = begun()  # the fault: moments start again
            forgetful.policy.model.load_state_dict(first.policy.model.state_dict())
            forgetful.restore(saved)
            for batch in batches[k:]:
                forgetful.step(batch)
            assert not equal(snapshot(straight), snapshot(forgetful))


def test_a_stage_starts_with_a_fresh_optimizer_and_schedule() -> None:
    policy = tiny_policy()
    learner = learner_of(policy, TABLE["rloo"], planned=2, lr=0.01)
    learner.step(fresh(learner, some_rows(policy)))
    assert learner.state()["optimizer"]
    learner.begin(TABLE["grpo"], Optimisation(), 1)
    assert learner.state() == {"counters": {"update": 0, "steps": 0}, "optimizer": {}, "masters": {}}


def test_a_published_snapshot_does_not_move_with_the_weights() -> None:
    policy = tiny_policy()
    learner = learner_of(policy, TABLE["rloo"], lr=0.01)
    published = learner.publish(1)
    before = {name: t.clone() for name, t in published.items()}
    assert learner.step(fresh(learner, some_rows(policy))).updates == 1
    assert all(torch.equal(before[name], t) for name, t in published.items())
    assert any(not torch.equal(before[name], t) for name, t in policy.model.state_dict().items())
