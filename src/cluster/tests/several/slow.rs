//! Engines that are slower than others, and clients that wait for their answers: what becomes of the throughput under the routers that look at loads.

use std::collections::BTreeMap;

use trunkline_cluster::{ClusterConfig, ROUTER_DEFAULT};
use trunkline_core::Config;

use crate::rig::{Rig, config};

const MS: u64 = 1_000_000;
const CLIENTS: u64 = 12;

/// Returns the requests that end in half a minute. Steps of the engines take so long each, and every client asks again when it has its answer.
fn finished(router: &str, steps_ns: &[u64]) -> usize {
    // All clients fit into one batch.
    let core = Config { max_batch_size: 16, ..config() };
    let config = ClusterConfig { router: router.into(), ..ClusterConfig::uniform(&core, steps_ns.len()) };
    let mut rig = Rig::new(&config);
    let (mut next, mut ends_ns) = (0, BTreeMap::new());
    loop {
        while next < rig.ends.len() as u64 + CLIENTS {
            next += 1;
            rig.submit(next, 20, 1 + next as u32 % 20);
        }
        rig.steps.keys().for_each(|engine| {
            ends_ns.entry(*engine).or_insert(rig.now_ns + steps_ns[*engine as usize]);
        });
        let (engine, end_ns) = ends_ns.iter().map(|(at, ns)| (*at, *ns)).min_by_key(|(_, ns)| *ns).unwrap();
        if end_ns > 30_000 * MS {
            return rig.ends.len();
        }
        ends_ns.remove(&engine);
        rig.now_ns = rig.now_ns.max(end_ns);
        rig.answer(engine);
    }
}

#[test]
fn slow_engines_cost_no_more_than_if_they_were_not_there() {
    for router in [ROUTER_DEFAULT, "least_loaded"] {
        for n in [2, 3] {
            let whole = finished(router, &vec![50 * MS; n]);
            for (k, times) in (1..n).flat_map(|k| [3, 10].map(|times| (k, times))) {
                let steps_ns: Vec<_> = (0..n).map(|at| if at < k { 50 * MS * times } else { 50 * MS }).collect();
                let some = finished(router, &steps_ns);
                // One in twenty for what runs on them when the time is over.
                assert!(
                    some * n * 20 >= whole * (n - k) * 19,
                    "{router}: {k} of {n} engines take {times} times as long: {some} of {whole} requests"
                );
            }
        }
    }
}
