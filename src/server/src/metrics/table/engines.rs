//! Metrics of engines: steps, workers, drafts, eviction within sequences, streamed weights.

use trunkline_cluster::{EngineState, Health, Role};

use super::{ENGINE, Metric, counter, gauge, histogram, info};
use crate::engines::idle::IdleCause;
use crate::engines::seats::SeatState;
use crate::engines::step_figures::StepFigures;
use crate::metrics::samples::Samples;
use crate::metrics::scrape::{Engine, Scrape};
use crate::requests::histogram::Histogram;

/// States of an engine with their names.
const STATES: [(EngineState, &str); 5] = [
    (EngineState::Absent, "absent"),
    (EngineState::Up, "up"),
    (EngineState::Draining, "draining"),
    (EngineState::Gone, "gone"),
    (EngineState::Closed, "closed"),
];

/// Trust in an engine's worker, with names.
const HEALTHS: [(Health, &str); 3] =
    [(Health::Open, "open"), (Health::Suspected, "suspected"), (Health::Probing, "probing")];

pub(super) const METRICS: &[Metric] = &[
    info("trunkline_engine_info", &["engine", "role", "kv_dtype"], "Facts about an engine.", |s, out| {
        for Engine { number, at } in s.engines() {
            let role = match at.status.role {
                Role::Both => "both",
                Role::Prefill => "prefill",
                Role::Decode => "decode",
            };
            let kv_dtype = s.model.as_ref().map_or("", |model| model.submitter.kv_dtype(at.status.kv_class));
            out.info(&[("engine", number), ("role", role), ("kv_dtype", kv_dtype)]);
        }
    }),
    gauge(
        "trunkline_engine_state",
        &["engine", "state"],
        "1 for the state of the engine's worker, 0 for others.",
        |s, out| {
            for Engine { number, at } in s.engines() {
                for (state, name) in STATES {
                    out.add(&[("engine", number), ("state", name)], at.status.state == state);
                }
            }
        },
    ),
    gauge(
        "trunkline_engine_health",
        &["engine", "health"],
        "1 for the trust in the engine's worker, 0 for others: `suspected` after steps that failed in a row.",
        |s, out| {
            for Engine { number, at } in s.engines() {
                for (health, name) in HEALTHS {
                    out.add(&[("engine", number), ("health", name)], at.status.health == health);
                }
            }
        },
    ),
    gauge("trunkline_engine_requests", ENGINE, "Requests on the engine, in any state.", |s, out| {
        s.each(out, |engine| engine.status.load.requests);
    }),
    gauge(
        "trunkline_engine_tokens",
        ENGINE,
        "Tokens of the requests on the engine: prompts, and answers so far.",
        |s, out| {
            s.each(out, |engine| engine.status.load.tokens);
        },
    ),
    gauge("trunkline_attached_workers", ENGINE, "1 while an attached worker is connected to the engine.", |s, out| {
        let is_connected = |engine: &Engine| engine.at.worker.as_ref().map(|worker| worker.state == SeatState::Taken);
        for engine in s.engines() {
            if let Some(is_connected) = is_connected(engine) {
                out.add(&[("engine", &engine.number)], is_connected);
            }
        }
    }),
    gauge(
        "trunkline_attached_worker_silence_seconds",
        ENGINE,
        "Time since the attached worker's last message.",
        |s, out| {
            for Engine { number, at } in s.engines() {
                if let Some(worker) = &at.worker {
                    let silent_ns = s.now_ns.saturating_sub(worker.stats.heard_ns);
                    out.add(&[("engine", number)], silent_ns as f64 * 1e-9);
                }
            }
        },
    ),
    counter(
        "trunkline_worker_joins_total",
        ENGINE,
        "Times that a worker became ready with empty KV blocks.",
        |s, out| {
            s.each(out, |engine| engine.workers.joined);
        },
    ),
    counter(
        "trunkline_worker_restarts_total",
        ENGINE,
        "Workers started again after the end of their threads.",
        |s, out| {
            s.each(out, |engine| engine.workers.restarted);
        },
    ),
    counter("trunkline_worker_losses_total", &["engine", "reason"], "Losses of a worker's KV, by reason.", |s, out| {
        for Engine { number, at } in s.engines() {
            for (reason, n) in at.workers.lost() {
                out.add(&[("engine", number), ("reason", reason)], n);
            }
        }
    }),
    gauge("trunkline_abandoned_workers", ENGINE, "Workers left behind in a step that never ended.", |s, out| {
        s.each(out, |engine| engine.abandoned);
    }),
    histogram("trunkline_step_time_seconds", ENGINE, "Time of a step, from sending to the answer.", |s, out| {
        of_steps(s, out, |steps| &steps.duration);
    }),
    counter(
        "trunkline_idle_seconds_total",
        &["engine", "cause"],
        "Time in which a worker had no step, by what it waited for: requests, the scheduler, or blocks.",
        |s, out| {
            for Engine { number, at } in s.engines() {
                for (name, cause) in IdleCause::ALL {
                    out.add(&[("engine", number), ("cause", name)], at.idle.total_ns(cause) as f64 * 1e-9);
                }
            }
        },
    ),
    histogram("trunkline_step_tokens", ENGINE, "Tokens run in a step.", |s, out| {
        of_steps(s, out, |steps| &steps.tokens)
    }),
    histogram("trunkline_step_sequences", ENGINE, "Sequences run in a step.", |s, out| {
        of_steps(s, out, |steps| &steps.sequences);
    }),
    counter("trunkline_spec_decode_num_draft_tokens_total", ENGINE, "Tokens drafted by workers.", |s, out| {
        s.each(out, |engine| engine.counts.drafted);
    }),
    counter(
        "trunkline_spec_decode_num_accepted_tokens_total",
        ENGINE,
        "Drafts equal to the sampled token.",
        |s, out| {
            s.each(out, |engine| engine.counts.accepted);
        },
    ),
    counter("trunkline_weight_steps_total", ENGINE, "Steps with streamed weights.", |s, out| {
        s.each(out, |engine| engine.counts.weights.steps);
    }),
    counter("trunkline_weight_read_bytes_total", ENGINE, "Bytes of streamed weights read.", |s, out| {
        s.each(out, |engine| engine.counts.weights.bytes);
    }),
    counter("trunkline_weight_read_seconds_total", ENGINE, "Time of the reads of streamed weights.", |s, out| {
        s.each(out, |engine| engine.counts.weights.reading_ns as f64 * 1e-9);
    }),
    counter(
        "trunkline_weight_wait_seconds_total",
        ENGINE,
        "Time for which computation waited for weights.",
        |s, out| {
            s.each(out, |engine| engine.counts.weights.exposed_ns as f64 * 1e-9);
        },
    ),
    counter("trunkline_weight_step_seconds_total", ENGINE, "Time of the steps with streamed weights.", |s, out| {
        s.each(out, |engine| engine.counts.weights.step_ns as f64 * 1e-9);
    }),
    counter("trunkline_weight_failed_reads_total", ENGINE, "Reads of streamed weights tried again.", |s, out| {
        s.each(out, |engine| engine.counts.weights.failed_reads as f64);
    }),
];

fn of_steps(scrape: &Scrape, out: &mut Samples<'_>, histogram: fn(&StepFigures) -> &Histogram) {
    for Engine { number, at } in scrape.engines() {
        out.histogram(&[("engine", number)], histogram(&at.steps));
    }
}
