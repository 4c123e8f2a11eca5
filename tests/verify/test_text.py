"""Judges of text: the right answer, the wrong one, none, the prompt itself, and many answers at once."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.codec.parse import last_integer
from strop.core.errors import UsageError
from strop.core.task import Verdict
from strop.envs.catalogue import REWARDS, attribute
from strop.verify.text import choice, exact, last_number, letters, numbers

Judge = Callable[[str, Mapping[str, Any]], Verdict]


@pytest.mark.parametrize(
    ("judge", "answer", "reply", "score"),
    [
        (exact, "Paris", " Paris\n", 1.0),
        (exact, "Paris", "<think>Rome?</think>Paris", 1.0),
        (exact, "Paris", "paris", 0.0),
        (exact, "Paris", "Paris or Rome", 0.0),
        (exact, "Paris", "", 0.0),
        (exact, "Paris", "<think>Paris", 0.0),
        (last_number, 12, "5 + 7 is\n12", 1.0),
        (last_number, 12, "Answer: 12.\nI hope that helps.", 1.0),
        (last_number, 12, "12 (that is 12.0)", 1.0),
        (last_number, "1,250.5", "So -3 becomes\n1250.50", 1.0),
        (last_number, -3, "\u22123", 1.0),
        (last_number, 0.1, "0.10", 1.0),
        (last_number, 0.1, "0.1000000001", 0.0),
        (last_number, 12, "11 or 12", 0.0),
        (last_number, 12, "12 11", 0.0),
        (last_number, 12, " ".join(map(str, range(100))), 0.0),
        (last_number, 12, "12\n13", 0.0),
        (last_number, 12, "What is 5 + 7?", 0.0),
        (last_number, 12, "1.2.12", 0.0),
        (last_number, 12, "", 0.0),
        (choice, "B", "(b)", 1.0),
        (choice, "B", "First A looks good.\nSo the answer is **B**.", 1.0),
        (choice, "B", "B, because A is wrong", 0.0),
        (choice, "B", "A B C D E", 0.0),
        (choice, "B", "Because", 0.0),
        (choice, "B", "C", 0.0),
        (choice, "B", "", 0.0),
    ],
)
def test_an_answer_is_judged(judge: Judge, answer: Any, reply: str, score: float) -> None:
    verdict = judge(reply, {"answer": answer})
    assert (verdict.score, verdict.checks["correct"], verdict.invalid) == (score, bool(score), None)
    assert verdict.reason


def test_many_answers_fail_for_being_many_and_none_for_being_none() -> None:
    many, none = (last_number(reply, {"answer": 12}) for reply in ("11 or 12", "twelve"))
    assert (
        many.checks == {"answered": True, "one_answer": False, "correct": False}
        and "2 different numbers" in many.reason
    )
    assert none.checks == {"answered": False, "one_answer": False, "correct": False} and "no number" in none.reason


@pytest.mark.parametrize(
    ("judge", "line"), [(exact, {}), (last_number, {"answer": "1 or 2"}), (last_number, {}), (choice, {"answer": "F"})]
)
def test_a_line_without_one_answer_is_the_user_s_mistake(judge: Judge, line: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        judge("1", line)


def test_the_examples_of_the_docstrings_hold() -> None:
    assert numbers("-1,250.50 is not 3") == [Fraction(-2501, 2), Fraction(3)]
    assert letters("(b)") == ["B"] and letters("Both B and D") == ["B", "D"]
    assert numbers(".5 and -.25") == [Fraction(1, 2), Fraction(-1, 4)] and numbers("1,2 and x.5.1") == []


@given(st.integers(-(10**9), 10**9), st.sampled_from(["{}", "it is {}.", "({})", "x = {}!", "{:,}"]))
def test_an_integer_is_read_as_the_other_parser_reads_it(number: int, form: str) -> None:
    text = form.format(number)
    assert numbers(text) == [Fraction(number)] == [Fraction(last_integer(text) or 0)]


@given(st.text(max_size=60))
def test_any_reply_is_judged(reply: str) -> None:
    for judge, answer in ((exact, "a"), (last_number, 4711), (choice, "E")):
        assert judge(reply, {"answer": answer}).score in (0.0, 1.0)


@pytest.mark.parametrize("name", ["exact", "last_number", "choice"])
def test_a_file_of_prompts_can_name_a_judge(name: str) -> None:
    judge = attribute(f"strop.verify.text:{name}", "reward", tuple(REWARDS))
    assert judge("B", {"answer": "B" if name != "last_number" else 1}).score == float(name != "last_number")
