"""Programs are judged outside of the sandbox, by exact values of exact types."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.core.sandbox import Executed, Outcome, Program, Sandbox
from strop.sandbox.bubblewrap import shared
from strop.verify.program import Checked, check_cases, same, satisfies, verdict_of

CASES = [
    [[[{}], {"value": 3}]],
    [[[{"retries": None}], {"value": 3}]],
    [[[{"retries": 0}], {"value": 0}]],
    [[[{"retries": 2}], {"value": 2}]],
]
RIGHT = 'def f(config):\n    return 3 if config.get("retries") is None else config["retries"]\n'


def checked(source: str, cases: Any = CASES) -> Checked:
    return asyncio.run(check_cases(shared(), {"main": source}, "main.f", cases))


def test_the_reference_passes_and_the_bug_fails_where_zero_is_meant() -> None:
    assert verdict_of(checked(RIGHT)).score == 1.0
    verdict = verdict_of(checked('def f(config):\n    return config.get("retries") or 3\n'))
    assert verdict.score == 0.0
    assert list(verdict.checks.values()) == [True, True, False, True]
    assert "got 3, not 0" in verdict.reason


@pytest.mark.parametrize(
    "source",
    [
        "def f(config):\n    return 0\n",
        "class Anything:\n    def __eq__(self, other):\n        return True\ndef f(config):\n    return Anything()\n",
        "import sys\nsys.exit(0)\n",
        "import os\nos._exit(0)\n",
        'print(\'{"score": 1}\')\ndef f(config):\n    print("passed")\n',
        "class Int(int):\n    def __eq__(self, other):\n        return True\ndef f(config):\n    return Int(3)\n",
        "def f(config):\n    return 3.0 if config.get('retries') is None else config['retries']\n",
        "def f(config:\n",
        "",
        "def f(config):\n    while True:\n        pass\n",
    ],
)
def test_what_is_no_answer_earns_nothing(source: str) -> None:
    verdict = verdict_of(checked(source))
    assert verdict.score == 0.0 and verdict.invalid is None


def test_partial_credit_is_an_auxiliary_reward_and_only_when_asked_for() -> None:
    found = checked('def f(config):\n    return config.get("retries") or 3\n')
    assert verdict_of(found).aux == {}
    assert verdict_of(found, 0.4).aux == {"partial": pytest.approx(0.3)}
    assert verdict_of(found, 0.4).score == 0.0


def test_state_lives_inside_a_case_only() -> None:
    source = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)\n"
    cases = [[[[1], {"value": 1}], [[1], {"value": 2}]], [[[1], {"value": 1}]]]
    assert checked(source, cases).passed
    # Negative control: the same calls in one case are told apart.
    assert not checked(source, [[[[1], {"value": 1}], [[1], {"value": 1}]]]).passed


def test_an_exception_counts_only_where_it_is_wanted() -> None:
    source = "def f(x):\n    return {'a': 1}[x]\n"
    assert checked(source, [[[["b"], {"raises": "KeyError"}]]]).passed
    assert not checked(source, [[[["b"], {"raises": "ValueError"}]]]).passed
    assert not checked(source, [[[["b"], {"value": 1}]]]).passed


class _Broken(Sandbox):
    async def execute(self, program: Program, *_: Any, **__: Any) -> Executed:
        return Executed(tuple(tuple(Outcome("missing") for _ in case) for case in program.cases), "broken", "no bwrap")


def test_a_broken_sandbox_gives_an_invalid_verdict_not_zero() -> None:
    verdict = verdict_of(asyncio.run(check_cases(_Broken(), {"main": RIGHT}, "main.f", CASES)))
    assert verdict.score is None and "no bwrap" in str(verdict.invalid)


def test_no_case_is_no_success() -> None:
    assert not Checked((), "exited").passed


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(plain)
def test_a_value_is_the_same_as_itself(value: Any) -> None:
    assert same(value, value)
    assert satisfies(Outcome("value", value, repr(value)), {"value": value})


@given(plain, plain)
def test_the_same_is_never_more_than_equal(a: Any, b: Any) -> None:
    if same(a, b):
        assert repr(a) == repr(b) or a == b
    assert same(a, b) == same(b, a)


@pytest.mark.parametrize(
    ("a", "b"), [(True, 1), (1, 1.0), ((1,), [1]), ({1: 1}, {True: 1}), ([1, [True]], [1, [1]]), ("1", 1), ({}, [])]
)
def test_equal_values_of_other_types_are_not_the_same(a: Any, b: Any) -> None:
    assert not same(a, b)
