"""What an update did is told from what was recorded, and it is what the learner did."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strop.algorithms import ALGORITHMS
from strop.config.stored import stored_plan
from strop.core.errors import UsageError
from strop.loop.explain import compared, distance, explained, gradients, shares
from strop.loop.plan import Plan
from strop.loop.replay import Recorded, recorded, sampled_only
from strop.loop.restore import restored
from strop.watch.run_folder import RunFolder
from tests.loop.runs import start

STALE = {
    "world.numbers": 8,
    "world.attempts": 3,
    "rollout.turns": 3,
    "rollout.turn_tokens": 3,
    "rollout.tokens": 9,
    "rollout.context": 48,
    "algorithm": {"base": "grpo"},
    "learner.lr": 0.02,
    "stages.0.lr": 0.02,
    "stages.1.publish_every": 4,
    "stages.1.minibatches": 4,
    "stages.0.minibatches": 1,
    "keep.updates": 8,
    "evaluate.every": 0,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Plan, Path]:
    path = tmp_path_factory.mktemp("explain") / "run"
    start(path, STALE)
    folder = RunFolder.open(path)
    return folder, stored_plan(folder.run())[1], path


@pytest.fixture
def step(run: tuple[RunFolder, Plan, Path]) -> Callable[[int | None], Recorded]:
    return lambda number: recorded(run[0], run[1], number)


def test_the_recorded_weights_are_those_of_the_loss_worked_out_by_hand(step: Callable[[int | None], Recorded]) -> None:
    """One update a batch at the last step would do: here four, so each token's weight is of the update that held it."""
    found = step(8)
    views = explained(found.stage.algorithm, found.rows)
    assert len(views) == sum(row.trained for row in found.rows)
    per_minibatch = found.stage.groups * found.stage.group_size // 4
    moved = 0
    for view in views:
        r = math.exp(view.current - view.behaviour)
        assert math.isclose(view.ratio, r, rel_tol=1e-4)
        tokens = sum(row.trained for row in found.rows if row.origin == view.row.origin)
        stopped = (view.advantage > 0 and r > 1.2) or (view.advantage < 0 and r < 0.8)
        assert view.clipped == (stopped and view.advantage != 0)
        by_hand = 0.0 if stopped else -view.advantage * r / (per_minibatch * tokens)
        assert math.isclose(view.weight, by_hand, rel_tol=1e-3, abs_tol=1e-7)
        moved += abs(r - 1) > 0.01
    assert moved > 10  # negative control: at ratio 1 nothing above could tell a ratio from none
    assert any(view.clipped for view in views)


def test_shares_add_up_to_one_and_rank_by_weight(step: Callable[[int | None], Recorded]) -> None:
    ranked = shares(step(8).rows)
    assert math.isclose(sum(share for _, _, share in ranked), 1.0)
    assert [share for _, _, share in ranked] == sorted((share for _, _, share in ranked), reverse=True)


def test_the_same_batch_under_every_row_differs_where_the_rows_do(
    run: tuple[RunFolder, Plan, Path], step: Callable[[int | None], Recorded]
) -> None:
    found = step(8)
    table = {"grpo": ALGORITHMS["grpo"], **{n: a.within(9.0) for n, a in ALGORITHMS.items()}}
    by_name = {c.name: c for c in compared(table, found.rows, found.groups)}
    assert {"grpo", "gspo", "ctpo", "ppo", "vine_ppo", "decoupled_ppo"} <= set(by_name)
    far = {name: distance(c.weights, by_name["grpo"].weights) for name, c in by_name.items()}
    assert far["grpo"] == 0
    for name in ("gspo", "ctpo", "cispo", "turn_ppo", "full_ratio", "reinforce"):
        assert far[name] > 0.01, name
    assert by_name["grpo"].clipped > 0
    assert by_name["group_reinforce"].clipped == 0
    # The recorded row is among them: its token weights are those of the whole batch as one update.
    mean = {c.name: float(np.abs(c.weights).sum()) for c in by_name.values()}
    assert mean["grpo"] > 0


def test_gradients_of_equal_weights_are_parallel_and_of_others_not(
    run: tuple[RunFolder, Plan, Path], step: Callable[[int | None], Recorded]
) -> None:
    found = step(8)
    names = ("grpo", "dr_grpo", "rloo", "full_ratio")
    table = {name: ALGORITHMS[name].within(9.0) for name in names}
    comparisons = compared(table, found.rows, found.groups)
    parts, _ = restored(run[1], stored_plan(run[0].run())[2], run[2])
    cosines, variances = gradients(parts.policy, found.rows, comparisons, 1.0)
    assert math.isclose(cosines[0], 1.0, abs_tol=1e-5)
    assert all(-1.001 <= c < 0.9999 for c in cosines[1:])
    assert (variances > 0).all()


def test_a_step_that_is_not_kept_is_refused_with_those_that_are(step: Callable[[int | None], Recorded]) -> None:
    assert step(None).step == 8
    with pytest.raises(UsageError, match=r"step 99 are not kept \(kept: 1, 2"):
        step(99)


def test_demonstrations_are_compared_by_no_ratio(step: Callable[[int | None], Recorded]) -> None:
    found = step(7)
    assert sampled_only(found) == found
    strange = found.groups[0].id
    blank = [
        replace(row, behaviour_logp=np.full(len(row), np.nan, np.float32)) if row.origin.group == strange else row
        for row in found.rows
    ]
    left = sampled_only(replace(found, rows=blank))
    assert [g.id for g in left.groups] == [g.id for g in found.groups[1:]]
    assert left.rows == [row for row in found.rows if row.origin.group != strange]
    with pytest.raises(UsageError, match="demonstrations only"):
        sampled_only(replace(found, rows=[row for row in blank if row.origin.group == strange]))


def test_the_episodes_of_a_recorded_step_are_the_groups_of_its_rows(step: Callable[[int | None], Recorded]) -> None:
    found = step(7)
    assert {g.id for g in found.groups} == {row.origin.group for row in found.rows}
    for group in found.groups:
        for member, trajectory in enumerate(group.trajectories):
            rows = [r for r in found.rows if r.origin.group == group.id and r.origin.member == member]
            assert sum(row.trained for row in rows) == trajectory.sampled_tokens
