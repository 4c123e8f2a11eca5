"""What a stage learns from that the policy did not play: a teacher's successes, saved episodes, a share of demonstrations."""

import copy
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from strop import run as train
from strop.core.errors import RunError, UsageError
from strop.core.seeds import draw_order
from strop.engine.local import LocalEngine
from strop.loop.assemble import assemble
from strop.loop.batch import is_shared
from strop.loop.demonstrating import Demonstrations
from strop.loop.saved import read_saved
from strop.loop.train import StepDone
from strop.watch.run_folder import RunFolder
from tests.loop.runs import planned, start, tables
from tests.loop.teaching import game, taught, written

GAMES = [game(1, [1], task="secret-1", score=1.0), game(2, [1, 2], task="secret-2", score=1.0)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught(tmp_path_factory.mktemp("teacher"))[0]


def warm(**stage: Any) -> dict[str, Any]:
    return {"stages": [{"kind": "warm_start", "steps": 3, "groups": 4, **stage}]}


def steps(path: Path, stage: str = "warm_start") -> list[Mapping[str, Any]]:
    return [record for record in RunFolder.open(path).metrics() if record["stage"] == stage]


def learned(path: Path, step: int) -> list[int]:
    return RunFolder.open(path).update(step)["row_draw"].tolist()


# --- a teacher


def test_a_teacher_plays_until_enough_of_its_games_are_won(teacher: Path, tmp_path: Path) -> None:
    start(tmp_path / "run", {**warm(demonstrations="teacher"), "model.teacher": str(teacher), "keep.updates": 9})
    folder = RunFolder.open(tmp_path / "run")
    played = list(folder.episodes())
    assert sorted(int(r["group"].removeprefix("demonstrate-")) for r in played) == list(range(len(played)))
    for record in played:
        assert record["task"] == f"secret-{draw_order(0, int(record['group'][-6:]), 4) + 1}"
        assert {v for turn in record["turns"] for v in turn["versions"]} == {-1}
        assert all(v is None for turn in record["turns"] for v in turn["logprobs"])
    assert {r["score"] for r in played} == {0.0, 1.0}
    for record in steps(tmp_path / "run"):
        mine = [r for r in played if r["step"] == record["step"]]
        won = sorted(int(r["group"][-6:]) for r in mine if r["score"] == 1)
        assert sorted(learned(tmp_path / "run", record["step"])) == won
        assert len(won) == record["demonstrations_kept"] == 4
        assert record["demonstrations_sampled"] == len(mine)
    total = sum(r["demonstrations_sampled"] for r in steps(tmp_path / "run"))
    assert total == len(played) > 12


def test_a_teacher_without_a_filter_gives_what_it_plays(teacher: Path, tmp_path: Path) -> None:
    given = {**warm(demonstrations="teacher", select="kept(-1.0)"), "model.teacher": str(teacher)}
    start(tmp_path / "run", given)
    assert len(list(RunFolder.open(tmp_path / "run").episodes())) == 12


def test_a_teacher_that_never_wins_is_an_error_with_advice(teacher: Path, tmp_path: Path) -> None:
    given = {**warm(demonstrations="teacher"), "model.teacher": str(teacher), "env": "tests.loop.hopeless:hopeless"}
    with pytest.raises(RunError) as told:
        start(tmp_path / "run", given)
    wanted = ["teacher gave nothing to learn from", "of 80 episodes none", "above 0", "the best score is 0", "select"]
    assert [text for text in wanted if text not in str(told.value)] == []


def test_each_task_is_played_by_its_own_teacher(teacher: Path, tmp_path: Path) -> None:
    by_tag = {"model.teacher": {"low": str(teacher), "*": str(teacher)}, "env": "tests.loop.tagged:tagged"}
    plan, world = planned({**warm(demonstrations="teacher"), **by_tag})
    parts = assemble(plan, world)
    again = parts.learner.models
    again.others = (copy.copy(again.others[0]),)  # told apart, though of one folder
    given = Demonstrations(parts, plan.stages[0], 0, RunFolder.create(tmp_path / "run", {}))
    for task in world.split("train"):
        engine = given._tutor(task)
        assert isinstance(engine, LocalEngine)
        assert engine.policy is again.teachers[0 if "low" in task.tags else 1]
    with pytest.raises(UsageError, match=r"model.teacher.zzz has no effect"):
        planned({**warm(demonstrations="teacher"), "model.teacher": {"zzz": str(teacher), "*": str(teacher)}})


def test_a_stage_that_asks_no_teacher_may_have_tasks_without_one(teacher: Path, tmp_path: Path) -> None:
    by_tag = {"model.teacher": {"low": str(teacher), "high": str(teacher)}, "env": "tests.loop.tagged:tagged"}
    stages = [
        {"kind": "warm_start", "steps": 1, "groups": 4, "split": "drill"},
        {"kind": "reinforce", "steps": 1, "algorithm": "opd_sampled"},
    ]
    start(tmp_path / "run", {**by_tag, "stages": stages, "algorithm": {}})
    assert [len(steps(tmp_path / "run", kind)) for kind in ("warm_start", "reinforce")] == [1, 1]
    path = written(tmp_path / "games.jsonl", GAMES)
    saved = {"kind": "warm_start", "steps": 1, "groups": 4, "algorithm": "distillation", "demonstrations": str(path)}
    with pytest.raises(UsageError, match=r"has no teacher: model\.teacher covers low, high"):
        tags = {"model.teacher": {"low": str(teacher), "high": str(teacher)}}
        strange = written(tmp_path / "strange.jsonl", [game(1, [1], task="nobody", score=1.0)])
        start(tmp_path / "saved", {**by_tag, **tags, "stages": [{**saved, "demonstrations": str(strange)}]})


def test_a_teacher_that_cannot_read_the_longest_episode_is_refused(tmp_path: Path) -> None:
    start(tmp_path / "short", {"stages.0.steps": 1, "stages.1.steps": 0, "rollout.context": 16})
    with pytest.raises(UsageError, match=r"reads 16 tokens at most, and episodes may have 32"):
        start(tmp_path / "run", {**warm(demonstrations="teacher"), "model.teacher": str(tmp_path / "short")})


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    start(tmp_path / "made", {"stages.0.steps": 1, "stages.1.steps": 0, "keep.steps": 1})
    for path, text in (
        ("made/checkpoints/step-00000999", "it has step-00000001, and best"),
        ("none", "has no checkpoint"),
    ):
        RunFolder.create(tmp_path / "none", {"config": {}}) if path == "none" else None
        with pytest.raises(UsageError, match=text):
            planned({**warm(demonstrations="teacher"), "model.teacher": str(tmp_path / path)})


def test_unscored_text_that_is_learned_from_is_no_step_without_learning(tmp_path: Path) -> None:
    path = written(tmp_path / "games.jsonl", [game(1, [1]), game(2, [1, 2])])
    found = [e for e in start(tmp_path / "run", warm(demonstrations=str(path))) if isinstance(e, StepDone)]
    assert [step.sentence for step in found] == [None] * 3


def test_self_distillation_refuses_saved_episodes_of_strange_tasks(tmp_path: Path) -> None:
    path = written(tmp_path / "games.jsonl", [game(1, [1], task="nobody", score=1.0)])
    told = {**MIXED, "stages.1.algorithm": "self_distillation", "stages.1.demonstrated": 0.5}
    with pytest.raises(UsageError, match="task nobody is none of world"):
        start(tmp_path / "run", {**told, "stages.1.demonstrations": str(path)})


def test_the_players_games_can_be_selected_too(tmp_path: Path) -> None:
    start(tmp_path / "run", {**warm(select="kept(0.0, cap=1)"), "keep.updates": 9})
    for record in steps(tmp_path / "run"):
        assert (record["demonstrations_kept"], record["demonstrations_task_max"]) == (4, 1)
    played = {r["group"]: r for r in RunFolder.open(tmp_path / "run").episodes()}
    tasks = [played[f"demonstrate-{draw:06d}"]["task"] for draw in learned(tmp_path / "run", 1)]
    assert sorted(tasks) == [f"secret-{n}" for n in range(1, 5)]


# --- saved episodes


def test_a_file_of_text_is_learned_from_in_epochs(tmp_path: Path) -> None:
    games = [*GAMES, game(3, [1], task="secret-3", score=0.0), game(4, [1], task="secret-4")]
    path = written(tmp_path / "games.jsonl", games)
    start(tmp_path / "all", warm(demonstrations=str(path)))
    start(tmp_path / "won", warm(demonstrations=str(path), select="kept"))
    for name, size in (("all", 4), ("won", 2)):
        played = list(RunFolder.open(tmp_path / name).episodes())
        assert [r["group"] for r in played] == [f"demonstrate-{n:06d}" for n in range(12)]
        for epoch in range(12 // size):
            some = {r["task"] for r in played[size * epoch : size * epoch + size]}
            assert some == {f"secret-{n}" for n in range(1, size + 1)}
        for record in steps(tmp_path / name):
            assert (record["trained_rows"], record["demonstrations_sampled"]) == (4, 4)
            assert record["demonstrations_kept"] == size
    assert steps(tmp_path / "all")[-1]["nll"] < steps(tmp_path / "all")[0]["nll"]


def test_a_file_that_gives_nothing_is_an_error_with_advice_before_the_first_step(tmp_path: Path) -> None:
    path = written(tmp_path / "games.jsonl", [game(1, [2], score=0.5), game(1, [3])])
    with pytest.raises(UsageError) as told:
        start(tmp_path / "run", warm(demonstrations=str(path), select="kept(0.5)"))
    wanted = ["games.jsonl gives nothing", "of 2 episodes none", "above 0.5", "best score is 0.5", "1 unscored"]
    assert [text for text in wanted if text not in str(told.value)] == []
    assert list(RunFolder.open(tmp_path / "run").metrics()) == []
    path.write_text("")
    with pytest.raises(UsageError, match="it holds no episode"):
        start(tmp_path / "empty", warm(demonstrations=str(path)))


def test_what_a_stage_cannot_use_is_left_out_and_counted(tmp_path: Path) -> None:
    long = game(1, [2, 2, 2, 2, 2, 2, 2, 2, 1])
    path = written(tmp_path / "games.jsonl", [GAMES[0], long])
    start(tmp_path / "run", {**warm(demonstrations=str(path)), "rollout.context": 32})
    [said] = [e for e in RunFolder.open(tmp_path / "run").events() if e.get("event") == "demonstrations"]
    assert (said["episodes"], said["left_out"]) == (1, {"longer than rollout.context": 1})


def test_a_broken_file_is_told_before_anything_is_made(tmp_path: Path) -> None:
    path = written(tmp_path / "games.jsonl", [GAMES[0], {"messages": []}])
    with pytest.raises(UsageError, match="line 2: it has no list of messages"):
        train(tables({**warm(demonstrations=str(path)), "stages.0.steps": 1}), tmp_path / "run", unaudited=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"no gzip at all", gzip.compress(b"{}" * 400)[:15]], ids=["other", "cut"])
def test_a_file_that_is_no_whole_gzip_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "games.jsonl.gz").write_bytes(content)
    with pytest.raises(UsageError, match=r"games.jsonl.gz is no whole gzip file"):
        read_saved(tmp_path / "games.jsonl.gz")
    with pytest.raises(UsageError, match="do not exist"):
        read_saved("")


def test_replies_that_the_tokenizer_cannot_say_are_left_out_and_counted(tmp_path: Path) -> None:
    strange = game(1, [1], task="secret-1", score=1.0)
    strange["messages"][1]["content"] = "one"
    path = written(tmp_path / "games.jsonl", [GAMES[1], strange])
    start(tmp_path / "run", warm(demonstrations=str(path)))
    [said] = [e for e in RunFolder.open(tmp_path / "run").events() if e.get("event") == "demonstrations"]
    assert (said["episodes"], said["left_out"]) == (1, {"with words that the tokenizer does not know": 1})


# --- a share of demonstrations

MIXED = {"stages.1.algorithm": "on_policy_distillation", "algorithm": {}, "stages.0.steps": 0}


def shares(records: Sequence[Mapping[str, Any]]) -> dict[int, list[bool]]:
    """By step, of each group whether it is a demonstration."""
    out: dict[int, dict[str, bool]] = {}
    for record in records:
        strange = {v for turn in record["turns"] for v in turn["versions"]} == {-1}
        out.setdefault(record["step"], {})[record["group"]] = strange
    return {step: list(groups.values()) for step, groups in out.items()}


@pytest.mark.parametrize("source", ["player", "teacher"])
def test_a_share_of_the_groups_are_demonstrations_of_the_same_tasks(source: str, teacher: Path, tmp_path: Path) -> None:
    given = {**MIXED, "model.teacher": str(teacher), "stages.1.demonstrated": 0.5, "stages.1.demonstrations": source}
    start(tmp_path / "run", given)
    records = list(RunFolder.open(tmp_path / "run").episodes())
    found = shares(records)
    assert [sum(groups) for groups in found.values()] == [2] * 4
    assert [x for groups in found.values() for x in groups] == [is_shared(0, n, 0.5) for n in range(16)]
    for record in records:
        draw = int(record["group"].removeprefix("train-"))
        assert record["task"] == f"secret-{draw_order(0, draw, 4) + 1}"
    for record in steps(tmp_path / "run", "reinforce"):
        assert record["demonstrated_groups"] == 0.5
        assert (record["groups"], record["episodes"]) == (2, 8)  # what is measured is what the policy played
        assert record["trained_rows"] == 16
    own = [r for r in records if r["step"] == 1 and r["turns"][0]["versions"][0] != -1]
    assert steps(tmp_path / "run", "reinforce")[0]["success"] == sum(r["score"] for r in own) / 8


def test_a_share_of_saved_episodes_has_those_of_the_drawn_task(teacher: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "games.jsonl", GAMES)
    given = {**MIXED, "model.teacher": str(teacher), "stages.1.demonstrated": 0.5, "stages.1.demonstrations": str(path)}
    start(tmp_path / "run", given)
    seen = 0
    for record in RunFolder.open(tmp_path / "run").episodes():
        if {v for turn in record["turns"] for v in turn["versions"]} == {-1}:
            drawn = f"secret-{draw_order(0, int(record['group'][-6:]), 4) + 1}"
            assert record["task"] == drawn or (drawn in ("secret-3", "secret-4") and record["score"] == 1)
            seen += 1
    assert seen == 32


def test_without_a_share_nobody_else_plays(teacher: Path, tmp_path: Path) -> None:
    start(tmp_path / "run", {**MIXED, "model.teacher": str(teacher)})
    assert [sum(groups) for groups in shares(list(RunFolder.open(tmp_path / "run").episodes())).values()] == [0] * 4
    assert "demonstrated_groups" not in steps(tmp_path / "run", "reinforce")[0]


@pytest.mark.parametrize("share", [0.1, 1 / 3, 0.5, 0.9])
def test_of_any_draws_in_a_row_the_share_are_demonstrations_give_or_take_one(share: float) -> None:
    drawn = [[is_shared(seed, n, share) for n in range(400)] for seed in range(20)]
    for some in drawn:
        for first in range(0, 300, 7):
            for count in (1, 10, 64):
                assert abs(sum(some[first : first + count]) - share * count) < 1 + 1e-9
    assert len({tuple(some) for some in drawn}) > 1  # a seed has its own
