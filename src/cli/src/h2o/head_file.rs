//! File with what each KV head of a model loses under eviction, as `h2o calibrate` writes it and `serve --h2o` reads it.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use serde::{Deserialize, Serialize};
use tracing::warn;
use trunkline_quote::of_parser;

use super::full_heads::FullHeads;
use super::head_loss::HeadLosses;

const HEADER: &str = "# What a model loses if a KV head drops tokens, found by `trunkline h2o calibrate`: which heads keep every token follows.\n";

/// Losses of the KV heads of one revision of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadFile {
    /// Name of the model.
    pub model: String,
    /// Revision of the weights: 32 hex digits, as in `GetModelInfo`.
    pub revision: String,
    /// Layers and heads that keep every token at any total, as in `--h2o-layers`; without, heads are chosen by their losses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
    /// Tokens of each text.
    pub tokens: u32,
    /// Number of texts.
    pub texts: u32,
    /// Number of KV heads in a layer.
    pub kv_heads: u32,
    /// `[layer * kv_heads + head]`: share of each head in the loss by the rest of a text, if it drops tokens alone.
    pub rest: Vec<f64>,
    /// Share of each head in the loss by the repetition of a text.
    pub repeated: Vec<f64>,
}

impl HeadFile {
    /// Returns the place of a model's file: in its folder, or next to it.
    pub fn default_path(model: &Path) -> PathBuf {
        if model.is_dir() {
            return model.join("h2o.toml");
        }
        let mut name: OsString = model.file_name().unwrap_or_default().to_owned();
        name.push(".h2o.toml");
        model.with_file_name(name)
    }

    /// Returns the losses.
    ///
    /// # Errors
    /// If the file contradicts itself.
    pub fn losses(self) -> anyhow::Result<HeadLosses> {
        let (n, per_layer) = (self.rest.len() as u32, self.kv_heads);
        ensure!(
            per_layer > 0 && n.is_multiple_of(per_layer) && self.repeated.len() as u32 == n,
            "it has {n} and {} losses for layers of {per_layer} KV heads",
            self.repeated.len()
        );
        ensure!(
            self.rest.iter().chain(&self.repeated).all(|share| (0.0..=1.0).contains(share)),
            "a loss is not a share of all"
        );
        let keep = self.keep.map(|keep| FullHeads::parse("keep", &keep, n / per_layer, per_layer)).transpose()?;
        Ok(HeadLosses { rest: self.rest, repeated: self.repeated, keep })
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        fs::write(path, self.text()?).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// If a number is not one of TOML.
    pub fn text(&self) -> anyhow::Result<String> {
        Ok(format!("{HEADER}{}", toml::to_string(self).context("the losses cannot be written as TOML")?))
    }

    /// Checks that a file can be written, and changes nothing.
    ///
    /// # Errors
    /// If the file can neither be opened nor made.
    pub fn check_writable(path: &Path) -> anyhow::Result<()> {
        let is_new = !path.exists();
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.with_context(|| format!("cannot write {}", path.display()))?;
        if is_new {
            fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Returns the heads in the file of a model that keep every token at any total, for a new file of the weights `revision`, and a note if they were named
    /// for other weights or are lost.
    pub fn kept(model: &Path, revision: &str, (n_layers, per_layer): (u32, u32)) -> (Option<String>, Option<String>) {
        let path = Self::default_path(model);
        let old = match Self::of(model) {
            Ok(Some(old)) => old,
            Ok(None) => return (None, None),
            Err(error) => return (None, Some(format!("{error:#}; a line 'keep' in it is lost"))),
        };
        let Some(keep) = old.keep else { return (None, None) };
        if let Err(error) = FullHeads::parse("keep", &keep, n_layers, per_layer) {
            return (None, Some(format!("{} {error}; the line is left out", path.display())));
        }
        let is_of_others = old.revision != revision;
        let note = || format!("keep = \"{keep}\" in {} is of other weights; remove the line if wrong", path.display());
        let note = is_of_others.then(note);
        (Some(keep), note)
    }

    /// Returns the losses of a model's heads, if `h2o calibrate` found them for this revision.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed.
    pub fn losses_of(model: &Path, revision: &str) -> anyhow::Result<Option<HeadLosses>> {
        let Some(file) = Self::of(model)? else { return Ok(None) };
        if file.revision != revision {
            let path = Self::default_path(model);
            warn!("{} is of other weights; run trunkline h2o calibrate again", path.display());
            return Ok(None);
        }
        file.losses().map(Some)
    }

    /// Reads the file of a model, if there is one.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed.
    pub fn of(model: &Path) -> anyhow::Result<Option<Self>> {
        let path = Self::default_path(model);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Some(Self::parse(&text, &path)?))
    }

    /// Reads the text of a file; messages name it `path`.
    ///
    /// # Errors
    /// If the text is malformed.
    pub fn parse(text: &str, path: &Path) -> anyhow::Result<Self> {
        let file: Self = toml::from_str(text).map_err(|error| {
            let (path, fault) = (path.display(), of_parser(error.message()));
            anyhow!("{path} is not of this version, or damaged ({fault}); run trunkline h2o calibrate again")
        })?;
        file.clone()
            .losses()
            .with_context(|| format!("{} is damaged; run trunkline h2o calibrate again", path.display()))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> HeadFile {
        HeadFile {
            model: "tiny".into(),
            revision: "00ff".into(),
            keep: None,
            tokens: 1024,
            texts: 4,
            kv_heads: 2,
            rest: vec![0.1, 0.05, 0.2, 0.15, 0.1, 0.1, 0.2, 0.1],
            repeated: vec![0.125; 8],
        }
    }

    #[test]
    fn a_file_is_found_beside_its_model_and_survives_being_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let gguf = dir.path().join("a.gguf");
        fs::write(&gguf, "").unwrap();
        assert_eq!(HeadFile::default_path(dir.path()), dir.path().join("h2o.toml"));
        assert_eq!(HeadFile::default_path(&gguf), dir.path().join("a.gguf.h2o.toml"));
        assert_eq!(HeadFile::of(&gguf).unwrap(), None);
        file().write(&HeadFile::default_path(&gguf)).unwrap();
        assert_eq!(HeadFile::of(&gguf).unwrap(), Some(file()));
        assert_eq!(HeadFile::losses_of(&gguf, &file().revision).unwrap(), Some(file().losses().unwrap()));
        HeadFile { keep: Some("1,3.0".into()), ..file() }.write(&HeadFile::default_path(&gguf)).unwrap();
        let keep = HeadFile::of(&gguf).unwrap().unwrap().losses().unwrap().keep;
        assert_eq!(keep.map(|heads| heads.to_string()), Some("1,3.0".to_owned()));
        assert_eq!(HeadFile::losses_of(&gguf, "of other weights").unwrap(), None);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = HeadFile::default_path(dir.path());
        let fault = || format!("{:#}", HeadFile::of(dir.path()).unwrap_err());
        fs::write(&path, "layers = 3").unwrap();
        assert!(fault().contains("h2o.toml is not of this version, or damaged ("), "{}", fault());
        HeadFile { keep: Some("4".into()), ..file() }.write(&path).unwrap();
        assert!(fault().contains("names layer 4; the model has the layers 0 to 3"), "{}", fault());
        HeadFile { repeated: vec![0.5], ..file() }.write(&path).unwrap();
        assert!(fault().contains("8 and 1 losses for layers of 2 KV heads"), "{}", fault());
        HeadFile { repeated: vec![-0.5; 8], ..file() }.write(&path).unwrap();
        assert!(fault().contains("a loss is not a share of all"), "{}", fault());
    }
    #[test]
    fn heads_that_are_kept_survive_a_calibration_with_a_note_if_they_were_of_other_weights() {
        let dir = tempfile::tempdir().unwrap();
        let kept = |revision: &str, n_layers| HeadFile::kept(dir.path(), revision, (n_layers, 2));
        assert_eq!(kept("00ff", 4), (None, None));
        let path = HeadFile::default_path(dir.path());
        HeadFile { keep: Some("1,3.0".into()), ..file() }.write(&path).unwrap();
        assert_eq!(kept("00ff", 4), (Some("1,3.0".into()), None));
        let (keep, note) = kept("0000", 4);
        assert_eq!(keep, Some("1,3.0".into()));
        assert!(note.is_some_and(|note| note.ends_with("is of other weights; remove the line if wrong")));
        let (keep, note) = kept("0000", 2);
        assert_eq!(keep, None);
        assert!(note.is_some_and(|note| note.ends_with("the model has the layers 0 to 1; the line is left out")));
        fs::write(&path, "layers = 3").unwrap();
        assert!(kept("00ff", 4).1.is_some_and(|note| note.ends_with("a line 'keep' in it is lost")));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_known_before_and_one_that_can_is_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new.toml");
        HeadFile::check_writable(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "old").unwrap();
        HeadFile::check_writable(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let fault = HeadFile::check_writable(&dir.path().join("none/new.toml")).unwrap_err().to_string();
        assert!(fault.starts_with("cannot write ") && fault.ends_with("none/new.toml"), "{fault}");
    }
}
