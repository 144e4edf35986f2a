//! Licences and versions of the crates in the build, by `deny.toml`, for when `cargo deny` is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Rules of `deny.toml`.
pub struct Rules {
    licences: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

fn texts(value: Option<&toml::Value>) -> BTreeSet<String> {
    let list = value.and_then(toml::Value::as_array).into_iter().flatten();
    list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

impl Rules {
    /// Reads the rules.
    pub fn read(text: &str) -> Self {
        let file: toml::Table = toml::from_str(text).expect("deny.toml is TOML");
        let of = |section: &str, key: &str| texts(file.get(section).and_then(|section| section.get(key)));
        Self { licences: of("licenses", "allow"), skipped: of("bans", "skip") }
    }

    /// Returns `true` if one of the alternatives of a licence has allowed parts alone. Brackets stand around alternatives.
    fn allows(&self, licence: &str) -> bool {
        let licence = licence.replace('/', " OR ");
        let is_allowed = |part: &str| self.licences.contains(part.trim().trim_matches(['(', ')']));
        if licence.contains('(') {
            licence.split(" AND ").all(|all| all.split(" OR ").any(is_allowed))
        } else {
            licence.split(" OR ").any(|one| one.split(" AND ").all(is_allowed))
        }
    }
}

/// Returns name, version and licence of each crate of others in the build of one target.
fn crates(root: &Path) -> BTreeSet<(String, String, String)> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--workspace", "--locked", "--target=x86_64-unknown-linux-gnu", "--prefix=none"]);
    let output = cargo.arg("--format={p}|{l}|").current_dir(root).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    // As in `name v1.2.3 (proc-macro)|MIT|`; a crate of the workspace has its folder in brackets.
    let others = text.lines().filter_map(|line| {
        let (package, licence) = line.split_once('|')?;
        let (name, version) = package.split_once(" v")?;
        let version = version.split(' ').next()?;
        (!package.contains("(/")).then(|| (name.into(), version.into(), licence.split('|').next().unwrap_or("").into()))
    });
    others.collect()
}

/// Returns a line for each crate that the rules do not allow.
pub fn faults(root: &Path, rules: &Rules) -> Vec<String> {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut out = Vec::new();
    let crates = crates(root);
    assert!(crates.len() > 100, "{} crates were found", crates.len());
    for (name, version, licence) in crates {
        if !rules.allows(&licence) {
            out.push(format!("{name} {version} has the licence '{licence}'"));
        }
        versions.entry(name).or_default().push(version);
    }
    for (name, mut all) in versions {
        all.retain(|version| !rules.skipped.contains(&format!("{name}@{version}")));
        if all.len() > 1 {
            out.push(format!("{name} is there in the versions {}", all.join(", ")));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_allowed_if_one_of_its_alternatives_is() {
        let rules = Rules::read("[licenses]\nallow = ['MIT', 'Zlib']\n[bans]\nskip = ['a@1.0.0']\n");
        for licence in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "(MIT OR X) AND Zlib", "MIT AND Zlib"] {
            assert!(rules.allows(licence), "{licence}");
        }
        for licence in ["", "GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0 OR GPL-3.0", "(MIT OR X) AND GPL-3.0"] {
            assert!(!rules.allows(licence), "{licence}");
        }
        assert!(rules.skipped.contains("a@1.0.0"));
    }
}
