"""`make bench`: engine, learner and memory of log-probabilities, in one run on one machine.

Only ratios and shares mean something on a shared machine. The floor of a part is the time that its matrix products would
take at the measured rate; what is above it is attention, data movement and Python.
"""

import statistics
import time

import torch

from benchmarks import engine, learner, memory


def multiply_rate() -> float:
    """float32 matrix-multiply rate of one thread, in FLOP/s (median of 5)."""
    torch.set_num_threads(1)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    a @ b
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        a @ b
        rates.append(2 * 1024**3 / (time.perf_counter() - began))
    return statistics.median(rates)


def main() -> None:
    """Print all tables."""
    rate = multiply_rate()
    print(f"float32 matrix products, one thread: {rate / 1e9:.0f} GFLOP/s\n")
    print("(a) engine against transformers' generate, new tokens per second; (c) floor: its matrix products alone")
    for found in engine.measure(repeats=3):
        floor = 2 * engine.parameters() * found.forwarded / rate
        print(
            f"  {found.case:30} {found.engine:6.0f} against {found.generate:6.0f}: {found.ratio:5.2f}x   "
            f"{found.seconds:.2f} s, floor {floor:.2f} s: {floor / found.seconds:.0%} of the rate"
        )
    print("\n(b) learner, packed against padded fixed micro-batches, tokens per second; (c) floor as above")
    for case in learner.results(rate):
        print(
            f"  {case.name:30} {case.packed:6.0f} against {case.padded:6.0f}: {case.ratio:5.2f}x   "
            f"{case.seconds:.2f} s, floor {case.floor:.2f} s: {case.floor / case.seconds:.0%} of the rate"
        )
    print(f"\n(d) peak extra memory of {memory.TOKENS} log-probabilities and their gradient, MB")
    for vocabulary, chunks, direct in memory.results():
        chunk = 512 * vocabulary * 4 / 2**20
        print(
            f"  vocabulary {vocabulary:7,}: {chunks:7.0f} in chunks, {direct:7.0f} at once (one chunk is {chunk:.0f})"
        )


if __name__ == "__main__":
    main()
