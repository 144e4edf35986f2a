//! A search over a recorded replay, from flags to a verdict.

use clap::Parser;

use super::*;
use crate::explain::tests::{Rig, parsed};
use crate::{Cli, Command};

fn tuned(words: &[&str]) -> anyhow::Result<ExitCode> {
    let Command::Tune(args) = parsed(&[&["tune"], words].concat())? else { panic!("tune") };
    run(&args)
}

#[test]
fn a_search_says_what_it_tried_and_what_the_other_half_confirms() {
    let rig = Rig::new();
    let (path, json) = (&rig.recording[..], &rig.results[..]);
    let code = tuned(&[path, "--slo", "ttft=1s", "--runs", "6", "--json", json]).unwrap();
    let found = rig.read();
    // The recorded settings come first, and are no candidate.
    let tried = found["tried"].as_array().unwrap();
    assert!(tried.len() == 7 && tried[0]["changes"] == serde_json::json!([]), "{tried:?}");
    let is_confirmed = found["proof"]["confirmed"] == serde_json::json!(true);
    assert_eq!(code, if is_confirmed { ExitCode::SUCCESS } else { ExitCode::from(NOT_MET) });
    let refused = |words: &[&str]| Cli::try_parse_from([&["trunkline", "tune", "r"], words].concat()).is_err();
    assert!(refused(&[]) && refused(&["--slo", "ttft"]) && refused(&["--slo", "ttft=1s", "--runs", "0"]));
    assert!(tuned(&[path, "--slo", "itl_p99=1s"]).unwrap_err().to_string().contains("goodput needs a promise"));
}

#[test]
fn a_proof_is_printed_with_gain_range_and_risk() {
    let proof = Proof {
        requests: 80,
        within_before: 0.5,
        within_after: 0.75,
        gain: [0.1, 0.4],
        e2e_before_s: 2.0,
        e2e_after_s: 1.5,
        e2e_change: [-0.3, -0.2],
        slower: 0.05,
        confirmed: true,
    };
    let best = vec!["policy=sjf".parse().unwrap(), "max-batch-tokens=x2".parse().unwrap()];
    let found = Tuned { best, proof: Some(proof.clone()), recorded_within: 0.5, tried: Vec::new() };
    let core = trunkline_core::Config { max_batch_tokens: 1024, ..trunkline_core::Config::default() };
    let cluster = ClusterConfig::uniform(&core, 1);
    let text_of = |found: &Tuned| text(found, &cluster);
    assert_eq!(
        text_of(&found),
        "0 candidates on the first half, where 50.00 % of the requests were within the limits\n\
         best: --policy sjf --max-batch-tokens 2048\nrecommended\n\n\
         on 80 requests that the search did not see, with 95 % of resampled halves in the ranges:\n  \
         within the limits: 50.00 % -> 75.00 %, gain +25.00 points (+10.00 to +40.00)\n  \
         E2E mean: 2.0000 -> 1.5000 s (-30.0 % to -20.0 %)\n  \
         risk: 5.00 % of the requests take longer by a tenth or more"
    );
    let refuted = Tuned { proof: Some(Proof { confirmed: false, ..proof }), ..found.clone() };
    assert!(text_of(&refuted).contains("NOT recommended: the second half does not confirm it"));
    assert!(text_of(&Tuned { proof: None, ..found }).ends_with("nothing is better than the recorded settings"));
}
