"""Blocks of KV in the CPU's memory, copied by numpy in the calling thread.

PyTorch would copy with threads of OpenMP, which keeps some for each thread that asks: see `cli.build_apart`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of numbers by their size, since numpy lacks some of PyTorch's types."""


def elements(block: Any) -> npt.NDArray[np.integer[Any]]:
    """Returns a view of a block, a tensor of any shape and type, as numbers of the same size."""
    numbers: npt.NDArray[np.integer[Any]] = block.view(NUMBERS[block.element_size()]).numpy()
    return numbers


def replace(block: Any, data: Any) -> None:
    """Copies as many bytes as a block has into the block."""
    place = elements(block)
    place[...] = np.frombuffer(data, place.dtype).reshape(place.shape)
