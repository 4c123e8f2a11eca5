"""Learner tokens per second: packed rows against padded fixed micro-batches, one thread, one process, paired ratios."""

import copy
import time
from dataclasses import dataclass

import numpy as np
import torch

from strop.algorithms import ALGORITHMS
from strop.core.source import ModelSource
from strop.core.trajectory import Origin, Row
from strop.learn.learner import LocalLearner
from strop.learn.schedule import Optimisation
from strop.model.load import load
from strop.model.policy import Policy


@dataclass(frozen=True)
class Result:
    """Medians of one case."""

    name: str
    packed: float
    padded: float
    seconds: float
    floor: float

    @property
    def ratio(self) -> float:
        return self.packed / self.padded


def rows_with(lengths: list[int], vocabulary: int, seed: int = 0) -> list[Row]:
    """Rows of these lengths; a third of the tokens is trained, as in a game."""
    rng = np.random.default_rng(seed)
    out: list[Row] = []
    for i, n in enumerate(lengths):
        sampled = np.zeros(n, dtype=np.bool_)
        sampled[1:] = rng.random(n - 1) < 1 / 3
        sampled[-1] = True
        logp = np.where(sampled, -1.0, np.nan).astype(np.float32)
        row = Row(
            rng.integers(0, vocabulary, n).astype(np.int32),
            sampled,
            logp,
            np.where(sampled, 0, -1).astype(np.int32),
            np.zeros(n, dtype=np.int32),
            Origin(f"train-{i // 8:06d}", i % 8),
        )
        advantage = np.where(sampled, rng.choice([-1.0, 1.0]), 0.0).astype(np.float32)
        out.append(row.with_columns(advantage=advantage))
    return out


def guess_lengths() -> list[int]:
    """Row lengths as they come out of the guessing game: an opening of 4 ids, turns of 2, answers of 4."""
    rng = np.random.default_rng(0)
    return [6 + 6 * int(k) for k in rng.choice(4, 256, p=[0.06, 0.12, 0.25, 0.57])]


def spread_lengths() -> list[int]:
    """Row lengths spread 1:20, log-uniform from 20 to 400."""
    rng = np.random.default_rng(1)
    return [int(n) for n in np.exp(rng.uniform(np.log(20), np.log(400), 256))]


def padded_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: list[Row], size: int) -> None:
    """What a plain trainer does: fixed micro-batches in order, padded on the right, all logits, token mean."""
    optimizer.zero_grad()
    total = sum(row.trained for row in rows)
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        width = max(map(len, batch))
        ids = torch.zeros(len(batch), width, dtype=torch.int64)
        attention, mask, advantage = (
            torch.zeros_like(ids),
            torch.zeros(len(batch), width),
            torch.zeros(len(batch), width),
        )
        for i, row in enumerate(batch):
            n = len(row)
            ids[i, :n] = torch.from_numpy(row.tokens.astype(np.int64))
            attention[i, :n] = 1
            mask[i, :n] = torch.from_numpy(row.sampled.astype(np.float32))
            advantage[i, :n] = torch.from_numpy(row.columns["advantage"])
        logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
        logp = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        loss = -(logp * advantage[:, 1:] * mask[:, 1:]).sum() / total
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def measure(name: str, lengths: list[int], policy: Policy, rate: float, repeats: int = 3) -> Result:
    """Paired medians of one case; `rate` is the machine's matrix-multiply rate in FLOP/s."""
    rows = rows_with(lengths, policy.vocabulary)
    learner = LocalLearner(policy, 1.0, 0)
    learner.begin(ALGORITHMS["grpo"], Optimisation(lr=1e-4, token_budget=8192), 100)
    plain = copy.deepcopy(policy.model)
    plain.set_attn_implementation("sdpa")
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True)
    learner.step(rows)
    padded_step(plain, optimizer, rows, 32)
    ours, theirs = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        learner.step(rows)
        middle = time.perf_counter()
        padded_step(plain, optimizer, rows, 32)
        ours.append(middle - began)
        theirs.append(time.perf_counter() - middle)
    tokens = sum(lengths)
    parameters = sum(p.numel() for p in policy.model.parameters()) - policy.model.get_input_embeddings().weight.numel()
    packed, padded = tokens / float(np.median(ours)), tokens / float(np.median(theirs))
    return Result(name, packed, padded, float(np.median(ours)), 6 * parameters * tokens / rate)


def results(rate: float) -> list[Result]:
    """Both cases on a model of about a million parameters."""
    torch.set_num_threads(1)
    policy = load(ModelSource(preset="tiny", width=128, layers=5, heads=4, context=512))
    return [
        measure("guess lengths", guess_lengths(), policy, rate),
        measure("spread 1:20", spread_lengths(), policy, rate),
    ]
