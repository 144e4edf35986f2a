"""The torch engine over several processes: each runs some of the layers, on a device of its own where there are GPUs.

Rows travel between stages through the memory of the host.
"""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..engine import Engine
from ..facts import Abilities, KvFacts, ModelFacts, Settings
from ..pipeline import Pipeline, Stage, StageBatch, even
from ..results import Result
from . import attention, sampling
from . import weights as weights_of
from .attention import KvCache
from .config import LlamaConfig
from .failures import judging
from .model import Llama, Rows
from .runner import DTYPES, block_sizes, bytes_of, replace_block
from .trial import kernel_works

log = logging.getLogger(__name__)

CPU_KV_TOKENS = 16_384
RESERVE = 2 << 30
"""Bytes of a GPU's free memory that are left for sampling, libraries, and what nobody counts."""


@dataclass(frozen=True)
class Part:
    """Layers of one stage, and where they run."""

    layers: range
    device: str
    threads: int


def build(
    args: argparse.Namespace, model: Path, config: LlamaConfig, facts: ModelFacts, abilities: Abilities, device: torch.device
) -> Engine:
    """Returns an engine whose layers are divided among processes, so that each reads about as many weights in a decode.

    Raises:
        ValueError: there are fewer layers or GPUs than stages, or a stage cannot load its layers.
    """
    n = args.pipeline_parallel
    if device.type == "cuda" and torch.cuda.device_count() < n:
        raise ValueError(
            f"--pipeline-parallel {n}: there are {torch.cuda.device_count()} GPUs; give --device cpu, or fewer stages"
        )
    kv_width, q_width = config.n_kv_heads * config.head_dim, config.n_heads * config.head_dim
    layer = config.hidden_size * (2 * q_width + 2 * kv_width + 3 * config.intermediate_size)
    vocabulary = config.hidden_size * config.vocab_size
    costs = [layer] * config.n_layers
    costs[-1] += vocabulary
    threads = max(1, (args.threads or os.cpu_count() or 1) // n)
    parts = [
        Part(layers, f"cuda:{i}" if device.type == "cuda" else str(device), threads) for i, layers in enumerate(even(costs, n))
    ]
    locals_ = [local(facts, part.layers) for part in parts]
    # Layers of all groups lie side by side in a stage, so a block may be larger than in one process.
    groups = max(1, facts.n_groups)
    facts = replace(facts, kv_bytes_per_token=sum(own.kv_bytes_per_token for own in locals_))
    stages = [
        (f"stage {i} (layers {part.layers.start}-{part.layers.stop - 1})", partial(TorchStage, model, config, own, part))
        for i, (part, own) in enumerate(zip(parts, locals_, strict=True))
    ]
    itemsize = DTYPES[facts.kv_dtype].itemsize
    other = activations(config, args.max_tokens, facts.kv_dtype)
    tokens = args.kv_tokens * groups if args.kv_tokens else _room(parts, locals_, layer * itemsize, vocabulary * itemsize, other)
    kv = KvFacts(block_sizes(args.block_size), tokens, block_io=True)
    log.info("%s, %s, %s: %d stages, room for %d tokens of KV", facts.name, facts.kv_dtype, device, n, tokens // groups)
    shares = [own.kv_bytes_per_token // groups for own in locals_]
    return Pipeline(f"torch {torch.__version__}", facts, kv, abilities, stages, shares)


def local(facts: ModelFacts, layers: range) -> ModelFacts:
    """Returns the facts about some of the layers, which count from 0 there."""
    groups = tuple(replace(group, layers=tuple(i - layers.start for i in group.layers if i in layers)) for group in facts.groups)
    kept = max((len(group.layers) for group in groups), default=len(layers))
    per_layer = 2 * facts.n_kv_heads * facts.head_dim * DTYPES[facts.kv_dtype].itemsize
    bytes_per_token = kept * per_layer * max(1, len(groups))
    return replace(facts, n_layers=len(layers), groups=groups, kv_bytes_per_token=bytes_per_token)


def room(facts: ModelFacts, free: int, other: int = 0) -> int:
    """Returns the tokens whose KV has room in so many bytes of a GPU, in the blocks of all layer groups together.

    `other` are bytes to leave in addition to `RESERVE` and the keys and values that a chunk gathers.
    """
    # A chunk of the longest prompt gathers its keys and values for all query heads.
    gathered = 3 * facts.max_context * facts.n_heads * facts.head_dim * DTYPES[facts.kv_dtype].itemsize
    return int(max(0, free - RESERVE - gathered - other) // (facts.kv_bytes_per_token // facts.n_groups))


def activations(config: LlamaConfig, max_tokens: int, dtype: str) -> int:
    """Returns the bytes that the rows of the largest step take in one layer, at most at once."""
    q_width = config.n_heads * config.head_dim
    row = 3 * config.intermediate_size + 2 * q_width + 4 * config.hidden_size
    return max_tokens * row * int(DTYPES[dtype].itemsize)


def _room(parts: list[Part], locals_: list[ModelFacts], layer_bytes: int, vocabulary_bytes: int, other: int) -> int:
    """Returns the tokens whose KV has room in every stage, in addition to weights that are not loaded yet."""
    if not parts[0].device.startswith("cuda"):
        return CPU_KV_TOKENS * locals_[0].n_groups
    rooms = []
    for i, (part, own) in enumerate(zip(parts, locals_, strict=True)):
        free, _ = torch.cuda.mem_get_info(part.device)
        # The first stage embeds tokens, and the last one has the head.
        weights = layer_bytes * len(part.layers) + vocabulary_bytes * (i in (0, len(parts) - 1))
        rooms.append(room(own, free - weights, other))
    return int(min(rooms))


@dataclass
class Handed:
    """What a stage hands on: rows behind its layers, and the scores so far with the number of layers that count."""

    rows: npt.NDArray[np.generic]
    scores: list[tuple[npt.NDArray[np.float32] | None, int]]


class TorchStage(Stage):
    """Some of the layers of a model of the Llama family."""

    def __init__(self, folder: Path, config: LlamaConfig, facts: ModelFacts, part: Part) -> None:
        torch.set_num_threads(part.threads)
        self._device = torch.device(part.device)
        if self._device.type == "cuda":
            # Triton launches on the current device of the thread, whatever the tensors say.
            torch.cuda.set_device(self._device)
        self._dtype = DTYPES[facts.kv_dtype]
        self._facts = facts
        self._is_first, self._is_last = part.layers.start == 0, part.layers.stop == config.n_layers
        weights = weights_of.load(folder, config, self._dtype, self._device, part.layers)
        self._llama = Llama(config, weights, facts.max_context)
        self._in_place = kernel_works(self._device, self._dtype, facts.n_heads, facts.n_kv_heads, facts.head_dim)
        self._cache: KvCache | None = None

    def begin(self, settings: Settings) -> None:
        """Allocates KV for these layers."""
        self._cache = None
        self._cache = KvCache(self._facts, settings.blocks, settings.block_size, self._dtype, self._device, self._in_place)
        if self._device.type == "cuda":
            # Blocks are copied by another thread, and not before they are zeroed.
            torch.cuda.synchronize(self._device)

    def run(self, batch: StageBatch, before: Any) -> Any:
        """Runs the layers, and samples in the last stage."""
        with judging(self._device), torch.inference_mode():
            return self._run(batch, before)

    def _run(self, batch: StageBatch, before: Any) -> Any:
        cache = self._cache
        assert cache is not None, "begin comes first"
        scorers = attention.all_scorers(batch, self._facts, cache.block_size, self._device)
        flat = [scorer for group in scorers for scorer in group]
        if before is not None:
            for scorer, (total, layers) in zip(flat, before.scores, strict=True):
                scorer.total = None if total is None else torch.from_numpy(total).to(self._device)
                scorer.layers = layers
        ends = (np.cumsum(batch.n_tokens) - 1)[batch.sample]
        rows = Rows(self._on(batch.rows), self._on(batch.positions()), self._on(ends))
        x = self._llama.embed(rows) if before is None else self._received(before.rows)
        x = self._llama.layers(x, rows, attention.over(batch, cache, scorers))
        if not self._is_last:
            scores = [(None if s.total is None else s.total.cpu().numpy(), s.layers) for s in flat]
            return Handed(x.contiguous().view(torch.uint8).cpu().numpy(), scores)
        logits = self._llama.logits(x, rows)
        picked = logits.new_zeros(0).long()
        if len(logits):
            generated = {row: self._on(tokens) for row, tokens in batch.generated.items()}
            picked = sampling.sample(logits, batch, self._seen(batch, len(logits)), generated, batch.allowed())
        faults = sampling.failed(sampling.unfit(x).cpu(), sampling.unfit(logits).cpu(), batch, batch.allowed())
        ranked = sampling.log_probabilities(logits, picked, batch)
        logprobs = ranked.entries(faults) if ranked else []
        return Result(picked.tolist(), logprobs, attention.reported(scorers, batch.by_group), faults)

    def _on(self, values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self._device)

    def _received(self, rows: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(rows).view(self._dtype).to(self._device)

    def _seen(self, batch: StageBatch, n: int) -> Tensor | None:
        """Returns the tokens in each sampling sequence, or None if no sequence has a repetition penalty."""
        if not batch.histories:
            return None
        seen = torch.zeros((n, self._facts.vocab_size), dtype=torch.bool, device=self._device)
        for row, tokens in batch.histories.items():
            seen[row, self._on(tokens)] = True
        return seen

    def read_block(self, block: int) -> bytes:
        """Returns the bytes of a block in these layers."""
        assert self._cache is not None
        return bytes_of(self._cache.data[:, :, block])

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces a block in these layers."""
        assert self._cache is not None
        replace_block(self._cache.data[:, :, block], data)
