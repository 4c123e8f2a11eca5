"""Guess the number: the exact numbers of the world, and replies of every kind."""

import asyncio
import itertools
import math
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Step, Task
from strop.core.trajectory import Trajectory
from strop.envs.guess import Guess, best_success, feasible, guess, measures, player, read_guess, solvable, verify

NOTHING = np.zeros(0, np.int32)


def play(env: Guess, replies: list[str]) -> list[Step]:
    async def steps() -> list[Step]:
        return [await env.start(), *[await env.step(Message("assistant", reply)) for reply in replies]]

    return asyncio.run(steps())


def played(guesses: list[int | None], secret: int, numbers: int = 16) -> Trajectory:
    task = Task(f"secret-{secret}", {"secret": secret, "numbers": numbers})
    return Trajectory(task, (), NOTHING, "done", (), {"guesses": guesses})


# --- the best possible


def test_the_world_of_the_lecture_has_fifteen_solvable_secrets() -> None:
    assert solvable(16, 4) == 15
    assert guess(16, 4).best_possible == 15 / 16


def brute_force(numbers: int, attempts: int) -> int:
    """Most secrets that any deterministic strategy finds. A strategy is a guess for every history of answers."""
    histories = [h for k in range(attempts) for h in itertools.product("hl", repeat=k)]
    best = 0
    for guesses in itertools.product(range(1, numbers + 1), repeat=len(histories)):
        strategy = dict(zip(histories, guesses, strict=True))
        found = 0
        for secret in range(1, numbers + 1):
            history: tuple[str, ...] = ()
            for _ in range(attempts):
                named = strategy[history]
                if named == secret:
                    found += 1
                    break
                history = (*history, "h" if secret > named else "l")
        best = max(best, found)
    return best


@pytest.mark.parametrize(("numbers", "attempts"), [(n, a) for n in range(1, 6) for a in (1, 2)] + [(2, 3), (3, 3)])
def test_no_deterministic_strategy_beats_the_recursion_and_one_reaches_it(numbers: int, attempts: int) -> None:
    assert solvable(numbers, attempts) == brute_force(numbers, attempts)


def test_brute_force_sees_a_wrong_recursion() -> None:
    assert brute_force(5, 2) != min(5, 2**2)  # one guess too many


@given(st.integers(1, 120), st.integers(1, 8))
def test_the_recursion_is_the_closed_form(numbers: int, attempts: int) -> None:
    assert solvable(numbers, attempts) == min(numbers, 2**attempts - 1)


def test_a_big_world_has_the_closed_form_without_recursion() -> None:
    assert best_success(999_999_999, 29) == (2**29 - 1) / 999_999_999
    assert best_success(200, 7) == 127 / 200
    assert best_success(201, 7) == 127 / 201


# --- the scripted player


def exact_success(numbers: int, attempts: int, skill: Fraction) -> Fraction:
    """The player's success by recursion over (low, high, attempts left), averaged over secrets."""

    @cache
    def wins(low: int, high: int, left: int, secret: int) -> Fraction:
        if left == 0:
            return Fraction(0)
        total = Fraction(0)
        for named in range(1, numbers + 1):
            chance = (1 - skill) / numbers + (skill / (high - low + 1) if low <= named <= high else 0)
            if named == secret:
                total += chance
            elif chance and named < secret:
                total += chance * wins(max(low, named + 1), high, left - 1, secret)
            elif chance:
                total += chance * wins(low, min(high, named - 1), left - 1, secret)
        return total

    return sum((wins(1, numbers, attempts, s) for s in range(1, numbers + 1)), Fraction(0)) / numbers


def test_the_player_of_the_recipe_succeeds_in_289_of_1000_games() -> None:
    assert round(float(exact_success(16, 4, Fraction(1, 5))), 3) == 0.289


def test_a_player_without_skill_guesses_uniformly() -> None:
    exact = exact_success(16, 4, Fraction(0))
    assert exact == 1 - Fraction(15, 16) ** 4
    assert round(float(exact), 4) == 0.2275


def simulate(numbers: int, attempts: int, skill: float, games: int, seed: int) -> float:
    won = 0
    for game in range(games):
        task = Task("t", {"secret": game % numbers + 1, "numbers": numbers})
        reply = player(task, Random(f"{seed}-{game}"), skill)
        secret = task.data["secret"]
        messages = [Message("user", "opening")]
        for _ in range(attempts):
            named = int(reply(messages))
            if named == secret:
                won += 1
                break
            messages += [Message("assistant", str(named)), Message("user", "higher" if secret > named else "lower")]
    return won / games


@pytest.mark.parametrize(("numbers", "attempts", "skill"), [(16, 4, 0.2), (16, 4, 0.0), (16, 4, 1.0), (5, 2, 0.6)])
def test_the_played_player_succeeds_as_often_as_the_exact_one(numbers: int, attempts: int, skill: float) -> None:
    games = 8000
    exact = float(exact_success(numbers, attempts, Fraction(skill).limit_denominator(10)))
    error = math.sqrt(exact * (1 - exact) / games)
    assert abs(simulate(numbers, attempts, skill, games, seed=3) - exact) < 3 * error


def test_three_standard_errors_tell_neighbouring_skills_apart() -> None:
    """Negative control: the same simulation is far from what a player of a third more skill would do."""
    other = float(exact_success(16, 4, Fraction(2, 5)))
    assert abs(simulate(16, 4, 0.2, 8000, seed=3) - other) > 3 * math.sqrt(other * (1 - other) / 8000)


# --- replies


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", 8), (" 8 ", 8), ("8\n", 8), ("007", 7), ("16", 16), ("1", 1),
        ("0", None), ("17", None), ("-1", None), ("+5", None), ("1e1", None), ("8 9", None), ("8.", None), ("", None),
        ("８", None), ("٣", None), ("²", None), ("①", None), ("8 or 9", None), ("1_0", None), ("0x8", None),
        ("9" * 5000, None), ("0" * 5000 + "8", None), ("\x00", None), ("\ud800", None), ("eight", None),
    ],
)  # fmt: skip
def test_a_guess_is_one_number_in_range_and_nothing_else(text: str, expected: int | None) -> None:
    assert read_guess(text, 16) == expected


@given(st.text(), st.integers(1, 999_999_999))
@example("8" * 10_000, 16)
def test_any_text_is_read_without_an_exception(text: str, numbers: int) -> None:
    found = read_guess(text, numbers)
    assert found is None or (1 <= found <= numbers and int(text.strip()) == found)


@given(st.integers(1, 50), st.integers(1, 60))
def test_every_number_in_range_is_read_and_no_other(named: int, numbers: int) -> None:
    assert read_guess(str(named), numbers) == (named if named <= numbers else None)


REFUSAL = "Reply with one whole number from 1 to 16."


def test_a_reply_that_is_no_guess_costs_the_attempt_and_is_told_so() -> None:
    env = Guess(secret=5, numbers=16, attempts=4)
    steps = play(env, ["seventeen", "17", "5 5", "5"])
    assert [[m.content for m in step.messages] for step in steps[1:]] == [[REFUSAL], [REFUSAL], [REFUSAL], []]
    assert [step.done for step in steps] == [False, False, False, False, True]
    assert env.artefacts() == {"guesses": [None, None, None, 5]}


def test_the_last_attempt_ends_the_game_right_or_wrong() -> None:
    steps = play(Guess(5, 16, 2), ["4", "6"])
    assert [m.content for m in steps[1].messages] == ["higher"]
    assert steps[2] == Step(done=True)
    assert verify(Task("t", {"secret": 5}), played([4, 6], 5)).score == 0.0
    assert verify(Task("t", {"secret": 5}), played([4, 5], 5)).score == 1.0


@given(st.integers(1, 16), st.lists(st.one_of(st.integers(-3, 20).map(str), st.text(max_size=4)), max_size=4))
def test_answers_follow_from_the_order_of_the_numbers_alone(secret: int, replies: list[str]) -> None:
    """What the agent is told is the same for all secrets on one side of its guess: nothing else of the secret is in it."""
    env = Guess(secret, 16, attempts=5)
    told: list[str] = []
    for reply in replies:
        step = asyncio.run(env.step(Message("assistant", reply)))
        told += [m.content for m in step.messages]
        named = read_guess(reply, 16)
        if named == secret:
            assert step == Step(done=True)
            return
        expected = REFUSAL if named is None else "higher" if secret > named else "lower"
        assert step == Step((Message("user", expected),))
    opening = asyncio.run(Guess(secret, 16, 5).start())
    assert opening == asyncio.run(Guess(secret % 16 + 1, 16, 5).start())  # the first message does not know the secret
    assert set(told) <= {"higher", "lower", REFUSAL}


def test_every_message_is_one_token_of_the_tiny_model() -> None:
    from strop.model.tiny import tiny

    world = guess(7, 4)
    _, tokenizer = tiny(world.pieces, 16, 1, 2)
    steps = play(Guess(3, 7, 4), ["1", "5", "what", "3"])
    texts = [m.content for step in steps for m in step.messages] + [str(n) for n in range(1, 8)]
    assert [len(tokenizer.encode(text)) for text in texts] == [1] * len(texts)
    assert len(tokenizer.encode("8")) == 1  # a character
    assert len(tokenizer.encode("lowest")) > 1


# --- measures, by hand


@pytest.mark.parametrize(
    ("guesses", "secret", "outside", "unreadable"),
    [
        ([8, 12, 10, 11], 11, 0, 0),  # halving: 8 higher, 12 lower, 10 higher, 11
        ([8, 4, 12, 11], 11, 1, 0),  # 4 was already too low
        ([8, 8, 8, 8], 11, 3, 0),  # asked again
        ([None, 8, None, 11], 11, 2, 2),  # no guess is never inside
        ([16, 1, 16, 1], 8, 2, 0),
        ([8, 16, 3, 9], 9, 1, 0),
        ([11], 11, 0, 0),
        ([], 11, 0, 0),
    ],
)
def test_infeasible_guesses_are_counted_by_hand(
    guesses: list[int | None], secret: int, outside: int, unreadable: int
) -> None:
    game = played(guesses, secret)
    assert measures(game.task, game) == {
        "infeasible_guesses": (outside, len(guesses)),
        "unreadable_guesses": (unreadable, len(guesses)),
    }


@given(st.integers(1, 16), st.lists(st.one_of(st.none(), st.integers(1, 16)), max_size=6))
def test_the_feasible_interval_holds_the_secret_and_no_refuted_number(secret: int, guesses: list[int | None]) -> None:
    low, high = feasible(guesses, secret, 16)
    possible = [
        n for n in range(1, 17) if all(g is None or g == secret or (n > g if secret > g else n < g) for g in guesses)
    ]
    assert list(range(low, high + 1)) == possible
    assert secret in possible


# --- options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"numbers": 0}, "numbers is 0"),
        ({"numbers": 10**9}, "between 1 and 999999999"),
        ({"attempts": 0}, "attempts is 0"),
        ({"skill": 1.5}, "skill is 1.5"),
        ({"skill": float("nan")}, "skill is nan"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        guess(**options)


def test_a_world_of_one_number_is_won_by_the_only_guess() -> None:
    world = guess(1, 1)
    assert world.best_possible == 1.0
    assert play(Guess(1, 1, 1), ["1"])[1] == Step(done=True)
