//! File with the layers of a model that read far back, as `h2o calibrate` writes it and `serve --h2o` reads it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tracing::warn;

const HEADER: &str =
    "# Layers that read far back, found by `trunkline h2o calibrate`. They keep every token under --h2o on.\n";

/// Layers of one revision of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerFile {
    /// Name of the model.
    pub model: String,
    /// Revision of the weights: 32 hex digits, as in `GetModelInfo`.
    pub revision: String,
    /// Layers that keep every token, ascending.
    pub layers: Vec<u32>,
    /// Tokens of each text.
    pub tokens: u32,
    /// Number of texts.
    pub texts: u32,
    /// Share of each layer in all far reading; the shares add up to 1.
    pub shares: Vec<f64>,
}

impl LayerFile {
    /// Returns the place of a model's file: in its folder, or beside it.
    pub fn default_path(model: &Path) -> PathBuf {
        if model.is_dir() {
            return model.join("h2o.toml");
        }
        let mut name: OsString = model.file_name().unwrap_or_default().to_owned();
        name.push(".h2o.toml");
        model.with_file_name(name)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = format!("{HEADER}{}", toml::to_string(self).context("the layers cannot be written as TOML")?);
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the layers of a model that read far back, if `h2o calibrate` found them for this revision.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed.
    pub fn layers_of(model: &Path, revision: &str) -> anyhow::Result<Option<Vec<u32>>> {
        let Some(file) = Self::of(model)? else { return Ok(None) };
        if file.revision != revision {
            let path = Self::default_path(model);
            warn!("{} is of other weights; run trunkline h2o calibrate again", path.display());
            return Ok(None);
        }
        Ok(Some(file.layers))
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
        let file: Self = toml::from_str(text).with_context(|| format!("{} is no file of layers", path.display()))?;
        let n = file.shares.len() as u32;
        let beyond = file.layers.iter().find(|layer| **layer >= n);
        ensure!(
            beyond.is_none() && !file.layers.is_empty(),
            "{} names layer {}; it has shares of {n} layers: run trunkline h2o calibrate again",
            path.display(),
            beyond.map_or("no".into(), u32::to_string)
        );
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> LayerFile {
        LayerFile {
            model: "tiny".into(),
            revision: "00ff".into(),
            layers: vec![1, 3],
            tokens: 1024,
            texts: 4,
            shares: vec![0.1, 0.4, 0.2, 0.3],
        }
    }

    #[test]
    fn a_file_is_found_beside_its_model_and_survives_being_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let gguf = dir.path().join("a.gguf");
        fs::write(&gguf, "").unwrap();
        assert_eq!(LayerFile::default_path(dir.path()), dir.path().join("h2o.toml"));
        assert_eq!(LayerFile::default_path(&gguf), dir.path().join("a.gguf.h2o.toml"));
        assert_eq!(LayerFile::of(&gguf).unwrap(), None);
        file().write(&LayerFile::default_path(&gguf)).unwrap();
        assert_eq!(LayerFile::of(&gguf).unwrap(), Some(file()));
        assert_eq!(LayerFile::layers_of(&gguf, &file().revision).unwrap(), Some(file().layers));
        assert_eq!(LayerFile::layers_of(&gguf, "of other weights").unwrap(), None);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = LayerFile::default_path(dir.path());
        let fault = || format!("{:#}", LayerFile::of(dir.path()).unwrap_err());
        fs::write(&path, "layers = 3").unwrap();
        assert!(fault().contains("h2o.toml is no file of layers"), "{}", fault());
        LayerFile { layers: vec![4], ..file() }.write(&path).unwrap();
        assert!(fault().contains("names layer 4; it has shares of 4 layers"), "{}", fault());
        LayerFile { layers: vec![], ..file() }.write(&path).unwrap();
        assert!(fault().contains("names layer no"), "{}", fault());
    }
}
