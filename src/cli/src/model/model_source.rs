//! Where a model comes from: the one in the program, random weights, or a folder or file.

use std::path::Path;

use anyhow::{Context, bail};
use tracing::{info, warn};
use trunkline_text::{ChatSource, Files, ModelFacts, Tokenizer};
use trunkline_vllm::ModelFiles;
use trunkline_worker::{Model, ModelError};

use crate::h2o::head_file::HeadFile;
use crate::h2o::head_loss::HeadLosses;
use crate::model::revision::{revision, revision_of};
use crate::model::weights_settings::{self, Placement, Streaming};

/// Name of the model in the program: a folder of `models/`.
pub const BUILT_IN: &str = "small-world";
/// What `--model` says for random weights.
pub const RANDOM: &str = "random";
/// Seed of the random weights.
const SEED: u64 = 0;

const CONFIG: &[u8] = include_bytes!("../../../../models/small-world/config.json");
const LAYERS: &str = include_str!("../../../../models/small-world/h2o.toml");
const TOKENIZER: &[u8] = include_bytes!("../../../../models/small-world/tokenizer.json");
/// Files with facts about the built-in model, other than its config.json.
const TOKENIZER_FILE: (&str, &[u8]) = ("tokenizer.json", TOKENIZER);
/// Token that begins a text of the built-in model.
const BEGIN: &str = "<s>";
/// Template of models without files: the text of all messages, as neither is trained on chats.
const TEMPLATE: &str = include_str!("../../../../models/small-world/chat_template.jinja");
const WEIGHTS: &[u8] = include_bytes!("../../../../models/small-world/model.safetensors");
/// Files of the built-in model for gateways that make a tokenizer of their own.
const FILES: &[(&str, &[u8])] =
    &[("config.json", CONFIG), TOKENIZER_FILE, ("chat_template.jinja", TEMPLATE.as_bytes())];

/// A model to be loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ModelSource<'a> {
    /// The model in the program.
    BuiltIn,
    /// Random weights, a vocabulary of bytes and a context of 32,768 tokens: the text is noise.
    Random,
    /// A Hugging Face folder or a GGUF file.
    Path(&'a Path),
}

impl<'a> ModelSource<'a> {
    /// Returns the model that the setting `--model` names.
    pub fn of(setting: Option<&'a Path>) -> Self {
        match setting {
            None => Self::BuiltIn,
            Some(path) if path.as_os_str() == RANDOM => Self::Random,
            Some(path) => Self::Path(path),
        }
    }

    /// Loads the tokenizer.
    ///
    /// # Errors
    /// If the folder or file is missing or has no tokenizer.
    pub fn tokenizer(self) -> anyhow::Result<Tokenizer> {
        match self {
            Self::BuiltIn => Ok(Tokenizer::from_json(BUILT_IN, TOKENIZER)?),
            Self::Random => Ok(Tokenizer::bytes()),
            Self::Path(path) => {
                exists(path)?;
                Tokenizer::load(path).with_context(|| cannot_load(path))
            }
        }
    }

    /// Reads the chat templates; `None` if the model has none.
    ///
    /// # Errors
    /// If the folder or file is missing or malformed.
    pub fn chat(self) -> anyhow::Result<Option<ChatSource>> {
        match self {
            Self::BuiltIn => {
                let tokens = vec![("bos_token".into(), BEGIN.into())];
                Ok(Some(ChatSource { tokens, ..ChatSource::of_text(TEMPLATE) }))
            }
            Self::Random => Ok(Some(ChatSource::of_text(TEMPLATE))),
            Self::Path(path) => {
                exists(path)?;
                ChatSource::read(path).with_context(|| cannot_load(path))
            }
        }
    }

    /// Reads the facts about the model that its files state in words; random weights have none.
    ///
    /// # Errors
    /// If the folder or file is missing or malformed.
    pub fn facts(self) -> anyhow::Result<ModelFacts> {
        match self {
            Self::BuiltIn => {
                Ok(ModelFacts::of_files(Files::Memory(BUILT_IN, &[("config.json", CONFIG), TOKENIZER_FILE]))?)
            }
            Self::Random => Ok(ModelFacts::default()),
            Self::Path(path) => {
                exists(path)?;
                ModelFacts::read(path).with_context(|| cannot_load(path))
            }
        }
    }

    /// Returns the files of the tokenizer, for gateways that make one of their own; GGUF files and random weights have none.
    pub fn files(self) -> ModelFiles {
        match self {
            Self::BuiltIn => ModelFiles::Memory(FILES),
            Self::Path(path) if path.is_dir() => ModelFiles::Folder(path.to_owned()),
            Self::Path(_) | Self::Random => ModelFiles::Missing,
        }
    }

    /// Loads the model.
    ///
    /// # Errors
    /// If the folder or file is missing or malformed, or the worker cannot run the model.
    pub fn model(self) -> anyhow::Result<Model> {
        match self {
            Self::BuiltIn => Ok(Model::from_bytes(BUILT_IN, CONFIG, &[TOKENIZER_FILE], WEIGHTS)?),
            Self::Random => Ok(Model::seeded(SEED)),
            Self::Path(path) => {
                exists(path)?;
                Model::load(path).with_context(|| cannot_load(path))
            }
        }
    }

    /// Loads the model with its weights in the places of `placement`, for a number of workers. `revision` is the revision of the weights.
    ///
    /// # Errors
    /// As [`Self::model`]; or if the weights cannot be written to a disk, or are too large for the memory.
    pub fn placed(self, placement: &Placement, revision: &str, workers: usize) -> anyhow::Result<Model> {
        let Placement::Stream(streaming) = placement else { return self.model() };
        let load = || match self {
            Self::BuiltIn => {
                let (files, settings) = ((CONFIG, &[TOKENIZER_FILE][..]), streaming.settings(revision, workers));
                Ok(Model::from_bytes_streamed(BUILT_IN, files, WEIGHTS, streaming.folder()?, &settings)?)
            }
            Self::Random => streaming.place(self.model()?, &self.identity(revision), workers),
            Self::Path(path) => {
                exists(path)?;
                let settings = streaming.settings(revision, workers);
                Model::load_streamed(path, &settings).with_context(|| cannot_load(path))
            }
        };
        let model = match load() {
            Err(error) if error.downcast_ref::<ModelError>().is_some_and(ModelError::has_removed_file) => {
                warn!("{error:#}");
                load()?
            }
            loaded => loaded?,
        };
        weights_settings::report(&model);
        Ok(model)
    }

    /// Opens the packed weights of a model loaded by [`Self::placed`] again after a fault, or writes the file again. Returns the reason, if the file was written.
    ///
    /// # Errors
    /// As [`Self::placed`].
    pub fn repair(
        self,
        model: &Model,
        streaming: &Streaming,
        revision: &str,
        workers: usize,
    ) -> anyhow::Result<Option<String>> {
        let settings = streaming.settings(&self.identity(revision), workers);
        match self {
            Self::BuiltIn => Ok(model.repair_from_bytes(WEIGHTS, &settings)?),
            Self::Random => Ok(model.repair_with(self.model()?, &settings)?),
            Self::Path(path) => {
                exists(path)?;
                model.repair_from(path, &settings).with_context(|| cannot_load(path))
            }
        }
    }

    /// Returns the hash of the weights, or a name for random ones.
    fn identity(self, revision: &str) -> String {
        if self == Self::Random { format!("random {SEED}") } else { revision.to_owned() }
    }

    /// Returns the revision of the weights; random ones have none.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn revision(self) -> anyhow::Result<String> {
        match self {
            Self::BuiltIn => {
                let files = [("config.json", CONFIG), ("model.safetensors", WEIGHTS), ("tokenizer.json", TOKENIZER)];
                Ok(revision_of(&files))
            }
            Self::Random => Ok(String::new()),
            Self::Path(path) => {
                exists(path)?;
                revision(path).with_context(|| format!("cannot read the files of {}", path.display()))
            }
        }
    }

    /// Returns the losses of the KV heads that drop tokens under `--h2o`, if `h2o calibrate` found them for this revision.
    ///
    /// # Errors
    /// If the file of losses cannot be read or is malformed.
    pub fn head_losses(self, revision: &str) -> anyhow::Result<Option<HeadLosses>> {
        match self {
            Self::BuiltIn => HeadFile::parse(LAYERS, Path::new("small-world/h2o.toml"))?.losses().map(Some),
            Self::Random => Ok(None),
            Self::Path(path) => HeadFile::losses_of(path, revision),
        }
    }
}

/// Logs what the files of a model say in words, and the oddities of these files.
pub fn log_facts(name: &str, facts: &ModelFacts) {
    if *facts != ModelFacts::default() {
        info!("{name}: {facts}");
    }
    facts.notes.iter().for_each(|note| warn!("{name}: {note}"));
}

fn exists(path: &Path) -> anyhow::Result<()> {
    if !path.exists() {
        bail!("{}: there is no such folder or file; give a Hugging Face folder or a GGUF file", cannot_load(path));
    }
    Ok(())
}

fn cannot_load(path: &Path) -> String {
    format!("cannot load the model {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_is_the_folder_in_the_repository() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/small-world"));
        let (built_in, read) = (ModelSource::of(None), ModelSource::of(Some(folder)));
        let revision = built_in.revision().unwrap();
        assert_eq!(revision, read.revision().unwrap());
        let layers = HeadFile::of(folder).unwrap().unwrap();
        assert_eq!(layers.revision, revision, "the layers belong to these weights");
        assert_eq!(built_in.head_losses(&revision).unwrap().unwrap(), read.head_losses(&revision).unwrap().unwrap());
        assert_eq!(built_in.model().unwrap().info(), read.model().unwrap().info());
        let text = "The secret words of the fox are: moon, kettle.";
        let tokens = built_in.tokenizer().unwrap().encode(text).unwrap();
        assert_eq!(tokens, read.tokenizer().unwrap().encode(text).unwrap());
    }

    #[test]
    fn random_weights_are_asked_for_by_name() {
        let random = ModelSource::of(Some(Path::new(RANDOM)));
        assert_eq!(random, ModelSource::Random);
        assert_eq!(random.model().unwrap().info().max_context, 32_768);
        assert_eq!((random.revision().unwrap(), random.head_losses("").unwrap()), (String::new(), None));
        let Err(error) = ModelSource::of(Some(Path::new("/no/model"))).model() else { panic!("loaded") };
        let line = "cannot load the model /no/model: there is no such folder or file; give a Hugging Face folder or a GGUF file";
        assert_eq!(error.to_string(), line);
    }
}
