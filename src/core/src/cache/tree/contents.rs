//! Published blocks by their tokens alone, wherever in a prefix they lie, for reuse of text that is not a prefix.
//!
//! A block is found by a key of its tokens and its namespace. The key is a rolling hash, so the keys of all windows of a prompt, one at each
//! token, take one pass ([`WindowKeys`]). Of equal keys a few blocks are compared, the latest first. The tokens decide: a collision costs time, never
//! contents.
//!
//! Blocks with one key form a list, and so do the blocks that continue one block, because a hit continues along them. All links are arrays
//! by slot, so the memory is bounded by the number of device blocks. None of this exists unless [`super::PrefixTree::note_contents`] was called.

use std::collections::HashMap;

use crate::blocks::namespaces::is_namespace;
use crate::names::ids::Token;

/// No block, in links.
const NONE: u32 = u32::MAX;
/// Maximum number of blocks of one list that are compared: the latest ones.
const COMPARED_MAX: usize = 8;
/// Multiplier of the rolling hash: odd, with bits all over.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Links of a block, if it is published.
#[derive(Clone, Copy, Debug)]
struct Links {
    key: u64,
    /// Namespace of the prefix, as in [`crate::blocks::namespaces`].
    namespace: u32,
    /// Block before in the prefix, or [`NONE`].
    parent: u32,
    /// Next and last block with the key.
    next: u32,
    last: u32,
    /// Latest block that continues this one.
    child: u32,
    /// Next and last block that continues the same block.
    next_sibling: u32,
    last_sibling: u32,
    /// Number of the step that was being made when the block was published, modulo 2^32.
    step: u32,
}

const UNLINKED: Links = Links {
    key: 0,
    namespace: NONE,
    parent: NONE,
    next: NONE,
    last: NONE,
    child: NONE,
    next_sibling: NONE,
    last_sibling: NONE,
    step: 0,
};

/// The index of published blocks by content.
#[derive(Debug)]
pub(crate) struct Contents {
    block_size: usize,
    /// Latest block of each key. Never iterated.
    latest: HashMap<u64, u32, ahash::RandomState>,
    links: Vec<Links>,
    /// Number of the step being made, or made last, modulo 2^32.
    step: u32,
}

impl Contents {
    /// Creates an empty index for up to `capacity` blocks.
    pub fn new(block_size: usize, capacity: usize) -> Self {
        let latest = HashMap::with_capacity_and_hasher(capacity, ahash::RandomState::default());
        Self { block_size, latest, links: Vec::with_capacity(capacity), step: 0 }
    }

    /// Notes that step `step` is being made. Blocks published from now on may be computed by this step, and are not found until the next one.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step as u32;
    }

    /// Adds a block published after `parent`, a block or a namespace.
    pub fn add(&mut self, block: u32, parent: u32, tokens: &[Token]) {
        let at = block as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, UNLINKED);
        }
        let (namespace, parent) = match is_namespace(parent) {
            true => (parent, NONE),
            false => (self.links[parent as usize].namespace, parent),
        };
        let key = key_of(rolled(tokens), namespace);
        let next = self.latest.insert(key, block).unwrap_or(NONE);
        if next != NONE {
            self.links[next as usize].last = block;
        }
        let mut next_sibling = NONE;
        if parent != NONE {
            next_sibling = std::mem::replace(&mut self.links[parent as usize].child, block);
            if next_sibling != NONE {
                self.links[next_sibling as usize].last_sibling = block;
            }
        }
        self.links[at] = Links { key, namespace, parent, next, next_sibling, step: self.step, ..UNLINKED };
    }

    /// Removes a block about to leave the tree, or not to be found any more.
    pub fn remove(&mut self, block: u32) {
        let links = std::mem::replace(&mut self.links[block as usize], UNLINKED);
        debug_assert_ne!(links.namespace, NONE, "block {block} is not in the index");
        match (links.last, links.next) {
            (NONE, NONE) => _ = self.latest.remove(&links.key),
            (NONE, next) => _ = self.latest.insert(links.key, next),
            (last, next) => self.links[last as usize].next = next,
        }
        if links.next != NONE {
            self.links[links.next as usize].last = links.last;
        }
        match (links.last_sibling, links.parent) {
            (NONE, NONE) => {}
            (NONE, parent) => self.links[parent as usize].child = links.next_sibling,
            (last, _) => self.links[last as usize].next_sibling = links.next_sibling,
        }
        if links.next_sibling != NONE {
            self.links[links.next_sibling as usize].last_sibling = links.last_sibling;
        }
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        self.latest.clear();
        self.links.clear();
    }

    /// Returns the latest blocks that may have a key in a namespace, and can be read by the step being made.
    pub fn with_key(&self, hash: u64, namespace: u32) -> impl Iterator<Item = u32> {
        let key = key_of(hash, namespace);
        let first = self.latest.get(&key).copied().unwrap_or(NONE);
        self.list(first, |links| links.next)
            .filter(move |block| self.links[*block as usize].namespace == namespace && self.is_ready(*block))
    }

    /// Returns the latest blocks that continue a block, and can be read by the step being made.
    pub fn children(&self, block: u32) -> impl Iterator<Item = u32> {
        self.list(self.links[block as usize].child, |links| links.next_sibling).filter(|block| self.is_ready(*block))
    }

    /// Returns the block before a block in the prefix.
    pub fn parent(&self, block: u32) -> Option<u32> {
        let parent = self.links[block as usize].parent;
        (parent != NONE).then_some(parent)
    }

    /// Returns `true` if the block was published before the step being made: a step copies before it computes.
    fn is_ready(&self, block: u32) -> bool {
        self.links[block as usize].step != self.step
    }

    fn list(&self, first: u32, next: fn(&Links) -> u32) -> impl Iterator<Item = u32> {
        let after = move |block: &u32| Some(next(&self.links[*block as usize])).filter(|next| *next != NONE);
        std::iter::successors(Some(first).filter(|first| *first != NONE), after).take(COMPARED_MAX)
    }

    /// Panics unless the index has exactly the blocks for which `is_in` is `true`, with their links.
    pub fn check(&self, n: u32, is_in: impl Fn(u32) -> bool, tokens_of: impl Fn(u32) -> Vec<Token>) {
        for block in 0..n {
            let links = self.links.get(block as usize).copied().unwrap_or(UNLINKED);
            assert_eq!(links.namespace != NONE, is_in(block), "block {block} is in the index of contents, or lacks");
            if links.namespace == NONE {
                continue;
            }
            assert_eq!(links.key, key_of(rolled(&tokens_of(block)), links.namespace), "the key of block {block}");
            match links.last {
                NONE => assert_eq!(self.latest.get(&links.key), Some(&block)),
                last => assert_eq!(self.links[last as usize].next, block),
            }
            match (links.last_sibling, links.parent) {
                (NONE, NONE) => {}
                (NONE, parent) => assert_eq!(self.links[parent as usize].child, block),
                (last, _) => assert_eq!(self.links[last as usize].next_sibling, block),
            }
        }
    }

    /// Returns the keys of all windows of some tokens, from the first on.
    pub fn windows<'a>(&self, tokens: &'a [Token]) -> WindowKeys<'a> {
        WindowKeys::new(tokens, self.block_size)
    }
}

/// Rolling hashes of the windows of a prompt: each is as long as a block, and begins a token behind the one before.
pub(crate) struct WindowKeys<'a> {
    tokens: &'a [Token],
    size: usize,
    at: usize,
    hash: u64,
    /// Factor of the first token of a window.
    first_factor: u64,
}

impl<'a> WindowKeys<'a> {
    fn new(tokens: &'a [Token], size: usize) -> Self {
        let first_factor = (1..size).fold(1u64, |factor, _| factor.wrapping_mul(MULTIPLIER));
        let mut windows = Self { tokens, size, at: 0, hash: 0, first_factor };
        windows.jump(0);
        windows
    }

    /// Returns the window's first token, and its hash; `None` behind the last window.
    pub fn get(&self) -> Option<(usize, u64)> {
        (self.at + self.size <= self.tokens.len()).then_some((self.at, self.hash))
    }

    /// Goes on by a token.
    pub fn advance(&mut self) {
        if let (Some(first), Some(new)) = (self.tokens.get(self.at), self.tokens.get(self.at + self.size)) {
            let rest = self.hash.wrapping_sub(spread(*first).wrapping_mul(self.first_factor));
            self.hash = rest.wrapping_mul(MULTIPLIER).wrapping_add(spread(*new));
        }
        self.at += 1;
    }

    /// Goes to the window from a token on.
    pub fn jump(&mut self, to: usize) {
        self.at = to;
        self.hash = self.tokens.get(to..to + self.size).map_or(0, rolled);
    }
}

/// Returns the rolling hash of some tokens.
fn rolled(tokens: &[Token]) -> u64 {
    tokens.iter().fold(0u64, |hash, token| hash.wrapping_mul(MULTIPLIER).wrapping_add(spread(*token)))
}

/// Returns a token's number in the rolling hash.
fn spread(token: Token) -> u64 {
    let mixed = (u64::from(token) ^ 0x2545_f491_4f6c_dd1d).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

/// Returns the key of a window with a rolling hash in a namespace.
fn key_of(hash: u64, namespace: u32) -> u64 {
    let mixed = (hash ^ u64::from(namespace).wrapping_mul(MULTIPLIER)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_windows_are_those_of_their_tokens() {
        let tokens: Vec<Token> = (0..40).map(|at| at * at % 17).collect();
        for size in [1, 2, 5, 16, 40] {
            let mut windows = WindowKeys::new(&tokens, size);
            for at in 0..=tokens.len() - size {
                assert_eq!(windows.get(), Some((at, rolled(&tokens[at..at + size]))), "window {at} of {size}");
                windows.advance();
            }
            assert_eq!(windows.get(), None);
            windows.jump(tokens.len() - size);
            assert_eq!(windows.get(), Some((tokens.len() - size, rolled(&tokens[tokens.len() - size..]))));
            windows.jump(tokens.len());
            assert_eq!(windows.get(), None);
        }
    }

    #[test]
    fn equal_windows_of_two_namespaces_have_two_keys() {
        assert_ne!(key_of(7, 1 << 31), key_of(7, (1 << 31) + 1));
    }
}
