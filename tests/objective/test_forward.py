"""Chunked log-probabilities and entropies are the direct ones, and never cost a whole vocabulary per token."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from strop.model.forward import token_columns
from tests.objective.batches import head_policy

N, WIDTH, V = 23, 6, 31


def inputs(seed: int, n: int = N, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "hidden": torch.randn(n, WIDTH, dtype=dtype, generator=draw).requires_grad_(),
        "weight": torch.randn(V, WIDTH, dtype=dtype, generator=draw).requires_grad_(),
        "bias": torch.randn(V, dtype=dtype, generator=draw).requires_grad_(),
        "upstream": torch.randn(2, n, dtype=dtype, generator=draw),
        "targets": torch.randint(V, (n,), generator=draw),
    }


def direct(x: dict[str, torch.Tensor], temperature: float, vocabulary: int = V) -> tuple[torch.Tensor, torch.Tensor]:
    z = (x["hidden"] @ x["weight"].T + x["bias"])[:, :vocabulary] / temperature
    p = z.log_softmax(1)
    return p.gather(1, x["targets"][:, None])[:, 0], -(p.exp() * p).sum(1)


def results(x: dict[str, torch.Tensor], logp: torch.Tensor, entropy: torch.Tensor | None) -> list[torch.Tensor]:
    """Values and gradients to hidden, weight and bias for a random upstream gradient of both columns."""
    value = (logp * x["upstream"][0]).sum()
    if entropy is not None:
        value = value + (entropy * x["upstream"][1]).sum()
    grads = torch.autograd.grad(value, [x["hidden"], x["weight"], x["bias"]])
    return [logp, *([] if entropy is None else [entropy]), *grads]


def worst(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    assert len(a) == len(b)
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("entropy", [True, False])
def test_chunks_give_the_values_and_gradients_of_the_direct_formula(
    temperature: float, chunk: int, entropy: bool
) -> None:
    x = inputs(1)
    policy = head_policy(x["weight"], x["bias"])
    ours = results(x, *token_columns(policy, x["hidden"], x["targets"], temperature, entropy, chunk))
    logp, h = direct(x, temperature)
    theirs = results(x, logp, h if entropy else None)
    assert worst(ours, theirs) < 1e-12
    logp, h = direct(x, temperature * 1.01)
    assert worst(ours, results(x, logp, h if entropy else None)) > 1e-3


@settings(max_examples=30, deadline=None, database=None)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 1000), st.floats(0.3, 3.0))
def test_any_number_of_tokens_may_meet_any_chunk(n: int, chunk: int, seed: int, temperature: float) -> None:
    x = inputs(seed, n)
    ours = token_columns(head_policy(x["weight"], x["bias"]), x["hidden"], x["targets"], temperature, True, chunk)
    assert worst(results(x, *ours), results(x, *direct(x, temperature))) < 1e-11


def test_the_written_gradient_is_the_numerical_one() -> None:
    x = inputs(2, 4)

    def columns(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return token_columns(head_policy(weight, bias), hidden, x["targets"], 0.7, True, 3)

    assert torch.autograd.gradcheck(columns, (x["hidden"], x["weight"], x["bias"]))


def test_a_head_without_a_bias_and_hidden_states_without_gradient_are_taken() -> None:
    x = inputs(3)
    logp, _ = token_columns(head_policy(x["weight"], None), x["hidden"].detach(), x["targets"], 1.0, False)
    (grad,) = torch.autograd.grad(logp.sum(), x["weight"])
    bare = {**x, "bias": torch.zeros(V, dtype=torch.float64)}
    expected, _ = direct(bare, 1.0)
    assert worst([logp, grad], [expected, torch.autograd.grad(expected.sum(), x["weight"])[0]]) < 1e-12


def test_float32_agrees_with_double_precision() -> None:
    x = inputs(4)
    low = {k: v.detach().float().requires_grad_() if v.is_floating_point() else v for k, v in x.items()}
    ours = token_columns(head_policy(low["weight"], low["bias"]), low["hidden"], x["targets"], 0.5, True, 7)
    pairs = zip(results(low, *ours), results(x, *direct(x, 0.5)), strict=True)
    assert all((a.double() - b).abs().max() < 2e-5 * max(1.0, b.abs().max().item()) for a, b in pairs)


def test_huge_logits_overflow_nothing() -> None:
    x = inputs(5)
    bias = (x["bias"].detach().float() * 1e4).requires_grad_()
    logp, entropy = token_columns(
        head_policy(x["weight"].detach().float(), bias), x["hidden"].detach().float(), x["targets"], 0.5, True, 7
    )
    assert entropy is not None
    (grad,) = torch.autograd.grad(logp.sum() + entropy.sum(), bias)
    assert torch.isfinite(logp).all()
    assert torch.isfinite(grad).all()
    assert 0 <= entropy.min().item() <= entropy.max().item() < 1e-6
    assert not torch.isfinite(bias.exp()).all()


def test_ids_beyond_the_vocabulary_take_no_part() -> None:
    known = 20
    x = inputs(6)
    x["targets"] = x["targets"] % known
    policy = head_policy(x["weight"], x["bias"], known)
    before = results(x, *token_columns(policy, x["hidden"], x["targets"], 0.5, True, 7))
    assert worst(before, results(x, *direct(x, 0.5, known))) < 1e-12
    assert not before[3][known:].any()
    assert before[3][:known].any()
    assert not before[4][known:].any()
    assert worst(before, results(x, *direct(x, 0.5))) > 1e-3  # the fault: a padded head takes its share
    with torch.no_grad():
        x["weight"][known:] += 5.0
        x["bias"][known:] += 50.0
    after = results(x, *token_columns(policy, x["hidden"], x["targets"], 0.5, True, 7))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    every = torch.stack(
        [token_columns(policy, x["hidden"], torch.full((N,), v), 0.5, False)[0].exp() for v in range(known)]
    )
    assert (every.sum(0) - 1).abs().max().item() < 1e-12


def peak_bytes(step: Any) -> int:
    """Most bytes that live at one time beyond what was there before, from every allocation of the process."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        step()
    moves = [(e.start_ns(), e.nbytes()) for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    level = top = 0
    for _, size in sorted(moves, key=lambda move: move[0]):
        level += size
        top = max(top, level)
    return top


@pytest.mark.parametrize("entropy", [True, False])
def test_memory_is_that_of_two_chunks_and_not_of_the_whole(entropy: bool) -> None:
    tokens, vocabulary, width, chunk = 512, 50_000, 4, 64
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=draw).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=draw).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=draw)
    unit = chunk * vocabulary * 4

    def ours() -> None:
        logp, h = token_columns(head_policy(weight, None), hidden, targets, 0.7, entropy, chunk)
        (logp.sum() if h is None else logp.sum() + h.sum()).backward()

    def whole() -> None:
        (hidden @ weight.T).log_softmax(1).gather(1, targets[:, None]).sum().backward()

    needed = peak_bytes(ours)
    chunks = 2 if entropy else 1
    assert needed < (chunks + 0.2) * unit, needed / unit  # what is more is the head's gradient and the columns
    assert peak_bytes(whole) > 8 * unit
