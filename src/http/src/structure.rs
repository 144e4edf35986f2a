//! The structure of an answer, from OpenAI's `response_format` and vLLM's `structured_outputs`.

use serde::Deserialize;
use serde_json::{Value, json};
use trunkline_quote::quoted;
use trunkline_server::proto;
use trunkline_server::proto::sampling::Structure;

use crate::failure::Failure;

/// Schema of any JSON object.
const OBJECT: &str = r#"{"type":"object"}"#;
/// Options of llguidance, in a schema.
pub(crate) const OPTIONS: &str = "x-guidance";

/// `response_format`.
#[derive(Debug, Deserialize)]
pub(crate) struct ResponseFormat {
    r#type: String,
    json_schema: Option<JsonSchema>,
    /// The schema in `text.format` of responses.
    #[serde(skip)]
    of_text: bool,
}

/// `response_format.json_schema`. Its name and description are for people, and a schema always holds, strict or not.
#[derive(Debug, Deserialize)]
struct JsonSchema {
    #[serde(alias = "json_schema")]
    schema: Option<Value>,
}

/// `structured_outputs`, with the names of vLLM.
#[derive(Debug, Deserialize)]
pub(crate) struct StructuredOutputs {
    /// A schema, or the text of one.
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
    disable_any_whitespace: Option<bool>,
    whitespace_pattern: Option<String>,
    /// Fields without a meaning here.
    #[serde(flatten)]
    others: serde_json::Map<String, Value>,
}

impl ResponseFormat {
    /// Reads `text.format` of responses, which has the schema without a `json_schema` around it.
    ///
    /// # Errors
    /// If it is malformed.
    pub(crate) fn of_text(format: &Value) -> Result<Option<Self>, Failure> {
        if format.is_null() {
            return Ok(None);
        }
        let kind = format["type"].as_str().ok_or_else(|| Failure::invalid("text.format", "text.format has no type"))?;
        let schema = Some(format["schema"].clone()).filter(|schema| !schema.is_null());
        Ok(Some(Self { r#type: kind.to_owned(), json_schema: Some(JsonSchema { schema }), of_text: true }))
    }

    fn structure(&self) -> Result<Option<Structure>, Failure> {
        let schema = self.json_schema.as_ref().and_then(|format| format.schema.as_ref());
        let (param, place) = match self.of_text {
            true => ("text.format", "text.format"),
            false => ("response_format", "response_format.json_schema"),
        };
        match self.r#type.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(Structure::JsonSchema(OBJECT.into()))),
            "json_schema" => match schema {
                Some(schema) => Ok(Some(Structure::JsonSchema(schema.to_string()))),
                None => Err(Failure::invalid(param, format!("{place} has no schema"))),
            },
            other => {
                let message =
                    format!("{param} has the type {}; it must be text, json_object or json_schema", quoted(other));
                Err(Failure::invalid(param, message))
            }
        }
    }
}

impl StructuredOutputs {
    fn structure(&self) -> Result<Option<Structure>, Failure> {
        let refused = |why: String| Err(Failure::invalid("structured_outputs", format!("structured_outputs {why}")));
        // Clients send the fields that they do not use as null or false.
        let is_set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        if let Some((name, _)) = self.others.iter().find(|(name, value)| is_set(value) && !name.starts_with('_')) {
            return refused(format!(
                "has {}, which is not supported; json, regex, choice, grammar and json_object are",
                quoted(name)
            ));
        }
        let json = self.json.as_ref().map(|schema| self.schema(schema)).transpose()?;
        let object =
            (self.json_object == Some(true)).then(|| self.schema(&Value::String(OBJECT.into()))).transpose()?;
        let choice = self.choice.clone().map(|texts| Structure::Choice(proto::Choices { texts }));
        let (regex, grammar) = (self.regex.clone().map(Structure::Regex), self.grammar.clone().map(Structure::Grammar));
        let mut all = [json, object, regex, choice, grammar].into_iter().flatten();
        match (all.next(), all.next()) {
            (one, None) => Ok(one),
            (_, Some(_)) => refused("has more than one of json, regex, choice, grammar and json_object".into()),
        }
    }

    /// Returns a schema with the white space that the request asks for.
    fn schema(&self, schema: &Value) -> Result<Structure, Failure> {
        let mut schema = match schema {
            Value::String(text) => serde_json::from_str(text).map_err(|error| {
                Failure::invalid("structured_outputs", format!("structured_outputs.json is no JSON: {error}"))
            })?,
            schema => schema.clone(),
        };
        if let Value::Object(fields) = &mut schema {
            if let Some(pattern) = &self.whitespace_pattern {
                fields.insert(OPTIONS.into(), json!({"whitespace_pattern": pattern}));
            } else if self.disable_any_whitespace == Some(true) {
                fields.insert(OPTIONS.into(), json!({"whitespace_pattern": null, "whitespace_flexible": false}));
            }
        }
        Ok(Structure::JsonSchema(schema.to_string()))
    }
}

/// Returns the structure that a request asks for.
///
/// # Errors
/// Names the field that cannot be honoured.
pub(crate) fn structure(
    format: Option<&ResponseFormat>,
    outputs: Option<&StructuredOutputs>,
) -> Result<Option<Structure>, Failure> {
    let format = format.map_or(Ok(None), ResponseFormat::structure)?;
    let outputs = outputs.map_or(Ok(None), StructuredOutputs::structure)?;
    match (format, outputs) {
        (Some(_), Some(_)) => {
            let message = "structured_outputs is set alongside a response_format; send one of them";
            Err(Failure::invalid("structured_outputs", message))
        }
        (format, outputs) => Ok(format.or(outputs)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: Value) -> Result<Option<Structure>, String> {
        let format: Option<ResponseFormat> = serde_json::from_value(body["response_format"].clone()).unwrap();
        let outputs: Option<StructuredOutputs> = serde_json::from_value(body["structured_outputs"].clone()).unwrap();
        structure(format.as_ref(), outputs.as_ref()).map_err(|failure| failure.json())
    }

    fn schema(text: &str) -> Result<Option<Structure>, String> {
        Ok(Some(Structure::JsonSchema(text.into())))
    }

    #[test]
    fn every_form_has_its_structure() {
        assert_eq!(of(json!({})), Ok(None));
        assert_eq!(of(json!({"response_format": {"type": "text"}})), Ok(None));
        assert_eq!(of(json!({"response_format": {"type": "json_object"}})), schema(OBJECT));
        let strict = json!({"name": "a", "strict": true, "schema": {"type": "array"}});
        assert_eq!(
            of(json!({"response_format": {"type": "json_schema", "json_schema": strict}})),
            schema(r#"{"type":"array"}"#)
        );
        let outputs = |outputs: Value| of(json!({"structured_outputs": outputs}));
        assert_eq!(
            outputs(json!({"json": {"type": "null"}, "regex": null, "_backend": "x"})),
            schema(r#"{"type":"null"}"#)
        );
        assert_eq!(outputs(json!({"json": "{\"type\": \"null\"}"})), schema(r#"{"type":"null"}"#));
        assert_eq!(outputs(json!({"json_object": true})), schema(OBJECT));
        assert_eq!(outputs(json!({"json_object": false, "disable_additional_properties": false})), Ok(None));
        assert_eq!(outputs(json!({"regex": "a+"})), Ok(Some(Structure::Regex("a+".into()))));
        assert_eq!(outputs(json!({"grammar": "start: \"a\""})), Ok(Some(Structure::Grammar("start: \"a\"".into()))));
        let texts = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(outputs(json!({"choice": ["a", "b"]})), Ok(Some(Structure::Choice(proto::Choices { texts }))));
        let compact = outputs(json!({"json": {}, "disable_any_whitespace": true})).unwrap();
        let options = r#"{"x-guidance":{"whitespace_flexible":false,"whitespace_pattern":null}}"#;
        let Some(Structure::JsonSchema(compact)) = compact else { panic!("{compact:?}") };
        assert_eq!(serde_json::from_str::<Value>(&compact).unwrap(), serde_json::from_str::<Value>(options).unwrap());
        let own = outputs(json!({"json_object": true, "whitespace_pattern": " ?"}));
        assert_eq!(own, schema(r#"{"type":"object","x-guidance":{"whitespace_pattern":" ?"}}"#));
    }

    #[test]
    fn the_format_of_a_response_has_its_schema_without_a_name_around_it() {
        let of = |format: Value| {
            let format = ResponseFormat::of_text(&format).map_err(|failure| failure.json())?;
            structure(format.as_ref(), None).map_err(|failure| failure.json())
        };
        assert_eq!(of(json!(null)), Ok(None));
        assert_eq!(of(json!({"type": "text"})), Ok(None));
        assert_eq!(of(json!({"type": "json_object"})), schema(OBJECT));
        let named = json!({"type": "json_schema", "name": "a", "strict": true, "schema": {"type": "array"}});
        assert_eq!(of(named), schema(r#"{"type":"array"}"#));
        for (format, words) in [
            (json!({"type": "json_schema", "name": "a"}), "text.format has no schema"),
            (json!({"type": "grammar"}), "text.format has the type 'grammar'"),
            (json!("text"), "text.format has no type"),
        ] {
            let told = of(format).unwrap_err();
            assert!(told.contains(words) && told.contains(r#""param":"text.format""#), "{told}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        for (body, words) in [
            (json!({"response_format": {"type": "xml"}}), "response_format has the type 'xml'"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema has no schema"),
            (json!({"structured_outputs": {"structural_tag": "x"}}), "has 'structural_tag', which is not supported"),
            (json!({"structured_outputs": {"disable_additional_properties": true}}), "'disable_additional_properties'"),
            (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json is no JSON"),
            (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "more than one of"),
            (
                json!({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}),
                "alongside a response_format",
            ),
        ] {
            let told = of(body.clone()).unwrap_err();
            assert!(told.contains(words), "{body}: {told}");
        }
    }
}
