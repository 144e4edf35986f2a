//! `POST /inference/v1/generate`: token ids in, token ids out, as vLLM has it for front ends that tokenise.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trunkline_server::proto::TokenIds;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_text::Tokenizer;

use crate::Context;
use crate::answers::{Api, Part, StopReason};
use crate::asked::{Asked, Own, StreamOptions};
use crate::body::read;
use crate::completions::{MAX_TOKENS_DEFAULT, top_logprobs};
use crate::failure::Failure;
use crate::logprobs::{Spelled, spelled};
use crate::prompt_values::{Prompt, Wanted};
use crate::reader::Reading;
use crate::run::{Run, run};

#[derive(Debug, Default, Deserialize)]
pub(crate) struct TokensAsked {
    request_id: Option<String>,
    model: Option<String>,
    token_ids: Vec<u32>,
    /// Sampling and stopping, under the names of completions.
    sampling_params: Option<Asked>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    priority: Option<i32>,
    kv_hints: Option<Value>,
}

/// The form of answers of `/inference/v1/generate`.
pub(crate) struct Tokens;

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    token_ids: &'a [u32],
    logprobs: Option<Spelled>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
}

impl<'a> Choice<'a> {
    fn of(part: &'a Part, tokenizer: &Tokenizer) -> Self {
        Self {
            index: part.index,
            token_ids: part.token_ids.as_deref().unwrap_or_default(),
            logprobs: (!part.logprobs.is_empty()).then(|| spelled(tokenizer, &part.logprobs)),
            finish_reason: part.finish_reason,
            stop_reason: part.stop_reason.as_ref(),
        }
    }
}

impl Api for Tokens {
    const ID: &'static str = "";
    const OBJECTS: [&'static str; 2] = ["generate.chunk", "generate"];

    fn opening(_: usize) -> Option<impl Serialize> {
        None::<()>
    }

    fn event<'a>(part: &'a Part, _: Option<&'a Prompt>, tokenizer: &'a Tokenizer) -> impl Serialize + use<'a> {
        Choice::of(part, tokenizer)
    }

    fn whole<'a>(part: &'a Part, _: &'a Prompt, tokenizer: &'a Tokenizer) -> impl Serialize + use<'a> {
        Choice::of(part, tokenizer)
    }
}

pub(crate) async fn generate(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let given: TokensAsked = read(&shared.front, body).await?;
    let mut asked = given.sampling_params.unwrap_or_default();
    asked.check()?;
    if asked.n() > 1 {
        return Err(Failure::invalid("sampling_params.n", "n must be 1; /v1/completions takes token ids with more"));
    }
    (asked.request_id, asked.model, asked.stream) = (given.request_id, given.model, given.stream);
    (asked.cache_salt, asked.priority) = (given.cache_salt, given.priority);
    (asked.stream_options, asked.return_token_ids) = (given.stream_options, Some(true));
    let hints = shared.kv_hints(given.kv_hints.as_ref(), Vec::new())?;
    let own = Own {
        max_tokens: asked.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT),
        logprobs: top_logprobs(&asked),
        prefetch: hints.prefetches(asked.max_tokens, 1)?,
        retention: hints.retention,
        wanted: Wanted { shown: asked.prompt_logprobs()?, ..Wanted::default() },
        ..Own::default()
    };
    let prompts = vec![WirePrompt::TokenIds(TokenIds { ids: given.token_ids })];
    run::<Tokens>(
        &shared,
        &parts,
        Run { asked, own, prompts, reading: Reading::default(), echoes: Vec::new(), prompts_alone: false },
    )
    .await
}
