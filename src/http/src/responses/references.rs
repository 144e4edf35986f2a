//! References of an input to items of stored responses, by the ids of the items.
//!
//! An item `{"type": "item_reference", "id": "…"}`, or one with an id alone, stands for the item of that id: of the output or the input of a response that
//! the same client stored. It is replaced by that item before anything else, so a response is stored with the items themselves. As each item may be
//! referred to once, an input grows by no more than what its client has stored.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::value::Value as Json;
use trunkline_quote::quoted;
use trunkline_server::Client;
use trunkline_template::Value;

use crate::Shared;
use crate::failure::Failure;
use crate::memory::{Kept, Memory};
use crate::responses::conversation::{field, kept_items};

const REFERENCE: &str = "item_reference";

/// A place of an input that stands for an item of a stored response.
struct Reference {
    at: usize,
    id: Arc<str>,
}

/// Items of a request as they are stored.
#[derive(Debug)]
pub(crate) struct InputItems {
    /// List of the items, each with an id.
    pub(crate) json: Bytes,
    pub(crate) ids: Vec<Arc<str>>,
}

impl InputItems {
    /// Returns the items of a request. Those without an id get one by the id of the request and their place.
    pub(crate) fn new(items: &[Value], request_id: &str) -> Self {
        let mut ids = Vec::with_capacity(items.len());
        let with_id = |(at, item): (usize, &Value)| {
            let mut item = serde_json::to_value(item).unwrap_or_default();
            if let Json::Object(fields) = &mut item {
                let id = fields.entry("id").or_insert(Json::Null);
                if id.is_null() {
                    *id = format!("item_{request_id}_{at}").into();
                }
                ids.extend(id.as_str().map(Arc::from));
            }
            item
        };
        let items: Vec<Json> = items.iter().enumerate().map(with_id).collect();
        // Nothing in JSON can fail to be JSON.
        Self { json: serde_json::to_vec(&items).unwrap_or_default().into(), ids }
    }
}

impl Shared {
    /// Replaces the references in an input of a client by the items that they stand for.
    ///
    /// # Errors
    /// Names the place of a reference without an id, of a second one to the same item, and of one whose item is not there.
    pub(crate) fn put_referenced(&self, client: &Client, input: &mut [Value]) -> Result<(), Failure> {
        let references = references(input)?;
        match (references.first(), &self.memory) {
            (None, _) => Ok(()),
            (Some(_), Some(memory)) => put(memory, client, &references, input, Instant::now()),
            (Some(Reference { at, .. }), None) => {
                let why = "this server keeps no responses (--response-bytes 0); send the item";
                Err(Failure::invalid("input", format!("input[{at}] is an item_reference, and {why}")))
            }
        }
    }
}

/// Returns the references in an input.
fn references(input: &[Value]) -> Result<Vec<Reference>, Failure> {
    let (mut references, mut ids) = (Vec::new(), HashSet::new());
    for (at, item) in input.iter().enumerate().filter(|(_, item)| is_reference(item)) {
        let param = format!("input[{at}].id");
        let id = field(item, "id").ok_or_else(|| Failure::invalid(&param, format!("input[{at}] has no id")))?;
        let id = id.as_str().ok_or_else(|| Failure::invalid(&param, format!("{param} is not text")))?;
        let id: Arc<str> = id.into();
        if !ids.insert(id.clone()) {
            let why = "Remove duplicate items from your input and try again.";
            return Err(Failure::invalid(&param, format!("Duplicate item found with id {}. {why}", quoted(&id))));
        }
        references.push(Reference { at, id });
    }
    Ok(references)
}

/// Returns `true` for a reference: by its type, or without one if it has nothing that a message has.
fn is_reference(item: &Value) -> bool {
    match field(item, "type") {
        Some(kind) => kind.as_str() == Some(REFERENCE),
        None => field(item, "id").is_some() && ["role", "content"].iter().all(|name| field(item, name).is_none()),
    }
}

/// Puts the items of stored responses where an input refers to them.
fn put(
    memory: &Memory,
    client: &Client,
    references: &[Reference],
    input: &mut [Value],
    now: Instant,
) -> Result<(), Failure> {
    let ids: Vec<Arc<str>> = references.iter().map(|reference| reference.id.clone()).collect();
    let found = memory.find_items(client, &ids, now);
    // The items of a response are read once.
    let mut by_response: BTreeMap<u64, (Arc<Kept>, Vec<&Reference>)> = BTreeMap::new();
    for (reference, found) in references.iter().zip(found) {
        let (number, kept) = found.ok_or_else(|| not_found(reference))?;
        by_response.entry(number).or_insert_with(|| (kept, Vec::new())).1.push(reference);
    }
    for (kept, references) in by_response.into_values() {
        let with_id = |item: Value| Some((field(&item, "id")?.as_str()?.to_owned(), item));
        let items: HashMap<String, Value> = kept_items(&kept).into_iter().filter_map(with_id).collect();
        for reference in references {
            input[reference.at] = items.get(&*reference.id).cloned().ok_or_else(|| not_found(reference))?;
        }
    }
    Ok(())
}

fn not_found(Reference { at, id }: &Reference) -> Failure {
    let why = "It was not stored, was deleted, or made room for others; send the item itself.";
    Failure::not_found_in(&format!("input[{at}].id"), format!("Item with id {} not found. {why}", quoted(id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    fn items(json: &str) -> Vec<Value> {
        parse(json.as_bytes()).unwrap()
    }

    fn token(name: &str) -> Client {
        Client::Token(name.into())
    }

    /// A memory with a response of the client `a`: two messages, the second with an id of its own, and a call.
    fn memory() -> Arc<Memory> {
        let memory = Memory::new(None).unwrap();
        let own = items(r#"[{"role": "user", "content": "one"}, {"role": "user", "content": "two", "id": "own"}]"#);
        let InputItems { json: input, mut ids } = InputItems::new(&own, "1");
        let response = Bytes::from_static(
            br#"{"output": [{"type": "function_call", "id": "fc_1_0", "call_id": "c", "name": "f", "arguments": "{}"}]}"#,
        );
        ids.push("fc_1_0".into());
        assert!(memory.keep(&token("a"), "resp_1", None, Kept { input, response, ids }, Instant::now()));
        memory
    }

    fn put_in(client: &str, json: &str) -> Result<Vec<Value>, String> {
        let mut input = items(json);
        let references = references(&input).map_err(|failure| failure.json())?;
        let done = put(&memory(), &token(client), &references, &mut input, Instant::now());
        done.map(|()| input).map_err(|failure| failure.json())
    }

    #[test]
    fn a_reference_stands_for_an_item_of_a_stored_response() {
        let input = put_in(
            "a",
            r#"[{"type": "item_reference", "id": "item_1_0"}, {"role": "user", "content": "three", "id": "own"},
            {"type": "item_reference", "id": "own"}, {"type": null, "id": "fc_1_0"}]"#,
        );
        let shown: Vec<_> = input
            .unwrap()
            .iter()
            .map(|item| ["id", "content", "call_id"].map(|name| field(item, name).map(|value| value.to_string())))
            .collect();
        let is = |id: &str, content: &str| [Some(id.to_owned()), Some(content.to_owned()), None];
        assert_eq!(shown[..3], [is("item_1_0", "one"), is("own", "three"), is("own", "two")]);
        assert_eq!(shown[3], [Some("fc_1_0".to_owned()), None, Some("c".to_owned())]);
        assert!(put_in("a", r#"[{"id": "own"}]"#).is_ok(), "an id alone is a reference");
    }

    #[test]
    fn what_refers_to_no_item_is_named_with_its_place() {
        let x = r#"{"type": "item_reference", "id": "own"}"#;
        for (client, json, param, words) in [
            ("a", format!(r#"[{x}, {{"id": "other"}}]"#), "input[1].id", "Item with id 'other' not found."),
            ("b", format!("[{x}]"), "input[0].id", "Item with id 'own' not found."),
            ("a", format!("[{x}, {x}]"), "input[1].id", "Duplicate item found with id 'own'."),
            ("a", r#"[{"type": "item_reference"}]"#.to_owned(), "input[0].id", "input[0] has no id"),
            ("a", r#"[{"type": "item_reference", "id": 7}]"#.to_owned(), "input[0].id", "input[0].id is not text"),
        ] {
            let told = put_in(client, &json).unwrap_err();
            assert!(told.contains(words) && told.contains(&format!(r#""param":"{param}""#)), "{json}: {told}");
        }
    }

    #[test]
    fn items_with_what_a_message_has_are_no_references() {
        let json = r#"["text", {"role": "user", "id": "own"}, {"content": "x", "id": "own"}, {"type": "message", "id": "own"}, {}]"#;
        assert!(references(&items(json)).unwrap().is_empty());
    }

    #[test]
    fn stored_items_have_ids() {
        let InputItems { json, ids } =
            InputItems::new(&items(r#"[{"content": "a"}, {"id": "x"}, {"id": null}, {"id": 7}]"#), "r");
        let stored: Vec<Json> = serde_json::from_slice(&json).unwrap();
        let shown: Vec<&Json> = stored.iter().map(|item| &item["id"]).collect();
        assert_eq!(serde_json::to_string(&shown).unwrap(), r#"["item_r_0","x","item_r_2",7]"#);
        assert_eq!(ids.iter().map(|id| &**id).collect::<Vec<_>>(), ["item_r_0", "x", "item_r_2"]);
    }
}
