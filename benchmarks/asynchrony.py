"""`make bench-async`: the same tokens at lag 0, 1, 2 and 4 in a world whose tools take time, against the computed bound.

The bound is the busy time of the scarcer resource, engine or learner, in the same run: waiting could be hidden
completely, work could not. Waits are real. Only ratios of one run mean something on a shared machine.
"""

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.config.stored import run_record
from strop.loop.assemble import assemble
from strop.loop.train import StepDone, Training
from strop.watch.run_folder import Keep, RunFolder

GROUPS, MEMBERS = 32, 8
CASES: dict[str, dict[str, Any]] = {
    "lognormal, sigma 1": {"median": 0.015},
    "one straggler of 4 medians a batch": {"median": 0.03, "sigma": 0.0, "straggler": GROUPS * MEMBERS},
}


@dataclass(frozen=True)
class Timed:
    """One run: seconds by the clock and at work, tokens trained, and the greatest lag seen."""

    wall: float
    engine: float
    learner: float
    tokens: int
    lag: int

    @property
    def bound(self) -> float:
        """Seconds that the scarcer resource was at work."""
        return max(self.engine, self.learner)


def tables(case: dict[str, Any], lag: int, size: tuple[int, int], more: dict[str, Any]) -> dict[str, Any]:
    """A run file: the demo's model, no warm start (what is sampled does not matter here), no evaluation."""
    return {
        "env": "benchmarks.waiting:waiting",
        "world": case,
        "max_lag": lag,
        "model": {"preset": "tiny"},
        "rollout": {
            "groups": GROUPS,
            "group_size": MEMBERS,
            "turns": 4,
            "turn_tokens": 4,
            "tokens": 16,
            "context": 64,
            **more,
        },
        "algorithm": {"base": "grpo"},
        "learner": {"lr": 1e-5, "epochs": size[1]},
        "stages": [{"kind": "reinforce", "steps": size[0]}],
        "evaluate": {"every": 0, "episodes": 1},
        "preflight": {"tasks": 0},
        "keep": {"steps": 0, "best": False},
    }


def run(case: dict[str, Any], lag: int, size: tuple[int, int], more: dict[str, Any]) -> Timed:
    """Train for some steps and passes a step; the clock runs from the first launch to the last publication."""
    resolved = resolve(tables(case, lag, size, more), {})
    plan, world = plan_of(resolved)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", run_record(resolved), Keep(8.0, 0.0, updates=0))

        async def train() -> Timed:
            training = Training(plan, assemble(plan, world), folder)
            began = time.perf_counter()
            values: list[dict[str, float | None]] = []
            async for event in training.run():
                if isinstance(event, StepDone):
                    values.append(event.values)
            wall = time.perf_counter() - began
            training.parts.close()
            return Timed(
                wall,
                training.parts.engine.counts.seconds,
                sum(v["learner_seconds"] or 0.0 for v in values),
                int(sum(v["sampled_tokens"] or 0.0 for v in values)),
                int(max(v["lag_max"] or 0 for v in values)),
            )

        with folder.lock():
            return asyncio.run(train())


def main() -> None:
    """Print one table a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2, help="passes over a batch")
    parser.add_argument("--median", type=float, help="of the time that a tool takes; the case's own if left out")
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--more", nargs="*", default=[], help="rollout keys: in_flight=keep")
    asked = parser.parse_args()
    more = dict(pair.split("=") for pair in asked.more)
    for name, case in CASES.items():
        case = case | ({} if asked.median is None else {"median": asked.median})
        print(
            f"{name}; {asked.steps} batches of {GROUPS} x {MEMBERS}, {asked.epochs} passes each, tools of {case['median']:g} s"
        )
        print("  lag   seconds  engine  learner  of the bound  times lag 0  tokens  greatest lag")
        first: Timed | None = None
        for lag in asked.lags:
            found = run(case, lag, (asked.steps, asked.epochs), more if lag else {})
            first = first or found
            speed = (first.wall / first.tokens) / (found.wall / found.tokens)
            print(
                f"  {lag:3} {found.wall:9.1f} {found.engine:7.1f} {found.learner:8.1f} {found.bound / found.wall:13.0%} "
                f"{speed:11.2f}x {found.tokens:7} {found.lag:9}",
                flush=True,
            )


if __name__ == "__main__":
    main()
