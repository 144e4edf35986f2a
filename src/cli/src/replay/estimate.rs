//! Notes on KV blocks that are estimated for an engine, or taken from the log of one.

use trunkline_sim_replay::Settings;
use trunkline_sim_replay::log_class::LogClass;

use super::settings::SettingsArgs;

/// Returns the notes below a report on fleets: of the memory of a device of each kind and of how sure it is, if an engine is imitated and nobody gave the
/// number of its blocks, or of the log that gave it; else nothing.
pub(crate) fn notes(args: &SettingsArgs, fleets: &[Settings]) -> String {
    let mut notes: Vec<String> = fleets.iter().map(|settings| note(args, settings)).collect();
    notes.dedup();
    notes.concat()
}

fn note(args: &SettingsArgs, settings: &Settings) -> String {
    if let Some(log) = args.engine_log() {
        return format!("\nnote: the number of KV blocks is that of {}", log.display());
    }
    if !args.estimates_blocks() {
        return String::new();
    }
    let [(release, least), (newest, most)] = settings.memory_parts();
    let class = LogClass::of(settings);
    let mut text = format!(
        "\nmemory of {}: {least}\nnote: the number of KV blocks is an estimate; {class}",
        settings.hardware.name
    );
    if let (Some(release), Some(newest)) = (release, newest)
        && release != newest
    {
        text += &format!(
            "; as vLLM {release} counts, {newest} has {:.2} GiB for KV: name the release as in --engine vllm-v1@{newest}",
            most.kv() as f64 / f64::from(1 << 30)
        );
    }
    text + "; --engine-log FILE takes the number of your engine's log"
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use trunkline_sim_replay::Arrivals;

    use super::*;
    use crate::replay::settings::runs;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: SettingsArgs,
    }

    #[test]
    fn blocks_of_an_engine_are_an_estimate_unless_given() {
        let of = |words: &str| {
            let args = Cli::parse_from(words.split(' ')).settings;
            let runs = runs(&args, Arrivals::Traced { speed: 1.0 }).unwrap();
            notes(&args, &runs.settings)
        };
        let any = of("replay --engine vllm-v1");
        assert!(any.starts_with("\nmemory of h100-80g: 71.26 of 79.18 GiB: weights 14.96, workspace 4."), "{any}");
        assert!(any.contains("as vLLM 0.8 counts") && any.contains("--engine vllm-v1@0."), "{any}");
        let one = of("replay --engine vllm-v1@0.11 --gpu-memory-utilization 0.8");
        assert!(one.contains("63.34 of 79.18 GiB") && !one.contains("name the release"), "{one}");
        assert_eq!(of("replay --engine vllm-v1 --device-blocks 2587"), "");
        assert_eq!(of("replay --model llama-3.1-8b"), "");
    }
}
