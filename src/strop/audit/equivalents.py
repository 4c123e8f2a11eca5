"""Tier 4, false negatives: other ways to give a right answer. Invariant: confirmed is only what the task declares to be
equivalent, and programs that behave the same where only behaviour counts. White space may be part of an answer: a lead."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from strop.audit.exam import Exam
from strop.audit.positives import arguments_of, calls_of, shown, with_calls
from strop.audit.rewrites import rewrites
from strop.audit.subject import Answer, Item

INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"-?\d+\.\d+")
FRACTION = re.compile(r"(-?\d+)/(\d+)")
UNIT = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-zA-Z%°]+)")


async def check_equivalents(exam: Exam) -> None:
    """Run the tier. Every variant that is certain counts towards the false-negative rate."""
    for item in exam.items:
        if exam.spent():
            exam.skip("false negatives and later tasks: no time left", item)
            return
        if item.reference is not None and not await exam.passes(item, item.reference):
            exam.count("false negatives", True)
            exam.skip("variants of the answer: its reference is rejected", item)
            continue
        if item.reference is not None:
            exam.count("false negatives", False)
        for answer in item.equivalents:
            claim = "an answer that the task declares to be equivalent is rejected"
            await must_pass(exam, item, "declared equivalent", claim, answer, sure=True)
        if item.sort == "text" and isinstance(item.reference, str) and item.reference.strip():
            await check_variants(exam, item, item.reference)
        elif item.sort == "program" and item.reference is not None:
            await check_rewrites(exam, item)
        elif item.sort == "tools":
            await check_calls(exam, item)
        elif item.sort == "turns" and isinstance(item.reference, Sequence):
            script = [f"{reply}\n" for reply in cast(Sequence[Any], item.reference)]
            claim = "the demonstration is rejected with a new line after each reply"
            await must_pass(exam, item, "new line after replies", claim, script, sure=False)


async def must_pass(exam: Exam, item: Item, name: str, claim: str, answer: Answer, sure: bool) -> bool:
    """Give an answer that is as right as the reference; if it fails, that is a finding. Whether it passed.

    `sure` ones count towards the false-negative rate, and are confirmed but for white space.
    """
    passed = await exam.passes(item, answer)
    exam.count("false negatives" if sure else "other forms rejected", not passed)
    if not passed:
        await exam.note(
            4, "confirmed" if sure and name != "white space" else "lead", item, name, claim, [answer], "fails"
        )
    return passed


async def check_variants(exam: Exam, item: Item, reference: str) -> None:
    """Text variants: white space around counts towards the rate; case, units, number forms, LaTeX and prose are leads."""
    for name, text, sure in variants(reference):
        claim = f"the reference {shown(reference, 60)!r} passes, but it is rejected with another form: {name}"
        await must_pass(exam, item, "white space" if sure else name, claim, text, sure)


def variants(reference: str) -> list[tuple[str, str, bool]]:
    """(name, text, whether it certainly says the same) of other forms of a reference."""
    text = reference.strip()
    clean = text == reference
    out: list[tuple[str, str, bool]] = [
        ("new line at the end", f"{reference}\n", clean),
        ("space at the end", f"{reference} ", clean),
        ("white space around", f"\n {text} \n", clean and "\n" not in text),
    ]
    if text.lower() != text.upper():
        out += [("lower case", text.lower(), False), ("upper case", text.upper(), False)]
    out += [("full stop", f"{text}.", False), ("LaTeX box", f"\\boxed{{{text}}}", False)]
    out += [("prose", f"The answer is {text}", False)]
    if INTEGER.fullmatch(text):
        out += [("decimal point", f"{text}.0", False), ("plus sign", f"+{text}", False)]
        out += [("thousands", f"{int(text):,}", False), ("leading zero", re.sub(r"(\d+)$", r"0\1", text), False)]
    elif DECIMAL.fullmatch(text):
        out += [("trailing zero", f"{text}0", False), ("exponent", f"{float(text):e}", False)]
    elif found := FRACTION.fullmatch(text):
        over, under = found.groups()
        out += [
            ("LaTeX fraction", f"\\frac{{{over}}}{{{under}}}", False),
            ("spaced fraction", f"{over} / {under}", False),
        ]
    elif found := UNIT.fullmatch(text):
        number, unit = found.groups()
        out += [("without its unit", number, False), ("unit apart", f"{number} {unit}", False)]
    elif text.startswith("[") or ", " in text:
        out += [("without spaces", text.replace(", ", ","), False)]
    seen = {reference}
    return [(n, t, s) for n, t, s in out if not (t in seen or seen.add(t))]


async def check_rewrites(exam: Exam, item: Item) -> None:
    """Behaviour-preserving rewrites of a program. Confirmed where the task declares that behaviour counts."""
    program = item.program(item.reference)
    made = rewrites(program) if program is not None else []
    if not made:
        exam.skip("rewrites: its reference is no Python program", item)
    for rewrite in made:
        if exam.spent():
            exam.skip("later rewrites: no time left", item)
            return
        answer = item.with_program(rewrite.text)
        sure = item.behaviour and rewrite.exact
        claim = f"a rewrite of the reference that behaves the same is rejected: {rewrite.what}"
        if await must_pass(exam, item, rewrite.name, claim, answer, sure) and rewrite.exact:
            exam.sound.setdefault(item.id, []).append(rewrite.text)


async def check_calls(exam: Exam, item: Item) -> None:
    """Other forms of the same calls: arguments in another order, another text beside them."""
    calls = calls_of(item.reference)
    turned: list[Mapping[str, Any]] = []
    for call in calls:
        if (key := arguments_of(call)) is not None:
            pairs = reversed(list(cast(Mapping[str, Any], call[key]).items()))
            call = {**call, key: dict(pairs)}
        turned.append(call)
    claim = "the reference's calls are rejected with their arguments in another order"
    await must_pass(exam, item, "order of arguments", claim, with_calls(item, turned), sure=True)
    if isinstance(item.reference, Mapping) and "text" in item.reference and calls:
        claim = "the reference's calls are rejected with another text beside them"
        await must_pass(exam, item, "another text", claim, with_calls(item, calls, "All done."), sure=False)
