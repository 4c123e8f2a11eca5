"""Weights that change under completions in flight: versions and log-probabilities token by token, and what is forgotten."""

import asyncio
import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from strop.core.engine import InFlight, Sampling
from strop.core.errors import EngineError
from strop.core.trajectory import Completion
from strop.engine.local import LocalEngine
from strop.model.policy import Policy
from tests.engine.test_local import build, crowd, gap, ids, one, uncached

MODES: tuple[InFlight, ...] = ("recompute", "keep", "drain")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def moved(policy: Policy) -> Policy:
    """The policy a few large updates later."""
    model = copy.deepcopy(policy.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return Policy(model, policy.tokenizer, policy.vocabulary)


async def sampled(engine: LocalEngine, tokens: int) -> None:
    """Wait until the engine has sampled so many tokens in all."""
    while engine.counts.sampled < tokens:
        await asyncio.sleep(0)


def crossing(mode: InFlight) -> tuple[Policy, Policy, Completion]:
    """A completion of ten tokens whose engine is given new weights after the fifth."""
    old = build("llama")
    new = moved(old)
    engine = LocalEngine(Policy(copy.deepcopy(old.model), None, old.vocabulary), frozenset(), in_flight=mode)  # type: ignore[arg-type]

    async def play() -> Completion:
        job = asyncio.create_task(engine.sample(ids(1), Sampling(10), (0,), "s"))
        await sampled(engine, 5)
        await engine.load(new.model.state_dict(), 1)
        return await job

    return old, new, asyncio.run(play())


def test_tokens_after_new_weights_carry_their_version_and_their_exact_log_probability() -> None:
    old, new, completion = crossing("recompute")
    assert completion.versions.tolist() == [0] * 5 + [1] * 5
    by_old, by_new = uncached(old, ids(1), completion), uncached(new, ids(1), completion)
    assert np.abs(completion.logprobs[:5] - by_old[:5]).max() < 1e-5
    assert np.abs(completion.logprobs[5:] - by_new[5:]).max() < 1e-5
    assert np.abs(by_old - by_new).max() > 1e-2  # else nothing was compared


def test_kept_keys_and_values_go_on_and_agree_with_no_single_version() -> None:
    old, new, completion = crossing("keep")
    assert completion.versions.tolist() == [0] * 5 + [1] * 5
    by_old, by_new = uncached(old, ids(1), completion), uncached(new, ids(1), completion)
    assert np.abs(completion.logprobs[:5] - by_old[:5]).max() < 1e-5
    assert np.abs(completion.logprobs[5:] - by_new[5:]).max() > 1e-3
    assert np.abs(completion.logprobs[5:] - by_old[5:]).max() > 1e-3


def test_draining_completes_what_is_under_way_before_the_weights_change() -> None:
    old, _, completion = crossing("drain")
    assert completion.versions.tolist() == [0] * 10
    assert np.abs(completion.logprobs - uncached(old, ids(1), completion)).max() < 1e-5


def test_what_arrives_while_the_engine_drains_waits_for_the_new_weights() -> None:
    old = build("llama")
    new = moved(old)
    engine = LocalEngine(old, frozenset(), in_flight="drain")

    async def play() -> tuple[Completion, Completion]:
        first = asyncio.create_task(engine.sample(ids(1), Sampling(10), (0,), "a"))
        await sampled(engine, 2)
        load = asyncio.create_task(engine.load(new.model.state_dict(), 1))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="another one waits"):
            await engine.load(None, 2)
        second = asyncio.create_task(engine.sample(ids(2), Sampling(6), (1,), "b"))
        await load
        return await first, await second

    first, second = asyncio.run(play())
    assert first.versions.tolist() == [0] * 10 and second.versions.tolist() == [1] * 6
    assert gap(new, ids(2), second) < 1e-5


def test_a_drain_ends_when_the_last_request_is_cancelled_or_fails() -> None:
    engine = LocalEngine(build("llama"), frozenset(), in_flight="drain")

    async def play(end: str) -> None:
        job = asyncio.create_task(engine.sample(ids(1), Sampling(100), (0,), "s"))
        await sampled(engine, engine.counts.sampled + 3)
        load = asyncio.create_task(engine.load(None, 1))
        await asyncio.sleep(0)
        if end == "cancelled":
            job.cancel()
        else:
            engine._sample = None  # type: ignore[assignment]  # the next step raises
        await asyncio.wait_for(load, 5)
        with pytest.raises((EngineError, asyncio.CancelledError)):
            await job

    asyncio.run(play("cancelled"))
    asyncio.run(play("failed"))


@pytest.mark.parametrize("mode", MODES)
def test_a_group_whose_prompt_is_half_prefilled_goes_on_with_the_new_weights(mode: InFlight) -> None:
    old = build("qwen3")
    new = moved(old)
    engine = LocalEngine(Policy(copy.deepcopy(old.model), None, old.vocabulary), frozenset(), prefill=4, in_flight=mode)  # type: ignore[arg-type]
    prompt = ids(3, low=23, high=23)

    async def play() -> list[Completion]:
        jobs = [asyncio.create_task(engine.sample(prompt, Sampling(6), (m,), f"m{m}")) for m in range(3)]
        while engine.counts.prefilled < 8:
            await asyncio.sleep(0)
        await engine.load(new.model.state_dict(), 1)
        return await asyncio.gather(*jobs)

    for completion in asyncio.run(play()):
        assert len(completion.tokens) == 6
        if mode == "recompute":
            assert completion.versions.tolist() == [1] * 6 and gap(new, prompt, completion) < 1e-5
        elif mode == "drain":
            assert completion.versions.tolist() == [0] * 6 and gap(old, prompt, completion) < 1e-5
        else:
            assert completion.versions.tolist() == [1] * 6 and gap(new, prompt, completion) > 1e-3


def test_a_probe_shows_that_nothing_cached_survives_new_weights() -> None:
    """Sessions between their turns and prompts that others shared are read anew, also while requests are in flight."""

    def probed(mode: InFlight) -> float:
        old = build("llama")
        new = moved(old)
        engine = LocalEngine(Policy(copy.deepcopy(old.model), None, old.vocabulary), frozenset(), in_flight=mode)  # type: ignore[arg-type]

        async def play() -> float:
            prompt = ids(5, low=20, high=20)
            first = await engine.sample(prompt, Sampling(4), (0,), "probe")
            other = asyncio.create_task(engine.sample(prompt, Sampling(60), (1,), "other"))
            await sampled(engine, 8)
            await engine.load(new.model.state_dict(), 1)
            longer = np.concatenate([prompt, first.tokens, ids(6, low=3)])
            again = await engine.sample(longer, Sampling(4), (0, 1), "probe")
            await other
            assert again.versions.tolist() == [1] * 4
            return gap(new, longer, again)

        return asyncio.run(play())

    assert probed("recompute") < 1e-5
    assert probed("keep") > 1e-3  # what is kept shows


@pytest.mark.parametrize("mode", MODES)
def test_a_crowd_survives_weights_that_change_all_the_time(mode: InFlight) -> None:
    policy = build("llama")
    engine = LocalEngine(policy, frozenset(), slots=2, length=32, prefill=16, max_slots=8, in_flight=mode)

    async def play() -> int:
        done = asyncio.Event()

        async def publish() -> int:
            version = 0
            while not done.is_set():
                version += 1
                await engine.load(None, version)  # the same weights: every log-probability is known
                for _ in range(12):
                    await asyncio.sleep(0)
            return version

        publishing = asyncio.create_task(publish())
        jobs = [play_one(engine, g, m) for g in range(4) for m in range(3)]
        await asyncio.gather(*jobs)
        done.set()
        return await publishing

    async def play_one(engine: LocalEngine, group: int, member: int) -> None:
        history = ids(group, low=5)
        for turn in range(3):
            completion = await engine.sample(history, Sampling(7), (group, member, turn), f"{group}/{member}")
            assert (np.diff(completion.versions) >= 0).all()
            assert gap(policy, history, completion) < 1e-5
            history = np.concatenate([history, completion.tokens, ids(group, member, turn)])
        await engine.end(f"{group}/{member}")

    assert asyncio.run(play()) > 5


def test_recomputing_changes_no_sampled_id_where_the_weights_stay() -> None:
    """The stream of a request goes on where it was: the ids are those of an undisturbed run."""
    engine = LocalEngine(build("llama"), frozenset())
    calm = one(engine, ids(1), 80)

    async def play() -> Completion:
        disturbed = LocalEngine(build("llama"), frozenset())
        job = asyncio.create_task(disturbed.sample(ids(1), Sampling(80), (0, 0), "s"))
        for version, tokens in enumerate((3, 17, 64, 70), 1):
            await sampled(disturbed, tokens)
            await disturbed.load(None, version)
        return await job

    completion = asyncio.run(play())
    assert completion.tokens.tolist() == calm.tokens.tolist()
    assert sorted(set(completion.versions.tolist())) == [0, 1, 2, 3, 4]
    assert len(crowd(engine)) == 12  # and the engine serves on
