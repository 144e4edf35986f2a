//! Seats: the places of the batch, which a waiting request takes from a running one behind it.
//!
//! A full batch admits nobody until some request ends, and an answer may take minutes. Under a policy that takes seats
//! ([`crate::policy::Policy::takes_seats`]) the head of the queue is therefore compared with the running requests: the last of them in the order of the
//! policy gives up its seat if its rank is higher, and if nothing but a seat keeps the head from being admitted. It leaves as it would for
//! want of blocks, swapped or recomputed, and comes back in its turn.
//!
//! **Nobody takes turns.** Equal ranks take no seat, and ranks do not change while a request runs. A request that came back keeps its seat
//! until it has generated a token. A seat that is about to be free is waited for.
//!
//! **Steps in flight.** The decodes of a pass are picked before its admissions, so the last running request is mostly in a step. The next
//! steps leave it out ([`crate::batch::Batch::leaving`]), and the first pass that finds it in no step gives its seat away.
//!
//! **Swapped requests** have run before, and come back before any request is admitted that is not ahead of them. Under other policies nothing
//! is admitted before.

use std::cmp::Reverse;

use crate::sequence::Sequence;
use crate::state::State;

/// Returns `true` if a request may be admitted in this pass, as far as seats and swapped requests are concerned.
pub(crate) fn may_admit(state: &State) -> bool {
    if state.waiting.is_empty() || (state.is_under_memory_pressure() && !state.waiting.takes_seats()) {
        return false;
    }
    state.has_seat() || state.waiting.first().is_some_and(|head| victim(state, head).is_some())
}

/// Returns `true` if the waiting request in `slot` may be admitted before the swapped requests come back.
pub(crate) fn has_turn(state: &State, slot: usize) -> bool {
    let mut swapped = state.swaps.swapped_slots().chain(state.kv.transfers.swapping_out());
    let is_ahead = |other: usize| is_ahead(state, slot, &state.sequences[other]);
    !state.waiting.takes_seats() || (!state.kv.preemptions_wait() && swapped.all(is_ahead))
}

/// Returns `true` if the head of the queue is to be admitted before the swapped request in `slot` comes back.
pub(crate) fn is_for_head(state: &State, slot: usize) -> bool {
    let seq = &state.sequences[slot];
    state.waiting.takes_seats() && state.waiting.first().is_some_and(|head| is_ahead(state, head, seq))
}

/// Returns the running request that the waiting one in `slot` takes the seat of, if there is one.
pub(crate) fn victim(state: &State, slot: usize) -> Option<usize> {
    let rank = state.waiting.takes_seats().then(|| state.waiting.rank_of(slot))?;
    seats(state).max_by_key(|(place, _)| *place).filter(|((last, _), _)| rank < *last).map(|(_, slot)| slot)
}

/// Returns the next waiting requests, with the running ones that they take the seats of, the last ones first.
pub(crate) fn exchanges(state: &State) -> impl Iterator<Item = (usize, usize)> {
    let mut seats: Vec<_> = seats(state).collect();
    seats.sort_unstable_by_key(|(place, _)| Reverse(*place));
    let heads = state.waiting.first_unparked(seats.len());
    let takes = move |(head, ((last, _), _)): &(usize, ((i128, u64), usize))| state.waiting.rank_of(*head) < *last;
    heads.into_iter().zip(seats).take_while(takes).map(|(head, (_, slot))| (head, slot))
}

/// Returns the highest rank of the running requests, if seats are taken.
pub(crate) fn last_rank(state: &State) -> Option<i128> {
    let running = state.batch.running.iter().map(|slot| &state.sequences[*slot]);
    if state.waiting.takes_seats() { running.map(|seq| rank(state, seq)).max() } else { None }
}

/// Returns the places in the order of the policy, and the slots, of the running requests that may give up their seats.
fn seats(state: &State) -> impl Iterator<Item = ((i128, u64), usize)> {
    let is_freed = state.reported > 0 || state.batch.running.iter().any(|slot| state.sequences[*slot].ending.is_some());
    let running = state.batch.running.iter().copied().filter(move |_| !is_freed);
    let seats = running.map(|slot| (slot, &state.sequences[slot]));
    let may_leave = seats.filter(|(slot, seq)| !state.victims.is_spared(*slot, seq.generated()));
    may_leave.map(|(slot, seq)| ((rank(state, seq), state.victims.arrival(slot)), slot))
}

fn is_ahead(state: &State, waiting: usize, seq: &Sequence) -> bool {
    state.waiting.rank_of(waiting) < rank(state, seq)
}

/// Returns the rank of a request out of the queue.
fn rank(state: &State, seq: &Sequence) -> i128 {
    state.waiting.rank(&seq.view(0))
}
