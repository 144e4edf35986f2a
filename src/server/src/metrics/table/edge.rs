//! Metrics of the server itself: facts, limits, connections, sessions, process.

use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_core::Config;

use super::{Metric, counter, gauge, info};
use crate::metrics::samples::{Samples, Value};
use crate::metrics::scrape::Scrape;
use crate::network::NetworkCounters;

pub(super) const METRICS: &[Metric] = &[
    info("trunkline_build_info", &["version"], "Version of the server.", |_, out| {
        out.info(&[("version", env!("CARGO_PKG_VERSION"))]);
    }),
    info("trunkline_model_info", &["model_name", "policy", "eviction"], "The model and the policies.", |s, out| {
        if let Some(model) = &s.model {
            let (name, config) = (&model.submitter.model.name, &model.submitter.config);
            out.info(&[("model_name", name), ("policy", &config.policy), ("eviction", &config.eviction)]);
        }
    }),
    gauge("trunkline_draining", &[], "1 while the server takes no new requests.", |s, out| {
        if let Some(model) = &s.model {
            out.add(&[], model.draining);
        }
    }),
    gauge("trunkline_block_size_tokens", &[], "Tokens of a KV block.", |s, out| {
        limit(s, out, |config| config.block_size)
    }),
    gauge("trunkline_max_batch_tokens", &[], "Tokens of a step, at most.", |s, out| {
        limit(s, out, |config| config.max_batch_tokens);
    }),
    gauge("trunkline_max_batch_size", &[], "Sequences of a step, at most.", |s, out| {
        limit(s, out, |config| config.max_batch_size);
    }),
    gauge("trunkline_max_queue", &[], "Waiting requests of an engine, at most.", |s, out| {
        limit(s, out, |config| config.max_queue);
    }),
    gauge("trunkline_max_context_tokens", &[], "Tokens of prompt and output together, at most.", |s, out| {
        limit(s, out, |config| config.max_context);
    }),
    gauge("trunkline_connections", &[], "Open connections of clients and workers.", |s, out| {
        out.add(&[], s.network.open().0);
    }),
    gauge("trunkline_calls", &[], "Open calls.", |s, out| out.add(&[], s.network.open().1)),
    gauge("trunkline_unread_bytes", &[], "Output that clients have not read, bytes of memory.", |s, out| {
        out.add(&[], s.network.unread_bytes());
    }),
    counter("trunkline_connections_accepted_total", &[], "Connections accepted.", |s, out| {
        network(s, out, |counters| &counters.accepted);
    }),
    counter("trunkline_connections_refused_total", &[], "Connections refused at a limit.", |s, out| {
        network(s, out, |counters| &counters.refused);
    }),
    counter("trunkline_connections_closed_total", &[], "Connections closed by the server.", |s, out| {
        network(s, out, |counters| &counters.closed);
    }),
    counter("trunkline_unread_calls_ended_total", &[], "Calls ended because the client did not read.", |s, out| {
        network(s, out, |counters| &counters.unread_ended);
    }),
    counter(
        "trunkline_unauthorised_calls_total",
        &[],
        "Calls without a valid token, or without the right.",
        |s, out| {
            network(s, out, |counters| &counters.unauthorised);
        },
    ),
    counter(
        "trunkline_panics_total",
        &[],
        "Panics of the server's code and of parsers that it calls, those that became an error included.",
        |_, out| out.add(&[], trunkline_foreign::panics()),
    ),
    gauge("trunkline_sessions", &[], "Sessions kept by the server.", |s, out| {
        if let Some(model) = &s.model {
            out.add(&[], model.sessions.0.open(s.now_ns) as u64);
        }
    }),
    counter("trunkline_session_turns_total", &[], "Turns of sessions accepted.", |s, out| {
        if let Some(model) = &s.model {
            out.add(&[], model.sessions.1.turns());
        }
    }),
    counter("trunkline_session_compactions_total", &["end"], "Compactions of sessions, by their end.", |s, out| {
        for (end, n) in s.model.iter().flat_map(|model| model.sessions.1.compactions()) {
            out.add(&[("end", end)], n);
        }
    }),
    gauge("process_start_time_seconds", &[], "Start of the server, seconds since 1970.", |s, out| {
        out.add(&[], s.started_s);
    }),
    counter("process_cpu_seconds_total", &[], "Time on all processors.", |s, out| out.add(&[], s.process.cpu_s)),
    gauge("process_resident_memory_bytes", &[], "Resident memory.", |s, out| known(out, s.process.resident_bytes)),
    gauge("process_open_fds", &[], "Open files and sockets.", |s, out| known(out, s.process.open_files)),
    gauge("process_max_fds", &[], "Open files and sockets, at most.", |s, out| known(out, s.process.open_files_max)),
];

fn limit(scrape: &Scrape, out: &mut Samples<'_>, value: fn(&Config) -> u32) {
    if let Some(model) = &scrape.model {
        out.add(&[], value(&model.submitter.config));
    }
}

fn network(scrape: &Scrape, out: &mut Samples<'_>, counter: fn(&NetworkCounters) -> &AtomicU64) {
    out.add(&[], counter(&scrape.network.counters).load(Ordering::Relaxed));
}

fn known(out: &mut Samples<'_>, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        out.add(&[], value);
    }
}
