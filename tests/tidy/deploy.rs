//! Files of `deploy/` against the pages that tests hold to the program: names of metrics, variables and flags.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Folder of the files that people deploy with.
const FOLDER: &str = "deploy";
/// Begin of the names of metrics, and of the variables that stand for flags.
const METRICS: [&str; 2] = ["trunkline_", "process_"];
const VARIABLES: &str = "TRUNKLINE_";

/// Names of metrics and flags that there are.
pub struct Known {
    samples: BTreeSet<String>,
    /// Flags as in `max-queue`, and variables of their own.
    flags: BTreeSet<String>,
}

/// Words of the characters that names and flags consist of.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').filter(|word| !word.is_empty())
}

impl Known {
    /// Reads the tables of metrics and of settings.
    pub fn read(metrics: &str, settings: &str) -> Self {
        let mut samples = BTreeSet::new();
        for line in metrics.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<_> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            let ends = if cells[2] == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            samples.extend(ends.iter().map(|end| format!("{}{end}", cells[1])));
        }
        let flags = words(settings).filter_map(|word| word.strip_prefix("--").or(word.strip_prefix(VARIABLES)));
        let flags = flags.map(|flag| flag.to_ascii_lowercase().replace('_', "-")).collect();
        Self { samples, flags }
    }

    /// Returns the names of a file that are unknown.
    pub fn strangers<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let is_strange = |word: &&str| match word.strip_prefix(VARIABLES) {
            // Alone it is the begin of names that a template makes.
            Some(variable) => {
                !variable.is_empty() && !self.flags.contains(&variable.to_ascii_lowercase().replace('_', "-"))
            }
            None => METRICS.iter().any(|begin| word.starts_with(begin)) && !self.samples.contains(*word),
        };
        words(text).map(|word| word.trim_matches('-')).filter(is_strange).collect()
    }
}

fn files(folder: &Path, out: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            files(&path, out);
        } else {
            out.push((path.display().to_string(), fs::read_to_string(&path).expect("a file of deploy/ is text")));
        }
    }
}

/// Returns a line for each name in `deploy/` that is unknown.
pub fn faults(root: &Path, known: &Known) -> Vec<String> {
    let mut all = Vec::new();
    files(&root.join(FOLDER), &mut all);
    assert!(all.len() > 10, "{} files were found", all.len());
    let of = |(name, text): &(String, String)| -> Vec<String> {
        known.strangers(text).into_iter().map(|word| format!("{name} names {word}")).collect()
    };
    all.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_there_are_found() {
        let metrics = "| `trunkline_steps_total` | counter |  | a |\n| `trunkline_wait_seconds` | histogram |  | b |\n";
        let known = Known::read(metrics, "| `--max-queue N` | the variable `TRUNKLINE_TOKEN`");
        let good = "rate(trunkline_steps_total{a=\"b\"}[5m]) trunkline_wait_seconds_bucket TRUNKLINE_MAX_QUEUE=1 \
                    ${TRUNKLINE_TOKEN} TRUNKLINE_";
        assert_eq!(known.strangers(good), Vec::<&str>::new());
        let bad = "trunkline_steps trunkline_wait_seconds process_steps_total TRUNKLINE_MAX_QUEUES=1";
        let found = ["trunkline_steps", "trunkline_wait_seconds", "process_steps_total", "TRUNKLINE_MAX_QUEUES"];
        assert_eq!(known.strangers(bad), found);
    }
}
