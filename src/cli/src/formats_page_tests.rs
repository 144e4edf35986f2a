//! The table of trace formats in `docs/` is what the formats declare.

use std::fs;
use std::path::{Path, PathBuf};

use trunkline_sim_workload::trace::formats;

use crate::readme_tests::root;

const MARKS: [&str; 2] = ["<!-- formats -->", "<!-- /formats -->"];

/// Returns the pages below a folder.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => out.extend(pages(&path)),
            false => out.extend(path.extension().is_some_and(|it| it == "md").then_some(path)),
        }
    }
    out
}

#[test]
fn the_table_of_formats_is_what_they_declare() {
    let [begin, end] = MARKS;
    let mut n_tables = 0;
    for path in pages(&root().join("docs")) {
        let page = fs::read_to_string(&path).unwrap();
        let Some((before, rest)) = page.split_once(begin) else { continue };
        let (_, after) = rest.split_once(end).expect("the table has an end");
        n_tables += 1;
        let wanted = format!("{before}{begin}\n{}\n{end}{after}", formats::table());
        if std::env::var_os("TRUNKLINE_WRITE_DOCS").is_some() {
            fs::write(&path, wanted).unwrap();
            continue;
        }
        let path = path.display();
        assert!(
            page == wanted,
            "{path} is not what formats declare; run TRUNKLINE_WRITE_DOCS=1 cargo test table_of_formats"
        );
    }
    assert_eq!(n_tables, 1, "one page has a table between {begin} and {end}");
}
