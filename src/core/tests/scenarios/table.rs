//! The list of scenarios in `docs/results/scenarios.md` is complete, and names tests that exist.

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

struct Row {
    number: u32,
    here: &'static str,
    test: &'static str,
}

fn rows() -> Vec<Row> {
    let cells =
        |line: &'static str| -> Vec<&'static str> { line.trim_matches('|').split('|').map(str::trim).collect() };
    let row = |line| match cells(line)[..] {
        [number, _, here, test] => number.parse().ok().map(|number| Row { number, here, test: test.trim_matches('`') }),
        _ => panic!("not four cells: {line}"),
    };
    TABLE.lines().filter(|line| line.starts_with('|')).filter_map(row).collect()
}

/// The names of all tests with a number.
fn tests() -> BTreeSet<&'static str> {
    let named = SOURCES.iter().flat_map(|source| source.split("#[test]\nfn ").skip(1));
    named
        .filter_map(|test| test.split_once("()"))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("scenario_"))
        .collect()
}

#[test]
fn every_scenario_is_listed_once_and_in_order() {
    assert!(rows().iter().map(|row| row.number).eq(1..=103));
}

#[test]
fn every_scenario_has_its_test_or_says_why_not() {
    let tests = tests();
    let mut listed = BTreeSet::new();
    for Row { number, here, test } in rows() {
        let (verdict, why) = here.split_once(": ").unwrap_or((here, ""));
        match verdict {
            "same" | "differs" => {
                assert!(
                    test.starts_with(&format!("scenario_{number:03}_")) && tests.contains(test),
                    "{number}: {test}"
                );
                listed.insert(test);
            }
            "later" => assert_eq!(test, "—", "{number}"),
            other => panic!("{number}: {other} is no verdict"),
        }
        assert_eq!(why.is_empty(), verdict == "same", "{number}: {here}");
    }
    assert_eq!(listed, tests, "a test is not in the table");
}

#[test]
fn a_test_that_differs_says_why_in_front() {
    for Row { here, test, .. } in rows() {
        let source = SOURCES.iter().find_map(|source| source.split_once(&format!("#[test]\nfn {test}(")));
        let Some((before, _)) = source else { continue };
        let doc: String = before.lines().rev().take_while(|line| line.starts_with("///")).collect();
        let says_why = ["KsanaLLM:", "here:", "because"].iter().all(|word| doc.contains(word));
        assert_eq!(says_why, here.starts_with("differs"), "{test}");
    }
}
