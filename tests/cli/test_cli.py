"""The command line, verb by verb, with a real run; mistakes are one line and exit code 2; signals end a run well."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.algorithms import ALGORITHMS
from strop.cli.evaluate import readable
from strop.cli.main import app
from strop.codec.chat import ChatCodec
from strop.core.message import Message
from strop.learn import checkpoint
from strop.watch.run_folder import RunFolder
from tests.command import Ran, commander
from tests.loop.runs import differences, outcome, start, tables, toml

COMMAND = [sys.executable, "-c", "from strop.cli.main import main; main()"]
CHANGES = {"keep.steps": 3, "evaluate.episodes": 4}


@pytest.fixture
def strop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """The command line in this process (torch is here already)."""

    return commander(capsys, monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, made by a process of its own."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "recipe.toml").write_text(toml(tables(CHANGES)))
    done = subprocess.run(
        [*COMMAND, "train", "recipe.toml", "--run", "run"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path("src").resolve()), "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (folder / "out.txt").write_text(done.stdout)
    return folder / "run"


def test_an_evaluation_on_a_terminal_is_short_lines_without_what_was_not_measured() -> None:
    given = {
        "run": "runs/first",
        "greedy_success": 0.87512345,
        "greedy_interval": (0.2152125268244419, 0.78),
        "episodes": 32,
        "limit": None,
        "measures": {"success": 0.25, "turns": None, "own": 1},
        "of_world": {"success": 0.25, "other": 0.5},
    }
    assert readable(given) == [
        "run                    runs/first",
        "greedy_success         0.8751",
        "greedy_interval        0.2152 to 0.78",
        "episodes               32",
        "measures:",
        "  success                0.25",
        "  own                    1",
        "of_world:",
        "  other                  0.5",
    ]


# --- mistakes, answered before torch is imported


MISTAKES: list[tuple[list[str], str]] = [
    (["train", "absent.toml"], "the run file absent.toml does not exist"),
    (["train"], "give a run file (strop train recipes/guess.toml) or --resume RUN"),
    (["train", "good.toml", "--resume", "x"], "one of the two"),
    (["train", "broken.toml"], "broken.toml is not valid TOML"),
    (["train", "good.toml", "--set", "learner.lrr=1"], "unknown key 'learner.lrr'"),
    (["train", "good.toml", "--set", "learner-lr=1"], "unknown key 'learner-lr'"),
    (["train", "good.toml", "--set", "learner.lr"], "write it as key=value"),
    (["train", "good.toml", "--set", "learner.lr=fast"], "learner.lr is 'fast'"),
    (["train", "good.toml", "--set", "rollout.group_size=1"], "group mean (dr_grpo) needs at least 2"),
    (
        ["train", "good.toml", "--set", "algorithm.clip=ppoo(0.2)"],
        "algorithm.clip 'ppoo' is unknown; did you mean ppo?",
    ),
    (
        ["train", "good.toml", "--set", 'algorithm.terms=["kl(0.1, k1)"]'],
        "stages.1: kl(k1) as a loss has no expected gradient",
    ),
    (["train", "good.toml", "--set", "model.preset=tiny(15)"], "model.preset tiny(15) cannot be built"),
    (["train", "good.toml", "--set", "stages.1.algorithm=on_policy_distillation"], "a divergence needs a teacher"),
    (["train", "good.toml", "--set", "env=chess2"], "env 'chess2' is unknown"),
    (["train", "good.toml", "--run", "taken"], "taken holds a run already"),
    (["train", "good.toml", "--run", "good.toml"], "good.toml cannot be a run folder"),
    (["train", "--resume", "nowhere"], "nowhere is no run folder"),
    (["train", "--resume", "taken", "--run", "x"], "Leave out --run"),
    (["train", "--resume", "taken", "--set", "learner.lr=1e-4"], "a resumed run may change only"),
    (["train", "--resume", "taken", "--set", "stages.1.step=9"], "a resumed run may change only"),
    (["eval", "nowhere"], "nowhere is no run folder"),
    (["eval"], "give the folder of a run, or --model DIR --env NAME"),
    (["eval", "taken", "--model", "x"], "one of the two"),
    (["eval", "taken", "--set", "world.numbers=4"], "--env and --set go with --model"),
    (["eval", "--model", "x"], "--model needs --env"),
    (["eval", "--model", "./absent", "--env", "guess"], "model.path ./absent does not exist"),
    (["eval", "--model", ".", "--env", "guess", "--best"], "--best chooses among the checkpoints of a run"),
    (["eval", "--model", ".", "--env", "gues"], "did you mean 'guess'"),
    (["play", "nowhere"], "nowhere is no run folder"),
    (["play", "taken", "--task", "secret-77"], "no task 'secret-77'"),
    (["play", "taken", "--me", "--greedy"], "--greedy is about the agent"),
    (["read", "nowhere"], "nowhere is no run folder"),
    (["read", "taken"], "taken keeps no episodes"),
    (["masks", "taken", "--episode", "x"], "no episode 'x'"),
    (["timeline", "nowhere"], "nowhere is no run folder"),
    (["timeline", "taken"], "taken has no timeline"),
    (["timeline", "taken", "--steps", "0:3", "--json"], "taken has no timeline"),
    (["export", "nowhere", "x"], "nowhere is no run folder"),
    (["export", "taken", "full"], "full is not an empty directory"),
]

ASK = """
import contextlib, io, json, sys
from strop.cli.main import app, main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["strop", *arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
    print(json.dumps([code, out.getvalue(), err.getvalue(), "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[int, str, str, bool]]:
    """All mistakes, made in one process that never had torch."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "good.toml").write_text(toml(tables()))
    (folder / "broken.toml").write_text("env = [")
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("x")
    before = sorted(folder.rglob("*"))
    program = (
        "from strop.config.resolve import read_file, resolve\nfrom strop.config.stored import run_record\n"
        "from strop.watch.run_folder import RunFolder\nfrom pathlib import Path\n"
        "RunFolder.create('taken', run_record(resolve(read_file(Path('good.toml')), {})))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path("src").resolve())}
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, env=env)
    stamp = (folder / "taken" / "run.json").read_bytes()
    asked = json.dumps([arguments for arguments, _ in MISTAKES])
    done = subprocess.run(
        [sys.executable, "-c", ASK, asked], cwd=folder, capture_output=True, text=True, check=True, env=env
    )
    after = sorted(p for p in folder.rglob("*") if "taken" not in p.parts)
    assert after == before  # nothing was written by a mistake
    assert (folder / "taken" / "run.json").read_bytes() == stamp
    return dict(enumerate(json.loads(line) for line in done.stdout.splitlines()))


@pytest.mark.parametrize("index", range(len(MISTAKES)), ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2_before_torch_is_imported(
    index: int, answers: dict[int, tuple[int, str, str, bool]]
) -> None:
    code, out, err, torch_there = answers[index]
    assert MISTAKES[index][1] in err
    assert err.startswith("strop: ")
    assert err.count("\n") == 1
    assert (code, out, torch_there) == (2, "", False)


def test_importing_torch_would_be_seen() -> None:
    """Negative control of the process above."""
    program = ASK.replace("main()\n", "main()\n            import torch\n", 1).replace(
        "for arg", "import torch\nfor arg"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps([["--version"]])], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)[3] is True


# --- help


def test_the_version_is_the_installed_one(strop: Callable[..., Ran]) -> None:
    from importlib.metadata import version

    assert strop("--version").out == f"strop {version('strop')}\n"


VERBS = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_has_an_example_that_begins_with_it(verb: str, strop: Callable[..., Ran]) -> None:
    told = strop(verb, "--help")
    assert told.code == 0
    assert f"Example: strop {verb}" in told.out
    assert max(map(len, told.out.splitlines())) <= 80


def test_a_mistyped_verb_is_told_with_the_nearest(strop: Callable[..., Ran]) -> None:
    told = strop("trian")
    assert told.code == 2
    assert "Did you mean 'train'?" in told.err
    assert "Traceback" not in told.err


# --- a run


def test_a_run_says_where_it_stands_and_what_comes_next(trained: Path) -> None:
    out = (trained.parent / "out.txt").read_text()
    for text in (
        "step 2 (warm_start): greedy ",
        "preflight: 2 tasks x 2",
        "best possible",
        "run: run   next: strop play",
    ):
        assert text in out
    rows = [line for line in out.splitlines() if re.match(r"(start|after [a-z ]+) +\d+ ", line)]
    assert len(rows) == 3
    assert max(map(len, rows)) <= 80


def test_the_run_of_the_command_line_is_the_run_of_the_library(trained: Path, tmp_path: Path) -> None:
    start(tmp_path / "run", CHANGES)
    assert differences(outcome(trained), outcome(tmp_path / "run")) == []


def test_a_dry_run_shows_everything_and_writes_nothing(
    tmp_path: Path, strop: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.toml").write_text(toml(tables()))
    told = strop("train", "r.toml", "--set", "learner.lr=0.002", "--dry-run", "--run", "new")
    assert told.code == 0
    lines = told.out.splitlines()
    assert "learner.lr = 0.002   # --set" in lines
    assert "world.numbers = 4   # file" in lines
    assert "learner.warmup = 0   # default" in lines
    assert "stage 0 warm_start: sft, 4 steps, 4 updates, 64 episodes" in lines
    assert "stage 1 reinforce: dr_grpo, 4 steps, 4 updates, 64 episodes" in lines
    assert any(re.match(r"memory, estimated: [\d,]+ parameters", line) for line in lines)
    assert any("I am thinking of a whole number from 1 to 4." in line and not line.startswith("*") for line in lines)
    assert any(line.startswith("* ") for line in lines)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.toml"]


def test_minibatches_and_epochs_are_in_the_planned_updates(tmp_path: Path, strop: Callable[..., Ran]) -> None:
    changes = {"learner.minibatches": 2, "learner.epochs": 3, "stages.0.minibatches": 1, "stages.0.epochs": 1}
    (tmp_path / "r.toml").write_text(toml(tables(changes)))
    told = strop("train", tmp_path / "r.toml", "--dry-run")
    assert "stage 1 reinforce: dr_grpo, 4 steps, 24 updates, 64 episodes" in told.out.splitlines()


def test_a_finished_run_is_not_resumed_and_a_longer_one_is(
    trained: Path, tmp_path: Path, strop: Callable[..., Ran]
) -> None:
    told = strop("train", "--resume", trained)
    assert told.code == 2
    assert "all 8 planned steps" in told.err
    assert "--set stages.1.steps=" in told.err
    start(tmp_path / "run", CHANGES)
    longer = strop("train", "--resume", tmp_path / "run", "--set", "stages.1.steps=6", "--set", "keep.last=1")
    assert longer.code == 0
    assert "after step 8" in longer.out
    assert [r["step"] for r in RunFolder.open(tmp_path / "run").metrics()] == list(range(11))


def test_a_second_run_in_a_folder_is_refused(trained: Path, tmp_path: Path, strop: Callable[..., Ran]) -> None:
    (tmp_path / "r.toml").write_text(toml(tables()))
    told = strop("train", tmp_path / "r.toml", "--run", trained)
    assert told.code == 2
    assert "holds a run already" in told.err


def test_a_run_that_could_not_begin_leaves_its_folder_free(tmp_path: Path, strop: Callable[..., Ran]) -> None:
    """A device that is not there is found when the model loads; the same command works once it is mended."""
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    (tmp_path / "r.toml").write_text(toml(tables({"stages.1.steps": 1})))
    told = strop("train", tmp_path / "r.toml", "--run", tmp_path / "run", "--set", 'model.device="cuda"')
    assert told.code == 2
    assert "device 'cuda' is not available" in told.err
    assert strop("train", tmp_path / "r.toml", "--run", tmp_path / "run").code == 0


# --- looking at a run


def test_eval_gives_success_with_intervals_as_one_json_object(trained: Path, strop: Callable[..., Ran]) -> None:
    told = strop("eval", trained, "--json")
    found = json.loads(told.out)
    assert {
        "greedy_success", "greedy_interval", "sampled_success", "sampled_interval", "limit", "episodes", "invalid",
    } <= set(found)  # fmt: skip
    assert (found["limit"], found["episodes"], found["invalid"]) == (0.75, 4 + 16, 0)
    last = list(RunFolder.open(trained).metrics())[-1]
    assert found["greedy_success"] == last["eval_greedy_success"]
    assert found["sampled_success"] == last["eval_sampled_success"]
    more = json.loads(strop("eval", trained, "--json", "--episodes", 9).out)
    assert more["episodes"] == 4 + 36


def test_an_exported_model_is_plain_and_is_the_same_policy(
    trained: Path, tmp_path: Path, strop: Callable[..., Ran]
) -> None:
    told = strop("export", trained, tmp_path / "model")
    assert told.code == 0
    assert "exported step-00000008" in told.out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    saved = checkpoint.load(trained / "checkpoints" / "step-00000008")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, saved.tensors["model"][name])
    other = json.loads(strop("eval", "--model", tmp_path / "model", "--env", "guess", "--json", "--episodes", 2,
        "--set", "world.numbers=4", "--set", "world.attempts=2", "--set", "rollout.turn_tokens=2").out)  # fmt: skip
    own = json.loads(strop("eval", trained, "--json").out)
    assert other["greedy_success"] == own["greedy_success"]
    assert other["limit"] == own["limit"]
    prompt = [Message("user", "higher")]
    text = tokenizer.apply_chat_template([m.as_dict() for m in prompt], tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == ChatCodec(tokenizer).opening(prompt).tolist()
    again = strop("export", trained, tmp_path / "model")
    assert again.code == 2


def test_an_exported_model_says_what_the_live_one_said(
    trained: Path, tmp_path: Path, strop: Callable[..., Ran]
) -> None:
    """Log-probabilities of a sampled episode, by the plain library on the exported weights that sampled it."""
    step6 = tmp_path / "run"
    start(step6, {**CHANGES, "keep.steps": 1}, until=7)
    strop("export", step6, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    start(tmp_path / "longer", {**CHANGES, "keep.steps": 1})
    records = [r for r in RunFolder.open(tmp_path / "longer").episodes() if r["step"] == 8]
    assert len(records) == 16
    for record in records[:5]:
        ids: list[int] = []
        for turn in record["turns"]:
            ids += [*turn["context"], *turn["tokens"]]
            with torch.no_grad():
                logp = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
            n = len(turn["tokens"])
            said = [float(logp[len(ids) - n + i - 1, ids[len(ids) - n + i]]) for i in range(n)]
            assert max(abs(a - b) for a, b in zip(said, turn["logprobs"], strict=True)) < 1e-5
    stale = next(r for r in RunFolder.open(tmp_path / "longer").episodes() if r["step"] == 6)["turns"][0]
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([[*stale["context"], *stale["tokens"]]])).logits[0], -1)
    first = float(logp[len(stale["context"]) - 1, stale["tokens"][0]])
    assert abs(first - stale["logprobs"][0]) > 1e-5  # other weights would be seen


def test_read_shows_the_transcripts_that_were_logged(trained: Path, strop: Callable[..., Ran]) -> None:
    records = list(RunFolder.open(trained).episodes())
    told = strop("read", trained, "--last", 2).out
    assert re.findall(r"== (\S+)  step 8", told) == [r["id"] for r in records[-2:]]
    one = records[5]
    told = strop("read", trained, "--episode", one["id"]).out
    for message in one["messages"]:
        assert f"{message['role']:>9}: {message['content']}" in told
    assert f"score {one['score']:g}" in told
    assert strop("read", trained, "--episode", "train-9/9").code == 2


def test_masks_marks_exactly_the_sampled_tokens(trained: Path, strop: Callable[..., Ran]) -> None:
    record = list(RunFolder.open(trained).episodes())[-3]
    told = strop("masks", trained, "--episode", record["id"]).out.splitlines()
    marks: list[tuple[bool, int]] = []
    for line in told:
        found = re.match(r"([* ])\s+(\d+)\s+(\d+)\s+(\d+) ", line)
        if found:
            assert int(found[2]) == len(marks)
            marks.append((found[1] == "*", int(found[4])))
    wanted = [
        mark
        for t in record["turns"]
        for mark in [*((False, i) for i in t["context"]), *((True, i) for i in t["tokens"])]
    ]
    assert marks == wanted
    assert f"{sum(m for m, _ in wanted)} of {len(wanted)} tokens are trained" in told[0]


def test_play_shows_an_episode_and_its_verdict(trained: Path, strop: Callable[..., Ran]) -> None:
    told = strop("play", trained, "--task", "secret-3", "--greedy")
    assert told.code == 0
    assert told.out.startswith("step-00000008, task secret-3\n")
    assert re.search(r"score [01]\.0  \(secret 3, guesses \[", told.out)
    assert told.out == strop("play", trained, "--task", "secret-3", "--greedy").out


def test_a_person_plays_by_standard_input(trained: Path, strop: Callable[..., Ran]) -> None:
    told = strop("play", trained, "--me", "--task", "secret-3", stdin="2\n3\n")
    assert told.code == 0
    assert "user: I am thinking of a whole number from 1 to 4." in told.out
    assert "user: higher" in told.out
    assert "score 1.0  (secret 3, guesses [2, 3])" in told.out
    lost = strop("play", trained, "--me", "--task", "secret-3", stdin="x\n4\n")
    assert "score 0.0  (secret 3, guesses [None, 4])" in lost.out
    left = strop("play", trained, "--me", "--task", "secret-3", stdin="2\n")
    assert left.code == 0
    assert "no more input" in left.out


def test_the_table_of_algorithms_fits_80_columns_and_is_all_of_it(strop: Callable[..., Ran]) -> None:
    told = strop("algorithms").out
    assert max(map(len, told.splitlines())) <= 80
    assert [line.split()[0] for line in told.splitlines() if not line.startswith(" ")] == ["name", *ALGORITHMS]
    listed: list[dict[str, Any]] = json.loads(strop("algorithms", "--json").out)
    assert [row["name"] for row in listed] == list(ALGORITHMS)
    for row in listed:
        assert row["source"] == ALGORITHMS[row["name"]].source
        assert row["source"] in told


# --- signals

SLOW = """
import asyncio, sys
from strop.core.task import Env, Step
from strop.envs.guess import Guess, guess
from dataclasses import replace

class Slow(Guess):
    async def step(self, message):
        print("waiting", flush=True)
        await asyncio.sleep(600)

def slow():
    made = guess(4, 2)
    return replace(made, env=lambda task, seed: Slow(task.data["secret"], 4, 2))
"""


def child(folder: Path, changes: dict[str, Any], *more: str) -> "subprocess.Popen[str]":
    (folder / "r.toml").write_text(toml(tables(changes)))
    (folder / "slowworld.py").write_text(SLOW)
    return subprocess.Popen(
        [*COMMAND, "train", "r.toml", "--run", "run", *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path("src").resolve())},
    )


def read_until(lines: Any, start: str) -> list[str]:
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if line.startswith(start):
            return seen
    raise AssertionError(f"no line {start!r} in {seen}")


LONG = {"stages.1.steps": 1_000_000, "keep.steps": 0, "keep.best": False, "evaluate.every": 0, "stages.1.lr": 1e-5}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_ends_the_step_writes_a_checkpoint_and_says_how_to_go_on(
    number: signal.Signals, tmp_path: Path, strop: Callable[..., Ran]
) -> None:
    process = child(tmp_path, LONG)
    assert process.stdout is not None
    read_until(process.stdout, "preflight")  # the warm start is done: steps of the second stage run
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopping after this step, with a checkpoint; once more stops at once" in err
    assert "Traceback" not in err
    assert "stopped; continue with: strop train --resume run" in out
    newest, skipped = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    assert skipped == []
    done = checkpoint.step_of(newest)
    assert done >= 5
    assert [r["step"] for r in RunFolder.open(tmp_path / "run").metrics()] == list(range(done + 1))
    if number == signal.SIGINT:  # and so it does
        more = strop("train", "--resume", tmp_path / "run", "--set", f"stages.1.steps={done - 4 + 2}")
        assert more.code == 0, more.err
        assert f"after step {done}" in more.out


def test_a_signal_during_the_audit_leaves_nothing_behind(tmp_path: Path) -> None:
    process = child(tmp_path, {"env": "slowworld:slow", "world": {}, **LONG})
    assert process.stdout is not None
    read_until(process.stdout, "auditing")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not (tmp_path / "run").exists()


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    process = child(tmp_path, {"env": "slowworld:slow", "world": {}, **LONG}, "--unaudited")
    assert process.stdout is not None
    assert process.stderr is not None
    read_until(process.stdout, "waiting")
    process.send_signal(signal.SIGINT)
    read_until(process.stderr, "stopping after this step")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)  # the environment would have waited for ten minutes
    assert process.returncode == 130
    assert err == "strop: stopped at once\n"


def test_without_bubblewrap_a_coding_run_is_refused_with_what_to_install(tmp_path: Path) -> None:
    recipe = Path("recipes/repair.toml").resolve()
    done = subprocess.run(
        [*COMMAND, "train", str(recipe), "--run", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(Path("src").resolve())},
    )
    assert done.returncode == 2
    assert "apt-get install bubblewrap" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
