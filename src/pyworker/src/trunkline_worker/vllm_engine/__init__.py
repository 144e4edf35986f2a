"""vLLM's executor and model runner as an engine."""

from __future__ import annotations

import argparse
import os

from ..facts import LockStep, checked_kv_tokens
from ..model_folder import end_tokens, fingerprint, read_config
from ..pipeline import MAX_STAGES
from . import versions
from .runner import VllmEngine
from .start import Options


def build(args: argparse.Namespace, group: LockStep | None) -> VllmEngine:
    """Returns an engine for the command line's arguments, with its place in a group.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: vLLM's version, the model or an argument does not fit.
    """
    if group is not None and args.pipeline_parallel > 1:
        raise ValueError(
            f"--pipeline-parallel {args.pipeline_parallel}: not together with --data-parallel-group; use --tensor-parallel"
        )
    where = address(args.data_parallel_address)
    raw = read_config(args.model)
    layers = int(raw.get("text_config", raw).get("num_hidden_layers", MAX_STAGES))
    if not 1 <= args.pipeline_parallel <= min(layers, MAX_STAGES):
        raise ValueError(
            f"--pipeline-parallel {args.pipeline_parallel}: choose from 1 to {min(layers, MAX_STAGES)}, the layers of the model"
        )
    threads = max(1, args.threads // (args.tensor_parallel * args.pipeline_parallel)) if args.threads else None
    if threads:
        # OpenMP reads it once, when vLLM loads PyTorch.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    # vLLM then says which sequences have NaN among their logits, so that these fail alone.
    os.environ.setdefault("VLLM_COMPUTE_NANS_IN_LOGITS", "1")
    version = versions.check()
    block_size = args.block_size or 32
    if block_size % 32:
        raise ValueError(f"--block-size {block_size}: vLLM needs a multiple of 32")
    options = Options(
        model=args.model,
        name=args.model_name or args.model.resolve().name,
        revision=args.revision if args.revision is not None else fingerprint(args.model),
        eos=end_tokens(args.model, raw),
        dtype=args.dtype,
        block_size=block_size,
        kv_tokens=args.kv_tokens and checked_kv_tokens(args.kv_tokens, block_size),
        max_context=args.max_context,
        max_sequences=args.max_sequences,
        max_tokens=args.max_tokens,
        tensor_parallel=args.tensor_parallel,
        pipeline_parallel=args.pipeline_parallel,
        group=group,
        group_address=where,
        eager=args.eager,
        threads=threads,
    )
    return VllmEngine(options, version)


def address(text: str) -> tuple[str, int]:
    """Returns host and port of an address.

    Raises:
        ValueError: it is none.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"--data-parallel-address {text}: HOST:PORT is wanted, as in 127.0.0.1:29500")
    return host.strip("[]"), int(port)
