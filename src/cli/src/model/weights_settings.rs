//! Placement of the weights of embedded workers: the value of `--weights`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail, ensure};
use tracing::info;
use trunkline_core::names::spec::{Param, Spec, SpecError};
use trunkline_port::WeightReads;
use trunkline_quote::quoted;
use trunkline_sim_perf::cost::WINDOW_PARAMS;
use trunkline_worker::{Model, StreamSettings};

/// Parameters of `stream` that are numbers: those of replays, but for the rate of the disk.
const PARAMS: [Param; 3] = {
    let [memory, ahead, prefill_ahead, _] = WINDOW_PARAMS;
    [memory, ahead, prefill_ahead]
};
/// Parameter of `stream` that is a path.
const DIR: &str = "dir";

/// Placement of the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// All weights in memory.
    #[default]
    Resident,
    /// A part of the weights in memory.
    Stream(Streaming),
}

/// Parameters of streamed weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// Memory for weights, MiB.
    pub memory_mib: u64,
    /// Folder of the packed weights; the folder of the model unless given.
    pub dir: Option<PathBuf>,
    /// Groups read ahead.
    pub ahead: u32,
    /// Groups read ahead in steps that run prompts.
    pub prefill_ahead: u32,
}

impl Placement {
    /// Returns the placement that the setting names.
    ///
    /// # Errors
    /// If the setting is malformed.
    pub fn of(setting: Option<&str>) -> anyhow::Result<Self> {
        setting.map_or(Ok(Self::Resident), str::parse)
    }
}

impl FromStr for Placement {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, params) = text.split_once(':').unwrap_or((text, ""));
        let parts: Vec<&str> = params.split(',').filter(|part| !part.is_empty()).collect();
        let (dirs, numbers): (Vec<&str>, Vec<&str>) = parts.iter().copied().partition(|part| is_dir(part));
        match name {
            "resident" if params.is_empty() => return Ok(Self::Resident),
            "resident" => bail!("weights 'resident' has no parameters"),
            "stream" => {}
            _ => {
                bail!("unknown place of weights {name}; there are: resident, stream:memory_mib=N", name = quoted(name))
            }
        }
        ensure!(dirs.len() <= 1, "weights 'stream' has dir twice");
        let numbers = numbers.join(",");
        ensure!(
            numbers.split(',').any(|part| part.starts_with("memory_mib=")),
            "weights 'stream' needs memory_mib=N, the memory for weights in MiB"
        );
        let spec = format!("{name}:{numbers}");
        let values = Spec::new(&spec).values(&PARAMS).map_err(|error| refused(error, &parts))?;
        let dir = dirs.first().and_then(|part| part.split_once('=')).map(|(_, path)| PathBuf::from(path));
        let ahead = values[1] as u32;
        let prefill_ahead = if values[2] == 0 { ahead } else { values[2] as u32 };
        Ok(Self::Stream(Streaming { memory_mib: values[0], dir, ahead, prefill_ahead }))
    }
}

/// Returns `true` for the parameter with a path.
fn is_dir(part: &str) -> bool {
    part.split('=').next() == Some(DIR)
}

/// Describes an error of the numbers among all `parts`.
fn refused(error: SpecError, parts: &[&str]) -> anyhow::Error {
    let with_dir = |known: String| format!("{known}, {DIR}");
    let (error, wrong) = match error {
        SpecError::UnknownKey { name, key, known } => {
            (SpecError::UnknownKey { name, key: key.clone(), known: with_dir(known) }, key)
        }
        SpecError::NoValue { name, part, known } => {
            (SpecError::NoValue { name, part: part.clone(), known: with_dir(known) }, part)
        }
        other => (other, String::new()),
    };
    let is_behind_dir = |pair: &[&str]| is_dir(pair[0]) && pair[1].split('=').next() == Some(wrong.as_str());
    match parts.windows(2).any(is_behind_dir) {
        true => anyhow!(
            "weights {error}; if it is a part of the folder: a path with a comma cannot be given, link to it from another"
        ),
        false => anyhow!("weights {error}"),
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resident => f.write_str("resident"),
            Self::Stream(Streaming { memory_mib, ahead, prefill_ahead, .. }) => {
                write!(f, "stream:memory_mib={memory_mib},ahead={ahead},prefill_ahead={prefill_ahead}")
            }
        }
    }
}

impl Streaming {
    /// Returns the settings of a model with weights of `identity` for a number of workers.
    pub fn settings(&self, identity: &str, workers: usize) -> StreamSettings {
        StreamSettings {
            memory_bytes: self.memory_mib << 20,
            folder: self.dir.clone(),
            identity: identity.to_owned(),
            workers: workers.max(1) as u32,
            ahead: self.ahead,
            prefill_ahead: self.prefill_ahead,
            retry_pause: StreamSettings::RETRY_PAUSE,
        }
    }

    /// Moves the weights of a model in memory to the folder `dir`.
    ///
    /// # Errors
    /// If no folder is given, or the weights cannot be written or do not fit.
    pub fn place(&self, model: Model, identity: &str, workers: usize) -> anyhow::Result<Model> {
        let dir =
            self.dir.as_deref().context("a model without a folder of its own needs weights 'stream' with dir=PATH")?;
        Ok(model.streamed(dir, &self.settings(identity, workers))?)
    }
}

/// Logs the places of a model's weights, if a part of them is on a disk.
pub fn report(model: &Model) {
    let Some(stream) = model.stream_info() else { return };
    if let Some(reason) = &stream.written {
        info!("wrote packed weights to {}: {reason}", stream.path.display());
    }
    info!(
        groups = stream.groups.len(),
        pinned = stream.pinned(),
        window = stream.slots,
        memory_bytes = stream.memory_bytes,
        bytes_per_step = stream.step_bytes(),
        direct = stream.is_direct,
        "weights stream from {}",
        stream.path.display()
    );
}

/// Logs the reads of streamed weights, if there were any.
pub fn report_reads(reads: &WeightReads) {
    if let (Some(hidden), Some(saved)) = (reads.hidden_share(), reads.saved_share()) {
        info!(
            steps = reads.steps,
            failed_reads = reads.failed_reads,
            bytes = reads.bytes,
            reading_ms = reads.reading_ns / 1_000_000,
            exposed_ms = reads.exposed_ns / 1_000_000,
            "weights were read, {:.1} % hidden behind computation, {:.1} % of the time without overlap saved",
            100.0 * hidden,
            100.0 * saved
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_is_read_with_its_parameters_in_any_order() {
        assert_eq!(Placement::of(None).unwrap(), Placement::Resident);
        assert_eq!("resident".parse::<Placement>().unwrap(), Placement::Resident);
        let streaming = |text: &str| match text.parse().unwrap() {
            Placement::Stream(streaming) => streaming,
            Placement::Resident => panic!("{text}"),
        };
        let plain = Streaming { memory_mib: 64, dir: None, ahead: 2, prefill_ahead: 2 };
        assert_eq!(streaming("stream:memory_mib=64"), plain);
        let dir = Some(PathBuf::from("/a=b:c/d"));
        let all = Streaming { dir, ahead: 3, prefill_ahead: 5, ..plain };
        assert_eq!(streaming("stream:prefill_ahead=5,dir=/a=b:c/d,memory_mib=64,ahead=3"), all);
        assert_eq!(all.settings("x", 2).memory_bytes, 64 << 20);
        assert_eq!(Placement::Stream(all).to_string(), "stream:memory_mib=64,ahead=3,prefill_ahead=5");
    }

    #[test]
    fn wrong_placements_get_one_line() {
        let error = |text: &str| format!("{:#}", text.parse::<Placement>().unwrap_err());
        assert_eq!(error("ssd"), "unknown place of weights 'ssd'; there are: resident, stream:memory_mib=N");
        assert_eq!(error("stream"), "weights 'stream' needs memory_mib=N, the memory for weights in MiB");
        assert_eq!(error("resident:memory_mib=1"), "weights 'resident' has no parameters");
        assert_eq!(error("stream:memory_mib=1,dir=a,dir=b"), "weights 'stream' has dir twice");
        let line = "weights 'stream': memory_mib is '0'; it must be a whole number between 1 and 1073741824";
        assert_eq!(error("stream:memory_mib=0"), line);
        let keys = "memory_mib, ahead, prefill_ahead, dir";
        let unknown = |key: &str| format!("weights 'stream' has no parameter '{key}'; it has: {keys}");
        assert_eq!(error("stream:memory_mib=1,disk_mb_s=5"), unknown("disk_mb_s"));
        let comma = "; if it is a part of the folder: a path with a comma cannot be given, link to it from another";
        let no_value = format!("weights 'stream': 'b' is not of the form key=value; the keys are: {keys}");
        assert_eq!(error("stream:memory_mib=1,b"), no_value);
        assert_eq!(error("stream:memory_mib=1,dir=a,b"), format!("{no_value}{comma}"));
        assert_eq!(error("stream:dir=a,b=c,memory_mib=1"), unknown("b") + comma);
    }
}
