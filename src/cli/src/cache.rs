//! `trunkline cache`: look into a disk tier at rest.

use std::fs::DirEntry;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde_json::json;
use trunkline_store::{Checked, check_disk};

const EXAMPLES: &str = "\
Examples:
  Show what the folder of `serve --disk` holds:
    trunkline cache inspect /var/cache/trunkline

  Read every byte and check it; the exit code is 1 if a record had to be dropped:
    trunkline cache verify /var/cache/trunkline";

/// Look into the folder of a disk tier, while no server uses the folder. Nothing is changed.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CacheArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Show segments, blocks and bytes; reads headers alone.
    Inspect(Options),
    /// Read all records and check all sums; fails if a record is damaged.
    Verify(Options),
}

#[derive(Clone, Debug, Args)]
struct Options {
    /// Folder of the disk tier.
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Write JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs the command. The exit code is 1 if `verify` found a damaged record.
///
/// # Errors
/// If the folder cannot be read, or the report cannot be written.
pub fn run(args: &CacheArgs) -> anyhow::Result<ExitCode> {
    let (options, verifies) = match &args.what {
        What::Inspect(options) => (options, false),
        What::Verify(options) => (options, true),
    };
    let checked = check_disk(&options.path, verifies)
        .with_context(|| format!("cannot read the disk tier in {}", options.path.display()))?;
    let is_other = checked.segments.is_empty() && holds_others(&options.path);
    ensure!(!is_other, "{} holds files, and no segment of a disk tier; check the path", options.path.display());
    let text = if options.json { serde_json::to_string_pretty(&facts(&checked))? } else { render(&checked, verifies) };
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")?;
    let is_damaged = verifies && checked.faults().total() > 0;
    Ok(if is_damaged { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns `true` if a folder has entries other than the lock of a tier.
fn holds_others(folder: &Path) -> bool {
    let is_other = |entry: io::Result<DirEntry>| entry.is_ok_and(|entry| entry.file_name() != "lock");
    folder.read_dir().is_ok_and(|mut entries| entries.any(is_other))
}

fn facts(checked: &Checked) -> serde_json::Value {
    let faults = |faults: trunkline_store::FaultCounts| -> serde_json::Value {
        faults.each().map(|(fault, n)| (fault.name().to_owned(), n.into())).collect::<serde_json::Map<_, _>>().into()
    };
    let segments: Vec<_> = checked
        .segments
        .iter()
        .map(|segment| {
            json!({
                "path": segment.path,
                "layout": segment.layout.map(|layout| format!("{layout:016x}")),
                "is_complete": segment.is_complete,
                "records": segment.records,
                "record_bytes": segment.record_bytes,
                "file_bytes": segment.file_bytes,
                "faults": faults(segment.faults),
            })
        })
        .collect();
    json!({
        "segments": segments,
        "blocks": checked.blocks,
        "tokens": checked.tokens,
        "first_blocks": checked.first_blocks,
        "namespaces": checked.namespaces,
        "frames": checked.frames,
        "payload_bytes": checked.payload_bytes,
        "faults": faults(checked.faults()),
    })
}

fn render(checked: &Checked, verifies: bool) -> String {
    let sum = |number: fn(&trunkline_store::CheckedSegment) -> u64| checked.segments.iter().map(number).sum::<u64>();
    let (records, bytes) = (sum(|segment| segment.records), sum(|segment| segment.file_bytes));
    let mut lines = vec![
        format!(
            "{} segments with {records} records, {:.1} MiB on disk",
            checked.segments.len(),
            bytes as f64 / 1048576.0
        ),
        format!(
            "{} blocks of {} tokens in all; {} begin a prompt; {} namespaces of models, adapters and tenants",
            checked.blocks, checked.tokens, checked.first_blocks, checked.namespaces
        ),
        format!(
            "{} records are compressed; payloads have {:.1} MiB",
            checked.frames,
            checked.payload_bytes as f64 / 1048576.0
        ),
    ];
    for segment in checked.segments.iter().filter(|segment| segment.faults.total() > 0 || !segment.is_complete) {
        let kinds: Vec<String> =
            segment.faults.each().filter(|(_, n)| *n > 0).map(|(fault, n)| format!("{n} {}", fault.name())).collect();
        let end = if segment.is_complete { "" } else { "not complete: its writer stopped in the middle; " };
        let found = if kinds.is_empty() { "no damaged record".to_owned() } else { kinds.join(", ") };
        lines.push(format!("{}: {end}{found}", segment.path.display()));
    }
    lines.push(match (checked.faults().total(), verifies) {
        (0, true) => "every record is whole".to_owned(),
        (0, false) => "every header is whole; `trunkline cache verify` reads the rest, too".to_owned(),
        (n, _) => format!("{n} records are damaged: each is dropped at the next start, or when it is read"),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_empty_folder_is_whole_and_a_damaged_segment_fails_verification() {
        let folder = tempfile::tempdir().unwrap();
        let options = |json| Options { path: folder.path().to_owned(), json };
        let verify = |json| run(&CacheArgs { what: What::Verify(options(json)) }).unwrap();
        assert_eq!(verify(false), ExitCode::SUCCESS);
        fs::write(folder.path().join("notes.txt"), "of another program").unwrap();
        let other = run(&CacheArgs { what: What::Verify(options(false)) }).unwrap_err().to_string();
        assert!(other.ends_with(" holds files, and no segment of a disk tier; check the path"), "{other}");
        fs::write(folder.path().join("segment-0000000000000001.tkv"), [7; 8192]).unwrap();
        assert_eq!((verify(false), verify(true)), (ExitCode::FAILURE, ExitCode::FAILURE));
        assert_eq!(run(&CacheArgs { what: What::Inspect(options(true)) }).unwrap(), ExitCode::SUCCESS);
        let text = render(&check_disk(folder.path(), true).unwrap(), true);
        assert!(text.contains("1 flipped") && text.contains("1 records are damaged"), "{text}");
        let error = run(&CacheArgs { what: What::Verify(Options { path: folder.path().join("no"), json: false }) });
        assert!(error.unwrap_err().to_string().contains("cannot read the disk tier"));
    }
}
