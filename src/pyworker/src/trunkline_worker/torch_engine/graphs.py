"""CUDA graphs for batches of decodes: captured for a few sizes before the first request, then replayed.

A batch runs in the smallest graph that has room for it. The output matrix runs behind the graph, so that a graph keeps no logits.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..facts import ModelFacts
from ..slots import Batch
from . import kernels
from .attention import KvCache, write_places
from .model import Llama, Rows

log = logging.getLogger(__name__)

MOST_SEQUENCES = 512
"""Sequences of a graph, at most: larger batches keep a GPU busy without one."""
PARTS = (1, 4, 16)
"""Widths of the graphs, as parts of the longest block table: programs share a sequence by the width of its graph."""
LEAST_WIDTH = 16
LAYER_KERNELS = 25
"""Kernels of a layer in a graph, about."""
KERNEL_BYTES = 16 << 10
"""Memory that the driver keeps for a kernel of a graph, about."""
WORKSPACE = 64 << 20
"""Memory that cuBLAS keeps for the stream of the captures."""


def shapes(max_sequences: int, max_blocks: int) -> list[tuple[int, int]]:
    """Returns sequences and block table entries of the graphs: the largest first, whose memory the others share."""
    most = min(max_sequences, MOST_SEQUENCES)
    sizes = {most}
    size = 1
    while size < most:
        sizes.add(size)
        if size >= 32:
            sizes.add(min(most, size * 3 // 2))
        size *= 2
    widths = {min(max_blocks, max(LEAST_WIDTH, -(-max_blocks // part))) for part in PARTS}
    return sorted(((n, width) for n in sizes for width in widths), reverse=True)


def fitting(captured: Iterable[tuple[int, int]], n: int, width: int) -> tuple[int, int] | None:
    """Returns the smallest of the shapes with room for `n` sequences with `width` block table entries, if there is one."""
    return min((shape for shape in captured if shape[0] >= n and shape[1] >= width), default=None)


def memory(model: ModelFacts, max_sequences: int, block_size: int) -> int:
    """Returns the bytes that the graphs of a model take, about."""
    found = shapes(max_sequences, -(-model.max_context // block_size))
    driver = len(found) * model.n_layers * LAYER_KERNELS * KERNEL_BYTES
    tables = sum(4 * model.n_groups * n * width for n, width in found)
    partial = max(_partial(model, n, width * block_size) for n, width in found)
    return driver + tables + partial + WORKSPACE


def _partial(model: ModelFacts, n: int, positions: int) -> int:
    """Returns the bytes of what the programs of the decode kernel leave to be merged."""
    splits = -(-positions // kernels.split_of(positions, n * model.n_kv_heads))
    return 4 * n * model.n_heads * splits * (model.head_dim + 2)


def free(device: torch.device) -> None:
    """Returns to the device all memory that nothing uses, for example that of graphs without an owner."""
    gc.collect()
    if device.type == "cuda":
        # A graph may still run.
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


@dataclass
class Graph:
    """A captured graph with the buffers that it reads and writes."""

    replay: Callable[[], object]
    tokens: Tensor
    positions: Tensor
    places: Tensor
    tables: Tensor
    ends: Tensor
    out: Tensor
    """Rows after the last norm."""


class DecodeGraphs:
    """Runs batches in which each sequence decodes one token."""

    def __init__(self, llama: Llama, cache: KvCache, spare: int, max_context: int) -> None:
        self._llama, self._cache, self._spare = llama, cache, spare
        self._max_blocks = -(-max_context // cache.block_size)
        self._groups = 1 + max(group for group, _ in cache.places.values())
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._pool: tuple[int, int] | None = None
        self._side: torch.cuda.Stream | None = None

    def capture(self, max_sequences: int) -> None:
        """Captures graphs for batches of up to `max_sequences` sequences."""
        begun = time.monotonic()
        for shape in shapes(max_sequences, self._max_blocks):
            self._graphs[shape] = self._capture(*shape)
        log.info("%d CUDA graphs captured in %.1f s", len(self._graphs), time.monotonic() - begun)

    def run(self, batch: Batch, rows: Rows) -> Tensor | None:
        """Returns the logits of a batch, or None if no graph has room for it."""
        n, size = len(batch), self._cache.block_size
        shape = fitting(self._graphs, n, int(-(-batch.ends.max() // size)))
        if shape is None:
            return None
        graph = self._graphs[shape]
        graph.tokens[:n].copy_(rows.tokens)
        graph.positions[:n].copy_(rows.positions)
        ends = torch.ones(shape[0], dtype=torch.int32)
        ends[:n] = torch.from_numpy(batch.ends)
        places = torch.full((self._groups, shape[0]), self._spare * size, dtype=torch.int64)
        tables = torch.full((self._groups, *shape), -1, dtype=torch.int32)
        tables[:, n:, 0] = self._spare
        for group in range(self._groups):
            written, at = write_places(batch, group, size)
            places[group, torch.from_numpy(written)] = torch.from_numpy(at)
            table = batch.table.tables[group, batch.slots, : min(shape[1], batch.table.tables.shape[2])]
            tables[group, :n, : table.shape[1]] = torch.from_numpy(np.ascontiguousarray(table))
        for buffer, values in ((graph.ends, ends), (graph.places, places), (graph.tables, tables)):
            buffer.copy_(values.pin_memory() if buffer.is_cuda else values, non_blocking=True)
        graph.replay()
        return self._llama.head(graph.out[:n])

    def _capture(self, n: int, width: int) -> Graph:
        device, size = self._cache.data.device, self._cache.block_size
        tokens = torch.zeros(n, dtype=torch.int64, device=device)
        positions = torch.zeros(n, dtype=torch.int64, device=device)
        places = torch.full((self._groups, n), self._spare * size, dtype=torch.int64, device=device)
        tables = torch.full((self._groups, n, width), self._spare, dtype=torch.int32, device=device)
        ends = torch.ones(n, dtype=torch.int32, device=device)
        rows = Rows(tokens, positions, torch.arange(n, device=device))
        cache = self._cache

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            group = cache.places[layer][0]
            keys, values = cache.of(layer)
            keys.view(-1, *k.shape[1:]).index_copy_(0, places[group], k)
            values.view(-1, *v.shape[1:]).index_copy_(0, places[group], v)
            return kernels.paged_decode(q, keys, values, tables[group], ends)

        replay, out = self._recorded(lambda: self._llama.last(self._llama.layers(self._llama.embed(rows), rows, attend), rows))
        return Graph(replay, tokens, positions, places, tables, ends, out)

    def _recorded(self, forward: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """Captures a forward pass on a GPU. Returns a function that runs it again, and where it leaves its rows."""
        device = self._cache.data.device
        # PyTorch keeps a workspace of cuBLAS for each stream, so all captures take this one.
        self._side = self._side or torch.cuda.Stream(device)
        # The first pass compiles kernels and chooses algorithms, which a capture must not do.
        self._side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._side):
            forward()
        torch.cuda.current_stream(device).wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
            out = forward()
        self._pool = self._pool or graph.pool()
        return graph.replay, out
