"""Episode records: the way to disk and back changes no id, no bit of a log-probability, no reward."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strop.core.message import Message
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Group, Trajectory, Turn
from strop.watch import jsonl
from strop.watch.records import episode_record, trajectory_from_record

names = st.text(max_size=4)
numbers = st.floats() | st.integers(-3, 3)
rewards = st.dictionaries(names, numbers, max_size=2)
ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4).map(lambda x: np.array(x, np.int32))
calls = st.fixed_dictionaries(
    {"name": names, "arguments": st.dictionaries(names, st.integers(0, 9) | names, max_size=2)}
)
messages = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool"]),
    names,
    st.lists(calls, max_size=2).map(tuple),
    st.none() | names,
)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    logprobs = draw(st.lists(st.floats(width=32), max_size=5))
    whole = st.lists(st.integers(0, 2**31 - 1), min_size=len(logprobs), max_size=len(logprobs))
    tokens, versions = np.array(draw(whole), np.int32), np.array(draw(whole), np.int32)
    return Completion(
        tokens, np.array(logprobs, np.float32), versions, draw(st.sampled_from(["stop", "length", "abort"]))
    )


verdicts = st.builds(
    Verdict,
    st.none() | numbers,
    st.dictionaries(names, st.booleans(), max_size=2),
    rewards,
    names,
    st.none() | names,
    rewards,
)
turns = st.builds(Turn, ids, completions(), messages, rewards, st.booleans())
trajectories = st.builds(
    Trajectory,
    task=st.builds(Task, names),
    turns=st.lists(turns, max_size=3).map(tuple),
    tail=ids,
    end=st.sampled_from(["done", "turns", "length", "context", "timeout", "truncated", "error"]),
    messages=st.lists(messages, max_size=4).map(tuple),
    artefacts=st.dictionaries(names, st.lists(st.integers(-9, 9) | names, max_size=2), max_size=2),
    verdict=st.none() | verdicts,
    error=st.none() | names,
    seat=names,
    parent=st.none() | st.tuples(names, st.integers(0, 9)),
)


def exact(value: Any) -> Any:
    """A value that is equal only where every bit is: arrays as type, shape and bytes (NaN as one), floats as text."""
    if isinstance(value, np.ndarray):
        clean = np.where(np.isnan(value), np.float32(math.nan), value) if value.dtype == np.float32 else value
        return (str(value.dtype), value.shape, clean.tobytes())
    if isinstance(value, Completion):
        return [exact(value.tokens), exact(value.logprobs), exact(value.versions), value.stop]
    if isinstance(value, Turn):
        parts = (value.context, value.completion, value.message, dict(value.rewards), value.fresh)
        return [exact(part) for part in parts]
    if isinstance(value, Verdict):
        return [exact(getattr(value, name)) for name in Verdict.__slots__]
    if isinstance(value, Trajectory):
        return [exact(getattr(value, name)) for name in Trajectory.__slots__]
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    if isinstance(value, dict):
        return {name: exact(item) for name, item in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(float(value))
    return value


def round_trip(trajectory: Trajectory, group: str = "train-000041", member: int = 3) -> tuple[str, int, Trajectory]:
    record = episode_record(Group(group, trajectory.task, (trajectory,)), member, trajectory, 7, "rl")
    return trajectory_from_record(orjson.loads(jsonl.encode(record)))


def simple(logprobs: list[float], **more: Any) -> Trajectory:
    n = len(logprobs)
    tokens = np.arange(n, dtype=np.int32)
    completion = Completion(tokens, np.array(logprobs, np.float32), np.full(n, 2, np.int32), "stop")
    turn = Turn(np.array([5, 6], np.int32), completion, Message("assistant", "hi"), {"format": 0.25})
    transcript = (Message("user", "go"), Message("assistant", "hi"), Message("user", "done"))
    return Trajectory(Task("t"), (turn,), np.array([9], np.int32), "done", transcript, **more)


@given(trajectories)
@example(simple([-7.038530691851209e-26, 7.038530691851209e-26, -0.0, 1e-45, -0.1]))
@example(simple([-math.inf, math.nan, -0.1, math.inf]))
def test_a_trajectory_comes_back_bit_for_bit(trajectory: Trajectory) -> None:
    assert exact(round_trip(trajectory)) == exact(("train-000041", 3, trajectory))


def test_the_comparison_sees_one_bit_of_a_logprob_one_id_and_one_version() -> None:
    trajectory = simple([-0.1, -2.5], verdict=Verdict(1.0))
    _, _, back = round_trip(trajectory)
    assert exact(back) == exact(trajectory)
    turn = back.turns[0]
    for changed in (
        replace(turn.completion, logprobs=np.nextafter(turn.completion.logprobs, np.float32(0))),
        replace(turn.completion, tokens=turn.completion.tokens + np.int32(1)),
        replace(turn.completion, versions=turn.completion.versions + np.int32(1)),
    ):
        assert exact(replace(back, turns=(replace(turn, completion=changed),))) != exact(trajectory)
    assert exact(replace(back, verdict=Verdict(None))) != exact(trajectory)
    assert exact(replace(back, verdict=Verdict(1.0, info={"noise": 0.1}))) != exact(trajectory)


def test_a_record_of_before_verdicts_had_info_is_read() -> None:
    trajectory = simple([-0.1], verdict=Verdict(1.0, info={"noise": 0.25}))
    record = episode_record(Group("g", trajectory.task, (trajectory,)), 0, trajectory, 7, "rl")
    assert record["info"] == {"noise": 0.25}
    del record["info"]
    _, _, back = trajectory_from_record(orjson.loads(jsonl.encode(record)))
    assert exact(back.verdict) == exact(Verdict(1.0))


def test_the_known_float32_that_rounds_twice_is_written_longer() -> None:
    value = np.float32(7.038530691851209e-26)  # its text is 7.038531e-26
    assert np.float32(orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))) != value  # why it is needed
    _, _, back = round_trip(simple([float(value)]))
    assert back.turns[0].completion.logprobs[0] == value


def test_a_record_says_what_readers_ask_for() -> None:
    verdict = Verdict(1, {"ends": True}, {"length": -0.5}, "right")
    trajectory = simple([-0.5, math.nan], verdict=verdict, artefacts={"moves": [1, 2]})
    group = Group("train-000041", trajectory.task, (trajectory,))
    record = orjson.loads(jsonl.encode(episode_record(group, 0, trajectory, 7, "rl")))
    turn = record.pop("turns")[0]
    assert record.pop("messages")[1] == {"role": "assistant", "content": "hi"}
    assert turn == {
        "context": [5, 6],
        "tokens": [0, 1],
        "logprobs": [-0.5, None],
        "versions": [2, 2],
        "stop": "stop",
        "rewards": {"format": 0.25},
        "fresh": False,
        "message": 1,
    }
    assert record == {
        "id": "train-000041/0",
        "group": "train-000041",
        "member": 0,
        "task": "t",
        "step": 7,
        "stage": "rl",
        "end": "done",
        "error": None,
        "score": 1.0,
        "reward": 0.75,
        "judged": True,
        "aux": {"length": -0.5},
        "checks": {"ends": True},
        "reason": "right",
        "invalid": None,
        "info": {},
        "seat": "agent",
        "parent": None,
        "artefacts": {"moves": [1, 2]},
        "tail": [9],
    }


@pytest.mark.parametrize(
    ("verdict", "score", "given"),
    [
        (None, None, None),
        (Verdict(None), None, None),
        (Verdict(0.5, invalid="timeout"), None, 0.5),
        (Verdict(math.nan), None, "nan"),
        (Verdict(math.inf), None, "inf"),
        (Verdict(0.0), 0.0, None),
    ],
)
def test_unscored_invalid_and_broken_scores_stay_apart(verdict: Verdict | None, score: Any, given: Any) -> None:
    trajectory = simple([-1.0], verdict=verdict)
    record = orjson.loads(jsonl.encode(episode_record(Group("g", Task("t"), ()), 0, trajectory, 1, "rl")))
    assert (record["score"], record.get("score_given"), record["judged"]) == (score, given, verdict is not None)
    assert exact(trajectory_from_record(record)[2].verdict) == exact(verdict)
