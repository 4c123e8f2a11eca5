"""Tasks drawn by a sampler: in proportion, by id, honeypots and evaluation left alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from strop.core.sampler import EasyToHard, Failing, Learnable, Retire, Sampler, Target, Uniform
from strop.core.task import Task, Verdict
from strop.core.trajectory import Group, Trajectory
from strop.core.world import World
from strop.loop.drawing import Drawing, drawing
from strop.rollout.episode import NOTHING
from strop.watch.behaviour import HONEYPOT
from tests.rollout.worlds import Scripted, say, world

IDS = ("a", "b", "c", "d", "e")
SEEN: dict[str, Any] = {
    "batches": 4,
    "target": 3.2,
    "counts": {"a": [0.0, 16.0], "b": [8.0, 16.0], "c": [16.0, 16.0], "d": [2.0, 8.0]},
}
"""What a run remembers; `e` was never seen."""
SAMPLERS: list[Sampler] = [
    Learnable(),
    Failing(),
    Target(nearest=2),
    EasyToHard((3.0, 6.0)),
    Retire(),
]


def made(tasks: Sequence[Task] = tuple(map(Task, IDS)), **splits: Sequence[Task]) -> World:
    plain = world(lambda *_: Scripted(say("hi")), tasks=tasks)
    return replace(plain, tasks={"train": tasks, **splits}, difficulty=lambda task: float("abcdef".index(task.id[0])))


def group(task: str | Task, *scores: float | None) -> Group:
    """A group with a score for each member; None is one that nobody could judge."""
    given = Task(task) if isinstance(task, str) else task
    members = [Trajectory(given, (), NOTHING, "done", ()) for _ in scores]
    judged = [
        t.judged(Verdict(s, invalid=None if s is not None else "who knows"))
        for t, s in zip(members, scores, strict=True)
    ]
    return Group("train-000000", given, tuple(judged))


def tally(draws: Drawing, record: dict[str, Any], number: int) -> Counter[str]:
    return Counter(draws.task(record, "train", n).id for n in range(number))


def chi_square(found: Counter[str], chance: Sequence[float], number: int) -> float:
    """The statistic over all tasks with a chance; one that has none and was drawn all the same is beyond any limit."""
    pairs = list(zip(IDS, chance, strict=True))
    if any(found[task] for task, p in pairs if p == 0):
        return float("inf")
    return sum((found[task] - number * p) ** 2 / (number * p) for task, p in pairs if p)


LIMIT = 18.47
"""Exceeded with probability 0.001 at 4 degrees of freedom."""


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_tasks_are_drawn_in_proportion_to_their_chances(sampler: Sampler) -> None:
    draws = Drawing(sampler, made(), seed=0)
    chance = draws.all_chances(SEEN, "train").tolist()
    found = tally(draws, SEEN, 4000)
    assert chi_square(found, chance, 4000) < LIMIT
    assert chi_square(found, [0.2] * 5, 4000) > 5 * LIMIT  # the control: the same draws against other chances
    assert chi_square(tally(draws, {}, 4000), chance, 4000) > 5 * LIMIT  # and draws by another memory against these


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_a_draw_is_a_function_of_memory_number_and_seed(sampler: Sampler) -> None:
    one, other = Drawing(sampler, made(), seed=0), Drawing(sampler, made(), seed=0)
    tally(other, {}, 50)  # who drew before by another memory changes nothing
    wanted = [one.task(SEEN, "train", n).id for n in range(60)]
    again = [other.task(dict(SEEN), "train", n).id for n in reversed(range(60))]
    assert again[::-1] == wanted
    different = Drawing(sampler, made(), seed=1)
    assert [different.task(SEEN, "train", n).id for n in range(60)] != wanted


def test_a_group_is_drawn_by_what_is_remembered_when_it_is_launched() -> None:
    draws, memory = Drawing(Target(nearest=1), made(), 0), [dict(SEEN, target=0.0)]
    draw = draws.draws("train", lambda: memory[-1])
    assert draw(0).id == "a"
    memory.append(dict(SEEN, target=4.0))
    assert draw(0).id == "e"


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_the_order_of_the_tasks_means_nothing(sampler: Sampler) -> None:
    one, other = Drawing(sampler, made(), 0), Drawing(sampler, made(tuple(map(Task, "ecadb"))), 0)
    batch = [group("b", 1.0, 0.0), group("e", 0.0)]
    first, _ = one.step(SEEN, "train", batch)
    assert other.step(SEEN, "train", batch)[0] == first != SEEN
    assert [one.task(first, "train", n) for n in range(60)] == [other.task(first, "train", n) for n in range(60)]


def test_a_removed_task_is_forgotten_and_the_others_keep_what_was_seen_of_them() -> None:
    sampler = Learnable(decay=1.0)
    fewer = Drawing(sampler, made(tuple(map(Task, "bcdef"))), 0)
    record, _ = fewer.step(SEEN, "train", [])
    assert record["counts"] == {task: SEEN["counts"][task] for task in "bcd"}
    assert "a" not in tally(fewer, record, 300)
    back, _ = Drawing(sampler, made(), 0).step(record, "train", [])
    chance = Drawing(sampler, made(), 0).all_chances(back, "train")
    assert chance[0] == chance[4]  # a is as unknown as e


# --- what counts


def test_all_that_was_sampled_counts_and_what_nobody_could_judge_does_not() -> None:
    draws = Drawing(Learnable(decay=1.0), made(), 0)
    equal, torn, lost = group("a", 1.0, 1.0), group("b", 1.0, None, 0.0), group("c", None, None)
    record, _ = draws.step({}, "train", [equal, torn, lost])
    assert record["counts"] == {"a": [2.0, 2.0], "b": [1.0, 2.0]}


def test_honeypots_keep_their_uniform_share_and_are_counted_nowhere() -> None:
    trap = Task("e", tags=(HONEYPOT,))
    for sampler in SAMPLERS:
        draws = Drawing(sampler, made((*map(Task, "abcd"), trap)), 0)
        chance = draws.all_chances(SEEN, "train")
        assert chance[4] == 0.2 and chance.sum() == pytest.approx(1, abs=1e-15)
        honest = Drawing(sampler, made(tuple(map(Task, "abcd"))), 0).all_chances(SEEN, "train")
        assert chance[:4] == pytest.approx(0.8 * honest, abs=1e-15)
        before, _ = draws.step(SEEN, "train", [group("a", 1.0)])
        assert draws.step(SEEN, "train", [group("a", 1.0), group(trap, 1.0, 1.0)])[0] == before


def test_a_split_of_honeypots_alone_is_drawn_uniformly_and_remembered_never() -> None:
    traps = tuple(Task(task, tags=(HONEYPOT,)) for task in IDS)
    draws = Drawing(Learnable(), made(traps), 0)
    assert draws.all_chances({}, "train").tolist() == [0.2] * 5
    assert draws.step({}, "train", [group(traps[0], 1.0)]) == ({}, {})


def test_tasks_of_the_evaluation_are_never_drawn_and_leave_no_count() -> None:
    draws = Drawing(Learnable(), made(tuple(map(Task, "abc")), eval=tuple(map(Task, "de")), drill=(Task("c2"),)), 0)
    assert set(tally(draws, {}, 300)) == set("abc")
    record, _ = draws.step({}, "train", [group("d", 1.0), group("a", 1.0)])
    assert set(record["counts"]) == {"a"}
    drilled, _ = draws.step(record, "drill", [group("c2", 1.0)])
    assert set(drilled["counts"]) == {"a", "c2"}  # another training split forgets nothing of this one


def test_a_batch_is_told_by_what_it_was_drawn_from() -> None:
    def told(sampler: Sampler) -> dict[str, float]:
        metrics = Drawing(sampler, made(), 0).step(SEEN, "train", [group("a", 1.0)])[1]
        return {name: float(metric.value or 0.0) for name, metric in metrics.items()}

    assert told(Target(nearest=2)) == {"sampler_tasks": pytest.approx(2), "sampler_target": 3.2}
    found = told(Retire())
    assert found["sampler_unseen"] == 0.2 and found["sampler_solved"] == 0.2
    assert found["sampler_success"] == pytest.approx((1 / 18 + 9 / 18 + 17 / 18 + 3 / 10) / 4, rel=1e-14)
    first = Drawing(Learnable(), made(), 0).step({}, "train", [])[1]
    assert {name: m.value for name, m in first.items()} == {"sampler_tasks": pytest.approx(5), "sampler_unseen": 1.0}


def test_nobody_draws_for_the_uniform_sampler() -> None:
    assert drawing(Uniform(), made(), 0) is None
    assert isinstance(drawing(Learnable(), made(), 0), Drawing)
