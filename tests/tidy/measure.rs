//! Measures of the crates' shape and wording.

use std::collections::BTreeMap;

use crate::limits::{ALLOWED, GOALS, Measure, OLD_NAMES, OLD_PHRASES, OPENINGS};
use crate::modules::{circles, folders, graph};
use crate::source::{Doc, Sized, docs, functions, identifier_parts, structs, without_tests, words};

/// Maximum number of offenders listed in a failure.
const LISTED_MAX: usize = 12;

/// A crate: its folder, and its files as (path below `src/`, source without tests).
pub struct Crate {
    pub name: String,
    files: Vec<(String, String)>,
}

/// A number, and the places that cause it, worst first.
pub struct Measured {
    pub number: f64,
    offenders: Vec<String>,
}

/// Groups source files by crate. Files of tests and benches are left out.
pub fn crates(sources: &[(String, String)]) -> Vec<Crate> {
    let mut by_name: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (path, text) in sources {
        let Some((name, file)) = path.split_once("/src/").map(|(name, file)| (name, file.to_owned())) else {
            continue;
        };
        let test = |part: &str| part == "tests" || part == "benches" || part.ends_with("tests.rs");
        if !path.split('/').any(test) {
            by_name.entry(name.to_owned()).or_default().push((file, without_tests(text)));
        }
    }
    by_name.into_iter().map(|(name, files)| Crate { name, files }).collect()
}

impl Crate {
    /// Measures the crate.
    pub fn measure(&self, measure: Measure) -> Measured {
        match measure {
            Measure::FunctionLines => self.widest(functions),
            Measure::StructFields => self.widest(structs),
            Measure::Circles => {
                let modules = graph(&self.files);
                let mut found = circles(&modules);
                if found.is_empty() {
                    found = circles(&folders(&modules));
                }
                let offenders = found.iter().map(|circle| circle.join(" <-> ")).collect();
                Measured { number: found.len() as f64, offenders }
            }
            Measure::Openings => self.share(opens_badly),
            Measure::ShortDocs => self.share(|doc| !doc.inner && doc.text.split_whitespace().count() <= 3),
            Measure::OldWords => self.old_words(),
        }
    }

    fn widest(&self, items: fn(&str) -> Vec<Sized>) -> Measured {
        let of = |(file, text): &(String, String)| {
            let named = |item: Sized| Sized { name: format!("{file}: {}", item.name), ..item };
            items(text).into_iter().map(named).collect::<Vec<_>>()
        };
        let mut all: Vec<Sized> = self.files.iter().flat_map(of).collect();
        all.sort_by(|a, b| b.cmp(a));
        let offenders = all.iter().map(|item| format!("{} {}", item.n, item.name)).collect();
        Measured { number: all.first().map_or(0, |item| item.n) as f64, offenders }
    }

    fn docs(&self) -> impl Iterator<Item = (&str, Doc)> {
        self.files.iter().flat_map(|(file, text)| docs(text).into_iter().map(move |doc| (&file[..], doc)))
    }

    /// Measures the share of doc comments with a fault, per cent.
    fn share(&self, fault: fn(&Doc) -> bool) -> Measured {
        let faulty = self.docs().filter(|(_, doc)| fault(doc));
        let offenders: Vec<_> = faulty.map(|(file, doc)| format!("{file}: {}", beginning(&doc.text))).collect();
        Measured { number: 100.0 * offenders.len() as f64 / self.docs().count().max(1) as f64, offenders }
    }

    fn old_words(&self) -> Measured {
        let mut offenders = Vec::new();
        for (file, doc) in self.docs() {
            let text = format!(" {} ", words(&doc.text).join(" "));
            for phrase in OLD_PHRASES {
                let found = format!(" {phrase} ");
                offenders.extend(text.match_indices(&found).map(|_| format!("{file}: doc says '{phrase}'")));
            }
        }
        for (file, text) in &self.files {
            let old = identifier_parts(text).into_iter().filter(|part| OLD_NAMES.contains(&&part[..]));
            offenders.extend(old.map(|part| format!("{file}: name with '{part}'")));
        }
        Measured { number: offenders.len() as f64, offenders }
    }
}

fn opens_badly(doc: &Doc) -> bool {
    let opens = |words: &&str| {
        let rest = doc.text.strip_prefix(words);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    OPENINGS.iter().any(opens)
}

fn beginning(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Returns the highest number that a crate may have.
fn limit(name: &str, measure: Measure) -> f64 {
    let holds = |folder: &str| name == folder || name.starts_with(&format!("{folder}/"));
    let row = ALLOWED.iter().find(|(folder, _)| holds(folder)).map_or(GOALS, |(_, row)| *row);
    row[measure as usize].max(GOALS[measure as usize])
}

/// Fails if a crate exceeds its limit, and lists the worst places.
pub fn check(sources: &[(String, String)], measure: Measure) {
    let crates = crates(sources);
    assert!(crates.len() >= 5, "the crates were not found");
    let mut faults = String::new();
    for krate in crates {
        let Measured { number, mut offenders } = krate.measure(measure);
        let limit = limit(&krate.name, measure);
        if number > limit {
            offenders.truncate(LISTED_MAX);
            let list = offenders.join("\n    ");
            faults.push_str(&format!("\n{}: {number:.2}, at most {limit}\n    {list}", krate.name));
        }
    }
    assert!(faults.is_empty(), "{measure:?}:{faults}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_crate_are_counted() {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let sources = [
            file(
                "src/one/src/lib.rs",
                "//! It is one.\n\n/// What.\nstruct A {\n    a: u8,\n    b: u8,\n}\n/// As many as were told.\nfn twin_leap() {}\n",
            ),
            file("src/one/src/tests.rs", "/// What.\nfn f() {}\n"),
            file("src/one/tests/more.rs", "/// What.\nfn f() {}\n"),
        ];
        let one = &crates(&sources)[0];
        let number = |measure| one.measure(measure).number;
        assert_eq!(one.name, "src/one");
        assert_eq!((number(Measure::FunctionLines), number(Measure::StructFields)), (1.0, 2.0));
        assert_eq!((number(Measure::Openings), number(Measure::Circles)), (100.0, 0.0));
        assert!((number(Measure::ShortDocs) - 100.0 / 3.0).abs() < 1e-9);
        assert_eq!(number(Measure::OldWords), 3.0, "told, twin and leap");
        let assumed = Doc { inner: false, text: "Assumed latency.".into() };
        assert!(!opens_badly(&assumed));
    }
}
