//! Routing benchmark: the choice of an engine for turns of long sessions and for short chats, on fleets of two sizes.

use trunkline_cluster::Load;
use trunkline_cluster::router::{self, EngineFacts, Incoming, RouterContext};
use trunkline_core::BlockHash;

use super::measure::{Report, quantile, time_ns};

const NOTES: [&str; 2] = [
    "Sessions share a beginning of 20,480 tokens, or of 1,024 in short chats, that all engines know. Each turn adds 2,048 tokens, or 512.",
    "A pick takes in the prompt's hashes and the loads of all engines, and keeps what the engine will cache.",
];
const BLOCK_SIZE: u32 = 16;
/// Turns of a session.
const TURNS: u128 = 8;

/// Sizes of prompts, tokens.
struct Shape {
    name: &'static str,
    common: u32,
    own: u32,
    turn: u32,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "100k tokens", common: 20_480, own: 77_824, turn: 2_048 },
    Shape { name: "3k tokens", common: 1_024, own: 1_024, turn: 512 },
];

pub fn run(quick: bool) -> Report {
    let mut report = Report::new("route", quick, NOTES.to_vec());
    for spec in ["prefix_affinity", "added_time"] {
        for engines in if quick { [4, 8] } else { [256, 1024] } {
            for shape in &SHAPES {
                picks(&mut report, spec, engines, shape, if quick { 20 } else { 3_000 });
            }
        }
    }
    report
}

/// Returns the chained hashes of the prompt of a session's turn.
fn hashes(shape: &Shape, session: u128, turn: u128) -> Vec<BlockHash> {
    let (common, own) = (shape.common / BLOCK_SIZE, shape.own / BLOCK_SIZE);
    let n = common + own + turn as u32 * shape.turn / BLOCK_SIZE;
    let mixed = |name: u128| BlockHash((name + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) >> 11);
    (0..n).map(|at| mixed(if at < common { at.into() } else { (session + 1) << 32 | u128::from(at) })).collect()
}

fn picks(report: &mut Report, spec: &str, engines: usize, shape: &Shape, n: u128) {
    let facts = EngineFacts { kind: 0, cache_blocks: 100_000, token_ns: 20_000, decodes: true };
    let context = RouterContext { engines: vec![facts; engines], block_size: BLOCK_SIZE };
    let mut router = router::make(spec, context).expect("the router is known");
    let mut loads = vec![Load { open: true, ..Load::default() }; engines];
    let sessions = n / TURNS;
    let mut times = Vec::new();
    for number in 0..n {
        let hashes = hashes(shape, number % sessions.max(1), number / sessions.max(1));
        let prompt_tokens = hashes.len() as u32 * BLOCK_SIZE + 1;
        let incoming = Incoming { number: number as u64, prompt_tokens, hashes: &hashes };
        let mut at = 0;
        let ns = time_ns(|| at = router.pick(number as u64 * 1_000_000, &incoming, &loads).engine);
        times.push(ns / 1e3);
        loads[at].requests += 1;
        loads[at].tokens += u64::from(prompt_tokens);
    }
    let case = format!("{spec}, {engines} engines, {}", shape.name);
    times.sort_by(f64::total_cmp);
    report.add("pick at p99", &case, "us", vec![quantile(&times, 0.99)]);
    report.add("pick", case, "us", times);
}
