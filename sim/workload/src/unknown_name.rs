//! The error for a name that no registry knows.

use std::fmt;

/// A name that no preset has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// What kind of thing was named: `hardware`, `model`, `trace format`.
    pub kind: &'static str,
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} '{}'; there are: {}", self.kind, self.name, self.known.join(", "))
    }
}

impl std::error::Error for UnknownName {}
