//! Steps and copies of a recording: from the core's request for one to the end.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use trunkline_cluster::{EngineId, Output};
use trunkline_core::core::event::Action;

use super::links::{BusyPeriod, Copies};
use crate::recorded::{News, RecordingError, Shown, replay_watched};
use trunkline_sim_perf::cost::{Sample, StepShape};

/// Step that has not ended yet.
struct InFlight {
    id: u64,
    begun_ns: u64,
    shape: StepShape,
}

/// Worker of one engine.
#[derive(Default)]
struct Engine {
    /// Steps in flight, oldest first.
    in_flight: VecDeque<InFlight>,
    /// End of the last step.
    ended_ns: u64,
    copies: Copies,
}

impl Engine {
    /// Ends the oldest step in flight if it has this id. A step sent ahead begins with the end of the step before.
    fn finish(&mut self, id: u64, at_ns: u64) -> Option<Sample> {
        let step = self.in_flight.pop_front_if(|step| step.id == id)?;
        let begun_ns = step.begun_ns.max(std::mem::replace(&mut self.ended_ns, at_ns));
        Some(Sample { shape: step.shape, time_s: (at_ns - begun_ns) as f64 / 1e9 })
    }
}

/// What a recording shows of a server's workers.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Steps of all engines. The engines of a server are alike, so their steps are samples of one cost model.
    pub steps: Vec<Sample>,
    /// Busy periods of the links of all engines.
    pub periods: Vec<BusyPeriod>,
}

/// Returns the steps and copies of the recording at `path`, by replaying its inputs through a cluster. Steps and copies lost with their worker
/// are skipped.
///
/// # Errors
///
/// [`RecordingError`] if the recording cannot be read or replayed.
pub fn from_recording(path: &Path) -> Result<Observed, RecordingError> {
    let mut observed = Observed::default();
    let mut engines: BTreeMap<EngineId, Engine> = BTreeMap::new();
    replay_watched(path, &mut |_| {}, &mut |shown: &Shown| {
        if let Some((engine, news)) = shown.news {
            let engine = engines.entry(engine).or_default();
            match news {
                News::StepEnded(id) => observed.steps.extend(engine.finish(id, shown.at_ns)),
                News::CopyEnded { id, is_whole } => {
                    observed.periods.extend(engine.copies.end(shown.at_ns, id, is_whole));
                }
                News::Lost | News::Resumed | News::Joined => *engine = Engine::default(),
            }
        }
        for output in shown.outputs {
            match output {
                Output::Engine(engine, Action::RunStep(step)) => {
                    let begun = InFlight { id: step.id, begun_ns: shown.at_ns, shape: StepShape::of(step) };
                    engines.entry(*engine).or_default().in_flight.push_back(begun);
                }
                Output::Engine(engine, Action::Transfer(transfer)) => {
                    engines.entry(*engine).or_default().copies.begin(shown.at_ns, transfer);
                }
                _ => {}
            }
        }
    })?;
    Ok(observed)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use trunkline_cluster::record::{self, Line};
    use trunkline_core::core::event::Event;
    use trunkline_core::{BlockHash, Config, Core, Request, RequestId, TierConfig, Write};
    use trunkline_core::{Step, StepResult};

    use super::*;
    use crate::calibrate::{calibrate, fit_links};
    use trunkline_sim_perf::cost::{Curve, Piece, StepErrors, StepTime};

    /// What a step of the recorded server takes, seconds.
    const TRUE: StepTime = StepTime {
        model: "m",
        model_bytes: None,
        parallel: "",
        constant_s: 5e-3,
        tokens: Curve(&[Piece { from: 0, each_s: 30e-6 }]),
        sequences: Curve(&[Piece { from: 0, each_s: 100e-6 }]),
        context_token_s: 1e-6,
        mixed_context_token_s: 0.0,
        prefill_pair_s: 20e-9,
        largest: None,
        against: "",
        errors: StepErrors { prefill: None, decode: None, mixed: None },
    };
    /// What a copy of the recorded server takes, nanoseconds.
    const COPY_NS: u64 = 400_000;
    /// What each block of a copy takes in addition, nanoseconds.
    const BLOCK_NS: u64 = 150_000;

    /// A server with one worker, which runs one step and one copy at a time.
    struct Server {
        core: Core,
        lines: Vec<String>,
        steps: VecDeque<Box<Step>>,
        /// Copies to come, with their ends.
        copies: VecDeque<(u64, u64)>,
        at_ns: u64,
    }

    impl Server {
        fn new(config: Config) -> Self {
            let header =
                Line::Header { trunkline_recording: record::VERSION, config: Box::new(config.clone()) }.to_json();
            let core = Core::new(config).unwrap();
            let mut server =
                Self { core, lines: vec![header], steps: VecDeque::new(), copies: VecDeque::new(), at_ns: 0 };
            server.tell(0, Event::WorkerJoined);
            server
        }

        fn tell(&mut self, at_ns: u64, event: Event) {
            self.at_ns = at_ns;
            self.lines.push(Line::Event { at_ns, engine: None, event: event.clone() }.to_json());
            let mut actions = Vec::new();
            self.core.handle(at_ns, event, &mut actions);
            for action in actions {
                match action {
                    Action::RunStep(step) => self.steps.push_back(step),
                    Action::Transfer(transfer) => {
                        let begun_ns = self.copies.back().map_or(at_ns, |(end_ns, _)| at_ns.max(*end_ns));
                        let end_ns = begun_ns + COPY_NS + BLOCK_NS * transfer.pairs.len() as u64;
                        self.copies.push_back((end_ns, transfer.id));
                    }
                    _ => {}
                }
            }
        }

        fn submit(&mut self, at_ns: u64, id: u64, prompt: Vec<u32>, max_tokens: u32) {
            let mut request = Request::new(RequestId(id), BlockHash(5), prompt, max_tokens);
            request.hash_prompt(16);
            self.tell(at_ns, Event::Submit(Box::new(request)));
        }

        fn end_copies(&mut self, until_ns: u64) {
            while let Some((end_ns, id)) = self.copies.pop_front_if(|(end_ns, _)| *end_ns <= until_ns) {
                self.tell(end_ns, Event::TransferFinished(id));
            }
        }

        /// Runs until nothing is left to do. Returns the number of steps.
        fn run(&mut self) -> usize {
            let mut steps = 0;
            loop {
                let Some(step) = self.steps.pop_front() else {
                    // A request may wait for a copy.
                    let Some((end_ns, _)) = self.copies.front().copied() else { return steps };
                    self.end_copies(end_ns);
                    continue;
                };
                let mut result = StepResult { step: step.id, ..StepResult::default() };
                step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[7] } else { &[] }));
                let end_ns = self.at_ns + (TRUE.step_s(&StepShape::of(&step)) * 1e9) as u64;
                steps += 1;
                self.end_copies(end_ns);
                self.tell(end_ns, Event::StepFinished(result));
            }
        }

        /// Returns what the recording shows.
        fn observe(self) -> Observed {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("r.jsonl");
            fs::write(&path, self.lines.join("\n") + "\n").unwrap();
            from_recording(&path).unwrap()
        }
    }

    #[test]
    fn a_recorded_server_is_calibrated() {
        let mut server = Server::new(Config { max_batch_tokens: 128, max_batch_size: 8, ..Config::default() });
        for id in 0..20u64 {
            let prompt = (0..40 + 13 * id as u32).map(|at| at + 1000 * id as u32).collect();
            server.submit(id, id, prompt, 5 + (7 * id as u32) % 40);
        }
        let steps = server.run();
        let observed = server.observe();
        assert_eq!((observed.steps.len(), observed.periods.len()), (steps, 0));
        let found = calibrate("m", &observed.steps).unwrap();
        assert!(found.residuals.p95 < 1e-3, "{found:?}");
        for shape in [StepShape::decodes(8, 300), StepShape::prefill(128, 200), StepShape::decodes(1, 40)] {
            let (found, expected) = (found.time.step_s(&shape), TRUE.step_s(&shape));
            assert!((found / expected - 1.0).abs() < 0.05, "{shape:?}: {found}, {expected}");
        }
    }

    #[test]
    fn copies_to_a_tier_and_back_show_the_link() {
        let (name, write, eviction) = ("host".into(), Write::Through, "lru".into());
        let tier = TierConfig { name, blocks: 2000, write, eviction, shared: false };
        // Room for one prompt on the device.
        let mut server = Server::new(Config { device_blocks: 40, tiers: vec![tier], ..Config::default() });
        // Twenty prompts of 2 to 29 blocks, twice.
        for id in 0..40u64 {
            let number = id as u32 % 20;
            let prompt = (0..40 + 23 * number).map(|at| at + 1000 * number).collect();
            server.submit(server.at_ns, id, prompt, 3);
            server.run();
        }
        let observed = server.observe();
        let [fit] = fit_links(&observed.periods)[..] else { panic!("one link") };
        assert_eq!(fit.link, 0);
        assert!((fit.block_s * 1e9 / BLOCK_NS as f64 - 1.0).abs() < 0.05, "{fit:?}");
        assert!((fit.latency_s * 1e9 / COPY_NS as f64 - 1.0).abs() < 0.2, "{fit:?}");
    }
}
