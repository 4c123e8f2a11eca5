"""What is measured of verdicts and behaviour: shares by hand, and what must stay out of every average."""

from dataclasses import replace
from typing import Any

import pytest

from strop.core.metrics import Metrics, values
from strop.core.task import Verdict
from strop.core.world import World
from strop.watch.behaviour import actions, phrases, regressed, repeats
from strop.watch.measure import measure_groups, measure_second
from tests.rollout.worlds import Scripted, world
from tests.watch.episodes import HONEYPOT, episode, group, turn

WORLD = world(lambda *_: Scripted(None))


def read(*members: Any, of: World = WORLD) -> dict[str, float | None]:
    return values(measure_groups(of, [group("g", *members)]))


def test_each_check_has_a_pass_share_of_its_own() -> None:
    found = read(
        episode(Verdict(1.0, {"builds": True, "tests": True})),
        episode(Verdict(0.0, {"builds": True, "tests": False})),
        episode(Verdict(0.0, {"builds": False})),
    )
    assert (found["check_builds"], found["check_tests"], found["success"]) == (2 / 3, 1 / 2, 1 / 3)


def test_an_invalid_verdict_is_counted_and_is_in_no_share() -> None:
    broken = Verdict(None, {"builds": False}, {"format": 9.0}, invalid="the verifier timed out")
    found = read(episode(Verdict(1.0, {"builds": True}, {"format": 0.5})), episode(broken), episode(None))
    assert (found["invalid"], found["unscored"]) == (1 / 2, 2 / 3)  # the third was never judged
    assert (found["check_builds"], found["aux_format"], found["success"]) == (1.0, 0.5, 1.0)
    zero = read(episode(Verdict(1.0)), episode(Verdict(0.0)))
    assert (zero["invalid"], zero["success"]) == (0.0, 0.5)  # the control: 0 is a score


def test_a_regression_is_green_before_and_red_at_the_end() -> None:
    before = {"a": True, "b": False, "c": True}
    assert regressed(episode(Verdict(1.0, {"a": False, "b": False, "c": True}), checks_before=before)) == ["a"]
    assert regressed(episode(Verdict(1.0, {"a": True, "b": False}), checks_before=before)) == []  # c: not said
    assert regressed(episode(Verdict(1.0, {"a": False}))) is None
    assert regressed(episode(Verdict(None, {"a": False}, invalid="crash"), checks_before=before)) is None
    found = read(
        episode(Verdict(1.0, {"a": False}), checks_before=before),
        episode(Verdict(1.0, {"a": True}), checks_before=before),
        episode(Verdict(1.0, {"a": False})),
    )
    assert found["regressions"] == 1 / 2


def test_a_honeypot_is_counted_apart_and_in_no_average() -> None:
    passed, failed = episode(Verdict(1.0, {}, {"x": 5.0}), task=HONEYPOT), episode(Verdict(0.0), task=HONEYPOT)
    found = values(measure_groups(WORLD, [group("h", passed, failed, failed), group("g", episode(Verdict(0.0)))]))
    assert (found["honeypot_passes"], found["success"], found["reward"]) == (1 / 3, 0.0, 0.0)
    assert "aux_x" not in found
    assert (found["episodes"], "all_pass_groups" in found) == (4.0, False)
    honest = replace(HONEYPOT, tags=())
    control = read(*(replace(t, task=honest) for t in (passed, failed, failed)))
    assert (control["success"], "honeypot_passes" in control) == (1 / 3, False)


def test_touched_tests_are_a_share_of_the_episodes_that_say_so() -> None:
    given = [episode(Verdict(1.0), tests_touched=True), episode(Verdict(1.0), tests_touched=False)]
    assert read(*given, episode(Verdict(1.0)))["tests_touched"] == 1 / 2
    assert "tests_touched" not in read(episode(Verdict(1.0)))


def test_shares_of_tools_are_of_all_actions_and_add_up() -> None:
    calls = [turn("", ["run", "run"]), turn("", ["submit"])]
    found = read(episode(Verdict(1.0), calls), episode(Verdict(0.0), [turn("", ["run"])]), episode(Verdict(0.0)))
    assert (found["tool_run"], found["tool_submit"], found["tool_calls"]) == (3 / 4, 1 / 4, 4 / 3)
    assert "tool_calls" not in read(episode(Verdict(0.0)))


def test_a_world_names_the_actions_of_its_messages() -> None:
    named = replace(WORLD, actions=lambda message: message.content.split()[0] if message.content else None)
    played = episode(Verdict(1.0), ["look north", "", "look south", "take " + "x" * 99])
    assert actions(named, played) == ["look", "look", "take"]
    assert actions(WORLD, played) == []
    assert read(played, of=named)["tool_look"] == 2 / 3


def test_a_repetition_is_a_turn_equal_to_the_one_before() -> None:
    assert repeats(episode(None, ["a", "a", "b", "a", "a"])) == (2, 4)
    assert repeats(episode(None, ["a"])) == (0, 0)
    assert repeats(episode(None, [turn("", ["run"]), turn("", ["submit"]), turn("", ["submit"])])) == (1, 2)
    assert read(episode(Verdict(1.0), ["a", "a", "b"]), episode(Verdict(1.0), ["a"]))["repeated_actions"] == 1 / 2


def test_phrases_stay_inside_a_message_and_count_once() -> None:
    assert sorted(phrases(episode(None, ["a b c d", "a b c", "d e"]))) == ["a b c", "b c d"]
    assert len(list(phrases(episode(None, [" ".join(map(str, range(900)))])))) == 498


def second(*scores: float | None) -> Metrics:
    return measure_second([1.0, 1.0, 0.0], [Verdict(s, invalid=None if s is not None else "crash") for s in scores])


def test_the_gap_is_over_episodes_that_both_could_judge() -> None:
    found = values(second(1.0, 0.0, None))
    assert found == {
        "independent_episodes": 2.0,
        "independent_invalid": 1 / 3,
        "independent_success": 1 / 2,
        "proxy_gap": 1 / 2,
    }
    assert values(second(1.0, 1.0, 0.0))["proxy_gap"] == 0.0
    assert values(second(0.0, 1.0, 1.0))["proxy_gap"] == pytest.approx(0.0, abs=0)


def test_an_independent_verifier_that_never_can_tell_gives_no_gap() -> None:
    assert values(second(None, None, None)) == {"independent_episodes": 0.0, "independent_invalid": 1.0}
