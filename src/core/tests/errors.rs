//! The texts of all errors of the core.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use error_texts::texts;
use trunkline_core::h2o::SettingsError;
use trunkline_core::names::registry::{RegistryError, UnknownName};
use trunkline_core::names::spec::SpecError;
use trunkline_core::request::retention::RetentionError;
use trunkline_core::{ConfigError, Refusal};

fn unknown_name() -> UnknownName {
    UnknownName { kind: "policy", name: "lifo".into(), known: vec!["fcfs", "sjf"] }
}

fn unknown_key() -> SpecError {
    SpecError::UnknownKey { name: "sjf".into(), key: "age".into(), known: "ageing_ms".into() }
}

fn out_of_range() -> SettingsError {
    let (value, min, max) = ("1.7".into(), "0".into(), "1".into());
    SettingsError::OutOfRange { name: "h2o alpha", value, min, max }
}

fn config(out: &mut String) {
    texts!(
        out,
        ConfigError {
            OutOfRange: ConfigError::OutOfRange {
                name: "block_size",
                value: "0".into(),
                min: "1".into(),
                max: "512".into(),
            },
            Malformed: ConfigError::Malformed { name: "block_size", value: "ten".into(), expected: "a whole number" },
            BatchTokensBelowSize: ConfigError::BatchTokensBelowSize { tokens: 8, size: 16 },
            StepLogitsBelowSize: ConfigError::StepLogitsBelowSize { logits: 8, size: 16 },
            Registry: ConfigError::Registry(RegistryError::UnknownName(unknown_name())),
            Unknown: ConfigError::Unknown(unknown_name()),
            H2o: ConfigError::H2o(out_of_range()),
            MalformedH2o: ConfigError::MalformedH2o { key: "alpha".into(), value: "much".into() },
            H2oWeights: ConfigError::H2oWeights { weights: 3, groups: 2 },
            UnknownH2o: ConfigError::UnknownH2o { key: "beta".into(), keys: "alpha, block".into() },
            TooManyTiers: ConfigError::TooManyTiers { n: 9, max: 3 },
            GroupBlocks: ConfigError::GroupBlocks { n: 4, blocks: 2_000_000_000, max: 1_000_000_000 },
            TooManyGroups: ConfigError::TooManyGroups { n: 99, max: 64 },
            ReuseAnywhere: ConfigError::ReuseAnywhere {
                setting: "--h2o on",
                reason: "dropped tokens cannot be copied"
            },
            EmptyWindow: ConfigError::EmptyWindow,
        }
    );
    texts!(
        out,
        SettingsError {
            OutOfRange: out_of_range(),
            NoMultiple: SettingsError::NoMultiple { block_tokens: 48, kv_block: 32 },
        }
    );
}

fn names(out: &mut String) {
    texts!(out, UnknownName = unknown_name());
    texts!(
        out,
        RegistryError {
            UnknownName: RegistryError::UnknownName(unknown_name()),
            Parameter: RegistryError::Parameter { kind: "policy", error: unknown_key() },
        }
    );
    texts!(
        out,
        SpecError {
            UnknownKey: unknown_key(),
            BadValue: SpecError::BadValue {
                name: "sjf".into(),
                key: "ageing_ms",
                value: "-1".into(),
                min: 0,
                max: 1_000
            },
            Twice: SpecError::Twice { name: "sjf".into(), key: "ageing_ms" },
            NoValue: SpecError::NoValue { name: "sjf".into(), part: "ageing_ms".into(), known: "ageing_ms".into() },
        }
    );
}

fn requests(out: &mut String) {
    texts!(
        out,
        Refusal {
            EmptyPrompt: Refusal::EmptyPrompt,
            NoTokensAsked: Refusal::NoTokensAsked,
            ContextTooLong: Refusal::ContextTooLong { prompt_tokens: 900, max_tokens: 200, context: 1_000 },
            NeverFits: Refusal::NeverFits { prompt_tokens: 900, max_tokens: 200, needed: 69, capacity: 64 },
            QueueFull: Refusal::QueueFull { limit: 1_024 },
            QueueTokensFull: Refusal::QueueTokensFull { queued_tokens: 4_000, limit: 4_096 },
            Draining: Refusal::Draining,
            NoEngine: Refusal::NoEngine,
            DuplicateId: Refusal::DuplicateId,
            ReservedId: Refusal::ReservedId,
            PrefetchesFull: Refusal::PrefetchesFull { limit: 8 },
            Retention: Refusal::Retention(RetentionError::TooMany { n: 17 }),
        }
    );
    texts!(
        out,
        RetentionError {
            TooMany: RetentionError::TooMany { n: 17 },
            Priority: RetentionError::Priority { at: 1, priority: 101 },
            Empty: RetentionError::Empty { at: 1, from: 8, to: 8 },
            Unordered: RetentionError::Unordered { at: 1, from: 8 },
            LivesBelowDefault: RetentionError::LivesBelowDefault { at: 1 },
            DemotesAboveEarly: RetentionError::DemotesAboveEarly { at: 1 },
            PinTime: RetentionError::PinTime { at: 1 },
            PinsBelowHighest: RetentionError::PinsBelowHighest { at: 1 },
        }
    );
}

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut out = String::new();
    config(&mut out);
    names(&mut out);
    requests(&mut out);
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), &out);
}
