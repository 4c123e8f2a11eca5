"""Where a model comes from, as plain data. Invariant: no torch here, so that a plan can be checked before it is imported."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tiny:
    """A small Llama-type model from configuration: `preset = "tiny(64, 2, 4)"`."""

    width: int = 64
    layers: int = 2
    heads: int = 4


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Which model to load, and how.

    Args:
        path: a local directory, a hub id or a `.gguf` file; None for a preset.
        preset: `tiny` builds a small Llama-type model and its tokenizer from configuration.
        pieces: strings that the preset's tokenizer knows as one token each.
        closed: the preset's tokenizer knows nothing else.
        width, layers, heads, context: size of the preset.
        dtype: weights of engine and learner's forward; masters are always float32.
        device: where it computes.
        seed: of the preset's initial weights.
        checkpointing: recompute activations in the backward pass.
    """

    path: str | None = None
    preset: Literal["tiny"] | None = None
    pieces: tuple[str, ...] = ()
    closed: bool = False
    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 512
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    seed: int = 0
    checkpointing: bool = False
