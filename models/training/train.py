"""Trains the small model, one stage at a time; a stage that was interrupted continues where its last checkpoint stands.

    python train.py --state FOLDER --from 0 --until 2000 --context 256 --sequences 8

A stage covers the steps from `--from` to `--until`: context, batch, share of recall and learning rate are its own. The data of
a step follow from the seed and the step's number alone, so that a continued run reads what an uninterrupted one would have read.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from corpus import Corpus, train_tokenizer
from model import Llama, Shape
from optimizer import optimizers
from thinned import divergence, heads, visible


def arguments() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="folder of checkpoint, tokenizer and log")
    parser.add_argument("--from", dest="start", type=int, required=True, help="first step of the stage")
    parser.add_argument("--until", type=int, required=True, help="step at which the stage ends")
    parser.add_argument("--context", type=int, required=True, help="tokens of a sequence")
    parser.add_argument("--sequences", type=int, required=True, help="sequences of a step")
    parser.add_argument("--recall", type=float, default=0.5, help="share of the documents that plant facts and ask for them")
    parser.add_argument("--copy", type=float, default=0.0, help="share of the documents that repeat a line")
    parser.add_argument("--warmup", type=int, default=0, help="steps of linear warm-up at the start of the stage")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates at the start of the stage")
    parser.add_argument("--rate-end", type=float, help="factor at the end of the stage [default: as at the start]")
    parser.add_argument("--matrix-lr", type=float, default=0.02, help="learning rate of Muon")
    parser.add_argument(
        "--vector-lr", type=float, default=0.02, help="learning rate of AdamW for the embedding; that of the norms is a tenth"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of tokenizer, weights and data")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2, help="threads on the CPU")
    parser.add_argument(
        "--stretch", action="store_true", help="leave out positions at one place of the sequence, up to the whole context"
    )
    parser.add_argument(
        "--thin",
        metavar="HEADS",
        help="read each sequence again with tokens dropped in all KV heads but these, written LAYER.HEAD,LAYER.HEAD",
    )
    parser.add_argument("--agree", type=float, default=4.0, help="weight of the divergence between the two readings")
    parser.add_argument("--weights", type=Path, help="folder of an exported model to start from, if there is no checkpoint")
    parser.add_argument("--bfloat16", action="store_true", help="multiply matrices in bfloat16")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--minutes", type=float, help="stop after this time, with a checkpoint")
    return parser.parse_args()


def autocast(args: argparse.Namespace) -> AbstractContextManager[Any]:
    """Returns bfloat16 arithmetic if it was asked for."""
    return torch.autocast(args.device.split(":")[0], torch.bfloat16) if args.bfloat16 else nullcontext()


def stretched(step: int, length: int, context: int) -> Tensor:
    """Returns ascending positions of a sequence with one gap, as if it stood in a longer context (PoSE, arXiv 2309.10400)."""
    rng = Random(f"stretch {step}")
    positions = torch.arange(length)
    positions[rng.randrange(length) :] += rng.randrange(context - length + 1)
    return positions


def weighted_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Returns the mean loss of the targets by their weights."""
    each = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return (each * weights.flatten()).sum() / weights.sum()


def step_loss(
    args: argparse.Namespace, forward: Callable[..., Tensor], corpus: Corpus, step: int, whole: set[tuple[int, int]] | None
) -> tuple[Tensor, float, int]:
    """Returns the loss of a step, the divergence between its two readings, and its tokens.

    With `whole`, the KV heads that keep every token, each sequence is read again with tokens dropped in the others.
    """
    batch = corpus.batch(step, args.sequences, args.context, args.recall, args.copy)
    inputs, targets, weights = (t.to(args.device) for t in batch)
    positions = stretched(step, args.context, Shape().max_position_embeddings) if args.stretch else torch.arange(args.context)
    positions = positions.to(args.device)
    with autocast(args):
        logits = forward(inputs, positions)
    loss = weighted_loss(logits, targets, weights)
    if whole is None:
        return loss, 0.0, inputs.numel()
    masks = [mask if mask is None else mask.to(args.device) for mask in visible(step, *inputs.shape, whole, Shape())]
    with autocast(args):
        thinned = forward(inputs, positions, masks)
    apart = divergence(logits, thinned)
    loss = (loss + weighted_loss(thinned, targets, weights)) / 2 + args.agree * apart
    return loss, apart.item(), inputs.numel()


def rate(args: argparse.Namespace, step: int) -> float:
    """Returns the factor of the learning rates at a step."""
    end = args.rate if args.rate_end is None else args.rate_end
    done = (step - args.start) / max(1, args.until - args.start)
    warm = min(1.0, (step - args.start + 1) / args.warmup) if args.warmup else 1.0
    return warm * (args.rate + (end - args.rate) * done)


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint; an interrupted write leaves the old one."""
    new = path.with_suffix(".new")
    torch.save(state, new)
    os.replace(new, path)


def main() -> None:
    """Runs a stage."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    args.state.mkdir(parents=True, exist_ok=True)
    tokenizer, checkpoint = args.state / "tokenizer.json", args.state / "checkpoint.pt"
    if not tokenizer.exists():
        train_tokenizer(args.seed, Shape().vocab_size).save(str(tokenizer))
    corpus = Corpus(tokenizer, f"train {args.seed}")
    model = Llama(Shape()).to(args.device)
    opts = optimizers(model, args.matrix_lr, args.vector_lr)
    step, seen = 0, 0
    if args.weights and not checkpoint.exists():
        model.load_state_dict(load_file(args.weights / "model.safetensors"))
        step = args.start
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=args.device, weights_only=True)
        model.load_state_dict(state["model"])
        for opt, of in zip(opts, state["optimizers"], strict=True):
            opt.load_state_dict(of)
        step, seen = state["step"], state["seen"]
    if not args.start <= step <= args.until:
        raise SystemExit(f"the checkpoint is at step {step}; the stage covers steps {args.start} to {args.until}")
    rates = [[group["lr"] for group in opt.param_groups] for opt in optimizers(model, args.matrix_lr, args.vector_lr)]
    forward = torch.compile(model) if args.compile else model
    whole = heads(args.thin) if args.thin else None
    began, mean, mean_apart = time.monotonic(), 0.0, 0.0

    def keep() -> None:
        save(checkpoint, {"model": model.state_dict(), "optimizers": [o.state_dict() for o in opts], "step": step, "seen": seen})

    while step < args.until:
        loss, apart, tokens = step_loss(args, forward, corpus, step, whole)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt, of in zip(opts, rates, strict=True):
            for group, full in zip(opt.param_groups, of, strict=True):
                group["lr"] = full * rate(args, step)
            opt.step()
            opt.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + tokens
        mean = loss.item() if mean == 0.0 else 0.95 * mean + 0.05 * loss.item()
        mean_apart = apart if mean_apart == 0.0 else 0.95 * mean_apart + 0.05 * apart
        if step % 10 == 0:
            line = {
                "step": step,
                "seen": seen,
                "loss": round(mean, 4),
                "context": args.context,
                "rate": round(rate(args, step), 4),
            }
            if whole is not None:
                line["apart"] = round(mean_apart, 5)
            line["seconds"] = round(time.monotonic() - began, 1)
            with (args.state / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
        if step % args.save_every == 0:
            keep()
        if args.minutes and time.monotonic() - began > 60 * args.minutes:
            break
    keep()


if __name__ == "__main__":
    main()
