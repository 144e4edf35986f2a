"""The engine: vLLM's executor and model runner run our steps; vLLM's scheduler and block manager stay out."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import Abilities, Engine, EngineLost, KvFacts, Logprob, ModelFacts, Result, Settings, StepError
from ..proto import messages as pb
from ..slots import Batch, SlotTable
from . import layout as layouts
from .batches import Batches
from .layout import Shape
from .versions import plan_kv

log = logging.getLogger(__name__)

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
MAX_LOGPROBS = 20
CPU_KV_TOKENS = 16_384
STEPS_IN_FLIGHT = 2


@dataclass(frozen=True)
class Options:
    """Choices of the command line."""

    model: Path
    name: str
    revision: str
    eos: tuple[int, ...]
    dtype: str | None
    block_size: int
    kv_tokens: int | None
    max_context: int | None
    max_sequences: int
    max_tokens: int
    tensor_parallel: int
    eager: bool


class VllmEngine(Engine):
    """Runs a model with vLLM's executor."""

    def __init__(self, options: Options, version: str) -> None:
        self.program = f"vllm {version}"
        self._config, self._executor, caches = start(options)
        self._batches = Batches()
        # In one process copies touch memory that no step uses, and need no lock; messages to other processes do.
        self._is_one_process = type(self._executor).__name__ == "UniProcExecutor"
        self._rpc: contextlib.AbstractContextManager[Any] = contextlib.nullcontext() if self._is_one_process else threading.Lock()
        self._shapes, self._dtype = _shapes(self._executor, caches[0], self._config)
        self._layout: str | None = None
        self._settings: Settings | None = None
        self._failed = False
        """A step failed, and vLLM has not forgotten it yet."""
        block = int(caches[0].kv_cache_groups[0].kv_cache_spec.block_size)
        self._blocks = min(config.num_blocks for config in caches) - 1
        self.model = _facts(options, self._config, self._shapes, self._dtype)
        self.kv = KvFacts((block,), self._blocks * block, block_io=False)
        self.abilities = Abilities(
            max_sequences=options.max_sequences,
            max_tokens=options.max_tokens,
            steps_in_flight=STEPS_IN_FLIGHT,
            max_logprobs=MAX_LOGPROBS,
            seeded_sampling=all(self._call("trunkline_seeds_work")),
        )
        self._prove_layout()

    def begin(self, settings: Settings) -> None:
        """Forgets all sequences; blocks have been there since the start.

        Raises:
            EngineLost: the server wants other blocks, or vLLM cannot go on after a failed step.
        """
        if settings.block_size != self.kv.block_sizes[0] or settings.blocks > self._blocks:
            raise EngineLost(f"the server wants {settings}, and vLLM has {self._blocks} blocks of {self.kv.block_sizes[0]}")
        self._settings = settings
        # The server may have gone after a failed step, before it sent a reset.
        self.reset()

    def reset(self) -> None:
        """Forgets all sequences.

        Raises:
            EngineLost: a step failed, and vLLM does not say now what it said at the start.
        """
        self._batches.forget()
        if self._failed:
            self._recover()

    def _recover(self) -> None:
        try:
            with self._rpc:
                self._call("trunkline_recover")
            said = self._trial_prompt(steps=4)
        except Exception as error:
            raise EngineLost(f"vLLM cannot go on after a failed step: {error}") from error
        if said != self._expected:
            raise EngineLost(f"vLLM cannot go on after a failed step: it says {said} now, and said {self._expected} at the start")
        self._failed = False
        log.warning("vLLM goes on after a failed step")

    def forget_slots(self) -> None:
        """Forgets all sequences, and keeps blocks."""
        self._batches.forget()

    def run(self, batch: Batch) -> Result:
        """Runs a batch through vLLM's model runner."""
        if (batch.scored_rows > 0).any():
            raise StepError("vLLM reports no attention scores")
        step = self._batches.build(batch)
        seeds = self._batches.seeds(batch)
        with self._rpc:
            try:
                output = self._executor.execute_model(step)
                if seeds:
                    self._executor.collective_rpc("trunkline_seed", args=(seeds,))
                output = self._executor.sample_tokens(None) if output is None else output
            except Exception as error:
                reason = f"vLLM failed to run {len(batch)} sequences: {type(error).__name__}: {error}"
                # Processes that work together may each be at another point now.
                if not self._is_one_process or getattr(self._executor, "is_failed", False):
                    raise EngineLost(reason) from error
                # The model runner may hold half a step now; `reset` comes next.
                self._failed = True
                raise StepError(reason) from error
        return self._result(batch, output)

    def _result(self, batch: Batch, output: Any) -> Result:
        names = self._batches.requests(batch)
        tokens, logprobs = [], []
        for i in np.flatnonzero(batch.sample).tolist():
            row = output.req_id_to_index[names[i]]
            sampled = output.sampled_token_ids[row]
            if len(sampled) != 1:
                raise EngineLost(f"vLLM sampled {len(sampled)} tokens for a sequence that was to get one")
            tokens.append(int(sampled[0]))
            wanted = int(batch.table.logprobs[batch.slots[i]])
            if wanted >= 0:
                logprobs.append(_logprob(output.logprobs, row, wanted))
        return Result(tokens, logprobs)

    def read_block(self, block: int) -> bytes:
        """Returns the elements of a block."""
        with self._rpc:
            raws = self._call("trunkline_read", block + 1)
        ranks = [self._to_wire(raw) for raw in raws]
        # Workers share the heads of each layer.
        joined = ranks[0] if len(ranks) == 1 else np.concatenate(ranks, axis=3 if self._layout else 1)
        return bytes(np.ascontiguousarray(joined).tobytes())

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces a block."""
        if len(data) != self.model.kv_bytes_per_token * self.kv.block_sizes[0]:
            raise ValueError(f"{len(data)} bytes for a block of {self.model.kv_bytes_per_token * self.kv.block_sizes[0]}")
        n, layers, shape = len(self._shapes), self.model.n_layers, self._shapes[0]
        elements = np.frombuffer(data, self._dtype)
        wire = elements.reshape(layers, 2, shape.tokens, n, shape.heads, shape.dim) if self._layout else None
        raw = elements.reshape(layers, n, -1)
        with self._rpc:
            for rank in range(n):
                parts = wire[:, :, :, rank] if wire is not None else raw[:, rank]
                mine = np.stack([layouts.from_wire(part, shape, self._layout) for part in parts])
                self._write_rank(rank, block + 1, mine.tobytes())

    def close(self) -> None:
        """Ends vLLM's processes."""
        self._executor.shutdown()

    def _call(self, method: str, *args: Any) -> list[Any]:
        results: list[Any] = self._executor.collective_rpc(method, args=args)
        return results

    def _write_rank(self, rank: int, block: int, data: bytes) -> None:
        self._call("trunkline_write_at", rank, block, data)

    def _to_wire(self, raw: bytes) -> layouts.Raw:
        layers = np.frombuffer(raw, self._dtype).reshape(self.model.n_layers, -1)
        return np.stack([layouts.to_wire(layer, self._shapes[0], self._layout) for layer in layers])

    # The proof of the layout, before the server hears that blocks can be copied.

    def _prove_layout(self) -> None:
        """Announces block copies if a generation goes on equally from copied blocks, with all others overwritten."""
        size = self.kv.block_sizes[0]
        self._expected = self._trial_prompt(steps=4)
        """Tokens said after the prompt of the proof: the same after a failed step."""
        if self._blocks < 6:
            log.warning("too few blocks to prove the layout of KV: blocks will not be copied")
            return
        settings = Settings(size, self._blocks, 1)
        vocabulary = self.model.vocab_size
        prompt = self._prompt()
        other = [*prompt[: size // 2], *((t + 5) % vocabulary for t in prompt[size // 2 :])]
        expected = self._expected
        self._trial(settings, other, [2, 3], steps=0)
        raws = [[self._layers(raw) for raw in self._call("trunkline_read", block + 1)] for block in (0, 2)]
        found = {
            layouts.find(a, b, self._shapes[0], size // 2)
            for first, second in zip(*raws, strict=True)
            for a, b in zip(first, second, strict=True)
        }
        if len(found) == 1:
            self._layout = found.pop()
        if self._layout is None:
            log.warning("the order of elements in vLLM's KV blocks is unknown here: blocks are copied as they are")
        self._trial(settings, prompt, [0, 1], steps=0)
        kept = [self.read_block(block) for block in (0, 1)]
        for block in range(6):
            self.write_block(block, bytes(len(kept[0])))
        for block, data in zip((5, 4), kept, strict=True):
            self.write_block(block, data)
        if [self.read_block(block) for block in (5, 4)] != kept:
            log.warning("copied blocks of KV differ from the originals: blocks will not be copied")
            return
        resumed = self._trial(settings, prompt + expected[:1], [5, 4], steps=3, computed=len(prompt))
        if resumed != expected[1:]:
            log.warning("a generation from copied blocks says %s, not %s: blocks will not be copied", resumed, expected[1:])
            return
        self.kv = replace(self.kv, block_io=True)
        log.info("KV blocks can be copied: %s", self._layout or "opaque")

    def _prompt(self) -> list[int]:
        """Returns the prompt of the proof: a block and a half, or a block less three where there is one block."""
        size = self.kv.block_sizes[0]
        return [(7 * i + 11) % self.model.vocab_size for i in range(size + size // 2 if self._blocks > 1 else size - 3)]

    def _trial_prompt(self, steps: int) -> list[int]:
        """Runs the prompt of the proof in the first blocks, whose contents are lost."""
        settings = Settings(self.kv.block_sizes[0], self._blocks, 1)
        return self._trial(settings, self._prompt(), [0, 1][: self._blocks], steps)

    def _layers(self, raw: bytes) -> layouts.Raw:
        return np.frombuffer(raw, self._dtype).reshape(self.model.n_layers, -1)

    def _trial(self, settings: Settings, tokens: list[int], blocks: list[int], steps: int, computed: int = 0) -> list[int]:
        """Runs a sequence alone, greedily, and returns the tokens that it says in so many steps."""
        table = SlotTable(self.model, settings)
        said: list[int] = []
        for i in range(max(steps, 1)):
            at = computed if i == 0 else len(tokens) + i - 1
            step = pb.Step(id=i + 1, slots=[0], computed=[at], sample=[1], n_generated=[i])
            step.n_tokens.append(len(tokens) - computed if i == 0 else 1)
            step.table_keep.append(0 if i == 0 else len(blocks))
            if i == 0:
                step.n_blocks.append(len(blocks))
                step.blocks.extend(blocks)
                step.starts.add(index=0, tokens=tokens, n_prompt=len(tokens))
                step.starts[0].sampling.top_p = step.starts[0].sampling.repetition_penalty = 1.0
            batch = table.apply(step)
            starts = table.starts[batch.slots]
            result = self.run(batch)
            table.reserve(batch)
            table.record(batch, starts, result.tokens)
            said += result.tokens
        self._batches.forget()
        return said


def start(options: Options) -> tuple[Any, Any, list[Any]]:
    """Returns vLLM's configuration, its executor with the model loaded, and the KV configuration of each worker."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.executor import Executor

    if options.tensor_parallel == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    cpu = current_platform.is_cpu()
    tokens = options.kv_tokens or (CPU_KV_TOKENS if cpu else None)
    fields: dict[str, Any] = {
        "model": str(options.model),
        "dtype": DTYPES[options.dtype] if options.dtype else ("float32" if cpu else "auto"),
        "skip_tokenizer_init": True,
        "max_model_len": options.max_context,
        "block_size": options.block_size,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": options.max_tokens,
        "max_num_seqs": options.max_sequences,
        "tensor_parallel_size": options.tensor_parallel,
        "distributed_executor_backend": "uni" if options.tensor_parallel == 1 else "mp",
        "enforce_eager": options.eager,
        "async_scheduling": False,
        "disable_hybrid_kv_cache_manager": True,
        "worker_extension_cls": "trunkline_worker.vllm_engine.extension.Extension",
    }
    if tokens:
        # Block 0 is vLLM's null block.
        fields["num_gpu_blocks_override"] = tokens // options.block_size + 1
    if cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(_gigabytes(options, tokens or CPU_KV_TOKENS)))
    config = EngineArgs(**fields).create_engine_config()
    executor = Executor.get_class(config)(config)
    specs = executor.get_kv_cache_specs()
    kinds = {type(spec).__name__ for worker in specs for spec in worker.values()}
    if kinds != {"FullAttentionSpec"}:
        raise ValueError(f"--engine vllm runs models whose layers keep all positions; this one has {sorted(kinds)}")
    layout = resolve_kv_cache_layout(config, executor.get_supported_kv_cache_layouts(), [s for w in specs for s in w.values()])
    executor.set_kv_cache_layout(*layout_arguments(executor.set_kv_cache_layout, config, layout.name))
    caches = plan_kv(config, specs, executor.determine_available_memory())
    for cache in caches:
        cache.kv_cache_layout = config.cache_config.kv_cache_layout
        if len(cache.kv_cache_groups) != 1:
            raise ValueError(f"--engine vllm runs models with one group of layers; this one has {len(cache.kv_cache_groups)}")
    config.cache_config.num_gpu_blocks = min(cache.num_blocks for cache in caches)
    executor.initialize_from_config(caches)
    executor.compile_or_warm_up_model()
    return config, executor, caches


def layout_arguments(call: Any, config: Any, name: str) -> list[Any]:
    """Returns the arguments of `set_kv_cache_layout`: vLLM 0.33 wants the interleaving of context parallelism too."""
    if "cp_kv_cache_interleave_size" in inspect.signature(call).parameters:
        return [name, config.parallel_config.cp_kv_cache_interleave_size]
    return [name]


def _gigabytes(options: Options, tokens: int) -> int:
    """Returns the memory of KV on a CPU in GiB, rounded up, with room for the longest type."""
    from ..model_folder import read_config

    raw = read_config(options.model)
    raw = raw.get("text_config", raw)
    heads = int(raw.get("num_attention_heads", 1))
    dim = int(raw.get("head_dim") or raw.get("hidden_size", 0) // heads)
    token = 2 * 4 * dim * int(raw.get("num_key_value_heads") or heads) * int(raw.get("num_hidden_layers", 1))
    return max(1, math.ceil((tokens + options.block_size) * token / (1 << 30)))


def _shapes(executor: Any, cache: Any, config: Any) -> tuple[list[Shape], str]:
    """Returns the shape of a layer's block on each worker, and the element type as numpy sees it."""
    spec = cache.kv_cache_groups[0].kv_cache_spec
    shape = Shape(int(spec.num_kv_heads), int(spec.block_size), int(spec.head_size))
    found = executor.collective_rpc("trunkline_caches")
    elements = 2 * shape.heads * shape.tokens * shape.dim
    for worker in found:
        for sizes, dtype in worker:
            if sizes[0] != cache.num_blocks or math.prod(sizes[1:]) != elements or len({d for _, d in worker}) != 1:
                raise ValueError(f"vLLM's KV tensors have shape {sizes} of {dtype}: not {cache.num_blocks} blocks of {shape}")
    del config
    width = {"torch.float32": "<u4", "torch.bfloat16": "<u2", "torch.float16": "<u2"}.get(found[0][0][1], "<u1")
    return [shape] * len(found), width


def _facts(options: Options, config: Any, shapes: list[Shape], element: str) -> ModelFacts:
    model = config.model_config
    heads = sum(shape.heads for shape in shapes)
    layers = model.get_total_num_hidden_layers() if hasattr(model, "get_total_num_hidden_layers") else None
    layers = layers or model.hf_text_config.num_hidden_layers
    itemsize = np.dtype(element).itemsize
    kinds = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    kind = kinds.get(str(model.dtype).removeprefix("torch."), "?") if config.cache_config.cache_dtype == "auto" else "?"
    return ModelFacts(
        name=options.name,
        revision=options.revision,
        vocab_size=int(model.get_vocab_size()),
        max_context=int(model.max_model_len),
        eos_token_ids=options.eos,
        n_layers=int(layers),
        hidden_size=int(model.get_hidden_size()),
        n_heads=int(model.hf_text_config.num_attention_heads),
        n_kv_heads=heads,
        head_dim=shapes[0].dim,
        kv_dtype=kind if kind != "?" else str(config.cache_config.cache_dtype),
        kv_bytes_per_token=int(layers) * 2 * heads * shapes[0].dim * itemsize,
    )


def _logprob(lists: Any, row: int, n: int) -> Logprob:
    """Returns the log probabilities of one row: vLLM puts the sampled token first, then the most likely ones."""
    ids, values = lists.logprob_token_ids[row], lists.logprobs[row]
    return Logprob(float(values[0]), [int(i) for i in ids[1 : n + 1]], [float(v) for v in values[1 : n + 1]])
