"""Tiers 2, 3, 4 and 6 on text verifiers: what is confirmed, what is a lead, and what a sound verifier is left with."""

from typing import Any

import pytest

from strop.audit.equivalents import variants
from strop.audit.finding import rate
from strop.audit.positives import near
from tests.audit.exams import SUMS, Judge, exact, examined, names


def test_an_exact_verifier_has_no_confirmed_finding_and_no_accepted_attack() -> None:
    report = examined(exact)
    assert names(report) == set()
    assert report.rates["false positives"].hits == 0
    assert report.rates["false positives"].of > 50
    assert report.ceiling == rate(20, 20)


@pytest.mark.parametrize(
    ("judge", "name"),
    [
        (lambda task, answer: 1.0, "empty answer"),
        (lambda task, answer: task["reference"] in answer, "many answers"),
        (lambda task, answer: exact(task, answer) or len(answer) > 20, "refusal"),
        (lambda task, answer: exact(task, answer) or task["prompt"] in answer, "echo"),
        (lambda task, answer: 0.0, "reference"),
        (lambda task, answer: 1 / 0, "reference"),
    ],
)
def test_a_fault_is_confirmed(judge: Judge, name: str) -> None:
    assert name in names(examined(judge))


def test_a_verifier_that_compares_exactly_is_told_so_as_a_lead() -> None:
    report = examined(lambda task, answer: answer == task["reference"])
    assert names(report) == set() and "white space" in names(report, "lead")


def test_a_list_of_guesses_is_only_a_lead_where_the_last_one_counts() -> None:
    report = examined(lambda task, answer: answer.split()[-1:] == [task["reference"]])
    assert "many answers" not in names(report)
    assert "many answers, right one at an end" in names(report, "lead")


def test_part_of_a_reward_for_nothing_is_a_lead_and_no_pass() -> None:
    report = examined(lambda task, answer: exact(task, answer) or 0.6 * (answer == ""), tiers=(2,))
    assert "empty answer in part" in names(report, "lead")
    assert names(report) == set()


def test_a_threshold_says_what_passes() -> None:
    def judge(task: Any, answer: Any) -> float:
        return 0.9 if exact(task, answer) else 0.6

    assert "empty answer" in names(examined(judge, tiers=(2,), threshold=0.5))
    assert names(examined(judge, tiers=(2,))) == set()


def test_an_answer_that_was_not_called_a_reference_is_a_lead_where_it_fails() -> None:
    report = examined(lambda task, answer: 0.0, [{"id": "a", "prompt": "p", "answer": "4"}])
    assert names(report) == set()
    assert any("reference" in text for text in report.not_checked)


def test_a_state_that_verdicts_depend_on_is_an_order_and_chance_is_flaky() -> None:
    seen: list[str] = []

    def stateful(task: Any, answer: Any) -> float:
        seen.append(task["id"])
        return float(exact(task, answer) and (len(seen) < 2 or task["id"] >= seen[-2]))

    calls = iter(range(10**6))
    report = examined(stateful, tiers=(2,))
    assert "order" in names(report)
    assert "flaky" not in names(report)
    flaky = examined(lambda task, answer: exact(task, answer) and next(calls) % 3 > 0, tiers=(2,))
    assert "flaky" in names(flaky)
    assert names(examined(exact, tiers=(2,))) == set()


def test_declared_negatives_and_equivalents_are_taken_at_their_word() -> None:
    task = {**SUMS[0], "negatives": ["24.0"], "equivalents": ["+24"]}
    report = examined(lambda _, answer: answer.strip() in ("24", "24.0"), [task])
    assert {"declared negative", "declared equivalent"} <= names(report)
    fine = examined(lambda _, answer: answer.strip() in ("24", "+24"), [task])
    assert names(fine) == set()


def test_only_white_space_around_counts_as_the_same_and_it_is_not_where_the_text_begins_or_ends_in_it() -> None:
    assert {name for name, _, sure in variants("12") if sure} == {
        "new line at the end",
        "space at the end",
        "white space around",
    }
    assert not any(sure for _, _, sure in variants("  x\n"))
    assert [n for n, _, s in variants("1 2\n3 4") if s] == ["new line at the end", "space at the end"]


@pytest.mark.parametrize(
    ("reference", "form"),
    [("3/4", "\\frac{3}{4}"), ("1200", "1,200"), ("2.5", "2.50"), ("5 km", "5"), ("Yes", "yes"), ("7", "\\boxed{7}")],
)
def test_other_forms_are_made(reference: str, form: str) -> None:
    assert form in {text for _, text, _ in variants(reference)}


def test_near_misses_never_say_the_same() -> None:
    assert "13" in near("12")
    assert "-12" in near("12")
    assert all(text.lower() != "paris" for text in near("Paris"))


def test_a_twin_tells_whether_the_expected_value_is_read() -> None:
    computed = examined(lambda task, answer: answer.strip() == str(2 * int(task["id"][1:])), tiers=(6,))
    assert names(computed, "lead") == {"twin"}
    assert examined(exact, tiers=(6,)).findings == []
    assert "twin" not in names(examined(exact, tiers=(6,)), "lead")


def test_the_same_audit_gives_the_same_findings() -> None:
    one, two = (examined(lambda task, answer: task["reference"] in answer) for _ in range(2))
    assert one.findings == two.findings
    assert one.rates == two.rates
