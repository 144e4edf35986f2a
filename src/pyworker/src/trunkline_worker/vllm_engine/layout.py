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


@dataclass(frozen=True)
class Parts:
    """How a block is divided among vLLM's workers: each stage holds its layers, and the workers of a stage share their heads."""

    shape: Shape
    element: str
    """Type of an element, as numpy names it."""
    layers: tuple[int, ...]
    """Number of layers of each stage, in the order of the model."""
    n_workers: int
    """Workers of a stage."""
    layout: str | None = None

    @property
    def n_bytes(self) -> int:
        """Size of a whole block."""
        return sum(self.layers) * self.n_workers * self._layer_elements * np.dtype(self.element).itemsize

    @property
    def _layer_elements(self) -> int:
        return 2 * self.shape.heads * self.shape.tokens * self.shape.dim

    def raw_layers(self, raws: list[bytes]) -> list[Raw]:
        """Returns the layers of all workers, each flat."""
        return [layer for raw in raws for layer in np.frombuffer(raw, self.element).reshape(-1, self._layer_elements)]

    def join(self, raws: list[bytes]) -> bytes:
        """Returns a block in the order of the wire from the bytes of each worker."""
        whole = b""
        for i in range(len(self.layers)):
            stage = raws[i * self.n_workers : (i + 1) * self.n_workers]
            workers = [np.stack([to_wire(layer, self.shape, self.layout) for layer in self.raw_layers([raw])]) for raw in stage]
            whole += np.concatenate(workers, axis=3 if self.layout else 1).tobytes()
        return whole

    def split(self, data: bytes) -> list[bytes]:
        """Returns the bytes for each worker from a block in the order of the wire.

        Raises:
            ValueError: the block has another size.
        """
        if len(data) != self.n_bytes:
            raise ValueError(f"{len(data)} bytes for a block of {self.n_bytes}")
        elements, parts, at = np.frombuffer(data, self.element), [], 0
        for layers in self.layers:
            n = layers * self.n_workers * self._layer_elements
            stage, at = elements[at : at + n], at + n
            s = self.shape
            sizes = (layers, 2, s.tokens, self.n_workers, s.heads * s.dim) if self.layout else (layers, self.n_workers, -1)
            wire = np.moveaxis(stage.reshape(sizes), 3 if self.layout else 1, 0)
            parts += [np.stack([from_wire(layer, s, self.layout) for layer in worker]).tobytes() for worker in wire]
        return parts
