//! Policies: what the scheduler leaves open, one file each, found by name.
//!
//! A policy says whose turn it is among the waiting and whose blocks are taken among the running. To add one: write
//! `policy/NAME.rs` with a type that implements [`Policy`], and add a line to [`REGISTRY`]. It then works in the
//! server, the simulator and every test. [`crate::waiting`] keeps the order; a policy only ranks.
//!
//! | name | first | source |
//! |---|---|---|
//! | `fcfs` | the oldest | |
//! | `priority` | the most urgent, with ageing | dynamic priorities (Jackson, 1960) |
//! | `sjf` | the least uncached work, with ageing | Smith, 1956 |
//! | `lpm` | the longest cached prefix, with ageing | SGLang (Zheng et al., NeurIPS 2024) |
//! | `edf` | the earliest deadline | Liu and Layland, 1973 |
//! | `vtc` | the tenant that was served least | Virtual Token Counter (Sheng et al., OSDI 2024) |
//!
//! **Ageing is a place, not a process.** Where waiting counts in favour linearly, and at the same rate for all, the
//! order of two requests never changes while they wait: `a - now + arrival_a < b - now + arrival_b` holds at every
//! `now` or at none. So `worth + arrival` is a rank that is computed once, no clock is read, and the bound on
//! starvation can be read off it: a request is overtaken only by those that arrive within the difference of their
//! worths.

mod edf;
mod fcfs;
mod lpm;
mod priority;
mod sjf;
mod vtc;

use crate::registry::{Entry, Registry};

/// What a policy may look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestView {
    /// Place in the order of arrival; unique.
    pub arrival: u64,
    /// When the request was accepted, nanoseconds.
    pub arrival_ns: u64,
    /// Whom it is counted for.
    pub tenant: u64,
    /// Lower is more urgent, as the client sees it.
    pub priority: i32,
    /// When it must end, nanoseconds.
    pub deadline_ns: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens it may generate.
    pub max_tokens: u32,
    /// Tokens that need KV when it is admitted: the prompt, and what was generated before a preemption.
    pub tokens: u32,
    /// How many of these are in the cache, as far as is known. Of a running request: how many would be found if it came
    /// back at once.
    pub cached_tokens: u32,
}

/// An order of requests.
///
/// An implementation MUST be a pure function of the calls it gets and its own parameters: no clock, no randomness, no
/// iteration in hash order, no interior mutability. Otherwise a recording does not replay.
///
/// [`Self::rank`] and [`Self::keep`] are all that most policies need. Those below them are for policies that share
/// among tenants: what such a policy remembers of tenants MUST be bounded, and each call MUST take constant or
/// logarithmic time.
pub trait Policy: Send + std::fmt::Debug {
    /// Where a request stands among the waiting: lower goes first, equals go by arrival.
    ///
    /// It MUST NOT depend on anything that changes while the request waits, except on [`RequestView::cached_tokens`],
    /// and on that only if [`Self::ranks_by_cache`]. Asked when a request joins the waiting, anew after a preemption,
    /// and when its cached tokens were counted again.
    fn rank(&self, request: &RequestView) -> i128;

    /// How dear a running request is: when blocks run out, the least dear is preempted, and among equals the one that
    /// arrived last. Asked when a victim is chosen.
    ///
    /// It SHOULD be the least for whoever would stand last among the waiting: a victim that stood first would be
    /// admitted again at once, and its blocks would have been taken for nothing.
    fn keep(&self, request: &RequestView) -> i128 {
        -self.rank(request)
    }

    /// Whether ranks depend on [`RequestView::cached_tokens`]. MUST always answer the same.
    fn ranks_by_cache(&self) -> bool {
        false
    }

    /// Whether tenants take turns: then the tenant with the least [`Self::standing`] goes first, with its request of
    /// the least rank. MUST always answer the same.
    fn by_tenant(&self) -> bool {
        false
    }

    /// Where a tenant stands: lower goes first, equals by the rank and arrival of their first requests. While the
    /// tenant has a request waiting it MUST change only in a call that names it.
    fn standing(&self, _tenant: u64) -> u64 {
        0
    }

    /// A request of a tenant was accepted. It is to be queued next.
    fn joined(&mut self, _tenant: u64) {}

    /// A request of a tenant has ended. It is neither waiting nor running, and the tenant is not served for it any
    /// more.
    fn left(&mut self, _tenant: u64) {}

    /// A tenant that had no request waiting has one now.
    fn queued(&mut self, _tenant: u64) {}

    /// A tenant has no request waiting any more.
    fn unqueued(&mut self, _tenant: u64) {}

    /// Tokens were run for a tenant: so many of prompts, and so many generated. Cached tokens are not run. Comes
    /// between [`Self::joined`] and [`Self::left`].
    fn served(&mut self, _tenant: u64, _prompt_tokens: u32, _output_tokens: u32) {}
}

/// All policies.
pub static REGISTRY: Registry<Box<dyn Policy>> = Registry::new(
    "policy",
    &[
        Entry { name: "fcfs", about: "first come, first served", params: &[], make: |_, ()| Box::new(fcfs::Fcfs) },
        Entry {
            name: "priority",
            about: "lower priority value first; waiting makes up for priority",
            params: &priority::PARAMS,
            make: |values, ()| Box::new(priority::Priority::new(values)),
        },
        Entry {
            name: "sjf",
            about: "fewest uncached tokens first; waiting makes up for tokens",
            params: &sjf::PARAMS,
            make: |values, ()| Box::new(sjf::Sjf::new(values)),
        },
        Entry {
            name: "lpm",
            about: "most cached tokens first; waiting makes up for tokens",
            params: &lpm::PARAMS,
            make: |values, ()| Box::new(lpm::Lpm::new(values)),
        },
        Entry {
            name: "edf",
            about: "earliest deadline first, then those without one",
            params: &[],
            make: |_, ()| Box::new(edf::Edf),
        },
        Entry {
            name: "vtc",
            about: "fair among tenants: the one served least goes first",
            params: &vtc::PARAMS,
            make: |values, ()| Box::new(vtc::Vtc::new(values)),
        },
    ],
);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::waiting::Waiting;

    /// The policy of a spec.
    pub(crate) fn make(spec: &str) -> Box<dyn Policy> {
        REGISTRY.make(spec, ()).unwrap()
    }

    /// The indices of `views` in the order in which they are admitted.
    pub(super) fn order(spec: &str, views: &[RequestView]) -> Vec<usize> {
        let mut waiting = Waiting::new(make(spec));
        for (slot, view) in views.iter().enumerate() {
            waiting.joined(view.tenant);
            waiting.push(slot, &RequestView { arrival: slot as u64, ..*view });
        }
        std::iter::from_fn(|| waiting.first().inspect(|slot| assert!(waiting.remove(*slot)))).collect()
    }

    #[test]
    fn a_rank_fits_whatever_the_request_and_the_parameters() {
        let most = RequestView {
            arrival_ns: u64::MAX,
            priority: i32::MAX,
            deadline_ns: Some(u64::MAX),
            tokens: u32::MAX,
            ..RequestView::default()
        };
        let least = RequestView { arrival_ns: 0, priority: i32::MIN, tokens: 0, cached_tokens: u32::MAX, ..most };
        for entry in REGISTRY.entries() {
            let values: Vec<_> = entry.params.iter().map(|param| param.max).collect();
            let policy = (entry.make)(&values, ());
            assert!(policy.rank(&least) <= policy.rank(&most), "{}", entry.name);
            assert!(policy.keep(&least) >= policy.keep(&most), "{}", entry.name);
        }
    }
}
