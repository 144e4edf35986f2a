//! Explanations of requests of simulated fleets.

use trunkline_sim_replay::explain::{Of, Part, explain};

use crate::fixture::{recording, settings};

#[test]
fn decoding_after_rejected_drafts_is_no_recomputation() {
    let mut settings = settings(1, 4000);
    settings.core.max_drafts = 3;
    settings.draft_acceptance = 0.3;
    let (_folder, path) = recording(&settings, 24);
    let found = explain(&path, &Of::All, &mut |_| {}).unwrap();
    assert_eq!(found.requests.len(), 24);
    for request in &found.requests {
        assert!(request.preemptions.is_empty(), "there are blocks for all");
        assert_eq!(request.parts.of(Part::Recompute), 0, "request {}: {:?}", request.id, request.parts);
        assert!(request.parts.of(Part::Decode) > 0);
    }
}
