//! What several eviction policies are made of: queues, levels, segments, and the memory of evicted blocks.

pub(super) mod ghost;
pub(super) mod greedy_dual;
pub(super) mod levels;
pub mod queue;
pub(super) mod segments;
pub(super) mod two_lists;
