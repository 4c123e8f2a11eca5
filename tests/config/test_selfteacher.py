"""Self-distillation in a run file: what it needs, and what is refused because its teacher would know no more."""

from typing import Any

import pytest

from strop.core.algorithm import Divergence
from strop.core.errors import UsageError
from tests.loop.runs import planned

SELF: dict[str, Any] = {"algorithm.base": "self_distillation", "algorithm.terms": ["divergence(teacher=self)"]}


def terms(text: str) -> dict[str, Any]:
    return {"algorithm.base": "self_distillation", "algorithm.terms": [text]}


def test_a_self_teacher_needs_no_model_of_its_own() -> None:
    plan, _ = planned(SELF)
    assert not plan.teachers
    assert plan.stages[1].algorithm.terms == (Divergence(1.0, teacher="self"),)
    with pytest.raises(UsageError, match="a divergence needs a teacher"):
        planned(terms("divergence"))


def test_a_self_teacher_may_stand_beside_rewards() -> None:
    plan, _ = planned({"algorithm.base": "grpo", "algorithm.terms": ["divergence(0.1, forward, teacher=self)"]})
    assert plan.stages[1].name == "grpo"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {**SELF, "env": "tests.config.unsolved:silent", "world": {}},
            ["world 'silent' has no `solution`", "teacher = other"],
        ),
        ({**SELF, "stages.1.split": "hinted"}, ["tell the student the solution too", "another split"]),
        (
            {**terms("divergence(teacher=self, solution=success)"), "rollout.group_size": 1},
            ["group_size is 1", "no other member can have a success", "solution = reference"],
        ),
        (
            {**terms("divergence(solution=reference)"), "model.teacher": "."},
            ["solution = reference has no effect", "teacher = self"],
        ),
        ({**SELF, "model.teacher": "."}, ["model.teacher has no effect", "to another model"]),
        (terms("divergence(teacher=me)"), ["other, self"]),
        (terms("divergence(teacher=self, solution=own)"), ["success, reference, either"]),
    ],
)
def test_what_would_mean_nothing_is_refused_with_the_reason(changes: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        planned(changes)
    assert all(text in str(refused.value) for text in said), refused.value


def test_a_split_without_a_reference_is_refused_for_the_reference_alone() -> None:
    changes = {"env": "tests.config.unsolved:unsolved", "world": {}, "stages.0.steps": 0}
    with pytest.raises(UsageError, match="no task of split 'train' has a reference solution; use solution = success"):
        planned({**terms("divergence(teacher=self, solution=reference)"), **changes})
    for source in ("success", "either"):
        assert planned({**terms(f"divergence(teacher=self, solution={source})"), **changes})
