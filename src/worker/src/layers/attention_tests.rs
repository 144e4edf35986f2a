//! Attention against its definition, and equal bits in every run.

use std::iter::empty;
use std::sync::Arc;

use trunkline_port::{NO_BLOCK, ScoreKind};

use super::*;
use crate::kernels::noise::Noise;
use crate::kv::{KvCache, KvDtype, KvMemory};
use crate::model::seeded::tiny_config;

/// A configuration, a filled cache and the table of one sequence of `n` positions whose blocks lie backwards.
fn filled(config: &ModelConfig, dtype: KvDtype, block_size: u32, n: usize, kv_rows: &[f32]) -> (KvCache, Vec<u32>) {
    let n_blocks = (n as u32).div_ceil(block_size);
    let mut kv = KvCache::new(Arc::new(
        KvMemory::new(config, (config.n_layers, config.n_kv_heads), dtype, block_size, n_blocks).unwrap(),
    ));
    let table: Vec<u32> = (0..n_blocks).rev().collect();
    let width = config.kv_width();
    let mut locked = kv.lock(table.iter().copied(), empty());
    for (position, row) in kv_rows.chunks(2 * width).enumerate().take(n) {
        let (block, offset) = (position / block_size as usize, position % block_size as usize);
        let (keys, values) = row.split_at(width);
        let dim = config.head_dim as usize;
        for (place, (key, value)) in places(config, PLACE).iter().zip(keys.chunks(dim).zip(values.chunks(dim))) {
            locked.write(place, table[block], offset, key, value);
        }
    }
    drop(locked);
    (kv, table)
}

fn run(config: &ModelConfig, kv: &mut KvCache, sequences: &[Sequence<'_>], qkv: &[f32], threads: usize) -> Vec<f32> {
    run_scored(config, kv, sequences, qkv, threads, PLACE).0
}

/// Places of a layer's heads, all like `place`, which is that of head 0; each further head has the weight of `place` times that of the head before.
fn places(config: &ModelConfig, place: Place) -> Vec<Place> {
    let weight = |head: u32| place.score_weight.powi(head as i32);
    (0..config.n_kv_heads).map(|head| Place { head: head as usize, score_weight: weight(head), ..place }).collect()
}

/// Layer 0 in the only group, all positions visible.
const PLACE: Place =
    Place { group: 0, index: 0, head: 0, window: None, score_weight: 1.0, score_list: Some(0), unused_behind: false };

fn run_scored(
    config: &ModelConfig,
    kv: &mut KvCache,
    sequences: &[Sequence<'_>],
    qkv: &[f32],
    threads: usize,
    place: Place,
) -> (Vec<f32>, Scores) {
    let locked = kv.lock(empty(), sequences.iter().flat_map(Sequence::blocks_read));
    let rows = sequences.iter().map(|seq| seq.n_rows).sum::<usize>();
    let mut out = vec![f32::NAN; rows * config.q_width()];
    let plan = Plan::new(sequences, config);
    let mut scores = Scores::default();
    scores.begin(sequences.iter().map(|seq| seq.scored.as_ref()), config.group(), 1);
    let places = places(config, place);
    attend(&plan, &locked.view(), &places, qkv, &mut out, &mut scores, &Threads::new(threads).unwrap());
    (out, scores)
}

/// Rows at positions from `position` on, nothing written or scored.
fn sequence(table: Table<'_>, position: usize, n_rows: usize) -> Sequence<'_> {
    Sequence { tables: vec![table], row: 0, n_rows, position: position as u32, write_from: 0, scored: None }
}

fn configs() -> Vec<ModelConfig> {
    let base = tiny_config();
    let heads = |n_heads, n_kv_heads, head_dim| ModelConfig { n_heads, n_kv_heads, head_dim, ..base.clone() };
    // Grouped, plain, one KV head for many queries, and heads that are not a multiple of sixteen lanes.
    vec![heads(4, 2, 16), heads(3, 3, 32), heads(32, 1, 16), heads(2, 1, 24), heads(4, 4, 8)]
}

#[test]
fn a_sequence_reads_up_to_its_last_row_and_writes_only_where_nobody_else_reads() {
    let seq = |position, n_rows, write_from| Sequence {
        write_from,
        ..sequence(Table::whole(&[9, 8, 7, 6], 4), position, n_rows)
    };
    let blocks = |seq: Sequence<'_>| (seq.blocks_read().collect::<Vec<_>>(), seq.blocks_written().collect::<Vec<_>>());
    assert_eq!(blocks(seq(0, 5, 0)), (vec![9, 8], vec![9, 8]));
    assert_eq!(blocks(seq(4, 4, 0)), (vec![9, 8], vec![8]));
    assert_eq!(blocks(seq(0, 9, 8)), (vec![9, 8, 7], vec![7]));
    assert_eq!(blocks(seq(0, 9, 6)), (vec![9, 8, 7], vec![8, 7]));
    // The last token of a full prefix hit runs for its logits alone.
    assert_eq!(blocks(seq(6, 1, 7)), (vec![9, 8], vec![]));
    assert_eq!(blocks(seq(7, 1, 8)), (vec![9, 8], vec![]));
    assert_eq!(blocks(seq(8, 0, 8)), (vec![9, 8], vec![]));
}

/// Rows of random queries, keys and values, and the keys and values alone.
fn random_rows(config: &ModelConfig, n: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut noise = Noise::new(seed);
    let width = config.q_width() + 2 * config.kv_width();
    let qkv: Vec<f32> = (0..n * width).map(|_| noise.uniform(2.0)).collect();
    let kv_rows = qkv.chunks(width).flat_map(|row| row[config.q_width()..].to_vec()).collect();
    (qkv, kv_rows)
}

/// Attention by its definition, in double precision: output and probabilities of a query over the positions for which `visible` is `true`.
fn exact(
    config: &ModelConfig,
    qkv: &[f32],
    position: usize,
    head: usize,
    visible: impl Fn(usize) -> bool,
) -> (Vec<f64>, Vec<f64>) {
    let (width, dim) = (config.q_width() + 2 * config.kv_width(), config.head_dim as usize);
    let kv_at = |t: usize, value: usize| {
        let at = t * width + config.q_width() + value * config.kv_width() + head / config.group() * dim;
        &qkv[at..at + dim]
    };
    let q = &qkv[position * width + head * dim..][..dim];
    let weight = |t: usize| {
        let dot: f64 = q.iter().zip(kv_at(t, 0)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        if visible(t) { (dot / (dim as f64).sqrt()).exp() } else { 0.0 }
    };
    let mut weights: Vec<f64> = (0..=position).map(weight).collect();
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= total);
    let out = (0..dim).map(|d| weights.iter().enumerate().map(|(t, w)| w * f64::from(kv_at(t, 1)[d])).sum());
    (out.collect(), weights)
}

#[test]
fn attention_agrees_with_the_definition_in_double_precision() {
    for (config, window) in
        configs().into_iter().flat_map(|config| [None, Some(1), Some(40), Some(70)].map(|w| (config.clone(), w)))
    {
        let n = 150;
        let (qkv, kv_rows) = random_rows(&config, n, 11);
        let (mut kv, table) = filled(&config, KvDtype::F32, 16, n, &kv_rows);
        let seq = sequence(Table::whole(&table, 16), 0, n);
        let out = run_scored(&config, &mut kv, &[seq], &qkv, 1, Place { window, ..PLACE }).0;
        for position in [0, 1, 63, 64, 65, 149] {
            for head in 0..config.n_heads as usize {
                let visible = |t: usize| window.is_none_or(|window| t + window as usize > position);
                let (exact, _) = exact(&config, &qkv, position, head, visible);
                let got = &out[position * config.q_width() + head * exact.len()..][..exact.len()];
                for (got, exact) in got.iter().zip(exact) {
                    assert!((f64::from(*got) - exact).abs() < 1e-5, "{got} is not {exact}, window {window:?}");
                }
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Cuts rows from `from` to `to` into sequences of `chunk` rows that share a table.
fn chunks<'a>(table: &Table<'a>, rows: Range<usize>, chunk: usize) -> Vec<Sequence<'a>> {
    let cut = |first: usize| Sequence {
        row: first - rows.start,
        ..sequence(table.clone(), first, chunk.min(rows.end - first))
    };
    rows.clone().step_by(chunk).map(cut).collect()
}

#[test]
fn bits_in_a_window_depend_neither_on_chunks_and_blocks_nor_on_when_blocks_were_dropped() {
    for config in configs() {
        let (n, window) = (300, 70);
        let place = Place { window: Some(window as u32), ..PLACE };
        let (qkv, kv_rows) = random_rows(&config, n, 13);
        let (mut kv, table) = filled(&config, KvDtype::F32, 16, n, &kv_rows);
        let whole = sequence(Table::whole(&table, 16), 0, n);
        let expected = bits(&run_scored(&config, &mut kv, &[whole], &qkv, 1, place).0);
        let from = 200;
        let rows = &qkv[from * (config.q_width() + 2 * config.kv_width())..];
        for (block_size, chunk) in [(1, 7), (3, 100), (4, 33), (8, 7), (16, 1), (16, 33), (48, 5), (128, 64)] {
            let (mut kv, mut table) = filled(&config, KvDtype::F32, block_size, n, &kv_rows);
            // All blocks behind the window of the first row are gone, then half of them.
            for dropped in [(from + 1 - window) / block_size as usize, (from + 1 - window) / block_size as usize / 2] {
                let held = table.clone();
                table[..dropped].fill(NO_BLOCK);
                let sequences = chunks(&Table::whole(&table, block_size as usize), from..n, chunk);
                let out = run_scored(&config, &mut kv, &sequences, rows, 2, place).0;
                assert_eq!(bits(&out), expected[from * config.q_width()..], "block size {block_size}, chunk {chunk}");
                table = held;
            }
        }
    }
}

/// Positions 96 to 191 and 288 to 335 of a table are gone.
fn with_holes(table: &[u32], block_size: usize) -> Vec<u32> {
    let hidden = |position: usize| (96..192).contains(&position) || (288..336).contains(&position);
    let entry = |(at, block): (usize, &u32)| if hidden(at * block_size) { NO_BLOCK } else { *block };
    table.iter().enumerate().map(entry).collect()
}

#[test]
fn positions_in_holes_are_invisible_and_only_visible_ones_decide_on_the_bits() {
    for config in configs() {
        let (from, n) = (350, 400);
        let (qkv, kv_rows) = random_rows(&config, n, 14);
        let rows = &qkv[from * (config.q_width() + 2 * config.kv_width())..];
        let mut expected: Option<Vec<u32>> = None;
        for (block_size, chunk, threads) in
            [(16, 50, 1), (1, 7, 1), (3, 50, 2), (4, 1, 1), (8, 33, 2), (16, 1, 2), (48, 5, 1), (48, 33, 2)]
        {
            let (mut kv, table) = filled(&config, KvDtype::F32, block_size, n, &kv_rows);
            let table = with_holes(&table, block_size as usize);
            let sequences = chunks(&Table::without_holes(&table, block_size as usize), from..n, chunk);
            let out = run(&config, &mut kv, &sequences, rows, threads);
            for (row, head) in [(0, 0), (49, config.n_heads as usize - 1)] {
                let visible = |t: usize| !(96..192).contains(&t) && !(288..336).contains(&t);
                let (exact, _) = exact(&config, &qkv, from + row, head, visible);
                let got = &out[row * config.q_width() + head * exact.len()..][..exact.len()];
                assert!(got.iter().zip(exact).all(|(got, exact)| (f64::from(*got) - exact).abs() < 1e-5));
            }
            let out = bits(&out);
            assert_eq!(&out, expected.get_or_insert_with(|| out.clone()), "block size {block_size}, chunk {chunk}");
        }
    }
}

#[test]
fn scores_agree_with_the_definition_in_double_precision() {
    for config in configs() {
        let (from, n) = (350, 400);
        let (qkv, kv_rows) = random_rows(&config, n, 15);
        let rows = &qkv[from * (config.q_width() + 2 * config.kv_width())..];
        for (block_size, kind, window, weight) in [
            (16, ScoreKind::Mean, None, 1.0),
            (16, ScoreKind::Mean, None, 0.25),
            (16, ScoreKind::Max, None, 1.0),
            (16, ScoreKind::Max, None, 0.25),
            (3, ScoreKind::Mean, None, 1.0),
            (3, ScoreKind::Max, None, 1.0),
            (48, ScoreKind::Mean, None, 4.0),
            (48, ScoreKind::Max, None, 1.0),
            (16, ScoreKind::Mean, Some(90), 1.0),
            (16, ScoreKind::Max, Some(90), 1.0),
        ] {
            let (mut kv, table) = filled(&config, KvDtype::F32, block_size as u32, n, &kv_rows);
            let holes = with_holes(&table, block_size);
            let table = if window.is_some() {
                Table::whole(&table, block_size)
            } else {
                Table::without_holes(&holes, block_size)
            };
            // The last two rows are drafts; of the others, rows 40 to 47 count.
            let entries = (n - 2).div_ceil(block_size);
            let scored = Some(ScoredRows { rows: 40..48, kind, entries, by_group: false });
            let seq = Sequence { scored, ..sequence(table, from, n - from) };
            let place = Place { window, score_weight: weight, ..PLACE };
            let weight_of = |head: u32| f64::from(weight).powi((head / config.group() as u32) as i32);
            let weights: f64 = (0..config.n_heads).map(weight_of).sum();
            let (out, scores) = run_scored(&config, &mut kv, std::slice::from_ref(&seq), rows, 1, place);
            let got: Vec<f32> = scores.of(0).collect();
            let mut expected = vec![0.0f64; entries];
            for (row, head) in (from + 40..from + 48).flat_map(|row| (0..config.n_heads).map(move |head| (row, head))) {
                let visible = |t: usize| match window {
                    Some(window) => t + window as usize > row,
                    None => holes[t / block_size] != NO_BLOCK,
                };
                let (_, probabilities) = exact(&config, &qkv, row, head as usize, visible);
                for (t, p) in probabilities.into_iter().enumerate() {
                    let score = &mut expected[t / block_size];
                    match kind {
                        ScoreKind::Mean => *score += p * weight_of(head) / (8.0 * weights),
                        ScoreKind::Max if t + 32 <= row => *score = score.max(p),
                        ScoreKind::Max => {}
                    }
                }
            }
            for (entry, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let close = (f64::from(*got) - expected).abs() < 1e-6;
                assert!(close, "entry {entry} is {got}, not {expected}: {kind:?}, blocks of {block_size}");
                assert!(*expected > 0.0 || *got == 0.0);
            }
            if kind == ScoreKind::Mean {
                assert!((got.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
            // With other sequences, on more threads; and counting does not change what is computed.
            let plain = Sequence { scored: None, ..seq.clone() };
            let both = [plain.clone(), Sequence { row: n - from, ..seq }];
            let twice = [rows, rows].concat();
            let (outs, scores) = run_scored(&config, &mut kv, &both, &twice, 2, place);
            assert_eq!(bits(&scores.of(1).collect::<Vec<_>>()), bits(&got));
            assert_eq!(scores.of(0).count(), 0);
            assert_eq!(bits(&outs), bits(&[out.clone(), out].concat()));
        }
    }
}

#[test]
fn bits_do_not_depend_on_chunks_neighbours_block_size_or_threads() {
    for (config, dtype) in configs()
        .into_iter()
        .flat_map(|config| KvDtype::ALL.map(|dtype| (config.clone(), dtype)))
        .filter(|(config, dtype)| {
            // Units of quantised types are parts of one head.
            config.head_dim.is_multiple_of(32) || !matches!(dtype, KvDtype::Q8_0 | KvDtype::Q4_0)
        })
    {
        let n = 150;
        let mut noise = Noise::new(12);
        let (q, width) = (config.q_width(), config.q_width() + 2 * config.kv_width());
        let qkv: Vec<f32> = (0..n * width).map(|_| noise.uniform(2.0)).collect();
        let kv_rows: Vec<f32> = qkv.chunks(width).flat_map(|row| row[q..].to_vec()).collect();
        let (mut kv, table) = filled(&config, dtype, 16, n, &kv_rows);
        let whole = sequence(Table::whole(&table, 16), 0, n);
        let expected: Vec<u32> = run(&config, &mut kv, &[whole], &qkv, 1).iter().map(|value| value.to_bits()).collect();
        for block_size in [1, 3, 4, 8, 16, 32, 100, 256] {
            let (mut kv, table) = filled(&config, dtype, block_size, n, &kv_rows);
            for chunk in [1, 5, 64, 149] {
                // The chunks as so many sequences of one batch.
                let sequences: Vec<Sequence<'_>> = (0..n)
                    .step_by(chunk)
                    .map(|row| Sequence {
                        row,
                        ..sequence(Table::whole(&table, block_size as usize), row, chunk.min(n - row))
                    })
                    .collect();
                let out = run(&config, &mut kv, &sequences, &qkv, 3);
                let out: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
                assert_eq!(out, expected, "block size {block_size}, chunk {chunk}");
            }
        }
    }
}
