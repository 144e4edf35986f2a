//! One engine of a cluster: its core, its role, and the state of its worker.
//!
//! | state | worker | new requests | requests that are there |
//! |---|---|---|---|
//! | absent | not joined yet, or lost and expected back | only while no engine is up | wait for the worker |
//! | up | runs steps | yes | run |
//! | draining | runs steps | no | running ones end, waiting ones move |
//! | gone | will not come back | no | move |
//!
//! [`TRANSITIONS`] is the same table in code. A worker that joins a gone engine brings it up again.

use std::fmt;

use serde::{Deserialize, Serialize};
use trunkline_core::{Config, Core, Stats};

use crate::router::Load;

/// Number of an engine in its cluster, from 0.
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

/// Phases of a request that an engine serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Prefill and decode, without a hand-over.
    #[default]
    Both,
    /// Prefill and the first token; then the request is handed over (see [`crate::handover`]).
    Prefill,
    /// Decode of requests that a prefill engine handed over.
    Decode,
}

/// Settings of one engine: the limits of its core, and its role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// Limits of the core.
    pub core: Config,
    /// Phases that the engine serves.
    #[serde(default)]
    pub role: Role,
}

/// State of an engine's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// No worker: not joined yet, or lost and expected back.
    Absent,
    /// A worker runs steps.
    Up,
    /// A worker runs steps for the requests that are there, and takes no others.
    Draining,
    /// No worker, and none is expected.
    Gone,
}

/// Events that change the state of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A worker joined with empty KV blocks.
    Joined,
    /// The worker and all its KV are lost, or its KV is not trusted.
    Lost,
    /// The worker is gone for good.
    Retired,
    /// The operator takes the engine out of service.
    Drained,
    /// The operator takes the engine back into service.
    Opened,
}

/// All changes of state. Events that are not listed for a state leave the state as it is.
pub const TRANSITIONS: [(EngineEvent, EngineState, EngineState); 11] = {
    use EngineEvent::{Drained, Joined, Lost, Opened, Retired};
    use EngineState::{Absent, Draining, Gone, Up};
    [
        (Joined, Absent, Up),
        (Joined, Gone, Up),
        (Lost, Up, Absent),
        (Lost, Draining, Gone),
        (Retired, Absent, Gone),
        (Retired, Up, Gone),
        (Retired, Draining, Gone),
        (Drained, Up, Draining),
        (Drained, Absent, Gone),
        (Opened, Draining, Up),
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
    /// Phases that the engine serves.
    pub role: Role,
    /// State of its worker.
    pub state: EngineState,
    /// Load that routers see.
    #[serde(skip)]
    pub load: Load,
    /// Gauges and counters of its core.
    pub stats: Stats,
    /// Digest of its core's decisions.
    pub digest: u64,
}

/// One engine as the cluster keeps it.
pub(crate) struct Engine {
    pub core: Core,
    pub role: Role,
    pub state: EngineState,
    /// The core has reported that nothing is left in it after a drain or shutdown.
    pub drained: bool,
    /// The operator drained the engine and is to be notified when its last request has left.
    pub notify_empty: bool,
}

impl Engine {
    pub fn new(core: Core, role: Role) -> Self {
        Self { core, role, state: EngineState::Absent, drained: false, notify_empty: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EngineEvent::{Drained, Joined, Lost, Opened, Retired};
    use EngineState::{Absent, Draining, Gone, Up};

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let mut table = String::new();
        for from in [Absent, Up, Draining, Gone] {
            let row =
                [Joined, Lost, Retired, Drained, Opened].map(|event| format!("{event:?}>{:?}", from.after(event)));
            table.push_str(&format!("{from:?}: {}\n", row.join(" ")));
        }
        let reviewed = "\
Absent: Joined>Up Lost>Absent Retired>Gone Drained>Gone Opened>Absent
Up: Joined>Up Lost>Absent Retired>Gone Drained>Draining Opened>Up
Draining: Joined>Draining Lost>Gone Retired>Gone Drained>Draining Opened>Up
Gone: Joined>Up Lost>Gone Retired>Gone Drained>Gone Opened>Absent
";
        assert_eq!(table, reviewed);
    }
}
