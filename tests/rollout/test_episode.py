"""One episode: what ends it, what goes wrong in it, and that trained ids are the sampled ids behind the prompt seen."""

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.codec import template
from strop.codec.chat import ChatCodec
from strop.core.engine import Engine, Sampling
from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Step, Task, Verdict
from strop.core.trajectory import Completion, Trajectory
from strop.engine.scripted import ScriptedEngine
from strop.envs.guess import Guess
from strop.rollout.episode import engine_agent, judge, play, player_agent
from strop.rollout.limits import Limits
from strop.rollout.rows import rows_of
from tests.families import QWEN3_TEMPLATE, hello_tokenizer
from tests.rollout.worlds import CODEC, END, Answer, Scripted, hang, say, world

TASK = Task("a")
FAR = Limits(turns=50, turn_tokens=1000, tokens=10_000, context=10_000, seconds=20)


def reply(text: str) -> list[int]:
    return CODEC.reply(text).tolist()


def scripted(*texts: str) -> ScriptedEngine:
    return ScriptedEngine({"s": [reply(text) for text in texts]}, CODEC.stop_ids)


def played(env: Scripted | Guess, engine: Engine, limits: Limits = FAR, codec: ChatCodec = CODEC) -> Trajectory:
    agent = engine_agent(engine, Sampling(limits.turn_tokens), (0,), "s")
    return asyncio.run(play(env, TASK, agent, codec, limits, codec.append_only))


# --- what ends an episode


def test_a_done_environment_ends_the_episode_as_done() -> None:
    env = Scripted(say("hi"), say("more"), Step(done=True))
    found = played(env, scripted("a", "b"))
    assert (found.end, found.error, env.heard, env.closed) == ("done", None, ["a", "b"], 1)
    assert found.artefacts == {"heard": ["a", "b"]}
    assert [m.content for m in found.messages] == ["hi", "a", "more", "b"]


def test_a_truncating_environment_is_not_done() -> None:
    found = played(Scripted(say("hi"), say("time is up", truncated=True)), scripted("a"))
    assert (found.end, found.error) == ("truncated", None)
    assert found.tail.tolist() == CODEC.extension((Message("user", "time is up"),), found.turns[0].completion).tolist()


def test_the_last_words_of_a_done_environment_are_in_the_transcript_and_in_no_row() -> None:
    found = played(Scripted(say("hi"), say("bye", done=True)), scripted("a"))
    assert [m.content for m in found.messages] == ["hi", "a", "bye"]
    [row] = rows_of("g", 0, found, None)
    assert row.tokens.tolist() == [*CODEC.opening((Message("user", "hi"),)).tolist(), *reply("a")]


@pytest.mark.parametrize("turns", [1, 3])
def test_the_limit_of_turns_ends_it_after_that_many_completions(turns: int) -> None:
    found = played(Scripted(say("hi"), say("more")), scripted(*"abcdef"), Limits(turns=turns, context=1000))
    assert (found.end, found.error, len(found.turns)) == ("turns", None, turns)
    assert [turn.completion.stop for turn in found.turns] == ["stop"] * turns


def test_a_game_that_is_done_with_its_last_turn_is_done() -> None:
    found = played(Scripted(say("hi"), say("more"), Step(done=True)), scripted("a", "b"), Limits(turns=2, context=1000))
    assert found.end == "done"


def test_the_tokens_of_an_episode_end_it_as_length() -> None:
    limits = Limits(turns=50, turn_tokens=4, tokens=10, context=1000)
    engine = scripted("abcdef", "ghijkl", "mnopqr", "never")
    found = played(Scripted(say("hi"), say("more")), engine, limits)
    assert found.end == "length"
    assert [s.max_tokens for s in engine.samplings["s"]] == [4, 4, 2]
    assert [turn.completion.stop for turn in found.turns] == ["length"] * 3
    assert found.sampled_tokens == limits.longest == 10


def test_a_turn_that_stops_just_at_the_cap_has_stopped() -> None:
    found = played(Scripted(say("hi"), Step(done=True)), scripted("abc"), Limits(turns=9, turn_tokens=4, context=1000))
    assert found.turns[0].completion.tokens.tolist() == reply("abc")
    assert (found.turns[0].completion.stop, found.end) == ("stop", "done")


WINDOW = Limits(turns=9, turn_tokens=16, tokens=100, context=32)
PROMPT = "x" * 17  # with role, end and header 20 ids


def test_a_window_of_32_and_a_prompt_of_20_leave_12_tokens_and_then_no_room_for_an_observation() -> None:
    engine = scripted("y" * 40)
    found = played(Scripted(say(PROMPT), say("z" * 12)), engine, WINDOW)
    assert len(engine.prompts["s"][0]) == 20
    assert [s.max_tokens for s in engine.samplings["s"]] == [12]
    assert (found.turns[0].completion.stop, found.end, found.error) == ("length", "context", None)
    assert len(found.tail) == 1 + 12 + 3  # the end that nobody sampled, the observation, the header


@pytest.mark.parametrize(("text", "stop"), [("y" * 40, "length"), ("y" * 11, "stop")])
def test_a_final_answer_that_fills_the_window_is_done(text: str, stop: str) -> None:
    found = played(Scripted(say(PROMPT), Step(done=True)), scripted(text), WINDOW)
    assert (len(found.turns[0].completion.tokens), found.turns[0].completion.stop, found.end) == (12, stop, "done")


@pytest.mark.parametrize(("letters", "end", "asked"), [(1, "done", [12, 1]), (2, "context", [12])])
def test_the_window_is_exact_to_the_token(letters: int, end: str, asked: list[int]) -> None:
    engine = ScriptedEngine({"s": [reply("yyyyyy"), [END]]}, CODEC.stop_ids)
    env = Scripted(say(PROMPT), say("z" * letters), Step(done=True))  # 20 + 7 + (letters + 3) ids
    found = played(env, engine, WINDOW)
    assert found.end == end
    assert [s.max_tokens for s in engine.samplings["s"]] == asked


@pytest.mark.parametrize(("letters", "end"), [(28, "done"), (29, "context"), (400, "context")])
def test_a_prompt_without_room_for_an_answer_is_an_episode_without_turns(letters: int, end: str) -> None:
    env = Scripted(say("x" * letters), Step(done=True))
    found = played(env, ScriptedEngine(lambda *_: [END], CODEC.stop_ids), WINDOW)
    assert (found.end, found.error, len(found.turns), env.closed) == (end, None, int(end == "done"), 1)
    judged = asyncio.run(judge(world(lambda *_: env), found))
    assert judged.score == (1.0 if end == "done" else None)  # nothing was done: unscored, not 0


QUICK = Limits(turns=9, turn_tokens=16, tokens=100, context=1000, seconds=0.05)


def test_time_runs_out_as_a_timeout_and_what_was_done_so_far_is_judged() -> None:
    env = Scripted(say("hi"), say("more"), hang)
    found = played(env, scripted("a", "b"), QUICK)
    assert (found.end, found.error, env.closed, len(found.turns)) == ("timeout", None, 1, 2)
    assert found.artefacts == {"heard": ["a", "b"]}


def test_a_timeout_of_the_environments_own_is_its_error() -> None:
    env = Scripted(say("hi"), TimeoutError("its server did not answer"))
    found = played(env, scripted("a"))
    assert (found.end, found.error) == ("error", "TimeoutError: its server did not answer")


def test_an_engine_that_hangs_is_a_timeout_too() -> None:
    class Stuck(ScriptedEngine):
        async def sample(self, *args: Any) -> Completion:
            return await hang()

    env = Scripted(say("hi"), Step(done=True))
    assert (played(env, Stuck({}), QUICK).end, env.closed) == ("timeout", 1)


# --- what goes wrong


@pytest.mark.parametrize(
    ("env", "error", "turns"),
    [
        (Scripted(RuntimeError("no")), "RuntimeError: no", 0),
        (Scripted(say("hi"), ValueError("bad")), "ValueError: bad", 1),
        (Scripted(say("hi"), say("more"), KeyError("x")), "KeyError: 'x'", 2),
        (
            Scripted(say("hi"), Step(done=True), close=OSError("gone")),
            "closing the environment raised OSError: gone",
            1,
        ),
        (Scripted(say("hi"), ValueError("first"), close=OSError("second")), "ValueError: first", 1),
        (Scripted(say("hi"), Step(done=True), artefacts=ValueError("lost")), "ValueError: lost", 1),
        (Scripted(say("hi"), Step()), "gave no message", 1),
        (Scripted(say("hi"), lambda _: None), "AttributeError", 1),
        (Scripted(say("hi"), lambda _: "text"), "AttributeError", 1),
        (Scripted(say("hi"), say("x", rewards={"speed": math.nan})), "the reward speed = nan", 1),
        (Scripted(say("hi"), say("x", rewards={"speed": math.inf})), "the reward speed = inf", 1),
        (Scripted(say("hi"), Step((Message("nobody", "x"),))), "Error", 1),
    ],
)
def test_what_an_environment_does_wrong_is_data_and_it_is_closed_once(env: Scripted, error: str, turns: int) -> None:
    env.closed, env.heard = 0, []
    found = played(env, scripted("a", "b"))
    assert found.end == "error"
    assert found.error is not None
    assert error in found.error
    assert (len(found.turns), env.closed) == (turns, 1)
    assert asyncio.run(judge(world(lambda *_: env), found)) is found  # never asked: a failed rollout has no score


def test_an_environment_that_hangs_in_close_does_not_hold_the_run() -> None:
    env = Scripted(say("hi"), Step(done=True), close=hang)
    found = played(env, scripted("a"), QUICK)
    assert found.error == "closing the environment raised TimeoutError: "


def test_a_cancelled_episode_closes_its_environment() -> None:
    env = Scripted(say("hi"), hang)

    async def cancelled() -> None:
        agent = engine_agent(scripted("a"), Sampling(9), (0,), "s")
        playing = asyncio.create_task(play(env, TASK, agent, CODEC, FAR, True))
        while not env.heard:
            await asyncio.sleep(0)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(cancelled())
    assert env.closed == 1


def test_an_engine_that_gives_up_is_an_error() -> None:
    class Aborting(ScriptedEngine):
        async def sample(self, *args: Any) -> Completion:
            none = np.zeros(0, np.int32)
            return Completion(none, np.zeros(0, np.float32), none, "abort")

    found = played(Scripted(say("hi"), Step(done=True)), Aborting({}))
    assert (found.end, found.error) == ("error", "RuntimeError: the engine aborted the completion")


def test_an_engine_without_a_reply_is_an_error_that_names_it() -> None:
    found = played(Scripted(say("hi"), say("more")), scripted("a"))
    assert found.error == "EngineError: session s asks for reply 1; the script has 1"
    assert len(found.turns) == 1


def test_replies_that_no_parser_understands_are_answered_and_kept() -> None:
    """Bytes that are no UTF-8, control tokens and nothing at all: the episode goes on, the ids are as sampled."""
    odd = [[300 % 256 + 1, END], [END], [CODEC.tokenizer.convert_tokens_to_ids("<|user|>"), END], [200, 201, 202, 203]]
    engine = ScriptedEngine({"s": odd}, CODEC.stop_ids)
    env = Guess(secret=3, numbers=4, attempts=4)
    found = played(env, engine, Limits(turns=9, turn_tokens=4, tokens=100, context=1000))
    assert (found.end, found.error) == ("done", None)
    assert [turn.completion.tokens.tolist() for turn in found.turns] == odd
    assert env.guesses == [None] * 4


# --- verdicts


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (ZeroDivisionError("by zero"), "verifier raised ZeroDivisionError: by zero"),
        (TimeoutError("judge"), "verifier raised TimeoutError: judge"),
        (Verdict(math.nan), "verifier returned the score nan"),
        (Verdict(math.inf), "verifier returned the score inf"),
        (Verdict(np.float32("nan")), "verifier returned the score nan"),
        (Verdict(1.0, aux={"style": math.nan}), "verifier returned aux style nan"),
        (Verdict("1"), "verifier raised TypeError"),  # type: ignore[arg-type]
        (None, "verifier returned NoneType, not a Verdict"),
        (1.0, "verifier returned float, not a Verdict"),
        (Verdict(None, invalid="the judge is down"), "the judge is down"),
        (Verdict(1.0, invalid="the judge is unsure"), "the judge is unsure"),
    ],
    ids=str,
)
@pytest.mark.parametrize("waits", [False, True])
def test_what_cannot_be_judged_is_unscored_and_says_why(given: Any, reason: str, waits: bool) -> None:
    def verify(task: Task, trajectory: Trajectory) -> Any:
        if isinstance(given, BaseException):
            raise given
        return given

    async def later(task: Task, trajectory: Trajectory) -> Any:
        await asyncio.sleep(0)
        return verify(task, trajectory)

    env = Scripted(say("hi"), Step(done=True))
    found = asyncio.run(judge(world(lambda *_: env, later if waits else verify), played(env, scripted("a"))))
    assert found.verdict is not None
    assert found.verdict.invalid is not None
    assert found.verdict.invalid.startswith(reason)
    assert (found.score, found.reward) == (None, None)


@pytest.mark.parametrize("verdict", [Verdict(0.0), Verdict(1.0), Verdict(0.25, aux={"style": -1.0}), Verdict(None)])
def test_what_can_be_judged_is_kept_as_it_is(verdict: Verdict) -> None:
    env = Scripted(say("hi"), Step(done=True, rewards={"fast": 0.5}))
    found = asyncio.run(judge(world(lambda *_: env, lambda *_: verdict), played(env, scripted("a"))))
    assert found.verdict is verdict
    assert found.reward == (None if verdict.score is None else verdict.score + sum(verdict.aux.values()) + 0.5)


def test_a_verifier_that_hangs_gives_an_invalid_verdict_in_time() -> None:
    env = Scripted(say("hi"), Step(done=True))
    found = asyncio.run(judge(world(lambda *_: env, lambda *_: hang()), played(env, scripted("a")), seconds=0.05))
    assert found.verdict is not None
    assert found.verdict.invalid == "verifier raised TimeoutError: "


# --- ids

OBSERVATIONS = st.lists(st.text(max_size=6), max_size=4)
WORDS = st.lists(st.integers(0, len(CODEC.tokenizer) - 1).filter(lambda i: i not in CODEC.stop_ids), max_size=6)


def check_ids(found: Trajectory, engine: ScriptedEngine) -> None:
    """Trained ids are the sampled ids, and what stands before each turn's is the prompt that the engine was sent."""
    rows = rows_of("g", 0, found, None)
    trained = [int(t) for row in rows for t in row.tokens[row.sampled]]
    assert trained == [int(t) for turn in found.turns for t in turn.completion.tokens]
    prompts = iter(engine.prompts["s"])
    for row in rows:
        for turn in np.unique(row.turns):
            first = np.flatnonzero((row.turns == turn) & row.sampled)[0]
            assert row.tokens[:first].tolist() == next(prompts).tolist()
    assert next(prompts, None) is None


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=6), st.lists(st.tuples(WORDS, st.booleans(), st.text(max_size=6)), min_size=1, max_size=5))
def test_an_append_only_template_gives_one_row_of_what_was_sampled(
    opening: str, turns: list[tuple[list[int], bool, str]]
) -> None:
    replies = [[*words, END] if stops or not words else (words * 6)[:6] for words, stops, _ in turns]
    steps: list[Answer] = [say(text) for _, _, text in turns]
    steps[-1] = Step(done=True)
    engine = ScriptedEngine({"s": replies}, CODEC.stop_ids)
    found = played(Scripted(say(opening), *steps), engine, Limits(turns=9, turn_tokens=6, context=1000))
    assert (found.end, found.error) == ("done", None)
    assert [turn.completion.tokens.tolist() for turn in found.turns] == [r[:6] for r in replies]
    assert len(rows_of("g", 0, found, None)) == 1
    check_ids(found, engine)


PLAIN = {  # the markers of Qwen3 as those that the tokenizer has
    "<|im_start|>assistant\\n": "<|assistant|>",
    "<|im_start|>user\\n": "<|user|>",
    "<|im_start|>' + message.role + '\\n": "<|user|>",
    "<|im_end|>\\n": "<|end|>",
}


def rewriting() -> ChatCodec:
    """A template that drops old thinking, on the tokenizer that knows `he`, `llo` and `hello`."""
    text = QWEN3_TEMPLATE
    for theirs, ours in PLAIN.items():
        text = text.replace(theirs, ours)
    return ChatCodec(hello_tokenizer(text))


REWRITING = rewriting()
TEXTS = ["hello", "<think>\nhm\n</think>\n\nhello", "he", "", " 4 ", "<think>"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(TEXTS), min_size=3, max_size=4))
def test_a_template_that_rewrites_history_gives_a_fresh_row_for_each_prompt_that_was_seen(texts: list[str]) -> None:
    assert not REWRITING.append_only
    he, llo = REWRITING.tokenizer.convert_tokens_to_ids(["he", "llo"])
    replies = [[he, llo, *REWRITING.reply(text).tolist()] for text in texts]
    engine = ScriptedEngine({"s": replies}, REWRITING.stop_ids)
    answers: list[Answer] = [say("and?")] * (len(texts) - 1) + [Step(done=True)]
    found = played(Scripted(say("hello"), *answers), engine, FAR, REWRITING)
    assert (found.end, found.error) == ("done", None)
    assert [turn.fresh for turn in found.turns] == [False] + [True] * (len(texts) - 1)
    assert len(rows_of("g", 0, found, None)) == len(texts)
    assert [turn.completion.tokens.tolist() for turn in found.turns] == replies
    check_ids(found, engine)


def test_what_is_sampled_apart_stays_apart() -> None:
    """`he` + `llo` is never joined to `hello`, neither in the next prompt nor in the row."""
    append = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    codec = ChatCodec(hello_tokenizer(append))
    he, llo, end = codec.tokenizer.convert_tokens_to_ids(["he", "llo", "<|end|>"])
    engine = ScriptedEngine({"s": [[he, llo, end], [end]]}, codec.stop_ids)
    found = played(Scripted(say("hello"), say("hello"), Step(done=True)), engine, FAR, codec)
    joined = codec.tokenizer.convert_tokens_to_ids("hello")
    assert codec.reply("hello").tolist() == [joined, end]  # so joining would be seen
    assert engine.prompts["s"][1].tolist()[3:6] == [codec.tokenizer.convert_tokens_to_ids("<|assistant|>"), he, llo]
    check_ids(found, engine)


def test_a_row_whose_history_was_encoded_again_is_seen() -> None:
    """Negative control of `check_ids`."""
    engine = scripted("ab", "cd")
    found = played(Scripted(say("hi"), say("more"), Step(done=True)), engine)
    check_ids(found, engine)
    engine.prompts["s"][1][3] += 1
    with pytest.raises(AssertionError):
        check_ids(found, engine)


def test_the_seed_of_a_turn_is_its_name() -> None:
    engine = scripted("a", "b")
    agent = engine_agent(engine, Sampling(5, 0.7), (3, 0, 8, 2), "s")
    asyncio.run(play(Scripted(say("hi"), say("m"), Step(done=True)), TASK, agent, CODEC, FAR, True))
    assert engine.seeds["s"] == [(3, 0, 8, 2, 0), (3, 0, 8, 2, 1)]
    assert [s.temperature for s in engine.samplings["s"]] == [0.7, 0.7]


def test_a_scripted_player_writes_ids_without_log_probabilities() -> None:
    def player(messages: Sequence[Message]) -> str:
        return "abcdef" if len(messages) == 1 else "x"

    env = Scripted(say("hi"), say("more"), Step(done=True))
    found = asyncio.run(play(env, TASK, player_agent(player, CODEC), CODEC, Limits(turn_tokens=4, context=1000), True))
    assert [turn.completion.tokens.tolist() for turn in found.turns] == [reply("abcdef")[:4], reply("x")]
    assert [turn.completion.stop for turn in found.turns] == ["length", "stop"]
    assert all(np.isnan(turn.completion.logprobs).all() for turn in found.turns)


def test_a_player_that_raises_is_an_error() -> None:
    def player(messages: Sequence[Message]) -> str:
        raise IndexError("no move")

    env = Scripted(say("hi"), Step(done=True))
    found = asyncio.run(play(env, TASK, player_agent(player, CODEC), CODEC, FAR, True))
    assert (found.error, env.closed) == ("IndexError: no move", 1)


# --- long episodes


def encoded(turns: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Characters that were encoded for an episode in which nothing is said twice."""
    sizes: list[int] = []
    whole = template.Template.ids

    def counted(self: template.Template, marked: str) -> list[int]:
        sizes.append(len(marked))
        return whole(self, marked)

    with monkeypatch.context() as patch:
        patch.setattr(template.Template, "ids", counted)
        env = Scripted(say("hi"), *(say(f"{turns:04d}{n:04d}") for n in range(turns - 1)), Step(done=True))
        limits = Limits(turns=turns, turn_tokens=4, tokens=10_000, context=10_000)
        found = played(env, ScriptedEngine(lambda *_: reply("abc"), CODEC.stop_ids), limits)
    assert (found.end, len(found.turns)) == ("done", turns)
    return sum(sizes)


def test_encoding_grows_with_what_is_new_not_with_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    few, some, many = (encoded(turns, monkeypatch) for turns in (33, 65, 129))
    assert many - some == 2 * (some - few)  # exactly linear


@pytest.mark.parametrize("name", ["turns", "turn_tokens", "tokens", "context", "seconds"])
def test_a_limit_of_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"rollout.{name} is 0; it must be above 0"):
        Limits(**{name: 0})


def test_two_hundred_turns_and_fifty_thousand_tokens_go_all_the_way_in_bounded_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.rollout.long_episode", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["turns"], found["tokens"], found["rows"], found["end"]) == (200, 50_000, 1, "done")
    assert found["updates"] == 1
    assert found["gradient_norm"] > 0
    assert found["restored"]
    assert found["prompts_match"]
    # All scores of its attention at once would be 52,000^2 x 4 bytes = 11 GB.
    assert found["peak_mb"] - found["start_mb"] < 1500, found
