//! Choice of a cost model by name.
//!
//! | name | model |
//! |---|---|
//! | `auto` | [`Fitted`] if the device's file has step times of this model, else the roofline |
//! | `roofline` | [`Roofline`] |
//! | `fitted` | [`Fitted`] with the step times of the device's file |
//! | `table:PATH` | [`Table`] of a folder in any of the three layouts |
//! | `llmservingsim:PATH`, `vidur:PATH`, `aiconfigurator:PATH` | [`Table`] of that layout |
//!
//! A table rarely names its model and device, and times of another model look plausible. A table is therefore rejected if its
//! prefill is more than [`UNLIKE`] times slower or faster than a roofline of the requested model. For kernels that really are
//! slower than the device's file assumes, use another file with other factors.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::table::{Points, Profile, Skew, TableError};
use super::{
    BoxedCost, CostModel, Fitted, LowerBound, Parallel, Roofline, StepShape, Streaming, StreamingError, Table, Weights,
};
use crate::hardware::Hardware;
use crate::model::{self, Model};
use trunkline_quote::{cut, quoted};
use trunkline_sim_workload::UnknownName;

/// Maximum ratio between a table's prefill time and the roofline's; beyond it the table is rejected as one of another model or
/// device. Profiles are within a quarter of the roofline of their device; a table of the wrong model or number of devices is off by
/// two.
pub const UNLIKE: f64 = 1.6;
/// Length of the compared prefill, tokens: few enough for every profile, enough to be compute-bound.
const COMPARED_TOKENS: u64 = 2048;

/// Layout of a table's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Layout of LLMServingSim's profiler.
    LlmServingSim,
    /// Layout of Vidur's predictor.
    Vidur,
    /// Layout of aiconfigurator's files.
    Aiconfigurator,
}

/// Layouts with their names and identifying files.
const LAYOUTS: [(Layout, &str, &str); 4] = [
    (Layout::LlmServingSim, "llmservingsim", "dense"),
    (Layout::Vidur, "vidur", "mlp"),
    (Layout::Vidur, "vidur", "linear_ops_ms"),
    (Layout::Aiconfigurator, "aiconfigurator", "gemm_perf"),
];
/// Suffixes of the identifying file.
const ENDINGS: [&str; 3] = ["csv", "csv.gz", "parquet"];

/// Choice of a cost model, not yet constructed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CostChoice {
    /// Best model for device and model.
    #[default]
    Auto,
    /// Roofline of the device.
    Roofline,
    /// Step times from the device's file.
    Fitted,
    /// Measured table in a folder.
    Table {
        /// Layout of the folder; `None` to detect the layout.
        layout: Option<Layout>,
        /// Path of the folder.
        path: PathBuf,
    },
}

/// Invalid choice of a cost model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CostChoiceError {
    /// Name of no known cost model.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// Table without a folder.
    #[error("cost model {} needs a folder, as in {}:PATH", quoted(.0), cut(.0))]
    NoPath(String),
}

/// Failure to construct a cost model.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// Table cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Folder not found at the path.
    #[error("{}: no such folder; check the path", .0.display())]
    NoFolder(PathBuf),
    /// Folder without a table.
    #[error("{}: holds no table; {}", .0.display(), what_tables_hold())]
    NoTable(PathBuf),
    /// Table measured for another number of devices.
    #[error("{}: a table of {layout} is of {measured}, but parallel is {parallel}", path.display())]
    Spread {
        /// Path of the folder.
        path: PathBuf,
        /// Layout of the folder.
        layout: Layout,
        /// Parallelism of the table.
        measured: String,
        /// Parallelism requested for the model.
        parallel: Parallel,
    },
    /// Profile of another model.
    #[error("{}: was measured for {measured}, which is not of the shape of {model}", path.display())]
    OtherModel {
        /// Path of the folder.
        path: PathBuf,
        /// Model of the profile.
        measured: String,
        /// Model requested for the replay.
        model: &'static str,
    },
    /// Times unlike the model on the device.
    #[error(
        "{}: a prefill of {COMPARED_TOKENS} tokens takes {table_ms:.1} ms by it, {roofline_ms:.1} ms by the roofline of {model} on {hardware} \
         {parallel}; it is of another model, device or number of devices",
        path.display()
    )]
    Unlike {
        /// Path of the folder.
        path: PathBuf,
        /// Time of the table, milliseconds.
        table_ms: f64,
        /// Time of the roofline, milliseconds.
        roofline_ms: f64,
        /// Model requested for the replay.
        model: &'static str,
        /// Device requested for the replay.
        hardware: &'static str,
        /// Parallelism requested for the model.
        parallel: Parallel,
    },
    /// Device file without step times of this model, spread like this.
    #[error("{hardware} has no measured step times of {model} {parallel}; make a file that has, with calibrate")]
    NotFitted {
        /// Name of the device.
        hardware: &'static str,
        /// Name of the model.
        model: &'static str,
        /// Parallelism requested for the model.
        parallel: Parallel,
    },
    /// Streaming plan that cannot work.
    #[error(transparent)]
    Streaming(#[from] StreamingError),
    /// Streaming on several devices, each with a link but a shared disk.
    #[error("weights stream to one device only, but parallel is {0}")]
    StreamingSpread(Parallel),
}

fn what_tables_hold() -> String {
    let each: Vec<_> = LAYOUTS.iter().map(|(_, name, file)| format!("one of {name} has {file}.csv")).collect();
    each.join(", ")
}

impl CostChoice {
    /// Constructs the cost model for steps of `model` on `hardware`.
    ///
    /// # Errors
    ///
    /// [`CostError`] if the table cannot be read or does not fit the model, device or parallelism, if the device has no measured
    /// step times, or if the weights cannot stream.
    pub fn make(
        &self,
        hardware: &Hardware,
        model: &Model,
        parallel: Parallel,
        weights: Weights,
    ) -> Result<BoxedCost, CostError> {
        let compute = self.compute(hardware, model, parallel)?;
        match weights {
            Weights::Resident => Ok(compute),
            Weights::Streamed(_) | Weights::Windowed(_) if parallel != Parallel::ONE => {
                Err(CostError::StreamingSpread(parallel))
            }
            Weights::Streamed(streamed) => Ok(Box::new(Streaming::new(streamed.plan(hardware, model), compute)?)),
            Weights::Windowed(windowed) => Ok(Box::new(windowed.cost(model, compute).map_err(StreamingError::from)?)),
        }
    }

    /// Constructs the compute part of the model, without streaming.
    fn compute(&self, hardware: &Hardware, model: &Model, parallel: Parallel) -> Result<BoxedCost, CostError> {
        match self {
            Self::Auto => Ok(super::of(hardware, model, parallel)),
            Self::Roofline => Ok(Box::new(Roofline::parallel(hardware, model, parallel))),
            Self::Fitted => match fitted(hardware, model, parallel) {
                Some(fitted) => Ok(Box::new(fitted)),
                None => Err(CostError::NotFitted { hardware: hardware.name, model: model.name, parallel }),
            },
            Self::Table { layout, path } => {
                let layout = match layout {
                    _ if !path.is_dir() => return Err(CostError::NoFolder(path.clone())),
                    Some(layout) => *layout,
                    None => layout_of(path).ok_or_else(|| CostError::NoTable(path.clone()))?,
                };
                let table = read(layout, path, hardware, model, parallel)?;
                check(&table, path, hardware, model, parallel)?;
                Ok(Box::new(table))
            }
        }
    }
}

/// Returns the step times of the device's file if they are of this model, spread like this.
pub(super) fn fitted(hardware: &Hardware, model: &Model, parallel: Parallel) -> Option<Fitted> {
    let time = hardware.step_time.filter(|time| time.is_of(model, &parallel.to_string()))?;
    Some(Fitted::new(time, LowerBound::new(hardware, model, parallel)))
}

/// Detects the layout of a folder from its files.
fn layout_of(path: &Path) -> Option<Layout> {
    let holds = |file: &str| ENDINGS.iter().any(|ending| path.join(format!("{file}.{ending}")).exists());
    let found = LAYOUTS.iter().find(|(_, _, file)| holds(file)).map(|(layout, _, _)| *layout);
    found.or_else(|| Profile::is_at(path).then_some(Layout::LlmServingSim))
}

fn read(
    layout: Layout,
    path: &Path,
    hardware: &Hardware,
    model: &Model,
    parallel: Parallel,
) -> Result<Table, CostError> {
    let spread = |measured| CostError::Spread { path: path.into(), layout, measured, parallel };
    match layout {
        Layout::Vidur if parallel.data > 1 || parallel.expert > 1 => Err(spread("dense models".into())),
        Layout::LlmServingSim => {
            let profile = Profile::find(path, parallel.tensor);
            if !profile.degrees.contains(&parallel.tensor) {
                return Err(spread(measured(&profile)));
            }
            check_model(&profile, path, model)?;
            let of = |points| Table::read_llmservingsim(path, hardware, model, parallel, Skew::Published, points);
            Ok(of(Points::All)?.held_out(of(Points::TwoOfThree)))
        }
        Layout::Vidur => {
            let of = |points| Table::read_vidur(path, hardware, model, parallel, points);
            match Table::is_predicted(path) {
                true => Ok(of(Points::All)?.unmeasured("its points are predictions of Vidur")),
                false => Ok(of(Points::All)?.held_out(of(Points::TwoOfThree))),
            }
        }
        Layout::Aiconfigurator => {
            let of = |points| Table::read_aiconfigurator(path, hardware, model, parallel, points);
            Ok(of(Points::All)?.held_out(of(Points::TwoOfThree)))
        }
    }
}

/// Returns the numbers of devices of a profile, in words.
fn measured(profile: &Profile) -> String {
    let degrees: Vec<String> = profile.degrees.iter().map(u32::to_string).collect();
    match degrees.as_slice() {
        [one] if one == "1" => "one device".into(),
        _ => format!("{} devices", degrees.join(" and of ")),
    }
}

/// Compares the model in LLMServingSim's `meta.yaml` with the requested one, if the file exists and names a preset.
fn check_model(profile: &Profile, path: &Path, model: &Model) -> Result<(), CostError> {
    let named = profile.model();
    let name = named.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    match model::by_name(&name) {
        Ok(measured) if !measured.is_like(model) => {
            Err(CostError::OtherModel { path: path.into(), measured: named.into(), model: model.name })
        }
        _ => Ok(()),
    }
}

/// Checks the prefill time of a table against the roofline, of all layers in one stage.
fn check(table: &Table, path: &Path, hardware: &Hardware, model: &Model, parallel: Parallel) -> Result<(), CostError> {
    // Vidur's tables leave out the output matrix, whether predicted or measured.
    let shape = StepShape { sampled: 0, ..StepShape::prefill(COMPARED_TOKENS, 0) };
    let ms = |step_ns: u64| step_ns as f64 / 1e6;
    let parallel = Parallel { pipeline: 1, ..parallel };
    let roofline = Roofline::parallel(hardware, model, parallel);
    // Kernels of experts are chosen by their shape, and by an uneven choice of experts may take twice as long as by the roofline.
    let (table_ms, roofline_ms) = match model.experts {
        None => (ms((table.step_s(&shape) * 1e9) as u64), ms(roofline.step_ns(&shape))),
        Some(_) => (table.common_s(&shape) * 1e3, roofline.without_experts_s(&shape) * 1e3),
    };
    if (1.0 / UNLIKE..=UNLIKE).contains(&(table_ms / roofline_ms)) {
        return Ok(());
    }
    let (model, hardware) = (model.name, hardware.name);
    Err(CostError::Unlike { path: path.into(), table_ms, roofline_ms, model, hardware, parallel })
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = LAYOUTS.iter().find(|(layout, _, _)| layout == self).map_or("", |(_, name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for CostChoice {
    type Err = CostChoiceError;

    fn from_str(text: &str) -> Result<Self, CostChoiceError> {
        let (name, path) = match text.split_once(':') {
            Some((name, path)) => (name, Some(path)),
            None => (text, None),
        };
        let layout = LAYOUTS.iter().find(|(_, known, _)| *known == name).map(|(layout, _, _)| *layout);
        match (name, path) {
            ("auto", None) => Ok(Self::Auto),
            ("roofline", None) => Ok(Self::Roofline),
            ("fitted", None) => Ok(Self::Fitted),
            _ if layout.is_some() || name == "table" => match path {
                Some(path) if !path.is_empty() => Ok(Self::Table { layout, path: path.into() }),
                _ => Err(CostChoiceError::NoPath(name.into())),
            },
            _ => {
                let known = ["auto", "roofline", "fitted", "table:PATH"].into_iter();
                let tables = ["llmservingsim:PATH", "vidur:PATH", "aiconfigurator:PATH"];
                Err(UnknownName { kind: "cost model", name: text.into(), known: known.chain(tables).collect() }.into())
            }
        }
    }
}

impl fmt::Display for CostChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Roofline => f.write_str("roofline"),
            Self::Fitted => f.write_str("fitted"),
            Self::Table { layout: None, path } => write!(f, "table:{}", path.display()),
            Self::Table { layout: Some(layout), path } => write!(f, "{layout}:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests;
