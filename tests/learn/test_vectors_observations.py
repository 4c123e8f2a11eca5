"""The cross-entropy on observations against known numbers: what is predicted, and what it is divided by (echo.env_ce)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from strop.core.algorithm import Observations
from strop.core.trajectory import Origin, Row
from strop.learn.annotate import Forward, columns_of
from strop.learn.pack import count, pack
from strop.objective.objective import Moment, loss
from tests.objective.batches import VECTORS, algorithm

VECTOR = VECTORS["echo.env_ce"]


def row() -> Row:
    """A start, four tokens of opening, an answer, six tokens of observation, an answer."""
    spans, names = [1, 4, 1, 6, 1], [False, False, True, False, True]
    sampled = np.repeat(names, spans)
    n = len(sampled)
    return Row(
        np.zeros(n, np.int32),
        sampled,
        np.where(sampled, -1.0, np.nan).astype(np.float32),
        np.zeros(n, np.int32),
        np.repeat([0, 0, 0, 1, 1], spans).astype(np.int32),
        Origin("train-000000", 0),
        {"advantage": sampled.astype(np.float32)},
    )


def found(select: Any, coefficient: float) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Contribution of the term, and gradients in the log-probabilities of observations and of answers."""
    parts = replace(algorithm(), terms=(Observations(coefficient, select),))
    [micro] = pack([row()], 100, parts.terms[0], torch.device("cpu"))  # type: ignore[arg-type]
    told = np.full(len(row()), -1.0)
    told[1:5], told[6:12] = VECTOR["inputs"]["obs_logp"][:4], VECTOR["inputs"]["obs_logp"][4:]
    logp = torch.tensor(told[micro.places[1]], dtype=torch.float64, requires_grad=True)
    totals = count([row()], True)
    assert totals.observations == len(VECTOR["inputs"]["obs_logp"])
    with_term, without = (
        loss(replace(parts, terms=terms), columns_of(micro, Forward(logp, None), parts), totals, Moment())[0]
        for terms in (parts.terms, ())
    )
    [grad] = torch.autograd.grad(with_term, logp)
    return with_term.item() - without.item(), grad[~micro.sampled], grad[micro.sampled]


def test_selected_observations_are_divided_by_all_of_them() -> None:
    inputs, expected = VECTOR["inputs"], VECTOR["expected"]
    contribution, observed, answers = found("answers", inputs["lam"])
    assert contribution == pytest.approx(expected["contribution"], abs=1e-9)
    assert contribution / inputs["lam"] == pytest.approx(expected["L_env"], abs=1e-9)
    assert observed.tolist() == pytest.approx(
        [g for g, s in zip(expected["grad_logp"], inputs["selected"], strict=True) if s]
    )
    assert answers.tolist() == pytest.approx([-0.5, -0.5], abs=1e-9)  # the policy's own, untouched by the term
    by_selected = expected["L_env_if_divided_by_selected"] * inputs["lam"]
    assert contribution != pytest.approx(by_selected, abs=1e-3)
    everything, _, _ = found("all", inputs["lam"])
    assert everything == pytest.approx(-inputs["lam"] * np.mean(inputs["obs_logp"]), abs=1e-9)
    assert everything != pytest.approx(contribution, abs=1e-3)
    nothing, none, _ = found("answers", 0.0)
    assert nothing == 0.0
    assert not none.any()
