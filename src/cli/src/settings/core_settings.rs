//! Settings of the core as flags.
//!
//! [`trunkline_core::config::SETTINGS`] lists all settings with their names, types, defaults and help; flags of `serve`,
//! `replay` and `plan` are made from that list. A command says only how it differs:
//!
//! ```text
//! struct ServeFlags;
//!
//! impl CoreFlags for ServeFlags {
//!     const OMITTED: &'static [&'static str] = &["align_chunks"];   // no flag in this command
//!     const COMPARED: &'static [&'static str] = &[];                // may be given more than once
//!     const IMITATES: bool = false;                                 // no values that only imitate an engine
//!     fn default_text(setting: &Setting) -> String { ... }          // as in `[default: 16]`
//! }
//! ```

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use clap::builder::{BoolValueParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches, value_parser};
use trunkline_core::config::{Kind, SETTINGS, Setting, imitated};
use trunkline_core::{Config, ConfigError};

/// Group of all flags made from settings, for `conflicts_with`.
const GROUP: &str = "CoreSettings";

/// Differences between the flags of a command and the list of settings.
pub trait CoreFlags: Clone + Debug + Default + PartialEq + Send + Sync + 'static {
    /// Settings without a flag, by name.
    const OMITTED: &'static [&'static str];
    /// Settings whose flag may be given more than once, by name, the slowest first: each combination of values is a run.
    const COMPARED: &'static [&'static str];
    /// `true` if values are offered that only imitate another engine ([`imitated`]).
    const IMITATES: bool;

    /// Returns the default for the help text.
    fn default_text(setting: &Setting) -> String;
}

/// Values given for settings of the core, as text; a setting that is not given keeps the default of the command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreSettings<F> {
    given: BTreeMap<&'static str, Vec<String>>,
    command: PhantomData<F>,
}

impl<F: CoreFlags> CoreSettings<F> {
    /// Returns the settings with a flag, in the order of the help text.
    pub(crate) fn flags() -> impl Iterator<Item = (&'static Setting, &'static str)> {
        let listed = SETTINGS.iter().filter(|setting| !F::OMITTED.contains(&setting.name));
        listed.filter_map(|setting| Some((setting, setting.value_name?)))
    }

    /// Returns `true` if the setting of that name is given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Returns the value of the setting of that name, if given; the first, if given more than once.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.given.get(name).and_then(|values| values.first()).map(String::as_str)
    }

    /// Sets each given setting; of several values of one setting, the first.
    ///
    /// # Errors
    /// If a text is not a value of the setting's type. Ranges are checked by [`Config::validate`].
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), ConfigError> {
        for (setting, _) in Self::flags() {
            if let Some(value) = self.text(setting.name) {
                (setting.set)(config, value)?;
            }
        }
        Ok(())
    }

    /// Returns `config` once for each combination of values of [`CoreFlags::COMPARED`].
    ///
    /// # Errors
    /// If a text is not a value of the setting's type.
    pub(crate) fn combinations(&self, config: &Config) -> Result<Vec<Config>, ConfigError> {
        let mut combinations = vec![config.clone()];
        for name in F::COMPARED {
            let (Some(setting), Some(values)) = (trunkline_core::config::setting(name), self.given.get(name)) else {
                continue;
            };
            let mut next = Vec::with_capacity(combinations.len() * values.len());
            for config in &combinations {
                for value in values {
                    let mut config = config.clone();
                    (setting.set)(&mut config, value)?;
                    next.push(config);
                }
            }
            combinations = next;
        }
        Ok(combinations)
    }

    fn parser(setting: &'static Setting) -> ValueParser {
        match setting.kind {
            Kind::Text if !F::IMITATES => ValueParser::new(move |text: &str| of_our_own(setting, text)),
            kind => parser(kind),
        }
    }

    fn flag(setting: &'static Setting, value_name: &'static str) -> Arg {
        let compared = F::COMPARED.contains(&setting.name);
        let again = if compared { ". Give it more than once to compare" } else { "" };
        let default = F::default_text(setting);
        let help = setting.help();
        let help = help.strip_suffix('.').unwrap_or(&help);
        Arg::new(setting.name)
            .long(setting.flag)
            .value_name(value_name)
            .help_heading("Scheduler and prefix cache")
            .value_parser(Self::parser(setting))
            .allow_negative_numbers(matches!(setting.kind, Kind::F64 | Kind::Amount))
            .action(if compared { ArgAction::Append } else { ArgAction::Set })
            .help(format!("{help} [default: {default}]{again}"))
    }
}

/// Refuses a value that only imitates another engine.
fn of_our_own(setting: &Setting, text: &str) -> Result<String, String> {
    match imitated(setting.name, text) {
        Some(engine) => Err(format!("it imitates {engine}, for `trunkline replay`; a server does without")),
        None => Ok(text.to_owned()),
    }
}

/// Checks that a value is of the setting's type, and passes it on as text.
fn parser(kind: Kind) -> ValueParser {
    match kind {
        Kind::U32 => value_parser!(u32).map(|value| value.to_string()).into(),
        Kind::U64 => value_parser!(u64).map(|value| value.to_string()).into(),
        Kind::F64 => ValueParser::new(|text: &str| text.parse::<f64>().map(|value| value.to_string())),
        Kind::Bool => BoolValueParser::new().map(|value| value.to_string()).into(),
        Kind::Amount | Kind::Text => value_parser!(String),
    }
}

impl<F: CoreFlags> Args for CoreSettings<F> {
    fn group_id() -> Option<clap::Id> {
        Some(GROUP.into())
    }

    fn augment_args(command: Command) -> Command {
        let names = Self::flags().map(|(setting, _)| setting.name);
        let group = ArgGroup::new(GROUP).multiple(true).args(names);
        command.group(group).args(Self::flags().map(|(setting, value_name)| Self::flag(setting, value_name)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<F: CoreFlags> FromArgMatches for CoreSettings<F> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (setting, _) in Self::flags() {
            if let Some(values) = matches.get_many::<String>(setting.name) {
                self.given.insert(setting.name, values.cloned().collect());
            }
        }
        Ok(())
    }
}

/// Replaces the names of settings in a message of the core by those of their flags: `max_queue` by `max-queue`.
pub(crate) fn named_as_flags(message: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named = |part: &str| {
        let word = part.trim_end_matches(|c| !is_name(c));
        let flag = word.replace('_', "-");
        match SETTINGS.iter().find(|setting| setting.name == word || setting.flag == flag) {
            Some(setting) => part.replacen(word, setting.flag, 1),
            None => part.to_owned(),
        }
    };
    message.split_inclusive(|c| !is_name(c)).map(named).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn messages_of_the_core_name_flags_and_leave_other_words() {
        let message = "max_step_logits is 3; it must be at least max_batch_size, which is 8: 'lru' has no max_sizes, my_max_queue";
        let named = "max-step-logits is 3; it must be at least max-batch-size, which is 8: 'lru' has no max_sizes, my_max_queue";
        assert_eq!(super::named_as_flags(message), named);
    }
}
