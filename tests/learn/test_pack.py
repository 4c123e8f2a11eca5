"""Packing: every trained token once, next to the token that predicts it, whole trajectories, within the budget."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.core.algorithm import Observations
from strop.core.trajectory import Origin, Row
from strop.learn.pack import Pack, count, pack
from strop.model.forward import packed_hidden, token_columns
from tests.learn.rows import tiny_policy

SOME = settings(max_examples=80, deadline=None, database=None)
CPU = torch.device("cpu")


TERMS = st.sampled_from([None, Observations(1.0), Observations(1.0, "answers")])
NAMES = ("advantage", "value", "value_target", "process_label", "correction")


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Rows of some trajectories, in any order; some have no trained token; labels are missing at some tokens."""
    rows = []
    stream = np.random.default_rng(draw(st.integers(0, 2**32)))
    for number in range(draw(st.integers(1, 6))):
        for part in range(draw(st.integers(1, 3))):
            mask = np.array([False, *draw(st.lists(st.booleans(), max_size=8))])
            n = len(mask)
            numbers = {name: stream.normal(size=n).astype(np.float32) for name in NAMES}
            for name in ("value_target", "process_label"):
                numbers[name][stream.random(n) < 0.5] = np.nan
            rows.append(
                Row(
                    tokens=stream.integers(0, 1000, n).astype(np.int32),
                    sampled=mask,
                    behaviour_logp=np.where(mask, stream.normal(size=n), np.nan).astype(np.float32),
                    versions=np.where(mask, 3, -1).astype(np.int32),
                    turns=np.sort(part + stream.integers(0, 2, n)).astype(np.int32),
                    origin=Origin(f"train-{number // 2:06d}", number % 2, part),
                    columns=numbers,
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
            columns = [micro.behaviour_logp, micro.advantage, *(micro.columns[name] for name in NAMES[1:])]
            sampled = bool(micro.sampled[i])
            place = (int(micro.order[i]) if sampled else None, int(micro.turn[i]))
            group = int(micro.group_tokens[micro.trajectory[i]])
            numbers = (repr(float(column[i])) for column in columns)
            seen[(history, int(micro.targets[i]), sampled, place, group, *numbers)] += 1
    return seen


def expected(rows: list[Row], observations: Observations | None) -> Counter[tuple[object, ...]]:
    out: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        mine = [r for r in rows if r.origin.group == row.origin.group]
        before = sum(
            r.trained for r in mine if r.origin.member == row.origin.member and r.origin.part < row.origin.part
        )
        for i in range(1, len(row)):
            asked = observations is not None and (observations.select == "all" or row.turns[i] > 0)
            if row.sampled[i] or asked:
                columns = [row.behaviour_logp, *(row.columns[name] for name in NAMES)]
                order = before + int(row.sampled[:i].sum()) if row.sampled[i] else None
                place, group = (order, int(row.turns[i])), sum(r.trained for r in mine)
                numbers = (repr(float(column[i])) for column in columns)
                history = tuple(row.tokens[:i].tolist())
                out[(history, int(row.tokens[i]), bool(row.sampled[i]), place, group, *numbers)] += 1
    return out


@SOME
@given(batches(), st.integers(1, 80), TERMS)
def test_every_token_is_packed_once_with_its_own_history_and_numbers(
    rows: list[Row], budget: int, observations: Observations | None
) -> None:
    packs = pack(rows, budget, observations, CPU)
    assert tokens_of(packs) == expected(rows, observations)


@SOME
@given(batches(), st.integers(1, 80), TERMS)
def test_trajectories_stay_whole_and_the_budget_is_kept(
    rows: list[Row], budget: int, observations: Observations | None
) -> None:
    packs = pack(rows, budget, observations, CPU)
    homes: dict[tuple[str, int], int] = {}
    for number, micro in enumerate(packs):
        members = {(row.origin.group, row.origin.member) for row in micro.rows}
        assert all(homes.setdefault(member, number) == number for member in members)
        assert len(micro.ids) <= budget or len(members) == 1
        assert len(micro.ids) == sum(len(row) for row in micro.rows)
        assert [int(micro.ids[i]) for i in micro.last] == [int(row.tokens[-1]) for row in micro.rows]
        counts = Counter(micro.trajectory[micro.sampled].tolist())
        assert [counts[i] for i in range(len(micro.trajectory_tokens))] == micro.trajectory_tokens.tolist()
        assert len(micro.trajectory_tokens) == len(micro.group_tokens) == len(members)


@SOME
@given(batches(), st.integers(1, 80), TERMS)
def test_totals_are_those_of_all_micro_batches_together(
    rows: list[Row], budget: int, observations: Observations | None
) -> None:
    totals = count(rows, observations is not None)
    packs = pack(rows, budget, observations, CPU)
    assert totals.tokens == sum(int(micro.sampled.sum()) for micro in packs)
    assert totals.trajectories == sum(int((micro.trajectory_tokens > 0).sum()) for micro in packs)
    assert totals.groups == len({row.origin.group for row in rows if row.trained})
    for name, found in (("value_target", totals.values), ("process_label", totals.labels)):
        assert found == sum(int((~micro.columns[name].isnan() & micro.sampled).sum()) for micro in packs)
    # of all observation tokens, also where fewer are predicted
    every = packs if observations is None else pack(rows, budget, Observations(1.0), CPU)
    assert totals.observations == sum(int((~micro.sampled).sum()) for micro in every)


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
            dict.fromkeys(NAMES, numbers),
        )

    rows = [row(0, 0, [False, True, False]), row(0, 1, [False, False, True, True])]
    shifted = [
        Row(r.tokens, np.roll(r.sampled, -1), *(r.behaviour_logp, r.versions, r.turns, r.origin, r.columns))
        for r in rows
    ]
    with pytest.raises(ValueError, match="starts with a sampled"):
        pack(shifted, 99, None, CPU)
    late = [
        Row(r.tokens, np.roll(r.sampled, 1), *(r.behaviour_logp, r.versions, r.turns, r.origin, r.columns))
        for r in rows[:1]
    ]
    assert tokens_of(pack(late, 99, None, CPU)) != expected(rows[:1], None)
    assert tokens_of(pack(rows, 99, None, CPU)) == expected(rows, None)
    apart = pack(rows[:1], 99, None, CPU) + pack(rows[1:], 99, None, CPU)
    assert tokens_of(apart) != expected(rows, None)  # numbers of tokens and sizes of groups are the trajectory's own
    assert len(pack(rows, 1, None, CPU)) == 1
    torn = [rows[0], row(1, 0, [False, False, True, True])]
    assert len(pack(torn, 1, None, CPU)) == 2


def test_the_only_shift_is_from_a_token_to_the_one_before_it() -> None:
    policy = tiny_policy()
    mask = np.array([False, False, False, True, False])
    numbers = np.zeros(5, np.float32)
    row = Row(
        np.arange(5, dtype=np.int32), mask, numbers, numbers.astype(np.int32), numbers.astype(np.int32), Origin("g", 0),
        {"advantage": numbers},
    )  # fmt: skip
    [micro] = pack([row], 99, None, CPU)
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
