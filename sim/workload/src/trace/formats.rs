//! All formats. To add one, write its file in this folder and add a line to the registry; commands, help, errors, detection and the
//! table of `docs/` follow, and tests name what the file still lacks.

use std::str::FromStr;

use super::format::{Format, FormatOption, Reading};
use crate::UnknownName;

/// Declares the modules of the formats and lists the formats. `cargo fmt` does not see through it: the gate formats the folder.
macro_rules! registry {
    ($($file:ident::$format:ident,)*) => {
        $(mod $file;)*
        $(pub use self::$file::$format;)*

        /// All formats and origins of requests, in the order of lists. The first has the files that name no field at all.
        pub const REGISTRY: &[Format] = &[$($format),*];
    };
}

registry! {
    mooncake::MOONCAKE,
    azure::AZURE,
    burstgpt::BURSTGPT,
    bailian::BAILIAN,
    vidur::VIDUR,
    tokens::TOKENS,
    aiperf::AIPERF,
    guidellm::GUIDELLM,
    bench_serve::BENCH_SERVE,
    weka::WEKA,
    dynamo::DYNAMO,
    recording::RECORDING,
    synthetic::SYNTHETIC,
}

/// Returns the formats of files that a reader takes.
pub fn read() -> impl Iterator<Item = Format> {
    REGISTRY.iter().copied().filter(|format| format.is_read())
}

/// Returns the formats that are written.
pub fn written() -> impl Iterator<Item = Format> {
    REGISTRY.iter().copied().filter(|format| format.0.writing.is_some())
}

/// Returns the formats that take an option, in words.
pub fn with(option: FormatOption) -> String {
    titles(|format| format.takes(option))
}

/// Returns the names of formats, in words.
pub fn names(formats: impl IntoIterator<Item = Format>) -> String {
    joined(formats.into_iter().map(Format::as_str), "or")
}

fn titles(is_one: impl Fn(Format) -> bool) -> String {
    joined(read().filter(|format| is_one(*format)).map(|format| format.0.title), "and")
}

/// Joins words as in "a, b or c", with `last` between the last two.
pub fn joined<'a>(words: impl IntoIterator<Item = &'a str>, last: &str) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    match words.split_last() {
        Some((end, before)) if !before.is_empty() => format!("{} {last} {end}", before.join(", ")),
        _ => words.concat(),
    }
}

/// Returns all files that are read, in words, as in "A and B JSON lines, C CSV, and results of D".
pub fn described() -> String {
    let of = |is_of: fn(&Reading) -> bool| titles(|format| is_of(&format.0.reading));
    format!(
        "{} JSON lines, {} CSV, and results of {}",
        of(|reading| matches!(reading, Reading::Lines { .. })),
        of(|reading| matches!(reading, Reading::Csv(_))),
        of(|reading| matches!(reading, Reading::Document { .. })),
    )
}

/// Returns the table of formats of the page of traces.
pub fn table() -> String {
    let rows = REGISTRY.iter().filter_map(|format| format.row()).collect::<Vec<_>>();
    format!("| name | a line | shared prefixes |\n|---|---|---|\n{}", rows.join("\n"))
}

impl FromStr for Format {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        read().find(|format| format.as_str() == name).ok_or_else(|| UnknownName {
            kind: "trace format",
            name: name.into(),
            known: read().map(Self::as_str).collect(),
        })
    }
}
