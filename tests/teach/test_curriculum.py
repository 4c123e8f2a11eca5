"""The formulas of curricula, against numbers from elsewhere and exact fractions."""

import json
from fractions import Fraction
from math import factorial, log

import numpy as np
import pytest

from strop.core.sampler import EasyToHard, Failing, Learnable, Retire, Sampler, Target, Uniform
from strop.teach import curriculum
from strop.teach.curriculum import (
    PRIOR,
    Pool,
    Progress,
    after,
    chances,
    effective,
    estimated,
    failure,
    learnability,
    levels,
    mixed,
    moved,
    progress_of,
    solved,
)
from tests.objective.batches import VECTORS

SAMPLERS: list[Sampler] = [Learnable(), Failing(), Target(nearest=2), EasyToHard((3.0, 6.0)), Retire()]
POOL = Pool(("a", "b", "c", "d", "e"), np.array([2.0, 3.0, 3.0, 5.0, 8.0]))
KNOWN = frozenset(POOL.ids)


def array(*numbers: float) -> curriculum.Numbers:
    return np.array(numbers, np.float64)


# --- weights


def test_exact_success_rates_give_the_weights_of_the_vector() -> None:
    vector = VECTORS["curriculum.learnability"]
    rates, expected = array(*vector["inputs"]["pass_rates"]), vector["expected"]
    many = 1e12  # so many episodes that n / (n + 1) is 1
    found = learnability(rates * many, np.full(5, many), prior=0.0)
    assert found == pytest.approx(expected["learnability"], abs=1e-9)
    assert mixed(found) == pytest.approx(expected["sampling_probs"], abs=1e-9)
    assert mixed(failure(rates * many, np.full(5, many), prior=0.0)) == pytest.approx(
        expected["kimi_1_minus_p"], abs=1e-9
    )
    few = learnability(rates * 8, np.full(5, 8.0), prior=0.0)  # without a prior the chances know no number of episodes
    assert mixed(few) == pytest.approx(expected["sampling_probs"], abs=1e-9)
    assert mixed(learnability(rates * 8, np.full(5, 8.0))) != pytest.approx(expected["sampling_probs"], abs=1e-2)


def test_the_target_moves_as_in_the_vector() -> None:
    vector = VECTORS["curriculum.adarft"]
    given = vector["inputs"]
    low, high = given["d_min"], given["d_max"]
    by = Target(given["beta"], given["eta"] / (high - low), given["alpha"])
    found = [moved(t, r, low, high, by) for t, r in zip(given["T"], given["avg_reward"], strict=True)]
    assert found == pytest.approx(vector["expected"]["next_T"], abs=1e-9)
    assert [moved(t, 0.5, low, high, by) for t in given["T"]] == given["T"]  # at the level it stands


def test_three_of_eight_have_the_learnability_of_the_beta_posterior() -> None:
    assert learnability(array(3), array(8))[0] == pytest.approx(0.218182, abs=5e-7)
    assert learnability(array(0), array(0))[0] == pytest.approx(1 / 6, abs=1e-15)


@pytest.mark.parametrize(("s", "n"), [(0, 0), (3, 8), (0, 8), (8, 8), (1, 30)])
def test_the_posterior_means_are_the_integrals_that_they_stand_for(s: int, n: int) -> None:
    def beta(a: int, b: int) -> Fraction:  # the integral of p^(a-1) (1-p)^(b-1) for whole numbers
        return Fraction(factorial(a - 1) * factorial(b - 1), factorial(a + b - 1))

    a, b = 1 + s, 1 + n - s
    assert learnability(array(s), array(n))[0] == pytest.approx(float(beta(a + 1, b + 1) / beta(a, b)), rel=1e-14)
    assert failure(array(s), array(n))[0] == pytest.approx(float(beta(a, b + 1) / beta(a, b)), rel=1e-14)


def test_learnable_and_failing_mix_their_weights_with_a_uniform_floor() -> None:
    progress = Progress(counts={"a": (3.0, 8.0), "c": (8.0, 8.0)})
    w = [Fraction(24, 110), Fraction(1, 6), Fraction(9, 110), Fraction(1, 6), Fraction(1, 6)]
    expected = [float(Fraction(9, 10) * x / sum(w) + Fraction(1, 50)) for x in w]
    assert chances(Learnable(), progress, POOL) == pytest.approx(expected, abs=1e-15)
    f = [Fraction(6, 10), Fraction(1, 2), Fraction(1, 10), Fraction(1, 2), Fraction(1, 2)]
    expected = [float(Fraction(3, 4) * x / sum(f) + Fraction(1, 20)) for x in f]
    assert chances(Failing(0.25), progress, POOL) == pytest.approx(expected, abs=1e-15)
    assert chances(Failing(0.2), progress, POOL) != pytest.approx(expected, abs=1e-3)


def test_no_task_falls_below_the_floor_however_hopeless_it_is() -> None:
    progress = Progress(counts={"a": (0.0, 1e9), "b": (1e9, 1e9), "c": (4.0, 8.0)})
    for sampler in (Learnable(0.1, 1.0), Failing(0.1, 1.0)):
        assert chances(sampler, progress, POOL).min() >= 0.1 / 5
    assert 0 < chances(Learnable(0.0, 1.0), progress, POOL).min() < 1e-6


@pytest.mark.parametrize("sampler", [Uniform(), *SAMPLERS], ids=str)
def test_chances_are_chances_and_start_the_same_for_equal_tasks(sampler: Sampler) -> None:
    found = chances(sampler, Progress(), POOL)
    assert found.sum() == pytest.approx(1, abs=1e-15) and (found >= 0).all()
    if not isinstance(sampler, Target | EasyToHard):
        assert found == pytest.approx(np.full(5, 0.2), abs=1e-15)


# --- by difficulty


def test_the_tasks_nearest_to_the_target_share_the_draws_ties_and_all() -> None:
    def share(target: float | None, nearest: int) -> list[float]:
        return chances(Target(nearest=nearest), Progress(target=target), POOL).tolist()

    assert share(None, 1) == [1, 0, 0, 0, 0]  # it begins at the easiest
    assert share(3.2, 1) == [0, 0.5, 0.5, 0, 0]
    assert share(4.0, 1) == [0, 1 / 3, 1 / 3, 1 / 3, 0]  # 3, 3 and 5 are equally near
    assert share(7.0, 2) == [0, 0, 0, 0.5, 0.5]
    assert share(7.0, 64) == [0.2] * 5


def test_the_target_follows_the_success_of_a_batch_within_the_range_of_difficulties() -> None:
    by = Target(0.5, 0.5, 2.0, 1)
    progress = after(by, Progress(), [("a", [1.0, 1.0]), ("b", [1.0, 0.0])], POOL, KNOWN)
    assert progress.target == 2.0 + 0.5 * 6.0 * np.tanh(2.0 * 0.25)
    assert progress.counts == {}  # it asks for no counts, so it keeps none
    assert after(by, progress, [("a", [0.0])], POOL, KNOWN).target == 2.0
    assert after(by, Progress(target=7.5), [("a", [1.0])], POOL, KNOWN).target == 8.0
    assert after(by, progress, [("a", [])], POOL, KNOWN).target == progress.target  # nobody could judge: it stands


def test_levels_are_ranks_in_equal_parts_and_equal_tasks_are_in_one() -> None:
    assert levels(array(5, 1, 3, 2, 4, 6), 3).tolist() == [2, 0, 1, 0, 1, 2]
    assert levels(array(1, 1, 1, 1, 2, 3), 3).tolist() == [0, 0, 0, 0, 2, 2]  # level 1 is empty


def test_levels_open_after_their_steps_and_earlier_ones_keep_a_share() -> None:
    pool = Pool(tuple("abcdef"), array(5, 1, 3, 2, 4, 6))
    by = EasyToHard((3.0, 6.0), 0.2)

    def share(batches: int) -> list[float]:
        return chances(by, Progress(batches), pool).tolist()

    assert share(0) == share(2) == [0, 0.5, 0, 0.5, 0, 0]
    assert share(3) == share(5) == [0, 0.1, 0.4, 0.1, 0.4, 0]
    assert share(6) == share(99) == [0.4, 0.05, 0.05, 0.05, 0.05, 0.4]
    flat = Pool(tuple("abcdef"), array(1, 1, 1, 1, 2, 3))
    assert chances(by, Progress(3), flat).tolist() == [0.25] * 4 + [0, 0]  # an empty level opens nothing


def test_a_sampler_by_difficulty_cannot_draw_where_nobody_told_it() -> None:
    with pytest.raises(ValueError, match=r"World\.difficulty"):
        chances(Target(), Progress(), Pool(("a", "b")))


# --- retirement


def test_solved_tasks_share_what_revisiting_leaves_them() -> None:
    progress = Progress(counts={"a": (8.0, 8.0), "b": (7.0, 8.0), "c": (7.2, 8.0), "d": (3.0, 3.0)})
    assert solved(Retire(0.9), progress, POOL).tolist() == [True, False, True, False, False]  # d: too few episodes
    expected = [0.05, 0.3, 0.05, 0.3, 0.3]
    assert chances(Retire(0.9, 0.1), progress, POOL) == pytest.approx(expected, abs=1e-15)
    everything = Progress(counts=dict.fromkeys(POOL.ids, (8.0, 8.0)))
    assert chances(Retire(), everything, POOL).tolist() == [0.2] * 5


def test_a_solved_task_comes_back_when_its_counts_are_forgotten_or_it_fails() -> None:
    by, progress = Retire(0.9, 0.1, 0.9), after(Retire(), Progress(), [("a", [1.0] * 8)], POOL, KNOWN)
    standing = []
    for _ in range(8):
        standing.append(bool(solved(by, progress, POOL)[0]))
        progress = after(by, progress, [], POOL, KNOWN)
    assert standing == [True] * 7 + [False]  # 8 * 0.9^6 = 4.3 and 8 * 0.9^7 = 3.8 episodes are left
    failed = after(by, Progress(counts={"a": (8.0, 8.0)}), [("a", [0.0] * 2)], POOL, KNOWN)
    assert not solved(by, failed, POOL)[0]


# --- what is remembered


def test_counts_add_up_and_are_forgotten_by_the_batch() -> None:
    first = after(Learnable(decay=0.5), Progress(), [("a", [1.0, 0.0]), ("a", [1.0]), ("b", [0.25, 7.0])], POOL, KNOWN)
    assert first == Progress(1, None, {"a": (2.0, 3.0), "b": (1.25, 2.0)})  # a score above 1 counts as 1
    second = after(Learnable(decay=0.5), first, [("b", [0.0])], POOL, KNOWN)
    assert second == Progress(2, None, {"a": (1.0, 1.5), "b": (0.625, 2.0)})
    assert after(Learnable(decay=1.0), first, [], POOL, KNOWN).counts == first.counts


def test_a_removed_task_is_forgotten_and_a_new_one_starts_at_the_prior() -> None:
    progress = Progress(5, None, {"a": (1.0, 8.0), "b": (6.0, 8.0)})
    pool = Pool(("b", "z"))
    found = after(Learnable(decay=1.0), progress, [("b", [1.0])], pool, frozenset(pool.ids))
    assert found.counts == {"b": (7.0, 9.0)}
    weights = [Fraction(8 * 3, 11 * 12), Fraction(1, 6)]
    assert chances(Learnable(0.0), found, pool) == pytest.approx([float(w / sum(weights)) for w in weights], abs=1e-15)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curriculum, "MOST", 3)
    progress = Progress(counts={"e": (1.0, 2.0)})
    batch = [(task, [1.0] * (1 + k % 3)) for k, task in enumerate("abcd")]  # 1, 2, 3 and 1 episodes
    found = after(Learnable(decay=1.0), progress, batch, POOL, KNOWN)
    assert list(found.counts) == ["b", "c", "e"]  # those with the most evidence
    for _ in range(40):
        found = after(Learnable(decay=0.9), found, [], POOL, KNOWN)
    assert found.counts == {} and found.batches == 41


def test_forgetting_alone_bounds_the_tasks_of_a_long_run() -> None:
    ids = [f"{k:05d}" for k in range(4000)]
    pool, progress = Pool(tuple(ids)), Progress()
    for step in range(200):
        progress = after(
            Learnable(decay=0.9),
            progress,
            [(ids[(4 * step + k) % 4000], [1.0] * 8) for k in range(4)],
            pool,
            frozenset(ids),
        )
    assert len(progress.counts) == 4 * (1 + int(log(8 / curriculum.FORGOTTEN) / -log(0.9)))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_progress_comes_back_equal_from_json(sampler: Sampler) -> None:
    progress = Progress()
    assert progress_of({}) == progress
    for scores in ([1.0, 0.0, 0.3], [0.0], [1.0]):
        progress = after(sampler, progress, [("a", scores), ("e", scores[:1])], POOL, KNOWN)
        assert progress_of(json.loads(json.dumps(progress.record()))) == progress
    assert progress != after(sampler, progress, [("a", [1.0])], POOL, KNOWN)


# --- what is told of it


def test_the_effective_number_of_tasks_is_their_number_where_chances_are_equal() -> None:
    assert effective(np.full(7, 1 / 7)) == pytest.approx(7, rel=1e-14)
    assert effective(array(0, 1, 0)) == 1
    assert effective(array(0.5, 0.25, 0.25)) == pytest.approx(2**1.5, rel=1e-14)


def test_the_estimate_speaks_of_seen_tasks_only() -> None:
    assert estimated(Progress(), POOL) == (None, 1.0)
    mean, unseen = estimated(Progress(counts={"a": (3.0, 8.0), "b": (8.0, 8.0)}), POOL)
    assert mean == pytest.approx((4 / 10 + 9 / 10) / 2, rel=1e-14) and unseen == 3 / 5
    assert PRIOR == 1.0
