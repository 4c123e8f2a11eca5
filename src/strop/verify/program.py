"""Judging a program by cases: it runs in the sandbox, and what its calls gave is compared out here.

Invariant: the wanted values never enter the sandbox, so an exit code, a printed verdict, a patched runner or an object that
equals everything earns nothing. A sandbox that breaks gives an invalid verdict; a program that breaks fails its cases.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from strop.core.sandbox import Bounds, Call, Ending, Outcome, Program, Sandbox
from strop.core.task import Verdict

BOUNDS = Bounds()

Cases = Sequence[Sequence[Sequence[Any]]]
"""Cases as JSON: each a list of calls on freshly executed modules, each call `[arguments, want]`, where want is `{"value":
plain value}` or `{"raises": name of an exception}`."""


@dataclass(frozen=True, slots=True)
class CheckedCase:
    """The call of a case that decided it: the first that went wrong, else the last.

    Args:
        args: its arguments.
        got, want: both sides as text.
        passed: whether all calls of the case gave what they must.
    """

    args: tuple[Any, ...]
    got: str
    want: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """All cases, how the program ended, and why where it did not exit by itself."""

    cases: tuple[CheckedCase, ...]
    ended: Ending
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether every case passed, and there is one."""
        return bool(self.cases) and all(case.passed for case in self.cases)


async def check_cases(
    sandbox: Sandbox,
    modules: Mapping[str, str],
    function: str,
    cases: Cases,
    bounds: Bounds = BOUNDS,
) -> Checked:
    """Run the cases of a function.

    Args:
        sandbox: where it runs.
        modules: module name to source text.
        function: dotted name, `main.retry_count`.
        cases: what to call and what it must give.
        bounds: limits of the whole run.
    """
    calls = tuple(tuple(Call(function, tuple(args)) for args, _ in case) for case in cases)
    ran = await sandbox.execute(Program(modules, calls), bounds)
    return Checked(
        tuple(_check(case, outcomes) for case, outcomes in zip(cases, ran.outcomes, strict=True)), ran.ended, ran.reason
    )


def _check(case: Sequence[Sequence[Any]], outcomes: Sequence[Outcome]) -> CheckedCase:
    last = CheckedCase((), "", "", False)
    for (args, want), outcome in zip(case, outcomes, strict=True):
        good = satisfies(outcome, want)
        last = CheckedCase(tuple(args), shown(outcome), wanted(want), good)
        if not good:
            break
    return last


def satisfies(outcome: Outcome, want: Mapping[str, Any]) -> bool:
    """Whether a call gave what it must."""
    if "raises" in want:
        return outcome.kind == "raised" and outcome.text.split(":")[0] == want["raises"]
    return outcome.kind == "value" and same(outcome.value, want["value"])


def same(a: Any, b: Any) -> bool:
    """Equality of plain values with equal types all the way down: True is not 1, a tuple is no list; NaN equals itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        left, right = cast("Sequence[Any]", a), cast("Sequence[Any]", b)
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(a, dict):
        ours, theirs = cast("dict[Any, Any]", a), cast("dict[Any, Any]", b)
        return [(type(k), k) for k in sorted(ours, key=repr)] == [
            (type(k), k) for k in sorted(theirs, key=repr)
        ] and all(same(value, theirs[key]) for key, value in ours.items())
    return a == b or (a != a and b != b)


def shown(outcome: Outcome) -> str:
    """What a call gave, for people: a value as Python writes it, an exception by name, `nothing` where no answer came."""
    if outcome.kind == "value":
        return outcome.text or repr(outcome.value)
    return {"raised": outcome.text.split(":")[0] or "error", "not_plain": "an object"}.get(outcome.kind, "nothing")


def wanted(want: Mapping[str, Any]) -> str:
    """What a call must give, for people."""
    return str(want["raises"]) if "raises" in want else repr(want["value"])


def verdict_of(checked: Checked, partial: float = 0.0) -> Verdict:
    """The verdict of hidden cases: success is all of them.

    Args:
        checked: what came out.
        partial: weight of the auxiliary reward `partial`, the share of cases that passed; 0 gives none.
    """
    if checked.ended == "broken":
        return Verdict(None, invalid=f"the sandbox broke: {checked.reason}")
    checks = {f"hidden_{n}": case.passed for n, case in enumerate(checked.cases)}
    share = sum(checks.values()) / max(len(checks), 1)
    aux = {"partial": partial * share} if partial else {}
    failed = next((case for case in checked.cases if not case.passed), None)
    reason = "all hidden cases pass" if failed is None else f"a hidden case got {failed.got}, not {failed.want}"
    if checked.ended != "exited":
        reason = f"{reason} ({checked.reason or checked.ended})"
    return Verdict(float(checked.passed), checks, aux, reason)
