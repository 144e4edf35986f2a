//! Tensors of a Hugging Face folder: one `model.safetensors`, shards with an index, or shards without.
//!
//! Files are read, not mapped: replacing a mapped file while the server runs would change the loaded model. Files are read one at a
//! time and every tensor is converted to F32, so the peak is the model in F32 and the model's largest file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use crate::config::{ModelConfig, read_json};
use crate::error::ModelError;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Weights in the stored order: matrices row by row, one row for each output.
pub(crate) struct Weights {
    pub(crate) embedding: Vec<f32>,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) final_norm: Vec<f32>,
    /// `None` if the head is the embedding.
    pub(crate) head: Option<Vec<f32>>,
}

/// Weights of one layer.
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) o: Vec<f32>,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
    pub(crate) down: Vec<f32>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Reads the weights described by `config` from folder `dir`.
///
/// # Errors
///
/// No weights; a missing, interrupted or malformed file; or a missing or surplus tensor, one of another shape, or one of a type
/// other than F32, F16 or BF16.
pub(crate) fn load(dir: &Path, config: &ModelConfig) -> Result<Weights, ModelError> {
    let expected = expected_shapes(config);
    let (files, placed) = weight_files(dir)?;
    let mut tensors = HashMap::new();
    for path in &files {
        let bytes = std::fs::read(path).map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| malformed(path, &error, bytes.len()))?;
        for (name, view) in file.iter() {
            match expected.get(name) {
                Some(shape) => {
                    tensors.insert(name.to_owned(), to_f32(path, name, &view, shape)?);
                }
                None if is_surplus(name, config) => {}
                None => return Err(ModelError::UnexpectedTensor { name: name.to_owned(), path: path.clone() }),
            }
        }
    }
    let take = |name: &str| {
        let path = || placed.get(name).map_or_else(|| dir.to_owned(), |file| dir.join(file));
        tensors.remove(name).ok_or_else(|| ModelError::MissingTensor { name: name.to_owned(), path: path() })
    };
    collect(config, take)
}

fn collect(
    config: &ModelConfig,
    mut take: impl FnMut(&str) -> Result<Vec<f32>, ModelError>,
) -> Result<Weights, ModelError> {
    let embedding = take("model.embed_tokens.weight")?;
    let layers = (0..config.n_layers)
        .map(|layer| {
            let mut take = |part: &str| take(&format!("model.layers.{layer}.{part}.weight"));
            Ok(LayerWeights {
                attention_norm: take("input_layernorm")?,
                q: take("self_attn.q_proj")?,
                k: take("self_attn.k_proj")?,
                v: take("self_attn.v_proj")?,
                o: take("self_attn.o_proj")?,
                mlp_norm: take("post_attention_layernorm")?,
                gate: take("mlp.gate_proj")?,
                up: take("mlp.up_proj")?,
                down: take("mlp.down_proj")?,
            })
        })
        .collect::<Result<_, ModelError>>()?;
    let final_norm = take("model.norm.weight")?;
    let head = if config.tied_head { None } else { Some(take("lm_head.weight")?) };
    Ok(Weights { embedding, layers, final_norm, head })
}

/// Every tensor of the architecture, with the tensor's shape.
fn expected_shapes(config: &ModelConfig) -> HashMap<String, Vec<usize>> {
    let (vocab, hidden) = (config.vocab_size as usize, config.hidden_size as usize);
    let (q, kv, inner) = (config.q_width(), config.kv_width(), config.intermediate_size as usize);
    let mut shapes = HashMap::from([
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ]);
    if !config.tied_head {
        shapes.insert("lm_head.weight".to_owned(), vec![vocab, hidden]);
    }
    for layer in 0..config.n_layers {
        for (part, shape) in [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![q, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, q]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ] {
            shapes.insert(format!("model.layers.{layer}.{part}.weight"), shape);
        }
    }
    shapes
}

/// Tensors of some checkpoints derived from the rest: a copy of the tied head, rotary frequencies.
fn is_surplus(name: &str, config: &ModelConfig) -> bool {
    (config.tied_head && name == "lm_head.weight") || name.ends_with("rotary_emb.inv_freq")
}

/// The weights files of a folder, and the file of each tensor according to the index, if there is one.
fn weight_files(dir: &Path) -> Result<(Vec<PathBuf>, BTreeMap<String, String>), ModelError> {
    let single = dir.join(SINGLE_FILE);
    let index = dir.join(INDEX_FILE);
    if index.exists() {
        let index_content: Index = read_json(&index)?;
        let names: HashSet<&String> = index_content.weight_map.values().collect();
        let mut files = Vec::new();
        for name in names {
            if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
                let problem = format!("names the file {name:?}, which is not in the folder");
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
        return Err(ModelError::MissingFile { path: single, hint });
    }
    Ok((files, BTreeMap::new()))
}

fn malformed(path: &Path, error: &SafeTensorError, len: usize) -> ModelError {
    let problem = match error {
        SafeTensorError::HeaderTooSmall
        | SafeTensorError::InvalidHeaderLength
        | SafeTensorError::MetadataIncompleteBuffer => {
            format!("the file is cut short or has surplus bytes: its header does not describe its {len} bytes")
        }
        other => format!("not a safetensors file: {other}"),
    };
    ModelError::Safetensors { path: path.to_owned(), problem }
}

fn to_f32(path: &Path, name: &str, view: &TensorView<'_>, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
    if view.shape() != shape {
        let (found, expected) = (view.shape().to_vec(), shape.to_vec());
        return Err(ModelError::Shape { name: name.to_owned(), path: path.to_owned(), found, expected });
    }
    let (pairs, _) = view.data().as_chunks::<2>();
    let (quads, _) = view.data().as_chunks::<4>();
    match view.dtype() {
        Dtype::F32 => Ok(quads.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
        Dtype::F16 => Ok(pairs.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect()),
        Dtype::BF16 => Ok(pairs.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect()),
        other => {
            let found = format!("{other:?}");
            Err(ModelError::Dtype { name: name.to_owned(), path: path.to_owned(), found })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::Model;

    /// Tensors of a small model: name, shape, type, bytes.
    type Tensors = BTreeMap<String, (Vec<usize>, Dtype, Vec<u8>)>;

    const CONFIG: &str = r#"{
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 20, "hidden_size": 8,
        "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1
    }"#;

    fn config() -> ModelConfig {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), CONFIG).unwrap();
        ModelConfig::load(dir.path()).unwrap()
    }

    fn tensors() -> Tensors {
        expected_shapes(&config())
            .into_iter()
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
    fn half_precision_is_widened_exactly() {
        let values = [1.5f32, -0.25, 3.0, 65504.0];
        let f16s: Vec<u8> = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let bf16s: Vec<u8> = values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        for (dtype, bytes, last) in [(Dtype::F16, f16s, 65504.0), (Dtype::BF16, bf16s, 65536.0)] {
            let view = TensorView::new(dtype, vec![4], &bytes).unwrap();
            let read = to_f32(Path::new("x"), "x", &view, &[4]).unwrap();
            assert_eq!(read, [1.5, -0.25, 3.0, last]);
        }
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
        let cuts: Vec<&[u8]> = vec![b"", b"short", &whole[..9], &whole[..200], &whole[..whole.len() - 1], &surplus];
        for bytes in cuts {
            let cut = error(|path, tensors| {
                std::fs::write(path.join(SINGLE_FILE), bytes).unwrap();
                tensors.clear();
            });
            assert!(matches!(&cut, ModelError::Safetensors { .. }), "{cut}");
            assert!(cut.to_string().contains("cut short"), "{cut}");
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
            let map: BTreeMap<String, &str> =
                expected_shapes(&config()).into_keys().map(|name| (name, SINGLE_FILE)).collect();
            std::fs::write(path.join(INDEX_FILE), json!({ "weight_map": map }).to_string()).unwrap();
        });
        assert!(matches!(&placed, ModelError::MissingTensor { path, .. } if path.ends_with(SINGLE_FILE)), "{placed}");
    }

    #[test]
    fn a_folder_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let Err(error) = Model::load(&dir.path().join("absent")) else { panic!("loaded") };
        assert!(matches!(error, ModelError::MissingFile { .. }), "{error}");
    }
}
