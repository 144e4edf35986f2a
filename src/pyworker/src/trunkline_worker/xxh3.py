"""XXH3 of 128 bits with numpy, as Trunkline hashes the files of a model; by the package `xxhash` where that is installed."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

try:
    import xxhash
except ImportError:
    xxhash = None

Lanes = npt.NDArray[np.uint64]

STRIPE = 64
BLOCK = 1024
"""Bytes after which the sums are scrambled."""
LEAST = 241
"""Bytes of an input, at least: shorter ones have other algorithms."""
MASK = (1 << 64) - 1
PRIMES_32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
PRIMES_64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
SWAPPED = [1, 0, 3, 2, 5, 4, 7, 6]
"""Lane that the input of each lane is added to."""


class Hash(Protocol):
    """A hash that grows with its input."""

    def update(self, data: bytes, /) -> None:
        """Takes the next bytes."""

    def hexdigest(self) -> str:
        """Returns the hash of all bytes so far, 32 hex digits."""


def new() -> Hash:
    """Returns the hash of no bytes yet."""
    return Numpy() if xxhash is None else xxhash.xxh3_128()


class Numpy:
    """The hash with numpy, some 200 MB in a second of a CPU."""

    def __init__(self) -> None:
        first = [PRIMES_32[2], *PRIMES_64[:4], PRIMES_32[1], PRIMES_64[4], PRIMES_32[0]]
        self._sums = np.array(first, np.uint64)
        self._length = 0
        self._rest = b""
        """Bytes after the last whole block; never none once there was a block."""
        self._last = b""
        """The last stripe of the block before."""

    def update(self, data: bytes, /) -> None:
        """Takes the next bytes."""
        self._length += len(data)
        joined = self._rest + data
        # The last block is scrambled only if more bytes follow.
        n = max(0, len(joined) - 1) // BLOCK
        if n:
            self._take(np.frombuffer(joined, "<u8", n * BLOCK // 8).reshape(n, BLOCK // STRIPE, 8))
            self._last = joined[n * BLOCK - STRIPE : n * BLOCK]
        self._rest = joined[n * BLOCK :]

    def _take(self, blocks: Lanes) -> None:
        """Adds whole blocks [block, stripe, lane], and scrambles the sums after each."""
        sums, key, prime = self._sums, _lanes(len(SECRET) - STRIPE), np.uint64(PRIMES_32[0])
        for added in _added(blocks, [8 * stripe for stripe in range(BLOCK // STRIPE)]):
            sums += added
            sums ^= sums >> np.uint64(47)
            sums ^= key
            sums *= prime

    def hexdigest(self) -> str:
        """Returns the hash of all bytes so far, 32 hex digits.

        Raises:
            ValueError: there are too few bytes.
        """
        if self._length < LEAST:
            raise ValueError(f"a hash of {self._length} bytes; it takes {LEAST} at least")
        n = (len(self._rest) - 1) // STRIPE
        whole = np.frombuffer(self._rest, "<u8", 8 * n).reshape(1, n, 8)
        sums = self._sums + _added(whole, [8 * stripe for stripe in range(n)])[0]
        last = np.frombuffer((self._last + self._rest)[-STRIPE:], "<u8").reshape(1, 1, 8)
        sums += _added(last, [len(SECRET) - STRIPE - 7])[0]
        lanes = [int(lane) for lane in sums]
        low = _merged(lanes, 11, self._length * PRIMES_64[0] & MASK)
        high = _merged(lanes, len(SECRET) - STRIPE - 11, ~(self._length * PRIMES_64[1]) & MASK)
        return f"{high:016x}{low:016x}"


def _lanes(at: int) -> Lanes:
    return np.frombuffer(SECRET, "<u8", 8, at)


def _added(blocks: Lanes, secrets: list[int]) -> Lanes:
    """Returns what blocks [block, stripe, lane] add to the sums; each stripe has its place in the secret."""
    if not secrets:
        return np.zeros((len(blocks), 8), np.uint64)
    keyed = blocks ^ np.stack([_lanes(at) for at in secrets])
    products = (keyed & np.uint64(0xFFFF_FFFF)) * (keyed >> np.uint64(32))
    found: Lanes = products.sum(1, dtype=np.uint64) + blocks.sum(1, dtype=np.uint64)[:, SWAPPED]
    return found


def _merged(lanes: list[int], at: int, start: int) -> int:
    keys = [int(key) for key in _lanes(at)]
    for i in range(0, 8, 2):
        product = (lanes[i] ^ keys[i]) * (lanes[i + 1] ^ keys[i + 1])
        start += (product & MASK) ^ (product >> 64)
    start &= MASK
    start = (start ^ start >> 37) * 0x165667919E3779F9 & MASK
    return start ^ start >> 32
