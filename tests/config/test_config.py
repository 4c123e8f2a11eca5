"""Run files: every mistake is named, with what to do; every key has an effect; nothing heavy is imported for it."""

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from strop.config.planning import plan_of
from strop.config.resolve import apply_sets, known_keys, read_file, resolve
from strop.config.stored import find_run, run_record, stored_plan
from strop.core.errors import UsageError
from strop.loop.plan import Plan

BASE: dict[str, Any] = {
    "env": "guess",
    "model": {"preset": "tiny"},
    "stages": [{"kind": "warm_start", "steps": 3}, {"kind": "reinforce", "steps": 5}],
}


def with_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with flat changes; None takes a key away."""
    out = copy.deepcopy(BASE)
    for key, value in changes.items():
        *path, last = key.split(".")
        spot: Any = out
        for part in path:
            spot = spot[int(part)] if isinstance(spot, list) else spot.setdefault(part, {})
        if value is None:
            spot.pop(last, None)
        else:
            spot[last] = value
    return out


def plan(changes: Mapping[str, Any] | None = None) -> Plan:
    return plan_of(resolve(with_changes(changes or {}), {}))[0]


NO_PRESET = {"model.preset": None}
WRONG: list[tuple[dict[str, Any], list[str]]] = [
    # unknown, misplaced and misspelt keys
    ({"learner.learnng_rate": 1e-3}, ["unknown key 'learner.learnng_rate'"]),
    ({"learner.lrr": 1e-3}, ["unknown key 'learner.lrr'", "did you mean 'learner.lr'"]),
    ({"rollout.lr": 1e-3}, ["unknown key 'rollout.lr'", "did you mean 'learner.lr'"]),
    ({"lr": 1e-3}, ["unknown key 'lr'", "did you mean 'learner.lr'"]),
    ({"algorithm.temperature": 1.0}, ["unknown key 'algorithm.temperature'", "did you mean 'rollout.temperature'"]),
    ({"rollout.group-size": 4}, ["unknown key 'rollout.group-size'", "did you mean 'rollout.group_size'"]),
    ({"rolout.turns": 4}, ["unknown key 'rolout'", "did you mean 'rollout"]),
    ({"stages.1.step": 3}, ["unknown key 'stages.1.step'", "did you mean 'stages.*.steps'"]),
    ({"stages.0.publish-every": 3}, ["unknown key 'stages.0.publish-every'", "did you mean 'stages.*.publish_every'"]),
    ({"numbers": 8}, ["unknown key 'numbers'"]),
    ({"zzz": 8}, ["unknown key 'zzz'"]),
    # wrong types and ranges
    ({"learner.lr": "fast"}, ["learner.lr is 'fast'", "number"]),
    ({"rollout.turns": 2.5}, ["rollout.turns is 2.5", "integer"]),
    ({"rollout.turns": "4"}, ["rollout.turns is '4'", "integer"]),
    ({"rollout.turns": True}, ["rollout.turns is True", "integer"]),
    ({"keep.best": 1}, ["keep.best is 1", "boolean"]),
    ({"rollout.turns": 0}, ["rollout.turns is 0", "greater than or equal to 1"]),
    ({"rollout.temperature": 0}, ["rollout.temperature is 0", "greater than or equal to 0.001"]),
    ({"rollout.turns": 3}, ["rollout.turns is 3", "may take 4", "raise rollout.turns"]),
    ({"rollout.top_p": 0.9}, ["rollout.top_p is not offered", "log-probabilities", "temperature"]),
    ({"rollout.max_failures": 1.5}, ["rollout.max_failures is 1.5", "less than or equal to 1"]),
    ({"learner.lr": float("nan")}, ["learner.lr is nan"]),
    ({"learner.lr": float("inf")}, ["learner.lr is inf"]),
    ({"model.dtype": "float16"}, ["model.dtype is 'float16'", "'float32' or 'bfloat16'"]),
    ({"model.width": 30}, ["model.width is 30", "multiple of 8"]),
    ({"stages.1.kind": "train"}, ["stages.1.kind is 'train'", "'warm_start', 'reinforce' or 'rounds'"]),
    ({"stages": 3}, ["stages is 3", "list"]),
    ({"stages": []}, ["stages is []"]),
    ({"env": None}, ["'env' is missing"]),
    ({"stages.1.steps": None}, ["'stages.1.steps' is missing"]),
    ({"model": 3}, ["model is 3"]),
    # combinations
    (
        {"rollout.group_size": 1},
        ["group_size is 1 in stages.1", "group mean (grpo) needs at least 2", "rollout.group_size"],
    ),
    ({"stages.1.group_size": 1, "algorithm.base": "rloo"}, ["group_size is 1", "leave-one-out (rloo)", "at least 2"]),
    ({"stages.0.steps": 0, "stages.1.steps": 0}, ["0 steps planned", "steps above 0"]),
    (
        {"stages.1.publish_every": 2, "algorithm.base": "reinforce"},
        ["stages.1.publish_every is 2", "reinforce has no importance ratio", "grpo"],
    ),
    ({"stages.0.publish_every": 1}, ["stages.0.publish_every has no effect in a warm_start stage"]),
    ({"stages.0.group_size": 4}, ["stages.0.group_size has no effect in a warm_start stage"]),
    ({"algorithm.length": 16.0}, ["algorithm.length has no effect on grpo", "remove it"]),
    ({"algorithm.entropy_end": 0.1}, ["algorithm.entropy_end has no effect", "set algorithm.entropy"]),
    ({"algorithm.base": "gpro"}, ["algorithm.base 'gpro'", "did you mean 'grpo'"]),
    ({"algorithm.base": "sft"}, ["stages.1 is a reinforce stage", "sft learns from demonstrations", "warm_start"]),
    ({"algorithm.base": "expert_iteration"}, ["expert_iteration learns from rounds", '"rounds"']),
    (NO_PRESET, ["model.path", "model.preset"]),
    ({"model.path": "/absent"}, ["model.path", "model.preset", "not both"]),
    ({**NO_PRESET, "model.path": "/absent"}, ["model.path /absent does not exist"]),
    ({**NO_PRESET, "model.path": "gpt2", "model.width": 64}, ["model.width has no effect with model.path"]),
    ({"model.width": 24, "model.heads": 5}, ["model.width 24", "model.heads 5"]),
    ({"model.width": 24, "model.heads": 8}, ["model.width 24", "model.heads 8"]),  # rotary positions need even heads
    ({"model.checkpointing": True, "model.layers": 1}, ["model.checkpointing", "one layer"]),
    ({"max_lag": 1}, ["max_lag is 1", "only 0", "publish_every"]),
    ({"learner.minibatches": 40}, ["minibatches is 40", "32 groups", "Lower minibatches"]),
    ({"stages.1.minibatches": 5, "stages.1.groups": 4}, ["minibatches is 5", "stages.1 has 4 groups"]),
    # the world's own options
    ({"env": "gess"}, ["env 'gess' is unknown", "did you mean 'guess'"]),
    ({"world.number": 4}, ["world.number is no option", "did you mean 'numbers'"]),
    ({"world.numbers": 0}, ["numbers is 0"]),
    ({"env": "jsonl", "world.file": "absent.jsonl"}, ["absent.jsonl does not exist"]),
]


@pytest.mark.parametrize(("changes", "texts"), WRONG, ids=lambda value: str(value)[:60])
def test_a_mistake_is_named_with_what_to_do(changes: dict[str, Any], texts: list[str]) -> None:
    with pytest.raises(UsageError) as told:
        plan(changes)
    assert [text for text in texts if text not in str(told.value)] == [], str(told.value)
    assert "\n" not in str(told.value)


def test_the_base_of_these_mistakes_is_none() -> None:
    assert plan().steps == 8


@pytest.mark.parametrize("algorithm", ["reinforce", "reinforce_constant", "reinforce_ema"])
def test_groups_of_one_are_allowed_where_nothing_is_compared(algorithm: str) -> None:
    assert plan({"rollout.group_size": 1, "algorithm.base": algorithm}).stages[1].group_size == 1


def test_a_warm_start_needs_a_player(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    with pytest.raises(UsageError, match=r"stages.0 is a warm_start, but world 'p' has no scripted player"):
        plan({"env": "jsonl", "world.file": str(tmp_path / "p.jsonl")})


def test_a_world_without_training_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n")
    with pytest.raises(UsageError, match=r"world p has no tasks in split 'train'"):
        plan({"env": "jsonl", "world.file": str(tmp_path / "p.jsonl")})


# --- files


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b'env = "guess\n', ["is not valid TOML", "line 1"]),
        (b"env = 'a'\nenv = 'b'\n", ["is not valid TOML"]),
        (b'env = "\xff"\n', ["is not valid TOML"]),
        (b"[[stages]]\n[stages.x\n", ["is not valid TOML"]),
    ],
)
def test_a_broken_file_is_told_with_the_place(content: bytes, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(UsageError) as told:
        read_file(tmp_path / "r.toml")
    assert [text for text in ["r.toml", *texts] if text not in str(told.value)] == []
    assert "\n" not in str(told.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(UsageError, match=r"does not exist; give the path of a TOML file"):
            read_file(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("learner.lr", r"write it as key=value"),
        ("=3", r"write it as key=value"),
        ("stages.7.steps=3", r"there is no stage 7; stages are numbered 0 to 1"),
        ("stages.x.steps=3", r"there is no stage x"),
        ("stages.steps=3", r"name a key of the stage"),
        ("stages.0=3", r"name a key of the stage"),
        ("env.x=3", r"'env' is not a section"),
        ("env.x.y=3", r"'x' is not inside a section"),
        ("learner.lr.x=3", r"'lr' is not a section"),
    ],
)
def test_a_set_that_fits_nowhere_is_told(text: str, told: str) -> None:
    tables = with_changes({"learner.lr": 1e-3})
    with pytest.raises(UsageError, match=told):
        apply_sets(tables, [text])


def test_a_set_has_the_spelling_and_the_types_of_the_file() -> None:
    tables = with_changes({})
    sets = ["learner.lr=1e-3", "keep.best=false", "algorithm.base=dr_grpo", 'model.stop=["x"]', "stages.1.steps=7"]
    run = resolve(tables, apply_sets(tables, sets)).run
    assert (run.learner.lr, run.keep.best, run.algorithm.base, run.model.stop) == (1e-3, False, "dr_grpo", ["x"])
    assert run.stages[1].steps == 7
    tables = with_changes({})
    done = apply_sets(tables, ["learner.learning_rate=1e-3"])
    with pytest.raises(UsageError, match=r"unknown key 'learner.learning_rate'"):
        resolve(tables, done)


def test_every_value_knows_where_it_came_from() -> None:
    tables = with_changes({"learner.lr": 1e-3, "world.numbers": 8, "stages.1.lr": 2e-3, "learner.epochs": 1})
    resolved = resolve(tables, apply_sets(tables, ["rollout.turns=5", "learner.epochs=2", "stages.0.steps=4"]))
    wanted = {
        "env": ("guess", "file"),
        "seed": (0, "default"),
        "world.numbers": (8, "file"),
        "learner.lr": (1e-3, "file"),
        "learner.epochs": (2, "--set"),
        "learner.warmup": (0, "default"),
        "rollout.turns": (5, "--set"),
        "rollout.groups": (32, "default"),
        "stages.0.steps": (4, "--set"),
        "stages.1.steps": (5, "file"),
        "stages.1.lr": (2e-3, "file"),
        "stages.0.lr": (None, "default"),
    }
    assert {key: resolved.sources[key] for key in wanted} == wanted
    generic = {".".join("*" if p.isdigit() else p for p in key.split(".")) for key in resolved.sources}
    assert {key for key in known_keys() if key != "world.*"} <= generic


# --- all keys

EFFECTS: dict[str, Any] = {
    "env": None,  # another world; see below
    "seed": 1,
    "max_lag": None,  # only 0 so far, all else is refused (see above)
    "world.*": None,
    "model.path": None,  # excludes the preset
    "model.preset": None,
    "model.width": 32,
    "model.layers": 3,
    "model.heads": 8,
    "model.dtype": "bfloat16",
    "model.device": "cuda",
    "model.threads": 2,
    "model.checkpointing": True,
    "model.stop": ["!"],
    "rollout.groups": 5,
    "rollout.group_size": 5,
    "rollout.temperature": 0.5,
    "rollout.turns": 5,
    "rollout.turn_tokens": 5,
    "rollout.tokens": 5,
    "rollout.context": 50,
    "rollout.seconds": 5.0,
    "rollout.history": "keep",
    "rollout.max_failures": 0.1,
    "algorithm.base": "rloo",
    "algorithm.length": 7.0,
    "algorithm.entropy": 0.1,
    "algorithm.entropy_end": 0.2,
    "learner.lr": 0.1,
    "learner.lr_end": 0.2,
    "learner.warmup": 2,
    "learner.weight_decay": 0.1,
    "learner.clip_norm": 2.0,
    "learner.epochs": 2,
    "learner.minibatches": 2,
    "learner.token_budget": 100,
    "stages.*.kind": "rounds",
    "stages.*.steps": 6,
    "stages.*.groups": 6,
    "stages.*.group_size": 6,
    "stages.*.lr": 0.3,
    "stages.*.lr_end": 0.3,
    "stages.*.warmup": 3,
    "stages.*.epochs": 3,
    "stages.*.minibatches": 3,
    "stages.*.observations": 0.3,
    "stages.*.publish_every": 3,
    "evaluate.every": 3,
    "evaluate.episodes": 3,
    "keep.steps": 3,
    "keep.last": 3,
    "keep.every": 3,
    "keep.best": False,
    "keep.episodes_mb": 3.0,
    "keep.updates": 4,
    "keep.samples": 0.5,
    "preflight.tasks": 3,
    "preflight.members": 3,
    "preflight.block": True,
}
NEEDS = {"algorithm.length": {"algorithm.base": "dr_grpo"}, "algorithm.entropy_end": {"algorithm.entropy": 0.1}}
VALUED = [key for key, value in EFFECTS.items() if value is not None]


def test_all_keys_are_listed_here_and_they_are_at_most_sixty() -> None:
    assert known_keys() == list(EFFECTS)
    assert len(known_keys()) <= 60


def content(changes: Mapping[str, Any]) -> dict[str, Any]:
    """A plan without its note of where values came from."""
    made = asdict(plan(changes))
    made.pop("resolved")
    return made


@pytest.mark.parametrize("key", VALUED)
def test_every_key_changes_the_plan(key: str) -> None:
    needs = NEEDS.get(key, {})
    before, after = content(needs), content({**needs, key.replace("*", "1"): EFFECTS[key]})
    assert before != after
    assert before == content(needs)  # and a plan is a function of its file


def test_the_keys_without_a_value_above_have_an_effect_too(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    only = {"stages": [{"kind": "reinforce", "steps": 1}]}
    assert content({**only, "env": "jsonl", "world.file": str(tmp_path / "p.jsonl")}) != content(only)
    assert content({"world.numbers": 8}) != content({})
    assert content({**NO_PRESET, "model.path": str(tmp_path)})["model"]["path"] == str(tmp_path)


@pytest.mark.parametrize("recipe", sorted(Path("recipes").glob("*.toml")), ids=str)
def test_every_recipe_is_a_plan(recipe: Path) -> None:
    made, _ = plan_of(resolve(read_file(recipe), {}))
    assert made.steps > 0


# --- what a run folder remembers


def stored(changes: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(run_record(resolve(with_changes(changes), {}))))


@pytest.mark.parametrize("key", VALUED)
def test_a_stored_run_is_planned_again_as_it_was(key: str) -> None:
    changes = {**NEEDS.get(key, {}), key.replace("*", "1"): EFFECTS[key]}
    _, again, _ = stored_plan(stored(changes))
    made = asdict(again)
    made.pop("resolved")
    assert made == content(changes)


@pytest.mark.parametrize("text", ["stages.1.steps=9", "evaluate.every=2", "keep.last=5", "stages.0.steps=0"])
def test_a_resumed_run_may_change_how_long_it_is_and_how_it_is_watched(text: str) -> None:
    key, _, value = text.partition("=")
    resolved, _, _ = stored_plan(stored({}), [text])
    assert resolved.sources[key] == (int(value), "--set")


@pytest.mark.parametrize(
    "text", ["learner.lr=1e-4", "seed=3", "stages.1.lr=1e-4", "stages.1.kind=rounds", "world.numbers=8", "env=jsonl"]
)
def test_a_resumed_run_may_change_nothing_else(text: str) -> None:
    with pytest.raises(UsageError, match=r"a resumed run may change only .*Start a new run"):
        stored_plan(stored({}), [text])


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no run folder \(it has no run.json\)"):
        find_run(str(tmp_path))


def test_a_run_file_is_answered_without_importing_torch() -> None:
    program = (
        "import sys\n"
        "from strop.cli.main import main\n"
        "from strop.config.planning import plan_of\n"
        "from strop.config.resolve import resolve\n"
        "plan_of(resolve({'env': 'guess', 'model': {'preset': 'tiny'}, 'stages': [{'kind': 'reinforce', 'steps': 1}]}, {}))\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])\n"
        "import torch\n"
        "print([name for name in ('torch',) if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['torch']"]  # the second line: such an import would be seen
