//! Several steps in flight on modelled hardware.

use super::*;

/// A step takes 4 ms in all, 1 ms in each of four stages.
struct FourStages;

impl CostModel for FourStages {
    fn name(&self) -> &str {
        "four stages"
    }

    fn step_ns(&self, _: &StepShape) -> u64 {
        4 * MS
    }

    fn pipelined(&self, _: &StepShape) -> PipelinedStep {
        PipelinedStep { stage_ns: MS, last_ns: MS }
    }
}

fn with(max_steps_in_flight: u32, pipeline_stages: u32) -> Settings {
    let mut settings = settings(16, 4_000);
    settings.parallel = Parallel { pipeline: 4, ..Parallel::ONE };
    (settings.core.max_steps_in_flight, settings.core.pipeline_stages) = (max_steps_in_flight, pipeline_stages);
    settings
}

fn run_staged(trace: &Trace, settings: &Settings) -> Report {
    replay(trace, settings, &FourStages, &mut |_| {}).unwrap()
}

#[test]
fn a_full_pipeline_runs_a_step_per_stage_time() {
    // Forty requests at once, one block of prompt and 100 tokens each.
    let trace = trace((0..40).map(|n| request(0, 16, 100, &[n])).collect());
    let one = run_staged(&trace, &with(1, 1));
    let four = run_staged(&trace, &with(4, 4));
    assert_eq!((one.completed, four.completed), (40, 40));
    assert_eq!(one.tokens.output_tokens, four.tokens.output_tokens);
    // One step at a time: a step for the first to arrive, then 100 steps of 4 ms with all decodes. Four stages: a step with a quarter of them begins every millisecond.
    assert_eq!(one.duration_s, 0.404);
    assert!((0.4..0.42).contains(&four.duration_s), "{} s", four.duration_s);
    assert!((9.5..=10.5).contains(&four.batches.mean_batch), "{} decodes of forty in a step", four.batches.mean_batch);
    assert_eq!(four.fleet.utilisation, 1.0);
}

fn trace_of(requests: u32) -> Trace {
    trace((0..requests).map(|n| request(0, 16, 100, &[n])).collect())
}

#[test]
fn chunks_of_a_long_prefill_fill_the_pipeline() {
    // 64 chunks of a prompt that is alone: steps of 4 ms one after another, or one stage time each and three to drain.
    let trace = trace(vec![request(0, 64 * 2048, 1, &(0..256).collect::<Vec<_>>())]);
    let mut one = with(1, 1);
    let mut four = with(4, 4);
    for settings in [&mut one, &mut four] {
        settings.core.device_blocks = 20_000;
    }
    assert_eq!(run_staged(&trace, &one).latencies.ttft_s.max, 0.256);
    assert_eq!(run_staged(&trace, &four).latencies.ttft_s.max, 0.067);
}

#[test]
fn steps_sent_ahead_change_no_token_and_no_step_time() {
    let trace = trace((0..60).map(|n| request(u64::from(n) * 3, 513 + 8 * n, 20 + n % 7, &[n, 100 + n % 5])).collect());
    let mut ahead = with(2, 1);
    let mut one = with(1, 1);
    for settings in [&mut ahead, &mut one] {
        settings.parallel = Parallel::ONE;
    }
    let (ahead, one) = (run(&trace, &ahead), run(&trace, &one));
    assert_eq!((ahead.completed, ahead.tokens.output_tokens), (one.completed, one.tokens.output_tokens));
    // A request that arrives during a step waits for the end of the step that was sent ahead as well.
    assert!(
        ahead.latencies.ttft_s.mean > one.latencies.ttft_s.mean
            && ahead.latencies.ttft_s.mean < one.latencies.ttft_s.mean + 0.0012
    );
    assert!((ahead.duration_s - one.duration_s).abs() < 0.003);
}

#[test]
fn preemptions_and_failures_lose_nothing_with_steps_ahead() {
    let trace = trace((0..80).map(|n| request(u64::from(n), 100 + 5 * n, 60, &[n])).collect());
    for (steps, stages) in [(2, 1), (3, 1), (4, 4), (6, 4)] {
        let mut tight = with(steps, stages);
        tight.core.device_blocks = 150;
        tight.core.launch_watermark = 0.0;
        tight.replicas = 2;
        tight.routing.failures = vec!["0@0.05..0.08".parse().unwrap(), "1@0.2".parse().unwrap()];
        let report = run_staged(&trace, &tight);
        assert_eq!((report.completed, report.tokens.output_tokens), (80, 80 * 60), "{steps} steps, {stages} stages");
        assert!(report.preemptions > 0 && report.fleet.rerouted > 0);
        assert_eq!(report.digest, run_staged(&trace, &tight).digest);
    }
}

#[test]
fn stages_are_those_of_the_model() {
    let error = replay(&trace_of(1), &with(4, 2), &FourStages, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(
        error,
        "pipeline_stages is 2, but a replica has 4; give the replica as many with --parallel pp2, or leave the setting at 1"
    );
}

#[test]
fn tenants_can_be_compared_with_steps_sent_ahead() {
    let mut settings = Settings { replicas: 2, tenants: "0.8,0.2".parse().unwrap(), ..settings(16, 700) };
    settings.core.max_steps_in_flight = 2;
    let report = run(&conversations(300, 11), &settings);
    let tenants = &report.fairness.unwrap().tenants;
    assert_eq!(tenants.iter().map(|tenant| tenant.completed).sum::<u64>(), 300);
    assert!(tenants.iter().all(|tenant| tenant.contended_s <= 2.0 * report.duration_s), "{tenants:?}");
}
