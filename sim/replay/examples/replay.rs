//! Replays a trace under two policies: `cargo run -p trunkline-sim-replay --example replay -- TRACE`.
//!
//! The scheduler is that of the server; the clock and the worker are modelled. `trunkline replay` has the same with all its flags.

use std::path::PathBuf;

use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::{Settings, replay};
use trunkline_sim_workload::Trace;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/traces/chat-and-agents.jsonl.gz");
    let path = std::env::args_os().nth(1).map_or_else(|| own.into(), PathBuf::from);
    let trace = Trace::load(&path, None, Some(400))?;

    let mut settings = Settings::new(*hardware::by_name("h100-80g")?, *model::by_name("llama-3.1-8b")?);
    settings.core.device_blocks = settings.fitting_device_blocks()?;
    let cost = settings.cost_model()?;
    println!("policy  completed  TTFT p50, s  TTFT p99, s   hits  digest");
    for policy in ["fcfs", "sjf"] {
        policy.clone_into(&mut settings.core.policy);
        let report = replay(&trace, &settings, &*cost, &mut |_| {})?;
        let (ttft, hits) = (&report.latencies.ttft_s, 100.0 * report.tokens.prefix_hit_ratio);
        println!(
            "{policy:6}  {:9}  {:11.4}  {:11.4}  {hits:3.0} %  {}",
            report.completed, ttft.p50, ttft.p99, report.digest
        );
    }
    Ok(())
}
