"""Tier 5: fuzzing of accepted programs against the reference. Invariant: a suggested test is one that the reference and every
known-good program pass, so that taking it over rejects nobody who is right."""

from dataclasses import replace

from strop.audit.behaviour import Behaviour, alike, behaviour, outcomes, told
from strop.audit.exam import Exam
from strop.audit.inputs import Case, cases_of, guessed, inside, mutated
from strop.audit.subject import Item
from strop.core.sandbox import SandboxError

ROUNDS = 3
"""How often inputs are mutated from those of the round before."""
MOST = 80
"""Inputs of one round."""


async def check_fuzz(exam: Exam) -> None:
    """Run the tier on what the tiers before accepted: declared equivalents, start, constants and mutants."""
    candidates = [*exam.accepted]
    for item in exam.items:
        if item.sort == "program" and item.reference is not None:
            for answer in item.equivalents:
                if (text := item.program(answer)) is not None and await exam.passes(item, answer):
                    candidates.append((item, "declared equivalent", text))
    if not candidates:
        exam.skip("fuzzing: no program but the reference was accepted")
    seen: set[tuple[str, str]] = set()
    known: dict[str, list[Behaviour]] = {}
    for item, name, text in candidates:
        if exam.spent():
            exam.skip("fuzzing of later programs: no time left")
            return
        if (item.id, text) not in seen:
            seen.add((item.id, text))
            try:
                if item.id not in known:
                    known[item.id] = await rounds_of(exam, item)
                await fuzz(exam, item, name, text, known[item.id])
            except SandboxError as problem:
                exam.skip(f"fuzzing: {problem}")
                return


async def fuzz(exam: Exam, item: Item, name: str, text: str, rounds: list[Behaviour]) -> None:
    """Look for an input that tells a program from the reference, in the declared domain first."""
    cases = cases_of(item)
    best: tuple[Case, str] | None = None
    for around in rounds:
        if exam.spent():
            break
        for case, want, got in await around.differences(text, lambda case: inside(case, cases)):
            seen = f"{told(case, got)}, the reference {want.text}"
            if inside(case, cases):
                await suggest(exam, item, name, text, case, seen, True)
                return
            best = best or (case, seen)
        if best is not None and not cases:
            break
    if best is not None:
        await suggest(exam, item, name, text, best[0], best[1], False)


async def rounds_of(exam: Exam, item: Item) -> list[Behaviour]:
    """The reference's behaviour on inputs, each round mutated from those of the round before."""
    program, stream = item.program(item.reference) or "", exam.stream("fuzz", item.id)
    inputs = cases_of(item) or guessed(program, stream)
    out: list[Behaviour] = []
    for _ in range(ROUNDS):
        inputs = mutated(inputs, stream, MOST)
        if not inputs or exam.spent():
            break
        out.append(await behaviour(program, inputs))
    return out


async def suggest(exam: Exam, item: Item, name: str, text: str, case: Case, seen: str, sure: bool) -> None:
    """Write the difference down, with a test where every known-good program passes it."""
    program = item.program(item.reference) or ""
    wanted = (await outcomes(program, [case]))[0]
    good = [t for t in (item.program(answer) for answer in item.equivalents) if t is not None and t != text]
    for other in (*good, *exam.sound.get(item.id, [])):
        if not alike(wanted, (await outcomes(other, [case]))[0]):
            exam.skip("a test of {case.function}{case.args!r}: a known-good program fails it", item)
            return
    arguments = ", ".join(map(repr, case.args))
    suggestion = f"add the test: assert {case.function}({arguments}) == {wanted.value!r}"
    kind = "confirmed" if sure and name != "declared equivalent" else "lead"
    claim = f"an accepted program ({name}) differs from the reference: {seen}"
    answer = item.with_program(text)
    if await exam.note(5, kind, item, f"fuzzed {name}", claim, [answer]):
        key = (5, kind, f"fuzzed {name}")
        old = exam.findings[key]
        if not old.suggestion:
            exam.findings[key] = replace(old, suggestion=suggestion)
