"""The engine in a process of its own against the one in this process, and what is left when either side dies."""

import asyncio
import contextlib
import copy
import gc
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from strop.core.engine import Engine, Sampling
from strop.core.errors import EngineError, EngineLost
from strop.core.source import ModelSource
from strop.core.task import Task, Verdict
from strop.core.trajectory import Completion, Ints
from strop.core.world import World
from strop.engine.child import environment
from strop.engine.frames import MAX_FRAME, Frame, FrameError, decode, encode, read
from strop.engine.local import LocalEngine
from strop.engine.process import ProcessEngine
from strop.engine.scripted import ScriptedEngine
from strop.model.load import load, save
from strop.model.policy import Policy
from strop.rollout.episode import judge
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from tests.engine.test_local import uncached
from tests.rollout.worlds import CODEC, Scripted, say

PARROT = str(Path(__file__).with_name("parrot.py"))
NEVER: frozenset[int] = frozenset()
SLOTS = 4


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load(ModelSource(preset="tiny", width=32, context=4096))


@pytest.fixture(scope="module")
def engine(policy: Policy) -> Iterator[ProcessEngine]:
    """One child for all tests that leave it alive, made in a thread that is over before the first of them."""
    made: list[ProcessEngine] = []
    maker = threading.Thread(target=lambda: made.append(ProcessEngine(policy, NEVER, max_slots=SLOTS)))
    maker.start()
    maker.join()
    pid, folder = made[0].pid, made[0]._folder
    assert list(folder.iterdir()) == []
    yield made[0]
    began = time.monotonic()
    made[0].close()
    assert time.monotonic() - began < 2  # it had not to be terminated
    assert gone(pid)
    assert not folder.exists()


def parrot(policy: Policy, way: str, **more: Any) -> ProcessEngine:
    return ProcessEngine(policy, NEVER, command=(sys.executable, PARROT, way), **more)


def gone(pid: int) -> bool:
    """Whether a process is no more, or waits for nothing but its parent's notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def wait_for(true: Callable[[], bool], seconds: float = 8.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def within(coroutine: Coroutine[Any, Any, Any], seconds: float = 9.0) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(coroutine, seconds)

    return asyncio.run(bounded())


def ids(*key: int) -> Ints:
    rng = np.random.default_rng(key)
    return rng.integers(0, 300, rng.integers(4, 30)).astype(np.int32)


async def episode(engine: Engine, group: int, member: int, temperature: float = 1.0) -> list[Completion]:
    history, session, played = ids(group), f"{group}/{member}", []
    for turn in range(3):
        made = await engine.sample(history, Sampling(5 + turn, temperature), (group, member, turn), session)
        played.append(made)
        history = np.concatenate([history, made.tokens, ids(group, member, turn)])
    await engine.end(session)
    return played


async def in_turn(engine: Engine, temperature: float = 1.0) -> list[Completion]:
    return [made for group in range(4) for made in await episode(engine, group, 0, temperature)]


async def at_once(engine: Engine) -> list[Completion]:
    played = await asyncio.gather(*(episode(engine, group, member) for group in range(6) for member in range(3)))
    return [made for episode in played for made in episode]


def moved(policy: Policy) -> Policy:
    other = copy.deepcopy(policy.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return replace(policy, model=other)


def same_bits(left: list[Completion], right: list[Completion]) -> bool:
    return all(
        a.stop == b.stop and all(x.tobytes() == y.tobytes() for x, y in zip(columns(a), columns(b), strict=True))
        for a, b in zip(left, right, strict=True)
    )


def columns(made: Completion) -> tuple[np.ndarray, ...]:
    for column, kind in zip((made.tokens, made.logprobs, made.versions), ("int32", "float32", "int32"), strict=True):
        assert column.dtype == kind
        assert column.flags.writeable
    return made.tokens, made.logprobs, made.versions


# the same as in this process


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_requests_in_turn_give_the_bits_of_the_local_engine(
    engine: ProcessEngine, policy: Policy, temperature: float
) -> None:
    within(engine.load(None, 0))
    there = within(in_turn(engine, temperature))
    assert same_bits(there, within(in_turn(LocalEngine(policy, NEVER), temperature)))
    assert not same_bits(there, within(in_turn(LocalEngine(moved(policy), NEVER), temperature)))


def test_requests_at_once_give_the_tokens_of_the_local_engine(engine: ProcessEngine, policy: Policy) -> None:
    within(engine.load(None, 0))
    there, here = within(at_once(engine)), within(at_once(LocalEngine(policy, NEVER)))
    other = within(at_once(LocalEngine(moved(policy), NEVER)))
    assert [made.tokens.tolist() for made in there] == [made.tokens.tolist() for made in here]
    assert [made.tokens.tolist() for made in there] != [made.tokens.tolist() for made in other]
    assert max(np.abs(a.logprobs - b.logprobs).max() for a, b in zip(there, here, strict=True)) < 1e-5


def test_a_request_that_cannot_be_served_is_refused_in_the_words_of_the_local_engine(
    engine: ProcessEngine, policy: Policy
) -> None:
    wrong = [
        (np.array([10_000], np.int32), Sampling(4)),
        (np.zeros(0, np.int32), Sampling(4)),
        (ids(1), Sampling(5000)),
        (ids(1), Sampling(4, top_p=0.5)),
    ]

    async def said(engine: Engine, prompt: Ints, sampling: Sampling) -> str:
        with pytest.raises(EngineError) as caught:
            await engine.sample(prompt, sampling, (0,), "s")
        assert type(caught.value) is EngineError
        return str(caught.value)

    for prompt, sampling in wrong:
        there = within(said(engine, prompt, sampling))
        assert there == within(said(LocalEngine(policy, NEVER), prompt, sampling))
        assert there != ""
    assert len(within(episode(engine, 1, 1))) == 3  # and it serves the next one


def test_what_the_child_did_is_counted_with_each_answer(engine: ProcessEngine) -> None:
    before, steps = engine.counts.sampled, engine.counts.steps
    made = within(in_turn(engine))
    assert engine.counts.sampled - before == sum(len(m.tokens) for m in made)
    assert engine.counts.steps - steps == engine.counts.sampled - before  # one session: a step a token


def test_the_buffers_take_a_shape_and_say_it(engine: ProcessEngine) -> None:
    engine.resize(3, 128)
    assert engine.shape == (3, 128)
    with pytest.raises(EngineError, match="at most 4"):
        engine.resize(5, 128)
    engine.resize(4, 256)
    assert engine.shape == (4, 256)


# weights


def test_new_weights_arrive_whole_and_leave_no_file(engine: ProcessEngine, policy: Policy) -> None:
    other = moved(policy)

    async def play() -> None:
        await engine.load(None, 0)
        first = await in_turn(engine)
        await engine.load(other.model.state_dict(), 7)
        second = await in_turn(engine)
        assert engine.version == 7
        assert same_bits(
            [replace(m, versions=m.versions * 0) for m in second], await in_turn(LocalEngine(other, NEVER))
        )
        assert {int(v) for made in second for v in made.versions} == {7}
        assert not same_bits([replace(m, versions=m.versions * 0) for m in second], first)
        await engine.load(None, 0)
        assert same_bits(first, await in_turn(engine))
        assert list(engine._folder.iterdir()) == []

    within(play())


def test_weights_that_do_not_fit_are_refused_and_change_nothing(engine: ProcessEngine, policy: Policy) -> None:
    async def play() -> None:
        await engine.load(None, 0)
        first = await in_turn(engine)
        for wrong in ({"odd": torch.zeros(3)}, dict(list(policy.model.state_dict().items())[:3])):
            with pytest.raises(EngineError, match="do not fit"):
                await engine.load(wrong, 9)
        assert engine.version == 0
        assert same_bits(first, await in_turn(engine))
        assert list(engine._folder.iterdir()) == []

    within(play())


def test_weights_may_change_under_a_completion_and_each_token_says_which(engine: ProcessEngine, policy: Policy) -> None:
    other, prompt = moved(policy), ids(5)

    async def play(attempt: int) -> Completion:
        await engine.load(None, 1)
        long = asyncio.create_task(engine.sample(prompt, Sampling(1200), (3,), f"long{attempt}"))
        await asyncio.sleep(0)
        await engine.sample(prompt, Sampling(5), (4,), f"short{attempt}")  # answered: the long one is under way
        await engine.load(other.model.state_dict(), 2)
        made = await long
        await engine.end(f"long{attempt}")
        await engine.end(f"short{attempt}")
        return made

    for attempt in range(20):  # on a busy machine the completion may be over before the weights arrive
        made = within(play(attempt))
        if made.versions[-1] == 2:
            break
    cut = int((made.versions == 1).sum())
    assert 5 <= cut < 1200
    assert made.versions.tolist() == [1] * cut + [2] * (1200 - cut)
    gaps = [np.abs(uncached(p, prompt, made) - made.logprobs) for p in (policy, other)]
    assert gaps[0][:cut].max() < 1e-4
    assert gaps[1][cut:].max() < 1e-4
    assert gaps[1][:cut].max() > 0.1
    assert gaps[0][cut:].max() > 0.1


def test_a_load_that_is_cancelled_is_carried_out_and_cleaned_up(policy: Policy) -> None:
    engine = parrot(policy, "well")

    async def play() -> None:
        loading = asyncio.create_task(engine.load(None, 5))
        await asyncio.sleep(0)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert (await engine.sample(ids(1), Sampling(2), (0,), "s")).versions.tolist() == [5, 5]
        assert engine.version == 5
        assert list(engine._folder.iterdir()) == []

    within(play())
    engine.close()


# cancellation and event loops


def test_a_cancelled_request_frees_its_session(engine: ProcessEngine) -> None:
    async def hold(name: str) -> None:
        await engine.sample(ids(1), Sampling(3), (0,), name)

    async def play() -> None:
        await engine.load(None, 0)
        await asyncio.gather(*(hold(f"held-{i}") for i in range(SLOTS)))
        with pytest.raises(TimeoutError):  # the control: all slots are taken
            await asyncio.wait_for(hold("late"), 0.3)
        for i in range(SLOTS):
            await engine.end(f"held-{i}")
        running = [asyncio.create_task(engine.sample(ids(2), Sampling(2000), (i,), f"long-{i}")) for i in range(SLOTS)]
        await asyncio.sleep(0.1)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        assert all(task.cancelled() for task in running)
        await asyncio.gather(*(hold(f"next-{i}") for i in range(SLOTS)))
        for i in range(SLOTS):
            await engine.end(f"next-{i}")

    within(play())


def test_a_session_can_be_asked_again_right_after_its_request_was_cancelled(engine: ProcessEngine) -> None:
    async def play() -> None:
        await engine.load(None, 0)
        want = (await engine.sample(ids(3), Sampling(6), (1,), "fresh")).tokens.tolist()
        for _ in range(20):
            first = asyncio.create_task(engine.sample(ids(2), Sampling(2), (0,), "again"))
            await asyncio.sleep(0.002)  # some are cancelled before, some after they were served
            first.cancel()
            await asyncio.wait({first})
            made = await engine.sample(ids(3), Sampling(6), (1,), "again")
            assert made.tokens.tolist() == want
            await engine.end("again")
        await engine.end("fresh")

    within(play())


def test_a_session_has_one_request_at_a_time(engine: ProcessEngine) -> None:
    async def play() -> None:
        first = asyncio.create_task(engine.sample(ids(2), Sampling(50), (0,), "one"))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="one request at a time"):
            await engine.sample(ids(2), Sampling(5), (0,), "one")
        with pytest.raises(EngineError, match="before `end`"):
            await engine.end("one")
        assert len((await first).tokens) == 50
        await engine.end("one")

    within(play())


def test_one_event_loop_after_the_other_may_ask_also_when_one_broke_off(engine: ProcessEngine) -> None:
    within(engine.load(None, 0))
    want = within(in_turn(engine))
    loop = asyncio.new_event_loop()
    broken = loop.create_task(engine.sample(ids(2), Sampling(2000), (0,), "broken"))
    loop.run_until_complete(asyncio.sleep(0.05))
    broken.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(broken)
    loop.close()
    assert same_bits(want, within(in_turn(engine)))


def test_the_child_leaves_an_interrupt_to_the_trainer(engine: ProcessEngine) -> None:
    os.kill(engine.pid, signal.SIGINT)
    assert len(within(episode(engine, 1, 1))) == 3


# death


def table(seconds: float = 30.0) -> Table:
    async def fine(task: Task, trajectory: Any) -> Verdict:
        return Verdict(1.0)

    made = World(
        "talk", {"train": [Task("a")], "eval": [Task("a")]}, lambda *_: Scripted(say("go"), say("go on")), fine
    )
    limits = Limits(turns=4, turn_tokens=900, tokens=4000, context=4000, seconds=seconds)
    return Table(made, CODEC, limits, CODEC.append_only, seed=7)


def test_a_killed_child_ends_the_group_that_waits_for_it_within_a_second() -> None:
    policy = load(ModelSource(preset="tiny", width=32, context=4096))
    engine = ProcessEngine(policy, NEVER)
    pid, folder = engine.pid, engine._folder

    async def play() -> float:
        playing = asyncio.create_task(play_group(table(), Task("a"), 4, engine, Sampling(900), "train", 0))
        for _ in range(2):  # once both are answered, the others are under way
            await engine.sample(ids(1), Sampling(3), (0,), "probe")
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineLost, match="SIGKILL"):
            await playing
        return time.monotonic() - killed

    assert within(play()) < 1
    began = time.monotonic()
    for call in (lambda: engine.sample(ids(1), Sampling(3), (0,), "s"), lambda: engine.load(None, 1)):
        with pytest.raises(EngineLost, match="SIGKILL"):
            within(call())
    within(engine.end("s"))  # nothing is left to be freed
    engine.close()
    assert time.monotonic() - began < 1
    assert gone(pid)
    assert not folder.exists()


def test_a_child_that_fails_at_its_start_says_why(policy: Policy) -> None:
    before = children()
    with pytest.raises(EngineLost, match="unexpected keyword argument 'lots'") as caught:
        ProcessEngine(policy, NEVER, lots=3)
    assert "Traceback" in caught.value.last
    assert "exit code 1" in str(caught.value)
    assert children() <= before


def test_a_program_that_is_not_there_is_a_lost_engine(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="did not start"):
        ProcessEngine(policy, NEVER, command=(str(tmp_path / "nothing"),), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


PARENT = """
import sys, time
from strop.engine.child import SERVER, Child, environment
import json, numpy as np
child = Child((*SERVER, sys.argv[1]), environment(1))
child.ask("hello", json.loads(sys.argv[2])).result()
fields = {"session": "s", "seed": [0], "max_tokens": 4000, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
child.ask("sample", fields, {"prompt": np.arange(5, dtype=np.int32)})
print(child.process.pid, flush=True)
time.sleep(60)
"""


def test_a_child_goes_when_its_parent_is_killed_and_takes_the_folder_along(policy: Policy, tmp_path: Path) -> None:
    save(policy, tmp_path / "model")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "weights-000001-0.safetensors").write_bytes(b"left over")
    hello = {
        "protocol": 1,
        "vocabulary": policy.vocabulary,
        "window": policy.window,
        "stop_ids": [],
        "model": str(tmp_path / "model"),
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
        "options": {},
    }
    command = [sys.executable, "-c", PARENT, str(tmp_path / "own"), json.dumps(hello)]
    with subprocess.Popen(command, env=environment(1), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    assert wait_for(lambda: gone(pid))
    assert not (tmp_path / "own").exists()


# another server, written from the document alone: faults of the other side, without a model


def test_a_server_written_from_the_document_is_an_engine(policy: Policy) -> None:
    engine = parrot(policy, "well")

    async def play() -> None:
        made = await engine.sample(ids(1), Sampling(3), (0, 2**63), "s")
        assert made.tokens.tolist() == ids(1)[:3].tolist()
        assert made.logprobs.tolist() == [-0.5] * 3
        await engine.load(None, 12)
        assert (await engine.sample(ids(1), Sampling(3), (0,), "s")).versions.tolist() == [12] * 3
        await engine.end("s")

    within(play())
    engine.close()


def test_a_server_of_another_protocol_is_refused(policy: Policy) -> None:
    before = children()
    with pytest.raises(EngineError, match="'protocol': 2") as caught:
        parrot(policy, "newer")
    assert not isinstance(caught.value, EngineLost)
    assert children() <= before


@pytest.mark.parametrize(
    ("way", "words"), [("crash", "exit code 3"), ("noise", "no JSON"), ("cut", "ended inside a frame")]
)
def test_a_server_that_breaks_down_is_lost_for_every_request(policy: Policy, way: str, words: str) -> None:
    engine = parrot(policy, way)
    pid = engine.pid

    async def play() -> float:
        began = time.monotonic()
        asked = (engine.sample(ids(i), Sampling(3), (0,), f"s{i}") for i in range(5))
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(end, EngineLost) and words in str(end) for end in ends), ends
        assert len({id(end) for end in ends}) == 5
        if way == "crash":
            assert {end.last for end in ends if isinstance(end, EngineLost)} == {"the roof is on fire"}
        return time.monotonic() - began

    assert within(play()) < 1
    assert gone(pid)
    engine.close()


def test_a_server_that_gives_no_sign_is_given_up(policy: Policy) -> None:
    before = children()
    with pytest.raises(EngineLost, match="gave no sign"):
        parrot(policy, "mute", patience=0.2)
    assert children() <= before


def test_a_server_that_will_not_stop_is_killed(policy: Policy) -> None:
    engine = parrot(policy, "deaf")
    pid, folder = engine.pid, engine._folder
    began = time.monotonic()
    engine.close()
    assert 2.5 < time.monotonic() - began < 4
    assert gone(pid)
    assert not folder.exists()
    engine.close()  # once is enough, twice no harm


def test_closing_ends_the_requests_that_wait(policy: Policy) -> None:
    engine = parrot(policy, "slow")

    async def play() -> None:
        waiting = asyncio.create_task(engine.sample(ids(1), Sampling(3), (0,), "s"))
        await asyncio.sleep(0)
        engine.close()
        with pytest.raises(EngineLost, match="closed"):
            await waiting
        with pytest.raises(EngineLost, match="closed"):
            await engine.sample(ids(1), Sampling(3), (0,), "s")

    within(play())


def test_an_engine_that_is_forgotten_leaves_nothing(policy: Policy) -> None:
    engine = parrot(policy, "well")
    pid, folder = engine.pid, engine._folder
    within(engine.sample(ids(1), Sampling(3), (0,), "s"))
    assert not gone(pid)
    assert folder.exists()
    del engine
    gc.collect()
    assert gone(pid)
    assert not folder.exists()


def test_a_judge_that_lost_its_engine_gives_no_verdict_but_the_loss() -> None:
    async def lost(task: Task, trajectory: Any) -> Verdict:
        raise EngineLost("the engine's process 1 was ended by SIGKILL")

    async def odd(task: Task, trajectory: Any) -> Verdict:
        raise EngineError("this request cannot be served")

    sound = table()
    talker = ScriptedEngine(lambda *_: CODEC.reply("go").tolist(), CODEC.stop_ids)
    played = within(play_group(sound, Task("a"), 1, talker, Sampling(20), "train", 0)).trajectories[0]
    with pytest.raises(EngineLost):
        within(judge(replace(sound.world, verify=lost), played))
    assert within(judge(replace(sound.world, verify=odd), played)).verdict.invalid is not None


# frames

NAMES = st.text(max_size=5)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
ARRAYS = st.sampled_from(["int32", "float32"]).flatmap(lambda kind: arrays.arrays(kind, st.integers(0, 9)))
FRAMES = st.builds(
    Frame,
    NAMES,
    st.integers(0, 2**62),
    st.dictionaries(NAMES, VALUES, max_size=4),
    st.dictionaries(NAMES, ARRAYS, max_size=3),
)


def facts(frame: Frame | None) -> Any:
    """A frame in a form in which NaN equals itself."""
    assert frame is not None
    held = {name: (array.dtype.name, array.tobytes()) for name, array in frame.arrays.items()}
    return frame.kind, frame.number, frame.fields, held


@settings(max_examples=50)
@given(st.lists(FRAMES, max_size=3))
def test_frames_come_out_as_they_went_in(frames: list[Frame]) -> None:
    stream = io.BytesIO(b"".join(map(encode, frames)))
    assert [facts(read(stream)) for _ in frames] == list(map(facts, frames))
    assert read(stream) is None


@settings(max_examples=50)
@given(FRAMES, st.data())
def test_a_frame_that_is_cut_is_refused(frame: Frame, data: st.DataObject) -> None:
    whole = encode(frame)
    kept = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(FrameError, match="ended inside a frame"):
        read(io.BytesIO(whole[:kept]))


@settings(max_examples=150)
@given(FRAMES, st.data())
def test_bytes_that_are_no_frame_are_refused_by_name(frame: Frame, data: st.DataObject) -> None:
    body = bytearray(encode(frame)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(body))
    except FrameError:
        return
    assert decode(encode(found)[4:]).kind == found.kind  # what passes is a frame


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"[]\n", "JSON object"),
        (b"{}", "line feed"),
        (b"{}\n", "kind, number"),
        (b'{"kind":"a","number":0,"fields":{},"arrays":[["x","float64",1]]}\n12345678', "int32 or float32"),
        (b'{"kind":"a","number":0,"fields":{},"arrays":[["x","int32",-1]]}\n', "int32 or float32"),
        (b'{"kind":"a","number":0,"fields":{},"arrays":[["x","int32",2]]}\n1234', "cut"),
        (b'{"kind":"a","number":0,"fields":{},"arrays":[["x","int32",1]]}\n12345', "4 were announced"),
    ],
)
def test_each_fault_of_a_frame_has_its_words(body: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        decode(body)


def test_a_frame_beyond_the_limit_is_neither_sent_nor_read() -> None:
    with pytest.raises(FrameError, match="at most"):
        encode(Frame("sample", 1, {}, {"prompt": np.zeros(MAX_FRAME // 4, np.int32)}))
    with pytest.raises(FrameError, match="was announced"):
        read(io.BytesIO((MAX_FRAME + 1).to_bytes(4, "big")))


def test_what_is_no_array_of_one_dimension_or_no_json_is_not_sent() -> None:
    with pytest.raises(FrameError, match="one dimension"):
        encode(Frame("sample", 1, {}, {"prompt": np.zeros((2, 2), np.int32)}))
    with pytest.raises(FrameError, match="float64"):
        encode(Frame("sample", 1, {}, {"prompt": np.zeros(2)}))
    with pytest.raises(FrameError, match="64 bits"):
        encode(Frame("sample", 1, {"seed": [2**64]}))
