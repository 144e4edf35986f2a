//! What runs in the next step: a pass of the scheduler, and what it calls.
//!
//! [`scheduler`] is the pass, [`state`] what it reads and changes. Requests enter by [`admission`], wait for tiers in [`loading`], make way
//! by [`preemption`] and [`swap`], and lose blocks of their own to H2O in [`dropping`]. What other
//! engines do otherwise is in [`imitate`].

pub(crate) mod admission;
pub(crate) mod answers;
pub(crate) mod background;
pub(crate) mod background_queue;
pub(crate) mod batch;
pub(crate) mod drafts;
pub(crate) mod dropping;
pub(crate) mod imitate;
pub(crate) mod loading;
pub(crate) mod planners;
pub(crate) mod preemption;
pub(crate) mod prefetch_queue;
pub(crate) mod prefetches;
pub(crate) mod prefill_budget;
pub(crate) mod readers;
pub(crate) mod rehit;
pub(crate) mod rereads;
pub(crate) mod scheduler;
pub(crate) mod seats;
pub(crate) mod shared_work;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod suspects;
pub(crate) mod swap;
pub(crate) mod swap_queue;
pub(crate) mod tails;
pub(crate) mod transfer_end;
pub(crate) mod victims;
