//! Answer of a plan if step times are shorter or longer than modelled, by the error or the range that the cost model states.

use serde::Serialize;

use super::{Candidate, News, PlanError, Probe, Prober, Search};
use trunkline_sim_perf::cost::{CostModel, Largest, PipelinedStep, StepErrors, StepShape, TimeRange};
use trunkline_sim_workload::trace::Trace;

/// Answers with all step times off by what the cost model states.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Range {
    /// How far step times may be off.
    #[serde(flatten)]
    pub doubt: Doubt,
    /// Best probe if steps are as fast as that; `None` if none meets the SLOs.
    pub if_faster: Option<Probe>,
    /// Best probe if steps are as slow as that; `None` if none meets the SLOs.
    pub if_slower: Option<Probe>,
}

/// How far step times may be off: the largest of all kinds of replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Doubt {
    /// Typical relative errors by kind of batch, without sign, against measured kernels.
    Errors {
        /// Of steps with prefills alone.
        prefill_error: f64,
        /// Of steps with decodes alone.
        decode_error: f64,
        /// Of steps with both.
        mixed_error: f64,
    },
    /// Range of real times, where no error was measured.
    Times(TimeRange),
}

/// Greatest error by which steps are taken to be faster than they are: at 1 a step would last for ever.
const ERROR_MAX: f64 = 0.9;

/// Cost model whose predictions are all wrong by as much as it states.
struct Wrong<'a> {
    cost: &'a (dyn CostModel + Sync),
    doubt: Doubt,
    /// `true` if the model predicts too short steps.
    slower: bool,
}

impl Wrong<'_> {
    /// Returns the true time of a step that the model gives `ns`.
    fn scaled(&self, replica: usize, shape: &StepShape, ns: u64) -> u64 {
        if let Doubt::Times(_) = self.doubt {
            // A step without work takes no time, launches included.
            let range = self.cost.range(replica).filter(|_| ns > 0);
            return range.map_or(ns, |range| range.ns(ns)[usize::from(self.slower)]);
        }
        let error = self.cost.errors(replica).of_shape(shape).map_or(0.0, |errors| errors.typical());
        let predicted_to_true = if self.slower { 1.0 - error.min(ERROR_MAX) } else { 1.0 + error };
        (ns as f64 / predicted_to_true).round() as u64
    }

    fn scaled_both(&self, replica: usize, shape: &StepShape, step: PipelinedStep) -> PipelinedStep {
        PipelinedStep {
            stage_ns: self.scaled(replica, shape, step.stage_ns),
            last_ns: self.scaled(replica, shape, step.last_ns),
        }
    }
}

impl CostModel for Wrong<'_> {
    fn name(&self) -> &str {
        self.cost.name()
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        self.scaled(0, shape, self.cost.step_ns(shape))
    }

    fn largest(&self, replica: usize) -> Option<Largest> {
        self.cost.largest(replica)
    }

    fn pipelined(&self, shape: &StepShape) -> PipelinedStep {
        self.scaled_both(0, shape, self.cost.pipelined(shape))
    }

    fn replica_pipelined(&self, replica: usize, shape: &StepShape) -> PipelinedStep {
        self.scaled_both(replica, shape, self.cost.replica_pipelined(replica, shape))
    }

    fn lock_step_ns(&self, replica: usize, shapes: &[StepShape]) -> u64 {
        let all = shapes.iter().copied().fold(StepShape::default(), StepShape::and);
        self.scaled(replica, &all, self.cost.lock_step_ns(replica, shapes))
    }

    fn replica_step_ns(&self, replica: usize, shape: &StepShape) -> u64 {
        self.scaled(replica, shape, self.cost.replica_step_ns(replica, shape))
    }
}

/// Searches again with step times off both ways, from the number of the answer on, or from the easiest one if there is no answer.
/// Returns `None` if the cost model states neither an error nor a range.
///
/// # Errors
///
/// [`PlanError`] if a replay fails.
pub(super) fn of(
    trace: &Trace,
    candidate: &Candidate<'_>,
    search: &Search<'_>,
    progress: &(dyn Fn(News) + Sync),
    (first, found, last): (i64, Option<i64>, i64),
) -> Result<Option<Range>, PlanError> {
    let Some(doubt) = doubt(candidate) else { return Ok(None) };
    let best = |slower: bool| {
        let cost = Wrong { cost: candidate.cost, doubt, slower };
        let candidate =
            Candidate { settings: candidate.settings.clone(), cost: &cost, price_hour: candidate.price_hour };
        let mut prober = Prober { trace, candidate: &candidate, search, progress, done: Vec::new() };
        let number = prober.from(found.unwrap_or(last), first, last)?;
        Ok::<_, PlanError>(number.and_then(|number| prober.into_probe(number)))
    };
    let (if_faster, if_slower) = (best(false)?, if found.is_some() { best(true)? } else { None });
    Ok(Some(Range { doubt, if_faster, if_slower }))
}

/// Returns the errors of all kinds of batch if they were measured on all kinds of replica, else the widest range of times.
fn doubt(candidate: &Candidate<'_>) -> Option<Doubt> {
    let kinds = || 0..candidate.settings.n_replicas() as usize;
    let all = kinds().map(|replica| candidate.cost.errors(replica)).reduce(StepErrors::or_larger);
    if let StepErrors { prefill: Some(prefill), decode: Some(decode), mixed: Some(mixed) } = all.unwrap_or_default() {
        return Some(Doubt::Errors {
            prefill_error: prefill.typical(),
            decode_error: decode.typical(),
            mixed_error: mixed.typical(),
        });
    }
    TimeRange::widest(kinds().map(|replica| candidate.cost.range(replica))).map(Doubt::Times)
}

impl Prober<'_> {
    /// Probes `start`, then away from it in doubling steps until the result changes, then between. Returns the least successful number.
    pub(super) fn from(&mut self, start: i64, first: i64, last: i64) -> Result<Option<i64>, PlanError> {
        let easier = !self.probe(&[start])?[0];
        let (mut reached, mut step) = (start, 1);
        loop {
            let next = if easier { last.min(reached + step) } else { first.max(reached - step) };
            if next == reached {
                return Ok((!easier).then_some(reached));
            }
            if self.probe(&[next])?[0] == easier {
                let (missed, met) = if easier { (reached, next) } else { (next, reached) };
                return self.narrow(missed, met).map(Some);
            }
            (reached, step) = (next, 2 * step);
        }
    }

    /// Returns the probe of a number.
    pub(super) fn into_probe(self, number: i64) -> Option<Probe> {
        self.done.into_iter().find(|(other, _)| *other == number).map(|(_, probe)| probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_sim_perf::cost::Residuals;

    /// A millisecond for each token of all ranks, of which prefills are off by a quarter and decodes by a half.
    struct Off;

    impl CostModel for Off {
        fn name(&self) -> &str {
            "off"
        }

        fn step_ns(&self, shape: &StepShape) -> u64 {
            1_000_000 * shape.tokens
        }

        fn errors(&self, _: usize) -> StepErrors {
            let of = |median| Some(Residuals { median, ..Residuals::default() });
            StepErrors { prefill: of(0.25), decode: of(0.5), mixed: of(0.6) }
        }

        fn lock_step_ns(&self, _: usize, shapes: &[StepShape]) -> u64 {
            shapes.iter().map(|shape| self.step_ns(shape)).sum()
        }
    }

    #[test]
    fn a_step_of_ranks_is_off_by_the_error_of_all_its_kinds_of_batch() {
        let doubt = Doubt::Errors { prefill_error: 0.25, decode_error: 0.5, mixed_error: 0.6 };
        let ns = |slower, shapes: [StepShape; 2]| Wrong { cost: &Off, doubt, slower }.lock_step_ns(0, &shapes);
        let (prefill, decodes) = (StepShape::prefill(3, 0), StepShape::decodes(2, 9));
        assert_eq!(ns(true, [decodes, decodes]), 8_000_000);
        assert_eq!(ns(true, [prefill, prefill]), 8_000_000);
        assert_eq!(ns(false, [prefill, StepShape::default()]), 2_400_000);
        assert_eq!(ns(true, [prefill, decodes]), 12_500_000, "both, though no rank has both");
    }
}
