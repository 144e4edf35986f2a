//! `prompt_cache_key`, `prompt_cache_options`, `prompt_cache_retention` and `prompt_cache_breakpoint` of OpenAI's API, as retention hints.
//!
//! | field | effect |
//! |---|---|
//! | `prompt_cache_options.mode` | `implicit`: the whole prompt is kept, alongside its last three breakpoints; `explicit`: its last four breakpoints alone |
//! | `prompt_cache_options.ttl`, `prompt_cache_breakpoint.ttl` | time for which, `30m` by default |
//! | `prompt_cache_retention` | `24h` is another default for that time; `in_memory` is refused where a tier is no memory |
//! | `prompt_cache_key` | asks for an implicit breakpoint. Requests go to where their prompt is cached without it |
//!
//! Without any of them nothing is kept beyond what the eviction policy keeps by itself.

use axum::http::request::Parts;
use serde::Deserialize;
use trunkline_quote::quoted;
use trunkline_server::proto::{RetentionHint, RetentionPart};
use trunkline_template::Value;

use crate::Shared;
use crate::failure::Failure;
use crate::marks::{PRIORITY, Rendered, hints};

/// Breakpoints of a request that count: the last ones.
const BREAKPOINTS_MAX: usize = 4;
/// Time without a `ttl`.
const TTL_MS: u64 = 30 * 60_000;
/// Time of `prompt_cache_retention: "24h"`, and the longest.
const TTL_MS_MAX: u64 = 24 * 3_600_000;
/// Names of tiers in memory.
const MEMORY: [&str; 2] = ["host", "shared"];

/// Fields about the prompt cache.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct CachingAsked {
    prompt_cache_key: Option<String>,
    prompt_cache_options: Option<CacheOptions>,
    prompt_cache_retention: Option<String>,
    /// See [`crate::kv_hints`].
    pub(crate) kv_hints: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
struct CacheOptions {
    mode: Option<String>,
    ttl: Option<String>,
    /// Compute the prompt alone.
    prewarm: Option<bool>,
    /// Explain what was not found.
    comparison_response_id: Option<String>,
}

/// What a request asks of the prompt cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Caching {
    /// Keep the whole prompt.
    pub(crate) implicit: bool,
    /// Time of marks without one of their own.
    pub(crate) ttl_ms: u64,
}

impl Caching {
    /// Returns hints for a prompt whose length is not known yet.
    pub(crate) fn of_prompt(self) -> Vec<RetentionHint> {
        let part = RetentionPart::Prompt.into();
        let hint = RetentionHint { part, priority: Some(PRIORITY), ttl_ms: self.ttl_ms, ..RetentionHint::default() };
        if self.implicit { vec![hint] } else { Vec::new() }
    }
}

impl CachingAsked {
    /// Returns what is asked; `None` if nothing is.
    ///
    /// # Errors
    /// Names the field that cannot be honoured.
    pub(crate) fn check(&self, shared: &Shared) -> Result<Option<Caching>, Failure> {
        let limits = shared.front.limits().map_err(|status| Failure::of(&status))?;
        let tier = limits.tiers.iter().map(|tier| tier.name.as_str()).find(|name| !MEMORY.contains(name));
        self.caching(tier)
    }

    /// Returns what is asked of a server with this tier that is no memory.
    fn caching(&self, tier: Option<&str>) -> Result<Option<Caching>, Failure> {
        let mut ttl_ms = TTL_MS;
        match (self.prompt_cache_retention.as_deref(), tier) {
            (Some("24h"), _) => ttl_ms = TTL_MS_MAX,
            (Some("in_memory"), Some(tier)) => {
                let why = format!("in_memory cannot be promised: this server caches in the tier {} too", quoted(tier));
                return Err(Failure::invalid("prompt_cache_retention", why));
            }
            (None | Some("in_memory"), _) => {}
            (Some(other), _) => {
                let why = format!("prompt_cache_retention is {}; it may be in_memory or 24h", quoted(other));
                return Err(Failure::invalid("prompt_cache_retention", why));
            }
        }
        let asks = self.prompt_cache_key.is_some() || self.prompt_cache_retention.is_some();
        let Some(options) = &self.prompt_cache_options else {
            return Ok(asks.then_some(Caching { implicit: true, ttl_ms }));
        };
        let refused = |why: String| Err(Failure::invalid("prompt_cache_options", why));
        if options.prewarm == Some(true) {
            return refused("prompt_cache_options.prewarm is not supported; ask for one token".into());
        }
        if options.comparison_response_id.is_some() {
            return refused("prompt_cache_options.comparison_response_id is not supported".into());
        }
        let implicit = match options.mode.as_deref() {
            None | Some("implicit") => true,
            Some("explicit") => false,
            Some(mode) => {
                let mode = quoted(mode);
                return refused(format!("prompt_cache_options.mode is {mode}; it may be implicit or explicit"));
            }
        };
        if let Some(ttl) = &options.ttl {
            ttl_ms = match time_ms(ttl) {
                Ok(ttl_ms) => ttl_ms,
                Err(why) => return refused(format!("prompt_cache_options.ttl {why}")),
            };
        }
        Ok(Some(Caching { implicit, ttl_ms }))
    }
}

/// Returns the milliseconds of a time such as `30m` or `12h`.
fn time_ms(text: &str) -> Result<u64, String> {
    let unit = |(name, ms): (&str, u64)| Some(text.strip_suffix(name)?.parse::<u64>().ok()?.saturating_mul(ms));
    let time = [("m", 60_000), ("h", 3_600_000)].into_iter().find_map(unit);
    let in_range = time.filter(|ms| (60_000..=TTL_MS_MAX).contains(ms));
    in_range.ok_or_else(|| format!("is {}; it may be 1m to 24h, as in 30m", quoted(text)))
}

/// A breakpoint: the conversation up to it, and its time if it has one.
#[derive(Debug)]
pub(crate) struct Breakpoint {
    messages: Vec<Value>,
    ttl_ms: Option<u64>,
}

/// Returns the breakpoints in messages, which the parts of their contents have.
///
/// # Errors
/// If one is not of the one mode, or its time is none.
pub(crate) fn breakpoints(messages: &[Value]) -> Result<Vec<Breakpoint>, Failure> {
    let mut found = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let content = message.get_attr("content").unwrap_or_default();
        // A text has no parts.
        let parts: Vec<Value> = match content.as_str() {
            None => content.try_iter().map(Iterator::collect).unwrap_or_default(),
            Some(_) => Vec::new(),
        };
        for (n, part) in parts.iter().enumerate() {
            let breakpoint = part.get_attr("prompt_cache_breakpoint").unwrap_or_default();
            if breakpoint.is_undefined() || breakpoint.is_none() {
                continue;
            }
            let ttl_ms = ttl_ms(&breakpoint).map_err(|why| {
                let place = format!("messages[{at}].content[{n}].prompt_cache_breakpoint");
                Failure::invalid("prompt_cache_breakpoint", format!("{place}{why}"))
            })?;
            let mut begin = messages[..at].to_vec();
            begin.push(cut(message, &parts[..=n]));
            found.push(Breakpoint { messages: begin, ttl_ms });
        }
    }
    Ok(found)
}

/// Returns the time of a breakpoint, if it has one.
fn ttl_ms(breakpoint: &Value) -> Result<Option<u64>, String> {
    let field = |name: &str| breakpoint.get_attr(name).ok().filter(|value| !value.is_undefined() && !value.is_none());
    match field("mode").as_ref().and_then(Value::as_str) {
        Some("explicit") => {}
        _ => return Err(".mode must be explicit".into()),
    }
    let Some(ttl) = field("ttl") else { return Ok(None) };
    let text = ttl.as_str().ok_or(".ttl must be a text, as in 30m")?;
    time_ms(text).map(Some).map_err(|why| format!(".ttl {why}"))
}

/// Returns a message with these parts of its content.
fn cut(message: &Value, parts: &[Value]) -> Value {
    let keys = message.try_iter().into_iter().flatten();
    Value::from_pairs(keys.map(|key| {
        let value = match key.as_str() {
            Some("content") => Value::from(parts.to_vec()),
            _ => message.get_item(&key).unwrap_or_default(),
        };
        (key, value)
    }))
}

impl Shared {
    /// Returns hints for what a request asks of the cache, for a prompt that has these tokens.
    pub(crate) async fn cache_hints(
        &self,
        parts: &Parts,
        caching: Option<Caching>,
        breakpoints: Vec<Breakpoint>,
        prompt: Rendered<'_>,
    ) -> Result<Vec<RetentionHint>, Failure> {
        let Caching { implicit, ttl_ms } = caching.unwrap_or(Caching { implicit: false, ttl_ms: TTL_MS });
        let counted = BREAKPOINTS_MAX - usize::from(implicit);
        let skipped = breakpoints.len().saturating_sub(counted);
        let mut ends = Vec::new();
        for Breakpoint { messages, ttl_ms: own } in breakpoints.into_iter().skip(skipped) {
            ends.push((self.end(parts, messages, prompt).await?, own.unwrap_or(ttl_ms)));
        }
        if implicit {
            ends.push((u32::try_from(prompt.ids.len()).unwrap_or(u32::MAX), ttl_ms));
        }
        Ok(hints(&ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    fn caching(json: &str, tier: Option<&str>) -> Result<Option<Caching>, String> {
        let asked: CachingAsked = parse(json.as_bytes()).map_err(|failure| failure.json())?;
        asked.caching(tier).map_err(|failure| failure.json())
    }

    #[test]
    fn a_request_says_what_is_kept_and_how_long() {
        let minutes = |json: &str| caching(json, None).unwrap().map(|of| (of.implicit, of.ttl_ms / 60_000));
        assert_eq!(minutes("{}"), None);
        assert_eq!(minutes(r#"{"prompt_cache_key": "k"}"#), Some((true, 30)));
        assert_eq!(minutes(r#"{"prompt_cache_options": {}}"#), Some((true, 30)));
        assert_eq!(minutes(r#"{"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}}"#), Some((false, 720)));
        assert_eq!(minutes(r#"{"prompt_cache_retention": "24h"}"#), Some((true, 1440)));
        assert_eq!(
            minutes(r#"{"prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "5m"}}"#),
            Some((true, 5))
        );
        assert_eq!(minutes(r#"{"prompt_cache_retention": "in_memory"}"#), Some((true, 30)));
        assert!(
            caching(r#"{"prompt_cache_retention": "in_memory"}"#, Some("disk")).unwrap_err().contains("tier 'disk'")
        );
        for (json, param) in [
            (r#"{"prompt_cache_retention": "1h"}"#, "prompt_cache_retention"),
            (r#"{"prompt_cache_options": {"mode": "off"}}"#, "prompt_cache_options"),
            (r#"{"prompt_cache_options": {"ttl": "25h"}}"#, "prompt_cache_options"),
            (r#"{"prompt_cache_options": {"ttl": "0m"}}"#, "prompt_cache_options"),
            (r#"{"prompt_cache_options": {"ttl": "5s"}}"#, "prompt_cache_options"),
            (r#"{"prompt_cache_options": {"prewarm": true}}"#, "prompt_cache_options"),
            (r#"{"prompt_cache_options": {"comparison_response_id": "r"}}"#, "prompt_cache_options"),
            (r#"{"prompt_cache_key": 7}"#, "prompt_cache_key"),
        ] {
            let error = caching(json, None).unwrap_err();
            assert!(error.contains(&format!(r#""param":"{param}""#)), "{json}: {error}");
        }
    }

    #[test]
    fn a_breakpoint_covers_the_conversation_up_to_its_part() {
        let messages = |json: &str| parse::<Vec<Value>>(json.as_bytes()).unwrap();
        let given = messages(
            r#"[{"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}},
                {"type": "text", "text": "b"}, {"type": "text", "text": "c", "prompt_cache_breakpoint": {"mode": "explicit"}}]}]"#,
        );
        let found = breakpoints(&given).unwrap();
        let shown: Vec<_> = found.iter().map(|of| (of.messages.len(), of.messages[1].to_string(), of.ttl_ms)).collect();
        assert_eq!((shown[0].0, shown[0].2, shown[1].2), (2, Some(43_200_000), None));
        assert!(shown[0].1.contains("'a'") && !shown[0].1.contains("'b'"), "{shown:?}");
        assert!(shown[1].1.contains("'c'"), "{shown:?}");
        for wrong in ["{}", r#"{"mode": "implicit"}"#, r#"{"mode": "explicit", "ttl": "x"}"#, "7"] {
            let given = format!(
                r#"[{{"role": "user", "content": [{{"type": "text", "text": "a", "prompt_cache_breakpoint": {wrong}}}]}}]"#
            );
            let error = breakpoints(&messages(&given)).unwrap_err().json();
            assert!(error.contains("messages[0].content[0].prompt_cache_breakpoint."), "{error}");
        }
    }
}
