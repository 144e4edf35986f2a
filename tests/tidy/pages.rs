//! Rules for the pages: width of lines and cells, links, the index, and the number of words.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Characters of a line of prose, at most.
const LINE_MAX: usize = 160;
/// Words of a cell of a table, at most.
const CELL_WORDS_MAX: usize = 30;
/// Pages of the guide, at most.
pub const GUIDES_MAX: usize = 11;
/// Words of a page of the guide, at most.
pub const GUIDE_WORDS_MAX: usize = 1_000;
/// Words of README, ARCHITECTURE, CONTRIBUTING and all pages of `docs/`, at most.
pub const WORDS_MAX: usize = 50_000;
/// Folders with pages.
const FOLDERS: [&str; 9] = [
    "",
    "docs",
    "docs/guide",
    "docs/reference",
    "docs/design",
    "docs/results",
    "models",
    "models/training",
    "src/pyworker",
];
/// Page that only grows, and names old pages.
const HISTORY: &str = "CHANGELOG.md";

/// Page, by its path inside the workspace.
pub struct Page {
    pub name: String,
    pub text: String,
}

/// Reads all pages.
pub fn pages(root: &Path) -> Vec<Page> {
    let mut pages = Vec::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(root.join(folder)).expect("the folder is there") {
            let file = entry.expect("the entry can be read").file_name().to_string_lossy().into_owned();
            if file.ends_with(".md") && file != HISTORY {
                let name = Path::new(folder).join(file).to_string_lossy().into_owned();
                let text = fs::read_to_string(root.join(&name)).expect("a page is text");
                pages.push(Page { name, text });
            }
        }
    }
    pages.sort_by(|a, b| a.name.cmp(&b.name));
    pages
}

/// Returns the number of words that a reader sees: whatever has a letter or a digit, outside of comments.
pub fn words(text: &str) -> usize {
    fn after_comment(part: &str) -> &str {
        part.split_once("-->").map_or("", |(_, rest)| rest)
    }
    let shown = text.split("<!--").enumerate().map(|(i, part)| if i == 0 { part } else { after_comment(part) });
    shown.flat_map(str::split_whitespace).filter(|word| word.chars().any(char::is_alphanumeric)).count()
}

/// Lines outside of blocks of code, each with its number from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    text.lines().enumerate().filter_map(move |(i, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        (!in_block && !is_fence).then_some((i + 1, line))
    })
}

/// Returns a line for each line of prose that is too long, and each cell with too many words.
pub fn walls(page: &Page) -> Vec<String> {
    let mut out = Vec::new();
    let mut in_comment = false;
    for (number, line) in prose(&page.text) {
        in_comment |= line.starts_with("<!--");
        let is_hidden = in_comment;
        in_comment &= !line.contains("-->");
        if line.starts_with('|') {
            let n = line.replace("\\|", "/").split('|').map(words).max().unwrap_or(0);
            if n > CELL_WORDS_MAX {
                out.push(format!("{}:{number}: a cell of {n} words", page.name));
            }
        } else if !is_hidden && !line.starts_with("![") && line.chars().count() > LINE_MAX {
            out.push(format!("{}:{number}: {} characters", page.name, line.chars().count()));
        }
    }
    out
}

/// Returns the targets of the links of a page, in order.
fn targets(text: &str) -> Vec<String> {
    let prose: Vec<&str> = prose(text).map(|(_, line)| line).collect();
    let prose = prose.join("\n");
    // What stands between code marks is no link.
    let open: String = prose.split('`').enumerate().map(|(i, part)| if i % 2 == 0 { part } else { "code" }).collect();
    open.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// Returns the anchor of a heading, as forges and mdBook make it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| anchor(line)).collect()
}

/// Joins a path and a link in a file at that path.
fn joined(page: &str, link: &str) -> PathBuf {
    let mut path = Path::new(page).parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// Returns a line for each link of a page inside the workspace that leads nowhere.
pub fn dead_links(root: &Path, page: &Page) -> Vec<String> {
    let is_dead = |link: &String| {
        if link.contains("://") || link.starts_with("mailto:") {
            return false;
        }
        let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
        let path = if file.is_empty() { PathBuf::from(&page.name) } else { joined(&page.name, file) };
        let path = root.join(path);
        let has_anchor = || fs::read_to_string(&path).is_ok_and(|text| anchors(&text).contains(fragment));
        !path.exists() || (!fragment.is_empty() && !has_anchor())
    };
    let dead = targets(&page.text).into_iter().filter(is_dead);
    dead.map(|link| format!("{}: nothing is at {link}", page.name)).collect()
}

/// Returns a line for each page of `docs/` without a link from this page of `docs/`.
pub fn unlisted(index: &Page, pages: &[Page]) -> Vec<String> {
    let listed: BTreeSet<PathBuf> = targets(&index.text).iter().map(|link| joined(&index.name, link)).collect();
    let is_content = |page: &&Page| page.name.starts_with("docs/") && page.name.matches('/').count() > 1;
    let missing = pages.iter().filter(is_content).filter(|page| !listed.contains(Path::new(&page.name)));
    missing.map(|page| format!("{} has no {}", index.name, page.name)).collect()
}

/// Returns a line for each page that has too many words, and one if all together have.
pub fn wordy(pages: &[Page]) -> Vec<String> {
    let guides = || pages.iter().filter(|page| page.name.starts_with("docs/guide/"));
    let mut out: Vec<String> = guides()
        .filter(|page| words(&page.text) > GUIDE_WORDS_MAX)
        .map(|page| format!("{} has {} words", page.name, words(&page.text)))
        .collect();
    if guides().count() > GUIDES_MAX {
        out.push(format!("docs/guide has {} pages", guides().count()));
    }
    let is_counted = |page: &&Page| {
        page.name.starts_with("docs/")
            || ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].contains(&page.name.as_str())
    };
    let all: usize = pages.iter().filter(is_counted).map(|page| words(&page.text)).sum();
    if all > WORDS_MAX {
        out.push(format!("the pages have {all} words"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str, text: &str) -> Page {
        Page { name: name.into(), text: text.into() }
    }

    #[test]
    fn long_lines_and_full_cells_are_found_outside_of_code() {
        let (long, full) = ("a".repeat(161), format!("| {} | b |", "word ".repeat(31)));
        let text = format!("{long}\n```text\n{long}\n```\n<!-- run: {long}\n{long}\n-->\n{full}\n| short | {long} |\n");
        let found = walls(&page("a.md", &text));
        assert_eq!(found, ["a.md:1: 161 characters", "a.md:8: a cell of 31 words"]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        fs::create_dir(folder.path().join("docs")).expect("a folder can be made");
        fs::write(folder.path().join("docs/b.md"), "# One `two`, three!\n").expect("a file can be written");
        let text =
            "[a](b.md) [b](b.md#one-two-three) [c](b.md#four) [d](c.md) [e](../docs/b.md) [f](https://x.y) `[g](h)`\n";
        let dead = dead_links(folder.path(), &page("docs/a.md", text));
        assert_eq!(dead, ["docs/a.md: nothing is at b.md#four", "docs/a.md: nothing is at c.md"]);
    }

    #[test]
    fn pages_outside_of_an_index_are_found() {
        let pages = [page("docs/guide/a.md", ""), page("docs/guide/b.md", ""), page("docs/README.md", "")];
        let index = page("docs/SUMMARY.md", "- [A](guide/a.md)\n");
        assert_eq!(unlisted(&index, &pages), ["docs/SUMMARY.md has no docs/guide/b.md"]);
    }

    #[test]
    fn pages_with_too_many_words_are_found() {
        let pages =
            [page("docs/guide/a.md", &"a | ".repeat(1_001)), page("README.md", &"b ".repeat(WORDS_MAX - 1_000))];
        assert_eq!(
            wordy(&pages),
            ["docs/guide/a.md has 1001 words".into(), format!("the pages have {} words", WORDS_MAX + 1)]
        );
    }
}
