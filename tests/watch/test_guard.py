"""Each rule on steps trips on a series built for it and not on its control, once, and remembers it over a resume."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from strop.core.guard import (
    DEFAULT,
    ClippedAbove,
    EntropyAbove,
    EntropyBelow,
    KLAbove,
    LengthAbove,
    LengthBelow,
    MismatchAbove,
    NoSuccess,
    RepetitionAbove,
    Rule,
    SignalBelow,
    Trip,
    WeightAbove,
)
from strop.core.message import Message
from strop.core.metrics import Mean
from strop.core.notation import NAMES, word
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Group, Origin, Trajectory, Turn
from strop.report.alarms import alarms as told
from strop.watch.alarms import CLEAR
from strop.watch.alarms import NAMES as WATCHED
from strop.watch.guard import ADVICE, Guarded, guarded_of, judge, tell
from strop.watch.measure import measure_groups
from tests.rollout.worlds import Scripted, world

Step = Mapping[str, float | None]
SOUND: dict[str, float] = {
    "entropy": 1.0,
    "episode_tokens": 20.0,
    "sampled_token_top": 0.3,
    "nonzero_advantage": 0.5,
    "success": 0.4,
    "clipped_up": 0.1,
    "clipped_down": 0.1,
    "kl_reference": 0.2,
    "lag": 0.0,
    "first_log_ratio_abs_max": 1e-6,
}


def series(n: int = 40, at: int = 20, **changes: float) -> list[dict[str, float | None]]:
    """A sound run, from step `at` on with other values."""
    return [{**SOUND, **(changes if i >= at else {})} for i in range(n)]


def tripped(rule: Rule, steps: Sequence[Step], kind: str = "reinforce") -> list[int]:
    """Steps in which the rule trips; the memory goes through JSON after each of them."""
    memory, out = Guarded(), list[int]()
    for number, values in enumerate(steps):
        memory, trips = judge([rule], memory, (1, kind), values)
        memory = guarded_of(json.loads(json.dumps(memory.record())))
        out += [number] * len(trips)
    return out


FROM_20 = list(range(20, 40))


@pytest.mark.parametrize(
    ("rule", "planted", "control", "steps"),
    [
        (ClippedAbove(0.5), {"clipped_up": 0.3, "clipped_down": 0.21}, {"clipped_up": 0.3, "clipped_down": 0.2}, FROM_20),
        (KLAbove(1.0), {"kl_reference": 1.01}, {"kl_reference": 1.0}, FROM_20),
        (EntropyBelow(0.1), {"entropy": 0.099}, {"entropy": 0.1}, FROM_20),
        (EntropyAbove(2.0), {"entropy": 2.01}, {"entropy": 2.0}, FROM_20),
        (RepetitionAbove(0.9), {"sampled_token_top": 0.91}, {"sampled_token_top": 0.9}, FROM_20),
        (LengthAbove(3.0), {"episode_tokens": 60.1}, {"episode_tokens": 60.0}, FROM_20),
        (LengthBelow(0.5), {"episode_tokens": 9.9}, {"episode_tokens": 10.0}, FROM_20),
        # the mean over ten steps is 0.25 with five steps of 0.5 and five of 0, and lower with the sixth
        (SignalBelow(0.25), {"nonzero_advantage": 0.0}, {"nonzero_advantage": 0.25}, list(range(25, 40))),
        (NoSuccess(5), {"success": 0.0}, {"success": 0.001}, list(range(25, 40))),
        (MismatchAbove(0.5), {"first_log_ratio_abs_max": 0.6}, {"first_log_ratio_abs_max": 0.6, "lag": 1.0}, FROM_20),
    ],
    ids=lambda value: word(value) if type(value) in NAMES["guard"].values() else "",
)  # fmt: skip
def test_a_rule_trips_on_what_it_is_for_and_not_on_its_control(
    rule: Rule, planted: dict[str, float], control: dict[str, float], steps: list[int]
) -> None:
    assert tripped(rule, series(**planted)) == steps
    assert tripped(rule, series(**control)) == []
    assert tripped(rule, series()) == []


def test_a_single_step_without_success_between_others_is_no_drought() -> None:
    dry = [{**SOUND, "success": float(i % 6 == 0)} for i in range(60)]
    assert tripped(NoSuccess(5), dry) == []
    assert tripped(NoSuccess(4), dry) == list(range(5, 60, 6))


@pytest.mark.parametrize("rule", [r for r in DEFAULT if not isinstance(r, NoSuccess)], ids=word)
def test_what_was_not_logged_or_is_no_number_trips_nothing(rule: Rule) -> None:
    assert tripped(rule, [{} for _ in range(40)]) == []
    assert tripped(rule, [dict.fromkeys(SOUND, None) for _ in range(40)]) == []
    assert tripped(rule, series(**dict.fromkeys(SOUND, math.nan))) == []


def test_a_token_that_was_frequent_from_the_start_is_no_repetition() -> None:
    assert tripped(RepetitionAbove(0.9), series(at=0, sampled_token_top=0.95)) == []


def test_a_warm_start_is_not_held_against_the_rules_and_leaves_no_start() -> None:
    assert tripped(EntropyBelow(0.1), series(entropy=0.0), "warm_start") == []
    memory, _ = judge([LengthAbove(3.0)], Guarded(), (0, "warm_start"), SOUND)
    assert memory == Guarded()


def test_each_stage_has_a_start_of_its_own() -> None:
    """Episodes three times as long from the first step of a stage on are its start; within a stage they are a blow-up."""
    rule, longer = LengthAbove(2.0), {**SOUND, "episode_tokens": 60.0}

    def run(second: int) -> list[Trip]:
        memory, found = Guarded(), list[Trip]()
        for stage, values in [(1, SOUND)] * 10 + [(second, longer)] * 10:
            memory, trips = judge([rule], memory, (stage, "reinforce"), values)
            found += trips
        return found

    assert run(2) == []
    assert len(run(1)) == 10


def test_the_memory_is_bounded_and_goes_through_json() -> None:
    memory = Guarded()
    for values in series(500):
        memory, trips = judge(DEFAULT, memory, (1, "reinforce"), values)
        memory, _ = tell(memory, 1, trips)
    assert guarded_of(json.loads(json.dumps(memory.record()))) == memory
    assert len(json.dumps(memory.record())) < 400
    assert guarded_of({}) == Guarded()


# --- alarms


def trip(rule: str = "ratio", action: Any = "skip") -> Trip:
    return Trip(rule, 2.0, 1.0, action, "seen", Origin("train-000003", 2), 7)


def test_an_alarm_is_told_once_and_again_when_the_rule_was_clear_for_long_enough() -> None:
    memory, numbers = Guarded(), list[int]()
    steps = [1, 2, 5, 5 + CLEAR - 1, 5 + CLEAR - 1 + CLEAR]
    for step in range(1, 60):
        memory, raised = tell(memory, step, [trip()] * 2 if step in steps else [])
        numbers += [alarm.step for alarm in raised]
    assert numbers == [1, 5 + 2 * CLEAR - 1]


def test_an_alarm_names_the_episode_and_says_what_was_done() -> None:
    memory, [alarm] = tell(Guarded(), 4, [trip()])
    assert (alarm.step, alarm.name, alarm.value, alarm.limit) == (4, "guard_ratio", 2.0, 1.0)
    assert alarm.episodes == ("train-000003/2",)
    assert alarm.sentence == "seen; the update was left out"
    assert memory.standing == {"ratio": 0}
    sentences = {
        tell(Guarded(), 4, [trip(action=action)])[1][0].sentence for action in ("note", "cap", "stop", "rollback")
    }
    assert len(sentences) == 4


def test_every_rule_has_advice_that_strop_watch_shows() -> None:
    assert list(ADVICE) == [f"guard_{name}" for name in NAMES["guard"]]
    assert not set(ADVICE) & set(WATCHED)
    assert told([{"name": "guard_ratio"}])[0]["advice"] == ADVICE["guard_ratio"]
    assert told([{"name": "reward_fell"}])[0]["advice"]


def test_of_the_default_rules_only_an_unbounded_weight_acts() -> None:
    assert {word(rule): rule.action for rule in DEFAULT if rule.action != "note"} == {"ratio": "skip"}
    assert [type(rule) for rule in DEFAULT] == list(NAMES["guard"].values())
    assert isinstance(DEFAULT[0], WeightAbove)


# --- the metric


def test_the_most_frequent_token_is_counted_over_all_turns_without_their_ends() -> None:
    def turn(tokens: list[int], stop: Any) -> Turn:
        n = len(tokens)
        ids = np.array(tokens, np.int32)
        completion = Completion(ids, np.zeros(n, np.float32), np.zeros(n, np.int32), stop)
        return Turn(np.zeros(1, np.int32), completion, Message("assistant", ""))

    def top(*turns: Turn) -> Any:
        task = Task("t", {})
        played = Trajectory(task, turns, np.zeros(0, np.int32), "done", (), verdict=Verdict(1.0))
        return measure_groups(world(lambda *_: Scripted(None)), [Group("g", task, (played,))]).get("sampled_token_top")

    assert top(turn([5, 9], "stop"), turn([5, 6, 9], "stop"), turn([7, 9], "length")) == Mean(2.0, 5)
    assert top(turn([9], "stop")) is None
