"""Continuations of a played episode: the same ids before the same environment, streams of their own, exact values."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count as numbers_from
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.codec.chat import ChatCodec
from strop.core.engine import Engine, Sampling
from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.seeds import DOMAINS, stream_key
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Completion, Group, Trajectory
from strop.core.world import World
from strop.engine.local import LocalEngine
from strop.engine.scripted import ScriptedEngine
from strop.envs.guess import guess
from strop.model.attention import RowsLayout
from strop.model.load import prepare
from strop.model.policy import Policy
from strop.model.tiny import tiny
from strop.rollout import branch
from strop.rollout.branch import branch_values, continuations
from strop.rollout.episode import ReplayError
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.rollout.rows import rows_of
from tests.families import hello_tokenizer
from tests.rollout.worlds import CODEC, END, Answer, Scripted, hang, say, world

FAR = Limits(turns=50, turn_tokens=1000, tokens=10_000, context=10_000, seconds=20)
NAME = "train-000041"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def at(made: World, limits: Limits = FAR, codec: ChatCodec = CODEC) -> Table:
    return Table(made, codec, limits, codec.append_only, seed=7)


def says(*texts: str, codec: ChatCodec = CODEC, then: Callable[[int, int], str] | None = None) -> ScriptedEngine:
    """An engine that plays these replies in an episode; in a continuation, `then(index, turn of its own)`."""

    def script(prompt: Any, session: str, turn: int) -> list[int]:
        if "@" not in session:
            return codec.reply(texts[turn]).tolist()
        return codec.reply("go" if then is None else then(int(session.rsplit("/", 1)[1]), turn)).tolist()

    return ScriptedEngine(script, codec.stop_ids)


def group(table: Table, engine: Engine, members: int = 1, task: int = 0) -> Group:
    tasks = table.world.split("train")
    most = Sampling(table.limits.turn_tokens)
    return asyncio.run(play_group(table, tasks[task], members, engine, most, "train", 41))


def go_on(table: Table, played: Group, turn: int, count: int, engine: Engine, member: int = 0) -> list[Trajectory]:
    most = Sampling(table.limits.turn_tokens)
    place = ("train", 41, member)
    return asyncio.run(continuations(table, played.trajectories[member], turn, count, engine, most, place))


def values(table: Table, played: Group, count: int, engine: Engine, discount: float = 1.0) -> list[list[float | None]]:
    return asyncio.run(branch_values(table, played, count, engine, Sampling(table.limits.turn_tokens), discount))


# --- what a continuation is


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_continuations_share_the_first_turns_and_go_on_freely(turn: int) -> None:
    table, engine = at(guess(8, 4)), says("1", "2", "3", "4", then=lambda index, _: ["5", "6", "what"][index])
    [original] = (played := group(table, engine, task=4)).trajectories
    found = go_on(table, played, turn, 3, engine)
    for index, went in enumerate(found):
        assert all(a is b for a, b in zip(went.turns[:turn], original.turns[:turn], strict=True))
        assert went.parent == (f"{NAME}/0", turn)
        session = f"{NAME}/0@{turn}/{index}"
        assert engine.prompts[session][0].tolist() == engine.prompts[f"{NAME}/0"][turn].tolist()
        replies = [m.content for m in went.messages if m.role == "assistant"]
        assert (
            replies
            == ["1", "2", "3", "4"][:turn] + ([["5"], ["6"], ["what"]][index] * 4)[: 1 if index == 0 else 4 - turn]
        )
        assert len(went.messages) == 2 * len(went.turns)  # the game says nothing at its end
        assert [turn.context.tolist() for turn in went.turns[: turn + 1]] == [
            turn.context.tolist() for turn in original.turns[: turn + 1]
        ]
    assert [went.score for went in found] == [1.0, 0.0, 0.0]
    assert [went.end for went in found] == ["done"] * 3
    assert sorted(engine.ended) == sorted(engine.prompts)
    assert original.parent is None


def test_continuations_of_a_stored_episode_end_as_it_did_when_they_say_the_same() -> None:
    table, engine = at(guess(8, 4)), says("8", "7", "what", "5", then=lambda _, turn: ["what", "5"][turn])
    [original] = (played := group(table, engine, task=4)).trajectories
    [went] = go_on(table, played, 2, 1, engine)
    assert went.messages == original.messages
    assert went.artefacts == original.artefacts
    assert (went.end, went.verdict) == (original.end, original.verdict)
    [ours], [theirs] = rows_of("g", 0, went, None), rows_of("g", 0, original, None)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.sampled.tolist() == theirs.sampled.tolist()
    assert ours.turns.tolist() == theirs.turns.tolist()


WORDS = st.lists(st.integers(0, len(CODEC.tokenizer) - 1).filter(lambda i: i not in CODEC.stop_ids), max_size=6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, st.booleans(), st.text(max_size=6)), min_size=1, max_size=4))
def test_whatever_was_sampled_stands_before_the_branch_as_it_was_sampled(
    turns: list[tuple[list[int], bool, str]],
) -> None:
    replies = [[*words, END] if stops or not words else (words * 6)[:6] for words, stops, _ in turns]
    steps: list[Answer] = [say(text, rewards={"r": float(k)}) for k, (_, _, text) in enumerate(turns)]
    steps[-1] = Step(done=True)
    table = at(world(lambda *_: Scripted(say("hi"), *steps)), Limits(turns=9, turn_tokens=6, context=1000))
    engine = ScriptedEngine(lambda _, s, turn: [END] if "@" in s else replies[turn], CODEC.stop_ids)
    played = group(table, engine)
    for turn in range(len(turns)):
        [went] = go_on(table, played, turn, 1, engine)
        assert engine.prompts[f"{NAME}/0@{turn}/0"][0].tolist() == engine.prompts[f"{NAME}/0"][turn].tolist()
        [ours], [theirs] = rows_of("g", 0, went, None), rows_of("g", 0, played.trajectories[0], None)
        shared = ours.turns < turn
        assert ours.tokens[shared].tolist() == theirs.tokens[theirs.turns < turn].tolist()
        assert np.array_equal(ours.behaviour_logp[shared], theirs.behaviour_logp[theirs.turns < turn], equal_nan=True)
        assert (went.end, went.error, len(went.turns)) == ("done", None, len(turns))


TRIMS = ChatCodec(  # older turns lose the spaces around them, so histories are rebuilt
    hello_tokenizer(
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] | trim + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
)
KEEPS = ChatCodec(
    hello_tokenizer(
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
)


def test_what_was_sampled_apart_stays_apart_behind_a_branch() -> None:
    """`he` + `llo` is not joined to `hello` where the history is kept; where it is rebuilt, the prompt is the stored one."""
    he, llo, end, joined = KEEPS.tokenizer.convert_tokens_to_ids(["he", "llo", "<|end|>", "hello"])
    for codec, before in ((KEEPS, [he, llo, end]), (TRIMS, [joined, end])):
        assert codec.append_only is (codec is KEEPS)
        engine = ScriptedEngine(lambda *_: [he, llo, end], codec.stop_ids)
        table = at(world(lambda *_: Scripted(say("4"), say("4"), Step(done=True))), codec=codec)
        played = group(table, engine)
        [went] = go_on(table, played, 1, 1, engine)
        prompt = engine.prompts[f"{NAME}/0@1/0"][0].tolist()
        assert prompt == engine.prompts[f"{NAME}/0"][1].tolist()
        assert prompt[4 : 4 + len(before)] == before
        assert [turn.fresh for turn in went.turns] == [False, codec is TRIMS]


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_a_world_whose_history_is_rebuilt_gives_a_row_for_each_prompt_of_a_continuation(turn: int) -> None:
    steps: list[Answer] = [say(" hello "), say("and?"), say("so?"), Step(done=True)]
    table = at(world(lambda *_: Scripted(say("hello"), *steps)), codec=TRIMS)
    engine = says("  a ", " b", "c ", "d", codec=TRIMS, then=lambda index, turn: " e " * (1 + index))
    played = group(table, engine)
    for went, index in zip(go_on(table, played, turn, 2, engine), (0, 1), strict=True):
        assert (went.end, went.error, went.score) == ("done", None, 1.0)
        rows = rows_of("g", 0, went, None)
        sent = [*engine.prompts[f"{NAME}/0"][:turn], *engine.prompts[f"{NAME}/0@{turn}/{index}"]]
        assert [row.tokens[~row.sampled].tolist() for row in rows] == [prompt.tolist() for prompt in sent]
        assert [turn.fresh for turn in went.turns] == [False, True, True, True]


def test_streams_and_sessions_are_named_by_the_state_and_the_index() -> None:
    table = at(guess(8, 4))
    engine = says("1", "2", "3", "4")
    played = group(table, engine, members=2, task=4)
    before = {name: list(seeds) for name, seeds in engine.seeds.items()}
    go_on(table, played, 2, 2, engine, member=1)
    ours = {name: seeds for name, seeds in engine.seeds.items() if name not in before}
    wanted = (7, DOMAINS.index("branch"), 41, 1, 2)
    assert ours == {f"{NAME}/1@2/{index}": [(*wanted, index, turn) for turn in (2, 3)] for index in (0, 1)}
    names = [seed for seeds in (*ours.values(), *before.values()) for seed in seeds]
    assert len(set(names)) == len(names)


def test_the_new_domain_moves_no_stream_that_was_there() -> None:
    old = ("train", "eval", "play", "preflight", "demonstrate", "order", "init")
    assert DOMAINS[: len(old)] == old
    assert [stream_key(3, domain)[1] for domain in old] == list(range(len(old)))


# --- the environment is the same again, or refused


class Dice(Env):
    """Says what it rolls; `roll` is where its chance comes from."""

    def __init__(self, roll: Callable[[], int], turns: int, closed: list[int]) -> None:
        self.roll, self.turns, self.closed = roll, turns, closed

    async def start(self) -> Step:
        return say(str(self.roll()))

    async def step(self, message: Message) -> Step:
        self.turns -= 1
        return say(str(self.roll()), rewards={"roll": float(self.roll())}, done=self.turns == 0)

    def artefacts(self) -> dict[str, Any]:
        return {"next": self.roll()}

    async def close(self) -> None:
        self.closed.append(1)


def test_the_environment_of_a_continuation_has_the_seed_of_the_original() -> None:
    closed: list[int] = []
    seeded = world(lambda task, seed: Dice(partial(Random(seed).randrange, 10**6), 3, closed))
    table, engine = at(seeded), says("a", "b", "c")
    played = group(table, engine, members=2)
    assert played.trajectories[0].messages != played.trajectories[1].messages
    for member in (0, 1):
        for turn in (0, 1, 2):
            for went in go_on(table, played, turn, 2, engine, member):
                original = played.trajectories[member]
                assert [m.content for m in went.messages[::2]] == [m.content for m in original.messages[::2]]
                assert went.artefacts == original.artefacts
                assert [turn.rewards for turn in went.turns] == [turn.rewards for turn in original.turns]
    assert len(closed) == 2 + 2 * 3 * 2
    swapped = Group(NAME, played.task, played.trajectories[::-1])
    with pytest.raises(ReplayError, match="does not replay: the opening"):  # the seed of another member
        go_on(table, swapped, 1, 1, engine)


def test_a_world_that_draws_chance_elsewhere_is_refused_and_left_clean() -> None:
    closed: list[int] = []
    ever = numbers_from()
    table, engine = at(world(lambda *_: Dice(lambda: next(ever), 3, closed))), says("a", "b", "c")
    played = group(table, engine)
    with pytest.raises(UsageError) as refused:
        go_on(table, played, 1, 3, engine)
    text = str(refused.value)
    assert text.startswith(f"world test does not replay: the opening of {NAME}/0 was [('user', '0'), ")
    assert "not deterministic for its seed, so Monte-Carlo values are not available" in text
    assert "use a critic" in text
    assert len(closed) == 1 + 3
    assert sorted(engine.ended) == [f"{NAME}/0", *(f"{NAME}/0@1/{i}" for i in range(3))]
    assert sorted(engine.prompts) == [f"{NAME}/0"]  # nothing was sampled
    with pytest.raises(ReplayError):
        values(table, played, 3, engine)


def test_one_continuation_that_is_refused_stops_those_that_are_under_way() -> None:
    made: list[Scripted] = []

    async def late(_: Any) -> Step:
        while len([e for e in made if len(e.heard) == 2]) < 1 + 3:  # the original and all the others of both states
            await asyncio.sleep(0)
        return say("ho")

    def env(task: Task, seed: int) -> Env:
        third = [say("hi"), late] if len(made) == 3 else [say("hi"), say("more"), hang if made else Step(done=True)]
        made.append(Scripted(*third))
        return made[-1]

    table, engine = at(world(env)), says("a", "b")
    played = group(table, engine)
    with pytest.raises(ReplayError, match=r"\('user', 'ho'\)"):
        asyncio.run(asyncio.wait_for(branch_values(table, played, 2, engine, Sampling(9)), 5))
    assert [e.closed for e in made] == [1] * 5
    assert sorted(engine.ended) == [f"{NAME}/0", *(f"{NAME}/0@{k}/{i}" for k in (0, 1) for i in (0, 1))]


WAS: list[Answer] = [say("more", rewards={"r": 1.0}), say("and", rewards={"r": 2.0}), Step(done=True)]


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ((say("hi"), *WAS), None),  # the control: it is the same
        ((say("ho"), *WAS), "the opening of"),
        ((Step((Message("tool", "hi"),)), *WAS), "the opening of"),
        ((Step((*say("hi").messages, Message("user", "hi"))), *WAS), "the opening of"),
        ((Step(), *WAS), "the opening of"),
        ((say("hi"), say("More", rewards={"r": 1.0}), *WAS[1:]), "the answer to turn 0 of"),
        ((say("hi"), say("more", rewards={"r": 1.5}), *WAS[1:]), "the answer to turn 0 of"),
        ((say("hi"), say("more"), *WAS[1:]), "rewards {'r': 1.0} and is now rewards {}"),
        ((say("hi"), say("more", rewards={"s": 1.0}), *WAS[1:]), "rewards"),
        (
            (say("hi"), say("more", rewards={"r": 1.0}, done=True)),
            "was done=False, truncated=False and is now done=True",
        ),
        ((say("hi"), WAS[0], say("and", rewards={"r": 2.0}, truncated=True)), "the answer to turn 1 of"),
        ((say("hi"), WAS[0], say("x" * 999, rewards={"r": 2.0})), "x..."),
        ((say("hi"), *WAS[:2], say("never compared")), None),  # what comes behind the branch is free
    ],
)
def test_every_difference_before_the_branch_is_refused(now: tuple[Answer, ...], told: str | None) -> None:
    answers: list[tuple[Answer, ...]] = [(say("hi"), *WAS)]
    limits = Limits(turns=4, turn_tokens=9, context=3000)
    table, engine = at(world(lambda *_: Scripted(*answers[0])), limits), says("a", "b", "c")
    played = group(table, engine)
    answers[0] = now
    if told is None:
        [went] = go_on(table, played, 2, 1, engine)
        assert went.error is None
        return
    with pytest.raises(ReplayError) as refused:
        go_on(table, played, 2, 1, engine)
    assert told in str(refused.value)


def test_few_shot_replies_in_an_opening_are_not_taken_for_turns() -> None:
    shots = (Message("user", "hi"), Message("assistant", "a"), Message("user", "hi"))
    table = at(world(lambda *_: Scripted(Step(shots), say("more"), Step(done=True))))
    engine = says("a", "a")
    [went] = go_on(table, group(table, engine), 1, 1, engine)
    assert (went.error, [m.content for m in went.messages]) == (None, ["hi", "a", "hi", "a", "more", "go"])


# --- limits, ends and failures


def test_limits_count_the_shared_turns() -> None:
    endless = world(lambda *_: Scripted(say("hi"), say("more")))
    for limits, end, asked in (
        (Limits(turns=4, turn_tokens=4, context=1000), "turns", [4, 4]),
        (Limits(turns=50, turn_tokens=4, tokens=14, context=1000), "length", [4, 2]),
        (Limits(turns=50, turn_tokens=4, context=5 + 12 + 12 + 12 + 3), "context", [4, 3]),
    ):
        table, engine = at(endless, limits), says(*["abcdef"] * 9, then=lambda *_: "abcdef")
        played = group(table, engine)
        [went] = go_on(table, played, 2, 1, engine)
        assert (went.end, went.error, went.score) == (end, None, 1.0)
        assert [s.max_tokens for s in engine.samplings[f"{NAME}/0@2/0"]] == asked
        assert asked == [s.max_tokens for s in engine.samplings[f"{NAME}/0"]][2:]  # as the episode itself was asked
        assert went.end == played.trajectories[0].end


@pytest.mark.parametrize("codec", [KEEPS, TRIMS])
def test_an_episode_that_was_cut_short_goes_on_from_its_last_observation(codec: ChatCodec) -> None:
    cut: list[Answer] = [
        say("more"),
        say("time is up", truncated=True),
        say("well", rewards={"r": 1.0}),
        Step(done=True),
    ]
    table, engine = at(world(lambda *_: Scripted(say("hi"), *cut)), codec=codec), says(" a", " b", codec=codec)
    played = group(table, engine)
    assert (played.trajectories[0].end, len(played.trajectories[0].turns)) == ("truncated", 2)
    [went] = go_on(table, played, 2, 1, engine)
    assert (went.end, went.error, len(went.turns)) == ("done", None, 4)
    assert [m.content for m in went.messages] == ["hi", " a", "more", " b", "time is up", "go", "well", "go"]
    prompt = engine.prompts[f"{NAME}/0@2/0"][0].tolist()
    if codec is KEEPS:
        assert prompt[-len(played.trajectories[0].tail) :] == played.trajectories[0].tail.tolist()
    said = went.messages[:5]
    assert prompt == codec.opening(said).tolist()
    cut[1] = say("time is up")
    with pytest.raises(ReplayError, match="was done=False, truncated=True and is now done=False, truncated=False"):
        go_on(table, played, 2, 1, engine)


def test_an_episode_that_met_a_limit_goes_on_under_a_wider_one() -> None:
    made = world(lambda *_: Scripted(say("hi"), say("more"), say("and"), say("so"), Step(done=True)))
    narrow, engine = at(made, Limits(turns=2, turn_tokens=9, context=1000)), says("a", "b")
    played = group(narrow, engine)
    assert played.trajectories[0].end == "turns"
    [at_once] = go_on(narrow, played, 2, 1, engine)
    assert (at_once.end, len(at_once.turns), at_once.score) == ("turns", 2, 1.0)  # nothing to sample: the limit stands
    [went] = go_on(at(made, FAR), played, 2, 1, engine)
    assert (went.end, len(went.turns)) == ("done", 4)
    assert engine.prompts[f"{NAME}/0@2/0"][0][-len(played.trajectories[0].tail) :].tolist() == (
        played.trajectories[0].tail.tolist()
    )


@pytest.mark.parametrize(
    ("answers", "turn", "allowed"),
    [
        ((say("m"), Step(done=True)), 2, "ended as done: 0 to 1 are allowed"),
        ((say("m"), say("bye", done=True)), 2, "ended as done: 0 to 1 are allowed"),
        ((say("m"), Step(done=True)), -1, "0 to 1 are allowed"),
        ((say("m"), Step(truncated=True)), 2, "ended as truncated: 0 to 1 are allowed"),  # nothing to answer
        ((say("m"), say("up", truncated=True)), 3, "ended as truncated: 0 to 2 are allowed"),
        ((say("m"), RuntimeError("down")), 2, "ended as error: 0 to 1 are allowed"),
    ],
)
def test_a_state_that_an_episode_does_not_have_is_refused(answers: tuple[Answer, ...], turn: int, allowed: str) -> None:
    table, engine = at(world(lambda *_: Scripted(say("hi"), *answers))), says("a", "b")
    played = group(table, engine)
    with pytest.raises(UsageError) as refused:
        go_on(table, played, turn, 1, engine)
    assert allowed in str(refused.value)


def test_requests_that_make_no_sense_are_refused() -> None:
    table, engine = at(world(lambda *_: Scripted(say("hi"), Step(done=True)))), says("a")
    played = group(table, engine)
    with pytest.raises(UsageError, match="count is 0"):
        go_on(table, played, 0, 0, engine)
    with pytest.raises(UsageError, match="count is 0"):
        values(table, played, 0, engine)
    for name in ("mine", "train", "train-x", "other-000041"):
        with pytest.raises(UsageError, match="names no draw"):
            values(table, replace(played, id=name), 1, engine)
    dead = group(at(world(lambda *_: Scripted(RuntimeError("no")))), engine)
    with pytest.raises(UsageError, match="no state to go on from"):
        go_on(table, dead, 0, 1, engine)


QUICK = Limits(turns=9, turn_tokens=16, tokens=100, context=1000, seconds=0.3)


@pytest.mark.parametrize(
    ("broken", "error", "end"),
    [
        ((say("hi"), say("more"), RuntimeError("no step")), "RuntimeError: no step", "error"),
        ((say("hi"), say("more"), say("x", rewards={"r": math.nan})), "the reward r = nan", "error"),
        ((say("hi"), say("more"), Step()), "gave no message", "error"),
        ((RuntimeError("no start"),), "RuntimeError: no start", "error"),  # on the way, as in any episode
        ((say("hi"), RuntimeError("no step")), "RuntimeError: no step", "error"),
        ((say("hi"), None), "AttributeError", "error"),
        ((hang,), None, "timeout"),
        ((say("hi"), hang), None, "timeout"),
        (None, "making the environment raised RuntimeError: no construction", "error"),
    ],
)
def test_a_continuation_that_fails_is_data_and_in_no_value(
    broken: tuple[Answer, ...] | None, error: str | None, end: str
) -> None:
    whole: tuple[Answer, ...] = (say("hi"), say("more"), say("and", rewards={"r": 3.0}), Step(done=True))
    made: list[Scripted] = []

    def env(task: Task, seed: int) -> Env:
        answers = broken if len(made) == 2 else whole  # the original, then continuations 0 to 2
        made.append(Scripted(*(answers or whole)))
        if answers is None:
            raise RuntimeError("no construction")
        return made[-1]

    table, engine = at(world(env), QUICK), says("a", "b", "c")
    played = group(table, engine)
    found = go_on(table, played, 1, 3, engine)
    assert [went.error for went in (found[0], found[2])] == [None, None]
    assert (found[1].error is None) is (error is None)
    assert error is None or error in str(found[1].error)
    assert found[1].end == end
    assert [went.score for went in found] == [1.0, None, 1.0]
    assert [went.parent for went in found] == [(f"{NAME}/0", 1)] * 3
    assert [e.closed for e in made] == [1, 1, int(broken is not None), 1]
    assert sorted(engine.ended) == [f"{NAME}/0", *(f"{NAME}/0@1/{i}" for i in range(3))]


def test_a_continuation_that_times_out_after_a_turn_of_its_own_is_judged() -> None:
    answers: list[Answer] = [say("more"), say("and"), Step(done=True)]
    table, engine = at(world(lambda *_: Scripted(say("hi"), *answers)), QUICK), says("a", "b", "c")
    played = group(table, engine)
    answers[2] = hang
    [went] = go_on(table, played, 1, 1, engine)
    assert (went.end, went.score, len(went.turns)) == ("timeout", 1.0, 3)


def test_cancelled_continuations_end_their_sessions_and_close_their_environments() -> None:
    made: list[Scripted] = []
    answers: list[Answer] = [say("more"), Step(done=True)]

    def env(task: Task, seed: int) -> Env:
        made.append(Scripted(say("hi"), *answers))
        return made[-1]

    table, engine = at(world(env)), says("a", "b")
    played = group(table, engine)
    answers[1] = hang

    async def cancelled() -> None:
        going = asyncio.create_task(branch_values(table, played, 3, engine, Sampling(9)))
        while [len(e.heard) for e in made[1:]] != [2] * 6:
            await asyncio.sleep(0)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going

    asyncio.run(cancelled())
    assert [e.closed for e in made] == [1] * 7
    assert sorted(engine.ended) == sorted(engine.prompts)


# --- values


def test_the_value_of_a_uniform_player_is_its_share_of_all_that_it_may_say() -> None:
    """Sixteen continuations say every pair of guesses once: 7 of 16 find a secret of 4, one guess finds it in 1 of 4."""
    table = at(guess(4, 2))
    engine = says("1", "4", then=lambda index, turn: str((index // 4 if turn == 0 else index % 4) + 1))
    played = group(table, engine, members=2, task=2)
    assert values(table, played, 16, engine) == [[7 / 16, 1 / 4]] * 2


def test_a_value_is_the_return_from_its_turn_on() -> None:
    """Turn rewards 1, 2, 4, score 8 and 0.5 beside it; what was earned before the state is not in its value."""
    answers = [say(str(r), rewards={"r": float(r), "s": 1.0}) for r in (1, 2)] + [Step(done=True, rewards={"r": 4.0})]
    made = world(lambda *_: Scripted(say("hi"), *answers), lambda *_: Verdict(8.0, aux={"style": 0.5}))
    table, engine = at(made), says("a", "b", "c")
    played = group(table, engine)
    assert values(table, played, 2, engine) == [[2 + 3 + 4 + 8.5, 3 + 4 + 8.5, 4 + 8.5]]
    assert values(table, played, 2, engine, 0.5) == [[2 + 3 / 2 + 12.5 / 4, 3 + 12.5 / 2, 12.5]]
    stopped = at(made, Limits(turns=1, turn_tokens=9, context=1000))  # from turn 1 on, there is only the end to be had
    assert values(stopped, played, 2, engine) == [[2 + 8.5, 8.5, 8.5]]


def test_an_unscored_continuation_is_in_no_mean_and_never_zero() -> None:
    asked: list[int] = []
    judges: list[Callable[[int], Verdict]] = [lambda _: Verdict(1.0)]

    def verify(task: Task, trajectory: Trajectory) -> Verdict:
        asked.append(1)
        return judges[0](len(asked))

    table, engine = at(world(lambda *_: Scripted(say("hi"), say("more"), Step(done=True)), verify)), says("a", "b")
    played = group(table, engine)
    wanted = [Verdict(0.5), Verdict(None, invalid="judge down"), Verdict(1.0), Verdict(0.0)]
    judges[0] = lambda n: wanted[n % 4]
    assert values(table, played, 4, engine) == [[0.5, 0.5]]  # (0.5 + 1 + 0) / 3, not / 4
    judges[0] = lambda n: Verdict(None)
    assert values(table, played, 4, engine) == [[None, None]]


def test_members_without_a_score_have_no_values_and_share_none() -> None:
    made = world(lambda *_: Scripted(say("hi"), say("more"), Step(done=True)))
    table, engine = at(made), says("a", "b")
    played = group(table, engine, members=4)
    first, second, *rest = played.trajectories
    unscored = replace(first, verdict=Verdict(None, invalid="judge down"))
    failed = replace(second, verdict=None, end="error", error="down")
    engine = says("a", "b")
    assert values(table, replace(played, trajectories=(unscored, failed, *rest)), 2, engine) == [
        [],
        [],
        [1.0, 1.0],
        [1.0, 1.0],
    ]
    assert sorted(engine.prompts) == sorted(f"{NAME}/{s}/{i}" for s in ("2@0", "2@1", "3@1") for i in (0, 1))


def test_the_opening_of_a_group_is_sampled_once_unless_members_were_told_different_ones() -> None:
    common = world(lambda *_: Scripted(say("hi"), say("more"), Step(done=True)))
    own = world(lambda _, seed: Scripted(say(str(seed)), say("more"), Step(done=True)))
    for made, states in ((common, ("0@0", "0@1", "1@1", "2@1")), (own, ("0@0", "0@1", "1@0", "1@1", "2@0", "2@1"))):
        table = at(made)
        played = group(table, says("a", "b"), members=3)
        engine = says()
        assert values(table, played, 2, engine) == [[1.0, 1.0]] * 3
        assert sorted(engine.prompts) == sorted(f"{NAME}/{state}/{i}" for state in states for i in (0, 1))


def test_no_more_sessions_are_open_than_an_engine_is_asked_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    open_now: set[int] = set()
    most: list[int] = []

    class Watched(Scripted):
        async def start(self) -> Step:
            open_now.add(id(self))
            most.append(len(open_now))
            return await super().start()

        async def close(self) -> None:
            open_now.discard(id(self))
            await super().close()

    made = world(lambda *_: Watched(say("hi"), say("more"), say("and"), Step(done=True)))
    table, engine = at(made), says("a", "b", "c")
    played = group(table, engine, members=3)
    for bound, reached in ((1024, 2 * 7), (5, 4)):
        monkeypatch.setattr(branch, "MAX_SESSIONS", bound)
        most.clear()
        assert values(table, played, 2, engine) == [[1.0] * 3] * 3
        assert max(most) == reached


# --- a real model


def tiny_policy() -> Policy:
    """A closed vocabulary of 15 ids, with weights that are far from uniform."""
    model, tokenizer = tiny(guess(4, 2).pieces, 16, 1, 2, 64, seed=3, closed=True)
    embedding: Any = model.get_input_embeddings()
    with torch.no_grad():
        embedding.weight.mul_(2.0)
    return prepare(model, tokenizer)


def next_id(policy: Policy, ids: Sequence[int]) -> list[float]:
    """Probabilities of the next id, by the model alone."""
    row = torch.tensor(list(ids))
    with torch.no_grad():
        hidden = policy.hidden(row, torch.arange(len(row)), RowsLayout([len(row)], policy.device))
        return policy.logits(hidden[-1:]).double().softmax(-1)[0].tolist()


def exact(policy: Policy, codec: ChatCodec, secret: int) -> tuple[float, dict[int, float]]:
    """Chance to find the secret with two replies of one id each: from the opening, and behind each first id."""
    made = guess(4, 2)
    [first] = asyncio.run(made.env(made.split("train")[secret - 1], 0).start()).messages
    opening = codec.opening((first,)).tolist()
    right = codec.tokenizer.convert_tokens_to_ids(str(secret))
    numbers = {codec.tokenizer.convert_tokens_to_ids(str(n)): n for n in range(1, 5)}
    behind: dict[int, float] = {}
    for i in range(policy.vocabulary):
        hint = "Reply with one whole number from 1 to 4."
        if i in numbers:
            hint = "higher" if secret > numbers[i] else "lower"
        stop = "stop" if i in codec.stop_ids else "length"
        said = Completion(np.array([i], np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), stop)
        prompt = [*opening, i, *codec.extension((Message("user", hint),), said).tolist()]
        behind[i] = 1.0 if i == right else next_id(policy, prompt)[right]
    chances = next_id(policy, opening)
    return sum(p * behind[i] for i, p in enumerate(chances)), behind


ONE = Limits(turns=2, turn_tokens=1, context=64)
MANY = 400


def test_the_mean_over_continuations_of_a_model_agrees_with_enumeration() -> None:
    policy = tiny_policy()
    codec = ChatCodec(policy.tokenizer)
    table = at(guess(4, 2), ONE, codec)
    engine = LocalEngine(policy, codec.stop_ids)
    far_apart = 0
    for secret in (1, 2, 4):
        opening, behind = exact(policy, codec, secret)
        played = group(table, engine, members=4, task=secret - 1)
        found = values(table, played, MANY, engine)
        assert len({id_of(t) for t in played.trajectories}) > 2  # unlike states, or little is compared
        for trajectory, each in zip(played.trajectories, found, strict=True):
            truths = [opening, behind[id_of(trajectory)]][: len(trajectory.turns)]
            assert len(each) == len(truths)
            for value, truth in zip(each, truths, strict=True):
                assert value is not None
                width = math.sqrt(truth * (1 - truth) / MANY)
                assert abs(value - truth) <= 4 * width
                far_apart += sum(abs(value - other) > 4 * width for other in (opening, *behind.values()))
    assert far_apart > 20  # the bound can fail: values of other states are outside it


def id_of(trajectory: Trajectory) -> int:
    return int(trajectory.turns[0].completion.tokens[0])


def test_branching_changes_nothing_of_what_is_played_afterwards() -> None:
    policy = tiny_policy()
    codec = ChatCodec(policy.tokenizer)
    table = at(guess(4, 4), Limits(turns=4, turn_tokens=2, context=64), codec)

    def ids(played: Group) -> list[list[list[int]]]:
        return [[turn.completion.tokens.tolist() for turn in t.turns] for t in played.trajectories]

    engine = LocalEngine(policy, codec.stop_ids)
    before = group(table, engine, members=8)
    values(table, before, 5, engine)
    after = group(table, engine, members=8)
    assert ids(before) == ids(after)
    pairs = zip(before.trajectories, after.trajectories, strict=True)
    for a, b in ((x, y) for s, t in pairs for x, y in zip(s.turns, t.turns, strict=True)):
        assert np.array_equal(a.completion.logprobs, b.completion.logprobs)
    # Streams of their own: from the opening, no continuation is a member played again.
    wild = go_on(table, before, 0, 8, engine)
    assert [[turn.completion.tokens.tolist() for turn in t.turns] for t in wild] != ids(before)
    again = go_on(table, before, 0, 8, engine)
    assert ids(Group(NAME, before.task, tuple(again))) == ids(Group(NAME, before.task, tuple(wild)))


def test_the_prompt_of_continuations_is_prefilled_once_a_state() -> None:
    policy = tiny_policy()
    codec = ChatCodec(policy.tokenizer)
    table = at(guess(4, 3), Limits(turns=3, turn_tokens=2, context=64), codec)
    script = says("1", "2", "4", codec=codec)
    played = group(table, script, task=2)
    engine = LocalEngine(policy, codec.stop_ids)
    prompts = [len(prompt) for prompt in script.prompts[f"{NAME}/0"]]
    go_on(table, played, 2, 16, engine)
    assert engine.counts.prefilled == prompts[2]  # the last turn: nothing else is sent
    engine = LocalEngine(policy, codec.stop_ids)
    go_on(table, played, 2, 1, engine)
    assert engine.counts.prefilled == prompts[2]
