//! The program as a user runs it.

use std::process::Command;

#[test]
fn a_benchmark_writes_json_for_programs_and_says_what_is_wrong_with_its_flags() {
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_trunkline-bench")).args(args).output().unwrap();
    let output = run(&["evict", "--quick", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["benchmark"], &report["quick"]), (&"evict".into(), &true.into()));
    let output = run(&["serve", "--streams", "0"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("'0' for '--streams <N>'"), "{text}");
}
