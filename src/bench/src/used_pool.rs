//! Lookups in a pool that has been used: chats that grow turn by turn, until the pool was filled three times.

use std::hint::black_box;

use trunkline_core::blocks::hash::{BlockHash, Namespace, extend_hashes};
use trunkline_core::blocks::prefix::Prefix;
use trunkline_core::cache::tree::PrefixTree;
use trunkline_core::names::ids::{BlockHandle, Token};

use super::measure::{Report, time_ns};
use super::publish::{lru, publish};
use trunkline::h2o::numbers::Numbers;

const BLOCK_SIZE: usize = 16;
/// Chats that run at a time.
const CHATS: usize = 64;
/// Blocks in the prompt of a turn, and blocks generated, each up to twice as many.
const TURN_BLOCKS: usize = 32;
const TURNOVERS: usize = 3;

#[derive(Default)]
struct Chat {
    tokens: Vec<Token>,
    hashes: Vec<BlockHash>,
    table: Vec<BlockHandle>,
    published: usize,
    /// Blocks still to be generated in this turn.
    left: usize,
}

/// A full pool and the chats that filled it.
struct Used {
    tree: PrefixTree,
    root: BlockHash,
    blocks: usize,
    /// Blocks at which a chat ends and another begins.
    chat_blocks: usize,
    running: Vec<Chat>,
    ended: Vec<Chat>,
    found: Prefix,
    stored: usize,
}

impl Used {
    fn fill(numbers: &mut Numbers, blocks: usize, chat_blocks: usize) -> Self {
        let mut used = Self {
            tree: PrefixTree::new(BLOCK_SIZE as u32, blocks as u32, lru(blocks)),
            root: Namespace::default().root(),
            blocks,
            chat_blocks,
            running: (0..CHATS).map(|_| Chat::default()).collect(),
            ended: Vec::new(),
            found: Prefix::default(),
            stored: 0,
        };
        while used.stored < blocks * TURNOVERS {
            for at in 0..CHATS {
                let mut chat = std::mem::take(&mut used.running[at]);
                used.run(numbers, &mut chat);
                used.running[at] = chat;
            }
        }
        for chat in &mut used.running {
            used.tree.release(&mut chat.table, chat.published);
        }
        used
    }

    /// Generates a block of a chat, or begins its next turn.
    fn run(&mut self, numbers: &mut Numbers, chat: &mut Chat) {
        if chat.left > 0 {
            chat.left -= 1;
            self.extend(chat, numbers.tokens(BLOCK_SIZE));
            return;
        }
        self.tree.release(&mut chat.table, chat.published);
        if chat.hashes.len() >= self.chat_blocks {
            self.ended.push(std::mem::take(chat));
            // Older chats were evicted long ago.
            if self.ended.len() > 2 * self.blocks / self.chat_blocks {
                self.ended.remove(0);
            }
        }
        chat.left = 1 + numbers.below(2 * TURN_BLOCKS);
        let prompt = (1 + numbers.below(2 * TURN_BLOCKS)) * BLOCK_SIZE;
        self.tree.find(self.root, &chat.hashes, &chat.tokens, &mut self.found);
        self.tree.hold(&self.found, &mut chat.table);
        chat.published = self.found.len();
        self.extend(chat, numbers.tokens(prompt));
    }

    fn extend(&mut self, chat: &mut Chat, tokens: Vec<Token>) {
        chat.tokens.extend(tokens);
        extend_hashes(&mut chat.hashes, self.root, BLOCK_SIZE as u32, &chat.tokens);
        let more = chat.hashes.len() - chat.table.len();
        assert!(self.tree.allocate(more as u32, &mut chat.table), "the chats that wait are idle");
        self.stored += chat.hashes.len() - chat.published;
        publish(&mut self.tree, self.root, (&chat.tokens, &chat.hashes), chat.published, &chat.table);
        chat.published = chat.hashes.len();
    }

    /// Measures lookups of prompts of `blocks` blocks that lie in the pool whole, another one each time.
    fn lookups(&mut self, report: &mut Report, numbers: &mut Numbers, blocks: usize, runs: usize) {
        let Self { tree, root, found, .. } = self;
        let chats: Vec<&Chat> = self.ended.iter().chain(&self.running).collect();
        let (mut table, mut times) = (Vec::with_capacity(blocks), Vec::new());
        let before = tree.taken();
        for _ in 0..200 * runs {
            let chat = chats[numbers.below(chats.len())];
            let Some(hashes) = chat.hashes.get(..blocks) else { continue };
            // The prompt was just received and hashed.
            let (hashes, tokens) = (hashes.to_vec(), chat.tokens[..blocks * BLOCK_SIZE].to_vec());
            let ns = time_ns(|| {
                tree.find(*root, black_box(&hashes), black_box(&tokens), found);
                tree.hold(found, &mut table);
            });
            if table.len() == blocks {
                times.push(ns / 1e3);
            }
            tree.release(&mut table, found.len());
            if times.len() == runs {
                break;
            }
        }
        let taken = tree.taken();
        let run = (taken.0 - before.0) as f64 / (taken.1 - before.1).max(1) as f64;
        let case = format!(
            "{} k tokens, {:.0e} blocks of {BLOCK_SIZE}, used pool",
            (blocks * BLOCK_SIZE) >> 10,
            self.blocks as f64
        );
        if !times.is_empty() {
            report.add("find and hold", &case, "us", times);
        }
        report.add("mean run", case, "blocks", vec![run]);
    }

    /// Measures storing of new prompts, each instead of blocks that are evicted.
    fn store(&mut self, report: &mut Report, numbers: &mut Numbers, runs: usize) {
        let blocks = 1024.min(self.blocks / 8);
        let Self { tree, root, .. } = self;
        let mut table = Vec::with_capacity(blocks);
        let values = (0..runs).map(|_| {
            let tokens = numbers.tokens(blocks * BLOCK_SIZE);
            let mut hashes = Vec::new();
            extend_hashes(&mut hashes, *root, BLOCK_SIZE as u32, &tokens);
            let ns = time_ns(|| {
                assert!(tree.allocate(blocks as u32, &mut table), "everything is idle");
                publish(tree, *root, (black_box(&tokens), &hashes), 0, &table);
            });
            tree.release(&mut table, blocks);
            blocks as f64 / ns * 1e3
        });
        let values = values.collect();
        let case = format!("{blocks} blocks of {BLOCK_SIZE}, as many evicted, {:.0e} blocks there", self.blocks as f64);
        report.add("store", case, "M blocks/s", values);
    }
}

/// Measures lookups and storing in a used pool of `blocks` blocks. `lengths` are the tokens of the prompts, ascending.
pub fn measure(report: &mut Report, numbers: &mut Numbers, blocks: usize, lengths: &[usize], runs: usize) {
    let longest = lengths.last().expect("there is a length") / BLOCK_SIZE;
    let mut used = Used::fill(numbers, blocks, longest);
    for tokens in lengths {
        used.lookups(report, numbers, tokens / BLOCK_SIZE, runs);
    }
    used.store(report, numbers, runs);
}
