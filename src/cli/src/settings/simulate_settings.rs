//! Settings of a simulated device: flags of `serve`, and the fleet of the simulator made from them.

use std::path::Path;

use anyhow::{bail, ensure};
use clap::Args;
use trunkline_port::Token;
use trunkline_quote::quoted;
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::Settings as Fleet;
use trunkline_text::Tokenizer;

use crate::model::model_source::{ModelSource, log_facts};
use crate::model::simulated::text::TextKind;

/// Model without `--model`, as for `replay`.
const MODEL_DEFAULT: &str = "llama-3.1-8b";
/// End token of text that is cut into bytes.
const BYTES_END: Token = 257;

/// Settings of a device that is simulated.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Simulated device")]
pub struct SimulateSettings {
    /// Serve without a device: steps take the time that the simulator's cost model gives them on HARDWARE, a preset such as h100-80g or a
    /// TOML file as `trunkline calibrate` writes; an unknown name lists all presets. --model is then a preset, a Hugging Face folder or its
    /// config.json, and the number of KV blocks fits the device [default: none].
    #[arg(long, value_name = "HARDWARE")]
    pub simulate: Option<String>,

    /// Simulated devices of each worker: tp2 for tensor parallel, pp2 for pipeline parallel, tp2pp2 for both, tp2ep2 for whole experts on each
    /// device [default: tp1].
    #[arg(long, value_name = "SHAPE")]
    pub parallel: Option<String>,

    /// Cost model of the simulated steps: auto, roofline, fitted, or table:FOLDER, as for `replay` [default: auto].
    #[arg(long, value_name = "SPEC")]
    pub cost: Option<String>,

    /// Time of the engine around the kernels of each simulated step, STEP_US or STEP_US:SEQUENCE_US, as for `replay` [default: 0].
    #[arg(long, value_name = "US")]
    pub engine_overhead: Option<String>,

    /// Text of simulated answers: random (a built-in passage from a sentence picked by the request's seed, up to the limit of tokens)
    /// or echo (the prompt) [default: random].
    #[arg(long, value_name = "KIND")]
    pub simulate_text: Option<String>,
}

/// A device to simulate, checked.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The device, the model and the cost model of the simulator; the limits of the core are set later.
    pub fleet: Fleet,
    pub text: TextKind,
}

impl SimulateSettings {
    /// Returns the device to simulate with `model` and the placement `weights`; `None` if no device is named.
    ///
    /// # Errors
    /// If a name is unknown, or a flag of simulated devices is given without a device.
    pub fn simulation(&self, model: Option<&Path>, weights: Option<&str>) -> anyhow::Result<Option<Simulation>> {
        let of_devices = [
            ("parallel", &self.parallel),
            ("cost", &self.cost),
            ("engine-overhead", &self.engine_overhead),
            ("simulate-text", &self.simulate_text),
        ];
        let Some(name) = &self.simulate else {
            return match of_devices.iter().find(|(_, value)| value.is_some()) {
                Some((flag, _)) => bail!("{flag} is given without simulate; name the hardware to simulate"),
                None => Ok(None),
            };
        };
        let hardware = hardware::find(name)?;
        let mut fleet = Fleet::new(hardware, shape(model)?);
        if let Some(text) = &self.parallel {
            fleet.parallel = text.parse()?;
            ensure!(
                fleet.parallel.data == 1,
                "parallel is {text}; a simulated worker has no dp: replay has groups of replicas in lock step",
                text = quoted(text)
            );
        }
        if let Some(text) = &self.cost {
            fleet.cost = text.parse()?;
        }
        if let Some(text) = &self.engine_overhead {
            fleet.engine_overhead = text.parse()?;
        }
        if let Some(text) = weights {
            fleet.weights = text.parse()?;
        }
        fleet.validate()?;
        let text = self.simulate_text.as_deref().map(str::parse).transpose()?.unwrap_or_default();
        Ok(Some(Simulation { fleet, text }))
    }
}

/// Returns the shape of a model: a preset, a folder, or a config.json.
fn shape(model: Option<&Path>) -> anyhow::Result<model::Model> {
    let path = model.map_or(MODEL_DEFAULT.into(), Path::to_string_lossy);
    Ok(model::find(&path)?)
}

/// Returns the tokenizer next to a model's config.json with the tokens that end an answer, or that of bytes if there is none.
///
/// # Errors
/// If a file cannot be read.
pub fn tokenizer(model: Option<&Path>) -> anyhow::Result<(Tokenizer, Vec<Token>)> {
    let folder = match model {
        Some(path) if path.is_dir() => Some(path),
        Some(path) if path.is_file() => path.parent(),
        _ => None,
    };
    let Some(folder) = folder.filter(|folder| folder.join("tokenizer.json").exists()) else {
        return Ok((Tokenizer::bytes(), vec![BYTES_END]));
    };
    let source = ModelSource::Path(folder);
    let (tokenizer, facts) = (source.tokenizer()?, source.facts()?);
    log_facts(&folder.display().to_string(), &facts);
    Ok((tokenizer, facts.end_ids()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(settings: &SimulateSettings, model: Option<&str>) -> String {
        format!("{:#}", settings.simulation(model.map(Path::new), None).unwrap_err())
    }

    fn on(hardware: &str) -> SimulateSettings {
        SimulateSettings { simulate: Some(hardware.into()), ..SimulateSettings::default() }
    }

    #[test]
    fn a_device_has_the_model_and_the_shape_that_are_given() {
        assert!(SimulateSettings::default().simulation(None, None).unwrap().is_none());
        let simulation = on("h100-80g").simulation(None, None).unwrap().unwrap();
        assert_eq!((simulation.fleet.hardware.name, simulation.fleet.model.name), ("h100-80g", MODEL_DEFAULT));
        assert_eq!(simulation.text, TextKind::Random);
        let settings = SimulateSettings {
            parallel: Some("tp4".into()),
            simulate_text: Some("echo".into()),
            cost: Some("roofline".into()),
            ..on("h100-80g")
        };
        let simulation = settings.simulation(Some(Path::new("llama-3.1-70b")), None).unwrap().unwrap();
        assert_eq!((simulation.fleet.parallel.tensor, simulation.text), (4, TextKind::Echo));
    }

    #[test]
    fn wrong_settings_get_one_line() {
        let message = error(&on("tpu"), None);
        assert!(message.starts_with("unknown hardware 'tpu'; there are: h100-80g, h200-141g, "), "{message}");
        let message = error(&on("h100-80g"), Some("no.gguf"));
        assert!(message.starts_with("unknown model 'no.gguf'; there are: "), "{message}");
        let alone = SimulateSettings { cost: Some("auto".into()), ..SimulateSettings::default() };
        assert_eq!(error(&alone, None), "cost is given without simulate; name the hardware to simulate");
        let bad = SimulateSettings { simulate_text: Some("poem".into()), ..on("h100-80g") };
        assert_eq!(error(&bad, None), "unknown simulate-text 'poem'; there are: random, echo");
        let bad = SimulateSettings { parallel: Some("dp2ep2".into()), ..on("h100-80g") };
        let message = error(&bad, Some("qwen3-30b-a3b"));
        assert!(message.starts_with("parallel is 'dp2ep2'; a simulated worker has no dp"), "{message}");
        let bad = SimulateSettings { engine_overhead: Some("1:2:3".into()), ..on("h100-80g") };
        assert!(error(&bad, None).starts_with("engine overhead '1:2:3' is not STEP_US or STEP_US:SEQUENCE_US"));
    }

    #[test]
    fn a_folder_lends_its_tokenizer_and_its_end_token() {
        let (bytes, end) = tokenizer(Some(Path::new("llama-3.1-8b"))).unwrap();
        assert_eq!((bytes.vocab_size(), end), (258, vec![BYTES_END]));
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.json");
        std::fs::write(&config, "{\"eos_token_id\": [7, 8]}").unwrap();
        assert_eq!(tokenizer(Some(&config)).unwrap().1, [BYTES_END], "there is no tokenizer.json");
        let small_world = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/small-world"));
        let facts = ModelSource::BuiltIn.facts().unwrap();
        assert_eq!(tokenizer(Some(small_world)).unwrap().1, facts.end_ids());
    }
}
