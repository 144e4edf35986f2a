//! Each scenario has one test, or is listed here as a feature that the core does not have.

use std::collections::BTreeSet;

const SOURCES: [&str; 11] = [
    include_str!("geometry.rs"),
    include_str!("matching.rs"),
    include_str!("eviction.rs"),
    include_str!("swap.rs"),
    include_str!("admission.rs"),
    include_str!("pressure.rs"),
    include_str!("split_fuse.rs"),
    include_str!("time.rs"),
    include_str!("reuse.rs"),
    include_str!("stages.rs"),
    include_str!("../../../cluster/tests/several/scenarios.rs"),
];

/// Scenarios without a test: independent allocator groups in one engine, limits shared by data-parallel groups that take turns, and mock requests
/// that keep idle expert-parallel ranks in step. Here a core has one worker with its own pool and limits, and idle ranks get an empty step.
const WITHOUT_TEST: [u32; 3] = [12, 62, 101];

/// The tests with a number, each with the doc comment before it.
fn tests() -> Vec<(&'static str, String)> {
    let mut tests = Vec::new();
    for source in SOURCES {
        let parts: Vec<&str> = source.split("#[test]\nfn ").collect();
        for pair in parts.windows(2) {
            let name = pair[1].split("()").next().unwrap_or_default();
            let doc = pair[0].lines().rev().take_while(|line| line.starts_with("///")).collect();
            tests.extend(name.starts_with("scenario_").then_some((name, doc)));
        }
    }
    tests
}

#[test]
fn every_scenario_has_one_test() {
    let number = |test: &str| test.split('_').nth(1).and_then(|number| number.parse().ok());
    let numbers: BTreeSet<u32> = tests().iter().filter_map(|(name, _)| number(name)).chain(WITHOUT_TEST).collect();
    assert!(numbers.into_iter().eq(1..=103));
    assert_eq!(tests().len() + WITHOUT_TEST.len(), 103, "two tests have one number");
}

#[test]
fn a_test_that_differs_says_why() {
    let differing: Vec<_> = tests().into_iter().filter(|(_, doc)| doc.contains("KsanaLLM:")).collect();
    assert_eq!(differing.len(), 55);
    for (name, doc) in differing {
        assert!(["here:", "because"].iter().all(|word| doc.contains(word)), "{name}: {doc}");
    }
}
