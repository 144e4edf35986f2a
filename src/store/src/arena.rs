//! Host memory for blocks: allocated as needed, up to a hard limit, and returned to the system when idle.
//!
//! Each piece of 64 KiB or more is a mapping of its own, and goes back to the system as a whole; smaller pieces come
//! from the heap. Freed pieces are kept for the next of their size, last freed first used, as long as at most a tenth of the
//! memory is idle.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::MmapMut;

/// Least size of a piece with a mapping of its own, bytes.
const MAPPED_MIN: usize = 64 << 10;
/// Bytes of a page, the unit of mappings.
const PAGE: usize = 4 << 10;
/// Share of idle memory kept for later use: one part in this many.
const IDLE_PART: u64 = 10;

/// Host memory with a hard limit.
#[derive(Debug)]
pub struct Arena {
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    idle: u64,
    /// Idle pieces by size, oldest first, each with the number of the release.
    pieces: BTreeMap<usize, VecDeque<(u64, Memory)>>,
    releases: u64,
}

/// Host memory in use and idle, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes idle, kept for the next allocation.
    pub idle_bytes: u64,
    /// Most bytes used and idle at once.
    pub limit_bytes: u64,
}

enum Memory {
    Mapped(MmapMut),
    Heap(Box<[u8]>),
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes().len())
    }
}

impl Memory {
    fn new(size: usize) -> Option<Self> {
        if size < MAPPED_MIN {
            return Some(Self::Heap(vec![0; size].into_boxed_slice()));
        }
        MmapMut::map_anon(size).ok().map(Self::Mapped)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Heap(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Heap(bytes) => bytes,
        }
    }
}

/// Returns the memory of a piece of `len` bytes. Sizes are rounded up, so that pieces of similar size are exchangeable: to 64 bytes below a
/// mapping, else to whole pages and by a 32nd at most, unless a page is more.
pub fn rounded(len: usize) -> usize {
    if len < MAPPED_MIN {
        return len.next_multiple_of(64);
    }
    let step = (1usize << len.ilog2()) / 32;
    let exact = len.next_multiple_of(PAGE);
    if exact == len { exact } else { len.next_multiple_of(step.max(PAGE)) }
}

impl State {
    fn take_idle(&mut self, size: usize) -> Option<Memory> {
        let pieces = self.pieces.get_mut(&size)?;
        let (_, memory) = pieces.pop_back()?;
        self.idle -= size as u64;
        self.used += size as u64;
        Some(memory)
    }

    /// Removes the piece that has been idle for longest.
    fn take_oldest(&mut self) -> Option<Memory> {
        let fronts =
            self.pieces.iter().filter_map(|(size, pieces)| pieces.front().map(|(release, _)| (*release, *size)));
        let (_, size) = fronts.min()?;
        let (_, memory) = self.pieces.get_mut(&size)?.pop_front()?;
        self.idle -= size as u64;
        Some(memory)
    }
}

impl Arena {
    /// Creates an arena of at most `limit` bytes. No memory is taken yet.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a piece of no bytes, which takes no memory.
    pub fn nothing(self: &Arc<Self>) -> Piece {
        Piece { memory: None, len: 0, arena: Arc::clone(self) }
    }

    /// Allocates `len` bytes with undefined contents. Returns `None` if the limit would be passed, or the system has no memory.
    pub fn allocate(self: &Arc<Self>, len: usize) -> Option<Piece> {
        let size = rounded(len);
        let mut surplus = Vec::new();
        {
            let mut state = self.state();
            if let Some(memory) = state.take_idle(size) {
                return Some(Piece { memory: Some(memory), len, arena: Arc::clone(self) });
            }
            if state.used + size as u64 > self.limit {
                return None;
            }
            while state.used + state.idle + size as u64 > self.limit {
                surplus.push(state.take_oldest()?);
            }
            state.used += size as u64;
        }
        drop(surplus);
        let memory = Memory::new(size);
        if memory.is_none() {
            self.state().used -= size as u64;
        }
        Some(Piece { memory: Some(memory?), len, arena: Arc::clone(self) })
    }

    /// Exchanges a piece for a smaller one, whose contents are undefined. Needs no free memory. If the system has none, the piece stays
    /// and its end is not used.
    pub fn exchange(self: &Arc<Self>, mut piece: Piece, len: usize) -> Piece {
        let (old, new) = (piece.memory.as_ref().map_or(0, |memory| memory.bytes().len()), rounded(len));
        let mut memory = None;
        if new < old {
            memory = self.state().take_idle(new);
            if memory.is_none() {
                // A mapping takes memory when it is written: after the old piece is released.
                memory = Memory::new(new);
                self.state().used += memory.as_ref().map_or(0, |_| new as u64);
            }
        }
        let Some(memory) = memory else {
            piece.len = piece.len.min(len);
            return piece;
        };
        drop(piece);
        Piece { memory: Some(memory), len, arena: Arc::clone(self) }
    }

    fn release(&self, memory: Memory) {
        let size = memory.bytes().len();
        let mut surplus = Vec::new();
        let mut state = self.state();
        state.used -= size as u64;
        state.idle += size as u64;
        state.releases += 1;
        let release = state.releases;
        state.pieces.entry(size).or_default().push_back((release, memory));
        while state.idle * IDLE_PART > state.used + state.idle || state.used + state.idle > self.limit {
            let Some(memory) = state.take_oldest() else { break };
            surplus.push(memory);
        }
        state.pieces.retain(|_, pieces| !pieces.is_empty());
        // Returning memory to the system takes time: not under the lock.
        drop(state);
        drop(surplus);
    }

    /// Returns the memory in use and idle.
    pub fn stats(&self) -> ArenaStats {
        let state = self.state();
        ArenaStats { used_bytes: state.used, idle_bytes: state.idle, limit_bytes: self.limit }
    }
}

/// Bytes in an [`Arena`]; dropped, the memory is free again.
#[derive(Debug)]
pub struct Piece {
    memory: Option<Memory>,
    len: usize,
    arena: Arc<Arena>,
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory.bytes()[..self.len])
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        self.memory.as_mut().map_or(&mut [], |memory| &mut memory.bytes_mut()[..len])
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.arena.release(memory);
        }
    }
}

#[cfg(test)]
mod tests;
