"""What teachers say of rows: each of its own rows, over the ids that it shares, at the tokens that were sampled."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from strop.core.algorithm import (
    Algorithm,
    Divergence,
    NoClip,
    Observations,
    SampledDivergence,
    TokenMean,
    TokenRatio,
    Zero,
)
from strop.core.trajectory import Row
from strop.learn.annotate import columns_of, forward
from strop.learn.learner import LocalLearner
from strop.learn.pack import count, pack
from strop.learn.schedule import Optimisation
from strop.learn.teachers import TEACHER
from strop.model.policy import Policy
from strop.objective.objective import Moment, loss
from tests.learn.rows import equal, fresh, some_rows, tiny_policy, weights
from tests.objective.batches import TABLE

SAID = ["student_logp", "teacher_logp", "teacher_kl"]
DIVERGENCE = replace(TABLE["on_policy_distillation"], terms=(Divergence(),))


def two_teachers() -> tuple[Policy, Policy]:
    return tiny_policy(seed=5, width=24), tiny_policy(seed=9)


def begun(algorithm: Algorithm, *teachers: Policy, temperature: float = 1.0, **settings: float) -> LocalLearner:
    learner = LocalLearner(tiny_policy(), temperature, 0, teachers[0] if teachers else None, (), teachers[1:])
    learner.begin(algorithm, Optimisation(**settings), 1)  # type: ignore[arg-type]
    return learner


def addressed(rows: list[Row], numbers: list[int]) -> list[Row]:
    """Rows whose group says which teacher they ask."""
    return [
        row.with_columns(**{TEACHER: np.full(len(row), numbers[int(row.origin.group[-1])], dtype=np.int32)})
        for row in rows
    ]


def divergence(learner: LocalLearner, rows: list[Row], budget: int = 10_000) -> dict[tuple[int, int, int], float]:
    """Divergence by row and token."""
    out: dict[tuple[int, int, int], float] = {}
    for micro in pack(rows, budget, None, learner.policy.device):
        found = forward(learner.models, micro, learner.wanted, learner.temperature).divergence
        assert found is not None
        for value, row, place in zip(found.tolist(), *micro.places, strict=True):
            origin = micro.rows[int(row)].origin
            out[int(origin.group[-1]), 10 * origin.member + origin.part, int(place)] = value
    return out


@contextmanager
def counted(policy: Policy) -> Iterator[list[int]]:
    """Counts the forward passes of a model."""
    calls: list[int] = []
    hook = policy.model.base_model.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[operator]
    yield calls
    hook.remove()


@pytest.mark.parametrize("budget", [10_000, 40])
def test_each_row_is_judged_by_the_teacher_that_it_names(budget: int) -> None:
    first, second = two_teachers()
    rows = some_rows(tiny_policy())
    numbers = [1, 0, 1]
    both = divergence(begun(DIVERGENCE, first, second), addressed(rows, numbers), budget)
    alone = [divergence(begun(DIVERGENCE, teacher), rows) for teacher in (first, second)]
    for key, value in both.items():
        assert value == pytest.approx(alone[numbers[key[0]]][key], abs=1e-6)
        assert value != pytest.approx(alone[1 - numbers[key[0]]][key], abs=1e-4)


def test_what_teachers_say_of_sampled_tokens_is_what_each_says_alone_and_nan_elsewhere() -> None:
    first, second = two_teachers()
    rows = some_rows(tiny_policy())
    numbers = [1, 0, 1]
    both = begun(DIVERGENCE, first, second).annotate(addressed(rows, numbers), SAID)
    alone = [begun(DIVERGENCE, teacher).annotate(rows, [*SAID, "logp"]) for teacher in (first, second)]
    for index, row in enumerate(both):
        own = alone[numbers[int(row.origin.group[-1])]][index]
        assert np.array_equal(own.columns["student_logp"], own.columns["logp"], equal_nan=True)
        for name in SAID:
            assert np.allclose(row.columns[name], own.columns[name], atol=1e-6, equal_nan=True)
            assert np.isnan(row.columns[name][~row.sampled]).all()
    assert not np.allclose(alone[0][0].columns["teacher_logp"], alone[1][0].columns["teacher_logp"], equal_nan=True)


def test_a_teacher_that_no_row_names_is_not_asked() -> None:
    first, second = two_teachers()
    learner = begun(DIVERGENCE, first, second)
    with counted(first) as of_first, counted(second) as of_second:
        divergence(learner, addressed(some_rows(learner.policy), [1, 1, 1]))
    assert (len(of_first), len(of_second)) == (0, 1)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_teacher_reads_the_same_ids_at_the_temperature_of_sampling(temperature: float) -> None:
    """Row by row, against logits of the teacher alone: no shift, whatever stands beside the row."""
    teacher = two_teachers()[0]
    learner = begun(DIVERGENCE, teacher, temperature=temperature)
    [[short, *_], [long, *_]] = some_rows(learner.policy, seed=1), some_rows(learner.policy, seed=2)
    for row in learner.annotate([short, replace(long, origin=replace(long.origin, group="train-000007"))], SAID):
        ids = torch.as_tensor(row.tokens, dtype=torch.int64)
        teacher.model.set_attn_implementation("eager")
        with torch.no_grad():
            logits = teacher.model(input_ids=ids[None], use_cache=False).logits[0, :, : teacher.vocabulary]
        right = (logits / temperature).log_softmax(-1)
        places = np.flatnonzero(row.sampled)
        expected = [right[p - 1, ids[p]].item() for p in places]
        assert row.columns["teacher_logp"][places].tolist() == pytest.approx(expected, abs=1e-4)
        late = [right[min(p, len(ids) - 1), ids[p]].item() for p in places]
        assert late != pytest.approx(expected, abs=1e-2)
        teacher.model.set_attn_implementation("strop")


@pytest.mark.parametrize("term", [Divergence(0.0), SampledDivergence(0.0)])
def test_a_coefficient_of_0_asks_no_teacher(term: Divergence | SampledDivergence) -> None:
    teacher = two_teachers()[0]
    weightless = replace(TABLE["grpo"], terms=(term,))
    for algorithm, calls in ((weightless, 0), (replace(TABLE["grpo"], terms=(replace(term, coefficient=1.0),)), 1)):
        learner = begun(algorithm, teacher, lr=1e-3)
        with counted(teacher) as found:
            rows = learner.annotate(some_rows(learner.policy), SAID if learner.wanted.sampled_divergence else ["logp"])
            learner.step(fresh(learner, rows))
        assert len(found) == calls
    assert not weightless.taught
    begun(weightless, lr=1e-3)  # and none has to be there


def test_a_teacher_stays_as_it_is() -> None:
    teachers = two_teachers()
    before = [weights(teacher) for teacher in teachers]
    learner = begun(DIVERGENCE, *teachers, lr=0.1)
    student = weights(learner.policy)
    for _ in range(3):
        learner.step(fresh(learner, addressed(some_rows(learner.policy), [0, 1, 0])))
    assert all(equal(w, weights(teacher)) for w, teacher in zip(before, teachers, strict=True))
    assert all(p.grad is None for teacher in teachers for p in teacher.model.parameters())
    assert not equal(student, weights(learner.policy))


# --- fewer ids


def test_a_cut_compares_both_over_the_shared_ids_and_renormalises_both() -> None:
    teacher = tiny_policy(seed=5)
    cut = teacher.vocabulary - 3
    learner = begun(DIVERGENCE, replace(teacher, vocabulary=cut))
    rows = [replace(row, tokens=row.tokens % cut) for row in some_rows(learner.policy)]
    for row in learner.annotate(rows, [*SAID, "logp"]):
        ids = torch.as_tensor(row.tokens, dtype=torch.int64)
        own, theirs = (whole(policy, ids) for policy in (learner.policy, teacher))
        p, q = own[:, :cut].log_softmax(-1), theirs[:, :cut].log_softmax(-1)
        for place in np.flatnonzero(row.sampled):
            expected = (p[place - 1, ids[place]], q[place - 1, ids[place]], (p.exp() * (p - q)).sum(-1)[place - 1])
            assert [row.columns[name][place] for name in SAID] == pytest.approx([float(x) for x in expected], abs=1e-4)
            assert row.columns["student_logp"][place] > row.columns["logp"][place]  # over fewer ids


def whole(policy: Policy, ids: torch.Tensor) -> torch.Tensor:
    """Logits of a whole row by the model's own forward."""
    policy.model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = policy.model(input_ids=ids[None], use_cache=False).logits[0]
    policy.model.set_attn_implementation("strop")
    return logits


def test_what_follows_an_id_that_the_teacher_does_not_know_is_not_judged() -> None:
    teacher = tiny_policy(seed=5)
    cut = teacher.vocabulary - 3
    learner = begun(DIVERGENCE, replace(teacher, vocabulary=cut))
    rows = [replace(row, tokens=row.tokens % cut) for row in some_rows(learner.policy)]
    clean = learner.annotate(rows, SAID)
    spoilt, rest = rows[0], rows[1:]
    unknown = int(np.flatnonzero(spoilt.sampled)[1])
    tokens = spoilt.tokens.copy()
    tokens[unknown] = cut + 1
    spoilt = replace(spoilt, tokens=tokens)
    [found, *others] = learner.annotate([spoilt, *rest], SAID)
    judged = ~np.isnan(found.columns["teacher_logp"])
    assert judged.tolist() == (spoilt.sampled & (np.arange(len(spoilt)) < unknown)).tolist()
    assert np.allclose(found.columns["teacher_logp"][judged], clean[0].columns["teacher_logp"][judged], atol=1e-6)
    for a, b in zip(others, clean[1:], strict=True):
        assert np.allclose(a.columns["teacher_kl"], b.columns["teacher_kl"], atol=1e-6, equal_nan=True)
    # In the loss the histories up to the unknown id are judged, the token itself too, and the rest is counted.
    ready = fresh(learner, [spoilt, *rest])
    silent = int(spoilt.sampled[unknown + 1 :].sum())
    metrics = learner.step(ready).metrics
    assert metrics["teacher_silent"].value == pytest.approx(silent / count(ready, False).tokens)
    assert learner.step(fresh(learner, rows)).metrics["teacher_silent"].value == 0


# --- masks


def test_what_a_teacher_says_at_masked_tokens_changes_nothing() -> None:
    """Observations asked for by another term stand between the sampled tokens; garbage there reaches neither loss."""
    learner = begun(replace(DIVERGENCE, terms=(Divergence(cap=0.1),)), two_teachers()[0])
    rows = fresh(learner, some_rows(learner.policy))
    [micro] = pack(rows, 10_000, Observations(1.0), learner.policy.device)
    assert learner.algorithm is not None
    out = forward(learner.models, micro, learner.wanted, 1.0)
    clean = columns_of(micro, out, learner.algorithm)
    assert clean.divergence is not None
    assert clean.divergence_capped is not None
    totals = count(rows, True)
    right, metrics = loss(learner.algorithm, clean, totals, Moment())
    for garbage in (1e3, -1e3):
        masked, sampled = (
            replace(
                clean,
                divergence=clean.divergence.masked_fill(where, garbage),
                divergence_capped=clean.divergence_capped.masked_fill(where, garbage),
            )
            for where in (~micro.sampled, micro.sampled)
        )
        value, told = loss(learner.algorithm, masked, totals, Moment())
        assert (value.item(), told) == (right.item(), metrics)
        assert loss(learner.algorithm, sampled, totals, Moment())[0].item() != right.item()


def test_sampled_distillation_is_a_row_of_ratio_and_credit_like_any_other() -> None:
    row = TABLE["opd_sampled"]
    assert (row.credit, row.ratio, row.clip, row.aggregate) == (Zero(), TokenRatio(), NoClip(), TokenMean())
    assert row.credited
    assert not TABLE["on_policy_distillation"].credited
