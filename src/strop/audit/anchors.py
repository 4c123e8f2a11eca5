"""Tier 2, anchors: what must pass passes, what must fail fails, and twice the same question has one answer. Invariant: each
answer here is right or wrong whatever the task means, so what goes wrong is confirmed."""

import time
from collections.abc import Sequence
from typing import Any

from strop.audit.exam import PASSED, Exam, same, score, told, valid
from strop.audit.finding import Finding
from strop.audit.subject import Answer, Item

REFUSALS = ("I cannot help with that.", "Sorry, I am unable to answer this question.")
WORDS = ("lamp", "seven", "orbit", "no", "42", "blue", "zero", "if", "carton", "-3", "maybe", "x")
REPEATS = 12
SECONDS_OF_REPEATS = 8.0
"""Time that repeating verdicts may take, in an audit without a limit."""


async def check_anchors(exam: Exam) -> None:
    """Run the tier."""
    steady: list[tuple[Item, Answer]] = []
    for item in exam.items:
        if exam.spent():
            exam.skip("anchors and later tasks: no time left", item)
            break
        await check_reference(exam, item)
        for name, claim, answer in failing(exam, item):
            await must_fail(exam, item, name, claim, answer)
        await check_echo_and_refusal(exam, item)
        await check_random(exam, item)
        steady += [(item, answer) for answer in (item.reference, blank(item)) if answer is not None]
    if await check_repeats(exam, steady):
        exam.skip("order and fresh process: one answer already gets different verdicts")
        return
    await check_order(exam, steady)
    await check_fresh(exam, steady)


async def check_reference(exam: Exam, item: Item) -> None:
    """The reference passes."""
    if item.reference is None:
        exam.skip("reference: it has none", item)
        return
    verdict = await exam.judge(item, item.reference)
    kind = "confirmed" if item.declared else "lead"
    least = PASSED if exam.subject.threshold is None else exam.subject.threshold - 1e-9
    rejected = not valid(verdict) or score(verdict) < least
    exam.count("references rejected", rejected)
    if not valid(verdict):
        claim = f"the reference cannot be judged: {told(verdict)}"
        await exam.note(2, kind, item, "reference", claim, [item.reference], "fails")
    elif rejected:
        claim = f"the reference is rejected ({told(verdict)})"
        await exam.note(2, kind, item, "reference", claim, [item.reference], "fails")
    elif score(verdict) < 1 and exam.subject.threshold is None:
        claim = f"the reference earns {score(verdict):g}, not 1"
        await exam.note(2, "lead", item, "reference below 1", claim, [item.reference])


def blank(item: Item, text: str = "") -> Answer:
    """An answer that says this and does nothing, in the form that the task takes."""
    if item.sort == "tools":
        return {"calls": [], "text": text} if isinstance(item.reference, dict) else []
    if item.sort == "turns":
        return [text]
    return item.with_program(text) if item.sort == "program" else text


def failing(exam: Exam, item: Item) -> list[tuple[str, str, Answer]]:
    """(name, claim, answer) of what must fail: the untouched start, nothing, white space."""
    out: list[tuple[str, str, Answer]] = []
    if item.start is not None and not alike(item.start, item.reference):
        out.append(("untouched start", "the untouched start passes", item.start))
    if item.sort == "text" and isinstance(item.reference, str) and not item.reference.strip():
        exam.skip("empty answer: its reference is empty", item)
    else:
        out.append(("empty answer", "an empty answer passes", blank(item)))
        if item.sort != "tools":
            out.append(("white space", "an answer of white space passes", blank(item, " \n")))
    return out


def alike(one: Any, other: Any) -> bool:
    """Whether two answers are the same text, white space and case aside."""
    return one == other if not (isinstance(one, str) and isinstance(other, str)) else bare(one) == bare(other)


def bare(text: str) -> str:
    """A text without differences of case, white space and closing marks."""
    return " ".join(text.lower().split()).strip(" .!\"'")


async def must_fail(exam: Exam, item: Item, name: str, claim: str, answer: Answer) -> None:
    """Give an answer that is wrong whatever the task means. Part of a reward for it, or an error, is a lead."""
    if await exam.attack(2, "confirmed", item, name, claim, answer):
        return
    verdict = await exam.judge(item, answer)
    if str(verdict.invalid or "").startswith(("raised", "died")):
        text = f"the verifier gives no verdict on this answer: {told(verdict)}; it should score it 0"
        await exam.note(2, "lead", item, f"{name}: no verdict", text, [answer], "raises")
    elif valid(verdict) and score(verdict) >= PASSED and exam.subject.threshold is None:
        exam.write(Finding(2, "lead", item.id, f"{claim} in part ({told(verdict)})", f"{name} in part"))


async def check_echo_and_refusal(exam: Exam, item: Item) -> None:
    """Echo and refusal fail.

    A single refusal may by chance be an answer where almost any text is one, and a prompt may end in the answer; so
    both are confirmed by a second text of the same kind.
    """
    if item.sort == "tools" and not isinstance(item.reference, dict):
        return
    reference = item.reference if isinstance(item.reference, str) else ""
    if not any(word in reference.lower() for word in ("cannot", "can't", "unable", "sorry", "won't")):
        await in_pairs(exam, item, "refusal", "a refusal passes", [blank(item, text) for text in REFUSALS])
    if item.prompt.strip() and not alike(item.prompt, reference):
        closed = f"{item.prompt}\nThat is the question, and here is no reply to it: {WORDS[8]} {WORDS[2]}."
        texts = [blank(item, item.prompt), blank(item, closed)]
        await in_pairs(exam, item, "echo", "the prompt itself, given as the answer, passes", texts)


async def in_pairs(exam: Exam, item: Item, name: str, claim: str, answers: Sequence[Answer]) -> None:
    """Confirmed if all of the answers pass, a lead if one does."""
    passed = [answer for answer in answers if await exam.passes(item, answer)]
    exam.count("false positives", len(passed) == len(answers))
    if len(passed) == len(answers):
        await exam.note(2, "confirmed", item, name, claim, answers)
    elif passed:
        await exam.note(2, "lead", item, name, f"{claim} (one wording of two)", passed[:1])
    else:
        verdict = await exam.judge(item, answers[0])
        if str(verdict.invalid or "").startswith(("raised", "died")):
            text = f"the verifier gives no verdict on a {name}: {told(verdict)}; it should score it 0"
            await exam.note(2, "lead", item, f"{name}: no verdict", text, answers[:1], "raises")


async def check_random(exam: Exam, item: Item) -> None:
    """Random answers fail; a world in which random actions often succeed is a lead, since some may by chance."""
    if item.sort == "turns":
        scripts = await exam.subject.demonstrations(item, "random", 4)
        if not scripts:
            exam.skip("random actions: the world names no actions")
        for script in scripts:
            exam.count("random play succeeds", await exam.passes(item, script))
        return
    stream = exam.stream("random", item.id)
    texts = [" ".join(stream.choices(WORDS, k=6)) for _ in range(2)]
    if item.sort != "tools":
        await in_pairs(exam, item, "random words", "random words pass", [blank(item, text) for text in texts])


# --- once more the same


async def check_repeats(exam: Exam, steady: Sequence[tuple[Item, Answer]]) -> bool:
    """Verdicts of one answer agree; whether a disagreement was found."""
    until = time.monotonic() + min(exam.left() * 0.4, SECONDS_OF_REPEATS)
    for number, (item, answer) in enumerate(steady):
        if time.monotonic() >= until:
            exam.skip("repeats of later tasks: no time left")
            break
        first, verdicts = await exam.judge(item, answer), [await exam.subject.verify(item, answer)]
        while len(verdicts) < (REPEATS if number < 4 else 3) and time.monotonic() < until:
            verdicts.append(await exam.subject.verify(item, answer))
        differing = [v for v in verdicts if not same(v, verdicts[0])]
        exam.count("answers judged unlike when repeated", bool(differing))
        rest = verdicts[1:]
        stateful = len(rest) > 1 and all(
            same(v, rest[0]) for v in rest
        )  # only the first, after other questions, differs
        if differing and not stateful:
            verdicts += [await exam.subject.verify(item, answer) for _ in range(REPEATS)]
            rare = min(sum(same(v, one) for v in verdicts) for one in (verdicts[0], differing[0]))
            claim = f"one answer, asked {len(verdicts)} times, gets {told(verdicts[0])} and {told(differing[0])}"
            answers = (answer,) * (2 * REPEATS)  # seen once, it may be a machine that was slow for a moment
            exam.write(Finding(2, "confirmed" if rare > 1 else "lead", item.id, claim, "flaky", "differs", answers))
            return True
        if differing or not same(first, verdicts[0]):
            other = verdicts[-1] if differing else first
            claim = f"asked again after others, the same answer gets {told(verdicts[0])} instead of {told(other)}"
            exam.write(Finding(2, "confirmed", item.id, claim, "order"))
            return True
    return False


async def check_order(exam: Exam, steady: Sequence[tuple[Item, Answer]]) -> None:
    """Verdicts do not depend on what was asked before."""
    for item, answer in reversed(steady):
        if exam.spent():
            exam.skip("order: no time left")
            return
        before, now = await exam.judge(item, answer), await exam.subject.verify(item, answer)
        if not same(before, now):
            claim = f"asked in another order, the same answer gets {told(now)} instead of {told(before)}"
            hasty = "slow" in f"{before.invalid} {now.invalid}"
            exam.write(Finding(2, "lead" if hasty else "confirmed", item.id, claim, "order"))
            return


async def check_fresh(exam: Exam, steady: Sequence[tuple[Item, Answer]]) -> None:
    """Verdicts are the same in a fresh process, in another order."""
    other = await exam.subject.again()
    if other is None:
        exam.skip("fresh process: this subject cannot be started again")
        return
    try:
        for item, answer in reversed(steady):
            if exam.spent():
                exam.skip("fresh process: no time left for all tasks")
                return
            before, now = await exam.judge(item, answer), await other.verify(item, answer)
            if not same(before, now):
                claim = f"in a fresh process the same answer gets {told(now)} instead of {told(before)}"
                sure = same(now, await other.verify(item, answer)) and same(
                    before, await exam.subject.verify(item, answer)
                )
                exam.write(Finding(2, "confirmed" if sure else "lead", item.id, claim, "fresh process"))
                return
    finally:
        await other.close()
