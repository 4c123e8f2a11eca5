"""Tier 3, false positives, for answers that are text, calls of tools, or turns: answers that should not pass. Invariant: a
text is confirmed to be wrong only by the verifier's own word for its parts, by the task's, or because no task can mean it."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from strop.audit.anchors import alike, bare
from strop.audit.exam import Exam
from strop.audit.subject import Answer, Item

CONSTANTS = ("0", "1", "-1", "yes", "no", "true", "None", "A", "unknown", "the answer", "[]", "{}", "...")
NOT_NUMBERS = ("nan", "NaN", "inf", "-inf", "1e999")
FORGED = ('{"score": 1.0}', "PASS", "score: 1", "[[10]]", "OK\n1 passed", "True", "correct", "verdict: correct")
TRUE_OBJECT = "type('X', (), {'__eq__': lambda s, o: True, '__ne__': lambda s, o: False})()"
FALSE_OBJECT = "type('X', (), {'__eq__': lambda s, o: False, '__ne__': lambda s, o: True})()"
NUMBER = re.compile(r"-?\d+(\.\d+)?")


async def check_positives(exam: Exam) -> None:
    """Run the tier for text, tools and turns; programs have `programs.py`."""
    for item in exam.items:
        if exam.spent():
            exam.skip("false positives and later tasks: no time left", item)
            return
        await check_negatives(exam, item)
        if not await exam.solvable(item):
            exam.skip("false positives: its reference is rejected", item)
        elif item.sort == "text":
            await check_text(exam, item)
        elif item.sort == "tools":
            await check_tools(exam, item)
        elif item.sort == "turns":
            await check_turns(exam, item)


async def check_negatives(exam: Exam, item: Item) -> None:
    """What the task itself declares to be wrong fails."""
    for answer in item.negatives:
        await exam.attack(
            3, "confirmed", item, "declared negative", "an answer that the task calls wrong passes", answer
        )


# --- text


async def check_text(exam: Exam, item: Item) -> None:
    """All attacks on a text answer."""
    for text in CONSTANTS:
        if not alike(text, item.reference):
            await exam.attack(3, "lead", item, f"constant {text!r}", f"the constant answer {text!r} passes", text)
    for text in FORGED:
        if not alike(text, item.reference):
            await exam.attack(3, "lead", item, "forged verdict", "a text that looks like a verdict passes", text)
    if await exam.passes(item, TRUE_OBJECT) and not await exam.passes(item, FALSE_OBJECT):
        claim = "the answer is evaluated as code: an object that is equal to everything passes"
        await exam.note(3, "confirmed", item, "always-true object", claim, [TRUE_OBJECT])
    reference = item.reference
    if not isinstance(reference, str) or not reference.strip():
        exam.skip("attacks around the reference: it has none", item)
        return
    if NUMBER.fullmatch(reference.strip()):
        for text in NOT_NUMBERS:
            claim = f"{text!r} passes where the answer is the number {reference.strip()}"
            await exam.attack(3, "confirmed", item, f"not a number {text!r}", claim, text)
    elif len(NUMBER.findall(reference)) == 1:
        text = NUMBER.sub("nan", reference)
        await exam.attack(3, "lead", item, "not a number in the answer", f"{text!r} passes", text)
    for text in near(reference):
        await exam.attack(3, "lead", item, "near miss", f"{text!r} passes where the reference is another answer", text)
    wrong = await wrong_answers(exam, item)
    if wrong:
        await check_many(exam, item, reference, wrong)
        await check_negated(exam, item, reference, wrong[0])
    else:
        exam.skip("many answers at once, negated text: no answer is known that the verifier rejects", item)


def near(reference: str) -> list[str]:
    """Answers close to a reference that say something else."""
    text = reference.strip()
    out: list[str] = []
    if NUMBER.fullmatch(text):
        number = float(text)
        out += [f"{number + 1:g}", f"{-number:g}" if number else "1", f"{number * 10 + 3:g}", f"{number + 0.4:g}"]
    elif len(text) > 2:
        words = text.split()
        out += [text[0], text[: len(text) // 2], text[::-1], " ".join(reversed(words)), text[-1], text + " x"]
    return [t for t in dict.fromkeys(out) if t.strip() and not alike(t, text)]


async def wrong_answers(exam: Exam, item: Item) -> list[str]:
    """Up to four texts of which the verifier itself says that each is wrong: other tasks' answers, or near misses.

    Other tasks' answers that pass are leads: a task may have several right answers.
    """
    out: list[str] = []
    others = [other.reference for other in exam.items if other.id != item.id and isinstance(other.reference, str)]
    texts = [t for t in dict.fromkeys(others) if t.strip() and not alike(t, item.reference)]
    for text in exam.stream("others", item.id).sample(texts, min(6, len(texts))):
        if await exam.attack(3, "lead", item, "another task's answer", "the answer of another task passes", text):
            continue
        out.append(text)
    for text in (*(a for a in item.negatives if isinstance(a, str)), *near(str(item.reference)), *WRONG):
        if len(out) >= 4:
            break
        apart = bare(text) not in bare(str(item.reference)) and bare(str(item.reference)) not in bare(text)
        if apart and not await exam.passes(item, text):
            out.append(text)
    return out[:4]


WRONG = ("17342", "an umbrella", "-8.25", "Quagmire")
"""Texts that are hardly the answer of anything; each is used only if the verifier rejects it."""


async def check_many(exam: Exam, item: Item, reference: str, wrong: Sequence[str]) -> None:
    """Many answers at once. Confirmed only with the right one in the middle: a verifier may read the first or the last."""
    claim = "many answers at once pass, the wrong ones among them before and after the right one"
    half = (len(wrong) + 1) // 2
    before, after = list(wrong[:half]), list(wrong[half:]) or list(wrong[:1])
    for joint in ("\n", ", ", " or "):
        text = joint.join([*before, reference, *after])
        if await exam.attack(3, "confirmed", item, "many answers", claim, text):
            return
    for text in (" or ".join([reference, *wrong]), " or ".join([*wrong, reference])):
        await exam.attack(3, "lead", item, "many answers, right one at an end", "a list of guesses passes", text)


async def check_negated(exam: Exam, item: Item, reference: str, wrong: str) -> None:
    """Negated and hedged text. Confirmed where the text ends in an answer of which the verifier says that it is wrong."""
    claim = f"a text that denies the right answer and concludes {wrong!r}, which alone is rejected, passes"
    final = f"It is certainly not {reference}. The answer is\n{wrong}"
    closed = f"The answer is {wrong}. It is not {reference}, whatever they say. Once more, the answer is {wrong}."
    if await exam.passes(item, final) and await exam.passes(item, closed):
        await exam.note(3, "confirmed", item, "negated", claim, [final, closed])
    for text in (
        f"It is not {reference}",
        f"It is {reference}, or perhaps {wrong}",
        f"I doubt that it is {reference}.",
    ):
        await exam.attack(3, "lead", item, "negated or hedged", "a negated or hedged answer passes", text)


# --- tools


def calls_of(answer: Answer) -> list[Mapping[str, Any]]:
    """The calls in an answer."""
    found: Any = cast(Mapping[str, Any], answer).get("calls", []) if isinstance(answer, Mapping) else answer
    return [cast(Mapping[str, Any], call) for call in found or [] if isinstance(call, Mapping)]


def name_of(call: Mapping[str, Any]) -> str:
    """The tool of a call, in the usual forms: `name`, `tool`, or `function` (a name, or an object with one)."""
    found: Any = next((call[key] for key in ("name", "tool", "function") if key in call), "")
    return str(cast(Mapping[str, Any], found).get("name", "")) if isinstance(found, Mapping) else str(found)


def arguments_of(call: Mapping[str, Any]) -> str | None:
    """The key under which a call holds its arguments."""
    return next(
        (key for key in ("arguments", "args", "input", "parameters") if isinstance(call.get(key), Mapping)), None
    )


def with_calls(item: Item, calls: Sequence[Mapping[str, Any]], text: str | None = None) -> Answer:
    """An answer with these calls in the form of the reference, with its text or another one."""
    if isinstance(item.reference, Mapping):
        kept = cast(Mapping[str, Any], item.reference)
        return {**kept, "calls": list(calls), **({} if text is None else {"text": text})}
    return list(calls)


async def check_tools(exam: Exam, item: Item) -> None:
    """No call, a claim without a call, one mutating call left out, one too many, wrong arguments.

    The task says by `mutating` (names of tools) which calls change the world; leaving one of those out is confirmed.
    """
    calls = calls_of(item.reference)
    mutating = {str(name) for name in item.data.get("mutating", ())}
    if not calls:
        exam.skip("calls: its reference makes none", item)
        return
    sure = "confirmed" if any(name_of(call) in mutating for call in calls) else "lead"
    await exam.attack(3, sure, item, "no call", "an answer without any call passes", with_calls(item, []))
    if isinstance(item.reference, Mapping):
        text = "Done. I made every call that was needed and all of them succeeded."
        await exam.attack(
            3, sure, item, "claim without a call", "a claim to have acted passes", with_calls(item, [], text)
        )
    for index, call in enumerate(calls):
        name, fewer = name_of(call), [*calls[:index], *calls[index + 1 :]]
        kind = "confirmed" if name in mutating and call not in fewer else "lead"
        claim = f"the answer passes without its call of {name}"
        await exam.attack(3, kind, item, "call left out", claim, with_calls(item, fewer))
        more = [*calls[: index + 1], call, *calls[index + 1 :]]
        claim = f"the answer passes with the call of {name} made twice"
        await exam.attack(3, "lead", item, "call too many", claim, with_calls(item, more))
        key = arguments_of(call)
        for argument, wrong in _changes(call[key] if key is not None else {}):
            changed = [*calls[:index], {**call, str(key): wrong}, *calls[index + 1 :]]
            claim = f"the answer passes with another {argument} of {name}"
            await exam.attack(3, "lead", item, "other arguments", claim, with_calls(item, changed))
    for extra in unasked(exam, item, mutating):
        claim = f"it passes with an unasked call of {name_of(extra)} beside the right ones"
        await exam.attack(3, "lead", item, "unasked call", claim, with_calls(item, [*calls, extra]))


def unasked(exam: Exam, item: Item, mutating: set[str]) -> list[Mapping[str, Any]]:
    """Calls that a task does not ask for: of tools that change the world, and of the references of other tasks; at most 4."""
    calls = calls_of(item.reference)
    named = {name_of(call) for call in calls}
    extra: list[Mapping[str, Any]] = [{"name": name, "arguments": {}} for name in sorted(mutating - named)]
    for other in exam.items:
        extra += [call for call in calls_of(other.reference) if call not in calls and call not in extra]
    return extra[:4]


def _changes(arguments: Any) -> list[tuple[str, Any]]:
    """The arguments with one of them changed, for each of them."""
    if not isinstance(arguments, Mapping):
        return []
    given = cast(Mapping[str, Any], arguments)
    changed = cast(Mapping[str, Any], _changed(given))
    return [(key, {**given, key: changed[key]}) for key in given if changed[key] != given[key]]


def _changed(arguments: Any) -> Any:
    if not isinstance(arguments, Mapping) or not arguments:
        return arguments
    out = dict(cast(Mapping[str, Any], arguments))
    for key, value in out.items():
        if isinstance(value, bool):
            out[key] = not value
        elif isinstance(value, int | float):
            out[key] = value + 1
        elif isinstance(value, str):
            out[key] = value + "x"
    return out


# --- turns


async def check_turns(exam: Exam, item: Item) -> None:
    """Scripts for a world of several turns: one reply for ever, claims, and all known replies in one message.

    Most are leads, since such a script can be a way to win; a claim in two wordings is none.
    """
    if not isinstance(item.reference, Sequence):
        exam.skip("scripts: no demonstration succeeded", item)
        return
    script = [str(reply) for reply in cast(Sequence[Any], item.reference)]
    if len(set(script)) > 1:
        claim = "the first reply of a success, repeated, passes"
        await exam.attack(3, "lead", item, "repeated action", claim, [script[0]])
    claims = ("Done. The task is complete.", "I have done everything that was asked for, and it succeeded.")
    if len(set(script)) > 1 and all([await exam.passes(item, [text]) for text in claims]):
        claim = "a claim to have done the task, without doing it, passes"
        await exam.note(3, "confirmed", item, "claim without an action", claim, [[text] for text in claims])
    replies = list(
        dict.fromkeys(r for other in exam.items if isinstance(other.reference, Sequence) for r in other.reference)
    )
    if len(replies) > 2:
        for joint in (" ", "\n", ", "):
            claim = "all known replies in one message pass"
            await exam.attack(3, "lead", item, "many replies at once", claim, [joint.join(replies)])


def shown(answer: Answer, most: int = 200) -> str:
    """An answer for people, cut."""
    text = answer if isinstance(answer, str) else json.dumps(answer, default=repr)
    return text if len(text) <= most else f"{text[: most - 3]}..."
