"""New tokens per second of `LocalEngine` against `transformers`' `generate` driven turn by turn, on one CPU thread.

Both sample the same number of tokens from the same 1 M parameter Llama for 64 trajectories (8 groups of 8, four turns).
`generate` gets the whole history of the whole batch each turn, left-padded, and loses its cache at the end of it; where
turns have several lengths it generates to the longest, and only the wanted tokens count. Invariant: a ratio pairs two
runs that follow each other in one process, so a busy machine slows both.

    python benchmarks/engine.py
"""

import argparse
import asyncio
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from strop.core.engine import Sampling
from strop.engine.local import LocalEngine
from strop.engine.process import ProcessEngine
from strop.model.attention import NAME
from strop.model.policy import Policy, freeze_randomness

GROUPS, MEMBERS, TURNS, VOCABULARY = 8, 8, 4, 1024


@dataclass(frozen=True, slots=True)
class Case:
    """Lengths of one workload, in tokens; `sampled` and `observed` are [trajectories, turns]."""

    name: str
    prompt: int
    sampled: np.ndarray
    observed: np.ndarray


@dataclass(frozen=True, slots=True)
class Result:
    """New tokens per second, medians over the repeats; `ratio` is the median of the paired ratios.

    `seconds` is the engine's time of one run, `forwarded` the tokens that went through the model in it (a prompt that a
    group shares once, observations, sampled ids).
    """

    case: str
    engine: float
    generate: float
    ratio: float
    seconds: float
    forwarded: int


def cases() -> list[Case]:
    """A: short prompts in lockstep. B: long shared prompts and observations. C: every trajectory its own lengths."""
    rng = np.random.default_rng(0)
    shape = (GROUPS * MEMBERS, TURNS)
    return [
        Case("A prompt 32, observation 8", 32, np.full(shape, 16), np.full(shape, 8)),
        Case("B prompt 512, observation 128", 512, np.full(shape, 16), np.full(shape, 128)),
        Case("C ragged, no lockstep", 32, rng.integers(4, 29, shape), rng.integers(8, 201, shape)),
    ]


def llama(key_heads: int = 4) -> PreTrainedModel:
    """The benchmark's model: 1.1 M parameters, random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=key_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


def parameters() -> int:
    """Weights that a token is multiplied with (the table of input embeddings is only looked up)."""
    model = llama()
    return sum(p.numel() for p in model.parameters()) - model.get_input_embeddings().weight.numel()


def prompts(case: Case) -> list[np.ndarray]:
    """The opening prompt of each trajectory: one a group."""
    rng = np.random.default_rng(1)
    return [p for p in rng.integers(0, VOCABULARY, (GROUPS, case.prompt)).astype(np.int32) for _ in range(MEMBERS)]


def observation(case: Case, row: int, turn: int) -> np.ndarray:
    """Ids that follow turn `turn` of trajectory `row`."""
    rng = np.random.default_rng((2, row, turn))
    return rng.integers(0, VOCABULARY, case.observed[row, turn]).astype(np.int32)


def play_engine(engine: LocalEngine | ProcessEngine, case: Case) -> None:
    """All trajectories through one engine, each going on as soon as it can; nothing is cached when it starts."""

    async def episode(row: int, history: np.ndarray) -> None:
        for turn in range(TURNS):
            sampling = Sampling(int(case.sampled[row, turn]))
            completion = await engine.sample(history, sampling, (0, row, turn), str(row))
            if len(completion.tokens) != sampling.max_tokens:
                raise RuntimeError("a completion is shorter than asked for")
            history = np.concatenate([history, completion.tokens, observation(case, row, turn)])
        await engine.end(str(row))

    async def play() -> None:
        await engine.load(None, engine.version + 1)
        await asyncio.gather(*(episode(row, prompt) for row, prompt in enumerate(prompts(case))))

    asyncio.run(play())


def play_generate(model: PreTrainedModel, case: Case) -> None:
    """All trajectories turn by turn, the whole history each time."""
    histories = prompts(case)
    for turn in range(TURNS):
        width, longest = max(map(len, histories)), int(case.sampled[:, turn].max())
        ids, mask = np.zeros((len(histories), width), np.int64), np.zeros((len(histories), width), np.int64)
        for row, history in enumerate(histories):
            ids[row, width - len(history) :], mask[row, width - len(history) :] = history, 1
        with torch.no_grad():
            out = model.generate(
                torch.from_numpy(ids),
                attention_mask=torch.from_numpy(mask),
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                pad_token_id=0,
                eos_token_id=None,
            )
        new = out[:, width:].numpy().astype(np.int32)
        if new.shape[1] != longest:
            raise RuntimeError("generate stopped early")
        histories = [
            np.concatenate([history, new[row, : case.sampled[row, turn]], observation(case, row, turn)])
            for row, history in enumerate(histories)
        ]


def timed(play: Callable[[], None], case: Case) -> float:
    """Wanted tokens per second of one run."""
    began = time.perf_counter()
    play()
    return float(case.sampled.sum()) / (time.perf_counter() - began)


def measure(repeats: int = 3, chosen: str = "ABC", key_heads: int = 4) -> list[Result]:
    """Numbers of every case, `repeats` pairs each; sets torch to one thread."""
    torch.set_num_threads(1)
    ours, theirs = llama(key_heads), llama(key_heads)
    freeze_randomness(ours)
    ours.set_attn_implementation(NAME)
    policy = Policy(ours, None, VOCABULARY)  # type: ignore[arg-type]  # no tokenizer is needed to sample ids
    results: list[Result] = []
    for case in cases():
        if case.name[0] not in chosen:
            continue
        engine = LocalEngine(policy, frozenset())  # kept between runs, as a training run keeps it between batches
        play_engine(engine, case)  # the first run grows the buffers; nothing of generate's outlives a turn
        before = engine.counts.prefilled + engine.counts.sampled
        pairs = [
            (
                timed(functools.partial(play_engine, engine, case), case),
                timed(functools.partial(play_generate, theirs, case), case),
            )
            for _ in range(repeats)
        ]
        results.append(
            Result(
                case.name,
                statistics.median(a for a, _ in pairs),
                statistics.median(b for _, b in pairs),
                statistics.median(a / b for a, b in pairs),
                float(case.sampled.sum()) / statistics.median(a for a, _ in pairs),
                (engine.counts.prefilled + engine.counts.sampled - before) // repeats,
            )
        )
    return results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default="ABC")
    parser.add_argument("--key-heads", type=int, default=4)
    given = parser.parse_args()
    print(f"{'case':32} {'engine tok/s':>13} {'generate tok/s':>15} {'ratio':>7}")
    for r in measure(given.repeats, given.cases, given.key_heads):
        print(f"{r.case:32} {r.engine:13.0f} {r.generate:15.0f} {r.ratio:6.2f}x")


if __name__ == "__main__":
    main()
