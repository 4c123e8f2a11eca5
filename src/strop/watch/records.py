"""One trajectory as one JSON record, and back.

Invariant: `trajectory_from_record` gives back every id, version, reward and float32 log-probability bit for bit, so
that a line of `episodes.jsonl` can be trained on. Of the task only its id is kept; artefacts and tool calls return as
JSON makes them (tuples as lists, NaN as None).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Floats, Group, Ints, Trajectory, Turn


def episode_record(group: Group, member: int, trajectory: Trajectory, step: int, stage: str) -> dict[str, Any]:
    """The record of one trajectory, ready for `jsonl.encode`.

    `score` and `reward` are numbers or None (unscored) for readers. `score_given` is there only where `score` does not
    say what the verdict said: an invalid verdict with a score, or a score that is not finite. A turn's `message` is an
    index into `messages`, or the message itself where the transcript does not hold it.
    """
    verdict = trajectory.verdict
    record: dict[str, Any] = {
        "id": f"{group.id}/{member}",
        "group": group.id,
        "member": member,
        "task": trajectory.task.id,
        "step": step,
        "stage": stage,
        "end": trajectory.end,
        "error": trajectory.error,
        "score": _finite(trajectory.score),
        "reward": _finite(trajectory.reward),
        "judged": verdict is not None,
        "aux": _numbers(verdict.aux) if verdict else {},
        "checks": {name: bool(passed) for name, passed in verdict.checks.items()} if verdict else {},
        "reason": verdict.reason if verdict else "",
        "invalid": verdict.invalid if verdict else None,
        "info": _numbers(verdict.info) if verdict else {},
        "seat": trajectory.seat,
        "parent": trajectory.parent,
        "artefacts": dict(trajectory.artefacts),
        "messages": [message.as_dict() for message in trajectory.messages],
        "turns": [],
        "tail": _ints(trajectory.tail),
    }
    if verdict is not None and verdict.score is not None and record["score"] is None:
        record["score_given"] = float(verdict.score) if math.isfinite(verdict.score) else str(float(verdict.score))
    if trajectory.guided:
        record["guided"] = trajectory.guided
    after = 0
    for turn in trajectory.turns:
        place = next(
            (i for i in range(after, len(trajectory.messages)) if trajectory.messages[i] == turn.message), None
        )
        after = after if place is None else place + 1
        record["turns"].append(
            {
                "context": _ints(turn.context),
                "tokens": _ints(turn.completion.tokens),
                "logprobs": _logprobs(turn.completion.logprobs),
                "versions": _ints(turn.completion.versions),
                "stop": turn.completion.stop,
                "rewards": _numbers(turn.rewards),
                "fresh": turn.fresh,
                "message": turn.message.as_dict() if place is None else place,
            }
        )
    return record


def trajectory_from_record(record: Mapping[str, Any]) -> tuple[str, int, Trajectory]:
    """(group id, member, trajectory) of a record as it was read from a file; the inverse of `episode_record`."""
    messages = tuple(_message(item) for item in record["messages"])
    verdict = None
    if record["judged"]:
        given = record.get("score_given", record["score"])
        verdict = Verdict(
            score=None if given is None else _read_number(given),
            checks=dict(record["checks"]),
            aux={name: _read_number(value) for name, value in record["aux"].items()},
            reason=record["reason"],
            invalid=record["invalid"],
            # Records of before there was such a field have none.
            info={name: _read_number(value) for name, value in record.get("info", {}).items()},
        )
    parent = record["parent"]
    trajectory = Trajectory(
        task=Task(record["task"]),
        turns=tuple(_turn(item, messages) for item in record["turns"]),
        tail=_ints(record["tail"]),
        end=record["end"],
        messages=messages,
        artefacts=dict(record["artefacts"]),
        verdict=verdict,
        error=record["error"],
        seat=record["seat"],
        parent=None if parent is None else (parent[0], parent[1]),
        guided=record.get("guided", ""),
    )
    return record["group"], record["member"], trajectory


def _turn(item: Mapping[str, Any], messages: Sequence[Message]) -> Turn:
    message = item["message"]
    return Turn(
        context=_ints(item["context"]),
        completion=Completion(
            tokens=_ints(item["tokens"]),
            logprobs=np.array([_read_number(value) for value in item["logprobs"]], np.float32),
            versions=_ints(item["versions"]),
            stop=item["stop"],
        ),
        message=messages[message] if isinstance(message, int) else _message(message),
        rewards={name: _read_number(value) for name, value in item["rewards"].items()},
        fresh=item["fresh"],
    )


def _message(item: Mapping[str, Any]) -> Message:
    calls = tuple(dict(call["function"]) for call in item.get("tool_calls", ()))
    return Message(item["role"], item["content"], calls, item.get("tool_call_id"))


def _ints(values: Any) -> Ints:
    return np.asarray(values, np.int32, order="C")


def _logprobs(values: Floats) -> Any:
    """Log-probabilities as they are written: null for NaN, "inf" and "-inf" as text, [n]."""
    values = np.asarray(values, np.float32, order="C")
    if np.isinf(values).any():
        return [_number(value) for value in values.tolist()]
    # The shortest text of a float32 is read as a float64 and rounded again. Of all float32 from 1e-20 to 256 (checked
    # one by one) none comes back wrong; below, 7.038531e-26 does, so that such values are written as float64.
    tiny = (np.abs(values) < 1e-20) & (values != 0)
    return values.astype(np.float64) if tiny.any() else values


def _finite(value: float | None) -> float | None:
    """For readers: a number that JSON has, or None."""
    return float(value) if value is not None and math.isfinite(value) else None


def _number(value: float) -> float | str | None:
    """Null for NaN, text for the infinities, which JSON does not have."""
    value = float(value)
    if math.isnan(value):
        return None
    return str(value) if math.isinf(value) else value


def _numbers(named: Mapping[str, float]) -> dict[str, float | str | None]:
    return {name: _number(value) for name, value in named.items()}


def _read_number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)
