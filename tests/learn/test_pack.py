"""Packing: every trained token once, next to the token that predicts it, whole trajectories, within the budget."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.core.trajectory import Origin, Row
from strop.learn.pack import Pack, count, pack
from strop.model.forward import packed_hidden, token_columns
from tests.learn.rows import tiny_policy

SOME = settings(max_examples=80, deadline=None, database=None)
CPU = torch.device("cpu")


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Rows of some trajectories, in any order; some have no trained token."""
    rows = []
    stream = np.random.default_rng(draw(st.integers(0, 2**32)))
    for number in range(draw(st.integers(1, 6))):
        for part in range(draw(st.integers(1, 3))):
            mask = np.array([False, *draw(st.lists(st.booleans(), max_size=8))])
            n = len(mask)
            rows.append(
                Row(
                    tokens=stream.integers(0, 1000, n).astype(np.int32),
                    sampled=mask,
                    behaviour_logp=np.where(mask, stream.normal(size=n), np.nan).astype(np.float32),
                    versions=np.where(mask, 3, -1).astype(np.int32),
                    turns=np.zeros(n, np.int32),
                    origin=Origin(f"train-{number // 2:06d}", number % 2, part),
                    columns={"advantage": stream.normal(size=n).astype(np.float32)},
                )
            )
    return draw(st.permutations(rows))


def tokens_of(packs: list[Pack]) -> Counter[tuple[object, ...]]:
    """What a loss would be told about each token: its own id, the ids before it, its columns."""
    seen: Counter[tuple[object, ...]] = Counter()
    for micro in packs:
        for i in range(len(micro.targets)):
            at = int(micro.predictors[i]) + 1
            start = at - int(micro.positions[at])
            assert int(micro.ids[at]) == int(micro.targets[i])
            history = tuple(micro.ids[start:at].tolist())
            numbers = (float(micro.behaviour_logp[i]), float(micro.advantage[i]))
            seen[(history, int(micro.targets[i]), bool(micro.sampled[i]), *map(repr, numbers))] += 1
    return seen


def expected(rows: list[Row], observations: bool) -> Counter[tuple[object, ...]]:
    out: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        for i in range(1, len(row)):
            if row.sampled[i] or observations:
                numbers = (float(row.behaviour_logp[i]), float(row.columns["advantage"][i]))
                out[
                    (tuple(row.tokens[:i].tolist()), int(row.tokens[i]), bool(row.sampled[i]), *map(repr, numbers))
                ] += 1
    return out


@SOME
@given(batches(), st.integers(1, 80), st.booleans())
def test_every_token_is_packed_once_with_its_own_history_and_numbers(
    rows: list[Row], budget: int, observations: bool
) -> None:
    packs = pack(rows, budget, observations, CPU)
    assert tokens_of(packs) == expected(rows, observations)


@SOME
@given(batches(), st.integers(1, 80), st.booleans())
def test_trajectories_stay_whole_and_the_budget_is_kept(rows: list[Row], budget: int, observations: bool) -> None:
    packs = pack(rows, budget, observations, CPU)
    homes: dict[tuple[str, int], int] = {}
    for number, micro in enumerate(packs):
        members = {(row.origin.group, row.origin.member) for row in micro.rows}
        assert all(homes.setdefault(member, number) == number for member in members)
        assert len(micro.ids) <= budget or len(members) == 1
        assert len(micro.ids) == sum(len(row) for row in micro.rows)
        counts = Counter(micro.trajectory[micro.sampled].tolist())
        assert [counts[i] for i in range(len(micro.trajectory_tokens))] == micro.trajectory_tokens.tolist()
        assert len(micro.trajectory_tokens) == len(members)


@SOME
@given(batches(), st.integers(1, 80), st.booleans())
def test_totals_are_those_of_all_micro_batches_together(rows: list[Row], budget: int, observations: bool) -> None:
    totals = count(rows, observations)
    packs = pack(rows, budget, observations, CPU)
    assert totals.tokens == sum(int(micro.sampled.sum()) for micro in packs)
    assert totals.trajectories == sum(int((micro.trajectory_tokens > 0).sum()) for micro in packs)
    assert totals.observations == sum(int((~micro.sampled).sum()) for micro in packs)


def test_a_shift_by_one_or_a_torn_trajectory_would_be_noticed() -> None:
    def row(member: int, part: int, mask: list[bool]) -> Row:
        n = len(mask)
        numbers = np.arange(n, dtype=np.float32) + 10 * member
        return Row(
            numbers.astype(np.int32),
            np.array(mask),
            numbers,
            np.zeros(n, np.int32),
            np.zeros(n, np.int32),
            Origin("g", member, part),
            {"advantage": numbers},
        )

    rows = [row(0, 0, [False, True, False]), row(0, 1, [False, False, True, True])]
    shifted = [
        Row(r.tokens, np.roll(r.sampled, -1), *(r.behaviour_logp, r.versions, r.turns, r.origin, r.columns))
        for r in rows
    ]
    with pytest.raises(ValueError, match="starts with a sampled"):
        pack(shifted, 99, False, CPU)
    late = [
        Row(r.tokens, np.roll(r.sampled, 1), *(r.behaviour_logp, r.versions, r.turns, r.origin, r.columns))
        for r in rows[:1]
    ]
    assert tokens_of(pack(late, 99, False, CPU)) != expected(rows[:1], False)
    assert len(pack(rows, 1, False, CPU)) == 1
    torn = [rows[0], row(1, 0, [False, False, True, True])]
    assert len(pack(torn, 1, False, CPU)) == 2


def test_the_only_shift_is_from_a_token_to_the_one_before_it() -> None:
    policy = tiny_policy()
    mask = np.array([False, False, False, True, False])
    numbers = np.zeros(5, np.float32)
    row = Row(
        np.arange(5, dtype=np.int32), mask, numbers, numbers.astype(np.int32), numbers.astype(np.int32), Origin("g", 0),
        {"advantage": numbers},
    )  # fmt: skip
    [micro] = pack([row], 99, False, CPU)
    table = policy.model.get_input_embeddings()
    seen: list[torch.Tensor] = []

    def keep(_: object, __: object, out: torch.Tensor) -> None:
        out.retain_grad()
        seen.append(out)

    handle = policy.model.base_model.norm.register_forward_hook(keep)  # type: ignore[union-attr, operator]
    hidden = packed_hidden(policy, micro.ids, micro.positions, micro.layout, micro.predictors)
    logp, _ = token_columns(policy, hidden, micro.targets, 1.0, False)
    logp.sum().backward()
    handle.remove()
    table.weight.grad = None
    [final] = seen
    assert final.grad is not None
    assert final.grad[0].abs().sum(1).bool().tolist() == [False, False, True, False, False]
    assert micro.targets.tolist() == [3]
