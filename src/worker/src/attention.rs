//! Causal grouped-query attention over the paged cache.
//!
//! A query reads all positions up to the query's own in spans of [`SPAN`], aligned to position 0, and keeps a running maximum and a
//! running sum of the softmax (Milakov and Gimelshein 2018), so memory does not grow with the context. The terms of each sum and
//! the order of the terms depend on the query's position alone: not on the chunks of the prompt, not on the queries computed beside
//! the query, not on the block size.
//!
//! Queries of neighbouring positions and of the heads sharing a KV head form a tile; a tile reads keys and values once.

use std::ops::Range;

use crate::config::ModelConfig;
use crate::kernel::{LANES, ROWS, accumulate, exp, max_lanes, sum_lanes, vectorised};
use crate::kv::BlockView;
use crate::threads::Threads;

/// Positions between two updates of the running maximum. A multiple of [`LANES`].
const SPAN: usize = 64;

/// Queries in a tile, if no KV head has a wider group of heads: the scores and sums of a tile stay in the first-level cache.
const TILE_QUERIES: usize = 24;

/// Rows of a sequence in a batch, and the block table of the sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence<'a> {
    /// Block table of the sequence.
    pub(crate) table: &'a [u32],
    /// First row of the sequence in the batch.
    pub(crate) row: usize,
    /// Number of rows in the batch.
    pub(crate) n_rows: usize,
    /// Position of the first row.
    pub(crate) position: u32,
    /// Rows at positions below this value find keys and values in the cache.
    pub(crate) write_from: u32,
}

impl Sequence<'_> {
    /// Returns the blocks of the table read by the rows' attention.
    pub(crate) fn blocks_read(&self, block_size: usize) -> &[u32] {
        &self.table[..(self.position as usize + self.n_rows).div_ceil(block_size)]
    }

    /// Returns the blocks of the table written with the rows' keys and values.
    pub(crate) fn blocks_written(&self, block_size: usize) -> &[u32] {
        let (first, end) = (self.position.max(self.write_from) as usize, self.position as usize + self.n_rows);
        if first < end { &self.blocks_read(block_size)[first / block_size..] } else { &[] }
    }
}

/// A piece of work: some rows of one sequence, for some KV heads.
struct Tile {
    sequence: usize,
    /// Offset of the first row within the sequence.
    from: usize,
    rows: usize,
    heads: Range<usize>,
}

/// The pieces of work of a batch. Equal in every layer.
pub(crate) struct Plan<'a> {
    sequences: &'a [Sequence<'a>],
    config: &'a ModelConfig,
    tiles: Vec<Tile>,
    /// About how many multiply-adds a layer makes.
    cost: usize,
}

impl<'a> Plan<'a> {
    /// Cuts a batch into tiles.
    pub(crate) fn new(sequences: &'a [Sequence<'a>], config: &'a ModelConfig) -> Self {
        let n_kv_heads = config.n_kv_heads as usize;
        let tile_rows = (TILE_QUERIES / config.group()).max(1);
        let mut plan = Self { sequences, config, tiles: Vec::new(), cost: 0 };
        for (sequence, seq) in sequences.iter().enumerate() {
            for from in (0..seq.n_rows).step_by(tile_rows) {
                let rows = tile_rows.min(seq.n_rows - from);
                if rows == 1 {
                    // The outputs of one KV head lie together only within a row.
                    let heads = (0..n_kv_heads).map(|head| head..head + 1);
                    plan.tiles.extend(heads.map(|heads| Tile { sequence, from, rows, heads }));
                } else {
                    plan.tiles.push(Tile { sequence, from, rows, heads: 0..n_kv_heads });
                }
                plan.cost += 2 * rows * config.q_width() * (seq.position as usize + from + rows);
            }
        }
        plan
    }
}

/// Attention of one layer for every row of the batch.
///
/// `qkv` has rows of all query heads, then all key heads, then all value heads, already rotated; keys and values are
/// read from `kv` only. `out` has rows of all query heads.
pub(crate) fn attend(
    plan: &Plan<'_>,
    kv: &BlockView<'_>,
    layer: usize,
    qkv: &[f32],
    out: &mut [f32],
    threads: &Threads,
) {
    let config = plan.config;
    let (dim, group) = (config.head_dim as usize, config.group());
    let width = config.q_width() + 2 * config.kv_width();
    let mut rest = out;
    let mut tasks: Vec<(&Tile, &mut [f32])> = Vec::with_capacity(plan.tiles.len());
    for tile in &plan.tiles {
        let (mine, others) = rest.split_at_mut(tile.rows * tile.heads.len() * group * dim);
        tasks.push((tile, mine));
        rest = others;
    }
    let per_task = tasks.len().div_ceil(16 * threads.count()).max(1);
    threads.chunks(&mut tasks, per_task, plan.cost, |_, tasks| {
        let mut state = State::default();
        for (tile, out) in tasks {
            let seq = &plan.sequences[tile.sequence];
            for (i, head) in tile.heads.clone().enumerate() {
                let queries = Queries {
                    seq,
                    kv,
                    layer,
                    head,
                    qkv: &qkv[(seq.row + tile.from) * width..(seq.row + tile.from + tile.rows) * width],
                    width,
                    dim,
                    group,
                    n: tile.rows * group,
                    position: seq.position as usize + tile.from,
                };
                vectorised(
                    #[inline(always)]
                    || queries.run(&mut state),
                );
                // Row r of the tile has the outputs of all its heads side by side.
                let out_width = tile.heads.len() * group * dim;
                for (row, sums) in out.chunks_exact_mut(out_width).zip(state.sums.chunks_exact(group * dim)) {
                    row[i * group * dim..(i + 1) * group * dim].copy_from_slice(sums);
                }
            }
        }
    });
}

/// Running state of a tile from span to span, with one entry for each query.
#[derive(Default)]
struct State {
    /// `[query][SPAN]`: scores, then weights.
    weights: Vec<f32>,
    /// `[query][dim]`: sums of values, weighted.
    sums: Vec<f32>,
    /// The largest score so far.
    maxima: Vec<f32>,
    /// The sum of weights so far.
    totals: Vec<f32>,
    /// Keys or values of a block as F32, where the cache has another type.
    cells: Vec<f32>,
}

/// The queries of a tile for one KV head. Query `i` is query head `i % group` of the group, at row `i / group`.
struct Queries<'a> {
    seq: &'a Sequence<'a>,
    kv: &'a BlockView<'a>,
    layer: usize,
    head: usize,
    qkv: &'a [f32],
    width: usize,
    dim: usize,
    group: usize,
    n: usize,
    /// Position of the first row.
    position: usize,
}

impl Queries<'_> {
    #[inline(always)]
    fn run(&self, state: &mut State) {
        state.weights.resize(self.n * SPAN, 0.0);
        state.sums.clear();
        state.sums.resize(self.n * self.dim, 0.0);
        state.maxima.clear();
        state.maxima.resize(self.n, f32::NEG_INFINITY);
        state.totals.clear();
        state.totals.resize(self.n, 0.0);
        let end = self.position + self.n / self.group;
        for start in (0..end).step_by(SPAN) {
            let len = SPAN.min(end - start);
            self.score(start, len, &mut state.weights, &mut state.cells);
            self.weigh(start, state);
            self.add_values(start, len, state);
        }
        for (sums, total) in state.sums.chunks_exact_mut(self.dim).zip(&state.totals) {
            for sum in sums {
                *sum /= total;
            }
        }
    }

    #[inline(always)]
    fn query(&self, i: usize) -> &[f32] {
        let at = i / self.group * self.width + (self.head * self.group + i % self.group) * self.dim;
        &self.qkv[at..at + self.dim]
    }

    /// Returns the number of positions seen by query `i` in the span from `start`.
    #[inline(always)]
    fn visible(&self, i: usize, start: usize) -> usize {
        (self.position + i / self.group + 1).saturating_sub(start).min(SPAN)
    }

    /// The runs of `start .. start + len` within one block: block, offset in the block, offset in the span, length.
    #[inline(always)]
    fn runs(&self, start: usize, len: usize) -> impl Iterator<Item = (u32, usize, usize, usize)> {
        let size = self.kv.block_size();
        let mut at = 0;
        std::iter::from_fn(move || {
            (at < len).then(|| {
                let (block, offset) = ((start + at) / size, (start + at) % size);
                let run = (self.seq.table[block], offset, at, (size - offset).min(len - at));
                at += run.3;
                run
            })
        })
    }

    /// Dot products of every query with the keys of a span. Products beyond the positions seen by a query are not used.
    #[inline(always)]
    fn score(&self, start: usize, len: usize, scores: &mut [f32], cells: &mut Vec<f32>) {
        let size = self.kv.block_size();
        for (block, offset, at, run) in self.runs(start, len) {
            let keys = self.kv.keys(self.layer, block, self.head, cells);
            if size.is_multiple_of(LANES) {
                // Runs begin at multiples of sixteen, so sixteen lanes never leave the block.
                for lane in (0..run).step_by(LANES) {
                    let keys = &keys[offset + lane..];
                    let mut i = 0;
                    while i + ROWS <= self.n {
                        self.score_tile::<ROWS>(i, keys, &mut scores[i * SPAN + at + lane..]);
                        i += ROWS;
                    }
                    while i + 2 <= self.n {
                        self.score_tile::<2>(i, keys, &mut scores[i * SPAN + at + lane..]);
                        i += 2;
                    }
                    if i < self.n {
                        self.score_tile::<1>(i, keys, &mut scores[i * SPAN + at + lane..]);
                    }
                }
            } else {
                for i in 0..self.n {
                    let scores = &mut scores[i * SPAN + at..][..run];
                    scores.fill(0.0);
                    for (q, keys) in self.query(i).iter().zip(keys.chunks_exact(size)) {
                        for (score, key) in scores.iter_mut().zip(&keys[offset..]) {
                            *score += q * key;
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn score_tile<const R: usize>(&self, i: usize, keys: &[f32], scores: &mut [f32]) {
        let mut acc = [[0.0; LANES]; R];
        accumulate::<R>(std::array::from_fn(|r| self.query(i + r)), keys, self.kv.block_size(), &mut acc);
        for (scores, acc) in scores.chunks_mut(SPAN).zip(&acc) {
            scores[..LANES].copy_from_slice(acc);
        }
    }

    /// Turns the scores of a span into weights, and brings the sums so far to the new maximum.
    #[inline(always)]
    fn weigh(&self, start: usize, state: &mut State) {
        let scale = 1.0 / (self.dim as f32).sqrt();
        for i in 0..self.n {
            let visible = self.visible(i, start);
            if visible == 0 {
                continue;
            }
            // Always the whole span, so that the loops have a constant length.
            let weights: &mut [f32; SPAN] = (&mut state.weights[i * SPAN..][..SPAN]).try_into().expect("one span");
            weights.iter_mut().for_each(|score| *score *= scale);
            weights[visible..].fill(f32::NEG_INFINITY);
            let span_maximum = max_lanes(weights);
            let maximum = if span_maximum > state.maxima[i] { span_maximum } else { state.maxima[i] };
            weights.iter_mut().for_each(|weight| *weight = exp(*weight - maximum));
            weights[visible..].fill(0.0);
            // In the first span nothing has been summed yet, and its factor does not matter.
            let factor = exp(state.maxima[i] - maximum);
            state.maxima[i] = maximum;
            state.totals[i] = state.totals[i] * factor + sum_lanes(weights, |weight| weight);
            for sum in &mut state.sums[i * self.dim..][..self.dim] {
                *sum *= factor;
            }
        }
    }

    /// Adds the weighted values of a span. Each query adds exactly the positions seen by the query, one after another.
    #[inline(always)]
    fn add_values(&self, start: usize, len: usize, state: &mut State) {
        let State { weights, sums, cells, .. } = state;
        for (block, offset, at, run) in self.runs(start, len) {
            let values = self.kv.values(self.layer, block, self.head, offset..offset + run, cells);
            // Positions of the run seen by query `i`.
            let seen = |i: usize| self.visible(i, start).saturating_sub(at).min(run);
            let mut i = 0;
            while i + ROWS <= self.n {
                // Positions grow with i, so what the first query sees all of them see.
                let common = seen(i);
                self.add_tile::<ROWS>(i, values, at, 0..common, weights, sums);
                for i in i..i + ROWS {
                    self.add_tile::<1>(i, values, at, common..seen(i), weights, sums);
                }
                i += ROWS;
            }
            for i in i..self.n {
                self.add_tile::<1>(i, values, at, 0..seen(i), weights, sums);
            }
        }
    }

    /// Adds the values of the positions `range` of a run to the sums of `R` queries; the run begins `at` positions into the span.
    #[inline(always)]
    fn add_tile<const R: usize>(
        &self,
        i: usize,
        values: &[f32],
        at: usize,
        range: Range<usize>,
        weights: &[f32],
        sums: &mut [f32],
    ) {
        let dim = self.dim;
        if range.is_empty() {
            return;
        }
        let values = &values[range.start * dim..];
        let weights: [&[f32]; R] =
            std::array::from_fn(|r| &weights[(i + r) * SPAN + at + range.start..][..range.len()]);
        let sums = &mut sums[i * dim..(i + R) * dim];
        let full = dim / LANES * LANES;
        for d in (0..full).step_by(LANES) {
            let mut acc = [[0.0; LANES]; R];
            for (acc, sums) in acc.iter_mut().zip(sums.chunks_exact(dim)) {
                acc.copy_from_slice(&sums[d..d + LANES]);
            }
            accumulate::<R>(weights, &values[d..], dim, &mut acc);
            for (acc, sums) in acc.iter().zip(sums.chunks_exact_mut(dim)) {
                sums[d..d + LANES].copy_from_slice(acc);
            }
        }
        for (sums, weights) in sums.chunks_exact_mut(dim).zip(weights) {
            for (weight, values) in weights.iter().zip(values.chunks_exact(dim)) {
                for (sum, value) in sums[full..].iter_mut().zip(&values[full..]) {
                    *sum += weight * value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter::empty;
    use std::sync::Arc;

    use super::*;
    use crate::kv::{KvCache, KvDtype, KvMemory};
    use crate::noise::Noise;
    use crate::seeded::tiny_config;

    /// A configuration, a filled cache and the table of one sequence of `n` positions whose blocks lie backwards.
    fn filled(config: &ModelConfig, dtype: KvDtype, block_size: u32, n: usize, kv_rows: &[f32]) -> (KvCache, Vec<u32>) {
        let n_blocks = (n as u32).div_ceil(block_size);
        let mut kv = KvCache::new(Arc::new(KvMemory::new(config, dtype, block_size, n_blocks).unwrap()));
        let table: Vec<u32> = (0..n_blocks).rev().collect();
        let width = config.kv_width();
        let mut locked = kv.lock(table.iter().copied(), empty());
        for (position, row) in kv_rows.chunks(2 * width).enumerate().take(n) {
            let (block, offset) = (position / block_size as usize, position % block_size as usize);
            locked.write(0, table[block], offset, &row[..width], &row[width..]);
        }
        drop(locked);
        (kv, table)
    }

    fn run(
        config: &ModelConfig,
        kv: &mut KvCache,
        sequences: &[Sequence<'_>],
        qkv: &[f32],
        threads: usize,
    ) -> Vec<f32> {
        let size = kv.block_size();
        let locked = kv.lock(empty(), sequences.iter().flat_map(|seq| seq.blocks_read(size)).copied());
        let rows = sequences.iter().map(|seq| seq.n_rows).sum::<usize>();
        let mut out = vec![f32::NAN; rows * config.q_width()];
        let plan = Plan::new(sequences, config);
        attend(&plan, &locked.view(), 0, qkv, &mut out, &Threads::new(threads).unwrap());
        out
    }

    fn configs() -> Vec<ModelConfig> {
        let base = tiny_config();
        let heads = |n_heads, n_kv_heads, head_dim| ModelConfig { n_heads, n_kv_heads, head_dim, ..base.clone() };
        // Grouped, plain, one KV head for many queries, and heads that are no multiple of sixteen lanes.
        vec![heads(4, 2, 16), heads(3, 3, 32), heads(32, 1, 16), heads(2, 1, 24), heads(4, 4, 8)]
    }

    #[test]
    fn a_sequence_reads_up_to_its_last_row_and_writes_only_where_nobody_else_reads() {
        let seq =
            |position, n_rows, write_from| Sequence { table: &[9, 8, 7, 6], row: 0, n_rows, position, write_from };
        let blocks = |seq: Sequence<'_>| (seq.blocks_read(4).to_vec(), seq.blocks_written(4).to_vec());
        assert_eq!(blocks(seq(0, 5, 0)), (vec![9, 8], vec![9, 8]));
        assert_eq!(blocks(seq(4, 4, 0)), (vec![9, 8], vec![8]));
        assert_eq!(blocks(seq(0, 9, 8)), (vec![9, 8, 7], vec![7]));
        assert_eq!(blocks(seq(0, 9, 6)), (vec![9, 8, 7], vec![8, 7]));
        // The last token of a full prefix hit runs for its logits alone.
        assert_eq!(blocks(seq(6, 1, 7)), (vec![9, 8], vec![]));
        assert_eq!(blocks(seq(7, 1, 8)), (vec![9, 8], vec![]));
        assert_eq!(blocks(seq(8, 0, 8)), (vec![9, 8], vec![]));
    }

    #[test]
    fn attention_agrees_with_the_definition_in_double_precision() {
        for config in configs() {
            let (n, dim) = (150, config.head_dim as usize);
            let mut noise = Noise::new(11);
            let width = config.q_width() + 2 * config.kv_width();
            let qkv: Vec<f32> = (0..n * width).map(|_| noise.uniform(2.0)).collect();
            let kv_rows: Vec<f32> = qkv.chunks(width).flat_map(|row| row[config.q_width()..].to_vec()).collect();
            let (mut kv, table) = filled(&config, KvDtype::F32, 16, n, &kv_rows);
            let seq = Sequence { table: &table, row: 0, n_rows: n, position: 0, write_from: 0 };
            let out = run(&config, &mut kv, &[seq], &qkv, 1);
            for position in [0, 1, 63, 64, 65, 149] {
                for head in 0..config.n_heads as usize {
                    let kv_at = |t: usize, value: usize| {
                        let at = t * width + config.q_width() + value * config.kv_width() + head / config.group() * dim;
                        &qkv[at..at + dim]
                    };
                    let q = &qkv[position * width + head * dim..][..dim];
                    let weights: Vec<f64> = (0..=position)
                        .map(|t| {
                            let dot: f64 = q.iter().zip(kv_at(t, 0)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                            (dot / (dim as f64).sqrt()).exp()
                        })
                        .collect();
                    let total: f64 = weights.iter().sum();
                    for d in 0..dim {
                        let exact: f64 =
                            weights.iter().enumerate().map(|(t, w)| w * f64::from(kv_at(t, 1)[d])).sum::<f64>() / total;
                        let got = out[position * config.q_width() + head * dim + d];
                        assert!((f64::from(got) - exact).abs() < 1e-5, "{got} is not {exact}");
                    }
                }
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_chunks_neighbours_block_size_or_threads() {
        for (config, dtype) in
            configs().into_iter().flat_map(|config| KvDtype::ALL.map(|dtype| (config.clone(), dtype)))
        {
            let n = 150;
            let mut noise = Noise::new(12);
            let (q, width) = (config.q_width(), config.q_width() + 2 * config.kv_width());
            let qkv: Vec<f32> = (0..n * width).map(|_| noise.uniform(2.0)).collect();
            let kv_rows: Vec<f32> = qkv.chunks(width).flat_map(|row| row[q..].to_vec()).collect();
            let (mut kv, table) = filled(&config, dtype, 16, n, &kv_rows);
            let whole = Sequence { table: &table, row: 0, n_rows: n, position: 0, write_from: 0 };
            let expected: Vec<u32> =
                run(&config, &mut kv, &[whole], &qkv, 1).iter().map(|value| value.to_bits()).collect();
            for block_size in [1, 3, 16, 32, 100, 256] {
                let (mut kv, table) = filled(&config, dtype, block_size, n, &kv_rows);
                for chunk in [1, 5, 64, 149] {
                    // The chunks as so many sequences of one batch.
                    let sequences: Vec<Sequence<'_>> = (0..n)
                        .step_by(chunk)
                        .map(|row| Sequence {
                            table: &table,
                            row,
                            n_rows: chunk.min(n - row),
                            position: row as u32,
                            write_from: 0,
                        })
                        .collect();
                    let out = run(&config, &mut kv, &sequences, &qkv, 3);
                    let out: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
                    assert_eq!(out, expected, "block size {block_size}, chunk {chunk}");
                }
            }
        }
    }
}
