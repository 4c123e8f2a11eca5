"""Worlds by name: what is wrong is told with its name, the nearest known one and what to do."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.task import Env, Task, Verdict
from strop.core.trajectory import Completion, Trajectory, Turn
from strop.core.world import World
from strop.envs.catalogue import world

MODULE = """
from strop.core.task import Env, Task, Verdict
from strop.core.world import World

def judge(task, trajectory):
    return Verdict(1.0)

ready = World("ready", {"train": [Task("a")]}, env=lambda task, seed: Env(), verify=judge)

def made(size: int = 1, name: str = "made", share: float = 0.5, loud: bool = False, *, must: int = 3):
    return World(name, {"train": [Task(str(n)) for n in range(size)]}, env=lambda task, seed: Env(), verify=judge)

def needs(path):
    return made()

def wrong():
    return 7

number = 7

def half(reply, line):
    return 0.5

async def later(reply, line):
    return 1.0 if reply == line["answer"] else 0.0
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's in the working directory, as `strop train` finds it."""
    (tmp_path / "ownworlds.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("ownworlds", None)


def test_names_and_attributes_give_worlds() -> None:
    assert len(world("guess", {"numbers": 5}).tasks["train"]) == 5
    assert world("ownworlds:ready", {}).name == "ready"
    assert len(world("ownworlds:made", {"size": 3}).tasks["train"]) == 3
    assert world("ownworlds:made", {"share": 1}).name == "made"  # a whole number is a number


@pytest.mark.parametrize(
    ("name", "options", "texts"),
    [
        ("gues", {}, ["'gues' is unknown", "did you mean 'guess'", "module:attribute"]),
        ("zork", {}, ["'zork' is unknown", "known: guess, jsonl"]),
        ("nosuchmodule:world", {}, ["cannot import 'nosuchmodule'", "run from its folder or install it"]),
        ("ownworlds:absent", {}, ["module 'ownworlds' has no attribute 'absent'"]),
        ("ownworlds:number", {}, ["must be a World or a function", "not int"]),
        ("ownworlds:wrong", {}, ["returned int", "must return a World"]),
        ("ownworlds:needs", {}, ["needs world.path", "[world]"]),
        ("ownworlds:ready", {"size": 3}, ["takes no options", "size"]),
        ("guess", {"number": 3}, ["world.number is no option", "did you mean 'numbers'"]),
        ("guess", {"numbers": "16"}, ["world.numbers is '16'", "type int"]),
        ("guess", {"numbers": 16.0}, ["world.numbers is 16.0", "type int"]),
        ("guess", {"numbers": True}, ["world.numbers is True", "type int"]),
        ("guess", {"skill": "much"}, ["world.skill is 'much'", "type float"]),
        ("ownworlds:made", {"loud": 1}, ["world.loud is 1", "type bool"]),
        ("ownworlds:made", {"name": 1}, ["world.name is 1", "type str"]),
        ("guess", {"attempts": 0}, ["attempts is 0", "at least 1"]),
        ("jsonl", {}, ["needs world.file"]),
        ("jsonl", {"file": "absent.jsonl"}, ["absent.jsonl does not exist", "world.file"]),
        (":x", {}, ["':x'"]),
        ("ownworlds:", {}, ["'ownworlds:'"]),
    ],
)
def test_a_wrong_name_or_option_is_told_in_words(name: str, options: dict[str, object], texts: list[str]) -> None:
    with pytest.raises(UsageError) as told:
        world(name, options)
    assert [text for text in texts if text not in str(told.value)] == []
    assert "\n" not in str(told.value)


# --- files of prompts


def jsonl(tmp_path: Path, content: str | bytes, **options: object) -> World:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return world("jsonl", {"file": str(path), **options})


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', ["line 2", "not JSON"]),
        ('{"prompt": "a"}\n["b"]\n', ["line 2", "key 'prompt'"]),
        ('{"question": "a"}\n', ["line 1", "key 'prompt'"]),
        ('{"prompt": 7}\n', ["line 1", "'prompt' must be text or a list"]),
        ('{"prompt": [{"role": "user"}]}\n', ["line 1", "'prompt' must be text or a list"]),
        ('{"prompt": ["hello"]}\n', ["line 1", "'prompt' must be text or a list"]),
        ('{"prompt": []}\n', ["line 1", "'prompt'"]),
        ('{"prompt": {"role": "user"}}\n', ["line 1", "'prompt' must be text or a list"]),
        ('{"prompt": "a", "id": "x"}\n\n{"prompt": "b", "id": "x"}\n', ["line 3", "'x' stands twice"]),
        ('{"prompt": "a", "id": "line-2"}\n{"prompt": "b"}\n', ["line 2", "'line-2' stands twice"]),
        (b'{"prompt": "\xff"}\n', ["prompts.jsonl", "UTF-8"]),
    ],
)
def test_a_broken_line_is_named_before_anything_is_trained(
    content: str | bytes, texts: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as told:
        jsonl(tmp_path, content)
    assert [text for text in texts if text not in str(told.value)] == []


@pytest.mark.parametrize("content", ["", "\n  \n", '{"prompt": "a", "split": "eval"}\n'])
def test_a_file_without_training_tasks_says_which_splits_there_are(content: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tasks in split 'train'; splits with tasks: (none|eval)"):
        jsonl(tmp_path, content).split("train")


def test_separators_that_json_allows_inside_text_do_not_end_a_line(tmp_path: Path) -> None:
    made = jsonl(tmp_path, '{"prompt": "a\u2028b\u0085c", "answer": "x"}\n{"prompt": "d", "answer": "y"}\n')
    assert [task.data["prompt"] for task in made.tasks["train"]] == ["a\u2028b\u0085c", "d"]


def answered(made: World, task: Task, reply: str) -> Verdict:
    nothing = np.zeros(0, np.int32)
    turn = Turn(nothing, Completion(nothing, np.zeros(0, np.float32), nothing, "stop"), Message("assistant", reply))
    found = made.verify(task, Trajectory(task, (turn,), nothing, "done", ()))

    async def wait() -> Verdict:
        return found if isinstance(found, Verdict) else await found

    return asyncio.run(wait())


LINE = (
    '{"prompt": "2+2", "answer": 4, "id": "sum", "split": "train"}\n{"prompt": "3", "answer": "x", "split": "eval"}\n'
)


@pytest.mark.parametrize(
    ("reward", "reply", "score"),
    [
        ("exact", " 4\n", 1.0),
        ("exact", "44", 0.0),
        ("contains", "it is 44", 1.0),
        ("contains", "five", 0.0),
        ("ownworlds:half", "?", 0.5),
        ("ownworlds:later", "4", 0.0),  # the line says 4, not "4"
    ],
)
def test_rewards_by_name_judge_replies(reward: str, reply: str, score: float, tmp_path: Path) -> None:
    made = jsonl(tmp_path, LINE, reward=reward)
    assert [t.id for t in made.split("train")] == ["sum"]
    assert [t.id for t in made.split("eval")] == ["line-2"]
    assert answered(made, made.split("train")[0], reply).score == score


def test_an_unknown_reward_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"reward 'exac' is unknown; did you mean 'exact'"):
        jsonl(tmp_path, LINE, reward="exac")
    with pytest.raises(UsageError, match=r"must be a function of \(reply, line\), not int"):
        jsonl(tmp_path, LINE, reward="ownworlds:number")


def test_a_line_without_an_answer_is_told_when_the_reward_needs_one(tmp_path: Path) -> None:
    """The verdict is invalid, never 0 (see tests/rollout): the reward function raises."""
    made = jsonl(tmp_path, '{"prompt": "a"}\n')
    with pytest.raises(KeyError):
        answered(made, made.split("train")[0], "b")


def test_messages_of_a_prompt_are_kept(tmp_path: Path) -> None:
    text = '{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "answer": 1}\n'
    made = jsonl(tmp_path, text)
    step = asyncio.run(made.env(made.split("train")[0], 0).start())
    assert step.messages == (Message("system", "Be brief."), Message("user", "Hi"))
    assert isinstance(made.env(made.split("train")[0], 0), Env)
