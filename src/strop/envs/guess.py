"""Guess the number: the smallest multi-turn world with an exact best score.

A hidden integer from 1 to `numbers`; each wrong guess is answered `higher` or `lower`; a right one ends the game. A reply
that is not one number in range costs the attempt and is told so. Invariant: the secret is in no message.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Trajectory
from strop.core.world import Player, World, is_hinted, with_hinted


@cache
def solvable(numbers: int, attempts: int) -> int:
    """How many of `numbers` secrets the best play finds within `attempts`: s(n, a) = max over g of 1 + s(left) + s(right).

    A guess splits the interval into the parts below and above it. The recursion gives min(n, 2^a - 1).
    """
    if numbers <= 0 or attempts <= 0:
        return 0
    return max(1 + solvable(g - 1, attempts - 1) + solvable(numbers - g, attempts - 1) for g in range(1, numbers + 1))


class Guess(Env):
    """One game."""

    def __init__(self, secret: int, numbers: int, attempts: int) -> None:
        self.secret, self.numbers, self.attempts = secret, numbers, attempts
        self.guesses: list[int | None] = []

    async def start(self) -> Step:
        """The rules."""
        return Step((Message("user", opening(self.numbers, self.attempts)),))

    async def step(self, message: Message) -> Step:
        """Answer one guess."""
        guess = read_guess(message.content, self.numbers)
        self.guesses.append(guess)
        if guess == self.secret or len(self.guesses) >= self.attempts:
            return Step(done=True)
        if guess is None:
            return Step((Message("user", refusal(self.numbers)),))
        return Step((Message("user", "higher" if self.secret > guess else "lower"),))

    def artefacts(self) -> Mapping[str, Any]:
        """The guesses in order; None for replies that were no guess."""
        return {"guesses": list(self.guesses)}


def opening(numbers: int, attempts: int) -> str:
    """The first message of a game."""
    return (
        f"I am thinking of a whole number from 1 to {numbers}. You have {attempts} guesses; after each I say higher or "
        "lower. Reply with one number only."
    )


def refusal(numbers: int) -> str:
    """The answer to a reply that is not one number in range."""
    return f"Reply with one whole number from 1 to {numbers}."


def read_guess(text: str, numbers: int) -> int | None:
    """The guess in a reply: one number in range and nothing else, else None."""
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) <= 9):
        return None
    return int(word) if 1 <= int(word) <= numbers else None


def feasible(guesses: Sequence[int | None], secret: int, numbers: int) -> tuple[int, int]:
    """The interval that the answers to these guesses leave, both ends included."""
    low, high = 1, numbers
    for guess in guesses:
        if guess is not None and guess < secret:
            low = max(low, guess + 1)
        elif guess is not None and guess > secret:
            high = min(high, guess - 1)
    return low, high


def verify(task: Task, trajectory: Trajectory) -> Verdict:
    """Success is having named the secret."""
    guesses = trajectory.artefacts["guesses"]
    won = task.data["secret"] in guesses
    return Verdict(float(won), {"found": won}, reason=f"secret {task.data['secret']}, guesses {guesses}")


def player(task: Task, stream: Random, skill: float) -> Player:
    """A scripted, imperfect player: inside the feasible interval with probability `skill`, else anywhere.

    Told the secret, it says it.
    """
    numbers = task.data["numbers"]
    low, high = 1, numbers
    if is_hinted(task):
        return lambda messages: str(task.data["secret"])

    def reply(messages: Sequence[Message]) -> str:
        nonlocal low, high
        if len(messages) > 1:
            answer, last = messages[-1].content, int(messages[-2].content)
            low, high = (max(low, last + 1), high) if answer == "higher" else (low, min(high, last - 1))
        inside = stream.random() < skill
        return str(stream.randint(low, high) if inside else stream.randint(1, numbers))

    return reply


def measures(task: Task, trajectory: Trajectory) -> Mapping[str, tuple[float, float]]:
    """Share of guesses outside the feasible interval, and of replies that were no guess."""
    guesses: list[int | None] = trajectory.artefacts["guesses"]
    outside = 0
    for k, guess in enumerate(guesses):
        low, high = feasible(guesses[:k], task.data["secret"], task.data["numbers"])
        outside += guess is None or not low <= guess <= high
    return {
        "infeasible_guesses": (outside, len(guesses)),
        "unreadable_guesses": (sum(g is None for g in guesses), len(guesses)),
    }


def label(task: Task, trajectory: Trajectory) -> Sequence[float]:
    """1 for a guess that the answers so far allow, else 0."""
    guesses: list[int | None] = trajectory.artefacts["guesses"]
    intervals = [feasible(guesses[:k], task.data["secret"], task.data["numbers"]) for k in range(len(guesses))]
    return [float(g is not None and low <= g <= high) for g, (low, high) in zip(guesses, intervals, strict=True)]


def guess(numbers: int = 16, attempts: int = 4, skill: float = 0.2) -> World:
    """The world.

    Args:
        numbers: the secret is from 1 to this.
        attempts: guesses per game.
        skill: how often the scripted player stays inside the feasible interval (0.2: success 0.289 on 16 and 4).
    """
    if not 1 <= numbers <= 999_999_999:
        raise UsageError(f"numbers is {numbers}; it must be between 1 and 999999999")
    if attempts < 1:
        raise UsageError(f"attempts is {attempts}; it must be at least 1")
    if not 0 <= skill <= 1:
        raise UsageError(f"skill is {skill}; it is a probability between 0 and 1")
    tasks = [Task(f"secret-{n}", {"secret": n, "numbers": numbers}) for n in range(1, numbers + 1)]
    words = ("higher", "lower", opening(numbers, attempts), refusal(numbers), *(str(n) for n in range(1, numbers + 1)))
    made = World(
        "guess",
        {"train": tasks},
        env=lambda task, seed: Guess(task.data["secret"], numbers, attempts),
        verify=verify,
        demonstrate=lambda task, stream: player(task, stream, skill),
        best_possible=best_success(numbers, attempts),
        pieces=words,
        closed=True,
        turns=attempts,
        measures=measures,
        label=label,
        solution=lambda task, _: str(task.data["secret"]),
    )
    return with_hinted(made)


def best_success(numbers: int, attempts: int) -> float:
    """The best possible success rate over all secrets."""
    return solvable(numbers, attempts) / numbers if numbers <= 200 else min(numbers, 2**attempts - 1) / numbers
