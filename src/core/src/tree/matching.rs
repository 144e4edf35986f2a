//! Matching of a prompt: the longest published prefix, verified by tokens.
//!
//! In a used pool a prefix lies in runs of neighbouring slots all over memory. A few stretches are found by their links alone, and then
//! their tokens are compared side by side, some of each in turn: the processor loads several streams at once faster than one after
//! another. Heads of later runs are requested from memory where full extents would put them.

use super::PrefixTree;
use crate::extents::EXTENT;
use crate::hash::BlockHash;
use crate::ids::Token;
use crate::namespaces::is_namespace;
use crate::nodes::ascending;
use crate::prefix::Prefix;

/// Tokens of a stretch, at most.
const STRETCH_TOKENS: usize = 2048;
/// Stretches compared side by side, at most.
const STRETCHES: usize = 4;
/// Tokens of a stretch compared in its turn: eight cache lines.
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
        let is_linked = !self.by_hash && nodes.parents.get(neighbour as usize) == Some(&self.last);
        let first = if is_linked { neighbour } else { self.tree.lookup(*hash)? };
        let at = first as usize;
        let n = (self.hashes.len() - self.at).min((STRETCH_TOKENS / size).max(1)).min(nodes.len() - at);
        let parents = &nodes.parents[at..at + n];
        if parents[0] != self.last {
            self.collided = true;
            return None;
        }
        let len = 1 + ascending(n - 1, first, |i| parents[1 + i]);
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
            self.tree.nodes.prefetch_links(block, EXTENT as usize);
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
        loop {
            let (mut stretches, mut pairs) = ([Stretch::default(); STRETCHES], [Pair::default(); STRETCHES]);
            let (mut n, mut at) = (0, found.len());
            while n < STRETCHES
                && let Some(stretch) = walk.next()
            {
                stretches[n] = stretch;
                pairs[n] = self.pair(stretch, &tokens[at * self.block_size..]);
                at += stretch.len;
                n += 1;
            }
            if n == 0 {
                return walk.collided;
            }
            let are_equal = equal_together(&pairs[..n]);
            for (stretch, pair) in stretches[..n].iter().zip(pairs) {
                let equal = if are_equal { stretch.len } else { common_blocks(pair, self.block_size) };
                if equal == 0 && stretch.is_found {
                    return true;
                }
                found.append(stretch.first, equal);
                if equal < stretch.len {
                    // The walk went along another prefix.
                    walk.go_back(found.len(), found.last().unwrap_or(namespace));
                    break;
                }
            }
        }
    }

    /// Returns the tokens of a stretch, and the first tokens of a prompt's rest to compare them with.
    fn pair<'a>(&'a self, stretch: Stretch, rest: &'a [Token]) -> Pair<'a> {
        let n = stretch.len * self.block_size;
        (&self.tokens[stretch.first as usize * self.block_size..][..n], &rest[..n])
    }
}

/// Tokens in the tree and in a prompt, equally many.
type Pair<'a> = (&'a [Token], &'a [Token]);

/// Returns `true` if the tokens of each pair are equal. Compares some tokens of each pair in turn.
fn equal_together(pairs: &[Pair<'_>]) -> bool {
    if let [(there, asked)] = pairs {
        return there == asked;
    }
    let longest = pairs.iter().map(|(there, _)| there.len()).max().unwrap_or(0);
    (0..longest).step_by(TURN).all(|from| {
        pairs.iter().all(|(there, asked)| {
            let turn = from.min(there.len())..(from + TURN).min(there.len());
            there[turn.clone()] == asked[turn]
        })
    })
}

/// Returns the number of leading blocks with equal tokens.
fn common_blocks((there, asked): Pair<'_>, block_size: usize) -> usize {
    let blocks = there.chunks_exact(block_size).zip(asked.chunks_exact(block_size));
    blocks.take_while(|(there, asked)| there == asked).count()
}

#[cfg(test)]
mod tests {
    use super::super::Parent;
    use super::*;
    use crate::eviction::REGISTRY;
    use crate::hash::{Namespace, extend_hashes};
    use crate::ids::BlockHandle;

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
