"""New tokens per second of `ProcessEngine` against `LocalEngine`: what the way to another process costs.

Both sample the same tokens for 64 sessions (8 groups of 8, four turns) from a model of `model/tiny.py`, one thread of torch
each; the cases are those of `benchmarks/engine.py`. Nothing else runs in the trainer's process here, so that what a process
of its own is for (learning and playing at the same time) does not show: the last column is the share of the time in which the
trainer's process was free for that. Invariant: a ratio pairs two runs that follow each other, so a busy machine slows both.

    python -m benchmarks.process
"""

import argparse
import functools
import statistics
import time

import torch

from benchmarks.engine import VOCABULARY, Case, cases, play_engine, timed
from strop.engine.local import LocalEngine
from strop.engine.process import ProcessEngine
from strop.model.load import prepare
from strop.model.tiny import tiny


def free(engine: ProcessEngine, case: Case) -> float:
    """Share of a run's time in which this process used no processor."""
    began, used = time.perf_counter(), time.process_time()
    play_engine(engine, case)
    return 1 - (time.process_time() - used) / (time.perf_counter() - began)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", default="AC")
    parser.add_argument("--width", type=int, default=64)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = tiny([f"w{i}" for i in range(VOCABULARY)], given.width, context=4096)
    policy = prepare(model, tokenizer)
    here, there = LocalEngine(policy, frozenset()), ProcessEngine(policy, frozenset())
    print(f"{'case':32} {'local tok/s':>12} {'process tok/s':>14} {'ratio':>7} {'trainer free':>13}")
    for case in cases():
        if case.name[0] not in given.cases:
            continue
        for engine in (here, there):
            play_engine(engine, case)  # grows the buffers
        pairs = [
            tuple(timed(functools.partial(play_engine, engine, case), case) for engine in (here, there))
            for _ in range(given.repeats)
        ]
        local, process = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"{case.name:32} {local:12.0f} {process:14.0f} {ratio:6.2f}x {free(there, case):13.0%}")
    there.close()


if __name__ == "__main__":
    main()
