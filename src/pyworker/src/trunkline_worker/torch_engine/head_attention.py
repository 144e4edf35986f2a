"""Attention over layer groups of single KV heads: each head of a sequence has a block table, and holes, of its own.

A lane is a decode and one of its KV heads. Lanes read the blocks that their head holds, one behind the other: attention knows no
positions, since keys are rotated when they are written. The lanes of a layer with blocks of similar number are one batch.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ..slots import HOLE, Batch
from . import attention, kernels
from .head_places import Held, Numbers
from .head_scores import HeadScores
from .uploads import upload

NEVER = 1 << 30
"""Position of an entry that no row reads."""


@dataclass
class HeadChunk(attention.Chunk):
    """Rows of one sequence; `blocks` are [layer, KV head, entry]."""

    starts: Tensor
    """First position of each entry, [layer, KV head, entry]; `NEVER` for those that are not there."""
    unread: list[attention.Places]
    """For each layer KV heads and positions of what is gathered and not read."""
    has_holes: bool
    sequence: int


@dataclass
class Lanes:
    """The lanes of all decodes, layer after layer, those of a layer by the number of their blocks."""

    rows: Tensor
    """Row of queries, if each KV head has one."""
    blocks: Tensor
    """Blocks of keys, [lane, entry]."""
    ends: Tensor
    """Number of positions."""
    parts: list[list[tuple[int, int, int]]]
    """For each layer: first lane, last lane and entries of each batch."""
    unread: dict[int, attention.Places]
    """Lanes and positions of what is gathered for a batch and not read, by its first lane."""
    sequences: Numbers
    """Sequence of each lane in the batch, and below its head."""
    heads: Numbers
    entries: Numbers
    """Places in the block table, [lane, entry]; any one for blocks beyond the end."""


class HeadAttention:
    """The attention of a batch: writes the KV of a layer's rows, and attends."""

    def __init__(self, batch: Batch, cache: attention.KvCache, scores: HeadScores | None) -> None:
        places = cache.heads
        assert places is not None
        self._batch, self._places, self._scores = batch, places, scores
        self._size, self._dim, self._device = cache.block_size, cache.data.shape[-1], cache.data.device
        self._in_place = cache.in_place
        n = cache.data.shape[2]
        self._blocks = cache.data.view(-1, self._size * self._dim)
        """Blocks of keys and values in the order of memory; values are `n` behind their keys."""
        self._values = self._blocks[n:]
        self._cells = cache.data.view(-1, self._dim), self._values.view(-1, self._dim)
        self._offsets = torch.arange(self._size, device=self._device)
        self._write()
        tables = batch.table.tables[:, batch.slots]
        firsts = np.cumsum(batch.n_tokens) - batch.n_tokens
        self._chunks = [self._chunk(i, int(firsts[i]), tables[:, i : i + 1]) for i in np.flatnonzero(batch.n_tokens > 1).tolist()]
        single = np.flatnonzero(batch.n_tokens == 1)
        self._lanes = self._decodes(single, firsts[single], tables[:, single]) if len(single) else None
        if scores is not None and self._lanes is not None:
            self._score_lanes(self._lanes, scores)

    def _write(self) -> None:
        """Finds the rows whose KV is written, and the cells of their keys, [layer, row and head]."""
        batch, size = self._batch, self._size
        positions = batch.positions()
        of_row = np.repeat(np.arange(len(batch)), batch.n_tokens)
        rows = np.flatnonzero(positions >= batch.kv_write_from[of_row])
        self._written = None if len(rows) == len(positions) else upload(rows, self._device)
        positions, of_row = positions[rows].astype(np.int64), of_row[rows]
        blocks = batch.table.tables[:, batch.slots[of_row], positions // size].astype(np.int64)
        if (blocks == HOLE).any():
            raise ValueError("a token is run in a place without a block")
        places = self._places
        cells = (blocks.T[:, places.group] + places.row) * size + (positions % size)[:, None, None]
        self._written_cells = upload(cells.transpose(1, 0, 2).reshape(len(places.group), -1), self._device)

    def _chunk(self, i: int, first: int, tables: npt.NDArray[np.int32]) -> HeadChunk:
        batch, places, size = self._batch, self._places, self._size
        n, computed, end = int(batch.n_tokens[i]), int(batch.computed[i]), int(batch.ends[i])
        held = Held.of(tables, batch.ends[i : i + 1], size)
        width = held.blocks.shape[-1]
        has_holes = width < -(-end // size) or bool((held.counts < width).any())
        starts = np.where(np.arange(width) < held.counts[..., None], held.entries * size, NEVER)
        causal = not has_holes and (computed == 0 or self._device.type == "cuda")
        mask = None
        if not causal and not has_holes:
            places_of = torch.arange(width * size, device=self._device)
            mask = places_of <= torch.arange(computed, end, device=self._device)[:, None]
        blocks = upload(held.blocks[places.group, 0] + places.row[..., None], self._device)
        starts = starts[places.group, 0]
        hidden = [] if causal else [self._unread(of, end) for of in starts]
        starts_on = upload(starts, self._device)
        return HeadChunk(first, n, blocks, mask, causal, end, None, starts_on, hidden, has_holes=has_holes, sequence=i)

    def _unread(self, starts: Numbers, end: int) -> attention.Places:
        """Returns KV heads and positions of what is gathered for entries at `starts` [KV head, entry], and not read."""
        positions = (starts[..., None] + np.arange(self._size)).reshape(len(starts), -1)
        heads, unread = np.nonzero(positions >= end)
        return upload(heads, self._device), upload(unread, self._device)

    def _decodes(self, single: Numbers, firsts: Numbers, tables: npt.NDArray[np.int32]) -> Lanes:
        places, n = self._places, len(single)
        layers, heads = places.group.shape
        held = Held.of(tables, self._batch.ends[single], self._size)
        # Lanes of each layer, [layer, KV head and decode], in the order of their blocks.
        group, head = np.repeat(places.group, n, 1), np.tile(np.repeat(np.arange(heads), n), (layers, 1))
        decode = np.tile(np.arange(n), (layers, heads))
        order = np.argsort(held.counts[group, decode], axis=1, kind="stable")
        group, head, decode = (np.take_along_axis(x, order, 1) for x in (group, head, decode))
        counts = held.counts[group, decode]
        row = np.take_along_axis(places.row, head, 1)
        blocks = held.blocks[group, decode] + row[..., None]
        width = blocks.shape[-1]
        lanes = heads * n
        ends = held.lengths[group, decode].reshape(-1)
        parts = [self._parts(layer * lanes, of) for layer, of in enumerate(counts.tolist())]
        unread: dict[int, attention.Places] = {}
        for first, last, entries in itertools.chain(*parts):
            lane, position = np.nonzero(np.arange(entries * self._size) >= ends[first:last, None])
            unread[first] = upload(lane, self._device), upload(position, self._device)
        return Lanes(
            rows=upload((firsts[decode] * heads + head).reshape(-1), self._device),
            blocks=upload(blocks.reshape(-1, width), self._device),
            ends=upload(ends, self._device),
            parts=parts,
            unread=unread,
            sequences=single[decode].reshape(-1),
            heads=(head + np.arange(layers)[:, None] * heads).reshape(-1),
            entries=held.entries[group, decode].reshape(-1, width),
        )

    def _parts(self, first: int, counts: list[int]) -> list[tuple[int, int, int]]:
        """Returns batches of a layer's lanes with these numbers of blocks, which ascend."""
        parts, at = [], 0
        while at < len(counts):
            end = bisect_right(counts, attention.SPREAD * counts[at] + 1)
            end = max(at + 1, min(end, at + attention.GATHERED // (counts[end - 1] * self._size * self._dim)))
            # The kernel reads each lane to its own end, so one launch does for all.
            end = len(counts) if self._in_place else end
            parts.append((first + at, first + end, counts[end - 1]))
            at = end
        return parts

    def _score_lanes(self, lanes: Lanes, scores: HeadScores) -> None:
        """Finds the places where the scores of lanes go."""
        firsts = scores.first_places(lanes.sequences, scores.lists.reshape(-1)[lanes.heads])
        self._scored = firsts >= 0
        # What is masked beyond the end of a lane adds nothing, wherever it goes.
        places = np.where(self._scored[:, None], firsts[:, None] + lanes.entries, scores.nowhere)
        self._score_places = upload(places, self._device)
        self._score_shares = upload(scores.shares.reshape(-1)[lanes.heads].astype(np.float32), self._device)
        if self._batch.score_max:
            far = self._batch.ends[lanes.sequences] - 1 - attention.FAR
            self._score_starts = upload(lanes.entries * self._size, self._device)
            self._score_far = upload(far.astype(np.int64), self._device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Writes the KV of a layer's rows, and returns the attention of the rows."""
        cells = self._written_cells[layer]
        for to, new in zip(self._cells, (k, v), strict=True):
            to.index_copy_(0, cells, (new if self._written is None else new[self._written]).reshape(-1, self._dim))
        out = torch.empty_like(q)
        for chunk in self._chunks:
            rows = slice(chunk.first, chunk.first + chunk.n)
            out[rows] = self._attend_chunk(layer, q[rows], chunk)
        if self._lanes is not None:
            # Each KV head of a row is a row.
            n_heads = k.shape[1]
            by_lane = q.reshape(len(q) * n_heads, -1, self._dim)
            to = out.view(by_lane.shape)
            for part in self._lanes.parts[layer]:
                rows_of = self._lanes.rows[part[0] : part[1]]
                to[rows_of] = self._attend_lanes(by_lane[rows_of], self._lanes, *part)
        return out

    def _gather(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of blocks [lane, entry] as [lane, position, element]."""
        shape, flat = (len(blocks), -1, self._dim), blocks.reshape(-1)
        return self._blocks.index_select(0, flat).view(shape), self._values.index_select(0, flat).view(shape)

    def _attend_lanes(self, q: Tensor, lanes: Lanes, first: int, last: int, width: int) -> Tensor:
        """Returns the attention of lanes `q` [lane, head of the lane, element]."""
        ends, blocks = lanes.ends[first:last], lanes.blocks[first:last, :width]
        scored = self._scores is not None and bool(self._scored[first:last].any())
        if self._in_place and not scored:
            keys, values = (x.view(-1, self._size, 1, self._dim) for x in (self._blocks, self._values))
            return kernels.paged_decode(q, keys, values, blocks.int(), ends.int())
        keys, values = self._gather(blocks)
        mask = torch.arange(keys.shape[1], device=self._device) < ends[:, None]
        attention.hide(keys[:, None], values[:, None], lanes.unread[first])
        if not scored:
            found = F.scaled_dot_product_attention(q[:, None], keys[:, None], values[:, None], attn_mask=mask[:, None, None])
            return found[:, 0]
        logits = (q.float() @ keys.float().transpose(1, 2)) * self._dim**-0.5
        shares = logits.masked_fill_(~mask[:, None], float("-inf")).softmax(-1)
        self._add_lanes(shares, first, last, width)
        return shares.to(values.dtype) @ values

    def _add_lanes(self, shares: Tensor, first: int, last: int, width: int) -> None:
        """Adds the attention of lanes, [lane, head of the lane, position], to the scores."""
        assert self._scores is not None
        if self._batch.score_max:
            places = self._score_starts[first:last, :width, None] + self._offsets
            far = places <= self._score_far[first:last, None, None]
            values = (shares.amax(1).view(len(shares), width, -1) * far).amax(-1)
        else:
            values = shares.sum(1).view(len(shares), width, -1).sum(-1) * self._score_shares[first:last, None]
        self._scores.add(self._score_places[first:last, :width], values)

    def _attend_chunk(self, layer: int, q: Tensor, chunk: HeadChunk) -> Tensor:
        keys, values = self._gather(chunk.blocks[layer])
        if chunk.unread:
            attention.hide(keys[:, None], values[:, None], chunk.unread[layer])
        if self._scores is not None and self._batch.scored_rows[chunk.sequence] > 0:
            self._add_rows(layer, q, keys, chunk, self._scores)
        if not chunk.has_holes:
            return attention.attend_range(q, keys[None], values[None], chunk)
        mask = self._positions(layer, chunk)[:, None] <= self._row_positions(chunk, chunk.n)[:, None]
        per_head = q.shape[1] // len(keys)
        grouped = q.view(len(q), len(keys), per_head, self._dim).permute(1, 2, 0, 3)
        found = F.scaled_dot_product_attention(
            grouped,
            keys[:, None].expand(-1, per_head, -1, -1),
            values[:, None].expand(-1, per_head, -1, -1),
            attn_mask=mask[:, None],
        )
        return found.permute(2, 0, 1, 3).reshape(q.shape)

    def _positions(self, layer: int, chunk: HeadChunk) -> Tensor:
        """Returns the positions of what a chunk gathers, [KV head, position]."""
        return (chunk.starts[layer][..., None] + self._offsets).flatten(1)

    def _row_positions(self, chunk: HeadChunk, n: int) -> Tensor:
        """Returns the positions of the last `n` rows."""
        return torch.arange(chunk.end - n, chunk.end, device=self._device)

    def _add_rows(self, layer: int, q: Tensor, keys: Tensor, chunk: HeadChunk, scores: HeadScores) -> None:
        """Adds the attention of the last rows of a chunk to the scores, for so many rows at once as memory allows."""
        n = int(self._batch.scored_rows[chunk.sequence])
        heads = np.flatnonzero(scores.lists[layer] >= 0)
        if not len(heads):
            return
        of = upload(heads, self._device)
        keys = keys[of].float()
        positions, starts = self._positions(layer, chunk)[of], chunk.starts[layer][of]
        sequences = np.full(len(heads), chunk.sequence)
        first = upload(scores.first_places(sequences, scores.lists[layer, heads]), self._device)
        share = upload((scores.shares[layer, heads] / n).astype(np.float32), self._device)
        places = torch.where(starts < NEVER, first[:, None] + starts // self._size, scores.nowhere)
        at_once = max(1, attention.SCORED // (q.shape[1] * keys.shape[1]))
        row_positions = self._row_positions(chunk, n)
        grouped = q[-n:].view(n, scores.lists.shape[1], -1, self._dim)[:, of].float()
        for at in range(0, n, at_once):
            rows, behind = grouped[at : at + at_once].permute(1, 2, 0, 3), row_positions[at : at + at_once, None]
            logits = (rows @ keys[:, None].transpose(-1, -2)) * self._dim**-0.5
            seen = positions[:, None] <= behind
            shares = logits.masked_fill_(~seen[:, None], float("-inf")).softmax(-1)
            if self._batch.score_max:
                shares *= (positions[:, None] <= behind - attention.FAR)[:, None]
                values = shares.amax((1, 2)).view(len(keys), -1, self._size).amax(-1)
            else:
                values = shares.sum((1, 2)).view(len(keys), -1, self._size).sum(-1) * share[:, None]
            scores.add(places, values)
