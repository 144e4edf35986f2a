//! Rules for the source that a compiler does not check: file names and sizes, purity, shape and wording.
//!
//! CONTRIBUTING.md explains the rules; `tidy/limits.rs` has the numbers.

#[path = "tidy/allocations.rs"]
mod allocations;
#[path = "tidy/deploy.rs"]
mod deploy;
#[path = "tidy/limits.rs"]
mod limits;
#[path = "tidy/measure.rs"]
mod measure;
#[path = "tidy/modules.rs"]
mod modules;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/phrases.rs"]
mod phrases;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/supply.rs"]
mod supply;

use std::fs;
use std::path::{Path, PathBuf};

use limits::Measure;
use measure::check;

/// Maximum number of lines of a source file.
const LINES_MAX: usize = 700;
/// File names without a meaning.
const NAMELESS: [&str; 5] = ["utils", "util", "common", "helpers", "misc"];
/// Files that may contain `unsafe`.
const UNSAFE_FILES: [&str; 8] = [
    "src/bench/src/allocations.rs",
    "src/core/src/blocks/prefetch.rs",
    "src/pages/src/lib.rs",
    "src/worker/src/kv/arena.rs",
    "src/worker/src/kernels/amx.rs",
    "src/worker/src/kernels/matrix/vnni.rs",
    "src/worker/src/kernels/prefetch.rs",
    "src/worker/src/kernels/stored.rs",
];

/// Crates that know no scheduler: their manifests, and the crates of the workspace that each may depend on.
const LOW_CRATES: [(&str, &[&str]); 13] = [
    ("src/attach/Cargo.toml", &["trunkline-port"]),
    ("src/chat/Cargo.toml", &["trunkline-port", "trunkline-quote"]),
    ("src/codec/Cargo.toml", &[]),
    ("src/files/Cargo.toml", &[]),
    ("src/foreign/Cargo.toml", &[]),
    ("src/grammar/Cargo.toml", &["trunkline-foreign", "trunkline-port", "trunkline-quote", "trunkline-text"]),
    ("src/pages/Cargo.toml", &[]),
    ("src/port/Cargo.toml", &["trunkline-quote"]),
    ("src/quote/Cargo.toml", &[]),
    (
        "src/store/Cargo.toml",
        &["trunkline-codec", "trunkline-files", "trunkline-foreign", "trunkline-port", "trunkline-quote"],
    ),
    ("src/template/Cargo.toml", &["trunkline-foreign", "trunkline-quote", "trunkline-text"]),
    ("src/text/Cargo.toml", &["trunkline-foreign", "trunkline-quote"]),
    // The last is for tests alone.
    (
        "src/worker/Cargo.toml",
        &[
            "trunkline-codec",
            "trunkline-files",
            "trunkline-foreign",
            "trunkline-grammar",
            "trunkline-pages",
            "trunkline-port",
            "trunkline-quote",
            "trunkline-text",
            "trunkline-grammar",
        ],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

fn files(folder: &Path, extensions: &[&str], out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            files(&path, extensions, out);
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|one| extension == *one)) {
            out.push(path);
        }
    }
}

/// All files of some kinds in some folders as (path inside the workspace, text).
fn texts(folders: &[&str], extensions: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    for folder in folders {
        files(&root.join(folder), extensions, &mut found);
    }
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).expect("inside").to_string_lossy().replace('\\', "/");
        (name, fs::read_to_string(&path).expect("a source file is text"))
    };
    let texts: Vec<_> = found.into_iter().map(read).collect();
    assert!(texts.len() > 20, "the files were not found");
    texts
}

/// All Rust sources.
fn sources() -> Vec<(String, String)> {
    texts(&["src", "sim", "tests"], &["rs"])
}

#[test]
fn files_are_short_and_named_for_what_they_hold() {
    for (name, text) in sources() {
        assert!(text.lines().count() <= LINES_MAX, "{name} has {} lines", text.lines().count());
        let stem = Path::new(&name).file_stem().unwrap().to_string_lossy().into_owned();
        assert!(!NAMELESS.contains(&stem.as_str()), "{name}: name it for what it holds");
        assert!(text.starts_with("//!"), "{name} has no doc comment of its own");
    }
}

#[test]
fn nothing_is_left_for_later() {
    // Spelt in halves, so that this file does not find itself.
    let marks = [["todo", "!("], ["unimplemented", "!("], ["FIX", "ME"], ["XX", "X"], ["#[ign", "ore"], ["dbg", "!("]];
    for (name, text) in sources() {
        for mark in marks.map(|halves| halves.concat()) {
            assert!(!text.contains(&mark), "{name} contains {mark}");
        }
    }
}

#[test]
fn tests_wait_for_events_and_not_for_time() {
    let sleep = ["sl", "eep("].concat();
    let is_test = |name: &str| name.starts_with("tests/") || name.contains("/tests/");
    // The soak paces its load, and is no test.
    for (name, text) in sources().iter().filter(|(name, _)| is_test(name) && !name.starts_with("tests/examples/")) {
        assert!(!text.contains(&sleep), "{name} sleeps");
    }
}

#[test]
fn unsafe_code_stays_where_it_is_needed() {
    for (name, text) in sources() {
        let is_unsafe = source::identifiers(&source::code_of(&text)).contains(&"unsafe");
        assert!(!is_unsafe || UNSAFE_FILES.contains(&name.as_str()), "{name} contains unsafe code");
    }
}

#[test]
fn bad_input_is_shown_by_one_function() {
    for (name, text) in sources().iter().filter(|(name, _)| !name.starts_with("tests/") && !name.contains("/tests")) {
        for text in source::texts(&source::without_tests(text)) {
            let own = source::quoted_by_hand(&text);
            assert!(own.is_empty(), "{name}: show {own} by `trunkline_quote::quoted`, which cuts what is too long");
        }
    }
}

#[test]
fn memory_is_not_asked_for_by_a_number_that_someone_typed() {
    let unbounded = allocations::unbounded(&sources());
    assert!(
        unbounded.is_empty(),
        "{}; let it grow, cap it, or name its bound in tidy/allocations.rs",
        unbounded.join("; ")
    );
    assert_eq!(allocations::unused(&sources()), [""; 0], "bounds in tidy/allocations.rs of numbers that are gone");
}

#[test]
fn crates_of_the_build_have_allowed_licences_and_one_version() {
    let rules = fs::read_to_string(root().join("deny.toml")).expect("the rules are there");
    let faults = supply::faults(&root(), &supply::Rules::read(&rules));
    assert!(faults.is_empty(), "{}; see deny.toml", faults.join("; "));
}

#[test]
fn names_in_deploy_are_those_of_metrics_and_settings() {
    let root = root();
    let page = |name: &str| fs::read_to_string(root.join("docs/reference").join(name)).expect("the page is there");
    let known = deploy::Known::read(&page("metrics.md"), &page("settings.md"));
    let faults = deploy::faults(&root, &known);
    assert!(faults.is_empty(), "not in docs/reference/metrics.md or settings.md:\n{}", faults.join("\n"));
}

#[test]
fn the_core_is_pure_and_arrows_point_down() {
    let manifest = |path: &str| fs::read_to_string(root().join(path)).expect("the manifest is there");
    let core = manifest("src/core/Cargo.toml");
    let depends = |manifest: &str, on: &str| manifest.lines().any(|line| line.starts_with(on));
    for crate_name in ["tokio", "tonic", "rand", "crossbeam"] {
        assert!(!depends(&core, crate_name), "the core depends on {crate_name}");
    }
    let of_the_house = |manifest: &str| -> Vec<String> {
        let names = manifest.lines().filter(|line| line.starts_with("trunkline-"));
        names.map(|line| line.split(['.', ' ', '=']).next().unwrap_or_default().to_owned()).collect()
    };
    let (of_the_core, of_its_tests) = core.split_once("[dev-dependencies]").expect("the core has tests");
    assert_eq!(
        of_the_house(of_the_core),
        ["trunkline-pages", "trunkline-port", "trunkline-quote"],
        "the core depends on the port, huge pages and the quoting of input alone"
    );
    assert_eq!(of_the_house(of_its_tests), ["trunkline-driver"], "its tests depend on the driver alone");
    for (path, allowed) in LOW_CRATES {
        assert_eq!(of_the_house(&manifest(path)), *allowed, "{path} depends on crates that it must not");
    }
    for (name, text) in sources().iter().filter(|(name, _)| name.starts_with("src/core/src/")) {
        for word in ["Instant::now", "SystemTime", "std::fs", "std::net", "thread::spawn"] {
            assert!(!text.contains(word), "{name} uses {word}");
        }
    }
    // The simulator's crates, each of which may depend on those before it and on none after it.
    let sim = ["workload", "perf", "report", "replay"];
    for (at, name) in sim.iter().enumerate() {
        let text = manifest(&format!("sim/{name}/Cargo.toml"));
        for crate_name in ["trunkline-server", "trunkline-worker", "tokio", "tonic"] {
            assert!(!text.contains(crate_name), "sim/{name} depends on {crate_name}");
        }
        for above in &sim[at + 1..] {
            assert!(!text.contains(&format!("trunkline-sim-{above}")), "sim/{name} depends on sim/{above}");
        }
    }
}

#[test]
fn functions_fit_a_screen() {
    check(&sources(), Measure::FunctionLines);
}

#[test]
fn structs_are_narrow() {
    check(&sources(), Measure::StructFields);
}

#[test]
fn modules_of_a_crate_have_no_circles() {
    check(&sources(), Measure::Circles);
}

#[test]
fn doc_comments_open_with_a_verb_or_a_noun() {
    check(&sources(), Measure::Openings);
}

#[test]
fn doc_comments_say_more_than_the_item_itself() {
    check(&sources(), Measure::ShortDocs);
}

#[test]
fn phrases_are_those_of_a_colleague() {
    // The second has sentences for models to read.
    let own = |name: &str| name.starts_with("tests/tidy") || name == "src/cli/src/h2o/sources.rs";
    let mut found = Vec::new();
    let pages = pages::pages(&root()).into_iter().map(|page| (page.name, page.text));
    let others = texts(&["proto/trunkline", "src/pyworker", "examples", "deploy"], &["proto", "py", "toml", "yaml"]);
    for (name, text) in sources().into_iter().filter(|(name, _)| !own(name)).chain(others).chain(pages) {
        for (line, phrase, better) in phrases::phrases(&text) {
            found.push(format!("{name}:{line}: '{phrase}': write {better}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn words_of_the_glossary_are_used() {
    check(&sources(), Measure::OldWords);
}

#[test]
fn pages_have_short_lines_and_cells() {
    let walls: Vec<String> = pages::pages(&root()).iter().flat_map(pages::walls).collect();
    assert!(walls.is_empty(), "{}", walls.join("\n"));
}

#[test]
fn links_between_pages_lead_somewhere() {
    let dead: Vec<String> = pages::pages(&root()).iter().flat_map(|page| pages::dead_links(&root(), page)).collect();
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn the_index_and_the_book_list_every_page() {
    let all = pages::pages(&root());
    for index in ["docs/README.md", "docs/SUMMARY.md"] {
        let index = all.iter().find(|page| page.name == index).expect("the index is there");
        assert_eq!(pages::unlisted(index, &all), [""; 0]);
    }
}

#[test]
fn pages_are_short() {
    assert_eq!(pages::wordy(&pages::pages(&root())), [""; 0]);
}
