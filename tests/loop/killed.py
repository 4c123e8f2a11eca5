"""The processes that get killed: `python killed.py ROOT RECIPE POINT...`.

For each point a forked child runs `strop train RECIPE --run ROOT/POINT` and kills itself there with SIGKILL; then a
second one runs `strop train --resume` to the end. A point is `write:N` (half-way through the N-th write of a checkpoint,
or before its rename), `learn:N` (after the N-th batch was learned, before anything says so), `log:N` (half-way through
the N-th log line) or `never`. The last line of output says how each first child ended, as JSON.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import strop.cli.progress
import strop.loop.restore  # noqa: F401  # imported once, here, so that the children start at once
from strop.cli.main import main
from strop.learn import checkpoint
from strop.learn.learner import LocalLearner
from strop.watch import jsonl


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kind: str, n: int) -> None:
    """Let this process die at its n-th point of a kind."""
    points = itertools.count(1)

    def at(function: Callable[..., Any], half: Callable[..., None]) -> Callable[..., Any]:
        def armed(*args: Any, **kwargs: Any) -> Any:
            if next(points) == n:
                half(*args)
                die()
            return function(*args, **kwargs)

        return armed

    if kind == "write":
        write = checkpoint.write_file

        def half_file(path: Path, content: Any) -> None:
            write(path, content)
            os.truncate(path, path.stat().st_size // 2)

        checkpoint.write_file = at(write, half_file)
        checkpoint._stand = at(checkpoint._stand, lambda *_: None)
    elif kind == "learn":
        learn = LocalLearner.step
        LocalLearner.step = at(learn, lambda self, rows: learn(self, rows))  # type: ignore[method-assign]
    elif kind == "log":
        jsonl.write_line = at(jsonl.write_line, lambda handle, line: handle.write(line[: len(line) // 2]))


def child(log: Path, arguments: list[str], point: str) -> int:
    """Run the command line in a forked child; returns its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            kind, _, n = point.partition(":")
            if kind != "never":
                arm(kind, int(n))
            sys.argv = ["strop", *arguments]
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def kill_and_resume(root: Path, recipe: str, points: list[str]) -> dict[str, str]:
    ended: dict[str, str] = {}
    for point in points:
        run, log = root / point, root / f"{point}.log"
        code = child(log, ["train", recipe, "--run", str(run)], point)
        ended[point] = {0: "finished", -signal.SIGKILL: "killed"}.get(code, f"exit code {code}")
        if code == -signal.SIGKILL:
            again = child(log, ["train", "--resume", str(run)], "never")
            if again != 0:
                ended[point] = f"killed, then exit code {again}"
    return ended


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(kill_and_resume(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])))
