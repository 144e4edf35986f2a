//! Scheduling policies: the order of admission and the choice of preemption victims, one file each, found by name.
//!
//! A policy ranks the waiting and the running requests; [`crate::policy::waiting`] keeps the order. To add one: write `policy/NAME.rs`
//! with a type that implements [`Policy`], and add a line to [`REGISTRY`]. The policy then works in the server, the simulator
//! and every test.
//!
//! | name | first to be admitted | source |
//! |---|---|---|
//! | `fcfs` | the oldest | |
//! | `priority` | the most urgent, with ageing | dynamic priorities (Jackson, 1960) |
//! | `sjf` | the least uncached work, with ageing | Smith, 1956 |
//! | `lpm` | the longest cached prefix, with ageing | SGLang (Zheng et al., NeurIPS 2024) |
//! | `lpm_sorted` | the longest cached prefix, in a queue sorted before each pass | SGLang 0.5 |
//! | `edf` | the one that can wait least to meet its deadline; hopeless ones last | least slack (Mok, 1983) |
//! | `vtc` | the tenant served least | Virtual Token Counter (Sheng et al., OSDI 2024) |
//!
//! **Seats.** Under `priority` and `edf` a request that arrives at a full batch takes the place of the last running request in the order, if
//! that one is behind ([`Policy::takes_seats`], `seats.rs`). Ranks of the others do not say who should run: those of `sjf` and `lpm` are
//! the price of an admission, which a running request has paid, and the order of `vtc` changes with each token served, so that
//! tenants would take turns and compute everything again. Under `vtc` seats are therefore exchanged by the number that tenants hold.
//!
//! **Ageing needs no clock.** If waiting counts in favour of a request linearly, and at the same rate for all requests, the
//! order of two requests never changes while they wait: `a - now + arrival_a < b - now + arrival_b` holds at every `now` or at
//! none. `worth + arrival` is therefore a rank that is computed once. The rank also bounds starvation: a request is overtaken
//! only by requests that arrive within the difference of the two worths.
//!
//! ```
//! use trunkline_core::policy::{REGISTRY, RequestView};
//!
//! let policy = REGISTRY.make("priority:ageing_ms=5000", ()).unwrap();
//! let batch = RequestView { priority: 1, ..RequestView::default() };
//! let urgent = |arrival_ms: u64| RequestView { arrival_ns: arrival_ms * 1_000_000, ..RequestView::default() };
//! // The lower rank is admitted first: one level of priority outweighs 5 s of waiting.
//! assert!(policy.rank(&urgent(4_999)) < policy.rank(&batch));
//! assert!(policy.rank(&urgent(5_001)) > policy.rank(&batch));
//! ```

mod edf;
mod fcfs;
mod lpm;
mod lpm_sorted;
mod priority;
mod sjf;
mod vtc;
pub mod waiting;

use crate::names::registry::{Entry, Registry};
use crate::names::spec::Param;

/// Parameter of the policies that rank by urgency alone, and of the one that orders tenants: the value of [`Policy::takes_seats`].
const TAKES_SEATS: Param = Param {
    key: "take_seats",
    about: "1: in a full batch, a request takes the place of a running one behind it, or of a tenant with more; 0: it waits until one ends, as in vLLM",
    default: 1,
    min: 0,
    max: 1,
};

/// The properties of a request available to a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestView {
    /// Position in the order of arrival; unique.
    pub arrival: u64,
    /// Time of acceptance, nanoseconds.
    pub arrival_ns: u64,
    /// Tenant whose share the request counts against.
    pub tenant: u64,
    /// Priority given by the client; lower is more urgent.
    pub priority: i32,
    /// `true` if the request serves nobody at once. Policies order such requests among themselves, behind all others.
    pub is_background: bool,
    /// Deadline, nanoseconds; `None` for none.
    pub deadline_ns: Option<u64>,
    /// Number of tokens in the prompt.
    pub prompt_tokens: u32,
    /// Upper bound on generated tokens.
    pub max_tokens: u32,
    /// Tokens with KV to allocate at admission: the prompt, and the output generated before a preemption.
    pub tokens: u32,
    /// Number of those tokens found in the cache at the last count. Of a running request: the number found if the request were
    /// preempted and came back at once.
    pub cached_tokens: u32,
    /// Tokens that were to be computed when the request arrived. 0 unless [`Policy::weighs_service`].
    pub uncached_tokens: u32,
    /// Expected time to compute these and to generate the answer, nanoseconds, by what was learned until then; less once the request has run. 0
    /// unless [`Policy::weighs_service`].
    pub service_ns: u64,
}

impl RequestView {
    /// Returns the latest time at which the request may begin to meet its deadline, nanoseconds, if there is one.
    pub fn latest_start_ns(&self) -> Option<u64> {
        self.deadline_ns.map(|deadline_ns| deadline_ns.saturating_sub(self.service_ns))
    }
}

/// Rules of a queue sorted as a whole before each scheduling pass: by cached tokens, most first, equals in the order of the pass before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sorting {
    /// Maximum number of waiting requests that are sorted; a longer queue keeps the order, new requests at the end.
    pub queue_max: u32,
    /// Cached tokens of a request compared with the beginnings of the requests before, at most.
    pub check_tokens: u32,
    /// Tokens shared with a compared request before, from which on a request goes last; 0 for never.
    pub shared_tokens: u32,
}

/// An order of requests.
///
/// An implementation MUST be a pure function of the calls it gets and its own parameters: no clock, no randomness, no
/// iteration in hash order, no interior mutability. Otherwise a recording does not replay.
///
/// Most policies need only [`Self::rank`] and [`Self::preemption_rank`]. The other methods are for policies that share among
/// tenants. The memory that such a policy keeps of tenants MUST be bounded, and each call MUST take constant or logarithmic
/// time.
pub trait Policy: Send + std::fmt::Debug {
    /// Returns the admission rank of a waiting request: the lowest is admitted first, equals in order of arrival.
    ///
    /// The rank MUST NOT depend on anything that changes while the request waits, except [`RequestView::cached_tokens`], and
    /// on that only if [`Self::ranks_by_cache`] is `true`. Called when a request begins to wait, also after a preemption, and
    /// when its cached tokens were counted again.
    fn rank(&self, request: &RequestView) -> i128;

    /// Returns the preemption rank of a running request: when blocks run out, the request of lowest rank is the victim, and
    /// among equals the one that arrived last. Called when a victim is chosen.
    ///
    /// The rank SHOULD be lowest for the request that would be queued last. Otherwise the victim is admitted again at once and
    /// the preemption gained nothing.
    fn preemption_rank(&self, request: &RequestView) -> i128 {
        -self.rank(request)
    }

    /// Returns `false` if [`Self::preemption_rank`] is 0 for every request, which saves the calls. MUST be constant.
    fn has_preemption_ranks(&self) -> bool {
        true
    }

    /// Returns `true` if a waiting request takes the seat of a running one of a higher rank while the batch is full, or, under a policy that
    /// orders tenants, of a tenant with more seats. MUST be constant, and `false` for another policy whose ranks change while a request
    /// runs: two requests would take the seat from each other in turn.
    fn takes_seats(&self) -> bool {
        false
    }

    /// Returns `true` if ranks depend on [`RequestView::cached_tokens`]. MUST be constant.
    fn ranks_by_cache(&self) -> bool {
        false
    }

    /// Returns `true` if ranks depend on [`RequestView::service_ns`] and [`RequestView::uncached_tokens`]. A request that still waits at
    /// [`RequestView::latest_start_ns`] is hopeless, and then ranked behind all others. MUST be constant.
    fn weighs_service(&self) -> bool {
        false
    }

    /// Returns the rules of sorting, for a policy with a queue sorted before each scheduling pass. The rank of such a policy MUST be 0 for
    /// every request: the rank of a request not sorted yet. Not for policies ordering tenants. MUST be constant.
    fn sorting(&self) -> Option<Sorting> {
        None
    }

    /// Returns `true` if the policy orders tenants before requests: the tenant of lowest [`Self::standing`] is served first,
    /// with the request of lowest rank. MUST be constant.
    fn by_tenant(&self) -> bool {
        false
    }

    /// Returns the standing of a tenant: the lowest is served first, equals by rank and arrival of their first requests. While
    /// the tenant has a waiting request, the standing MUST change only in calls that name the tenant.
    fn standing(&self, _tenant: u64) -> u64 {
        0
    }

    /// Takes note of an accepted request of a tenant, before [`Self::queued`].
    fn joined(&mut self, _tenant: u64) {}

    /// Takes note of the end of a tenant's request. The request neither waits nor runs, and no more tokens are reported.
    fn left(&mut self, _tenant: u64) {}

    /// Takes note of the first waiting request of a tenant, those in the background left out.
    fn queued(&mut self, _tenant: u64) {}

    /// Takes note of the removal of a tenant's last waiting request, those in the background left out.
    fn unqueued(&mut self, _tenant: u64) {}

    /// Takes note of tokens run for a tenant: prompt tokens computed and output tokens generated. Cached tokens do not count, nor those of
    /// requests in the background. Called between [`Self::joined`] and [`Self::left`].
    fn served(&mut self, _tenant: u64, _prompt_tokens: u32, _output_tokens: u32) {}
}

/// All policies, made without context.
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
            name: "lpm_sorted",
            about: "most cached tokens first, sorted before each step; SGLang's queue",
            params: &lpm_sorted::PARAMS,
            make: |values, ()| Box::new(lpm_sorted::LpmSorted::new(values)),
        },
        Entry {
            name: "edf",
            about: "least slack to the deadline first, hopeless ones last",
            params: &edf::PARAMS,
            make: |values, ()| Box::new(edf::Edf::new(values)),
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
    use crate::policy::waiting::Waiting;

    /// Makes the policy of a spec.
    pub(crate) fn make(spec: &str) -> Box<dyn Policy> {
        REGISTRY.make(spec, ()).unwrap()
    }

    /// Returns the indices of `views` in order of admission.
    pub(super) fn order(spec: &str, views: &[RequestView]) -> Vec<usize> {
        let mut waiting = Waiting::new(make(spec));
        for (slot, view) in views.iter().enumerate() {
            waiting.joined(view.tenant);
            waiting.push(slot, &RequestView { arrival: slot as u64, ..*view });
        }
        std::iter::from_fn(|| waiting.first().inspect(|slot| assert!(waiting.remove(*slot)))).collect()
    }

    #[test]
    fn ranks_of_extreme_requests_and_parameters_do_not_overflow() {
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
            assert!(policy.preemption_rank(&least) >= policy.preemption_rank(&most), "{}", entry.name);
        }
    }
}
