"""Random numbers: the n-th token of a request is drawn by a number that follows from (seed, n) alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STRIDE = np.uint64(0x9E37_79B9_7F4A_7C15)


def draws(seeds: npt.NDArray[np.uint64], n: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Returns the number in 0 .. 1 for the `n`-th token of each seed."""
    with np.errstate(over="ignore"):
        start = _mix(seeds.astype(np.uint64) + STRIDE)
        bits = _mix(start + STRIDE * (n.astype(np.uint64) + np.uint64(1)))
    return (bits >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return z ^ (z >> np.uint64(31))
