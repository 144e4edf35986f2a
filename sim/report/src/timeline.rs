//! Timelines in Chrome's trace event format, for Perfetto (ui.perfetto.dev) and `chrome://tracing`.
//!
//! | in the timeline | meaning |
//! |---|---|
//! | process | replica |
//! | thread `steps` of a process | a slice per step, named after the batch shape |
//! | threads `weights`, `weight reads` of a process | of each step that reads weights: `compute`, then `wait`, which are sums over the step; and the time of the reads |
//! | async slices per link direction, `to host` | a copy from request to end, and inside the time of the bytes; copies overlap |
//! | async slices `request` | a request from arrival to end, and inside `queue`, `prefill` and `decode`, at its last replica |
//! | counters `requests`, `KV blocks` | gauges during each step |
//! | instants `failed`, `back`, `refused` | failures, returns and refusals |
//! | instants `ordered`, `started`, `draining`, `reopened`, `stopped` | autoscaling |
//!
//! Times are microseconds after the first arrival, exact to the nanosecond. The file is written during the replay; only steps that
//! a failure could still interrupt are held back. Events are not sorted by time, which neither viewer requires.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use trunkline_core::Place;
use trunkline_core::Stats;

use crate::completed_steps::{CompletedStep, PendingSteps};
use crate::fleet_shape::FleetShape;
use crate::observer::{Observer, ReplicaChange, StepSeen, TransferSeen};
use crate::outcome::Outcome;
use trunkline_sim_perf::link::{direction, direction_name};

/// Thread number of the steps.
const STEPS_THREAD: usize = 1;
/// Thread number of computation and waits of steps that read weights.
const WEIGHTS_THREAD: usize = 2;
/// Thread number of the reads.
const READS_THREAD: usize = 3;

/// Time window of a timeline: only overlapping events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Begin, nanoseconds after the first arrival.
    pub from_ns: u64,
    /// End, nanoseconds after the first arrival; above `from_ns`.
    pub to_ns: u64,
}

impl Window {
    /// Window over the whole replay.
    pub const ALL: Self = Self { from_ns: 0, to_ns: u64::MAX };

    fn overlaps(&self, begin_ns: u64, end_ns: u64) -> bool {
        begin_ns < self.to_ns && end_ns >= self.from_ns
    }
}

/// Failed writing of a timeline.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the timeline to {}: {fault}", path.display())]
pub struct TimelineError {
    /// Path of the file.
    pub path: PathBuf,
    /// Error of the system.
    pub fault: io::Error,
}

/// Writer of the timeline of a replay; gzip for file names ending in `.gz`.
pub struct TimelineWriter {
    path: PathBuf,
    to: Output,
    window: Window,
    /// `true` once an event was written, so the next needs a separator.
    any: bool,
    /// First error; nothing is written after it.
    fault: Option<io::Error>,
    pending_steps: PendingSteps,
    /// Copies written. Each has a unique number that joins its start and end in a viewer.
    copies: u64,
    /// Gauges of each replica.
    gauges: Vec<Gauges>,
    /// Replicas with threads for weights.
    streams: Vec<bool>,
    tiers: Vec<String>,
}

enum Output {
    Plain(BufWriter<File>),
    Gzip(Box<GzEncoder<BufWriter<File>>>),
}

impl Output {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.write_all(bytes),
            Self::Gzip(file) => file.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut file) => file.flush(),
            Self::Gzip(file) => file.finish()?.flush(),
        }
    }
}

/// Counters of a replica as shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gauges {
    waiting: u32,
    running: u32,
    swapped: u32,
    in_use: u32,
    cached: u32,
    free: u32,
}

impl Gauges {
    fn of(stats: &Stats) -> Self {
        Self {
            waiting: stats.waiting + stats.loading,
            running: stats.running,
            swapped: stats.swapped,
            in_use: stats.blocks_in_use(),
            cached: stats.idle_blocks,
            free: stats.free_blocks,
        }
    }

    /// Returns the gauges after a step without a successor.
    fn idle(self) -> Self {
        Self { running: 0, in_use: 0, cached: self.cached + self.in_use, ..self }
    }
}

/// Formats nanoseconds as microseconds.
fn us(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// Returns the process id of a replica: replicas count from 0, processes from 1.
fn pid(replica: u32) -> u64 {
    u64::from(replica) + 1
}

/// Returns the name of a step, such as `prefill 2 (4096 tokens) + decode 31`.
fn step_name(step: &CompletedStep) -> String {
    let shape = &step.shape;
    let prefill = format!("prefill {} ({} tokens)", shape.prefills, shape.prefill_tokens);
    let decode = format!("decode {}", shape.decodes);
    match (shape.prefills, shape.decodes) {
        (0, _) => decode,
        (_, 0) => prefill,
        _ => format!("{prefill} + {decode}"),
    }
}

fn place_name(place: Place, tiers: &[String]) -> &str {
    match place {
        Place::Device => "device",
        Place::Host => "swap",
        Place::Tier(tier) => tiers.get(usize::from(tier)).map_or("tier", String::as_str),
    }
}

impl TimelineWriter {
    /// Creates or truncates the file for a replay on the fleet `shape`.
    ///
    /// # Errors
    ///
    /// [`TimelineError`] if the file cannot be created.
    pub fn create(path: &Path, shape: &FleetShape, window: Window) -> Result<Self, TimelineError> {
        let fail = |fault| TimelineError { path: path.into(), fault };
        let file = BufWriter::new(File::create(path).map_err(fail)?);
        let gzip = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        let to = match gzip {
            true => Output::Gzip(Box::new(GzEncoder::new(file, Compression::fast()))),
            false => Output::Plain(file),
        };
        let mut writer = Self {
            path: path.into(),
            to,
            window,
            any: false,
            fault: None,
            pending_steps: PendingSteps::new(shape.replicas()),
            copies: 0,
            gauges: vec![Gauges::default(); shape.replicas() as usize],
            streams: vec![false; shape.replicas() as usize],
            tiers: shape.tiers.iter().map(|(name, _)| name.clone()).collect(),
        };
        writer.put(r#"{"displayTimeUnit":"ms","traceEvents":["#);
        for replica in 0..shape.replicas() {
            writer.name_process(replica);
        }
        match writer.fault.take() {
            Some(fault) => Err(fail(fault)),
            None => Ok(writer),
        }
    }

    fn name_process(&mut self, replica: u32) {
        let pid = pid(replica);
        let name = format!("replica {replica}");
        self.event(json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}));
        self.event(json!({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": replica}}));
        self.name_thread(replica, STEPS_THREAD, "steps");
    }

    fn name_thread(&mut self, replica: u32, tid: usize, name: &str) {
        let pid = pid(replica);
        self.event(json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}));
        self.event(
            json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}),
        );
    }

    /// Finishes the file and reports failures.
    ///
    /// # Errors
    ///
    /// [`TimelineError`] with the first failure of any write.
    pub fn finish(mut self) -> Result<(), TimelineError> {
        for step in self.pending_steps.end() {
            self.write_step(&step);
            self.write_idle(&step);
        }
        self.put("\n]}\n");
        let result = self.fault.map_or_else(|| self.to.finish(), Err);
        result.map_err(|fault| TimelineError { path: self.path, fault })
    }

    fn put(&mut self, text: &str) {
        if self.fault.is_none() {
            self.fault = self.to.write_all(text.as_bytes()).err();
        }
    }

    fn event(&mut self, event: serde_json::Value) {
        self.line(&event.to_string());
    }

    fn line(&mut self, event: &str) {
        let comma = if std::mem::replace(&mut self.any, true) { ",\n" } else { "\n" };
        self.put(comma);
        self.put(event);
    }

    /// Writes an event with a time; `rest` holds further fields, each after a comma.
    fn timed(&mut self, phase: char, at_ns: u64, replica: u32, tid: usize, name: &str, rest: &str) {
        // Names are made here, but for those of tiers, which may be anything.
        let name = json!(name);
        let line =
            format!(r#"{{"ph":"{phase}","ts":{},"pid":{},"tid":{tid},"name":{name}{rest}}}"#, us(at_ns), pid(replica));
        self.line(&line);
    }

    fn write_step(&mut self, step: &CompletedStep) {
        if !self.window.overlaps(step.begin_ns, step.end_ns) {
            return;
        }
        let shape = &step.shape;
        let rest = format!(
            r#","dur":{},"args":{{"tokens":{},"sequences":{},"decodes":{},"prefills":{},"prefill tokens":{},"KV blocks in use":{},"KV tokens read":{},"cut by failure":{}}}"#,
            us(step.end_ns - step.begin_ns),
            shape.tokens,
            shape.decodes + shape.prefills,
            shape.decodes,
            shape.prefills,
            shape.prefill_tokens,
            step.blocks_in_use,
            shape.prefill_kv_tokens + shape.decode_kv_tokens,
            step.interrupted,
        );
        self.timed('X', step.begin_ns, step.replica, STEPS_THREAD, &step_name(step), &rest);
        if step.weights.steps > 0 && !step.interrupted {
            self.write_weights(step);
        }
    }

    /// Writes how a step was spent that reads weights.
    fn write_weights(&mut self, step: &CompletedStep) {
        let CompletedStep { replica, begin_ns, end_ns, weights, .. } = *step;
        if !std::mem::replace(&mut self.streams[replica as usize], true) {
            self.name_thread(replica, WEIGHTS_THREAD, "weights");
            self.name_thread(replica, READS_THREAD, "weight reads");
        }
        let step_ns = end_ns - begin_ns;
        let exposed_ns = weights.exposed_ns.min(step_ns);
        let waits_ns = end_ns - exposed_ns;
        for (name, from_ns, duration_ns) in
            [("compute", begin_ns, step_ns - exposed_ns), ("wait", waits_ns, exposed_ns)]
        {
            if duration_ns > 0 {
                self.timed('X', from_ns, replica, WEIGHTS_THREAD, name, &format!(r#","dur":{}"#, us(duration_ns)));
            }
        }
        // Groups that were read during the step before count for this one.
        let rest = format!(
            r#","dur":{},"args":{{"bytes":{},"reading":{},"exposed":{},"hidden":{}}}"#,
            us(weights.reading_ns.min(step_ns)),
            weights.bytes,
            us(weights.reading_ns),
            us(weights.exposed_ns),
            us(weights.hidden_ns()),
        );
        self.timed('X', begin_ns, replica, READS_THREAD, "read", &rest);
    }

    /// Writes idle gauges after a step without a successor.
    fn write_idle(&mut self, step: &CompletedStep) {
        let idle = self.gauges[step.replica as usize].idle();
        self.write_gauges(step.end_ns, step.replica, idle);
    }

    /// Writes the slices of a copy: the outer from request to end, the inner for the time of the bytes. The outer slice has the
    /// name of the link direction, so that a viewer groups the copies of a direction.
    fn write_copy(&mut self, copy: &TransferSeen) {
        if !self.window.overlaps(copy.asked_ns, copy.end_ns) {
            return;
        }
        let direction = direction_name(direction(copy.from, copy.to), self.tiers.iter().map(String::as_str));
        let (from, to) = (place_name(copy.from, &self.tiers), place_name(copy.to, &self.tiers));
        let blocks = if copy.blocks == 1 { "block" } else { "blocks" };
        let name = format!("{} {blocks} {from} to {to}", copy.blocks);
        let id = format!(r#","cat":"copy","id":"{}""#, self.copies);
        self.copies += 1;
        let args = format!(r#"{id},"args":{{"blocks":{},"cut by failure":{}}}"#, copy.blocks, copy.interrupted);
        self.timed('b', copy.asked_ns, copy.replica, 0, &direction, &args);
        if copy.begin_ns < copy.end_ns {
            self.timed('b', copy.begin_ns, copy.replica, 0, &name, &id);
            self.timed('e', copy.end_ns, copy.replica, 0, &name, &id);
        }
        self.timed('e', copy.end_ns, copy.replica, 0, &direction, &id);
    }

    /// Writes the counters if they changed.
    fn write_gauges(&mut self, at_ns: u64, replica: u32, gauges: Gauges) {
        let before = std::mem::replace(&mut self.gauges[replica as usize], gauges);
        if before == gauges || !self.window.overlaps(at_ns, at_ns) {
            return;
        }
        let Gauges { waiting, running, swapped, in_use, cached, free } = gauges;
        let requests = format!(r#","args":{{"running":{running},"waiting":{waiting},"swapped":{swapped}}}"#);
        self.timed('C', at_ns, replica, 0, "requests", &requests);
        let blocks = format!(r#","args":{{"in use":{in_use},"cached":{cached},"free":{free}}}"#);
        self.timed('C', at_ns, replica, 0, "KV blocks", &blocks);
    }

    fn write_instant(&mut self, at_ns: u64, replica: u32, name: &str, args: &str) {
        if self.window.overlaps(at_ns, at_ns) {
            self.timed('i', at_ns, replica, STEPS_THREAD, name, &format!(r#","s":"p","args":{{{args}}}"#));
        }
    }

    /// Writes the slices of a request; the inner slices lie between begin and end of the outer.
    fn write_request(&mut self, outcome: &Outcome, [queue_ns, ttft_ns, e2e_ns]: [u64; 3]) {
        let begin_ns = outcome.arrival_ns;
        if !self.window.overlaps(begin_ns, begin_ns + e2e_ns) {
            return;
        }
        let Outcome { request, tenant, prompt_tokens, cached_tokens, output_tokens, preemptions, .. } = outcome;
        let id = format!(r#","cat":"request","id":"{request}""#);
        let args = format!(
            r#"{id},"args":{{"request":{request},"tenant":{tenant},"prompt tokens":{prompt_tokens},"cached tokens":{cached_tokens},"output tokens":{output_tokens},"preemptions":{preemptions}}}"#
        );
        self.timed('b', begin_ns, outcome.replica, 0, "request", &args);
        for (name, from_ns, to_ns) in
            [("queue", 0, queue_ns), ("prefill", queue_ns, ttft_ns), ("decode", ttft_ns, e2e_ns)]
        {
            if from_ns < to_ns {
                self.timed('b', begin_ns + from_ns, outcome.replica, 0, name, &id);
                self.timed('e', begin_ns + to_ns, outcome.replica, 0, name, &id);
            }
        }
        self.timed('e', begin_ns + e2e_ns, outcome.replica, 0, "request", &id);
    }
}

impl Observer for TimelineWriter {
    fn ended(&mut self, outcome: &Outcome) -> ControlFlow<()> {
        match (outcome.queue_ns, outcome.ttft_ns, outcome.e2e_ns) {
            (Some(queue_ns), Some(ttft_ns), Some(e2e_ns)) => self.write_request(outcome, [queue_ns, ttft_ns, e2e_ns]),
            _ => {
                let args = format!(r#""request":{},"prompt tokens":{}"#, outcome.request, outcome.prompt_tokens);
                self.write_instant(outcome.arrival_ns, outcome.replica, "refused", &args);
            }
        }
        // A disk that is full stops the replay, rather than let it run for nothing.
        if self.fault.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn wants_steps(&self) -> bool {
        true
    }

    fn step(&mut self, seen: &StepSeen<'_>) {
        if let Some(past) = self.pending_steps.step(seen) {
            self.write_step(&past);
            if past.end_ns < seen.begin_ns {
                self.write_idle(&past);
            }
        }
        self.write_gauges(seen.begin_ns, seen.replica, Gauges::of(seen.stats));
    }

    fn transfer(&mut self, seen: &TransferSeen) {
        self.write_copy(seen);
    }

    fn replica(&mut self, now_ns: u64, replica: u32, change: ReplicaChange) {
        if change.ends_worker() {
            if let Some(step) = self.pending_steps.fail(now_ns, replica) {
                self.write_step(&step);
                if step.end_ns < now_ns {
                    self.write_idle(&step);
                }
            }
            self.write_gauges(now_ns, replica, Gauges::default());
        }
        self.write_instant(now_ns, replica, change.name(), "");
    }
}

#[cfg(test)]
mod tests {
    use trunkline_sim_perf::cost::{StepShape, WeightReads};

    use super::*;

    #[test]
    fn steps_are_named_for_what_is_in_them() {
        let name = |shape| {
            let step = CompletedStep {
                replica: 0,
                begin_ns: 0,
                end_ns: 1,
                interrupted: false,
                shape,
                weights: WeightReads::default(),
                blocks_in_use: 0,
            };
            step_name(&step)
        };
        let (prefill, decode) = (StepShape::prefill(4096, 0), StepShape::decodes(31, 9));
        assert_eq!(name(decode), "decode 31");
        assert_eq!(name(prefill), "prefill 1 (4096 tokens)");
        assert_eq!(name(StepShape { decodes: 31, ..prefill }), "prefill 1 (4096 tokens) + decode 31");
    }
}
