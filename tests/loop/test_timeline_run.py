"""The timeline of a real run: it has every kind, its lanes fill the time, and recording changes no bit of training."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strop.loop.assemble
from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record
from strop.core.spans import KINDS, OFF
from strop.loop.assemble import Parts, assemble
from strop.loop.train import Training
from strop.report.timeline import chosen, figures, strip
from strop.watch.run_folder import Keep, RunFolder
from strop.watch.timeline import LANES
from tests.loop.runs import differences, drive, outcome, resume, start, tables

SHORT: dict[str, Any] = {"stages.0.steps": 2, "stages.1.steps": 3}


@dataclass(frozen=True)
class Ran:
    """A short run, to its end."""

    parts: Parts
    folder: RunFolder
    records: list[dict[str, Any]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    path = tmp_path_factory.mktemp("timeline") / "run"
    resolved = resolve(tables(SHORT), {})
    plan, world = plan_of(resolved)
    keep = Keep(plan.logging.episodes_mb, plan.logging.samples, updates=plan.logging.updates)
    folder = RunFolder.create(path, run_record(resolved), keep)
    parts = assemble(plan, world)
    drive(Training(plan, parts, folder), folder, None, lambda: False)
    return Ran(parts, folder, list(folder.timeline()))


def test_every_step_is_there_once_and_every_kind_of_work_is_recorded(ran: Ran) -> None:
    assert [r["step"] for r in ran.records] == list(range(6))
    assert [r["stage"] for r in ran.records] == ["start", "warm_start", "warm_start", *["reinforce"] * 3]
    assert {kind for r in ran.records for kind in r["busy_us"]} == set(KINDS)
    for record in ran.records[3:]:
        assert set(record["busy_us"]) >= set(KINDS) - {"evaluate"}


def test_the_lanes_fill_the_time_from_step_to_step(ran: Ran) -> None:
    for before, after in itertools.pairwise(ran.records):
        assert (before["origin"], before["end"]) == (after["origin"], after["start"])
    for record in ran.records:
        for lane in LANES:
            assert sum(record["states_us"][lane].values()) == record["wall_us"]
    found = figures(ran.records)
    assert found.wall == pytest.approx(1e6 * ran.records[-1]["end"], abs=1000)
    assert found.lost == 0


def test_the_lanes_tell_what_engine_and_metrics_tell(ran: Ran) -> None:
    sampled = sum(r["busy_us"].get("engine", 0) for r in ran.records)
    assert sampled / 1e6 == pytest.approx(ran.parts.engine.counts.seconds, abs=1e-5)
    assert ran.parts.examiner.counts.seconds > 0.01  # evaluation is none of it
    for record, metrics in zip(ran.records[1:], list(ran.folder.metrics())[1:], strict=True):
        learning = record["busy_us"]["annotate"] + record["busy_us"]["update"]
        assert 0 < learning <= 1e6 * metrics["learner_seconds"] + 2
        rollout = sum(record["states_us"]["learner"].get(s, 0) for s in ("generation", "tools", "verifier", "rollout"))
        assert 0 < rollout <= 1e6 * metrics["rollout_seconds"] + 20


def test_groups_are_those_that_were_trained_and_no_other(ran: Ran) -> None:
    played: dict[int, dict[str, int]] = {}
    for episode in ran.folder.episodes():
        groups = played.setdefault(episode["step"], {})
        groups[episode["group"]] = groups.get(episode["group"], 0) + 1
    assert ran.records[0]["groups"] == []  # an evaluation
    for record in ran.records[1:]:
        assert {name: members for name, members, *_ in record["groups"]} == played[record["step"]]
        assert [name for name, *_ in record["groups"]] == list(played[record["step"]])
        for _, members, first, last, *spent in record["groups"]:
            assert record["start"] <= first <= last <= record["end"]
            assert sum(spent) == pytest.approx(members * (last - first), abs=0.001 * (members + 4))
            assert min(spent) >= 0


def test_recording_changes_no_bit_of_training(ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path / "other", SHORT | {"seed": 1})
    monkeypatch.setattr(strop.loop.assemble, "Spans", lambda: OFF)
    start(tmp_path / "silent", SHORT)
    assert list(RunFolder.open(tmp_path / "silent").timeline()) == []
    assert differences(outcome(ran.folder.path), outcome(tmp_path / "silent")) == []
    assert differences(outcome(ran.folder.path), outcome(tmp_path / "other")) != []  # negative control


def test_a_resumed_run_shows_each_step_once_and_says_where_it_was_taken_up(tmp_path: Path) -> None:
    start(tmp_path / "run", SHORT, until=3)
    folder = RunFolder.open(tmp_path / "run")
    with folder.lock():  # steps that were done after the checkpoint and are lost
        for step in (4, 5):
            folder.log_timeline(step, "lost", {"groups": [], "states_us": {}})
    assert [r["stage"] for r in folder.timeline()][-2:] == ["lost", "lost"]
    resume(tmp_path / "run")
    records = list(folder.timeline())
    assert [r["step"] for r in records] == list(range(6))
    assert "lost" not in {r["stage"] for r in records}
    assert len({r["origin"] for r in records}) == 2
    shown = strip(chosen("run", records, "0:"))
    [broken] = shown.breaks
    assert dict(shown.marks)[broken] == 4
