//! Observers of whole replays: series, timelines, pages and rows of figures agree with the report.

use trunkline_core::Config;
use trunkline_sim_perf::cost::{CostModel, Parallel, StepShape};
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::Settings;
use trunkline_sim_replay::group::Group;
use trunkline_sim_workload::trace::{Content, formats};
use trunkline_sim_workload::{Trace, TraceRequest};

#[path = "watched/figures.rs"]
mod figures;
#[path = "watched/html.rs"]
mod html;
#[path = "watched/series.rs"]
mod series;
#[path = "watched/timeline.rs"]
mod timeline;

/// Every step takes a millisecond, and a millisecond more for each token of a prompt, so that loading blocks pays.
struct SlowPrefill;

impl CostModel for SlowPrefill {
    fn name(&self) -> &str {
        "slow prefill"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        1_000_000 * (1 + shape.prefill_tokens)
    }
}

fn settings(replicas: u32) -> Settings {
    let mut settings = Settings {
        replicas,
        core: Config { block_size: 16, device_blocks: 100, ..Settings::core() },
        draft_acceptance: 0.5,
        ..Settings::new(*hardware::by_name("h100-80g").unwrap(), *model::by_name("llama-3.1-8b").unwrap())
    };
    settings.routing.router = "round_robin".into();
    settings
}

/// Prompts that share their beginnings in seven groups, eight blocks of 512 tokens at most, ten in a second.
fn trace(n: u64) -> Trace {
    let request = |i: u64| TraceRequest {
        arrival_ns: i * 100_000_000,
        input_tokens: 1024 + (i % 3) as u32 * 100,
        output_tokens: 1 + (i % 40) as u32,
        content: Content::Blocks([(i % 7) as u32, 100 + i as u32, 1000 + i as u32].into()),
        ..TraceRequest::default()
    };
    Trace { format: formats::MOONCAKE, requests: (0..n).map(request).collect() }
}

/// One replica, and two of another kind.
fn mixed() -> Settings {
    let mut settings = settings(1);
    settings.core.device_blocks = 900;
    settings.others = vec![Group {
        hardware: *hardware::by_name("a100-80g").unwrap(),
        parallel: Parallel::ONE,
        replicas: 2,
        device_blocks: 1100,
        swap_block_ns: 0,
        recompute_token_ns: 0,
        pipeline_stages: 1,
        max_steps_in_flight: 1,
        max_batch_tokens: settings.core.max_batch_tokens,
    }];
    settings
}
