//! Grid of a sweep: a TOML file of parameters (parameters), with fixed values and the axes of a grid.
//!
//! A parameter is the long name of a flag of `replay`, or `trace`. This module reads names and values; their meaning is the
//! flag's.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use toml::{Table, Value};
use trunkline_quote::{of_parser, quoted};

/// Maximum number of cells; more is taken for a mistake.
const CELLS_MAX: usize = 100_000;
/// Value for a flag that is not given.
const NONE: &str = "none";
/// Name of the parameter that is not a flag.
pub(super) const TRACE: &str = "trace";

/// A grid of cells.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    /// File of the grid.
    pub path: PathBuf,
    /// Text of the file.
    pub text: String,
    /// Axes, the last varies fastest. Fixed values are axes of one step at the start.
    pub axes: Vec<Axis>,
}

/// Parameters that vary together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    /// Section of the file, for error messages: `fixed`, `grid` or `zip`.
    pub section: &'static str,
    pub parameters: Vec<String>,
    /// Values of the parameters at each step.
    pub steps: Vec<Vec<Setting>>,
}

/// Value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Setting {
    /// The flag is not given.
    Off,
    /// `true`: the flag is given without a value, or with the value `true` if the flag takes true or false.
    On,
    /// `false`: the flag is not given, or with the value `false` if the flag takes true or false.
    No,
    /// The flag is given with each of these.
    Values(Vec<String>),
}

impl Setting {
    /// Returns the value as text, as in results.
    pub fn label(&self) -> String {
        match self {
            Self::Off => NONE.into(),
            Self::On => "true".into(),
            Self::No => "false".into(),
            Self::Values(values) => values.join(" "),
        }
    }

    /// Reads a value of the file; an array is a flag given several times.
    fn parse(value: &Value) -> anyhow::Result<Self> {
        Ok(match value {
            Value::Boolean(false) => Self::No,
            Value::Boolean(true) => Self::On,
            Value::String(text) if text == NONE => Self::Off,
            Value::Array(values) if values.is_empty() => Self::Off,
            Value::Array(values) => Self::Values(values.iter().map(scalar).collect::<Result<_, _>>()?),
            value => Self::Values(vec![scalar(value)?]),
        })
    }
}

fn scalar(value: &Value) -> anyhow::Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(n) => Ok(n.to_string()),
        Value::Float(x) => Ok(x.to_string()),
        other => bail!("it holds {}; give text, a number, true or false", kind(other)),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Table(_) => "a table",
        Value::Array(_) => "a list",
        Value::Boolean(_) => "true or false within a list",
        Value::Datetime(_) => "a date",
        Value::String(_) | Value::Integer(_) | Value::Float(_) => "a value",
    }
}

/// Parameters of one cell, in the order of the file.
pub(super) type Point<'a> = Vec<(&'a str, &'a Setting)>;

impl Spec {
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read the sweep {name}"))?;
        let axes = parse(&text).with_context(|| format!("sweep {name}"))?;
        Ok(Self { path: path.into(), text, axes })
    }

    /// Returns the number of cells.
    pub fn cells(&self) -> usize {
        self.axes.iter().map(|axis| axis.steps.len()).product()
    }

    /// Returns cell number `at`, from 0; the last axis varies fastest.
    pub fn point(&self, at: usize) -> Point<'_> {
        let mut left = at;
        let mut parts = Vec::new();
        for axis in self.axes.iter().rev() {
            parts.push(axis.parameters.iter().map(String::as_str).zip(&axis.steps[left % axis.steps.len()]));
            left /= axis.steps.len();
        }
        parts.into_iter().rev().flatten().collect()
    }

    /// Returns all parameters with their sections, in the order of the file.
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.axes.iter().flat_map(|axis| axis.parameters.iter().map(|parameter| (axis.section, parameter.as_str())))
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Axis>> {
    let table: Table = toml::from_str(text).map_err(|err| {
        let before = err.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        anyhow::anyhow!("line {}: {}", before.matches('\n').count() + 1, of_parser(&err.message().replace('\n', " ")))
    })?;
    let mut fixed = Vec::new();
    let mut varied = Vec::new();
    for (key, value) in &table {
        match (key.as_str(), value) {
            // Several traces are an axis of their own, the slowest: so they stand first.
            (TRACE, Value::Array(_)) => varied.insert(0, axis("grid", TRACE, value)?),
            (TRACE, _) => fixed.push(single(TRACE, value)?),
            ("fixed", Value::Table(parameters)) => {
                for (parameter, value) in parameters {
                    fixed.push(single(parameter, value)?);
                }
            }
            ("grid", Value::Table(parameters)) => {
                for (parameter, value) in parameters {
                    varied.push(axis("grid", parameter, value)?);
                }
            }
            ("zip", Value::Array(zips)) => {
                for parameters in zips {
                    varied.push(zipped(parameters)?);
                }
            }
            ("fixed" | "grid" | "zip", _) => bail!("write {key} as [fixed], [grid] or [[zip]]"),
            _ => bail!(
                "unknown key {key}; there are: trace, [fixed], [grid], [[zip]]; parameters stand in one of those",
                key = quoted(key)
            ),
        }
    }
    let axes = [fixed, varied].concat();
    check(&axes)?;
    Ok(axes)
}

fn single(parameter: &str, value: &Value) -> anyhow::Result<Axis> {
    let setting = Setting::parse(value).with_context(|| format!("fixed.{parameter}"))?;
    Ok(Axis { section: "fixed", parameters: vec![parameter.into()], steps: vec![vec![setting]] })
}

fn axis(section: &'static str, parameter: &str, value: &Value) -> anyhow::Result<Axis> {
    let Value::Array(values) = value else {
        bail!("{section}.{parameter} is not a list; write [grid] values in brackets, or put a single one into [fixed]");
    };
    ensure!(!values.is_empty(), "{section}.{parameter} is empty; give at least one value");
    let mut steps: Vec<Vec<Setting>> = Vec::new();
    for value in values {
        let step = vec![Setting::parse(value).with_context(|| format!("{section}.{parameter}"))?];
        ensure!(!steps.contains(&step), "{section}.{parameter} has {} twice", quoted(&step[0].label()));
        steps.push(step);
    }
    Ok(Axis { section, parameters: vec![parameter.into()], steps })
}

fn zipped(parameters: &Value) -> anyhow::Result<Axis> {
    let Value::Table(parameters) = parameters else { bail!("write zip as [[zip]]") };
    let mut columns = Vec::new();
    for (parameter, value) in parameters {
        let Value::Array(values) = value else { bail!("zip.{parameter} is not a list; write its values in brackets") };
        let settings = values.iter().map(Setting::parse).collect::<anyhow::Result<Vec<_>>>();
        columns.push((parameter.clone(), settings.with_context(|| format!("zip.{parameter}"))?));
    }
    let Some((first, settings)) = columns.first() else {
        bail!("a [[zip]] is empty; give parameters that vary together")
    };
    let n = settings.len();
    ensure!(n > 0, "zip.{first} is empty; give at least one value");
    for (parameter, settings) in &columns {
        ensure!(settings.len() == n, "zip.{parameter} has {} values and zip.{first} has {n}", settings.len());
    }
    let steps: Vec<Vec<Setting>> =
        (0..n).map(|at| columns.iter().map(|(_, settings)| settings[at].clone()).collect()).collect();
    for (at, step) in steps.iter().enumerate() {
        ensure!(!steps[..at].contains(step), "zip.{first} has the same values twice");
    }
    Ok(Axis { section: "zip", parameters: columns.into_iter().map(|(parameter, _)| parameter).collect(), steps })
}

fn check(axes: &[Axis]) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    for axis in axes {
        for parameter in &axis.parameters {
            ensure!(
                seen.insert(parameter),
                "{}.{parameter} is set elsewhere too; set each parameter once",
                axis.section
            );
        }
    }
    ensure!(seen.iter().any(|parameter| *parameter == TRACE), "there is no trace; write trace = \"FILE\"");
    let cells = axes.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.steps.len()));
    let fits = cells.is_some_and(|n| n <= CELLS_MAX);
    ensure!(fits, "there are more than {CELLS_MAX} cells; sweep less at once");
    Ok(())
}
