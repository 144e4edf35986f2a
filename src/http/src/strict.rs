//! `strict` of tools that the model may call or not: a grammar of answers whose text is free, and whose calls have the arguments that their tools ask for.
//!
//! The model writes calls in its own form ([`ToolCallParser`]). From where one begins the grammar holds: a schema has an alternative for each tool, with the
//! schema of its arguments if it is strict, and any object else. A mark of a call may be text, or a special token of the model.

use std::collections::BTreeSet;

use serde_json::Value as Json;
use trunkline_server::proto::sampling::Structure;
use trunkline_template::Value;
use trunkline_text::Tokenizer;

use crate::calls::ToolCallParser;
use crate::failure::Failure;
use crate::tool_choice::call_schema;

/// White space between the parts of a call.
const SPACE: &str = r"SPACE: /[ \t\r\n]{1,8}/";

/// Returns the names of the tools that are strict, in the form of chats or that of responses.
pub(crate) fn strict_names(tools: &[Value]) -> BTreeSet<String> {
    let name = |tool: &Value| {
        let function = Some(tool.get_attr("function").unwrap_or_default()).filter(|function| !function.is_undefined());
        let function = function.unwrap_or_else(|| tool.clone());
        let is_strict = function.get_attr("strict").is_ok_and(|strict| strict.is_true());
        function.get_attr("name").ok().filter(|_| is_strict)?.as_str().map(str::to_owned)
    };
    tools.iter().filter_map(name).collect()
}

/// Returns the structure of answers in which calls of the tools named in `strict` are valid by their schemas; `None` without such tools, or if the model's
/// form of calls has no grammar.
///
/// # Errors
/// If a tool has no schema of an object.
pub(crate) fn structure(
    parser: ToolCallParser,
    tools: &[Value],
    strict: &BTreeSet<String>,
    tokenizer: &Tokenizer,
) -> Result<Option<Structure>, Failure> {
    if strict.is_empty() || parser == ToolCallParser::Mistral {
        return Ok(None);
    }
    let mark = |text: &str| mark(tokenizer, text);
    let calls = |arguments: &str| call_schema(tools, arguments, strict);
    let grammar = match parser {
        ToolCallParser::Hermes => {
            let (begin, end) = (mark("<tool_call>"), mark("</tool_call>"));
            // A special token is not in a text; a mark that is text ends it as soon as it is there.
            let head = if begin.starts_with('<') { "head" } else { "head[lazy]" };
            format!(
                "start: call* TEXT\ncall: head SPACE? object SPACE? {end}\n{head}: TEXT {begin}\nobject: %json {}\n{SPACE}\nTEXT: /(\\n|.)*/\n",
                calls("arguments")?
            )
        }
        ToolCallParser::Llama3Json => format!(
            "start: TEXT? | SPACE? tag? call (SPACE? \";\" SPACE? call)*\ntag: {} SPACE?\ncall: %json {}\n{SPACE}\nTEXT: /[ \\t\\r\\n]*[^{{ \\t\\r\\n](\\n|.)*/\n",
            mark("<|python_tag|>"),
            calls("parameters")?
        ),
        ToolCallParser::Mistral => return Ok(None),
    };
    Ok(Some(Structure::Grammar(grammar)))
}

/// Returns a mark in a grammar: a special token if it is one, else its text.
fn mark(tokenizer: &Tokenizer, text: &str) -> String {
    let ids = tokenizer.encode_with(text, false).unwrap_or_default();
    match ids[..] {
        [id] if tokenizer.piece(id).is_some_and(|(_, is_special)| is_special) => format!("<[{id}]>"),
        _ => Json::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    fn tools(json: &str) -> Vec<Value> {
        parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn strict_tools_are_found_in_both_forms() {
        let chats = tools(
            r#"[{"type": "function", "function": {"name": "a", "strict": true}}, {"function": {"name": "b", "strict": null}}]"#,
        );
        let responses = tools(
            r#"[{"type": "function", "name": "a", "strict": true}, {"name": "c", "strict": false}, {"name": "d"}, 7]"#,
        );
        for tools in [chats, responses] {
            assert_eq!(strict_names(&tools), ["a".to_owned()].into());
        }
    }

    #[test]
    fn a_call_has_the_name_and_the_arguments_of_its_tool() {
        let tools = tools(
            r##"[{"type": "function", "function": {"name": "a", "parameters": {"properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "null"}}}}},
            {"type": "function", "function": {"name": "b", "parameters": []}}]"##,
        );
        let of = |parser: ToolCallParser, strict: &[&str]| {
            let strict = strict.iter().map(|name| (*name).to_owned()).collect();
            structure(parser, &tools, &strict, &Tokenizer::bytes()).map_err(|failure| failure.json())
        };
        let Some(Structure::Grammar(grammar)) = of(ToolCallParser::Hermes, &["a"]).unwrap() else { panic!("none") };
        // What these grammars let through is a test of the crate of grammars.
        let schema = grammar.lines().find_map(|line| line.strip_prefix("object: %json ")).unwrap();
        let space = "SPACE: /[ \\t\\r\\n]{1,8}/";
        let expected = format!(
            "start: call* TEXT\ncall: head SPACE? object SPACE? \"</tool_call>\"\nhead[lazy]: TEXT \"<tool_call>\"\nobject: %json {schema}\n{space}\nTEXT: /(\\n|.)*/\n"
        );
        assert_eq!(grammar, expected);
        let Some(Structure::Grammar(llama)) = of(ToolCallParser::Llama3Json, &["a"]).unwrap() else { panic!("none") };
        let of_llama = schema.replace("arguments", "parameters");
        let expected = format!(
            "start: TEXT? | SPACE? tag? call (SPACE? \";\" SPACE? call)*\ntag: \"<|python_tag|>\" SPACE?\ncall: %json {of_llama}\n{space}\nTEXT: /[ \\t\\r\\n]*[^{{ \\t\\r\\n](\\n|.)*/\n"
        );
        assert_eq!(llama, expected);
        assert!(
            schema.starts_with(
                r##"{"anyOf":[{"type":"object","properties":{"name":{"const":"a"},"arguments":{"$ref":"#/$defs/0"}}"##
            ),
            "{schema}"
        );
        let schema: Json = serde_json::from_str(schema).unwrap();
        assert_eq!(schema["$defs"]["0"]["properties"]["x"]["$ref"], "#/$defs/0/$defs/n");
        assert_eq!(
            (&schema["$defs"]["0"]["additionalProperties"], &schema["$defs"]["1"]),
            (&false.into(), &serde_json::json!({"type": "object"}))
        );
        assert_eq!((of(ToolCallParser::Hermes, &[]), of(ToolCallParser::Mistral, &["a"])), (Ok(None), Ok(None)));
        assert!(of(ToolCallParser::Llama3Json, &["b"]).unwrap_err().contains(r#""param":"tools""#));
    }
}
