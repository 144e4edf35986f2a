//! Runs a checked request: begins all its choices, and answers with a stream or at once.

use axum::body::Body;
use axum::http::Response;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use trunkline_server::proto::TokenIds;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_server::{Generation, Load};

use crate::answers::{Answers, Api, Form};
use crate::asked::{Asked, Own};
use crate::body::{json, stream};
use crate::events::Events;
use crate::failure::Failure;
use crate::marks::marked;
use crate::reader::Reading;
use crate::{Shared, now_s};

/// Header with the id of a request, of the client or of the answer.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// Header that asks for the load of the server (ORCA), and the one with it.
const LOAD_FORMAT: &str = "endpoint-load-metrics-format";
const LOAD: &str = "endpoint-load-metrics";

/// A checked request.
pub(crate) struct Run {
    pub(crate) asked: Asked,
    pub(crate) own: Own,
    pub(crate) prompts: Vec<WirePrompt>,
    /// What is read in the answers.
    pub(crate) reading: Reading,
    /// Texts that begin the answers to each prompt; none for none.
    pub(crate) echoes: Vec<String>,
    /// Leave the answers out: the prompts alone are asked for.
    pub(crate) prompts_alone: bool,
}

/// Runs a request of one form of answers.
///
/// # Errors
/// If the server refuses one of its choices, or one fails before an answer that is sent at once; the others are aborted.
pub(crate) async fn run<A: Api>(shared: &Shared, parts: &Parts, run: Run) -> Result<Response<Body>, Failure> {
    let Run { mut asked, own, prompts, reading, echoes, prompts_alone } = run;
    let model = shared.check_model(asked.model.as_deref())?;
    let header = parts.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let id = asked.request_id.take().or_else(|| header.map(str::to_owned)).unwrap_or_default();
    let streams = begin(shared, parts, &asked, &own, prompts, &id).await?;
    let prompt_tokens = streams.iter().step_by(asked.n().max(1)).map(|first| u64::from(first.prompt_tokens())).sum();
    own.wanted.check(prompt_tokens, if A::VALUES_AT_TOP { 1 } else { asked.n() })?;
    let options = asked.stream_options.unwrap_or_default();
    let own_id = || streams.first().map_or_else(String::new, |first| first.client_id().to_owned());
    let id = if id.is_empty() { own_id() } else { id };
    let form = Form {
        id: id.clone(),
        created_s: now_s(),
        model,
        n: asked.n(),
        include_usage: options.include_usage == Some(true),
        continuous_usage: options.continuous_usage_stats == Some(true),
        token_ids: asked.return_token_ids == Some(true),
        // A prefetch writes nothing.
        marked: if own.prefetch { 0 } else { marked(&own.retention) },
        reading,
        echoes,
        wanted: own.wanted,
        prompts_alone,
    };
    let tokenizer = shared.front.tokenizer().map_err(|status| Failure::of(&status))?.clone();
    let answers = Answers::<A>::new(form, tokenizer, &streams);
    let mut response = if asked.streams() {
        stream(Events::new(answers, streams))
    } else {
        json(answers.whole(streams).await.map_err(|status| Failure::of(&status))?)
    };
    if let Some(format) = parts.headers.get(LOAD_FORMAT).and_then(|format| format.to_str().ok())
        && let Ok(load) = shared.front.load().await
        && let Some(Ok(report)) = load_report(format, &load).map(|report| report.parse())
    {
        response.headers_mut().insert(LOAD, report);
    }
    Ok(named(response, &id))
}

/// Returns the load as an ORCA header has it, with the names of vLLM; `None` for a format that is none.
fn load_report(format: &str, load: &Load) -> Option<String> {
    let Load { waiting, kv_usage, .. } = load;
    match format {
        _ if format.eq_ignore_ascii_case("text") => Some(format!(
            "TEXT named_metrics.kv_cache_usage_perc={kv_usage}, named_metrics.num_requests_waiting={waiting}"
        )),
        _ if format.eq_ignore_ascii_case("json") => Some(format!(
            r#"JSON {{"named_metrics": {{"kv_cache_usage_perc": {kv_usage}, "num_requests_waiting": {waiting}}}}}"#
        )),
        _ => None,
    }
}

/// Adds the header with the request's id.
pub(crate) fn named(mut response: Response<Body>, id: &str) -> Response<Body> {
    if let Ok(id) = id.parse() {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response.into_response()
}

/// Begins all choices of all prompts. A failure aborts those that have begun.
async fn begin(
    shared: &Shared,
    parts: &Parts,
    asked: &Asked,
    own: &Own,
    prompts: Vec<WirePrompt>,
    id: &str,
) -> Result<Vec<Generation>, Failure> {
    let n = asked.n();
    let several = prompts.len() * n > 1 && !id.is_empty();
    let mut streams = Vec::with_capacity(prompts.len() * n);
    for prompt in prompts {
        let prompt = match prompt {
            // Tokenised once for all choices.
            WirePrompt::Text(text) if n > 1 => {
                let add = asked.add_special_tokens.unwrap_or(true);
                let ids = shared.front.tokenize(&parts.extensions, text, add).await;
                let ids = ids.map_err(|status| Failure::of(&status))?;
                WirePrompt::TokenIds(TokenIds { ids })
            }
            prompt => prompt,
        };
        for choice in 0..n {
            let id = if several { format!("{id}-{}", streams.len()) } else { id.to_owned() };
            let message = asked.message(prompt.clone(), own, choice, id);
            match shared.front.generate(&parts.extensions, message, None).await {
                Ok(stream) => streams.push(stream.without_id()),
                Err(status) => return Err(shared.refused(&status).await.of_call(own.forced.is_some())),
            }
        }
    }
    Ok(streams)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_comes_in_the_format_asked_for() {
        let load = Load { waiting: 3, running: 1, kv_usage: 0.25 };
        let text = "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3";
        assert_eq!(load_report("text", &load).as_deref(), Some(text));
        let json = r#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3}}"#;
        assert_eq!(load_report("JSON", &load).as_deref(), Some(json));
        assert_eq!(load_report("BIN", &load), None);
    }
}
