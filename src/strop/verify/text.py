"""Judges of text: exact, the last number, one letter of several. Invariant: pure functions, and an answer that offers several
candidates is wrong, whichever of them is right.

Each takes the reply and the fields of a line (`answer` is the wanted one), so that a file of prompts can name it:
`reward = "strop.verify.text:last_number"`. Thinking (`<think>`) is no part of the answer.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from strop.codec.parse import split_thinking
from strop.core.errors import UsageError
from strop.core.task import Verdict

# A sign counts only where no word or number stands before it; 1.2.3 is no number. As codec.parse, with decimals.
_NUMBER = re.compile(
    r"(?<![0-9.,])(?:(?<!\w)[-\u2212])?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?![0-9]|[.,][0-9])|"
    r"(?<![0-9.,\w])[-\u2212]?\.[0-9]+(?![0-9]|[.,][0-9])"
)
_LETTER = re.compile(r"(?<![A-Za-z0-9])[A-E](?![A-Za-z0-9'\u2019])")
_ALONE = re.compile(r"\W*([A-Ea-e])\W*")
_LONGEST = 1000
"""Characters of a number; a longer one is no answer."""


def exact(reply: str, line: Mapping[str, Any]) -> Verdict:
    """Right if the whole answer is the wanted text, white space at the ends aside.

    Example:
        `exact(" Paris\\n", {"answer": "Paris"}).score == 1.0`
    """
    answer, want = split_thinking(reply)[1], _wanted(line).strip()
    right = answer == want
    reason = "the answer is the wanted text" if right else f"the answer is {answer[:60]!r}, not {want[:60]!r}"
    return Verdict(float(right), {"answered": bool(answer), "correct": right}, reason=reason)


def last_number(reply: str, line: Mapping[str, Any]) -> Verdict:
    """Right if the last line with a number holds one number only, and it is the wanted one; compared exactly, no rounding.

    Example:
        `last_number("5 + 7 gives\\nAnswer: 12.0", {"answer": 12}).score == 1.0`
        `last_number("11 or 12", {"answer": 12}).score == 0.0`
    """
    want = numbers(_wanted(line))
    if len(want) != 1:
        raise UsageError(f"the line's answer is {_wanted(line)[:60]!r}; last_number needs one number")
    found = next((f for f in map(numbers, reversed(_lines(reply))) if f), [])
    return _verdict(found, want[0], "number")


def choice(reply: str, line: Mapping[str, Any]) -> Verdict:
    """Right if the last line with a letter from A to E holds one such letter only, and it is the wanted one.

    Letters in words do not count; a small letter counts where it stands alone on its line. The article `A` is a letter too:
    `A good choice is B` offers two.

    Example:
        `choice("So the answer is (B).", {"answer": "B"}).score == 1.0`
        `choice("A or B", {"answer": "B"}).score == 0.0`
    """
    want = letters(_wanted(line))
    if len(want) != 1:
        raise UsageError(f"the line's answer is {_wanted(line)[:60]!r}; choice needs one letter from A to E")
    found = next((f for f in map(letters, reversed(_lines(reply))) if f), [])
    return _verdict(found, want[0], "letter")


def numbers(line: str) -> list[Fraction]:
    """The different numbers of a line, in order: integers and decimals, with commas between thousands.

    Example:
        `numbers("-1,250.50 is not 3") == [Fraction(-2501, 2), Fraction(3)]`
    """
    texts = (found.group() for found in _NUMBER.finditer(line))
    clean = (text.replace(",", "").replace("\u2212", "-") for text in texts if len(text) <= _LONGEST)
    return list(dict.fromkeys(map(Fraction, clean)))


def letters(line: str) -> list[str]:
    """The different letters of a line that can be a choice, in order.

    Example:
        `letters("(b)") == ["B"] and letters("Both B and D") == ["B", "D"]`
    """
    alone = _ALONE.fullmatch(line)
    return [alone[1].upper()] if alone else list(dict.fromkeys(_LETTER.findall(line)))


def _wanted(line: Mapping[str, Any]) -> str:
    if "answer" not in line:
        raise UsageError(f"the line has no answer; its keys are {', '.join(map(str, line))}")
    return str(line["answer"])


def _lines(reply: str) -> list[str]:
    return split_thinking(reply)[1].splitlines()


def _verdict(found: list[Any], want: Any, what: str) -> Verdict:
    right = found == [want]
    checks = {"answered": bool(found), "one_answer": len(found) == 1, "correct": right}
    if not found:
        reason = f"there is no {what} in the answer"
    elif len(found) > 1:
        reason = f"the last line offers {len(found)} different {what}s; give one"
    else:
        reason = f"the answer is {found[0]}" if right else f"the answer is {found[0]}, not {want}"
    return Verdict(float(right), checks, reason=reason[:300])
