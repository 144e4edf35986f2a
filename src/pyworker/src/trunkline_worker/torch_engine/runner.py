"""The engine: runs batches with PyTorch, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..engine import Abilities, Engine, KvFacts, ModelFacts, Result, Settings
from ..slots import Batch
from . import attention, kernels, sampling
from .attention import KvCache
from .config import LlamaConfig
from .graphs import DecodeGraphs
from .model import Llama, Rows
from .weights import Weights

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
MAX_LOGPROBS = 20


class TorchEngine(Engine):
    """Runs a model of the Llama family."""

    def __init__(
        self, config: LlamaConfig, weights: Weights, facts: ModelFacts, kv: KvFacts, abilities: Abilities, graphs: bool = True
    ) -> None:
        self.program = f"torch {torch.__version__}"
        self.model, self.kv, self.abilities = facts, kv, abilities
        self.device = weights.embedding.device
        self.deferred = self.device.type == "cuda"
        self._llama = Llama(config, weights, facts.max_context)
        self._dtype = weights.embedding.dtype
        self._cache: KvCache | None = None
        self._use_graphs = graphs and self.deferred and kernels.usable(weights.embedding.new_empty(1, facts.head_dim))
        self._graphs: DecodeGraphs | None = None
        self._last = torch.zeros(0, dtype=torch.int64, device=self.device)
        """Token sampled last in each slot."""
        self._seen = torch.zeros((0, facts.vocab_size), dtype=torch.bool, device=self.device)
        """Tokens in the sequences of slots with a repetition penalty."""
        self._seen_by = np.zeros((0, 2), np.int64)
        """For each slot: the start that its row of `_seen` belongs to, and the tokens entered."""
        self._copies = torch.cuda.Stream(self.device) if self.deferred else None
        self._staging: Tensor | None = None

    def begin(self, settings: Settings) -> None:
        """Allocates KV, and a spare block for padding."""
        self._cache, self._graphs, self._staging = None, None, None
        self._seen_by[:] = 0
        cache = KvCache(self.model, settings.blocks + 1, settings.block_size, self._dtype, self.device)
        self._cache = cache
        if self._use_graphs:
            self._graphs = DecodeGraphs(self._llama, cache, settings.blocks, self.model.max_context)
        if self.deferred:
            self._staging = torch.empty_like(cache.data[:, :, 0], device="cpu").pin_memory()

    def reset(self) -> None:
        """Forgets all sequences; blocks are written before they are read again."""
        self._seen_by[:] = 0

    def forget_slots(self) -> None:
        """Forgets all sequences."""
        self._seen_by[:] = 0

    def run(self, batch: Batch) -> Result:
        """Runs a batch to its end."""
        return self.submit(batch)()

    def submit(self, batch: Batch) -> Callable[[], Result]:
        """Starts a batch; on a CPU it has run when this returns."""
        with torch.inference_mode():
            return self._submit(batch)

    def _submit(self, batch: Batch) -> Callable[[], Result]:
        cache = self._cache
        assert cache is not None, "begin comes first"
        scorers = [
            attention.scorers(batch, g, cache.block_size, self.device) if self._counts(g) else []
            for g in range(self.model.n_groups)
        ]
        rows = self._rows(batch)
        if self._graphs is not None and batch.n_tokens.max() == 1 and batch.sample.all() and not any(scorers):
            logits = self._graphs.run(batch, rows)
        else:
            logits = self._llama.forward(rows, self._attend(batch, scorers))
        picked = sampling.sample(logits, batch, self._seen_in(batch)) if len(logits) else logits.new_zeros(0).long()
        self._remember(batch, picked)
        event = torch.cuda.Event() if self.deferred else None
        if event is not None:
            on_host = torch.empty(picked.shape, dtype=picked.dtype, pin_memory=True).copy_(picked, non_blocking=True)
            event.record()
        else:
            on_host = picked

        def wait() -> Result:
            if event is not None:
                event.synchronize()
            with torch.inference_mode():
                logprobs = sampling.log_probabilities(logits, picked, batch)
                scores = [x for group in scorers for scorer in group for x in scorer.scores()]
            return Result([int(token) for token in on_host.tolist()], logprobs, scores)

        return wait

    def _counts(self, group: int) -> bool:
        """Returns `True` if the layers of a group count for scores."""
        groups = self.model.groups
        return groups[group].scored if any(g.scored for g in groups) else group == 0

    def _rows(self, batch: Batch) -> Rows:
        ends = np.cumsum(batch.n_tokens)
        host = torch.from_numpy(batch.tokens().astype(np.int64))
        tokens = host.to(self.device, non_blocking=True)
        if self.deferred and bool((host < 0).any()):
            # The sample of a step that still runs: the device has it already.
            self._grow_last(batch.table.size)
            slots = np.repeat(batch.slots, batch.n_tokens).astype(np.int64)
            tokens = torch.where(tokens < 0, self._last[torch.from_numpy(slots).to(self.device)], tokens)
        positions = torch.from_numpy(batch.positions().astype(np.int64)).to(self.device, non_blocking=True)
        sampled = torch.from_numpy((ends - 1)[batch.sample].astype(np.int64)).to(self.device, non_blocking=True)
        return Rows(tokens, positions, sampled)

    def _attend(self, batch: Batch, scorers: list[list[attention.Scorer]]) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
        cache = self._cache
        assert cache is not None
        size, width = cache.block_size, self.model.n_kv_heads * self.model.head_dim
        plans, writes = [], []
        n_rows = int(batch.n_tokens.sum())
        for group in range(self.model.n_groups):
            plans.append(attention.plan(batch, group, size, width, self.device))
            rows, places = attention.write_places(batch, group, size)
            kept = None if len(rows) == n_rows else torch.from_numpy(rows).to(self.device)
            writes.append((kept, torch.from_numpy(places).to(self.device)))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            group = cache.places[layer][0]
            keys, values = cache.of(layer)
            rows, places = writes[group]
            keys.view(-1, *k.shape[1:]).index_copy_(0, places, k if rows is None else k[rows])
            values.view(-1, *v.shape[1:]).index_copy_(0, places, v if rows is None else v[rows])
            for scorer in scorers[group]:
                scorer.add(q, keys)
            return attention.attend(q, keys, values, plans[group])

        return attend

    def _seen_in(self, batch: Batch) -> Tensor | None:
        """Returns the tokens in each sampling sequence, or None if no sequence has a repetition penalty."""
        table = batch.table
        slots = batch.slots[batch.sample]
        wanted = table.penalty[slots] != 1
        if not wanted.any():
            return None
        if len(self._seen) < table.size:
            more = table.size - len(self._seen)
            self._seen = torch.cat([self._seen, self._seen.new_zeros((more, self._seen.shape[1]))])
            self._seen_by = np.concatenate([self._seen_by, np.zeros((more, 2), np.int64)])
        for slot in slots[wanted].tolist():
            if self._seen_by[slot, 0] != table.starts[slot]:
                self._seen[slot] = False
                self._seen_by[slot] = table.starts[slot], 0
            new = table.tokens[slot, self._seen_by[slot, 1] : table.n_tokens[slot]].astype(np.int64)
            self._seen_by[slot, 1] = table.n_tokens[slot]
            # A token that is not known yet was entered by the step that samples it.
            self._seen[slot, torch.from_numpy(new[new >= 0]).to(self.device)] = True
        rows = self._seen[torch.from_numpy(slots.astype(np.int64)).to(self.device)]
        return rows & torch.from_numpy(wanted).to(self.device)[:, None]

    def _grow_last(self, size: int) -> None:
        """Makes room for the last samples of `size` slots: slots of the batch may be new."""
        if len(self._last) < size:
            self._last = torch.cat([self._last, self._last.new_zeros(size - len(self._last))])

    def _remember(self, batch: Batch, picked: Tensor) -> None:
        if not self.deferred:
            return
        self._grow_last(batch.table.size)
        slots = torch.from_numpy(batch.slots[batch.sample].astype(np.int64)).to(self.device, non_blocking=True)
        self._last[slots] = picked
        if len(self._seen) >= batch.table.size:
            self._seen[slots, picked] = True

    def read_block(self, block: int) -> bytes:
        """Returns the bytes of a block."""
        assert self._cache is not None
        data = self._cache.data[:, :, block]
        if self._copies is not None and self._staging is not None:
            with torch.cuda.stream(self._copies):
                self._staging.copy_(data, non_blocking=True)
                self._copies.synchronize()
            data = self._staging
        return bytes(data.contiguous().view(torch.uint8).numpy().tobytes())

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces a block."""
        assert self._cache is not None
        place = self._cache.data[:, :, block]
        if len(data) != place.numel() * place.element_size():
            raise ValueError(f"{len(data)} bytes for a block of {place.numel() * place.element_size()}")
        elements = torch.frombuffer(bytearray(data), dtype=self._dtype).view(place.shape)
        if self._copies is not None and self._staging is not None:
            with torch.cuda.stream(self._copies):
                self._staging.copy_(elements)
                place.copy_(self._staging, non_blocking=True)
                self._copies.synchronize()
        else:
            place.copy_(elements)

    def with_abilities(self, **changes: int | bool) -> TorchEngine:
        """Changes what the engine announces, and returns the engine."""
        self.abilities = replace(self.abilities, **changes)  # type: ignore[arg-type]
        return self
