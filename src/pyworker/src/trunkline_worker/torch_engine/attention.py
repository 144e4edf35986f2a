"""Attention over paged KV: prefill chunks one by one, decodes in groups of similar length.

Blocks are gathered into one range of keys and values for PyTorch's attention. On a GPU decodes run in the kernel of `kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from ..facts import ModelFacts
from ..slots import HOLE, Batch
from . import kernels
from .head_places import HeadPlaces
from .uploads import upload

GATHERED = 1 << 24
"""Elements of keys gathered at once for a group of decodes, at most: 64 MiB of f32."""
SPREAD = 1.25
"""Longest block table of a group of decodes, as a multiple of the shortest."""
SCORED = 1 << 25
"""Elements of attention scored at once, at most, if one row has no more: 128 MiB of f32, three times."""
FAR = 32
"""Distance from which attention counts for scores of kind "max", in positions."""


Places = tuple[slice | Tensor, Tensor] | None
"""Sequences and positions of what is gathered and not read."""


@dataclass
class Chunk:
    """Rows of one sequence that attend to one range of gathered blocks."""

    first: int
    n: int
    blocks: Tensor
    mask: Tensor | None
    causal: bool
    end: int
    """Position after the last row."""
    hidden: Places
    """Positions that no row reads: see `hide`."""


@dataclass
class Decodes:
    """Rows of one token each, with tables of similar length."""

    rows: Tensor
    blocks: Tensor
    mask: Tensor | None
    """Positions to read; None for the kernel, which needs none."""
    ends: Tensor
    hidden: Places
    """Positions that are not to be read: see `hide`."""


@dataclass
class Plan:
    """The attention of a batch in one layer group."""

    chunks: list[Chunk]
    decodes: list[Decodes]


class KvCache:
    """Keys and values: [layer in group, keys or values, block, position, head, element].

    Decodes read blocks `in_place` by the kernel, else gathered.
    """

    def __init__(
        self,
        model: ModelFacts,
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        in_place: bool = False,
    ) -> None:
        layers, heads = model.block_shape
        shape = (layers, 2, blocks, block_size, heads, model.head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.heads = HeadPlaces.of(model, blocks) if model.has_head_groups else None
        """Places of the heads, if groups have single heads."""
        self.block_size = block_size
        self.in_place = in_place
        self.places: dict[int, tuple[int, int]] = {i: (0, i) for i in range(model.n_layers)}
        """Group of each layer, and its number in the group."""
        for g, group in enumerate(model.groups):
            self.places.update({layer: (g, i) for i, layer in enumerate(group.layers)})

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values of a layer, each [block, position, head, element]."""
        keys, values = self.data[self.places[layer][1]].unbind(0)
        return keys, values


def write_places(batch: Batch, group: int, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows whose KV is written, and their places: block times block size plus offset."""
    positions = batch.positions()
    of_row = np.repeat(np.arange(len(batch)), batch.n_tokens)
    rows = np.flatnonzero(positions >= batch.kv_write_from[of_row])
    positions, of_row = positions[rows].astype(np.int64), of_row[rows]
    blocks = batch.table.tables[group, batch.slots[of_row], positions // block_size].astype(np.int64)
    if (blocks == HOLE).any():
        raise ValueError("a token is run in a place without a block")
    return rows, blocks * block_size + positions % block_size


def plan(batch: Batch, group: int, cache: KvCache) -> Plan:
    """Returns how the rows of a batch read the blocks of a layer group: in place by the kernel, else gathered."""
    block_size, kv_width = cache.block_size, cache.data.shape[-1] * cache.data.shape[-2]
    firsts = np.cumsum(batch.n_tokens) - batch.n_tokens
    entries = -(-batch.ends // block_size)
    tables = batch.table.tables[group]
    chunks = [
        _chunk(batch, int(i), int(firsts[i]), tables[batch.slots[i], : entries[i]], cache)
        for i in np.flatnonzero(batch.n_tokens > 1)
    ]
    single = np.flatnonzero(batch.n_tokens == 1)
    order = single[np.argsort(entries[single], kind="stable")]
    decodes = []
    at = 0
    while at < len(order):
        shortest = int(entries[order[at]])
        n = int(np.searchsorted(entries[order[at:]], SPREAD * shortest + 1, side="right"))
        n = max(1, min(n, GATHERED // (int(entries[order[at + n - 1]]) * block_size * kv_width)))
        # The kernel reads each sequence to its own end, so one launch does for all.
        n = len(order) if cache.in_place else n
        part = order[at : at + n]
        decodes.append(_decodes(batch, part, firsts[part], tables, int(entries[part].max()), cache))
        at += n
    return Plan(chunks, decodes)


def _chunk(batch: Batch, i: int, first: int, table: np.ndarray, cache: KvCache) -> Chunk:
    n, computed, device = int(batch.n_tokens[i]), int(batch.computed[i]), cache.data.device
    holes = table == HOLE
    blocks = upload(np.where(holes, 0, table).astype(np.int64), device)
    if not holes.any() and (computed == 0 or device.type == "cuda"):
        return Chunk(first, n, blocks, None, causal=True, end=computed + n, hidden=None)
    places = torch.arange(len(table) * cache.block_size, device=device)
    mask = places <= torch.arange(computed, computed + n, device=device)[:, None]
    unread = np.repeat(holes, cache.block_size)
    unread[computed + n :] = True
    if holes.any():
        mask &= upload(~holes, device).repeat_interleave(cache.block_size)
    hidden = (slice(None), upload(np.flatnonzero(unread), device))
    return Chunk(first, n, blocks, mask, causal=False, end=computed + n, hidden=hidden)


def _decodes(batch: Batch, part: np.ndarray, firsts: np.ndarray, tables: np.ndarray, width: int, cache: KvCache) -> Decodes:
    device, block_size = cache.data.device, cache.block_size
    table = tables[batch.slots[part], :width]
    rows, ends = upload(firsts, device), upload(batch.ends[part], device)
    if cache.in_place:
        return Decodes(rows, upload(table, device), None, ends, hidden=None)
    places = np.arange(width * block_size)
    mask = places < batch.ends[part][:, None]
    mask &= np.repeat(table != HOLE, block_size, axis=1)
    # Gathers read some block for an entry without one, and the mask hides it.
    blocks = upload(np.maximum(table, 0).astype(np.int64), device)
    hidden = (upload(of, device) for of in np.nonzero(~mask))
    return Decodes(rows, blocks, upload(mask, device), ends, tuple(hidden))


def over(batch: Batch, cache: KvCache, scorers: list[list[Scorer]]) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
    """Returns the attention of a batch over groups of layers: a function that writes the KV of a layer's rows, and attends."""
    size, device = cache.block_size, cache.data.device
    plans, writes = [], []
    n_rows = int(batch.n_tokens.sum())
    for group in range(len(scorers)):
        plans.append(plan(batch, group, cache))
        rows, places = write_places(batch, group, size)
        kept = None if len(rows) == n_rows else upload(rows, device)
        writes.append((kept, upload(places, device)))

    def attend_layer(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = cache.places[layer][0]
        keys, values = cache.of(layer)
        rows, places = writes[group]
        keys.view(-1, *k.shape[1:]).index_copy_(0, places, k if rows is None else k[rows])
        values.view(-1, *v.shape[1:]).index_copy_(0, places, v if rows is None else v[rows])
        for scorer in scorers[group]:
            scorer.add(q, keys)
        return attend(q, keys, values, plans[group])

    return attend_layer


def attend(q: Tensor, keys: Tensor, values: Tensor, plan: Plan) -> Tensor:
    """Returns the attention of all rows `q` [row, head, element]."""
    out = torch.empty_like(q)
    kv_heads = keys.shape[2]
    for chunk in plan.chunks:
        rows = q[chunk.first : chunk.first + chunk.n]
        out[chunk.first : chunk.first + chunk.n] = _attend_chunk(rows, keys, values, chunk)
    for group in plan.decodes:
        rows = q[group.rows]
        if group.mask is None:
            out[group.rows] = kernels.paged_decode(rows, keys, values, group.blocks, group.ends)
            continue
        n, heads, dim = rows.shape
        k, v = (gather(x, group.blocks) for x in (keys, values))
        hide(k, v, group.hidden)
        grouped = rows.view(n, kv_heads, heads // kv_heads, dim)
        attended = F.scaled_dot_product_attention(grouped, k, v, attn_mask=group.mask[:, None, None, :])
        out[group.rows] = attended.reshape(n, heads, dim)
    return out


def gather(cache: Tensor, blocks: Tensor) -> Tensor:
    """Returns the blocks of `cache` as [sequence, head, position, element]."""
    n, width = blocks.shape
    _, size, heads, dim = cache.shape
    flat = cache.view(cache.shape[0], -1).index_select(0, blocks.reshape(-1).clamp_min(0))
    return flat.view(n, width * size, heads, dim).transpose(1, 2)


def hide(keys: Tensor, values: Tensor, places: Places) -> None:
    """Zeroes gathered keys and values [sequence, head, position, element] at places that a mask hides, [sequence, position].

    A share of 0 is not enough: what an earlier sequence left in a block may be NaN, and so would be the product.
    """
    if places is not None:
        for gathered in (keys, values):
            gathered.transpose(1, 2)[places] = 0


def _attend_chunk(rows: Tensor, keys: Tensor, values: Tensor, chunk: Chunk) -> Tensor:
    k, v = (gather(x, chunk.blocks[None]) for x in (keys, values))
    return attend_range(rows, k, v, chunk)


def attend_range(rows: Tensor, k: Tensor, v: Tensor, chunk: Chunk) -> Tensor:
    """Returns the attention of the rows of a chunk over gathered keys and values, [1, head, position, element]."""
    n, heads = rows.shape[:2]
    kv_heads = k.shape[1]
    q = rows.transpose(0, 1)[None]
    if chunk.causal:
        k, v = k[:, :, : chunk.end], v[:, :, : chunk.end]
    hide(k, v, chunk.hidden)
    if heads != kv_heads:
        k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    # Rows behind a computed part: the mask's diagonal ends in the lower right corner, which flash attention knows without a mask.
    mask = causal_lower_right(n, chunk.end) if chunk.causal and chunk.end > n else chunk.mask
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=chunk.causal and chunk.end == n)
    return out[0].transpose(0, 1)


@dataclass
class Scorer:
    """Adds up the scores of one sequence over layers: attention that each block gets from the last rows to run."""

    first: int
    n: int
    """Rows of the batch that count."""
    end: int
    """Position after the last row."""
    blocks: Tensor
    held: Tensor
    """`True` for positions with KV."""
    use_max: bool
    block_size: int
    weight: float = 1.0
    """Weight of the group's heads in scores of all groups together."""
    layers: int = 0
    total: Tensor | None = None
    _masks: tuple[Tensor, Tensor] | None = None

    def add(self, q: Tensor, keys: Tensor) -> None:
        """Adds the attention of one layer, for so many rows at once as memory allows."""
        k = gather(keys, self.blocks[None])[0].float()
        at_once = max(1, SCORED // (q.shape[1] * k.shape[1]))
        for at in range(0, self.n, at_once):
            self._add_rows(q, k, at, min(self.n, at + at_once))
        self.layers += 1

    def _add_rows(self, q: Tensor, k: Tensor, first: int, last: int) -> None:
        rows = q[self.first + first : self.first + last].float()
        heads, dim = rows.shape[1:]
        grouped = rows.view(last - first, k.shape[0], heads // k.shape[0], dim).permute(1, 2, 0, 3)
        logits = (grouped @ k[:, None].transpose(-1, -2)) * dim**-0.5
        mask, far = self._visible(first, last)
        shares = logits.masked_fill_(~mask, float("-inf")).softmax(-1)
        if self.use_max:
            # Dropped and near positions count nothing.
            by_place = shares.mul_(far).amax((0, 1, 2))
            score = by_place.view(-1, self.block_size).amax(-1)
            self.total = score if self.total is None else torch.maximum(self.total, score)
        else:
            score = shares.sum((0, 1, 2)).view(-1, self.block_size).sum(-1) / (heads * self.n)
            self.total = score if self.total is None else self.total + score

    def _visible(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Returns the positions that each row attends to, and those of them that are far."""
        if self._masks is not None:
            return self._masks
        places = torch.arange(len(self.held), device=self.held.device)
        behind = torch.arange(self.end - self.n + first, self.end - self.n + last, device=places.device)[:, None] - places
        masks = (behind >= 0) & self.held, (behind >= FAR) & self.held
        if last - first == self.n:
            # The same in every layer.
            self._masks = masks
        return masks

    def scores(self) -> list[float]:
        """Returns the score of each entry of the block table."""
        if self.total is None:
            return [0.0] * len(self.blocks)
        total = self.total if self.use_max else self.total / self.layers
        return [float(x) for x in total.tolist()]


class Scores(Protocol):
    """Scores of a sequence, or of all sequences of a batch."""

    total: Tensor | None

    def scores(self) -> list[float]:
        """Returns the scores."""


def reported(scorers: Sequence[Sequence[Scores]], by_group: bool) -> list[float]:
    """Returns the scores of a step by the scorers of each layer group: for each sequence a list of each group, or one of all."""
    groups = [of for of in scorers if of]
    found: list[float] = []
    for of_sequence in zip(*groups, strict=True):
        parts = [part for part in of_sequence if isinstance(part, Scorer)]
        if by_group or len(parts) < 2:
            found += [x for part in of_sequence for x in part.scores()]
        else:
            found += joined(parts)
    return found


def joined(parts: list[Scorer]) -> list[float]:
    """Returns the scores of a sequence over several layer groups together."""
    lists = torch.tensor([part.scores() for part in parts], dtype=torch.float64)
    if parts[0].use_max:
        return [float(x) for x in lists.amax(0)]
    weights = torch.tensor([part.weight * part.layers for part in parts], dtype=torch.float64)
    if not weights.any():
        weights = torch.tensor([part.layers for part in parts], dtype=torch.float64)
    return [float(x) for x in weights @ lists / weights.sum()]


def scorers(batch: Batch, group: int, block_size: int, device: torch.device, weight: float = 1.0) -> list[Scorer]:
    """Returns a scorer for each sequence of a batch that asks for scores."""
    firsts = np.cumsum(batch.n_tokens) - batch.n_tokens
    found = []
    for i in np.flatnonzero(batch.scored_rows > 0):
        end, n = int(batch.ends[i]), int(batch.scored_rows[i])
        table = batch.table.tables[group, batch.slots[i], : -(-end // block_size)]
        found.append(
            Scorer(
                first=int(firsts[i] + batch.n_tokens[i]) - n,
                n=n,
                end=end,
                blocks=upload(np.maximum(table, 0).astype(np.int64), device),
                held=upload(np.repeat(table != HOLE, block_size), device),
                use_max=batch.score_max,
                block_size=block_size,
                weight=weight,
            )
        )
    return found


def all_scorers(batch: Batch, model: ModelFacts, block_size: int, device: torch.device) -> list[list[Scorer]]:
    """Returns the scorers of each layer group; those of groups that do not count are empty."""
    marked = any(group.scored for group in model.groups)
    counts = [group.scored if marked else g == 0 for g, group in enumerate(model.groups)] or [True]
    # A head loses the more with a block the more tokens it keeps: see ScoreKind of the protocol.
    weighs = any(group.weight for group in model.groups)
    weights = [(group.weight / 1000) ** 2 if weighs else 1.0 for group in model.groups] or [1.0]
    return [scorers(batch, g, block_size, device, weights[g]) if counts[g] else [] for g in range(model.n_groups)]
