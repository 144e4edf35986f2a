//! Folder of a published profile: tables of each number of devices, and `meta.yaml` next to them.
//!
//! Published profiles are `HARDWARE/MODEL/VARIANT/` with `meta.yaml` and a folder `tpN/` of tables for each number of devices `N`.
//! A folder with tables and `meta.yaml` together is one of a single device.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the file that describes a profile.
const META: &str = "meta.yaml";
/// Files that identify a folder of tables.
const TABLES: [&str; 3] = ["dense.csv", "dense.csv.gz", "dense.parquet"];

/// Files of a folder of tables that a table reads or need not read: `skew` is what `skew_fit` was fitted to, and `step` holds steps
/// measured as a whole.
const KNOWN: [&str; 6] = ["dense", "per_sequence", "attention", "skew_fit", "skew", "step"];

/// Tables for a number of devices, and the description of the profile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Profile {
    /// Folder of the tables.
    pub tables: PathBuf,
    /// Numbers of devices that the profile has tables of, ascending.
    pub degrees: BTreeSet<u32>,
    /// Values of `meta.yaml` by the path of their keys, joined by slashes: `skew_fit/enabled`.
    meta: BTreeMap<String, String>,
}

impl Profile {
    /// Finds the tables of `tensor` devices in folder `path`, which is a variant's folder or one of its folders of tables. Without
    /// tables of so many devices, `tables` is `path` itself, and `degrees` says what there is.
    pub fn find(path: &Path, tensor: u32) -> Self {
        let mut degrees = published(path);
        if degrees.is_empty() {
            // The name of "." or of a link says nothing; that of the folder does.
            let folder = fs::canonicalize(path).unwrap_or_else(|_| path.into());
            let named = folder.file_name().and_then(|name| degree(&name.to_string_lossy()));
            degrees.insert(named.unwrap_or(1));
            let parent = folder.parent().filter(|_| named.is_some() && !folder.join(META).exists());
            return Self { tables: path.into(), degrees, meta: meta(&parent.unwrap_or(&folder).join(META)) };
        }
        let tables = if degrees.contains(&tensor) { path.join(format!("tp{tensor}")) } else { path.into() };
        Self { tables, degrees, meta: meta(&path.join(META)) }
    }

    /// Returns `true` if folder `path` holds tables, or folders of tables for numbers of devices.
    pub fn is_at(path: &Path) -> bool {
        has_tables(path) || !published(path).is_empty()
    }

    /// Returns the name of the measured model, or nothing.
    pub fn model(&self) -> &str {
        self.meta.get("model").map_or("", String::as_str)
    }

    /// Adds a note on files of measurements that the table does not use, such as `moe.csv` for a model without experts.
    pub fn name_others(&self, has_experts: bool, notes: &mut Vec<String>) {
        let Ok(entries) = fs::read_dir(&self.tables) else { return };
        let others: BTreeSet<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".csv") || name.ends_with(".csv.gz") || name.ends_with(".parquet"))
            .filter(|name| match name.split('.').next().unwrap_or_default() {
                "moe" => !has_experts,
                stem => !KNOWN.contains(&stem),
            })
            .collect();
        notes.extend(others.into_iter().map(|name| format!("{name} not used")));
    }

    /// Returns the share of the skew between long and short decodes that `meta.yaml` states for `tensor` devices: 0 without a fit.
    /// Adds a note if a fit is enabled but its share is not stated.
    pub fn skew(&self, tensor: u32, notes: &mut Vec<String>) -> f64 {
        if self.meta.get("skew_fit/enabled").map(String::as_str) != Some("true") {
            return 0.0;
        }
        let keys = [
            format!("skew_fit/per_tp/{tensor}/alpha_default_by_kernel/attention|q=1"),
            format!("skew_fit/per_tp/{tensor}/alpha_default"),
            "skew_fit/alpha_default".into(),
        ];
        let stated =
            keys.iter().find_map(|key| self.meta.get(key)?.parse().ok()).filter(|share: &f64| share.is_finite());
        if stated.is_none() {
            notes.push(format!(
                "{META} enables skew_fit without an alpha_default of {tensor} devices: skew not counted"
            ));
        }
        stated.unwrap_or(0.0).max(0.0)
    }
}

/// Returns the numbers of devices that folder `path` has folders of tables for.
fn published(path: &Path) -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir(path) else { return BTreeSet::new() };
    let with_tables = entries.flatten().filter(|entry| has_tables(&entry.path()));
    with_tables.filter_map(|entry| degree(&entry.file_name().to_string_lossy())).collect()
}

/// Returns the number of devices of a folder called `tpN`.
fn degree(name: &str) -> Option<u32> {
    name.strip_prefix("tp")?.parse().ok().filter(|n| *n > 0)
}

fn has_tables(path: &Path) -> bool {
    TABLES.iter().any(|file| path.join(file).exists())
}

/// Reads the values of a file of nested mappings: plain values on the line of their key, two levels set apart by their indentation.
/// Lists are skipped; a missing file has no values.
fn meta(path: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut values = BTreeMap::new();
    // Indentation and key of each mapping that is open.
    let mut open: Vec<(usize, &str)> = Vec::new();
    for line in text.lines() {
        let content = line.trim_start();
        let Some((key, value)) = content.split_once(':') else { continue };
        if content.starts_with(['#', '-']) {
            continue;
        }
        let indent = line.len() - content.len();
        open.retain(|(outer, _)| *outer < indent);
        let plain = |text: &'_ str| text.trim().trim_matches(['\'', '"']).to_owned();
        let names: Vec<String> = open.iter().map(|(_, name)| plain(name)).chain([plain(key)]).collect();
        if !value.trim().is_empty() {
            values.insert(names.join("/"), plain(value));
        }
        open.push((indent, key));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    const PUBLISHED: &str = "model: org/Model-8B\ntp_degrees: [1, 2]\nskew_fit:\n  enabled: true\n  bucket_axes:\n    pc: raw\n  per_tp:\n    1:\n      \
        alpha_default: 0.05\n    '2':\n      alpha_default: 0.07\n      alpha_default_by_kernel:\n        attention|q=1: 0.08\nafter:\n  alpha_default: 9\n";

    #[test]
    fn tables_are_found_for_each_number_of_devices() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        write(&path.join("meta.yaml"), PUBLISHED);
        write(&path.join("tp1/dense.csv"), "x");
        write(&path.join("tp2/dense.csv.gz"), "x");
        write(&path.join("tp4/attention.csv"), "x");
        assert!(Profile::is_at(path));
        let two = Profile::find(path, 2);
        assert_eq!((two.tables.clone(), two.model()), (path.join("tp2"), "org/Model-8B"));
        assert_eq!(two.degrees, BTreeSet::from([1, 2]), "tp4 has no dense table");
        assert_eq!(Profile::find(path, 8).tables, path);
        // The folder of tables itself finds meta.yaml next to it.
        let inner = Profile::find(&path.join("tp2"), 2);
        assert_eq!((inner.tables.clone(), inner.degrees.clone()), (path.join("tp2"), BTreeSet::from([2])));
        assert_eq!(inner.model(), "org/Model-8B");
    }

    #[test]
    fn files_that_are_not_used_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["dense.csv", "skew.csv", "step.csv", "moe.csv", "linear_attention.parquet", "notes.txt"] {
            write(&folder.path().join("tp1").join(file), "x");
        }
        let mut notes = Vec::new();
        Profile::find(folder.path(), 1).name_others(false, &mut notes);
        assert_eq!(notes, ["linear_attention.parquet not used", "moe.csv not used"]);
    }

    #[test]
    fn skew_is_as_stated_for_the_number_of_devices() {
        let folder = tempfile::tempdir().unwrap();
        let skew = |text: &str, tensor| {
            write(&folder.path().join("meta.yaml"), text);
            let mut notes = Vec::new();
            (Profile::find(folder.path(), tensor).skew(tensor, &mut notes), notes)
        };
        assert_eq!(skew(PUBLISHED, 1), (0.05, vec![]));
        assert_eq!(skew(PUBLISHED, 2), (0.08, vec![]), "that of the kernel goes before that of all");
        assert_eq!(skew("skew_fit:\n  enabled: true\n  alpha_default: 0.0543\n", 1), (0.0543, vec![]));
        assert_eq!(skew("skew_fit:\n  enabled: false\n  alpha_default: 0.0543\n", 1), (0.0, vec![]));
        assert_eq!(skew("skew_profile:\n  enabled: true\n", 1), (0.0, vec![]));
        let (share, notes) = skew(PUBLISHED, 4);
        assert_eq!(share, 0.0);
        assert_eq!(notes, ["meta.yaml enables skew_fit without an alpha_default of 4 devices: skew not counted"]);
        fs::remove_file(folder.path().join("meta.yaml")).unwrap();
        assert_eq!(Profile::find(folder.path(), 1).skew(1, &mut Vec::new()), 0.0);
    }
}
