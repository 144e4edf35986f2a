//! Note on KV blocks that are estimated for an engine.

use super::settings::SettingsArgs;

/// Note below a report whose KV blocks are an estimate.
const NOTE: &str = "\nnote: the number of KV blocks is an estimate, within 6 % of six runs of vLLM and not compared with other engines; \
                    give the number in the engine's log with --device-blocks";

/// Returns the note if an engine is imitated and nobody gave the number of its blocks, else nothing.
pub(crate) fn note(args: &SettingsArgs) -> &'static str {
    if args.estimates_blocks() { NOTE } else { "" }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: SettingsArgs,
    }

    #[test]
    fn blocks_of_an_engine_are_an_estimate_unless_given() {
        let of = |words: &str| note(&Cli::parse_from(words.split(' ')).settings);
        assert!(of("replay --engine vllm-v1").contains("--device-blocks"));
        assert!(of("replay --engine vllm-v1 --gpu-memory-utilization 0.9").contains("--device-blocks"));
        assert_eq!(of("replay --engine vllm-v1 --device-blocks 2587"), "");
        assert_eq!(of("replay --model llama-3.1-8b"), "");
    }
}
