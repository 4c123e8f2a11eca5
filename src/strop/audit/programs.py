"""Tier 3, false positives, for programs: hostile programs, constants, mutants. Invariant: a program is confirmed to be wrong
only if it computes nothing, or differs from the reference, when both run, on an input of the declared domain."""

import ast
from collections.abc import Sequence

from strop.audit.behaviour import Behaviour, behaviour, told
from strop.audit.exam import Exam
from strop.audit.hostile import PATCHING, RUNNER, Attack, cheats, constants, edited_tests, slowed, stubbed
from strop.audit.inputs import Case, cases_of, guessed, inside, mutated
from strop.audit.mutants import mutants
from strop.audit.subject import Item, defines
from strop.core.sandbox import SandboxError

MUTANTS = 160
"""Mutants of all tasks together; each task has at least 6 and at most 24."""


CLOCK_SECONDS = 4.0


class Study:
    """What is known of one program task: its cases, and how the reference behaves on them and around them.

    Args:
        item: the task.
        program: the reference.
        cases: cases of the task.
        around: the reference's behaviour on them and on mutated inputs.
        assumed: the task holds no case, so the inputs are of a fixed grid.
    """

    def __init__(self, item: Item, program: str, cases: Sequence[Case], around: Behaviour) -> None:
        self.item, self.program, self.cases, self.around = item, program, cases, around
        self.assumed = not cases

    def within(self, case: Case) -> bool:
        """Whether a case lies in the declared domain."""
        return inside(case, self.cases)


async def study(exam: Exam, item: Item) -> Study | None:
    """The study of a task; None where it has no Python reference, or where nothing can be run."""
    program = item.program(item.reference)
    if program is None or not defines(program):
        exam.skip("programs: its reference is no Python program with a function", item)
        return None
    cases, stream = cases_of(item), exam.stream("inputs", item.id)
    inputs = [*cases, *mutated(cases, stream)] if cases else guessed(program, stream)
    try:
        around = await behaviour(program, inputs)
    except SandboxError as problem:
        exam.skip(f"behaviour of programs: {problem}")
        around = Behaviour((), ())
    return Study(item, program, cases, around)


async def check_programs(exam: Exam) -> None:
    """Run the tier for programs."""
    for item in exam.items:
        if item.sort != "program":
            continue
        if exam.spent():
            exam.skip("hostile programs and later tasks: no time left", item)
            return
        if not await exam.solvable(item):
            exam.skip("hostile programs: its reference is rejected", item)
            continue
        found = await study(exam, item)
        if found is None:
            continue
        for attack in (*cheats(found.program, item), *edited_tests(found.program, item)):
            if exam.spent():
                break
            if attack.name.startswith("forged verdict") and await dies(exam, item):
                exam.skip("forged verdicts on standard output: programs run in the verifier's own process", item)
                continue
            await check_cheat(exam, found, attack)
        await check_poison(exam, found)
        for attack in constants(found.program, item, found.cases):
            if exam.spent():
                break
            await check_constant(exam, found, attack)
        if item is next(other for other in exam.items if other.sort == "program"):
            await check_clock(exam, found)
        await check_copies(exam, found)
        await check_mutants(exam, found)


async def differences(exam: Exam, found: Study, program: str) -> list[tuple[bool, str, Case]]:
    """(whether in the declared domain, both outcomes for people, the input) where a program differs from the reference."""
    try:
        differing = await found.around.differences(program, found.within)
    except SandboxError as problem:
        exam.skip(f"behaviour of programs: {problem}")
        return []
    out = [(found.within(case), f"{told(case, got)}, the reference {want.text}", case) for case, want, got in differing]
    return sorted(out, key=lambda part: not part[0])


async def dies(exam: Exam, item: Item) -> bool:
    """Whether a program that ends its process ends the verifier."""
    verdict = await exam.judge(item, item.with_program("import os\nos._exit(0)\n"))
    return str(verdict.invalid or "").startswith("died")


async def check_cheat(exam: Exam, found: Study, attack: Attack) -> None:
    """A program that computes nothing. What it patches must not reach later answers, so the verifier starts anew."""
    await exam.attack(3, "confirmed", found.item, attack.name, attack.claim, attack.answer)
    verdict = await exam.judge(found.item, attack.answer)
    if str(verdict.invalid or "").startswith("died"):
        claim = "a program that ends its process ends the verifier too: no verdict, so the attempt costs it nothing"
        await exam.note(3, "lead", found.item, "verifier dies", claim, [attack.answer], "raises")
    if attack.name in PATCHING:
        await exam.subject.renew()


async def check_poison(exam: Exam, found: Study) -> None:
    """A program that replaces the judge's functions changes the verdict of a later wrong answer."""
    if exam.spent():
        return
    item = found.item
    wrong = item.with_program(stubbed(found.program, "raise NotImplementedError"))
    poison = item.with_program(stubbed(found.program, "raise NotImplementedError", RUNNER))
    claim = "after a program that replaced the judge's functions, a wrong one passes"
    if not await exam.passes(item, wrong):
        await exam.subject.verify(item, poison)
        after = await exam.subject.verify(item, wrong)
        passed = after.invalid is None and after.score is not None and after.score >= await exam.bar(item)
        await exam.subject.renew()
        exam.count("false positives", passed)
        if passed:
            await exam.note(3, "confirmed", item, "judge replaced", claim, [poison, wrong])
            await exam.subject.renew()


async def check_clock(exam: Exam, found: Study) -> None:
    """Where a slow right program fails, it is the time that counts; it then must not help to stop the clock."""
    if exam.left() < CLOCK_SECONDS or exam.subject.seconds < CLOCK_SECONDS:
        exam.skip(f"whether it helps to stop the clock: it takes {CLOCK_SECONDS:g} s", found.item)
        return
    item = found.item
    slow, stopped = (item.with_program(slowed(found.program, clock)) for clock in (False, True))
    if not await exam.passes(item, slow):
        await exam.subject.renew()
        claim = "a program that is too slow passes when it stops the clock"
        await exam.attack(3, "confirmed", item, "stopped clock", claim, stopped)
        await exam.subject.renew()


async def check_constant(exam: Exam, found: Study, attack: Attack) -> None:
    """A constant that passes is confirmed if it differs from the reference anywhere."""
    passed = await exam.passes(found.item, attack.answer)
    differing = await differences(exam, found, attack.program or "") if passed else []
    if passed and not differing and found.around.cases:
        return  # the constant is right, as far as inputs are known
    exam.count("false positives", passed and bool(differing))
    if differing:
        claim = f"{attack.claim}, but {differing[0][1]}"
        await exam.note(3, "confirmed", found.item, attack.name, claim, [attack.answer])
        exam.accepted.append((found.item, attack.name, attack.program or ""))
    elif passed:
        await exam.note(3, "lead", found.item, attack.name, attack.claim, [attack.answer])


async def check_copies(exam: Exam, found: Study) -> None:
    """Programs of other tasks, under this task's name of the function."""
    name = defines(found.program)[0]
    for other in exam.items[:4]:
        program = other.program(other.reference)
        if other.id == found.item.id or program is None or not defines(program) or exam.spent():
            continue
        tree = ast.parse(program)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == defines(program)[0]:
                node.name = name
        text = f"{ast.unparse(tree)}\n"
        await check_accepted(exam, found, "another task's program", "the program of another task", text)


async def check_mutants(exam: Exam, found: Study) -> None:
    """Mutants of the reference."""
    most = max(6, MUTANTS // max(1, sum(item.sort == "program" for item in exam.items)))
    for what, text in mutants(found.program, exam.stream("mutants", found.item.id), min(24, most)):
        if exam.spent():
            exam.skip(f"later mutants of {found.item.id}: no time left")
            return
        await check_accepted(exam, found, "mutant", f"a mutant of the reference ({what})", text)


async def check_accepted(exam: Exam, found: Study, name: str, claim: str, text: str) -> None:
    """A wrong program that passes: confirmed by a difference in the declared domain, else a lead.

    Rejected ones count, as a false positive that did not happen, without being run: the verifier calls them wrong.
    """
    answer = found.item.with_program(text)
    if not await exam.passes(found.item, answer):
        exam.count("wrong programs accepted", False)
        return
    differing = await differences(exam, found, text)
    exam.accepted.append((found.item, name, text))
    if differing and differing[0][0]:
        exam.count("wrong programs accepted", True)
        await exam.note(3, "confirmed", found.item, name, f"{claim} passes, but {differing[0][1]}", [answer])
    elif differing:
        where = "on a guessed input" if found.assumed else "outside the inputs that the task shows"
        await exam.note(3, "lead", found.item, f"{name}?", f"{claim} passes, but {where} {differing[0][1]}", [answer])
