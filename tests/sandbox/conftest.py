"""One sandbox for the tests of this folder, a secret in the trainer's environment, and things of the host to reach for."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from strop.sandbox.bubblewrap import Bubblewrap

SECRET = "hunter2-of-the-trainer"
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Bubblewrap]:
    os.environ["STROP_TEST_SECRET"] = SECRET
    found = Bubblewrap(workers=2)
    yield found
    found.close()
    del os.environ["STROP_TEST_SECRET"]


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What an attacker may know of the host: a file, a port and an abstract socket that are really there."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "answers.json").write_text('{"want": 42}')
    name = f"strop-test-{os.getpid()}"
    project = Path(__file__).parents[2]
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        yield {
            "file": str(folder / "answers.json"),
            "folder": str(folder),
            "project": str(project / "pyproject.toml"),
            "venv": str(project / ".venv"),
            "port": port.getsockname()[1],
            "abstract": name,
        }
