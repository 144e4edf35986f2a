//! The model: packed weights, and the forward pass over a batch.

pub(crate) mod seeded;
pub(crate) mod streamed;

use std::path::Path;
use std::sync::Arc;

use trunkline_port::{LayerGroup, ModelInfo};
use trunkline_text::{Files, ModelFacts, gguf_name};

use crate::config::ModelConfig;
use crate::config::groups::{Groups, Place};
use crate::error::{GroupsError, ModelError, WeightsFault};
use crate::files::weights::{InMemory, Keep, LayerWeights, Weights};
use crate::kernels::amx::Kernel;
use crate::kernels::kernel::{rms_norm, rms_norm_in_place, swiglu};
use crate::kernels::matrix::Matrix;
use crate::kv::rope::{Rope, rotate};
use crate::kv::{KvCache, KvDtype, LockedBlocks};
use crate::layers::attention::{Plan, Sequence, attend};
use crate::layers::linear::{Linear, LinearScratch, Output};
use crate::layers::pair::Pair;
use crate::layers::scores::Scores;
use crate::layers::threads::Threads;
use crate::stream::stream_settings::StreamInfo;
use crate::stream::{Stream, Streamed};
use crate::{files::gguf, files::hugging_face, files::shards, files::shards::SINGLE_FILE};

/// A decoder-only transformer of the Llama architecture or a relative of it, computed in F32 (products with quantised weights in
/// integers, with BF16 weights by [`Kernel`]): RMSNorm, rotary embeddings,
/// grouped-query attention and a gated feed-forward layer. Immutable; an `Arc` shares the model between workers.
pub struct Model {
    name: String,
    config: ModelConfig,
    kv_dtype: KvDtype,
    kernel: Kernel,
    groups: Groups,
    rope: Rope,
    /// One row for each token; `None` if the rows of the head are the embeddings.
    embedding: Option<Matrix>,
    layers: Vec<LayerWeights>,
    final_norm: Vec<f32>,
    head: Linear,
    /// Groups of matrices that are not in memory, if there are any.
    streamed: Option<Arc<Streamed>>,
    stream_info: Option<StreamInfo>,
    /// Facts about the model that its files state in words.
    facts: ModelFacts,
}

/// Name of a model's folder, or the stem of its file.
struct LoadedName {
    name: String,
    is_file: bool,
}

impl LoadedName {
    fn of(path: &Path) -> Result<Self, ModelError> {
        if !path.exists() {
            let hint = "give the folder of a Hugging Face model, or a GGUF file";
            return Err(ModelError::MissingFile { path: path.to_owned(), hint });
        }
        let full = path.canonicalize().map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
        let is_file = !full.is_dir();
        let folder = || full.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
        let name = if is_file { gguf_name(&full) } else { folder() };
        Ok(Self { name, is_file })
    }
}

/// The tokens of a batch with positions and blocks. All sequences' rows follow one another.
pub(crate) struct Batch<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) sequences: &'a [Sequence<'a>],
}

/// Memory used again by one forward pass after the other.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The residual stream, one row per token.
    x: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attention: Vec<f32>,
    gate_up: Vec<f32>,
    inner: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    linear: LinearScratch,
    /// Attention of the rows that count for scores.
    pub(crate) scores: Scores,
    /// First row of each sequence of the batch that ran last.
    pub(crate) first_rows: Vec<usize>,
    /// The result: `[logit row][vocabulary]`.
    pub(crate) logits: Vec<f32>,
}

impl Scratch {
    /// Returns memory for passes of `model`.
    pub(crate) fn of(model: &Model) -> Self {
        Self { linear: LinearScratch::new(model.kernel), ..Self::default() }
    }
}

impl Model {
    /// Reads a model from a Hugging Face folder or from a GGUF file. Matrices keep the precision of the file.
    ///
    /// A folder has `config.json`, `generation_config.json` if there is one, and either `model.safetensors`,
    /// `model.safetensors.index.json` with its shards, or any `*.safetensors`, in F32, F16 or BF16.
    ///
    /// # Errors
    ///
    /// See [`ModelError`]: a file or a tensor is missing or malformed, or the model is of a family that the worker does not run.
    pub fn load(path: &Path) -> Result<Model, ModelError> {
        let LoadedName { name, .. } = LoadedName::of(path)?;
        Self::load_keeping(path, name, &mut InMemory)
    }

    /// Reads a model whose groups of matrices go to `keep`.
    fn load_keeping(path: &Path, name: String, keep: &mut dyn Keep) -> Result<Model, ModelError> {
        let (config, facts, weights) = if path.is_dir() {
            let (config, facts) = hugging_face::load(path)?;
            let weights = shards::load(path, &config, keep)?;
            (config, facts, weights)
        } else {
            gguf::load(path, keep)?
        };
        Ok(Self { facts, ..Self::assemble(name, config, weights) })
    }

    /// Reads a model from the contents of `config.json`, other files with facts, and `model.safetensors`, in memory for as long as the program
    /// runs.
    ///
    /// # Errors
    ///
    /// As [`Model::load`]; messages name files in a folder `name`.
    pub fn from_bytes(
        name: &str,
        config: &[u8],
        others: &[(&str, &[u8])],
        safetensors: &'static [u8],
    ) -> Result<Model, ModelError> {
        Self::from_bytes_keeping(name, (config, others), safetensors, &mut InMemory)
    }

    /// Does the same as [`Self::from_bytes`] with groups of matrices that go to `keep`.
    fn from_bytes_keeping(
        name: &str,
        (config, others): (&[u8], &[(&str, &[u8])]),
        safetensors: &'static [u8],
        keep: &mut dyn Keep,
    ) -> Result<Model, ModelError> {
        let folder = Path::new(name);
        let files = [&[("config.json", config)], others].concat();
        let (config, facts) = hugging_face::parse(config, folder, Files::Memory(name, &files))?;
        let weights = shards::parse(safetensors, &folder.join(SINGLE_FILE), &config, keep)?;
        Ok(Self { facts, ..Self::assemble(name.to_owned(), config, weights) })
    }

    /// Packs weights with the shapes of `config`.
    pub(crate) fn assemble(name: String, config: ModelConfig, weights: Weights) -> Model {
        let (head, embedding) = match weights.head {
            Some(head) => (head, Some(weights.embedding)),
            None => (weights.embedding, None),
        };
        let rope = Rope::new(&config);
        let windows = config.layer_windows();
        let groups = Groups::new(Groups::of_windows(&windows), &windows, config.n_kv_heads);
        let groups = groups.expect("groups made for these layers");
        Self {
            name,
            config,
            kv_dtype: KvDtype::default(),
            kernel: Kernel::default(),
            groups,
            rope,
            embedding,
            layers: weights.layers,
            final_norm: weights.final_norm,
            head: Linear::new(vec![head]),
            streamed: None,
            stream_info: None,
            facts: ModelFacts::default(),
        }
    }

    /// The seeded model, with an embedding of `token` that is NaN.
    #[cfg(test)]
    pub(crate) fn seeded_with_nan_for(token: u32) -> Model {
        let mut model = Self::seeded(0);
        let (vocab, hidden) = (model.config.vocab_size as usize, model.config.hidden_size as usize);
        let mut rows = vec![0.0; vocab * hidden];
        model.embed(&(0..vocab as u32).collect::<Vec<u32>>(), &mut rows);
        rows[token as usize * hidden..][..hidden].fill(f32::NAN);
        model.embedding = Some(Matrix::from_f32(hidden, &rows));
        model
    }

    /// Sets the element type of the KV caches of this model's workers; F32 unless set. Smaller types hold more tokens in the same
    /// memory, and change logits by their rounding.
    #[must_use]
    pub fn with_kv_dtype(self, kv_dtype: KvDtype) -> Model {
        Self { kv_dtype, ..self }
    }

    /// Sets the arithmetic of products with BF16 weights; [`Kernel::Portable`] unless set. Has no effect on a model without such weights.
    #[must_use]
    pub fn with_kernel(self, kernel: Kernel) -> Model {
        let groups = self.layers.iter().flat_map(|layer| [&layer.attention, &layer.feed_forward]);
        let linears = groups.flat_map(|group| [&group.first, &group.second]).chain([&self.head]);
        let has_bf16 = linears.flat_map(Linear::parts).any(Matrix::is_bf16);
        Self { kernel: if has_bf16 { kernel } else { Kernel::Portable }, ..self }
    }

    /// Returns the arithmetic of products with BF16 weights; [`Kernel::Portable`] for a model without such weights.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Sets the layer groups of this model's workers; none stand for one group that keeps all positions. Unless set, layers with and without
    /// sliding windows have groups of their own.
    ///
    /// A group may keep fewer positions than its layers were trained with: attention reads only the window of the group then.
    ///
    /// # Errors
    ///
    /// Groups that do not have each layer, or each KV head, once, in ascending order, or that contradict the windows of the layers: see [`GroupsError`].
    pub fn with_groups(self, groups: Vec<LayerGroup>) -> Result<Model, GroupsError> {
        let groups = Groups::new(groups, &self.config.layer_windows(), self.config.n_kv_heads)?;
        Ok(Self { groups, ..self })
    }

    /// Returns the layer groups of this model's workers.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Returns the rotary embeddings of all layers.
    pub(crate) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// Returns the radians by which each pair of elements of a key, `i` and `i + head_dim / 2`, is rotated from one position to the next, in
    /// all layers.
    pub fn rotary_frequencies(&self) -> &[f32] {
        self.rope.frequencies()
    }

    /// Returns the element type of the KV caches of this model's workers.
    pub fn kv_dtype(&self) -> KvDtype {
        self.kv_dtype
    }

    /// Returns the shape and the constants of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the facts about the model that its files state in words, each with its source; none for a seeded model.
    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Returns the name of the model's folder or the stem of the model's file, or "seeded-tiny".
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the memory of one token in the blocks of all layer groups, in bytes: keys and values of all layers, and what groups smaller than
    /// the largest leave unused.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.kv_bytes_per_token_of(self.kv_dtype)
    }

    fn kv_bytes_per_token_of(&self, kv_dtype: KvDtype) -> u64 {
        let (layers, heads) = self.groups.block_shape();
        let heads = u64::from(layers) * u64::from(heads) * self.groups.keeps().len() as u64;
        2 * kv_dtype.bytes_of(self.config.head_dim.into()) * heads
    }

    /// Returns the facts about the model for a front end.
    pub fn info(&self) -> ModelInfo {
        self.info_with(self.kv_dtype)
    }

    /// Returns the facts about the model for a front end, of workers with another type of KV ([`crate::Worker::with_kv_dtype`]).
    pub fn info_with(&self, kv_dtype: KvDtype) -> ModelInfo {
        ModelInfo {
            name: self.name.clone(),
            revision: String::new(),
            vocab_size: self.config.vocab_size,
            max_context: self.config.max_context,
            eos_token_ids: self.config.eos_token_ids.clone(),
            n_layers: self.config.n_layers,
            hidden_size: self.config.hidden_size,
            n_heads: self.config.n_heads,
            n_kv_heads: self.config.n_kv_heads,
            head_dim: self.config.head_dim,
            kv_dtype: kv_dtype.name().to_owned(),
            kv_bytes_per_token: self.kv_bytes_per_token_of(kv_dtype),
            groups: self.groups.listed().to_vec(),
        }
    }

    /// Runs a batch: writes keys and values into `kv`, and leaves in `scratch` what [`Self::head`] makes logits of. Tokens MUST be in the
    /// vocabulary and block tables MUST reach every position. `stream` has the weights that are not in memory.
    ///
    /// # Errors
    ///
    /// Streamed weights could not be read. The KV of the batch is not written then, or only in part.
    pub(crate) fn forward(
        &self,
        batch: &Batch<'_>,
        kv: &mut KvCache,
        scratch: &mut Scratch,
        threads: &Threads,
        stream: &mut Option<Stream>,
    ) -> Result<(), WeightsFault> {
        let (rows, hidden) = (batch.tokens.len(), self.config.hidden_size as usize);
        let (q_width, kv_width) = (self.config.q_width(), self.config.kv_width());
        let (qkv_width, inner) = (q_width + 2 * kv_width, self.config.intermediate_size as usize);
        let eps = self.config.rms_norm_eps;
        let plan = Plan::new(batch.sequences, &self.config);
        let written = batch.sequences.iter().flat_map(Sequence::blocks_written);
        let read = batch.sequences.iter().flat_map(Sequence::blocks_read);
        let mut kv = kv.lock(written, read);
        let scored = batch.sequences.iter().map(|seq| seq.scored.as_ref());
        scratch.scores.begin(scored, self.config.group(), self.groups.n_score_lists());
        scratch.first_rows.clear();
        scratch.first_rows.extend(batch.sequences.iter().map(|seq| seq.row));
        self.embed(batch.tokens, &mut scratch.x);
        self.turn(batch.sequences, scratch);
        scratch.normed.resize(rows * hidden, 0.0);
        scratch.qkv.resize(rows * qkv_width, 0.0);
        scratch.attention.resize(rows * q_width, 0.0);
        scratch.gate_up.resize(rows * 2 * inner, 0.0);
        scratch.inner.resize(rows * inner, 0.0);
        let Scratch { x, normed, qkv, attention, gate_up, inner: activated, cos, sin, linear, scores, .. } = scratch;
        for (i, layer) in self.layers.iter().enumerate() {
            norm_rows(x, &layer.attention_norm, eps, normed, threads);
            let weights = group(stream, 2 * i, &layer.attention)?;
            weights.first.apply(normed, qkv, Output::Replace, linear, threads);
            self.place_heads(layer, qkv, cos, sin, threads);
            let places = self.groups.places(i);
            store(batch.sequences, &mut kv, places, qkv, q_width, kv_width);
            attend(&plan, &kv.view(), places, qkv, attention, scores, threads);
            weights.second.apply(attention, x, Output::Add, linear, threads);
            add_bias(layer.o_bias.as_deref(), x, threads);
            norm_rows(x, &layer.mlp_norm, eps, normed, threads);
            let weights = group(stream, 2 * i + 1, &layer.feed_forward)?;
            weights.first.apply(normed, gate_up, Output::Replace, linear, threads);
            add_bias(layer.gate_up_bias.as_deref(), gate_up, threads);
            threads.chunks(activated, inner, rows * inner * 8, |row, out| {
                swiglu(&gate_up[row * 2 * inner..(row + 1) * 2 * inner], out);
            });
            weights.second.apply(activated, x, Output::Add, linear, threads);
            add_bias(layer.down_bias.as_deref(), x, threads);
        }
        if let Some(stream) = stream {
            stream.end();
        }
        Ok(())
    }

    /// Computes the logits of some rows of the batch that ran last, instead of those before. They are the same bits whatever the other rows are.
    pub(crate) fn head(&self, rows: impl ExactSizeIterator<Item = usize>, scratch: &mut Scratch, threads: &Threads) {
        let (hidden, eps) = (self.config.hidden_size as usize, self.config.rms_norm_eps);
        let Scratch { x, normed, linear, logits, .. } = scratch;
        normed.resize(rows.len() * hidden, 0.0);
        logits.resize(rows.len() * self.head.outputs(), 0.0);
        for (row, normed) in rows.zip(normed.chunks_exact_mut(hidden)) {
            rms_norm(&x[row * hidden..(row + 1) * hidden], &self.final_norm, eps, normed);
        }
        self.head.apply(normed, logits, Output::Replace, linear, threads);
    }

    fn embed(&self, tokens: &[u32], x: &mut Vec<f32>) {
        let hidden = self.config.hidden_size as usize;
        x.resize(tokens.len() * hidden, 0.0);
        for (token, row) in tokens.iter().zip(x.chunks_exact_mut(hidden)) {
            match &self.embedding {
                Some(embedding) => embedding.row(*token as usize, row),
                None => self.head.row(*token as usize, row),
            }
        }
    }

    /// Computes the rotary angles of every row, for all layers and heads.
    fn turn(&self, sequences: &[Sequence<'_>], scratch: &mut Scratch) {
        scratch.cos.clear();
        scratch.sin.clear();
        for seq in sequences {
            for position in seq.position..seq.position + seq.n_rows as u32 {
                self.rope.angles(position, &mut scratch.cos, &mut scratch.sin);
            }
        }
    }

    /// Adds the biases of every row's queries, keys and values, norms the query and key heads, and rotates them; the layer decides
    /// about biases and norms.
    fn place_heads(&self, layer: &LayerWeights, qkv: &mut [f32], cos: &[f32], sin: &[f32], threads: &Threads) {
        let (dim, eps) = (self.config.head_dim as usize, self.config.rms_norm_eps);
        let (q_width, kv_width) = (self.config.q_width(), self.config.kv_width());
        let cost = 2 * qkv.len();
        threads.chunks(qkv, q_width + 2 * kv_width, cost, |row, qkv| {
            let (cos, sin) = (&cos[row * dim / 2..][..dim / 2], &sin[row * dim / 2..][..dim / 2]);
            if let Some(bias) = &layer.qkv_bias {
                add(qkv, bias);
            }
            let (q, kv) = qkv.split_at_mut(q_width);
            let k = &mut kv[..kv_width];
            if let Some(norms) = &layer.head_norms {
                rms_norm_in_place(q, &norms.q, eps);
                rms_norm_in_place(k, &norms.k, eps);
            }
            for head in q.chunks_exact_mut(dim).chain(k.chunks_exact_mut(dim)) {
                rotate(head, cos, sin);
            }
        });
    }
}

/// Returns group `number` of the matrices, which is `pinned` unless it is streamed.
fn group<'a>(stream: &'a mut Option<Stream>, number: usize, pinned: &'a Pair) -> Result<&'a Pair, WeightsFault> {
    match stream {
        Some(stream) => Ok(stream.group(number)?.unwrap_or(pinned)),
        None => Ok(pinned),
    }
}

/// Adds a bias, if there is one, to each row of `rows`.
fn add_bias(bias: Option<&[f32]>, rows: &mut [f32], threads: &Threads) {
    if let Some(bias) = bias {
        let cost = rows.len();
        threads.chunks(rows, bias.len(), cost, |_, row| add(row, bias));
    }
}

fn add(row: &mut [f32], bias: &[f32]) {
    for (x, bias) in row.iter_mut().zip(bias) {
        *x += bias;
    }
}

fn norm_rows(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32], threads: &Threads) {
    let (hidden, cost) = (weight.len(), 2 * x.len());
    threads.chunks(out, hidden, cost, |row, out| rms_norm(&x[row * hidden..(row + 1) * hidden], weight, eps, out));
}

/// Writes the keys and values of every row outside shared blocks.
fn store(
    sequences: &[Sequence<'_>],
    kv: &mut LockedBlocks<'_>,
    places: &[Place],
    qkv: &[f32],
    q_width: usize,
    kv_width: usize,
) {
    let (size, dim) = (kv.block_size(), kv_width / places.len());
    let width = q_width + 2 * kv_width;
    for seq in sequences {
        for (i, row) in qkv[seq.row * width..].chunks_exact(width).take(seq.n_rows).enumerate() {
            let position = seq.position as usize + i;
            if position >= seq.write_from as usize {
                let (keys, values) = row[q_width..].split_at(kv_width);
                for (place, (keys, values)) in places.iter().zip(keys.chunks_exact(dim).zip(values.chunks_exact(dim))) {
                    let table = &seq.tables[place.group];
                    let index = table.index(position);
                    kv.write(place, table.block_at(index), index % size, keys, values);
                    if place.unused_behind && index.is_multiple_of(size) {
                        kv.clear_behind(place, table.block_at(index));
                    }
                }
            }
        }
    }
}
