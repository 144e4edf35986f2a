//! Retention hints against a literal model: every hint of every block is kept, and classes are computed again at each moment.

use super::*;
use crate::blocks::hash::{BlockHash, Namespace, extend_hashes};
use crate::blocks::prefix::Prefix;
use crate::cache::tree::{Parent, Published};
use crate::eviction::REGISTRY;
use crate::names::ids::Token;
use crate::request::retention::{PINNED, RetentionHint, TO_END};
use proptest::prelude::*;

const SIZE: u32 = 4;
/// A time after every end.
const FAR_NS: u64 = 1 << 40;

/// A hint that holds for a block since a time.
type Granted = (u64, RetentionHint);

fn class_of((since_ns, hint): &Granted, at_ns: u64) -> usize {
    let class = hint.class_above() as u64;
    if hint.pin {
        return if at_ns - since_ns < hint.ttl_ns { PINNED } else { 0 };
    }
    let fallen = ((at_ns - since_ns) * class).checked_div(hint.ttl_ns).unwrap_or(0);
    class.saturating_sub(fallen) as usize
}

fn strongest(hints: &[Granted], at_ns: u64) -> usize {
    hints.iter().map(|hint| class_of(hint, at_ns)).max().unwrap_or(0)
}

/// A published prefix.
#[derive(Clone, Debug)]
struct Entry {
    prefix: Vec<Token>,
    slot: u32,
    readers: u32,
    /// Place in the order of eviction within a class.
    placed: u64,
    hints: Vec<Granted>,
    tenant: u64,
    /// Requests that released the block, those of them with a hint below the default, and those with one that demotes.
    uses: (u32, u32, u32),
}

impl Entry {
    /// Class for eviction, 0 to be demoted, 1 for early, 2 for the default.
    fn class(&self, at_ns: u64) -> usize {
        match strongest(&self.hints, at_ns) {
            0 if self.uses.0 > 0 && self.uses.0 == self.uses.2 => 0,
            0 if self.uses.0 > 0 && self.uses.0 == self.uses.1 => 1,
            above => 2 + above,
        }
    }
}

#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    clock: u64,
    now_ns: u64,
    evicted_retained: u64,
    ignored: u64,
}

impl Model {
    fn find(&mut self, prefix: &[Token]) -> &mut Entry {
        self.entries.iter_mut().find(|entry| entry.prefix == prefix).expect("the prefix is published")
    }

    fn advance(&mut self, to_ns: u64) {
        while self.now_ns < to_ns {
            let at_ns = self.now_ns + 1;
            let falls = |entry: &&mut Entry| entry.readers == 0 && entry.class(at_ns) != entry.class(at_ns - 1);
            let mut fallen: Vec<&mut Entry> = self.entries.iter_mut().filter(falls).collect();
            fallen.sort_by_key(|entry| (std::cmp::Reverse(entry.prefix.len()), entry.slot));
            for entry in fallen {
                self.clock += 1;
                entry.placed = self.clock;
            }
            self.now_ns = at_ns;
        }
    }

    fn evict(&mut self) {
        let idle = self.entries.iter().enumerate().filter(|(_, entry)| entry.readers == 0);
        let at = idle.min_by_key(|(_, entry)| (entry.class(self.now_ns), entry.placed)).expect("a block is idle").0;
        let gone = self.entries.remove(at);
        self.evicted_retained += u64::from(gone.class(self.now_ns) > 2);
        let is_leaf = !self.entries.iter().any(|entry| entry.prefix.starts_with(&gone.prefix));
        assert!(is_leaf, "a block left before a block behind it");
    }

    fn retained_of(&self, tenant: Option<u64>) -> u32 {
        let is = |entry: &&Entry| {
            strongest(&entry.hints, self.now_ns) > 0 && tenant.is_none_or(|tenant| entry.tenant == tenant)
        };
        self.entries.iter().filter(is).count() as u32
    }

    /// Takes in the hints of a request for its `n` blocks.
    fn claim(&mut self, tokens: &[Token], n: usize, hints: &[RetentionHint], tenant: u64, limits: RetainedBlocks) {
        let size = SIZE as usize;
        let hint_at = |token: usize| {
            let mut of_token = hints.iter().filter(|hint| (hint.from as usize..hint.to as usize).contains(&token));
            of_token.next()
        };
        let low = |token: usize| hint_at(token).is_some_and(|hint| hint.priority < 35);
        let away = |token: usize| hint_at(token).is_some_and(|hint| hint.demote);
        let mut is_ignored = false;
        for at in 0..n {
            let (is_low, is_away) = ((at * size..n * size).all(low), (at * size..n * size).all(away));
            let of_block: Vec<Granted> = hints
                .iter()
                .filter(|hint| {
                    hint.class_above() > 0 && hint.to as usize > at * size && (hint.from as usize) < n * size
                })
                .map(|hint| (self.now_ns, *hint))
                .collect();
            let now_ns = self.now_ns;
            let entry = self.find(&tokens[..(at + 1) * size]).clone();
            let moments = of_block.iter().flat_map(|(_, hint)| {
                let class = hint.class_above() as u64;
                (1..=class).map(move |below| now_ns + (hint.ttl_ns * below / class).saturating_sub(1))
            });
            let is_stronger = moments
                .chain([now_ns, FAR_NS])
                .any(|at_ns| strongest(&of_block, at_ns) > strongest(&entry.hints, at_ns));
            let retained = strongest(&entry.hints, now_ns) > 0;
            let mut is_granted = false;
            if is_ignored || !is_stronger {
                self.ignored += u64::from(is_ignored && !of_block.is_empty());
            } else if retained && entry.tenant == tenant {
                is_granted = true;
            } else {
                is_granted = self.retained_of(Some(tenant)) < limits.of_tenant
                    && (retained || self.retained_of(None) < limits.of_all);
                is_ignored = !is_granted;
                self.ignored += u64::from(is_ignored);
            }
            let entry = self.find(&tokens[..(at + 1) * size]);
            entry.uses.0 += 1;
            entry.uses.1 += u32::from(is_low);
            entry.uses.2 += u32::from(is_away);
            if is_granted {
                entry.hints.extend(of_block);
                entry.tenant = tenant;
            }
        }
    }
}

struct Reader {
    tokens: Vec<Token>,
    table: Vec<BlockHandle>,
    tenant: u64,
    hints: Vec<RetentionHint>,
}

#[derive(Clone, Debug)]
enum Op {
    /// Admit a request: a family of prefixes, a branch of it, a length in blocks, a tenant, hints.
    Admit(u32, u32, usize, u64, Vec<RetentionHint>),
    /// The n-th reader leaves.
    Leave(usize),
    Wait(u64),
    Flush,
}

/// Ranges, priorities and times to live. Times divide by every number of classes.
fn hints() -> impl Strategy<Value = Vec<RetentionHint>> {
    let priority = prop_oneof![Just(10u8), Just(20), Just(35), Just(40), Just(60), Just(80), Just(100)];
    let hint = (0u32..6, 1u32..14, priority, prop_oneof![Just(0u64), 1u64..9]);
    prop::collection::vec(hint, 0..4).prop_map(|parts| {
        let mut begin = 0;
        let mut hints = Vec::new();
        for (gap, len, priority, times) in parts {
            let from = begin + gap / 3;
            let to = if gap >= 3 { TO_END } else { from + len };
            let ttl_ns = if priority < 35 { 0 } else { 12 * times };
            let pin = priority == 100 && times % 2 == 1;
            hints.push(RetentionHint { from, to, priority, ttl_ns, demote: priority == 20, pin });
            if to == TO_END {
                break;
            }
            begin = to;
        }
        hints
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0u32..3, 0u32..3, 1usize..7, 0u64..3, hints()).prop_map(|(a, b, n, tenant, hints)| Op::Admit(a, b, n, tenant, hints)),
        5 => (0usize..4).prop_map(Op::Leave),
        3 => (1u64..40).prop_map(Op::Wait),
        1 => Just(Op::Flush),
    ];
    prop::collection::vec(op, 1..80)
}

/// A tree with hints, its readers and the model.
struct Run {
    tree: PrefixTree,
    model: Model,
    readers: Vec<Reader>,
    limits: RetainedBlocks,
}

impl Run {
    fn new(policy: &str, capacity: u32, limits: RetainedBlocks) -> Self {
        let mut tree = PrefixTree::new(SIZE, capacity, REGISTRY.make(policy, capacity).unwrap());
        tree.follow_hints(0, limits);
        Self { tree, model: Model::default(), readers: Vec::new(), limits }
    }

    fn admit(&mut self, prompt: (u32, u32, usize), tenant: u64, hints: Vec<RetentionHint>, follows_model: bool) {
        let (family, branch, blocks) = prompt;
        let root: BlockHash = Namespace::default().root();
        let own = |at: u32| if at < 2 * SIZE { family * 100 + at } else { 1000 + family * 500 + branch * 100 + at };
        let tokens: Vec<Token> = (0..blocks as u32 * SIZE).map(own).collect();
        let (mut hashes, mut found, mut table) = (Vec::new(), Prefix::default(), Vec::new());
        extend_hashes(&mut hashes, root, SIZE, &tokens);
        let Self { tree, model, readers, .. } = self;
        tree.find(root, &hashes, &tokens, &mut found);
        let needed = (blocks - found.len()) as u32;
        if tree.usable() - tree.count_idle(&found) < needed {
            return;
        }
        let free = tree.pool().count(BlockState::Free);
        tree.hold(&found, &mut table);
        assert!(tree.allocate(needed, &mut table));
        if follows_model {
            let size = SIZE as usize;
            let published = |n: usize| model.entries.iter().any(|entry| entry.prefix == tokens[..n * size]);
            assert_eq!((1..=blocks).take_while(|n| published(*n)).count(), found.len());
            (1..=found.len()).for_each(|n| model.find(&tokens[..n * size]).readers += 1);
            (free..needed).for_each(|_| model.evict());
        }
        for at in found.len()..blocks {
            let (begin, end) = (at * SIZE as usize, (at + 1) * SIZE as usize);
            let parent = Parent::of(root, &table[..at]);
            assert_eq!(tree.publish(table[at], parent, hashes[at], &tokens[begin..end]), Published::New);
            let prefix = tokens[..end].to_vec();
            let slot = table[at].index;
            let entry = Entry { prefix, slot, readers: 1, placed: 0, hints: Vec::new(), tenant: 0, uses: (0, 0, 0) };
            model.entries.push(entry);
        }
        readers.push(Reader { tokens, table, tenant, hints });
    }

    fn leave(&mut self, n: usize, follows_model: bool) {
        if n >= self.readers.len() {
            return;
        }
        let Reader { tokens, mut table, tenant, hints } = self.readers.remove(n);
        self.tree.claim(&table, &Claim { tenant, hints: &hints });
        let n = table.len();
        self.tree.release(&mut table, n);
        if follows_model {
            self.model.claim(&tokens, n, &hints, tenant, self.limits);
            for blocks in (1..=n).rev() {
                self.model.clock += 1;
                let clock = self.model.clock;
                let entry = self.model.find(&tokens[..blocks * SIZE as usize]);
                entry.readers -= 1;
                entry.placed = clock;
            }
        }
    }

    fn act(&mut self, op: Op, follows_model: bool) {
        match op {
            Op::Admit(family, branch, blocks, tenant, hints) => {
                self.admit((family, branch, blocks), tenant, hints, follows_model);
            }
            Op::Leave(n) => self.leave(n, follows_model),
            Op::Wait(ns) => {
                let to_ns = self.model.now_ns + ns;
                self.tree.advance(to_ns);
                if follows_model { self.model.advance(to_ns) } else { self.model.now_ns = to_ns }
            }
            Op::Flush => {
                while follows_model && self.model.entries.iter().any(|entry| entry.readers == 0) {
                    self.model.evict();
                }
                self.tree.flush();
            }
        }
        self.tree.check();
    }
}

proptest! {
    #[test]
    fn the_order_and_the_charges_agree_with_the_model(
        ops in ops(), capacity in 4u32..24, of_tenant in 0u32..12, of_all in 0u32..16
    ) {
        let mut run = Run::new("lru", capacity, RetainedBlocks { of_tenant, of_all });
        for op in ops {
            run.act(op, true);
            let (model, counters) = (&run.model, run.tree.retention());
            let published = run.tree.pool().count(BlockState::Held) + run.tree.pool().count(BlockState::Idle);
            prop_assert_eq!(published as usize, model.entries.len());
            let away = model.entries.iter().filter(|entry| entry.readers == 0 && entry.class(model.now_ns) == 0);
            prop_assert_eq!(run.tree.n_demoted() as usize, away.count());
            prop_assert_eq!(counters.retained_blocks, model.retained_of(None));
            prop_assert_eq!(counters.ignored_retained_blocks, model.ignored);
            prop_assert_eq!(counters.evicted_retained_blocks, model.evicted_retained);
        }
    }

    #[test]
    fn every_policy_works_within_the_classes(ops in ops(), capacity in 4u32..24) {
        for name in REGISTRY.names() {
            let mut run = Run::new(name, capacity, RetainedBlocks { of_tenant: capacity / 2, of_all: capacity });
            for op in &ops {
                run.act(op.clone(), false);
            }
            let idle = run.tree.pool().count(BlockState::Idle);
            prop_assert_eq!(run.tree.flush(), idle, "{}", name);
        }
    }
}

#[test]
fn timers_of_blocks_used_again_and_again_are_cleared_away() {
    let mut run = Run::new("lru", 16, RetainedBlocks { of_tenant: 16, of_all: 16 });
    for round in 0..2_000 {
        // Shorter and shorter: each claim of new contents sets an earlier timer.
        let (ttl_ns, demote) = (1_000_000 - round, false);
        let hint = RetentionHint { from: 0, to: TO_END, priority: 100, ttl_ns, demote, pin: false };
        run.admit((round as u32 % 7, 0, 4), 0, vec![hint], false);
        run.leave(0, false);
        run.tree.flush();
        assert!(run.tree.eviction.n_timers() <= 64 + 2 * 16, "{} timers", run.tree.eviction.n_timers());
    }
}
