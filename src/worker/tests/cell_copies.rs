//! Tokens copied to other positions.

#[expect(dead_code, reason = "these tests share no blocks")]
mod rig;

use std::path::Path;
use std::sync::Arc;

use rig::{Rig, Seq};
use trunkline_port::{CellCopy, DeviceBlocks, RequestId, Sampling, SeqStart, Step, StepSeq};
use trunkline_worker::{Blocks, CopyFault, KvDtype, Model, WeightKind, WorkerError};

const SIZE: u32 = 4;

/// All kinds of rotary embeddings, biases of keys, and norms of heads.
const MODELS: [&str; 5] = [
    "gqa-llama3-rope-f16",
    "llama-biases-f32",
    "mistral-yarn-rope-bf16",
    "qwen2-tied-linear-rope-f32",
    "qwen3-yarn-rope-f16",
];

fn load(name: &str) -> Model {
    Model::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance").join(name)).unwrap()
}

/// A step that copies, and runs a token of a request with these blocks after the copied ones.
fn step(id: u64, table: &[u32], computed: u32, copies: Vec<CellCopy>) -> Step {
    let seq = StepSeq {
        request: RequestId(9),
        slot: 9,
        start: true,
        computed,
        n_tokens: 1,
        kv_write_from: computed,
        n_blocks: table.len() as u32,
        sample: true,
        ..StepSeq::default()
    };
    let starts = vec![SeqStart::default()];
    Step { id, seqs: vec![seq], tokens: vec![7], blocks: table.to_vec(), starts, copies, ..Step::default() }
}

/// Copies of the tokens at positions `from .. from + n` of one table to those from `to` on of another.
fn copies(source: &[u32], table: &[u32], (from, to, n): (u32, u32, u32)) -> Vec<CellCopy> {
    let copy = |i: u32| CellCopy {
        from: source[((from + i) / SIZE) as usize],
        from_cell: (from + i) % SIZE,
        to: table[((to + i) / SIZE) as usize],
        to_cell: (to + i) % SIZE,
        n_tokens: 1,
        position: to + i,
        shift: to as i32 - from as i32,
    };
    (0..n).map(copy).collect()
}

/// The floats of a block.
fn floats(blocks: &Blocks, dtype: KvDtype, block: u32) -> Vec<f32> {
    let mut bytes = vec![0; blocks.block_bytes()];
    blocks.read(block, &mut bytes).unwrap();
    let two = || bytes.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    match dtype {
        KvDtype::F32 => bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect(),
        KvDtype::F16 => two().map(|bits| half::f16::from_bits(bits).to_f32()).collect(),
        _ => two().map(|bits| half::bf16::from_bits(bits).to_f32()).collect(),
    }
}

/// Keys and values of one token in one layer of a table.
fn token(blocks: &Blocks, model: &Model, dtype: KvDtype, table: &[u32], layer: usize, position: u32) -> [Vec<f32>; 2] {
    let floats = floats(blocks, dtype, table[(position / SIZE) as usize]);
    let width = (model.config().n_kv_heads * model.config().head_dim) as usize;
    let part = SIZE as usize * width;
    [0, 1].map(|kind| floats[(2 * layer + kind) * part + (position % SIZE) as usize * width..][..width].to_vec())
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Keys and values of the first layer depend on nothing but token and position, so a copy is what would have been computed there, but for one
/// rounding.
#[test]
fn a_copied_key_of_the_first_layer_is_the_key_computed_at_the_new_position() {
    for name in MODELS {
        for (dtype, rounding) in [(KvDtype::F32, 2e-6), (KvDtype::F16, 2e-3), (KvDtype::Bf16, 1.6e-2)] {
            let model = Arc::new(load(name).with_kv_dtype(dtype));
            let mut rig = Rig::new(&model, SIZE, 64, 1);
            let document: Vec<u32> = (20..31).collect();
            let behind = |n: u32| [(40..40 + n).collect::<Vec<u32>>(), document.clone()].concat();
            for (from, to) in [(3, 9), (9, 2), (0, 30), (5, 5)] {
                let mut source = Seq::new(0, &behind(from), Sampling::default());
                let mut computed = Seq::new(1, &behind(to), Sampling::default());
                rig.generate(&mut source, 1, usize::MAX);
                rig.generate(&mut computed, 1, usize::MAX);
                let table: Vec<u32> = (0..12).map(|_| rig.free.pop().unwrap()).collect();
                let copies = copies(&source.table, &table, (from, to, 11));
                rig.worker.run(&step(100, &table, to + 11, copies)).unwrap();
                let blocks = rig.worker.blocks();
                for i in 0..11 {
                    let expected = token(&blocks, &model, dtype, &computed.table, 0, to + i);
                    let got = token(&blocks, &model, dtype, &table, 0, to + i);
                    let size = expected[0].iter().fold(1.0f32, |size, key| size.max(key.abs()));
                    let off = largest_difference(&expected[0], &got[0]);
                    assert!(off <= rounding * size, "{} {dtype:?}: {off} from {from} to {to}", model.name());
                    assert_eq!(expected[1], got[1], "values are copied as they are");
                    if from == to {
                        assert_eq!(expected[0], got[0], "so are keys that stay where they were");
                    }
                }
                rig.free.extend(table.into_iter().chain(source.table).chain(computed.table));
            }
        }
    }
}

/// With the tokens before the same too, every layer is the same, and so is the text.
#[test]
fn a_copy_to_the_same_position_behind_the_same_tokens_changes_nothing() {
    let model = Arc::new(Model::seeded(3));
    let prompt: Vec<u32> = (30..50).collect();
    let mut rig = Rig::new(&model, SIZE, 64, 1);
    let mut source = Seq::new(0, &prompt, Sampling::default());
    let expected = rig.generate(&mut source, 1, usize::MAX);
    let table: Vec<u32> = (0..5).map(|_| rig.free.pop().unwrap()).collect();
    let mut again = step(100, &table, 19, copies(&source.table, &table, (0, 0, 19)));
    again.tokens = vec![prompt[19]];
    let (_, logits) = rig.worker.run_with_logits(&again).unwrap();
    assert_eq!(logits, expected);
}

#[test]
fn impossible_copies_are_refused_before_any_is_made() {
    let good = CellCopy { from: 0, to: 1, n_tokens: 4, position: 4, shift: 4, ..CellCopy::default() };
    let wrong = [
        (CellCopy { to: 64, ..good }, CopyFault::Block { from: 0, to: 64, n_blocks: 64 }),
        (CellCopy { to: 0, ..good }, CopyFault::Block { from: 0, to: 0, n_blocks: 64 }),
        (CellCopy { to_cell: 1, ..good }, CopyFault::Cells { end: 5, block_size: 4 }),
        (CellCopy { shift: 5, ..good }, CopyFault::Position { position: 4, shift: 5 }),
    ];
    let mut rig = Rig::new(&Arc::new(Model::seeded(3)), SIZE, 64, 1);
    rig.generate(&mut Seq::new(0, &[1, 2, 3, 4], Sampling::default()), 1, usize::MAX);
    let before = floats(&rig.worker.blocks(), KvDtype::F32, 1);
    for (copy, fault) in wrong {
        let error = rig.worker.run(&step(5, &[1, 2], 8, vec![good, copy])).unwrap_err();
        assert_eq!(error, WorkerError::Copy { step: 5, index: 1, fault });
    }
    assert_eq!(floats(&rig.worker.blocks(), KvDtype::F32, 1), before);
    let model = Model::seeded_like_smollm2(WeightKind::Bf16, 1, 1).with_kv_dtype(KvDtype::Q8_0);
    let mut rig = Rig::new(&Arc::new(model), SIZE, 8, 1);
    let error = rig.worker.run(&step(5, &[1, 2], 5, vec![CellCopy { position: 4, shift: 4, ..good }])).unwrap_err();
    assert_eq!(error, WorkerError::Copy { step: 5, index: 0, fault: CopyFault::Quantised { dtype: "q8_0" } });
}
