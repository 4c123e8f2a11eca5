"""An event loop whose clock jumps: waiting takes no time, and what happens in which order does not depend on the machine."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class JumpingLoop(asyncio.SelectorEventLoop):
    """Timers fire in order as soon as nothing else is to do. For code without threads and sockets."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        look = selector.select

        def select(timeout: float | None = None) -> Any:
            if timeout is not None and timeout > 0:
                self._now += timeout
            return look(0)

        selector.select = select

    def time(self) -> float:
        return self._now


def jumping(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on such a loop."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)
