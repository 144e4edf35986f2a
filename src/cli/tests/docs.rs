//! The docs are run: commands of README and all pages run as they are printed, and print what the pages say.
//!
//! `docs/page.rs` has the marks of a page. The gate runs what is quick; all the rest that this machine can run, in hours:
//!
//! ```sh
//! TRUNKLINE_DOCS=long cargo test -p trunkline --test docs
//! TRUNKLINE_DOCS=long TRUNKLINE_DOCS_PAGES=replay,capacity cargo test -p trunkline --test docs
//! ```

#[path = "docs/compare.rs"]
mod compare;
#[path = "docs/page.rs"]
mod page;
#[path = "docs/shell.rs"]
mod shell;

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use page::{Conditions, Content};
use shell::Shell;

/// Folders with pages.
const FOLDERS: [&str; 9] = [
    ".",
    "docs",
    "docs/guide",
    "docs/reference",
    "docs/design",
    "docs/results",
    "models",
    "models/training",
    "src/pyworker",
];
/// Pages that tell of earlier versions.
const HISTORY: &str = "CHANGELOG.md";

/// Result of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    run: usize,
    equal: usize,
    long: usize,
    cannot: usize,
    uncompared: usize,
    failed: usize,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.run += other.run;
        self.equal += other.equal;
        self.long += other.long;
        self.cannot += other.cannot;
        self.uncompared += other.uncompared;
        self.failed += other.failed;
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, equal, long, cannot, uncompared, failed } = self;
        write!(
            f,
            "{run} blocks run, {equal} outputs equal, {failed} failed, {long} long, {cannot} cannot run, {uncompared} texts not compared"
        )
    }
}

/// Check of a page, under way.
struct Check {
    shell: Shell,
    long: bool,
    data: bool,
    count: Count,
    log: String,
    /// Output of the commands since the last text, or since commands that did not run; `None` if the last ones did not run.
    printed: Option<String>,
    compared: bool,
    /// The last commands are servers and workers, which print on.
    in_background: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

fn pages() -> Vec<String> {
    let wanted = std::env::var("TRUNKLINE_DOCS_PAGES").unwrap_or_default();
    let mut pages = Vec::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(root().join(folder)).expect("the folder is there") {
            let name = entry.expect("it can be read").file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") && name != HISTORY {
                pages.push(format!("{folder}/{name}").trim_start_matches("./").to_owned());
            }
        }
    }
    pages.sort();
    pages.retain(|page| {
        wanted.is_empty() || wanted.split(',').any(|part| page.to_lowercase().contains(&part.to_lowercase()))
    });
    pages
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl Check {
    /// Returns the reason for which commands do not run, and `true` if the long check would run them.
    fn obstacle(&self, conditions: &Conditions) -> Option<(String, bool)> {
        let why = if conditions.why.is_empty() { String::new() } else { format!(": {}", conditions.why) };
        let missing = conditions.needs.iter().find(|program| !is_there(program));
        if conditions.never {
            return Some((format!("never{why}"), false));
        }
        if conditions.data && !self.data {
            return Some(("TRUNKLINE_DATA names no folder with the public data".into(), false));
        }
        if let Some(program) = missing {
            return Some((format!("there is no {program}"), false));
        }
        (conditions.long && !self.long).then(|| (format!("long{why}"), true))
    }

    fn fail(&mut self, line: usize, reason: &str) {
        self.count.failed += 1;
        self.log += &format!("  line {line} FAILED\n{}\n", reason.trim_end());
    }

    fn commands(&mut self, line: usize, conditions: &Conditions, text: &str) {
        if std::mem::take(&mut self.compared) {
            self.printed = Some(String::new());
        }
        if let Some((reason, long)) = self.obstacle(conditions) {
            let count = if long { &mut self.count.long } else { &mut self.count.cannot };
            *count += 1;
            self.log += &format!("  line {line} not run, {reason}\n");
            self.printed = None;
            return;
        }
        let begin = Instant::now();
        match self.shell.run(text) {
            Ok(printed) => {
                self.count.run += 1;
                self.in_background = printed.is_none();
                self.printed.get_or_insert_default().push_str(&printed.unwrap_or_default());
            }
            Err(error) => {
                self.fail(line, &error);
                self.printed = None;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        if self.long || seconds > 5.0 {
            self.log += &format!("  line {line} took {seconds:.1} s\n");
        }
    }

    fn part(&mut self, part: &page::Part) {
        match &part.content {
            Content::Commands(conditions) => self.commands(part.line, conditions, &part.text),
            Content::File(name) => self.shell.write(name, &part.text).expect("the folder takes files"),
            Content::Uncompared(why) => {
                self.count.uncompared += 1;
                self.log += &format!("  line {} not compared: {why}\n", part.line);
            }
            Content::Output | Content::Figures(_) => {
                self.compared = true;
                let Some(printed) = &self.printed else { return };
                let with_servers = || self.shell.printed_in_background(|all| compare::lines(&part.text, all).is_ok());
                let printed = &if self.in_background { with_servers() } else { printed.clone() };
                let result = if part.content == Content::Output {
                    compare::lines(&part.text, printed)
                } else {
                    match compare::figures_missing(&part.text, printed).join("; ") {
                        missing if missing.is_empty() => Ok(()),
                        missing => Err(format!("    figures that the commands do not print: {missing}\n{printed}")),
                    }
                };
                match result {
                    Ok(()) => self.count.equal += 1,
                    Err(reason) => self.fail(part.line, &reason),
                }
            }
        }
    }
}

fn check(page: &str) -> (Count, String) {
    let long = std::env::var("TRUNKLINE_DOCS").is_ok_and(|value| value == "long");
    let data = std::env::var_os("TRUNKLINE_DATA").map(PathBuf::from).filter(|data| data.join("traces").is_dir());
    let text = fs::read_to_string(root().join(page)).expect("the page is there");
    let parts = match page::parts(&text) {
        Ok(parts) => parts,
        Err(error) => return (Count { failed: 1, ..Count::default() }, format!("  {error}\n")),
    };
    let shell = Shell::new(&root(), data.as_deref()).expect("a folder can be made");
    let (count, log) = (Count::default(), String::new());
    let mut check =
        Check { shell, long, data: data.is_some(), count, log, printed: None, compared: true, in_background: false };
    for part in &parts {
        check.part(part);
    }
    if let Err(error) = check.shell.stop() {
        check.fail(0, &error);
    }
    (check.count, check.log)
}

/// Writes past the capture of the test harness: what was not run is seen in every run.
fn say(line: &str) {
    let mut out = std::io::stderr().lock();
    writeln!(out, "{line}").expect("standard error takes lines");
}

#[test]
fn pages_print_what_they_say() {
    let pages = pages();
    assert!(!pages.is_empty(), "no page has such a name");
    let (next, total) = (AtomicUsize::new(0), Mutex::new(Count::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(2);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(page) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begin = Instant::now();
                    let (count, log) = check(page);
                    if count != Count::default() {
                        say(&format!("{page}: {count} ({:.1} s)\n{log}", begin.elapsed().as_secs_f64()));
                    }
                    total.lock().expect("no page panics").add(count);
                }
            });
        }
    });
    let total = *total.lock().expect("no page panics");
    say(&format!("{} pages: {total}", pages.len()));
    assert_eq!(total.failed, 0, "the docs do not say what their commands print; see above");
    assert!(pages.len() < 20 || total.run > 20, "hardly anything was run");
}
