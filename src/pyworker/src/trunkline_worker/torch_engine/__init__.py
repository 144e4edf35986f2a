"""Our own runner for the Llama family in plain PyTorch, which is imported once an engine is built."""

from __future__ import annotations

import argparse
import logging

from .. import model_folder
from ..engine import Engine
from ..facts import Abilities
from ..flags import LOCK_STEP

log = logging.getLogger(__name__)


class Torch(Engine):
    """`--engine torch`: what it takes from the command line, and what it can do."""

    flags = (
        *("--model", "--model-name", "--revision", "--dtype", "--block-size", "--kv-tokens", "--max-context"),
        *("--max-sequences", "--max-tokens", "--threads", "--pipeline-parallel", *LOCK_STEP, "--eager", "--shared-memory"),
    )
    abilities = Abilities(
        max_logprobs=20,
        partial_writes=True,
        scores=True,
        scores_by_group=True,
        seeded_sampling=True,
        penalties=True,
        in_step_hits=True,
    )

    @classmethod
    def add_flags(cls, group: argparse._ArgumentGroup) -> None:
        """Adds the device, and the layers and heads that drop tokens (H2O)."""
        group.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 .. (default: a GPU if there is one)")
        group.add_argument(
            "--scored-layers",
            metavar="LAYERS",
            help="layers whose blocks may be dropped by attention scores (H2O), as 4-29 or 4,6,8",
        )
        group.add_argument(
            "--h2o",
            choices=("on", "off"),
            help="let the server drop tokens (serve --h2o on) in all KV heads but those that lose most as found by trunkline h2o "
            "calibrate",
        )
        group.add_argument(
            "--h2o-layers",
            metavar="LAYERS",
            help="layers, or KV heads as LAYER.HEAD, that keep every token while the others drop tokens, as 7,18.2",
        )
        group.add_argument("--h2o-total", type=float, metavar="RATIO", help="the --h2o-total of the server (default: 2.5)")
        group.add_argument(
            "--h2o-choice",
            choices=("own", "shared"),
            help="choice of the blocks to drop, by the scores of each KV head or one score for all (default: own)",
        )

    @classmethod
    def build(cls, args: argparse.Namespace) -> Engine:
        """Returns an engine for the command line's arguments: a `TorchEngine`, or a pipeline of stages."""
        _check_h2o(args)
        model = model_folder.checked(args)
        from .build import build

        return build(args, model, cls.abilities)


def _check_h2o(args: argparse.Namespace) -> None:
    given = [name for name in ("h2o", "h2o_layers", "h2o_total", "h2o_choice") if getattr(args, name) is not None]
    if args.h2o == "off":
        for name in given[1:]:
            log.warning("--%s has no effect with --h2o off", name.replace("_", "-"))
    if args.scored_layers and given:
        raise ValueError(f"--scored-layers and --{given[0].replace('_', '-')} contradict each other; give one of them")
