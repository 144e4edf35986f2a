//! The table of settings: each is written once, in `config.rs`, with all that users and code need of it.

use super::{Config, ConfigError};

/// A setting of `C`, the limits of a core, as users see it: on a command line, in a config file, or in a table of a report.
#[derive(Debug)]
pub struct Setting<C = Config> {
    /// Name of the field in [`Config`], and key in recordings: `max_queue`.
    pub name: &'static str,
    /// Name on command lines and in config files, without the leading dashes: `max-queue`.
    pub flag: &'static str,
    /// Placeholder of the value in help texts, which names the unit: `TOKENS`. `None` for a setting without a flag, because
    /// the model or the traffic decides it or because its value has parts.
    pub value_name: Option<&'static str>,
    /// Form of the text.
    pub kind: Kind,
    /// Reads the value as text.
    pub get: fn(&C) -> String,
    /// Sets the value from text. Fails with [`ConfigError`] if the text is not a value of the setting's type; the range is
    /// checked by [`Config::validate`].
    pub set: fn(&mut C, &str) -> Result<(), ConfigError>,
    /// Returns the least and the greatest value, both allowed, as text; `None` for names and for numbers without a limit.
    pub range: fn() -> Option<(String, String)>,
    pub(super) doc: &'static [&'static str],
}

impl<C> Clone for Setting<C> {
    fn clone(&self) -> Self {
        *self
    }
}

// Nothing of it is a `C`.
impl<C> Copy for Setting<C> {}

impl<C: Default> Setting<C> {
    /// Returns one or two sentences for users: the first paragraph of the field's documentation.
    ///
    /// ```
    /// let setting = trunkline_core::config::setting("max_queue").unwrap();
    /// assert_eq!(setting.help(), "Requests that may wait to be admitted; more are refused.");
    /// assert_eq!(setting.default_text(), "1024");
    /// ```
    pub fn help(&self) -> String {
        let lines = self.doc.iter().map(|line| line.trim());
        lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the default as text.
    pub fn default_text(&self) -> String {
        (self.get)(&C::default())
    }
}

/// Form of a setting's text, for parsers that report errors of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number of 32 bits.
    U32,
    /// A whole number of 64 bits.
    U64,
    /// A decimal number.
    F64,
    /// `true` or `false`.
    Bool,
    /// A number with or without a unit.
    Amount,
    /// A name, possibly with parameters.
    Text,
}

/// Form in which users write values of type `T`.
pub(super) trait Notation<T> {
    /// Form of the text.
    const KIND: Kind;
    /// Description of the texts allowed, for [`ConfigError::Malformed`].
    const EXPECTED: &'static str;

    /// Writes a value.
    fn show(value: &T) -> String;

    /// Reads a value; `Ok(None)` if the text is malformed.
    fn parse(text: &str) -> Result<Option<T>, ConfigError>;
}

/// Values as Rust writes them.
pub(super) struct Plain;

/// Nanoseconds, written by users as milliseconds.
pub(super) struct Milliseconds;

macro_rules! plain {
    ($($ty:ty: $kind:ident, $expected:literal;)*) => {
        $(impl Notation<$ty> for Plain {
            const KIND: Kind = Kind::$kind;
            const EXPECTED: &'static str = $expected;

            fn show(value: &$ty) -> String {
                value.to_string()
            }

            fn parse(text: &str) -> Result<Option<$ty>, ConfigError> {
                Ok(text.parse().ok())
            }
        })*
    };
}

plain! {
    u32: U32, "a whole number";
    u64: U64, "a whole number";
    f64: F64, "a number";
    bool: Bool, "true or false";
    String: Text, "a name";
}

impl Notation<super::Preemption> for Plain {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "a name";

    fn show(value: &super::Preemption) -> String {
        value.name().into()
    }

    fn parse(text: &str) -> Result<Option<super::Preemption>, ConfigError> {
        Ok(Some(text.parse()?))
    }
}

impl Notation<super::H2oConfig> for Plain {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "a mode";

    fn show(value: &super::H2oConfig) -> String {
        value.to_string()
    }

    fn parse(text: &str) -> Result<Option<super::H2oConfig>, ConfigError> {
        Ok(Some(text.parse()?))
    }
}

impl Notation<super::StepTarget> for Plain {
    const KIND: Kind = Kind::Amount;
    const EXPECTED: &'static str = super::StepTarget::EXPECTED;

    fn show(value: &super::StepTarget) -> String {
        value.to_string()
    }

    fn parse(text: &str) -> Result<Option<super::StepTarget>, ConfigError> {
        Ok(Some(text.parse()?))
    }
}

impl Notation<super::PrefillFirst> for Plain {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "a mode";

    fn show(value: &super::PrefillFirst) -> String {
        value.to_string()
    }

    fn parse(text: &str) -> Result<Option<super::PrefillFirst>, ConfigError> {
        Ok(Some(text.parse()?))
    }
}

impl Notation<Vec<super::TierConfig>> for Plain {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "tiers part by part, not as text";

    fn show(tiers: &Vec<super::TierConfig>) -> String {
        let tier = |tier: &super::TierConfig| format!("{} of {} blocks", tier.name, tier.blocks);
        tiers.iter().map(tier).collect::<Vec<_>>().join(", ")
    }

    fn parse(_: &str) -> Result<Option<Vec<super::TierConfig>>, ConfigError> {
        Ok(None)
    }
}

impl Notation<super::WorkerFacts> for Plain {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "facts of workers, as the workers report them, not as text";

    fn show(facts: &super::WorkerFacts) -> String {
        facts.to_string()
    }

    fn parse(_: &str) -> Result<Option<super::WorkerFacts>, ConfigError> {
        Ok(None)
    }
}

impl Notation<u64> for Milliseconds {
    const KIND: Kind = Kind::F64;
    const EXPECTED: &'static str = "a number of milliseconds, at least 0";

    fn show(value: &u64) -> String {
        (*value as f64 / 1e6).to_string()
    }

    fn parse(text: &str) -> Result<Option<u64>, ConfigError> {
        let ns = text.parse::<f64>().ok().map(|ms| (ms * 1e6).round());
        Ok(ns.filter(|ns| (0.0..=u64::MAX as f64).contains(ns)).map(|ns| ns as u64))
    }
}

/// Sets `field` from text.
pub(super) fn read<T, N: Notation<T>>(name: &'static str, field: &mut T, text: &str) -> Result<(), ConfigError> {
    let malformed = || ConfigError::Malformed { name, value: text.into(), expected: N::EXPECTED };
    *field = N::parse(text)?.ok_or_else(malformed)?;
    Ok(())
}

/// Checks that a number is within its range.
pub(super) fn check<T: PartialOrd + ToString>(
    name: &'static str,
    value: &T,
    range: &std::ops::RangeInclusive<T>,
) -> Result<(), ConfigError> {
    if range.contains(value) {
        return Ok(());
    }
    let [value, min, max] = [value, range.start(), range.end()].map(T::to_string);
    Err(ConfigError::OutOfRange { name, value, min, max })
}

/// Turns the underscores of a field's name into the dashes of a flag's.
pub(super) const fn dashed<const N: usize>(name: &str) -> [u8; N] {
    let (name, mut flag, mut i) = (name.as_bytes(), [0; N], 0);
    while i < N {
        flag[i] = if name[i] == b'_' { b'-' } else { name[i] };
        i += 1;
    }
    flag
}

/// Makes [`Config`] and everything that follows from the list of settings: documentation, defaults, ranges, serialisation,
/// and [`SETTINGS`](super::SETTINGS). An entry:
///
/// ```text
/// /// One or two sentences for users: this paragraph is the help text of the flag.
/// ///
/// /// More for readers of the code, if needed.
/// max_queue: u32 {
///     default: 1024,
///     range: 1..=TOKENS_MAX,        // optional; checked by `validate`, both ends allowed
///     value: "N",                   // placeholder in help texts; without it the setting has no flag and no key
///     flag: "max-queue",            // optional; else the name with dashes
///     notation: Milliseconds,       // optional; how users write values, else as Rust does
///     recorded: unless_default,     // optional; for settings younger than the format of recordings: left out of the
///                                   // header at the default, so that the bytes of earlier recordings do not change
/// }
/// ```
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        pub struct $Config:ident {
            $(
                $(#[doc = $doc:literal])+
                $name:ident: $ty:ty {
                    default: $default:expr
                    $(, range: $range:expr)?
                    $(, value: $value:literal)?
                    $(, flag: $flag:literal)?
                    $(, notation: $notation:ident)?
                    $(, recorded: $recorded:ident)?
                    $(,)?
                }
            )*
        }
        $(#[$table_attribute:meta])*
        pub static $SETTINGS:ident;
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $Config {
            $($(#[doc = $doc])+ pub $name: $ty,)*
        }

        impl Default for $Config {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        $(#[$table_attribute])*
        pub static $SETTINGS: &[Setting<$Config>] = &[$(Setting {
            name: stringify!($name),
            flag: settings!(@flag $name $($flag)?),
            value_name: settings!(@value $($value)?),
            kind: <settings!(@notation $($notation)?) as Notation<$ty>>::KIND,
            get: |config| <settings!(@notation $($notation)?) as Notation<$ty>>::show(&config.$name),
            set: |config, text| {
                read::<$ty, settings!(@notation $($notation)?)>(stringify!($name), &mut config.$name, text)
            },
            range: || settings!(@range settings!(@notation $($notation)?), $ty $(, $range)?),
            doc: &[$($doc),+],
        },)*];

        impl $Config {
            /// Checks every number against its range.
            pub(crate) fn check_ranges(&self) -> Result<(), ConfigError> {
                $($(check(stringify!($name), &self.$name, &($range))?;)?)*
                Ok(())
            }
        }

        impl Serialize for $Config {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let default = Self::default();
                let omitted = [$(settings!(@may_omit $($recorded)?) && self.$name == default.$name),*];
                let n_fields = omitted.iter().filter(|omitted| !**omitted).count();
                let mut fields = serializer.serialize_struct(stringify!($Config), n_fields)?;
                let mut omitted = omitted.into_iter();
                $(
                    match omitted.next() {
                        Some(true) => fields.skip_field(stringify!($name))?,
                        _ => fields.serialize_field(stringify!($name), &self.$name)?,
                    }
                )*
                fields.end()
            }
        }

        impl<'de> Deserialize<'de> for $Config {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct $Config {
                    $($name: Option<$ty>,)*
                }
                let given = $Config::deserialize(deserializer)?;
                Ok(Self {
                    $($name: match given.$name {
                        Some(value) => value,
                        None if settings!(@may_omit $($recorded)?) => $default,
                        None => return Err(serde::de::Error::missing_field(stringify!($name))),
                    },)*
                })
            }
        }
    };
    (@flag $name:ident $flag:literal) => { $flag };
    (@flag $name:ident) => {{
        const BYTES: [u8; stringify!($name).len()] = dashed(stringify!($name));
        match std::str::from_utf8(&BYTES) {
            Ok(flag) => flag,
            Err(_) => panic!("names are ASCII"),
        }
    }};
    (@value) => { None };
    (@value $value:literal) => { Some($value) };
    (@notation) => { Plain };
    (@notation $notation:ident) => { $notation };
    (@range $notation:ty, $ty:ty) => { None };
    (@range $notation:ty, $ty:ty, $range:expr) => {{
        let (min, max) = ($range).into_inner();
        Some((<$notation as Notation<$ty>>::show(&min), <$notation as Notation<$ty>>::show(&max)))
    }};
    (@may_omit) => { false };
    (@may_omit unless_default) => { true };
}

pub(super) use settings;
