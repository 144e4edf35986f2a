//! One engine of a cluster: the core, the role, and the state of the worker.
//!
//! | state | worker | new requests | present requests |
//! |---|---|---|---|
//! | absent | not joined yet, or lost and expected back | only while no engine is up | wait for the worker |
//! | up | runs steps | yes | run |
//! | draining | runs steps | no | running ones end, waiting ones move |
//! | closed | none | no | move |
//! | gone | will not come back | no | move |
//!
//! [`TRANSITIONS`] is the same table in code. A worker joining a gone engine brings the engine up again. An engine that the operator
//! drained takes no requests until the operator opens it, whatever becomes of its worker meanwhile. Whether an engine that is up finishes its steps is
//! its [health](crate::health).

use std::fmt;

use serde::{Deserialize, Serialize};
use trunkline_core::{Config, Core, Stats};

use crate::health::{Breaker, Health};
use crate::router::Load;

/// Number of an engine in the cluster, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EngineId(pub u32);

impl EngineId {
    /// Returns the engine's index in tables by engine.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "engine {}", self.0)
    }
}

/// Phases of a request served by an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Prefill and decode, without a hand-over.
    #[default]
    Both,
    /// Prefill and the first token; then the request is handed over (see [`crate::handover`]).
    Prefill,
    /// Decode of requests handed over by a prefill engine.
    Decode,
}

/// Settings of one engine: the limits of the core, and the role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// Limits of the core.
    pub core: Config,
    /// Phases served by the engine.
    #[serde(default)]
    pub role: Role,
    /// Class of the engine by the type of its KV: it serves requests of the class ([`trunkline_core::Request::kv_class`]) and no others.
    #[serde(default, skip_serializing_if = "is_first")]
    pub kv_class: u8,
}

fn is_first(class: &u8) -> bool {
    *class == 0
}

/// State of an engine's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// No worker: not joined yet, or lost and expected back.
    Absent,
    /// A worker runs steps.
    Up,
    /// A worker runs steps for the present requests; the engine takes no new requests.
    Draining,
    /// No worker, and the operator took the engine out of service: a worker that joins finds the engine draining.
    Closed,
    /// No worker, and none is expected.
    Gone,
}

/// Events with an effect on the state of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A worker joined with empty KV blocks.
    Joined,
    /// The worker is lost with all KV, or the KV of the worker is not trusted.
    Lost,
    /// The worker is gone for good.
    Retired,
    /// The operator takes the engine out of service.
    Drained,
    /// The operator takes the engine back into service.
    Opened,
}

/// All changes of state. An event without a row for a state leaves the state as it is.
pub const TRANSITIONS: [(EngineEvent, EngineState, EngineState); 14] = {
    use EngineEvent::{Drained, Joined, Lost, Opened, Retired};
    use EngineState::{Absent, Closed, Draining, Gone, Up};
    [
        (Joined, Absent, Up),
        (Joined, Closed, Draining),
        (Joined, Gone, Up),
        (Lost, Up, Absent),
        (Lost, Draining, Closed),
        (Retired, Absent, Gone),
        (Retired, Up, Gone),
        (Retired, Draining, Closed),
        (Drained, Up, Draining),
        (Drained, Absent, Closed),
        (Drained, Gone, Closed),
        (Opened, Draining, Up),
        (Opened, Closed, Absent),
        (Opened, Gone, Absent),
    ]
};

impl EngineState {
    /// Returns the state after an event.
    #[must_use]
    pub fn after(self, event: EngineEvent) -> Self {
        let row = TRANSITIONS.iter().find(|(on, from, _)| (*on, *from) == (event, self));
        row.map_or(self, |(_, _, to)| *to)
    }
}

/// One engine at a moment, for operators and reports.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EngineStatus {
    /// Phases served by the engine.
    pub role: Role,
    /// Class of the engine by the type of its KV.
    pub kv_class: u8,
    /// State of the engine's worker.
    pub state: EngineState,
    /// Trust in the engine's worker.
    pub health: Health,
    /// Load as seen by routers.
    #[serde(skip)]
    pub load: Load,
    /// Gauges and counters of the engine's core.
    pub stats: Stats,
    /// Digest of the decisions of the engine's core.
    pub digest: u64,
}

/// One engine: core, role and state as kept by the cluster.
pub(crate) struct Engine {
    /// Apart, so that a look at all engines for a request touches little memory.
    pub core: Box<Core>,
    pub role: Role,
    pub kv_class: u8,
    pub state: EngineState,
    pub breaker: Breaker,
    /// Time of the last step that ended, nanoseconds; 0 before the first.
    pub step_ns: u64,
    /// `true` if the core has reported an empty engine after a drain or shutdown.
    pub drained: bool,
}

impl Engine {
    pub fn new(core: Core, role: Role, kv_class: u8) -> Self {
        Self {
            core: Box::new(core),
            role,
            kv_class,
            state: EngineState::Absent,
            breaker: Breaker::default(),
            step_ns: 0,
            drained: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EngineEvent::{Drained, Joined, Lost, Opened, Retired};
    use EngineState::{Absent, Closed, Draining, Gone, Up};

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let mut table = String::new();
        for from in [Absent, Up, Draining, Closed, Gone] {
            let row =
                [Joined, Lost, Retired, Drained, Opened].map(|event| format!("{event:?}>{:?}", from.after(event)));
            table.push_str(&format!("{from:?}: {}\n", row.join(" ")));
        }
        let reviewed = "\
Absent: Joined>Up Lost>Absent Retired>Gone Drained>Closed Opened>Absent
Up: Joined>Up Lost>Absent Retired>Gone Drained>Draining Opened>Up
Draining: Joined>Draining Lost>Closed Retired>Closed Drained>Draining Opened>Up
Closed: Joined>Draining Lost>Closed Retired>Closed Drained>Closed Opened>Absent
Gone: Joined>Up Lost>Gone Retired>Gone Drained>Closed Opened>Absent
";
        assert_eq!(table, reviewed);
    }
}
