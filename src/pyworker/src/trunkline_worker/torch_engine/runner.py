"""The engine: runs batches with PyTorch, on a CPU or a GPU."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import cpu_blocks
from ..engine import Engine
from ..facts import Abilities, KvFacts, ModelFacts, Settings
from ..results import EngineLost, Result
from ..slots import Batch
from ..structures import Allowed, Structures
from . import attention, sampling
from .attention import KvCache, Scores
from .config import LlamaConfig
from .failures import judging
from .graphs import DecodeGraphs, free
from .head_attention import HeadAttention
from .head_places import HeadPlaces
from .head_scores import HeadScores
from .model import Llama, Rows
from .trial import kernel_works
from .uploads import upload
from .weights import Weights

log = logging.getLogger(__name__)

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def block_sizes(preferred: int | None) -> tuple[int, ...]:
    """Returns the sizes of a block to announce, the preferred one first."""
    return tuple(dict.fromkeys([preferred or 16, 16, 32, 64, 8]))


class TorchEngine(Engine):
    """Runs a model of the Llama family."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Weights,
        facts: ModelFacts,
        kv: KvFacts,
        abilities: Abilities,
        graphs: bool = True,
        structures: Structures | None = None,
    ) -> None:
        self.program = f"torch {torch.__version__}"
        self.model, self.kv, self.abilities, self.structures = facts, kv, abilities, structures
        self.device = weights.embedding.device
        on_gpu = self.device.type == "cuda"
        self.depth, self.own_samples = (2, True) if on_gpu else (1, False)
        self._llama = Llama(config, weights, facts.max_context)
        self._dtype = weights.embedding.dtype
        self._cache: KvCache | None = None
        with self._on_device():
            self._in_place = kernel_works(self.device, self._dtype, facts.n_heads, facts.n_kv_heads, facts.head_dim)
        self._use_graphs = graphs and self._in_place and not facts.has_head_groups
        self._graphs: DecodeGraphs | None = None
        self._last = torch.zeros(0, dtype=torch.int64, device=self.device)
        """Token sampled last in each slot."""
        self._seen = torch.zeros((0, facts.vocab_size), dtype=torch.bool, device=self.device)
        """Tokens in the sequences of slots with a repetition penalty."""
        self._seen_by = np.zeros((0, 2), np.int64)
        """For each slot: the start that its row of `_seen` belongs to, and the tokens entered."""
        self._sampled: tuple[Batch, npt.NDArray[np.int64], Tensor, torch.cuda.Event] | None = None
        """The batch submitted last, the starts of its slots, and its samples on the host, there once the event has come."""
        self._copies = torch.cuda.Stream(self.device) if self.own_samples else None
        self._staging: Tensor | None = None

    def _on_device(self) -> contextlib.AbstractContextManager[object]:
        """Makes the GPU of this engine the current one of the thread: Triton and captures of graphs use that one."""
        return torch.cuda.device(self.device) if self.own_samples else contextlib.nullcontext()

    def begin(self, settings: Settings) -> None:
        """Allocates KV, and a spare block for padding."""
        self._cache, self._graphs, self._staging = None, None, None
        self._seen_by[:] = 0
        cache = KvCache(self.model, settings.blocks + 1, settings.block_size, self._dtype, self.device, self._in_place)
        self._cache = cache
        if self._use_graphs:
            self._graphs = self._captured(cache, spare=settings.blocks)
        if self.own_samples:
            with self._on_device():
                self._staging = torch.empty_like(cache.data[:, :, 0], device="cpu").pin_memory()
                torch.cuda.synchronize(self.device)

    def _captured(self, cache: KvCache, spare: int) -> DecodeGraphs | None:
        """Returns graphs for decodes, or None with a warning if they cannot be captured."""
        graphs = DecodeGraphs(self._llama, cache, spare, self.model.max_context)
        reason = ""
        try:
            with judging(self.device), torch.inference_mode(), self._on_device():
                graphs.capture(self.abilities.max_sequences)
        except EngineLost:
            raise
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
        if not reason:
            return graphs
        log.warning("decodes run without CUDA graphs: %s", reason)
        del graphs
        free(self.device)
        return None

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
        """Starts a batch; on a CPU it has run when this returns.

        Raises:
            EngineLost: the GPU runs nothing any more; the function returned raises it too.
        """
        with judging(self.device), torch.inference_mode(), self._on_device():
            return self._submit(batch)

    def _submit(self, batch: Batch) -> Callable[[], Result]:
        scorers, logits, x = self._forward_or_free(batch)
        picked, allowed = logits.new_zeros(0).long(), self._allowed(batch)
        if len(logits):
            picked = sampling.sample(logits, batch, self._seen_in(batch), self._generated_in(batch), allowed)
        self._remember(batch, picked)
        # All that the host wants is on its way before the next step is submitted, and `wait` reads nothing from the device.
        on_host, unfit, unfit_rows = (self._sent(of) for of in (picked, sampling.unfit(logits), sampling.unfit(x)))
        ranked = sampling.log_probabilities(logits, picked, batch)
        ranked = ranked.moved(self._sent) if ranked else None
        for scorer in (scorer for group in scorers for scorer in group):
            scorer.total = None if scorer.total is None else self._sent(scorer.total)
        event = torch.cuda.Event() if self.own_samples else None
        if event is not None:
            event.record()
            self._sampled = (batch, batch.table.starts[batch.slots], on_host, event)

        def wait() -> Result:
            with judging(self.device), torch.inference_mode():
                if event is not None:
                    event.synchronize()
                faults = sampling.failed(unfit_rows, unfit, batch, allowed)
                scores = attention.reported(scorers, batch.by_group)
                logprobs = ranked.entries(faults) if ranked else []
                return Result([int(token) for token in on_host.tolist()], logprobs, scores, faults)

        return wait

    def _forward_or_free(self, batch: Batch) -> tuple[Sequence[Sequence[Scores]], Tensor, Tensor]:
        """Runs the model, a second time without CUDA graphs if there is too little memory with them."""
        try:
            return self._forward(batch)
        except torch.OutOfMemoryError as error:
            log.warning("memory ran out: CUDA graphs are dropped, and the step runs again: %s", str(error).splitlines()[0])
        # Behind the handler, where nothing holds the tensors of the pass that failed.
        self._graphs = None
        free(self.device)
        return self._forward(batch)

    def _forward(self, batch: Batch) -> tuple[Sequence[Sequence[Scores]], Tensor, Tensor]:
        """Runs the model. Returns scorers with what they found, the logits of the sampling sequences, and rows to check."""
        cache = self._cache
        assert cache is not None, "begin comes first"
        rows = self._rows(batch)
        if cache.heads is not None:
            return self._forward_by_head(batch, rows, cache, cache.heads)
        scorers = attention.all_scorers(batch, self.model, cache.block_size, self.device)
        if self._graphs is not None and batch.n_tokens.max() == 1 and batch.sample.all() and not any(scorers):
            logits = self._graphs.run(batch, rows)
            if logits is not None:
                # What is wrong in a row is wrong in its logits.
                return scorers, logits, logits[:0]
        return scorers, *self._llama.forward(rows, attention.over(batch, cache, scorers))

    def _forward_by_head(
        self, batch: Batch, rows: Rows, cache: KvCache, heads: HeadPlaces
    ) -> tuple[list[list[HeadScores]], Tensor, Tensor]:
        scores = None
        if (batch.scored_rows > 0).any():
            per_head = self.model.n_heads // self.model.n_kv_heads
            scores = HeadScores(batch, heads, per_head, cache.block_size, self.device)
        return [[] if scores is None else [scores]], *self._llama.forward(rows, HeadAttention(batch, cache, scores))

    def _sent(self, values: Tensor) -> Tensor:
        """Returns the values in pinned memory of the host, where they are once the device comes to this point."""
        if not self.own_samples:
            return values
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)

    def _rows(self, batch: Batch) -> Rows:
        host = batch.tokens()
        sampled = (np.cumsum(batch.n_tokens) - 1)[batch.sample]
        slots = np.repeat(batch.slots, batch.n_tokens)
        parts = [host, batch.positions(), slots, sampled]
        joined = upload(np.concatenate(parts).astype(np.int64), self.device)
        tokens, positions, of_slot, ends = joined.split([len(part) for part in parts])
        if self.own_samples and bool((host < 0).any()):
            # The sample of a step that still runs: the device has it already.
            self._grow_last(batch.table.size)
            tokens = torch.where(tokens < 0, self._last[of_slot], tokens)
        return Rows(tokens, positions, ends)

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
                self._seen[slot].zero_()
                self._seen_by[slot] = table.starts[slot], 0
            new = table.tokens[slot, self._seen_by[slot, 1] : table.n_tokens[slot]].astype(np.int64)
            self._seen_by[slot, 1] = table.n_tokens[slot]
            # A token that is not known yet was entered by the step that samples it.
            self._seen[slot].index_fill_(0, upload(new[new >= 0], self.device), True)
        rows = self._seen[upload(slots.astype(np.int64), self.device)]
        return rows & upload(wanted, self.device)[:, None]

    def _generated_in(self, batch: Batch) -> dict[int, Tensor]:
        """Returns the generated tokens of sampling sequences with a penalty for them, by their number among the sampling ones."""
        table, slots, ends = batch.table, batch.slots[batch.sample], batch.ends[batch.sample]
        found = {}
        for row in np.flatnonzero(table.counts_generated(slots)).tolist():
            slot = slots[row]
            host = table.tokens[slot, table.n_prompt[slot] : ends[row]].astype(np.int64)
            tokens = upload(host, self.device)
            # The sample of a step that still runs: the device has it already.
            found[row] = torch.where(tokens < 0, self._last[slot], tokens) if (host < 0).any() else tokens
        return found

    def _allowed(self, batch: Batch) -> Allowed | None:
        """Returns what may be next in sequences with a structure, which the threads of `structures` found while the model runs.

        That depends on the last token. On a GPU the step that samples it may still run: its end is waited for, and the pass of
        this step, which is behind it, goes on meanwhile.
        """
        table = batch.table
        if not table.answers or self.structures is None:
            return None
        with_answer = [slot for slot in batch.slots[batch.sample].tolist() if slot in table.answers]
        unknown = any(table.tokens[slot, table.n_tokens[slot] - 1] < 0 for slot in with_answer)
        if unknown and self._sampled is not None:
            before, starts, on_host, event = self._sampled
            event.synchronize()
            table.record(before, starts, on_host.tolist())
        return batch.allowed()

    def _grow_last(self, size: int) -> None:
        """Makes room for the last samples of `size` slots: slots of the batch may be new."""
        if len(self._last) < size:
            self._last = torch.cat([self._last, self._last.new_zeros(size - len(self._last))])

    def _remember(self, batch: Batch, picked: Tensor) -> None:
        if not self.own_samples:
            return
        self._grow_last(batch.table.size)
        slots = upload(batch.slots[batch.sample].astype(np.int64), self.device)
        self._last[slots] = picked
        if len(self._seen) >= batch.table.size:
            self._seen.index_put_((slots, picked), torch.ones_like(picked, dtype=torch.bool))

    def read_block(self, block: int) -> bytes:
        """Returns the bytes of a block."""
        assert self._cache is not None
        data = self._cache.data[:, :, block]
        if self._copies is not None and self._staging is not None:
            with torch.cuda.stream(self._copies):
                self._staging.copy_(data, non_blocking=True)
                self._copies.synchronize()
            data = self._staging
        return bytes_of(data)

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces a block."""
        assert self._cache is not None
        place = self._cache.data[:, :, block]
        if self._copies is None or self._staging is None:
            replace_block(place, data)
            return
        replace_block(self._staging, data)
        with torch.cuda.stream(self._copies):
            place.copy_(self._staging, non_blocking=True)
            self._copies.synchronize()


def bytes_of(block: Tensor) -> bytes:
    """Returns the elements of a block, on whatever device, as bytes."""
    return cpu_blocks.elements(block.cpu()).tobytes()


def replace_block(place: Tensor, data: bytes) -> None:
    """Copies bytes into a block.

    Raises:
        ValueError: the number of bytes is not that of the block.
    """
    size = place.numel() * place.element_size()
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes for a block of {size}")
    if place.is_cuda:
        place.copy_(torch.frombuffer(bytearray(data), dtype=place.dtype).view(place.shape))
    else:
        cpu_blocks.replace(place, data)
