"""What a user's tasks are read as, and what a verifier's return value means."""

from typing import Any

import pytest

from strop.audit.local import Local
from strop.audit.subject import guess_sort, read_item, verdict_of
from strop.core.errors import UsageError
from strop.core.task import Task, Verdict


@pytest.mark.parametrize(
    ("reference", "sort"),
    [
        ("42", "text"),
        ("def f(x):\n    return x\n", "program"),
        ("define f", "text"),
        ({"main.py": "x = 1"}, "program"),
        ({"calls": []}, "tools"),
        ([{"name": "a", "arguments": {}}], "tools"),
        (["left", "right"], "turns"),
        (None, "text"),
    ],
)
def test_the_form_of_the_reference_says_what_a_task_takes(reference: Any, sort: str) -> None:
    assert guess_sort(reference) == sort


def test_a_task_of_the_library_is_its_data_with_its_id() -> None:
    item = read_item(Task("a", {"prompt": [{"role": "user", "content": "hi"}], "reference": "x"}), 0)
    assert (item.id, item.prompt, item.reference, item.declared) == ("a", "hi", "x", True)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("text", "each task must be a mapping"),
        ({"id": "a", "kind": "song"}, "known: text, program"),
        ({"id": "a", "negatives": "no"}, "negatives must be a list"),
    ],
)
def test_a_task_that_cannot_be_used_is_told(task: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_item(task, 0)


@pytest.mark.parametrize(("tasks", "words"), [([], "has no tasks"), ([{"id": "a"}, {"id": "a"}], "stands twice")])
def test_a_subject_needs_tasks_with_distinct_ids(tasks: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Local("mine", tasks, lambda task, answer: 1)


@pytest.mark.parametrize(
    ("given", "score", "invalid"),
    [
        (True, 1.0, None),
        (0, 0.0, None),
        (0.25, 0.25, None),
        (Verdict(1.0), 1.0, None),
        (float("nan"), None, "raised: the score is nan"),
        (Verdict(float("inf")), None, "raised: the score is inf"),
        ("1", None, "raised: the verifier returned str"),
        (None, None, "raised: the verifier returned NoneType"),
    ],
)
def test_a_return_value_is_a_score_or_says_why_not(given: Any, score: float | None, invalid: str | None) -> None:
    verdict = verdict_of(given)
    assert verdict.score == score
    assert (verdict.invalid or "").startswith(invalid or "")
    assert (verdict.invalid is None) == (invalid is None)
