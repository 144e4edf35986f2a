"""The order of elements in a block of vLLM's KV cache, found out by looking.

Layouts differ by backend and version, so none is taken for granted. Two prompts that differ from some token on have equal keys
and values before it and different ones behind it: that shows the axis of tokens, for keys and values alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Raw = npt.NDArray[np.generic]
"""A block of one layer, flat, as it lies in memory by rising address of [head, token, content]."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a block of one layer on one worker."""

    heads: int
    tokens: int
    dim: int


Split = Callable[[Raw, Shape], tuple[Raw, Raw]]


def _interleaved(raw: Raw, s: Shape) -> tuple[Raw, Raw]:
    both = raw.reshape(s.heads, s.tokens, 2, s.dim)
    return both[:, :, 0], both[:, :, 1]


def _halves(raw: Raw, s: Shape) -> tuple[Raw, Raw]:
    both = raw.reshape(s.heads, 2, s.tokens, s.dim)
    return both[:, 0], both[:, 1]


def _turned_keys(raw: Raw, s: Shape) -> tuple[Raw, Raw]:
    both = raw.reshape(s.heads, 2, s.tokens * s.dim)
    keys = both[:, 0].reshape(s.heads, s.dim, s.tokens).transpose(0, 2, 1)
    return keys, both[:, 1].reshape(s.heads, s.tokens, s.dim)


LAYOUTS: dict[str, Split] = {
    "keys and values of a token side by side": _interleaved,
    "all keys, then all values": _halves,
    "all keys turned, then all values": _turned_keys,
}
"""Functions that view a raw block as keys and values, each [head, token, element]."""


def find(first: Raw, second: Raw, shape: Shape, equal: int) -> str | None:
    """Returns the layout in which two raw blocks are equal in the first `equal` tokens, and different in each later one."""
    for name, split in LAYOUTS.items():
        parts = zip(split(first, shape), split(second, shape), strict=True)
        if all(_fits(a, b, equal) for a, b in parts):
            return name
    return None


def _fits(a: Raw, b: Raw, equal: int) -> bool:
    same = (a == b).all(axis=(0, 2))
    differs = (a != b).any(axis=(0, 2))
    filled = a.astype(np.float32).any(axis=(0, 2))
    return bool(same[:equal].all() and differs[equal:].all() and filled.all())


def to_wire(raw: Raw, shape: Shape, layout: str | None) -> Raw:
    """Returns a raw block as [keys, values][token][head][element], or as it is if the layout is unknown."""
    if layout is None:
        return raw
    return np.stack([part.transpose(1, 0, 2) for part in LAYOUTS[layout](raw, shape)])


def from_wire(wire: Raw, shape: Shape, layout: str | None) -> Raw:
    """Returns the raw block for elements in the order of the wire."""
    if layout is None:
        return wire.reshape(-1)
    wire = wire.reshape(2, shape.tokens, shape.heads, shape.dim)
    raw = np.empty(wire.size, wire.dtype)
    for part, source in zip(LAYOUTS[layout](raw, shape), wire, strict=True):
        # The parts are views of `raw`.
        part[...] = source.transpose(1, 0, 2)
    return raw
