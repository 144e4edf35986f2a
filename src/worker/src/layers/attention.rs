//! Causal grouped-query attention over the paged cache.
//!
//! A query reads all visible positions up to the query's own, or the last ones of a window, in spans of [`SPAN`], aligned to index 0 (see
//! [`crate::kv::table`]), and keeps a running maximum and a running sum of the softmax (Milakov and Gimelshein 2018), so memory does not grow
//! with the context. The terms of each sum and the order of the terms depend on the query's position and on the visible positions alone:
//! not on the chunks of the prompt, not on the queries computed alongside the query, not on the block size.
//!
//! Queries of neighbouring positions and of the heads sharing a KV head form a tile; a tile reads keys and values once.

use std::ops::Range;

use crate::config::ModelConfig;
use crate::config::groups::Place;
use crate::kernels::kernel::{LANES, ROWS, accumulate, exp, max_lanes, sum_lanes, vectorised};
use crate::kv::BlockView;
use crate::kv::table::Table;
use crate::layers::scores::{Collector, Pieces, SPAN, ScoredRows, Scores};
use crate::layers::threads::Threads;

/// Queries in a tile, if no KV head has a wider group of heads: the scores and sums of a tile stay in the first-level cache.
const TILE_QUERIES: usize = 24;

/// Rows of a sequence in a batch, and the block tables of the sequence.
#[derive(Clone, Debug)]
pub(crate) struct Sequence<'a> {
    /// Block table of the sequence in each layer group.
    pub(crate) tables: Vec<Table<'a>>,
    /// First row of the sequence in the batch.
    pub(crate) row: usize,
    /// Number of rows in the batch.
    pub(crate) n_rows: usize,
    /// Position of the first row.
    pub(crate) position: u32,
    /// Rows at positions below this value find keys and values in the cache.
    pub(crate) write_from: u32,
    /// Rows whose attention counts for scores.
    pub(crate) scored: Option<ScoredRows>,
}

impl Sequence<'_> {
    /// Returns the position after the last row's.
    fn end(&self) -> usize {
        self.position as usize + self.n_rows
    }

    /// Returns the blocks of all tables read by the rows' attention.
    pub(crate) fn blocks_read(&self) -> impl Iterator<Item = u32> {
        self.tables.iter().flat_map(|table| table.read(self.end()))
    }

    /// Returns the blocks of all tables written with the rows' keys and values.
    pub(crate) fn blocks_written(&self) -> impl Iterator<Item = u32> {
        let first = self.position.max(self.write_from) as usize;
        self.tables.iter().flat_map(move |table| table.written(first, self.end()))
    }
}

/// A piece of work: some rows of one sequence, for some KV heads.
struct Tile {
    sequence: usize,
    /// Offset of the first row within the sequence.
    from: usize,
    rows: usize,
    heads: Range<usize>,
    /// Place of the tile's scores among all tiles' scores; empty if no row is scored.
    scores: Range<usize>,
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
        let mut scores = 0;
        for (sequence, seq) in sequences.iter().enumerate() {
            for from in (0..seq.n_rows).step_by(tile_rows) {
                let rows = tile_rows.min(seq.n_rows - from);
                let scored =
                    seq.scored.as_ref().filter(|scored| from < scored.rows.end && scored.rows.start < from + rows);
                // The outputs of one KV head lie together only within a row.
                let step = if rows == 1 { 1 } else { n_kv_heads };
                let entries = scored.map_or(0, |scored| scored.entries * if scored.by_group { step } else { 1 });
                for head in (0..n_kv_heads).step_by(step) {
                    let (heads, end) = (head..head + step, scores + entries);
                    plan.tiles.push(Tile { sequence, from, rows, heads, scores: scores..end });
                    scores = end;
                }
                plan.cost += 2 * rows * config.q_width() * (seq.position as usize + from + rows);
            }
        }
        plan
    }
}

/// Work of one thread: a tile with the memory for its outputs and scores.
type Task<'a> = (&'a Tile, &'a mut [f32], &'a mut [f32]);

/// Attention of one layer for every row of the batch.
///
/// `qkv` has rows of all query heads, then all key heads, then all value heads, already rotated; keys and values are
/// read from `kv` only. `out` has rows of all query heads. Scored rows add to `scores`, for the KV heads that count for scores.
pub(crate) fn attend(
    plan: &Plan<'_>,
    kv: &BlockView<'_>,
    places: &[Place],
    qkv: &[f32],
    out: &mut [f32],
    scores: &mut Scores,
    threads: &Threads,
) {
    let config = plan.config;
    let (dim, group) = (config.head_dim as usize, config.group());
    let scored = scores.wanted() && places.iter().any(|place| place.score_list.is_some());
    scores.tiles.resize(plan.tiles.last().map_or(0, |tile| tile.scores.end), 0.0);
    scores.tiles.fill(0.0);
    let (mut rest, mut rest_scores) = (out, scores.tiles.as_mut_slice());
    let mut tasks: Vec<Task<'_>> = Vec::with_capacity(plan.tiles.len());
    for tile in &plan.tiles {
        let (mine, others) = rest.split_at_mut(tile.rows * tile.heads.len() * group * dim);
        let (my_scores, other_scores) = rest_scores.split_at_mut(tile.scores.len());
        tasks.push((tile, mine, my_scores));
        (rest, rest_scores) = (others, other_scores);
    }
    let per_task = tasks.len().div_ceil(16 * threads.count()).max(1);
    let inputs = Inputs { plan, kv, places, qkv };
    threads.chunks(&mut tasks, per_task, plan.cost, |_, tasks| {
        let mut state = State::default();
        for (tile, out, scores) in tasks {
            inputs.run_tile(tile, out, if scored { scores } else { &mut [] }, &mut state);
        }
    });
    if scored {
        let tiles = plan.tiles.iter().map(|tile| (tile.sequence, tile.heads.clone(), tile.scores.clone()));
        scores.add_layer(places, tiles);
    }
}

/// Inputs of the attention of a layer.
struct Inputs<'a> {
    plan: &'a Plan<'a>,
    kv: &'a BlockView<'a>,
    /// Places of the layer's KV heads.
    places: &'a [Place],
    qkv: &'a [f32],
}

impl Inputs<'_> {
    /// Runs one tile, head by head. `scores` is empty if no row is scored.
    fn run_tile(&self, tile: &Tile, out: &mut [f32], scores: &mut [f32], state: &mut State) {
        let (dim, group) = (self.plan.config.head_dim as usize, self.plan.config.group());
        for (i, head) in tile.heads.clone().enumerate() {
            let queries = self.queries(tile, head);
            let collector = self.collector(tile, &queries).filter(|_| !scores.is_empty());
            let entries = collector.as_ref().map_or(0, |collector| collector.entries);
            let at = if collector.as_ref().is_some_and(|collector| collector.by_group) { i * entries } else { 0 };
            let scores = &mut scores[at..][..entries];
            vectorised(
                #[inline(always)]
                || {
                    queries.run(collector.as_ref(), state);
                    if let Some(collector) = &collector {
                        collector.finish(&state.maxima, &state.totals, &mut state.pieces, scores);
                    }
                },
            );
            // Row r of the tile has the outputs of all its heads side by side.
            let out_width = tile.heads.len() * group * dim;
            for (row, sums) in out.chunks_exact_mut(out_width).zip(state.sums.chunks_exact(group * dim)) {
                row[i * group * dim..(i + 1) * group * dim].copy_from_slice(sums);
            }
        }
    }

    /// Returns the queries of a tile for one KV head.
    fn queries(&self, tile: &Tile, head: usize) -> Queries<'_> {
        let config = self.plan.config;
        let width = config.q_width() + 2 * config.kv_width();
        let seq = &self.plan.sequences[tile.sequence];
        let place = &self.places[head];
        let table = &seq.tables[place.group];
        Queries {
            table,
            kv: self.kv,
            place,
            head,
            qkv: &self.qkv[(seq.row + tile.from) * width..(seq.row + tile.from + tile.rows) * width],
            width,
            dim: config.head_dim as usize,
            group: config.group(),
            n: tile.rows * config.group(),
            index: table.index(seq.position as usize + tile.from),
            window: place.window.map_or(usize::MAX, |window| window as usize),
        }
    }

    /// Returns the collector of a tile's scores, if a row of the tile is scored.
    fn collector<'b>(&'b self, tile: &Tile, queries: &Queries<'b>) -> Option<Collector<'b>> {
        let seq = &self.plan.sequences[tile.sequence];
        let scored = seq.scored.as_ref().filter(|_| !tile.scores.is_empty())?;
        let weight = if scored.by_group { 1.0 } else { queries.place.score_weight };
        queries.place.score_list.filter(|_| weight > 0.0)?;
        let rows = scored.rows.start.saturating_sub(tile.from)..(scored.rows.end - tile.from).min(tile.rows);
        Some(Collector {
            table: queries.table,
            kind: scored.kind,
            weight,
            by_group: scored.by_group,
            entries: scored.entries,
            queries: rows.start * queries.group..rows.end * queries.group,
            group: queries.group,
            position: seq.position as usize + tile.from,
            indices: queries.first() / SPAN * SPAN..queries.index + tile.rows,
            block_size: self.kv.block_size(),
        })
    }
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
    /// `[dim][SPAN]`: keys of a span, of blocks that lanes would leave.
    keys: Vec<f32>,
    /// Weights to be scored.
    pieces: Pieces,
}

/// The queries of a tile for one KV head. Query `i` is query head `i % group` of the group, at row `i / group`.
struct Queries<'a> {
    table: &'a Table<'a>,
    kv: &'a BlockView<'a>,
    place: &'a Place,
    head: usize,
    qkv: &'a [f32],
    width: usize,
    dim: usize,
    group: usize,
    n: usize,
    /// Index of the first row's position.
    index: usize,
    /// Indices read by a query, its own the last.
    window: usize,
}

impl Queries<'_> {
    #[inline(always)]
    fn run(&self, collector: Option<&Collector<'_>>, state: &mut State) {
        state.weights.resize(self.n * SPAN, 0.0);
        state.sums.clear();
        state.sums.resize(self.n * self.dim, 0.0);
        state.maxima.clear();
        state.maxima.resize(self.n, f32::NEG_INFINITY);
        state.totals.clear();
        state.totals.resize(self.n, 0.0);
        if let Some(collector) = collector {
            collector.begin(&mut state.pieces);
        }
        let (first, end) = (self.first(), self.index + self.n / self.group);
        for start in (first / SPAN * SPAN..end).step_by(SPAN) {
            let span = first.saturating_sub(start)..SPAN.min(end - start);
            self.score(start, span.clone(), state);
            self.weigh(start, state);
            if let Some(collector) = collector {
                for i in collector.queries.clone() {
                    let weights = &state.weights[i * SPAN..][..SPAN];
                    let weights = Some(weights).filter(|_| !self.visible(i, start).is_empty());
                    collector.note(i, start, weights, state.maxima[i], &mut state.pieces);
                }
            }
            self.add_values(start, span, state);
        }
        for (sums, total) in state.sums.chunks_exact_mut(self.dim).zip(&state.totals) {
            for sum in sums {
                *sum /= total;
            }
        }
    }

    /// Returns the first index read by a query of the tile, rounded down to a place where the cache is read.
    #[inline(always)]
    fn first(&self) -> usize {
        let first = (self.index + 1).saturating_sub(self.window);
        // Sixteen lanes from a multiple of sixteen never leave a block whose size is one.
        if self.kv.block_size().is_multiple_of(LANES) { first / LANES * LANES } else { first }
    }

    #[inline(always)]
    fn query(&self, i: usize) -> &[f32] {
        let at = i / self.group * self.width + (self.head * self.group + i % self.group) * self.dim;
        &self.qkv[at..at + self.dim]
    }

    /// Returns the positions seen by query `i` in the span from `start`, counted from there.
    #[inline(always)]
    fn visible(&self, i: usize, start: usize) -> Range<usize> {
        let end = self.index + i / self.group + 1;
        end.saturating_sub(self.window).saturating_sub(start)..end.saturating_sub(start).min(SPAN)
    }

    /// Returns the positions of a run seen by query `i`, counted from the run's first; the run lies at `run` in the span from `start`.
    #[inline(always)]
    fn seen(&self, i: usize, start: usize, run: &Range<usize>) -> Range<usize> {
        let (visible, within) =
            (self.visible(i, start), |position: usize| position.saturating_sub(run.start).min(run.len()));
        within(visible.start)..within(visible.end)
    }

    /// The runs of the indices `start + span.start .. start + span.end` within one block: block, offset in the block, offset in the span,
    /// length.
    #[inline(always)]
    fn runs(&self, start: usize, span: Range<usize>) -> impl Iterator<Item = (u32, usize, usize, usize)> {
        let size = self.kv.block_size();
        let mut at = span.start;
        std::iter::from_fn(move || {
            (at < span.end).then(|| {
                let offset = (start + at) % size;
                let run = (self.table.block_at(start + at), offset, at, (size - offset).min(span.end - at));
                at += run.3;
                run
            })
        })
    }

    /// Dot products of every query with the keys of a span. Products beyond the positions seen by a query are not used.
    #[inline(always)]
    fn score(&self, start: usize, span: Range<usize>, state: &mut State) {
        let State { weights, cells, keys: gathered, .. } = state;
        let size = self.kv.block_size();
        // Runs of such blocks begin at multiples of sixteen, so sixteen lanes never leave a block.
        let in_place = size.is_multiple_of(LANES);
        if !in_place {
            gathered.resize(self.dim * SPAN, 0.0);
        }
        for (block, offset, at, run) in self.runs(start, span.clone()) {
            if offset == 0 {
                self.kv.request_values(self.place, block);
            }
            let keys = self.kv.keys(self.place, block, cells);
            match (in_place, size, run) {
                (true, ..) => self.score_lanes(&keys[offset..], size, at..at + run, weights),
                (false, 8, 8) => gather::<8>(keys, &mut gathered[at..]),
                (false, 4, 4) => gather::<4>(keys, &mut gathered[at..]),
                _ => {
                    for (keys, out) in keys.chunks_exact(size).zip(gathered[at..].chunks_mut(SPAN)) {
                        out[..run].copy_from_slice(&keys[offset..offset + run]);
                    }
                }
            }
        }
        if !in_place {
            let first = span.start / LANES * LANES;
            self.score_lanes(&gathered[first..], SPAN, first..span.end, weights);
        }
    }

    /// Dot products of every query with the keys of the places `at` in a span, the first a multiple of sixteen. The elements of a key are `stride` apart.
    #[inline(always)]
    fn score_lanes(&self, keys: &[f32], stride: usize, at: Range<usize>, scores: &mut [f32]) {
        for lane in (0..at.len()).step_by(LANES) {
            let (keys, at) = (&keys[lane..], at.start + lane);
            let mut i = 0;
            while i + ROWS <= self.n {
                self.score_tile::<ROWS>(i, keys, stride, &mut scores[i * SPAN + at..]);
                i += ROWS;
            }
            if i == self.n {
                continue;
            }
            // The rest at once, which reads the keys once.
            let scores = &mut scores[i * SPAN + at..];
            match self.n - i {
                1 => self.score_tile::<1>(i, keys, stride, scores),
                2 => self.score_tile::<2>(i, keys, stride, scores),
                3 => self.score_tile::<3>(i, keys, stride, scores),
                4 => self.score_tile::<4>(i, keys, stride, scores),
                _ => self.score_tile::<5>(i, keys, stride, scores),
            }
        }
    }

    #[inline(always)]
    fn score_tile<const R: usize>(&self, i: usize, keys: &[f32], stride: usize, scores: &mut [f32]) {
        let mut acc = [[0.0; LANES]; R];
        accumulate::<R>(std::array::from_fn(|r| self.query(i + r)), keys, stride, &mut acc);
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
            if visible.is_empty() {
                continue;
            }
            // Always the whole span, so that the loops have a constant length.
            let weights: &mut [f32; SPAN] = (&mut state.weights[i * SPAN..][..SPAN]).try_into().expect("one span");
            weights.iter_mut().for_each(|score| *score *= scale);
            weights[..visible.start].fill(f32::NEG_INFINITY);
            weights[visible.end..].fill(f32::NEG_INFINITY);
            let span_maximum = max_lanes(weights);
            let maximum = if span_maximum > state.maxima[i] { span_maximum } else { state.maxima[i] };
            weights.iter_mut().for_each(|weight| *weight = exp(*weight - maximum));
            weights[..visible.start].fill(0.0);
            weights[visible.end..].fill(0.0);
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
    fn add_values(&self, start: usize, span: Range<usize>, state: &mut State) {
        let State { weights, sums, cells, .. } = state;
        for (block, offset, at, run) in self.runs(start, span) {
            let next = start + at + SPAN;
            // Once a block.
            if next < self.index + self.n / self.group && next.is_multiple_of(self.kv.block_size()) {
                self.kv.request_keys(self.place, self.table.block_at(next));
            }
            let values = self.kv.values(self.place, block, offset..offset + run, cells);
            let mut i = 0;
            while i + ROWS <= self.n {
                self.add_run::<ROWS>(i, values, start, at..at + run, weights, sums);
                i += ROWS;
            }
            match self.n - i {
                0 => {}
                1 => self.add_run::<1>(i, values, start, at..at + run, weights, sums),
                2 => self.add_run::<2>(i, values, start, at..at + run, weights, sums),
                3 => self.add_run::<3>(i, values, start, at..at + run, weights, sums),
                4 => self.add_run::<4>(i, values, start, at..at + run, weights, sums),
                _ => self.add_run::<5>(i, values, start, at..at + run, weights, sums),
            }
        }
    }

    /// Adds the values of the run at `run` in the span from `start` to the sums of `R` queries from `i` on.
    #[inline(always)]
    fn add_run<const R: usize>(
        &self,
        i: usize,
        values: &[f32],
        start: usize,
        run: Range<usize>,
        weights: &[f32],
        sums: &mut [f32],
    ) {
        // Both ends grow with the query, so all queries see the positions from the last one's first to the first one's last.
        let common = self.seen(i + R - 1, start, &run).start..self.seen(i, start, &run).end;
        if common.start > 0 {
            for i in i..i + R {
                let seen = self.seen(i, start, &run);
                let before = seen.start..seen.end.min(common.start);
                self.add_tile::<1>(i, values, run.start, before, weights, sums);
            }
        }
        self.add_tile::<R>(i, values, run.start, common.clone(), weights, sums);
        for i in i..i + R {
            let seen = self.seen(i, start, &run);
            let rest = seen.start.max(common.start).max(common.end)..seen.end;
            self.add_tile::<1>(i, values, run.start, rest, weights, sums);
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

/// Copies the keys of a block of `N` tokens, `[dim][N]`, into those of a span, `[dim][SPAN]`, from its first place on.
#[inline(always)]
fn gather<const N: usize>(keys: &[f32], span: &mut [f32]) {
    for (keys, out) in keys.as_chunks::<N>().0.iter().zip(span.chunks_mut(SPAN)) {
        out[..N].copy_from_slice(keys);
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
