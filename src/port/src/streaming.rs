//! Weights read from a disk while a model computes: which groups of weights stay in memory, the states of the others, and the times of a step.
//!
//! The matrices of a layer are two groups, attention and feed-forward. Every step visits all groups in order, and the next step begins again with the
//! first: a circle. A cache that keeps what was used last would evict each group just before its use, so groups are *pinned* for good, as many as the memory
//! allows, and the others pass through a *window* of slots ([`plan()`]). A reader fills the slots in the order of use ([`states`]).
//!
//! The embedded worker and the simulator place weights with the same [`plan()`]; [`times`] has the recurrence of such a step, which the simulator computes and the worker is compared with.
//! [`crate::WeightReads`] defines the figures that both report.
//!
//! **Boundary:** no I/O, clock or thread.

pub mod plan;
pub mod states;
pub mod times;

pub use self::plan::{Budget, BudgetError, Pinned, Placement, plan};
pub use self::states::{GROUP_TRANSITIONS, GroupEvent, GroupState, Groups};
pub use self::times::{Visit, parts, pass};
