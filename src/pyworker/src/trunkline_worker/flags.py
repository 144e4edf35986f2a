"""Flags of the command line that several engines may take: each engine names those that it honours (`Engine.flags`)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .facts import Abilities, LockStep


def at_least_one(text: str) -> int:
    """Reads a number from 1 on: 0 is no way to ask for the default of a flag."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def _number(help_: str, default: int | None = None) -> dict[str, Any]:
    shown = "" if default is None else f" (default: {default})"
    return {"type": at_least_one, "metavar": "N", "default": default, "help": help_ + shown}


FLAGS: dict[str, dict[str, Any]] = {
    "--model": {"type": Path, "metavar": "DIR", "help": "folder of the model, as on Hugging Face: config.json and safetensors"},
    "--model-name": {"metavar": "NAME", "help": "name to announce (default: the folder's name)"},
    "--revision": {"help": "revision of the weights to announce (default: a hash of pieces of the files)"},
    "--dtype": {"choices": ("f32", "bf16", "f16"), "help": "type of weights and KV (default: the model's; f32 on a CPU)"},
    "--block-size": _number("preferred tokens in a block (default: the engine's)"),
    "--kv-tokens": _number("room for KV in tokens (default: 16384 on a CPU, free memory on a GPU)"),
    "--max-context": _number("longest sequence in tokens (default: the model's)"),
    "--max-sequences": _number("sequences of one step, at most", Abilities.max_sequences),
    "--max-tokens": _number("tokens of one step, at most", Abilities.max_tokens),
    "--threads": _number("CPU threads of the engine (default: PyTorch's)"),
    "--pipeline-parallel": _number("processes that each run a part of the layers, with as many steps under way", 1),
    "--data-parallel-group": {"metavar": "NAME", "help": "group of workers that run every step together"},
    "--data-parallel-size": _number("workers of the group", 1),
    "--data-parallel-rank": {"type": int, "metavar": "N", "default": 0, "help": "number of this worker in the group, from 0"},
    "--eager": {"action": "store_true", "default": False, "help": "no compilation and no CUDA graphs"},
    "--shared-memory": {
        "choices": ("true", "false"),
        "default": "true",
        "help": "copy blocks through shared memory if the server runs on this machine with the same user (default: true)",
    },
}
"""The flags, with what `add_argument` takes."""

ALIASES = {"--pipeline-parallel": ("--pipeline-stages",)}

LOCK_STEP = ("--data-parallel-group", "--data-parallel-size", "--data-parallel-rank")
"""Flags of an engine that runs steps together with other workers."""


def add(names: tuple[str, ...], parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> None:
    """Adds some of the flags to a group of a parser, which gets the defaults of all others.

    Raises:
        ValueError: a name is not in `FLAGS`.
    """
    if unknown := [name for name in names if name not in FLAGS]:
        raise ValueError(f"{unknown[0]} is none that several engines take; add_flags may add it")
    parser.set_defaults(**{name[2:].replace("-", "_"): options.get("default") for name, options in FLAGS.items()})
    for name in names:
        group.add_argument(name, *ALIASES.get(name, ()), **FLAGS[name])


def lock_step(args: argparse.Namespace) -> LockStep | None:
    """Returns the place of the worker in its group, if it has one."""
    group, size, rank = args.data_parallel_group, args.data_parallel_size, args.data_parallel_rank
    if size > 1 and group is None:
        raise ValueError(f"--data-parallel-size {size} needs --data-parallel-group NAME")
    if not 0 <= rank < size:
        raise ValueError(f"--data-parallel-rank is {rank}; it must be below --data-parallel-size, which is {size}")
    return LockStep(group, size, rank) if group is not None else None


def checked_kv_tokens(tokens: int, block_size: int) -> int:
    """Returns the room for KV that --kv-tokens asks for, in tokens.

    Raises:
        ValueError: a block does not fit.
    """
    if tokens < block_size:
        raise ValueError(f"--kv-tokens {tokens}: must be at least one block, which has {block_size} tokens")
    return tokens
