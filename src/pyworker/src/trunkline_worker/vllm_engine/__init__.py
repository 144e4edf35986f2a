"""vLLM's executor and model runner as an engine."""

from __future__ import annotations

import argparse
import os

from ..model_folder import end_tokens, fingerprint, read_config
from . import versions
from .runner import Options, VllmEngine


def build(args: argparse.Namespace) -> VllmEngine:
    """Returns an engine for the command line's arguments.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: vLLM's version, the model or an argument does not fit.
    """
    if args.pipeline_parallel > 1:
        raise ValueError(
            f"--pipeline-parallel {args.pipeline_parallel}: --engine vllm has no stages; use --tensor-parallel, or --engine torch"
        )
    raw = read_config(args.model)
    version = versions.check()
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
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
        kv_tokens=args.kv_tokens,
        max_context=args.max_context,
        max_sequences=args.max_sequences,
        max_tokens=args.max_tokens,
        tensor_parallel=args.tensor_parallel,
        eager=args.eager,
    )
    return VllmEngine(options, version)
