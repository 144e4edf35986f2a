//! Shares of tenants over all engines of a cluster.

use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;

use crate::rig::{Rig, config};

/// Tokens of each request, prompt and answer.
const TOKENS: u32 = 32 + 16;

/// Tenant 0 floods three engines with 60 requests, then tenant 1 asks for 15. Returns the tokens of both tenants that were served up to
/// the end of tenant 1's last request: prompt and answer of each request that ended.
fn served(policy: &str, router: &str) -> (u32, u32) {
    let core = Config { policy: policy.into(), max_batch_size: 2, ..config() };
    let mut rig = Rig::new(&ClusterConfig { router: router.into(), ..ClusterConfig::uniform(&core, 3) });
    (100..160).for_each(|id| rig.submit_for(0, id, 32, 16));
    (1..=15).for_each(|id| rig.submit_for(1, id, 32, 16));
    while (1..=15).any(|id| !rig.ends.contains_key(&id)) {
        (0..3)
            .filter(|engine| rig.steps.contains_key(engine))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|engine| rig.answer(engine));
    }
    let of = |ids: std::ops::Range<u64>| rig.ends.keys().filter(|id| ids.contains(id)).count() as u32 * TOKENS;
    (of(100..160), of(1..16))
}

#[test]
fn a_tenant_that_floods_all_engines_takes_no_more_than_its_share_from_another() {
    // What runs when tenant 1 comes, and one request more on each place of the batch.
    let slack = 2 * 3 * 2 * TOKENS;
    for router in ["least_loaded", "round_robin", "random2"] {
        let (flood, other) = served("vtc", router);
        assert_eq!(other, 15 * TOKENS);
        assert!(flood <= other + slack, "{router}: {flood} against {other}");
    }
    let (flood, _) = served("fcfs", "least_loaded");
    assert_eq!(flood, 60 * TOKENS, "first come, first served has no shares");
}
