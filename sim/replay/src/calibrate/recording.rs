//! Steps of a recording: from the core's request for a step to the end.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use trunkline_cluster::{EngineId, Output};
use trunkline_core::event::Action;

use crate::recorded::{RecordingError, replay_watched};
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
}

impl Engine {
    /// Ends the oldest step in flight if it has this id. A step sent ahead begins with the end of the step before.
    fn finish(&mut self, id: u64, at_ns: u64) -> Option<Sample> {
        let step = self.in_flight.pop_front_if(|step| step.id == id)?;
        let begun_ns = step.begun_ns.max(std::mem::replace(&mut self.ended_ns, at_ns));
        Some(Sample { shape: step.shape, time_s: (at_ns - begun_ns) as f64 / 1e9 })
    }
}

/// Returns the steps of the recording at `path`, of all engines, by replaying its inputs through a cluster. Steps lost with their worker
/// are skipped. The engines of a server are alike, so their steps are samples of one cost model.
///
/// # Errors
///
/// [`RecordingError`] if the recording cannot be read or replayed.
pub fn from_recording(path: &Path) -> Result<Vec<Sample>, RecordingError> {
    let mut samples = Vec::new();
    let mut engines: BTreeMap<EngineId, Engine> = BTreeMap::new();
    replay_watched(path, &mut |_| {}, &mut |shown| {
        if let Some(engine) = shown.lost {
            engines.remove(&engine);
        }
        if let Some((engine, id)) = shown.finished {
            samples.extend(engines.entry(engine).or_default().finish(id, shown.at_ns));
        }
        for output in shown.outputs {
            if let Output::Engine(engine, Action::RunStep(step)) = output {
                let begun = InFlight { id: step.id, begun_ns: shown.at_ns, shape: StepShape::of(step) };
                engines.entry(*engine).or_default().in_flight.push_back(begun);
            }
        }
    })?;
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use trunkline_cluster::record::{self, Line};
    use trunkline_core::event::Event;
    use trunkline_core::step::StepResult;
    use trunkline_core::{BlockHash, Config, Core, Request, RequestId};

    use super::*;
    use crate::calibrate::calibrate;
    use trunkline_sim_perf::cost::{StepErrors, StepTime};

    /// What a step of the recorded server takes, seconds.
    const TRUE: StepTime = StepTime {
        model: "m",
        constant_s: 5e-3,
        token_s: 30e-6,
        sequence_s: 100e-6,
        context_token_s: 1e-6,
        prefill_pair_s: 20e-9,
        against: "",
        errors: StepErrors { prefill: None, decode: None, mixed: None },
    };

    #[test]
    fn a_recorded_server_is_calibrated() {
        let config = Config { max_batch_tokens: 128, max_batch_size: 8, ..Config::default() };
        let mut lines =
            vec![Line::Header { trunkline_recording: record::VERSION, config: Box::new(config.clone()) }.to_json()];
        let mut core = Core::new(config).unwrap();
        let mut tell = |core: &mut Core, at_ns: u64, event: Event| {
            lines.push(Line::Event { at_ns, engine: None, event: event.clone() }.to_json());
            let mut actions = Vec::new();
            core.handle(at_ns, event, &mut actions);
            actions
        };
        let mut pending = tell(&mut core, 0, Event::WorkerJoined);
        for id in 0..20u64 {
            let prompt = (0..40 + 13 * id as u32).map(|at| at + 1000 * id as u32).collect();
            let mut request = Request::new(RequestId(id), BlockHash(5), prompt, 5 + (7 * id as u32) % 40);
            request.hash_prompt(16);
            pending.extend(tell(&mut core, id, Event::Submit(Box::new(request))));
        }
        let mut at_ns = 100;
        let mut steps = 0;
        while let Some(Action::RunStep(step)) = pending.iter().find(|action| matches!(action, Action::RunStep(_))) {
            let mut result = StepResult { step: step.id, ..StepResult::default() };
            step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[7] } else { &[] }));
            at_ns += (TRUE.step_s(&StepShape::of(step)) * 1e9) as u64;
            steps += 1;
            pending = tell(&mut core, at_ns, Event::StepFinished(result));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let samples = from_recording(&path).unwrap();
        assert_eq!(samples.len(), steps);
        let found = calibrate("m", &samples).unwrap();
        assert!(found.residuals.p95 < 1e-3, "{found:?}");
        let (found, expected) = (found.time.coefficients(), TRUE.coefficients());
        assert!(found.iter().zip(expected).all(|(found, expected)| (found / expected - 1.0).abs() < 0.05), "{found:?}");
    }
}
