//! Tensors of a Hugging Face folder: one `model.safetensors`, shards with an index, or shards without; or of one such file in memory.
//!
//! Files are read, not mapped: replacing a mapped file while the server runs would change the loaded model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use trunkline_quote::{cut, of_parser};
use trunkline_text::{Lacks, Mistake};

use crate::config::{ModelConfig, unsupported};
use crate::error::ModelError;
use crate::error::misfits::{UNQUANTISED, quantised};
use crate::files::hugging_face::read_json;
use crate::files::weights::{Keep, Tensor, Tensors, Weights, collect, collect_groups};
use crate::kernels::matrix::WeightKind;
use crate::memory::{check_weights, exhausted};

/// Name of the file with all weights.
pub(crate) const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
/// Maximum number of shards of a folder; names number them with five digits.
const SHARDS_MAX: u32 = 99_999;
/// Bytes before the header of a file: the length of the header.
const LENGTH_BYTES: u64 = 8;
/// Maximum length of a header in bytes: the limit of the safetensors library.
const HEADER_MAX: u64 = 100_000_000;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// A file, or bytes in memory.
trait Bytes: Read + Seek {}

impl<T: Read + Seek> Bytes for T {}

/// One file with tensors.
struct Shard {
    path: PathBuf,
    file: Box<dyn Bytes>,
    /// Start of the tensors in the file.
    data_at: u64,
}

/// The tensors of a folder not taken so far.
struct Shards {
    dir: PathBuf,
    files: Vec<Shard>,
    /// Shard and place of each tensor.
    tensors: BTreeMap<String, (usize, TensorInfo)>,
    /// File of each tensor according to the index, if there is one.
    placed: BTreeMap<String, String>,
}

/// Reads the weights described by `config` from folder `dir`.
///
/// # Errors
///
/// No weights; a missing, interrupted or malformed file; or a missing or surplus tensor, one of another shape, or one of a type
/// other than F32, F16 or BF16.
pub(crate) fn load(dir: &Path, config: &ModelConfig, keep: &mut dyn Keep) -> Result<Weights, ModelError> {
    take_all(Shards::open(dir, keep.in_memory())?, config, keep)
}

/// Reads the groups of matrices described by `config` from folder `dir`, and nothing else; they go to `keep`.
///
/// # Errors
///
/// As [`load`], but for surplus tensors.
pub(crate) fn load_groups(dir: &Path, config: &ModelConfig, keep: &mut dyn Keep) -> Result<(), ModelError> {
    collect_groups(config, &mut Shards::open(dir, false)?, keep)
}

/// Takes the weights described by `config` from the bytes of a safetensors file; messages name the file `path`.
///
/// # Errors
///
/// As [`load`], but for files.
pub(crate) fn parse(
    bytes: &'static [u8],
    path: &Path,
    config: &ModelConfig,
    keep: &mut dyn Keep,
) -> Result<Weights, ModelError> {
    take_all(Shards::of_bytes(bytes, path)?, config, keep)
}

/// Takes the groups of matrices described by `config` from the bytes of a safetensors file, and nothing else; they go to `keep`.
///
/// # Errors
///
/// As [`load_groups`], but for files.
pub(crate) fn parse_groups(
    bytes: &'static [u8],
    path: &Path,
    config: &ModelConfig,
    keep: &mut dyn Keep,
) -> Result<(), ModelError> {
    collect_groups(config, &mut Shards::of_bytes(bytes, path)?, keep)
}

fn take_all(mut shards: Shards, config: &ModelConfig, keep: &mut dyn Keep) -> Result<Weights, ModelError> {
    let weights = collect(config, &mut shards, keep)?;
    match shards.tensors.iter().find(|(name, _)| !is_surplus(name, config)) {
        None => Ok(weights),
        Some((name, (shard, _))) => {
            Err(ModelError::UnexpectedTensor { name: name.clone(), path: shards.files[*shard].path.clone() })
        }
    }
}

/// Tensors of some checkpoints derived from the rest: a copy of the tied head, rotary frequencies.
fn is_surplus(name: &str, config: &ModelConfig) -> bool {
    (config.tied_head && name == "lm_head.weight") || name.ends_with("rotary_emb.inv_freq")
}

impl Shards {
    /// Opens the files of a folder, whose weights must fit into memory if they are to be `in_memory`.
    fn open(dir: &Path, in_memory: bool) -> Result<Self, ModelError> {
        let (paths, placed) = weight_files(dir)?;
        let mut shards = Self { dir: dir.to_owned(), files: Vec::new(), tensors: BTreeMap::new(), placed };
        for path in paths {
            shards.add(Shard::open(path)?);
        }
        if in_memory {
            let bytes = shards.tensors.values().map(|(_, info)| info.data_offsets).map(|(from, to)| (to - from) as u64);
            check_weights(dir, bytes.sum())?;
        }
        Ok(shards)
    }

    /// Opens a file in memory.
    fn of_bytes(bytes: &'static [u8], path: &Path) -> Result<Self, ModelError> {
        let mut shards =
            Self { dir: path.to_owned(), files: Vec::new(), tensors: BTreeMap::new(), placed: BTreeMap::new() };
        shards.add(Shard::new(path.to_owned(), Box::new(Cursor::new(bytes)), bytes.len() as u64)?);
        Ok(shards)
    }

    fn add(&mut self, (shard, header): (Shard, Metadata)) {
        let index = self.files.len();
        self.files.push(shard);
        self.tensors.extend(header.tensors().into_iter().map(|(name, info)| (name, (index, info.clone()))));
    }
}

impl Shards {
    /// Finds a tensor of a shape. Returns the number of the shard, the place and the kind.
    fn find(&mut self, name: &str, shape: &[usize]) -> Result<(usize, TensorInfo, WeightKind), ModelError> {
        let Some((shard, info)) = self.tensors.remove(name) else {
            let path = self.placed.get(name).map_or_else(|| self.dir.clone(), |file| self.dir.join(file));
            let present = self.tensors.keys().map(String::as_str);
            return Err(ModelError::missing_tensor(name, &path, present, "check that every shard is there"));
        };
        let path = self.files[shard].path.clone();
        // Quantised weights have other shapes and types than the configuration asks for.
        let format = || quantised(self.tensors.keys().map(String::as_str));
        let is_float = matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        if let Some(format) = (info.shape != shape || !is_float).then(format).flatten() {
            return Err(unsupported(&path, format!("a model quantised with {format}"), UNQUANTISED));
        }
        if info.shape != shape {
            let (name, expected) = (name.to_owned(), shape.to_vec());
            return Err(ModelError::Shape { name, path, found: info.shape, expected });
        }
        let kind = match info.dtype {
            Dtype::F32 => WeightKind::F32,
            Dtype::F16 => WeightKind::F16,
            Dtype::BF16 => WeightKind::Bf16,
            other => return Err(ModelError::Dtype { name: name.to_owned(), path, found: format!("{other:?}") }),
        };
        Ok((shard, info, kind))
    }
}

impl Tensors for Shards {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let (shard, info, kind) = self.find(name, shape)?;
        let shard = &mut self.files[shard];
        let bytes = shard.read(&info)?;
        Ok(Tensor { kind, bytes, path: shard.path.clone() })
    }

    fn skip(&mut self, name: &str, shape: &[usize]) -> Result<(WeightKind, PathBuf), ModelError> {
        let (shard, _, kind) = self.find(name, shape)?;
        Ok((kind, self.files[shard].path.clone()))
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<(Self, Metadata), ModelError> {
        let unreadable = |source| ModelError::Read { path: path.clone(), source };
        let file = File::open(&path).map_err(unreadable)?;
        let len = file.metadata().map_err(unreadable)?.len();
        let opened = Self::new(path.clone(), Box::new(file), len);
        opened.map_err(|error| Mistake::of_file(&path).map_or(error, ModelError::from))
    }

    /// Reads the header of a file of `len` bytes; it MUST describe every byte.
    fn new(path: PathBuf, mut file: Box<dyn Bytes>, len: u64) -> Result<(Self, Metadata), ModelError> {
        let unreadable = |source| ModelError::Read { path: path.clone(), source };
        let malformed = |problem: String| ModelError::Safetensors { path: path.clone(), problem };
        let cut = |expected: &str| malformed(format!("the file is cut short: it has {len} of {expected} bytes"));
        if len < LENGTH_BYTES {
            return Err(cut("at least 8"));
        }
        let mut header_len = [0; LENGTH_BYTES as usize];
        file.read_exact(&mut header_len).map_err(unreadable)?;
        let header_len = u64::from_le_bytes(header_len);
        if header_len > HEADER_MAX {
            return Err(malformed(format!("not a safetensors file: its header would have {header_len} bytes")));
        }
        let data_at = LENGTH_BYTES + header_len;
        if data_at > len {
            return Err(cut(&format!("more than {data_at}")));
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let header: Metadata = trunkline_foreign::call(|| serde_json::from_slice(&header))
            .map_err(|panicked| panicked.to_string())
            .and_then(|header| header.map_err(|error| error.to_string()))
            .map_err(|error| malformed(format!("not a safetensors file: {}", of_parser(&error))))?;
        // Offsets are checked by the library: tensors follow one another, and each has the bytes of its shape.
        let expected = data_at.saturating_add(header.data_len() as u64);
        if len < expected {
            return Err(cut(&expected.to_string()));
        }
        if len > expected {
            return Err(malformed(format!(
                "the file has surplus bytes: it has {len}, its header describes {expected}"
            )));
        }
        Ok((Self { path, file, data_at }, header))
    }

    /// Reads the bytes of a tensor.
    fn read(&mut self, info: &TensorInfo) -> Result<Vec<u8>, ModelError> {
        let (from, to) = info.data_offsets;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(to - from).map_err(|_| exhausted(&self.path, (to - from) as u64))?;
        bytes.resize(to - from, 0);
        self.file
            .seek(SeekFrom::Start(self.data_at + from as u64))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|source| ModelError::Read { path: self.path.clone(), source })?;
        Ok(bytes)
    }
}

/// The weights files of a folder, and the file of each tensor according to the index, if there is one.
pub(crate) fn weight_files(dir: &Path) -> Result<(Vec<PathBuf>, BTreeMap<String, String>), ModelError> {
    let single = dir.join(SINGLE_FILE);
    let index = dir.join(INDEX_FILE);
    if index.exists() {
        let index_content: Index = read_json(&index)?;
        let names: BTreeSet<&String> = index_content.weight_map.values().collect();
        let mut files = Vec::new();
        for name in names {
            if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
                let problem = format!("names the file {}, which is not in the folder", cut(&format!("{name:?}")));
                return Err(ModelError::Safetensors { path: index, problem });
            }
            let path = dir.join(name);
            if !path.exists() {
                return Err(ModelError::MissingFile { path, hint: "the index names it; download every shard" });
            }
            files.push(path);
        }
        files.sort();
        return Ok((files, index_content.weight_map));
    }
    if single.exists() {
        return Ok((vec![single], BTreeMap::new()));
    }
    let unreadable = |source| ModelError::Read { path: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        let hint = "the folder has no *.safetensors file; convert other formats with save_pretrained";
        let missing = ModelError::MissingFile { path: single, hint };
        return Err(Mistake::of_folder(dir, Lacks::Weights).map_or(missing, ModelError::from));
    }
    if let Some(path) = missing_shard(dir, &files) {
        return Err(ModelError::MissingFile { path, hint: "its siblings are there; download every shard" });
    }
    Ok((files, BTreeMap::new()))
}

/// Returns the first shard that is missing by the numbers in the names of others, `model-00001-of-00002.safetensors`.
fn missing_shard(dir: &Path, files: &[PathBuf]) -> Option<PathBuf> {
    let numbered = |path: &PathBuf| {
        let (rest, count) = path.file_stem()?.to_str()?.rsplit_once("-of-")?;
        let (name, number) = rest.rsplit_once('-')?;
        let is_number = number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some((name.to_owned(), count.parse::<u32>().ok().filter(|count| *count <= SHARDS_MAX)?))
    };
    let (name, count) = files.iter().find_map(numbered)?;
    let shards = (1..=count).map(|number| dir.join(format!("{name}-{number:05}-of-{count:05}.safetensors")));
    shards.into_iter().find(|path| !files.contains(path))
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;
    use serde_json::{Value, json};

    use super::*;
    use crate::model::Model;

    /// Tensors of a small model: name, shape, type, bytes.
    type Tensors = BTreeMap<String, (Vec<usize>, Dtype, Vec<u8>)>;

    const CONFIG: &str = r#"{
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 20, "hidden_size": 8,
        "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1
    }"#;

    fn tensors() -> Tensors {
        let layers = (0..2).flat_map(|layer| {
            [
                ("input_layernorm", vec![8]),
                ("self_attn.q_proj", vec![8, 8]),
                ("self_attn.k_proj", vec![4, 8]),
                ("self_attn.v_proj", vec![4, 8]),
                ("self_attn.o_proj", vec![8, 8]),
                ("post_attention_layernorm", vec![8]),
                ("mlp.gate_proj", vec![12, 8]),
                ("mlp.up_proj", vec![12, 8]),
                ("mlp.down_proj", vec![8, 12]),
            ]
            .map(|(part, shape)| (format!("layers.{layer}.{part}"), shape))
        });
        let model = [("embed_tokens".to_owned(), vec![20, 8]), ("norm".to_owned(), vec![8])];
        let named = layers.chain(model).map(|(name, shape)| (format!("model.{name}.weight"), shape));
        named
            .chain([("lm_head.weight".to_owned(), vec![20, 8])])
            .map(|(name, shape)| {
                let values = (0..shape.iter().product::<usize>()).map(|i| i as f32 * 0.5);
                let bytes = values.flat_map(f32::to_le_bytes).collect();
                (name, (shape, Dtype::F32, bytes))
            })
            .collect()
    }

    fn write(dir: &Path, file: &str, tensors: &Tensors) {
        let views = tensors
            .iter()
            .map(|(name, (shape, dtype, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        std::fs::write(dir.join(file), safetensors::serialize(views, None).unwrap()).unwrap();
    }

    /// A sound folder after `change`; it lives as long as the first value.
    fn folder(change: impl FnOnce(&Path, &mut Tensors)) -> (tempfile::TempDir, Result<Model, ModelError>) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), CONFIG).unwrap();
        let mut tensors = tensors();
        change(dir.path(), &mut tensors);
        if !tensors.is_empty() {
            write(dir.path(), SINGLE_FILE, &tensors);
        }
        let model = Model::load(dir.path());
        (dir, model)
    }

    fn error(change: impl FnOnce(&Path, &mut Tensors)) -> ModelError {
        match folder(change).1 {
            Err(error) => error,
            Ok(_) => panic!("the folder was accepted"),
        }
    }

    #[test]
    fn a_sound_folder_is_read_in_every_arrangement_and_type() {
        let (dir, model) = folder(|_, _| {});
        let model = model.unwrap();
        assert_eq!(model.name(), dir.path().file_name().unwrap().to_str().unwrap());
        assert_eq!(model.kv_bytes_per_token(), 2 * 4 * 2 * 4);
        let shards = |path: &Path, tensors: &mut Tensors| {
            let second = tensors.split_off("model.layers.1");
            write(path, "a.safetensors", tensors);
            write(path, "b.safetensors", &second);
            let names = |tensors: &Tensors, file: &str| {
                tensors.keys().map(|name| (name.clone(), json!(file))).collect::<Vec<(String, Value)>>()
            };
            let map: serde_json::Map<String, Value> =
                names(tensors, "a.safetensors").into_iter().chain(names(&second, "b.safetensors")).collect();
            tensors.clear();
            map
        };
        folder(|path, tensors| drop(shards(path, tensors))).1.unwrap();
        folder(|path, tensors| {
            let map = shards(path, tensors);
            std::fs::write(path.join(INDEX_FILE), json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
        })
        .1
        .unwrap();
        // A copy of frequencies, which older files have.
        folder(|_, tensors| {
            let extra = (vec![2], Dtype::F32, vec![0; 8]);
            tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), extra);
        })
        .1
        .unwrap();
    }

    #[test]
    fn tensors_that_do_not_fit_are_refused_by_name() {
        let norm = "model.layers.1.input_layernorm.weight";
        let missing = error(|_, tensors| drop(tensors.remove(norm)));
        assert!(matches!(&missing, ModelError::MissingTensor { name, .. } if name == norm), "{missing}");
        let head = error(|_, tensors| drop(tensors.remove("lm_head.weight")));
        assert!(matches!(&head, ModelError::MissingTensor { name, .. } if name == "lm_head.weight"), "{head}");
        let shape = error(|_, tensors| tensors.get_mut("model.embed_tokens.weight").unwrap().0 = vec![8, 20]);
        assert!(matches!(&shape, ModelError::Shape { found, expected, .. } if found != expected), "{shape}");
        let dtype = error(|_, tensors| tensors.get_mut(norm).unwrap().1 = Dtype::I32);
        assert!(matches!(&dtype, ModelError::Dtype { found, .. } if found == "I32"), "{dtype}");
        let surplus = error(|_, tensors| {
            tensors.insert("model.layers.0.self_attn.q_proj.bias".to_owned(), (vec![8], Dtype::F32, vec![0; 32]));
        });
        assert!(matches!(&surplus, ModelError::UnexpectedTensor { name, .. } if name.ends_with("bias")), "{surplus}");
        let layer = error(|_, tensors| {
            let extra = tensors[norm].clone();
            tensors.insert("model.layers.2.input_layernorm.weight".to_owned(), extra);
        });
        assert!(matches!(layer, ModelError::UnexpectedTensor { .. }), "{layer}");
    }

    #[test]
    fn files_that_are_missing_cut_or_no_safetensors_are_refused() {
        let none = error(|_, tensors| tensors.clear());
        assert!(matches!(&none, ModelError::MissingFile { path, .. } if path.ends_with(SINGLE_FILE)), "{none}");
        let (whole, _) = folder(|_, _| {});
        let whole = std::fs::read(whole.path().join(SINGLE_FILE)).unwrap();
        let mut surplus = whole.clone();
        surplus.push(0);
        let n = whole.len();
        let header = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap());
        for (bytes, sizes) in [
            (&b"short"[..], "cut short: it has 5 of at least 8 bytes".to_owned()),
            (&whole[..9], format!("cut short: it has 9 of more than {header} bytes")),
            (&whole[..200], format!("cut short: it has 200 of more than {header} bytes")),
            (&whole[..n - 1], format!("cut short: it has {} of {n} bytes", n - 1)),
            (&surplus, format!("surplus bytes: it has {}, its header describes {n}", n + 1)),
        ] {
            let cut = error(|path, tensors| {
                std::fs::write(path.join(SINGLE_FILE), bytes).unwrap();
                tensors.clear();
            });
            assert!(matches!(&cut, ModelError::Safetensors { .. }), "{cut}");
            assert!(cut.to_string().contains("model.safetensors: the file "), "{cut}");
            assert!(cut.to_string().ends_with(&format!("{sizes}; download it again")), "{cut}");
        }
        for bytes in [&b"\x08\0\0\0\0\0\0\0not json"[..], &[0xff; 64], &[0; 64]] {
            let bad = error(|path, tensors| {
                std::fs::write(path.join(SINGLE_FILE), bytes).unwrap();
                tensors.clear();
            });
            assert!(matches!(bad, ModelError::Safetensors { .. }), "{bad}");
        }
    }

    #[test]
    fn an_index_that_does_not_hold_is_refused() {
        let index = |map: Value| {
            error(|path, _| {
                std::fs::write(path.join(INDEX_FILE), json!({ "weight_map": map }).to_string()).unwrap();
            })
        };
        let shard = index(json!({"model.norm.weight": "model-00002-of-00002.safetensors"}));
        assert!(
            matches!(&shard, ModelError::MissingFile { path, .. } if path.ends_with("model-00002-of-00002.safetensors"))
        );
        for outside in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""] {
            let outside = index(json!({ "model.norm.weight": outside }));
            assert!(
                matches!(&outside, ModelError::Safetensors { problem, .. } if problem.contains("not in the folder"))
            );
        }
        let broken = error(|path, _| std::fs::write(path.join(INDEX_FILE), "{\"weight_map\": 3}").unwrap());
        assert!(matches!(broken, ModelError::Json { .. }), "{broken}");
        // The index says where a tensor ought to have been.
        let placed = error(|path, tensors| {
            tensors.remove("model.norm.weight");
            let map: BTreeMap<String, &str> = self::tensors().into_keys().map(|name| (name, SINGLE_FILE)).collect();
            std::fs::write(path.join(INDEX_FILE), json!({ "weight_map": map }).to_string()).unwrap();
        });
        assert!(matches!(&placed, ModelError::MissingTensor { path, .. } if path.ends_with(SINGLE_FILE)), "{placed}");
    }

    #[test]
    fn weights_that_are_not_those_of_the_model_are_refused_with_the_remedy() {
        let renamed = |rename: fn(&str) -> Option<String>| {
            let changed = |_: &Path, tensors: &mut Tensors| {
                let all = std::mem::take(tensors).into_iter();
                *tensors = all.filter_map(|(name, tensor)| Some((rename(&name)?, tensor))).collect();
            };
            error(changed).to_string()
        };
        for (rename, expected) in [
            (
                (|name| name.strip_prefix("model.").map(str::to_owned)) as fn(&str) -> Option<String>,
                "embed_tokens.weight without the prefix",
            ),
            (
                |name| {
                    name.contains("q_proj")
                        .then(|| format!("base_model.model.{}", name.replace(".weight", ".lora_A.weight")))
                },
                "an adapter",
            ),
            (|name| Some(format!("language_model.{name}")), "with the prefix \"language_model.\""),
            (|name| (name != "lm_head.weight").then(|| name.to_owned()), "tie_word_embeddings"),
            (|name| (name != "model.norm.weight").then(|| name.to_owned()), "check that every shard is there"),
        ] {
            let message = renamed(rename);
            assert!(message.contains(expected) && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn quantised_weights_are_recognised_by_their_names() {
        for end in ["scales", "weight_scale", "weight_packed"] {
            let message = error(|_, tensors| {
                let packed = (vec![8, 2], Dtype::U32, vec![0; 64]);
                tensors.insert("model.layers.0.self_attn.q_proj.weight".to_owned(), packed.clone());
                tensors.insert(format!("model.layers.0.self_attn.q_proj.{end}"), packed);
            });
            assert!(message.to_string().contains("a model quantised with "), "{message}");
        }
    }

    #[test]
    fn files_in_place_of_weights_are_recognised() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        for (name, text, expected) in [
            (SINGLE_FILE, pointer, "model.safetensors is a Git LFS pointer"),
            (SINGLE_FILE, "<!DOCTYPE html><html></html>", "model.safetensors is a web page"),
            (SINGLE_FILE, "", "model.safetensors is an empty file"),
            (INDEX_FILE, pointer, "model.safetensors.index.json is a Git LFS pointer"),
            ("config.json", pointer, "config.json is a Git LFS pointer"),
            (
                "adapter_config.json",
                "{\"base_model_name_or_path\": \"a/b\"}",
                "an adapter (LoRA) and not a whole model",
            ),
            ("pytorch_model.bin", "x", "pickles of PyTorch (pytorch_model.bin)"),
            ("model.gguf", "GGUF", "give the file, model.gguf"),
            ("model-00002-of-00003.safetensors", "x", "model-00001-of-00003.safetensors is missing"),
        ] {
            let message = error(|path, tensors| {
                std::fs::write(path.join(name), text).unwrap();
                tensors.clear();
            });
            let message = message.to_string();
            assert!(message.contains(expected) && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn a_folder_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let Err(error) = Model::load(&dir.path().join("absent")) else { panic!("loaded") };
        assert!(matches!(error, ModelError::MissingFile { .. }), "{error}");
    }
}
