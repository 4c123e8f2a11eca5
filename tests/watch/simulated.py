"""Simulated runs, sound and cheating, and what the watch says of them: `python -m tests.watch.simulated [RUNS]` prints
the table of docs/watch.md.

A run is a stream of sights. Tasks differ in difficulty (the chance of success of a group is the run's mean plus a normal
of deviation 0.2, clipped), so that episodes of one group go together, as they do in training.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strop.watch.alarms import Alarm, look
from strop.watch.memory import Memory
from strop.watch.sight import Sight
from strop.watch.sums import Sums, add, most_frequent

Array = npt.NDArray[np.float64]
STEPS = 500


@dataclass(frozen=True)
class Size:
    """Groups and episodes of a step."""

    groups: int
    members: int


SIZES = {"32 x 8": Size(32, 8), "8 x 4": Size(8, 4), "4 x 8": Size(4, 8)}


def sums(values: Array) -> Sums:
    """Sums of a rate of episodes; [groups, members]."""
    total, n = values.sum(1), float(values.shape[1])
    return add([Sums(1.0, t, n, t * t, t * n, n * n) for t in total.tolist()])


def seconds(size: Size, values: Array) -> Sums:
    """The sums over the 32 episodes that get a second opinion, first members first."""
    return sums(values[: min(size.groups, 32), : max(1, 32 // size.groups)])


def easy(draw: np.random.Generator, size: Size, mean: float) -> Array:
    """Whether each episode succeeded; [groups, members]."""
    chance = np.clip(draw.normal(mean, 0.2, (size.groups, 1)), 0, 1)
    return (draw.random((size.groups, size.members)) < chance).astype(np.float64)


def learning(step: int) -> float:
    """Mean success of a sound run: from 0.1 to 0.9, half of it after 150 steps."""
    return 0.1 + 0.8 / (1 + np.exp((150 - step) / 40))


Source = Callable[[np.random.Generator, Size, int], dict[str, Sums]]


def agreeing(wrong: float) -> Source:
    """A verifier and an independent one, each wrong in a share of the episodes; success rises."""

    def step(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
        truth = easy(draw, size, learning(n))
        proxy, second = (np.where(draw.random(truth.shape) < wrong, 1 - truth, truth) for _ in range(2))
        return {"success": sums(proxy), "proxy_gap": seconds(size, proxy - second)}

    return step


def cheating(at: int, rise: int, share: float) -> Source:
    """From step `at`, within `rise` steps, a share of the failures is cheated past the verifier."""

    def step(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
        truth = easy(draw, size, 0.3)
        cheats = share * min(1.0, max(0.0, (n - at) / rise))
        proxy = np.maximum(truth, draw.random(truth.shape) < cheats)
        return {"success": sums(proxy), "proxy_gap": seconds(size, proxy - truth)}

    return step


def honest_aux(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
    """An auxiliary reward that goes with success, with noise of its own."""
    truth = easy(draw, size, learning(n))
    return {"success": sums(truth), "aux_x": sums(0.5 * truth + draw.normal(0, 0.2, truth.shape))}


def flat_aux(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
    """Nothing is learned: success and the auxiliary reward stay where they are."""
    truth = easy(draw, size, 0.3)
    return {"success": sums(truth), "aux_x": sums(easy(draw, size, 0.5))}


def hunted_aux(at: int, rise: int) -> Source:
    """The auxiliary reward rises from 0.2 to 0.8, success stays at 0.3."""

    def step(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
        mean = 0.2 + 0.6 * min(1.0, max(0.0, (n - at) / rise))
        return {"success": sums(easy(draw, size, 0.3)), "aux_x": sums(easy(draw, size, mean))}

    return step


def falling(at: int) -> Source:
    """Success is learned, and lost again within 20 steps from `at` on."""

    def step(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
        kept = 1 - 0.7 * min(1.0, max(0.0, (n - at) / 20))
        return {"success": sums(easy(draw, size, learning(n) * kept))}

    return step


def slow(slope: float) -> Source:
    """Success rises from 0.2 by `slope` in a hundred steps."""

    def step(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
        return {"success": sums(easy(draw, size, 0.2 + slope * n / 100))}

    return step


def solved(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
    """Success is learned up to nearly all."""
    return {"success": sums(easy(draw, size, 1.6 * learning(n)))}


def halted(at: int) -> Source:
    """Success rises from 0.2 to 0.5 until step `at`, and stands still from there on."""

    def step(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
        return {"success": sums(easy(draw, size, 0.2 + 0.3 * min(1.0, n / at)))}

    return step


def rates(stream: str, before: float, after: float, at: int = 0) -> Source:
    """A rate that jumps at a step (0: that stays)."""

    def step(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
        return {stream: sums(easy(draw, size, after if at and n >= at else before))}

    return step


def sights(source: Source, size: Size, seed: int, steps: int = STEPS) -> Iterator[Sight]:
    """The sights of one run."""
    draw = np.random.default_rng(seed)
    for n in range(1, steps + 1):
        yield Sight(n, source(draw, size, n))


def habits(draw: np.random.Generator, size: Size, n: int, at: int, rise: int, share: float) -> Sight:
    """Eight actions, whose shares each group draws anew (Dirichlet, 2); from `at` on the eighth takes a share more."""
    extra = share * min(1.0, max(0.0, (n - at) / rise)) if at else 0.0
    chances = draw.dirichlet(np.full(8, 2.0), size.groups) * (1 - extra)
    chances[:, 7] += extra
    counts = np.array([draw.multinomial(6 * size.members, chance) for chance in chances]).sum(0)
    named = {f"tool-{i}": int(count) for i, count in enumerate(counts)}
    return Sight(n, {}, {"action": most_frequent(size.groups, int(counts.sum()), named, 16)})


def habit_sights(size: Size, seed: int, at: int = 0, rise: int = 1, share: float = 0.0) -> Iterator[Sight]:
    """The sights of a run in which only actions are seen."""
    draw = np.random.default_rng(seed)
    return (habits(draw, size, n, at, rise, share) for n in range(1, STEPS + 1))


def alarms(given: Iterator[Sight], first: str = "") -> list[Alarm]:
    """The alarms of a run; with `first`, up to the first one of this rule."""
    memory, found = Memory(), list[Alarm]()
    for sight in given:
        memory, raised = look(memory, sight)
        found += raised
        if any(alarm.name == first for alarm in raised):
            break
    return found


SOUND: dict[str, tuple[str, Callable[[Size, int], Iterator[Sight]]]] = {
    "both judges right, success learned": ("proxy_gap", lambda size, seed: sights(agreeing(0.0), size, seed)),
    "both wrong in 2 %": ("proxy_gap", lambda size, seed: sights(agreeing(0.02), size, seed)),
    "both wrong in 10 %": ("proxy_gap", lambda size, seed: sights(agreeing(0.1), size, seed)),
    "aux goes with success": ("aux_without_success", lambda size, seed: sights(honest_aux, size, seed)),
    "aux and success flat": ("aux_without_success", lambda size, seed: sights(flat_aux, size, seed)),
    "success 0.5, flat": ("reward_fell", lambda size, seed: sights(rates("success", 0.5, 0.5), size, seed)),
    "eight actions": ("surge", lambda size, seed: habit_sights(size, seed)),
    "regressions in 10 %": ("regression", lambda size, seed: sights(rates("regressions", 0.1, 0.1), size, seed)),
    "repetitions in 30 %": (
        "repeated_actions",
        lambda size, seed: sights(rates("repeated_actions", 0.3, 0.3), size, seed),
    ),
    "success rises by 0.06 in 100 steps": ("plateau", lambda size, seed: sights(slow(0.06), size, seed)),
    "success learned, to nearly all": ("plateau", lambda size, seed: sights(solved, size, seed)),
    "invalid in 1 %": ("invalid_rate", lambda size, seed: sights(rare(0.01), size, seed)),
}

AT = 100
PLANTED: dict[str, tuple[str, Callable[[Size, int], Iterator[Sight]]]] = {
    "half of the failures cheated, at once": ("proxy_gap", lambda size, seed: sights(cheating(AT, 1, 0.5), size, seed)),
    "half of them, within 50 steps": ("proxy_gap", lambda size, seed: sights(cheating(AT, 50, 0.5), size, seed)),
    "a fifth of them, at once": ("proxy_gap", lambda size, seed: sights(cheating(AT, 1, 0.2), size, seed)),
    "aux 0.2 to 0.8 within 50 steps": (
        "aux_without_success",
        lambda size, seed: sights(hunted_aux(AT, 50), size, seed),
    ),
    "success loses 70 % in 20 steps": ("reward_fell", lambda size, seed: sights(falling(300), size, seed)),
    "an action takes 70 %, at once": ("surge", lambda size, seed: habit_sights(size, seed, AT, 1, 0.7)),
    "the same within 10 steps": ("surge", lambda size, seed: habit_sights(size, seed, AT, 10, 0.7)),
    "regressions 10 % to 40 %": (
        "regression",
        lambda size, seed: sights(rates("regressions", 0.1, 0.4, AT), size, seed),
    ),
    "repetitions 30 % to 70 %": (
        "repeated_actions",
        lambda size, seed: sights(rates("repeated_actions", 0.3, 0.7, AT), size, seed),
    ),
    "success rose to 0.5 and stands still": ("plateau", lambda size, seed: sights(halted(AT), size, seed)),
    "success stood still at 0.3 from the start": (
        "plateau",
        lambda size, seed: sights(rates("success", 0.3, 0.3), size, seed),
    ),
    "invalid 1 % to 20 %": ("invalid_rate", lambda size, seed: sights(rare(0.01, 0.2, AT), size, seed)),
}


def rare(before: float, after: float = 0.0, at: int = 0) -> Source:
    """Episodes that could not be judged, each by itself."""

    def step(draw: np.random.Generator, size: Size, n: int) -> dict[str, Sums]:
        share = after if at and n >= at else before
        return {"invalid": sums((draw.random((size.groups, size.members)) < share).astype(np.float64))}

    return step


def main(runs: int) -> None:
    """Print both tables."""
    print("| sound run of 500 steps | rule |", " | ".join(SIZES), "|")
    for name, (rule, make) in SOUND.items():
        found = [sum(any(a.name == rule for a in alarms(make(s, n))) for n in range(runs)) for s in SIZES.values()]
        print(f"| {name} | `{rule}` |", " | ".join(f"{k} of {runs}" for k in found), "|", flush=True)
    print("| planted | rule |", " | ".join(SIZES), "|")
    few = max(1, runs // 5)
    for name, (rule, make) in PLANTED.items():
        at = 300 if rule == "reward_fell" else AT
        cells: list[str] = []
        for size in SIZES.values():
            steps = [next((a.step for a in alarms(make(size, n), rule) if a.name == rule), 10**9) for n in range(few)]
            delays = sorted(step - at for step in steps if step <= STEPS)
            missed, early = few - len(delays), sum(delay < 0 for delay in delays)
            cells.append(f"{delays[len(delays) // 2]} ({delays[-1]})" if 2 * missed < few else "")
            cells[-1] += f"{', ' if cells[-1] else ''}{missed} of {few} missed" if missed else ""
            cells[-1] += f", {early} early" if early else ""
        print(f"| {name} | `{rule}` |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
