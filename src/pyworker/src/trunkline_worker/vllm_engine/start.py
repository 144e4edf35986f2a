"""Starts vLLM: its configuration, its executor with the model loaded, and the KV cache."""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..facts import LockStep, ModelFacts
from .calls import Calls
from .layout import Parts, Shape
from .versions import check_group, plan_kv

log = logging.getLogger(__name__)

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
CPU_KV_TOKENS = 16_384


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
    pipeline_parallel: int
    group: LockStep | None
    """Place in a group, for models with experts."""
    group_address: tuple[str, int]
    """Where the ranks of the group meet: host and port of rank 0."""
    eager: bool
    threads: int | None
    """CPU threads of each process."""

    @property
    def n_processes(self) -> int:
        """Processes of vLLM's that run the model."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def divides_experts(self) -> bool:
        """The experts of the model are divided among the workers of a group."""
        return self.group is not None and self.group.size > 1


def start(options: Options) -> tuple[Any, Any, list[Any]]:
    """Returns vLLM's configuration, its executor with the model loaded, and the KV configuration of each worker.

    Raises:
        ValueError: the engine cannot run the model.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import torch
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.executor import Executor

    if options.threads and options.n_processes == 1:
        # The program around may have loaded PyTorch before, with another number.
        torch.set_num_threads(options.threads)
    config = configure(options)
    _check_runner(options, config)
    executor = _meet(options, lambda: Executor.get_class(config)(config))
    if options.divides_experts and current_platform.is_cpu():
        executor.collective_rpc("trunkline_lend_cpu_experts")
    specs = executor.get_kv_cache_specs()
    kinds = {type(spec).__name__ for worker in specs for spec in worker.values()}
    if kinds != {"FullAttentionSpec"}:
        raise ValueError(f"--engine vllm runs models whose layers keep all positions; this one has {sorted(kinds)}")
    layout = resolve_kv_cache_layout(config, executor.get_supported_kv_cache_layouts(), [s for w in specs for s in w.values()])
    executor.set_kv_cache_layout(*layout_arguments(executor.set_kv_cache_layout, config, layout.name))
    longest = config.model_config.max_model_len
    caches = plan_kv(config, specs, executor.determine_available_memory())
    if (fitting := config.model_config.max_model_len) < longest:
        log.warning("sequences have up to %d tokens, not %d: give --kv-tokens %d to have all", fitting, longest, longest)
    for cache in caches:
        cache.kv_cache_layout = config.cache_config.kv_cache_layout
        if len(cache.kv_cache_groups) != 1:
            raise ValueError(f"--engine vllm runs models with one group of layers; this one has {len(cache.kv_cache_groups)}")
    config.cache_config.num_gpu_blocks = min(cache.num_blocks for cache in caches)
    executor.initialize_from_config(caches)
    executor.compile_or_warm_up_model()
    if options.pipeline_parallel > 1:
        # Stages after the first have no room for rows before an empty step, and without compilation nothing runs one on a CPU.
        executor.collective_rpc("execute_dummy_batch")
    return config, executor, caches


def _meet(options: Options, make: Callable[[], Any]) -> Any:
    """Returns vLLM's executor, made when all workers of the group are there.

    Raises:
        ValueError: the workers did not meet.
    """
    from torch.distributed import DistError

    if options.group is None or not options.divides_experts:
        return make()
    host, port = options.group_address
    group = options.group
    log.info("rank %d of %d waits for the others of group %s at %s:%d", group.rank, group.size, group.group, host, port)
    try:
        return make()
    except DistError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--data-parallel-address {host}:{port}: the workers of the group did not meet: {reason}") from error


def configure(options: Options) -> Any:
    """Returns vLLM's configuration.

    Raises:
        ValueError: the model cannot run with these options.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    cpu = current_platform.is_cpu()
    tokens = options.kv_tokens or (CPU_KV_TOKENS if cpu else None)
    if tokens and options.max_context and options.max_context > tokens // options.block_size * options.block_size:
        raise ValueError(f"--max-context {options.max_context}: the KV has room for fewer tokens; give --kv-tokens as many")
    fields: dict[str, Any] = {
        "model": str(options.model),
        "dtype": DTYPES[options.dtype] if options.dtype else ("float32" if cpu else "auto"),
        "skip_tokenizer_init": True,
        # -1: the model's, or as many tokens as the KV has room for if these are fewer.
        "max_model_len": options.max_context or -1,
        "block_size": options.block_size,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": options.max_tokens,
        "max_num_seqs": options.max_sequences,
        "tensor_parallel_size": options.tensor_parallel,
        "pipeline_parallel_size": options.pipeline_parallel,
        "distributed_executor_backend": "uni" if options.n_processes == 1 else "mp",
        "enforce_eager": options.eager,
        "async_scheduling": False,
        "disable_hybrid_kv_cache_manager": True,
        "worker_extension_cls": "trunkline_worker.vllm_engine.extension.Extension",
    }
    if tokens:
        # Block 0 is vLLM's null block.
        fields["num_gpu_blocks_override"] = tokens // options.block_size + 1
    if options.n_processes == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    # V1 ran with all that the worker does, V2 in one process and in Triton's interpreter alone.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    if cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(_gigabytes(options, tokens or CPU_KV_TOKENS)))
        if options.n_processes > 1 or options.divides_experts:
            # Else vLLM wants a NUMA node for each process.
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _n_cpus() // options.n_processes)))
    if options.group is None or not options.divides_experts:
        return EngineArgs(**fields).create_engine_config()
    model = EngineArgs(**fields).create_model_config()
    if cpu and model.is_quantized:
        raise ValueError(f"--data-parallel-group {options.group.group}: on a CPU experts are divided in f32, bf16 or f16 alone")
    if not model.is_moe:
        raise ValueError(
            f"--data-parallel-group {options.group.group}: {options.name} has no experts to divide; start each worker "
            "without --data-parallel-*, and the server balances them"
        )
    config = EngineArgs(**fields, **_group_fields(options.group, options.group_address[0])).create_engine_config()
    check_group()
    start_alone(config.parallel_config, options.group_address[1])
    return config


def _n_cpus() -> int:
    """Returns the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_alone(parallel: Any, port: int) -> None:
    """Changes a configuration from that of ranks which vLLM starts together to that of one which finds the others by itself."""
    # vLLM picks free ports where it starts all ranks itself.
    parallel._data_parallel_master_port_list = []
    parallel.data_parallel_master_port = port
    # Without this vLLM passes over the GPUs of lower ranks, but each worker sees its own GPUs alone.
    parallel.data_parallel_rank_local = 0


def has_runner_v2(config: Any) -> bool:
    """Returns `True` if vLLM runs the model with its model runner V2."""
    return bool(getattr(config, "use_v2_model_runner", False))


def _check_runner(options: Options, config: Any) -> None:
    """Checks that the model runner can do what the options ask for.

    V2 hands sampled tokens to other stages after a fixed number of steps, which the server does not keep.

    Raises:
        ValueError: it cannot.
    """
    if not has_runner_v2(config):
        return
    flags = {"--pipeline-parallel": options.pipeline_parallel > 1, "--data-parallel-group": options.divides_experts}
    for flag in (flag for flag, given in flags.items() if given):
        raise ValueError(f"{flag}: not with vLLM's model runner V2: set VLLM_USE_V2_MODEL_RUNNER=0")


def _group_fields(group: LockStep, host: str) -> dict[str, Any]:
    return {
        "data_parallel_size": group.size,
        "data_parallel_rank": group.rank,
        "data_parallel_address": host,
        "enable_expert_parallel": True,
    }


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


def parts_of(calls: Calls, cache: Any, config: Any) -> Parts:
    """Returns how a block is divided among vLLM's workers.

    Raises:
        ValueError: vLLM's KV tensors have another shape.
    """
    spec = cache.kv_cache_groups[0].kv_cache_spec
    shape = Shape(int(spec.num_kv_heads), int(spec.block_size), int(spec.head_size))
    found = calls("trunkline_caches")
    elements = 2 * shape.heads * shape.tokens * shape.dim
    kinds = {dtype for worker in found for _, dtype in worker}
    for worker in found:
        for sizes, dtype in worker:
            if sizes[0] != cache.num_blocks or math.prod(sizes[1:]) != elements or len(kinds) != 1:
                raise ValueError(f"vLLM's KV tensors have shape {sizes} of {dtype}: not {cache.num_blocks} blocks of {shape}")
    width = {"torch.float32": "<u4", "torch.bfloat16": "<u2", "torch.float16": "<u2"}.get(kinds.pop(), "<u1")
    n_workers = int(config.parallel_config.tensor_parallel_size)
    return Parts(shape, width, tuple(len(worker) for worker in found[::n_workers]), n_workers)


def facts(options: Options, config: Any, parts: Parts) -> ModelFacts:
    """Returns the facts about the model to announce."""
    model = config.model_config
    kinds = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    kind = kinds.get(str(model.dtype).removeprefix("torch."), "?") if config.cache_config.cache_dtype == "auto" else "?"
    return ModelFacts(
        name=options.name,
        revision=options.revision,
        vocab_size=int(model.get_vocab_size()),
        max_context=int(model.max_model_len),
        eos_token_ids=options.eos,
        n_layers=sum(parts.layers),
        hidden_size=int(model.get_hidden_size()),
        n_heads=int(model.hf_text_config.num_attention_heads),
        n_kv_heads=parts.shape.heads * parts.n_workers,
        head_dim=parts.shape.dim,
        kv_dtype=kind if kind != "?" else str(config.cache_config.cache_dtype),
        kv_bytes_per_token=parts.n_bytes // parts.shape.tokens,
    )
