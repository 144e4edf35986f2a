//! `POST /v1/completions`: a text or token ids, continued.

use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{Request, Response};
use serde::Serialize;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_text::Tokenizer;

use crate::answers::{Api, Part, StopReason};
use crate::asked::{Asked, CHOICES_MAX, Logprobs, Own, Prompt as AskedPrompt};
use crate::body::{bytes, parse};
use crate::caching::{Caching, CachingAsked};
use crate::failure::Failure;
use crate::logprobs::{Listed, spell_all};
use crate::prompt_values::{Prompt, Shown, Wanted};
use crate::reader::Reading;
use crate::run::{Run, run};
use crate::{Context, Shared};

/// Generated tokens of a completion without `max_tokens`, as OpenAI and vLLM have it.
pub(crate) const MAX_TOKENS_DEFAULT: u32 = 16;

/// The form of answers of `/v1/completions`.
pub(crate) struct Completions;

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<Listed>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Shown<'a>>,
}

impl<'a> Choice<'a> {
    fn of(part: &'a Part, prompt: Option<&'a Prompt>, tokenizer: &'a Tokenizer) -> Self {
        let Part { index, offset, echoed, text, logprobs, token_ids, finish_reason, stop_reason, .. } = part;
        let echo = prompt.and_then(Prompt::echoed).map(|(first, others)| Listed::of_prompt(tokenizer, first, others));
        let listed = (echo.is_some() || !logprobs.is_empty())
            .then(|| echo.unwrap_or_default().with(tokenizer, logprobs.iter(), offset + echoed));
        Self {
            index: *index,
            text,
            logprobs: listed,
            finish_reason: *finish_reason,
            stop_reason: stop_reason.as_ref(),
            token_ids: token_ids.as_deref(),
            prompt_logprobs: prompt.and_then(|prompt| prompt.shown(tokenizer)),
        }
    }
}

impl Api for Completions {
    const ID: &'static str = "cmpl-";
    const OBJECTS: [&'static str; 2] = ["text_completion"; 2];
    const VALUES_AT_TOP: bool = false;

    fn opening(_: usize) -> Option<impl Serialize> {
        None::<()>
    }

    fn event<'a>(part: &'a Part, prompt: Option<&'a Prompt>, tokenizer: &'a Tokenizer) -> impl Serialize + use<'a> {
        Choice::of(part, prompt, tokenizer)
    }

    fn whole<'a>(part: &'a Part, prompt: &'a Prompt, tokenizer: &'a Tokenizer) -> impl Serialize + use<'a> {
        Choice::of(part, Some(prompt), tokenizer)
    }
}

pub(crate) async fn complete(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let body = bytes(&shared.front, body).await?;
    let mut asked: Asked = parse(&body)?;
    asked.check()?;
    let caching: CachingAsked = parse(&body)?;
    let marks = caching.check(&shared)?.map_or_else(Vec::new, Caching::of_prompt);
    let hints = shared.kv_hints(caching.kv_hints.as_ref(), marks)?;
    let prefetch = hints.prefetches(asked.max_tokens, asked.n())?;
    let retention = hints.retention;
    let prompts = asked.prompt.take().ok_or_else(|| Failure::invalid("prompt", "prompt is missing"))?.0;
    if prompts.len() * asked.n() > CHOICES_MAX {
        let message = format!("{} prompts with n {} ask for more than {CHOICES_MAX} choices", prompts.len(), asked.n());
        return Err(Failure::invalid("n", message));
    }
    let logprobs = top_logprobs(&asked);
    let prompts_alone = asked.echo == Some(true) && asked.max_tokens == Some(0) && !prefetch;
    let max_tokens = if prompts_alone { 1 } else { asked.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT) };
    let (echoes, prompts) = echoes(&shared, &parts, &asked, prompts).await?;
    let shown = asked.prompt_logprobs()?;
    let echoed = logprobs.filter(|_| asked.echo == Some(true));
    let first_tokens = if echoed.is_some() { first_tokens(&prompts) } else { Vec::new() };
    let wanted = Wanted { shown, echoed, first_tokens };
    let own = Own { max_tokens, logprobs, retention, wanted, prefetch, forced: None };
    let prompts = prompts.into_iter().map(WirePrompt::from).collect();
    let checked = Run { asked, own, prompts, reading: Reading::default(), echoes, prompts_alone };
    let answered = run::<Completions>(&shared, &parts, checked).await;
    answered.map_err(|failure| match failure.param() {
        Some("prompt_logprobs") if shown.is_none() => Failure::invalid(
            "echo",
            "echo with logprobs needs log probabilities of prompts, which the workers of this server do not report",
        ),
        _ => failure,
    })
}

/// Returns the number of most likely tokens to report with each token; `None` for no log probabilities.
pub(crate) fn top_logprobs(asked: &Asked) -> Option<u32> {
    match asked.logprobs? {
        Logprobs::Switch(false) => None,
        Logprobs::Switch(true) => Some(1),
        Logprobs::Number(n) => Some(n),
    }
}

/// Returns the texts of the prompts, if the answers are to begin with them, and the prompts: as tokens, if these are to be listed.
async fn echoes(
    shared: &Shared,
    parts: &Parts,
    asked: &Asked,
    prompts: Vec<AskedPrompt>,
) -> Result<(Vec<String>, Vec<AskedPrompt>), Failure> {
    if asked.echo != Some(true) {
        return Ok((Vec::new(), prompts));
    }
    let lists = top_logprobs(asked).is_some();
    if lists && asked.streams() && asked.n() > 1 {
        let message = "echo with logprobs streams one choice of each prompt; leave stream out, or ask for n 1";
        return Err(Failure::invalid("n", message));
    }
    let tokenizer = shared.front.tokenizer().map_err(|status| Failure::of(&status))?;
    let (mut echoes, mut echoed) = (Vec::with_capacity(prompts.len()), Vec::with_capacity(prompts.len()));
    for prompt in prompts {
        let (text, prompt) = match prompt {
            AskedPrompt::Text(text) if lists => {
                let add_special_tokens = asked.add_special_tokens.unwrap_or(true);
                let ids = shared.tokens_of(parts, text.clone(), add_special_tokens).await?;
                (text, AskedPrompt::Tokens(ids))
            }
            AskedPrompt::Text(text) => (text.clone(), AskedPrompt::Text(text)),
            AskedPrompt::Tokens(ids) => (spell_all(tokenizer, &ids), AskedPrompt::Tokens(ids)),
        };
        echoes.push(text);
        echoed.push(prompt);
    }
    Ok((echoes, echoed))
}

/// Returns the first token of each prompt.
fn first_tokens(prompts: &[AskedPrompt]) -> Vec<u32> {
    let first = |prompt: &AskedPrompt| match prompt {
        AskedPrompt::Tokens(ids) => ids.first().copied().unwrap_or_default(),
        AskedPrompt::Text(_) => 0,
    };
    prompts.iter().map(first).collect()
}
