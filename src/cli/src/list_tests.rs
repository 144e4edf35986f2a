//! Lists in README and docs name all that there is of a kind, and nothing else.

use std::collections::BTreeSet;
use std::fs;

use clap::CommandFactory;
use trunkline_core::config::Write;
use trunkline_core::{Preemption, eviction, policy};
use trunkline_sim_replay::autoscale;
use trunkline_sim_report::figures::{Latency, Statistic};
use trunkline_worker::{KvDtype, WeightKind};

use crate::Cli;
use crate::readme_tests::{read, root};

/// Names of a list, sorted.
type Names = BTreeSet<String>;

fn names<T: Into<String>>(all: impl IntoIterator<Item = T>) -> Names {
    all.into_iter().map(Into::into).collect()
}

/// Returns the words in code marks of a text, each up to a colon or parenthesis; a word with bars is a word for each side.
fn code(text: &str) -> Vec<String> {
    let spans = text.split('`').skip(1).step_by(2).map(|span| span.replace("\\|", "|"));
    spans
        .flat_map(|span| {
            span.split('|').map(|word| word.split([':', '(']).next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the first cells of the rows of the table with this head.
fn first_cells(page: &str, head: &str) -> Vec<String> {
    let text = read(page);
    let (_, table) =
        text.split_once(&format!("\n{head}")).unwrap_or_else(|| panic!("{page} has no table with the head {head}"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.replace("\\|", "\0").split('|').nth(1).unwrap_or_default().replace('\0', "\\|")).collect()
}

/// Returns the names in code marks in the first column of a table.
fn column(page: &str, head: &str) -> Names {
    names(first_cells(page, head).iter().flat_map(|cell| code(cell)))
}

/// Returns the text of a page between two words.
fn between(page: &str, from: &str, to: &str) -> String {
    let text = read(page);
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("{page} does not say {from}"));
    rest.split_once(to).unwrap_or_else(|| panic!("{page} does not say {to} behind {from}")).0.to_owned()
}

/// Returns the names of the files of a folder with this ending.
fn files(folder: &str, ending: &str) -> Names {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    names(
        entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(ending)),
    )
}

fn subcommands(of: &clap::Command) -> Names {
    names(of.get_subcommands().map(|command| command.get_name().to_owned()).filter(|name| name != "help"))
}

/// Returns the calls of a service in a file of `proto/`.
fn calls(file: &str) -> Names {
    let text = read(&format!("proto/trunkline/v1/{file}.proto"));
    names(
        text.lines().filter_map(|line| {
            line.trim_start().strip_prefix("rpc ")?.split_once('(').map(|(name, _)| name.to_owned())
        }),
    )
}

#[test]
fn lists_of_commands_are_whole() {
    let cli = Cli::command();
    let row = between("ARCHITECTURE.md", "| trunkline | the binary:", "\n");
    assert_eq!(names(code(&row)), subcommands(&cli), "the commands of the binary in ARCHITECTURE.md");
    let doc = read("src/cli/src/lib.rs");
    let doc: String = doc
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .filter_map(|line| line.strip_prefix("//! | `"))
        .map(|row| format!("`{row}\n"))
        .collect();
    assert_eq!(
        names(doc.lines().flat_map(|row| code(&row[..=row[1..].find('`').unwrap() + 1]))),
        subcommands(&cli),
        "the table in lib.rs"
    );
}

#[test]
fn lists_of_policies_are_whole() {
    let all = names(eviction::REGISTRY.names());
    assert_eq!(column("docs/results/eviction.md", "| policy | found, against"), all);
    assert_eq!(
        names(code(&between("docs/reference/status.md", "leaf-first eviction:", "|"))),
        all,
        "eviction in docs/reference/status.md"
    );
    let policies = between("docs/reference/status.md", "| policies ", " | |");
    assert_eq!(names(code(&policies)), names(policy::REGISTRY.names()), "policies in docs/reference/status.md");
    assert_eq!(
        column("docs/reference/replay.md", "| router | goes to |"),
        names(trunkline_cluster::router::REGISTRY.names())
    );
    assert_eq!(
        column("docs/reference/autoscaling.md", "| policy | its parameters |"),
        names(autoscale::REGISTRY.names())
    );
    let ways = between("docs/reference/replay.md", "chooses how a running request is preempted", "Estimates follow");
    let ways = names(code(&ways).into_iter().filter(|word| !word.starts_with('-')));
    assert_eq!(ways, names(Preemption::ALL.map(|(name, _)| name)), "--preemption in docs/reference/replay.md");
    assert_eq!(
        column("docs/guide/tiers.md", "| word | the first tier takes a block |"),
        names(Write::ALL.map(|(name, _)| name))
    );
}

#[test]
fn lists_of_workloads_and_types_are_whole() {
    assert_eq!(column("docs/reference/traces.md", "| file | workload |"), files("examples/workloads", ".toml"));
    let weights = between("docs/reference/models.md", "| weights | F32, F16, BF16 | ", " |");
    assert_eq!(
        names(weights.split(", ")),
        names(WeightKind::ALL.map(WeightKind::name)),
        "weights of GGUF files in docs/reference/models.md"
    );
    let kv = between("docs/reference/settings.md", "Element type of the KV cache: ", " |").replace(" or ", ", ");
    assert_eq!(
        names(kv.split(", ")),
        names(KvDtype::ALL.map(KvDtype::name)),
        "--kv-dtype in docs/reference/settings.md"
    );
    let slos = names(code(&between("docs/reference/plan.md", "`METRIC_STATISTIC=DURATION`: metrics", "durations in")));
    let wanted = Latency::ALL.map(Latency::name).into_iter().chain(Statistic::ALL.map(Statistic::name));
    assert_eq!(slos, names(wanted), "SLOs in docs/reference/plan.md");
}

#[test]
fn lists_of_pages_crates_and_calls_are_whole() {
    assert!(read("README.md").split_whitespace().count() <= 800, "README.md is read in a minute: at most 800 words");
    let architecture = read("ARCHITECTURE.md");
    for page in files("docs/design", ".md") {
        assert!(architecture.contains(&format!("(docs/design/{page})")), "ARCHITECTURE.md has no docs/design/{page}");
    }
    for member in between("Cargo.toml", "\nmembers = [", "]").split(", ").map(|member| member.trim_matches('"')) {
        assert!(architecture.contains(&format!("| `{member}/` |")), "ARCHITECTURE.md has no row for {member}");
    }
    for (page, file) in [
        ("docs/reference/api.md", "inference"),
        ("docs/reference/sessions.md", "sessions"),
        ("docs/reference/protocol.md", "worker"),
    ] {
        let shown = names(code(&read(page)).iter().filter_map(|name| name.rsplit('.').next()));
        let missing: Vec<_> = calls(file).into_iter().filter(|call| !shown.contains(call)).collect();
        assert!(missing.is_empty(), "{page} names no call {missing:?}");
    }
}
