//! Terms of service of a request: tenant, namespace, priority, class and deadline.
//!
//! | field | JSON formats | CSV formats | absent |
//! |---|---|---|---|
//! | tenant | `tenant`, a number | column `tenant` | 0 |
//! | namespace | `namespace`, a number | column `namespace` | 0 |
//! | priority | `priority`, a number; lower is served first | column `priority` | 0 |
//! | class | `background`, `true` or `false` | column `background` | `false` |
//! | deadline | `deadline_s`, seconds after the arrival | column `deadline_s` | none |
//! | limit | `max_tokens`, the client's limit on the answer, at least 1 | column `max_tokens` | none |

use serde_json::Value;

use super::TraceFault;
use super::format::csv::seconds_ns;

/// Terms of service of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Number of the tenant, for policies that share service among tenants.
    pub tenant: u32,
    /// Number of the namespace; prompts of different namespaces share no prefix in a cache.
    pub namespace: u32,
    /// Priority for policies that use priorities; lower is served first.
    pub priority: i32,
    /// `true` for a request that serves nobody at once, and ranks behind all others.
    pub background: bool,
    /// Deadline, nanoseconds after the arrival; a request still unfinished then is ended.
    pub deadline_ns: Option<u64>,
    /// Limit of the client on the tokens of the answer, which policies may know, unlike the length of the answer.
    pub max_tokens: Option<u32>,
}

impl Terms {
    /// Names of the fields, in JSON and as columns of CSV.
    pub const FIELDS: [&str; 6] = ["tenant", "namespace", "priority", "background", "deadline_s", "max_tokens"];

    /// Reads the fields of [`Terms::FIELDS`] in a JSON object.
    pub(super) fn of_json(values: [Option<Value>; 6]) -> Result<Self, TraceFault> {
        let mut terms = Self::default();
        for (field, value) in Self::FIELDS.into_iter().zip(values) {
            if let Some(value) = value.filter(|value| !value.is_null()) {
                terms.set(field, &value.to_string())?;
            }
        }
        Ok(terms)
    }

    /// Sets a field of [`Terms::FIELDS`] from text; empty text leaves the default.
    pub(super) fn set(&mut self, field: &'static str, text: &str) -> Result<(), TraceFault> {
        if text.is_empty() {
            return Ok(());
        }
        let bad = |expected| TraceFault::BadTerm { field, value: text.into(), expected };
        const NUMBER: &str = "a whole number from 0 to 4294967295";
        match field {
            "tenant" => self.tenant = text.parse().map_err(|_| bad(NUMBER))?,
            "namespace" => self.namespace = text.parse().map_err(|_| bad(NUMBER))?,
            "priority" => {
                self.priority = text.parse().map_err(|_| bad("a whole number from -2147483648 to 2147483647"))?;
            }
            "background" => self.background = text.parse().map_err(|_| bad("true or false"))?,
            "max_tokens" => {
                let limit = text.parse().ok().filter(|limit| *limit > 0);
                self.max_tokens = Some(limit.ok_or_else(|| bad("a whole number from 1 to 4294967295"))?);
            }
            _ => {
                let ns = seconds_ns(text).filter(|ns| *ns > 0);
                self.deadline_ns = Some(ns.ok_or_else(|| bad("seconds after the arrival, above 0 and below 10^9"))?);
            }
        }
        Ok(())
    }

    /// Returns the terms of several fields as JSON, each after a comma; fields with their defaults are left out.
    pub(super) fn to_json(self) -> String {
        let number = |name: &str, value: i64| if value == 0 { String::new() } else { format!(", \"{name}\": {value}") };
        let deadline = self
            .deadline_ns
            .map_or(String::new(), |ns| format!(", \"deadline_s\": {}", super::write::decimal(ns, 1_000_000_000)));
        [
            number("tenant", self.tenant.into()),
            number("namespace", self.namespace.into()),
            number("priority", self.priority.into()),
            if self.background { ", \"background\": true".to_owned() } else { String::new() },
            deadline,
            number("max_tokens", self.max_tokens.unwrap_or(0).into()),
        ]
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_survive_being_written_and_read() {
        for terms in [
            Terms::default(),
            Terms {
                tenant: u32::MAX,
                namespace: 3,
                priority: i32::MIN,
                background: true,
                deadline_ns: Some(1_500_000_001),
                max_tokens: Some(7),
            },
            Terms { priority: 7, ..Terms::default() },
        ] {
            let json = format!("{{\"a\": 1{}}}", terms.to_json());
            let object: Value = serde_json::from_str(&json).unwrap();
            let fields = Terms::FIELDS.map(|field| object.get(field).cloned());
            assert_eq!(Terms::of_json(fields).unwrap(), terms, "{json}");
        }
    }

    #[test]
    fn a_bad_term_is_named_with_its_range() {
        for (field, text, expected) in [
            ("tenant", "-1", "tenant is -1; it must be a whole number from 0 to 4294967295"),
            ("priority", "\"high\"", "priority is \"high\"; it must be a whole number from -2147483648 to 2147483647"),
            ("max_tokens", "0", "max_tokens is 0; it must be a whole number from 1 to 4294967295"),
            ("background", "1", "background is 1; it must be true or false"),
            ("deadline_s", "0", "deadline_s is 0; it must be seconds after the arrival, above 0 and below 10^9"),
        ] {
            assert_eq!(Terms::default().set(field, text).unwrap_err().to_string(), expected);
        }
    }
}
