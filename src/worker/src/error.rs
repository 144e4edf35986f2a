//! What can go wrong with a model folder and with a step, each with what, where and what to do.

use std::path::PathBuf;

use trunkline_port::{RequestId, StepError, Token};

/// A model folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file that the folder must have is not there.
    #[error("{} is missing: {hint}", path.display())]
    MissingFile {
        /// Where it was looked for.
        path: PathBuf,
        /// What would help.
        hint: &'static str,
    },
    /// A file is there but cannot be read.
    #[error("cannot read {}: {source}; check that it is a file and its permissions", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file is not JSON of the expected form.
    #[error("{} is not valid: {source}; download it again or repair it", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why parsing stopped.
        source: serde_json::Error,
    },
    /// A value of `config.json` makes no sense.
    #[error("{}: {field} {problem}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        field: &'static str,
        /// What is wrong with its value.
        problem: String,
    },
    /// The model is sound but is not one that this worker runs.
    #[error("{}: {found} is not supported; {supported}", path.display())]
    Unsupported {
        /// The file that says so.
        path: PathBuf,
        /// What the model asks for.
        found: String,
        /// What this worker has.
        supported: &'static str,
    },
    /// A weights file is cut short or malformed.
    #[error("{}: {problem}; download it again", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor of the architecture is in none of the weights files.
    #[error("tensor {name} is missing from {}; the model needs it: check that every shard is there", path.display())]
    MissingTensor {
        /// Its name.
        name: String,
        /// The folder, or the shard that the index names for it.
        path: PathBuf,
    },
    /// A tensor's shape contradicts `config.json`.
    #[error(
        "tensor {name} in {} has shape {found:?}, but config.json asks for {expected:?}: the files belong to \
         different models",
        path.display()
    )]
    Shape {
        /// Its name.
        name: String,
        /// The weights file.
        path: PathBuf,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
    },
    /// A tensor's element type is not a float that this worker reads.
    #[error("tensor {name} in {} has dtype {found}; convert the model to F32, F16 or BF16", path.display())]
    Dtype {
        /// Its name.
        name: String,
        /// The weights file.
        path: PathBuf,
        /// The element type.
        found: String,
    },
    /// A tensor that the Llama architecture has no use for; ignoring it would give wrong text.
    #[error("tensor {name} in {} is no part of the Llama architecture; the model is of another kind", path.display())]
    UnexpectedTensor {
        /// Its name.
        name: String,
        /// The weights file.
        path: PathBuf,
    },
}

/// The worker cannot start or cannot run a step. A step that is refused has changed nothing, except
/// [`WorkerError::NonFinite`], after which the same step may be sent again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A value of the worker's configuration is out of range.
    #[error("{field} is {value}; it must be {expected}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The values allowed.
        expected: &'static str,
    },
    /// The KV cache does not fit into memory.
    #[error(
        "the KV cache of {blocks} blocks of {block_size} tokens needs {bytes} bytes, of which the machine can give \
         {available}; ask for fewer blocks"
    )]
    KvMemory {
        /// Blocks asked for.
        blocks: u32,
        /// Tokens in each.
        block_size: u32,
        /// Their size together.
        bytes: u128,
        /// Free memory as far as it is known.
        available: String,
    },
    /// The threads could not be started.
    #[error("cannot start {threads} threads: {problem}")]
    Threads {
        /// Threads asked for; 0 is one for each core.
        threads: usize,
        /// What the operating system said.
        problem: String,
    },
    /// The step has not one entry of `sampling` for each sequence that starts.
    #[error("step {step} starts {starts} sequences but brings {sampling} sampling entries")]
    SamplingCount {
        /// The step's id.
        step: u64,
        /// Sequences with `start`.
        starts: usize,
        /// Entries of [`trunkline_port::Step::sampling`].
        sampling: usize,
    },
    /// One sequence of the step contradicts itself or what the worker holds.
    #[error("step {step}, sequence {index} (request {request}, slot {slot}): {fault}")]
    Sequence {
        /// The step's id.
        step: u64,
        /// Which entry of [`trunkline_port::Step::seqs`].
        index: usize,
        /// Its request.
        request: RequestId,
        /// Its slot.
        slot: u32,
        /// What is wrong.
        fault: SequenceFault,
    },
    /// A copy between device and host names blocks that there are not, or one twice.
    #[error("transfer {transfer}, pair {index}: {fault}")]
    Transfer {
        /// The transfer's id.
        transfer: u64,
        /// Which entry of [`trunkline_port::Transfer::pairs`].
        index: usize,
        /// What is wrong.
        fault: TransferFault,
    },
    /// The model answered with NaN or infinity for a sequence: its weights are damaged or too large for F32.
    #[error("step {step}: the logits of request {request} are not finite; check the model's weights")]
    NonFinite {
        /// The step's id.
        step: u64,
        /// The request.
        request: RequestId,
    },
}

impl From<WorkerError> for StepError {
    fn from(error: WorkerError) -> Self {
        let guilty = match &error {
            WorkerError::NonFinite { request, .. } => Some(*request),
            _ => None,
        };
        let wrapped = Self::new(error);
        guilty.into_iter().fold(wrapped, Self::caused_by)
    }
}

/// What is wrong with one sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceFault {
    /// The slot is not a small dense number.
    #[error("the slot is not below {limit}")]
    SlotTooLarge {
        /// Slots there can be.
        limit: u32,
    },
    /// Two sequences of the step share a slot.
    #[error("another sequence of the step has the same slot")]
    SlotTwice,
    /// The sequence does not start, but the slot is empty or holds another request.
    #[error("it does not start, but the slot does not hold this request")]
    NotHeld,
    /// Its range of tokens or blocks reaches beyond the step's.
    #[error("its range of {what} ends at {end}, the step has {len}")]
    Range {
        /// "tokens" or "blocks".
        what: &'static str,
        /// Where the range ends.
        end: u64,
        /// How many the step has.
        len: usize,
    },
    /// The block table is shorter than what is to be kept of it.
    #[error("{keep} entries of its block table are to be kept, it has {len}")]
    TableKeep {
        /// Entries to keep.
        keep: u32,
        /// Entries there are.
        len: usize,
    },
    /// A block number is not below the number of blocks.
    #[error("block {block} is not below {limit}")]
    Block {
        /// The block.
        block: u32,
        /// Blocks there are.
        limit: u32,
    },
    /// The block table does not reach the last token to run.
    #[error("its tokens end at position {end}, its block table holds {capacity}")]
    TableShort {
        /// One past the last position.
        end: u64,
        /// Positions in the table's blocks.
        capacity: u64,
    },
    /// The last token lies beyond the model's context.
    #[error("its tokens end at position {end}, the model's context is {context}")]
    Context {
        /// One past the last position.
        end: u64,
        /// The model's context.
        context: u32,
    },
    /// A token is not in the model's vocabulary.
    #[error("token {token} is not below the vocabulary size {vocab}")]
    Token {
        /// The token.
        token: Token,
        /// The vocabulary size.
        vocab: u32,
    },
    /// It is to sample but runs no token.
    #[error("it is to sample, but has no token to run")]
    NothingToSample,
    /// Sampling or drafting needs the tokens before the first one to run, and they were not sent.
    #[error("its sampling or drafting needs {computed} tokens of history, {sent} were sent")]
    History {
        /// Tokens before the first one to run.
        computed: u32,
        /// Tokens sent.
        sent: u32,
    },
    /// It goes on beyond the tokens that the worker, which drafts, knows of it.
    #[error("it goes on at position {computed}, but only {known} of its tokens are known to draft from")]
    Gap {
        /// Tokens before the first one to run.
        computed: u32,
        /// Tokens known.
        known: usize,
    },
    /// A sampling parameter is out of range.
    #[error("{0}")]
    Sampling(#[from] SamplingError),
}

/// What is wrong with one pair of blocks of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferFault {
    /// The device has no such block.
    #[error("device block {block} is not below {limit}")]
    DeviceBlock {
        /// The block.
        block: u32,
        /// Blocks there are.
        limit: u32,
    },
    /// The host has no such block.
    #[error("host block {block} is not below {limit}")]
    HostBlock {
        /// The block.
        block: u32,
        /// Blocks there are.
        limit: u32,
    },
    /// It is from or to a tier of the prefix cache; this worker has none.
    #[error("this worker copies between device and host only")]
    NoTier,
    /// Another pair is copied to the same place.
    #[error("another pair has the same destination, block {block}")]
    DestinationTwice {
        /// The block.
        block: u32,
    },
}

/// A sampling parameter is out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("sampling parameter {field} is {value}; it must be {expected}")]
pub struct SamplingError {
    /// The parameter.
    pub field: &'static str,
    /// Its value.
    pub value: f32,
    /// The values allowed.
    pub expected: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_whose_logits_are_not_finite_is_named_as_guilty() {
        let guilty = |error: WorkerError| StepError::from(error).guilty();
        assert_eq!(guilty(WorkerError::NonFinite { step: 3, request: RequestId(5) }), Some(RequestId(5)));
        assert_eq!(guilty(WorkerError::SamplingCount { step: 3, starts: 1, sampling: 0 }), None);
    }
}
