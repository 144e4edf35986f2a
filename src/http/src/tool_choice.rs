//! `tool_choice`, and the structure of an answer that has to call a tool.
//!
//! Such an answer is a list of calls in JSON, `[{"name": …, "parameters": {…}}, …]`, whatever form the model's own calls have: the schema of the list
//! is made of those of the tools, and structured output lets no other answer through.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json, json};
use trunkline_quote::quoted;
use trunkline_server::proto::sampling::Structure;
use trunkline_template::Value;

use crate::failure::Failure;
use crate::structure::OPTIONS;

/// Keywords of a schema whose values are no schemas.
const VALUES: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords whose values are schemas by name.
const BY_NAME: [&str; 5] = ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];
/// Keywords that say with other schemas what a value is.
const COMBINED: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];
/// Keywords that say which properties there may be besides those that are named.
const FURTHER: [&str; 3] = ["additionalProperties", "unevaluatedProperties", "patternProperties"];

/// White space between the parts of a call, at most: people do not read calls, and a model that likes white space would spend its answer on it.
const WHITE_SPACE: &str = " ";

/// What a request wants called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// What the model likes.
    #[default]
    Auto,
    /// No tool; the model is shown none.
    None,
    /// Some tool.
    Required,
    /// This one, once.
    Named(String),
}

impl ToolChoice {
    /// Reads `tool_choice` as chats (`{"type": "function", "function": {"name": …}}`) and responses (`{"type": "function", "name": …}`) have it.
    ///
    /// # Errors
    /// If it is another one.
    pub(crate) fn of(choice: Option<&Json>) -> Result<Self, Failure> {
        let choice = match choice {
            None | Some(Json::Null) => return Ok(Self::Auto),
            Some(choice) => choice,
        };
        match choice.as_str() {
            Some("auto") => return Ok(Self::Auto),
            Some("none") => return Ok(Self::None),
            Some("required") => return Ok(Self::Required),
            _ => {}
        }
        let name = choice["function"]["name"].as_str().or(choice["name"].as_str());
        match name.filter(|_| choice["type"] == "function") {
            Some(name) => Ok(Self::Named(name.to_owned())),
            None => Err(refused("it may be auto, none, required, or a function by its name")),
        }
    }

    /// Returns the structure of an answer that has to be a call of `tools`, in the form of chats; `None` if it may be another.
    ///
    /// # Errors
    /// If there is no such tool, or one has no schema of an object.
    pub(crate) fn structure(&self, tools: Option<&[Value]>, one_call: bool) -> Result<Option<Structure>, Failure> {
        let (name, tools) = match self {
            Self::Auto | Self::None => return Ok(None),
            Self::Required => (None, tools.unwrap_or_default()),
            Self::Named(name) => (Some(name), tools.unwrap_or_default()),
        };
        let mut functions = Vec::new();
        for (at, tool) in tools.iter().enumerate() {
            let tool = serde_json::to_value(tool).unwrap_or_default();
            functions.push(Function::of(at, &tool["function"])?);
        }
        functions.retain(|function| name.is_none_or(|name| *name == function.name));
        match (functions.is_empty(), name) {
            (false, _) => Ok(Some(Structure::JsonSchema(list(functions, one_call || name.is_some()).to_string()))),
            (true, None) => Err(refused("it is required, and there are no tools")),
            (true, Some(name)) => Err(refused(&format!("there is no tool {}", quoted(name)))),
        }
    }
}

fn refused(why: &str) -> Failure {
    Failure::invalid("tool_choice", format!("tool_choice: {why}"))
}

/// A tool.
#[derive(Debug, PartialEq)]
struct Function {
    name: String,
    /// Schema of an object.
    parameters: Json,
}

impl Function {
    fn of(at: usize, function: &Json) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::invalid("tools", format!("tools[{at}].function.{why}"));
        let name = function["name"].as_str().ok_or_else(|| wrong("name is missing"))?.to_owned();
        let mut parameters = match &function["parameters"] {
            Json::Null => Map::from_iter([("properties".to_owned(), json!({}))]),
            Json::Object(parameters) => parameters.clone(),
            _ => return Err(wrong("parameters are no schema of an object")),
        };
        // They would give the schema a place of its own.
        parameters.retain(|key, _| !["$schema", "$id"].contains(&key.as_str()));
        let has = |parameters: &Map<String, Json>, keys: &[&str]| keys.iter().any(|key| parameters.contains_key(*key));
        if has(&parameters, &COMBINED) {
            return Ok(Self { name, parameters: parameters.into() });
        }
        let kind = parameters.entry("type").or_insert_with(|| "object".into());
        if kind != "object" {
            return Err(wrong(&format!("parameters have the type {}, not object", quoted(&kind.to_string()))));
        }
        // A call has no arguments that its tool does not name.
        if parameters.contains_key("properties") && !has(&parameters, &FURTHER) {
            parameters.insert("additionalProperties".into(), false.into());
        }
        Ok(Self { name, parameters: parameters.into() })
    }
}

/// Returns the schema of a list of calls.
fn list(functions: Vec<Function>, one_call: bool) -> Json {
    let (mut calls, mut schemas) = (Vec::new(), Map::new());
    for (at, Function { name, mut parameters }) in functions.into_iter().enumerate() {
        let place = format!("#/$defs/{at}");
        rebase(&mut parameters, &place);
        schemas.insert(at.to_string(), parameters);
        calls.push(json!({
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": place}},
            "required": ["name", "parameters"],
            "additionalProperties": false,
        }));
    }
    let mut list = json!({"type": "array", "items": {"anyOf": calls}, "minItems": 1, "$defs": schemas});
    list[OPTIONS] = json!({"whitespace_pattern": WHITE_SPACE});
    if one_call {
        list["maxItems"] = 1.into();
    }
    list
}

/// Returns the names of the tools and the schemas of their arguments: those of the tools named in `strict`, and of others any object.
///
/// # Errors
/// If a tool that is strict has no schema of an object.
pub(crate) fn argument_schemas(tools: &[Value], strict: &BTreeSet<String>) -> Result<Vec<(String, Json)>, Failure> {
    let mut schemas = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        let tool = serde_json::to_value(tool).unwrap_or_default();
        let Some(name) = tool["function"]["name"].as_str() else { continue };
        let parameters = match strict.contains(name) {
            true => Function::of(at, &tool["function"])?.parameters,
            false => json!({"type": "object"}),
        };
        schemas.push((name.to_owned(), parameters));
    }
    Ok(schemas)
}

/// Returns the schema of one call of a tool of these names and arguments, its name before its arguments.
pub(crate) fn call_schema(schemas: &[(String, Json)], arguments: &str) -> String {
    let (mut calls, mut definitions) = (Vec::new(), Vec::new());
    for (at, (name, parameters)) in schemas.iter().enumerate() {
        let (place, mut parameters) = (format!("#/$defs/{at}"), parameters.clone());
        rebase(&mut parameters, &place);
        // Models write the name first, and an object of the library has its keys in the order of the text.
        calls.push(format!(
            r#"{{"type":"object","properties":{{"name":{{"const":{}}},"{arguments}":{{"$ref":"{place}"}}}},"required":["name","{arguments}"],"additionalProperties":false}}"#,
            Json::from(name.as_str())
        ));
        definitions.push(format!(r#""{at}":{parameters}"#));
    }
    let options = json!({"whitespace_pattern": WHITE_SPACE});
    format!(r#"{{"anyOf":[{}],"$defs":{{{}}},"{OPTIONS}":{options}}}"#, calls.join(","), definitions.join(","))
}

/// Returns the schema of the arguments of one call.
pub(crate) fn arguments_schema(parameters: &Json) -> String {
    let mut parameters = parameters.clone();
    parameters[OPTIONS] = json!({"whitespace_pattern": WHITE_SPACE});
    parameters.to_string()
}

/// Moves a schema to this place of a document: its references to itself begin there.
fn rebase(schema: &mut Json, place: &str) {
    match schema {
        Json::Array(schemas) => schemas.iter_mut().for_each(|schema| rebase(schema, place)),
        Json::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                match (key.as_str(), value) {
                    ("$ref", Json::String(to)) => {
                        if let Some(within) = to.strip_prefix('#').filter(|of| of.is_empty() || of.starts_with('/')) {
                            *to = format!("{place}{within}");
                        }
                    }
                    (key, Json::Object(schemas)) if BY_NAME.contains(&key) => {
                        schemas.values_mut().for_each(|schema| rebase(schema, place));
                    }
                    (key, _) if VALUES.contains(&key) => {}
                    (_, value) => rebase(value, place),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(choice: Json) -> Result<ToolChoice, String> {
        ToolChoice::of(Some(&choice)).map_err(|failure| failure.json())
    }

    fn schema(choice: &ToolChoice, functions: Json, one_call: bool) -> Result<Json, String> {
        let functions = functions.as_array().cloned().unwrap();
        let tool = |function| serde_json::from_value(json!({"type": "function", "function": function})).unwrap();
        let tools: Vec<Value> = functions.into_iter().map(tool).collect();
        match choice.structure(Some(&tools), one_call).map_err(|failure| failure.json())? {
            Some(Structure::JsonSchema(schema)) => Ok(serde_json::from_str(&schema).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_form_of_a_choice_is_read_and_others_are_refused() {
        assert_eq!(ToolChoice::of(None).unwrap(), ToolChoice::Auto);
        assert_eq!(choice(json!(null)), Ok(ToolChoice::Auto));
        assert_eq!(choice(json!("auto")), Ok(ToolChoice::Auto));
        assert_eq!(choice(json!("none")), Ok(ToolChoice::None));
        assert_eq!(choice(json!("required")), Ok(ToolChoice::Required));
        let named = Ok(ToolChoice::Named("f".into()));
        assert_eq!(choice(json!({"type": "function", "function": {"name": "f"}})), named);
        assert_eq!(choice(json!({"type": "function", "name": "f"})), named);
        for wrong in
            [json!("any"), json!(7), json!({"type": "function"}), json!({"type": "allowed_tools", "name": "f"})]
        {
            let told = choice(wrong).unwrap_err();
            assert!(told.contains(r#""param":"tool_choice""#) && told.contains("or a function by its name"), "{told}");
        }
        assert_eq!(ToolChoice::Auto.structure(None, false).unwrap(), None);
    }

    #[test]
    fn the_schema_of_an_answer_has_those_of_the_tools_with_their_references() {
        let point = json!({"$schema": "s", "type": "object", "properties": {"at": {"$ref": "#/$defs/p"}, "$ref": {"enum": [{"$ref": "#"}]},
            "next": {"anyOf": [{"$ref": "#"}, {"$ref": "other.json"}, {"type": "null"}]}}, "$defs": {"p": {"type": "integer"}}});
        let functions = json!([{"name": "f", "parameters": point}, {"name": "g"}]);
        let all = schema(&ToolChoice::Required, functions.clone(), false).unwrap();
        assert_eq!((&all["minItems"], &all["maxItems"]), (&json!(1), &Json::Null));
        assert_eq!(all["x-guidance"], json!({"whitespace_pattern": " "}));
        let calls = all["items"]["anyOf"].as_array().unwrap();
        let named: Vec<_> = calls.iter().map(|call| &call["properties"]["name"]["const"]).collect();
        assert_eq!(named, [&json!("f"), &json!("g")]);
        assert_eq!(calls[1]["properties"]["parameters"], json!({"$ref": "#/$defs/1"}));
        let properties = &all["$defs"]["0"]["properties"];
        assert_eq!(properties["at"], json!({"$ref": "#/$defs/0/$defs/p"}));
        assert_eq!(properties["$ref"], json!({"enum": [{"$ref": "#"}]}), "a property by this name, and a value");
        assert_eq!(
            properties["next"]["anyOf"],
            json!([{"$ref": "#/$defs/0"}, {"$ref": "other.json"}, {"type": "null"}])
        );
        assert_eq!(
            (&all["$defs"]["0"]["$schema"], &all["$defs"]["0"]["additionalProperties"]),
            (&Json::Null, &json!(false))
        );
        assert_eq!(all["$defs"]["1"], json!({"type": "object", "properties": {}, "additionalProperties": false}));
        assert_eq!(schema(&ToolChoice::Required, functions.clone(), true).unwrap()["maxItems"], 1);
        let named = schema(&ToolChoice::Named("g".into()), functions, false).unwrap();
        assert_eq!((named["items"]["anyOf"].as_array().unwrap().len(), &named["maxItems"]), (1, &json!(1)));
        // What says more than its properties stays as it is.
        let parameters = json!({"properties": {}, "anyOf": [{"required": ["a"]}]});
        let open = schema(&ToolChoice::Required, json!([{"name": "f", "parameters": parameters}]), false).unwrap();
        assert_eq!(open["$defs"]["0"], parameters);
    }

    #[test]
    fn a_tool_that_cannot_be_forced_is_named() {
        let named = ToolChoice::Named("h".into());
        for (choice, functions, words) in [
            (&ToolChoice::Required, json!([]), "there are no tools"),
            (&named, json!([{"name": "f"}]), "there is no tool 'h'"),
            (&named, json!([{"name": "f"}, {}]), "tools[1].function.name is missing"),
            (&named, json!([{"name": "h", "parameters": []}]), "parameters are no schema of an object"),
            (&named, json!([{"name": "h", "parameters": {"type": "array"}}]), "parameters have the type"),
        ] {
            let told = schema(choice, functions, false).unwrap_err();
            assert!(told.contains(words), "{told}");
        }
    }
}
