//! Longest time of a step that also decodes, and the form as text: `3x`, `50` in milliseconds, `0` for none.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Longest target in milliseconds: an hour.
const MS_MAX: f64 = 3.6e6;
/// Largest multiple of the time of a step of decodes alone.
const TIMES_MAX: f64 = 1e6;

/// Longest time of a step that runs prompt tokens alongside decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum StepTarget {
    /// No limit.
    #[default]
    Off,
    /// So many nanoseconds.
    Ns(u64),
    /// So many times what the same decodes take alone, as measured.
    Times(f64),
}

/// A target in a recording: nanoseconds, or a text such as `3x`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Ns(u64),
    Text(String),
}

impl StepTarget {
    /// Default of a server: with other clients' prompts, a stream gets its tokens at a third of its pace at worst, and a prompt alongside
    /// decodes still gets two thirds of the worker's time.
    pub const SERVED: Self = Self::Times(3.0);

    /// Description of the texts allowed.
    pub(super) const EXPECTED: &'static str =
        "milliseconds from 0, which is off, to 3600000, or times of a step of decodes alone, as 3x";
}

impl fmt::Display for StepTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => write!(f, "0"),
            Self::Ns(ns) => write!(f, "{}", *ns as f64 / 1e6),
            Self::Times(times) => write!(f, "{times}x"),
        }
    }
}

impl FromStr for StepTarget {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let number =
            |text: &str, min: f64, max: f64| text.parse::<f64>().ok().filter(|number| (min..=max).contains(number));
        let target = match text.strip_suffix('x') {
            _ if text == "off" => Some(Self::Off),
            Some(times) => number(times, 1.0, TIMES_MAX).map(Self::Times),
            None => number(text, 0.0, MS_MAX).map(|ms| Self::from((ms * 1e6).round() as u64)),
        };
        let malformed =
            || ConfigError::Malformed { name: "target_step_ms", value: text.into(), expected: Self::EXPECTED };
        target.ok_or_else(malformed)
    }
}

impl From<u64> for StepTarget {
    fn from(ns: u64) -> Self {
        if ns == 0 { Self::Off } else { Self::Ns(ns) }
    }
}

impl TryFrom<Written> for StepTarget {
    type Error = ConfigError;

    fn try_from(written: Written) -> Result<Self, ConfigError> {
        match written {
            Written::Ns(ns) => Ok(ns.into()),
            Written::Text(text) => text.parse(),
        }
    }
}

impl From<StepTarget> for Written {
    fn from(target: StepTarget) -> Self {
        match target {
            StepTarget::Off => Self::Ns(0),
            StepTarget::Ns(ns) => Self::Ns(ns),
            StepTarget::Times(_) => Self::Text(target.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_written_as_users_and_recordings_write_it() {
        let cases = [
            ("0", "0", StepTarget::Off),
            ("2.5", "2500000", StepTarget::Ns(2_500_000)),
            ("3x", r#""3x""#, StepTarget::Times(3.0)),
            ("1.5x", r#""1.5x""#, StepTarget::Times(1.5)),
        ];
        for (text, json, target) in cases {
            assert_eq!((text.parse(), target.to_string().as_str()), (Ok(target), text));
            assert_eq!(serde_json::to_string(&target).unwrap(), json);
            assert_eq!(serde_json::from_str::<StepTarget>(json).unwrap(), target);
        }
        assert_eq!("off".parse(), Ok(StepTarget::Off));
    }

    #[test]
    fn other_texts_are_refused_and_named() {
        for text in ["", "x", "-1", "nan", "inf", "0.9x", "-3x", "nanx", "infx", "1e7x", "3600001", "3 x", "auto"] {
            let error = text.parse::<StepTarget>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("target_step_ms is '{text}'; give milliseconds from 0")), "{error}");
            let json = serde_json::to_string(text).unwrap();
            assert!(serde_json::from_str::<StepTarget>(&json).is_err());
        }
    }
}
