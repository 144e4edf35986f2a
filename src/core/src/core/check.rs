//! The checker: asserts that the whole state of a core is consistent.

use crate::blocks::block::BlockState;
use crate::cache::transfer_table::{BlockPair, Orphan, Purpose, TransferTable};
use crate::core::Core;
use crate::names::ids::{BlockHandle, RequestId};
use crate::request::sequence::{Ending, Phase, Sequence};
use crate::schedule::batch::Batch;
use crate::schedule::state::State;
use crate::schedule::swap_queue::SwapPlace;

impl Core {
    /// Panics unless every block is in exactly one place and every sequence reads only blocks it may read.
    /// O(blocks + tokens held). Runs after every event in debug builds if the pool is small, else now and then.
    pub fn check(&self) {
        let state = &self.state;
        state.kv.tree.check();
        for (slot, seq) in &state.sequences {
            if let Some(Ending::Reported(_)) = seq.ending {
                let Batch { running, preempted, .. } = &state.batch;
                let is_listed = running.contains(&slot) || preempted.contains(&slot);
                assert!(seq.is_in_step() && !is_listed, "{} waits for no step", seq.id);
            } else {
                assert_eq!(self.by_id.get(&seq.id), Some(&slot));
                check_queue(state, slot, seq);
            }
            check_phase(state, slot, seq);
        }
        assert_eq!(self.by_id.len() + state.reported, state.sequences.len());
        check_blocks(state);
        check_promises(state);
        check_shared_work(state);
        check_seats(state);
        let holders = state.sequences.iter().flat_map(|(_, seq)| seq.phase.hosts().all());
        state.kv.host.check(holders.chain(orphans(state).flat_map(|orphan| orphan.hosts.iter().copied())));
        state.kv.tiers.check(&state.kv.transfers);
    }

    #[cfg(debug_assertions)]
    pub(crate) fn check_sometimes(&mut self) {
        self.events_seen += 1;
        let every = if self.state.config.device_blocks <= 1024 { 1 } else { 256 };
        if self.events_seen.is_multiple_of(every) {
            self.check();
        }
    }
}

/// Panics unless the blocks in tables and transfers account for every private and every moving block.
fn check_blocks(state: &State) {
    let pool = state.kv.tree.pool();
    let (mut private, mut moving) = (state.kv.n_retired(), state.kv.demoting_blocks());
    let mut expect = |handle: &BlockHandle, expected: BlockState, id: RequestId| {
        assert!(pool.is_current(*handle), "{id} holds a stale {handle:?}");
        let stale = expected == BlockState::Held && pool.state(handle.index) == BlockState::Stale;
        assert!(stale || pool.state(handle.index) == expected, "block {} of {id} is not {expected:?}", handle.index);
        private += u32::from(expected == BlockState::Private);
        moving += u32::from(expected == BlockState::Moving);
    };
    for (_, seq) in &state.sequences {
        let published = seq.published as usize;
        let moving_to = match &seq.phase {
            Phase::SwappingOut(_) => seq.table.len(),
            Phase::Loading(load) => published + load.filled.len(),
            _ => 0,
        };
        let arriving = seq.arriving();
        for (at, handle) in seq.table.iter().enumerate() {
            let own = if at < moving_to || arriving.contains(&at) { BlockState::Moving } else { BlockState::Private };
            expect(handle, if at < published { BlockState::Held } else { own }, seq.id);
        }
        if let Phase::SwappingIn(swap_in) = &seq.phase {
            let (arriving, copied) = (&swap_in.arriving, swap_in.copied as usize);
            arriving.part(0..copied).for_each(|handle| expect(&handle, BlockState::Moving, seq.id));
            let rest = arriving.part(copied..arriving.len());
            rest.for_each(|handle| expect(&handle, BlockState::Private, seq.id));
        }
    }
    for source in state.kv.held_sources() {
        let is_held = matches!(pool.state(source.index), BlockState::Held | BlockState::Stale);
        assert!(pool.is_current(*source) && is_held, "the source of a copy is not held");
    }
    check_transfers(state);
    for orphan in orphans(state) {
        for block in orphan.blocks[orphan.published..].iter().copied() {
            assert!(pool.is_current(block) && pool.state(block.index) == BlockState::Moving, "{block:?} has an owner");
            moving += 1;
        }
    }
    let (private_in_groups, moving_in_groups) = check_groups(state);
    private += private_in_groups;
    moving += moving_in_groups;
    assert_eq!(moving, pool.count(BlockState::Moving), "a block is copied for no sequence, or for two");
    // Each private block is in some table, and no two tables can claim one: the number would not add up.
    assert_eq!(private, pool.count(BlockState::Private), "a private block has no owner, or two");
}

/// Panics unless the seats of each tenant are those of its requests.
fn check_seats(state: &State) {
    if !state.waiting.counts_service() {
        return;
    }
    let is_out = |phase: &Phase| matches!(phase, Phase::Waiting | Phase::SwappingOut(_) | Phase::Swapped(_));
    for (_, seq) in &state.sequences {
        let others = state.sequences.iter().filter(|(_, other)| other.tenant == seq.tenant);
        let seated = others.filter(|(_, other)| {
            !other.is_prefetch() && !is_out(&other.phase) && !matches!(other.ending, Some(Ending::Reported(_)))
        });
        assert_eq!(state.waiting.seats(seq.tenant) as usize, seated.count(), "seats of tenant {}", seq.tenant);
    }
}

/// Panics unless blocks read by transfers are held, and the sources of demotions are counted right.
fn check_transfers(state: &State) {
    let pool = state.kv.tree.pool();
    for transfer in state.kv.transfers.iter() {
        let is_held = |handle: &BlockHandle| matches!(pool.state(handle.index), BlockState::Held | BlockState::Stale);
        let reads = |handle: &BlockHandle| pool.is_current(*handle) && is_held(handle);
        assert!(transfer.purpose.chain().iter().all(reads), "a transfer reads a block that nobody holds");
        let kept = transfer.purpose.kept().iter();
        assert!(kept.flat_map(|kept| &kept.chain).all(reads), "a demotion reads a block that nobody holds");
    }
    for demotion in state.kv.transfers.device_demotions() {
        let is_leaving = |pair: &&BlockPair| pool.state(pair.from) == BlockState::Moving;
        let leaving = demotion.pairs.iter().filter(is_leaving).count() as u32;
        assert_eq!(state.kv.freed_by_demotion(demotion), leaving, "sources taken back drifted");
    }
}

/// Panics unless prompts under way alone have promises.
fn check_promises(state: &State) {
    let mut promised = 0;
    for (_, seq) in &state.sequences {
        let takes_more = matches!(seq.phase, Phase::Prefill | Phase::Loading(_));
        assert!(seq.cold.promised == 0 || takes_more, "{} is {:?} and has a promise", seq.id, seq.state());
        promised += seq.cold.promised;
    }
    assert_eq!(promised, state.kv.promised.total());
}

/// Panics unless the tables of the layer groups after the first agree with the table of the first, and with the cached blocks of its entries.
/// Returns the number of blocks there, and of the blocks being copied.
fn check_groups(state: &State) -> (u32, u32) {
    let (groups, pool) = (&state.kv.groups, state.kv.tree.pool());
    let (mut private, mut moving, mut readers) = (0, 0, state.kv.n_retired_readers());
    readers += state.kv.transfers.iter().map(|transfer| transfer.purpose.reads_in_groups().count()).sum::<usize>();
    for (_, seq) in &state.sequences {
        for (group, table) in (1..).zip(&seq.cold.tables) {
            assert_eq!(table.len(), seq.table.len(), "{} has tables of different lengths", seq.id);
            for (at, block) in table.iter().enumerate().filter(|(_, block)| **block != BlockHandle::NONE) {
                let is_moving = match &seq.phase {
                    Phase::SwappingOut(_) => at >= seq.published as usize,
                    Phase::Loading(load) => {
                        let loaded = seq.published as usize..seq.published as usize + load.filled.len();
                        loaded.contains(&at) && pool.state(block.index) == BlockState::Moving
                    }
                    _ => false,
                };
                let expected = if is_moving { BlockState::Moving } else { BlockState::Private };
                assert!(pool.is_current(*block) && pool.state(block.index) == expected, "{}", seq.id);
                if at < seq.published as usize {
                    let cached = groups.get(seq.table[at].index, group);
                    assert_eq!(
                        cached,
                        Some(*block),
                        "{} reads a block that is not cached with the first group's",
                        seq.id
                    );
                    readers += 1;
                } else {
                    private += u32::from(!is_moving);
                    moving += u32::from(is_moving);
                }
            }
        }
    }
    let is_published = |node| matches!(pool.state(node), BlockState::Held | BlockState::Idle | BlockState::Stale);
    groups.check(readers, |node, block| is_published(node) && pool.state(block.index) == BlockState::Private);
    (private + groups.n_blocks(), moving)
}

/// Panics unless prefills and loading sequences own the blocks that they are about to publish, and every parked request waits for
/// such a block, or for a look-up in flight.
fn check_shared_work(state: &State) {
    let (mut notes, rest) = (0, |slot: usize| state.sequences[slot].prompt_rest());
    for (slot, seq) in &state.sequences {
        let publishes = matches!(seq.phase, Phase::Prefill | Phase::Loading(_)) && !seq.unpublishable;
        if publishes && seq.ending.is_none() {
            let (hashes, published) = rest(slot);
            let is_owner = published < hashes.len();
            assert_eq!(state.shared_work.has(slot), is_owner, "{} owns what it is about to publish", seq.id);
            notes += state.shared_work.notes_of(slot, rest(slot));
        }
    }
    assert_eq!(notes, state.shared_work.notes(), "a sequence owns blocks that it will not publish");
    for (hash, slot) in state.waiting.parked() {
        let id = state.sequences[slot].id;
        let hashes = &state.sequences[slot].cold.hashes;
        let at = hashes.iter().position(|own| *own == hash).expect("a block of its own prompt");
        let is_coming = state.shared_work.owner(hashes, at, rest).is_some() || state.kv.lookups.is_awaited(hash);
        assert!(is_coming, "{id} is parked for a block that no sequence computes and no look-up asks for");
    }
}

/// Panics unless a sequence is in the queue of its state, and in no other.
fn check_queue(state: &State, slot: usize, seq: &Sequence) {
    if seq.is_prefetch() {
        let is_elsewhere = state.waiting.contains(slot) || state.loading.contains(&slot);
        assert!(state.prefetches.contains(slot) && !is_elsewhere, "{} is a prefetch", seq.id);
        return;
    }
    let place = match &seq.phase {
        Phase::Swapped(swapped) => SwapPlace::new(swapped.preemption_rank, seq.cold.view.arrival, slot),
        _ => SwapPlace::new(0, seq.cold.view.arrival, slot),
    };
    let queues = [
        ("waiting", matches!(seq.phase, Phase::Waiting), state.waiting.contains(slot)),
        ("batch", matches!(seq.phase, Phase::Prefill | Phase::Decode), state.batch.running.contains(&slot)),
        ("preempted", matches!(seq.phase, Phase::Preempted), state.batch.preempted.contains(&slot)),
        ("loading", matches!(seq.phase, Phase::Loading(_)), state.loading.contains(&slot)),
        ("swapped", matches!(seq.phase, Phase::Swapped(_)), state.swaps.swapped.contains(&place)),
        ("arriving", matches!(seq.phase, Phase::SwappingIn(_)), state.swaps.arriving.contains(&slot)),
    ];
    for (queue, expected, actual) in queues {
        assert_eq!(expected, actual, "{} is {:?}: {queue}", seq.id, seq.state());
    }
}

/// Panics unless the data of a sequence fit its phase.
fn check_phase(state: &State, slot: usize, seq: &Sequence) {
    let size = state.config.block_size;
    let transfers = |is: &dyn Fn(&Purpose) -> bool| count(&state.kv.transfers, is);
    let in_batch = matches!(seq.phase, Phase::Prefill | Phase::Decode);
    assert!(in_batch || seq.is_preempted() == seq.is_in_step(), "{} is {:?} and in a step", seq.id, seq.state());
    assert_eq!(in_batch, seq.mirror.slot().is_some(), "{} is {:?}", seq.id, seq.state());
    // A prompt that is cached whole runs its last token again.
    assert!(!in_batch || seq.published * size <= seq.planned() + 1, "{} published what no step computes", seq.id);
    let arriving = if let Phase::SwappingIn(swap_in) = &seq.phase { swap_in.arriving.len() } else { 0 };
    let blocks = seq.table.len() + seq.phase.hosts().len();
    assert!(seq.computed_blocks(size) <= blocks + arriving);
    match &seq.phase {
        Phase::Waiting => assert!(seq.table.is_empty(), "a waiting sequence holds no block"),
        Phase::Preempted => assert!(seq.table.is_empty() && state.kv.copies_wait(), "{} holds a block", seq.id),
        Phase::Prefill | Phase::Decode => {
            let loads = transfers(&|purpose| matches!(purpose, Purpose::Load { slot: other } if *other == slot));
            assert_eq!(loads, seq.cold.tail.as_ref().map_or(0, |tail| tail.load.transfers as usize));
            assert_eq!(seq.cold.tail.is_some(), state.tails.contains(&slot), "{} is in the list of tails", seq.id);
        }
        Phase::Loading(load) => {
            assert!(load.transfers > 0 && !load.filled.is_empty());
            let loads = transfers(&|purpose| matches!(purpose, Purpose::Load { slot: other } if *other == slot));
            assert_eq!(loads, load.transfers as usize);
        }
        Phase::SwappingOut(swap_out) => {
            assert!(!swap_out.hosts.is_empty());
            assert!(state.kv.transfers.iter().any(|transfer| transfer.id == swap_out.transfer));
        }
        Phase::Swapped(_) => {
            assert_eq!(seq.published as usize, seq.table.len());
            assert_eq!(blocks, seq.computed_blocks(size), "{} lost KV", seq.id);
        }
        Phase::SwappingIn(swap_in) => {
            assert!(swap_in.hosts.len() >= swap_in.copied as usize && arriving >= swap_in.copied as usize);
            assert_eq!(seq.published as usize, seq.table.len());
            let copies = transfers(&|purpose| matches!(purpose, Purpose::SwapIn { slot: other } if *other == slot));
            assert_eq!(copies, usize::from(swap_in.transfer.is_some()));
        }
    }
}

/// Returns the blocks kept by orphaned transfers.
fn orphans(state: &State) -> impl Iterator<Item = &Orphan> {
    state.kv.transfers.iter().filter_map(|transfer| match &transfer.purpose {
        Purpose::Orphaned(orphan) => Some(orphan),
        _ => None,
    })
}

/// Returns the number of transfers in flight with a purpose.
fn count(transfers: &TransferTable, is: &dyn Fn(&Purpose) -> bool) -> usize {
    transfers.iter().filter(|transfer| is(&transfer.purpose)).count()
}
