//! Vidur's tables: a folder with the predictions of its models (`predictions.rs`), or the profile that these are trained on (`profile.rs`).
//!
//! Vidur composes both as follows, and so does this module, to allow comparison with Vidur's results:
//!
//! ```text
//! stage   = layers of the stage * layer + send_recv(n8) unless it is the last
//! layer   = sum of operations(n8) + prefill + decode + 2 * (all_reduce(n8) + 0.02 ms) if a stage has more than one device
//! prefill = table(sum of k64, root of the sum of c * c), a tenth more if there are several
//! decode  = table(B, k64 of the mean), a tenth more if there are several
//! ```
//!
//! `n8` is rounded up to a multiple of 8, `k64` to one of 64, and the tenth applies to models with fewer key than query heads.
//! Embedding, output matrix and sampling are left out. Without measured exchanges, all-reduces and sending take the links of the hardware file.

use std::path::Path;

use super::{
    Attention, Device, Grid, Parallel, Points, Series, Stages, StepErrors, StepShape, Table, TableError, TableFault,
    TimeRange, Work, check_measured, describe, linear_work, rows,
};
use crate::cost::roofline::RESIDUAL_BYTES;
use crate::hardware::Hardware;
use crate::model::Model;

mod predictions;
mod profile;

/// Granularity of contexts, tokens; contexts are rounded up.
const CONTEXT_STEP: u64 = 64;
/// Granularity of steps, tokens; steps are rounded up.
const TOKENS_STEP: u64 = 8;
/// Extra time for several sequences in a call of grouped-query attention, as a factor.
const BATCHING: f64 = 1.1;
/// Launch of an all-reduce, seconds.
const ALL_REDUCE_LAUNCH_S: f64 = 0.02e-3;

/// Attention of prefills and of decodes, looked up at rounded points.
#[derive(Clone, Debug)]
pub(super) struct BinnedAttention {
    prefill: Grid<2>,
    decode: Grid<2>,
    device: Device,
    batching: f64,
}

impl BinnedAttention {
    /// Returns the largest number of decodes in the table, and their longest context.
    pub fn decodes_max(&self) -> [f64; 2] {
        [0, 1].map(|d| self.decode.last(d))
    }

    pub fn layer_s(&self, shape: &StepShape) -> f64 {
        let more = |n: u64| if n > 1 { self.batching } else { 1.0 };
        let mut sum = 0.0;
        if shape.prefills > 0 {
            let computed = shape.prefill_computed().next_multiple_of(CONTEXT_STEP) as f64;
            let chunk = (shape.prefill_squares as f64).sqrt().round();
            let ideal = |[computed, chunk]: [f64; 2]| self.device.attention_s([chunk, computed, 0.0, 0.0]);
            sum += more(shape.prefills) * self.prefill.extended([computed, chunk], ideal);
        }
        if let Some(mean) = shape.decode_kv_tokens.checked_div(shape.decodes) {
            let context = mean.next_multiple_of(CONTEXT_STEP) as f64;
            let ideal = |[n, context]: [f64; 2]| self.device.attention_s([0.0, 0.0, n, context]);
            sum += more(shape.decodes) * self.decode.extended([shape.decodes as f64, context], ideal);
        }
        sum
    }
}

/// Times of a folder, seconds.
struct Times {
    /// All operations of all layers but attention, by tokens, all-reduces included.
    linear: Vec<(u64, f64)>,
    /// Prefill attention of a layer, by computed tokens and tokens of the chunk.
    prefill: Grid<2>,
    /// Decode attention of a layer, by sequences and tokens of each.
    decode: Grid<2>,
    /// Sending to the next stage by tokens; `None` if it was not measured.
    sending: Option<Vec<(u64, f64)>>,
    /// Remarks for the name of the table.
    notes: Vec<String>,
}

/// Kinds of devices and model of a table.
#[derive(Clone, Copy)]
struct Measured<'a> {
    hardware: &'a Hardware,
    model: &'a Model,
    parallel: Parallel,
}

impl Table {
    /// Builds the table in folder `path`, measured for `model` on devices of kind `hardware`, as many as the `parallel.tensor` of a stage.
    ///
    /// # Errors
    ///
    /// [`TableError`] if a file cannot be read, or has no usable rows.
    pub fn from_vidur(path: &Path, hardware: &Hardware, model: &Model, parallel: Parallel) -> Result<Self, TableError> {
        Self::read_vidur(path, hardware, model, parallel, Points::All)
    }

    /// Returns `true` if the points of the table in folder `path` are predictions, not measurements.
    pub(in super::super) fn is_predicted(path: &Path) -> bool {
        !profile::is_at(path)
    }

    /// Builds the table from some of its points.
    pub(in super::super) fn read_vidur(
        path: &Path,
        hardware: &Hardware,
        model: &Model,
        parallel: Parallel,
        points: Points,
    ) -> Result<Self, TableError> {
        check_measured(path, model)?;
        let of = Measured { hardware, model, parallel };
        let times =
            if Self::is_predicted(path) { predictions::read(path, of)? } else { profile::read(path, of, points)? };
        let device = Device::new(hardware, model, parallel.tensor);
        let send_work =
            [1.0, 2.0].map(|tokens| Work { flops: 0.0, bytes: tokens * RESIDUAL_BYTES * model.hidden as f64 });
        let stages = match times.sending {
            Some(sending) => Stages::measured(model, parallel, Series::new(&sending, send_work, &device)),
            None => Stages::over_peer_link(hardware, model, parallel),
        };
        Ok(Self {
            name: describe("Vidur", hardware, model, parallel, &times.notes),
            limit: Some(super::LowerBound::new(hardware, model, parallel)),
            layers: model.layers as f64,
            linear: Series::new(&times.linear, linear_work(model, parallel.tensor), &device),
            head: None,
            attention: Attention::Binned(BinnedAttention {
                prefill: times.prefill,
                decode: times.decode,
                device,
                batching: if model.kv_heads < model.heads { BATCHING } else { 1.0 },
            }),
            tokens_step: TOKENS_STEP,
            experts: None,
            stages,
            errors: StepErrors::default(),
            range: TimeRange::of_table(model),
        })
    }
}

/// Sorts points by their count; of several with the same count the mean stays.
fn averaged(mut points: Vec<(u64, f64)>) -> Vec<(u64, f64)> {
    points.sort_by_key(|(count, _)| *count);
    let mean = |group: &[(u64, f64)]| (group[0].0, group.iter().map(|(_, s)| s).sum::<f64>() / group.len() as f64);
    points.chunk_by(|a, b| a.0 == b.0).map(mean).collect()
}

/// Attention of a kind: its file, the columns of its axes, and the lower bound of its time at a point.
struct AttentionRows<'a, F> {
    path: &'a Path,
    axes: [&'static str; 2],
    ideal: F,
}

impl<F: Fn([f64; 2]) -> f64> AttentionRows<'_, F> {
    /// Builds the grid of `rows`, seconds by both axes. Of several rows of a point the mean counts. Fills points without a row, by `ideal` where there is
    /// nothing to interpolate between, and adds a note of their number.
    fn grid(self, rows: Vec<([u64; 2], f64)>, points: Points, notes: &mut Vec<String>) -> Result<Grid<2>, TableError> {
        let fail = |fault| TableError { path: self.path.into(), line: 0, fault };
        if rows.is_empty() {
            return Err(fail(TableFault::Empty(self.axes[0].into())));
        }
        let axis = |d: usize| {
            let mut values: Vec<u64> = rows.iter().map(|(point, _)| point[d]).collect();
            values.sort_unstable();
            values.dedup();
            points.thin(&mut values);
            values.into_iter().map(|n| n as f64).collect::<Vec<_>>()
        };
        let axes = [axis(0), axis(1)];
        let mut sums = std::collections::BTreeMap::<[u64; 2], (f64, f64)>::new();
        for (point, time_s) in rows {
            let sum = sums.entry(point).or_default();
            *sum = (sum.0 + time_s, sum.1 + 1.0);
        }
        let row = |[x, y]: [f64; 2]| sums.get(&[x as u64, y as u64]).map(|(sum_s, n)| sum_s / n);
        let (grid, n) = Grid::filled(axes, row, &self.ideal)
            .map_err(|[x, y]| fail(TableFault::Hole(format!("{} {x}, {} {y}", self.axes[0], self.axes[1]))))?;
        if n > 0 {
            let file = self.path.file_name().unwrap_or_default().to_string_lossy();
            notes.push(format!("{n} points of {file} interpolated"));
        }
        Ok(grid)
    }
}
