"""Ratios over 50,000 tokens: nothing overflows, sums stay exact, the clamp is counted, and docs/ratios.md tells the truth."""

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.ratios import (
    LAWS,
    LENGTHS,
    LONGEST,
    ROWS,
    Law,
    Measured,
    block,
    drawn,
    measure,
    outside,
    picture,
    precision,
    precision_block,
    replaced,
    tokens_of,
    trained,
)
from strop.algorithms import ALGORITHMS
from strop.core.algorithm import (
    Clip,
    GrowingClip,
    MaskClip,
    NoClip,
    NoRatio,
    PPOClip,
    PrefixRatio,
    Ratio,
    SequenceRatio,
    SoftGate,
    TokenRatio,
    TrajectoryRatio,
    TurnRatio,
    WeightClip,
)
from strop.core.errors import UsageError
from strop.core.metrics import values
from strop.core.trajectory import Origin, Row
from strop.learn.pack import Pack, pack
from strop.objective.columns import Columns
from strop.objective.parts import MAX_LOG_RATIO, Places, log_ratio, unit_log_ratio
from strop.watch.run_folder import Keep, RunFolder
from tests.objective.batches import algorithm, step, totals_of

DOCS = Path(__file__).parents[2] / "docs"
NAMES = [law.name for law in LAWS]
TURN = 10_000

UNITS: dict[str, tuple[Ratio, float | None]] = {
    "none": (NoRatio(), 0),
    "token": (TokenRatio(), 1),
    "turn": (TurnRatio(), TURN),
    "prefix": (PrefixRatio(), None),
    "trajectory": (TrajectoryRatio(), LONGEST),
    "sequence": (SequenceRatio(), 1),
    "sequence of tokens": (SequenceRatio("token"), 1),
}
"""Each ratio with the size of its logarithm at a drift of 1 a token; None is the number of the token."""

CLIPS: tuple[Clip, ...] = (
    NoClip(),
    PPOClip(),
    PPOClip(3e-4, 4e-4, dual=3.0),
    GrowingClip(),
    GrowingClip(dual=0.05),
    WeightClip(),
    WeightClip(0.5, 5.0),
    MaskClip(),
    SoftGate(),
)


def drifting(length: int = LONGEST) -> Columns:
    """Four trajectories: log-ratios of 1 and -1 at every token, advantages of 1 and -1 with each; float32."""
    signs, advantages = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    trajectory = torch.arange(4).repeat_interleave(length)
    order = torch.arange(length).repeat(4)
    behaviour = torch.full((4 * length,), -3.0)
    counts = torch.full((4,), length)
    return Columns(
        behaviour + signs[trajectory],
        None,
        torch.ones(4 * length, dtype=torch.bool),
        behaviour,
        advantages[trajectory],
        trajectory,
        counts,
        order,
        order // TURN,
        torch.full((4,), 4 * length),
        behaviour,
    )


def places_of(batch: Columns) -> Places:
    return Places(batch.trajectory, batch.order, batch.turn, batch.trajectory_tokens)


@lru_cache
def measured(name: str) -> Measured:
    return measure(LAWS[NAMES.index(name)])


# --- nothing overflows


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
@pytest.mark.parametrize("name", UNITS)
def test_a_drift_of_one_per_token_leaves_every_clip_finite_forward_and_backward(name: str, clip: Clip) -> None:
    batch = drifting()
    found = step(algorithm(UNITS[name][0], clip), batch, totals_of(batch))
    assert math.isfinite(found.value)
    assert bool(found.gradients["logp"].isfinite().all())
    assert all(math.isfinite(x) for x in values(found.metrics).values() if x is not None)


@pytest.mark.parametrize("name", [n for n in UNITS if n != "none"])
def test_the_gradient_of_a_long_product_is_that_of_the_product_held_at_the_clamp(name: str) -> None:
    batch = drifting()
    ratio, size = UNITS[name]
    drift = batch.logp.double() - batch.behaviour_logp.double()
    true = drift * (batch.order + 1 if size is None else size)
    held = true.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    found = step(algorithm(ratio), batch, totals_of(batch)).gradients["logp"].double()
    torch.testing.assert_close(found, -batch.advantage.double() * held / len(held), rtol=1e-5, atol=0)
    logs = unit_log_ratio(ratio, log_ratio(batch.logp, batch.behaviour_logp), places_of(batch))
    assert torch.equal(logs.double(), true)
    assert bool(logs.exp().isinf().any() or (logs.exp() == 0).any()) == (abs(size or LONGEST) > 1)  # without the clamp


# --- the clamp is counted


@pytest.mark.parametrize(
    ("name", "held"),
    [("token", 0), ("turn", 1), ("prefix", (LONGEST - 19) / LONGEST), ("trajectory", 1), ("sequence", 0)],
)
def test_products_at_the_clamp_are_counted_and_tokens_are_not_blamed(name: str, held: float) -> None:
    batch = drifting()
    told = values(step(algorithm(UNITS[name][0]), batch, totals_of(batch)).metrics)
    assert told["unit_ratio_clamped"] == held
    assert told["ratio_clamped"] == 0


def test_without_a_ratio_there_is_no_share_of_clamped_ones() -> None:
    batch = drifting(10)
    assert "unit_ratio_clamped" not in step(algorithm(NoRatio()), batch, totals_of(batch)).metrics


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "held"), [(19.999, 0), (20.0, 1), (math.inf, 1), (-19.999, 0), (-20.0, 1), (-50.0, 1)]
)
def test_a_ratio_counts_as_clamped_from_twenty_on(size: float, held: float, dtype: torch.dtype) -> None:
    batch = drifting(7)
    cast = {name: getattr(batch, name).to(dtype) for name in ("behaviour_logp", "anchor_logp", "advantage")}
    batch = replace(batch, **cast, logp=cast["behaviour_logp"] + size)
    assert values(step(algorithm(TokenRatio()), batch, totals_of(batch)).metrics)["unit_ratio_clamped"] == held


def test_where_all_is_clamped_the_effective_share_looks_best_and_the_count_says_so() -> None:
    found = measured("drift 0.05")
    told = found.logged["trajectory"]
    assert told["unit_effective_tokens"] == pytest.approx(1, abs=1e-6)
    assert told["unit_ratio_clamped"] == 1
    assert found.samples["trajectory"][LONGEST].effective < 2 / LENGTHS[LONGEST]
    assert found.logged["token"]["unit_ratio_clamped"] == found.logged["sequence"]["unit_ratio_clamped"] == 0


# --- sums


def test_a_prefix_sum_of_50_000_tokens_is_the_exact_sum_to_the_last_bit_of_its_result() -> None:
    for law in LAWS:
        tokens = tokens_of(drawn(law, LONGEST, 1, 1))
        each = log_ratio(tokens.logp, tokens.anchor)
        prefix = unit_log_ratio(PrefixRatio(), each, tokens.places).numpy()
        total = unit_log_ratio(TrajectoryRatio(), each, tokens.places).numpy()
        ends = [1, 100, 2_500, 33_333, LONGEST]
        exact = [np.float32(math.fsum(each[:end].tolist())) for end in ends]
        assert [prefix[end - 1] for end in ends] == exact
        assert total[0] == total[-1] == exact[-1]
        running = np.cumsum(each.numpy(), dtype=np.float32)
        assert [running[end - 1] for end in ends] != exact


def test_a_running_sum_in_float32_misses_by_many_times_more() -> None:
    for law in LAWS:
        errors = precision(law)
        assert errors.sums <= errors.spacing / 2
        assert errors.running > 5 * errors.sums
        assert errors.sums < errors.rounding < 1e-3  # rounded log-probabilities are what is left


def split_rows(cuts: list[int], length: int, member: int, first: int, logs: np.ndarray) -> list[Row]:
    """A trajectory of `length` sampled tokens in rows, each with a context token before; ids number the sampled tokens."""
    rows = []
    for part, (start, end) in enumerate(zip([0, *cuts], [*cuts, length], strict=True)):
        n = end - start
        anchor = np.full(n, -3.0, np.float32)

        def padded(x: np.ndarray, context: float) -> np.ndarray:
            return np.concatenate([np.array([context], x.dtype), x])

        rows.append(
            Row(
                padded(np.arange(first + start, first + end, dtype=np.int32), 10**6),
                padded(np.ones(n, dtype=np.bool_), False),
                padded((anchor + logs[start:end]).astype(np.float32), np.nan),
                padded(np.zeros(n, dtype=np.int32), -1),
                np.full(n + 1, part, dtype=np.int32),
                Origin("train-000000", member, part),
                {"advantage": np.ones(n + 1, np.float32), "proximal_logp": padded(anchor, np.nan)},
            )
        )
    return rows


def prefix_of(micro: Pack, by_row: bool = False) -> torch.Tensor:
    """Prefix log-ratios of behaviour over proximal, by token id; with `by_row` as if each row were a trajectory."""
    trajectory, order, counts = micro.trajectory, micro.order, micro.trajectory_tokens
    if by_row:
        trajectory, order = (torch.from_numpy(x) for x in micro.places)
        counts = torch.bincount(trajectory)
    each = log_ratio(micro.behaviour_logp, micro.columns["proximal_logp"])
    logs = unit_log_ratio(PrefixRatio(), each, Places(trajectory, order, micro.turn, counts))
    return logs[micro.targets.argsort()]


def test_a_trajectory_in_many_rows_has_the_prefix_ratios_of_the_same_tokens_in_one() -> None:
    draw = np.random.default_rng(5)
    lengths, firsts = (LONGEST, 20_000), (0, LONGEST)
    logs = [drawn(LAWS[0], n, 2, 1)[0] for n in lengths]
    cuts = [sorted(draw.choice(np.arange(1, n), 12, replace=False).tolist()) for n in lengths]

    def packed(where: list[list[int]]) -> Pack:
        rows = [r for m in (0, 1) for r in split_rows(where[m], lengths[m], m, firsts[m], logs[m])]
        (micro,) = pack([rows[i] for i in draw.permutation(len(rows))], 10**6, None, torch.device("cpu"))
        return micro

    whole, split = packed([[], []]), packed(cuts)
    assert len(split.rows) == 26
    torch.testing.assert_close(prefix_of(split), prefix_of(whole), rtol=0, atol=4e-6)  # a bit of float32 at 62
    assert (prefix_of(split, by_row=True) - prefix_of(whole)).abs().max() > 10


# --- the laws, and the page


@pytest.mark.parametrize("name", NAMES)
def test_every_ratio_follows_the_law_it_was_drawn_from(name: str) -> None:
    found = measured(name)
    law = found.law
    powers = {"token": 0.0, "prefix": 0.5, "trajectory": 0.5, "sequence": -0.5}
    for ratio, power in powers.items():
        assert found.growth(ratio) == pytest.approx(power, abs=0.02)
        for t, one in found.samples[ratio].items():
            n, spread = LENGTHS[t], law.size * t**power
            shift = law.mean * (t if power > 0 else 1)
            assert one.logs.std() == pytest.approx(spread, rel=4 / math.sqrt(2 * n))
            assert abs(one.logs.mean() - shift) < 4 * spread / math.sqrt(n)
            assert abs(np.median(one.logs) - shift) < 5 * spread / math.sqrt(n)
            if spread < 0.6:
                assert one.effective == pytest.approx(math.exp(-(spread**2)), abs=0.02)


def far(found: Measured, law: Law) -> float:
    """How many standard errors the clipped shares are from those of a law, at worst."""
    clip = ALGORITHMS["ctpo"].clip
    assert isinstance(clip, GrowingClip)
    worst = 0.0
    for t, one in found.samples["prefix"].items():
        for share, exact in zip(("below", "above"), outside(law, clip, t), strict=True):
            told = values(one.metrics)[share]
            assert told is not None
            worst = max(worst, abs(told - exact) / math.sqrt(exact * (1 - exact) / LENGTHS[t] + 1e-6))
    return worst


@pytest.mark.parametrize("name", NAMES)
def test_shares_outside_the_growing_bounds_are_the_tails_of_the_law(name: str) -> None:
    found = measured(name)
    assert far(found, found.law) < 4
    assert far(found, Law(found.law.size, not found.law.drift)) > 5 or found.law.size < 0.05
    assert far(found, Law(0.02, found.law.drift)) > 5


def test_with_drift_the_growing_bounds_lose_all_long_products() -> None:
    clip = GrowingClip()
    shares = [outside(Law(0.05, True), clip, t) for t in LENGTHS]
    assert [round(below, 2) for below, _ in shares] == [0.32, 0.40, 0.77, 1.0]
    assert [round(above, 2) for _, above in shares] == [0.15, 0.11, 0.01, 0.0]
    still = [outside(Law(0.05, False), clip, t) for t in LENGTHS]
    assert still == [pytest.approx(still[0], rel=1e-9)] * len(LENGTHS)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_holds_the_numbers_of_each_law(name: str) -> None:
    page = (DOCS / "ratios.md").read_text()
    content = block(measured(name))
    assert replaced(page, name, content) == page
    assert replaced(page, name, content.replace("| 50,000 |", "| 50,001 |", 1)) != page


def test_the_page_holds_the_errors_of_sums_and_the_picture() -> None:
    page = (DOCS / "ratios.md").read_text()
    assert replaced(page, "precision", precision_block(precision(LAWS[0]))) == page
    assert picture(LAWS[0].size, measured(NAMES[0])) == (DOCS / "ratios.svg").read_text()
    assert picture(LAWS[2].size, measured(NAMES[0])) != (DOCS / "ratios.svg").read_text()


def test_a_page_without_the_block_is_refused() -> None:
    with pytest.raises(UsageError, match="no block"):
        replaced("# Page\n", "precision", "")


# --- runs


def update(
    versions: list[int], now: list[float], before: list[float], rows: list[int], member: list[int]
) -> dict[str, np.ndarray]:
    """Columns of an update whose rows have a context token each; all of draw 4."""
    length = np.array(rows, dtype=np.int32) + 1
    sampled = np.concatenate([[0, *[1] * n] for n in rows]).astype(np.uint8)
    flat = {name: np.full(len(sampled), np.nan, np.float32) for name in ("current_logp", "behaviour_logp")}
    flat["current_logp"][sampled == 1], flat["behaviour_logp"][sampled == 1] = now, before
    version = np.full(len(sampled), -1, np.int32)
    version[sampled == 1] = versions
    return {
        **flat,
        "sampled": sampled,
        "versions": version,
        "row_length": length,
        "row_draw": np.full(len(rows), 4, dtype=np.int64),
        "row_member": np.array(member, dtype=np.int32),
    }


def test_trajectories_of_a_run_are_put_together_from_their_rows_and_told_apart_by_lag(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {}, Keep(updates=9))
    nan = math.nan
    run.save_update(3, update([2, 2, 2, 2], [-1, -2, -3, -4], [-1.5, -2, -2, -8], [2, 1, 1], [0, 1, 0]))
    run.save_update(
        5, update([2, 2, 4, 0, 4], [-1, -2, -3, -4, -5], [-1, -1, -1, -1, nan], [1, 1, 1, 1, 1], [0, 1, 2, 3, 4])
    )
    run.save_update(6, update([3, 4], [-1, -2], [-1, -2], [2], [0]))  # two versions in one trajectory
    by_lag = trained(run.path)
    assert list(by_lag) == [0, 2, 4]
    fresh = by_lag[0]
    assert fresh.places.lengths.tolist() == [3, 1, 1]
    assert fresh.logp.tolist() == [-1, -2, -4, -3, -3]
    assert fresh.anchor.tolist() == [-1.5, -2, -8, -2, -1]
    assert fresh.places.order.tolist() == [0, 1, 2, 0, 0]
    assert by_lag[2].logp.tolist() == [-1, -2]
    assert by_lag[4].logp.tolist() == [-4]


def test_a_run_of_demonstrations_has_no_ratios_to_show(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {}, Keep(updates=9))
    run.save_update(1, update([-1, -1], [-1, -1], [math.nan, math.nan], [2], [0]))
    with pytest.raises(UsageError, match="no update of sampled tokens"):
        trained(run.path)


def test_the_four_ratios_of_the_page_are_those_of_their_rows() -> None:
    kinds = {"token": TokenRatio, "prefix": PrefixRatio, "trajectory": TrajectoryRatio, "sequence": SequenceRatio}
    assert {name: type(ALGORITHMS[row].ratio) for name, row in ROWS.items()} == kinds
