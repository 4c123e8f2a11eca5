"""One attention function for engine and learner, plugged into unmodified `transformers` models.

Every forward of Strop is packed: `input_ids` [1, T] holds the tokens of many sequences without padding, and a *layout*
says who attends to whom. The layout travels as a keyword argument through the model's `**kwargs`, so no mask is built and
no state is global. Invariant: a token attends to itself and to earlier tokens of its own sequence, nothing else.
"""

from collections.abc import Sequence
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
        waste: largest share of padding that a run may hold.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, waste: float = 0.15) -> None:
        self.runs: list[tuple[int, int, int, torch.Tensor | None]] = []  # start, rows, width, gather index or None
        starts = [0]
        for n in lengths:
            starts.append(starts[-1] + n)
        row = 0
        while row < len(lengths):
            end, width, total = row, 0, 0
            while end < len(lengths):
                wider = max(width, lengths[end])
                if end > row and wider * (end + 1 - row) > (1 + waste) * (total + lengths[end]):
                    break
                width, total, end = wider, total + lengths[end], end + 1
            run = lengths[row:end]
            index = None
            if any(n != width for n in run):
                offsets = torch.arange(width)
                ends = torch.tensor(run)[:, None] - 1
                index = (torch.tensor(starts[row:end])[:, None] + torch.minimum(offsets[None], ends)).to(device)
            self.runs.append((starts[row], end - row, width, index))
            row = end
        self.lengths = list(lengths)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """See `Layout.attend`."""
        _, heads, _, dim = query.shape
        repeats = heads // key.shape[1]
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, heads, dim]
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        parts: list[torch.Tensor] = []
        row = 0
        for start, rows, width, index in self.runs:
            if index is None:
                a, b, c = (x[start : start + rows * width].view(rows, width, heads, dim) for x in (q, k, v))
            else:
                a, b, c = (x[index] for x in (q, k, v))
            out = F.scaled_dot_product_attention(
                a.transpose(1, 2), b.transpose(1, 2), c.transpose(1, 2), is_causal=True, scale=scaling
            ).transpose(1, 2)
            if index is None:
                parts.append(out.reshape(rows * width, heads, dim))
            else:
                keep = torch.arange(width, device=q.device)[None] < torch.tensor(
                    self.lengths[row : row + rows], device=q.device
                ).unsqueeze(1)
                parts.append(out[keep])
            row += rows
        return torch.cat(parts).unsqueeze(0)
