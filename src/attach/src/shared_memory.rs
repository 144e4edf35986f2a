//! Memory that a server shares with a worker on the same machine, for copies of blocks ([`wire::SharedMemory`]).
//!
//! The memory is a file without a name (memfd), divided into slots of one block each. The server creates the file and offers the file's
//! place under `/proc`; the worker opens it there. Nothing is left behind when a process dies: the memory goes with the last open file.
//!
//! Both sides copy with reads and writes at an offset, not through a mapping. A peer that changes or cuts the file meanwhile causes other
//! bytes or an error, never a signal or undefined behaviour; and the file is sealed, so nobody changes the size.

use std::fs::{File, OpenOptions, metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::wire;

/// Bytes before the first slot.
const HEADER_BYTES: u64 = 4096;
/// Unit of the size of a slot, bytes.
const SLOT_UNIT: u64 = 4096;
/// Maximum number of slots.
const SLOTS_MAX: u32 = 1024;
/// Maximum number of bytes of a slot: the longest block.
const SLOT_BYTES_MAX: u64 = 1 << 30;
/// Bytes of the mark, and of the proof after the mark.
const MARK_BYTES: usize = 16;

/// Memory shared between a server and one worker.
#[derive(Debug)]
pub struct Region {
    file: File,
    slots: u32,
    slot_bytes: u64,
    mark: [u8; MARK_BYTES],
    proof: [u8; MARK_BYTES],
}

/// Reason for copying nothing through shared memory.
#[derive(Debug, thiserror::Error)]
pub enum RegionFault {
    /// The system has no memory to share.
    #[error("cannot create shared memory: {0}")]
    Create(#[source] io::Error),
    /// The offer has a number out of range.
    #[error("shared_memory.{field} is {value}; it must be {range}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Value in the message.
        value: u64,
        /// Valid values, in words.
        range: &'static str,
    },
    /// The worker cannot open the server's file: another machine, container or user.
    #[error("cannot open the shared memory of process {pid}: {source}")]
    Open {
        /// Process of the server.
        pid: u32,
        /// Reason, from the system.
        source: io::Error,
    },
    /// The place of the offer has another file: the server is on another machine.
    #[error("file {fd} of process {pid} is not the memory that the server offers")]
    OtherFile {
        /// Process of the server.
        pid: u32,
        /// Number of the open file.
        fd: u32,
    },
    /// No such slot.
    #[error("there is no slot {slot}; the shared memory has {slots}")]
    Slot {
        /// Number of the slot.
        slot: u32,
        /// Number of slots.
        slots: u32,
    },
    /// More bytes than a slot has.
    #[error("{n_bytes} bytes do not fit a slot of {slot_bytes} bytes")]
    Length {
        /// Bytes to copy.
        n_bytes: u64,
        /// Bytes of a slot.
        slot_bytes: u64,
    },
    /// The system failed to copy.
    #[error("cannot copy through shared memory: {0}")]
    Copy(#[source] io::Error),
}

impl Region {
    /// Creates memory with slots for blocks of `block_bytes`. `secret` MUST be random: half of it proves that a worker has opened the memory.
    ///
    /// # Errors
    /// If a number is out of range, or the system has no such memory.
    pub fn create(slots: u32, block_bytes: u64, secret: [u8; 2 * MARK_BYTES]) -> Result<Self, RegionFault> {
        let slot_bytes = block_bytes.min(u64::MAX - SLOT_UNIT).next_multiple_of(SLOT_UNIT);
        let len = file_len(slots, slot_bytes)?;
        let file = sealed_file(len, &secret).map_err(RegionFault::Create)?;
        Ok(Self::of(file, slots, slot_bytes, &secret))
    }

    fn of(file: File, slots: u32, slot_bytes: u64, secret: &[u8; 2 * MARK_BYTES]) -> Self {
        let (mut mark, mut proof) = ([0; MARK_BYTES], [0; MARK_BYTES]);
        mark.copy_from_slice(&secret[..MARK_BYTES]);
        proof.copy_from_slice(&secret[MARK_BYTES..]);
        Self { file, slots, slot_bytes, mark, proof }
    }

    /// Returns the offer for a worker. The file is open as long as the region lives.
    pub fn offer(&self) -> wire::SharedMemory {
        wire::SharedMemory {
            pid: std::process::id(),
            // Numbers of open files are not negative.
            fd: self.file.as_raw_fd().unsigned_abs(),
            mark: self.mark.to_vec(),
            slots: self.slots,
            slot_bytes: self.slot_bytes,
        }
    }

    /// Opens the memory of an offer. Leaves any other file alone.
    ///
    /// # Errors
    /// If the memory is out of reach: on another machine, in another container, or of another user.
    pub fn open(offer: &wire::SharedMemory) -> Result<Self, RegionFault> {
        let &wire::SharedMemory { pid, fd, slots, slot_bytes, ref mark } = offer;
        let len = file_len(slots, slot_bytes)?;
        let path = format!("/proc/{pid}/fd/{fd}");
        let unreachable = |source| RegionFault::Open { pid, source };
        let other = || RegionFault::OtherFile { pid, fd };
        // Looked at before it is opened: to open a device or a pipe of another process can have effects.
        let found = metadata(&path).map_err(unreachable)?;
        if !found.is_file() || found.len() != len {
            return Err(other());
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(unreachable)?;
        let mut secret = [0; 2 * MARK_BYTES];
        let is_memory = is_sealed(&file) && file.read_exact_at(&mut secret, 0).is_ok();
        if !is_memory || secret[..MARK_BYTES] != mark[..] {
            return Err(other());
        }
        Ok(Self::of(file, slots, slot_bytes, &secret))
    }

    /// Returns the message of a worker that has opened the memory.
    pub fn opened(&self) -> wire::SharedMemoryOpened {
        wire::SharedMemoryOpened { proof: self.proof.to_vec() }
    }

    /// Returns `true` if a message proves that its sender has opened the memory.
    pub fn is_proved_by(&self, opened: &wire::SharedMemoryOpened) -> bool {
        opened.proof == self.proof
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the size of a slot, bytes.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Copies the first bytes of a slot.
    ///
    /// # Errors
    /// If there is no such slot, or no so long one, or the file is shorter.
    pub fn read(&self, slot: u32, bytes: &mut [u8]) -> Result<(), RegionFault> {
        let at = self.offset(slot, bytes.len())?;
        self.file.read_exact_at(bytes, at).map_err(RegionFault::Copy)
    }

    /// Replaces the first bytes of a slot.
    ///
    /// # Errors
    /// If there is no such slot, or no so long one, or the system has no memory left.
    pub fn write(&self, slot: u32, bytes: &[u8]) -> Result<(), RegionFault> {
        let at = self.offset(slot, bytes.len())?;
        self.file.write_all_at(bytes, at).map_err(RegionFault::Copy)
    }

    /// Returns the place of a slot in the file.
    fn offset(&self, slot: u32, n_bytes: usize) -> Result<u64, RegionFault> {
        let &Self { slots, slot_bytes, .. } = self;
        if slot >= slots {
            return Err(RegionFault::Slot { slot, slots });
        }
        let n_bytes = n_bytes as u64;
        if n_bytes > slot_bytes {
            return Err(RegionFault::Length { n_bytes, slot_bytes });
        }
        Ok(HEADER_BYTES + u64::from(slot) * slot_bytes)
    }
}

/// Returns the size of the file with these slots.
fn file_len(slots: u32, slot_bytes: u64) -> Result<u64, RegionFault> {
    let check = |field, value, good, range| if good { Ok(()) } else { Err(RegionFault::Range { field, value, range }) };
    check("slots", slots.into(), (1..=SLOTS_MAX).contains(&slots), "from 1 to 1024")?;
    let whole = slot_bytes.is_multiple_of(SLOT_UNIT) && (SLOT_UNIT..=SLOT_BYTES_MAX).contains(&slot_bytes);
    check("slot_bytes", slot_bytes, whole, "a multiple of 4096, at most 1 GiB")?;
    Ok(HEADER_BYTES + u64::from(slots) * slot_bytes)
}

#[cfg(target_os = "linux")]
mod system {
    //! Files in memory, of a size that nobody changes.

    use std::fs::{File, Permissions};
    use std::io;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

    /// Seals of a file of fixed size.
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    pub(super) fn sealed_file(len: u64, secret: &[u8]) -> io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Some systems demand NOEXEC_SEAL, and those before Linux 6.3 do not know the flag.
        let fd = memfd_create(c"trunkline-blocks", flags | MemfdFlags::NOEXEC_SEAL);
        let file = File::from(fd.or_else(|_| memfd_create(c"trunkline-blocks", flags))?);
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(len)?;
        file.write_all_at(secret, 0)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok(file)
    }

    pub(super) fn is_sealed(file: &File) -> bool {
        fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    //! Systems without sealed files in memory: blocks travel in messages.

    use std::fs::File;
    use std::io;

    pub(super) fn sealed_file(_: u64, _: &[u8]) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn is_sealed(_: &File) -> bool {
        false
    }
}

use system::{is_sealed, sealed_file};

#[cfg(all(test, target_os = "linux"))]
mod tests;
