//! Files and folders that people give for a model by mistake, recognised by their first bytes or by names.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Bytes of a file that are looked at.
const HEAD: usize = 1024;
/// First bytes of a GGUF file.
const MAGIC: &[u8] = b"GGUF";
/// Maximum number of names of a folder that are looked at.
const NAMES_MAX: usize = 10_000;

/// A file or folder that is not the one that was meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {what}", path.display())]
pub struct Mistake {
    /// Path of the file or folder.
    pub path: PathBuf,
    /// Kind of the file or folder, and the remedy.
    what: String,
}

/// Part of a model that a folder lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// `config.json`.
    Config,
    /// Weights in safetensors.
    Weights,
    /// `tokenizer.json`.
    Tokenizer,
}

/// A test of the first bytes of a file, and the remedy.
type OfBytes = (fn(&[u8]) -> bool, &'static str);
/// A test of the first bytes and the name of a file, and the remedy.
type OfFile = (fn(&[u8], &str) -> bool, &'static str);
/// A test of a name in a folder, and the remedy.
type OfName = (fn(&str) -> bool, &'static str);

/// Beginnings of files that are not part of a model, whatever the name.
const BYTES: [OfBytes; 11] = [
    (
        |head| head.starts_with(b"version https://git-lfs.github.com/spec/"),
        "is a Git LFS pointer and not the file itself: run `git lfs pull` in its folder, or download the file again",
    ),
    (<[u8]>::is_empty, "is an empty file; download it again"),
    (
        is_web_page,
        "is a web page and not the file itself: download the file by the address with `resolve` instead of `blob`",
    ),
    (
        is_hub_error,
        "holds an error of a web server and not the file itself: check the address and the rights, and download the file again",
    ),
    (
        |head| head.starts_with(b"PK") && contains(head, b"data.pkl"),
        "is a checkpoint of PyTorch, which can run code: convert it to safetensors with save_pretrained",
    ),
    (|head| head.starts_with(b"PK\x03\x04"), "is a zip archive: unpack it, and give what is inside"),
    (is_compressed, "is compressed: unpack it, and give what is inside"),
    (
        |head| head.first() == Some(&0x80) && head.get(1).is_some_and(|version| (2..=5).contains(version)),
        "is a pickle of Python, which can run code: convert it to safetensors with save_pretrained",
    ),
    (
        |head| [&b"lmgg"[..], b"fmgg", b"tjgg", b"algg"].iter().any(|magic| head.starts_with(magic)),
        "is a file of llama.cpp from before GGUF: convert it, or take a GGUF file of the model",
    ),
    (
        |head| head.starts_with(b"GGUF\0\0\0"),
        "is a GGUF file in big-endian order: take one in little-endian order, as most are",
    ),
    (
        |head| head.starts_with(b"\x89HDF"),
        "is a checkpoint of TensorFlow: convert it to safetensors with save_pretrained",
    ),
];

/// Parts of a model instead of the whole, by first bytes or the end of the name.
const ALONE: [OfFile; 4] = [
    (
        |head, name| name.ends_with(".safetensors") || (head.len() > 8 && head[8] == b'{'),
        "is one file of a Hugging Face model: give its folder, with config.json and tokenizer.json in it",
    ),
    (
        |head, name| name.ends_with(".json") || head.starts_with(b"{"),
        "is a JSON file: give the folder of the model, or a GGUF file",
    ),
    (|_, name| name.ends_with(".onnx"), "is an ONNX model: take the model as safetensors, or as a GGUF file"),
    (
        |_, name| name.ends_with(".model"),
        "is a vocabulary of SentencePiece: give the folder of the model, or a GGUF file",
    ),
];

/// Names that tell the folder of another kind of model; the first row with a name decides.
const NAMES: [OfName; 12] = [
    (|name| name == "adapter_config.json" || name.starts_with("adapter_model."), ADAPTER),
    (|name| name == "model_index.json", "holds a pipeline of diffusers, which makes no text"),
    (
        |name| name == "params.json" || name.starts_with("consolidated."),
        "holds a model in the format of its authors ({name}): take the Hugging Face version, with config.json and model*.safetensors",
    ),
    (
        |name| [".incomplete", ".part", ".crdownload", ".aria2", ".download"].iter().any(|end| name.ends_with(end)),
        "holds a download that is not complete ({name}): finish it",
    ),
    (
        |name| {
            name.starts_with("pytorch_model") || [".bin", ".pt", ".pth", ".ckpt"].iter().any(|end| name.ends_with(end))
        },
        "has its weights in pickles of PyTorch ({name}), which can run code: convert them to safetensors with save_pretrained",
    ),
    (
        |name| name.ends_with(".onnx") || name == "onnx",
        "holds an ONNX model ({name}): take the model as safetensors, or as a GGUF file",
    ),
    (
        |name| name.ends_with(".h5") || name.ends_with(".msgpack"),
        "has its weights for TensorFlow or Flax ({name}): convert them to safetensors with save_pretrained",
    ),
    (
        |name| name.ends_with(".npz"),
        "holds a model of MLX ({name}): take the model as safetensors in F32, F16 or BF16, or as a GGUF file",
    ),
    (
        |name| name.starts_with("openvino_model") || name.ends_with(".mlpackage") || name.ends_with(".engine"),
        "holds a model for another runtime ({name}): take the model as safetensors, or as a GGUF file",
    ),
    (
        |name| name == "sentence_bert_config.json" || name == "modules.json",
        "holds a model of sentence-transformers, which makes no text",
    ),
    (|name| name == "tokenizer.model" || name.ends_with(".spm"), SLOW),
    (|name| ["vocab.json", "merges.txt", "vocab.txt"].contains(&name) || name.ends_with(".tiktoken"), SLOW),
];

const ADAPTER: &str = "holds an adapter (LoRA) and not a whole model: merge it into its base model{base} with merge_and_unload of peft, and save \
                       that with save_pretrained";
const SLOW: &str = "has {name}, but no tokenizer.json: make one, `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of transformers";

impl Mistake {
    /// Returns the mistake if the file at `path`, whose name says it is part of a model, is none.
    pub fn of_file(path: &Path) -> Option<Self> {
        let head = head(path)?;
        let what = BYTES.iter().find(|(is, _)| is(&head)).map(|(_, what)| (*what).to_owned())?;
        Some(Self { path: path.to_owned(), what })
    }

    /// Returns the mistake if the file at `path` is given as a model, and is not a GGUF file.
    pub fn of_model(path: &Path) -> Option<Self> {
        Self::of_file(path).or_else(|| {
            let (head, name) = (head(path)?, path.file_name()?.to_string_lossy().to_lowercase());
            let what = ALONE.iter().find(|(is, _)| is(&head, &name)).map(|(_, what)| (*what).to_owned());
            let is_other = head.len() >= MAGIC.len() && !head.starts_with(MAGIC);
            let what = what.or_else(|| is_other.then(|| UNKNOWN.to_owned()))?;
            Some(Self { path: path.to_owned(), what })
        })
    }

    /// Returns the mistake of giving a folder that lacks a part of a model, by what is there instead.
    pub fn of_folder(dir: &Path, lacks: Lacks) -> Option<Self> {
        let names = names(dir);
        let what = match names.as_slice() {
            [] => Some("is an empty folder".to_owned()),
            names => gguf_instead(names, lacks).or_else(|| instead(dir, names, lacks)).or_else(|| nested(dir, names)),
        };
        what.map(|what| Self { path: dir.to_owned(), what })
    }
}

const UNKNOWN: &str = "is neither a GGUF file nor a folder of a Hugging Face model";

/// Returns the GGUF file to give instead of its folder.
fn gguf_instead(names: &[String], lacks: Lacks) -> Option<String> {
    // A folder with weights in safetensors is meant as such.
    let is_model = |name: &&String| name.ends_with(".gguf") && !name.starts_with("mmproj");
    let has_weights = lacks == Lacks::Tokenizer && names.iter().any(|name| name.ends_with(".safetensors"));
    let first = names.iter().find(is_model).filter(|_| !has_weights)?;
    let n = names.iter().filter(is_model).count();
    let others = if n > 1 { format!(" or another of the {n}") } else { String::new() };
    Some(format!("is a folder with GGUF files: give the file, {first}{others}, instead of the folder"))
}

/// Returns the remedy for the first file of [`NAMES`] that the folder has.
fn instead(dir: &Path, names: &[String], lacks: Lacks) -> Option<String> {
    let rows = match lacks {
        // Weights are there: only the tokenizer is missing.
        Lacks::Tokenizer if names.iter().any(|name| name == "config.json") => &NAMES[NAMES.len() - 2..],
        Lacks::Weights => &NAMES[..NAMES.len() - 2],
        _ => &NAMES[..],
    };
    let found = rows.iter().find_map(|(is, what)| Some((names.iter().find(|name| is(name))?, *what)));
    let (name, what) = found?;
    Some(what.replace("{name}", name).replace("{base}", &base_of(dir)))
}

/// Returns the base model of an adapter, as far as the folder names one.
fn base_of(dir: &Path) -> String {
    let config = std::fs::read(dir.join("adapter_config.json")).ok();
    let config: Option<Value> = config.and_then(|text| serde_json::from_slice(&text).ok());
    let base = config.and_then(|config| Some(config.get("base_model_name_or_path")?.as_str()?.to_owned()));
    base.map_or_else(String::new, |base| format!(", {base},"))
}

/// Returns the only folder below that has a model.
fn nested(dir: &Path, names: &[String]) -> Option<String> {
    let inside = |dir: &Path, names: &[String]| {
        let mut found = names.iter().map(|name| dir.join(name)).filter(|path| path.join("config.json").exists());
        found.next().filter(|_| found.next().is_none())
    };
    let snapshots = dir.join("snapshots");
    let found = inside(dir, names).or_else(|| inside(&snapshots, &self::names(&snapshots)))?;
    Some(format!("holds no model itself: give the folder {}", found.display()))
}

/// Returns the names in a folder, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().take(NAMES_MAX);
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// Returns the first bytes of a file.
fn head(path: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD as u64).read_to_end(&mut head).ok()?;
    Some(head)
}

fn contains(head: &[u8], part: &[u8]) -> bool {
    head.windows(part.len()).any(|window| window == part)
}

fn is_web_page(head: &[u8]) -> bool {
    let text = head.trim_ascii_start().to_ascii_lowercase();
    [&b"<!doctype"[..], b"<html", b"<?xml", b"<head"].iter().any(|begin| text.starts_with(begin))
}

/// Recognises the answers of hubs to a wrong address, and of their storage.
fn is_hub_error(head: &[u8]) -> bool {
    let texts =
        ["Entry not found", "Repository not found", "Invalid username", "Access to model", "{\"error\"", "Not Found"];
    texts.iter().any(|text| head.starts_with(text.as_bytes()))
}

fn is_compressed(head: &[u8]) -> bool {
    let magics = [&b"\x1f\x8b"[..], b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"7z\xbc\xaf", b"BZh"];
    magics.iter().any(|magic| head.starts_with(magic)) || head.get(257..262) == Some(b"ustar")
}

#[cfg(test)]
#[path = "mistakes_tests.rs"]
mod tests;
