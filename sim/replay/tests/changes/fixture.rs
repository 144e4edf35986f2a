//! Recordings of a simulated fleet, whose steps take a known time.

use std::ops::ControlFlow;
use std::path::PathBuf;

use tempfile::TempDir;
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::Settings;
use trunkline_sim_replay::fleet::record;
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_workload::trace::{Content, Trace, TraceRequest, formats};

/// Requests in a burst every second, which share prefixes by groups.
fn trace(n: u32) -> Trace {
    let request = |at: u32| {
        let group = at % 5;
        let shared = (0..160).map(|token| group * 1000 + token);
        let own = (0..40 + 60 * (at % 4)).map(|token| 100_000 + at * 1000 + token);
        let prompt: Vec<u32> = shared.chain(own).collect();
        TraceRequest {
            arrival_ns: u64::from(at / 8) * 1_000_000_000 + u64::from(at % 8) * 3_000_000,
            input_tokens: prompt.len() as u32,
            output_tokens: 20 + 13 * (at % 6),
            content: Content::Tokens(prompt.into()),
            ..TraceRequest::default()
        }
    };
    Trace { format: formats::SYNTHETIC, requests: (0..n).map(request).collect() }
}

pub fn settings(replicas: u32, blocks: u32) -> Settings {
    let mut settings = Settings::new(*hardware::by_name("h100-80g").unwrap(), *model::by_name("llama-3.1-8b").unwrap());
    settings.replicas = replicas;
    settings.core.device_blocks = blocks;
    settings.core.max_batch_size = 6;
    settings
}

/// Records a fleet, and returns the folder with the file.
pub fn recording(settings: &Settings, n: u32) -> (TempDir, PathBuf) {
    recording_of(settings, &trace(n))
}

/// Records a fleet that serves a trace.
pub fn recording_of(settings: &Settings, trace: &Trace) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl.gz");
    let cost = settings.cost_model().unwrap();
    let mut nobody = |_: &Outcome| ControlFlow::Continue(());
    record(&mut trace.source(), settings, &*cost, &mut nobody, &path).unwrap();
    (folder, path)
}
