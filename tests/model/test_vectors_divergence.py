"""Divergences to a teacher against numbers that were made elsewhere, in float64 and to 1e-8.

Each is the column that training uses, made in chunks from the hidden states of two policies, under the loss's term.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strop.core.algorithm import Algorithm as Parts
from strop.core.algorithm import Divergence, NoClip, NoRatio, TokenMean, Zero
from strop.core.errors import UsageError
from strop.model.divergence import divergence_column, divergence_of, log_distribution
from strop.model.policy import Policy
from strop.objective.objective import Moment, loss
from tests.objective.batches import VECTORS, columns

TOLERANCE = 1e-8
V5 = VECTORS["distill.divergences.v5"]
SCALARS = {
    "forward_kl": ("forward", 0.5, 1.0),
    "reverse_kl": ("reverse", 0.5, 1.0),
    "jsd_01": ("jsd", 0.1, 1.0),
    "jsd_05": ("jsd", 0.5, 1.0),
    "jsd_09": ("jsd", 0.9, 1.0),
    "jsd_05_T2": ("jsd", 0.5, 2.0),
}
GRADIENTS = {"grad_forward": "forward", "grad_reverse": "reverse", "grad_jsd05": "jsd"}


def last_layer(logits: Sequence[float]) -> Policy:
    """A policy that gives these logits, whatever it sees."""
    head = torch.nn.Linear(1, len(logits), dtype=torch.float64)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor(logits, dtype=torch.float64))
    model: Any = SimpleNamespace(get_output_embeddings=lambda: head)
    tokenizer: Any = None
    return Policy(model, tokenizer, len(logits))


def divergence(
    student: Sequence[float], teacher: Sequence[float], kind: str, beta: float = 0.5, temperature: float = 1.0
) -> tuple[float, torch.Tensor, torch.Tensor | None]:
    """Value, gradient in the student's logits and in the teacher's, through the column that training uses.

    Three positions of the same pair of distributions; their mean.
    """
    own, theirs = last_layer(student), last_layer(teacher)
    hidden = torch.zeros(3, 1, dtype=torch.float64)
    column = divergence_column((own, theirs), (hidden, hidden), temperature, kind, beta, chunk=2)
    batch, totals = columns([[-1.0] * 3])
    term = Divergence(1.0, kind, beta)  # type: ignore[arg-type]
    parts = Parts(Zero(), NoRatio(), NoClip(), TokenMean(), "test", terms=(term,))
    value, metrics = loss(parts, replace(batch, divergence=column), totals, Moment())
    assert metrics["teacher_divergence"].value == pytest.approx(value.item(), abs=1e-12)
    value.backward()
    assert own.head.bias.grad is not None
    return value.item(), own.head.bias.grad, theirs.head.bias.grad


@pytest.mark.parametrize("name", SCALARS)
def test_divergences_are_the_known_ones(name: str) -> None:
    inputs, expected = V5["inputs"], V5["expected"]
    kind, beta, temperature = SCALARS[name]
    value, _, teacher = divergence(inputs["student_logits"], inputs["teacher_logits"], kind, beta, temperature)
    assert value == pytest.approx(expected[name], abs=TOLERANCE)
    assert teacher is None  # nothing flows to it
    others = [other for other in SCALARS if other != name]
    assert all(value != pytest.approx(expected[other], abs=1e-4) for other in others)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_divergences_are_the_known_ones(name: str) -> None:
    inputs, expected = V5["inputs"], V5["expected"]
    _, grad, _ = divergence(inputs["student_logits"], inputs["teacher_logits"], GRADIENTS[name])
    assert grad.tolist() == pytest.approx(expected[name], abs=TOLERANCE)
    for other in GRADIENTS:
        assert (grad.tolist() == pytest.approx(expected[other], abs=1e-4)) == (other == name)


def test_the_gradient_of_the_forward_divergence_is_the_difference_of_probabilities() -> None:
    inputs = V5["inputs"]
    _, grad, _ = divergence(inputs["student_logits"], inputs["teacher_logits"], "forward")
    p, q = (torch.tensor(inputs[f"{who}_logits"], dtype=torch.float64).softmax(0) for who in ("student", "teacher"))
    assert torch.allclose(grad, p - q, atol=1e-12)
    assert not torch.allclose(grad, q - p, atol=1e-2)


@pytest.mark.parametrize(
    ("beta", "share", "known", "limit"),
    [(1e-6, 1e-6, "limit_beta0", "forward_kl"), (1 - 1e-6, 1e-6, "limit_beta1", "reverse_kl")],
)
def test_the_mixture_goes_over_into_both_directions(beta: float, share: float, known: str, limit: str) -> None:
    inputs, expected = V5["inputs"], V5["expected"]
    value, _, _ = divergence(inputs["student_logits"], inputs["teacher_logits"], "jsd", beta)
    assert value / share == pytest.approx(expected[known], abs=1e-8)
    assert value / share == pytest.approx(expected[limit], abs=1e-5)
    other = "reverse_kl" if limit == "forward_kl" else "forward_kl"
    assert value / share != pytest.approx(expected[other], abs=1e-2)


def test_the_ends_of_the_mixture_are_refused() -> None:
    flat = torch.zeros(1, 2, dtype=torch.float64)
    for beta in (0.0, 1.0):
        with pytest.raises(UsageError, match="Use forward or reverse"):
            divergence_of("jsd", flat, flat, beta)


def test_the_lectures_divergence_is_the_reverse_one() -> None:
    inputs, expected = VECTORS["distill.seed.0223"]["inputs"], VECTORS["distill.seed.0223"]["expected"]
    student, teacher = (torch.tensor(inputs[w], dtype=torch.float64).log().tolist() for w in ("student", "teacher"))
    value, grad, _ = divergence(student, teacher, "reverse")
    assert value == pytest.approx(expected["reverse_kl"], abs=TOLERANCE)
    assert grad.tolist() == pytest.approx(expected["grad_reverse_logits"], abs=TOLERANCE)
    forward, other, _ = divergence(student, teacher, "forward")
    assert forward == pytest.approx(expected["forward_kl"], abs=TOLERANCE)
    assert other.tolist() != pytest.approx(expected["grad_reverse_logits"], abs=1e-3)


@pytest.mark.parametrize("kind", ["forward", "reverse"])
def test_an_id_that_cannot_come_adds_nothing(kind: Any) -> None:
    inputs = V5["inputs"]
    student, teacher = (torch.tensor([inputs[f"{who}_logits"]], dtype=torch.float64) for who in ("student", "teacher"))
    bare = divergence_of(kind, student.log_softmax(-1), teacher.log_softmax(-1))
    never = torch.full((1, 1), -torch.inf, dtype=torch.float64)
    both = [torch.cat([z, never], -1).log_softmax(-1) for z in (student, teacher)]
    assert divergence_of(kind, *both).tolist() == pytest.approx(bare.tolist(), abs=1e-12)
    assert not torch.isfinite((both[0].exp() * (both[0] - both[1])).sum())  # 0 times infinity, if it were not left out
    # an id that the teacher says and the student cannot: only the direction that asks the teacher is infinite
    wider = torch.cat([teacher, torch.zeros(1, 1, dtype=torch.float64)], -1).log_softmax(-1)
    assert torch.isinf(divergence_of(kind, both[0], wider)).all() == (kind == "forward")


def test_both_policies_are_taken_at_the_same_temperature() -> None:
    z = torch.tensor(V5["inputs"]["student_logits"], dtype=torch.float64)
    policy = last_layer(z.tolist())
    hidden = torch.zeros(1, 1, dtype=torch.float64)
    for temperature in (0.5, 1.0, 2.0):
        found = log_distribution(policy, hidden, temperature)[0]
        assert torch.allclose(found, (z / temperature).log_softmax(0), atol=1e-12)
    value, grad, _ = divergence(z.tolist(), z.tolist(), "jsd", 0.3, 2.0)
    assert value == pytest.approx(0.0, abs=1e-15)
    assert grad.abs().max() < 1e-15
