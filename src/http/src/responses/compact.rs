//! `POST /v1/responses/compact`: a conversation made shorter, as the input of the next request.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Serialize;
use serde_json::value::Value as Json;
use tonic::Status;

use crate::asked::Asked;
use crate::body::{bytes, json_of, parse};
use crate::caching::CachingAsked;
use crate::failure::Failure;
use crate::marks::Rendered;
use crate::responses::content::Content;
use crate::responses::conversation::{Before, Items, before, kept_items};
use crate::responses::generated::Usage;
use crate::responses::input::{Input, ResponsesAsked};
use crate::responses::items::Item;
use crate::responses::prompt::base;
use crate::responses::stored::shown;
use crate::responses::summary::{NoSummary, Summariser};
use crate::run::named;
use crate::{Context, now_s};

#[derive(Serialize)]
struct Compaction {
    id: String,
    object: &'static str,
    created_at: u64,
    output: Vec<Entry>,
    usage: Usage,
}

/// An item: one that was sent, or the compaction.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    Sent(Json),
    Made(Item),
}

/// Answers with the user's messages, and a summary of the whole.
pub(crate) async fn compact(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let body = bytes(&shared.front, body).await?;
    let (mut responses, mut asked): (ResponsesAsked, Asked) = (parse(&body)?, parse(&body)?);
    responses.check(shared.memory.is_some())?;
    shared.check_model(asked.model.as_deref())?;
    if asked.streams() {
        return Err(Failure::invalid("stream", "stream is not supported: a compaction comes whole"));
    }
    let of_cache: CachingAsked = parse(&body)?;
    let caching = of_cache.check(&shared)?;
    let client = shared.front.client(&parts.extensions);
    let previous = shared.previous(&client, responses.previous_response_id.as_deref())?;
    if responses.input.is_none() && previous.is_none() {
        return Err(Failure::invalid("input", "input is missing"));
    }
    let kept = previous.as_ref().map_or(&[][..], |found| &found.all);
    if let Some(last) = kept.last() {
        responses.take_over(&mut asked, before(last));
    }
    let base = base(&responses, &mut asked)?;
    let mut own = responses.input.take().map(Input::items).unwrap_or_default();
    shared.put_referenced(&client, &mut own)?;
    let items = Items::new(kept.iter().flat_map(|kept| kept_items(kept)).collect(), &own)?;
    let instructions = responses.instructions.as_deref();
    let summariser = Summariser { shared: &shared, parts: &parts, asked: &asked, base: &base, instructions };
    let prompt = summariser.prompt(&items).await?;
    let rendered = Rendered { conversation: &prompt.conversation, add_special_tokens: false, ids: &prompt.ids };
    let marks = shared.cache_hints(&parts, caching, Vec::new(), rendered).await?;
    let retention = shared.kv_hints_of_answer(of_cache.kv_hints.as_ref(), marks)?;
    let summary = summariser.summary(prompt, retention).await.map_err(failure)?;
    let id = &summary.id;
    let sent = items.said_by_users().into_iter().enumerate().map(|(n, item)| {
        let item = serde_json::to_value(&item).unwrap_or_default();
        Entry::Sent(shown(item, || format!("msg_{id}_{n}")))
    });
    let made = Item::compaction(id, Content::of_summary(summary.text).text());
    let compaction = Compaction {
        id: format!("resp_{id}"),
        object: "response.compaction",
        created_at: now_s(),
        output: sent.chain([Entry::Made(made)]).collect(),
        usage: summary.usage,
    };
    Ok(named(json_of(&compaction), id))
}

impl ResponsesAsked {
    /// Takes instructions and tools from the response that the request goes on from, where it has none of its own. They are not in the output; with
    /// them the prompt begins as that of the response did, and is found in the cache.
    fn take_over(&mut self, asked: &mut Asked, before: Before) {
        let Before { tools, instructions, tool_choice, .. } = before;
        self.instructions = self.instructions.take().or(instructions);
        if asked.tools.is_none() {
            (asked.tools, asked.tool_choice) = (Some(tools), tool_choice);
        }
    }
}

/// Returns the failure for having no summary.
fn failure(none: NoSummary) -> Failure {
    match none {
        NoSummary::Failure(failure) => failure.renamed("prompt", "input"),
        NoSummary::Room => {
            Failure::invalid("input", "input leaves no room for a summary in the context; leave out items")
        }
        NoSummary::Empty => {
            Failure::of(&Status::internal("the model wrote an empty summary; send the items as they are"))
        }
    }
}
