//! Registries: constructors found by name, with parameters.
//!
//! A registry lists everything of one kind, such as policies or eviction policies, each as an [`Entry`]: a name, a line of
//! help, the parameters and a constructor. [`Registry::make`] builds one from a text such as `priority:ageing_ms=5000` (see
//! [`crate::names::spec`]). Unknown names and bad parameters give the same errors everywhere.
//!
//! A constructor receives the values of the parameters, in the order of [`Entry::params`], and a context of type `C`: facts
//! that no user sets, such as the number of blocks of a cache.
//!
//! ```
//! use trunkline_core::names::registry::{Entry, Registry};
//! use trunkline_core::names::spec::Param;
//!
//! const PAGES: Param = Param { key: "pages", about: "pages per batch", default: 8, min: 1, max: 64 };
//! static PRINTERS: Registry<u64, u64> = Registry::new(
//!     "printer",
//!     &[Entry { name: "laser", about: "one batch at a time", params: &[PAGES], make: |values, trays| values[0] * trays }],
//! );
//!
//! assert_eq!(PRINTERS.make("laser:pages=3", 2).unwrap(), 6);
//! assert_eq!(PRINTERS.make("ink", 2).unwrap_err().to_string(), "unknown printer 'ink'; there are: laser");
//! ```

use std::fmt;

use trunkline_quote::quoted;

use crate::names::spec::{Param, Spec, SpecError};

/// A constructor with a name: makes a `T` for a context `C`.
pub struct Entry<T: 'static, C: 'static = ()> {
    /// Name, unique in a registry.
    pub name: &'static str,
    /// Help text of one line.
    pub about: &'static str,
    /// The parameters, written as in `name:key=value,key=value`.
    pub params: &'static [Param],
    /// Constructor; receives a value for each of `params`, in order, each within the range.
    pub make: fn(&[u64], C) -> T,
}

impl<T, C> fmt::Debug for Entry<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).field("params", &self.params).finish_non_exhaustive()
    }
}

/// All entries of one kind, in the order of listings.
#[derive(Debug)]
pub struct Registry<T: 'static, C: 'static = ()> {
    kind: &'static str,
    entries: &'static [Entry<T, C>],
}

impl<T, C> Registry<T, C> {
    /// Creates a registry of `entries`; `kind` names them in error messages, as in "unknown policy 'x'".
    ///
    /// # Panics
    /// Panics if two entries have one name, or a default value is outside its range. In a `static` either fails to compile.
    pub const fn new(kind: &'static str, entries: &'static [Entry<T, C>]) -> Self {
        let mut i = 0;
        while i < entries.len() {
            let mut j = 0;
            while j < i {
                assert!(!equal(entries[i].name, entries[j].name), "two entries have one name");
                j += 1;
            }
            let params = entries[i].params;
            let mut k = 0;
            while k < params.len() {
                let Param { default, min, max, .. } = params[k];
                assert!(min <= default && default <= max, "a default value is outside its range");
                k += 1;
            }
            i += 1;
        }
        Self { kind, entries }
    }

    /// Returns all entries, in the order of listings.
    pub fn entries(&self) -> &'static [Entry<T, C>] {
        self.entries
    }

    /// Returns the names of all entries, in the same order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<T, C> {
        self.entries.iter().map(|entry| entry.name)
    }

    /// Finds the entry named by `spec` and parses the parameters after the name. Parameters left out have default values.
    ///
    /// # Errors
    /// Fails if no entry has the name, or a parameter is unknown, repeated or outside its range.
    pub fn parse(&self, spec: &str) -> Result<(&'static Entry<T, C>, Vec<u64>), RegistryError> {
        let spec = Spec::new(spec);
        let unknown = || UnknownName { kind: self.kind, name: spec.name.into(), known: self.names().collect() };
        let entry = self.entries.iter().find(|entry| entry.name == spec.name).ok_or_else(unknown)?;
        let values = spec.values(entry.params);
        let values = values.map_err(|error| RegistryError::Parameter { kind: self.kind, error })?;
        Ok((entry, values))
    }

    /// Builds what `spec` names, such as `priority:ageing_ms=5000`, for a context.
    ///
    /// # Errors
    /// Fails as [`Self::parse`] does.
    pub fn make(&self, spec: &str, context: C) -> Result<T, RegistryError> {
        let (entry, values) = self.parse(spec)?;
        Ok((entry.make)(&values, context))
    }
}

/// Finds a value by name in a list of choices without parameters. `kind` names the choices in the error.
///
/// # Errors
/// Fails if no choice has the name.
pub fn choose<T: Copy>(kind: &'static str, choices: &[(&'static str, T)], name: &str) -> Result<T, UnknownName> {
    let unknown = || UnknownName { kind, name: name.into(), known: choices.iter().map(|(known, _)| *known).collect() };
    choices.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(unknown)
}

/// An unknown name. The message lists the known ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} {name}; there are: {}", known.join(", "), name = quoted(name))]
pub struct UnknownName {
    /// Kind of the named thing, such as `policy` or `router`.
    pub kind: &'static str,
    /// Name asked for, as given.
    pub name: String,
    /// All names there are.
    pub known: Vec<&'static str>,
}

/// Failure to build something by name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// No entry has the name.
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    /// The name is known, a parameter is not understood.
    #[error("{kind} {error}")]
    Parameter {
        /// Kind of the named thing.
        kind: &'static str,
        /// Fault of the parameter.
        error: SpecError,
    },
}

const fn equal(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Param = Param { key: "size", about: "", default: 3, min: 1, max: 9 };
    const BAD: Param = Param { default: 0, ..SIZE };
    static THINGS: Registry<u64, u64> = Registry::new(
        "thing",
        &[
            Entry { name: "plain", about: "", params: &[], make: |values, context| values.len() as u64 + context },
            Entry { name: "sized", about: "", params: &[SIZE], make: |values, context| values[0] * context },
        ],
    );

    fn error(spec: &str) -> RegistryError {
        THINGS.make(spec, 1).unwrap_err()
    }

    #[test]
    fn constructors_get_values_and_context() {
        assert_eq!(THINGS.make("plain", 5), Ok(5));
        assert_eq!(THINGS.make("sized", 5), Ok(15));
        assert_eq!(THINGS.make("sized:size=9", 5), Ok(45));
        assert_eq!(THINGS.names().collect::<Vec<_>>(), ["plain", "sized"]);
        assert_eq!(THINGS.parse("sized").map(|(entry, values)| (entry.name, values)), Ok(("sized", vec![3])));
    }

    #[test]
    fn errors_say_the_kind_the_name_and_the_choices() {
        for (spec, name) in [("odd", "odd"), ("odd:size=1", "odd"), ("", "")] {
            let unknown = UnknownName { kind: "thing", name: name.into(), known: vec!["plain", "sized"] };
            assert_eq!(error(spec), RegistryError::UnknownName(unknown));
        }
        let parameter = |spec| match error(spec) {
            RegistryError::Parameter { kind: "thing", error } => error,
            other => panic!("{other:?}"),
        };
        assert!(matches!(parameter("plain:size=1"), SpecError::UnknownKey { name, .. } if name == "plain"));
        assert!(matches!(parameter("sized:size=10"), SpecError::BadValue { key: "size", min: 1, max: 9, .. }));
        let choices = [("one", 1), ("two", 2)];
        assert_eq!(choose("number", &choices, "two"), Ok(2));
        let unknown = UnknownName { kind: "number", name: "ten".into(), known: vec!["one", "two"] };
        assert_eq!(choose("number", &choices, "ten"), Err(unknown));
    }

    #[test]
    #[should_panic = "two entries have one name"]
    fn names_must_be_unique() {
        const ENTRIES: &[Entry<(), ()>] = &[
            Entry { name: "a", about: "", params: &[], make: |_, ()| () },
            Entry { name: "ab", about: "", params: &[], make: |_, ()| () },
            Entry { name: "a", about: "", params: &[], make: |_, ()| () },
        ];
        let _ = Registry::new("thing", ENTRIES);
    }

    #[test]
    #[should_panic = "a default value is outside its range"]
    fn defaults_must_be_within_their_ranges() {
        const ENTRIES: &[Entry<(), ()>] = &[Entry { name: "a", about: "", params: &[BAD], make: |_, ()| () }];
        let _ = Registry::new("thing", ENTRIES);
    }
}
