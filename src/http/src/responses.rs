//! `/v1/responses`: the newer form of a chat in OpenAI's API.
//!
//! A response is kept in [`crate::memory`] if the request says so, and a later request goes on from it. A prompt beyond a threshold is compacted before
//! the answer, as `/v1/responses/compact` does for its own sake.
//!
//! | route | file |
//! |---|---|
//! | `POST /v1/responses` | this one |
//! | `POST /v1/responses/compact` | `compact` |
//! | `GET` and `DELETE /v1/responses/ID`, `GET /v1/responses/ID/input_items` | `stored` |

pub(crate) mod compact;
mod content;
mod conversation;
mod generated;
mod input;
mod items;
mod prompt;
mod references;
pub(crate) mod stored;
mod summary;
mod writer;

use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{Request, Response};
use trunkline_server::Generation;
use trunkline_server::proto::TokenIds;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_template::{Conversation, Value};

use crate::asked::{Asked, Own};
use crate::body::{bytes, json, parse, stream};
use crate::caching::{Caching, CachingAsked, breakpoints};
use crate::events::Events;
use crate::failure::Failure;
use crate::marks::{Rendered, marked};
use crate::memory::Found;
use crate::responses::conversation::{Items, kept_items};
use crate::responses::generated::Generated;
use crate::responses::input::ResponsesAsked;
use crate::responses::items::{Item, Output};
use crate::responses::prompt::{Prompt, base};
use crate::responses::references::InputItems;
use crate::responses::summary::{Compacted, Summariser};
use crate::responses::writer::{Echo, Keeping, ResponseWriter};
use crate::run::{REQUEST_ID, named};
use crate::tool_choice::ToolChoice;
use crate::{Context, Shared, now_s};

/// A request, read and checked.
struct Checked {
    responses: ResponsesAsked,
    asked: Asked,
    of_cache: CachingAsked,
    caching: Option<Caching>,
    echo: Echo,
}

/// Answers a request.
pub(crate) async fn answer(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let Checked { mut responses, mut asked, of_cache, caching, echo } =
        checked(&shared, &bytes(&shared.front, body).await?)?;
    let client = shared.front.client(&parts.extensions);
    let previous = shared.previous(&client, responses.previous_response_id.as_deref())?;
    let base = base(&responses, &mut asked)?;
    let missing = || Failure::invalid("input", "input is missing");
    let mut input = responses.input.take().ok_or_else(missing)?.items();
    shared.put_referenced(&client, &mut input)?;
    let items = (previous.as_ref(), &*input);
    let (prompt, compacted) = conversed(&shared, &parts, &responses, (&asked, &base), items).await?;
    let breakpoints = breakpoints(&prompt.conversation.messages)?;
    let choice = ToolChoice::of(asked.tool_choice.as_ref())?;
    let parallel = responses.parallel_tool_calls;
    let (reading, forced) =
        asked.force(prompt.reading, &choice, base.tools.as_deref(), parallel, shared.structures())?;
    let rendered = Rendered { conversation: &prompt.conversation, add_special_tokens: false, ids: &prompt.ids };
    let marks = shared.cache_hints(&parts, caching, breakpoints, rendered).await?;
    let retention = shared.kv_hints_of_answer(of_cache.kv_hints.as_ref(), marks)?;
    let of = |status| Failure::of(&status);
    let room = shared.front.room_for(prompt.ids.len()).map_err(of)?;
    let logprobs = responses.wants_logprobs().then(|| asked.top_logprobs.unwrap_or(0));
    let marked = marked(&retention);
    let max_tokens = responses.max_output_tokens.unwrap_or(room);
    let own = Own { max_tokens, logprobs, retention, forced, ..Own::default() };
    let generation = begin(&shared, &parts, &mut asked, own, prompt.ids).await?;
    let generated = Generated::new(&shared, &generation, reading, marked).map_err(of)?;
    let (id, compaction) = (generation.client_id().to_owned(), compacted.as_ref().map(|of| of.usage));
    // A compaction has replaced what was before.
    let previous = previous.filter(|_| compacted.is_none());
    let item = compacted.map(|of| Item::compaction(&id, of.content.text()));
    let memory = shared.memory.clone().filter(|_| echo.store);
    let keeping = memory.map(|memory| Keeping { memory, client, previous, input: InputItems::new(&input, &id) });
    let output = Output::new(id.clone(), asked.streams(), item);
    let (response_id, created_at) = (format!("resp_{id}"), now_s());
    let writer = ResponseWriter { id: response_id, created_at, echo, output, generated, compaction, keeping };
    let response = match asked.streams() {
        true => stream(Events::new(writer, vec![generation])),
        false => json(writer.whole(generation).await.map_err(of)?.into()),
    };
    Ok(named(response, &id))
}

fn checked(shared: &Shared, body: &[u8]) -> Result<Checked, Failure> {
    let (responses, mut asked): (ResponsesAsked, Asked) = (parse(body)?, parse(body)?);
    let keeps = shared.memory.is_some();
    responses.check(keeps)?;
    asked.response_format = responses.response_format()?;
    asked.check()?;
    refuse_values(&asked)?;
    let model = shared.check_model(asked.model.as_deref())?;
    let of_cache: CachingAsked = parse(body)?;
    let caching = of_cache.check(shared)?;
    let echo = Echo::new(model, &responses, &asked, responses.stores(keeps));
    Ok(Checked { responses, asked, of_cache, caching, echo })
}

fn refuse_values(asked: &Asked) -> Result<(), Failure> {
    let message = "prompt_logprobs has no place in a response; /v1/chat/completions reports them";
    match asked.prompt_logprobs {
        Some(_) => Err(Failure::invalid("prompt_logprobs", message)),
        None => Ok(()),
    }
}

/// Returns the prompt of a conversation, compacted if it is beyond the threshold.
async fn conversed(
    shared: &Shared,
    parts: &Parts,
    responses: &ResponsesAsked,
    (asked, base): (&Asked, &Conversation),
    (previous, own): (Option<&Found>, &[Value]),
) -> Result<(Prompt, Option<Compacted>), Failure> {
    let instructions = responses.instructions.as_deref();
    let before = previous.iter().flat_map(|found| &found.all).flat_map(|kept| kept_items(kept)).collect();
    let items = Items::new(before, own)?;
    let prompt = Prompt::new(shared, parts, base, items.messages(instructions)?).await?;
    let context = shared.front.max_context().map_err(|status| Failure::of(&status))?;
    if responses.compact_threshold(context).is_none_or(|threshold| prompt.ids.len() <= threshold) {
        return Ok((prompt, None));
    }
    let summariser = Summariser { shared, parts, asked, base, instructions };
    let Some(compacted) = summariser.compacted(&items).await? else { return Ok((prompt, None)) };
    let prompt = Prompt::new(shared, parts, base, compacted.items.messages(instructions)?).await?;
    Ok((prompt, Some(compacted)))
}

/// Begins the generation of a request.
async fn begin(
    shared: &Shared,
    parts: &Parts,
    asked: &mut Asked,
    own: Own,
    ids: Vec<u32>,
) -> Result<Generation, Failure> {
    let header = parts.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let request_id = asked.request_id.take().or(header).unwrap_or_default();
    let message = asked.message(WirePrompt::TokenIds(TokenIds { ids }), &own, 0, request_id);
    match shared.front.generate(&parts.extensions, message, None).await {
        Ok(generation) => Ok(generation),
        Err(status) => {
            let failure = shared.refused(&status).await.of_call(own.forced.is_some());
            Err(failure.renamed("response_format", "text.format").renamed("prompt", "input"))
        }
    }
}
