//! Seats: the places of the batch, which a waiting request takes from a running one behind it.
//!
//! A full batch admits nobody until some request ends, and an answer may take minutes. Under a policy that takes seats
//! ([`crate::policy::Policy::takes_seats`]) the head of the queue is therefore compared with the running requests: the last of them in the order of the
//! policy gives up its seat if its rank is higher, and if nothing but a seat keeps the head from being admitted. It leaves as it would for
//! want of blocks, swapped or recomputed, and comes back in its turn.
//!
//! **Shares.** Under a policy that orders tenants the rank is the number of a seat among those of its tenant, counted in order of arrival: the
//! third request of a tenant has rank 3. The head of the queue so takes the seat of the latest request of the tenant with most seats, if
//! that tenant keeps at least as many seats as the head's tenant then has. With one tenant nobody gives up a seat.
//!
//! **Background requests** ([`crate::schedule::background`]) are behind all others, so under every policy their seats are taken.
//!
//! **Nobody takes turns.** Equal ranks take no seat, and ranks by urgency do not change while a request runs. The number of a seat does, but
//! each exchange moves a seat from a tenant to one with at least two fewer, so the sum of the squares of the tenants' seats falls: between
//! two admissions to free seats there are finitely many exchanges. The seat goes to the one that it was taken for, in the same
//! pass, the head of the queue by then. A request that came back keeps its seat until it has generated a token, but for one in the background. A seat that is about to be free is
//! waited for.
//!
//! **Steps in flight.** The decodes of a pass are picked before its admissions, so the last running request is mostly in a step. The next
//! steps leave it out ([`crate::schedule::batch::Batch::leaving`]), and the first pass that finds it in no step gives its seat away.
//!
//! **Swapped requests** have run before, and come back before any request is admitted that is not ahead of them. Under other policies nothing
//! is admitted before.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::request::sequence::Sequence;
use crate::schedule::state::State;

/// Returns `true` if waiting requests take seats: under some policies those of any request behind, and under all those of background requests.
pub(crate) fn are_taken(state: &State) -> bool {
    state.waiting.takes_seats() || state.background.is_any()
}

/// Returns `true` if a request may be admitted in this pass, as far as seats and swapped requests are concerned.
pub(crate) fn may_admit(state: &State) -> bool {
    if state.waiting.is_empty() || (state.is_under_memory_pressure() && !are_taken(state)) {
        return false;
    }
    state.has_seat() || state.waiting.first().is_some_and(|head| victim(state, head).is_some())
}

/// Returns `true` if the waiting request in `slot` may be admitted before the swapped requests come back.
pub(crate) fn has_turn(state: &State, slot: usize) -> bool {
    let mut swapped = state.swaps.swapped_slots().chain(state.kv.transfers.swapping_out());
    let is_ahead = |other: usize| is_ahead(state, slot, &state.sequences[other]);
    !are_taken(state) || (!state.kv.preemptions_wait() && swapped.all(is_ahead))
}

/// Returns `true` if the head of the queue is to be admitted before the swapped request in `slot`, the first to come back, does.
pub(crate) fn is_for_head(state: &State, slot: usize) -> bool {
    let State { waiting, sequences, swaps, .. } = state;
    // By rank those after the first are after the head too. Tenants stand in no such order, and one of them would keep the head out.
    let is_behind = |head| {
        let mut swapped = swaps.swapped_slots().filter(|other| *other == slot || waiting.counts_service());
        swapped.all(|other| is_ahead(state, head, &sequences[other]))
    };
    are_taken(state) && waiting.first().is_some_and(is_behind)
}

/// Returns the running request that the waiting one in `slot` takes the seat of, if there is one.
pub(crate) fn victim(state: &State, slot: usize) -> Option<usize> {
    let rank = are_taken(state).then(|| state.waiting.seat_rank_of(slot))?;
    seats(state).max_by_key(|(place, _)| *place).filter(|((last, _), _)| rank < *last).map(|(_, slot)| slot)
}

/// Returns the next waiting requests, with the running ones that they take the seats of, the last ones first.
pub(crate) fn exchanges(state: &State) -> impl Iterator<Item = (usize, usize)> {
    let mut seats: Vec<_> = seats(state).collect();
    seats.sort_unstable_by_key(|(place, _)| Reverse(*place));
    if state.waiting.counts_service() {
        // Each seat that its tenant gives up leaves the one before as its last.
        let mut given: BTreeMap<u64, i128> = BTreeMap::new();
        for ((rank, _), slot) in &mut seats {
            let given = given.entry(state.sequences[*slot].tenant).or_default();
            *rank -= std::mem::replace(given, *given + 1);
        }
        seats.sort_unstable_by_key(|(place, _)| Reverse(*place));
    }
    let claims = state.waiting.seat_claims(seats.len()).into_iter().zip(seats);
    claims.take_while(|((rank, _), ((last, _), _))| rank < last).map(|((_, head), (_, slot))| (head, slot))
}

/// Returns the highest rank of the running requests, if seats are taken.
pub(crate) fn last_rank(state: &State) -> Option<i128> {
    let running = state.batch.running.iter().map(|slot| &state.sequences[*slot]);
    if are_taken(state) { running.map(|seq| rank(state, seq)).max() } else { None }
}

/// Returns the places in the order of the policy, and the slots, of the running requests that may give up their seats.
fn seats(state: &State) -> impl Iterator<Item = ((i128, u64), usize)> {
    let is_freed = state.reported > 0 || state.batch.running.iter().any(|slot| state.sequences[*slot].ending.is_some());
    let running = state.batch.running.iter().copied().filter(move |_| !is_freed);
    let seats = running.map(|slot| (slot, &state.sequences[slot]));
    let is_spared =
        move |slot: usize, seq: &Sequence| state.victims.is_spared(slot, seq.generated()) && !state.background.has(seq);
    let may_leave = seats.filter(move |(slot, seq)| !is_spared(*slot, seq));
    may_leave.map(|(slot, seq)| ((rank(state, seq), state.victims.arrival(slot)), slot))
}

fn is_ahead(state: &State, waiting: usize, seq: &Sequence) -> bool {
    state.waiting.seat_rank_of(waiting) < state.waiting.seat_rank(&seq.view(0))
}

/// Returns the rank of a running request, of several of a tenant the rank of the last: the only one that gives up its seat.
fn rank(state: &State, seq: &Sequence) -> i128 {
    state.waiting.held_rank(&seq.view(0))
}
