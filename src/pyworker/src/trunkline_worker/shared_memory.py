"""Memory that a server on the same machine shares with the worker, for copies of blocks (`SharedMemory` of the protocol).

The memory is an open file of the server, read and written at offsets. Whatever the server does to it meanwhile, a copy gets other
bytes or an error, and no signal ends the worker.
"""

from __future__ import annotations

import os
import stat
import sys

from .proto import messages as pb

if sys.platform == "linux":
    import fcntl

AVAILABLE = sys.platform == "linux"
"""Whether this system has files in memory with a fixed size."""
HEADER_BYTES = 4096
"""Bytes before the first slot."""
SLOT_UNIT = 4096
SLOTS_MAX, SLOT_BYTES_MAX = 1024, 1 << 30
MARK_BYTES = 16


class Unshared(Exception):
    """The memory of an offer cannot be used; blocks travel in messages."""


class Region:
    """Memory of an offer, opened."""

    def __init__(self, offer: pb.SharedMemory) -> None:
        """Opens the memory, and no other file.

        Raises:
            Unshared: the memory is out of reach, on another machine or of another user.
        """
        self.slots, self.slot_bytes = offer.slots, offer.slot_bytes
        if not 1 <= self.slots <= SLOTS_MAX or not SLOT_UNIT <= self.slot_bytes <= SLOT_BYTES_MAX or self.slot_bytes % SLOT_UNIT:
            raise Unshared(f"the server offers {self.slots} slots of {self.slot_bytes} bytes")
        self._fd = -1
        path = f"/proc/{offer.pid}/fd/{offer.fd}"
        other = Unshared(f"{path} is not the memory that the server offers")
        try:
            # Looked at before it is opened: to open a device or a pipe of another process can have effects.
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_size != HEADER_BYTES + self.slots * self.slot_bytes:
                raise other
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            secret = os.pread(self._fd, 2 * MARK_BYTES, 0) if _is_sealed(self._fd) else b""
        except OSError as error:
            self.close()
            raise Unshared(f"{path} cannot be opened: {error.strerror}") from error
        if len(secret) != 2 * MARK_BYTES or secret[:MARK_BYTES] != offer.mark:
            self.close()
            raise other
        self.proof = secret[MARK_BYTES:]

    def read(self, slot: int, n_bytes: int) -> bytes:
        """Returns the first bytes of a slot."""
        data = os.pread(self._fd, n_bytes, self._offset(slot, n_bytes))
        if len(data) != n_bytes:
            raise OSError(f"slot {slot} has {len(data)} of {n_bytes} bytes")
        return data

    def write(self, slot: int, data: bytes) -> None:
        """Replaces the first bytes of a slot."""
        n_bytes = os.pwrite(self._fd, data, self._offset(slot, len(data)))
        if n_bytes != len(data):
            raise OSError(f"slot {slot} took {n_bytes} of {len(data)} bytes")

    def close(self) -> None:
        """Closes the file; reads and writes fail from now on."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _offset(self, slot: int, n_bytes: int) -> int:
        if slot >= self.slots:
            raise ValueError(f"there is no slot {slot}; the shared memory has {self.slots}")
        if n_bytes > self.slot_bytes:
            raise ValueError(f"{n_bytes} bytes do not fit a slot of {self.slot_bytes} bytes")
        return HEADER_BYTES + slot * self.slot_bytes


def _is_sealed(fd: int) -> bool:
    """Returns `True` for a file in memory whose size nobody changes."""
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals
