//! Matching of a prompt: the longest published prefix, verified by tokens.
//!
//! In a used pool a prefix lies in runs of neighbouring slots all over memory. A stretch is found by its links alone while the one
//! before is still to be compared: during the comparison the processor loads its tokens, and the counts that [`PrefixTree::hold`]
//! changes next. Heads of later runs are requested from memory where full extents would put them.

use super::PrefixTree;
use crate::blocks::extents::EXTENT;
use crate::blocks::hash::BlockHash;
use crate::blocks::namespaces::is_namespace;
use crate::blocks::prefetch::prefetch;
use crate::blocks::prefix::Prefix;
use crate::names::ids::Token;

/// Maximum number of tokens of a stretch.
const STRETCH_TOKENS: usize = 2048;
/// Tokens compared, and tokens of the next stretch requested from memory, in turn: eight cache lines.
const TURN: usize = 128;
/// Full extents from a run to the one whose links are requested ahead, and to the one whose entry in the index is.
const LINKS_AHEAD: usize = 4;
const ENTRIES_AHEAD: usize = 8;

/// Blocks in neighbouring slots, each linked to the one before.
#[derive(Clone, Copy, Default)]
struct Stretch {
    first: u32,
    len: usize,
    /// `true` if the first block was found by its hash, `false` if its slot follows the stretch before.
    is_found: bool,
}

/// A walk along the links of a prefix, ahead of the comparison of tokens.
struct Walk<'a> {
    tree: &'a PrefixTree,
    hashes: &'a [BlockHash],
    /// Number of blocks walked.
    at: usize,
    /// Last block walked, or the namespace.
    last: u32,
    /// `true` if the next block is to be found by its hash, wherever it lies.
    by_hash: bool,
    /// `true` if the next block's hash belongs to a block of another prefix.
    collided: bool,
}

impl Walk<'_> {
    /// Returns the next stretch, or `None` at the end of the prefix.
    #[inline]
    fn next(&mut self) -> Option<Stretch> {
        let (nodes, size) = (&self.tree.nodes, self.tree.block_size);
        let hash = self.hashes.get(self.at)?;
        let neighbour = self.last.wrapping_add(1);
        let is_linked = !self.by_hash && nodes.follows(neighbour);
        let first = if is_linked { neighbour } else { self.tree.lookup(*hash)? };
        if !is_linked && nodes.parents[first as usize] != self.last {
            self.collided = true;
            return None;
        }
        let len = nodes.run(first, (self.hashes.len() - self.at).min((STRETCH_TOKENS / size).max(1)));
        if !is_linked && !is_namespace(self.last) {
            self.request_ahead(self.at + len);
        }
        self.at += len;
        self.last = first + len as u32 - 1;
        self.by_hash = false;
        Some(Stretch { first, len, is_found: !is_linked })
    }

    /// Requests what the walk reads some runs later from memory, if the next run begins at a block and all runs fill an extent.
    #[inline]
    fn request_ahead(&self, next: usize) {
        let fingerprint = |extents: usize| Some(self.hashes.get(next + extents * EXTENT as usize)?.fingerprint());
        if let Some(fingerprint) = fingerprint(ENTRIES_AHEAD) {
            self.tree.index.prefetch(fingerprint);
        }
        if let Some(block) = fingerprint(LINKS_AHEAD).and_then(|fingerprint| self.tree.index.guess(fingerprint)) {
            self.tree.nodes.prefetch_identity(block);
        }
    }

    /// Goes back behind the `at`-th block, `last`. The next block is found by its hash.
    fn go_back(&mut self, at: usize, last: u32) {
        (self.at, self.last, self.by_hash, self.collided) = (at, last, true, false);
    }
}

impl PrefixTree {
    /// Finds the longest published prefix of `tokens` in the namespace of `root`, whose blocks have the chained `hashes`, and puts its
    /// blocks into `found`. Holds no block: a caller that uses the blocks MUST call [`Self::hold`] before any other method.
    pub fn find(&mut self, root: BlockHash, hashes: &[BlockHash], tokens: &[Token], found: &mut Prefix) {
        found.clear();
        let Some(namespace) = self.namespaces.parent(root) else { return };
        let n = hashes.len().min(tokens.len() / self.block_size);
        self.collisions += u64::from(self.matched(namespace, &hashes[..n], tokens, found));
    }

    /// Appends the matching blocks to `found`. Returns `true` if the match ended at a block of another prefix with the same hash.
    fn matched(&self, namespace: u32, hashes: &[BlockHash], tokens: &[Token], found: &mut Prefix) -> bool {
        let mut walk = Walk { tree: self, hashes, at: 0, last: namespace, by_hash: true, collided: false };
        let mut ahead = walk.next();
        while let Some(stretch) = ahead {
            ahead = walk.next();
            let equal =
                self.common_blocks(stretch, &tokens[found.len() * self.block_size..], ahead.unwrap_or_default());
            if equal == 0 && stretch.is_found {
                return true;
            }
            found.append(stretch.first, equal);
            if equal < stretch.len {
                // The walk went along another prefix.
                walk.go_back(found.len(), found.last().unwrap_or(namespace));
                ahead = walk.next();
            }
        }
        walk.collided
    }

    /// Returns the number of leading blocks of a stretch whose tokens are those of `rest`, a prompt from there on. Requests what is read
    /// of the stretch `ahead` from memory, a turn at a time.
    fn common_blocks(&self, stretch: Stretch, rest: &[Token], ahead: Stretch) -> usize {
        self.nodes.prefetch_readers(ahead.first, ahead.len);
        self.pool.prefetch(ahead.first, ahead.len);
        let (there, asked) = (self.stored(stretch), &rest[..stretch.len * self.block_size]);
        let mut requests = self.stored(ahead).chunks(TURN);
        let is_equal = there.chunks(TURN).zip(asked.chunks(TURN)).all(|(there, asked)| {
            requests.next().into_iter().for_each(prefetch);
            there == asked
        });
        if is_equal {
            return stretch.len;
        }
        let blocks = there.chunks_exact(self.block_size).zip(asked.chunks_exact(self.block_size));
        blocks.take_while(|(there, asked)| there == asked).count()
    }

    /// Returns the tokens of a stretch.
    fn stored(&self, stretch: Stretch) -> &[Token] {
        &self.tokens[stretch.first as usize * self.block_size..][..stretch.len * self.block_size]
    }
}

#[cfg(test)]
mod tests {
    use super::super::Parent;
    use super::*;
    use crate::blocks::hash::{Namespace, extend_hashes};
    use crate::eviction::REGISTRY;
    use crate::names::ids::BlockHandle;

    const SIZE: usize = 4;

    fn hashes(tokens: &[Token]) -> Vec<BlockHash> {
        let mut hashes = Vec::new();
        extend_hashes(&mut hashes, Namespace::default().root(), SIZE as u32, tokens);
        hashes
    }

    /// Publishes the next `n` blocks of a prompt.
    fn grow(tree: &mut PrefixTree, tokens: &[Token], table: &mut Vec<BlockHandle>, n: usize) {
        let (root, hashes) = (Namespace::default().root(), hashes(tokens));
        let from = table.len();
        assert!(tree.allocate(n as u32, table));
        for at in from..from + n {
            let block = &tokens[at * SIZE..][..SIZE];
            let _ = tree.publish(table[at], Parent::of(root, &table[..at]), hashes[at], block);
        }
    }

    /// Two prompts of 45 blocks that share the first 20, in runs of 3 slots in turn.
    fn scattered() -> (PrefixTree, [Vec<Token>; 2], [Vec<BlockHandle>; 2]) {
        let mut tree = PrefixTree::new(SIZE as u32, 128, REGISTRY.make("lru", 128).unwrap());
        let one: Vec<Token> = (0..45 * SIZE as u32).collect();
        let other: Vec<Token> = one.iter().map(|token| token + 1000 * u32::from(*token >= 20 * SIZE as u32)).collect();
        let (mut table, mut noise) = (Vec::new(), Vec::new());
        while table.len() < 45 {
            grow(&mut tree, &one, &mut table, 3);
            assert!(tree.allocate(2, &mut noise));
        }
        let mut found = Prefix::default();
        let mut branch = Vec::new();
        tree.find(Namespace::default().root(), &hashes(&other), &other, &mut found);
        tree.hold(&found, &mut branch);
        assert_eq!(branch, table[..20]);
        grow(&mut tree, &other, &mut branch, 25);
        (tree, [one, other], [table, branch])
    }

    #[test]
    fn a_prompt_is_found_up_to_the_first_token_that_differs() {
        let (mut tree, prompts, tables) = scattered();
        let mut found = Prefix::default();
        for (prompt, table) in prompts.iter().zip(tables) {
            let slots: Vec<u32> = table.iter().map(|block| block.index).collect();
            for changed in 0..=prompt.len() {
                let mut tokens = prompt.clone();
                tokens.iter_mut().skip(changed).take(1).for_each(|token| *token ^= 1 << 20);
                let collisions = tree.collisions();
                tree.find(Namespace::default().root(), &hashes(&tokens), &tokens, &mut found);
                assert!(found.slots().eq(slots[..changed / SIZE].iter().copied()), "token {changed} differs");
                assert_eq!(tree.collisions(), collisions);
            }
        }
        tree.check();
    }

    #[test]
    fn equal_hashes_of_other_tokens_end_a_prefix_and_are_counted() {
        let (mut tree, prompts, _) = scattered();
        let mut found = Prefix::default();
        for prompt in &prompts {
            for changed in 0..prompt.len() {
                let mut tokens = prompt.clone();
                tokens[changed] ^= 1 << 20;
                let collisions = tree.collisions();
                tree.find(Namespace::default().root(), &hashes(prompt), &tokens, &mut found);
                assert_eq!(
                    (found.len(), tree.collisions()),
                    (changed / SIZE, collisions + 1),
                    "token {changed} differs"
                );
            }
        }
    }
}
