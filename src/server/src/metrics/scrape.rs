//! State of the server at a scrape.

use std::fmt;
use std::sync::Arc;

use trunkline_core::TierStats;
use trunkline_port::Place;
use trunkline_store::PlaceStats;

use crate::driver::commands::{EngineSnapshot, Snapshot};
use crate::engines::store_info::place_name;
use crate::metrics::process::Process;
use crate::metrics::samples::{Samples, Value};
use crate::metrics::{MetricNames, Served};
use crate::network::Network;
use crate::requests::request_times::RequestFigures;
use crate::service::sessions::{SessionCounts, SessionTable};
use crate::service::submission::Submitter;

/// State of a server, from which the table of metrics is filled.
pub(super) struct Scrape {
    pub(super) network: Arc<Network>,
    pub(super) process: Process,
    /// Time of the scrape, nanoseconds since the start.
    pub(super) now_ns: u64,
    /// Start of the server, seconds since 1970.
    pub(super) started_s: f64,
    pub(super) names: MetricNames,
    /// `None` before the server knows its model.
    pub(super) model: Option<OfModel>,
}

/// State of the parts that are there once the model is known.
pub(super) struct OfModel {
    pub(super) engines: Vec<Engine>,
    pub(super) requests: RequestFigures,
    pub(super) draining: bool,
    pub(super) submitter: Arc<Submitter>,
    pub(super) sessions: (Arc<SessionTable>, Arc<SessionCounts>),
}

/// One engine, with its number as in `GetServerInfo`.
pub(super) struct Engine {
    pub(super) number: String,
    pub(super) at: EngineSnapshot,
}

impl Engine {
    /// Returns each tier with its name, nearest first.
    pub(super) fn tiers(&self) -> impl Iterator<Item = (&str, &PlaceStats, &TierStats)> {
        let EngineSnapshot { tiers, store, status, .. } = &self.at;
        let stats = store.tiers.iter().zip(&status.stats.tiers);
        tiers.iter().zip(stats).map(|(name, (place, counters))| (&name[..], place, counters))
    }

    /// Returns the name of a place for blocks.
    pub(super) fn place(&self, place: Place) -> String {
        place_name(place, |tier| self.at.tiers.get(tier).cloned())
    }
}

impl Scrape {
    /// Begins with the parts that are there from the start.
    pub(super) fn begin(network: &Arc<Network>, now_ns: u64, started_s: f64, names: MetricNames) -> Self {
        Self { network: network.clone(), process: Process::read(), now_ns, started_s, names, model: None }
    }

    /// Adds the state of the cluster.
    pub(super) fn fill(&mut self, snapshot: Snapshot, served: &Served) {
        let Snapshot { engines, requests, draining, .. } = snapshot;
        let engine = |(number, at): (u32, EngineSnapshot)| Engine { number: number.to_string(), at };
        self.model = Some(OfModel {
            engines: (0..).zip(engines).map(engine).collect(),
            requests,
            draining,
            submitter: served.submitter.clone(),
            sessions: served.sessions.clone(),
        });
    }

    /// Returns the engines; none before the server knows its model.
    pub(super) fn engines(&self) -> &[Engine] {
        self.model.as_ref().map_or(&[], |model| &model.engines)
    }

    /// Adds a value for each engine.
    pub(super) fn each<V: Into<Value>>(&self, out: &mut Samples<'_>, value: impl Fn(&EngineSnapshot) -> V) {
        for Engine { number, at } in self.engines() {
            out.add(&[("engine", number)], value(at));
        }
    }

    /// Adds a value for each tier of each engine.
    pub(super) fn each_tier<V: Into<Value>>(
        &self,
        out: &mut Samples<'_>,
        value: impl Fn(&PlaceStats, &TierStats) -> V,
    ) {
        for engine in self.engines() {
            for (name, place, counters) in engine.tiers() {
                out.add(&[("engine", &engine.number), ("tier", name)], value(place, counters));
            }
        }
    }
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").field("now_ns", &self.now_ns).finish_non_exhaustive()
    }
}
