"""Guided members in training: what their tokens weigh, and what success rates count."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strop.core.trajectory import Origin, Row
from strop.loop.train import StepDone
from strop.watch.run_folder import RunFolder
from tests.loop.runs import start

HARD: dict[str, Any] = {"world": {"numbers": 40, "attempts": 2}, "stages.0.steps": 2, "stages.1.steps": 3}
"""Games that a model from nothing hardly ever wins."""


def ran(path: Path, changes: dict[str, Any]) -> list[StepDone]:
    return [e for e in start(path, HARD | changes) if isinstance(e, StepDone) and e.stage[1] == "reinforce"]


@pytest.mark.parametrize("base", ["grpo", "decoupled_ppo", "cispo", "gspo", "rloo", "ppo", "reinforce"])
def test_guided_tokens_never_make_a_loss_that_is_no_number(base: str, tmp_path: Path) -> None:
    terms = ["kl(0.1, k3, weighted=true)"] if base == "reinforce" else []  # no ratio, and yet weighed by who sampled
    same = {"algorithm": {"base": base, "terms": terms}, "world.skill": 1.0}
    lucky = {"world.numbers": 12, "rollout.guide": "hint(4)"}  # a hint that nobody was taught to use helps by chance
    steps = ran(tmp_path / "run", same | lucky)
    demos = ran(tmp_path / "demo", same | {"rollout.guide": "demonstration"})
    for run in (steps, demos):
        assert any(step.values.get("guided_groups") for step in run)
    for step in (*steps, *demos):
        assert step.values["skipped_updates"] == 0
        assert np.isfinite(step.values["gradient_norm"] or 0.0)


def test_success_counts_what_the_agent_did_itself_and_all_fail_groups_become_a_signal(tmp_path: Path) -> None:
    alone, helped = (
        ran(tmp_path / g, {"rollout.guide": g, "algorithm.base": "grpo"}) for g in ("none", "demonstration")
    )
    first = [steps[0].values for steps in (alone, helped)]
    for name in ("success", "episodes", "sampled_tokens", "all_fail_groups", "turns"):
        assert first[0][name] == first[1][name], name
    assert "guided_groups" not in first[0] and (first[1]["guided_groups"] or 0) > 0
    assert (first[1]["nonzero_advantage"] or 0) > (first[0]["nonzero_advantage"] or 0)
    marked = [e for e in RunFolder.open(tmp_path / "demonstration").episodes() if e.get("guided")]
    assert marked and {e["score"] for e in marked} == {1.0}
    assert not any(e.get("guided") for e in RunFolder.open(tmp_path / "none").episodes())


def test_help_works_under_lag(tmp_path: Path) -> None:
    steps = ran(tmp_path / "run", {"rollout.guide": "demonstration", "algorithm.base": "decoupled_ppo", "max_lag": 2})
    assert any(step.values.get("guided_groups") for step in steps)
    assert max(step.values["lag_max"] or 0 for step in steps) <= 2


def test_the_gradient_of_a_guided_token_is_its_advantage_without_a_weight() -> None:
    """One group by hand: a sampled token and a guided one; the guided one's ratio is around the start of the step."""
    from strop.algorithms import ALGORITHMS
    from strop.learn.annotate import Forward, columns_of
    from strop.learn.pack import count, pack
    from strop.objective.objective import Moment, loss

    def row(member: int, behaviour: float, advantage: float) -> Row:
        n = 2
        column = np.array([0.0, advantage], np.float32)
        return Row(
            np.array([3, 4], np.int32),
            np.array([False, True]),
            np.array([np.nan, behaviour], np.float32),
            np.full(n, -1, np.int32),
            np.zeros(n, np.int32),
            Origin("g", member),
            {"advantage": column, "proximal_logp": np.array([np.nan, -1.0], np.float32)},
        )

    rows = [row(0, -1.5, -0.5), row(1, np.nan, 0.5)]
    [micro] = pack(rows, 100, None, "cpu")
    logp = torch.full((2,), -1.0, requires_grad=True)
    algorithm = ALGORITHMS["grpo"]
    value, _ = loss(
        algorithm, columns_of(micro, Forward(logp, None), algorithm), count(rows, False), Moment(0.0, True, {})
    )
    value.backward()
    ratio = np.exp(0.5)
    weight = {0: 0.5 * ratio / 2, 1: -0.5 / 2}
    found = {int(micro.rows[i].origin.member): float(g) for i, g in zip(micro.places[0], logp.grad, strict=True)}  # type: ignore[arg-type]
    assert found == pytest.approx(weight, rel=1e-6)
    unknown = columns_of(micro, Forward(logp, None), algorithm)
    assert not unknown.anchor_logp.isnan().any()
