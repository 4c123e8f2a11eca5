"""A run that was stopped or killed anywhere and taken up again is the run that was never stopped, bit for bit."""

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from strop.core.seeds import draw_order
from strop.learn.checkpoint import Checkpoint
from strop.learn.learner import LocalLearner
from strop.loop.train import Position, StepDone, Training
from strop.watch.run_folder import RunFolder
from tests.loop.runs import Outcome, differences, outcome, resume, start, tables, toml

VARIANTS: dict[str, dict[str, Any]] = {
    "dr_grpo": {},
    "reinforce_ema": {"algorithm.base": "reinforce_ema"},
    "minibatches": {
        "algorithm.base": "grpo",
        "learner.minibatches": 2,
        "learner.epochs": 2,
        "stages.0.minibatches": 1,
        "stages.0.epochs": 1,
    },
    "stale": {"algorithm.base": "grpo", "stages.1.publish_every": 2, "stages.1.steps": 5},
    "rounds": {"stages.1.kind": "rounds"},
    "bfloat16": {"model.dtype": "bfloat16"},
    "critic": {
        "algorithm.base": "ppo",
        "algorithm.credit": "gae(critic=critic(warmup=6))",
        "algorithm.terms": ["kl(0.1, k1, reward, target=0.02, horizon=100)"],
    },
    "process": {
        "stages.0.kind": "reinforce",
        "stages.0.algorithm": "process_reward",
        "stages.0.groups": 4,
        "stages.0.lr": 0.01,
    }
    | {"algorithm.base": "grpo_process"},
    "restart": {"stages.1.kind": "rounds", "stages.1.algorithm": "rest_em", "stages.1.lr": 0.02},
    "demonstrated": {"rollout.guide": "demonstration", "algorithm.base": "decoupled_ppo"},
    "hinted": {"rollout.guide": "hint(2)", "algorithm.base": "grpo"},
    "continuations": {"algorithm.base": "vine_ppo", "algorithm.credit": "monte_carlo(2)"},
    "self_distillation": {
        "algorithm.base": "self_distillation",
        "algorithm.terms": ["divergence(1.0, forward, teacher=self)"],
    },
}

STEPS = {"stale": 9}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Undisturbed runs, made once."""
    done: dict[str, Outcome] = {}

    def of(variant: str) -> Outcome:
        if variant not in done:
            path = tmp_path_factory.mktemp(variant) / "run"
            start(path, VARIANTS[variant])
            done[variant] = outcome(path)
        return done[variant]

    return of


# --- stopping and going on


SOME = (4, 5, 7)  # the end of the first stage, one step into the second, and later (between two publications)


@pytest.mark.parametrize(
    ("variant", "stops"),
    [("dr_grpo", range(1, 8)), *((variant, SOME) for variant in VARIANTS if variant != "dr_grpo")]
    + [pytest.param(variant, range(1, 8), marks=pytest.mark.slow) for variant in VARIANTS],
)
def test_stopping_after_any_step_and_going_on_changes_nothing(
    variant: str, stops: Sequence[int], tmp_path: Path, straight: Callable[[str], Outcome]
) -> None:
    expected = straight(variant)
    steps = STEPS.get(variant, 8)
    assert expected.state["position"]["total"] == steps
    measured = [r for r in expected.metrics if r["stage"] != "start"]
    learned = [r for r in measured if r["gradient_norm"] or r.get("value_loss") or r.get("process_loss")]
    assert len(learned) == steps  # else the run would be equal because nothing happens in it
    for k in stops:
        path = tmp_path / str(k)
        first = start(path, VARIANTS[variant], until=k)
        assert [e.step for e in first if isinstance(e, StepDone)] == list(range(1, k + 1))
        rest = resume(path)
        assert [e.step for e in rest if isinstance(e, StepDone)] == list(range(k + 1, steps + 1))
        assert differences(expected, outcome(path)) == [], f"stopped after step {k}"


def test_stopping_after_every_step_changes_nothing(tmp_path: Path, straight: Callable[[str], Outcome]) -> None:
    start(tmp_path / "run", {}, until=1)
    for k in range(2, 9):
        resume(tmp_path / "run", until=k)
    assert differences(straight("dr_grpo"), outcome(tmp_path / "run")) == []


def test_another_seed_is_another_run(tmp_path: Path, straight: Callable[[str], Outcome]) -> None:
    start(tmp_path / "run", {"seed": 1})
    found = differences(straight("dr_grpo"), outcome(tmp_path / "run"))
    assert "tensors model.safetensors" in found
    assert "episodes of step 5" in found


def forget_credit(saved: Checkpoint) -> None:
    saved.state["position"]["credit"] = {}


def forget_counters(saved: Checkpoint) -> None:
    saved.state["learner"] = {"update": 0, "steps": 0, "adaptive": {}}


def forget_drawn(saved: Checkpoint) -> None:
    saved.state["position"]["ledger"]["drawn"] = 0


def forget_weights(saved: Checkpoint) -> None:
    saved.tensors["model"] = {name: tensor + 1e-3 for name, tensor in saved.tensors["model"].items()}


def forget_engine(saved: Checkpoint) -> None:
    saved.tensors["engine"] = saved.tensors["model"]


def forget_masters(saved: Checkpoint) -> None:
    names = sorted(saved.tensors["masters"], key=int)
    rounded = {name: saved.tensors["masters"][name].bfloat16().float() for name in names}  # type: ignore[union-attr]
    saved.tensors["masters"] = {**rounded}


def forget_version(saved: Checkpoint) -> None:
    saved.state["position"]["version"] = 0


def forget_adaptive(saved: Checkpoint) -> None:
    saved.state["learner"]["adaptive"] = {"kl": 0.1}


def forget(group: str) -> Callable[[Checkpoint], None]:
    def forget_group(saved: Checkpoint) -> None:
        saved.tensors.pop(group)

    return forget_group


@pytest.mark.parametrize(
    ("variant", "lose", "stopped", "seen"),
    [
        ("reinforce_ema", forget_credit, 6, "tensors model.safetensors"),
        ("dr_grpo", forget("optimizer"), 6, "tensors model.safetensors"),
        ("dr_grpo", forget_counters, 6, "tensors model.safetensors"),
        ("minibatches", forget_counters, 6, "tensors model.safetensors"),
        ("dr_grpo", forget_drawn, 6, "episodes of step 7"),
        ("dr_grpo", forget_weights, 6, "tensors model.safetensors"),
        ("stale", forget_engine, 7, "episodes of step 8"),
        ("bfloat16", forget_masters, 6, "tensors masters.safetensors"),
        ("dr_grpo", forget_version, 6, "episodes of step 7"),
        ("critic", forget("critic"), 6, "tensors critic.safetensors"),
        ("critic", forget("reference"), 6, "tensors reference.safetensors"),
        ("critic", forget_adaptive, 6, "state learner"),
        ("process", forget("process"), 4, "tensors model.safetensors"),
        ("restart", forget("reference"), 6, "tensors model.safetensors"),
        ("self_distillation", forget("reference"), 6, "tensors model.safetensors"),
    ],
)
def test_whatever_a_resume_forgets_is_seen(
    variant: str,
    lose: Callable[[Checkpoint], None],
    stopped: int,
    seen: str,
    tmp_path: Path,
    straight: Callable[[str], Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The comparison's negative controls: each piece of the state, left out on purpose, turns it red."""
    whole = Training.resume

    def lossy(self: Training, saved: Checkpoint) -> None:
        lose(saved)
        whole(self, saved)

    start(tmp_path / "run", VARIANTS[variant], until=stopped)
    monkeypatch.setattr(Training, "resume", lossy)
    resume(tmp_path / "run")
    assert seen in differences(straight(variant), outcome(tmp_path / "run"))


def test_every_draw_of_a_resumed_run_is_new(tmp_path: Path) -> None:
    """Four tasks, four groups a batch: each batch is one epoch, whatever the run was stopped by."""
    start(tmp_path / "run", {}, until=5)
    resume(tmp_path / "run", until=7)
    resume(tmp_path / "run")
    drawn = [r for r in RunFolder.open(tmp_path / "run").episodes() if r["stage"] == "reinforce" and r["member"] == 0]
    assert [r["group"] for r in drawn] == [f"train-{n:06d}" for n in range(16)]
    assert [r["task"] for r in drawn] == [f"secret-{draw_order(0, n, 4) + 1}" for n in range(16)]
    for epoch in range(4):
        assert len({r["task"] for r in drawn[4 * epoch : 4 * epoch + 4]}) == 4


def test_a_step_that_teaches_nothing_is_not_repeated_by_a_resume(tmp_path: Path) -> None:
    plain = {
        "env": "tests.loop.hopeless:hopeless",
        "stages.0.steps": 0,
        "algorithm.terms": [],
    }
    start(tmp_path / "run", plain, until=2)
    before = outcome(tmp_path / "run")
    resume(tmp_path / "run", until=3)
    after = outcome(tmp_path / "run")
    assert [r["success"] for r in after.metrics[1:]] == [0.0] * 3
    assert before.tensors["model.safetensors"] == after.tensors["model.safetensors"]
    assert [r["step"] for r in after.metrics] == [0, 1, 2, 3]
    groups = list(dict.fromkeys(r["group"] for r in after.episodes))
    assert groups == [f"train-{n:06d}" for n in range(12)]


# --- what must not change training


@pytest.mark.parametrize(
    "change",
    [
        {"evaluate.every": 0, "evaluate.episodes": 1},
        {"evaluate.every": 1, "evaluate.episodes": 3},
        {"preflight.tasks": 0},
        {"preflight.tasks": 4, "preflight.members": 6},
        {"keep.steps": 0, "keep.best": False},
        {"keep.steps": 1, "keep.last": 1},
    ],
    ids=str,
)
def test_looking_at_a_run_does_not_change_it_by_one_bit(
    change: dict[str, Any], tmp_path: Path, straight: Callable[[str], Outcome]
) -> None:
    start(tmp_path / "run", change)
    found = outcome(tmp_path / "run")
    assert found.tensors == straight("dr_grpo").tensors
    assert found.episodes == straight("dr_grpo").episodes


def test_an_evaluation_that_takes_training_draws_is_seen(
    tmp_path: Path, straight: Callable[[str], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: an evaluation that moves the ledger on changes the run."""
    whole = Training.examine

    async def greedy_for_draws(self: Training) -> Any:
        self.position.ledger.drawn += 1
        return await whole(self)

    monkeypatch.setattr(Training, "examine", greedy_for_draws)
    start(tmp_path / "run", {})
    assert outcome(tmp_path / "run").tensors != straight("dr_grpo").tensors


# --- killed processes (tests/loop/killed.py)

WRITES, LEARNS, LOGS = 40, 8, 147  # points that the killed run has; checked by the slow test
CHANGES = {"keep.steps": 1, "keep.last": 2}


def kill_and_resume(root: Path, points: list[str]) -> dict[str, str]:
    """Run the program: for each point, a `strop train` killed there and a `strop train --resume` after it."""
    recipe = root / "recipe.toml"
    recipe.write_text(toml(tables(CHANGES)))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killed.py")), str(root), str(recipe), *points],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_killed(root: Path, points: list[str]) -> None:
    ended = kill_and_resume(root, ["never", *points])
    assert ended["never"] == "finished"
    expected = outcome(root / "never")
    assert expected.state["position"]["total"] == 8
    for point in points:
        assert ended[point] == "killed", point
        assert differences(expected, outcome(root / point)) == [], (root / f"{point}.log").read_text()


def test_a_killed_training_resumes_to_the_same_run(tmp_path: Path) -> None:
    chosen = random.Random(11)
    points = [f"write:{n}" for n in sorted(chosen.sample(range(2, WRITES + 1), 3))]
    points += [f"learn:{n}" for n in sorted(chosen.sample(range(1, LEARNS + 1), 3))]
    points += ["write:1", f"log:{chosen.randint(20, LOGS)}"]
    check_killed(tmp_path, points)


@pytest.mark.slow
def test_a_training_killed_at_any_write_resumes_to_the_same_run(tmp_path: Path) -> None:
    points = [f"write:{n}" for n in range(1, WRITES + 1)] + [f"learn:{n}" for n in range(1, LEARNS + 1)]
    points += [f"log:{n}" for n in range(1, LOGS + 1, 7)]
    check_killed(tmp_path, points)
    beyond = [f"write:{WRITES + 1}", f"learn:{LEARNS + 1}"]
    assert kill_and_resume(tmp_path, beyond) == dict.fromkeys(beyond, "finished")  # so these were all


def test_a_kill_between_two_processes_of_the_plain_command_line_loses_nothing(tmp_path: Path) -> None:
    """The same once with nothing shared: two interpreters, started one after the other."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(toml(tables(CHANGES)))
    run = tmp_path / "run"
    dying = (
        "import os, signal\nfrom strop.learn.learner import LocalLearner\nwhole = LocalLearner.step\n"
        "def step(self, rows):\n"
        "    report = whole(self, rows)\n"
        "    if self.algorithm.credit.__class__.__name__ == 'GroupMean' and self.steps == 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return report\n"
        "LocalLearner.step = step\nfrom strop.cli.main import main\nmain()\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", dying, "train", str(recipe), "--run", str(run)], capture_output=True, text=True
    )
    assert killed.returncode == -9, killed.stderr
    plain = "from strop.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", plain, "train", "--resume", str(run)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "after step 5" in done.stdout
    start(tmp_path / "straight", CHANGES)
    assert differences(outcome(tmp_path / "straight"), outcome(run)) == []
    model = hashlib.sha256((run / "checkpoints/step-00000008/model.safetensors").read_bytes()).hexdigest()
    assert outcome(tmp_path / "straight").tensors["model.safetensors"] == model


def test_all_state_that_crosses_a_step_is_named() -> None:
    """Whoever adds a field here must add what a resume that forgets it breaks (see above)."""
    assert set(Position.__dataclass_fields__) == {
        "total", "stage", "step", "version", "streak", "ledger", "credit", "best", "watch", "guard",
        "sampler",
    }  # fmt: skip
    assert set(vars(LocalLearner).keys()) >= {"state", "restore", "begin"}
