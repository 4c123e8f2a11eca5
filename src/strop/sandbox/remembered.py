"""Programs that were run before need not run again: members of a group often hand in the same file.

Invariant: only what a program did by itself is remembered, never a limit of the clock or a broken sandbox; and runs that are
asked for at one time share one run. So a verdict is one of those that running again could have given.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from strop.core.sandbox import Bounds, Executed, Program, Ran, Sandbox, Service
from strop.sandbox.plain import encode

USUAL = Bounds()
MOST = 4096
"""Programs remembered; the one used longest ago goes first."""


class Remembered(Sandbox):
    """A sandbox that remembers what programs gave.

    Args:
        inner: where they run.
    """

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.known: OrderedDict[str, Executed] = OrderedDict()
        self.running: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[Executed]] = {}

    async def run(
        self,
        command: Sequence[str],
        files: Mapping[str, bytes],
        bounds: Bounds = USUAL,
        collect: Sequence[str] = (),
        mounts: Mapping[str, str] | None = None,
    ) -> Ran:
        """Commands are not remembered."""
        return await self.inner.run(command, files, bounds, collect, mounts)

    async def serve(self, command: Sequence[str], mounts: Mapping[str, str], bounds: Bounds = USUAL) -> Service:
        """Services are not remembered."""
        return await self.inner.serve(command, mounts, bounds)

    async def execute(self, program: Program, bounds: Bounds = USUAL, fresh: bool = True) -> Executed:
        """What the program gave the last time, or gives now."""
        key = named(program, bounds, fresh)
        if key in self.known:
            self.known.move_to_end(key)
            return self.known[key]
        here = (asyncio.get_running_loop(), key)
        if here not in self.running:
            self.running[here] = asyncio.create_task(self.inner.execute(program, bounds, fresh))
            self.running[here].add_done_callback(lambda _: self.running.pop(here))
        found = await asyncio.shield(self.running[here])
        if found.ended in ("exited", "signal"):
            self.known[key] = found
            while len(self.known) > MOST:
                self.known.popitem(last=False)
        return found


def named(program: Program, bounds: Bounds, fresh: bool) -> str:
    """A text that is equal for equal programs under equal bounds only."""
    calls = [[[c.function, encode(c.args), encode(dict(c.kwargs))] for c in case] for case in program.cases]
    return json.dumps([sorted(program.modules.items()), calls, repr(bounds), fresh])
