"""vLLM's executor and model runner as an engine."""

from __future__ import annotations

import argparse
import logging
import os

from .. import model_folder
from ..engine import Engine
from ..flags import LOCK_STEP, at_least_one, checked_kv_tokens, lock_step
from ..pipeline import MAX_STAGES
from . import versions
from .runner import VllmEngine
from .start import Options

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1:29500"
"""Where the workers of a group meet, unless told."""


class Vllm(VllmEngine):
    """`--engine vllm`: what it takes from the command line."""

    flags = (
        *("--model", "--model-name", "--revision", "--dtype", "--block-size", "--kv-tokens", "--max-context"),
        *("--max-sequences", "--max-tokens", "--threads", "--pipeline-parallel", *LOCK_STEP, "--eager", "--shared-memory"),
    )

    @classmethod
    def add_flags(cls, group: argparse._ArgumentGroup) -> None:
        """Adds what vLLM alone has."""
        group.add_argument(
            "--tensor-parallel",
            type=at_least_one,
            default=1,
            metavar="N",
            help="GPUs or processes that share the model (default: 1)",
        )
        group.add_argument(
            "--data-parallel-address",
            metavar="HOST:PORT",
            help=f"where the workers of the group meet, an address of rank 0 (default: {ADDRESS})",
        )

    @classmethod
    def build(cls, args: argparse.Namespace) -> Engine:
        """Returns an engine for the command line's arguments.

        Raises:
            ImportError: vLLM is not installed.
            ValueError: vLLM's version, the model or an argument does not fit.
        """
        group = lock_step(args)
        if group is None and args.data_parallel_address is not None:
            log.warning("--data-parallel-address has no effect without --data-parallel-group")
        model = model_folder.checked(args)
        if group is not None and args.pipeline_parallel > 1:
            raise ValueError(
                f"--pipeline-parallel {args.pipeline_parallel}: not together with --data-parallel-group; use --tensor-parallel"
            )
        where = address(args.data_parallel_address or ADDRESS)
        raw = model_folder.read_config(model)
        layers = int(raw.get("text_config", raw).get("num_hidden_layers", MAX_STAGES))
        stages, most = args.pipeline_parallel, min(layers, MAX_STAGES)
        if not 1 <= stages <= most:
            raise ValueError(f"--pipeline-parallel {stages}: choose from 1 to {most}, the layers of the model")
        threads = max(1, args.threads // (args.tensor_parallel * stages)) if args.threads else None
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
            model=model,
            name=args.model_name or model.resolve().name,
            revision=args.revision if args.revision is not None else model_folder.fingerprint(model),
            eos=model_folder.end_tokens(model, raw),
            dtype=args.dtype,
            block_size=block_size,
            kv_tokens=args.kv_tokens and checked_kv_tokens(args.kv_tokens, block_size),
            max_context=args.max_context,
            max_sequences=args.max_sequences,
            max_tokens=args.max_tokens,
            tensor_parallel=args.tensor_parallel,
            pipeline_parallel=stages,
            group=group,
            group_address=where,
            eager=args.eager,
            threads=threads,
        )
        return cls(options, version)


def address(text: str) -> tuple[str, int]:
    """Returns host and port of an address.

    Raises:
        ValueError: it is none.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"--data-parallel-address {text}: HOST:PORT is wanted, as in {ADDRESS}")
    return host.strip("[]"), int(port)
