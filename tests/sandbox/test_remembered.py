"""What is remembered is what running again could have given."""

import asyncio
from typing import Any

import pytest

from strop.core.sandbox import Bounds, Call, Ending, Executed, Outcome, Program, Sandbox
from strop.sandbox.remembered import MOST, USUAL, Remembered, named


class Counting(Sandbox):
    """Counts runs; gives the number of the run."""

    def __init__(self, ended: Ending = "exited") -> None:
        self.runs, self.ended = 0, ended

    async def execute(self, program: Program, bounds: Bounds = USUAL, fresh: bool = True) -> Executed:
        self.runs += 1
        number = self.runs
        await asyncio.sleep(0)
        if "raise" in program.modules["main"]:
            raise OSError("gone")
        return Executed(((Outcome("value", number),),), self.ended)


def program(text: str = "x = 1\n", *args: Any) -> Program:
    return Program({"main": text}, ((Call("main.f", args),),))


def test_an_equal_program_runs_once_also_when_it_is_asked_for_at_one_time() -> None:
    inner = Counting()
    box = Remembered(inner)

    async def ask() -> None:
        found = await asyncio.gather(*(box.execute(program()) for _ in range(8)))
        assert all(f == found[0] for f in found)

    asyncio.run(ask())
    asyncio.run(ask())  # another loop
    assert inner.runs == 1 and not box.running


def test_anything_else_about_it_makes_another_program() -> None:
    others = [program("x = 2\n"), program("x = 1\n", 1), program("x = 1\n", True), program("x = 1\n", 1.0)]
    names = [named(p, Bounds(), True) for p in (program(), *others)]
    names += [named(program(), Bounds(), False), named(program(), Bounds(cpu_seconds=1.0), True)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("ended", ["broken", "wall_time", "cpu_time", "output"])
def test_what_may_be_the_machine_s_fault_is_run_again(ended: Ending) -> None:
    inner = Counting(ended)
    box = Remembered(inner)
    for _ in range(3):
        asyncio.run(box.execute(program()))
    assert inner.runs == 3


def test_an_error_is_told_to_all_and_forgotten() -> None:
    inner = Counting()
    box = Remembered(inner)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(box.execute(program("raise")) for _ in range(3)), return_exceptions=True)

    assert [type(e) for e in asyncio.run(ask())] == [OSError] * 3
    assert inner.runs == 1
    asyncio.run(ask())
    assert inner.runs == 2


def test_the_memory_is_bounded_and_what_was_used_last_stays() -> None:
    inner = Counting()
    box = Remembered(inner)

    async def ask() -> None:
        await box.execute(program("first"))
        for n in range(MOST):
            await box.execute(program(str(n)))
            await box.execute(program("first"))

    asyncio.run(ask())
    assert len(box.known) == MOST and inner.runs == MOST + 1
