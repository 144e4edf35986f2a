//! Attention that blocks get, for eviction: taken from the softmax weights that attention computes anyway.
//!
//! Attention adds up weights relative to a running maximum. For each query and span the sums of the span's pieces are kept together with
//! the maximum at that time; at the end each piece is scaled to the final maximum and divided by the total. Pieces of several queries add
//! up in the order of queries, then tiles, then layers: scores depend neither on threads nor on other sequences.

use std::ops::Range;

use trunkline_port::ScoreKind;

use crate::config::groups::Place;
use crate::kernels::kernel::{LANES, exp};
use crate::kv::table::Table;

/// Positions between two updates of the running maximum. A multiple of [`LANES`].
pub(crate) const SPAN: usize = 64;

/// Least distance of a position that counts for [`ScoreKind::Max`], in positions.
const DISTANCE_MIN: usize = 32;

/// Rows of a sequence whose attention counts.
#[derive(Clone, Debug)]
pub(crate) struct ScoredRows {
    /// Offsets of the rows among the rows of the sequence; not empty.
    pub(crate) rows: Range<usize>,
    /// Kind of the scores.
    pub(crate) kind: ScoreKind,
    /// Entries of the block table that get a score.
    pub(crate) entries: usize,
    /// `true` for scores of each layer group by itself.
    pub(crate) by_group: bool,
}

/// Values kept for a piece of [`LANES`] positions: lanes that are joined only after the queries are, a vector at a time.
const PARTS: usize = 4;

/// Values kept for a span of such pieces.
const SPAN_PARTS: usize = SPAN / LANES * PARTS;

/// Joins the lanes of each piece of a span to [`PARTS`] values. All lengths are fixed, for vectors.
#[inline(always)]
fn join_lanes(weights: &[f32; SPAN], join: impl Fn(f32, f32) -> f32) -> [f32; SPAN_PARTS] {
    let mut parts = [0.0; SPAN_PARTS];
    for piece in 0..SPAN / LANES {
        for part in 0..PARTS {
            let lane = |n: usize| weights[piece * LANES + n * PARTS + part];
            parts[piece * PARTS + part] = join(join(lane(0), lane(2)), join(lane(1), lane(3)));
        }
    }
    parts
}

/// Writes the weights of a span to `out`: joined, or each for itself if there is room.
#[inline(always)]
fn put_parts(weights: &[f32; SPAN], out: &mut [f32], join: impl Fn(f32, f32) -> f32) {
    if out.len() == SPAN {
        out.copy_from_slice(weights);
    } else if let Some(out) = out.first_chunk_mut::<SPAN_PARTS>() {
        *out = join_lanes(weights, join);
    }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Weights of the queries of a tile for one KV head, by pieces of spans.
#[derive(Default)]
pub(crate) struct Pieces {
    /// `[query][span][part]`: sums or largest of the weights of each piece, in parts.
    weights: Vec<f32>,
    /// `[query][span]`: running maximum that the weights are relative to.
    maxima: Vec<f32>,
    /// `[span][part]`: scores of all queries together.
    joined: Vec<f32>,
}

/// Collects the scores of the queries of a tile for one KV head.
pub(crate) struct Collector<'a> {
    pub(crate) table: &'a Table<'a>,
    pub(crate) kind: ScoreKind,
    /// Weight of the head in [`ScoreKind::Mean`].
    pub(crate) weight: f32,
    /// `true` if the scores of each head of the tile lie by themselves.
    pub(crate) by_group: bool,
    /// Entries of the table with a score.
    pub(crate) entries: usize,
    /// Scored queries of the tile.
    pub(crate) queries: Range<usize>,
    /// Queries in a row.
    pub(crate) group: usize,
    /// Position of the tile's first row.
    pub(crate) position: usize,
    /// Indices covered by spans; begins with a span.
    pub(crate) indices: Range<usize>,
    pub(crate) block_size: usize,
}

impl Collector<'_> {
    /// Returns the number of values kept for a span: pieces never cross blocks, so pieces of odd blocks are single positions.
    #[inline(always)]
    fn parts(&self) -> usize {
        if self.block_size.is_multiple_of(LANES) { SPAN_PARTS } else { SPAN }
    }

    #[inline(always)]
    fn spans(&self) -> usize {
        self.indices.len().div_ceil(SPAN)
    }

    /// Makes room for the tile.
    #[inline(always)]
    pub(crate) fn begin(&self, pieces: &mut Pieces) {
        let spans = self.queries.len() * self.spans();
        pieces.weights.resize(spans * self.parts(), 0.0);
        pieces.maxima.resize(spans, f32::NEG_INFINITY);
    }

    /// Takes the [`SPAN`] weights of scored query `i` for the span at index `start`, relative to `maximum`; `None` if the query sees nothing
    /// of the span. Weights of hidden positions are 0.
    #[inline(always)]
    pub(crate) fn note(&self, i: usize, start: usize, weights: Option<&[f32]>, maximum: f32, pieces: &mut Pieces) {
        let at = (i - self.queries.start) * self.spans() + (start - self.indices.start) / SPAN;
        pieces.maxima[at] = maximum;
        let out = &mut pieces.weights[at * self.parts()..][..self.parts()];
        let Some(weights) = weights.and_then(|weights| weights.first_chunk::<SPAN>()) else {
            out.fill(0.0);
            return;
        };
        match self.kind {
            ScoreKind::Mean => put_parts(weights, out, |a, b| a + b),
            ScoreKind::Max => {
                let row = self.position + i / self.group;
                let far =
                    self.table.index_below((row + 1).saturating_sub(DISTANCE_MIN)).saturating_sub(start).min(SPAN);
                let mut kept = *weights;
                kept[far..].fill(0.0);
                put_parts(&kept, out, larger);
            }
        }
    }

    /// Joins the scores of all queries, with their final maxima and totals, into the scores of the table's entries.
    #[inline(always)]
    pub(crate) fn finish(&self, maxima: &[f32], totals: &[f32], pieces: &mut Pieces, scores: &mut [f32]) {
        match self.kind {
            ScoreKind::Mean => self.finish_with(maxima, totals, self.weight, pieces, scores, |a, b| a + b),
            ScoreKind::Max => self.finish_with(maxima, totals, 1.0, pieces, scores, larger),
        }
    }

    #[inline(always)]
    fn finish_with(
        &self,
        maxima: &[f32],
        totals: &[f32],
        weight: f32,
        pieces: &mut Pieces,
        scores: &mut [f32],
        join: impl Fn(f32, f32) -> f32 + Copy,
    ) {
        let (spans, per) = (self.spans(), self.parts());
        let Pieces { weights, maxima: running, joined } = pieces;
        joined.clear();
        joined.resize(spans * per, 0.0);
        for (n, i) in self.queries.clone().enumerate() {
            let running = &mut running[n * spans..][..spans];
            let (maximum, share) = (maxima[i], weight / totals[i]);
            running.iter_mut().for_each(|running| *running = exp(*running - maximum) * share);
            let weights = weights[n * spans * per..][..spans * per].chunks_exact(per);
            for ((joined, weights), factor) in joined.chunks_exact_mut(per).zip(weights).zip(running.iter()) {
                let parts = joined.as_chunks_mut::<SPAN_PARTS>().0.iter_mut().zip(weights.as_chunks::<SPAN_PARTS>().0);
                for (joined, weights) in parts {
                    for (joined, weight) in joined.iter_mut().zip(weights) {
                        *joined = join(*joined, weight * factor);
                    }
                }
            }
        }
        // Parts after the last index are empty.
        let parts_of = |positions: usize| if per == SPAN { positions } else { positions / LANES * PARTS };
        let joined = &joined[..parts_of(self.indices.len().next_multiple_of(LANES)).min(joined.len())];
        let (first, offset) = (self.indices.start / self.block_size, self.indices.start % self.block_size);
        // The first block may begin before the first span.
        let (head, tail) = joined.split_at(parts_of(self.block_size - offset).min(joined.len()));
        let blocks = std::iter::once(head).chain(tail.chunks(parts_of(self.block_size)));
        let entries = scores.len();
        for (block, parts) in blocks.enumerate() {
            let entry = self.table.entry(first + block);
            if entry < entries {
                scores[entry] = parts.iter().fold(scores[entry], |a, b| join(a, *b));
            }
        }
    }
}

/// Scores of the sequences of a batch, summed over layers and, with weights, KV heads.
#[derive(Default)]
pub(crate) struct Scores {
    sequences: Vec<SequenceScores>,
    /// Scores of one layer: the entries of each scored tile.
    pub(crate) tiles: Vec<f32>,
}

#[derive(Default)]
struct SequenceScores {
    kind: ScoreKind,
    entries: usize,
    by_group: bool,
    /// Queries that count in each KV head.
    queries: usize,
    /// Weights of the KV heads counted so far, in all layers, by list.
    weights: Vec<f64>,
    /// `[list][entry of the table]`.
    joined: Vec<f64>,
}

impl Scores {
    /// Forgets the last batch. `group` query heads share a KV head; sequences with scores by group have `n_lists` lists.
    pub(crate) fn begin<'a>(
        &mut self,
        sequences: impl Iterator<Item = Option<&'a ScoredRows>>,
        group: usize,
        n_lists: usize,
    ) {
        let of = |scored: Option<&ScoredRows>| {
            let Some(scored) = scored else { return SequenceScores::default() };
            let n_lists = if scored.by_group { n_lists } else { 1 };
            SequenceScores {
                kind: scored.kind,
                entries: scored.entries,
                by_group: scored.by_group,
                queries: scored.rows.len() * group,
                weights: vec![0.0; n_lists],
                joined: vec![0.0; n_lists * scored.entries],
            }
        };
        self.sequences.clear();
        self.sequences.extend(sequences.map(of));
    }

    /// Returns `true` if a sequence of the batch has scored rows.
    pub(crate) fn wanted(&self) -> bool {
        self.sequences.iter().any(|seq| seq.entries > 0)
    }

    /// Adds a layer with KV heads at `places`: the scores of each tile in [`Self::tiles`], with the tile's sequence, KV heads and range.
    pub(crate) fn add_layer(
        &mut self,
        places: &[Place],
        tiles: impl Iterator<Item = (usize, Range<usize>, Range<usize>)>,
    ) {
        for seq in self.sequences.iter_mut().filter(|seq| seq.entries > 0) {
            for place in places {
                match place.score_list.filter(|_| seq.by_group) {
                    Some(list) => seq.weights[list] += 1.0,
                    None if seq.by_group => {}
                    None => seq.weights[0] += f64::from(place.score_weight),
                }
            }
        }
        for (sequence, heads, range) in tiles.filter(|(_, _, range)| !range.is_empty()) {
            let seq = &mut self.sequences[sequence];
            let scores = &self.tiles[range];
            if !seq.by_group {
                seq.join(0, scores);
                continue;
            }
            for (place, scores) in places[heads].iter().zip(scores.chunks_exact(seq.entries)) {
                if let Some(list) = place.score_list {
                    seq.join(list, scores);
                }
            }
        }
    }

    /// Returns the scores of a sequence, list by list: averages over all queries and, by weight, KV heads, or the largest.
    pub(crate) fn of(&self, sequence: usize) -> impl Iterator<Item = f32> {
        let seq = &self.sequences[sequence];
        let divisor = move |list: usize| match seq.kind {
            ScoreKind::Mean if seq.weights[list] > 0.0 => seq.queries as f64 * seq.weights[list],
            ScoreKind::Mean | ScoreKind::Max => 1.0,
        };
        let lists = seq.joined.chunks_exact(seq.entries.max(1)).enumerate();
        lists.flat_map(move |(list, joined)| {
            let divisor = divisor(list);
            joined.iter().map(move |joined| (joined / divisor) as f32)
        })
    }
}

impl SequenceScores {
    /// Takes the scores of a tile, by entry, into a list.
    fn join(&mut self, list: usize, scores: &[f32]) {
        for (joined, score) in self.joined[list * self.entries..].iter_mut().zip(scores) {
            let score = f64::from(*score);
            *joined = match self.kind {
                ScoreKind::Mean => *joined + score,
                ScoreKind::Max => joined.max(score),
            };
        }
    }
}
