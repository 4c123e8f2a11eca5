"""A served teacher through the loop: it teaches as the same one does when loaded; what it cannot give is refused."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strop.config.stored import stored_plan
from strop.core.errors import EngineLost, UsageError
from strop.engine import endpoint
from strop.loop.assemble import assemble
from strop.loop.restore import restored
from strop.loop.train import StepDone
from strop.model.policy import Policy
from strop.watch.run_folder import RunFolder
from tests.engine.served import Served, serving
from tests.loop.runs import differences, outcome, planned, resume, start

SAMPLED: dict[str, Any] = {"algorithm": {"base": "opd_sampled"}, "stages.0.steps": 0, "stages.1.lr": 0.02}
TIMELESS = ("kl_teacher", "kl_teacher_k1", "teacher_logp", "policy_loss", "gradient_norm", "success")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PAUSE", 0.0)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Policy]:
    """A run that has imitated a player who never errs, and its policy."""
    path = tmp_path_factory.mktemp("served") / "run"
    start(path, {"stages.0.steps": 30, "stages.1.steps": 0, "world.skill": 1.0})
    _, plan, world = stored_plan(RunFolder.open(path).run())
    return path, restored(plan, world, path)[0].policy


@pytest.fixture
def served(teacher: tuple[Path, Policy]) -> Served:
    return Served(teacher[1])


@pytest.fixture
def url(served: Served) -> Iterator[str]:
    with serving(served) as address:
        yield address


def values(path: Path, changes: dict[str, Any]) -> list[dict[str, float | None]]:
    return [event.values for event in start(path, changes) if isinstance(event, StepDone)]


def test_it_teaches_what_the_same_teacher_teaches_that_is_loaded(
    teacher: tuple[Path, Policy], url: str, tmp_path: Path
) -> None:
    of_files = values(tmp_path / "loaded", {**SAMPLED, "model.teacher": str(teacher[0])})
    of_url = values(tmp_path / "served", {**SAMPLED, "model.teacher": url})
    for one, other in zip(of_files, of_url, strict=True):
        assert {name: one[name] for name in TIMELESS} == pytest.approx({n: other[n] for n in TIMELESS}, abs=2e-4)
    another = values(tmp_path / "another", {**SAMPLED, "model.teacher": url, "seed": 1})
    assert another[0]["kl_teacher"] != pytest.approx(of_url[0]["kl_teacher"], abs=2e-4)


def test_every_sampled_token_is_judged_and_the_student_comes_nearer(url: str, served: Served, tmp_path: Path) -> None:
    found = values(tmp_path / "run", {**SAMPLED, "model.teacher": url, "stages.1.steps": 8})
    assert all(step["teacher_silent"] == 0 for step in found)
    assert found[-1]["kl_teacher"] < 0.7 * found[0]["kl_teacher"]  # type: ignore[operator]
    asked = [body for path, body in served.asked if path.endswith("/completions")]
    assert len(asked) == 8 * 16  # one for each row
    assert all("prompt_logprobs" in body for body in asked)


def test_it_demonstrates_and_only_what_wins_is_imitated(url: str, served: Served, tmp_path: Path) -> None:
    changes = {"model.teacher": url, "stages.0.demonstrations": "teacher", "stages.0.lr": 0.03, "stages.0.steps": 8}
    found = values(tmp_path / "run", {**changes, "stages.1.steps": 0})
    assert all(step["success"] is not None for step in found)
    assert all(step["demonstrations_kept"] == 16 for step in found)
    losses = [step["policy_loss"] for step in found]
    assert losses[-1] < losses[0]  # type: ignore[operator]
    assert not any("prompt_logprobs" in body for _, body in served.asked)


def test_a_resumed_run_goes_on_bit_for_bit_where_the_endpoint_answers_the_same(url: str, tmp_path: Path) -> None:
    changes = {**SAMPLED, "model.teacher": url, "stages.1.steps": 4, "keep.steps": 1}
    start(tmp_path / "whole", changes)
    start(tmp_path / "cut", changes, until=2)
    resume(tmp_path / "cut")
    assert differences(outcome(tmp_path / "whole"), outcome(tmp_path / "cut")) == []


def test_when_it_goes_away_the_run_ends_with_its_last_checkpoint(served: Served, url: str, tmp_path: Path) -> None:
    changes = {**SAMPLED, "model.teacher": url, "stages.1.steps": 4, "keep.steps": 1}
    honest, asked = served.spoil, []

    def leaving(answer: dict[str, Any]) -> dict[str, Any]:
        asked.append(answer)
        if len(asked) > 40:  # in the second step or later: 16 rows each
            served.broken = [503] * 10_000
        return honest(answer)

    served.spoil = leaving
    with pytest.raises(EngineLost, match="did not answer"):
        start(tmp_path / "run", changes)
    served.spoil, served.broken = honest, []
    assert resume(tmp_path / "run")[-1].step == 4  # type: ignore[union-attr]


def test_without_weight_nobody_is_asked(url: str, served: Served) -> None:
    before = len(served.asked)
    parts = assemble(
        *planned({"algorithm": {"base": "grpo", "terms": ["sampled_divergence(0)"]}, "model.teacher": url})
    )
    assert parts.endpoint is None
    assert len(served.asked) == before


def test_an_id_with_another_text_there_is_refused_by_name(url: str, served: Served) -> None:
    served.renamed = {3: "other"}
    with pytest.raises(UsageError, match=r"reads id 3 as 'other', the policy as .* serve a model of the same family"):
        assemble(*planned({**SAMPLED, "model.teacher": url}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": {"base": "on_policy_distillation"}},
            r"stages.1: divergence needs the teacher's whole distribution",
        ),
        ({"algorithm.terms": ["sampled_divergence(baseline=True)"]}, "baseline=True. needs the teacher's whole"),
        ({"rollout.temperature": 0.7}, r"temperature is 0.7, but .* at temperature 1"),
        ({"model.teacher_ids": 4}, "model.teacher_ids has no effect: the ids of http"),
        ({"model.teacher": {"easy": "http://127.0.0.1:9/v1", "*": "x"}}, "must be the only one"),
    ],
)
def test_what_an_endpoint_cannot_give_is_refused_before_it_is_asked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned({**copy.deepcopy(SAMPLED), "model.teacher": "http://127.0.0.1:9/v1", **changes})
