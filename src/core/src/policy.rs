//! Policies: what the scheduler leaves open, one file each, found by name.
//!
//! To add one: write `policy/NAME.rs` with a type that implements [`Policy`], and add a line to [`REGISTRY`]. It then
//! works in the server, the simulator and every test.

mod edf;
mod fcfs;
mod priority;

/// What a policy may look at.
#[derive(Clone, Copy, Debug)]
pub struct RequestView {
    /// Lower is more urgent, as the client sees it.
    pub priority: i32,
    /// When the request was accepted, nanoseconds.
    pub arrival_ns: u64,
    /// When it must end, nanoseconds.
    pub deadline_ns: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens it may generate.
    pub max_tokens: u32,
}

/// An order of requests.
///
/// An implementation MUST be a pure function of its arguments and its own parameters: no clock, no randomness, no
/// interior mutability. Otherwise a recording does not replay.
pub trait Policy: Send {
    /// Where a request stands among the waiting: lower goes first, equals go by arrival. A preempted request keeps its
    /// place. Called once per request, when it is accepted.
    fn rank(&self, request: &RequestView) -> i64;

    /// How dear a running request is: when blocks run out, the least dear is preempted, and among equals the one that
    /// arrived last. Called once per request, when it is accepted.
    fn keep(&self, request: &RequestView) -> i64 {
        -self.rank(request)
    }
}

/// A policy's name, one line about it, and how to make one.
type Entry = (&'static str, &'static str, fn() -> Box<dyn Policy>);

/// All policies.
pub const REGISTRY: [Entry; 3] = [
    ("fcfs", "first come, first served", || Box::new(fcfs::Fcfs)),
    ("priority", "lower priority value first, then first come, first served", || Box::new(priority::Priority)),
    ("edf", "earliest deadline first, then those without one", || Box::new(edf::Edf)),
];

/// The names of all policies.
pub fn names() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|(name, ..)| *name)
}

/// The policy called `name`, if there is one.
pub fn by_name(name: &str) -> Option<Box<dyn Policy>> {
    REGISTRY.iter().find(|(known, ..)| *known == name).map(|(_, _, make)| make())
}
