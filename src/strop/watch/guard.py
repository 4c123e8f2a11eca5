"""The guard's rules on steps, and which of all its rules stand. Invariant: pure; the memory is bounded and equal after a
way to JSON and back, so that it is part of a checkpoint and a resumed run trips the same rules.

Rules on a step read the flat values that the loop logs. A value that was not logged trips nothing. Warm starts are not
held against them: what a script plays says nothing about the agent. Each stage has a start of its own. That reward rose
and fell back is the watch's alarm `reward_fell`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strop.core.guard import (
    LASTING,
    ClippedAbove,
    EntropyAbove,
    EntropyBelow,
    KLAbove,
    LengthAbove,
    LengthBelow,
    MismatchAbove,
    NoSuccess,
    OnStep,
    RepetitionAbove,
    Rule,
    SignalBelow,
    Trip,
)
from strop.core.notation import word
from strop.watch.alarms import CLEAR, Alarm
from strop.watch.memory import START

Values = Mapping[str, float | None]

FOLLOWED = ("entropy", "episode_tokens", "sampled_token_top")
"""Values of which the start of the stage is remembered."""

ADVICE: Mapping[str, str] = {
    "guard_ratio": "The data is too stale for this algorithm, or engine and learner disagree. Publish more often, lower the "
    "learning rate, or take a clip or a correction.",
    "guard_ess": "A few tokens stand for the whole batch. As for guard_ratio; a ratio over fewer tokens helps too.",
    "guard_gradient": "Look at the rows of the step in updates/ (strop explain). If it comes again: a lower rate.",
    "guard_share": "Read the episode that is named. Larger groups, or the action cap, keep one trajectory from deciding.",
    "guard_clipped": "Most of the batch teaches nothing any more: fewer epochs or minibatches, fresher data, a lower rate.",
    "guard_kl": "The policy has gone far from where the stage began. Lower the rate, or raise the KL term's coefficient.",
    "guard_entropy_floor": "Nothing is tried any more. If success is too low: an entropy term, a higher temperature.",
    "guard_entropy_ceiling": "The policy dissolves. Lower the rate or the entropy term, and go back to an earlier checkpoint.",
    "guard_repetition": "The agent says one token again and again. Go back to an earlier checkpoint; look what it is paid for.",
    "guard_longer": "Look whether length is paid for: token-sum aggregation, turn rewards, a verifier that likes long answers.",
    "guard_shorter": "Look whether giving up early is paid for, or whether long episodes fail for another reason (strop read).",
    "guard_signal": "Nearly all groups have equal rewards: tasks are too easy or too hard. Change them, or algorithm.admit.",
    "guard_no_success": "Nothing can pull the policy back now. Go back to a checkpoint with success, or start warm.",
    "guard_mismatch": "Engine and learner compute different probabilities: look at dtype and temperature. Do not train on.",
}
"""What to do when a rule has tripped, by the name of its alarm."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the guard remembers.

    Args:
        stage: index of the stage that it is about.
        starts: sum and count of each followed value over the first steps of the stage.
        signal: shares of non-zero advantages of the newest steps, oldest first.
        dry: steps in a row without success.
        standing: rules that have tripped, by name, and in how many steps since they did not.
    """

    stage: int = -1
    starts: Mapping[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    signal: tuple[float, ...] = ()
    dry: int = 0
    standing: Mapping[str, int] = field(default_factory=dict[str, int])

    def record(self) -> dict[str, Any]:
        """The memory as JSON values; `guarded_of` reads it."""
        return {
            "stage": self.stage,
            "starts": {name: list(pair) for name, pair in self.starts.items()},
            "signal": list(self.signal),
            "dry": self.dry,
            "standing": dict(self.standing),
        }

    def start(self, name: str) -> float | None:
        """Mean of a value over the first steps; None until they are complete."""
        total, count = self.starts.get(name, (0.0, 0))
        return total / count if count >= START else None


def guarded_of(record: Mapping[str, Any]) -> Guarded:
    """The memory of a record; an empty one is that of a run that has not begun."""
    if not record:
        return Guarded()
    starts = {name: (float(total), int(count)) for name, (total, count) in record["starts"].items()}
    return Guarded(record["stage"], starts, tuple(record["signal"]), record["dry"], dict(record["standing"]))


def after(memory: Guarded, stage: int, values: Values) -> Guarded:
    """The memory with one step more; the first one of a stage begins anew, but for what stands."""
    if stage != memory.stage:
        memory = Guarded(stage, standing=memory.standing)
    starts = dict(memory.starts)
    for name in FOLLOWED:
        total, count = starts.get(name, (0.0, 0))
        if (value := _number(values, name)) is not None and count < START:
            starts[name] = (total + value, count + 1)
    signal, success = _number(values, "nonzero_advantage"), _number(values, "success")
    recent = memory.signal if signal is None else (*memory.signal, signal)[-LASTING:]
    dry = memory.dry if success is None else 0 if success > 0 else memory.dry + 1
    return replace(memory, starts=starts, signal=recent, dry=dry)


def _number(values: Values, name: str) -> float | None:
    """A logged value that can be compared."""
    value = values.get(name)
    return None if value is None or not math.isfinite(value) else float(value)


def check(rule: OnStep, memory: Guarded, values: Values) -> tuple[float, float, bool, str] | None:
    """What a rule compares after a step: value, limit, whether it trips, and a sentence; None where it has no say.

    Args:
        rule: one rule.
        memory: with this step in it.
        values: of this step.
    """
    match rule:
        case ClippedAbove(limit):
            up, down = _number(values, "clipped_up"), _number(values, "clipped_down")
            return None if up is None or down is None else _above(up + down, limit, "the share of clipped tokens")
        case KLAbove(limit):
            return _above(_number(values, "kl_reference"), limit, "the KL to the reference policy")
        case EntropyBelow(limit):
            return _below(_number(values, "entropy"), limit, "the entropy")
        case EntropyAbove(limit):
            return _relative(memory, values, "entropy", limit, True)
        case LengthAbove(limit):
            return _relative(memory, values, "episode_tokens", limit, True)
        case LengthBelow(limit):
            return _relative(memory, values, "episode_tokens", limit, False)
        case RepetitionAbove(limit):
            start = memory.start("sampled_token_top")
            found = _above(_number(values, "sampled_token_top"), limit, "the share of the most frequent token")
            return None if start is None or start > limit else found
        case SignalBelow(limit):
            mean = sum(memory.signal) / LASTING if len(memory.signal) == LASTING else None
            return _below(mean, limit, f"the share of advantages that are not 0, over {LASTING} steps,")
        case NoSuccess(steps):
            return memory.dry, steps, memory.dry > steps, f"no episode has succeeded for {memory.dry} steps"
        case MismatchAbove(limit):
            fresh = _number(values, "lag") == 0
            name = "the largest difference of a log-probability between engine and learner, on fresh data,"
            return _above(_number(values, "first_log_ratio_abs_max"), limit, name) if fresh else None


def _above(value: float | None, limit: float, what: str) -> tuple[float, float, bool, str] | None:
    return None if value is None else (value, limit, value > limit, f"{what} is {value:.3g} (limit {limit:g})")


def _below(value: float | None, limit: float, what: str) -> tuple[float, float, bool, str] | None:
    return None if value is None else (value, limit, value < limit, f"{what} is {value:.3g} (at least {limit:g})")


def _relative(
    memory: Guarded, values: Values, name: str, limit: float, above: bool
) -> tuple[float, float, bool, str] | None:
    """A value over its start."""
    value, start = _number(values, name), memory.start(name)
    if value is None or not start:
        return None
    what = {"entropy": "the entropy", "episode_tokens": "the number of sampled tokens an episode"}[name]
    share = value / start
    trips = share > limit if above else share < limit
    return (
        share,
        limit,
        trips,
        f"{what} is {value:.3g}; it was {start:.3g} at the start of the stage (limit {limit:g} x)",
    )


def judge(rules: Sequence[Rule], memory: Guarded, stage: tuple[int, str], values: Values) -> tuple[Guarded, list[Trip]]:
    """Take in a step: the new memory, and the rules on steps that trip.

    Args:
        rules: those in force; the rules on updates are passed over.
        memory: of the steps before.
        stage: its index and kind.
        values: what was logged of the step.
    """
    index, kind = stage
    if kind == "warm_start":
        return memory, []
    memory = after(memory, index, values)
    trips: list[Trip] = []
    for rule in rules:
        if not isinstance(rule, OnStep) or (isinstance(rule, MismatchAbove) and kind != "reinforce"):
            continue
        found = check(rule, memory, values)
        if found is not None and found[2]:
            trips.append(Trip(word(rule), found[0], found[1], rule.action, found[3]))
    return memory, trips


def tell(memory: Guarded, step: int, trips: Sequence[Trip]) -> tuple[Guarded, list[Alarm]]:
    """Alarms for the rules that trip and did not stand; a rule stands until `CLEAR` steps went by without it.

    Args:
        memory: of the rules.
        step: the step that is told of.
        trips: all of it; of several trips of a rule the first is told.
    """
    standing = {name: clear + 1 for name, clear in memory.standing.items() if clear + 1 < CLEAR}
    raised: list[Alarm] = []
    for trip in trips:
        if trip.rule not in standing:
            raised.append(alarm(trip, step))
        standing[trip.rule] = 0
    return replace(memory, standing=standing), raised


def alarm(trip: Trip, step: int) -> Alarm:
    """The alarm of a trip. Its sentence says what was done."""
    who = () if trip.origin is None else (f"{trip.origin.group}/{trip.origin.member}",)
    done = {
        "note": "nothing was done",
        "cap": "its share was cut to the limit",
        "skip": "the update was left out",
        "stop": "the run stops",
        "rollback": "the run goes back",
    }[trip.action]
    return Alarm(step, f"guard_{trip.rule}", trip.rule, trip.value, trip.limit, f"{trip.sentence}; {done}", who)
