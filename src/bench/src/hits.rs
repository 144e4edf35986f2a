//! Hits of eviction policies on synthetic traces, compared with LRU, S3-FIFO and Belady.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use trunkline_core::blocks::hash::{BlockHash, Namespace, extend_hashes};
use trunkline_core::blocks::prefix::Prefix;
use trunkline_core::cache::tree::PrefixTree;
use trunkline_core::eviction;
use trunkline_sim_workload::patterns::{self, Case};
use trunkline_sim_workload::trace::stats::{StatsOptions, stats};
use trunkline_sim_workload::trace::{Content, TraceRequest, formats};

use super::publish::publish;

const LRU: &str = "lru";

/// Policies that every policy is compared with: the better of both is what a cache finds without learning.
const RIVALS: [&str; 2] = [LRU, "s3fifo"];

/// Where the rivals find fewer blocks than these, or a smaller share, a case says little about a policy.
const LEAST_HITS: u64 = 300;
const LEAST_SHARE: f64 = 0.05;

/// What a policy finds in one case counts in the average as this many times the better rival at most.
const MOST_TIMES: f64 = 2.0;

/// Where Belady finds fewer blocks than this many times those of the better rival, hardly anything is to be gained.
const DECIDED: f64 = 1.02;

const NOTES: &str = "\
Found: blocks found, by those found by the better of lru and s3fifo; mean over the traces, 200 % of a trace at most.
Gap closed: blocks found more than with lru, by those that Belady, who knows the future, finds more; sums over the traces.
Requests run one after another, through the prefix tree; a prompt is a list of blocks of one token.";

/// Options of `trunkline-bench hits`.
#[derive(Clone, Debug, Args)]
pub struct HitsOptions {
    /// Number of traces. The first is of sessions, the next of agents, and so on through fourteen patterns, in turns. Traces in which lru and
    /// s3fifo find next to nothing are left out of the table.
    #[arg(long, value_name = "N", default_value_t = 140, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    cases: u64,

    /// Number of the first trace: other numbers have the same patterns with other parameters.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1 << 32))]
    first: u64,

    /// Policies to compare with the better of lru and s3fifo, separated by semicolons, with parameters, as in 'arc;s3fifo:small_percent=20' [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ';')]
    policies: Vec<String>,

    /// Threads, at most 1024; 0 is one per core.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1024))]
    threads: u32,

    /// Write JSON, with the hits of each trace, instead of a table.
    #[arg(long)]
    json: bool,
}

/// Blocks found in one synthetic trace.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    case: u64,
    pattern: &'static str,
    /// Capacity of the cache, blocks.
    capacity: u32,
    prompts: usize,
    /// Blocks of all prompts.
    blocks: u64,
    /// Blocks found, by policy.
    hits: BTreeMap<String, u64>,
    /// Blocks that Belady would find.
    belady: u64,
}

impl Outcome {
    /// Runs a synthetic trace with all policies.
    fn of(number: u64, policies: &[String]) -> Self {
        let case = Case::new(number);
        let hits = policies.iter().map(|policy| (policy.clone(), hits_of(policy, &case))).collect();
        Self {
            case: number,
            pattern: case.pattern,
            capacity: case.capacity,
            prompts: case.prompts.len(),
            blocks: case.prompts.iter().map(|prompt| prompt.len() as u64).sum(),
            hits,
            belady: lru_and_belady(&case)[1],
        }
    }

    /// Returns the blocks that the better of the rivals found.
    fn better(&self) -> u64 {
        RIVALS.iter().map(|rival| self.hits[*rival]).max().expect("there are two")
    }

    /// Returns `true` if the rivals find enough to compare a policy with.
    fn tells(&self) -> bool {
        let better = self.better();
        better >= LEAST_HITS && better as f64 >= LEAST_SHARE * self.blocks as f64
    }

    fn is_decided(&self) -> bool {
        (self.belady as f64) < DECIDED * self.better() as f64
    }
}

/// Summary of a policy over cases.
#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    cases: usize,
    found_mean: f64,
    found_worst: f64,
    below_98_percent: usize,
    below_95_percent: usize,
    /// `None` if Belady finds no more than LRU.
    gap_closed: Option<f64>,
}

impl Summary {
    fn of<'a>(policy: &str, outcomes: impl Iterator<Item = &'a Outcome>) -> Option<Self> {
        let mut found = Vec::new();
        let (mut gained, mut gap) = (0.0, 0.0);
        for outcome in outcomes.filter(|outcome| outcome.tells()) {
            let (hits, lru) = (outcome.hits[policy] as f64, outcome.hits[LRU] as f64);
            found.push(hits / outcome.better() as f64);
            gained += hits - lru;
            gap += outcome.belady as f64 - lru;
        }
        let below = |share| found.iter().filter(|found| **found < share).count();
        (!found.is_empty()).then(|| Self {
            cases: found.len(),
            found_mean: found.iter().map(|found| found.min(MOST_TIMES)).sum::<f64>() / found.len() as f64,
            found_worst: found.iter().copied().fold(f64::INFINITY, f64::min),
            below_98_percent: below(0.98),
            below_95_percent: below(0.95),
            gap_closed: (gap > 0.0).then(|| gained / gap),
        })
    }

    fn row(&self) -> [String; 6] {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        [
            self.cases.to_string(),
            percent(self.found_mean),
            self.below_98_percent.to_string(),
            self.below_95_percent.to_string(),
            percent(self.found_worst),
            self.gap_closed.map_or("-".into(), percent),
        ]
    }
}

/// Counts the blocks that a tree with this policy finds.
fn hits_of(policy: &str, case: &Case) -> u64 {
    let policy = eviction::REGISTRY.make(policy, case.capacity).expect("it was parsed before");
    let mut tree = PrefixTree::new(1, case.capacity, policy);
    let root = Namespace::default().root();
    let (mut hashes, mut table, mut found): (Vec<BlockHash>, _, _) = (Vec::new(), Vec::new(), Prefix::default());
    let mut hits = 0;
    for prompt in &case.prompts {
        hashes.clear();
        extend_hashes(&mut hashes, root, 1, prompt);
        tree.find(root, &hashes, prompt, &mut found);
        tree.hold(&found, &mut table);
        let held = table.len();
        hits += held as u64;
        let room = tree.allocate((prompt.len() - held) as u32, &mut table);
        assert!(room, "a prompt has half of the cache at most, and nothing else runs");
        publish(&mut tree, root, (prompt, &hashes), held, &table);
        tree.release(&mut table, prompt.len());
    }
    hits
}

/// Counts what caches of the case's capacity find that are not trees: LRU, and Belady, who knows the future.
fn lru_and_belady(case: &Case) -> [u64; 2] {
    let requests = case.prompts.iter().map(|prompt| {
        let content = Content::Tokens(prompt.clone().into_boxed_slice());
        Ok(TraceRequest { input_tokens: prompt.len() as u32, content, ..TraceRequest::default() })
    });
    let options = StatsOptions { block_tokens: Some(1), capacities: vec![u64::from(case.capacity)] };
    let stats = stats(requests, formats::SYNTHETIC, &options).expect("a synthetic trace has prompts");
    let prefixes = stats.prefixes.expect("the content is known");
    let of_capacity = &prefixes.capacities[0];
    [of_capacity.lru_blocks, of_capacity.belady_blocks].map(|share| (share * prefixes.blocks as f64).round() as u64)
}

/// Runs the command.
///
/// # Errors
/// If a policy is unknown, or the report cannot be written.
pub fn run(options: &HitsOptions) -> anyhow::Result<()> {
    let asked = asked(&options.policies)?;
    let mut policies = asked.clone();
    policies.extend(RIVALS.iter().map(|rival| (*rival).to_string()).filter(|rival| !asked.contains(rival)));
    let outcomes = outcomes(options.first..options.first + options.cases, &policies, options.threads as usize);
    let text = if options.json { json(&asked, &outcomes)? } else { table(&asked, &outcomes) };
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}

/// Returns the policies asked for, each once; all if none is.
fn asked(policies: &[String]) -> anyhow::Result<Vec<String>> {
    let mut asked: Vec<String> = Vec::new();
    for policy in policies.iter().map(|policy| policy.trim()).filter(|policy| !policy.is_empty()) {
        eviction::REGISTRY.parse(policy).context("--policies")?;
        if !asked.iter().any(|other| other == policy) {
            asked.push(policy.into());
        }
    }
    Ok(if asked.is_empty() { eviction::REGISTRY.names().map(str::to_string).collect() } else { asked })
}

/// Runs the cases on some threads. Returns them in order.
fn outcomes(cases: std::ops::Range<u64>, policies: &[String], threads: usize) -> Vec<Outcome> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (if threads == 0 { cores as u64 } else { threads as u64 }).min(cases.end - cases.start);
    let next = AtomicU64::new(cases.start);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= cases.end {
                        break;
                    }
                    let outcome = Outcome::of(number, policies);
                    done.lock().expect("no thread panics with the lock").push(outcome);
                }
            });
        }
    });
    let mut outcomes = done.into_inner().expect("no thread panics with the lock");
    outcomes.sort_by_key(|outcome| outcome.case);
    outcomes
}

fn json(policies: &[String], outcomes: &[Outcome]) -> anyhow::Result<String> {
    let of_all: BTreeMap<&String, Option<Summary>> =
        policies.iter().map(|policy| (policy, Summary::of(policy, outcomes.iter()))).collect();
    let report = serde_json::json!({
        "benchmark": "hits",
        "version": env!("CARGO_PKG_VERSION"),
        "policies": of_all,
        "cases": outcomes,
    });
    Ok(serde_json::to_string_pretty(&report)?)
}

/// Writes the summary of each policy over all cases, and of each in each pattern.
fn table(policies: &[String], outcomes: &[Outcome]) -> String {
    let columns = ["cases", "found", "below 98 %", "below 95 %", "worst", "gap closed"];
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["traces", "policy"].into_iter().chain(columns));
    let names = std::iter::once("all").chain(patterns::names());
    for name in names {
        for policy in policies {
            let of_pattern = outcomes.iter().filter(|outcome| name == "all" || outcome.pattern == name);
            if let Some(summary) = Summary::of(policy, of_pattern) {
                table.add_row([name.to_string(), policy.clone()].into_iter().chain(summary.row()));
            }
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let telling = || outcomes.iter().filter(|outcome| outcome.tells());
    let (left_out, decided) =
        (outcomes.len() - telling().count(), telling().filter(|outcome| outcome.is_decided()).count());
    let (share, more) = (100.0 * LEAST_SHARE, 100.0 * (DECIDED - 1.0));
    format!(
        "trunkline {} bench hits: {} synthetic traces\n{NOTES}\nTraces left out, in which lru and s3fifo find fewer than {LEAST_HITS} \
         blocks, or less than {share} %: {left_out}.\nTraces with little to gain, in which Belady finds less than {more:.0} % more than \
         the better of lru and s3fifo: {decided}.\n\n{}",
        env!("CARGO_PKG_VERSION"),
        outcomes.len(),
        table.trim_fmt()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pins what the policies find, so that one that evicts in the wrong order, fails.
    #[test]
    fn policies_find_what_they_found() {
        let policies = ["lru", "s3fifo", "arc"].map(str::to_string);
        let outcomes = outcomes(0..14, &policies, 2);
        let sum = |policy: &str| outcomes.iter().map(|outcome| outcome.hits[policy]).sum::<u64>();
        let belady: u64 = outcomes.iter().map(|outcome| outcome.belady).sum();
        assert_eq!((sum("lru"), sum("s3fifo"), sum("arc"), belady), (883_028, 896_507, 897_130, 955_656));
    }

    /// The tree keeps a block in 64 free, so it finds slightly less.
    #[test]
    fn the_tree_with_lru_finds_what_a_pass_over_the_trace_counts() {
        let case = Case::new(2);
        let [counted, _] = lru_and_belady(&case);
        let found = hits_of("lru", &case);
        assert!(found <= counted && found * 100 >= counted * 99, "{found} and {counted}");
    }

    #[test]
    fn the_table_compares_with_the_better_rival() {
        let outcome = |pattern, lru, s3fifo, arc, belady| Outcome {
            case: 0,
            pattern,
            capacity: 100,
            prompts: 10,
            blocks: 10_000,
            hits: [("lru", lru), ("s3fifo", s3fifo), ("arc", arc)].map(|(name, n)| (name.to_string(), n)).into(),
            belady,
        };
        let outcomes = [
            outcome("loops", 1_000, 2_000, 1_900, 3_000),
            outcome("loops", 1_000, 500, 1_100, 1_500),
            outcome("scans", 499, 100, 0, 1_000),
        ];
        let summary = Summary::of("arc", outcomes.iter()).unwrap();
        assert_eq!(summary.row(), ["2", "102.5 %", "1", "0", "95.0 %", "40.0 %"]);
        let text = table(&["arc".to_string()], &outcomes);
        assert!(text.contains("less than 5 %: 1.") && text.contains("loops") && !text.contains("scans"), "{text}");
        let nothing_to_gain = outcome("loops", 1_000, 900, 1_000, 1_000);
        assert!(nothing_to_gain.is_decided() && !outcomes[0].is_decided());
        let summary = Summary::of("arc", std::iter::once(&nothing_to_gain)).unwrap();
        assert_eq!(summary.row(), ["1", "100.0 %", "0", "0", "100.0 %", "-"]);
    }

    #[test]
    fn policies_are_asked_for_once_each() {
        let asked = |list: &[&str]| asked(&list.iter().map(|policy| (*policy).to_string()).collect::<Vec<_>>());
        assert_eq!(asked(&["lru", " arc", "lru", ""]).unwrap(), ["lru", "arc"]);
        assert!(asked(&[]).unwrap().contains(&"cost".to_string()));
        assert!(asked(&["best"]).unwrap_err().root_cause().to_string().contains("unknown eviction policy 'best'"));
    }
}
