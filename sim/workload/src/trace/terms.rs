//! Terms of service of a request: tenant, namespace, priority, class and deadline.
//!
//! | field | JSON formats | CSV formats | absent |
//! |---|---|---|---|
//! | tenant | `tenant`, a number or a name | column `tenant` | 0 |
//! | namespace | `namespace`, a number or a name | column `namespace` | 0 |
//! | priority | `priority`, a number; lower is served first | column `priority` | 0 |
//! | class | `background`, `true` or `false` | column `background` | `false` |
//! | deadline | `deadline_s`, seconds after the arrival | column `deadline_s` | none |
//! | limit | `max_tokens`, the client's limit on the answer, at least 1 | column `max_tokens` | none |
//!
//! A file has numbers or names: its first tenant says which, and so does its first namespace. Names are text, or whole numbers above those of
//! the table. They get numbers in the order of appearance, from 0, and a request without a name counts as one of them.

use std::collections::HashMap;

use serde_json::Value;
use trunkline_quote::quoted;

use super::TraceFault;
use super::format::clock::TimeUnit;
use super::format::row::whole;

/// Fields whose values may be names.
const NAMED: [&str; 2] = ["tenant", "namespace"];

/// Names that a remark lists.
const NAMES_SHOWN: usize = 16;

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

/// Numbers of the names of one field of a file.
#[derive(Debug, Default)]
struct Names {
    /// Names, if the first value was none of the numbers that are permitted.
    names: Option<HashMap<Box<str>, u32>>,
    has_numbers: bool,
    /// `true` if requests before the first name have none: they have number 0.
    has_unnamed: bool,
}

/// Names of the tenants and namespaces of a file.
#[derive(Debug, Default)]
pub(super) struct TermNames {
    tenants: Names,
    namespaces: Names,
}

impl Names {
    /// Returns the number of a value; `None` for a name among numbers.
    fn number(&mut self, text: &str) -> Option<u32> {
        let number = whole(text).parse().ok();
        if self.names.is_none()
            && let Some(number) = number
        {
            self.has_numbers = true;
            return Some(number);
        }
        if self.has_numbers {
            return None;
        }
        let unnamed = self.has_unnamed.then(|| (Box::default(), 0));
        let names = self.names.get_or_insert_with(|| unnamed.into_iter().collect());
        let next = names.len() as u32;
        Some(*names.entry(text.into()).or_insert(next))
    }

    /// Returns the number of a request without a value.
    fn unnamed(&mut self) -> u32 {
        self.has_unnamed |= self.names.is_none();
        if self.names.is_some() { self.number("").unwrap_or(0) } else { 0 }
    }

    /// Returns the names in the order of their numbers.
    fn in_order(&self) -> Vec<&str> {
        let mut names: Vec<(u32, &str)> =
            self.names.iter().flatten().map(|(name, number)| (*number, name.as_ref())).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }
}

impl TermNames {
    /// Returns what a user should know of the numbers that reports show; `None` for tenants and namespaces that are numbers.
    pub(super) fn remark(&self) -> Option<String> {
        let of = [(&self.tenants, "tenants"), (&self.namespaces, "namespaces")];
        let lists: Vec<String> = of.into_iter().filter_map(|(names, what)| names.remark(what)).collect();
        (!lists.is_empty()).then(|| lists.join("; "))
    }
}

impl Names {
    /// Returns the names with their numbers; `None` without names.
    fn remark(&self, what: &str) -> Option<String> {
        let names = self.in_order();
        let shown = names.iter().take(NAMES_SHOWN).enumerate().map(|(number, name)| match *name {
            "" => format!("{number} none"),
            name => format!("{number} {}", quoted(name)),
        });
        let shown = shown.collect::<Vec<_>>().join(", ");
        let more = if names.len() > NAMES_SHOWN { ", and so on" } else { "" };
        (!names.is_empty()).then(|| format!("{what} are numbered as they come: {shown}{more}"))
    }
}

/// Returns `true` for a whole number that is not negative, of any length.
fn is_whole(value: &Value) -> bool {
    value.is_number() && whole(&value.to_string()).bytes().all(|byte| byte.is_ascii_digit())
}

impl Terms {
    /// Names of the fields, in JSON and as columns of CSV.
    pub const FIELDS: [&str; 6] = ["tenant", "namespace", "priority", "background", "deadline_s", "max_tokens"];

    /// Reads the fields of [`Terms::FIELDS`] in a JSON object.
    pub(super) fn of_json(values: [Option<Value>; 6], names: &mut TermNames) -> Result<Self, TraceFault> {
        let mut terms = Self::default();
        for (field, value) in Self::FIELDS.into_iter().zip(values) {
            let text = match value {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(name)) if NAMED.contains(&field) => name,
                Some(value) if NAMED.contains(&field) && !is_whole(&value) => {
                    let expected = "a whole number from 0 to 4294967295, or text";
                    return Err(TraceFault::BadTerm { field, value: value.to_string(), expected });
                }
                Some(value) => value.to_string(),
            };
            terms.set(field, &text, names)?;
        }
        Ok(terms)
    }

    /// Sets a field of [`Terms::FIELDS`] from text; empty text leaves the default.
    pub(super) fn set(&mut self, field: &'static str, text: &str, names: &mut TermNames) -> Result<(), TraceFault> {
        let bad = |expected| TraceFault::BadTerm { field, value: text.into(), expected };
        const NUMBER: &str =
            "a whole number from 0 to 4294967295, as in the lines above; to use names, give every line one";
        match field {
            "tenant" if text.is_empty() => self.tenant = names.tenants.unnamed(),
            "namespace" if text.is_empty() => self.namespace = names.namespaces.unnamed(),
            "tenant" => self.tenant = names.tenants.number(text).ok_or_else(|| bad(NUMBER))?,
            "namespace" => self.namespace = names.namespaces.number(text).ok_or_else(|| bad(NUMBER))?,
            _ if text.is_empty() => {}
            "priority" => {
                let text = whole(text);
                self.priority = text.parse().map_err(|_| bad("a whole number from -2147483648 to 2147483647"))?;
            }
            "background" => self.background = text.parse().map_err(|_| bad("true or false"))?,
            "max_tokens" => {
                let limit = whole(text).parse().ok().filter(|limit| *limit > 0);
                self.max_tokens = Some(limit.ok_or_else(|| bad("a whole number from 1 to 4294967295"))?);
            }
            _ => {
                let ns = TimeUnit::Seconds.ns(text).filter(|ns| *ns > 0);
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
            assert_eq!(Terms::of_json(fields, &mut TermNames::default()).unwrap(), terms, "{json}");
        }
    }

    #[test]
    fn a_bad_term_is_named_with_its_range() {
        for (field, text, expected) in [
            ("priority", "\"high\"", "priority is \"high\"; it must be a whole number from -2147483648 to 2147483647"),
            ("max_tokens", "0", "max_tokens is 0; it must be a whole number from 1 to 4294967295"),
            ("background", "1", "background is 1; it must be true or false"),
            ("deadline_s", "0", "deadline_s is 0; it must be seconds after the arrival, above 0 and below 10^9"),
        ] {
            let fault = Terms::default().set(field, text, &mut TermNames::default()).unwrap_err();
            assert_eq!(fault.to_string(), expected);
        }
    }

    /// Returns the numbers of values of one field, in JSON.
    fn numbers(values: &[&str]) -> Result<Vec<u32>, String> {
        let mut names = TermNames::default();
        let number = |json: &&str| {
            let value = serde_json::from_str(json).unwrap();
            Terms::of_json([value, None, None, None, None, None], &mut names).map(|terms| terms.tenant)
        };
        values.iter().map(number).collect::<Result<_, _>>().map_err(|fault| fault.to_string())
    }

    #[test]
    fn tenants_are_numbers_or_names_as_the_first_says() {
        assert_eq!(numbers(&["7", "null", "3.0", "\"7\""]).unwrap(), [7, 0, 3, 7]);
        assert_eq!(numbers(&["\"b\"", "\"a\"", "\"b\"", "12", "\"12\""]).unwrap(), [0, 1, 0, 2, 2]);
        assert_eq!(numbers(&["null", "\"b\"", "null", "\"a\""]).unwrap(), [0, 1, 0, 2], "those without are together");
        assert_eq!(numbers(&["\"b\"", "null", "\"a\"", "null"]).unwrap(), [0, 1, 2, 1]);
        assert_eq!(numbers(&["18446744073709551615", "18446744073709551614"]).unwrap(), [0, 1], "longer than a number");
        for bad in ["true", "1.5", "-1", "[1]", "{}"] {
            let expected = format!("tenant is {bad}; it must be a whole number from 0 to 4294967295, or text");
            assert_eq!(numbers(&[bad]).unwrap_err(), expected);
        }
        let fault = numbers(&["1", "\"b\""]).unwrap_err();
        assert!(
            fault.starts_with("tenant is b; it must be a whole number from 0 to 4294967295, as in the lines above")
        );
    }

    #[test]
    fn names_are_listed_with_their_numbers() {
        let mut names = TermNames::default();
        let mut add = |text: &str| Terms::default().set("tenant", text, &mut names).unwrap();
        ["", "team b", "a"].into_iter().for_each(&mut add);
        let said = names.remark().unwrap();
        assert_eq!(said, "tenants are numbered as they come: 0 none, 1 'team b', 2 'a'");
        (0..20).for_each(|n| Terms::default().set("tenant", &format!("t{n}"), &mut names).unwrap());
        assert!(names.remark().unwrap().ends_with("15 't12', and so on"));
        Terms::default().set("namespace", "x", &mut names).unwrap();
        assert!(names.remark().unwrap().ends_with(", and so on; namespaces are numbered as they come: 0 'x'"));
        assert_eq!(TermNames::default().remark(), None);
    }
}
