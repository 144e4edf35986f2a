//! Prefix-tree benchmark: hashing, lookup, references, storing, and memory per block.

use std::hint::black_box;

use trunkline_core::blocks::hash::{BlockHash, Namespace, extend_hashes};
use trunkline_core::blocks::prefix::Prefix;
use trunkline_core::cache::tree::PrefixTree;
use trunkline_core::eviction;
use trunkline_core::names::ids::{BlockHandle, Token};

use super::allocations::counted;
use super::measure::{Report, Sweeper, time_ns};
use super::publish::{lru, publish};
use super::used_pool;
use trunkline::h2o::numbers::Numbers;

const NOTES: [&str; 5] = [
    "Prompts are prefixes of documents that lie in the tree; half: the second half of the prompt is new; miss: all of it is.",
    "estimate: how long a prefix is there, by the given hashes alone. find and hold, what admission does: find it, verify every token, take references, fill a table.",
    "cold: the caches were emptied, then the prompt and its hashes were read. warm: the same prompt again and again. another each time: a prompt just read, the caches as they are.",
    "used pool: 64 chats at a time grew turn by turn, half of the tokens block by block, until the pool was filled three times. Another prompt each time.",
    "verify baseline: comparing as many tokens in memory at one go, which a verified hit cannot undercut.",
];
/// Number of calls timed together, where one call takes about as long as reading the clock.
const BATCH: usize = 32;
const DOCUMENT_TOKENS: usize = 128 << 10;

pub fn run(quick: bool) -> Report {
    let mut report = Report::new("tree", quick, NOTES.to_vec());
    let mut numbers = Numbers::from_seed(0);
    hashing(&mut report, &mut numbers, quick);
    let (sizes, lengths): (&[usize], &[usize]) =
        if quick { (&[20_000], &[4 << 10]) } else { (&[100_000, 1_000_000], &[4 << 10, 32 << 10, 128 << 10]) };
    let mut sweeper = Sweeper::new();
    for blocks in sizes {
        for block_size in [16, 64] {
            let mut shelf = Shelf::fill(&mut numbers, *blocks, block_size);
            for tokens in lengths {
                shelf.lookups(&mut report, &mut numbers, &mut sweeper, *tokens, if quick { 3 } else { 15 });
            }
            shelf.store(&mut report, &mut numbers, if quick { 3 } else { 15 });
        }
    }
    let (blocks, runs) = if quick { (20_000, 3) } else { (1_000_000, 300) };
    used_pool::measure(&mut report, &mut numbers, blocks, lengths, runs);
    let (sessions, turns, runs) = if quick { (20, 4, 3) } else { (500, 16, 5) };
    conversations(&mut report, &mut numbers, sessions, turns, runs);
    metadata(&mut report, &mut numbers, if quick { 20_000 } else { 1_000_000 });
    report
}

/// Measures hashing, and for comparison the speed of memory and of XXH3 on this machine.
fn hashing(report: &mut Report, numbers: &mut Numbers, quick: bool) {
    let tokens = numbers.tokens(if quick { 1 << 14 } else { 1 << 17 });
    let runs = if quick { 3 } else { 51 };
    let root = Namespace::default().root();
    let g_per_s = |ns: f64| tokens.len() as f64 / ns;
    for block_size in [16u32, 64] {
        let mut hashes = Vec::with_capacity(tokens.len());
        let values = (0..runs).map(|_| {
            hashes.clear();
            g_per_s(time_ns(|| extend_hashes(&mut hashes, root, block_size, black_box(&tokens))))
        });
        report.add("hash", format!("blocks of {block_size}"), "G tokens/s", values.collect());
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let hash_all = || {
            let blocks = black_box(&bytes).chunks_exact(block_size as usize * 4);
            blocks.fold(0, |sum, block| sum ^ xxhash_rust::xxh3::xxh3_64(block))
        };
        let values = (0..runs).map(|_| g_per_s(time_ns(hash_all)));
        report.add(
            "xxh3 baseline",
            format!("pieces of {block_size} tokens, unchained"),
            "G tokens/s",
            values.collect(),
        );
    }
    let mut copy = tokens.clone();
    let case = format!("{} KiB", tokens.len() * 4 / 1024);
    let values = (0..runs).map(|_| g_per_s(time_ns(|| black_box(&mut copy).copy_from_slice(black_box(&tokens)))));
    report.add("memcpy baseline", &case, "G tokens/s", values.collect());
    let values = (0..runs).map(|_| g_per_s(time_ns(|| black_box(&copy) == black_box(&tokens))));
    report.add("memcmp baseline", &case, "G tokens/s", values.collect());
}

/// A prompt, the root of its namespace and the hashes of its blocks.
struct Prompt {
    root: BlockHash,
    tokens: Vec<Token>,
    hashes: Vec<BlockHash>,
}

impl Prompt {
    fn new(tokens: Vec<Token>, block_size: u32, salt: &str) -> Self {
        let root = Namespace { salt, ..Namespace::default() }.root();
        let mut hashes = Vec::new();
        extend_hashes(&mut hashes, root, block_size, &tokens);
        Self { root, tokens, hashes }
    }

    /// Reads the prompt into the processor's caches, as receiving and hashing does.
    fn touch(&self) {
        black_box(self.tokens.iter().fold(0, |sum, token| sum ^ token));
        black_box(self.hashes.iter().fold(0, |sum, hash| sum ^ hash.0));
    }
}

/// Publishes the blocks of a prompt missing in the tree, after the blocks found there. Leaves the table held. Returns the number of
/// blocks found.
pub fn take(
    tree: &mut PrefixTree,
    root: BlockHash,
    prompt: (&[Token], &[BlockHash]),
    found: &mut Prefix,
    table: &mut Vec<BlockHandle>,
) -> usize {
    let (tokens, hashes) = prompt;
    tree.find(root, hashes, tokens, found);
    tree.hold(found, table);
    assert!(tree.allocate((hashes.len() - found.len()) as u32, table), "the pool is large enough");
    publish(tree, root, prompt, found.len(), table);
    found.len()
}

/// A tree filled with documents.
struct Shelf {
    tree: PrefixTree,
    block_size: u32,
    blocks: usize,
    documents: Vec<Vec<Token>>,
    found: Prefix,
    table: Vec<BlockHandle>,
}

impl Shelf {
    fn fill(numbers: &mut Numbers, blocks: usize, block_size: u32) -> Self {
        let per_document = DOCUMENT_TOKENS / block_size as usize;
        let documents: Vec<_> = (0..blocks / per_document).map(|_| numbers.tokens(DOCUMENT_TOKENS)).collect();
        let capacity = blocks + blocks / 4;
        let mut shelf = Self {
            tree: PrefixTree::new(block_size, capacity as u32, lru(capacity)),
            block_size,
            blocks,
            documents,
            found: Prefix::default(),
            table: Vec::new(),
        };
        for at in 0..shelf.documents.len() {
            let prompt = Prompt::new(shelf.documents[at].clone(), block_size, "");
            let Self { tree, found, table, .. } = &mut shelf;
            take(tree, prompt.root, (&prompt.tokens, &prompt.hashes), found, table);
            shelf.tree.release(&mut shelf.table, prompt.hashes.len());
        }
        shelf
    }

    /// Makes a prompt of `tokens` tokens; the first `hit` are in the tree.
    fn prompt(&self, numbers: &mut Numbers, tokens: usize, hit: usize, salt: &str) -> Prompt {
        let mut prompt = self.documents[numbers.below(self.documents.len())][..hit].to_vec();
        prompt.extend(numbers.tokens(tokens - hit));
        Prompt::new(prompt, self.block_size, salt)
    }

    fn lookups(
        &mut self,
        report: &mut Report,
        numbers: &mut Numbers,
        sweeper: &mut Sweeper,
        tokens: usize,
        runs: usize,
    ) {
        let size = format!("{} k tokens, {:.0e} blocks of {}", tokens >> 10, self.blocks as f64, self.block_size);
        let cases =
            [("full hit", tokens, ""), ("half hit", tokens / 2, ""), ("miss", 0, ""), ("other salt", tokens, "other")];
        for (name, hit, salt) in cases {
            let expected = if salt.is_empty() { hit / self.block_size as usize } else { 0 };
            let mut finds = Vec::new();
            let mut wholes = Vec::new();
            let mut releases = Vec::new();
            for _ in 0..runs {
                let prompt = self.prompt(numbers, tokens, hit, salt);
                sweeper.sweep();
                prompt.touch();
                finds.push(time_ns(|| self.tree.estimate(black_box(&prompt.hashes))) / 1e3);
                sweeper.sweep();
                prompt.touch();
                self.whole(&prompt, expected, &mut wholes, &mut releases);
            }
            report.add("estimate", format!("{name}, {size}, cold"), "us", finds);
            report.add("find and hold", format!("{name}, {size}, cold"), "us", wholes);
            if name == "full hit" {
                report.add("release", format!("{name}, {size}"), "us", releases);
            }
            let prompt = self.prompt(numbers, tokens, hit, salt);
            self.warm(report, &prompt, expected, runs, &format!("{name}, {size}, warm"));
        }
        let mut wholes = Vec::new();
        for _ in 0..runs * 20 {
            let prompt = self.prompt(numbers, tokens, tokens, "");
            self.whole(&prompt, tokens / self.block_size as usize, &mut wholes, &mut Vec::new());
        }
        report.add("find and hold", format!("full hit, {size}, another each time"), "us", wholes);
        let prompt = self.prompt(numbers, tokens, tokens, "");
        let copy = prompt.tokens.clone();
        let compare = || black_box(&copy) == black_box(&prompt.tokens);
        report.add("verify baseline", format!("memcmp of {} k tokens, warm", tokens >> 10), "us", {
            (0..runs.max(5) * 3).map(|_| time_ns(compare) / 1e3).collect()
        });
    }

    fn warm(&mut self, report: &mut Report, prompt: &Prompt, expected: usize, runs: usize, case: &str) {
        let estimate = || (0..BATCH).fold(0, |sum, _| sum + self.tree.estimate(black_box(&prompt.hashes)));
        let finds = (0..runs * 3).map(|_| time_ns(estimate) / BATCH as f64 / 1e3).collect();
        report.add("estimate", case, "us", finds);
        let mut wholes = Vec::new();
        for _ in 0..runs * 3 {
            self.whole(prompt, expected, &mut wholes, &mut Vec::new());
        }
        report.add("find and hold", case, "us", wholes);
    }

    fn whole(&mut self, prompt: &Prompt, expected: usize, wholes: &mut Vec<f64>, releases: &mut Vec<f64>) {
        let Self { tree, found, table, .. } = self;
        table.reserve(prompt.hashes.len());
        wholes.push(
            time_ns(|| {
                tree.find(prompt.root, black_box(&prompt.hashes), black_box(&prompt.tokens), found);
                tree.hold(found, table);
            }) / 1e3,
        );
        assert_eq!(table.len(), expected, "the hit is as long as it was made");
        releases.push(time_ns(|| tree.release(table, expected)) / 1e3);
    }

    /// Measures storing of new prompts whose hashes are known.
    fn store(&mut self, report: &mut Report, numbers: &mut Numbers, runs: usize) {
        let blocks = 1024;
        let values = (0..runs).map(|_| {
            let prompt = Prompt::new(numbers.tokens(blocks * self.block_size as usize), self.block_size, "");
            self.table.reserve(blocks);
            let Self { tree, table, .. } = self;
            let ns = time_ns(|| {
                assert!(tree.allocate(blocks as u32, table), "the pool is large enough");
                publish(tree, prompt.root, (black_box(&prompt.tokens), &prompt.hashes), 0, table);
            });
            tree.release(table, blocks);
            blocks as f64 / ns * 1e3
        });
        let values = values.collect();
        let case = format!("{blocks} blocks of {}, {:.0e} blocks there", self.block_size, self.blocks as f64);
        report.add("store", case, "M blocks/s", values);
    }
}

/// Measures sessions whose prompts grow with each turn.
fn conversations(report: &mut Report, numbers: &mut Numbers, sessions: usize, turns: usize, runs: usize) {
    const TURN: usize = 256;
    const BLOCK_SIZE: usize = 16;
    let texts: Vec<_> = (0..sessions).map(|_| numbers.tokens(turns * TURN)).collect();
    // A pool that is nearly full keeps some blocks free.
    let capacity = sessions * turns * TURN / BLOCK_SIZE * 5 / 4;
    let root = Namespace::default().root();
    let (mut totals, mut withouts) = (Vec::new(), Vec::new());
    let mut hit_blocks = 0;
    for _ in 0..runs {
        let mut tree = PrefixTree::new(BLOCK_SIZE as u32, capacity as u32, lru(capacity));
        let (mut hashes, mut found, mut table) = (Vec::new(), Prefix::default(), Vec::new());
        let (mut hashing, mut rest) = (0.0, 0.0);
        hit_blocks = 0;
        for turn in 1..=turns {
            for text in &texts {
                let tokens = &text[..turn * TURN];
                hashes.clear();
                hashing += time_ns(|| extend_hashes(&mut hashes, root, BLOCK_SIZE as u32, tokens));
                rest += time_ns(|| {
                    hit_blocks += take(&mut tree, root, (tokens, &hashes), &mut found, &mut table);
                    tree.release(&mut table, hashes.len());
                });
            }
        }
        totals.push((hashing + rest) / 1e6);
        withouts.push(rest / 1e6);
    }
    assert_eq!(hit_blocks, sessions * turns * (turns - 1) / 2 * TURN / BLOCK_SIZE, "every earlier turn is found");
    let case = format!("{sessions} sessions of {turns} turns of {TURN} tokens, {} tokens hit", hit_blocks * BLOCK_SIZE);
    report.add("conversations", format!("{case}, with hashing"), "ms", totals);
    report.add("conversations", format!("{case}, hashes given"), "ms", withouts);
}

/// Measures the memory of a full tree per block, without tokens, after every block was replaced once.
fn metadata(report: &mut Report, numbers: &mut Numbers, blocks: usize) {
    const BLOCK_SIZE: usize = 16;
    // Requests come and go: chains of many lengths.
    let lengths = [4, 16, 64, 256];
    for name in eviction::REGISTRY.names() {
        let (mut found, mut table) = (Prefix::default(), Vec::new());
        let (tree, counted) = counted(|| {
            let policy = eviction::REGISTRY.make(name, blocks as u32).expect("it was listed");
            let mut tree = PrefixTree::new(BLOCK_SIZE as u32, blocks as u32, policy);
            let mut stored = 0;
            while stored < 2 * blocks {
                let length = lengths[numbers.below(lengths.len())];
                let prompt = Prompt::new(numbers.tokens(length * BLOCK_SIZE), BLOCK_SIZE as u32, "");
                take(&mut tree, prompt.root, (&prompt.tokens, &prompt.hashes), &mut found, &mut table);
                tree.release(&mut table, length);
                stored += length;
            }
            (found, table) = (Prefix::default(), Vec::new());
            tree
        });
        let per_block = counted.bytes as f64 / f64::from(tree.pool().opened()) - 4.0 * BLOCK_SIZE as f64;
        report.add("metadata", format!("{name}, {blocks} blocks"), "bytes/block", vec![per_block]);
    }
}
