"""Divergences over a teacher's likeliest ids, and with a cap on each id, against numbers that were made elsewhere."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.core.algorithm import Algorithm, Divergence, NoClip, NoRatio, TokenMean, Zero
from strop.model.divergence import divergence_of, entries_of, measured, measured_columns
from strop.model.likeliest import likeliest, shortened
from strop.objective.objective import Moment, loss
from tests.model.test_vectors_divergence import last_layer
from tests.objective.batches import VECTORS, columns

V5 = VECTORS["distill.divergences.v5"]["inputs"]
CAPPED = VECTORS["opsd.pointwise_clip.v5"]


def logps(**logits: list[float]) -> list[torch.Tensor]:
    return [torch.tensor([z], dtype=torch.float64).log_softmax(-1) for z in logits.values()]


STUDENT, TEACHER = logps(student=V5["student_logits"], teacher=V5["teacher_logits"])

# number of the vector: kind, whose ids, tail
CUTS: dict[str, tuple[str, Any, str]] = {
    "forward_renorm": ("forward", "teacher", "renormalised"),
    "reverse_renorm": ("reverse", "teacher", "renormalised"),
    "forward_truncated_unnormalised": ("forward", "teacher", "truncated"),
    "reverse_truncated_student_topk": ("reverse", "student", "truncated"),
    "forward_with_tail_bucket": ("forward", "teacher", "bucket"),
    "reverse_with_tail_bucket_teacher_topk": ("reverse", "teacher", "bucket"),
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("top", [2, 3])
def test_a_divergence_over_the_likeliest_ids_is_the_known_one(name: str, top: int) -> None:
    expected = VECTORS[f"opd.topk{top}.v5"]["expected"]

    def found(kind: str, whose: Any, tail: str) -> float:
        kept = likeliest(STUDENT, TEACHER, top, whose)
        return divergence_of(kind, shortened(STUDENT, kept, tail), shortened(TEACHER, kept, tail)).item()

    assert found(*CUTS[name]) == pytest.approx(expected[name], abs=1e-9)
    others = [found(*CUTS[other]) for other in CUTS if other != name]
    assert all(other != pytest.approx(expected[name], abs=1e-4) for other in others)


@pytest.mark.parametrize("top", [2, 3])
def test_the_ids_that_are_kept_are_the_known_ones(top: int) -> None:
    expected = VECTORS[f"opd.topk{top}.v5"]["expected"]
    own, theirs = sorted(expected["student_topk"]), sorted(expected["teacher_topk"])
    found = {w: likeliest(STUDENT, TEACHER, top, w)[0].nonzero().flatten().tolist() for w in ("student", "teacher")}  # type: ignore[arg-type]
    assert found == {"student": own, "teacher": theirs}
    either = likeliest(STUDENT, TEACHER, top, "either")[0].nonzero().flatten().tolist()
    assert either == sorted({*own, *theirs})
    assert (own == theirs) == (top == 2)  # so that top 3 tells the three apart


@pytest.mark.parametrize(("kind", "whose"), [("forward", "teacher"), ("reverse", "either"), ("jsd", "either")])
def test_a_term_keeps_the_teachers_ids_forward_and_those_of_both_else(kind: Any, whose: Any) -> None:
    kept = likeliest(STUDENT, TEACHER, 3, whose)
    both = [shortened(logp, kept, "bucket") for logp in (STUDENT, TEACHER)]
    found, _ = measured(Divergence(1.0, kind, top=3), STUDENT, TEACHER)
    assert found.item() == divergence_of(kind, *both).item()
    for other in {"teacher", "student", "either"} - {whose}:
        kept = likeliest(STUDENT, TEACHER, 3, other)  # type: ignore[arg-type]
        both = [shortened(logp, kept, "bucket") for logp in (STUDENT, TEACHER)]
        assert found.item() != pytest.approx(divergence_of(kind, *both).item(), abs=1e-4)


LOGITS = st.lists(st.floats(-6, 6), min_size=6, max_size=6)


@given(LOGITS, LOGITS, st.integers(1, 7), st.sampled_from(["forward", "reverse", "jsd"]))
def test_a_bucket_is_never_negative_and_never_above_the_whole(
    a: list[float], b: list[float], top: int, kind: Any
) -> None:
    student, teacher = logps(a=a, b=b)
    logits = torch.tensor([a], dtype=torch.float64, requires_grad=True)
    whole = divergence_of(kind, student, teacher).item()
    found, _ = measured(Divergence(1.0, kind, top=top), logits.log_softmax(-1), teacher)
    assert -1e-12 <= found.item() <= whole + 1e-12
    assert measured(Divergence(1.0, kind, top=top), student, student)[0].item() == pytest.approx(0, abs=1e-12)
    if top >= 6:
        assert found.item() == pytest.approx(whole, abs=1e-12)
    found.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()  # also where the union leaves nothing for the bucket


def test_a_truncated_divergence_can_be_negative_and_a_renormalised_one_forgets_the_rest() -> None:
    teacher, bolder, away = logps(t=[1.0, 0.5, -2.0, -2.0], s=[2.0, 1.5, -2.0, -2.0], w=[1.0, 0.5, 3.0, -2.0])
    for tail, sign in (("truncated", -1), ("bucket", 1)):
        value, _ = measured(Divergence(1.0, "forward", top=2, tail=tail), bolder, teacher)  # type: ignore[arg-type]
        assert value.item() * sign > 0.01
    # All mass moved to an id that the teacher does not list, in the old proportions: nothing is said against it.
    forgotten, _ = measured(Divergence(1.0, "forward", top=2, tail="renormalised"), away, teacher)
    kept, _ = measured(Divergence(1.0, "forward", top=2), away, teacher)
    assert forgotten.item() == pytest.approx(0, abs=1e-12)
    assert kept.item() > 1


def capped(cap: float | None) -> tuple[float, list[float], float | None]:
    """Value, gradient in the student's logits and share of ids bounded, through the loss."""
    inputs = CAPPED["inputs"]
    own, theirs = last_layer(inputs["student_logits"]), last_layer(inputs["teacher_logits"])
    hidden = torch.zeros(3, 1, dtype=torch.float64)
    term = Divergence(1.0, "forward", cap=cap)
    column, share = measured_columns((own, theirs), (hidden, hidden), 1.0, term, chunk=2)
    batch, totals = columns([[-1.0] * 3])
    parts = Algorithm(Zero(), NoRatio(), NoClip(), TokenMean(), "test", terms=(term,))
    value, metrics = loss(parts, replace(batch, divergence=column, divergence_capped=share), totals, Moment())
    value.backward()
    assert own.head.bias.grad is not None
    told = metrics["teacher_capped"].value if "teacher_capped" in metrics else None
    return value.item(), own.head.bias.grad.tolist(), told


def test_a_cap_on_each_id_is_the_known_one_and_can_point_away_from_the_teacher() -> None:
    inputs, expected = CAPPED["inputs"], CAPPED["expected"]
    entries = entries_of("forward", STUDENT, TEACHER)[0].tolist()
    assert entries == pytest.approx(expected["entries"], abs=1e-9)
    value, grad, share = capped(inputs["tau"])
    assert value == pytest.approx(expected["clipped"], abs=1e-9)
    assert grad == pytest.approx(expected["grad_clipped"], abs=1e-9)
    assert share == pytest.approx(2 / 5)
    whole, plain, none = capped(None)
    assert (whole, none) == (pytest.approx(expected["unclipped"], abs=1e-9), None)
    assert plain == pytest.approx(expected["grad_unclipped"], abs=1e-9)
    assert sum(a * b for a, b in zip(grad, plain, strict=True)) < 0 < value + 1  # uphill
    assert capped(10.0)[:2] == capped(None)[:2]


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_no_id_adds_less_than_nothing_to_a_mixture_so_that_a_cap_leaves_it_positive(beta: float) -> None:
    assert (entries_of("jsd", STUDENT, TEACHER, beta) >= 0).all()
    assert (entries_of("reverse", STUDENT, TEACHER) < 0).any()
    assert 0 < measured(Divergence(1.0, "jsd", beta, cap=1e-3), STUDENT, TEACHER)[0].item() <= 5e-3
