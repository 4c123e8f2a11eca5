"""The command line in this process (torch is here already): one run of a command, and how it ended."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from strop.cli.main import main


@dataclass(frozen=True)
class Ran:
    """How one command ended."""

    code: int
    out: str
    err: str


def commander(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """A function that runs `strop` with the given arguments, and `stdin` as its input."""

    def run(*arguments: object, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["strop", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setenv("COLUMNS", "80")
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        found = capsys.readouterr()
        return Ran(code, found.out, found.err)

    return run
