//! Decode speed with eviction, as a ratio to the run without eviction.

use std::sync::Arc;

use trunkline_core::h2o::{REGISTRY, Rows, Scorer};
use trunkline_port::ScoreKind;

use super::quality::{Case, Lengths, prompt_scores};
use crate::measure::{quantile, time_ns};
use trunkline::h2o::rig::{Eviction, Rig, Run, Seq};
use trunkline::h2o::texts::Text;

/// Steps of each way: every way runs one step, then every way the next one, in the other order.
const STEPS: usize = 48;

/// Standard error of a median by that of a mean, for a normal distribution, and standard deviation by the median distance from the median.
const MEDIAN_ERROR: f64 = 1.2533;
const DEVIATION: f64 = 1.4826;

/// Decode steps of one batch size, milliseconds, by way; all ways take turns.
#[derive(Clone, Debug)]
pub struct Speed {
    pub batch: usize,
    /// Steps of a server from one with scores to the next; here each step of a way with scores has them.
    pub score_interval: u32,
    /// Without eviction and without scores.
    pub off_ms: Vec<f64>,
    /// With scores, without eviction.
    pub probe_ms: Vec<f64>,
    /// With scores, and blocks evicted.
    pub on_ms: Vec<f64>,
}

impl Speed {
    /// Returns tokens/s with eviction by tokens/s without.
    pub fn on_by_off(&self) -> f64 {
        median(&self.off_ms) / median(&self.on_ms)
    }

    /// Returns the share of a step without eviction that scores cost, per cent, on average over scored steps and others: the median over scored
    /// steps, each against the one next to it, by the interval of scored steps.
    pub fn scores_percent(&self) -> f64 {
        median(&self.scores_percents()) / f64::from(self.score_interval)
    }

    /// Returns the standard error of [`Self::scores_percent`], from the distances of the steps from their median, so that a few steps that other work of
    /// the machine held up count little.
    pub fn scores_error(&self) -> f64 {
        let costs = self.scores_percents();
        let middle = median(&costs);
        let distances: Vec<f64> = costs.iter().map(|cost| (cost - middle).abs()).collect();
        MEDIAN_ERROR * DEVIATION * median(&distances) / (costs.len() as f64).sqrt() / f64::from(self.score_interval)
    }

    fn scores_percents(&self) -> Vec<f64> {
        self.off_ms.iter().zip(&self.probe_ms).map(|(off, probe)| (probe / off - 1.0) * 100.0).collect()
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// Measures decode steps at the end of a text, for each batch size.
///
/// # Errors
/// If the worker fails or blocks run out.
pub fn measure(
    rig: &mut Rig,
    text: &Text,
    lengths: Lengths,
    case: &Case,
    batches: &[usize],
) -> anyhow::Result<Vec<Speed>> {
    let mut origin = rig.start();
    let prompt = &text.tokens[..lengths.prompt];
    rig.prefill(&mut origin, prompt, false)?;
    let mut thin = rig.fork(&origin);
    let scorer: Arc<dyn Scorer> = REGISTRY.make(&case.scorer, case.settings[0])?.into();
    let (kind, score_interval) = (scorer.needs().kind, scorer.needs().decode_interval.max(1));
    let state = prompt_scores(rig, &mut origin, prompt, &*scorer, &case.settings, &[])?;
    thin.eviction = Some(Eviction { scorer, settings: case.settings.clone(), state });
    // Both are as long, and one has had its plans.
    for at in 0..lengths.after {
        let token = [text.tokens[lengths.prompt + at]];
        let scored = thin.eviction.as_mut().and_then(|Eviction { scorer, state, .. }| {
            let rows = state.begin_decode(&scorer.needs());
            (rows > 0).then_some((rows, kind))
        });
        let mut runs = [
            Run { seq: &mut origin, tokens: &token, scored: None, sample: true, again: false },
            Run { seq: &mut thin, tokens: &token, scored, sample: true, again: false },
        ];
        let answers = rig.step(&mut runs)?;
        if let Some(Eviction { scorer, settings, state }) = &mut thin.eviction {
            if scored.is_some() {
                state.report(&**scorer, &settings[0], &answers[1].scores, rig.block(), Rows { n: 1, prefill: false });
            }
            state.count_steps(1);
        }
        rig.evict(&mut thin);
    }
    let speed = |batch: &usize| take_turns(rig, [&origin, &origin, &thin], *batch, score_interval);
    let speeds = batches.iter().map(speed).collect();
    rig.end(origin);
    rig.end(thin);
    speeds
}

/// Runs forks of three sequences in turns: off, probe, on.
fn take_turns(rig: &mut Rig, of: [&Seq; 3], batch: usize, score_interval: u32) -> anyhow::Result<Speed> {
    let mut ways: Vec<Vec<Seq>> = of.iter().map(|seq| (0..batch).map(|_| rig.fork(seq)).collect()).collect();
    let mut times = [const { Vec::new() }; 3];
    for at in 0..STEPS {
        // What a step leaves in the caches of the processor must not always serve the same way.
        for way in if at % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] } {
            let seqs = &mut ways[way];
            let scored = (way > 0).then_some((1, ScoreKind::Mean));
            let mut runs: Vec<Run<'_>> =
                seqs.iter_mut().map(|seq| Run { seq, tokens: &[40], scored, sample: true, again: false }).collect();
            let mut result = Ok(Vec::new());
            let ms = time_ns(|| result = rig.step(&mut runs)) / 1e6;
            result?;
            // The first step starts the forks.
            if at > 0 {
                times[way].push(ms);
            }
        }
    }
    ways.into_iter().flatten().for_each(|seq| rig.end(seq));
    let [off_ms, probe_ms, on_ms] = times;
    Ok(Speed { batch, score_interval, off_ms, probe_ms, on_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_compare_medians() {
        let off_ms = vec![10.0, 99.0, 10.0];
        let speed = Speed { batch: 1, score_interval: 1, off_ms, probe_ms: vec![10.1; 3], on_ms: vec![8.0; 3] };
        assert_eq!(speed.on_by_off(), 1.25);
        assert!((speed.scores_percent() - 1.0).abs() < 1e-9);
        assert!(speed.scores_error() < 1e-9, "one step of three is held up");
        let costs = Speed { off_ms: vec![100.0; 5], probe_ms: vec![100.0, 101.0, 102.0, 103.0, 104.0], ..speed };
        assert!((costs.scores_percent() - 2.0).abs() < 1e-9);
        // Distances of 2, 1, 0, 1 and 2: a median of 1.
        assert!((costs.scores_error() - 1.2533 * 1.4826 / 5f64.sqrt()).abs() < 1e-9);
        // One step in four has scores.
        let quarter = Speed { score_interval: 4, ..costs.clone() };
        assert!((quarter.scores_percent() - 0.5).abs() < 1e-9);
        assert!((quarter.scores_error() - costs.scores_error() / 4.0).abs() < 1e-9);
    }
}
