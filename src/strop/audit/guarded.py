"""A user's own verifier as a subject: it runs in the sandbox, because it may itself run what a model wrote. Invariant: its
module is mounted read-only, and one that dies or hangs gives an invalid verdict and is started again."""

import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.audit.local import check_items
from strop.audit.subject import Answer, Item, Place, Subject, read_item
from strop.core.errors import UsageError
from strop.core.sandbox import Bounds, SandboxError, Service
from strop.core.task import Verdict
from strop.sandbox import shared

HOST = Path(__file__).with_name("host.py")
BOUNDS = Bounds(cpu_seconds=600.0, memory_mb=2048, processes=64, open_files=256, file_mb=64)
CANARY = "STROP_AUDIT_API_KEY"
"""A variable that looks like a key in the verifier's environment: programs that it runs should not see it."""
STARTING = 30.0
"""Seconds that importing the user's module may take."""


class Guarded(Subject):
    """A verifier in the sandbox. Make it with `guarded`.

    Args:
        name: `module:attribute`.
        root: host directory that holds the module.
        fresh: number of this process; another gives strings another hash, so that the order of sets is another one.
    """

    def __init__(self, name: str, root: Path, fresh: int = 0) -> None:
        self.address, self.root, self.fresh = name, root, fresh
        self.name = name
        self.service: Service | None = None
        self.index: dict[str, int] = {}

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Ask the process inside, which is started if there is none. Raises `SandboxError` when it dies or hangs."""
        if self.service is None:
            self.service = await shared().serve(self._command(), self._mounts(), BOUNDS)
        try:
            return await self.service.ask(request, seconds)
        except SandboxError:
            await self.renew()
            raise

    def _mounts(self) -> dict[str, str]:
        mounts = {"/host": str(HOST.parent), "/user": str(self.root)}
        package = Path(__file__).parents[2]
        if package.resolve() != self.root.resolve():
            mounts["/source"] = str(package)
        for index, kind in enumerate(("purelib", "platlib")):
            path = sysconfig.get_paths()[kind]
            if Path(path).is_dir() and path not in mounts.values():
                mounts[f"/site{index}"] = path
        return mounts

    def _command(self) -> list[str]:
        module, _, attribute = self.address.partition(":")
        python = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        variables = [f"PYTHONHASHSEED={self.fresh}", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "HOME=/tmp"]
        variables.append(f"{CANARY}=sk-canary")
        inside = [place for place in self._mounts() if place != "/host"]
        flags = ["-s", "-S", "-P", "-B"]
        return ["/usr/bin/env", *variables, python, *flags, "/host/host.py", module, attribute, *inside]

    async def verify(self, item: Item, answer: Answer, changes: Mapping[str, Any] | None = None) -> Verdict:
        """Ask for one verdict; see `Subject.verify`."""
        request = {"op": "verify", "index": self.index[item.id], "answer": answer, "changes": dict(changes or {})}
        try:
            given = await self.ask(request, self.seconds)
        except SandboxError as problem:
            text = str(problem)
            slow = "too long" in text
            return Verdict(None, invalid=f"slow: no verdict within {self.seconds:g} s" if slow else f"died: {text}")
        if "error" in given:
            return Verdict(None, invalid=f"died: {given['error']}")
        return Verdict(given["score"], invalid=given["invalid"])

    async def renew(self) -> None:
        """End the process; the next question starts another."""
        if self.service is not None:
            service, self.service = self.service, None
            await service.close()

    async def again(self) -> "Guarded":
        """The same verifier in a process of its own, with other hashes of strings."""
        other = Guarded(self.address, self.root, self.fresh + 1)
        other.items, other.index, other.threshold, other.seconds = self.items, self.index, self.threshold, self.seconds
        return other

    async def close(self) -> None:
        """End the process."""
        await self.renew()


def root_of(module: str) -> Path:
    """The directory from which a module is imported: the working directory first, then the search path.

    Raises:
        UsageError: there is no such module.
    """
    top = module.split(".")[0]
    for place in ("", *sys.path):
        folder = Path(place or ".").resolve()
        if (
            (folder / f"{top}.py").is_file()
            or (folder / top / "__init__.py").is_file()
            or ((folder / top).is_dir() and top)
        ):
            return folder
    raise UsageError(f"cannot find the module {module!r}; run from its folder, or install it")


async def guarded(name: str, most: int, root: Path | None = None) -> Guarded | None:
    """The subject of `module:attribute`, with up to `most` of its tasks, evenly taken; None if it is a World.

    Raises:
        UsageError: it cannot be imported, or has not what an audit needs.
        SandboxError: there is no sandbox.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{name!r} must be module:attribute, an object with `tasks` and `verify(task, answer)`")
    subject = Guarded(name, root or root_of(module))
    try:
        about = await subject.ask({"op": "describe"}, STARTING)
        if "error" in about:
            raise UsageError(
                f"{name}: {about['error']}. It needs `tasks` and `verify(task, answer) -> float | Verdict`"
            )
        if about["kind"] == "world":
            await subject.close()
            return None
        count = int(about["tasks"])
        picked = list(range(count)) if count <= most else [k * count // most for k in range(most)]
        items: list[Item] = []
        for index in picked:
            told = await subject.ask({"op": "task", "index": index}, STARTING)
            item = read_item(told["task"], index)
            subject.index[item.id] = index
            items.append(item)
    except BaseException:
        await subject.close()
        raise
    subject.items = tuple(items)
    check_items(name, items)
    subject.source, subject.verifier = about["source"], Place(about["verifier"], about["line"], about["owner"])
    subject.threshold, subject.facts = about["threshold"], about["facts"]
    return subject
