//! The waiting queue sorted as a whole before a scheduling pass, for policies with [`crate::policy::Sorting`].
//!
//! A sorted request has a negative rank, the place in the queue; a new one has the rank 0 of the policy and stands behind, in order of
//! arrival. A sort takes O(n log n) for n waiting requests, at most [`crate::policy::Sorting::queue_max`].

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{Entry, Order, Place, Waiting};
use crate::blocks::hash::BlockHash;

/// Facts of a waiting request for a sort, as counted by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// Leading tokens in the cache.
    pub cached_tokens: u32,
    /// Hash of the block with the last of the first [`crate::policy::Sorting::shared_tokens`] tokens; `None` if the prompt has no such
    /// full block.
    pub hash: Option<BlockHash>,
}

impl Waiting {
    /// Returns `true` if the policy has the queue sorted before each scheduling pass.
    pub fn is_sorted(&self) -> bool {
        self.sorting.is_some()
    }

    /// Sorts the queue, parked requests included, if the policy has the queue sorted and no more requests wait than the policy's limit.
    /// `count` counts by slot, for a number of shared tokens. Returns `true` if the queue was sorted.
    pub fn sort(&mut self, count: &mut dyn FnMut(usize, u32) -> Beginning) -> bool {
        let Some(sorting) = self.sorting.filter(|sorting| self.len <= sorting.queue_max as usize) else { return false };
        let Order::Plain(order) = &self.order else { unreachable!("a policy of tenants has no sorted queue") };
        let parked = self.parked.iter().filter(|(_, slot)| !self.entry(*slot).view.is_background);
        let parked = parked.map(|(_, slot)| self.entry(*slot).place(*slot));
        let mut queue: Vec<Place> = order.iter().copied().chain(parked).collect();
        queue.sort_unstable();
        let mut begun = BTreeSet::new();
        let mut key = |slot: usize| {
            let Beginning { cached_tokens, hash } = count(slot, sorting.shared_tokens);
            let is_checked = sorting.shared_tokens > 0 && cached_tokens <= sorting.check_tokens;
            let goes_last = is_checked && hash.is_some_and(|hash| !begun.insert(hash));
            // The last token runs in any case.
            let found = cached_tokens.min(self.entry(slot).view.tokens.saturating_sub(1));
            (goes_last, Reverse(if goes_last { 0 } else { found }))
        };
        let mut sorted: Vec<_> = queue.iter().map(|(.., slot)| (key(*slot), *slot)).collect();
        sorted.sort_by_key(|(key, _)| *key);
        let n = sorted.len() as i128;
        for (rank, (_, slot)) in (-n..0).zip(&sorted) {
            self.entries[*slot].as_mut().expect("only waiting requests are sorted").rank = rank;
        }
        let slots = sorted.iter().map(|(_, slot)| *slot);
        let shown = slots.filter(|slot| self.entry(*slot).parked.is_none());
        self.order = Order::Plain(shown.map(|slot| self.entry(slot).place(slot)).collect());
        true
    }

    fn entry(&self, slot: usize) -> &Entry {
        self.entries[slot].as_ref().expect("only waiting requests are sorted")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::RequestView;
    use crate::policy::tests::make;

    const PARKED_FOR: BlockHash = BlockHash(99);

    fn push(waiting: &mut Waiting, slot: usize, arrival: u64) {
        waiting.joined(0);
        waiting.push(slot, &RequestView { arrival, tokens: 1_000, ..RequestView::default() });
    }

    fn waiting(spec: &str, n: usize) -> Waiting {
        let mut waiting = Waiting::new(make(spec));
        (0..n).for_each(|slot| push(&mut waiting, slot, slot as u64));
        waiting
    }

    fn cached(cached_tokens: u32) -> Beginning {
        Beginning { cached_tokens, hash: None }
    }

    /// Returns the slots of all requests that are not parked, in order.
    fn order(waiting: &Waiting) -> Vec<usize> {
        let Order::Plain(order) = &waiting.order else { unreachable!() };
        order.iter().map(|(.., slot)| *slot).collect()
    }

    #[test]
    fn the_longest_prefix_goes_first_and_equals_keep_the_order_of_the_sort_before() {
        let mut waiting = waiting("lpm_sorted", 4);
        waiting.sort(&mut |slot, _| cached([0, 7, 0, 9][slot]));
        assert_eq!(order(&waiting), [3, 1, 0, 2]);
        push(&mut waiting, 4, 4);
        assert_eq!(order(&waiting), [3, 1, 0, 2, 4], "a new request is last until the next sort");
        waiting.sort(&mut |slot, _| cached([5, 0, 0, 0, 5][slot]));
        assert_eq!(order(&waiting), [0, 4, 3, 1, 2], "and not in the order of arrival");
        waiting.sort(&mut |slot, _| cached([999, 1_000, 0, 0, 0][slot]));
        assert_eq!(order(&waiting), [0, 1, 4, 3, 2], "a prompt that is cached whole runs its last token");
        assert_eq!(waiting.next(7, &mut |_| unreachable!("the sort has counted")), Some(0));
    }

    #[test]
    fn a_longer_queue_stays_as_it_is() {
        let mut waiting = waiting("lpm_sorted:queue_max=3", 3);
        waiting.sort(&mut |slot, _| cached([0, 1, 2][slot]));
        push(&mut waiting, 3, 3);
        waiting.sort(&mut |_, _| unreachable!("four wait"));
        assert_eq!(order(&waiting), [2, 1, 0, 3]);
        assert!(waiting.remove(1));
        waiting.sort(&mut |slot, _| cached([0, 0, 0, 9][slot]));
        assert_eq!(order(&waiting), [3, 2, 0]);
    }

    #[test]
    fn a_request_goes_last_if_one_before_it_has_the_beginning_of_its_prompt() {
        let mut waiting = waiting("lpm_sorted", 7);
        // (cached tokens, beginning): 1 and 4 begin as 0 does, 5 has more than 32 tokens in the cache.
        let facts = [(0, Some(1)), (32, Some(1)), (3, Some(2)), (0, None), (0, Some(1)), (33, Some(1)), (0, None)];
        waiting.sort(&mut |slot, shared_tokens| {
            assert_eq!(shared_tokens, 32);
            let (cached_tokens, hash) = facts[slot];
            Beginning { cached_tokens, hash: hash.map(BlockHash) }
        });
        assert_eq!(order(&waiting), [5, 2, 0, 3, 6, 1, 4]);
        let mut waiting = self::waiting("lpm_sorted:check_tokens=0", 2);
        waiting.sort(&mut |slot, _| Beginning { cached_tokens: slot as u32, hash: Some(PARKED_FOR) });
        assert_eq!(order(&waiting), [1, 0], "a cached token is more than none");
        let mut waiting = self::waiting("lpm_sorted:shared_tokens=0", 3);
        waiting.sort(&mut |slot, _| Beginning { cached_tokens: slot as u32, hash: Some(PARKED_FOR) });
        assert_eq!(order(&waiting), [2, 1, 0], "none goes last");
    }

    #[test]
    fn a_parked_request_is_sorted_with_the_others() {
        let mut waiting = waiting("lpm_sorted", 4);
        waiting.park(2, PARKED_FOR);
        waiting.sort(&mut |slot, _| cached([0, 4, 3, 2][slot]));
        assert_eq!(order(&waiting), [1, 3, 0]);
        waiting.wake(PARKED_FOR);
        assert_eq!(order(&waiting), [1, 2, 3, 0]);
    }

    proptest! {
        /// SGLang's queue is a list: requests are appended, removed, and sorted in place by a stable sort.
        #[test]
        fn the_queue_is_a_list_sorted_in_place(
            ops in prop::collection::vec((0u8..6, 0usize..64, prop::collection::vec((0u32..60, 0u128..4), 8)), 0..60)
        ) {
            let mut waiting = Waiting::new(make("lpm_sorted:queue_max=6"));
            let mut list: Vec<usize> = Vec::new();
            for (arrival, (op, pick, facts)) in ops.into_iter().enumerate() {
                match op {
                    0..=2 => {
                        let Some(slot) = (0..8).find(|slot| !list.contains(slot)) else { continue };
                        push(&mut waiting, slot, arrival as u64);
                        list.push(slot);
                    }
                    3 if !list.is_empty() => {
                        let slot = list.remove(pick % list.len());
                        prop_assert!(waiting.remove(slot));
                    }
                    _ => {
                        let begins = |slot: usize| (facts[slot].0, facts[slot].1);
                        waiting.sort(&mut |slot, _| {
                            Beginning { cached_tokens: begins(slot).0, hash: Some(BlockHash(begins(slot).1)) }
                        });
                        if list.len() <= 6 {
                            let mut tree: Vec<u128> = Vec::new();
                            let mut last = Vec::new();
                            for slot in &list {
                                let (tokens, beginning) = begins(*slot);
                                match (tokens <= 32, tree.contains(&beginning)) {
                                    (true, true) => last.push(*slot),
                                    (true, false) => tree.push(beginning),
                                    (false, _) => {}
                                }
                            }
                            let key = |slot: &usize| {
                                if last.contains(slot) { i64::MAX } else { -i64::from(begins(*slot).0) }
                            };
                            list.sort_by_key(key);
                        }
                    }
                }
                prop_assert_eq!(order(&waiting), list.clone());
                prop_assert_eq!(waiting.first(), list.first().copied());
            }
        }
    }
}
