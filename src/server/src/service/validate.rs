//! Checks requests of clients, before anything is done with a request. Every refusal names the field and the field's range.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tonic::Status;
use tonic::metadata::MetadataMap;
use trunkline_core::h2o::Mode;
use trunkline_core::{Namespace, Request, Reuse, Sampling, Token};
use trunkline_port::LogitBias;
use trunkline_quote::quoted;

use crate::network::shares::Client;
use crate::proto;
use crate::service::retention::{self, HintFault};
use crate::service::structure::{self, StructureFault};

/// Maximum number of generated tokens of a request without `max_tokens`.
pub(crate) const MAX_TOKENS_DEFAULT: u32 = 128;
const REQUEST_ID_BYTES_MAX: usize = 256;
const CACHE_SALT_BYTES_MAX: usize = 1024;
const TENANT_BYTES_MAX: usize = 1024;
const EXTRA_KEYS_MAX: usize = 64;
const EXTRA_KEY_BYTES_MAX: usize = 256;
const STOP_STRINGS_MAX: usize = 16;
const STOP_STRING_BYTES_MAX: usize = 256;
const STOP_TOKEN_IDS_MAX: usize = 64;
/// Maximum number of likely tokens reported with each token.
pub(crate) const LOGPROBS_MAX: u32 = 20;
/// The least temperature above greedy, and the least repetition penalty: logits divided by less may overflow.
const DIVISOR_MIN: f32 = 0.01;
const DIVISOR_MAX: f32 = 100.0;
/// Bound of frequency and presence penalties, as in OpenAI's API and in vLLM.
const PENALTY_MAX: f32 = 2.0;
/// Bound of a bias, likewise.
const BIAS_MAX: f32 = 100.0;
/// Tokens with a bias in one request, at most: OpenAI's API takes 300 (<https://github.com/dottxt-ai/outlines/issues/99>).
const LOGIT_BIAS_MAX: usize = 300;

/// A request ready to be tokenised and submitted.
#[derive(Debug, PartialEq)]
pub(crate) struct Checked {
    pub(crate) request_id: String,
    pub(crate) prompt: Prompt,
    pub(crate) add_special_tokens: bool,
    /// What the core gets as it is. The number, the prompt and what depends on them come later.
    pub(crate) request: Request,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) stop: StopStrings,
    pub(crate) skip_special_tokens: bool,
    pub(crate) cache_salt: String,
    /// Session whose turn the request is; empty for none.
    pub(crate) session: String,
    pub(crate) tenant_name: String,
    pub(crate) extra_keys: Vec<String>,
    /// Share cached blocks with other tenants; `None` is the server's setting.
    pub(crate) share_cache: Option<bool>,
    /// Retention hints, as [`retention::check_hints`] checked them.
    pub(crate) retention: Vec<proto::RetentionHint>,
    /// Type of the KV; empty for that of the first engine.
    pub(crate) kv_dtype: String,
    pub(crate) timeout: Option<Duration>,
}

/// Stop strings.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StopStrings {
    pub(crate) strings: Vec<String>,
    /// Send the one that is found.
    pub(crate) is_sent: bool,
}

/// Prompt to continue, as text or as tokens.
#[derive(Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<Token>),
}

/// Message with the wrong field of a request and the field's range.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(pub(crate) String);

impl From<HintFault> for Invalid {
    fn from(fault: HintFault) -> Self {
        Self(fault.to_string())
    }
}

impl From<StructureFault> for Invalid {
    fn from(fault: StructureFault) -> Self {
        Self(fault.to_string())
    }
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Self {
        Self::invalid_argument(invalid.0)
    }
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), Invalid> {
    if holds { Ok(()) } else { Err(Invalid(message())) }
}

fn ensure_in(name: &str, value: f32, min: f32, max: f32) -> Result<(), Invalid> {
    // NaN is in no range.
    ensure((min..=max).contains(&value), || format!("{name} is {value}; it must be between {min} and {max}"))
}

/// # Errors
/// If an id is not below the number of token ids; the error names the id and its place.
pub(crate) fn ensure_ids(name: &str, ids: &[Token], vocab_size: u32) -> Result<(), Invalid> {
    let unknown = ids.iter().position(|id| *id >= vocab_size);
    ensure(unknown.is_none(), || {
        let at = unknown.unwrap_or_default();
        format!("{name}[{at}] is {}; the model has token ids below {vocab_size}", ids[at])
    })
}

/// Checks every field of a request to a model with token ids below `vocab_size` and the end tokens `eos_token_ids`.
pub(crate) fn check(
    request: proto::GenerateRequest,
    vocab_size: u32,
    eos_token_ids: &[Token],
) -> Result<Checked, Invalid> {
    let proto::GenerateRequest {
        request_id,
        prompt,
        add_special_tokens,
        sampling,
        stopping,
        output,
        cache_salt,
        tenant,
        priority,
        timeout_ms,
        adapter,
        extra_keys,
        share_cache,
        h2o,
        kv_dtype,
        retention,
        reuse,
        prefetch,
        background,
    } = request;
    check_names(&request_id, &cache_salt, &tenant, &adapter).and_then(|()| check_extra_keys(&extra_keys))?;
    retention::check_hints(&retention)?;
    let output = output.unwrap_or_default();
    let stopping = check_stopping(stopping.unwrap_or_default(), vocab_size, prefetch)?;
    Ok(Checked {
        request_id,
        prompt: check_prompt(prompt, vocab_size)?,
        add_special_tokens: add_special_tokens.unwrap_or(true),
        request: Request {
            sampling: check_sampling(check_end(sampling, &stopping)?, output.logprobs, vocab_size)?,
            prompt_logprobs: check_prompt_logprobs(output.prompt_logprobs, prefetch)?,
            min_tokens: stopping.min_tokens,
            stop_token_ids: end_tokens(&stopping, eos_token_ids),
            tenant: tenant_number(&tenant, &cache_salt),
            priority,
            h2o: check_h2o(&h2o)?,
            reuse: check_reuse(&reuse)?,
            prefetch,
            background,
            ..Request::default()
        },
        max_tokens: stopping.max_tokens,
        stop: StopStrings { strings: stopping.stop, is_sent: output.include_stop_string },
        skip_special_tokens: output.skip_special_tokens.unwrap_or(true),
        tenant_name: tenant,
        cache_salt,
        session: String::new(),
        extra_keys,
        share_cache,
        retention,
        kv_dtype,
        timeout: (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into())),
    })
}

fn check_end(sampling: Option<proto::Sampling>, stopping: &proto::Stopping) -> Result<proto::Sampling, Invalid> {
    let sampling = sampling.unwrap_or_default();
    ensure(sampling.structure.is_none() || !stopping.ignore_eos, || {
        "ignore_eos is set alongside a structure of the answer; such an answer ends with its structure".into()
    })?;
    Ok(sampling)
}

/// Returns the tokens that end a request, each once.
fn end_tokens(stopping: &proto::Stopping, eos_token_ids: &[Token]) -> Vec<Token> {
    let eos = if stopping.ignore_eos { &[] } else { eos_token_ids };
    let mut ids = [&stopping.stop_token_ids[..], eos].concat();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn check_names(request_id: &str, cache_salt: &str, tenant: &str, adapter: &str) -> Result<(), Invalid> {
    // No worker computes adapters yet. The place of an adapter in the namespace of cached blocks is there.
    ensure(adapter.is_empty(), || format!("adapter is {}; this model serves no adapters", quoted(adapter)))?;
    let names = [
        ("request_id", request_id, REQUEST_ID_BYTES_MAX),
        ("cache_salt", cache_salt, CACHE_SALT_BYTES_MAX),
        ("tenant", tenant, TENANT_BYTES_MAX),
    ];
    names.into_iter().try_for_each(|(name, text, max)| {
        ensure(text.len() <= max, || format!("{name} has {} bytes; at most {max} are allowed", text.len()))
    })
}

fn check_reuse(reuse: &str) -> Result<Option<Reuse>, Invalid> {
    let known = Reuse::ALL.into_iter().find(|(name, _)| *name == reuse);
    let wrong = || {
        format!(
            "reuse is {reuse}; it must be prefix or anywhere, or empty for the server's rule",
            reuse = quoted(reuse)
        )
    };
    ensure(reuse.is_empty() || known.is_some(), wrong)?;
    Ok(known.map(|(_, reuse)| reuse))
}

fn check_h2o(mode: &str) -> Result<Option<Mode>, Invalid> {
    if mode.is_empty() {
        return Ok(None);
    }
    let wrong = |_| {
        Invalid(format!(
            "h2o is {mode}; it must be off, probe or on, or empty for the server's mode",
            mode = quoted(mode)
        ))
    };
    mode.parse().map(Some).map_err(wrong)
}

/// Returns the number for a tenant in the core: equal in every run, so that a recording counts the same way. A request without a tenant
/// counts for the request's cache salt, and a request without either is of no tenant, 0: then the client counts ([`client_number`]).
pub(crate) fn tenant_number(tenant: &str, cache_salt: &str) -> u64 {
    match if tenant.is_empty() { cache_salt } else { tenant } {
        "" => 0,
        name => Namespace { model: "tenant", salt: name, ..Namespace::default() }.root().0 as u64,
    }
}

/// Returns the number of the tenant for requests of a client that names none: the client itself, equal in every run.
pub(crate) fn client_number(client: &Client) -> u64 {
    let name = match client {
        Client::Token(name) => return tenant_number(name, ""),
        Client::Peer(address) => address.to_string(),
    };
    Namespace { model: "client", salt: &name, ..Namespace::default() }.root().0 as u64
}

fn check_extra_keys(keys: &[String]) -> Result<(), Invalid> {
    ensure(keys.len() <= EXTRA_KEYS_MAX, || {
        format!("extra_keys has {} keys; at most {EXTRA_KEYS_MAX} are allowed", keys.len())
    })?;
    let long = keys.iter().position(|key| key.len() > EXTRA_KEY_BYTES_MAX);
    ensure(long.is_none(), || {
        let at = long.unwrap_or_default();
        format!("extra_keys[{at}] has {} bytes; at most {EXTRA_KEY_BYTES_MAX} are allowed", keys[at].len())
    })
}

fn check_prompt(prompt: Option<proto::generate_request::Prompt>, vocab_size: u32) -> Result<Prompt, Invalid> {
    match prompt {
        None => Err(Invalid("prompt is missing; set text or token_ids".into())),
        Some(proto::generate_request::Prompt::Text(text)) => {
            ensure(!text.is_empty(), || "text is empty; the prompt needs at least one token".into())?;
            Ok(Prompt::Text(text))
        }
        Some(proto::generate_request::Prompt::TokenIds(proto::TokenIds { ids })) => {
            ensure(!ids.is_empty(), || "token_ids is empty; the prompt needs at least one token".into())?;
            ensure_ids("token_ids", &ids, vocab_size)?;
            Ok(Prompt::Tokens(ids))
        }
    }
}

fn check_sampling(sampling: proto::Sampling, logprobs: Option<u32>, vocab_size: u32) -> Result<Sampling, Invalid> {
    let proto::Sampling {
        temperature,
        top_p,
        top_k,
        min_p,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        logit_bias,
        structure,
        seed,
    } = sampling;
    let temperature = temperature.unwrap_or(1.0);
    ensure(temperature == 0.0 || (DIVISOR_MIN..=DIVISOR_MAX).contains(&temperature), || {
        format!("temperature is {temperature}; it must be 0 (greedy), or between {DIVISOR_MIN} and {DIVISOR_MAX}")
    })?;
    let top_p = top_p.unwrap_or(1.0);
    ensure(top_p > 0.0 && top_p <= 1.0, || format!("top_p is {top_p}; it must be above 0 and at most 1"))?;
    ensure_in("min_p", min_p, 0.0, 1.0)?;
    let repetition_penalty = repetition_penalty.unwrap_or(1.0);
    ensure_in("repetition_penalty", repetition_penalty, DIVISOR_MIN, DIVISOR_MAX)?;
    ensure_in("frequency_penalty", frequency_penalty, -PENALTY_MAX, PENALTY_MAX)?;
    ensure_in("presence_penalty", presence_penalty, -PENALTY_MAX, PENALTY_MAX)?;
    let logit_bias = check_bias(logit_bias, vocab_size)?;
    let logprobs = check_logprobs("logprobs", logprobs)?;
    // The seed is part of the request that the core sees, so a recording has it.
    let seed = seed.unwrap_or_else(any_seed);
    Ok(Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        logit_bias,
        grammar: structure::grammar(structure)?,
        seed,
        logprobs,
    })
}

fn check_logprobs(field: &str, n_top: Option<u32>) -> Result<Option<u32>, Invalid> {
    let within = n_top.is_none_or(|n| n <= LOGPROBS_MAX);
    let wrong = || format!("{field} is {}; it must be between 0 and {LOGPROBS_MAX}", n_top.unwrap_or_default());
    ensure(within, wrong).map(|()| n_top)
}

fn check_prompt_logprobs(n_top: Option<u32>, prefetch: bool) -> Result<Option<u32>, Invalid> {
    ensure(!prefetch || n_top.is_none(), || {
        "prompt_logprobs is set alongside prefetch, which computes nothing; send one of them".into()
    })?;
    check_logprobs("prompt_logprobs", n_top)
}

fn check_bias(biases: HashMap<Token, f32>, vocab_size: u32) -> Result<LogitBias, Invalid> {
    let n = biases.len();
    ensure(n <= LOGIT_BIAS_MAX, || format!("logit_bias has {n} tokens; at most {LOGIT_BIAS_MAX} are allowed"))?;
    let biases: LogitBias = biases.into_iter().collect();
    for (token, bias) in biases.entries() {
        ensure(*token < vocab_size, || {
            format!("logit_bias has the token {token}; the model has token ids below {vocab_size}")
        })?;
        ensure((-BIAS_MAX..=BIAS_MAX).contains(bias), || {
            format!("logit_bias of token {token} is {bias}; it must be between -{BIAS_MAX} and {BIAS_MAX}")
        })?;
    }
    Ok(biases)
}

/// Returns an unpredictable number: the keys of a new hash map come from the system's randomness.
pub(crate) fn any_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn check_stopping(stopping: proto::Stopping, vocab_size: u32, prefetch: bool) -> Result<proto::Stopping, Invalid> {
    let proto::Stopping { max_tokens, min_tokens, stop, stop_token_ids, .. } = &stopping;
    ensure(prefetch || *max_tokens != Some(0), || "max_tokens is 0; ask for at least one token".into())?;
    let most = max_tokens.unwrap_or(if prefetch { 0 } else { MAX_TOKENS_DEFAULT });
    ensure(!prefetch || most == 0, || {
        format!("max_tokens is {most} alongside prefetch, which computes nothing; set 0, or leave it out")
    })?;
    ensure(*min_tokens <= most, || format!("min_tokens is {min_tokens}; it must be at most max_tokens, {most}"))?;
    ensure(stop.len() <= STOP_STRINGS_MAX, || {
        format!("stop has {} strings; at most {STOP_STRINGS_MAX} are allowed", stop.len())
    })?;
    for (at, string) in stop.iter().enumerate() {
        ensure((1..=STOP_STRING_BYTES_MAX).contains(&string.len()), || {
            format!("stop[{at}] has {} bytes; it must have 1 to {STOP_STRING_BYTES_MAX}", string.len())
        })?;
    }
    ensure(stop_token_ids.len() <= STOP_TOKEN_IDS_MAX, || {
        format!("stop_token_ids has {} ids; at most {STOP_TOKEN_IDS_MAX} are allowed", stop_token_ids.len())
    })?;
    ensure_ids("stop_token_ids", stop_token_ids, vocab_size)?;
    let max_tokens = if prefetch { Some(0) } else { *max_tokens };
    Ok(proto::Stopping { max_tokens, ..stopping })
}

/// Returns the time that a caller gives a call, from the headers of the call.
pub(crate) fn call_timeout(metadata: &MetadataMap) -> Option<Duration> {
    metadata.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(grpc_timeout)
}

/// Returns the value of a `grpc-timeout` header: up to eight digits and a unit. `None` for any other text.
fn grpc_timeout(header: &str) -> Option<Duration> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::generate_request::Prompt as Wire;

    const VOCAB: u32 = 300;
    const EOS: [Token; 1] = [257];

    fn request() -> proto::GenerateRequest {
        proto::GenerateRequest { prompt: Some(Wire::Text("hello".into())), ..Default::default() }
    }

    fn check_it(request: proto::GenerateRequest) -> Result<Checked, String> {
        check(request, VOCAB, &EOS).map_err(|invalid| invalid.0)
    }

    /// Asserts that a request changed by `change` is refused with a message that begins with the field's name.
    fn refused(field: &str, change: impl FnOnce(&mut proto::GenerateRequest)) {
        let mut request = request();
        change(&mut request);
        let message = check_it(request).expect_err(field);
        assert!(message.starts_with(field), "{message}");
    }

    fn sampling(change: impl FnOnce(&mut proto::Sampling)) -> impl FnOnce(&mut proto::GenerateRequest) {
        |request| change(request.sampling.get_or_insert_default())
    }

    fn stopping(change: impl FnOnce(&mut proto::Stopping)) -> impl FnOnce(&mut proto::GenerateRequest) {
        |request| change(request.stopping.get_or_insert_default())
    }

    #[test]
    fn what_is_not_set_has_the_documented_default() {
        let checked = check_it(request()).unwrap();
        let seed = checked.request.sampling.seed;
        let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
        assert_eq!(checked.request, Request { sampling, stop_token_ids: EOS.to_vec(), ..Request::default() });
        assert_eq!(checked.max_tokens, None);
        assert_eq!(checked.timeout, None);
        assert!(checked.skip_special_tokens && checked.add_special_tokens);
        assert_ne!(check_it(request()).unwrap().request.sampling.seed, seed);
    }

    #[test]
    fn what_is_set_is_kept() {
        let checked = check_it(proto::GenerateRequest {
            request_id: "r".into(),
            prompt: Some(Wire::TokenIds(proto::TokenIds { ids: vec![0, VOCAB - 1] })),
            add_special_tokens: Some(false),
            sampling: Some(proto::Sampling {
                temperature: Some(0.0),
                top_p: Some(0.5),
                top_k: 3,
                min_p: 0.25,
                repetition_penalty: Some(1.5),
                frequency_penalty: -2.0,
                presence_penalty: 0.5,
                logit_bias: [(VOCAB - 1, 100.0), (0, -0.5)].into(),
                structure: None,
                seed: Some(0),
            }),
            stopping: Some(proto::Stopping {
                max_tokens: Some(9),
                min_tokens: 2,
                stop: vec!["END".into()],
                stop_token_ids: vec![5, 5],
                ignore_eos: true,
            }),
            output: Some(proto::Output {
                logprobs: Some(0),
                skip_special_tokens: Some(false),
                include_stop_string: true,
                prompt_logprobs: Some(20),
            }),
            cache_salt: "salt".into(),
            tenant: "acme".into(),
            priority: -3,
            background: true,
            timeout_ms: 1500,
            adapter: String::new(),
            extra_keys: vec!["image".into()],
            share_cache: Some(true),
            h2o: "probe".into(),
            reuse: "anywhere".into(),
            prefetch: false,
            kv_dtype: "q8_0".into(),
            retention: vec![proto::RetentionHint { priority: Some(80), ..Default::default() }],
        });
        assert_eq!(
            checked,
            Ok(Checked {
                request_id: "r".into(),
                prompt: Prompt::Tokens(vec![0, VOCAB - 1]),
                add_special_tokens: false,
                request: Request {
                    sampling: Sampling {
                        temperature: 0.0,
                        top_k: 3,
                        top_p: 0.5,
                        min_p: 0.25,
                        repetition_penalty: 1.5,
                        frequency_penalty: -2.0,
                        presence_penalty: 0.5,
                        logit_bias: [(0, -0.5), (VOCAB - 1, 100.0)].into_iter().collect(),
                        grammar: None,
                        seed: 0,
                        logprobs: Some(0),
                    },
                    prompt_logprobs: Some(20),
                    min_tokens: 2,
                    stop_token_ids: vec![5],
                    tenant: tenant_number("acme", ""),
                    priority: -3,
                    background: true,
                    h2o: Some(Mode::Probe),
                    reuse: Some(Reuse::Anywhere),
                    ..Request::default()
                },
                max_tokens: Some(9),
                stop: StopStrings { strings: vec!["END".into()], is_sent: true },
                skip_special_tokens: false,
                cache_salt: "salt".into(),
                session: String::new(),
                tenant_name: "acme".into(),
                extra_keys: vec!["image".into()],
                share_cache: Some(true),
                retention: vec![proto::RetentionHint { priority: Some(80), ..Default::default() }],
                kv_dtype: "q8_0".into(),
                timeout: Some(Duration::from_millis(1500)),
            })
        );
    }

    #[test]
    fn a_prompt_must_have_tokens_of_the_model() {
        refused("prompt is missing", |request| request.prompt = None);
        refused("text is empty", |request| request.prompt = Some(Wire::Text(String::new())));
        refused("token_ids is empty", |request| request.prompt = Some(Wire::TokenIds(proto::TokenIds::default())));
        refused("token_ids[1] is 300", |request| {
            request.prompt = Some(Wire::TokenIds(proto::TokenIds { ids: vec![1, VOCAB] }));
        });
    }

    #[test]
    fn a_retention_hint_needs_a_priority_in_its_range() {
        let hint = |priority| proto::RetentionHint { priority, ..Default::default() };
        refused("retention[1]: priority is missing", |request| request.retention = vec![hint(Some(0)), hint(None)]);
        refused("retention[0]: priority is 101", |request| request.retention = vec![hint(Some(101))]);
    }

    #[test]
    fn reuse_has_two_kinds() {
        refused("reuse is 'all'; it must be prefix or anywhere", |request| request.reuse = "all".into());
    }

    #[test]
    fn numbers_must_be_numbers_in_their_range() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 0.001, 101.0] {
            refused("temperature", sampling(|sampling| sampling.temperature = Some(bad)));
            refused("repetition_penalty", sampling(|sampling| sampling.repetition_penalty = Some(bad)));
        }
        refused("repetition_penalty", sampling(|sampling| sampling.repetition_penalty = Some(0.0)));
        for bad in [f32::NAN, f32::INFINITY, -0.5, 0.0, 1.5] {
            refused("top_p", sampling(|sampling| sampling.top_p = Some(bad)));
        }
        for bad in [f32::NAN, f32::INFINITY, -0.5, 1.5] {
            refused("min_p", sampling(|sampling| sampling.min_p = bad));
        }
        for bad in [f32::NAN, f32::INFINITY, -2.01, 2.01] {
            refused("frequency_penalty", sampling(|sampling| sampling.frequency_penalty = bad));
            refused("presence_penalty", sampling(|sampling| sampling.presence_penalty = bad));
            refused("logit_bias of token 7", sampling(|sampling| sampling.logit_bias = [(7, 50.0 * bad)].into()));
        }
        refused("logit_bias has the token 300", sampling(|sampling| sampling.logit_bias = [(VOCAB, 1.0)].into()));
        let all = |n| (0..n).map(|token| (token, 1.0)).collect();
        refused("logit_bias has 301 tokens", sampling(|sampling| sampling.logit_bias = all(301)));
        let regex = |text: &str| Some(proto::sampling::Structure::Regex(text.into()));
        refused("regex is empty", sampling(|sampling| sampling.structure = regex("")));
        refused("ignore_eos is set alongside a structure", |request| {
            sampling(|sampling| sampling.structure = regex("a"))(request);
            stopping(|stopping| stopping.ignore_eos = true)(request);
        });
        refused("logprobs", |request| {
            request.output = Some(proto::Output { logprobs: Some(21), ..Default::default() });
        });
        refused("prompt_logprobs is 21", |request| {
            request.output = Some(proto::Output { prompt_logprobs: Some(21), ..Default::default() });
        });
    }

    #[test]
    fn stopping_has_limits() {
        refused("max_tokens", stopping(|stopping| stopping.max_tokens = Some(0)));
        refused("min_tokens", stopping(|stopping| (stopping.max_tokens, stopping.min_tokens) = (Some(4), 5)));
        refused("min_tokens", stopping(|stopping| stopping.min_tokens = MAX_TOKENS_DEFAULT + 1));
        refused("stop has 17", stopping(|stopping| stopping.stop = vec!["x".into(); 17]));
        refused("stop[1] has 0", stopping(|stopping| stopping.stop = vec!["x".into(), String::new()]));
        refused("stop[0] has 257", stopping(|stopping| stopping.stop = vec!["x".repeat(257)]));
        refused("stop_token_ids has 65", stopping(|stopping| stopping.stop_token_ids = vec![1; 65]));
        refused("stop_token_ids[0] is 300", stopping(|stopping| stopping.stop_token_ids = vec![VOCAB]));
    }

    #[test]
    fn a_prefetch_asks_for_no_tokens() {
        let prefetch = |change: fn(&mut proto::GenerateRequest)| {
            let mut request = proto::GenerateRequest { prefetch: true, ..request() };
            change(&mut request);
            check_it(request)
        };
        for max_tokens in [None, Some(0)] {
            let stopping = proto::Stopping { max_tokens, ..Default::default() };
            let checked = check_it(proto::GenerateRequest { prefetch: true, stopping: Some(stopping), ..request() });
            assert!(checked.is_ok_and(|checked| checked.max_tokens == Some(0) && checked.request.prefetch));
        }
        let asking = prefetch(|request| request.stopping.get_or_insert_default().max_tokens = Some(1)).unwrap_err();
        assert!(asking.starts_with("max_tokens is 1 alongside prefetch"), "{asking}");
        let valued = prefetch(|request| request.output.get_or_insert_default().prompt_logprobs = Some(0)).unwrap_err();
        assert!(valued.starts_with("prompt_logprobs is set alongside prefetch"), "{valued}");
    }

    #[test]
    fn names_have_limits() {
        refused("request_id", |request| request.request_id = "x".repeat(257));
        refused("cache_salt", |request| request.cache_salt = "x".repeat(1025));
        refused("tenant", |request| request.tenant = "x".repeat(1025));
        assert!(check_it(proto::GenerateRequest { tenant: "x".repeat(1024), ..request() }).is_ok());
        refused("extra_keys has 65", |request| request.extra_keys = vec![String::new(); 65]);
        refused("extra_keys[1] has 257", |request| request.extra_keys = vec!["x".repeat(256), "x".repeat(257)]);
        refused("adapter is 'lora'; this model serves no adapters", |request| request.adapter = "lora".into());
    }

    #[test]
    fn a_tenant_has_one_number_and_the_cache_salt_stands_in_for_it() {
        assert_eq!(tenant_number("", ""), 0);
        assert_eq!(tenant_number("acme", ""), tenant_number("acme", "salt"));
        assert_eq!(tenant_number("", "acme"), tenant_number("acme", ""));
        assert_ne!(tenant_number("acme", ""), tenant_number("acme2", ""));
        assert_eq!(check_it(request()).unwrap().request.tenant, 0);
        // Pinned: recordings have these numbers.
        assert_eq!(tenant_number("acme", ""), 3_722_935_378_627_602_695);
    }

    #[test]
    fn grpc_timeouts_have_up_to_eight_digits_and_a_unit() {
        assert_eq!(grpc_timeout("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(grpc_timeout("2M"), Some(Duration::from_secs(120)));
        assert_eq!(grpc_timeout("3S"), Some(Duration::from_secs(3)));
        assert_eq!(grpc_timeout("0m"), Some(Duration::ZERO));
        assert_eq!(grpc_timeout("12345678u"), Some(Duration::from_micros(12_345_678)));
        assert_eq!(grpc_timeout("5n"), Some(Duration::from_nanos(5)));
        for bad in ["", "S", "5", "5s", "123456789n", "-1S", "+1S", "1.5S", "5\u{b5}"] {
            assert_eq!(grpc_timeout(bad), None, "{bad}");
        }
    }
}
