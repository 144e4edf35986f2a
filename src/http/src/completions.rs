//! `POST /v1/completions`: a text or token ids, continued.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Serialize;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_text::Tokenizer;

use crate::answers::{Api, Part, StopReason};
use crate::asked::{Asked, CHOICES_MAX, Logprobs, Own, Prompt};
use crate::body::{bytes, parse};
use crate::caching::{Caching, CachingAsked};
use crate::failure::Failure;
use crate::logprobs::{Listed, spell_all};
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
}

impl<'a> Choice<'a> {
    fn of(part: &'a Part, tokenizer: &Tokenizer) -> Self {
        let Part { index, offset, text, logprobs, token_ids, finish_reason, stop_reason, .. } = part;
        let listed = (!logprobs.is_empty()).then(|| Listed::new(tokenizer, logprobs, *offset));
        Self {
            index: *index,
            text,
            logprobs: listed,
            finish_reason: *finish_reason,
            stop_reason: stop_reason.as_ref(),
            token_ids: token_ids.as_deref(),
        }
    }
}

impl Api for Completions {
    const ID: &'static str = "cmpl-";
    const OBJECTS: [&'static str; 2] = ["text_completion"; 2];

    fn opening(_: usize) -> Option<impl Serialize> {
        None::<()>
    }

    fn event<'a>(part: &'a Part, tokenizer: &Tokenizer) -> impl Serialize + use<'a> {
        Choice::of(part, tokenizer)
    }

    fn whole<'a>(part: &'a Part, tokenizer: &Tokenizer) -> impl Serialize + use<'a> {
        Choice::of(part, tokenizer)
    }
}

pub(crate) async fn complete(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let body = bytes(&shared.front, body).await?;
    let mut asked: Asked = parse(&body)?;
    asked.check()?;
    let caching: CachingAsked = parse(&body)?;
    let marks = caching.check(&shared)?.map_or_else(Vec::new, Caching::of_prompt);
    let retention = shared.kv_hints(caching.kv_hints.as_ref(), marks)?;
    let prompts = asked.prompt.take().ok_or_else(|| Failure::invalid("prompt", "prompt is missing"))?.0;
    if prompts.len() * asked.n() > CHOICES_MAX {
        let message = format!("{} prompts with n {} ask for more than {CHOICES_MAX} choices", prompts.len(), asked.n());
        return Err(Failure::invalid("n", message));
    }
    let max_tokens = asked.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT);
    let own = Own { max_tokens, logprobs: top_logprobs(&asked), retention, ..Own::default() };
    let echoes = echoes(&shared, &asked, &own, &prompts)?;
    let prompts = prompts.into_iter().map(WirePrompt::from).collect();
    run::<Completions>(&shared, &parts, Run { asked, own, prompts, reading: Reading::default(), echoes }).await
}

/// Returns the number of most likely tokens to report with each token; `None` for no log probabilities.
pub(crate) fn top_logprobs(asked: &Asked) -> Option<u32> {
    match asked.logprobs? {
        Logprobs::Switch(false) => None,
        Logprobs::Switch(true) => Some(1),
        Logprobs::Number(n) => Some(n),
    }
}

/// Returns the texts of the prompts, if the answers are to begin with them.
fn echoes(shared: &Shared, asked: &Asked, own: &Own, prompts: &[Prompt]) -> Result<Vec<String>, Failure> {
    if asked.echo != Some(true) {
        return Ok(Vec::new());
    }
    if own.logprobs.is_some() {
        return Err(Failure::invalid("echo", "echo with logprobs is not supported: prompts have no log probabilities"));
    }
    let tokenizer = shared.front.tokenizer().map_err(|status| Failure::of(&status))?;
    let echo = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(ids) => spell_all(tokenizer, ids),
    };
    Ok(prompts.iter().map(echo).collect())
}
