//! `kv_hints`: actions on the KV of a request's own tokens, in vLLM's `KvHintsEnvelope`
//! `{protocol_version, message_id, actions: [{action_id, action_type, action_version, payload}]}`.
//!
//! | `action_type` | payload | effect at the end of the request |
//! |---|---|---|
//! | `kv.retain` | `directives` of `start`, `end`, `priority`, `duration` in seconds; `covers_output` for a range | a retention hint each |
//! | `kv.demote` | `start` | the tokens from `start` on leave the device for the nearest tier |
//! | `kv.evict` | `start` | these tokens are evicted before all others |
//! | `kv.pin` | `start`, `end`, `duration` in seconds, a day at most | a retention hint with `pin` |
//!
//! `kv.prefetch`, without a payload, brings what tiers hold of the prompt to the device; the request asks for no tokens.
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
/// Priority of what is pinned.
const PIN_PRIORITY: u32 = 100;
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
struct Pin {
    #[serde(default)]
    start: u32,
    end: Option<u32>,
    duration: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// What an envelope asks for.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct KvHints {
    pub(crate) retention: Vec<RetentionHint>,
    /// Place of the action that prefetches.
    prefetch: Option<String>,
}

impl KvHints {
    /// Returns `true` for a prefetch, which asks for `max_tokens` and `n` answers.
    ///
    /// # Errors
    /// If it asks for tokens, or several answers.
    pub(crate) fn prefetches(&self, max_tokens: Option<u32>, n: usize) -> Result<bool, Failure> {
        match &self.prefetch {
            None => Ok(false),
            Some(place) if max_tokens != Some(0) => {
                Err(refused(place, "prefetches, and computes nothing: set max_tokens to 0"))
            }
            Some(place) if n > 1 => Err(refused(place, "prefetches, and has no answers: leave n out")),
            Some(_) => Ok(true),
        }
    }
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

impl Pin {
    fn hint(self, place: &str) -> Result<RetentionHint, Failure> {
        let Self { start, end, duration } = self;
        if duration <= 0.0 || duration > DURATION_S_MAX {
            return Err(refused(&format!("{place}.payload:"), "duration must be above 0, and 86400 seconds at most"));
        }
        let (priority, ttl_ms) = (Some(PIN_PRIORITY), ((duration * 1e3) as u64).max(1));
        Ok(RetentionHint { from: start, to: end, priority, ttl_ms, pin: true, ..RetentionHint::default() })
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
    /// Adds the hints that the action is.
    fn add_to(self, hints: &mut KvHints, place: &str, has_tier: bool) -> Result<(), Failure> {
        check_version(&format!("{place}.action_version"), &self.action_version)?;
        match self.action_type.as_str() {
            "kv.retain" => {
                for (n, directive) in payload::<Retain>(place, self.payload)?.directives.into_iter().enumerate() {
                    let hint = directive.hint();
                    let hint = hint.map_err(|why| refused(&format!("{place}.payload.directives[{n}]:"), why))?;
                    hints.retention.push(hint);
                }
            }
            "kv.demote" if !has_tier => {
                return Err(refused(place, "demotes, and this server has no tier behind the device"));
            }
            kind @ ("kv.demote" | "kv.evict") => {
                let From { start } = payload(place, self.payload)?;
                let demote = kind == "kv.demote";
                hints.retention.push(RetentionHint {
                    from: start,
                    priority: Some(0),
                    demote,
                    ..RetentionHint::default()
                });
            }
            "kv.pin" => hints.retention.push(payload::<Pin>(place, self.payload)?.hint(place)?),
            "kv.prefetch" => {
                let Nothing {} = payload(place, self.payload)?;
                hints.prefetch = Some(place.to_owned());
            }
            other => {
                let known = "there are kv.retain, kv.demote, kv.evict, kv.pin and kv.prefetch";
                return Err(refused(place, format!("is {}; {known}", quoted(other))));
            }
        }
        Ok(())
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
fn hints(envelope: &Value, has_tier: bool) -> Result<KvHints, Failure> {
    let parsed: Result<Envelope, _> = Deserialize::deserialize(envelope);
    let envelope = parsed.map_err(|error| refused("kv_hints:", trunkline_quote::of_parser(&error.to_string())))?;
    check_version("kv_hints.protocol_version", &envelope.protocol_version)?;
    if envelope.actions.len() > ACTIONS_MAX {
        return Err(refused("kv_hints", format!("has {} actions; send at most {ACTIONS_MAX}", envelope.actions.len())));
    }
    let mut hints = KvHints::default();
    for (at, action) in envelope.actions.into_iter().enumerate() {
        action.add_to(&mut hints, &format!("kv_hints.actions[{at}]"), has_tier)?;
    }
    // Those of the output are behind all tokens of the prompt.
    hints.retention.sort_by_key(|hint| (hint.part() == RetentionPart::Answer, hint.from));
    Ok(hints)
}

impl Shared {
    /// Returns the hints of a request, which may be those `of_marks` for the prompt cache.
    ///
    /// # Errors
    /// If an action cannot be done, or stands alongside marks.
    pub(crate) fn kv_hints(&self, envelope: Option<&Value>, of_marks: Vec<RetentionHint>) -> Result<KvHints, Failure> {
        let of_marks = KvHints { retention: of_marks, prefetch: None };
        let Some(envelope) = envelope.filter(|envelope| !envelope.is_null()) else { return Ok(of_marks) };
        let limits = self.front.limits().map_err(|status| Failure::of(&status))?;
        let hints = hints(envelope, !limits.tiers.is_empty())?;
        match (of_marks.retention.is_empty(), hints.retention.is_empty()) {
            (false, false) => Err(refused("kv_hints", "stands alongside marks for the prompt cache; send one of them")),
            (_, true) => Ok(KvHints { prefetch: hints.prefetch, ..of_marks }),
            (true, false) => Ok(hints),
        }
    }

    /// Returns the hints of a request that has to have an answer, as [`Self::kv_hints`].
    ///
    /// # Errors
    /// As [`Self::kv_hints`], and for a prefetch.
    pub(crate) fn kv_hints_of_answer(
        &self,
        envelope: Option<&Value>,
        of_marks: Vec<RetentionHint>,
    ) -> Result<Vec<RetentionHint>, Failure> {
        let KvHints { retention, prefetch } = self.kv_hints(envelope, of_marks)?;
        match prefetch {
            None => Ok(retention),
            Some(place) => Err(refused(&place, "prefetches; send it to /v1/chat/completions with max_tokens 0")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(actions: Value) -> Result<Vec<RetentionHint>, String> {
        all_of(actions).map(|hints| hints.retention)
    }

    fn all_of(actions: Value) -> Result<KvHints, String> {
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
        let pinned =
            all_of(json!([action("kv.pin", json!({"end": 32, "duration": 90})), action("kv.prefetch", json!({}))]));
        let pin =
            RetentionHint { to: Some(32), priority: Some(100), ttl_ms: 90_000, pin: true, ..RetentionHint::default() };
        let prefetch = Some("kv_hints.actions[1]".to_owned());
        assert_eq!(pinned, Ok(KvHints { retention: vec![pin], prefetch }));
    }

    fn directives_of(end: u32) -> Value {
        json!([{"start": 0, "end": end, "priority": 80}])
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_its_place() {
        let retain = |directive: Value| json!([action("kv.retain", json!({"directives": [directive]}))]);
        for (actions, words) in [
            (json!([action("kv.pin", json!({}))]), "kv_hints.actions[0].payload: missing field"),
            (json!([action("kv.pin", json!({"duration": 0}))]), "kv_hints.actions[0].payload: duration must be"),
            (json!([action("kv.pin", json!({"duration": 86_401}))]), "kv_hints.actions[0].payload: duration must be"),
            (json!([action("kv.prefetch", json!({"start": 1}))]), "kv_hints.actions[0].payload: unknown field"),
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
        let prefetch = all_of(json!([action("kv.prefetch", json!({}))])).unwrap();
        for (max_tokens, n) in [(None, 1), (Some(3), 1), (Some(0), 2)] {
            let told = prefetch.prefetches(max_tokens, n).unwrap_err().json();
            assert!(told.contains("kv_hints.actions[0] prefetches"), "{told}");
        }
        assert!(prefetch.prefetches(Some(0), 1).unwrap());
        let newer = json!({"protocol_version": "2.0", "message_id": "m", "actions": []});
        assert!(hints(&newer, true).unwrap_err().json().contains("kv_hints.protocol_version is '2.0'"));
        let demoting =
            json!({"protocol_version": "1.0", "message_id": "m", "actions": [action("kv.demote", json!({}))]});
        assert!(hints(&demoting, false).unwrap_err().json().contains("this server has no tier"));
    }
}
