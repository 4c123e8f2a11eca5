"""A teacher's part of the credit: known numbers, and by enumeration the gradient that it stands for."""

from typing import Any

import numpy as np
import pytest
import torch

from strop.core.algorithm import Algorithm as Parts
from strop.core.algorithm import NoClip, NoRatio, Ratio, SampledDivergence, TokenMean, TokenRatio, WeightClip, Zero
from strop.core.metrics import values
from strop.credit.teacher import Heard, signal, teacher_metrics
from strop.model.divergence import divergence_of
from strop.objective.objective import Moment, loss
from tests.objective.batches import VECTORS, columns

V5, KNOWN = VECTORS["opd.sampled.v5"]["inputs"], VECTORS["opd.sampled.v5"]["expected"]
STUDENT, TEACHER = (
    torch.tensor(V5[f"{who}_logits"], dtype=torch.float64).log_softmax(0) for who in ("student", "teacher")
)
FULL = divergence_of("reverse", STUDENT[None], TEACHER[None]).item()


def heard() -> Heard:
    """What is said of each id of one history."""
    return Heard(STUDENT.numpy(), TEACHER.numpy(), np.full(5, FULL))


def each(term: SampledDivergence, ratio: Ratio = NoRatio()) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: B008
    """Gradient of the loss in the student's logits for each id that could have been sampled; [id, logit], and chances."""
    numbers = signal(term, heard())
    clip = NoClip() if isinstance(ratio, NoRatio) else WeightClip()
    parts = Parts(Zero(), ratio, clip, TokenMean(), "test", terms=(term,))
    out: list[torch.Tensor] = []
    for u, number in enumerate(numbers):
        logits = torch.tensor(V5["student_logits"], dtype=torch.float64, requires_grad=True)
        batch, totals = columns([[STUDENT[u].item()]], advantages=[number])
        value, _ = loss(parts, batch, totals, Moment())
        value.backward()
        assert batch.logp.grad is not None
        [grad] = torch.autograd.grad(logits.log_softmax(0)[u] * batch.logp.grad[0], logits)
        out.append(grad)
    return torch.stack(out), STUDENT.exp()


def spread(gradients: torch.Tensor, chances: torch.Tensor) -> float:
    mean = chances @ gradients
    return float((chances[:, None] * (gradients - mean) ** 2).sum())


def test_the_number_of_each_token_is_the_known_one() -> None:
    assert signal(SampledDivergence(), heard()).tolist() == pytest.approx(KNOWN["advantage_per_token"], abs=1e-9)
    assert signal(SampledDivergence(0.5), heard()).tolist() == pytest.approx(
        [a / 2 for a in KNOWN["advantage_per_token"]], abs=1e-9
    )


@pytest.mark.parametrize("ratio", [NoRatio(), TokenRatio()], ids=["reinforce", "importance"])
@pytest.mark.parametrize(
    ("baseline", "gradient", "variance"),
    [
        (False, "expected_loss_grad_logits", "total_variance"),
        (True, "expected_loss_grad_with_baseline", "total_variance_with_baseline"),
    ],
)
def test_the_expected_gradient_of_sampled_tokens_is_that_of_the_whole_divergence(
    ratio: Any, baseline: bool, gradient: str, variance: str
) -> None:
    gradients, chances = each(SampledDivergence(baseline=baseline), ratio)
    mean = (chances @ gradients).tolist()
    assert mean == pytest.approx(KNOWN[gradient], abs=1e-8)
    assert mean == pytest.approx(KNOWN["full_vocab_grad"], abs=1e-8)
    assert spread(gradients, chances) == pytest.approx(KNOWN[variance], abs=1e-8)
    bounded, _ = each(SampledDivergence(baseline=baseline, bound=0.5), ratio)
    assert (chances @ bounded).tolist() != pytest.approx(KNOWN["full_vocab_grad"], abs=1e-2)  # a bound is biased


def test_the_same_number_as_a_loss_has_no_expected_gradient() -> None:
    """log S - log T, differentiated through the sampled token: what a term that is not detached would do."""
    expected = VECTORS["opd.k1_as_loss_pitfall"]["expected"]
    gradients = torch.eye(5, dtype=torch.float64) - STUDENT.exp()
    assert gradients[0].tolist() == pytest.approx(expected["realised_grad_token0"], abs=1e-9)
    assert (STUDENT.exp() @ gradients).tolist() == pytest.approx(expected["expected_grad_k1_loss"], abs=1e-9)
    assert KNOWN["full_vocab_grad"] != pytest.approx(expected["expected_grad_k1_loss"], abs=1e-2)


def test_the_number_joins_the_credit_of_the_task_token_by_token() -> None:
    inputs, expected = VECTORS["opd.combined"]["inputs"], VECTORS["opd.combined"]["expected"]
    told = Heard(np.array(inputs["logp_student"]), np.array(inputs["logp_teacher"]))
    found = inputs["task_advantage"] + signal(SampledDivergence(inputs["coef"]), told)
    assert found.tolist() == pytest.approx(expected["advantages"], abs=1e-9)
    assert values(teacher_metrics(SampledDivergence(), [told]))["kl_teacher_k1"] == pytest.approx(
        sum(expected["reverse_kl_k1"]) / 3
    )


def test_what_the_teacher_cannot_judge_gets_nothing_and_is_counted() -> None:
    told = Heard(np.array([-1.0, np.nan, -2.0]), np.array([-3.0, np.nan, -1.0]))
    term = SampledDivergence(bound=1.5)
    assert signal(term, told).tolist() == [-1.5, 0.0, 1.0]
    found = values(teacher_metrics(term, [told]))
    assert found["teacher_silent"] == pytest.approx(1 / 3)
    assert (found["teacher_logp"], found["kl_teacher_k1"], found["teacher_bounded"]) == (-2.0, 0.5, 0.5)
    assert found["kl_teacher"] == pytest.approx((np.exp(-2) - 1 + 2 + np.exp(1) - 1 - 1) / 2)


def test_an_id_that_the_teacher_never_says_is_as_far_as_log_ratios_go() -> None:
    told = Heard(np.array([-1.0]), np.array([-np.inf]))
    assert signal(SampledDivergence(), told).tolist() == [-20.0]


def test_the_companion_of_the_sampled_divergence_is_never_negative_and_exact_where_that_is_known() -> None:
    lucky = Heard(np.array([-1.0]), np.array([-0.5]), np.array([0.25]))
    for term in (SampledDivergence(), SampledDivergence(baseline=True)):
        told = lucky if term.baseline else Heard(lucky.student, lucky.teacher)
        found = values(teacher_metrics(term, [told]))
        assert found["kl_teacher_k1"] == -0.5
        assert found["kl_teacher"] == pytest.approx(0.25 if term.baseline else np.exp(0.5) - 1.5)


@pytest.mark.parametrize("baseline", [True, False])
def test_with_ids_that_the_teacher_lacks_only_a_baseline_keeps_the_chance_of_the_others_as_it_is(
    baseline: bool,
) -> None:
    """The reason why a cut without a baseline is refused: ids beyond it get 0, the others less on average."""
    logits = torch.tensor(V5["student_logits"], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor(V5["teacher_logits"][:3], dtype=torch.float64).log_softmax(0)
    shared, whole = logits[:3].log_softmax(0), logits.log_softmax(0)
    kl = divergence_of("reverse", shared[None], teacher[None])[0]
    unknown = np.full(2, np.nan)
    student, teacher_said, known = (
        np.concatenate([x.detach().numpy(), unknown]) for x in (shared, teacher, kl.expand(3))
    )
    numbers = torch.as_tensor(signal(SampledDivergence(1.0, baseline), Heard(student, teacher_said, known)))
    [found] = torch.autograd.grad(-(whole.detach().exp() * numbers * whole).sum(), logits, retain_graph=True)
    [exact] = torch.autograd.grad(kl, logits)
    wanted = whole.detach()[:3].exp().sum() * exact
    assert torch.allclose(found, wanted, atol=1e-12) == baseline
    assert (found[3:] < -1e-3).all() != baseline  # descent raises the logits of ids that nobody judges
