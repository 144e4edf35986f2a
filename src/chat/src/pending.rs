//! The compaction under way: the plan, and the new layout once there is one.

use crate::layout::Layout;
use crate::phase::Phase;

/// Compaction under way, or none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    pub(crate) phase: Phase,
    /// Number of the latest plan.
    pub(crate) number: u64,
    /// First recent turn of the plan.
    pub(crate) first_recent: u64,
    /// New layout, once the summary is there.
    pub(crate) layout: Option<Layout>,
}
