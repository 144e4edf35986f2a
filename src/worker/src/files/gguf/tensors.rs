//! The tensors of a GGUF file, under the names that Hugging Face gives them.

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::path::PathBuf;

use gguf_rs_lib::prelude::{GGUFFileReader, GGUFTensorType};

use crate::config::families::Family;
use crate::config::{ModelConfig, RopeScaling, unsupported};
use crate::error::ModelError;
use crate::files::gguf::metadata::unreadable;
use crate::files::weights::{Tensor, Tensors};
use crate::kernels::matrix::{Matrix, WeightKind};

/// Names of tensors outside of layers: Hugging Face, GGUF.
const NAMES: [(&str, &str); 3] =
    [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

/// Names of tensors within a layer: Hugging Face, GGUF.
const LAYER_NAMES: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Divisors of rotary frequencies: the scaling of Llama 3.1, computed when the file was written.
const ROPE_DIVISORS: &str = "rope_freqs.weight";
/// Divisors of a scaling that depends on the length of the text.
const LONG_ROPE: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];

/// A file of a model, which may be one of several parts.
pub(super) struct Part<R> {
    pub(super) path: PathBuf,
    pub(super) reader: GGUFFileReader<R>,
}

/// The tensors of a model not taken so far.
pub(super) struct FileTensors<R> {
    parts: Vec<Part<R>>,
    /// Number of the part with each tensor.
    left: BTreeMap<String, usize>,
    /// Width of a head whose rows are stored in pairs; `None` if rows are stored as in Hugging Face folders.
    paired: Option<usize>,
}

impl<R: Read + Seek> FileTensors<R> {
    /// Prepares to read the tensors of a model of `family` in one part or more.
    pub(super) fn new(parts: Vec<Part<R>>, family: &Family, config: &ModelConfig) -> Self {
        let names = parts
            .iter()
            .enumerate()
            .flat_map(|(part, of)| of.reader.tensor_names().into_iter().map(move |name| (name.to_owned(), part)));
        let left = names.collect();
        let paired = family.gguf_pairs_rows.then_some(config.head_dim as usize);
        Self { parts, left, paired }
    }

    /// Returns the divisors of the rotary frequencies, if the file has any.
    ///
    /// # Errors
    ///
    /// A tensor of another shape, or a scaling that depends on the length of the text.
    pub(super) fn rope_divisors(&mut self, config: &ModelConfig) -> Result<Option<RopeScaling>, ModelError> {
        if let Some(name) = LONG_ROPE.iter().find(|name| self.left.contains_key(**name)) {
            let supported = "the rope types are \"none\", \"linear\" and \"yarn\"";
            return Err(unsupported(&self.parts[0].path, format!("a rotation with tensor {name}"), supported));
        }
        if !self.left.contains_key(ROPE_DIVISORS) {
            return Ok(None);
        }
        let len = config.head_dim as usize / 2;
        let tensor = self.read(ROPE_DIVISORS, &[len])?;
        let matrix = Matrix::from_bytes(tensor.kind, 1, len, &tensor.bytes).map_err(|source| ModelError::Matrix {
            name: ROPE_DIVISORS.to_owned(),
            path: tensor.path,
            source,
        })?;
        let mut divisors = vec![0.0; len];
        matrix.row(0, &mut divisors);
        Ok(Some(RopeScaling::Divisors(divisors)))
    }

    /// Checks that every tensor was taken.
    ///
    /// # Errors
    ///
    /// A tensor without a use.
    pub(super) fn finish(self) -> Result<(), ModelError> {
        match self.left.into_iter().next() {
            None => Ok(()),
            Some((name, part)) => Err(ModelError::UnexpectedTensor { name, path: self.parts[part].path.clone() }),
        }
    }

    /// Finds a tensor by the name in the file. Returns the number of the part, and the kind.
    fn find(&mut self, name: &str, shape: &[usize]) -> Result<(usize, WeightKind), ModelError> {
        let at = self.left.remove(name).ok_or_else(|| self.missing(name))?;
        let part = &self.parts[at];
        let path = part.path.clone();
        let Some(info) = part.reader.get_tensor_info(name) else { return Err(self.missing(name)) };
        // The first dimension is the innermost.
        let found: Vec<usize> = info.shape().dims().iter().rev().map(|dim| *dim as usize).collect();
        if found != shape {
            return Err(ModelError::Shape { name: name.to_owned(), path, found, expected: shape.to_vec() });
        }
        let kind = match info.tensor_type() {
            GGUFTensorType::F32 => WeightKind::F32,
            GGUFTensorType::F16 => WeightKind::F16,
            GGUFTensorType::BF16 => WeightKind::Bf16,
            GGUFTensorType::Q8_0 => WeightKind::Q8_0,
            GGUFTensorType::Q4_0 => WeightKind::Q4_0,
            GGUFTensorType::Q4_1 => WeightKind::Q4_1,
            GGUFTensorType::Q5_0 => WeightKind::Q5_0,
            GGUFTensorType::Q5_1 => WeightKind::Q5_1,
            GGUFTensorType::Q4_K => WeightKind::Q4K,
            GGUFTensorType::Q5_K => WeightKind::Q5K,
            GGUFTensorType::Q6_K => WeightKind::Q6K,
            other => return Err(ModelError::Dtype { name: name.to_owned(), path, found: other.name().to_owned() }),
        };
        Ok((at, kind))
    }

    fn missing(&self, name: &str) -> ModelError {
        let present = self.parts.iter().flat_map(|part| part.reader.tensor_names());
        ModelError::missing_tensor(
            name,
            &self.parts[0].path,
            present,
            "the file is not complete, or of another kind of model",
        )
    }

    /// Reads a tensor by the name in the file.
    fn read(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let (at, kind) = self.find(name, shape)?;
        let Part { path, reader } = &mut self.parts[at];
        match reader.load_tensor_data(name) {
            Ok(Some(data)) => Ok(Tensor { kind, bytes: data.into_owned(), path: path.clone() }),
            Ok(None) => Err(self.missing(name)),
            Err(error) => Err(unreadable(path, &error)),
        }
    }
}

impl<R: Read + Seek> Tensors for FileTensors<R> {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let mut tensor = self.read(&name_in_file(name), shape)?;
        if let Some(head_dim) = self.paired.filter(|_| name.contains("q_proj") || name.contains("k_proj")) {
            let rows = shape[0];
            tensor.bytes = halved(&tensor.bytes, rows, head_dim);
        }
        Ok(tensor)
    }

    fn skip(&mut self, name: &str, shape: &[usize]) -> Result<(WeightKind, PathBuf), ModelError> {
        let (at, kind) = self.find(&name_in_file(name), shape)?;
        Ok((kind, self.parts[at].path.clone()))
    }
}

/// Returns the name in a GGUF file of a tensor with a name as in Hugging Face folders.
fn name_in_file(name: &str) -> String {
    let (stem, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let of = |table: &[(&str, &'static str)], stem: &str| {
        table.iter().find(|(theirs, _)| *theirs == stem).map_or("(none)", |(_, ours)| *ours)
    };
    match stem.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, part)) => format!("blk.{layer}.{}.{kind}", of(&LAYER_NAMES, part)),
        None => format!("{}.{kind}", of(&NAMES, stem)),
    }
}

/// Orders the rows of every head: llama.cpp stores the two rows of a rotated pair next to each other, Hugging Face stores first
/// the first rows of all pairs, then the second rows.
fn halved(bytes: &[u8], rows: usize, head_dim: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / rows.max(1);
    let mut ordered = Vec::with_capacity(bytes.len());
    for head in bytes.chunks(head_dim * row_bytes) {
        for parity in 0..2 {
            for row in head.chunks(row_bytes).skip(parity).step_by(2) {
                ordered.extend_from_slice(row);
            }
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_translated_for_weights_and_biases() {
        for (theirs, ours) in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias"),
            ("model.layers.31.post_attention_layernorm.weight", "blk.31.ffn_norm.weight"),
        ] {
            assert_eq!(name_in_file(theirs), ours);
        }
    }

    #[test]
    fn rows_in_pairs_are_ordered_in_halves_head_by_head() {
        // Two heads of four rows of two bytes; a row is named by its place in a Hugging Face folder.
        let stored = [0, 2, 1, 3, 4, 6, 5, 7].map(|row: u8| [row, row]).concat();
        let ordered = (0..8u8).flat_map(|row| [row, row]).collect::<Vec<u8>>();
        assert_eq!(halved(&stored, 8, 4), ordered);
    }
}
