//! `strict` of tools that the model may call or not: a grammar of answers whose text is free, and whose calls have the arguments that their tools ask for.
//!
//! The model writes calls in its own form ([`ToolCallParser`]). From where one begins the grammar holds: a schema has an alternative for each tool, with the
//! schema of its arguments if it is strict, and any object else. A mark of a call may be text, or a special token of the model.

use std::collections::BTreeSet;

use serde_json::Value as Json;
use trunkline_server::proto::sampling::Structure;
use trunkline_template::Value;
use trunkline_text::Tokenizer;

use crate::calls::{ARGS, ToolCallParser};
use crate::failure::Failure;
use crate::tool_choice::{argument_schemas, arguments_schema, call_schema};

/// White space between the parts of a call, and text.
const TERMINALS: &str = "SPACE: /[ \\t\\r\\n]{1,8}/\nTEXT: /(\\n|.)*/\n";

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

/// Returns the structure of answers in which calls of the tools named in `strict` are valid by their schemas; `None` without such tools, where no calls are
/// read, or if the server's workers know no structures, of which there is a tokenizer else.
///
/// # Errors
/// If a tool has no schema of an object.
pub(crate) fn structure(
    parser: Option<ToolCallParser>,
    tools: Option<&[Value]>,
    strict: &BTreeSet<String>,
    tokenizer: Option<&Tokenizer>,
) -> Result<Option<Structure>, Failure> {
    let (Some(parser), Some(tools), Some(tokenizer), false) = (parser, tools, tokenizer, strict.is_empty()) else {
        return Ok(None);
    };
    let schemas = argument_schemas(tools, strict)?;
    let grammar = match parser {
        ToolCallParser::Hermes => format!(
            "start: call* TEXT\ncall: head SPACE? object SPACE? {}\n{}object: %json {}\n",
            mark(tokenizer, "</tool_call>"),
            head(&mark(tokenizer, parser.mark())),
            call_schema(&schemas, "arguments")
        ),
        ToolCallParser::Llama3Json => format!(
            "start: LEAD? | SPACE? tag? call (SPACE? \";\" SPACE? call)*\ntag: {} SPACE?\ncall: %json {}\nLEAD: /[ \\t\\r\\n]*[^{{ \\t\\r\\n](\\n|.)*/\n",
            mark(tokenizer, parser.mark()),
            call_schema(&schemas, "parameters")
        ),
        ToolCallParser::Mistral => mistral(tokenizer, &schemas),
    };
    Ok(Some(Structure::Grammar(format!("{grammar}{TERMINALS}"))))
}

/// Returns the rules of `mistral`: a list of calls, or names with arguments.
fn mistral(tokenizer: &Tokenizer, schemas: &[(String, Json)]) -> String {
    let begin = mark(tokenizer, ToolCallParser::Mistral.mark());
    let rules = schemas.iter().enumerate().map(|(at, (name, parameters))| {
        let name = Json::from(name.as_str());
        format!("call{at}: {name} args? SPACE? object{at}\nobject{at}: %json {}\n", arguments_schema(parameters))
    });
    let names: Vec<String> = (0..schemas.len()).map(|at| format!("call{at}")).collect();
    format!(
        "start: TEXT | head SPACE? (list | call (SPACE? {begin} SPACE? call)*) SPACE?\n{}\
        list: \"[\" SPACE? object (SPACE? \",\" SPACE? object)* SPACE? \"]\"\nobject: %json {}\ncall: {}\nargs: {}\n{}",
        head(&begin),
        call_schema(schemas, "arguments"),
        names.join(" | "),
        mark(tokenizer, ARGS),
        rules.collect::<String>()
    )
}

/// Returns the rule of text up to a mark. A special token is not in a text; a mark that is text ends it as soon as it is there.
fn head(mark: &str) -> String {
    let name = if mark.starts_with('<') { "head" } else { "head[lazy]" };
    format!("{name}: TEXT {mark}\n")
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
            structure(Some(parser), Some(&tools), &strict, Some(&Tokenizer::bytes())).map_err(|failure| failure.json())
        };
        let Some(Structure::Grammar(grammar)) = of(ToolCallParser::Hermes, &["a"]).unwrap() else { panic!("none") };
        // What these grammars let through is a test of the crate of grammars.
        let schema = grammar.lines().find_map(|line| line.strip_prefix("object: %json ")).unwrap();
        let terminals = "SPACE: /[ \\t\\r\\n]{1,8}/\nTEXT: /(\\n|.)*/\n";
        let expected = format!(
            "start: call* TEXT\ncall: head SPACE? object SPACE? \"</tool_call>\"\nhead[lazy]: TEXT \"<tool_call>\"\nobject: %json {schema}\n{terminals}"
        );
        assert_eq!(grammar, expected);
        let Some(Structure::Grammar(llama)) = of(ToolCallParser::Llama3Json, &["a"]).unwrap() else { panic!("none") };
        let of_llama = schema.replace("arguments", "parameters");
        let expected = format!(
            "start: LEAD? | SPACE? tag? call (SPACE? \";\" SPACE? call)*\ntag: \"<|python_tag|>\" SPACE?\ncall: %json {of_llama}\nLEAD: /[ \\t\\r\\n]*[^{{ \\t\\r\\n](\\n|.)*/\n{terminals}"
        );
        assert_eq!(llama, expected);
        let Some(Structure::Grammar(mistral)) = of(ToolCallParser::Mistral, &["a"]).unwrap() else { panic!("none") };
        let options = r#""x-guidance":{"whitespace_pattern":" "}"#;
        let own = r##""properties":{"x":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"null"}},"type":"object","additionalProperties":false"##;
        let expected = format!(
            "start: TEXT | head SPACE? (list | call (SPACE? \"[TOOL_CALLS]\" SPACE? call)*) SPACE?\nhead[lazy]: TEXT \"[TOOL_CALLS]\"\n\
            list: \"[\" SPACE? object (SPACE? \",\" SPACE? object)* SPACE? \"]\"\nobject: %json {schema}\ncall: call0 | call1\nargs: \"[ARGS]\"\n\
            call0: \"a\" args? SPACE? object0\nobject0: %json {{{own},{options}}}\ncall1: \"b\" args? SPACE? object1\nobject1: %json {{\"type\":\"object\",{options}}}\n{terminals}"
        );
        assert_eq!(mistral, expected);
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
        assert_eq!(of(ToolCallParser::Hermes, &[]), Ok(None));
        assert!(of(ToolCallParser::Llama3Json, &["b"]).unwrap_err().contains(r#""param":"tools""#));
    }
}
