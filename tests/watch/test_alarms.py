"""Each alarm is raised by what it is for and by nothing else, once, whatever the order of episodes, also after a resume."""

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.core.task import Task, Verdict
from strop.core.trajectory import Trajectory
from strop.watch.alarms import ADVICE, CLEAR, NAMES, RULES, Alarm, look
from strop.watch.memory import KEPT, TRACKS, Memory, memory_of
from strop.watch.sight import KEPT as NAMES_KEPT
from strop.watch.sight import Played, Sight, see, see_held_out
from strop.watch.sums import Shares, Sums, add, by_group, most_frequent, rise
from tests.rollout.worlds import Scripted, world
from tests.watch.episodes import HONEYPOT, episode, turn
from tests.watch.simulated import AT, PLANTED, SIZES, SOUND, alarms

WORLD = world(lambda *_: Scripted(None))
ACTING = replace(WORLD, actions=lambda message: message.content.split()[0])


def names(found: Sequence[Alarm]) -> list[str]:
    return [alarm.name for alarm in found]


# --- sums


def test_a_rise_by_hand() -> None:
    """Groups of one episode: the pooled error is that of two proportions with n - 1 for n."""
    before = by_group([(f"a{i}", float(i < 2), 1.0) for i in range(10)])
    after = by_group([(f"b{i}", float(i < 8), 1.0) for i in range(10)])
    found = rise(before, after)
    assert found.rise == pytest.approx(0.6, abs=1e-15)
    assert found.error == pytest.approx(math.sqrt(20 / 19 * 0.25 * (1 / 10 + 1 / 10)), abs=1e-15)
    assert found.spread == pytest.approx(math.sqrt(20 / 19 * 0.25), abs=1e-15)


def test_episodes_that_go_together_are_one_observation() -> None:
    """Eight equal members a group know no more than one does; taken as eight they would."""
    one = [by_group([(f"{w}{i}", float(i < k), 1.0) for i in range(10)]) for w, k in (("a", 2), ("b", 8))]
    eight = [
        by_group([(f"{w}{i}", float(i < k), 1.0) for i in range(10) for _ in range(8)]) for w, k in (("a", 2), ("b", 8))
    ]
    assert rise(*eight).error == pytest.approx(rise(*one).error, rel=1e-12)
    apart = [
        by_group([(f"{w}{i}/{j}", float(i < k), 1.0) for i in range(10) for j in range(8)])
        for w, k in (("a", 2), ("b", 8))
    ]
    assert rise(*apart).error < 0.4 * rise(*one).error


def test_nothing_is_known_of_too_few_groups() -> None:
    assert rise(Sums(), by_group([("a", 1.0, 1.0)] * 3)).above(0.0) == -math.inf
    assert by_group([("a", 0.0, 0.0)]) == Sums()
    assert math.isnan(Sums().value)


def test_a_name_that_was_not_kept_counts_as_often_as_it_can_have_occurred() -> None:
    shares = most_frequent(3, 20, {"a": 9, "b": 4, "c": 4, "d": 3}, 2)
    assert (dict(shares.counts), shares.floor) == ({"a": 9.0, "b": 4.0}, 4.0)
    assert [shares.at_most(name) for name in "abcdx"] == [9.0, 4.0, 4.0, 4.0, 4.0]
    assert most_frequent(3, 20, {"a": 9}, 2).at_most("x") == 0.0


# --- rules on simulated runs


def rule_of(case: str, table: dict[str, Any]) -> str:
    return table[case][0]


@pytest.mark.parametrize("case", SOUND)
def test_a_sound_run_raises_no_alarm(case: str) -> None:
    """But for the plateau: what is simulated for another rule does stand still."""
    rule, make = SOUND[case]
    assert [n for n in names(alarms(make(SIZES["8 x 4"], 1))) if n != "plateau" or n == rule] == [], rule


@pytest.mark.parametrize("case", PLANTED)
def test_what_is_planted_is_found_and_not_before_it_is_there(case: str) -> None:
    rule, make = PLANTED[case]
    [found] = alarms(make(SIZES["32 x 8"], 1), first=rule)
    planted = 300 if rule == "reward_fell" else AT
    assert found.name == rule
    assert planted <= found.step <= planted + (200 if rule == "plateau" else 100)
    assert found.value > found.limit


def test_every_rule_is_simulated_or_has_a_test_of_its_own() -> None:
    assert {rule for rule, _ in PLANTED.values()} | {"honeypot", "tests_touched"} == set(NAMES)
    assert {rule for rule, _ in SOUND.values()} | {"honeypot", "tests_touched"} == set(NAMES)
    assert set(ADVICE) == set(NAMES)
    assert all(rule.advice.endswith(".") for rule in RULES)


# --- the plateau


def still(success: float, steps: int = 300, **more: Any) -> list[Alarm]:
    """The alarms of a run whose success is the same in every step."""
    sums = by_group([(f"{i}", success, 1.0) for i in range(8)])
    return alarms(Sight(n, {"success": sums}, **more) for n in range(1, steps + 1))


def test_success_that_never_was_there_stands_still_after_two_hundred_steps() -> None:
    assert [(a.name, a.step, a.value) for a in still(0.0)] == [("plateau", 200, 0.03)]
    assert still(0.0, steps=199) == []


def test_what_is_solved_does_not_stand_still() -> None:
    """Solved is measured by the best that is possible."""
    assert still(0.96) == still(0.4, best=0.42) == []
    assert names(still(0.94)) == names(still(0.4, best=0.43)) == ["plateau"]


def test_a_plateau_cites_the_ceiling_of_the_audit_and_only_where_there_is_one() -> None:
    [capped] = still(0.8, ceiling=(0.83, 0.7, 0.9))
    [free] = still(0.8)
    assert capped.sentence == (
        "success stands still: 0.80 in the newest 100 steps, 0.80 in the 100 before; the audit holds that this verifier "
        "caps it near 0.83 (95 %: 0.70 to 0.90)"
    )
    assert free.sentence == capped.sentence.split(";")[0]


def test_a_rise_of_three_points_in_a_hundred_steps_is_no_plateau_and_one_a_bit_smaller_is() -> None:
    """Without noise, the limit is exact: halves are a hundred steps apart."""

    def run_of(slope: float) -> list[str]:
        made = (by_group([(f"{i}", 0.2 + slope * (n // 100), 1.0) for i in range(8)]) for n in range(200))
        return names(alarms(Sight(n, {"success": sums}) for n, sums in enumerate(made, 1)))

    assert run_of(0.04) == []
    assert run_of(0.01) == ["plateau"]


# --- rules on episodes


def run(steps: Sequence[Sequence[Played]], of: Any = WORLD) -> list[Alarm]:
    memory, found = Memory(), list[Alarm]()
    for number, episodes in enumerate(steps, 1):
        memory, raised = look(memory, see(of, number, episodes))
        found += raised
    return found


def batch(
    make: Callable[[int], Any], step: int, second: Callable[[int], Verdict | None] = lambda i: None
) -> list[Played]:
    """Sixteen episodes, four groups of four."""
    return [Played(f"g-{step}-{i // 4}/{i % 4}", f"g-{step}-{i // 4}", make(i), second(i)) for i in range(16)]


def verdict(passed: bool, **aux: float) -> Verdict:
    return Verdict(float(passed), aux=aux)


def test_a_widening_gap_names_the_episodes_that_show_it() -> None:
    def step(n: int) -> list[Played]:
        cheats = n > 10
        return batch(lambda i: episode(verdict(cheats or i % 4 == 0)), n, lambda i: verdict(i % 4 == 0))

    [found] = run([step(n) for n in range(1, 30)])
    assert (found.name, found.subject) == ("proxy_gap", "proxy_gap")
    assert 10 < found.step < 16
    assert found.episodes == tuple(sorted(f"g-{found.step}-{i // 4}/{i % 4}" for i in range(16) if i % 4))[:5]
    assert "it was 0.00 at the start" in found.sentence


def test_a_gap_that_is_there_from_the_start_does_not_widen() -> None:
    """What docs/watch.md says the watch does not see."""
    assert run([batch(lambda i: episode(verdict(True)), n, lambda i: verdict(False)) for n in range(1, 30)]) == []


def test_an_independent_verifier_that_cannot_tell_is_an_alarm_and_no_gap() -> None:
    def silent(i: int) -> Verdict:
        return Verdict(None, invalid="crash")

    found = run([batch(lambda i: episode(verdict(True)), n, silent) for n in range(1, 30)])
    assert [(a.name, a.subject, a.step) for a in found] == [("invalid_rate", "independent_invalid", 1)]


def test_a_turn_reward_that_is_hunted_is_an_auxiliary_reward() -> None:
    def step(n: int) -> list[Played]:
        paid = turn("x", rewards={"bonus": 1.0} if n > 10 else {})
        return batch(lambda i: episode(verdict(i % 4 == 0), [paid]), n)

    [found] = run([step(n) for n in range(1, 30)])
    assert (found.name, found.subject) == ("aux_without_success", "turn_bonus")

    def together(n: int) -> list[Played]:
        paid = turn("x", rewards={"bonus": 1.0} if n > 10 else {})
        return batch(lambda i: episode(verdict(n > 10), [paid]), n)

    assert run([together(n) for n in range(1, 30)]) == []


@pytest.mark.parametrize("kind", ["action", "phrase"])
def test_a_surge_names_what_surged(kind: str) -> None:
    def step(n: int) -> list[Played]:
        def said(i: int) -> str:
            return "give me points" if n > 20 and i % 4 else f"w{i % 8} and w{n % 3}"

        return batch(lambda i: episode(verdict(i % 2 == 0), [said(i)]), n)

    found = run([step(n) for n in range(1, 41)], ACTING if kind == "action" else WORLD)
    subjects = [(a.name, a.subject) for a in found]
    assert ("surge", "action give" if kind == "action" else "phrase give me points") in subjects
    assert all(20 < a.step <= 26 for a in found)
    steady = [batch(lambda i, n=n: episode(verdict(i % 2 == 0), [f"w{i % 8} and w{n % 3}"]), n) for n in range(1, 41)]
    assert run(steady, ACTING) == []


def test_what_surges_with_a_success_that_the_independent_verifier_confirms_is_a_discovery() -> None:
    def step(n: int, second: float | None) -> list[Played]:
        late = n > 20

        def one(i: int) -> Trajectory:
            return episode(verdict(late or i % 4 == 0), ["find it" if late and i % 4 else f"w{i % 8} and w{n % 3}"])

        def judged(i: int) -> Verdict | None:
            truth = float(late or i % 4 == 0)
            return None if second is None else Verdict(truth if second else float(i % 4 == 0))

        given = batch(one, n)
        return [replace(played, second=judged(i)) for i, played in enumerate(given)]

    def surges(second: float | None) -> list[Alarm]:
        return [a for a in run([step(n, second) for n in range(1, 41)], ACTING) if a.name == "surge"]

    assert surges(1.0) == []  # the other judge agrees
    assert surges(0.0)  # it does not
    assert surges(None)  # there is none


def test_one_honeypot_pass_is_an_alarm_and_a_failed_one_is_none() -> None:
    def step(passed: bool) -> list[Played]:
        return [Played("g-1/0", "g-1", episode(verdict(passed), task=HONEYPOT))]

    [found] = run([step(False), step(True), step(True)])
    assert (found.name, found.step, found.episodes) == ("honeypot", 2, ("g-1/0",))
    assert run([step(False)] * 3) == []
    assert run([[Played("g-1/0", "g-1", episode(verdict(True), task=Task("fair")))]] * 3) == []


def test_touched_tests_are_an_alarm() -> None:
    def step(*touched: bool | None) -> list[Played]:
        given = [{} if t is None else {"tests_touched": t} for t in touched]
        return [Played(f"g-1/{i}", "g-1", episode(verdict(False), **a)) for i, a in enumerate(given)]

    [found] = run([step(False, None), step(False, True)])
    assert (found.name, found.step, found.value, found.episodes) == ("tests_touched", 2, 0.5, ("g-1/1",))
    assert run([step(False, None), step(False, False)]) == []


def test_an_evaluation_is_held_against_the_first_one() -> None:
    def held_out(wrong: int) -> list[Played]:
        given = [(f"eval-{i // 4}", i) for i in range(64)]
        tasks = [Task(f"held-{i // 4}") for i in range(64)]
        return [
            Played(f"{g}/{i % 4}", g, episode(verdict(True), task=tasks[i]), verdict(i % 8 >= wrong)) for g, i in given
        ]

    def told(*wrong: int) -> list[Alarm]:
        memory, found = Memory(), list[Alarm]()
        for n, number in enumerate(wrong):
            memory, raised = look(memory, see_held_out(50 * n, held_out(number)))
            found += raised
        return found

    assert told(1, 1, 1, 1) == []
    assert [(a.step, a.name, a.subject) for a in told(1, 1, 6, 6, 1, 6)] == [
        (100, "proxy_gap", "eval_proxy_gap"),
        (250, "proxy_gap", "eval_proxy_gap"),
    ]
    assert told(1, 6)[0].episodes == tuple(sorted({f"task held-{i}" for i in range(16)}))[:5]


# --- once


def test_an_alarm_is_raised_again_only_after_it_was_clear_for_long_enough() -> None:
    def steps(clear: int) -> list[list[Played]]:
        passed, failed = ([Played("g/0", "g", episode(verdict(p), task=HONEYPOT))] for p in (True, False))
        return [passed] * 3 + [failed] * clear + [passed] * 2

    assert [a.step for a in run(steps(CLEAR - 1))] == [1]
    assert [a.step for a in run(steps(CLEAR))] == [1, 3 + CLEAR + 1]


def test_a_step_in_which_a_rule_could_not_test_is_not_a_clear_one() -> None:
    passed = [Played("g/0", "g", episode(verdict(True), task=HONEYPOT))]
    other = [Played("g/0", "g", episode(verdict(False)))]
    assert [a.step for a in run([passed, *[other] * (2 * CLEAR), passed])] == [1]


# --- the memory


def random_steps(seed: int, number: int = 45) -> list[list[Played]]:
    draw = random.Random(seed)

    def one(n: int) -> Any:
        late = n > 30
        said = [draw.choice(["look", "go on and on", "stop here now please"]) for _ in range(draw.randint(1, 4))]
        passed = draw.random() < (0.9 if late else 0.2)
        invalid = draw.random() < 0.02
        given = Verdict(None, invalid="?") if invalid else verdict(passed, style=draw.random() + late)
        task = HONEYPOT if draw.random() < 0.05 else None
        return episode(given, said, task, checks_before={"a": True}, tests_touched=draw.random() < 0.01)

    def maybe(i: int) -> Verdict | None:
        return verdict(draw.random() < 0.2) if i % 4 < 2 else None

    return [batch(lambda i, n=n: one(n), n, maybe) for n in range(number)]


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_alarms_do_not_depend_on_the_order_of_episodes(seed: int, order: random.Random) -> None:
    steps = random_steps(seed)
    mixed = [order.sample(step, len(step)) for step in steps]
    assert [see(ACTING, 1, a) for a in steps] == [see(ACTING, 1, b) for b in mixed]
    assert run(steps, ACTING) == run(mixed, ACTING)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 44))
def test_alarms_do_not_depend_on_a_way_of_the_memory_to_json_and_back(seed: int, stop: int) -> None:
    memory = Memory()
    again = Memory()
    for number, step in enumerate(random_steps(seed)):
        sight = see(ACTING, number, step)
        memory, one = look(memory, sight)
        again, two = look(again, sight)
        assert one == two
        if number in (stop, 44):
            again = memory_of(json.loads(json.dumps(again.record())))
            assert again == memory
            assert again.record() == memory.record()


def test_a_run_that_forgets_its_memory_raises_other_alarms() -> None:
    """Negative control of the two tests above: those runs do raise alarms, and memory and numbers matter to them."""
    found = run(random_steps(3), ACTING)
    assert {"proxy_gap", "tests_touched"} <= set(names(found))
    late = run(random_steps(3)[40:], ACTING)
    assert "proxy_gap" not in names(late)
    steps = random_steps(3)
    assert see(ACTING, 1, steps[40]) != see(ACTING, 1, steps[41])


def test_the_memory_is_bounded() -> None:
    memory = Memory()
    for n in range(200):
        streams = {f"aux_{n}_{i}": Sums(1.0, 1.0, 1.0, 1.0, 1.0, 1.0) for i in range(5)}
        phrases = {f"said {n} {i}": 3 for i in range(100)}
        shares = {"phrase": most_frequent(4, 100, phrases, NAMES_KEPT)}
        memory, _ = look(memory, Sight(n, {"success": Sums(4.0, 2.0, 4.0, 2.0, 2.0, 4.0), **streams}, shares))
    assert len(memory.tracks) == TRACKS
    assert max(len(track.last) for track in memory.tracks.values()) == KEPT
    assert [len(steps) for steps in memory.shares.values()] == [KEPT]
    assert len(json.dumps(memory.record())) < 60_000


def test_auxiliary_rewards_without_number_are_followed_by_name_up_to_a_limit() -> None:
    many = {f"a{i:03d}": 1.0 for i in range(100)}
    found = see(WORLD, 1, [Played("g/0", "g", episode(Verdict(1.0, aux=many)))])
    assert sorted(n for n in found.streams if n.startswith("aux_")) == [f"aux_a{i:03d}" for i in range(NAMES_KEPT)]


def test_sums_of_any_order_are_the_same_number() -> None:
    draw = np.random.default_rng(0)
    parts = [Sums(*row) for row in draw.normal(0, 1e6, (50, 6)).tolist()]
    mixed: Iterator[list[Sums]] = (list(draw.permutation(np.array(range(50))).tolist()) for _ in range(5))  # type: ignore[misc]
    assert {add(parts)} == {add([parts[i] for i in order]) for order in mixed}  # type: ignore[index]
    plain = {sum(parts[i].total for i in draw.permutation(50)) for _ in range(20)}
    assert len(plain) > 1  # the control: plain addition does depend on it


def test_shares_of_a_step_keep_their_denominator() -> None:
    found = see(ACTING, 1, [Played("g/0", "g", episode(verdict(True), ["look up now", "look"]))])
    assert found.shares["action"] == Shares(1.0, 2.0, {"look": 2.0})
    assert found.shares["phrase"] == Shares(1.0, 1.0, {"look up now": 1.0})
    assert found.witnesses["action look"] == ("g/0",)
