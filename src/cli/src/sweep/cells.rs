//! Turns points of a grid into replays. Each parameter (parameter of the grid) is a flag of `replay`; meaning and allowed values
//! are those of the flag.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::builder::Str;
use clap::{Arg, ArgAction, Args, Command, Parser};
use trunkline_quote::quoted;
use trunkline_sim_perf::memory::DoesNotFit;
use trunkline_sim_replay::Settings;
use xxhash_rust::xxh3::Xxh3;

use super::spec::{Axis, Point, Setting, Spec, TRACE};
use crate::replay::input::Part;
use crate::replay::{ReplayArgs, ReplayPlan};

/// Flags that write files, or read something other than a trace.
const NO_PARAMETERS: [&str; 7] = ["json", "requests", "html", "timeline", "timeline-window", "record", "recorded"];
/// Extensions of files that a parameter may name.
const FILES: [&str; 5] = [".toml", ".json", ".csv", ".parquet", ".gz"];

/// Parser of the flags of `replay`.
#[derive(Parser)]
#[command(name = "replay")]
pub(super) struct ReplayCli {
    #[command(flatten)]
    pub args: ReplayArgs,
}

/// Cell of the grid: a replay, checked.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Hash of everything that affects the result.
    pub id: String,
    /// Each parameter and its value as in results, in the order of the file.
    pub parameters: Vec<(String, String)>,
    /// Hash of the trace's bytes.
    pub trace_digest: String,
    /// Replay to run, or the reason why it cannot run.
    pub ready: Result<Ready, String>,
}

/// A replay to run, checked.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    pub trace: PathBuf,
    pub part: Part,
    pub settings: Settings,
    pub load: Option<f64>,
    /// `true` if requests have the tenants of the trace.
    pub own_tenants: bool,
}

/// Reason why a cell cannot run.
#[derive(Clone)]
struct Fault {
    message: String,
    /// `true` if each value is valid, but the model does not fit the device.
    no_room: bool,
}

/// Returns all cells, in the order of the spec.
///
/// # Errors
/// If a parameter is unknown, or a value is wrong by itself. Values that only contradict each other make a cell that fails.
pub(super) fn cells(spec: &Spec) -> anyhow::Result<Vec<Cell>> {
    let file = spec.path.display();
    let mut spec = spec.clone();
    check_parameters(&mut spec).with_context(|| format!("sweep {file}"))?;
    let spec = &spec;
    let folder = spec.path.parent().unwrap_or(Path::new(""));
    let mut digests = HashMap::new();
    let mut cells = Vec::new();
    let mut faults = Vec::new();
    for at in 0..spec.cells() {
        let point = spec.point(at);
        let trace = trace_of(&point).with_context(|| format!("sweep {file}"))?;
        let trace = folder.join(trace);
        let digest = match digests.get(&trace) {
            Some(digest) => String::clone(digest),
            None => digests.entry(trace.clone()).or_insert(digest(&trace)?).clone(),
        };
        let ready = ready(&point, &trace, folder);
        let parameters = point.iter().map(|(parameter, setting)| (parameter.to_string(), setting.label())).collect();
        let id = identity(&point, &digest, ready.as_ref().ok());
        faults.push(ready.as_ref().err().cloned());
        cells.push(Cell { id, parameters, trace_digest: digest, ready: ready.map_err(|fault| fault.message) });
    }
    blame(spec, folder, &faults).with_context(|| format!("sweep {file}"))?;
    Ok(cells)
}

/// Checks that every parameter is a flag that affects a replay, and that flags with and without a value are used as such.
fn check_parameters(spec: &mut Spec) -> anyhow::Result<()> {
    let replay = ReplayArgs::augment_args(Command::new("replay"));
    let flags: HashMap<&str, Takes> =
        replay.get_arguments().filter_map(|flag| Some((flag.get_long()?, Takes::of(flag)))).collect();
    for (section, parameter) in spec.parameters() {
        if NO_PARAMETERS.contains(&parameter) {
            bail!(
                "{section}.{parameter} is not a parameter: --{parameter} decides what a replay writes or reads, not how it runs"
            );
        }
        if parameter != TRACE && !flags.contains_key(parameter) {
            let mut known: Vec<&str> = flags.keys().copied().filter(|flag| !NO_PARAMETERS.contains(flag)).collect();
            known.sort_unstable();
            bail!("unknown parameter {section}.{parameter}; there are: {TRACE}, {}", known.join(", "));
        }
    }
    for Axis { section, parameters, steps } in &mut spec.axes {
        for (parameter, setting) in steps.iter_mut().flat_map(|step| parameters.iter().zip(step)) {
            let takes = flags.get(parameter.as_str()).copied().unwrap_or(Takes::Value);
            match (takes, &*setting) {
                (_, Setting::Off)
                | (Takes::Nothing, Setting::On)
                | (Takes::TrueOrFalse | Takes::Value, Setting::Values(_)) => {}
                (Takes::TrueOrFalse, Setting::On | Setting::No) => *setting = Setting::Values(vec![setting.label()]),
                (_, Setting::No) => *setting = Setting::Off,
                (Takes::Value, Setting::On) => {
                    bail!("{section}.{parameter} is true, but takes a value; `replay --help` says which")
                }
                (Takes::Nothing, Setting::Values(_)) => {
                    bail!("{section}.{parameter} is {}; give true or false", quoted(&setting.label()))
                }
            }
        }
    }
    Ok(())
}

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    TrueOrFalse,
    Value,
}

impl Takes {
    fn of(flag: &Arg) -> Self {
        let is_bool = |names: &[Str]| names.len() == 1 && names[0] == "BOOL";
        match flag.get_action() {
            ArgAction::SetTrue => Self::Nothing,
            _ if flag.get_value_names().is_some_and(is_bool) => Self::TrueOrFalse,
            _ => Self::Value,
        }
    }
}

fn trace_of<'a>(point: &Point<'a>) -> anyhow::Result<&'a str> {
    match point.iter().find(|(parameter, _)| *parameter == TRACE) {
        Some((_, Setting::Values(values))) if values.len() == 1 => Ok(&values[0]),
        _ => bail!("trace must be one file, or a list of files"),
    }
}

/// Flags that a replay takes only together with one of some tiers. A cell without the tier leaves them out, so that tiers can be compared with none.
const OF_TIERS: [(&[&str], &[&str]); 4] = [
    (&["tier-write", "tier-eviction"], &["host-mem", "shared-mem"]),
    (&["disk-gb-s", "disk-latency-us"], &["disk-size"]),
    (&["remote-gb-s", "remote-latency-us", "remote-shared"], &["remote"]),
    (&["compression", "compression-gb-s"], &["disk-size", "remote"]),
];

/// Returns `true` if a parameter is of tiers that the grid names and a point does not have.
fn lacks_tier(point: &Point<'_>, parameter: &str) -> bool {
    let Some((_, tiers)) = OF_TIERS.iter().find(|(flags, _)| flags.contains(&parameter)) else { return false };
    let mut named = point.iter().filter(|(known, _)| tiers.contains(known)).peekable();
    named.peek().is_some() && named.all(|(_, setting)| **setting == Setting::Off)
}

/// Returns the command line of `replay` for a point.
fn words(point: &Point<'_>, trace: &Path, folder: &Path) -> Vec<String> {
    let mut words = vec!["replay".to_string()];
    let of_replay = |parameter: &str| parameter != TRACE && !lacks_tier(point, parameter);
    for (parameter, setting) in point.iter().filter(|(parameter, _)| of_replay(parameter)) {
        match setting {
            Setting::Off | Setting::No => {}
            Setting::On => words.push(format!("--{parameter}")),
            Setting::Values(values) => {
                words.extend(values.iter().map(|value| format!("--{parameter}={}", in_folder(value, folder))));
            }
        }
    }
    words.extend(["--".into(), trace.display().to_string()]);
    words
}

/// Returns `value`, or the path of the file of that name next to the spec.
fn in_folder(value: &str, folder: &Path) -> String {
    let path = folder.join(value);
    let names_a_file = value.contains('/') || FILES.iter().any(|end| value.ends_with(end));
    if names_a_file && path.exists() { path.display().to_string() } else { value.into() }
}

fn ready(point: &Point<'_>, trace: &Path, folder: &Path) -> Result<Ready, Fault> {
    let args = ReplayCli::try_parse_from(words(point, trace, folder))
        .map_err(|error| Fault { message: one_line(&error.to_string()), no_room: false })?;
    let mut args = args.args;
    args.follow(trace).map_err(|error| Fault { message: format!("{error:#}"), no_room: false })?;
    let plan = args.plan().map_err(|error| Fault {
        message: format!("{error:#}"),
        no_room: error.downcast_ref::<DoesNotFit>().is_some(),
    })?;
    let ReplayPlan { runs, part, load, .. } = plan;
    let own_tenants = args.has_own_tenants();
    match <[Settings; 1]>::try_from(runs) {
        Ok([settings]) => Ok(Ready { trace: trace.into(), part, settings, load, own_tenants }),
        Err(runs) => Err(Fault {
            message: format!("a cell is one replay, but this compares {}; put the values into [grid]", runs.len()),
            no_room: false,
        }),
    }
}

/// Returns the first paragraph of an error of clap, as one line.
fn one_line(message: &str) -> String {
    let lines = message.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    lines.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").into()
}

/// Fails if a single value is to blame: every cell with the value fails, and a cell with only this value fails for an equal
/// reason.
fn blame(spec: &Spec, folder: &Path, faults: &[Option<Fault>]) -> anyhow::Result<()> {
    if faults.iter().all(Option::is_none) {
        return Ok(());
    }
    let mut stride = faults.len();
    for axis in &spec.axes {
        stride /= axis.steps.len();
        for (step, (at, parameter)) in
            (0..axis.steps.len()).flat_map(|step| axis.parameters.iter().enumerate().map(move |it| (step, it)))
        {
            let setting = &axis.steps[step][at];
            let with_it = |cell: usize| axis.steps[cell / stride % axis.steps.len()][at] == *setting;
            let of = faults.iter().enumerate().filter(|(cell, _)| with_it(*cell)).map(|(_, fault)| fault);
            let Some(message) = shared(of).filter(|_| parameter != TRACE && *setting != Setting::Off) else {
                continue;
            };
            let alone = ready(&vec![(parameter.as_str(), setting)], Path::new(TRACE), folder);
            if alone.is_err_and(|fault| fault.message == message) {
                bail!("{}.{parameter} = {}: {message}", axis.section, quoted(&setting.label()));
            }
        }
    }
    // No single value is to blame, yet nothing can be run: what is fixed does not go together.
    match shared(faults.iter()) {
        Some(message) => bail!("no cell can be run: {message}"),
        None => Ok(()),
    }
}

/// Returns the error common to all cells, unless the model does not fit the device.
fn shared<'a>(mut of: impl Iterator<Item = &'a Option<Fault>>) -> Option<&'a str> {
    let first = of.next()?.as_ref().filter(|fault| !fault.no_room)?;
    of.all(|fault| fault.as_ref().is_some_and(|fault| fault.message == first.message)).then_some(first.message.as_str())
}

/// Hashes everything with an effect on a result: the trace's bytes, the flags in any order, the settings made from the flags (a
/// hardware file counts by content), and the version of this program.
fn identity(point: &Point<'_>, trace_digest: &str, ready: Option<&Ready>) -> String {
    let mut flags: Vec<_> =
        point.iter().filter(|(parameter, setting)| *parameter != TRACE && **setting != Setting::Off).collect();
    flags.sort_by_key(|(parameter, _)| *parameter);
    let settings = ready.map(|ready| format!("{:?}", ready.settings));
    let whole = format!("{}\n{trace_digest}\n{flags:?}\n{settings:?}", env!("CARGO_PKG_VERSION"));
    let mut hash = Xxh3::new();
    hash.update(whole.as_bytes());
    format!("{:032x}", hash.digest128())
}

/// Hashes the bytes of a file.
fn digest(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read the trace {}", path.display()))?;
    let (mut hash, mut buffer) = (Xxh3::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).with_context(|| format!("cannot read the trace {}", path.display()))? {
            0 => return Ok(format!("{:032x}", hash.digest128())),
            n => hash.update(&buffer[..n]),
        }
    }
}
