"""Random streams by name. Invariant: a stream depends on its name only, never on who drew before or beside it."""

import hashlib
from functools import lru_cache
from random import Random
from typing import Literal

import numpy as np

Domain = Literal["train", "eval", "play", "preflight", "demonstrate", "order", "init", "branch", "sampler", "guide"]

DOMAINS: tuple[Domain, ...] = (
    "train",
    "eval",
    "play",
    "preflight",
    "demonstrate",
    "order",
    "init",
    "branch",
    "sampler",
    "guide",
)
"""A name's place is part of its streams: new ones go to the end."""


def stream_key(seed: int, domain: Domain, draw: int = 0, member: int = 0, turn: int = 0) -> tuple[int, ...]:
    """Name of the stream of (seed, domain, draw number, member of the group, turn)."""
    return (seed, DOMAINS.index(domain), draw, member, turn)


def generator(key: tuple[int, ...]) -> np.random.Generator:
    """The numpy generator (Philox, counter based) of a stream. Its key is a hash of the name: numpy's own seeding of a
    stream costs more than drawing a turn from it."""
    digest = hashlib.blake2b(repr(tuple(map(int, key))).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64)))


def python_random(key: tuple[int, ...]) -> Random:
    """The standard library's generator of a stream, for scripted players."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return Random(int.from_bytes(digest[:16], "big"))


def draw_order(seed: int, draw: int, count: int) -> int:
    """Index of the task of a draw: each epoch visits every task once, in its own random order.

    Args:
        seed: the run's seed.
        draw: running number of the draw, from 0.
        count: number of tasks.
    """
    epoch, position = divmod(draw, count)
    return _epoch_order(seed, epoch, count)[position]


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, count: int) -> list[int]:
    return generator(stream_key(seed, "order", epoch)).permutation(count).tolist()
