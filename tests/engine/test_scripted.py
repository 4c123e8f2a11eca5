"""The scripted engine keeps to the protocol that it stands in for."""

import asyncio

import numpy as np
import pytest

from strop.core.engine import Engine, Sampling
from strop.core.errors import EngineError
from strop.core.trajectory import Completion
from strop.engine.scripted import ScriptedEngine


def ask(engine: Engine, prompt: list[int], cap: int, session: str = "s") -> Completion:
    return asyncio.run(engine.sample(np.array(prompt, np.int32), Sampling(cap), (0, 1), session))


def test_a_function_sees_prompt_session_and_turn() -> None:
    engine = ScriptedEngine(lambda prompt, session, turn: [*prompt, len(session), turn])
    assert ask(engine, [7], 9, "abc").tokens.tolist() == [7, 3, 0]
    assert ask(engine, [7, 8], 9, "abc").tokens.tolist() == [7, 8, 3, 1]
    assert ask(engine, [7], 9, "b").tokens.tolist() == [7, 1, 0]


def test_a_mapping_gives_one_reply_a_turn_and_no_more() -> None:
    engine = ScriptedEngine({"s": [[5], [6]]})
    assert [ask(engine, [1], 9).tokens.tolist() for _ in range(2)] == [[5], [6]]
    with pytest.raises(EngineError, match="asks for reply 2"):
        ask(engine, [1], 9)
    with pytest.raises(EngineError, match="the script has 0"):
        ask(engine, [1], 9, "other")


def test_a_reply_is_cut_after_its_first_stop_id() -> None:
    done = ask(ScriptedEngine({"s": [[5, 2, 6, 2]]}, frozenset({2})), [1], 9)
    assert (done.tokens.tolist(), done.stop) == ([5, 2], "stop")


def test_the_cap_cuts_before_a_later_stop_id() -> None:
    done = ask(ScriptedEngine({"s": [[5, 6, 2]]}, frozenset({2})), [1], 2)
    assert (done.tokens.tolist(), done.stop) == ([5, 6], "length")
    done = ask(ScriptedEngine({"s": [[5, 6, 2]]}, frozenset({2})), [1], 3)
    assert (done.tokens.tolist(), done.stop) == ([5, 6, 2], "stop")


def test_a_reply_that_no_engine_could_sample_is_refused() -> None:
    with pytest.raises(EngineError, match="append a stop id"):
        ask(ScriptedEngine({"s": [[5, 6]]}, frozenset({2})), [1], 9)
    with pytest.raises(EngineError):
        ask(ScriptedEngine({"s": [[]]}), [1], 9)
    with pytest.raises(EngineError):
        ask(ScriptedEngine({"s": [[5]]}), [], 9)
    with pytest.raises(EngineError):
        ask(ScriptedEngine({"s": [[5]]}), [1], 0)


def test_versions_follow_load_and_logprobs_are_as_given() -> None:
    engine = ScriptedEngine(lambda *_: [5, 6], logprob=-0.5)
    assert ask(engine, [1], 9).versions.tolist() == [0, 0]
    asyncio.run(engine.load({"w": 1}, 3))
    done = ask(engine, [1], 9)
    assert done.versions.tolist() == [3, 3]
    assert done.logprobs.tolist() == [-0.5, -0.5]
    assert engine.loads == [({"w": 1}, 3)]


def test_everything_asked_for_can_be_read_afterwards() -> None:
    engine = ScriptedEngine(lambda *_: [5])
    prompt = np.array([1, 2], np.int32)
    asyncio.run(engine.sample(prompt, Sampling(3, 0.5), (4, 5), "s"))
    prompt[0] = 99  # what was recorded is what was sent
    asyncio.run(engine.end("s"))
    assert [p.tolist() for p in engine.prompts["s"]] == [[1, 2]]
    assert engine.samplings["s"] == [Sampling(3, 0.5)]
    assert engine.seeds["s"] == [(4, 5)]
    assert engine.ended == ["s"]
