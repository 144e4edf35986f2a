//! Changes of a recorded run: one that was not made, but could have been.

use std::fmt;
use std::str::FromStr;

use trunkline_cluster::{ClusterConfig, Input};
use trunkline_core::config::{Kind, Setting, setting};
use trunkline_core::core::event::Event;
use trunkline_core::{ConfigError, RequestId};
use trunkline_quote::quoted;

/// Change of a recorded run.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A request never came.
    Without(RequestId),
    /// Requests come without retention hints, and no prefetch comes.
    WithoutHints,
    /// Another router chooses the engines.
    Router(String),
    /// A setting of all engines has another value.
    Setting {
        /// Name of the setting, as in recordings: `device_blocks`.
        name: &'static str,
        /// Value.
        value: Value,
    },
}

/// New value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// This text.
    Text(String),
    /// So much more than recorded.
    Plus(u64),
    /// So many times the recorded number.
    Times(f64),
}

/// Change that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Text without the sign `=`.
    #[error("the change is {}; give without=REQUEST, hints=false, router=NAME, or SETTING=VALUE such as device-blocks=+1000", quoted(.0))]
    Form(String),
    /// Number of no request.
    #[error("without={}: not the number of a request; the server's log has it as `number`", quoted(.0))]
    Request(String),
    /// Hints that are not switched off.
    #[error("hints={}: recorded hints can only be left out; give hints=false", quoted(.0))]
    Hints(String),
    /// Unknown setting.
    #[error("there is no setting {}; `trunkline replay --help` lists the settings of an engine", quoted(.0))]
    Name(String),
    /// Another size of blocks.
    #[error(
        "block-size cannot be changed: the recorded copies are of blocks of the recorded size; change device-blocks"
    )]
    BlockSize,
    /// Relative value of a setting that is not a number.
    #[error("{name} is not a number of things, so it cannot grow by {}; give a value", quoted(text))]
    Relative {
        /// Name of the setting.
        name: &'static str,
        /// Value as given.
        text: String,
    },
}

impl FromStr for Change {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Self, ChangeError> {
        let (name, value) = text.split_once('=').ok_or_else(|| ChangeError::Form(text.into()))?;
        match name {
            "without" => {
                value.parse().map(|id| Self::Without(RequestId(id))).map_err(|_| ChangeError::Request(value.into()))
            }
            "hints" if value == "false" => Ok(Self::WithoutHints),
            "hints" => Err(ChangeError::Hints(value.into())),
            "router" => Ok(Self::Router(value.into())),
            _ => {
                let setting = setting(&name.replace('-', "_")).ok_or_else(|| ChangeError::Name(name.into()))?;
                if setting.name == "block_size" {
                    return Err(ChangeError::BlockSize);
                }
                Ok(Self::Setting { name: setting.name, value: Value::parse(setting, value)? })
            }
        }
    }
}

impl Value {
    fn parse(setting: &Setting, text: &str) -> Result<Self, ChangeError> {
        let fail = || ChangeError::Relative { name: setting.name, text: text.into() };
        let is_count = matches!(setting.kind, Kind::U32 | Kind::U64);
        if let Some(more) = text.strip_prefix('+') {
            return more.parse().ok().filter(|_| is_count).map(Self::Plus).ok_or_else(fail);
        }
        if let Some(times) = text.strip_prefix('x').filter(|_| is_count) {
            let times = times.parse().ok().filter(|times: &f64| times.is_finite() && *times > 0.0);
            return times.map(Self::Times).ok_or_else(fail);
        }
        Ok(Self::Text(text.into()))
    }

    /// Returns the value, given the recorded one.
    fn text(&self, recorded: &str) -> String {
        let recorded: u64 = recorded.parse().unwrap_or(0);
        match self {
            Self::Text(text) => text.clone(),
            Self::Plus(more) => recorded.saturating_add(*more).to_string(),
            Self::Times(times) => ((recorded as f64 * times).round() as u64).to_string(),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Without(request) => write!(f, "without={request}"),
            Self::WithoutHints => f.write_str("hints=false"),
            Self::Router(router) => write!(f, "router={router}"),
            Self::Setting { name, value } => {
                write!(f, "{}=", name.replace('_', "-"))?;
                match value {
                    Value::Text(text) => f.write_str(text),
                    Value::Plus(more) => write!(f, "+{more}"),
                    Value::Times(times) => write!(f, "x{times}"),
                }
            }
        }
    }
}

impl serde::Serialize for Change {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Change {
    /// Changes the settings of a cluster.
    ///
    /// # Errors
    /// If a value is not one of its setting.
    pub fn apply(&self, cluster: &mut ClusterConfig) -> Result<(), ConfigError> {
        match self {
            Self::Without(_) | Self::WithoutHints => {}
            Self::Router(router) => cluster.router.clone_from(router),
            Self::Setting { name, value } => {
                let setting = setting(name).expect("the name is one of a setting");
                for engine in &mut cluster.engines {
                    let text = value.text(&(setting.get)(&engine.core));
                    (setting.set)(&mut engine.core, &text)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the flag of a server with the change, given the recorded settings; `None` if a server has none.
    pub fn flag(&self, recorded: &ClusterConfig) -> Option<String> {
        match self {
            Self::Without(_) | Self::WithoutHints => None,
            Self::Router(router) => Some(format!("--router {router}")),
            Self::Setting { name, value } => {
                let setting = setting(name)?;
                Some(format!("--{} {}", setting.flag, value.text(&(setting.get)(&recorded.engines[0].core))))
            }
        }
    }

    /// Returns an input of a client as it comes with the change; `None` if it does not come.
    pub(super) fn input(&self, mut input: Input) -> Option<Input> {
        let (Input::Client(event) | Input::Engine(_, event)) = &mut input else { return Some(input) };
        match (self, &mut *event) {
            (Self::Without(id), Event::Submit(request)) if request.id == *id => return None,
            (Self::WithoutHints, Event::Submit(request)) if request.prefetch => return None,
            (Self::WithoutHints, Event::Submit(request)) => request.retention.clear(),
            _ => {}
        }
        Some(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_core::Config;

    #[test]
    fn changes_are_written_as_they_are_read() {
        for text in [
            "without=17",
            "hints=false",
            "router=random2:seed=3",
            "policy=sjf",
            "device-blocks=+500",
            "device-blocks=x2",
        ] {
            assert_eq!(text.parse::<Change>().unwrap().to_string(), text);
        }
        let fail = |text: &str| text.parse::<Change>().unwrap_err().to_string();
        assert!(fail("policy").starts_with("the change is 'policy'; give without=REQUEST"));
        assert!(fail("without=all").contains("not the number of a request"));
        assert!(fail("hints=true").ends_with("give hints=false"));
        assert!(fail("colour=red").starts_with("there is no setting 'colour'"));
        assert!(fail("policy=+1").contains("is not a number of things"));
        assert!(fail("block-size=32").starts_with("block-size cannot be changed"));
    }

    #[test]
    fn relative_values_follow_each_engine() {
        let mut cluster = ClusterConfig::uniform(&Config { device_blocks: 100, ..Config::default() }, 2);
        cluster.engines[1].core.device_blocks = 10;
        let blocks = |cluster: &ClusterConfig| cluster.engines.iter().map(|e| e.core.device_blocks).collect::<Vec<_>>();
        "device_blocks=x1.5".parse::<Change>().unwrap().apply(&mut cluster).unwrap();
        assert_eq!(blocks(&cluster), [150, 15]);
        "device-blocks=+5".parse::<Change>().unwrap().apply(&mut cluster).unwrap();
        assert_eq!(blocks(&cluster), [155, 20]);
        assert!("device-blocks=many".parse::<Change>().unwrap().apply(&mut cluster).is_err());
    }
}
