//! The error for a name that no registry knows.

use std::fmt;

/// Error for a name without an entry in a registry, such as a preset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// Kind of thing: `hardware`, `model`, `trace format`.
    pub kind: &'static str,
    /// Name as given on input.
    pub name: String,
    /// Names that exist, in the order of their listing.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} '{}'; there are: {}", self.kind, self.name, self.known.join(", "))
    }
}

impl std::error::Error for UnknownName {}
