//! Changes of the caches, for those that follow them from outside: see [`CacheListener`].

use std::sync::Arc;

use trunkline_cluster::{CacheListener, Cluster, EngineId, ListenToCaches};

use super::Driver;

/// The listener of a driver, if there is one, and the engines whose changes it lost.
pub(super) struct Listening {
    listener: Arc<dyn CacheListener>,
    lost: Vec<bool>,
}

impl Listening {
    /// Listens to the caches of a cluster from now on. MUST be called before the first input.
    pub(super) fn begin(cluster: &mut Cluster, listener: Option<ListenToCaches>) -> Option<Self> {
        let ListenToCaches(listener) = listener?;
        cluster.listen_to_caches();
        Some(Self { listener, lost: vec![false; cluster.n_engines()] })
    }
}

impl Driver {
    /// Has the cluster note preemptions, if spans are to have them.
    pub(super) fn follow_preemptions(&mut self) {
        if self.request_log.traces() {
            self.cluster.note_preempted();
        }
    }

    /// Notes the preemptions of the last input with their requests.
    pub(super) fn note_preempted(&mut self) {
        if !self.request_log.traces() {
            return;
        }
        for preempted in self.cluster.take_preempted() {
            if let Some(client) = self.clients.get_mut(&preempted.request) {
                client.engines.preempt(preempted, self.last_input_ns);
            }
        }
    }

    /// Hands the changes of the last input to the listener.
    pub(super) fn pass_changes(&mut self) {
        let Some(Listening { listener, lost }) = &mut self.followers.listening else { return };
        for (engine, is_lost) in (0..).map(EngineId).zip(lost) {
            let events = self.cluster.take_cache_events(engine);
            if *is_lost {
                *is_lost =
                    !(listener.has_room() && listener.replaced(engine, self.cluster.core(engine).cached_blocks()));
            } else if !events.is_empty() {
                *is_lost = !listener.changed(engine, events);
            }
        }
    }
}
