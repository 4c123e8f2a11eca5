"""The learner on a tiny real model: one gradient however rows are packed, and ratio 1 on what was just sampled."""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from strop.core.algorithm import Algorithm, Entropy, Observations, TrajectoryRatio
from strop.core.engine import Sampling
from strop.core.metrics import values
from strop.core.trajectory import Row
from strop.credit.outcome import outcome
from strop.engine.local import LocalEngine
from strop.envs.guess import guess
from strop.learn import learner as learner_module
from strop.learn.learner import LocalLearner
from strop.learn.pack import count, pack
from strop.learn.schedule import Optimisation
from strop.loop.assemble import chat
from strop.model.load import ModelSource, load, prepare
from strop.model.policy import Policy
from strop.model.tiny import tiny
from strop.objective.columns import Columns
from strop.objective.objective import needs
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.rollout.rows import group_rows
from tests.learn.rows import ALGORITHMS, distance, equal, fresh, gradient, learner_of, some_rows, tiny_policy, weights
from tests.objective.batches import TABLE

CPU = torch.device("cpu")


def sameness(rule: Algorithm) -> tuple[float, float]:
    """Distance of gradients, and relative one of metrics, that differ by the order of float32 sums only.

    A ratio of all tokens multiplies their errors.
    """
    return (1e-5, 5e-5) if isinstance(rule.ratio, TrajectoryRatio) else (5e-6, 1e-5)


def budgets(rows: Sequence[Row], observations: Observations | None) -> dict[int, int]:
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
        near, close = sameness(rule)
        assert distance(split, whole) < near
        assert same == pytest.approx(metrics, rel=close, abs=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_order_of_rows_changes_nothing(name: str) -> None:
    policy = tiny_policy()
    rule = ALGORITHMS[name]
    rows = fresh(learner_of(policy, rule), some_rows(policy), noise=0.3)
    whole, metrics = gradient(learner_of(policy, rule), rows)
    for seed in range(3):
        mixed = Random(seed).sample(rows, len(rows))
        other, same = gradient(learner_of(policy, rule, token_budget=40), mixed)
        near, close = sameness(rule)
        assert distance(other, whole) < near
        assert same == pytest.approx(metrics, rel=close, abs=1e-6)


@pytest.mark.parametrize("name", ["grpo", "sft", "rloo", "dapo", "ppo", "process_reward", "distillation"])
def test_denominators_of_each_micro_batch_would_be_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    rule = ALGORITHMS[name]
    rows = fresh(learner_of(policy, rule), some_rows(policy), noise=0.3)
    whole, _ = gradient(learner_of(policy, rule), rows)
    right = LocalLearner._loss

    def local(self: LocalLearner, micro: Any, totals: Any, moment: Any) -> Any:
        return right(self, micro, count(micro.rows, False), moment)

    monkeypatch.setattr(LocalLearner, "_loss", local)
    split, _ = gradient(learner_of(policy, rule, token_budget=budgets(rows, None)[3]), rows)
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
    assert calls["frugal"] == 2 * calls["plain"] > 0  # they were recomputed indeed


def test_masters_of_a_bf16_model_gather_all_micro_batches() -> None:
    policy = tiny_policy(dtype="bfloat16")
    rule = TABLE["rloo"]
    rows = some_rows(policy)
    whole, _ = gradient(learner_of(policy, rule), rows)
    for parts in (2, 4):
        split, _ = gradient(learner_of(policy, rule, token_budget=budgets(rows, None)[parts]), rows)
        assert distance(split, whole) < 0.05
    last = pack(rows, budgets(rows, None)[4], None, CPU)[-1].rows  # the fault: the last micro-batch only
    assert distance(gradient(learner_of(policy, rule), last)[0], whole) > 0.3


@pytest.mark.parametrize("term", [Entropy(0.3), Observations(0.3)])
def test_the_gradient_of_a_term_is_the_one_worked_out_row_by_row(term: Entropy | Observations) -> None:
    policy = tiny_policy()
    rule = replace(TABLE["rloo"], terms=(term,))
    rows = [row.with_columns(advantage=np.zeros(len(row), np.float32)) for row in some_rows(policy)]
    learner = LocalLearner(policy, 2.0, 0)
    learner.begin(rule, Optimisation(token_budget=40), 1)
    found, _ = gradient(learner, rows)
    model: Any = copy.deepcopy(policy.model)
    model.set_attn_implementation("eager")
    sums = {"entropy": torch.zeros(()), "nll": torch.zeros(())}
    counts = {"entropy": 0, "nll": 0}
    for row in rows:
        ids = torch.from_numpy(row.tokens.astype(np.int64))
        logp = (model(input_ids=ids[None], use_cache=False).logits[0, :-1] / 2.0).log_softmax(1)
        trained = torch.from_numpy(row.sampled[1:])
        sums["entropy"] = sums["entropy"] - (logp.exp() * logp).sum(1)[trained].sum()
        sums["nll"] = sums["nll"] - logp.gather(1, ids[1:, None])[:, 0][~trained].sum()
        counts = {"entropy": counts["entropy"] + int(trained.sum()), "nll": counts["nll"] + int((~trained).sum())}
    loss = {
        "entropy": -0.3 * sums["entropy"] / counts["entropy"],
        "nll": 0.3 * sums["nll"] / counts["nll"],
    }["entropy" if isinstance(term, Entropy) else "nll"]
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    exact = torch.cat([g.flatten().double() for g in grads if g is not None])
    assert distance(found, exact) < 2e-5
    assert distance(found * 1.01, exact) > 5e-3


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
    policy.model.train()  # as checkpointed layers need it: no dropout may be left to wake
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
    packs = pack(rows, 40, None, CPU)
    assert len(packs) > 2
    seen: list[list[torch.Tensor]] = [[], []]
    expected: list[dict[int, np.ndarray]] = []
    right = learner_module.loss

    def watch(rule: Any, columns: Columns, *rest: Any) -> Any:
        epoch = learner.update - 1
        if len(expected) == epoch:
            expected.append(
                {id(row.tokens): np.exp(by_hand(policy, row) - row.behaviour_logp[row.sampled]) for row in rows}
            )
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
