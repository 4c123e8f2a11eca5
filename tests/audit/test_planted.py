"""Recall and precision of the audit on planted faults: each verifier has one known fault, and sound ones have none."""

import pytest

from tests.audit.exams import findings

FAULTS: list[tuple[str, int, str, str]] = [
    ("NeverRead", 1, "confirmed", "answer never read"),
    ("ExceptRewards", 1, "lead", "except that rewards"),
    ("ExceptRewards", 2, "confirmed", "empty answer"),
    ("AnswerInPrompt", 1, "lead", "answer in prompt"),
    ("AnswerInWorkspace", 1, "confirmed", "answer in workspace"),
    ("AnswerInEnvironment", 1, "confirmed", "answer in environment"),
    ("WritableTests", 1, "confirmed", "writable tests"),
    ("OpenNetwork", 1, "confirmed", "open network"),
    ("Hangs", 2, "lead", "no verdict in time"),
    ("EmptyPasses", 2, "confirmed", "empty answer"),
    ("LongPasses", 2, "confirmed", "refusal"),
    ("EchoPasses", 2, "confirmed", "echo"),
    ("ReferenceRejected", 2, "confirmed", "reference"),
    ("Flaky", 2, "confirmed", "flaky"),
    ("OrderMatters", 2, "confirmed", "order"),
    ("ProcessMatters", 2, "confirmed", "fresh process"),
    ("Contains", 3, "confirmed", "many answers"),
    ("AnyNumber", 3, "confirmed", "many answers"),
    ("DeniedPasses", 3, "lead", "negated or hedged"),
    ("NotANumber", 3, "confirmed", "not a number 'nan'"),
    ("Evaluates", 3, "confirmed", "always-true object"),
    ("NegativePasses", 3, "confirmed", "declared negative"),
    ("FirstLetter", 3, "lead", "near miss"),
    ("SignIgnored", 3, "lead", "near miss"),
    ("EquivalentRejected", 4, "confirmed", "declared equivalent"),
    ("SpaceRejected", 4, "lead", "white space"),
    ("CaseRejected", 4, "lead", "lower case"),
    ("ValueNotRead", 6, "lead", "twin"),
    ("ClaimPasses", 3, "confirmed", "claim without a call"),
    ("CallLeftOut", 3, "confirmed", "call left out"),
    ("CallTwice", 3, "lead", "call too many"),
    ("OnlyZero", 3, "confirmed", "return 0"),
    ("Phrase", 4, "confirmed", "turned comparisons"),
    ("StartPasses", 2, "confirmed", "untouched start"),
    ("WeakBoundary", 3, "confirmed", "mutant"),
    ("ShownOnly", 3, "confirmed", "special-cased inputs"),
    ("ExitStatus", 3, "confirmed", "sys.exit(0)"),
    ("Printed", 3, "confirmed", "forged verdict"),
    ("EqualityTrusted", 3, "confirmed", "always-true object"),
    ("FramesOpen", 3, "confirmed", "expected value read"),
    ("MessageCounts", 4, "lead", "other messages"),
    ("OwnTests", 3, "confirmed", "edited tests"),
    ("Timed", 3, "confirmed", "stopped clock"),
    ("KeysLeak", 7, "lead", "environment key"),
]
SOUND = ("Exact", "LastNumber", "Tolerant", "Choice", "Palindrome", "Boxed", "Json", "Tools", "Retries", "Clamps")


@pytest.mark.parametrize(("name", "tier", "kind", "attack"), FAULTS, ids=[f"{n}-{a}" for n, _, _, a in FAULTS])
def test_a_planted_fault_is_found_where_it_is(name: str, tier: int, kind: str, attack: str) -> None:
    assert (tier, kind, attack) in {(f.tier, f.kind, f.name) for f in findings(f"tests.audit.planted:{name}", (tier,))}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_verifier_has_no_confirmed_finding(name: str) -> None:
    assert [f for f in findings(f"tests.audit.planted:{name}", seconds=7.0) if f.kind == "confirmed"] == []


def test_the_corpus_has_one_entry_for_each_verifier_and_covers_the_tiers() -> None:
    assert len({name for name, *_ in FAULTS}) >= 40
    assert {tier for _, tier, *_ in FAULTS} == {1, 2, 3, 4, 6, 7}
