//! Placement of groups: pinned in memory, or streamed through a window.

/// Memory for weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Memory for all weights: the ones always in memory, pinned groups and windows, bytes.
    pub bytes: u64,
    /// Weights that are always in memory: embedding, output matrix, norms and biases, bytes.
    pub fixed_bytes: u64,
    /// Windows that share the pinned groups: one for each worker.
    pub windows: u64,
    /// Maximum number of groups read ahead of the one in use. MUST be at least 1.
    pub ahead: u32,
}

/// Placement of the groups of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Pinned groups, by their number.
    pub pinned: Pinned,
    /// Slots of a window; 0 if every group is pinned.
    pub slots: u32,
    /// Bytes of a slot: those of the largest streamed group.
    pub slot_bytes: u64,
    /// Weights in memory at any time, bytes.
    pub memory_bytes: u64,
}

/// One bit for each group: `true` if the group is pinned.
pub type Pinned = Vec<bool>;

/// Budget below the least that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "weights may take {} MiB of memory, but embedding and output matrix, which stay in memory, take {} MiB, and the window {} MiB; give \
     memory_mib={} or more",
    mib(*.bytes), mib(*.fixed_bytes), mib(*.window_bytes), mib(*.least_bytes)
)]
pub struct BudgetError {
    /// Memory asked for, bytes.
    pub bytes: u64,
    /// Weights that are always in memory, bytes.
    pub fixed_bytes: u64,
    /// Least windows, bytes.
    pub window_bytes: u64,
    /// Least memory that works, bytes.
    pub least_bytes: u64,
}

/// Returns whole MiB, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Slots of the least window: one in use, one being read.
const SLOTS_MIN: usize = 2;

/// Places groups of `bytes` each, in the order of a step: pins as many bytes as the budget allows in addition to the windows, spread evenly among the streamed groups.
///
/// The window has a slot for the group in use and `ahead` more, or fewer if the budget is small, but never more slots than there are streamed groups.
///
/// # Errors
/// [`BudgetError`] if not even windows of two slots fit.
pub fn plan(bytes: &[u64], budget: Budget) -> Result<Placement, BudgetError> {
    let all: u64 = bytes.iter().sum();
    let free = budget.bytes.saturating_sub(budget.fixed_bytes);
    if budget.fixed_bytes <= budget.bytes && all <= free {
        let memory_bytes = budget.fixed_bytes + all;
        return Ok(Placement { pinned: vec![true; bytes.len()], slots: 0, slot_bytes: 0, memory_bytes });
    }
    let slot_bytes = bytes.iter().copied().max().unwrap_or(0);
    let window_bytes = |slots: usize| slot_bytes * slots as u64 * budget.windows.max(1);
    let most = (budget.ahead.max(1) as usize + 1).max(SLOTS_MIN);
    let slots = (SLOTS_MIN..=most).rev().find(|slots| window_bytes(*slots) <= free);
    let slots = slots.filter(|_| budget.fixed_bytes <= budget.bytes).ok_or_else(|| {
        // One group can be no more than pinned.
        let window_bytes = window_bytes(SLOTS_MIN).min(all);
        let least_bytes = budget.fixed_bytes + window_bytes;
        BudgetError { bytes: budget.bytes, fixed_bytes: budget.fixed_bytes, window_bytes, least_bytes }
    })?;
    let pinned = spread(bytes, free - window_bytes(slots));
    let streamed = || bytes.iter().zip(&pinned).filter(|(_, pinned)| !**pinned).map(|(bytes, _)| *bytes);
    let slots = slots.min(streamed().count());
    let slot_bytes = streamed().max().unwrap_or(0);
    let pinned_bytes = all - streamed().sum::<u64>();
    let memory_bytes = budget.fixed_bytes + pinned_bytes + slot_bytes * slots as u64 * budget.windows.max(1);
    Ok(Placement { pinned, slots: slots as u32, slot_bytes, memory_bytes })
}

/// Picks groups of `budget` bytes together at most, spread evenly by bytes; then any others that fit, first ones first.
fn spread(bytes: &[u64], budget: u64) -> Pinned {
    let all: u128 = bytes.iter().map(|bytes| u128::from(*bytes)).sum();
    let (mut due, mut left) = (0u128, budget);
    let mut pinned = vec![false; bytes.len()];
    for (pinned, bytes) in pinned.iter_mut().zip(bytes) {
        due += u128::from(*bytes) * u128::from(budget);
        if due >= u128::from(*bytes) * all && *bytes <= left {
            due -= u128::from(*bytes) * all;
            left -= bytes;
            *pinned = true;
        }
    }
    // What rounding left over: the streamed group farthest behind a pinned one comes first.
    while let Some(at) = farthest(&pinned, bytes, left) {
        pinned[at] = true;
        left -= bytes[at];
    }
    pinned
}

/// Returns the streamed group of `left` bytes at most with the most streamed groups right before it in the circle.
fn farthest(pinned: &[bool], bytes: &[u64], left: u64) -> Option<usize> {
    let n = pinned.len();
    let run = |at: usize| (1..n).take_while(|back| !pinned[(at + n - back) % n]).count();
    let fits = (0..n).filter(|at| !pinned[*at] && bytes[*at] <= left);
    fits.max_by_key(|at| (run(*at), std::cmp::Reverse(*at)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn budget(bytes: u64, fixed_bytes: u64) -> Budget {
        Budget { bytes, fixed_bytes, windows: 1, ahead: 2 }
    }

    #[test]
    fn pinned_groups_lie_evenly_between_streamed_ones() {
        let placed = plan(&[10; 12], budget(1000 + 30 + 60, 1000)).unwrap();
        assert_eq!((placed.slots, placed.slot_bytes, placed.memory_bytes), (3, 10, 1090));
        let text: String = placed.pinned.iter().map(|pinned| if *pinned { 'P' } else { '.' }).collect();
        assert_eq!(text, ".P.P.P.P.P.P");
        // Attention and feed-forward.
        let placed = plan(&[1, 3].repeat(6), budget(9 + 12, 0)).unwrap();
        assert_eq!(placed.pinned, [false, false, true, true].repeat(3));
    }

    #[test]
    fn all_groups_are_pinned_if_all_fit_and_the_window_shrinks_before_the_budget_fails() {
        assert_eq!(plan(&[10; 3], budget(35, 5)).unwrap().slots, 0);
        let least = plan(&[10; 4], budget(25, 5)).unwrap();
        assert_eq!((least.slots, least.pinned), (2, vec![false; 4]));
        let error = plan(&[10 << 20; 4], budget(24 << 20, 5 << 20)).unwrap_err();
        let line = "weights may take 24 MiB of memory, but embedding and output matrix, which stay in memory, take 5 MiB, and the window 20 MiB; give memory_mib=25 or more";
        assert_eq!((error.to_string().as_str(), error.least_bytes), (line, 25 << 20));
        assert_eq!(plan(&[10; 1], budget(3, 5)).unwrap_err().least_bytes, 15, "a single group is pinned");
        let two = Budget { windows: 2, ..budget(45, 5) };
        assert_eq!(plan(&[10; 6], two).unwrap().memory_bytes, 45);
        assert_eq!(plan(&[10; 6], Budget { bytes: 44, ..two }).unwrap_err().least_bytes, 45);
    }

    proptest! {
        #[test]
        fn a_placement_keeps_to_its_budget_and_leaves_no_room_for_another_group(
            bytes in prop::collection::vec(1u64..50, 1..40), fixed_bytes in 0u64..50, ahead in 1u32..5, windows in 1u64..3, total in 0u64..2000,
        ) {
            let budget = Budget { bytes: total, fixed_bytes, windows, ahead };
            match plan(&bytes, budget) {
                Ok(placed) => {
                    prop_assert!(placed.memory_bytes <= total);
                    let streamed: Vec<u64> = bytes.iter().zip(&placed.pinned).filter(|(_, p)| !**p).map(|(b, _)| *b).collect();
                    prop_assert!(placed.slots as usize <= streamed.len());
                    prop_assert!(streamed.is_empty() || placed.slots >= 1);
                    prop_assert!(streamed.iter().all(|bytes| *bytes <= placed.slot_bytes));
                    prop_assert_eq!(streamed.is_empty(), placed.slots == 0);
                }
                Err(error) => {
                    prop_assert!(error.least_bytes > total);
                    let with = |total| plan(&bytes, Budget { bytes: total, ..budget }).is_ok();
                    prop_assert!(with(error.least_bytes) && !with(error.least_bytes - 1));
                }
            }
        }
    }
}
