//! Eviction benchmark: evicts blocks and stores others in their place, for every policy.

use std::hint::black_box;

use trunkline_core::blocks::hash::{BlockHash, Namespace, extend_hashes};
use trunkline_core::blocks::prefix::Prefix;
use trunkline_core::cache::tree::PrefixTree;
use trunkline_core::eviction;
use trunkline_core::names::ids::{BlockHandle, Token};

use super::measure::{Report, quantile, time_ns};
use super::publish::publish;
use trunkline::h2o::numbers::Numbers;

const NOTES: [&str; 2] = [
    "An operation evicts 8 blocks and stores 8 others, hashes given: 128 tokens. Afterwards the request leaves: release.",
    "Every leaf is a chain of 8 blocks of its own. Between operations a chain of those stored lately is read now and then.",
];
const BLOCK_SIZE: usize = 16;
const CHAIN: usize = 8;
const TOKENS: usize = CHAIN * BLOCK_SIZE;
/// Number of operations between two reads.
const READ_EVERY: usize = 3;
/// Number of chains remembered, to be read again.
const REMEMBERED: usize = 1024;

pub fn run(quick: bool) -> Report {
    let mut report = Report::new("evict", quick, NOTES.to_vec());
    let leaves: &[usize] = if quick { &[500] } else { &[5_000, 50_000, 1_000_000] };
    let operations = if quick { 1_000 } else { 60_000 };
    for leaves in leaves {
        for name in eviction::REGISTRY.names() {
            turnover(&mut report, name, *leaves, operations);
        }
    }
    report
}

/// A tree of idle blocks only, and the source of the tree's next chains.
struct Churn {
    tree: PrefixTree,
    numbers: Numbers,
    root: BlockHash,
    hashes: Vec<BlockHash>,
    table: Vec<BlockHandle>,
    found: Prefix,
    lately: Vec<Vec<Token>>,
}

impl Churn {
    /// Makes a chain of new tokens, with its hashes in `self.hashes`.
    fn fresh(&mut self) -> Vec<Token> {
        let tokens = self.numbers.tokens(TOKENS);
        self.hash(&tokens);
        tokens
    }

    fn hash(&mut self, tokens: &[Token]) {
        self.hashes.clear();
        extend_hashes(&mut self.hashes, self.root, BLOCK_SIZE as u32, tokens);
    }

    /// Evicts blocks for a chain, stores the chain and releases it. Returns the times to store and to release.
    fn turn_over(&mut self) -> (f64, f64) {
        let tokens = self.fresh();
        let Self { tree, root, hashes, table, .. } = self;
        let store = time_ns(|| {
            assert!(tree.allocate(CHAIN as u32, table), "everything is idle");
            publish(tree, *root, (black_box(&tokens), hashes), 0, table);
        });
        let release = time_ns(|| tree.release(table, CHAIN));
        let at = self.numbers.below(REMEMBERED);
        match self.lately.get_mut(at) {
            Some(old) => *old = tokens,
            None => self.lately.push(tokens),
        }
        (store, release)
    }

    /// Reads one of the chains stored last, or the blocks of it not yet evicted.
    fn read(&mut self) {
        let at = self.numbers.below(self.lately.len());
        let tokens = std::mem::take(&mut self.lately[at]);
        self.hash(&tokens);
        let Self { tree, root, hashes, table, found, .. } = self;
        tree.find(*root, hashes, &tokens, found);
        tree.hold(found, table);
        tree.release(table, found.len());
        self.lately[at] = tokens;
    }
}

fn turnover(report: &mut Report, name: &str, leaves: usize, operations: usize) {
    let capacity = (leaves * CHAIN) as u32;
    let policy = eviction::REGISTRY.make(name, capacity).expect("it was listed");
    let mut churn = Churn {
        tree: PrefixTree::new(BLOCK_SIZE as u32, capacity, policy),
        numbers: Numbers::from_seed(0),
        root: Namespace::default().root(),
        hashes: Vec::new(),
        table: Vec::new(),
        found: Prefix::default(),
        lately: Vec::new(),
    };
    for at in 0..leaves + leaves / 8 {
        churn.turn_over();
        if at % READ_EVERY == 0 {
            churn.read();
        }
    }
    let (mut stores, mut releases) = (Vec::with_capacity(operations), Vec::with_capacity(operations));
    for at in 0..operations {
        let (store, release) = churn.turn_over();
        stores.push(store / 1e3);
        releases.push(release / 1e3);
        if at % READ_EVERY == 0 {
            churn.read();
        }
    }
    stores.sort_by(f64::total_cmp);
    let case = format!("{name}, {leaves} leaves");
    for (percentile, q) in [("p99", 0.99), ("p99.9", 0.999)] {
        report.add("evict and insert", format!("{case}, {percentile}"), "us", vec![quantile(&stores, q)]);
    }
    report.add("evict and insert", &case, "us", stores);
    report.add("release", case, "us", releases);
}
