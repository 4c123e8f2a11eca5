"""One attention function for engine and learner, plugged into unmodified `transformers` models.

Every forward of Strop is packed: `input_ids` [1, T] holds the tokens of many sequences without padding, and a *layout*
says who attends to whom. The layout travels as a keyword argument through the model's `**kwargs`, so no mask is built and
no state is global. Invariant: a token attends to itself and to earlier tokens of its own sequence, nothing else.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from strop.core.errors import UsageError

NAME = "strop"

# What models ask of an attention function and this one does not do. A short probe would not show most of them.
_FOREIGN = ("sliding_window", "softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices")


class Layout(Protocol):
    """Who attends to whom in one packed forward."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attention of one layer.

        Args:
            layer: index of the layer.
            query: [1, heads, T, dim].
            key, value: [1, key heads, T, dim] of the same T tokens.
            scaling: factor on the scores; None means dim ** -0.5.

        Returns:
            [1, T, heads, dim].
        """
        ...


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The function registered with `transformers`; dropout is never applied (ratios must be 1 on fresh data)."""
    if layout is None:
        raise RuntimeError("packed attention was called without a layout; call the model through Policy.hidden")
    foreign = [name for name in _FOREIGN if kwargs.get(name) is not None]
    if foreign:
        raise UsageError(
            f"{type(module).__name__} asks for {', '.join(foreign)}, which packed attention does not do. Choose a "
            "model without it; a window beyond your longest sequence can be set to null in the model's config.json."
        )
    layer: int = module.layer_idx  # type: ignore[assignment]  # every attention module of transformers has it
    return layout.attend(layer, query, key, value, scaling), None


AttentionInterface.register(NAME, packed_attention)  # type: ignore[arg-type]


class RowsLayout:
    """Causal attention inside each row of a pack (the learner's layout).

    Neighbouring rows of similar length share one call: they are padded at the end inside the attention only, where causal
    attention makes padding harmless. Sort rows by length to make the runs long.

    Args:
        lengths: row lengths in the order of the pack; their sum is T.
        device: where the tensors are.
        waste: largest share of padding that a run may hold.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, waste: float = 0.15) -> None:
        # start in the pack, tokens, rows, width, and where the tokens stand in [rows, width] (None: they fill it)
        self.runs: list[tuple[int, int, int, int, torch.Tensor | None]] = []
        start = 0
        for run in runs_of_rows(lengths, waste):
            width, size = max(run), sum(run)
            places = None
            if size < width * len(run):
                places = torch.cat([torch.arange(n) + i * width for i, n in enumerate(run)]).to(device)
            self.runs.append((start, size, len(run), width, places))
            start += size

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """See `Layout.attend`."""
        repeats = query.shape[1] // key.shape[1]
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, heads, dim]
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        parts: list[torch.Tensor] = []
        for start, size, rows, width, places in self.runs:
            a, b, c = (
                _padded(x[start : start + size], places, rows * width).unflatten(0, (rows, width)).transpose(1, 2)
                for x in (q, k, v)
            )
            out = F.scaled_dot_product_attention(a, b, c, is_causal=True, scale=scaling)
            flat = out.transpose(1, 2).flatten(0, 1)
            parts.append(flat if places is None else _Gather.apply(flat, places, size))  # type: ignore[arg-type]
        return torch.cat(parts).unsqueeze(0)


def _padded(x: torch.Tensor, places: torch.Tensor | None, size: int) -> torch.Tensor:
    return x if places is None else _Scatter.apply(x, places, size)  # type: ignore[return-value]


class _Scatter(torch.autograd.Function):
    """Rows of x to distinct places of zeros, and back in the gradient (indexing itself would add up gradients, slowly)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
        ctx.places = places
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, places, x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        return grads[0].index_select(0, ctx.places), None, None


class _Gather(torch.autograd.Function):
    """Rows of x from distinct places; its gradient is a scatter."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
        ctx.places, ctx.size = places, len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        return grads[0].new_zeros(ctx.size, *grads[0].shape[1:]).index_copy_(0, ctx.places, grads[0]), None, None


ALONE = 16
"""Rows of one length that are worth a call of their own, without any padding."""


def runs_of_rows(lengths: Sequence[int], waste: float) -> list[list[int]]:
    """Cut the sequence of row lengths into runs of like length.

    Many rows of exactly one length stand alone; others are joined while padding stays below the share `waste`.
    """
    runs: list[list[int]] = []
    for n, same in groupby(lengths):
        block = [n] * len(list(same))
        last = runs[-1] if runs else []
        joined = [*last, *block]
        wide = max(joined) * len(joined) > (1 + waste) * sum(joined)
        settled = len(set(last)) == 1 and len(last) >= ALONE
        if not last or wide or settled or len(block) >= ALONE:
            runs.append(block)
        else:
            runs[-1] = joined
    return runs
