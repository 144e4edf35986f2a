//! Responses that are kept: `GET` and `DELETE /v1/responses/ID`, and `GET /v1/responses/ID/input_items`.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, Response, Uri};
use serde::Serialize;
use serde_json::value::Value as Json;
use serde_json::{Map, json};
use trunkline_quote::quoted;
use trunkline_server::Client;

use crate::body::{json as json_bytes, json_of};
use crate::failure::Failure;
use crate::memory::Found;
use crate::{Context, Shared};

/// Items of a page, at most, and by default.
const PAGE_MAX: usize = 100;
const PAGE_DEFAULT: usize = 20;

impl Shared {
    /// Returns the response that a client's request goes on from, if it names one.
    ///
    /// # Errors
    /// If it is not there.
    pub(crate) fn previous(&self, client: &Client, id: Option<&str>) -> Result<Option<Found>, Failure> {
        let Some(id) = id else { return Ok(None) };
        let missing = || Failure::not_found_in("previous_response_id", no_response(id));
        self.find(client, id).map(Some).ok_or_else(missing)
    }

    fn find(&self, client: &Client, id: &str) -> Option<Found> {
        self.memory.as_ref()?.find(client, id, Instant::now())
    }
}

fn no_response(id: &str) -> String {
    format!("there is no response {}: it was not stored, was deleted, or made room for others", quoted(id))
}

/// Answers with a response as it was at its end.
pub(crate) async fn get(
    State(shared): Context,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let client = shared.front.client(request.extensions());
    if parameter(request.uri(), "stream") == Some("true") {
        return Err(Failure::invalid("stream", "stream is not supported: a response that is stored comes whole"));
    }
    let found = shared.find(&client, &id);
    let response = found.as_ref().and_then(|found| found.all.last()).map(|kept| kept.response.clone());
    response.map(json_bytes).ok_or_else(|| Failure::not_found(no_response(&id)))
}

#[derive(Serialize)]
struct Deleted<'a> {
    id: &'a str,
    object: &'static str,
    deleted: bool,
}

/// Deletes a response.
pub(crate) async fn delete(
    State(shared): Context,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let client = shared.front.client(request.extensions());
    match shared.memory.as_ref().is_some_and(|memory| memory.delete(&client, &id, Instant::now())) {
        true => Ok(json_of(&Deleted { id: &id, object: "response", deleted: true })),
        false => Err(Failure::not_found(no_response(&id))),
    }
}

#[derive(Debug, Serialize)]
struct Page {
    object: &'static str,
    data: Vec<Json>,
    first_id: Json,
    last_id: Json,
    has_more: bool,
}

/// Answers with items of the conversation up to a response, without its output.
pub(crate) async fn input_items(
    State(shared): Context,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let client = shared.front.client(request.extensions());
    let found = shared.find(&client, &id).ok_or_else(|| Failure::not_found(no_response(&id)))?;
    Ok(json_of(&page(items(&found), request.uri())?))
}

/// Returns the items of a conversation before the output of its last response.
fn items(found: &Found) -> Vec<Json> {
    #[derive(serde::Deserialize)]
    struct Output {
        output: Vec<Json>,
    }
    let mut items: Vec<Json> = Vec::new();
    for (at, kept) in found.all.iter().enumerate() {
        // What was kept was valid.
        items.extend(serde_json::from_slice::<Vec<Json>>(&kept.input).unwrap_or_default());
        if at + 1 < found.all.len() {
            items.extend(serde_json::from_slice::<Output>(&kept.response).map(|of| of.output).unwrap_or_default());
        }
    }
    // What was kept has ids.
    items.into_iter().map(|item| shown(item, String::new)).collect()
}

/// Returns an item of a client in the form of answers, with an id if it has none.
pub(crate) fn shown(item: Json, id: impl FnOnce() -> String) -> Json {
    let Json::Object(mut fields) = item else { return item };
    let missing = |fields: &Map<String, Json>, name: &str| fields.get(name).is_none_or(Json::is_null);
    if missing(&fields, "type") {
        fields.insert("type".into(), "message".into());
    }
    if missing(&fields, "id") {
        fields.insert("id".into(), id().into());
    }
    if fields["type"] == "message" {
        if missing(&fields, "status") {
            fields.insert("status".into(), "completed".into());
        }
        let kind =
            if fields.get("role").is_some_and(|role| role == "assistant") { "output_text" } else { "input_text" };
        if let Some(Json::String(text)) = fields.get("content") {
            let part = match kind {
                "output_text" => json!({"type": kind, "text": text, "annotations": []}),
                _ => json!({"type": kind, "text": text}),
            };
            fields.insert("content".into(), json!([part]));
        }
    }
    fields.into()
}

/// Returns the page of a list of items that a query asks for.
fn page(mut items: Vec<Json>, uri: &Uri) -> Result<Page, Failure> {
    match parameter(uri, "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(order) => {
            return Err(Failure::invalid("order", format!("order is {}; it may be asc or desc", quoted(order))));
        }
    }
    if let Some(after) = parameter(uri, "after") {
        let place = items.iter().position(|item| item["id"] == after);
        let missing = || Failure::invalid("after", format!("after is {}, which is no item here", quoted(after)));
        items.drain(..=place.ok_or_else(missing)?);
    }
    let limit = match parameter(uri, "limit").map(str::parse::<usize>) {
        None => PAGE_DEFAULT,
        Some(Ok(limit)) if (1..=PAGE_MAX).contains(&limit) => limit,
        Some(_) => return Err(Failure::invalid("limit", format!("limit must be between 1 and {PAGE_MAX}"))),
    };
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Json>| item.map_or(Json::Null, |item| item["id"].clone());
    let (first_id, last_id) = (id(items.first()), id(items.last()));
    Ok(Page { object: "list", data: items, first_id, last_id, has_more })
}

/// Returns a parameter of a query, as it stands there.
fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query()?.split('&');
    pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_have_a_form_and_an_id() {
        let item = |item: Json| shown(item, || "made".into());
        let text = json!([{"type": "input_text", "text": "a"}]);
        let whole = json!({"type": "message", "role": "user", "content": text, "status": "completed", "id": "made"});
        assert_eq!(item(json!({"role": "user", "content": "a"})), whole);
        assert_eq!(item(whole.clone()), whole);
        let answer = item(json!({"role": "assistant", "content": "a", "id": null}));
        assert_eq!(answer["content"], json!([{"type": "output_text", "text": "a", "annotations": []}]));
        let result = json!({"type": "function_call_output", "call_id": "c", "output": "x", "id": "own"});
        assert_eq!(item(result.clone()), result);
    }

    #[test]
    fn a_page_has_so_many_items_behind_one() {
        let items = || (0..30).map(|n| json!({"id": n.to_string()})).collect::<Vec<_>>();
        let of = |query: &str| page(items(), &format!("/x?{query}").parse().unwrap()).map_err(|err| err.json());
        let shown =
            |query: &str| of(query).map(|page| (page.first_id, page.last_id, page.data.len(), page.has_more)).unwrap();
        let is = |first: &str, last: &str, n: usize, more: bool| (json!(first), json!(last), n, more);
        assert_eq!(shown(""), is("29", "10", 20, true));
        assert_eq!(shown("limit=5&order=asc"), is("0", "4", 5, true));
        assert_eq!(shown("after=10&limit=100"), is("9", "0", 10, false));
        assert_eq!(page(Vec::new(), &"/x".parse().unwrap()).unwrap().first_id, Json::Null);
        for (query, param) in
            [("limit=0", "limit"), ("limit=101", "limit"), ("after=x", "after"), ("order=up", "order")]
        {
            assert!(of(query).unwrap_err().contains(&format!(r#""param":"{param}""#)), "{query}");
        }
    }
}
