//! Two versions in turn: the ratio of their figures, which the drift of a machine leaves alone.
//!
//! Seconds measured an hour apart on a shared machine differ by half and more. Here each case runs with both versions right after one another, in either
//! order by turns, and only the ratios of such pairs are reported.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::measure::Report;

/// Cases that are compared: a benchmark with its flags.
const CASES: [&[&str]; 7] = [
    &["tree"],
    &["sched"],
    &["evict"],
    &["codec"],
    &["worker"],
    &["wire"],
    &["serve", "--streams=200", "--tokens=200", "--runs=1"],
];

/// Figure of a benchmark, as another version of the program reports it.
#[derive(Deserialize)]
struct Figure {
    what: String,
    case: String,
    median: f64,
}

#[derive(Deserialize)]
struct Figures {
    rows: Vec<Figure>,
}

/// Compares the program `old`, or that of the revision `old` of the repository in this folder, with `new`, by default this program: `runs` pairs of each case,
/// or of those of one benchmark `only`.
///
/// # Errors
/// If a program cannot be built or run, or there is no such benchmark.
pub fn run(old: &OsStr, new: Option<&Path>, only: Option<&str>, runs: u32) -> anyhow::Result<Report> {
    let cases: Vec<_> = CASES.into_iter().filter(|case| only.is_none_or(|only| case[0] == only)).collect();
    let names = CASES.map(|case| case[0]).join(", ");
    ensure!(!cases.is_empty(), "no case of benchmark {}; there are: {names}", only.unwrap_or_default());
    let new = new.map_or_else(env::current_exe, |new| Ok(new.to_owned())).context("cannot find this program")?;
    let old = if Path::new(old).is_file() { PathBuf::from(old) } else { build(old)? };
    let notes = vec!["Figures of the new version over those of the old, of runs right after one another."];
    let mut report = Report::new("pair", false, notes);
    for case in cases {
        let mut ratios: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
        for run in 0..runs {
            let of = |program: &Path| figures(program, case);
            let (old, new) = match run % 2 {
                0 => (of(&old)?, of(&new)?),
                _ => {
                    let new = of(&new)?;
                    (of(&old)?, new)
                }
            };
            // Figures that one version alone has are left out, as are those that were 0.
            for (name, new) in new {
                if let Some(old) = old.get(&name).filter(|old| **old != 0.0) {
                    ratios.entry(name).or_default().push(new / old);
                }
            }
        }
        for ((what, of), ratios) in ratios {
            report.add(&format!("{}: {what}", case[0]), of, "new/old", ratios);
        }
    }
    Ok(report)
}

/// Runs a case, and returns its figures by operation and case.
fn figures(program: &Path, case: &[&str]) -> anyhow::Result<BTreeMap<(String, String), f64>> {
    let output = Command::new(program).args(case).arg("--json").output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(output.status.success(), "{} {} fails: {}", program.display(), case.join(" "), last_line(&output.stderr));
    let figures: Figures = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} {} --json reports no figures", program.display(), case.join(" ")))?;
    Ok(figures.rows.into_iter().map(|row| ((row.what, row.case), row.median)).collect())
}

/// Builds the program of a revision in a folder of its own below `target/`, and returns its path.
fn build(revision: &OsStr) -> anyhow::Result<PathBuf> {
    let name = output(Command::new("git").args(["rev-parse", "--verify", "--quiet"]).arg(commit(revision)))
        .with_context(|| format!("{} is neither a program nor a revision of a repository here", revision.display()))?;
    let folder = env::current_dir()?.join("target/pair");
    let program = folder.join(format!("trunkline-bench-{name}"));
    if program.is_file() {
        return Ok(program);
    }
    let sources = folder.join("sources");
    let _ = output(Command::new("git").args(["worktree", "remove", "--force"]).arg(&sources));
    output(Command::new("git").args(["worktree", "add", "--detach", "--force"]).arg(&sources).arg(&name))?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--locked", "-p", "trunkline-bench", "--target-dir"]).arg(folder.join("build"));
    let built = output(cargo.current_dir(&sources));
    output(Command::new("git").args(["worktree", "remove", "--force"]).arg(&sources))?;
    built?;
    fs::copy(folder.join("build/release/trunkline-bench"), &program).context("cannot keep the program")?;
    Ok(program)
}

/// Returns the name that git has for the commit of a revision.
fn commit(revision: &OsStr) -> std::ffi::OsString {
    let mut name = revision.to_owned();
    name.push("^{commit}");
    name
}

/// Runs a command, and returns the line that it writes.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{} fails: {}", command.get_program().display(), last_line(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or("without a word").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Makes a program that reports a figure.
    fn program(folder: &Path, name: &str, ns: u32) -> PathBuf {
        let path = folder.join(name);
        let report = format!(
            r#"{{"rows": [{{"what": "find", "case": "small", "unit": "ns", "median": {ns}}}, {{"what": "{name}", "case": "", "median": 1}}]}}"#
        );
        fs::write(&path, format!("#!/bin/sh\ncat <<'end'\n{report}\nend\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    #[test]
    fn figures_that_both_have_are_ratios_of_pairs() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = [("old", 40), ("new", 30)].map(|(name, ns)| program(folder.path(), name, ns));
        let report = run(old.as_os_str(), Some(&new), Some("tree"), 3).unwrap().render();
        let row = report.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row, ["tree:", "find", "small", "0.750", "0.750", "0.750", "new/old", "3"]);
        let error = run(old.as_os_str(), Some(&new), Some("trees"), 1).unwrap_err().to_string();
        assert!(error.starts_with("no case of benchmark trees; there are: tree, sched"), "{error}");
        let error = run(OsStr::new("no-revision"), Some(&new), None, 1).unwrap_err().to_string();
        assert_eq!(error, "no-revision is neither a program nor a revision of a repository here");
        let error = run(Path::new("/bin/false").as_os_str(), Some(&new), Some("tree"), 1).unwrap_err().to_string();
        assert_eq!(error, "/bin/false tree fails: without a word");
    }
}
