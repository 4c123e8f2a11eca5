"""Storms: `python chaos.py ROOT SEED SECONDS`. Trainings with lag in a world that fails, each killed and taken up again.

A forked child runs `strop train`, and with it: tools that raise, hang, or ignore that they were cancelled; verifiers that
raise; a gradient that is not finite; a disk that is full when a checkpoint is written; an engine's process killed; the
training itself killed (SIGKILL) or asked to stop (SIGTERM). It is taken up until it is done, then looked at: every drawn
task exactly once, every step exactly once, no group older than the bound. Ends with one JSON object.
"""

import asyncio
import errno
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import strop.cli.progress
import strop.loop.restore  # noqa: F401  # imported once, here, so that the children start at once
from strop.cli.main import main
from strop.core.message import Message
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Trajectory
from strop.core.world import World
from strop.engine.process import ProcessEngine
from strop.envs.guess import guess, verify
from strop.learn import checkpoint
from strop.learn.learner import LocalLearner
from strop.watch.run_folder import RunFolder

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.loop.runs import tables, toml

LIMIT = 120.0
"""Seconds that a child may take; one that takes longer hangs."""
STEPS = 10
WEATHER: dict[str, Any] = {"storm": None}
"""The stream of this process's storm (None for calm), what strikes, and after how many answers of tools."""


class Stormy(Env):
    """A game whose tools fail as the storm has it."""

    def __init__(self, calm: Env) -> None:
        self.calm = calm

    async def start(self) -> Step:
        return await self.calm.start()

    async def step(self, message: Message) -> Step:
        storm: random.Random | None = WEATHER["storm"]
        fate = 1.0 if storm is None else storm.random()
        WEATHER["after"] = WEATHER.get("after", 0) - 1
        if WEATHER["after"] == 0:
            WEATHER["strike"]()
        if fate < 0.02:
            raise ConnectionError("the tool server is down")
        if fate < 0.025:
            await asyncio.Event().wait()
        if fate < 0.028:
            deaf_until = time.monotonic() + 0.5
            while time.monotonic() < deaf_until:  # swallows its cancellation, and answers late
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    continue
        elif fate < 0.3:
            await asyncio.sleep(0.002 * fate)
        return await self.calm.step(message)

    def artefacts(self) -> Any:
        return self.calm.artefacts()


def stormy() -> World:
    made = guess(4, 2)

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        storm: random.Random | None = WEATHER["storm"]
        if storm is not None and storm.random() < 0.01:
            raise RuntimeError("the judge is confused")
        return verify(task, trajectory)

    return replace(made, name="stormy", env=lambda task, seed: Stormy(made.env(task, seed)), verify=judge)


def arm(seed: int, counts: Path) -> None:
    """Let this process have its storm: what struck is a line of `counts`."""
    storm = random.Random(seed)
    WEATHER["storm"] = random.Random(seed + 1)
    write, loss = checkpoint.write_file, LocalLearner._loss

    def struck(what: str) -> None:
        with counts.open("a") as file:
            file.write(what + "\n")

    def full(path: Path, content: Any) -> None:
        if storm.random() < 0.01:
            struck("disk full")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, content)

    def broken(self: LocalLearner, *args: Any) -> Any:
        value, *rest = loss(self, *args)
        if storm.random() < 0.03:
            struck("NaN")
            return value * float("nan"), *rest
        return value, *rest

    checkpoint.write_file = full
    LocalLearner._loss = broken  # type: ignore[method-assign]
    engines: list[ProcessEngine] = []
    made = ProcessEngine.__init__

    def noted(self: ProcessEngine, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        engines.append(self)
        with counts.with_name("engines").open("a") as file:
            file.write(f"{self.pid} {self._folder}\n")

    ProcessEngine.__init__ = noted  # type: ignore[method-assign]
    kind = storm.choice(["kill", "kill", "stop", "engine", "nothing"])

    def strike() -> None:
        if kind == "kill":
            struck("training killed")
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "stop":
            struck("asked to stop")
            os.kill(os.getpid(), signal.SIGTERM)
        elif kind == "engine" and engines:
            struck("engine killed")
            os.kill(engines[0].pid, signal.SIGKILL)

    WEATHER["strike"], WEATHER["after"] = strike, storm.randrange(40, 250)


def child(log: Path, arguments: list[str], seed: int, counts: Path) -> int | None:
    """Run the command line in a forked child; its exit code, negative for a signal, None if it hung (and was killed)."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            arm(seed, counts)
            sys.argv = ["strop", *arguments]
            main()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    until = time.monotonic() + LIMIT
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.02)


def run_file(storm: random.Random, alone: bool) -> dict[str, Any]:
    """A small run with lag, its kind of faults and its way with completions in flight."""
    lag = storm.randint(0, 3)
    more: dict[str, Any] = {"rollout.in_flight": storm.choice(["recompute", "keep", "drain"])} if lag else {}
    if alone:
        more["rollout.engine"] = "process"
    return tables(
        {
            "env": "tests.loop.chaos:stormy",
            "world": {},
            "max_lag": lag,
            "rollout.step_seconds": 0.2,
            "rollout.seconds": 5.0,
            "rollout.failed": storm.choice(["partial", "retry(1)", "refill(2)", "drop"]),
            "rollout.max_failures": 0.9,
            "algorithm.admit": storm.choice(["all", "mixed"]),
            "stages.0.steps": 3,
            "stages.1.steps": STEPS,
            "keep.steps": 2,
            "keep.episodes_mb": 64.0,
            "evaluate.every": 5,
            "evaluate.episodes": 1,
            "preflight.tasks": 0,
            **more,
        }
    )


def faults_of(path: Path, lag: int) -> list[str]:
    """What is wrong with a finished run."""
    folder, out = RunFolder.open(path), []
    episodes = [e for e in folder.episodes() if e["stage"] == "reinforce"]
    drawn = Counter(e["id"] for e in episodes)
    out += [f"{name} is there {n} times" for name, n in drawn.items() if n > 1]
    numbers = sorted({int(e["group"].rsplit("-", 1)[1]) for e in episodes})
    newest, _ = checkpoint.newest(path / "checkpoints")
    assert newest is not None
    ledger = checkpoint.load(newest).state["position"]["ledger"]
    if numbers != list(range(ledger["drawn"])):
        out.append(f"draws {numbers} of {ledger}")
    steps = [m["step"] for m in folder.metrics()]
    if steps != list(range(3 + STEPS + 1)):
        out.append(f"steps {steps}")
    failed = sum(e["error"] is not None for e in episodes)
    with path.with_name("struck").open("a") as file:
        file.write("episode failed\n" * failed)
    out += [f"lag {m['lag_max']} of {lag}" for m in folder.metrics() if (m.get("lag_max") or 0) > lag]
    return out


def left_behind(engines: Path) -> list[str]:
    """Processes and folders of engines that are still there a while after their trainings."""
    lines = [line.split(" ", 1) for line in engines.read_text().splitlines()] if engines.exists() else []
    until = time.monotonic() + 20
    while left := [x for pid, folder in lines for x in (f"/proc/{pid}/fd/0", folder) if Path(x).exists()]:
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    return left


def storms(root: Path, seed: int, seconds: float) -> dict[str, Any]:
    """Trainings until the time is up; the last one is finished in calm weather."""
    storm, until = random.Random(seed), time.monotonic() + seconds
    counts = root / "struck"
    counts.touch()
    found: dict[str, Any] = {"runs": 0, "processes": 0, "hung": 0, "exit_codes": Counter(), "faults": []}
    while time.monotonic() < until:
        number = found["runs"] = found["runs"] + 1
        run, log, recipe = root / f"run{number}", root / f"run{number}.log", root / f"run{number}.toml"
        given = run_file(storm, alone=number % 4 == 2)
        recipe.write_text(toml(given))
        arguments, code = ["train", str(recipe), "--run", str(run), "--unaudited"], None
        for attempt in range(40):
            code = child(log, arguments, storm.randrange(2**30), counts)
            found["processes"] += 1
            found["hung"] += code is None
            found["exit_codes"][str(code)] += 1
            if code == 0 and "stopped; continue" not in log.read_text().splitlines()[-1]:
                break
            started = (run / "run.json").exists()
            arguments = ["train", "--resume", str(run)] if started else arguments
            assert attempt < 39, log.read_text()
        found["faults"] += [f"run {number}: {fault}" for fault in faults_of(run, given["max_lag"])]
        for left in log.read_text().split("Traceback")[1:]:
            found["faults"].append(f"run {number}: a traceback: {left[-300:]}")
    found["left"] = left_behind(root / "engines")
    return found | {"struck": Counter(counts.read_text().split("\n")[:-1])}


if __name__ == "__main__":
    from tests.loop import chaos  # the module that worlds are found in, not this copy of it

    torch.set_num_threads(1)
    print(json.dumps(chaos.storms(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
