"""`python -m benchmarks.sandbox`: programs a second in the sandbox: one module, compiled, and four calls.

    warm                  a waiting worker that had 10 ms to prepare, all namespaces of its own
    warm, one of ten      the same, ten in a row, so that each waits for the worker to prepare
    warm, a case of many  one case of ten in one program, each in a process of its own with modules executed anew
    cold, all our walls   a worker started for each program and ended after it (what a run of a command takes)
    cold bubblewrap       plain bubblewrap and an interpreter for each program, the trusted text below
    cold interpreter      an interpreter for each program and no sandbox: the floor of whatever starts Python. It gets a
                          constant text that stands here, never an untrusted one

The bar for a warm worker is 5 times plain bubblewrap. The kinds take turns, program by program, so that what else the
machine does meets all of them alike. Only the ratios of one run mean something on a shared machine, and there those of the
fastest tenth, in which little else ran.
"""

import asyncio
import os
import subprocess
import sys
import time

from strop.core.sandbox import Bounds, Call, Program
from strop.sandbox.bubblewrap import Bubblewrap
from strop.sandbox.worker import bounded

TEXT = '''
def count_words(text):
    """Words and how often each occurs."""
    found = {}
    for word in text.split():
        found[word] = found.get(word, 0) + 1
    return found
'''
PROGRAM = Program({"main": TEXT}, (tuple(Call("main.count_words", ("a b a " * n,)) for n in range(4)),))
MANY = Program({"main": TEXT}, ((Call("main.count_words", ("a b a",)),),) * 10)
TRUSTED = TEXT + "".join(f'print(count_words("a b a " * {n}))\n' for n in range(4))


def measure(rounds: int = 60) -> dict[str, list[float]]:
    """Seconds of each program in order of size, by kind."""
    sandbox = Bubblewrap()
    request = bounded("execute", Bounds(), True)
    seconds: dict[str, list[float]] = {}

    async def many() -> None:
        ran = await sandbox.execute(MANY)
        assert {case[0].kind for case in ran.outcomes} == {"value"}, ran

    async def warm(times: int) -> None:
        for _ in range(times):
            ran = await sandbox.execute(PROGRAM)
            assert [o.kind for o in ran.outcomes[0]] == ["value"] * 4, ran

    def cold() -> None:
        heard = sandbox.ask_cold(request, sandbox.parts_of(PROGRAM), {})
        assert heard.states == {0: ("exited", 0)}, heard

    def wrapped() -> None:
        command = ["bwrap", "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for path in ("/usr", "/lib", "/lib64", "/bin", sys.base_prefix):
            command += ["--ro-bind-try", path, path]
        python = os.path.realpath(sys.executable)
        subprocess.run([*command, python, "-I", "-S", "-c", TRUSTED], check=True, stdout=subprocess.DEVNULL)

    def bare() -> None:
        subprocess.run([sys.executable, "-I", "-S", "-c", TRUSTED], check=True, stdout=subprocess.DEVNULL)

    async def play() -> None:
        for turn in range(rounds + 3):
            for name, share, work in (
                ("warm", 1, lambda: warm(1)),
                ("warm, one of ten", 10, lambda: warm(10)),
                ("warm, a case of many", len(MANY.cases), many),
                ("cold, all our walls", 1, cold),
                ("cold bubblewrap", 1, wrapped),
                ("cold interpreter", 1, bare),
            ):
                await asyncio.sleep(0.01)
                began = time.perf_counter()
                awaited = work()
                if awaited is not None:
                    await awaited
                if turn >= 3:
                    seconds.setdefault(name, []).append((time.perf_counter() - began) / share)

    try:
        asyncio.run(play())
    finally:
        sandbox.close()
    return {name: sorted(found) for name, found in seconds.items()}


def main() -> None:
    """Print the table."""
    found = measure()
    print("programs a second (one module compiled, four calls); x: against cold bubblewrap")
    for name, seconds in found.items():
        columns: list[str] = []
        for share, what in ((0.5, "median"), (0.1, "fastest tenth")):
            mine, cold = (all_[int(share * len(all_))] for all_ in (seconds, found["cold bubblewrap"]))
            columns.append(f"{what} {1000 * mine:7.2f} ms {1 / mine:5.0f}/s {cold / mine:6.2f}x")
        print(f"  {name:20}  {'    '.join(columns)}")


if __name__ == "__main__":
    main()
