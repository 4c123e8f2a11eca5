"""Keys and values of many sessions, and the attention of one packed engine step over them.

Buffers are [slots, key heads, length, dim], one pair a layer; a session owns one slot. Invariant: position p of a slot
is written before its own session reads it, and what a call reads beyond a session's length is finite and masked out.
Two things follow: buffers are zeroed, never `empty` (a masked NaN still poisons the values), and stale keys of a former
session do no harm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

Indices = npt.NDArray[np.int64]

CALL_BYTES = 96_000
"""Key and value bytes that one core reads in the time of one more attention call (measured: about 10 us at 10 GB/s)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of new tokens of one slot: positions first .. first + count - 1, all earlier ones being cached."""

    slot: int
    first: int
    count: int


def tensor(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array as a tensor on a device; on the CPU they share memory."""
    return torch.from_numpy(array).to(device)


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose pages the system commits when they are first written (CPU), so that roomy buffers cost nothing."""
    with torch.inference_mode(False):  # an ordinary tensor: it can be written to inside and outside of inference mode
        if device.type != "cpu":
            return torch.zeros(tuple(shape), dtype=dtype, device=device)
        size = int(np.prod(shape)) * dtype.itemsize
        raw = np.zeros(size + 64, np.uint8)  # calloc; torch.zeros would touch every page
        skip = -raw.ctypes.data % 64  # whole cache lines
        return tensor(raw[skip : skip + size], device).view(dtype).view(tuple(shape))


class Cache:
    """Key and value buffers of all layers, allocated when the first layer's shapes are seen.

    Args:
        layers: number of layers.
        slots, length: rows and positions; see `grow`.
    """

    def __init__(self, layers: int, slots: int, length: int) -> None:
        self.layers, self.slots, self.length = layers, slots, length
        self.data: torch.Tensor | None = None  # [layers, 2, slots, key heads, length, dim]
        self._causal: torch.Tensor | None = None

    def reset(self, slots: int, length: int) -> None:
        """Drop the buffers; the next step makes zeroed ones of this shape."""
        self.slots, self.length, self.data, self._causal = slots, length, None, None

    def grow(self, slots: int, length: int, keep: Iterable[int]) -> None:
        """Enlarge the buffers; what the slots in `keep` hold is kept."""
        old = self.data
        self.reset(slots, length)
        if old is not None:
            layers, two, _, heads, positions, dim = old.shape
            self.data = lazy_zeros((layers, two, slots, heads, length, dim), old.dtype, old.device)
            for slot in keep:
                self.data[:, :, slot, :, :positions] = old[:, :, slot]

    def copy(self, source: int, targets: Sequence[int], count: int) -> None:
        """Copy the first `count` positions of a slot to other slots, all layers at once."""
        if self.data is None:
            raise RuntimeError("nothing was cached yet")
        for target in targets:
            self.data[:, :, target, :, :count] = self.data[:, :, source, :, :count]

    def views(self, layer: int, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value buffers of a layer, each [slots, key heads, length, dim]; `key` is [1, key heads, T, dim]."""
        if self.data is None:
            shape = (self.layers, 2, self.slots, key.shape[1], self.length, key.shape[3])
            self.data = lazy_zeros(shape, key.dtype, key.device)
        return self.data[layer, 0], self.data[layer, 1]

    def causal(self, first: int, count: int, like: torch.Tensor) -> torch.Tensor:
        """Mask of `count` queries from position `first` on, over first + count keys: a view of one band table.

        Row i of the table allows columns up to i + length; the view starts at column length - first.
        """
        table = self._causal
        if table is None or table.shape[0] < count:
            band = torch.full((count, self.length + count), float("-inf"), dtype=like.dtype, device=like.device)
            self._causal = table = band.triu(self.length + 1)
        start = self.length - first
        return table[:count, start : start + first + count]


class StepLayout:
    """Attention of one step: decode tokens first (one a slot, slots ascending), then the chunks, in order.

    Index tensors and runs are made once a step; `attend` is called once a layer. Implements
    `strop.model.attention.Layout`.

    Args:
        cache: the buffers.
        slots: slots that decode, ascending; int64 [n].
        lengths: keys that each of them sees, its new token included; int64 [n].
        chunks: prefill pieces.
        device: where the model is.
        whole: decode all slots in one masked call over the whole buffer instead of several calls on cut views. One call
            suits devices where launching costs more than reading; cut views suit a CPU.
    """

    def __init__(
        self,
        cache: Cache,
        slots: Indices,
        lengths: Indices,
        chunks: Sequence[Chunk],
        device: torch.device,
        whole: bool = False,
    ) -> None:
        self._cache, self._device = cache, device
        rows = [slots, *(np.full(c.count, c.slot) for c in chunks)]
        places = [lengths - 1, *(np.arange(c.first, c.first + c.count) for c in chunks)]
        self._slots = np.concatenate(rows)
        self.positions = np.concatenate(places)
        self._flat: torch.Tensor | None = None  # needs the number of key heads: made in the first layer
        self._decode = slots
        self._lengths = lengths
        self._whole = whole and len(slots) > 0
        self._decode_runs: list[tuple[int, int, int, int, torch.Tensor | None]] | None = [] if self._whole else None
        self._chunk_runs = runs_of_chunks(chunks, len(slots))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """See `strop.model.attention.Layout.attend`; writes the new keys and values first."""
        keys, values = self._cache.views(layer, key)
        heads, dim = query.shape[1], query.shape[3]
        if self._flat is None or self._decode_runs is None:
            self._prepare(keys, query)
        flat, runs = self._flat, self._decode_runs
        assert flat is not None
        assert runs is not None
        keys.view(-1, dim).index_copy_(0, flat, key[0].transpose(0, 1).reshape(-1, dim))
        values.view(-1, dim).index_copy_(0, flat, value[0].transpose(0, 1).reshape(-1, dim))
        grouped = (
            query[0].transpose(0, 1).reshape(query.shape[2], keys.shape[1], -1, dim)
        )  # [T, key heads, repeats, dim]
        parts: list[torch.Tensor] = []
        if self._whole:
            parts.append(self._attend_whole(grouped, keys, values, scaling))
        for start, end, slot, width, mask in runs:
            # heads that share a key head are the queries of one call: no key is copied or read twice
            rows = slice(slot, slot + end - start)
            out = F.scaled_dot_product_attention(
                grouped[start:end], keys[rows, :, :width], values[rows, :, :width], mask, scale=scaling
            )
            parts.append(out.reshape(end - start, heads, dim))
        for run in self._chunk_runs:
            parts.append(self._attend_chunks(run, grouped, keys, values, scaling))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)

    def _prepare(self, keys: torch.Tensor, like: torch.Tensor) -> None:
        """Index tensors and decode runs: they depend on the number of key heads and on the width of a key."""
        _, heads, length, dim = keys.shape
        flat = ((self._slots * heads)[:, None] + np.arange(heads)) * length + self.positions[:, None]
        self._flat = tensor(flat.reshape(-1), self._device)
        slack = CALL_BYTES // (2 * heads * dim * like.element_size())
        if not self._whole:
            self._decode_runs = []
            lengths = self._lengths.tolist()
            table = length_mask(self._lengths, max(lengths), like) if lengths else None
            for start, end, width in runs_of_slots(self._decode.tolist(), lengths, slack):
                ragged = table is not None and any(n != width for n in lengths[start:end])
                mask = table[start:end, :, :, :width] if table is not None and ragged else None
                self._decode_runs.append((start, end, int(self._decode[start]), width, mask))
        else:
            top = int(self._decode[-1]) + 1
            lengths = np.ones(top, np.int64)  # slots that do not decode see one key: their output is finite and unused
            lengths[self._decode] = self._lengths
            self._whole_mask = length_mask(lengths, int(self._lengths.max()), like)
            self._whole_rows = tensor(self._decode, self._device)

    def _attend_whole(
        self, grouped: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """All decode tokens in one masked call; [n, heads, dim]."""
        top, width = int(self._decode[-1]) + 1, int(self._lengths.max())
        query = grouped.new_zeros(top, *grouped.shape[1:])
        query[self._whole_rows] = grouped[: len(self._decode)]
        out = F.scaled_dot_product_attention(
            query, keys[:top, :, :width], values[:top, :, :width], self._whole_mask, scale=scaling
        )
        return out[self._whole_rows].flatten(1, 2)

    def _attend_chunks(
        self, run: "ChunkRun", grouped: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Chunks of one shape: causal over what their slots hold; [rows * count, heads, dim]."""
        _, heads, repeats, dim = grouped.shape
        width = run.first + run.count
        rows = slice(run.slot, run.slot + (run.rows - 1) * run.stride + 1, run.stride)
        query = grouped[run.start : run.start + run.rows * run.count].reshape(run.rows, run.count, heads, repeats, dim)
        query = query.permute(0, 2, 3, 1, 4).flatten(0, 1)  # [rows * key heads, repeats, count, dim]
        shape = (run.rows * heads, repeats, width, dim)
        key = keys[rows, :, :width].flatten(0, 1).unsqueeze(1).expand(shape)
        value = values[rows, :, :width].flatten(0, 1).unsqueeze(1).expand(shape)
        mask = self._cache.causal(run.first, run.count, query) if run.first else None
        out = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, scale=scaling)
        out = out.reshape(run.rows, heads, repeats, run.count, dim)
        return out.permute(0, 3, 1, 2, 4).reshape(-1, heads * repeats, dim)


@dataclass(slots=True)
class ChunkRun:
    """Chunks that share one call: equal `first` and `count`, slots in steps of `stride`, tokens from `start` on."""

    start: int
    slot: int
    first: int
    count: int
    rows: int = 1
    stride: int = 1


def runs_of_chunks(chunks: Sequence[Chunk], start: int) -> list[ChunkRun]:
    """Join neighbouring chunks of one shape whose slots are evenly spaced, so that their keys are one strided view."""
    runs: list[ChunkRun] = []
    for chunk in chunks:
        last = runs[-1] if runs else None
        if last and (last.first, last.count) == (chunk.first, chunk.count) and chunk.slot > last.slot:
            step = chunk.slot - last.slot - (last.rows - 1) * last.stride
            if last.rows == 1 or step == last.stride:
                last.stride, last.rows = step, last.rows + 1
                start += chunk.count
                continue
        runs.append(ChunkRun(start, chunk.slot, chunk.first, chunk.count))
        start += chunk.count
    return runs


def runs_of_slots(slots: Sequence[int], lengths: Sequence[int], slack: int) -> list[tuple[int, int, int]]:
    """Cut decoding slots into runs of neighbours, each one call as wide as its longest; (start, end, width) each.

    A slot joins the run before it when the keys this wastes (its own padding, and the widening of the others) cost less
    than a call of its own, which is worth `slack` keys.
    """
    runs: list[tuple[int, int, int]] = []
    start, width = 0, 0
    for i, length in enumerate(lengths):
        if i > start:
            wider = max(width, length)
            waste = (wider - width) * (i - start) + wider - length
            if slots[i] != slots[i - 1] + 1 or waste > slack:
                runs.append((start, i, width))
                start, width = i, length
            else:
                width = wider
        else:
            width = length
    if lengths:
        runs.append((start, len(lengths), width))
    return runs


def length_mask(lengths: Indices, width: int, like: torch.Tensor) -> torch.Tensor | None:
    """Additive mask [n, 1, 1, width] that hides keys from each row's length on; None where nothing is hidden."""
    if (lengths == width).all():
        return None
    hidden = np.where(np.arange(width) < lengths[:, None], np.float32(0), np.float32("-inf"))
    return tensor(hidden, like.device).to(like.dtype)[:, None, None]
