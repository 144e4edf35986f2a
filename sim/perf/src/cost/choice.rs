//! Which cost model a replay is made with: named, then made once.
//!
//! | name | model |
//! |---|---|
//! | `auto` | what was measured of this model on this device, if its file says so, else the roofline |
//! | `roofline` | [`Roofline`] |
//! | `fitted` | [`Fitted`], whose times the device's file says |
//! | `table:PATH` | [`Table`] of the folder, whichever of the three layouts it has |
//! | `llmservingsim:PATH`, `vidur:PATH`, `aiconfigurator:PATH` | [`Table`] of that layout |
//!
//! A table says little about what it was measured on, and times of another model look like times. So a table is refused whose prefill takes
//! more than [`UNLIKE`] times as long, or as short, as a roofline of the model that was asked for. Where that is wrong, because kernels are
//! slower than the device's file assumes, another file can say so.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::table::{Skew, TableError};
use super::{
    BoxedCost, CostModel, Fitted, Limit, Parallel, Roofline, StepShape, Streaming, StreamingError, Table, Weights,
};
use crate::hardware::Hardware;
use crate::model::{self, Model};
use trunkline_sim_workload::UnknownName;

/// A table that is this much slower or faster than a roofline is of something else. Profiles of one device are within a quarter of its
/// roofline; tables of a model taken for another, or of two devices for one, are off by two.
pub const UNLIKE: f64 = 1.6;
/// The prefill that is compared, tokens. Few enough that every profile has it, enough that it computes and does not wait.
const COMPARED_TOKENS: u64 = 2048;

/// How a table's folder is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As LLMServingSim's profiler writes it.
    LlmServingSim,
    /// As Vidur's predictor steps through it.
    Vidur,
    /// Files of aiconfigurator.
    Aiconfigurator,
}

/// Layouts, their names, and the file that shows them.
const LAYOUTS: [(Layout, &str, &str); 3] = [
    (Layout::LlmServingSim, "llmservingsim", "dense"),
    (Layout::Vidur, "vidur", "linear_ops_ms"),
    (Layout::Aiconfigurator, "aiconfigurator", "gemm_perf"),
];
/// What that file's name may end with.
const ENDINGS: [&str; 3] = ["csv", "csv.gz", "parquet"];

/// A cost model that is chosen and not yet made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CostChoice {
    /// The best there is for device and model.
    #[default]
    Auto,
    /// The roofline.
    Roofline,
    /// The step times in the device's file.
    Fitted,
    /// A measured table.
    Table {
        /// How its folder is laid out; nothing is whatever is found.
        layout: Option<Layout>,
        /// The folder.
        path: PathBuf,
    },
}

/// A choice that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CostChoiceError {
    /// No cost model has this name.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// A table needs a folder.
    #[error("cost model '{0}' needs a folder, as in {0}:PATH")]
    NoPath(String),
}

/// Why a cost model could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// The table could not be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// There is nothing at the path.
    #[error("{}: no such folder; check the path", .0.display())]
    NoFolder(PathBuf),
    /// The folder holds no table.
    #[error("{}: holds no table; {}", .0.display(), what_tables_hold())]
    NoTable(PathBuf),
    /// One device was measured, several were asked for, or stages.
    #[error("{}: a table of {layout} is of {measured}, but parallel is {parallel}", path.display())]
    Spread {
        /// The folder.
        path: PathBuf,
        /// Its layout.
        layout: Layout,
        /// What can be had.
        measured: &'static str,
        /// What was asked for.
        parallel: Parallel,
    },
    /// The profile names another model.
    #[error("{}: was measured for {measured}, which is not of the shape of {model}", path.display())]
    OtherModel {
        /// The folder.
        path: PathBuf,
        /// What the profile says.
        measured: String,
        /// What was asked for.
        model: &'static str,
    },
    /// The times are not those of this model on this device.
    #[error(
        "{}: a prefill of {COMPARED_TOKENS} tokens takes {table_ms:.1} ms by it, {roofline_ms:.1} ms by the roofline of {model} on {hardware} \
         {parallel}; it is of another model, device or number of devices",
        path.display()
    )]
    Unlike {
        /// The folder.
        path: PathBuf,
        /// By the table.
        table_ms: f64,
        /// By the roofline.
        roofline_ms: f64,
        /// The model.
        model: &'static str,
        /// The device.
        hardware: &'static str,
        /// How many.
        parallel: Parallel,
    },
    /// The device's file has no step times of this model on one device.
    #[error("{hardware} has no measured step times of {model} on one device; make a file that has, with calibrate")]
    NotFitted {
        /// The device.
        hardware: &'static str,
        /// The model.
        model: &'static str,
    },
    /// Weights cannot stream so.
    #[error(transparent)]
    Streaming(#[from] StreamingError),
    /// Every device would have a link and share the disk.
    #[error("weights stream to one device only, but parallel is {0}")]
    StreamingSpread(Parallel),
}

fn what_tables_hold() -> String {
    let each: Vec<_> = LAYOUTS.iter().map(|(_, name, file)| format!("one of {name} has {file}.csv")).collect();
    each.join(", ")
}

impl CostChoice {
    /// Makes the cost model for steps of `model` on `hardware`.
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
            Weights::Streamed(_) if parallel != Parallel::ONE => Err(CostError::StreamingSpread(parallel)),
            Weights::Streamed(streamed) => Ok(Box::new(Streaming::new(streamed.plan(hardware, model), compute)?)),
        }
    }

    /// The model of what is computed, wherever weights come from.
    fn compute(&self, hardware: &Hardware, model: &Model, parallel: Parallel) -> Result<BoxedCost, CostError> {
        match self {
            Self::Auto => Ok(super::of(hardware, model, parallel)),
            Self::Roofline => Ok(Box::new(Roofline::parallel(hardware, model, parallel))),
            Self::Fitted => match fitted(hardware, model, parallel) {
                Some(fitted) => Ok(Box::new(fitted)),
                None => Err(CostError::NotFitted { hardware: hardware.name, model: model.name }),
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

/// The step times in the device's file, if they are of this model and one device.
pub(super) fn fitted(hardware: &Hardware, model: &Model, parallel: Parallel) -> Option<Fitted> {
    let time = hardware.step_time.filter(|time| time.model == model.name && parallel == Parallel::ONE)?;
    Some(Fitted::new(time, Limit::new(hardware, model, parallel), hardware.fit))
}

/// The layout that the files in a folder show.
fn layout_of(path: &Path) -> Option<Layout> {
    let holds = |file: &str| ENDINGS.iter().any(|ending| path.join(format!("{file}.{ending}")).exists());
    LAYOUTS.iter().find(|(_, _, file)| holds(file)).map(|(layout, _, _)| *layout)
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
        Layout::LlmServingSim if parallel != Parallel::ONE => Err(spread("one device")),
        _ if parallel.pipeline > 1 => Err(spread("one stage")),
        Layout::LlmServingSim => {
            check_meta(path, model)?;
            // Of shares from 0 up, none brings the runs it was compared with nearer than 0.
            Ok(Table::from_llmservingsim(path, hardware, model, Skew::Share(0.0))?)
        }
        Layout::Vidur => Ok(Table::from_vidur(path, hardware, model, parallel.tensor)?),
        Layout::Aiconfigurator => Ok(Table::from_aiconfigurator(path, hardware, model, parallel.tensor)?),
    }
}

/// Checks the model that LLMServingSim's `meta.yaml` names, if that is there and the model is a preset.
fn check_meta(path: &Path, model: &Model) -> Result<(), CostError> {
    let Ok(text) = fs::read_to_string(path.join("meta.yaml")) else { return Ok(()) };
    let named = text.lines().find_map(|line| line.strip_prefix("model:")).map(str::trim).unwrap_or_default();
    let name = named.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    match model::by_name(&name) {
        Ok(measured) if Model { name: model.name, ..*measured } != *model => {
            Err(CostError::OtherModel { path: path.into(), measured: named.into(), model: model.name })
        }
        _ => Ok(()),
    }
}

/// Checks that a table is not far from what the device could be expected to take.
fn check(table: &Table, path: &Path, hardware: &Hardware, model: &Model, parallel: Parallel) -> Result<(), CostError> {
    // Vidur's tables leave out the output matrix.
    let shape = StepShape { sampled: 0, ..StepShape::prefill(COMPARED_TOKENS, 0) };
    let ms = |step_ns: u64| step_ns as f64 / 1e6;
    let table_ms = ms((table.step_s(&shape) * 1e9) as u64);
    let roofline_ms = ms(Roofline::parallel(hardware, model, parallel).step_ns(&shape));
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
