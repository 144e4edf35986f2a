"""Builds the torch engine from the arguments of the command line: reads the model and finds the room for KV."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path

import torch

from .. import head_groups, model_folder, structures
from ..engine import Engine
from ..facts import Abilities, KvFacts, LayerGroup, ModelFacts
from ..flags import checked_kv_tokens
from . import graphs as graphs_of
from . import stages
from . import weights as weights_of
from .config import LlamaConfig, parse
from .runner import DTYPES, TorchEngine, block_sizes

log = logging.getLogger(__name__)


def build(args: argparse.Namespace, model: Path, abilities: Abilities) -> Engine:
    """Returns an engine for the command line's arguments, with the abilities of its class as far as no argument limits them.

    Raises:
        ValueError: the model or an argument does not fit.
    """
    raw = model_folder.read_config(model)
    config = parse(raw)
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device)
    dtype = args.dtype or (config.dtype if device.type == "cuda" else "f32")
    max_context = min(args.max_context or config.max_context, config.max_context)
    if config.window is not None and config.window < max_context:
        raise ValueError(
            f"--engine torch has no sliding windows, and this model has one of {config.window} tokens: "
            f"give --max-context {config.window} or less (or try --engine vllm)"
        )
    facts = model_facts(
        config,
        name=args.model_name or model.resolve().name,
        revision=args.revision if args.revision is not None else model_folder.fingerprint(model),
        dtype=dtype,
        max_context=max_context,
        eos=model_folder.end_tokens(model, raw),
        groups=_groups(args, model, config),
    )
    followed = structures.of_folder(model, facts)
    abilities = replace(abilities, max_sequences=args.max_sequences, max_tokens=args.max_tokens, grammars=followed is not None)
    if args.kv_tokens:
        checked_kv_tokens(args.kv_tokens, block_sizes(args.block_size)[0])
    if args.pipeline_parallel > 1:
        if facts.has_head_groups:
            raise ValueError(
                "--pipeline-parallel has no layer groups of single KV heads: give --h2o-choice shared with whole layers in "
                "--h2o-layers, or --scored-layers"
            )
        engine = stages.build(args, model, config, facts, abilities, device)
        engine.structures = followed
        return engine
    if args.threads:
        torch.set_num_threads(args.threads)
    weights = weights_of.load(model, config, DTYPES[dtype], device)
    # Blocks of all layer groups count.
    tokens = args.kv_tokens * facts.n_groups if args.kv_tokens else _room(args, config, facts, device)
    kv = KvFacts(block_sizes(args.block_size), tokens, block_io=True)
    log.info("%s, %s, %s: room for %d tokens of KV", facts.name, dtype, device, tokens // facts.n_groups)
    return TorchEngine(config, weights, facts, kv, abilities, not args.eager, followed)


def model_facts(
    config: LlamaConfig,
    name: str,
    revision: str,
    dtype: str,
    max_context: int,
    eos: tuple[int, ...] = (),
    groups: tuple[LayerGroup, ...] = (),
) -> ModelFacts:
    """Returns the facts to announce."""
    facts = ModelFacts(
        name=name,
        revision=revision,
        vocab_size=config.vocab_size,
        max_context=max_context,
        eos_token_ids=eos,
        n_layers=config.n_layers,
        hidden_size=config.hidden_size,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        kv_dtype=dtype,
        kv_bytes_per_token=0,
        groups=groups,
    )
    layers, heads = facts.block_shape
    per_group = 2 * layers * heads * config.head_dim * DTYPES[dtype].itemsize
    return replace(facts, kv_bytes_per_token=facts.n_groups * per_group)


def _groups(args: argparse.Namespace, model: Path, config: LlamaConfig) -> tuple[LayerGroup, ...]:
    """Returns the layer groups that the arguments ask for."""
    if args.scored_layers:
        return layer_groups(parse_layers(args.scored_layers, config.n_layers), config.n_layers)
    if (args.h2o or ("on" if args.h2o_layers else "off")) == "off":
        return ()
    losses = head_groups.read_losses(model)
    shape = head_groups.Shape(config.n_layers, config.n_kv_heads)
    total = head_groups.TOTAL if args.h2o_total is None else args.h2o_total
    return head_groups.divided(shape, args.h2o_layers, losses, total, own=args.h2o_choice != "shared")


def layer_groups(scored: tuple[int, ...], n_layers: int) -> tuple[LayerGroup, ...]:
    """Returns two groups: the layers in `scored`, whose blocks may be dropped, behind the others."""
    return LayerGroup(tuple(i for i in range(n_layers) if i not in scored)), LayerGroup(scored, scored=True)


def parse_layers(text: str, n_layers: int) -> tuple[int, ...]:
    """Returns the layers that a list such as "4-29" or "4,6,8" names, ascending.

    Raises:
        ValueError: the list is malformed, names layers that do not exist, or all layers.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--scored-layers {text}: numbers and ranges of layers are wanted, as in 4-29 or 4,6,8")
        # Numbers beyond the layers, and empty ranges, are refused below.
        found.update(range(int(first), min(int(last or first), n_layers) + 1) or [n_layers])
    if not found or min(found) < 0 or max(found) >= n_layers or len(found) == n_layers:
        raise ValueError(f"--scored-layers {text}: name some of the layers 0-{n_layers - 1}, but not all")
    return tuple(sorted(found))


def _room(args: argparse.Namespace, config: LlamaConfig, facts: ModelFacts, device: torch.device) -> int:
    if device.type != "cuda":
        return stages.CPU_KV_TOKENS * facts.n_groups
    free, _ = torch.cuda.mem_get_info(device)
    other = stages.activations(config, args.max_tokens, facts.kv_dtype)
    if not args.eager:
        other += graphs_of.memory(facts, args.max_sequences, block_sizes(args.block_size)[0])
    return stages.room(facts, free, other)
