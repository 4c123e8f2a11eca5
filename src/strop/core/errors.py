"""Errors that people see. Invariant: a message says what is wrong, what is allowed and what to do.

    StropError
    |-- UsageError      the request cannot work (configuration, missing file): exit code 2, nothing was changed
    |-- RunError        a run had to stop (too many failures, non-finite streak): exit code 1, the run folder is kept
    |-- EngineError     an engine was asked for something it refuses or cannot do
    |   `-- EngineLost  the engine itself is gone: no episode's data, it ends the run
    `-- SandboxError    no working sandbox here (core/sandbox.py): exit code 2, no untrusted code was run

An episode that goes wrong is data (`Trajectory.error`), never one of these.
"""


class StropError(Exception):
    """Root of all errors raised on purpose by Strop."""


class UsageError(StropError, ValueError):
    """The user's request cannot work; the text says what to change. The command line exits with code 2."""


class RunError(StropError, RuntimeError):
    """A run had to stop; what was done so far is kept. The command line exits with code 1."""


class EngineError(StropError, RuntimeError):
    """An engine was asked for something that it refuses (a prompt beyond its window, an unsupported model)."""


class EngineLost(EngineError):  # noqa: N818  # what happened, not a fault in a request
    """The process of an engine is gone: everything that waits for it ends, and every later call.

    Args:
        text: what happened.
        last: the last that the process wrote (its traceback, if it had time for one).
    """

    def __init__(self, text: str, last: str = "") -> None:
        super().__init__(f"{text}. It said last:\n{last}" if last else text)
        self.last = last
