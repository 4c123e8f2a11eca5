"""The in-process engine against an uncached forward and `generate`, under crowding, cancellation and failure."""

import asyncio
import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from strop.core.engine import Sampling
from strop.core.errors import EngineError
from strop.core.seeds import generator
from strop.core.trajectory import Completion, Ints
from strop.engine.cache import runs_of_slots
from strop.engine.local import LocalEngine
from strop.engine.request import pick
from strop.model.attention import NAME, RowsLayout
from strop.model.policy import Policy, check, freeze_randomness

VOCABULARY, PADDED, WINDOW = 90, 96, 512
FAMILIES = ("gpt2", "llama", "qwen3")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(family: str, vocabulary: int = VOCABULARY) -> Policy:
    """A tiny model of a family with weights large enough that its distributions are far from uniform."""
    torch.manual_seed(7)
    small: dict[str, Any] = {
        "vocab_size": PADDED,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": WINDOW,
        "initializer_range": 0.2,
    }
    model: PreTrainedModel
    if family == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=PADDED,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=WINDOW,
                initializer_range=0.2,
                eos_token_id=None,
            )
        )
    elif family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**small, tie_word_embeddings=False))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**small, head_dim=16, tie_word_embeddings=True))
    model.set_attn_implementation(NAME)
    freeze_randomness(model)
    policy = Policy(model, None, vocabulary)  # type: ignore[arg-type]  # ids only: no tokenizer is needed
    check(policy)
    return policy


def ids(*key: int, low: int = 1, high: int = 30) -> Ints:
    """Reproducible ids, `low` to `high` of them."""
    rng = np.random.default_rng(key)
    return rng.integers(0, VOCABULARY, rng.integers(low, high + 1)).astype(np.int32)


def uncached(policy: Policy, prompt: Ints, completion: Completion, temperature: float = 1.0) -> np.ndarray:
    """Log-probabilities of a completion by one packed forward over its whole history."""
    row = torch.from_numpy(np.concatenate([prompt, completion.tokens])).long()
    with torch.no_grad():
        hidden = policy.hidden(row, torch.arange(len(row)), RowsLayout([len(row)], policy.device))
        table = (policy.logits(hidden).float() / temperature).log_softmax(-1)
    at = torch.arange(len(prompt) - 1, len(row) - 1)
    return table[at, row[len(prompt) :]].numpy()


def gap(policy: Policy, prompt: Ints, completion: Completion, temperature: float = 1.0) -> float:
    return float(np.abs(uncached(policy, prompt, completion, temperature) - completion.logprobs).max())


def one(
    engine: LocalEngine, prompt: Ints, cap: int = 8, seed: int = 0, session: str = "s", **sampling: Any
) -> Completion:
    return asyncio.run(engine.sample(prompt, Sampling(cap, **sampling), (seed, 0), session))


async def episode(
    engine: LocalEngine, group: int, member: int, temperature: float = 1.0, turns: int = 3
) -> list[tuple[Ints, Completion]]:
    """A ragged conversation: members of a group share the prompt and nothing else."""
    history, session, played = ids(group, low=5), f"{group}/{member}", []
    for turn in range(turns):
        cap = int(np.random.default_rng((group, member, turn)).integers(2, 20))
        completion = await engine.sample(history, Sampling(cap, temperature), (group, member, turn), session)
        played.append((history, completion))
        history = np.concatenate([history, completion.tokens, ids(group, member, turn)])
    await engine.end(session)
    return played


def crowd(
    engine: LocalEngine, groups: int = 4, members: int = 3, temperature: float = 1.0
) -> list[list[tuple[Ints, Completion]]]:
    async def play() -> list[list[tuple[Ints, Completion]]]:
        jobs = [episode(engine, g, m, temperature) for g in range(groups) for m in range(members)]
        return await asyncio.gather(*jobs)

    return asyncio.run(play())


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_of_ragged_sessions_equal_an_uncached_forward(family: str, whole: bool) -> None:
    policy = build(family)
    engine = LocalEngine(policy, frozenset({3}), prefill=24)  # small, so that prompts are cut into pieces too
    engine.whole = whole
    for temperature in (0.5, 1.0, 2.0):
        turns = [turn for played in crowd(engine, temperature=temperature) for turn in played]
        assert max(gap(policy, *turn, temperature) for turn in turns) < 1e-5
        assert min(gap(policy, *turn, temperature * 1.1) for turn in turns) > 1e-3  # the bound can fail


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_ids_equal_those_of_generate(family: str) -> None:
    policy = build(family, PADDED)
    stock = copy.deepcopy(policy.model)
    stock.set_attn_implementation("sdpa")
    engine = LocalEngine(policy, frozenset())
    for n in range(4):
        prompt = ids(n, low=3)
        done = one(engine, prompt, 24, session=str(n), temperature=0.0)
        theirs = stock.generate(
            torch.from_numpy(prompt).long()[None],
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert done.tokens.tolist() == theirs[0, len(prompt) :].tolist()
        assert gap(policy, prompt, done, 1.0) < 1e-5  # greedy log-probabilities are those at temperature 1
        assert one(engine, prompt, 24, session=f"hot{n}").tokens.tolist() != done.tokens.tolist()


def test_a_stream_does_not_depend_on_companions() -> None:
    policy = build("llama")
    together = crowd(LocalEngine(policy, frozenset({3})), groups=5, members=4)
    alone = asyncio.run(episode(LocalEngine(policy, frozenset({3})), 2, 1))
    for (prompt, mine), (other_prompt, other) in zip(alone, together[2 * 4 + 1], strict=True):
        assert prompt.tolist() == other_prompt.tolist()
        assert mine.tokens.tolist() == other.tokens.tolist()
        assert mine.stop == other.stop
        assert np.abs(mine.logprobs - other.logprobs).max() < 1e-5
    assert alone[0][1].tokens.tolist() != together[2 * 4 + 2][0][1].tokens.tolist()  # another member, another stream


def test_a_longer_cap_continues_the_same_stream() -> None:
    policy = build("llama")
    short, long = (one(LocalEngine(policy, frozenset()), ids(1), cap, seed=5) for cap in (70, 200))
    assert short.tokens.tolist() == long.tokens[:70].tolist()
    assert one(LocalEngine(policy, frozenset()), ids(1), 70, seed=6).tokens.tolist() != short.tokens.tolist()


def test_ids_follow_the_uniforms_of_the_named_stream() -> None:
    policy = build("llama")
    with torch.no_grad():
        policy.head.weight.zero_()  # every id equally probable
    done = asyncio.run(LocalEngine(policy, frozenset()).sample(ids(1), Sampling(200), (3, 1, 4), "s"))
    uniforms = generator((3, 1, 4)).random(200, np.float32)
    assert done.tokens.tolist() == np.floor(uniforms * VOCABULARY).astype(int).tolist()
    assert np.abs(done.logprobs + np.log(VOCABULARY)).max() < 1e-5


def test_the_prompt_of_a_group_is_prefilled_once() -> None:
    engine = LocalEngine(build("llama"), frozenset())
    prompt = ids(1, low=20, high=20)

    async def play(names: list[str]) -> list[Completion]:
        return await asyncio.gather(*(engine.sample(prompt, Sampling(5), (n, 0), s) for n, s in enumerate(names)))

    done = asyncio.run(play([f"g/{i}" for i in range(8)]))
    assert engine.counts.prefilled == 20
    assert engine.counts.sampled == 40
    assert len({tuple(c.tokens.tolist()) for c in done}) > 1
    assert max(gap(engine.policy, prompt, c) for c in done) < 1e-5
    asyncio.run(play(["late"]))  # nothing is kept by content once a prefill is over
    assert engine.counts.prefilled == 40


def test_a_session_prefills_only_the_new_observation() -> None:
    engine = LocalEngine(build("llama"), frozenset())
    prompt = ids(1, low=20, high=20)
    first = one(engine, prompt, 5)
    assert engine.counts.prefilled == 20
    longer = np.concatenate([prompt, first.tokens, ids(2, low=7, high=7)])
    second = one(engine, longer, 5)
    assert engine.counts.prefilled == 20 + 1 + 7  # the last sampled id had no keys yet
    assert gap(engine.policy, longer, second) < 1e-5


def test_a_rebuilt_history_starts_the_session_anew() -> None:
    engine = LocalEngine(build("llama"), frozenset())
    prompt = ids(1, low=20, high=20)
    first = one(engine, prompt, 5)
    changed = np.concatenate([prompt, first.tokens, ids(2, low=7, high=7)])
    changed[11] = (changed[11] + 1) % VOCABULARY
    second = one(engine, changed, 5)
    assert engine.counts.prefilled == 20 + 32
    assert gap(engine.policy, changed, second) < 1e-5
    shorter = prompt[:9]
    assert gap(engine.policy, shorter, one(engine, shorter, 5)) < 1e-5
    assert engine.counts.prefilled == 20 + 32 + 9


def test_ids_beyond_the_vocabulary_are_never_sampled() -> None:
    def sampled(policy: Policy) -> int:
        head = policy.head.weight
        with torch.no_grad():
            head[VOCABULARY:] *= 1000 * (-1.0) ** torch.arange(PADDED - VOCABULARY)[:, None]
            head[VOCABULARY + 1 :: 2] = -head[VOCABULARY::2]  # one of w and -w is large for every state
        return max(
            int(one(LocalEngine(policy, frozenset()), ids(n), 30, t).tokens.max()) for n in range(4) for t in (0, 1)
        )

    assert sampled(build("llama")) < VOCABULARY
    assert sampled(build("llama", PADDED)) >= VOCABULARY  # the same head, all ids allowed


def test_load_forgets_keys_and_values_of_the_old_weights() -> None:
    def second_turn(load: bool) -> float:
        policy = build("llama")
        engine = LocalEngine(policy, frozenset())
        prompt = ids(1, low=20, high=20)
        first = one(engine, prompt, 5)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        if load:
            asyncio.run(engine.load(None, 4))
        longer = np.concatenate([prompt, first.tokens, ids(2, low=7, high=7)])
        second = one(engine, longer, 5)
        assert second.versions.tolist() == [4 if load else 0] * 5
        return gap(policy, longer, second)

    assert second_turn(load=True) < 1e-5
    assert second_turn(load=False) > 1e-2


def test_load_copies_a_state_dict_into_the_model() -> None:
    source, engine = build("qwen3"), LocalEngine(build("qwen3"), frozenset())
    with torch.no_grad():
        for parameter in source.model.parameters():
            parameter *= 1.1
    prompt = ids(1)
    assert gap(source, prompt, one(engine, prompt)) > 1e-3
    weights = {
        k: v.clone() for k, v in source.model.state_dict().items() if k != "lm_head.weight"
    }  # tied: safe to omit
    asyncio.run(engine.load(weights, 1))
    assert gap(source, prompt, one(engine, prompt)) < 1e-5


@pytest.mark.parametrize("fault", ["unknown", "missing", "shape"])
def test_load_refuses_weights_that_do_not_fit_and_changes_nothing(fault: str) -> None:
    engine = LocalEngine(build("llama"), frozenset())
    before = one(engine, ids(1)).logprobs
    weights = {k: v + 1 for k, v in engine.policy.model.state_dict().items()}
    name = next(iter(weights))
    if fault == "unknown":
        weights["extra"] = weights[name]
    elif fault == "missing":
        del weights[name]
    else:
        weights[name] = weights[name][:-1]
    with pytest.raises(EngineError, match=name if fault != "unknown" else "extra"):
        asyncio.run(engine.load(weights, 1))
    assert engine.version == 0
    asyncio.run(engine.end("s"))
    assert one(engine, ids(1)).logprobs.tolist() == before.tolist()


def test_resize_and_end_are_refused_while_a_request_is_in_flight() -> None:
    engine = LocalEngine(build("llama"), frozenset())

    async def play() -> Completion:
        job = asyncio.create_task(engine.sample(ids(1), Sampling(5), (0,), "s"))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="in flight"):
            engine.resize(4, 64)
        with pytest.raises(EngineError, match="is sampling"):
            await engine.end("s")
        with pytest.raises(EngineError, match="is sampling already"):
            await engine.sample(ids(1), Sampling(5), (0,), "s")
        return await job

    assert asyncio.run(play()).versions.tolist() == [0] * 5
    asyncio.run(engine.load(None, 1))
    assert one(engine, ids(1)).versions.tolist() == [1] * 8


def test_a_stop_id_ends_a_completion_and_is_part_of_it() -> None:
    policy = build("llama")
    free = one(LocalEngine(policy, frozenset()), ids(1), 30)
    assert free.stop == "length"
    assert len(free.tokens) == 30
    at = 12
    stop = int(free.tokens[at])
    first = free.tokens.tolist().index(stop)
    done = one(LocalEngine(policy, frozenset({stop})), ids(1), 30)
    assert done.stop == "stop"
    assert done.tokens.tolist() == free.tokens[: first + 1].tolist()
    capped = one(LocalEngine(policy, frozenset({stop})), ids(1), first + 1)  # stop id and cap at once: it did stop
    assert capped.stop == "stop"
    assert one(LocalEngine(policy, frozenset({stop})), ids(1), max(1, first)).stop == ("length" if first else "stop")


def test_sessions_beyond_max_slots_wait_in_launch_order() -> None:
    engine = LocalEngine(build("llama"), frozenset(), slots=1, max_slots=2)
    finished: list[int] = []

    async def run(n: int) -> Completion:
        done = await engine.sample(ids(n, low=9), Sampling(4), (n,), str(n))
        finished.append(n)
        await engine.end(str(n))
        return done

    async def play() -> list[Completion]:
        return await asyncio.gather(*(run(n) for n in range(7)))

    done = asyncio.run(play())
    assert finished == list(range(7))
    assert engine.shape[0] == 2
    assert engine.counts.peak_live == 2
    assert max(gap(engine.policy, ids(n, low=9), c) for n, c in enumerate(done)) < 1e-5


def test_a_session_between_turns_keeps_its_slot_and_a_new_one_waits_for_end() -> None:
    engine = LocalEngine(build("llama"), frozenset(), slots=1, max_slots=1)

    async def play() -> None:
        prompt = ids(1)
        first = await engine.sample(prompt, Sampling(4), (0,), "old")
        new = asyncio.create_task(engine.sample(ids(2), Sampling(4), (0,), "new"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not new.done()
        longer = np.concatenate([prompt, first.tokens, ids(3)])
        assert gap(engine.policy, longer, await engine.sample(longer, Sampling(4), (1,), "old")) < 1e-5
        assert not new.done()
        await engine.end("old")
        assert gap(engine.policy, ids(2), await new) < 1e-5

    asyncio.run(asyncio.wait_for(play(), 20))


def test_waiting_for_a_slot_does_not_keep_the_event_loop_busy() -> None:
    engine = LocalEngine(build("llama"), frozenset(), slots=1, max_slots=1)

    async def play() -> None:
        await engine.sample(ids(1), Sampling(4), (0,), "old")
        new = asyncio.create_task(engine.sample(ids(2), Sampling(4), (0,), "new"))
        for _ in range(200):
            await asyncio.sleep(0)
        steps = engine.counts.steps
        for _ in range(200):
            await asyncio.sleep(0)
        assert engine.counts.steps == steps == 4
        await engine.end("old")
        await new

    asyncio.run(asyncio.wait_for(play(), 20))


def test_a_failing_step_reaches_every_caller_and_the_engine_recovers() -> None:
    engine = LocalEngine(build("llama"), frozenset(), slots=2, max_slots=2)
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("out of memory, say")

    handle = engine.policy.model.base_model.register_forward_pre_hook(fail)

    async def play() -> list[Any]:
        jobs = (engine.sample(ids(n), Sampling(9), (n,), str(n)) for n in range(5))
        return await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 20)

    failures = asyncio.run(play())
    assert all(isinstance(f, EngineError) and "out of memory, say" in str(f) for f in failures)
    assert len(failures) == 5  # two were decoding, three were waiting for a slot
    handle.remove()
    assert all(gap(engine.policy, *turn) < 1e-5 for played in crowd(engine) for turn in played)


@pytest.mark.parametrize("where", ["lm_head", "model.layers.0.self_attn.v_proj"])
def test_broken_weights_are_reported_and_leave_no_trace(where: str) -> None:
    policy = build("llama")
    engine = LocalEngine(policy, frozenset({3}))
    weight = policy.model.get_parameter(f"{where}.weight")
    good = weight.detach().clone()
    with torch.no_grad():
        weight[5] = float("nan")
    with pytest.raises(EngineError, match="not finite"):
        asyncio.run(asyncio.wait_for(engine.sample(ids(1, low=200, high=200), Sampling(5), (0,), "s"), 20))
    with torch.no_grad():
        weight.copy_(good)
    turns = [turn for played in crowd(engine) for turn in played]  # a NaN left in the values would show behind any mask
    assert max(gap(policy, *turn) for turn in turns) < 1e-5


@pytest.mark.parametrize("after", [0, 1, 2, 4, 7])
def test_a_cancelled_request_disturbs_nobody(after: int) -> None:
    """Prompts of 30 ids in pieces of 8: cancelled while waiting, as leader or follower of a prefill, while decoding."""
    policy = build("llama")
    prompt = ids(1, low=30, high=30)
    expected = [one(LocalEngine(policy, frozenset()), prompt, 12, seed=n) for n in range(4)]
    for victims in ([0], [1], [0, 1], [0, 2], [3]):
        engine = LocalEngine(policy, frozenset(), prefill=8)

        async def play(engine: LocalEngine, victims: list[int]) -> list[Any]:
            jobs = [asyncio.create_task(engine.sample(prompt, Sampling(12), (n, 0), str(n))) for n in range(4)]
            while engine.counts.steps < after:
                await asyncio.sleep(0)
            for victim in victims:
                jobs[victim].cancel()
            return await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 20)

        done = asyncio.run(play(engine, victims))
        for n, (got, want) in enumerate(zip(done, expected, strict=True)):
            if n in victims:
                assert isinstance(got, asyncio.CancelledError)
            else:
                assert got.tokens.tolist() == want.tokens.tolist()
                assert np.abs(got.logprobs - want.logprobs).max() < 1e-5
        if after < 4:  # nothing was sampled before the cancellation, and nothing is for the cancelled
            assert engine.counts.sampled == 12 * (4 - len(victims))
        again = one(engine, prompt, 12, seed=victims[0], session=str(victims[0]))  # a cancelled session may start anew
        assert again.tokens.tolist() == expected[victims[0]].tokens.tolist()


def test_a_cancelled_request_gives_its_slot_back() -> None:
    engine = LocalEngine(build("llama"), frozenset(), slots=1, max_slots=1)

    async def play() -> Completion:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.sample(ids(1), Sampling(400), (0,), "slow"), 0.01)
        return await asyncio.wait_for(engine.sample(ids(2), Sampling(4), (0,), "next"), 20)

    assert gap(engine.policy, ids(2), asyncio.run(play())) < 1e-5
    assert engine.counts.sampled < 400


def test_successive_event_loops_share_one_engine() -> None:
    engine = LocalEngine(build("llama"), frozenset())

    async def abandon() -> None:
        _ = asyncio.create_task(engine.sample(ids(8), Sampling(400), (0,), "abandoned"))
        for _ in range(20):
            await asyncio.sleep(0)

    prompt = ids(1)
    first = one(engine, prompt)
    asyncio.run(abandon())
    longer = np.concatenate([prompt, first.tokens, ids(2)])
    assert gap(engine.policy, longer, one(engine, longer)) < 1e-5
    asyncio.run(engine.load(None, 1))  # nothing is in flight any more


def test_the_end_of_an_event_loop_leaves_other_sessions_cached() -> None:
    engine = LocalEngine(build("llama"), frozenset())
    prompt = ids(1, low=20, high=20)
    first = one(engine, prompt, 5)  # asyncio.run cancels the pump as soon as this is answered
    longer = np.concatenate([prompt, first.tokens, ids(2, low=7, high=7)])
    one(engine, longer, 5)
    assert engine.counts.prefilled == 20 + 1 + 7


def numbers(batch: list[list[tuple[Ints, Completion]]]) -> list[list[float]]:
    return [completion.logprobs.tolist() for played in batch for _, completion in played]


def test_the_same_batch_gives_equal_bits_again_and_after_resize_to_the_recorded_shape() -> None:
    policy = build("llama")
    engine = LocalEngine(policy, frozenset({3}), slots=2, length=16)
    crowd(engine)  # grows the buffers
    shape = engine.shape
    assert shape[0] > 2
    assert shape[1] > 16
    asyncio.run(engine.load(None, 1))
    second = numbers(crowd(engine))
    asyncio.run(engine.load(None, 2))
    assert numbers(crowd(engine)) == second
    resumed = LocalEngine(policy, frozenset({3}), slots=2, length=16)
    resumed.resize(*shape)
    assert numbers(crowd(resumed)) == second
    assert resumed.shape == shape
    assert numbers(crowd(resumed, temperature=1.001)) != second


@pytest.mark.parametrize("whole", [False, True])
def test_what_lies_in_unused_positions_never_shows(whole: bool) -> None:
    policy = build("llama")
    engine = LocalEngine(policy, frozenset({3}))
    engine.whole = whole
    clean = numbers(crowd(engine))
    assert engine.cache.data is not None
    engine.cache.data.fill_(3e4)
    asyncio.run(engine.load(None, 1))
    assert numbers(crowd(engine)) == clean


def test_growing_keeps_the_keys_of_sessions() -> None:
    policy = build("qwen3")
    engine = LocalEngine(policy, frozenset({3}), slots=1, length=1)
    assert max(gap(policy, *turn) for played in crowd(engine) for turn in played) < 1e-5
    assert engine.shape[0] >= 12


def chi_square(tokens: list[int], probabilities: np.ndarray) -> float:
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = probabilities * len(tokens)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_sampled_frequencies_match_the_tempered_softmax(temperature: float) -> None:
    policy = build("llama", vocabulary=12)
    with torch.no_grad():
        policy.head.weight.mul_(0.5)
    prompt = ids(1, low=6) % 12

    async def play() -> list[Completion]:
        engine = LocalEngine(policy, frozenset())
        jobs = (engine.sample(prompt, Sampling(1, temperature), (n, 9), str(n)) for n in range(1000))
        return await asyncio.gather(*jobs)

    tokens = [int(c.tokens[0]) for _ in range(1) for c in asyncio.run(play())]
    row = torch.from_numpy(prompt).long()
    with torch.no_grad():
        logits = policy.logits(policy.hidden(row, torch.arange(len(row)), RowsLayout([len(row)], policy.device)))[-1]
    assert chi_square(tokens, (logits / temperature).softmax(-1).numpy()) < 31.3  # 11 degrees of freedom: p = 0.001
    assert chi_square(tokens, (logits / (3 - temperature)).softmax(-1).numpy()) > 60


def test_extreme_uniforms_pick_only_ids_of_positive_probability() -> None:
    no = float("-inf")
    logits = torch.tensor([[no, 0.0, 1.0, no], [no, no, 3.0, no], [0.0, no, no, no]])
    top = np.nextafter(np.float32(1), np.float32(0))
    ones = np.ones(3, np.float32)
    for uniform, expected in ((0.0, [1, 2, 0]), (top, [2, 2, 0]), (1.0, [2, 2, 0])):
        picked, logprobs = pick(logits, ones * np.float32(uniform), ones)
        assert picked.tolist() == expected
        assert torch.isfinite(logprobs).all()
    wide = torch.zeros(64, 5000)
    wide[:, -1] = no  # rounding makes the CDF of a wide row end off 1
    picked, _ = pick(wide, np.full(64, 1.0, np.float32), np.ones(64, np.float32))
    assert picked.max().item() == 4998


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        (np.array([], np.int32), Sampling(4), "at least one id"),
        (np.array([1, -1], np.int32), Sampling(4), "embeds 0..95"),
        (np.array([1, PADDED], np.int32), Sampling(4), "embeds 0..95"),
        (np.array([1], np.int32), Sampling(0), "max_tokens is 0"),
        (np.array([1], np.int32), Sampling(4, -1.0), "temperature is -1.0"),
        (np.array([1], np.int32), Sampling(4, float("nan")), "temperature is nan"),
        (np.array([1], np.int32), Sampling(4, 1e-30), "at least 0.001"),
        (np.array([1], np.int32), Sampling(4, top_p=0.9), "does not offer truncated sampling"),
        (np.array([1], np.int32), Sampling(4, top_k=5), "does not offer truncated sampling"),
        (np.ones(500, np.int32), Sampling(13), "window of 512"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_at_once(prompt: Ints, sampling: Sampling, message: str) -> None:
    engine = LocalEngine(build("llama"), frozenset())
    with pytest.raises(EngineError, match=message):
        asyncio.run(engine.sample(prompt, sampling, (0,), "s"))
    assert engine.counts.steps == 0
    assert len(one(engine, np.ones(500, np.int32), 12).tokens) == 12  # the window itself can be filled


def test_bfloat16_models_keep_their_keys_in_bfloat16() -> None:
    policy = build("llama")
    policy.model.to(torch.bfloat16)
    engine = LocalEngine(policy, frozenset({3}))
    turns = [turn for played in crowd(engine) for turn in played]
    assert engine.cache.data is not None
    assert engine.cache.data.dtype == torch.bfloat16
    gaps = np.array([gap(policy, *turn) for turn in turns])
    assert np.median(gaps) < 0.05
    assert gaps.max() < 0.5
    assert all(c.logprobs.dtype == np.float32 for _, c in turns)


def test_a_model_left_in_training_mode_is_evaluated() -> None:
    policy = build("llama")
    policy.model.train()
    one(LocalEngine(policy, frozenset()), ids(1))
    assert not policy.model.training


def brute_cost(lengths: list[int], runs: list[tuple[int, int, int]]) -> int:
    return sum((end - start) * width for start, end, width in runs) - sum(lengths)


@pytest.mark.parametrize("cut", [runs_of_slots])
def test_runs_cover_every_row_once_and_waste_little(cut: Callable[..., list[tuple[int, int, int]]]) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        slots = np.flatnonzero(rng.random(40) < 0.8)
        lengths = rng.integers(1, 400, len(slots)).tolist()
        runs = cut(slots.tolist(), lengths, 50)
        assert [row for start, end, _ in runs for row in range(start, end)] == list(range(len(slots)))
        for start, end, width in runs:
            assert width == max(lengths[start:end])
            assert slots[end - 1] - slots[start] == end - 1 - start  # neighbours: their keys are one view
        assert brute_cost(lengths, runs) <= 50 * (len(slots) - len(runs))
    assert cut([], [], 50) == []
