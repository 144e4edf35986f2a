//! Swapping: the KV of a sequence moves to the host when others need its blocks, and comes back when there is room.
//!
//! **Out.** Blocks that another running sequence reads stay on the device, and the swapped sequence continues to read them. The
//! rest is copied. While the transfer is in flight nothing is released; when it ends, published blocks fall idle (and stay findable until
//! evicted) and private ones are freed. The scheduler counts on them meanwhile ([`crate::schedule::readers::future_free`]).
//!
//! **In.** Blocks that the tree still has, or has again, are read there and not copied. A block that another swap-in is copying is
//! not copied twice: the second sequence joins the first one's transfer. The rest is copied, and published on arrival like freshly
//! computed blocks: duplicates merge. Every other sequence that waits for the same host block is rebound to the device block.
//!
//! **Layer groups.** Everything holds for each group of layers, but that blocks with any other reader stay on the device
//! ([`crate::cache::kv`], `swapped_groups`).
//!
//! A transfer that fails, or takes longer than it is worth ([`crate::request::wait`]), costs a recomputation. Transfers in both directions run at the same
//! time.

use crate::Place;
use crate::blocks::entries::Entries;
use crate::blocks::host::HostState;
use crate::cache::group_blocks::Placed;
use crate::cache::transfer_table::{BlockPair, Orphan, Purpose, fold_pairs};
use crate::journal::digest::Decision;
use crate::names::ids::BlockHandle;
use crate::request::sequence::{Phase, SequenceEvent, SwapIn, SwapOut, Swapped};
use crate::request::wait::Wait;
use crate::schedule::readers;
use crate::schedule::seats;
use crate::schedule::state::State;
use crate::schedule::swap_queue::SwapPlace;

/// Begins to copy a running sequence to the host. Returns `false`, and changes nothing, if the host has no room or is left alone, or there is
/// nothing to copy.
pub(crate) fn begin_out(state: &mut State, slot: usize) -> bool {
    let seq = &state.sequences[slot];
    assert!(!seq.is_in_step(), "a worker may still write the blocks of {}", seq.id);
    let n = seq.computed_blocks(state.config.block_size);
    let pinned = readers::run_by_others(state, slot, n);
    let transfers = &state.kv.transfers;
    let is_closed = transfers.is_stuck(Place::Host) || transfers.pauses(Place::Device, Place::Host);
    if n == pinned || (state.kv.free_hosts() as usize) < seq.blocks_at(pinned..n) || is_closed {
        return false;
    }
    state.leave_batch(slot);
    let State { sequences, kv, journal, waiting, .. } = state;
    let seq = &mut sequences[slot];
    waiting.give_seat(seq.tenant);
    // Behind the tokens with KV nothing goes out.
    seq.cut_copied();
    kv.withdraw_promise(seq);
    kv.release_groups(seq, n);
    let mut unused = seq.table.split_off(n);
    kv.tree.release(&mut unused, 0);
    let (hosts, pairs) = kv.begin_out(seq, pinned);
    let copied = pairs.len() as u64;
    journal.decide(Decision::SwapOut, seq.id.0, copied);
    fold_pairs(&mut journal.digest, &pairs);
    journal.stats.preemptions += 1;
    journal.stats.swaps.swap_outs += 1;
    journal.stats.swaps.swapped_out_blocks += copied;
    seq.cold.history.preemptions += 1;
    let published = &seq.table[pinned..(seq.published as usize).max(pinned)];
    let contents = (kv.tiers.keys_on_device(published), Vec::new());
    let purpose = Purpose::SwapOut { slot };
    let transfer = kv.transfers.begin(Place::Device, Place::Host, pairs, purpose, n - pinned, contents);
    seq.transition(SequenceEvent::SwapOutBegan, Phase::SwappingOut(Box::new(SwapOut { transfer, hosts })));
    true
}

/// Blocks of a sequence to be swapped in.
struct SwapInPlan {
    /// Blocks in the table already.
    pinned: usize,
    /// Leading blocks on the device.
    found: usize,
    /// Last host blocks, to be copied for this sequence.
    copied: usize,
    /// Entries of the block tables after the leading blocks: of the copied blocks, and of tokens without KV.
    new: usize,
}

/// Begins to bring the first swapped sequence back, or lets it be recomputed while transfers with the host are overdue. Returns `false`,
/// and changes nothing, if there is none or no room for it.
pub(crate) fn begin_in(state: &mut State) -> bool {
    let Some(place) = state.swaps.swapped.first().copied() else { return false };
    let slot = place.slot;
    if state.kv.transfers.is_stuck(Place::Host) {
        // Its blocks may never come back, and nothing is admitted while it waits.
        recompute(state, slot, SequenceEvent::Released);
        return true;
    }
    if seats::is_for_head(state, slot) {
        return false;
    }
    let Some(SwapInPlan { pinned, found, copied, new }) = plan_in(state, slot) else { return false };
    state.swaps.swapped.remove(&place);
    let State { sequences, kv, journal, waiting, .. } = state;
    let seq = &mut sequences[slot];
    waiting.take_seat(seq.tenant);
    kv.tree.hold_again(&kv.found, &mut seq.table);
    seq.published = found as u32;
    let Phase::Swapped(swapped) = &mut seq.phase else { unreachable!("{} is in the queue of the swapped", seq.id) };
    let mut hosts = std::mem::take(&mut swapped.hosts);
    let on_device = hosts.split_front(found - pinned);
    journal.stats.swaps.found_blocks += (found - pinned) as u64;
    journal.stats.swaps.joined_blocks += (hosts.len() - copied) as u64;
    kv.hold_again(seq, &on_device);
    let arriving = kv.allocate_arriving(new, &hosts);
    kv.name_evictions(Some(seq.id));
    journal.decide(Decision::SwapIn, seq.id.0, (found as u64) << 32 | copied as u64);
    let now_ns = kv.transfers.now_ns;
    let wait = kv.transfers.links.wait(now_ns, Place::Host, Place::Device, hosts.len(), hosts.len());
    let swap_in = SwapIn { transfer: None, wait, hosts, arriving, copied: copied as u32 };
    seq.transition(SequenceEvent::SwapInBegan, Phase::SwappingIn(Box::new(swap_in)));
    state.swaps.arriving.push(slot);
    if copied > 0 {
        begin_copy_in(state, slot);
    }
    let found = state.sequences[slot].table[pinned..].to_vec();
    rebind(state, pinned, &on_device, &found);
    resume_arrived(state);
    true
}

/// Plans the swap-in of a sequence, with the blocks on the device in `found` of the cache. Returns `None` if there is no room.
fn plan_in(state: &mut State, slot: usize) -> Option<SwapInPlan> {
    let size = state.config.block_size;
    let watermark = state.watermark(state.config.swap_in_watermark);
    let batched = state.batched();
    let State { sequences, kv, config, .. } = state;
    let seq = &mut sequences[slot];
    let pinned = seq.table.len();
    let n = pinned + seq.phase.hosts().len();
    let Phase::Swapped(swapped) = &seq.phase else { unreachable!("{} is in the queue of the swapped", seq.id) };
    // What a sequence did not publish before depends on what it dropped.
    let findable = match (seq.cold.is_stale, seq.unpublishable) {
        (true, _) => 0,
        (false, true) => swapped.published as usize,
        (false, false) => (seq.computed / size) as usize,
    };
    kv.found.clear();
    if findable > pinned {
        seq.hash_of_block(findable - 1, size);
        kv.tree.find(seq.cold.root, &seq.cold.hashes[..findable], seq.tokens(), &mut kv.found);
    }
    let idle = kv.cut_found(seq, pinned);
    let found = kv.found.len().max(pinned);
    let is_read = |host: &u32| kv.host.state(*host) == HostState::Reading;
    let hosts = seq.phase.hosts();
    let awaited = &hosts.first[found - pinned..];
    let joined = awaited.iter().take_while(|host| is_read(host)).count();
    if awaited[joined..].iter().any(is_read) {
        // The transfer of the blocks before these failed, and one that had joined it is still in flight: wait for its end.
        return None;
    }
    let copied = n - found - joined;
    // Like a prefill, the sequence takes every block its tokens need, or is promised the blocks of further chunks, so that it can always continue.
    let lacking = (seq.n_tokens() as usize).div_ceil(size as usize) - n;
    let later = if kv.takes_chunks() && lacking > 1 { lacking } else { 0 };
    let new = copied + lacking - later;
    let arriving = kv.count_arriving(new, hosts.holes(found - pinned));
    let needed = arriving.saturating_add(kv.blocks_behind(hosts, found - pinned, later as u32));
    let usable = kv.usable().saturating_sub(idle);
    let fits = usable >= needed.saturating_add(watermark) && batched < config.max_batch_size;
    if !fits && batched < config.max_batch_size {
        readers::await_writes(state, needed.saturating_add(watermark) - usable);
    }
    fits.then_some(SwapInPlan { pinned, found, copied, new })
}

/// Begins the transfer of a sequence being swapped in.
fn begin_copy_in(state: &mut State, slot: usize) {
    let State { sequences, kv, journal, .. } = state;
    let Phase::SwappingIn(swap_in) = &mut sequences[slot].phase else { unreachable!("its swap-in just began") };
    let mut pairs = Vec::with_capacity(swap_in.copied as usize);
    for (block, host) in swap_in.arriving.part(0..swap_in.copied as usize).zip(swap_in.copied_hosts()) {
        kv.tree.begin_move(block);
        kv.host.begin_read(host);
        pairs.push(BlockPair { from: host, to: block.index });
    }
    fold_pairs(&mut journal.digest, &pairs);
    journal.stats.swaps.swapped_in_blocks += pairs.len() as u64;
    let (purpose, awaited) = (Purpose::SwapIn { slot }, swap_in.hosts.len());
    let id = kv.transfers.begin(Place::Host, Place::Device, pairs, purpose, awaited, Default::default());
    swap_in.transfer = Some(id);
}

/// Ends the swap-out or swap-in transfer of the sequence in `slot`.
pub(crate) fn end_transfer(state: &mut State, slot: usize, ok: bool) {
    let is_out = end_copying(state, slot, ok);
    if !ok {
        recompute(state, slot, SequenceEvent::TransferFailed);
    } else if is_out {
        end_out(state, slot);
    }
    resume_arrived(state);
}

/// Lets the transfer of a sequence that is swapping continue without the sequence, which is about to release its blocks. The transfer
/// keeps the blocks on both sides. A second sequence that had joined the transfer of a swap-in is recomputed.
pub(crate) fn orphan(state: &mut State, slot: usize) {
    let State { sequences, kv, .. } = state;
    let seq = &mut sequences[slot];
    kv.claim(seq);
    let mut orphan = match &mut seq.phase {
        Phase::SwappingOut(swap_out) => {
            let hosts = std::mem::take(&mut swap_out.hosts).all().collect();
            let published = std::mem::take(&mut seq.published) as usize;
            let mut orphan = Orphan { blocks: std::mem::take(&mut seq.table), published, hosts, ..Orphan::default() };
            for (group, table) in (1..).zip(std::mem::take(&mut seq.cold.tables)) {
                let held = |(_, block): &(usize, BlockHandle)| *block != BlockHandle::NONE;
                for (at, block) in table.into_iter().enumerate().filter(held) {
                    match at < published {
                        true => orphan.reads.push(Placed { node: orphan.blocks[at], group }),
                        false => orphan.blocks.push(block),
                    }
                }
            }
            orphan
        }
        Phase::SwappingIn(swap_in) if swap_in.transfer.is_some() => {
            swap_in.transfer = None;
            let copied = std::mem::take(&mut swap_in.copied) as usize;
            let hosts: Vec<u32> = swap_in.hosts.split_off(swap_in.hosts.len() - copied).all().collect();
            // Others may read the blocks too; the orphaned transfer holds them, so that nobody fills them.
            hosts.iter().for_each(|host| kv.host.end_read(*host));
            Orphan { blocks: swap_in.arriving.split_front(copied).all().collect(), hosts, ..Orphan::default() }
        }
        _ => return,
    };
    kv.transfers.orphan(slot, |_| std::mem::take(&mut orphan));
    debug_assert!(orphan.blocks.is_empty(), "the transfer of the swap is in flight");
}

/// Updates the host blocks of a transfer that ended: filled or freed by a swap-out, no longer read by a swap-in. Returns `true` for a
/// swap-out.
fn end_copying(state: &mut State, slot: usize, ok: bool) -> bool {
    let State { sequences, kv, .. } = state;
    match &mut sequences[slot].phase {
        Phase::SwappingOut(swap_out) => {
            if ok {
                swap_out.hosts.all().for_each(|host| kv.host.filled(host));
            } else {
                std::mem::take(&mut swap_out.hosts).all().for_each(|host| kv.host_fill_failed(host));
            }
            true
        }
        Phase::SwappingIn(swap_in) => {
            swap_in.transfer = None;
            swap_in.copied_hosts().for_each(|host| kv.host.end_read(host));
            false
        }
        phase => unreachable!("no swap is in flight for a sequence that is {:?}", phase.state()),
    }
}

/// Ends a swap-out: the device blocks are released, also by earlier swapped sequences with some of the blocks.
fn end_out(state: &mut State, slot: usize) {
    let State { sequences, kv, swaps, waiting, .. } = state;
    let Phase::SwappingOut(swap_out) = &mut sequences[slot].phase else { unreachable!("its swap-out just ended") };
    let hosts = std::mem::take(&mut swap_out.hosts);
    kv.claim(&sequences[slot]);
    let pinned = sequences[slot].table.len() - hosts.len();
    let others: Vec<usize> = if kv.groups.n() > 0 { Vec::new() } else { swaps.swapped_slots().collect() };
    for at in (pinned..sequences[slot].table.len()).rev() {
        let (block, host) = (sequences[slot].table[at], hosts.first[at - pinned]);
        for other in &others {
            let other = &mut sequences[*other];
            if other.table.len() == at + 1 && other.table[at] == block {
                let mut last = other.table.split_off(at);
                kv.tree.release(&mut last, 1);
                other.published = at as u32;
                let Phase::Swapped(swapped) = &mut other.phase else { unreachable!("in the queue of the swapped") };
                swapped.hosts.first.insert(0, host);
                kv.host.hold(host);
            }
        }
    }
    let seq = &mut sequences[slot];
    kv.release_groups(seq, pinned);
    let mut gone = seq.table.split_off(pinned);
    kv.tree.release(&mut gone, (seq.published as usize).saturating_sub(pinned));
    kv.free_left();
    let published = std::mem::replace(&mut seq.published, pinned as u32);
    let preemption_rank = waiting.preemption_rank(&seq.view(seq.computed));
    swaps.swapped.insert(SwapPlace::new(preemption_rank, seq.cold.view.arrival, slot));
    seq.transition(
        SequenceEvent::SwapOutEnded,
        Phase::Swapped(Box::new(Swapped { hosts, published, preemption_rank })),
    );
}

/// Brings every arriving sequence with all blocks present into the batch, and lets orphaned ones start over.
pub(crate) fn resume_arrived(state: &mut State) {
    loop {
        let swap_in = |slot: usize| match &state.sequences[slot].phase {
            Phase::SwappingIn(swap_in) => swap_in,
            phase => unreachable!("a sequence that is {:?} does not arrive", phase.state()),
        };
        let is_orphaned = |swap_in: &SwapIn| {
            swap_in.transfer.is_none() && state.kv.host.state(swap_in.hosts.first[0]) != HostState::Reading
        };
        let arriving = &state.swaps.arriving;
        if let Some(at) = arriving.iter().position(|slot| swap_in(*slot).is_complete()) {
            let slot = state.swaps.arriving.remove(at);
            resume(state, slot);
        } else if let Some(slot) = arriving.iter().copied().find(|slot| is_orphaned(swap_in(*slot))) {
            recompute(state, slot, SequenceEvent::TransferFailed);
        } else {
            return;
        }
    }
}

/// Brings a swapped sequence with all blocks on the device again into the batch.
fn resume(state: &mut State, slot: usize) {
    let State { sequences, kv, .. } = state;
    let seq = &mut sequences[slot];
    let decodes = seq.unplanned() == 1 && seq.generated() > 0;
    let next = if decodes { Phase::Decode } else { Phase::Prefill };
    let Phase::SwappingIn(swap_in) = seq.transition(SequenceEvent::SwapInEnded, next) else {
        unreachable!("the table lists no other state before")
    };
    let SwapIn { hosts, arriving, copied, .. } = *swap_in;
    let first = seq.table.len();
    arriving.part(0..copied as usize).for_each(|block| kv.tree.end_move(block));
    let Entries { first: mut blocks, others } = arriving;
    seq.table.append(&mut blocks);
    for (i, block) in others.into_iter().enumerate() {
        seq.cold.tables[i % kv.groups.n()].push(block);
    }
    let merged = state.journal.stats.merged_blocks;
    state.publish(slot);
    state.journal.stats.swaps.merged_blocks += state.journal.stats.merged_blocks - merged;
    let seq = &state.sequences[slot];
    let published = seq.table[first..(seq.published as usize).max(first)].to_vec();
    rebind(state, first, &hosts, &published);
    state.journal.stats.swaps.swap_ins += 1;
    if !decodes {
        state.kv.promise(&mut state.sequences[slot]);
        state.begin_shared_work(slot);
    }
    state.enter_batch(slot);
}

/// Rebinds every sequence that waits for one of `hosts`, blocks of the entries from `first` on, to the device block with the same contents, as
/// far as `published` has it. Then lets go of the host blocks.
fn rebind(state: &mut State, first: usize, hosts: &Entries<u32>, published: &[BlockHandle]) {
    let State { sequences, kv, swaps, journal, .. } = state;
    for ((at, host), block) in (first..).zip(&hosts.first).zip(published) {
        for slot in swaps.slots() {
            let seq = &mut sequences[slot];
            if seq.table.len() == at
                && let Some(host) = seq.phase.take_first_host(*host)
            {
                journal.stats.swaps.found_blocks += u64::from(matches!(seq.phase, Phase::Swapped(_)));
                kv.leave_host(host);
                kv.tree.share(*block);
                seq.table.push(*block);
                seq.published += 1;
            }
        }
    }
    kv.leave_hosts(hosts);
}

/// Lets the last swapped sequence release its blocks, so that another can run. For when nothing else can run. Returns `false` if
/// nothing is swapped.
pub(crate) fn release_last(state: &mut State) -> bool {
    let Some(slot) = state.swaps.swapped.last().map(|place| place.slot) else { return false };
    recompute(state, slot, SequenceEvent::Released);
    true
}

/// Lets the last swapped sequence release the device blocks kept for other readers, if any. For a sequence that runs alone and
/// needs a block, and is better not swapped out.
pub(crate) fn release_last_pinned(state: &mut State) -> bool {
    let last = state.swaps.swapped.last();
    last.is_some_and(|place| !state.sequences[place.slot].table.is_empty()) && release_last(state)
}

/// Returns the end of the next wait of a sequence that has joined the transfers of others, nanoseconds.
pub(crate) fn next_due_ns(state: &State) -> Option<u64> {
    joined(state).map(|(_, wait)| wait.end_ns).min().filter(|end_ns| *end_ns < u64::MAX)
}

/// Returns a sequence that has joined the transfers of others, and has waited for long enough.
pub(crate) fn first_overdue(state: &State) -> Option<usize> {
    let now_ns = state.kv.transfers.now_ns;
    joined(state).find(|(_, wait)| wait.is_over(now_ns)).map(|(slot, _)| slot)
}

/// Returns the arriving sequences without a transfer of their own in flight, and their waits.
fn joined(state: &State) -> impl Iterator<Item = (usize, Wait)> {
    state.swaps.arriving.iter().filter_map(|slot| match &state.sequences[*slot].phase {
        Phase::SwappingIn(swap_in) if swap_in.transfer.is_none() => Some((*slot, swap_in.wait)),
        _ => None,
    })
}

/// Lets a sequence out of the batch release all blocks and wait.
fn recompute(state: &mut State, slot: usize, event: SequenceEvent) {
    leave_queue(state, slot);
    state.release(slot);
    state.start_over(slot, event);
}

/// Takes a swapped or arriving sequence out of its queue, and counts its seat until it has left or waits.
pub(crate) fn leave_queue(state: &mut State, slot: usize) {
    let seq = &state.sequences[slot];
    if matches!(seq.phase, Phase::SwappingOut(_) | Phase::Swapped(_)) {
        state.waiting.take_seat(seq.tenant);
    }
    match &seq.phase {
        Phase::Swapped(swapped) => {
            state.swaps.swapped.remove(&SwapPlace::new(swapped.preemption_rank, seq.cold.view.arrival, slot));
        }
        Phase::SwappingIn(_) => state.swaps.remove_arriving(slot),
        _ => {}
    }
}

/// Releases all swaps: the worker was lost, and the host blocks too. Returns the sequences out of the batch, in a fixed order,
/// without any block or queue.
pub(crate) fn lose(state: &mut State, in_flight: &[Purpose]) -> Vec<usize> {
    let mut slots: Vec<usize> = in_flight.iter().filter_map(Purpose::slot).collect();
    slots.retain(|slot| end_copying(state, *slot, false));
    let out = slots.len();
    slots.extend(std::mem::take(&mut state.swaps.swapped).into_iter().map(|place| place.slot));
    slots.iter().for_each(|slot| state.waiting.take_seat(state.sequences[*slot].tenant));
    slots.splice(out..out, state.swaps.arriving.drain(..));
    slots.iter().for_each(|slot| state.release(*slot));
    slots
}
