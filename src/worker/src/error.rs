//! Errors of model files and of steps; each message names the fault, the place, and the remedy.

pub(crate) mod misfits;

use std::fmt;
use std::path::{Path, PathBuf};

use trunkline_port::streaming::BudgetError;
use trunkline_port::{RequestId, StepError, Token};
use trunkline_quote::{cut, of_parser};
use trunkline_text::{FactsError, Mistake};

use crate::error::misfits::misfit;
use crate::kernels::matrix::MatrixError;

/// A model folder or a GGUF file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file required in the folder is missing.
    #[error("{} is missing: {hint}", path.display())]
    MissingFile {
        /// Path of the missing file.
        path: PathBuf,
        /// Advice on getting the file.
        hint: &'static str,
    },
    /// A file is there but cannot be read.
    #[error("cannot read {}: {source}; check that it is a file and its permissions", path.display())]
    Read {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file is not JSON of the expected form.
    #[error("{} is not valid: {}; download it again or repair it", path.display(), of_parser(&source.to_string()))]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Position and reason of the parser's stop.
        source: serde_json::Error,
    },
    /// A value of the model's configuration makes no sense.
    #[error("{}: {field} {problem}", path.display())]
    Config {
        /// Path of the file.
        path: PathBuf,
        /// Key in the file.
        field: &'static str,
        /// Problem with the value of the key.
        problem: String,
    },
    /// The model is sound but of a kind unknown to this worker.
    #[error("{}: {} is not supported; {supported}", path.display(), cut(found))]
    Unsupported {
        /// File with the unsupported setting.
        path: PathBuf,
        /// Feature required by the model.
        found: String,
        /// Alternatives supported by this worker.
        supported: &'static str,
    },
    /// A weights file is cut short or malformed.
    #[error("{}: {problem}; download it again", path.display())]
    Safetensors {
        /// Path of the file.
        path: PathBuf,
        /// Problem with the file.
        problem: String,
    },
    /// A tensor of the architecture is in none of the weights files.
    #[error("tensor {name} is missing from {}; the model needs it: {hint}", path.display())]
    MissingTensor {
        /// Name of the tensor.
        name: String,
        /// The folder, or the shard named by the folder's index.
        path: PathBuf,
        /// What is there instead, and the remedy.
        hint: String,
    },
    /// A file or folder is not the one that was meant.
    #[error(transparent)]
    Mistake(#[from] Mistake),
    /// A file with facts about the model cannot be used.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// A tensor's shape contradicts `config.json`.
    #[error(
        "tensor {name} in {} has shape {found:?}, but the model's configuration asks for {expected:?}: the tensors \
         and the configuration belong to different models",
        path.display()
    )]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Path of the weights file.
        path: PathBuf,
        /// Shape of the tensor in the file.
        found: Vec<usize>,
        /// Shape according to the configuration.
        expected: Vec<usize>,
    },
    /// A tensor's element type is unknown to this worker.
    #[error(
        "tensor {name} in {} has the type {found}; the types are F32, F16 and BF16, and in GGUF files also Q8_0, Q4_0, \
         Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K",
        path.display()
    )]
    Dtype {
        /// Name of the tensor.
        name: String,
        /// Path of the weights file.
        path: PathBuf,
        /// Element type in the file.
        found: String,
    },
    /// A tensor's bytes cannot be packed.
    #[error("tensor {name} in {}: {source}", path.display())]
    Matrix {
        /// Name of the tensor.
        name: String,
        /// Path of the weights file.
        path: PathBuf,
        /// Contradiction between type and shape.
        source: MatrixError,
    },
    /// More weights than memory.
    #[error(
        "{} has {needed} of weights, but {available} of memory can be had; take a smaller or more quantised model, or raise the limit of memory \
         (of the container, ulimit -v)",
        path.display()
    )]
    Memory {
        /// Path of the file or folder.
        path: PathBuf,
        /// Size of the weights.
        needed: String,
        /// Free memory, as far as known.
        available: String,
    },
    /// A GGUF file is cut short, malformed, or beyond the limits of the reader.
    #[error("{} cannot be read as a GGUF file of version 3: {problem}; download it again", path.display())]
    Gguf {
        /// Path of the file.
        path: PathBuf,
        /// Problem with the file.
        problem: String,
    },
    /// A file of packed weights cannot be written.
    #[error("cannot write the packed weights to {}: {source}; name another folder with dir", path.display())]
    Write {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file of packed weights is not what its name says.
    #[error("the packed weights in {} cannot be used: {problem}; remove the file to have it written again", path.display())]
    Packed {
        /// Path of the file.
        path: PathBuf,
        /// Problem with the file.
        problem: String,
    },
    /// No regular file has the name of the file of packed weights.
    #[error("{} is not a regular file; the packed weights go there: move it away, or name another folder with dir", path.display())]
    NoFile {
        /// Path of the pipe, folder, device or the like.
        path: PathBuf,
    },
    /// A group of packed weights cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsFault),
    /// The memory for weights is too small.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// A tensor without a use in the model's architecture; ignoring the tensor would give wrong text.
    #[error("tensor {} in {} is not part of the model's architecture; the model is of another kind", cut(name), path.display())]
    UnexpectedTensor {
        /// Name of the tensor.
        name: String,
        /// Path of the weights file.
        path: PathBuf,
    },
}

impl GroupFault {
    /// Returns `true` if the file has other bytes than were written, or fewer.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::Short | Self::Checksum)
    }
}

impl ModelError {
    /// Returns `true` if a file of packed weights was damaged and removed: loading the model again writes another.
    pub fn has_removed_file(&self) -> bool {
        matches!(self, Self::Weights(fault) if fault.is_removed)
    }

    /// Describes a missing tensor by the names of the tensors that are there; `otherwise` is the remedy if the names tell nothing.
    pub(crate) fn missing_tensor<'a>(
        name: &str,
        path: &Path,
        present: impl Iterator<Item = &'a str>,
        otherwise: &str,
    ) -> Self {
        let hint = misfit(name, &present.collect::<Vec<_>>()).unwrap_or_else(|| otherwise.to_owned());
        Self::MissingTensor { name: name.to_owned(), path: path.to_owned(), hint }
    }

    /// Describes a file of packed weights that cannot be used.
    pub(crate) fn packed(path: &Path, problem: &str) -> Self {
        Self::Packed { path: path.to_owned(), problem: problem.to_owned() }
    }
}

/// Fault of a group of packed weights that was read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupFault {
    /// The system could not read the file.
    #[error("{0}")]
    Read(String),
    /// The file ends within the group.
    #[error("the file is cut short")]
    Short,
    /// The bytes are not the ones written.
    #[error("the checksum is wrong")]
    Checksum,
}

/// A group of packed weights could not be read from its file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {part} weights of layer {layer} cannot be read from {}: {fault}; {}",
    path.display(),
    remedy(*.is_removed)
)]
pub struct WeightsFault {
    /// Path of the file.
    pub path: PathBuf,
    /// Layer of the group.
    pub layer: u32,
    /// Part of the layer.
    pub part: &'static str,
    /// Fault of the read.
    pub fault: GroupFault,
    /// The file is damaged and was removed.
    pub is_removed: bool,
}

fn remedy(is_removed: bool) -> &'static str {
    match is_removed {
        true => "the file was removed, and is written again from the model",
        false => "check the disk, or remove the file and start again, which writes it again",
    }
}

/// The worker cannot start or cannot run a step. A refused step has changed nothing, except [`WorkerError::Weights`]; the same step may be sent again
/// afterwards.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A value of the worker's configuration is out of range.
    #[error("{field} is {value}; it must be {expected}")]
    Config {
        /// Field of the configuration.
        field: &'static str,
        /// Value found in the configuration.
        value: u64,
        /// Range of allowed values.
        expected: &'static str,
    },
    /// The KV cache does not fit into memory.
    #[error(
        "the KV cache of {blocks} blocks of {block_size} tokens needs {bytes} bytes, of which the machine can give \
         {available}; ask for fewer blocks"
    )]
    KvMemory {
        /// Number of blocks asked for.
        blocks: u32,
        /// Tokens in each block.
        block_size: u32,
        /// Size of all blocks together, bytes.
        bytes: u128,
        /// Free memory, as far as known.
        available: String,
    },
    /// The element type of the KV cache stores units of neighbouring elements, and the model's heads are not a whole number of units.
    #[error(
        "KV of type {dtype} needs heads of a multiple of {unit} elements, the model's have {head_dim}; choose f16 or bf16"
    )]
    HeadDim {
        /// Name of the type.
        dtype: &'static str,
        /// Elements of a unit.
        unit: u32,
        /// Width of a head, in elements.
        head_dim: u32,
    },
    /// The threads could not be started.
    #[error("cannot start {threads} threads: {problem}")]
    Threads {
        /// Threads asked for; 0 is one for each core.
        threads: usize,
        /// Error of the operating system.
        problem: String,
    },
    /// A list of the step is not in the order of the sequences, or names a sequence that the step does not have.
    #[error("step {step} has {list} out of order, or of sequences that are not in the step")]
    Order {
        /// Number of the step.
        step: u64,
        /// Field of [`trunkline_port::Step`].
        list: &'static str,
    },
    /// A copy of the step is impossible.
    #[error("step {step}, copy {index}: {fault}")]
    Copy {
        /// Number of the step.
        step: u64,
        /// Index of the copy in the step.
        index: usize,
        /// Fault of the copy.
        fault: CopyFault,
    },
    /// The step does not have exactly one entry of `starts` for each starting sequence.
    #[error("step {step} starts {starts} sequences but brings {sent} entries of starts")]
    StartCount {
        /// Number of the step.
        step: u64,
        /// Number of sequences with `start`.
        starts: usize,
        /// Number of entries of [`trunkline_port::Step::starts`].
        sent: usize,
    },
    /// A sequence of the step contradicts itself or the worker's mirror.
    #[error("step {step}, sequence {index} (request {request}, slot {slot}): {fault}")]
    Sequence {
        /// Number of the step.
        step: u64,
        /// Index of the sequence in [`trunkline_port::Step::seqs`].
        index: usize,
        /// Request of the sequence.
        request: RequestId,
        /// Slot of the sequence.
        slot: u32,
        /// Fault of this entry.
        fault: SequenceFault,
    },
    /// A copy names a block that the device does not have.
    #[error("device block {block} is not below {limit}")]
    NoBlock {
        /// Number of the block.
        block: u32,
        /// Number of existing blocks.
        limit: u32,
    },
    /// Streamed weights could not be read, though the read was tried again. [`crate::Model::repair_from`] and [`crate::Model::repair_with`] repair the file.
    #[error("step {step}: {fault}")]
    Weights {
        /// Number of the step.
        step: u64,
        /// Group that could not be read.
        fault: WeightsFault,
    },
}

impl From<WorkerError> for StepError {
    fn from(error: WorkerError) -> Self {
        let is_unfit = matches!(error, WorkerError::Weights { .. });
        let guilty = match &error {
            WorkerError::Sequence { request, .. } => Some(*request),
            _ => None,
        };
        let wrapped = Self::new(error);
        let wrapped = if is_unfit { wrapped.of_unfit_worker() } else { wrapped };
        guilty.into_iter().fold(wrapped, Self::caused_by)
    }
}

/// A layer or a KV head in a layer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupMember {
    /// Number of a layer.
    Layer(u32),
    /// Number of a KV head, `layer * n_kv_heads + head`.
    Head(u32),
}

impl fmt::Display for GroupMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(layer) => write!(f, "layer {layer}"),
            Self::Head(head) => write!(f, "KV head {head}"),
        }
    }
}

/// Layer groups that contradict the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupsError {
    /// A layer or head is in no group.
    #[error("{member} is in no layer group; each must be in exactly one")]
    Missing {
        /// The layer or head.
        member: GroupMember,
    },
    /// A layer or head is in two groups.
    #[error("{member} is in two layer groups; each must be in exactly one")]
    Twice {
        /// The layer or head.
        member: GroupMember,
    },
    /// A group names a layer or head beyond the model's last.
    #[error("a layer group names {member}, but the numbers are 0 to {}", n - 1)]
    Unknown {
        /// The layer or head.
        member: GroupMember,
        /// Number of layers, or of KV heads, of the model.
        n: u32,
    },
    /// A group has no layers.
    #[error("layer group {group} has no layers; leave it out")]
    Empty {
        /// Number of the group.
        group: u32,
    },
    /// A group has layers and single heads.
    #[error("layer group {group} has layers and single KV heads; name the heads of all layers")]
    Both {
        /// Number of the group.
        group: u32,
    },
    /// The layers or heads of a group do not ascend.
    #[error("the numbers of layer group {group} do not ascend; sort them")]
    Order {
        /// Number of the group.
        group: u32,
    },
    /// A group keeps a window of 0 positions.
    #[error("layer group {group} keeps a window of 0 positions; a query reads its own position at least")]
    NoWindow {
        /// Number of the group.
        group: u32,
    },
    /// A layer with a sliding window is in a group that drops blocks by score.
    #[error(
        "layer {layer} has a sliding window, but its layer group drops blocks by score; put it into a group that keeps \
         the window or all positions"
    )]
    ScoredWindow {
        /// Number of the layer.
        layer: u32,
    },
}

/// Fault of a copy of tokens' KV from block to block.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyFault {
    /// The model has several layer groups.
    #[error("tokens cannot be copied in a model with layer groups")]
    Groups,
    /// Keys of this type cannot be turned without a further loss.
    #[error("tokens cannot be copied with KV of type {dtype}; use f32, f16 or bf16")]
    Quantised {
        /// Name of the type.
        dtype: &'static str,
    },
    /// A block is not there, or both are one.
    #[error("blocks {from} and {to} are not two blocks below {n_blocks}")]
    Block {
        /// Block of the sources.
        from: u32,
        /// Block of the destinations.
        to: u32,
        /// Blocks of the device.
        n_blocks: u32,
    },
    /// Cells beyond the end of a block.
    #[error("cells up to {end} are not in blocks of {block_size} tokens")]
    Cells {
        /// Last cell, counted from 1.
        end: u64,
        /// Tokens in a block.
        block_size: u32,
    },
    /// A position before the first one, or beyond the context.
    #[error("a shift by {shift} to position {position} leaves the context")]
    Position {
        /// Position of the first token in its new sequence.
        position: u32,
        /// Positions by which the tokens move.
        shift: i32,
    },
}

/// Fault of one sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceFault {
    /// The slot is not a small dense number.
    #[error("the slot is not below {limit}")]
    SlotTooLarge {
        /// Maximum number of slots.
        limit: u32,
    },
    /// Two sequences of the step share a slot.
    #[error("another sequence of the step has the same slot")]
    SlotTwice,
    /// The sequence does not start, but the slot is empty or holds another request.
    #[error("it does not start, but the slot does not hold this request")]
    NotHeld,
    /// The range of tokens, blocks or drops reaches beyond the step's arrays.
    #[error("its range of {what} ends at {end}, the step has {len}")]
    Range {
        /// Kind of the range: "tokens", "blocks" or "drops".
        what: &'static str,
        /// End of the range, exclusive.
        end: u64,
        /// Number of entries in the step.
        len: usize,
    },
    /// The block table is shorter than the part to be kept.
    #[error("{keep} entries of its block table are to be kept, it has {len}")]
    TableKeep {
        /// Entries of the table to keep.
        keep: u32,
        /// Entries of the table.
        len: usize,
    },
    /// A block number is not below the number of blocks.
    #[error("block {block} is not below {limit}")]
    Block {
        /// Number of the block.
        block: u32,
        /// Number of existing blocks.
        limit: u32,
    },
    /// The sequence drops blocks of a layer group unknown to the model.
    #[error("it drops blocks of layer group {group}, which is not below {n_groups}")]
    NoGroup {
        /// Number of the layer group.
        group: u32,
        /// Number of layer groups of the model.
        n_groups: u32,
    },
    /// The sequence drops an empty range, or entries beyond the part of the block table to be kept.
    #[error("it drops {n} entries from {first} on in layer group {group}, of {keep} entries of its block table")]
    Drop {
        /// Number of the layer group.
        group: u32,
        /// First entry of the range.
        first: u32,
        /// Number of entries.
        n: u32,
        /// Entries of the table to keep.
        keep: u32,
    },
    /// An entry of the block table has no block, although the rows of the step write or read it: attention without a window or scores
    /// reads all positions, a window its last ones, and every row its own.
    #[error("entry {entry} of its block table in layer group {group} has no block, but the tokens to run need it")]
    Hole {
        /// Number of the layer group.
        group: u32,
        /// Index of the entry.
        entry: u32,
    },
    /// More rows count for scores than tokens are to run.
    #[error("{scored} rows are to be scored, but it runs {n_tokens} tokens")]
    ScoredRows {
        /// Rows to be scored.
        scored: u32,
        /// Tokens to run.
        n_tokens: u32,
    },
    /// Log probabilities of the prompt are asked for at no rows, or behind the tokens to run.
    #[error("rows {first}..{end} are to value its prompt, but it runs {n_tokens} tokens")]
    PromptRows {
        /// First row.
        first: u32,
        /// Row behind the last.
        end: u64,
        /// Tokens to run.
        n_tokens: u32,
    },
    /// The block table does not reach the last token to run.
    #[error("its tokens end at position {end}, its block table holds {capacity}")]
    TableShort {
        /// Position after the last token.
        end: u64,
        /// Positions in the table's blocks.
        capacity: u64,
    },
    /// The last token lies beyond the model's context.
    #[error("its tokens end at position {end}, the model's context is {context}")]
    Context {
        /// Position after the last token.
        end: u64,
        /// Longest sequence in tokens.
        context: u32,
    },
    /// A token is not in the model's vocabulary.
    #[error("token {token} is not below the vocabulary size {vocab}")]
    Token {
        /// Token of the step.
        token: Token,
        /// Number of token ids.
        vocab: u32,
    },
    /// The sequence is to sample but runs no token.
    #[error("it is to sample, but has no token to run")]
    NothingToSample,
    /// Sampling or drafting needs the tokens before the first one to run, and the step does not bring the tokens.
    #[error("its sampling or drafting needs {computed} tokens of history, {sent} were sent")]
    History {
        /// Tokens before the first one to run.
        computed: u32,
        /// Tokens of history in the step.
        sent: u32,
    },
    /// The sequence continues beyond the tokens known to the drafting worker.
    #[error("it goes on at position {computed}, but only {known} of its tokens are known to draft from")]
    Gap {
        /// Tokens before the first one to run.
        computed: u32,
        /// Number of tokens known to the worker.
        known: usize,
    },
    /// The token to run is the last sampled one, but the step places the token elsewhere, or more than one token is to run.
    #[error(
        "it runs {n_tokens} tokens from position {computed}, the first of them sampled by the worker, which last sampled \
         for {}",
        sampled.map_or_else(|| "no position".to_owned(), |at| format!("position {at}"))
    )]
    NotSampled {
        /// Position of the token to run.
        computed: u32,
        /// Tokens to run; must be 1.
        n_tokens: u32,
        /// Position of the token sampled last, if one was sampled since the sequence started.
        sampled: Option<u32>,
    },
    /// A sampling parameter is out of range.
    #[error("{0}")]
    Sampling(#[from] SamplingError),
}

/// A sampling parameter is out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("sampling parameter {field} is {value}; it must be {expected}")]
pub struct SamplingError {
    /// Name of the parameter.
    pub field: &'static str,
    /// Value found in the request.
    pub value: f32,
    /// Range of allowed values.
    pub expected: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_named_by_an_error_is_guilty() {
        let guilty = |error: WorkerError| StepError::from(error).guilty();
        let fault = SequenceFault::Token { token: 396, vocab: 300 };
        let wrong = WorkerError::Sequence { step: 3, index: 1, request: RequestId(6), slot: 0, fault };
        assert_eq!(guilty(wrong), Some(RequestId(6)));
        let fault = GroupFault::Checksum;
        let fault = WeightsFault { path: PathBuf::new(), layer: 0, part: "attention", fault, is_removed: true };
        assert!(StepError::from(WorkerError::Weights { step: 3, fault }).is_unfit());
        let miscounted = WorkerError::StartCount { step: 3, starts: 1, sent: 0 };
        assert_eq!(guilty(miscounted.clone()), None);
        assert!(!StepError::from(miscounted).is_unfit());
    }
}
