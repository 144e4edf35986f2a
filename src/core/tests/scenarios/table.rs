//! The list of scenarios in `docs/results/scenarios.md` names every scenario in which the core differs, and each scenario has a test.

use std::collections::BTreeSet;

const TABLE: &str = include_str!("../../../../docs/results/scenarios.md");
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

/// Scenario in which the core differs, or that it does not have yet.
struct Row {
    number: u32,
    here: &'static str,
}

fn rows() -> Vec<Row> {
    let cells =
        |line: &'static str| -> Vec<&'static str> { line.trim_matches('|').split('|').map(str::trim).collect() };
    let row = |line| match cells(line)[..] {
        [number, _, here] => number.parse().ok().map(|number| Row { number, here }),
        _ => panic!("not three cells: {line}"),
    };
    TABLE.lines().filter(|line| line.starts_with('|')).filter_map(row).collect()
}

/// The names of all tests with a number.
fn tests() -> Vec<&'static str> {
    let named = SOURCES.iter().flat_map(|source| source.split("#[test]\nfn ").skip(1));
    named
        .filter_map(|test| test.split_once("()"))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("scenario_"))
        .collect()
}

/// The number in the name of a test.
fn number(test: &str) -> u32 {
    test.split('_').nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{test} has no number"))
}

#[test]
fn every_scenario_has_its_test_or_comes_later() {
    let numbers: BTreeSet<u32> = tests().into_iter().map(number).collect();
    assert_eq!(numbers.len(), tests().len(), "two tests have one number");
    let later: BTreeSet<u32> =
        rows().iter().filter(|row| row.here.starts_with("later: ")).map(|row| row.number).collect();
    assert!(numbers.is_disjoint(&later), "{later:?} come later, and have tests");
    assert!(numbers.union(&later).copied().eq(1..=103), "neither a test nor later");
}

#[test]
fn a_test_says_why_it_differs_exactly_if_the_table_does() {
    let listed: Vec<u32> = rows().iter().map(|row| row.number).collect();
    assert!(listed.is_sorted_by(|a, b| a < b), "{listed:?}");
    for test in tests() {
        let source = SOURCES.iter().find_map(|source| source.split_once(&format!("#[test]\nfn {test}(")));
        let (before, _) = source.expect("the test is there");
        let doc: String = before.lines().rev().take_while(|line| line.starts_with("///")).collect();
        let says_why = ["KsanaLLM:", "here:", "because"].iter().all(|word| doc.contains(word));
        assert_eq!(says_why, listed.contains(&number(test)), "{test}");
    }
}
