//! Names with parameters: `name` or `name:key=value,key=value`.
//!
//! Policies, routers and everything else chosen by name take parameters in the same string, so that one command-line option,
//! one line of a config file or one field of a recording holds name and parameters. Values are whole numbers; the key states
//! the unit, as in `priority:ageing_ms=5000`. [`crate::names::registry`] finds constructors by such strings.

use trunkline_quote::quoted;

/// A parameter of something chosen by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Key as users write it, unit included.
    pub key: &'static str,
    /// Help text of one line.
    pub about: &'static str,
    /// Value if the user gives none.
    pub default: u64,
    /// Lowest value allowed, inclusive.
    pub min: u64,
    /// Highest value allowed, inclusive.
    pub max: u64,
}

/// List of the keys of a name without parameters.
pub(crate) const NO_KEYS: &str = "none";

/// A name and its parameters, split but not yet parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec<'a> {
    /// Text before the colon.
    pub name: &'a str,
    params: Option<&'a str>,
}

/// A fault in the parameters after a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Key that the name does not have.
    #[error("{name} has no parameter {key}; it has: {known}", name = quoted(name), key = quoted(key))]
    UnknownKey {
        /// Name before the colon.
        name: String,
        /// Key as the user gave it.
        key: String,
        /// Known keys, separated by commas.
        known: String,
    },
    /// Value that is not a whole number, or outside the range.
    #[error("{name}: {key} is {value}; it must be a whole number between {min} and {max}", name = quoted(name), value = quoted(value))]
    BadValue {
        /// Name before the colon.
        name: String,
        /// Key of the parameter.
        key: &'static str,
        /// Value as the user gave it.
        value: String,
        /// Lowest value allowed, inclusive.
        min: u64,
        /// Highest value allowed, inclusive.
        max: u64,
    },
    /// Key given more than once.
    #[error("{name}: {key} is given twice", name = quoted(name))]
    Twice {
        /// Name before the colon.
        name: String,
        /// Key of the parameter.
        key: &'static str,
    },
    /// Part of the list without a `=`.
    #[error("{name}: {part} is not of the form key=value; the keys are: {known}", name = quoted(name), part = quoted(part))]
    NoValue {
        /// Name before the colon.
        name: String,
        /// Part as the user gave it.
        part: String,
        /// Known keys, separated by commas.
        known: String,
    },
}

impl<'a> Spec<'a> {
    /// Splits a text into the name and its parameters.
    pub fn new(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((name, params)) => Self { name, params: Some(params) },
            None => Self { name: text, params: None },
        }
    }

    /// Parses the values of `params`, in their order. Parameters that are left out have their default values.
    ///
    /// # Errors
    /// Fails if a key is unknown or repeated, has no `=`, or its value is not a whole number within the range.
    pub fn values(&self, params: &[Param]) -> Result<Vec<u64>, SpecError> {
        let name = || self.name.to_owned();
        let known = || match params {
            [] => NO_KEYS.to_owned(),
            _ => params.iter().map(|param| param.key).collect::<Vec<_>>().join(", "),
        };
        let mut given = vec![None; params.len()];
        for part in self.params.into_iter().flat_map(|params| params.split(',')) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(SpecError::NoValue { name: name(), part: part.into(), known: known() });
            };
            let Some(at) = params.iter().position(|param| param.key == key) else {
                return Err(SpecError::UnknownKey { name: name(), key: key.into(), known: known() });
            };
            let Param { key, min, max, .. } = params[at];
            let number = value.parse().ok().filter(|number| (min..=max).contains(number));
            let Some(number) = number else {
                return Err(SpecError::BadValue { name: name(), key, value: value.into(), min, max });
            };
            if given[at].replace(number).is_some() {
                return Err(SpecError::Twice { name: name(), key });
            }
        }
        Ok(given.iter().zip(params).map(|(given, param)| given.unwrap_or(param.default)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: [Param; 2] = [
        Param { key: "age_ms", about: "", default: 7, min: 0, max: 100 },
        Param { key: "weight", about: "", default: 2, min: 1, max: 9 },
    ];

    fn values(text: &str) -> Result<Vec<u64>, SpecError> {
        Spec::new(text).values(&PARAMS)
    }

    #[test]
    fn parameters_left_out_have_their_defaults() {
        assert_eq!(values("p"), Ok(vec![7, 2]));
        assert_eq!(values("p:weight=9"), Ok(vec![7, 9]));
        assert_eq!(values("p:weight=1,age_ms=0"), Ok(vec![0, 1]));
        assert_eq!(Spec::new("p:weight=1").name, "p");
        assert_eq!(Spec::new("p").values(&[]), Ok(vec![]));
    }

    #[test]
    fn faults_are_named() {
        let (name, known) = (|| "p".to_owned(), || "age_ms, weight".to_owned());
        let unknown = |key: &str| Err(SpecError::UnknownKey { name: name(), key: key.into(), known: known() });
        assert_eq!(values("p:age=1"), unknown("age"));
        assert_eq!(values("p: weight=1"), unknown(" weight"));
        for value in ["x", "0", "10", "1=2"] {
            let bad = SpecError::BadValue { name: name(), key: "weight", value: value.into(), min: 1, max: 9 };
            assert_eq!(values(&format!("p:weight={value}")), Err(bad));
        }
        for value in ["-1", "1.5", ""] {
            let bad = SpecError::BadValue { name: name(), key: "age_ms", value: value.into(), min: 0, max: 100 };
            assert_eq!(values(&format!("p:age_ms={value}")), Err(bad));
        }
        assert_eq!(values("p:weight=1,weight=1"), Err(SpecError::Twice { name: name(), key: "weight" }));
        for (text, part) in [("p:weight", "weight"), ("p:", ""), ("p:weight=1,", "")] {
            assert_eq!(values(text), Err(SpecError::NoValue { name: name(), part: part.into(), known: known() }));
        }
        let none = SpecError::UnknownKey { name: "q".into(), key: "weight".into(), known: NO_KEYS.into() };
        assert_eq!(Spec::new("q:weight=1").values(&[]), Err(none));
    }
}
