//! Recording of a run: every input seen by a cluster, as JSON lines, for another cluster to replay.
//!
//! ```text
//! {"trunkline_recording":4,"config":{...}}                   header of one engine: format version and limits
//! {"trunkline_recording":5,"cluster":{"engines":[...],...}}  header of several
//! {"at_ns":1200345,"event":{"submit":{...}}}                 an input, in the order the cluster saw them
//! {"at_ns":1200399,"engine":1,"event":"worker_lost"}         with several engines: from the worker of engine 1
//! {"at_ns":1200400,"engine":1,"change":"drain"}              engine 1 is drained, opened or retired
//! {"end":{"at_ns":99,"digest":"00f1...","inputs":"5ab0..."}} trailer: the digests at the end; missing if the run was interrupted
//! ```
//!
//! Lines of one engine name no engine, so a server with one engine writes what a single core saw. Drivers open, compress and locate
//! the files.

use serde::{Deserialize, Serialize};
use trunkline_core::{Config, Event};
use trunkline_quote::of_parser;
use xxhash_rust::xxh3::Xxh3Default;

use crate::cluster::ClusterConfig;
use crate::engine::{EngineConfig, EngineId, Role};
use crate::input::{Input, is_from_worker};
use crate::router::ROUTER_DEFAULT;

/// Format version of a recording of one engine. Grows whenever the lines or the digest of equal decisions change; 2 and 3 had a digest
/// of fewer facts.
pub const VERSION: u32 = 4;
/// Format version of a recording of several engines.
pub const VERSION_CLUSTER: u32 = 5;

/// A line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// The first line of one engine.
    Header {
        /// Format version: [`VERSION`], for one engine.
        trunkline_recording: u32,
        /// Limits of the recorded core.
        config: Box<Config>,
    },
    /// The first line of several engines.
    ClusterHeader {
        /// Format version: [`VERSION_CLUSTER`], for several engines.
        trunkline_recording: u32,
        /// Settings of the recorded cluster.
        cluster: ClusterConfig,
    },
    /// An event of a client, or of an engine's worker.
    Event {
        /// Time of the event on the recorded clock, nanoseconds.
        at_ns: u64,
        /// The engine whose worker sent the event; absent for clients' events, and if there is only one engine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engine: Option<EngineId>,
        /// Event as delivered to the cluster.
        event: Event,
    },
    /// An engine leaves or enters service.
    Change {
        /// Time of the change on the recorded clock, nanoseconds.
        at_ns: u64,
        /// Engine leaving or entering service.
        engine: EngineId,
        /// Change of the engine's service.
        change: Change,
    },
    /// Last line of a complete recording.
    End {
        /// Facts known at the end.
        end: End,
    },
}

/// Inputs about an engine as a whole, not events of the engine's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Stands for [`Input::Retire`].
    Retire,
    /// Stands for [`Input::DrainEngine`].
    Drain,
    /// Stands for [`Input::OpenEngine`].
    Open,
}

/// Trailer of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Time of the last input, nanoseconds.
    pub at_ns: u64,
    /// Digest of the decisions, 16 hex digits.
    pub digest: String,
    /// Digest of the lines before, 16 hex digits ([`InputsDigest`]): an input may be changed without a change of a decision. Absent in recordings of
    /// earlier versions; the writer of the lines fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
}

/// Digest of the header and the inputs of a recording, as they are written.
#[derive(Clone, Default)]
pub struct InputsDigest(Xxh3Default);

impl std::fmt::Debug for InputsDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InputsDigest").field(&self.to_string()).finish()
    }
}

impl InputsDigest {
    /// Adds a line, without the end of the line.
    pub fn add(&mut self, line: &[u8]) {
        self.0.update(line);
        self.0.update(b"\n");
    }
}

impl std::fmt::Display for InputsDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0.digest())
    }
}

/// A line that belongs to no recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON, or JSON of another shape.
    #[error("not a line of a Trunkline recording: {}", of_parser(&.0.to_string()))]
    Malformed(#[from] serde_json::Error),
}

impl Line {
    /// Returns the header of a cluster's recording.
    pub fn header(cluster: &ClusterConfig) -> Self {
        match &cluster.engines[..] {
            [EngineConfig { core, role: Role::Both, kv_class: 0 }] => {
                Self::Header { trunkline_recording: VERSION, config: Box::new(core.clone()) }
            }
            _ => Self::ClusterHeader { trunkline_recording: VERSION_CLUSTER, cluster: cluster.clone() },
        }
    }

    /// Returns the settings of a header, or `None` for other lines.
    pub fn cluster(self) -> Option<ClusterConfig> {
        match self {
            Self::Header { config, .. } => {
                let engines = vec![EngineConfig { core: *config, role: Role::Both, kv_class: 0 }];
                Some(ClusterConfig { engines, router: ROUTER_DEFAULT.into() })
            }
            Self::ClusterHeader { cluster, .. } => Some(cluster),
            _ => None,
        }
    }

    /// Returns the line of an input of a cluster of `n_engines`.
    pub fn of(at_ns: u64, input: &Input, n_engines: usize) -> Self {
        match input {
            Input::Client(event) => Self::Event { at_ns, engine: None, event: event.clone() },
            Input::Engine(engine, event) => {
                Self::Event { at_ns, engine: (n_engines > 1).then_some(*engine), event: event.clone() }
            }
            Input::Retire(engine) => Self::Change { at_ns, engine: *engine, change: Change::Retire },
            Input::DrainEngine(engine) => Self::Change { at_ns, engine: *engine, change: Change::Drain },
            Input::OpenEngine(engine) => Self::Change { at_ns, engine: *engine, change: Change::Open },
        }
    }

    /// Returns the input of a line and the input's time, or `None` for headers and the trailer.
    pub fn input(self) -> Option<(u64, Input)> {
        match self {
            Self::Event { at_ns, engine: Some(engine), event } => Some((at_ns, Input::Engine(engine, event))),
            Self::Event { at_ns, engine: None, event } if is_from_worker(&event) => {
                Some((at_ns, Input::Engine(EngineId(0), event)))
            }
            Self::Event { at_ns, engine: None, event } => Some((at_ns, Input::Client(event))),
            Self::Change { at_ns, engine, change } => {
                let input = match change {
                    Change::Retire => Input::Retire(engine),
                    Change::Drain => Input::DrainEngine(engine),
                    Change::Open => Input::OpenEngine(engine),
                };
                Some((at_ns, input))
            }
            Self::Header { .. } | Self::ClusterHeader { .. } | Self::End { .. } => None,
        }
    }

    /// Parses one line.
    ///
    /// # Errors
    /// Fails if the text is not JSON, or not of the form of any line.
    pub fn parse(line: &str) -> Result<Self, RecordError> {
        Ok(serde_json::from_str(line)?)
    }

    /// Returns the line as text, without the newline.
    pub fn to_json(&self) -> String {
        // Every type in a line is made of numbers, strings and lists, which always serialise.
        serde_json::to_string(self).expect("a recording line serialises")
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::{Namespace, Request, RequestId, Sampling, StepResult, TierConfig, Write};

    use super::*;

    #[test]
    fn every_kind_of_line_survives_being_written_and_read() {
        let mut request = Request::new(RequestId(u64::MAX), Namespace::default().root(), vec![0, u32::MAX], 3);
        request.deadline_ns = Some(u64::MAX);
        request.sampling = Sampling { temperature: 0.7, seed: u64::MAX, logprobs: Some(2), ..Sampling::default() };
        let events = [
            Event::Submit(Box::new(request)),
            Event::Abort(RequestId(1)),
            Event::Stop(RequestId(2)),
            Event::Withdraw(RequestId(4)),
            Event::Fail(RequestId(3)),
            Event::WorkerJoined,
            Event::WorkerLost,
            Event::WorkerTaken,
            Event::WorkerResumed,
            Event::DraftsLimited(3),
            Event::StepFinished(StepResult {
                step: 9,
                tokens: vec![1, 2],
                ends: vec![1, 1, 2],
                ..StepResult::default()
            }),
            Event::TransferFinished(3),
            Event::TransferFailed(u64::MAX),
            Event::TransferInterrupted(4),
            Event::TierFoundLater { tier: 1, blocks: Vec::new() },
            Event::Tick,
            Event::FlushCache,
            Event::Drain,
            Event::Shutdown,
        ];
        for event in events {
            for engine in [None, Some(EngineId(3))] {
                let line = Line::Event { at_ns: u64::MAX, engine, event: event.clone() };
                assert_eq!(Line::parse(&line.to_json()).unwrap(), line);
            }
        }
        let header = Line::Header { trunkline_recording: VERSION, config: Box::default() };
        assert_eq!(Line::parse(&header.to_json()).unwrap(), header);
        let end = Line::End { end: End { at_ns: 5, digest: "00ff".into(), inputs: Some("0abc".into()) } };
        assert_eq!(Line::parse(&end.to_json()).unwrap(), end);
    }

    #[test]
    fn a_trailer_of_an_earlier_version_has_no_digest_of_the_inputs() {
        let old = r#"{"end":{"at_ns":5,"digest":"00ff"}}"#;
        let end = Line::End { end: End { at_ns: 5, digest: "00ff".into(), inputs: None } };
        assert_eq!((Line::parse(old).unwrap(), end.to_json()), (end.clone(), old.to_owned()));
    }

    #[test]
    fn a_line_gives_back_its_input() {
        let inputs = [
            Input::Client(Event::Abort(RequestId(u64::MAX))),
            Input::Client(Event::Tick),
            Input::Engine(EngineId(1), Event::WorkerJoined),
            Input::Engine(EngineId(0), Event::WorkerLost),
            Input::Engine(
                EngineId(1),
                Event::StepFinished(StepResult { step: 9, tokens: vec![1], ends: vec![1], ..StepResult::default() }),
            ),
            Input::Retire(EngineId(1)),
            Input::DrainEngine(EngineId(0)),
            Input::OpenEngine(EngineId(1)),
        ];
        for input in inputs {
            let line = Line::of(u64::MAX, &input, 2);
            assert_eq!(Line::parse(&line.to_json()).unwrap(), line);
            assert_eq!(line.input(), Some((u64::MAX, input)));
        }
    }

    #[test]
    fn one_engine_is_recorded_as_a_core_without_a_cluster() {
        let config = Config::default();
        let header = Line::header(&ClusterConfig::uniform(&config, 1));
        assert_eq!(header, Line::Header { trunkline_recording: 4, config: Box::new(config.clone()) });
        assert!(header.to_json().starts_with("{\"trunkline_recording\":4,\"config\":{\"block_size\":16,"));
        assert_eq!(header.cluster(), Some(ClusterConfig::uniform(&config, 1)));
        let joined = Input::Engine(EngineId(0), Event::WorkerJoined);
        let line = Line::of(5, &joined, 1);
        assert_eq!(line.to_json(), "{\"at_ns\":5,\"event\":\"worker_joined\"}");
        assert_eq!(line.input(), Some((5, joined)));

        let two = ClusterConfig { router: "random2:seed=3".into(), ..ClusterConfig::uniform(&config, 2) };
        let header = Line::header(&two);
        assert_eq!(Line::parse(&header.to_json()).unwrap().cluster(), Some(two));
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["", "{", "{}", "[1]", "{\"at_ns\":1}", "{\"at_ns\":-1,\"event\":\"tick\"}"] {
            assert!(Line::parse(line).is_err(), "{line}");
        }
        for line in ["{\"at_ns\":1,\"event\":\"nap\"}", "{\"at_ns\":1,\"engine\":1,\"change\":\"rest\"}"] {
            assert!(Line::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_header_of_a_recording_keeps_its_bytes() {
        let tiers = vec![TierConfig {
            name: "host".into(),
            blocks: 7,
            write: Write::SecondUse,
            eviction: "lfu".into(),
            shared: false,
        }];
        let config = Config { tiers, launch_watermark: 0.5, align_chunks: false, ..Config::default() };
        let header = Line::Header { trunkline_recording: VERSION, config: Box::new(config) };
        let line = concat!(
            r#"{"trunkline_recording":4,"config":{"block_size":16,"device_blocks":4096,"max_batch_tokens":2048,"#,
            r#""max_batch_size":256,"max_queue":1024,"max_queued_tokens":1099511627776,"align_chunks":false,"#,
            r#""max_step_logits":65536,"max_drafts":0,"target_step_ns":0,"launch_watermark":0.5,"swap_in_watermark":1.0,"#,
            r#""host_blocks":0,"tiers":[{"name":"host","blocks":7,"write":"second_use","eviction":"lfu"}],"#,
            r#""preemption":"cost","swap_block_ns":84000,"recompute_token_ns":100000,"max_context":1048576,"#,
            r#""policy":"fcfs","eviction":"lru"}}"#,
        );
        assert_eq!(header.to_json(), line);
        assert_eq!(Line::parse(line).unwrap(), header);
        let without = line.replace(r#""max_queue":1024,"#, "");
        assert!(Line::parse(&without).is_err(), "a header without a setting is refused");
        let unknown = line.replace("max_queue", "max_queues");
        assert!(Line::parse(&unknown).is_err(), "a header with an unknown setting is refused");
    }
}
