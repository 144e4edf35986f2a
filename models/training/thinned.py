"""What KV heads see of a sequence when they have dropped most of it, for training with eviction.

The dropped blocks are drawn, so that whatever a score chooses later is a better choice. DMC (arXiv 2403.09636) and DMS
(arXiv 2506.05345) train with eviction too, and learn which tokens to drop.
"""

from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

from model import Shape

# Tokens dropped together.
BLOCK = 16
# First and last tokens that no head drops.
SINK, RECENT = 32, 256
# Share of the other blocks that a head keeps, at most.
KEPT_MAX = 0.2


def heads(text: str) -> set[tuple[int, int]]:
    """Reads KV heads written as LAYER.HEAD, separated by commas."""
    return {(int(layer), int(head)) for layer, _, head in (entry.partition(".") for entry in text.split(","))}


def visible(step: int, rows: int, length: int, whole: set[tuple[int, int]], shape: Shape) -> list[Tensor | None]:
    """Returns the keys that each query sees, by layer, `[row, head, query, key]`; `None` where no head of the layer drops tokens.

    Each row begins to drop at a place of its own in its first half; the KV heads of `whole` never drop.
    """
    rng = Random(f"thinned {step}")
    starts = [rng.randrange(length // 2) for _ in range(rows)]
    query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    causal = key <= query
    near = (key < SINK) | (query - key < RECENT)
    group = shape.num_attention_heads // shape.num_key_value_heads
    masks: list[Tensor | None] = []
    for layer in range(shape.num_hidden_layers):
        if all((layer, head) in whole for head in range(shape.num_key_value_heads)):
            masks.append(None)
            continue
        mask = causal.expand(rows, shape.num_key_value_heads, length, length).clone()
        for row, start in enumerate(starts):
            for head in range(shape.num_key_value_heads):
                if (layer, head) not in whole:
                    share = rng.uniform(0.0, KEPT_MAX)
                    kept = torch.tensor([rng.random() < share for _ in range(-(-length // BLOCK))]).repeat_interleave(BLOCK)
                    mask[row, head] &= near | kept[:length] | (query < start)
        masks.append(mask.repeat_interleave(group, dim=1))
    return masks


def divergence(logits: Tensor, thinned: Tensor) -> Tensor:
    """Returns the mean divergence of the thinned model's distributions from those of the whole model, nats."""
    whole, other = F.log_softmax(logits.float(), -1), F.log_softmax(thinned.float(), -1)
    return (whole.exp() * (whole - other)).sum(-1).mean()
