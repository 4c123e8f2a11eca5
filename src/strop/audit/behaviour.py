"""What programs do on inputs, found by running them in the sandbox. Invariant: two programs differ only where the reference
gives a plain value and the other gives another one, or none."""

from collections.abc import Callable, Sequence
from typing import Any

from strop.audit.inputs import Case
from strop.core.sandbox import Bounds, Call, Outcome, Program, SandboxError
from strop.sandbox import shared

BOUNDS = Bounds(cpu_seconds=1.0, wall_seconds=4.0)
TOGETHER = 16
AGAIN = 3
"""Differences that are looked at once more, each call on a freshly executed module."""


async def outcomes(program: str, cases: Sequence[Case], together: int = TOGETHER) -> list[Outcome]:
    """What a program gives for each case.

    Args:
        program: its text.
        cases: calls.
        together: calls that share one execution of the module; those that one of them ends are asked again singly.

    Raises:
        SandboxError: there is no sandbox, or it failed.
    """
    parts = [cases[k : k + together] for k in range(0, len(cases), together)]
    calls = tuple(tuple(Call(f"main.{case.function}", case.args) for case in part) for part in parts)
    done = await shared().execute(Program({"main": program}, calls), BOUNDS)
    if done.ended == "broken":
        raise SandboxError(f"the sandbox failed: {done.reason}")
    given: list[Outcome] = []
    for part, found in zip(parts, done.outcomes, strict=True):
        if len(part) > 1 and any(outcome.kind == "missing" for outcome in found[1:]) and found[0].kind != "missing":
            found = tuple(await outcomes(program, part, 1))
        given += found
    return given


def alike(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes are the same value, or exceptions of one type."""
    if one.kind != other.kind:
        return False
    if one.kind == "value":
        return exactly(one.value, other.value)
    return one.kind != "raised" or one.text.split(":")[0] == other.text.split(":")[0]


def exactly(one: Any, other: Any) -> bool:
    """Equality with types: True is not 1, NaN is NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(exactly, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(exactly(value, other[key]) for key, value in one.items())
    return bool(one == other or (one != one and other != other))


class Behaviour:
    """What a reference does on given cases, to hold other programs against.

    Args:
        cases: those cases where the reference gives a plain value.
        wanted: what it gives.
    """

    def __init__(self, cases: Sequence[Case], wanted: Sequence[Outcome]) -> None:
        kept = [(case, outcome) for case, outcome in zip(cases, wanted, strict=True) if outcome.kind == "value"]
        self.cases = [case for case, _ in kept]
        self.wanted = [outcome for _, outcome in kept]

    async def differences(self, program: str, first: Callable[[Case], bool]) -> list[tuple[Case, Outcome, Outcome]]:
        """Up to three (case, what the reference gives, what the program gives) where they differ.

        Args:
            program: its text.
            first: cases to be named before others.

        Raises:
            SandboxError: there is no sandbox, or it failed.
        """
        if not self.cases:
            return []
        found = await outcomes(program, self.cases)
        triples = zip(self.cases, self.wanted, found, strict=True)
        differing = [(case, want, got) for case, want, got in triples if not alike(want, got)]
        differing.sort(key=lambda triple: not first(triple[0]))
        single = await outcomes(program, [case for case, _, _ in differing[:AGAIN]], 1) if differing else []
        again = zip(differing, single, strict=False)
        return [(case, want, got) for (case, want, _), got in again if not alike(want, got)]


async def behaviour(reference: str, cases: Sequence[Case]) -> Behaviour:
    """The behaviour of a reference on cases."""
    return Behaviour(cases, await outcomes(reference, cases, 1))


def told(case: Case, outcome: Outcome) -> str:
    """A call and what it gives, for people."""
    arguments = ", ".join(map(repr, case.args))
    return f"{case.function}({arguments}) gives {outcome.text or outcome.kind}"
