//! Names with parameters: `name` or `name:key=value,key=value`.
//!
//! Everything that is chosen by name takes its parameters in the same string, so that one option on the command line,
//! one line in a config file and one field of a recording say all of it. Values are whole numbers with the unit in the
//! key.

/// A parameter that goes with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// How it is written, with its unit.
    pub key: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Its value unless it is given.
    pub default: u64,
    /// The least allowed.
    pub min: u64,
    /// The most allowed.
    pub max: u64,
}

/// A name and what follows it, not yet understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec<'a> {
    /// What stands before the colon.
    pub name: &'a str,
    params: Option<&'a str>,
}

/// Parameters that are not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is no such key.
    #[error("'{name}' has no parameter '{key}'; it has: {known}")]
    UnknownKey {
        /// Whose parameter.
        name: String,
        /// What was given.
        key: String,
        /// What there is.
        known: String,
    },
    /// Not a number, or one outside the range.
    #[error("'{name}': {key} is '{value}'; it must be a whole number between {min} and {max}")]
    BadValue {
        /// Whose parameter.
        name: String,
        /// The parameter.
        key: &'static str,
        /// What was given.
        value: String,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// Two values for one key.
    #[error("'{name}': {key} is given twice")]
    Twice {
        /// Whose parameter.
        name: String,
        /// The parameter.
        key: &'static str,
    },
    /// No `=`.
    #[error("'{name}': '{part}' is not of the form key=value; the keys are: {known}")]
    NoValue {
        /// Whose parameter.
        name: String,
        /// What was given.
        part: String,
        /// What there is.
        known: String,
    },
}

impl<'a> Spec<'a> {
    /// Splits the name from its parameters.
    pub fn new(text: &'a str) -> Self {
        match text.split_once(':') {
            Some((name, params)) => Self { name, params: Some(params) },
            None => Self { name: text, params: None },
        }
    }

    /// The values of `params`, in their order.
    pub fn values(&self, params: &[Param]) -> Result<Vec<u64>, SpecError> {
        let name = || self.name.to_owned();
        let known = || match params {
            [] => "none".to_owned(),
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

    fn values(text: &str) -> Result<Vec<u64>, String> {
        Spec::new(text).values(&PARAMS).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_has_its_default() {
        assert_eq!(values("p"), Ok(vec![7, 2]));
        assert_eq!(values("p:weight=9"), Ok(vec![7, 9]));
        assert_eq!(values("p:weight=1,age_ms=0"), Ok(vec![0, 1]));
        assert_eq!(Spec::new("p:weight=1").name, "p");
        assert_eq!(Spec::new("p").values(&[]), Ok(vec![]));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let error = |text| values(text).unwrap_err();
        assert_eq!(error("p:age=1"), "'p' has no parameter 'age'; it has: age_ms, weight");
        assert_eq!(error("p: weight=1"), "'p' has no parameter ' weight'; it has: age_ms, weight");
        assert_eq!(error("p:weight=x"), "'p': weight is 'x'; it must be a whole number between 1 and 9");
        assert_eq!(error("p:weight=0"), "'p': weight is '0'; it must be a whole number between 1 and 9");
        assert_eq!(error("p:weight=10"), "'p': weight is '10'; it must be a whole number between 1 and 9");
        assert_eq!(error("p:age_ms=-1"), "'p': age_ms is '-1'; it must be a whole number between 0 and 100");
        assert_eq!(error("p:age_ms=1.5"), "'p': age_ms is '1.5'; it must be a whole number between 0 and 100");
        assert_eq!(error("p:age_ms="), "'p': age_ms is ''; it must be a whole number between 0 and 100");
        assert_eq!(error("p:weight=1=2"), "'p': weight is '1=2'; it must be a whole number between 1 and 9");
        assert_eq!(error("p:weight=1,weight=1"), "'p': weight is given twice");
        assert_eq!(error("p:weight"), "'p': 'weight' is not of the form key=value; the keys are: age_ms, weight");
        assert_eq!(error("p:"), "'p': '' is not of the form key=value; the keys are: age_ms, weight");
        assert_eq!(error("p:weight=1,"), "'p': '' is not of the form key=value; the keys are: age_ms, weight");
        let none = Spec::new("q:weight=1").values(&[]).unwrap_err();
        assert_eq!(none.to_string(), "'q' has no parameter 'weight'; it has: none");
    }
}
