//! Reads a trace request by request: `cargo run -p trunkline-sim-workload --example read -- TRACE`.
//!
//! The format is found by the first line. The file may be of any size: one request at a time is in memory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use trunkline_sim_workload::trace::TraceReader;

/// Nanoseconds in a minute.
const MINUTE: u64 = 60_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/traces/chat-and-agents.jsonl.gz");
    let path = std::env::args_os().nth(1).map_or_else(|| own.into(), PathBuf::from);
    let reader = TraceReader::open(&path, None)?;
    println!("{}: {}", path.file_name().unwrap_or_default().display(), reader.format());

    // Requests, prompt tokens and output tokens of each minute.
    let mut minutes = BTreeMap::<u64, [u64; 3]>::new();
    for request in reader {
        let request = request?;
        let [requests, input, output] = minutes.entry(request.arrival_ns / MINUTE).or_default();
        *requests += 1;
        *input += u64::from(request.input_tokens);
        *output += u64::from(request.output_tokens);
    }
    println!("minute  requests  prompt tokens  output tokens");
    for (minute, [requests, input, output]) in &minutes {
        println!("{minute:6}  {requests:8}  {input:13}  {output:13}");
    }
    Ok(())
}
