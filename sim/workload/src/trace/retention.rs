//! Retention hints of a request: priorities of token ranges in the prefix cache, as in [`trunkline_core::request::retention`].
//!
//! A line of a JSON format may have the field `retention`, a list of `{"from": 0, "to": 2048, "priority": 80, "ttl_ms": 60000}`. Without
//! `from`, a range begins with the prompt; without `to`, it ends with the answer; without `ttl_ms`, a hint has no end. `"demote": true` demotes, `"pin": true` pins. CSV has no
//! hints.

use serde::Deserialize;
use serde_json::Value;
use trunkline_core::RetentionHint;
use trunkline_core::request::retention::{TO_END, check};

use super::TraceFault;

const NS_PER_MS: u64 = 1_000_000;
/// Longest time to live, milliseconds: 31 years.
const TTL_MS_MAX: f64 = 1e12;
const FORM: &str = r#"a list of {"from": 0, "to": 2048, "priority": 80, "ttl_ms": 60000}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hint {
    #[serde(default)]
    from: u32,
    to: Option<u32>,
    priority: u8,
    #[serde(default)]
    ttl_ms: f64,
    #[serde(default)]
    demote: bool,
    #[serde(default)]
    pin: bool,
}

/// Reads the field `retention`.
pub(super) fn of_json(value: Option<Value>) -> Result<Box<[RetentionHint]>, TraceFault> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Box::default()) };
    let text = value.to_string();
    let malformed = |_| TraceFault::BadTerm { field: "retention", value: text, expected: FORM };
    let hints: Vec<Hint> = serde_json::from_value(value).map_err(malformed)?;
    if let Some(Hint { ttl_ms, .. }) = hints.iter().find(|hint| !(0.0..=TTL_MS_MAX).contains(&hint.ttl_ms)) {
        let value = format!("[… \"ttl_ms\": {ttl_ms} …]");
        return Err(TraceFault::BadTerm { field: "retention", value, expected: "0 to 10^12 for each ttl_ms" });
    }
    let hints: Box<[RetentionHint]> = hints
        .into_iter()
        .map(|Hint { from, to, priority, ttl_ms, demote, pin }| RetentionHint {
            from,
            to: to.unwrap_or(TO_END),
            priority,
            ttl_ns: (ttl_ms * NS_PER_MS as f64).round() as u64,
            demote,
            pin,
        })
        .collect();
    check(&hints)?;
    Ok(hints)
}

/// Returns the hints as a field after a comma; empty without a hint.
pub(super) fn to_json(hints: &[RetentionHint]) -> String {
    if hints.is_empty() {
        return String::new();
    }
    let hint = |hint: &RetentionHint| {
        let to = if hint.to == TO_END { String::new() } else { format!("\"to\": {}, ", hint.to) };
        let ttl = match hint.ttl_ns {
            0 => String::new(),
            ns => format!(", \"ttl_ms\": {}", ns as f64 / NS_PER_MS as f64),
        };
        let demote = if hint.demote { ", \"demote\": true" } else { "" };
        let pin = if hint.pin { ", \"pin\": true" } else { "" };
        format!("{{\"from\": {}, {to}\"priority\": {}{ttl}{demote}{pin}}}", hint.from, hint.priority)
    };
    format!(", \"retention\": [{}]", hints.iter().map(hint).collect::<Vec<_>>().join(", "))
}

/// Moves hints after a prompt of `before` tokens was cut to `after`: hints of the answer begin with the answer.
pub(super) fn cut(hints: &mut Box<[RetentionHint]>, before: u32, after: u32) {
    let moved = |at: u32| match at {
        TO_END => TO_END,
        at if at <= before => at.min(after),
        at => at - (before - after),
    };
    let hints_after = hints.iter().map(|hint| RetentionHint { from: moved(hint.from), to: moved(hint.to), ..*hint });
    *hints = hints_after.filter(|hint| hint.from < hint.to).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(from: u32, to: u32, priority: u8, ttl_ns: u64) -> RetentionHint {
        RetentionHint { from, to, priority, ttl_ns, demote: false, pin: false }
    }

    #[test]
    fn hints_survive_being_written_and_read() {
        let away = RetentionHint { demote: true, ..hint(100, TO_END, 0, 0) };
        let hints = [hint(0, 100, 80, 1_500_000), away];
        let json = format!("{{\"a\": 1{}}}", to_json(&hints));
        assert_eq!(
            json,
            r#"{"a": 1, "retention": [{"from": 0, "to": 100, "priority": 80, "ttl_ms": 1.5}, {"from": 100, "priority": 0, "demote": true}]}"#
        );
        let object: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(*of_json(object.get("retention").cloned()).unwrap(), hints);
        assert_eq!((to_json(&[]).as_str(), of_json(None).unwrap().len()), ("", 0));
    }

    #[test]
    fn faults_are_one_line() {
        let fault = |json| of_json(Some(serde_json::from_str(json).unwrap())).unwrap_err().to_string();
        assert_eq!(fault(r#"[{"from": 0}]"#), format!("retention is [{{\"from\":0}}]; it must be {FORM}"));
        assert_eq!(
            fault(r#"[{"priority": 80, "ttl_ms": -1}]"#),
            r#"retention is [… "ttl_ms": -1 …]; it must be 0 to 10^12 for each ttl_ms"#
        );
        assert_eq!(fault(r#"[{"priority": 101}]"#), "retention[0]: priority is 101; it must be 0 to 100");
    }

    #[test]
    fn hints_of_a_cut_prompt_move_with_the_answer() {
        let mut hints: Box<[_]> =
            [hint(0, 50, 80, 0), hint(50, 90, 60, 0), hint(90, 100, 50, 0), hint(100, TO_END, 0, 0)].into();
        cut(&mut hints, 100, 60);
        assert_eq!(*hints, [hint(0, 50, 80, 0), hint(50, 60, 60, 0), hint(60, TO_END, 0, 0)]);
    }
}
