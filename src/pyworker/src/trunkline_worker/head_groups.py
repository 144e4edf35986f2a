"""KV heads that keep every token while the others drop tokens (H2O), and the layer groups that follow.

The numbers are those of `trunkline worker --h2o on`, down to the rounding: a server mixes workers whose groups are equal.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .facts import LayerGroup
from .model_folder import revision

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

log = logging.getLogger(__name__)

TOTAL = 2.5
"""Tokens of a sequence for each token that is kept, over all heads, unless given."""
TOTALS = (1.1, 16.0)
FLOORS = 288 / 4096
"""Share of the first and last tokens, which every head keeps, in a sequence for which heads are chosen."""
GROUPS_MAX = 256
"""Layer groups of a model, at most."""
WEIGHED_GROUPS = 8
"""Groups of heads with one choice for all, at most, where little of their blocks stays unused."""
WASTE_MAX = 10
"""Of the layers one in so many may stay unused in blocks that are not full."""
WEIGHT_MAX = 64_000


@dataclass(frozen=True)
class Losses:
    """Loss of each KV head that drops tokens alone, as shares of all: `[layer * kv_heads + head]`."""

    rest: tuple[float, ...]
    """By the rest of a text."""
    repeated: tuple[float, ...]
    """By the repetition of a text."""
    keep: str | None = None
    """Heads that keep every token at any total."""

    def joint(self, drops: Callable[[int], bool]) -> list[float]:
        """Returns the loss of each head in both ways to read on, which count equally over the heads that drop tokens."""

        def shares(losses: tuple[float, ...]) -> list[float]:
            all_ = _sum(loss for head, loss in enumerate(losses) if drops(head))
            return [loss / all_ if all_ > 0 else 0.0 for loss in losses]

        return [a + b for a, b in zip(shares(self.rest), shares(self.repeated), strict=True)]


@dataclass(frozen=True)
class Shape:
    """Layers of a model, and the KV heads of each."""

    n_layers: int
    per_layer: int

    @property
    def n_heads(self) -> int:
        """Number of KV heads in all layers."""
        return self.n_layers * self.per_layer


def read_losses(folder: Path) -> Losses | None:
    """Returns the losses that `trunkline h2o calibrate` found for the weights in a folder; None without any, or of other weights.

    Raises:
        ValueError: the file is malformed.
    """
    path = folder / "h2o.toml"
    if not path.exists():
        return None
    try:
        found = tomllib.loads(path.read_text())
        losses = _losses(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not of this version, or damaged ({error}); run trunkline h2o calibrate again") from error
    if found["revision"] != revision(folder):
        log.warning("%s is of other weights; run trunkline h2o calibrate again", path)
        return None
    return losses


def _losses(found: dict[str, Any]) -> Losses:
    per_layer, keep = found["kv_heads"], found.get("keep")
    rest, repeated = (tuple(float(loss) for loss in found[name]) for name in ("rest", "repeated"))
    if not isinstance(per_layer, int) or per_layer < 1 or len(rest) % per_layer or len(repeated) != len(rest):
        raise ValueError(f"it has {len(rest)} and {len(repeated)} losses for layers of {per_layer} KV heads")
    if not all(0 <= loss <= 1 for loss in rest + repeated):
        raise ValueError("a loss is not a share of all")
    if keep is not None:
        parse_heads("keep", keep, Shape(len(rest) // per_layer, per_layer))
    return Losses(rest, repeated, keep)


def parse_heads(name: str, text: str, shape: Shape) -> set[int]:
    """Returns the KV heads in a list of layers, and of heads as LAYER.HEAD: `7,18.2` is layer 7, and head 2 of layer 18.

    Raises:
        ValueError: an entry is not a number, or the model has no such layer or head.
    """
    heads: set[int] = set()
    for entry in (entry.strip() for entry in text.split(",")):
        numbers = entry.split(".")
        if len(numbers) > 2 or not all(number.isascii() and number.isdecimal() for number in numbers):
            raise ValueError(f"{name} names '{entry}'; give numbers, as in 7,14 or 7.2,14.0")
        layer, *head = (int(number) for number in numbers)
        if layer >= shape.n_layers:
            raise ValueError(f"{name} names layer {layer}; the model has the layers 0 to {shape.n_layers - 1}")
        if head and head[0] >= shape.per_layer:
            raise ValueError(f"{name} names KV head {entry}; a layer has the KV heads 0 to {shape.per_layer - 1}")
        heads.update(layer * shape.per_layer + h for h in head or range(shape.per_layer))
    return heads


def divided(shape: Shape, layers: str | None, losses: Losses | None, total: float, own: bool) -> tuple[LayerGroup, ...]:
    """Returns the layer groups of a model whose heads in `layers` keep every token, or else those that lose most.

    With `own` each head is a group, and chooses what it drops; else, or of too many heads, those that keep equally much are one.

    Raises:
        ValueError: it is not known which heads keep every token, or a number is out of range.
    """
    if not TOTALS[0] <= total <= TOTALS[1]:
        raise ValueError(f"--h2o-total is {total:g}; it must be between {TOTALS[0]:g} and {TOTALS[1]:g}")
    if losses is not None and len(losses.rest) != shape.n_heads:
        raise ValueError(
            f"there are losses of {len(losses.rest)} KV heads, and the model has {shape.n_heads}; "
            "run trunkline h2o calibrate again"
        )
    if layers is not None:
        full = parse_heads("--h2o-layers", layers, shape)
    elif losses is None:
        raise ValueError(
            "it is not known which KV heads of the model read far back; find them with trunkline h2o calibrate, or name some "
            "with --h2o-layers"
        )
    else:
        full = parse_heads("keep", losses.keep, shape) if losses.keep is not None else full_heads(losses, total)
    joint = losses.joint(lambda head: head not in full) if losses is not None else []
    return groups(shape, full, joint, own and shape.n_heads <= GROUPS_MAX)


def full_heads(losses: Losses, total: float) -> set[int]:
    """Returns the heads that keep every token if all are to keep one of `total` tokens; at least one does, and one drops tokens.

    Tokens beyond the floors go with the root of each head's loss. A head that would get more than there are keeps every token,
    and what it does not need goes to the others: heads are taken in falling order of loss.
    """
    others = list(range(len(losses.rest)))
    budget = len(others) * (1 / _single(total) - FLOORS)
    full: set[int] = set()
    while len(others) > 1:
        joint = losses.joint(lambda head: head not in full)
        most = max(others, key=lambda head: (joint[head], -head))
        roots = _sum(math.sqrt(joint[head]) for head in others)
        left = budget - len(full) * (1 - FLOORS)
        if full and (roots == 0 or left * math.sqrt(joint[most]) / roots <= 1 - FLOORS):
            break
        full.add(most)
        others.remove(most)
    return full


def groups(shape: Shape, full: set[int], losses: list[float], own: bool) -> tuple[LayerGroup, ...]:
    """Returns the layer groups of a model: the heads in `full` keep every token, the others drop tokens.

    Groups have whole layers if no layer is divided. With losses, groups that drop have weights, and members of similar loss.
    """
    dropping = [head for head in range(shape.n_heads) if head not in full]
    own = own and bool(dropping)
    layers = {head // shape.per_layer for head in full}
    of_heads = own or len(full) < len(layers) * shape.per_layer
    unit = 1 if of_heads else shape.per_layer

    def members(heads: Iterable[int]) -> list[int]:
        return [head // unit for head in sorted(heads) if head % unit == 0]

    def loss(heads: Iterable[int]) -> float:
        return _sum(losses[head] for head in heads if head < len(losses))

    by_loss = sorted(members(dropping), key=lambda m: loss(range(m * unit, (m + 1) * unit)), reverse=True)
    kinds = [kind for kind in ((False, members(full)), (True, by_loss)) if kind[1]]
    most = GROUPS_MAX if own else WEIGHED_GROUPS if losses else 0
    found = [(scored, sorted(part)) for scored, part in equal_groups(kinds, most)]
    heads = [[head for member in part for head in range(member * unit, (member + 1) * unit)] for _, part in found]
    weights = iter(_weights([(loss(part), len(part)) for (scored, _), part in zip(found, heads, strict=True) if scored]))
    return tuple(
        LayerGroup(
            layers=() if of_heads else tuple(part),
            heads=tuple(part) if of_heads else (),
            scored=scored,
            weight=next(weights, 0) if scored else 0,
        )
        for scored, part in found
    )


def equal_groups(kinds: list[tuple[bool, list[int]]], most: int) -> list[tuple[bool, list[int]]]:
    """Divides members of several kinds into groups of about equal size, each of one kind.

    Of the sizes that leave at most a tenth unused this is the smallest that makes at most `most` groups, or else the largest; or
    a larger one, if that makes too many groups.
    """
    total = sum(len(members) for _, members in kinds)
    smallest = min(len(members) for _, members in kinds)

    def n_groups(size: int) -> int:
        return sum(-(-len(members) // size) for _, members in kinds)

    sizes = [s for s in range(1, smallest + 1) if WASTE_MAX * sum(-len(members) % s for _, members in kinds) <= total]
    size = next((s for s in sizes if n_groups(s) <= most), sizes[-1])
    size = next((s for s in range(size, total) if n_groups(s) <= GROUPS_MAX), total)
    found = []
    for kind, members in kinds:
        at = 0
        for left in range(-(-len(members) // size), 0, -1):
            n = -(-(len(members) - at) // left)
            found.append((kind, members[at : at + n]))
            at += n
    return found


def _weights(dropping: list[tuple[float, int]]) -> list[int]:
    """Returns the weights of groups, each with a loss and a number of heads; none without losses, or for one group."""
    roots = [math.sqrt(loss / n) for loss, n in dropping]
    sum_ = _sum(root * n for root, (_, n) in zip(roots, dropping, strict=True))
    if len(dropping) < 2 or sum_ == 0:
        return []
    n_heads = sum(n for _, n in dropping)
    return [min(WEIGHT_MAX, math.floor(root * n_heads / sum_ * 1000 + 0.5)) for root in roots]


def _sum(values: Iterable[float]) -> float:
    """Adds in order: `sum` of newer Pythons rounds otherwise."""
    total = 0.0
    for value in values:
        total += value
    return total


def _single(value: float) -> float:
    """Returns a number as 32 bits hold it."""
    return float(np.float32(value))
