//! `kv_hints`: actions on the KV of a request's own tokens, in vLLM's `KvHintsEnvelope`
//! `{protocol_version, message_id, actions: [{action_id, action_type, action_version, payload}]}`.
//!
//! | `action_type` | payload | effect at the end of the request |
//! |---|---|---|
//! | `kv.retain` | `directives` of `start`, `end`, `priority`, `duration` in seconds; `covers_output` for a range | a retention hint each |
//! | `kv.demote` | `start` | the tokens from `start` on leave the device for the nearest tier |
//! | `kv.evict` | `start` | these tokens are evicted before all others |
//!
//! An envelope is taken whole or refused: what cannot be done is refused by its place.

use serde::Deserialize;
use serde_json::{Map, Value};
use trunkline_quote::quoted;
use trunkline_server::proto::{RetentionHint, RetentionPart};

use crate::Shared;
use crate::failure::Failure;

/// Actions of one envelope, at most.
const ACTIONS_MAX: usize = 16;
/// Longest duration, seconds: a day.
const DURATION_S_MAX: f64 = 86_400.0;
/// Major version of the envelope and of each action.
const MAJORS: [&str; 2] = ["0", "1"];

/// The envelope.
#[derive(Debug, Default, Deserialize)]
struct Envelope {
    protocol_version: String,
    /// For the client's own books.
    #[serde(rename = "message_id")]
    _message_id: String,
    actions: Vec<Action>,
}

#[derive(Debug, Deserialize)]
struct Action {
    #[serde(rename = "action_id")]
    _action_id: String,
    action_type: String,
    action_version: String,
    payload: Map<String, Value>,
}

/// A range of tokens and its priority.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Directive {
    start: Option<u32>,
    end: Option<u32>,
    covers_output: Option<bool>,
    priority: u32,
    duration: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Retain {
    directives: Vec<Directive>,
    /// Names whose prefixes these are: they are the tenant's.
    #[serde(rename = "scope")]
    _scope: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct From {
    #[serde(default)]
    start: u32,
}

impl Directive {
    fn hint(self) -> Result<RetentionHint, &'static str> {
        let of_output = self.covers_output == Some(true);
        let ttl_ms = match self.duration {
            None => 0,
            Some(seconds) if (0.0..=DURATION_S_MAX).contains(&seconds) => ((seconds * 1e3) as u64).max(1),
            Some(_) => return Err("duration must be 0 to 86400 seconds"),
        };
        match (of_output, self.start) {
            (true, None) if self.end.is_none() => {}
            (true, _) => return Err("covers_output stands alongside start or end; send one of them"),
            (false, None) => return Err("start is missing"),
            (false, Some(_)) => {}
        }
        let part = if of_output { RetentionPart::Answer } else { RetentionPart::Unspecified };
        let (from, priority) = (self.start.unwrap_or(0), Some(self.priority));
        Ok(RetentionHint { from, to: self.end, part: part.into(), priority, ttl_ms, demote: false, pin: false })
    }
}

fn refused(place: &str, why: impl std::fmt::Display) -> Failure {
    Failure::invalid("kv_hints", format!("{place} {why}"))
}

fn payload<T: for<'de> Deserialize<'de>>(place: &str, payload: Map<String, Value>) -> Result<T, Failure> {
    let wrong = |error: serde_json::Error| {
        refused(&format!("{place}.payload:"), trunkline_quote::of_parser(&error.to_string()))
    };
    serde_json::from_value(Value::Object(payload)).map_err(wrong)
}

impl Action {
    /// Returns the hints that the action is.
    fn hints(self, place: &str, has_tier: bool) -> Result<Vec<RetentionHint>, Failure> {
        check_version(&format!("{place}.action_version"), &self.action_version)?;
        match self.action_type.as_str() {
            "kv.retain" => {
                let mut hints = Vec::new();
                for (n, directive) in payload::<Retain>(place, self.payload)?.directives.into_iter().enumerate() {
                    let hint = directive.hint();
                    hints.push(hint.map_err(|why| refused(&format!("{place}.payload.directives[{n}]:"), why))?);
                }
                Ok(hints)
            }
            "kv.demote" if !has_tier => Err(refused(place, "demotes, and this server has no tier behind the device")),
            kind @ ("kv.demote" | "kv.evict") => {
                let From { start } = payload(place, self.payload)?;
                let demote = kind == "kv.demote";
                Ok(vec![RetentionHint { from: start, priority: Some(0), demote, ..RetentionHint::default() }])
            }
            "kv.pin" => Err(refused(
                place,
                "pins, which no request can promise another; kv.retain with priority 100 is the strongest wish",
            )),
            "kv.prefetch" => Err(refused(
                place,
                "prefetches; a request in the queue has its blocks brought nearer without it, and no other can be named",
            )),
            other => Err(refused(place, format!("is {}; there are kv.retain, kv.demote and kv.evict", quoted(other)))),
        }
    }
}

fn check_version(place: &str, version: &str) -> Result<(), Failure> {
    let major = version.split('.').next().unwrap_or_default();
    if MAJORS.contains(&major) {
        Ok(())
    } else {
        Err(refused(place, format!("is {}; it must be 0.x or 1.x", quoted(version))))
    }
}

/// Returns the hints of an envelope, in the order of their tokens.
fn hints(envelope: &Value, has_tier: bool) -> Result<Vec<RetentionHint>, Failure> {
    let parsed: Result<Envelope, _> = Deserialize::deserialize(envelope);
    let envelope = parsed.map_err(|error| refused("kv_hints:", trunkline_quote::of_parser(&error.to_string())))?;
    check_version("kv_hints.protocol_version", &envelope.protocol_version)?;
    if envelope.actions.len() > ACTIONS_MAX {
        return Err(refused("kv_hints", format!("has {} actions; send at most {ACTIONS_MAX}", envelope.actions.len())));
    }
    let mut hints = Vec::new();
    for (at, action) in envelope.actions.into_iter().enumerate() {
        hints.extend(action.hints(&format!("kv_hints.actions[{at}]"), has_tier)?);
    }
    // Those of the output are behind all tokens of the prompt.
    hints.sort_by_key(|hint| (hint.part() == RetentionPart::Answer, hint.from));
    Ok(hints)
}

impl Shared {
    /// Returns the hints of a request, which may be those `of_marks` for the prompt cache.
    ///
    /// # Errors
    /// If an action cannot be done, or stands alongside marks.
    pub(crate) fn kv_hints(
        &self,
        envelope: Option<&Value>,
        of_marks: Vec<RetentionHint>,
    ) -> Result<Vec<RetentionHint>, Failure> {
        let Some(envelope) = envelope.filter(|envelope| !envelope.is_null()) else { return Ok(of_marks) };
        let limits = self.front.limits().map_err(|status| Failure::of(&status))?;
        let hints = hints(envelope, !limits.tiers.is_empty())?;
        match (of_marks.is_empty(), hints.is_empty()) {
            (false, false) => Err(refused("kv_hints", "stands alongside marks for the prompt cache; send one of them")),
            (_, true) => Ok(of_marks),
            (true, false) => Ok(hints),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(actions: Value) -> Result<Vec<RetentionHint>, String> {
        let envelope = json!({"protocol_version": "0.1", "message_id": "m", "actions": actions});
        hints(&envelope, true).map_err(|failure| failure.json())
    }

    fn action(kind: &str, payload: Value) -> Value {
        json!({"action_id": "a", "action_type": kind, "action_version": "1.0", "payload": payload})
    }

    #[test]
    fn actions_are_hints_in_the_order_of_their_tokens() {
        let directives = json!([{"covers_output": true, "priority": 40}, {"start": 16, "end": 32, "priority": 50, "duration": 0.5},
            {"start": 0, "end": 16, "priority": 90}]);
        let found = of(json!([action("kv.retain", json!({"scope": "alice", "directives": directives}))])).unwrap();
        let shown: Vec<_> =
            found.iter().map(|hint| (hint.from, hint.to, hint.part, hint.priority, hint.ttl_ms)).collect();
        let answer = RetentionPart::Answer.into();
        assert_eq!(
            shown,
            [(0, Some(16), 0, Some(90), 0), (16, Some(32), 0, Some(50), 500), (0, None, answer, Some(40), 0)]
        );
        let both = of(json!([
            action("kv.demote", json!({"start": 16})),
            action("kv.retain", json!({"directives": directives_of(16)}))
        ]));
        let both = both.unwrap();
        assert_eq!(
            (both.len(), both[0].demote, both[1].demote, both[1].from, both[1].priority),
            (2, false, true, 16, Some(0))
        );
        let evicted = of(json!([action("kv.evict", json!({}))])).unwrap();
        assert_eq!(evicted, [RetentionHint { priority: Some(0), ..RetentionHint::default() }]);
        assert_eq!(of(json!([])), Ok(Vec::new()));
    }

    fn directives_of(end: u32) -> Value {
        json!([{"start": 0, "end": end, "priority": 80}])
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_its_place() {
        let retain = |directive: Value| json!([action("kv.retain", json!({"directives": [directive]}))]);
        for (actions, words) in [
            (json!([action("kv.pin", json!({}))]), "kv_hints.actions[0] pins"),
            (json!([action("kv.prefetch", json!({}))]), "kv_hints.actions[0] prefetches"),
            (json!([action("kv.fetch", json!({}))]), "kv_hints.actions[0] is 'kv.fetch'; there are"),
            (json!([action("kv.evict", json!({"block_hashes": ["1"]}))]), "kv_hints.actions[0].payload: unknown field"),
            (retain(json!({"start": 0})), "missing field"),
            (retain(json!({"priority": 3})), "directives[0]: start is missing"),
            (retain(json!({"start": 1, "covers_output": true, "priority": 3})), "directives[0]: covers_output stands"),
            (retain(json!({"start": 0, "priority": 50, "duration": 86_401})), "directives[0]: duration must be"),
            (retain(json!({"start": 0, "priority": 50, "ttl": 1})), "unknown field"),
            (json!([{"action_type": "kv.retain"}]), "kv_hints: missing field"),
            (Value::Array(vec![action("kv.evict", json!({})); 17]), "kv_hints has 17 actions"),
        ] {
            let told = of(actions).unwrap_err();
            assert!(told.contains(words) && told.contains(r#""param":"kv_hints""#), "{told}");
        }
        let newer = json!({"protocol_version": "2.0", "message_id": "m", "actions": []});
        assert!(hints(&newer, true).unwrap_err().json().contains("kv_hints.protocol_version is '2.0'"));
        let demoting =
            json!({"protocol_version": "1.0", "message_id": "m", "actions": [action("kv.demote", json!({}))]});
        assert!(hints(&demoting, false).unwrap_err().json().contains("this server has no tier"));
    }
}
