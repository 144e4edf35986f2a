"""CUDA graphs for batches of decodes: captured for padded sizes on first use, then replayed.

This part runs on a GPU alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..slots import Batch
from . import kernels
from .attention import KvCache, write_places
from .model import Llama, Rows


def padded(n: int, least: int) -> int:
    """Returns the size of the graph for `n` entries: a power of two, or one and a half times a power of two."""
    size = least
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 and size > 1 and n <= size * 3 // 2 else _next_power(size)
    return size


def _next_power(n: int) -> int:
    return 1 << n.bit_length()


@dataclass
class Graph:
    """A captured graph with the buffers that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    tokens: Tensor
    positions: Tensor
    places: Tensor
    tables: Tensor
    ends: Tensor
    logits: Tensor


class DecodeGraphs:
    """Runs batches in which each sequence decodes one token."""

    def __init__(self, llama: Llama, cache: KvCache, spare: int, max_context: int) -> None:
        self._llama, self._cache, self._spare = llama, cache, spare
        self._max_blocks = -(-max_context // cache.block_size)
        self._groups = 1 + max(group for group, _ in cache.places.values())
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._pool: tuple[int, int] | None = None

    def run(self, batch: Batch, rows: Rows) -> Tensor:
        """Returns the logits of a batch, valid until the next batch."""
        n, size = len(batch), self._cache.block_size
        width = int(-(-batch.ends.max() // size))
        key = (padded(n, 1), min(padded(width, 16), max(self._max_blocks, width)))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._capture(*key)
        graph.tokens[:n].copy_(rows.tokens)
        graph.positions[:n].copy_(rows.positions)
        host_ends = torch.ones(key[0], dtype=torch.int32)
        host_ends[:n] = torch.from_numpy(batch.ends)
        graph.ends.copy_(host_ends.pin_memory(), non_blocking=True)
        places = torch.full((self._groups, key[0]), self._spare * size, dtype=torch.int64)
        tables = torch.full((self._groups, *key), -1, dtype=torch.int32)
        tables[:, n:, 0] = self._spare
        for group in range(self._groups):
            written, at = write_places(batch, group, size)
            places[group, torch.from_numpy(written)] = torch.from_numpy(at)
            table = batch.table.tables[group, batch.slots, : min(key[1], batch.table.tables.shape[2])]
            tables[group, :n, : table.shape[1]] = torch.from_numpy(np.ascontiguousarray(table))
        graph.places.copy_(places.pin_memory(), non_blocking=True)
        graph.tables.copy_(tables.pin_memory(), non_blocking=True)
        graph.graph.replay()
        return graph.logits[:n].clone()

    def _capture(self, n: int, width: int) -> Graph:
        device, size = self._cache.data.device, self._cache.block_size
        tokens = torch.zeros(n, dtype=torch.int64, device=device)
        positions = torch.zeros(n, dtype=torch.int64, device=device)
        places = torch.full((self._groups, n), self._spare * size, dtype=torch.int64, device=device)
        tables = torch.full((self._groups, n, width), self._spare, dtype=torch.int32, device=device)
        ends = torch.ones(n, dtype=torch.int32, device=device)
        sampled = torch.arange(n, device=device)
        cache = self._cache

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            group = cache.places[layer][0]
            keys, values = cache.of(layer)
            keys.view(-1, *k.shape[1:]).index_copy_(0, places[group], k)
            values.view(-1, *v.shape[1:]).index_copy_(0, places[group], v)
            return kernels.paged_decode(q, keys, values, tables[group], ends)

        rows = Rows(tokens, positions, sampled)
        # The first passes compile kernels and choose algorithms, which a capture must not do.
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._llama.forward(rows, attend)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Blocks are copied on another thread meanwhile, which must not spoil the capture.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._llama.forward(rows, attend)
        self._pool = self._pool or graph.pool()
        return Graph(graph, tokens, positions, places, tables, ends, logits)
