//! Steps larger than any that their times were measured with.

use super::*;
use trunkline_sim_perf::cost::Largest;

/// Steps of a millisecond, measured up to some size.
struct MeasuredUpTo(Largest);

impl CostModel for MeasuredUpTo {
    fn name(&self) -> &str {
        "measured"
    }

    fn step_ns(&self, _: &StepShape) -> u64 {
        MS
    }

    fn largest(&self, _: usize) -> Option<Largest> {
        Some(self.0)
    }
}

#[test]
fn a_report_names_them_and_what_was_measured() {
    // Three prompts of 100 tokens at once, in steps of 128.
    let trace = trace((0..3).map(|at| request(0, 100, 5, &[at])).collect());
    let mut settings = settings(512, 1000);
    (settings.core.max_batch_tokens, settings.core.max_batch_size) = (128, 8);
    let extrapolated_after = |sequences, tokens, context| {
        let cost = MeasuredUpTo(Largest { sequences, tokens, context });
        let report = replay(&trace, &settings, &cost, &mut |_| {}).unwrap();
        report.batches.extrapolated.map(|steps| steps.to_string())
    };
    let extrapolated = |sequences, tokens| extrapolated_after(sequences, tokens, None);
    assert_eq!(extrapolated(3, 128), None);
    let few = "extrapolated for steps of up to 3 sequences (measured: 2)";
    assert_eq!(extrapolated(2, 128).as_deref(), Some(few));
    let short = "extrapolated for steps of up to 128 tokens (measured: 100)";
    assert_eq!(extrapolated(3, 100).as_deref(), Some(short));
    // The last of five tokens reads 104: of the prompt, and its own and the three before.
    assert_eq!(extrapolated_after(3, 128, Some(104)), None);
    let long = "extrapolated for steps of up to 104 tokens of context in decodes (measured: 103)";
    assert_eq!(extrapolated_after(3, 128, Some(103)).as_deref(), Some(long));
    let both =
        "extrapolated for steps of up to 3 sequences (measured: 2), 104 tokens of context in decodes (measured: 103)";
    assert_eq!(extrapolated_after(2, 128, Some(103)).as_deref(), Some(both));
    let of = |sequences, measured| {
        let largest = |sequences| Largest { sequences, tokens: 1, context: None };
        Extrapolated { largest: largest(sequences), measured: largest(measured) }
    };
    assert_eq!(of(20, 16).or_further(of(24, 16)), of(24, 16));
    assert_eq!(of(20, 16).or_further(of(70, 64)), of(20, 16), "another kind of replica, less far beyond its own");
    assert_eq!(of(20, 16).or_further(of(100, 64)), of(100, 64));
    assert_eq!(run(&trace, &settings).batches.extrapolated, None, "a model without an end");
}
