"""Episodes that somebody saved: what is read, how it becomes ids, and how a line that cannot be read is named."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.codec.chat import ChatCodec
from strop.core.errors import UsageError
from strop.core.source import ModelSource
from strop.envs.guess import guess
from strop.loop.saved import read_saved
from strop.model.load import load
from strop.rollout.rows import rows_of
from strop.teach.saved import encoded
from strop.watch.records import trajectory_from_record
from strop.watch.run_folder import RunFolder
from tests.loop.runs import start
from tests.loop.teaching import game, written


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    world = guess(4, 2)
    source = ModelSource(preset="tiny", width=16, layers=1, heads=2, pieces=world.pieces, closed=world.closed)
    return ChatCodec(load(source).tokenizer)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    start(path, {}, until=5)
    return path


def test_the_episodes_of_a_run_come_back_with_the_ids_that_were_sampled(run: Path, codec: ChatCodec) -> None:
    records = {record["id"]: record for record in RunFolder.open(run).episodes()}
    places = read_saved(run)
    assert len(places) == len(records) == 80
    assert any(record["stage"] == "reinforce" for record in records.values())
    for (where, given), record in zip(places, records.values(), strict=True):
        assert where.endswith(record["id"])
        [row] = rows_of("g", 0, encoded(given, codec, True), None)
        flat = [i for turn in record["turns"] for i in (*turn["context"], *turn["tokens"])]
        assert row.tokens.tolist() == flat
        assert row.sampled.sum() == sum(len(turn["tokens"]) for turn in record["turns"])
        assert np.isnan(row.behaviour_logp).all()
        assert set(row.versions.tolist()) == {-1}
        assert given.score == record["score"]


def test_a_file_of_text_gives_the_ids_that_a_played_game_has(run: Path, codec: ChatCodec, tmp_path: Path) -> None:
    """The same games without their ids: a reply that ended its turn is encoded as it was sampled."""
    given = list(RunFolder.open(run).episodes())
    lines = [{"messages": record["messages"], "score": record["score"], "task": record["task"]} for record in given]
    found = read_saved(written(tmp_path / "text.jsonl", lines))
    same = 0
    for (_, episode), record in zip(found, given, strict=True):
        assert (episode.task.id, episode.score) == (record["task"], record["score"])
        [row] = rows_of("g", 0, encoded(episode, codec, True), None)
        same += row.tokens.tolist() == [i for turn in record["turns"] for i in (*turn["context"], *turn["tokens"])]
    whole = sum(all(turn["stop"] == "stop" for turn in record["turns"]) for record in given)
    assert same >= whole - 2  # a model may sample an id twice where text has one
    assert whole > 60


def test_ids_of_another_tokenizer_are_not_taken_for_these(run: Path, codec: ChatCodec) -> None:
    (_, given), *_ = read_saved(run)
    record = json.loads(json.dumps(next(RunFolder.open(run).episodes())))
    plain = encoded(given, codec, True)
    for turn in record["turns"]:
        turn["tokens"] = [i + 1 for i in turn["tokens"]]
    again = encoded(trajectory_from_record(record)[2], codec, True)
    for one, two in zip(plain.turns, again.turns, strict=True):
        assert two.completion.tokens.tolist() == one.completion.tokens.tolist()


def test_what_was_written_before_a_run_was_taken_up_again_is_void(run: Path, tmp_path: Path) -> None:
    text = (run / "episodes.jsonl").read_bytes()
    (tmp_path / "e.jsonl").write_bytes(text + b'{"resumed":4}\n')
    assert len(read_saved(tmp_path / "e.jsonl")) == 64
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(text))
    assert len(read_saved(tmp_path / "e.jsonl.gz")) == 80


def test_lines_that_ask_the_same_are_of_one_task(tmp_path: Path) -> None:
    asked = {"messages": [{"role": "user", "content": "Choose."}, {"role": "assistant", "content": "1"}]}
    lines = [game(1, [1]), game(1, [2, 1]), asked]
    first, second, other = [episode.task.id for _, episode in read_saved(written(tmp_path / "g.jsonl", lines))]
    assert first == second != other


GOOD = game(1, [2, 1])


def told(*messages: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


USER, REPLY = {"role": "user", "content": "Guess."}, {"role": "assistant", "content": "1"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no object"),
        ("{}", "it has no list of messages"),
        (told(), "it has no list of messages"),
        (told(USER), "no message is the assistant's"),
        (told(REPLY, USER), "the assistant's message stands first"),
        (told(USER, REPLY, REPLY), "two assistant messages stand in a row"),
        (told(USER, {"role": "robot", "content": "1"}), "the role 'robot' is none of system, user, assistant, tool"),
        (told(USER, {"role": "assistant", "content": None}), "the content of a message of assistant is no text"),
        (told(USER, {**REPLY, "tool_calls": [{"name": "f"}]}), "tool_calls of a message are not read"),
        (told(USER, REPLY, task=3), "task is 3, and not a text"),
        (told(USER, REPLY, score="good"), "score is 'good', and not a number"),
        (told(USER, REPLY, score=True), "score is True, and not a number"),
        ({"turns": [], "group": "g"}, "is no episode (KeyError"),
    ],
    ids=str,
)
def test_a_line_that_cannot_be_read_is_named_with_what_is_allowed(line: Any, why: str, tmp_path: Path) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    path = tmp_path / "g.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{text}\n")
    with pytest.raises(UsageError) as found:
        read_saved(path)
    assert [t for t in (f"{path} line 3", why, "optional task (text) and score") if t not in str(found.value)] == []
    assert "\n" not in str(found.value)
    path.write_text(json.dumps(GOOD))  # without a last newline, too
    assert len(read_saved(path)) == 1


def test_a_place_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="do not exist; give player, teacher, a run folder, or a file"):
        read_saved(tmp_path / "absent.jsonl")
    with pytest.raises(UsageError, match="is no run folder"):
        read_saved(tmp_path)
