//! Settings that are refused, and the table that follows from the list of settings.

use super::*;
use crate::names::registry::{RegistryError, UnknownName};
use crate::names::spec::{Param, SpecError};

fn error(policy: &str) -> ConfigError {
    Config { policy: policy.into(), ..Config::default() }.validate().unwrap_err()
}

/// Returns the fault of a parameter of a policy of the kind.
fn parameter(error: ConfigError, of: &str) -> SpecError {
    match error {
        ConfigError::Registry(RegistryError::Parameter { kind, error }) if kind == of => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_policy_and_its_parameters_are_named() {
    let names: Vec<_> = policy::REGISTRY.names().collect();
    assert!(names.starts_with(&["fcfs", "priority"]));
    for (spec, name) in [("fifo", "fifo"), ("fifo:ageing_ms=1", "fifo"), ("", "")] {
        let unknown = UnknownName { kind: "policy", name: name.into(), known: names.clone() };
        assert_eq!(error(spec), ConfigError::Registry(RegistryError::UnknownName(unknown)));
    }
    let parameter = |spec| parameter(error(spec), "policy");
    assert!(matches!(parameter("fcfs:ageing_ms=1"), SpecError::UnknownKey { key, .. } if key == "ageing_ms"));
    let known = "prompt_weight, output_weight, take_seats";
    let unknown = SpecError::UnknownKey { name: "vtc".into(), key: "weight".into(), known: known.into() };
    assert_eq!(parameter("vtc:weight=1"), unknown);
    let beyond = parameter("vtc:output_weight=1001");
    assert!(matches!(beyond, SpecError::BadValue { key: "output_weight", min: 0, max: 1000, .. }), "{beyond:?}");
    assert!(matches!(parameter("priority:ageing_ms=5s"), SpecError::BadValue { value, .. } if value == "5s"));
    assert!(matches!(parameter("priority:ageing_ms=1,ageing_ms=2"), SpecError::Twice { key: "ageing_ms", .. }));
    assert!(matches!(parameter("sjf:fast"), SpecError::NoValue { part, .. } if part == "fast"));
}

#[test]
fn an_eviction_policy_takes_parameters_as_a_policy_does() {
    let error = |eviction: &str| Config { eviction: eviction.into(), ..Config::default() }.validate().err();
    assert_eq!(error("s3fifo:small_percent=90"), None);
    let unknown = error("fifo:small_percent=90");
    let is_unknown = |error: &RegistryError| matches!(error, RegistryError::UnknownName(error) if error.name == "fifo");
    assert!(matches!(&unknown, Some(ConfigError::Registry(error)) if is_unknown(error)), "{unknown:?}");
    let parameter = |spec| parameter(error(spec).expect("a fault"), "eviction policy");
    let small = parameter("s3fifo:small_percent=0");
    assert!(matches!(small, SpecError::BadValue { key: "small_percent", min: 1, max: 90, .. }), "{small:?}");
    let known = "retain_percent, floor_percent";
    let unknown = SpecError::UnknownKey { name: "lru".into(), key: "age".into(), known: known.into() };
    assert_eq!(parameter("lru:age=1"), unknown);
    let listed = parameter("s3fifo:small");
    let all = "small_percent, retain_percent, floor_percent";
    assert!(matches!(&listed, SpecError::NoValue { known, .. } if known == all), "{listed:?}");
}

#[test]
fn every_policy_is_made_from_its_name_and_from_its_parameters() {
    for entry in policy::REGISTRY.entries() {
        let with = |param: &Param| format!("{}:{}={}", entry.name, param.key, param.max);
        for policy in std::iter::once(entry.name.to_owned()).chain(entry.params.iter().map(with)) {
            assert!(Config { policy, ..Config::default() }.make_policy().is_ok());
        }
    }
}

#[test]
fn every_setting_can_be_written_as_text_and_read_back() {
    let changed = |setting: &Setting| match setting.kind {
        Kind::U32 | Kind::U64 => "3",
        Kind::F64 | Kind::Amount => "2.5",
        Kind::Bool if setting.default_text() == "true" => "false",
        Kind::Bool => "true",
        Kind::Text if setting.name == "h2o" => "on:ratio=4",
        Kind::Text if setting.name == "prefill_first" => "chunks:await_prefix=0",
        Kind::Text => "recompute",
    };
    let mut config = Config::default();
    for setting in SETTINGS.iter().filter(|setting| !["tiers", "worker"].contains(&setting.name)) {
        let text = changed(setting);
        assert_ne!(setting.default_text(), text, "{}", setting.name);
        (setting.set)(&mut config, text).unwrap();
        assert_eq!((setting.get)(&config), text, "{}", setting.name);
        assert_eq!((setting.set)(&mut config, &setting.default_text()), Ok(()));
    }
    assert_eq!(config, Config::default());
}

#[test]
fn a_table_of_settings_says_what_users_need() {
    let target = setting("target_step_ns").unwrap();
    assert_eq!((target.flag, target.value_name, target.kind), ("target-step-ms", Some("MS"), Kind::Amount));
    assert_eq!(((target.range)(), target.default_text()), (None, "0".into()));
    let watermark = setting("launch_watermark").unwrap();
    assert_eq!((watermark.flag, (watermark.range)()), ("launch-watermark", Some(("0".into(), "1024".into()))));
    assert_eq!(watermark.help(), "Blocks that must stay usable for each running request when another is admitted.");
    let paragraphs = setting("align_chunks").unwrap();
    assert_eq!(paragraphs.help(), "End prefill chunks at block boundaries where possible.");
    assert!(setting("watermark").is_none());
    for setting in SETTINGS {
        let help = setting.help();
        assert!(help.ends_with('.') && !help.contains('['), "{}: {help}", setting.name);
    }
}

#[test]
fn text_of_no_value_is_reported_with_the_allowed_values() {
    let fault = |name: &str, text: &str| {
        let mut config = Config::default();
        let error = (setting(name).unwrap().set)(&mut config, text).unwrap_err();
        assert_eq!(config, Config::default());
        error.to_string()
    };
    assert_eq!(fault("max_queue", "many"), "max_queue is 'many'; give a whole number");
    assert_eq!(fault("max_queue", "-1"), "max_queue is '-1'; give a whole number");
    assert_eq!(fault("align_chunks", "1"), "align_chunks is '1'; give true or false");
    assert_eq!(
        fault("preemption", "x"),
        "unknown preemption 'x'; there are: swap, recompute, cost, retract, recompute_at_once, retract_at_once"
    );
    for text in ["-1", "nan", "inf", "1e300", ""] {
        assert_eq!(
            fault("copy_timeout_ns", text),
            format!("copy_timeout_ns is '{text}'; give a number of milliseconds, at least 0")
        );
    }
    let watermark = Config { swap_in_watermark: f64::NAN, ..Config::default() }.validate().unwrap_err();
    assert!(matches!(watermark, ConfigError::OutOfRange { name: "swap_in_watermark", .. }), "{watermark:?}");
}

/// A list of settings with one that is younger than the recordings.
mod younger {
    use super::super::*;

    settings! {
        /// Limits of a test.
        pub struct Limits {
            /// Blocks.
            blocks: u32 { default: 4, range: 1..=8, value: "N" }

            /// Steps.
            steps: u32 { default: 1, range: 1..=2, value: "N", recorded: unless_default }
        }

        /// All settings of a test.
        pub static LIMITS;
    }
}

#[test]
fn a_setting_younger_than_a_recording_is_left_out_at_its_default() {
    use younger::{LIMITS, Limits};
    let json = |limits: &Limits| serde_json::to_string(limits).unwrap();
    let (old, new) = (Limits::default(), Limits { steps: 2, ..Limits::default() });
    assert_eq!((json(&old).as_str(), json(&new).as_str()), (r#"{"blocks":4}"#, r#"{"blocks":4,"steps":2}"#));
    for limits in [old, new] {
        assert_eq!(serde_json::from_str::<Limits>(&json(&limits)).unwrap(), limits);
        assert_eq!(limits.check_ranges(), Ok(()));
    }
    assert!(serde_json::from_str::<Limits>(r#"{"steps":2}"#).is_err(), "blocks are in every recording");
    assert_eq!(LIMITS.iter().map(|setting| setting.flag).collect::<Vec<_>>(), ["blocks", "steps"]);
}

#[test]
fn host_memory_of_swaps_and_of_a_tier_together_stays_within_the_range_of_a_table() {
    let host = TierConfig {
        name: "host".into(),
        blocks: 1 << 20,
        write: Write::Through,
        eviction: "lru".into(),
        shared: false,
    };
    let with = |host_blocks| Config { host_blocks, tiers: vec![host.clone()], ..Config::default() }.validate();
    assert_eq!(with(TOKENS_MAX - (1 << 20)), Ok(()));
    let error = with(TOKENS_MAX).unwrap_err();
    let sum = (TOKENS_MAX + (1 << 20)).to_string();
    assert!(matches!(&error, ConfigError::OutOfRange { value, .. } if *value == sum), "{error:?}");
}

#[test]
fn what_copies_do_not_go_with_is_named_as_users_write_it() {
    let error = |change: fn(&mut Config)| {
        let mut config = Config::default();
        config.worker.reuse.anywhere = 64;
        assert_eq!(config.validate(), Ok(()));
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    for (setting, change) in [
        ("--h2o probe", (|config| config.h2o.mode = crate::h2o::Mode::Probe) as fn(&mut Config)),
        ("--prefill-first", |config| config.prefill_first = PrefillFirst::Padded),
        ("--reserve-prompts false", |config| config.reserve_prompts = false),
    ] {
        let message = error(change);
        let (begin, end) = (format!("--reuse-anywhere does not go with {setting}: "), "; leave out one of the two");
        assert!(message.starts_with(&begin) && message.ends_with(end), "{message}");
    }
}
