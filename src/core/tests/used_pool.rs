//! A pool after several turnovers: the blocks of a sequence still lie next to each other, and as much is found as in a pool that
//! evicts nothing ahead of need.

use std::collections::VecDeque;

use trunkline_core::blocks::block::BlockState;
use trunkline_core::blocks::hash::{BlockHash, Namespace, extend_hashes};
use trunkline_core::blocks::prefix::Prefix;
use trunkline_core::cache::tree::{Parent, PrefixTree, Published};
use trunkline_core::draw::unit;
use trunkline_core::{BlockHandle, eviction};

/// Tokens in a block.
const SIZE: u32 = 1;
const BLOCKS: u32 = 1 << 16;
const RUNNING: usize = 64;
const CHATS: usize = 96;
const TURNS_PER_CHAT: u64 = 8;
/// Turn of a chat that ended.
const ENDED: u64 = u64::MAX;

#[derive(Default)]
struct Chat {
    number: u64,
    turn: u64,
    tokens: Vec<u32>,
    hashes: Vec<BlockHash>,
    table: Vec<BlockHandle>,
    published: usize,
    /// Blocks to generate in this turn.
    left: u64,
    /// Blocks cached according to the model.
    cached: usize,
}

/// Chats that take turns: 64 run at a time, each adds a prompt to all that was said, and generates as much block by block.
struct Pool {
    tree: PrefixTree,
    root: BlockHash,
    running: Vec<Chat>,
    /// Chats that wait for their next turn, the first to wait first: least recently used first.
    idle: VecDeque<Chat>,
    found: Prefix,
    /// Free blocks according to the model: least recently used, and nothing ahead of need.
    free: usize,
    draws: u64,
    stored: usize,
    hits: usize,
    model_hits: usize,
}

impl Pool {
    fn new() -> Self {
        let chat = |number| Chat { number, ..Chat::default() };
        Self {
            tree: PrefixTree::new(SIZE, BLOCKS, eviction::REGISTRY.make("lru", BLOCKS).unwrap()),
            root: Namespace::default().root(),
            running: Vec::new(),
            idle: (0..CHATS as u64).map(chat).collect(),
            found: Prefix::default(),
            free: BLOCKS as usize,
            draws: 0,
            stored: 0,
            hits: 0,
            model_hits: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.draws += 1;
        (unit(1, self.draws, 0) * below as f64) as u64
    }

    /// Takes blocks in the model, from the chats that waited longest.
    fn model_take(&mut self, n: usize) {
        for chat in &mut self.idle {
            if self.free >= n {
                break;
            }
            let gone = chat.cached.min(n - self.free);
            chat.cached -= gone;
            self.free += gone;
        }
        self.free -= n;
    }

    fn grow(&mut self, chat: &mut Chat, blocks: u64) {
        let begin = chat.tokens.len() as u64;
        chat.tokens.extend((begin..begin + blocks).map(|at| (chat.number << 16 ^ at) as u32));
        extend_hashes(&mut chat.hashes, self.root, SIZE, &chat.tokens);
    }

    fn publish(&mut self, chat: &mut Chat) {
        while chat.published < chat.hashes.len() {
            let at = chat.published;
            let parent = Parent::of(self.root, &chat.table[..at]);
            let token = &chat.tokens[at..=at];
            let published = self.tree.publish(chat.table[at], parent, chat.hashes[at], token);
            assert_eq!(published, Published::New, "no two chats have a token in common");
            chat.published += 1;
        }
    }

    /// Begins the next turn of one of the chats that waited long.
    fn begin(&mut self) {
        let skipped = self.draw(CHATS as u64 / 8) as usize;
        let mut waiting = (0..self.idle.len()).filter(|at| self.idle[*at].turn != ENDED);
        let at = waiting.nth(skipped).expect("more chats wait than are skipped");
        let mut chat = self.idle.remove(at).expect("it was found a moment ago");
        if chat.turn == TURNS_PER_CHAT {
            let mut gone = std::mem::replace(&mut chat, Chat { number: CHATS as u64 + self.draws, ..Chat::default() });
            gone.turn = ENDED;
            // Its blocks stay, to be evicted in their turn.
            self.idle.insert(at, gone);
        }
        chat.turn += 1;
        let prompt = 1 + self.draw(96);
        chat.left = 1 + self.draw(96);
        self.grow(&mut chat, prompt);
        self.tree.find(self.root, &chat.hashes, &chat.tokens, &mut self.found);
        self.tree.hold(&self.found, &mut chat.table);
        let (hit, cached) = (self.found.len(), chat.cached);
        self.hits += hit;
        self.model_hits += cached;
        chat.published = hit;
        assert!(self.tree.allocate((chat.hashes.len() - hit) as u32, &mut chat.table));
        self.model_take(chat.hashes.len() - cached);
        self.stored += chat.hashes.len() - hit;
        self.publish(&mut chat);
        self.running.push(chat);
    }

    fn round(&mut self) {
        while self.running.len() < RUNNING {
            self.begin();
        }
        let mut running = std::mem::take(&mut self.running);
        for chat in &mut running {
            self.grow(chat, 1);
            assert!(self.tree.allocate(1, &mut chat.table));
            self.model_take(1);
            self.stored += 1;
            self.publish(chat);
            chat.left -= 1;
        }
        for mut chat in running {
            if chat.left > 0 {
                self.running.push(chat);
                continue;
            }
            self.tree.release(&mut chat.table, chat.published);
            (chat.published, chat.cached) = (0, chat.hashes.len());
            self.idle.push_back(chat);
        }
        self.idle.retain(|chat| chat.turn != ENDED || chat.cached > 0);
    }
}

#[test]
fn a_pool_after_three_turnovers_is_in_runs_and_finds_as_much() {
    let mut pool = Pool::new();
    let mut before = (0, 0);
    for turnover in 1..=3 {
        while pool.stored < turnover * BLOCKS as usize {
            pool.round();
        }
        let taken = pool.tree.taken();
        let run = (taken.0 - before.0) as f64 / (taken.1 - before.1) as f64;
        // 16 blocks are the share of each of 64 sequences in the blocks that may be free ahead of need. Blocks taken one by one,
        // last freed first, are at 1.1 here after three turnovers.
        assert!(run > 16.0, "turnover {turnover}: the mean run is {run:.1} blocks");
        before = taken;
        let free = pool.tree.pool().count(BlockState::Free);
        assert!(turnover == 1 || free <= BLOCKS / 64 + 1, "{free} blocks are free");
    }
    pool.tree.check();
    assert!(pool.tree.evicted() > 0 && pool.model_hits > pool.stored);
    let (hits, model) = (pool.hits as f64, pool.model_hits as f64);
    // One block in 64 is free ahead of need: as if the pool were that much smaller.
    assert!(
        (hits / model - 1.0).abs() < 1.0 / 64.0,
        "{hits} blocks are found, and {model} in a pool that evicts nothing ahead"
    );
}
