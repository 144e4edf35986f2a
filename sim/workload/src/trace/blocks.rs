//! Prompts as blocks, and the tree of all prefixes shared by prompts.
//!
//! A 64-bit hash of the contents of a block stands for its tokens, so the tokens are never made. Among a billion different blocks,
//! the odds of one collision are one in forty.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{Content, HASH_ID_TOKENS, TraceRequest};
use trunkline_core::draw::mix;

/// Maximum number of nodes in a tree: the number of ids in a trace.
pub const NODES_MAX: u32 = super::HASH_ID_MAX;

/// Calls `give` for each block of a prompt with a hash of the block's own content and its number of tokens. Every block has
/// `block_tokens` tokens (at least 1), except that the last may have fewer.
pub fn blocks_of(request: &TraceRequest, block_tokens: u32, give: impl FnMut(u64, u32)) {
    let mut cutter = Cutter { block_tokens, hash: 0, filled: 0, give };
    match &request.content {
        Content::Unique(number) => cutter.content(*number, request.input_tokens),
        Content::Pieces(pieces) => pieces.iter().for_each(|piece| cutter.content(piece.content, piece.tokens)),
        Content::Blocks(ids) => {
            let mut left = request.input_tokens;
            for id in ids {
                let n = left.min(HASH_ID_TOKENS);
                cutter.content(*id, n);
                left -= n;
            }
        }
        Content::Tokens(tokens) => tokens.iter().for_each(|token| cutter.add(u64::from(*token), 0, 1)),
    }
    cutter.flush();
}

/// Splitter of contents into blocks.
struct Cutter<F> {
    block_tokens: u32,
    hash: u64,
    filled: u32,
    give: F,
}

impl<F: FnMut(u64, u32)> Cutter<F> {
    /// Adds the first `n` tokens of a content.
    fn content(&mut self, content: u32, n: u32) {
        let mut begin = 0;
        while begin < n {
            let taken = (n - begin).min(self.block_tokens - self.filled);
            self.add(u64::from(content), begin, taken);
            begin += taken;
        }
    }

    /// Adds tokens that fit into the current block.
    fn add(&mut self, content: u64, begin: u32, n: u32) {
        let run = u64::from(begin) << 32 | u64::from(n);
        self.hash = mix(mix(self.hash ^ content) ^ run);
        self.filled += n;
        if self.filled == self.block_tokens {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.filled > 0 {
            (self.give)(self.hash, self.filled);
        }
        (self.hash, self.filled) = (0, 0);
    }
}

/// Number of a node: a block under its whole prefix. Nodes are numbered in the order of their first occurrence.
pub type Node = u32;

/// Identity hasher, since keys are hashes already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// Tree of all prefixes so far, 20 to 40 bytes per node.
#[derive(Default)]
pub struct PrefixTree {
    nodes: HashMap<u64, Node, BuildHasherDefault<AsIs>>,
    n_nodes: Node,
}

impl PrefixTree {
    /// Returns the node of the block with this content under `parent`, and `true` if the node existed. Returns `None` if the tree
    /// is full.
    pub fn child(&mut self, parent: Option<Node>, content: u64) -> Option<(Node, bool)> {
        let parent = parent.map_or(0, |parent| u64::from(parent) + 1);
        let key = mix(mix(parent) ^ content);
        if let Some(node) = self.nodes.get(&key) {
            return Some((*node, true));
        }
        let node = self.unshared()?;
        self.nodes.insert(key, node);
        Some((node, false))
    }

    /// Returns a new node, equal to no other block; `None` if the tree is full.
    pub fn unshared(&mut self) -> Option<Node> {
        let node = self.n_nodes;
        self.n_nodes = (node < NODES_MAX).then_some(node + 1)?;
        Some(node)
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> u32 {
        self.n_nodes
    }

    /// Returns `true` if the tree has no node.
    pub fn is_empty(&self) -> bool {
        self.n_nodes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Piece;

    fn request(content: Content) -> TraceRequest {
        let input_tokens = match &content {
            Content::Pieces(pieces) => pieces.iter().map(|piece| piece.tokens).sum(),
            Content::Tokens(tokens) => tokens.len() as u32,
            Content::Blocks(ids) => ids.len() as u32 * HASH_ID_TOKENS - 12,
            Content::Unique(_) => 1000,
        };
        TraceRequest { arrival_ns: 0, input_tokens, output_tokens: 1, content, ..TraceRequest::default() }
    }

    fn pieces(pieces: &[(u32, u32)]) -> TraceRequest {
        request(Content::Pieces(
            pieces.iter().map(|(content, tokens)| Piece { content: *content, tokens: *tokens }).collect(),
        ))
    }

    /// Blocks are equal if and only if their tokens are equal.
    #[test]
    fn hashes_stand_for_tokens() {
        let all = [
            pieces(&[(0, 100), (5, 50)]),
            pieces(&[(0, 100), (6, 70), (9, 1)]),
            pieces(&[(0, 100), (6, 70), (10, 40)]),
            pieces(&[(1 << 31, 100), (3, 3)]),
            pieces(&[(7, 120), (0, 100)]),
            request(Content::Unique(0)),
            request(Content::Blocks(Box::new([0, 5]))),
            request(Content::Blocks(Box::new([0, 6]))),
        ];
        for block_tokens in [1, 7, 16, 64, 1000, 5000] {
            let cut: Vec<_> = all
                .iter()
                .map(|request| {
                    let (mut hashes, mut ends, mut end) = (Vec::new(), Vec::new(), 0);
                    blocks_of(request, block_tokens, |hash, n| {
                        end += n as usize;
                        hashes.push(hash);
                        ends.push(end);
                    });
                    assert_eq!(end, request.input_tokens as usize);
                    (hashes, ends, request.prompt())
                })
                .collect();
            for a in &cut {
                for b in &cut {
                    for ((hash_a, end_a), (hash_b, end_b)) in a.0.iter().zip(&a.1).zip(b.0.iter().zip(&b.1)) {
                        let equal = a.2[..*end_a] == b.2[..*end_b];
                        assert_eq!(hash_a == hash_b, equal, "up to {end_a} and {end_b} in blocks of {block_tokens}");
                        if !equal {
                            break;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_is_itself_under_its_prefix_only() {
        let mut tree = PrefixTree::default();
        assert_eq!(tree.child(None, 5), Some((0, false)));
        assert_eq!(tree.child(Some(0), 5), Some((1, false)));
        assert_eq!(tree.child(None, 5), Some((0, true)));
        assert_eq!(tree.child(Some(1), 5), Some((2, false)));
        assert_eq!(tree.unshared(), Some(3));
        assert_eq!(tree.len(), 4);
    }
}
