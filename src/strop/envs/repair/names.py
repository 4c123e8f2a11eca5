"""The words that repair tasks are made of, and which of them each split uses.

Invariant: the train and the eval split share every piece (a noun, a suffix, a digit at its place) but no combination of noun
and suffix, and no number of two digits; `new` has nouns and suffixes that stand nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

NOUNS = {
    "retry": "retries",
    "page": "pages",
    "item": "items",
    "user": "users",
    "file": "files",
    "task": "tasks",
    "job": "jobs",
    "line": "lines",
    "order": "orders",
    "price": "prices",
    "score": "scores",
    "token": "tokens",
    "row": "rows",
    "step": "steps",
    "point": "points",
    "node": "nodes",
    "cache": "caches",
    "batch": "batches",
    "event": "events",
    "query": "queries",
}
"""Nouns and their plurals."""

SUFFIXES = ("_count", "_limit", "_total", "_size", "_level", "_rate", "_index", "_length", "_value", "_sum")
NEW_NOUNS = {"packet": "packets", "signal": "signals", "ticket": "tickets", "sensor": "sensors"}
NEW_SUFFIXES = ("_width", "_depth")
NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}

PAIRS = tuple((noun, suffix) for noun in NOUNS for suffix in SUFFIXES)


def is_eval_pair(noun: str, suffix: str) -> bool:
    """Whether a combination belongs to the eval split: every noun has two or three of them and every suffix five."""
    return (3 * list(NOUNS).index(noun) + SUFFIXES.index(suffix)) % 4 == 0


def is_eval_number(number: int) -> bool:
    """Whether a number of two digits belongs to the eval split. Each digit stays at each place in both splits."""
    tens, units = divmod(number, 10)
    return (tens + units) % 5 == 0


@dataclass(frozen=True, slots=True)
class Pool:
    """What the tasks of one split are drawn from: (noun, suffix) of function names, nouns, numbers of two digits."""

    pairs: Sequence[tuple[str, str]]
    nouns: Sequence[str]
    numbers: Sequence[int]


TWO_DIGITS = range(10, 100)
POOLS = {
    "train": Pool(
        [p for p in PAIRS if not is_eval_pair(*p)], list(NOUNS), [n for n in TWO_DIGITS if not is_eval_number(n)]
    ),
    "eval": Pool([p for p in PAIRS if is_eval_pair(*p)], list(NOUNS), [n for n in TWO_DIGITS if is_eval_number(n)]),
    "new": Pool(
        [(noun, suffix) for noun in NEW_NOUNS for suffix in NEW_SUFFIXES],
        list(NEW_NOUNS),
        [n for n in TWO_DIGITS if is_eval_number(n)],
    ),
}


def plural(noun: str) -> str:
    """The plural of a noun of any split."""
    return NOUNS.get(noun) or NEW_NOUNS[noun]
