//! Placement of the weights of embedded workers: the value of `--weights`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail, ensure};
use tracing::info;
use trunkline_core::names::registry;
use trunkline_core::names::spec::{Param, Spec, SpecError};
use trunkline_port::WeightReads;
use trunkline_quote::quoted;
use trunkline_sim_perf::cost::WINDOW_PARAMS;
use trunkline_worker::{Compression, Form, Model, StreamSettings};

/// Parameters of `stream` that are numbers: those of replays, but for what they say of the disk, and the reads in flight.
const PARAMS: [Param; 5] = {
    let [memory, ahead, prefill_ahead, _, _] = WINDOW_PARAMS;
    let reads = Param { key: "reads", about: "reads in flight", default: 2, min: 1, max: 16 };
    let about = "the same in steps that run prompts; 0 is reads";
    [memory, ahead, prefill_ahead, reads, Param { key: "prefill_reads", about, default: 0, min: 0, max: 16 }]
};
/// Parameter of `stream` that is a path.
const DIR: &str = "dir";
/// Parameter of `stream` that is a word.
const COMPRESS: &str = "compress";
/// Words of [`COMPRESS`].
const COMPRESSIONS: [(&str, Compression); 3] =
    [("auto", Compression::Auto), ("on", Compression::On), ("off", Compression::Off)];

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
    /// Reads in flight.
    pub reads: u32,
    /// Reads in flight in steps that run prompts.
    pub prefill_reads: u32,
    /// Compression of the packed weights.
    pub compression: Compression,
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
        let (dirs, others): (Vec<&str>, Vec<&str>) = parts.iter().copied().partition(|part| is_dir(part));
        let (words, numbers): (Vec<&str>, Vec<&str>) = others.into_iter().partition(|part| key_of(part) == COMPRESS);
        match name {
            "resident" if params.is_empty() => return Ok(Self::Resident),
            "resident" => bail!("weights 'resident' has no parameters"),
            "stream" => {}
            _ => {
                bail!("unknown place of weights {name}; there are: resident, stream:memory_mib=N", name = quoted(name))
            }
        }
        ensure!(dirs.len() <= 1, "weights 'stream' has dir twice");
        ensure!(words.len() <= 1, "weights 'stream' has compress twice");
        let word = words.first().map_or("auto", |part| part.split_once('=').map_or("", |(_, word)| word));
        let compression = registry::choose("compress of weights 'stream'", &COMPRESSIONS, word)?;
        let numbers = numbers.join(",");
        ensure!(
            numbers.split(',').any(|part| part.starts_with("memory_mib=")),
            "weights 'stream' needs memory_mib=N, the memory for weights in MiB"
        );
        let spec = format!("{name}:{numbers}");
        let values = Spec::new(&spec).values(&PARAMS).map_err(|error| refused(error, &parts))?;
        let dir = dirs.first().and_then(|part| part.split_once('=')).map(|(_, path)| PathBuf::from(path));
        let (ahead, reads) = (values[1] as u32, values[3] as u32);
        let prefill_ahead = if values[2] == 0 { ahead } else { values[2] as u32 };
        let prefill_reads = if values[4] == 0 { reads } else { values[4] as u32 };
        let memory_mib = values[0];
        Ok(Self::Stream(Streaming { memory_mib, dir, ahead, prefill_ahead, reads, prefill_reads, compression }))
    }
}

fn key_of(part: &str) -> &str {
    part.split('=').next().unwrap_or(part)
}

/// Returns `true` for the parameter with a path.
fn is_dir(part: &str) -> bool {
    key_of(part) == DIR
}

/// Describes an error of the numbers among all `parts`.
fn refused(error: SpecError, parts: &[&str]) -> anyhow::Error {
    let with_dir = |known: String| format!("{known}, {COMPRESS}, {DIR}");
    let (error, wrong) = match error {
        SpecError::UnknownKey { name, key, known } => {
            (SpecError::UnknownKey { name, key: key.clone(), known: with_dir(known) }, key)
        }
        SpecError::NoValue { name, part, known } => {
            (SpecError::NoValue { name, part: part.clone(), known: with_dir(known) }, part)
        }
        other => (other, String::new()),
    };
    let is_behind_dir = |pair: &[&str]| is_dir(pair[0]) && key_of(pair[1]) == wrong;
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
            Self::Stream(Streaming { memory_mib, ahead, prefill_ahead, reads, prefill_reads, compression, .. }) => {
                let compress = COMPRESSIONS.iter().find(|(_, of)| of == compression).map_or("auto", |(word, _)| word);
                write!(f, "stream:memory_mib={memory_mib},ahead={ahead},prefill_ahead={prefill_ahead},")?;
                write!(f, "reads={reads},prefill_reads={prefill_reads},{COMPRESS}={compress}")
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
            reads: self.reads,
            prefill_reads: self.prefill_reads,
            compression: self.compression,
            retry_pause: StreamSettings::RETRY_PAUSE,
        }
    }

    /// Moves the weights of a model in memory to the folder `dir`.
    ///
    /// # Errors
    /// If no folder is given, or the weights cannot be written or do not fit.
    pub fn place(&self, model: Model, identity: &str, workers: usize) -> anyhow::Result<Model> {
        Ok(model.streamed(self.folder()?, &self.settings(identity, workers))?)
    }

    /// Returns the folder for the packed weights of a model without a folder of its own.
    ///
    /// # Errors
    /// If none is given.
    pub fn folder(&self) -> anyhow::Result<&Path> {
        self.dir.as_deref().context("a model without a folder of its own needs weights 'stream' with dir=PATH")
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
        form = stream.form.name(),
        "weights stream from {}",
        stream.path.display()
    );
    if let Some(learned) = &stream.learned {
        let us = |form| learned.us_per_byte(form) * 1e6;
        let forms = learned.forms.each_ref().map(|of| {
            let (name, percent) = (of.form.name(), 100.0 * of.share);
            format!("{name}: {percent:.1} % of the bytes, decoded at {:.0} MB/s, {:.0} us", of.decode_mb_s, us(of.form))
        });
        let (rate, reads, plain) = (learned.disk_mb_s, learned.reads, us(Form::Plain));
        let forms = forms.join("; ");
        info!(
            "a MB of weights when the file was written: plain, read at {rate:.0} MB/s with {reads} reads in flight, {plain:.0} us; {forms}"
        );
    }
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
        let plain = Streaming {
            memory_mib: 64,
            dir: None,
            ahead: 2,
            prefill_ahead: 2,
            reads: 2,
            prefill_reads: 2,
            compression: Compression::Auto,
        };
        assert_eq!(streaming("stream:memory_mib=64"), plain);
        let dir = Some(PathBuf::from("/a=b:c/d"));
        let compression = Compression::On;
        let all = Streaming { dir, ahead: 3, prefill_ahead: 5, reads: 4, prefill_reads: 1, compression, ..plain };
        let text = "stream:prefill_ahead=5,dir=/a=b:c/d,memory_mib=64,compress=on,reads=4,prefill_reads=1,ahead=3";
        assert_eq!(streaming(text), all);
        let settings = all.settings("x", 2);
        assert_eq!((settings.memory_bytes, settings.compression), (64 << 20, Compression::On));
        assert_eq!((settings.reads, settings.prefill_reads), (4, 1));
        let text = "stream:memory_mib=64,ahead=3,prefill_ahead=5,reads=4,prefill_reads=1,compress=on";
        assert_eq!(Placement::Stream(all).to_string(), text);
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
        assert_eq!(
            error("stream:memory_mib=1,compress=no"),
            "unknown compress of weights 'stream' 'no'; there are: auto, on, off"
        );
        assert_eq!(error("stream:memory_mib=1,compress=on,compress=off"), "weights 'stream' has compress twice");
        let keys = "memory_mib, ahead, prefill_ahead, reads, prefill_reads, compress, dir";
        let unknown = |key: &str| format!("weights 'stream' has no parameter '{key}'; it has: {keys}");
        assert_eq!(error("stream:memory_mib=1,disk_mb_s=5"), unknown("disk_mb_s"));
        let comma = "; if it is a part of the folder: a path with a comma cannot be given, link to it from another";
        let no_value = format!("weights 'stream': 'b' is not of the form key=value; the keys are: {keys}");
        assert_eq!(error("stream:memory_mib=1,b"), no_value);
        assert_eq!(error("stream:memory_mib=1,dir=a,b"), format!("{no_value}{comma}"));
        assert_eq!(error("stream:dir=a,b=c,memory_mib=1"), unknown("b") + comma);
    }
}
