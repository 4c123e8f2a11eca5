"""The sandbox of a user who is not root: the same walls and limits, or a refusal that says what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from strop.core.sandbox import SandboxError
from strop.sandbox.launch import ADVICE
from tests.sandbox.unprivileged import BOUNDS

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "who": ["exited", 1000],
    "spin": ["cpu_time", "it used more than its processor time"],
    "hoard": ["exited", "MemoryError"],
    "forks": ["exited", BOUNDS.processes - 1],
    "shadow": ["exited", "FileNotFoundError"],
    "connect": ["exited", "OSError"],
    "kill": ["exited", "went on"],
    "command": ["exited", "1000\ntext"],
}


def tried(*arguments: str) -> dict[str, Any]:
    """What came out in a process of its own; one thread, since only such a process may leave its user namespace."""
    paths = [str(ROOT), str(Path(sys.modules[SandboxError.__module__].__file__ or "").parents[2])]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.sandbox.unprivileged", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_user_who_is_not_root_has_the_same_walls_or_is_told_what_to_do() -> None:
    said = tried()
    assert said.pop("user") != 0
    if said.pop("walls"):
        assert said == EXPECTED
    else:
        assert ADVICE in said["refused"]


def test_without_user_namespaces_nothing_runs_and_the_refusal_says_what_to_switch_on() -> None:
    said = tried("off")
    assert (said.pop("walls"), list(said)) == (False, ["user", "refused"])
    assert said["refused"].startswith("bubblewrap does not work here (")
    assert "user.max_user_namespaces above 0" in said["refused"]
