"""The parts of vLLM that the engine uses, and a check that they are as expected.

None of them is a public interface, and some change with each release: versions outside of the range are refused, and
signatures are compared at start.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

FIRST, BEHIND = (0, 32), (0, 34)
"""Versions of vLLM that the engine was written for: from the first, below the second."""

NEW_REQUEST = (
    *("req_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "block_ids"),
    *("num_computed_tokens", "lora_request", "prefill_token_ids"),
)
CACHED_REQUESTS = (
    *("req_ids", "resumed_req_ids", "new_token_ids", "all_token_ids", "new_block_ids"),
    *("num_computed_tokens", "num_output_tokens"),
)
SCHEDULER_OUTPUT = (
    *("scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "total_num_scheduled_tokens"),
    *("scheduled_spec_decode_tokens", "scheduled_encoder_inputs", "finished_req_ids", "free_encoder_mm_hashes"),
)
GROUP_CONFIG = ("data_parallel_master_port", "_data_parallel_master_port_list", "enable_expert_parallel")
RUNNER_OUTPUT = ("req_id_to_index", "sampled_token_ids", "logprobs")


def check() -> str:
    """Returns vLLM's version if the engine can drive it.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: the version is outside of the range, or a part is not as expected.
    """
    from vllm import __version__ as version

    check_version(version)
    check_parts()
    return str(version)


def check_version(version: str) -> None:
    """Checks that a version is in the range.

    Raises:
        ValueError: it is not.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    found = (int(numbers[1]), int(numbers[2])) if numbers else None
    if found is None or not FIRST <= found < BEHIND:
        wanted = f"{FIRST[0]}.{FIRST[1]} to {BEHIND[0]}.{BEHIND[1] - 1}"
        raise ValueError(f"--engine vllm drives vLLM {wanted}, and {version} is installed: install vllm>=0.32,<0.34")


def check_parts() -> None:
    """Compares the parts of the installed vLLM with what the engine uses.

    Raises:
        ValueError: a part is missing or has another signature; the message names all of them.
    """
    try:
        from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
        from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
        from vllm.v1.executor import Executor
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.worker.worker_base import WorkerBase

        planner, grouper = kv_planner()
    except ImportError as error:
        raise ValueError(f"--engine vllm cannot drive this vLLM: {error}") from error
    wrong = [
        *compare_fields(NewRequestData, NEW_REQUEST),
        *compare_fields(CachedRequestData, CACHED_REQUESTS),
        *compare_fields(SchedulerOutput, SCHEDULER_OUTPUT),
        *compare_fields(ModelRunnerOutput, RUNNER_OUTPUT, built=False),
        *compare_call(WorkerBase.execute_model, ("self", "scheduler_output")),
        *compare_call(WorkerBase.sample_tokens, ("self", "grammar_output")),
        *compare_call(Executor.collective_rpc, ("self", "method"), keywords=("args", "non_block")),
        *compare_call(Executor.register_failure_callback, ("self", "callback")),
        *compare_call(
            Executor.set_kv_cache_layout,
            ("self", "layout_name"),
            optional=("cp_kv_cache_interleave_size",),
        ),
        *compare_call(
            planner,
            ("vllm_config", "kv_cache_specs", "available_memory"),
            optional=("global_kv_cache_groups",) if grouper else (),
        ),
        *(compare_call(grouper, ("vllm_config", "kv_cache_specs")) if grouper else []),
        *compare_call(resolve_kv_cache_layout, ("vllm_config", "supported_layouts", "kv_cache_specs")),
    ]
    if wrong:
        raise ValueError("--engine vllm cannot drive this vLLM: " + "; ".join(wrong))


def check_group() -> None:
    """Compares the parts of the installed vLLM that a group of workers needs.

    Raises:
        ValueError: a part is missing.
    """
    from vllm.config import ParallelConfig

    if wrong := compare_fields(ParallelConfig, GROUP_CONFIG, built=False):
        raise ValueError("--data-parallel-group: this vLLM runs in no group: " + "; ".join(wrong))


def kv_planner() -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Returns vLLM's function that plans the KV cache, and from 0.33 on the one that groups layers for it.

    Raises:
        ImportError: vLLM has no such function where it is looked for.
    """
    try:
        from vllm.v1.core.kv_cache_planning import get_global_kv_cache_groups, get_kv_cache_configs
    except ImportError:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

        return get_kv_cache_configs, None
    return get_kv_cache_configs, get_global_kv_cache_groups


def plan_kv(config: Any, specs: Any, memory: Any) -> list[Any]:
    """Returns the KV cache configuration of each worker."""
    planner, grouper = kv_planner()
    groups = [grouper(config, specs)] if grouper else []
    plans: list[Any] = planner(config, specs, memory, *groups)
    return plans


def compare_fields(kind: type, used: tuple[str, ...], built: bool = True) -> list[str]:
    """Returns what is wrong with the fields of a dataclass: missing ones, and new ones without a default."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    wrong = [f"{kind.__name__} has no field {name}" for name in used if name not in fields]
    if built:
        missing = dataclasses.MISSING
        wrong += [
            f"{kind.__name__} needs a field {name}"
            for name, field in fields.items()
            if name not in used and field.default is missing and field.default_factory is missing
        ]
    return wrong


def compare_call(
    call: Callable[..., Any], positional: tuple[str, ...], keywords: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> list[str]:
    """Returns what is wrong with a signature: other leading parameters, or unknown ones that have no default."""
    parameters = inspect.signature(call).parameters
    names = list(parameters)
    found = tuple(names[: len(positional)])
    wrong = [] if found == positional else [f"{call.__qualname__} takes {found}"]
    wrong += [f"{call.__qualname__} has no parameter {name}" for name in keywords if name not in names]
    wrong += [
        f"{call.__qualname__} needs an argument {name}"
        for name in names[len(positional) :]
        if parameters[name].default is inspect.Parameter.empty
        and parameters[name].kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        and name not in (*keywords, *optional)
    ]
    return wrong
