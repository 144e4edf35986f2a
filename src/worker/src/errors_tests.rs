//! The texts of all errors of a worker.

#[path = "../../../tests/harness/error_texts.rs"]
mod harness;

use std::io;
use std::path::{Path, PathBuf};

use harness::texts;
use trunkline_port::RequestId;
use trunkline_port::streaming::BudgetError;
use trunkline_text::{FactsError, Mistake};

use crate::{
    CopyFault, GroupFault, GroupMember, GroupsError, MatrixError, ModelError, SamplingError, SequenceFault,
    WeightsFault, WorkerError,
};

fn path() -> PathBuf {
    "/model/model.safetensors".into()
}

fn name() -> String {
    "model.norm.weight".into()
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "permission denied")
}

fn weights() -> WeightsFault {
    WeightsFault { path: path(), layer: 3, part: "attention", fault: GroupFault::Checksum, is_removed: true }
}

fn sampling() -> SamplingError {
    SamplingError { field: "top_p", value: 1.5, expected: "above 0 and at most 1" }
}

/// Returns the mistake of an empty file.
fn mistake() -> Mistake {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("model.gguf");
    std::fs::write(&empty, "").unwrap();
    let mut mistake = Mistake::of_file(&empty).unwrap();
    mistake.path = path();
    mistake
}

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    models(out);
    weights_and_matrices(out);
    groups(out);
    workers(out);
    sequences(out);
    harness::compare(env!("CARGO_MANIFEST_DIR"), out);
}

fn models(out: &mut String) {
    let budget = BudgetError { bytes: 1 << 20, fixed_bytes: 3 << 20, window_bytes: 2 << 20, least_bytes: 5 << 20 };
    let json = serde_json::from_str::<u32>("{").unwrap_err();
    let missing = || {
        ModelError::missing_tensor(&name(), Path::new("/model"), ["lm_head.weight"].into_iter(), "download it again")
    };
    texts!(
        out,
        ModelError {
            MissingFile: ModelError::MissingFile { path: path(), hint: "download the whole folder" },
            Read: ModelError::Read { path: path(), source: refused() },
            Json: ModelError::Json { path: "/model/config.json".into(), source: json },
            Config: ModelError::Config {
                path: "/model/config.json".into(),
                field: "hidden_size",
                problem: "is 0".into()
            },
            Unsupported: ModelError::Unsupported {
                path: "/model/config.json".into(),
                found: "model_type \"mamba\"".into(),
                supported: "llama is"
            },
            Safetensors: ModelError::Safetensors { path: path(), problem: "it ends within the header".into() },
            MissingTensor: missing(),
            Mistake: ModelError::Mistake(mistake()),
            Facts: ModelError::Facts(FactsError::Absent { path: "/model".into() }),
            Shape: ModelError::Shape { name: name(), path: path(), found: vec![8, 4], expected: vec![8] },
            Dtype: ModelError::Dtype { name: name(), path: path(), found: "I64".into() },
            Matrix: ModelError::Matrix {
                name: name(),
                path: path(),
                source: MatrixError::Size { outputs: 8, inputs: 4 }
            },
            Memory: ModelError::Memory { path: "/model".into(), needed: "16 GiB".into(), available: "8 GiB".into() },
            Gguf: ModelError::Gguf { path: "/model.gguf".into(), problem: "it ends within a tensor".into() },
            Write: ModelError::Write { path: "/packed".into(), source: refused() },
            Packed: ModelError::packed(Path::new("/packed"), "it is cut short"),
            NoFile: ModelError::NoFile { path: "/packed".into() },
            Weights: ModelError::Weights(weights()),
            Budget: ModelError::Budget(budget),
            UnexpectedTensor: ModelError::UnexpectedTensor { name: name(), path: path() },
        }
    );
}

fn weights_and_matrices(out: &mut String) {
    texts!(out, WeightsFault = weights());
    texts!(
        out,
        WeightsFault = WeightsFault { fault: GroupFault::Read("i/o error".into()), is_removed: false, ..weights() }
    );
    texts!(
        out,
        GroupFault {
            Read: GroupFault::Read("i/o error".into()),
            Short: GroupFault::Short,
            Checksum: GroupFault::Checksum,
        }
    );
    texts!(
        out,
        MatrixError {
            Width: MatrixError::Width { kind: "q8_0", inputs: 33, block: 32 },
            Length: MatrixError::Length { kind: "f16", outputs: 8, inputs: 4, expected: 64, found: 60 },
            NotFinite: MatrixError::NotFinite { row: 2, column: 3 },
            Size: MatrixError::Size { outputs: 8, inputs: 4 },
        }
    );
}

fn groups(out: &mut String) {
    let member = GroupMember::Layer(3);
    texts!(
        out,
        GroupsError {
            Missing: GroupsError::Missing { member },
            Twice: GroupsError::Twice { member: GroupMember::Head(5) },
            Unknown: GroupsError::Unknown { member, n: 3 },
            Empty: GroupsError::Empty { group: 1 },
            Both: GroupsError::Both { group: 1 },
            Order: GroupsError::Order { group: 1 },
            NoWindow: GroupsError::NoWindow { group: 1 },
            ScoredWindow: GroupsError::ScoredWindow { layer: 3 },
        }
    );
}

fn workers(out: &mut String) {
    texts!(
        out,
        WorkerError {
            Config: WorkerError::Config { field: "block_size", value: 0, expected: "1 to 1024" },
            KvMemory: WorkerError::KvMemory { blocks: 9, block_size: 16, bytes: 9_000, available: "8 KiB".into() },
            HeadDim: WorkerError::HeadDim { dtype: "q8_0", unit: 32, head_dim: 24 },
            Threads: WorkerError::Threads { threads: 8, problem: "permission denied".into() },
            Order: WorkerError::Order { step: 7, list: "starts" },
            Copy: WorkerError::Copy { step: 7, index: 1, fault: CopyFault::Groups },
            StartCount: WorkerError::StartCount { step: 7, starts: 2, sent: 1 },
            Sequence: WorkerError::Sequence {
                step: 7,
                index: 1,
                request: RequestId(6),
                slot: 4,
                fault: SequenceFault::SlotTwice
            },
            NoBlock: WorkerError::NoBlock { block: 9, limit: 9 },
            Weights: WorkerError::Weights { step: 7, fault: weights() },
        }
    );
    texts!(
        out,
        CopyFault {
            Groups: CopyFault::Groups,
            Quantised: CopyFault::Quantised { dtype: "q8_0" },
            Block: CopyFault::Block { from: 3, to: 9, n_blocks: 9 },
            Cells: CopyFault::Cells { end: 17, block_size: 16 },
            Position: CopyFault::Position { position: 4, shift: -5 },
        }
    );
}

fn sequences(out: &mut String) {
    texts!(
        out,
        SequenceFault {
            SlotTooLarge: SequenceFault::SlotTooLarge { limit: 4096 },
            SlotTwice: SequenceFault::SlotTwice,
            NotHeld: SequenceFault::NotHeld,
            Range: SequenceFault::Range { what: "tokens", end: 9, len: 8 },
            TableKeep: SequenceFault::TableKeep { keep: 4, len: 3 },
            Block: SequenceFault::Block { block: 9, limit: 9 },
            NoGroup: SequenceFault::NoGroup { group: 2, n_groups: 2 },
            Drop: SequenceFault::Drop { group: 1, first: 2, n: 3, keep: 4 },
            Hole: SequenceFault::Hole { group: 1, entry: 2 },
            ScoredRows: SequenceFault::ScoredRows { scored: 3, n_tokens: 2 },
            PromptRows: SequenceFault::PromptRows { first: 1, end: 4, n_tokens: 3 },
            TableShort: SequenceFault::TableShort { end: 40, capacity: 32 },
            Context: SequenceFault::Context { end: 5_000, context: 4_096 },
            Token: SequenceFault::Token { token: 396, vocab: 300 },
            NothingToSample: SequenceFault::NothingToSample,
            History: SequenceFault::History { computed: 8, sent: 3 },
            Gap: SequenceFault::Gap { computed: 8, known: 3 },
            NotSampled: SequenceFault::NotSampled { computed: 8, n_tokens: 1, sampled: Some(7) },
            Sampling: SequenceFault::Sampling(sampling()),
        }
    );
    texts!(out, SamplingError = sampling());
}
