//! Templates of ours, one for each construct; their prompts are those of transformers 5.24.0 with Jinja2 3.1.6 (`check/golden.py`).

use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;
use trunkline_text::ChatSource;

use super::*;

/// Cases with the answers of transformers.
const GOLDEN: &str = include_str!("golden.json");

/// A case: a template, a conversation, and the prompt; no prompt if transformers refuses.
#[derive(Deserialize)]
struct Golden {
    name: String,
    template: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    variables: BTreeMap<String, Value>,
    prompt: Option<String>,
}

fn template(text: &str) -> ChatTemplate {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(role, token)| (role.into(), token.into()));
    ChatTemplate::new(ChatSource { tokens: tokens.into(), ..ChatSource::of_text(text) }).unwrap()
}

fn messages(json: &str) -> Conversation {
    Conversation::new(serde_json::from_str(json).unwrap(), UNIX_EPOCH + Duration::from_secs(1_767_322_800))
}

fn refusal(text: &str, conversation: &Conversation) -> String {
    let error = template(text).render(conversation).unwrap_err();
    assert!(error.is_of_the_conversation(), "{error:?}");
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 5_000, "{line}");
    line
}

const HELLO: &str = r#"[{"role": "user", "content": "Hello"}]"#;

#[test]
fn prompts_are_those_of_transformers() {
    let cases: Vec<Golden> = serde_json::from_str(GOLDEN).unwrap();
    assert!(cases.len() >= 60, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let conversation = Conversation {
            tools: case.tools,
            documents: case.documents,
            add_generation_prompt: case.add_generation_prompt,
            continue_final_message: case.continue_final_message,
            variables: case.variables,
            ..Conversation { messages: case.messages, ..messages("[]") }
        };
        let rendered =
            ChatTemplate::new(ChatSource { tokens: template("").tokens, ..ChatSource::of_text(&case.template) })
                .and_then(|template| template.render(&conversation));
        let ours = rendered.as_ref().ok();
        if ours != case.prompt.as_ref() {
            wrong
                .push(format!("{}: {}\n ours {rendered:?}\n transformers {:?}", case.name, case.template, case.prompt));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_refusal_of_the_template_is_in_its_words() {
    let text = "{{ raise_exception('Roles must\nalternate, not ' ~ messages[0].role) }}";
    let line = refusal(text, &messages(HELLO));
    assert_eq!(line, "the chat template refuses the conversation: Roles must alternate, not user");
    let line = refusal("\n\n{{ messages[0].content + 1 }}", &messages(HELLO));
    assert!(line.starts_with("the chat template fails on this conversation: line 3: "), "{line}");
}

#[test]
fn a_malformed_conversation_is_named_by_its_place() {
    let no_object: Conversation = messages(r#"[{"role": "user"}, 7]"#);
    let tools = Conversation { tools: Some(vec![Value::from("a")]), ..messages(HELLO) };
    let both = Conversation { continue_final_message: true, ..messages(HELLO) };
    let mut variables = messages(HELLO);
    variables.variables.insert("messages".into(), Value::from(1));
    for (conversation, words) in [
        (messages("[]"), "messages is empty"),
        (no_object, "messages[1] must be an object"),
        (tools, "tools[0] must be an object"),
        (both, "exclude each other"),
        (variables, "chat_template_kwargs has messages"),
    ] {
        let line = refusal("{{ messages[0].content }}", &conversation);
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn a_hostile_template_ends_within_its_limits() {
    let nested = |of: &str, then: &str| {
        format!(
            "{{% set ns = namespace(x='abcdefgh', y=1) %}}{{% for i in range(99999) %}}{{% set ns.x = {of} %}}{{% endfor %}}{then}"
        )
    };
    let twice = |then: &str| {
        format!(
            "{{% set ns = namespace(x='abcdefgh', y='abcdefgh') %}}{{% for i in range(60) %}}{{% set ns.x = [ns.x, ns.x] %}}\
             {{% set ns.y = (ns.y, ns.y) %}}{{% endfor %}}{{{{ {then} }}}}"
        )
    };
    let straight = format!("{{% set a = ['abcdefgh'] %}}{}{{{{ a }}}}", "{% set a = [a, a] %}".repeat(64));
    let wide = format!("{{% set a = 'abcdefgh' * 1000 %}}{}{{{{ a ~ a }}}}", "{% set a = [a] * 1000 %}".repeat(8));
    let defaults = format!(
        "{{% set a = 1 %}}{}{{{{ a == a }}}}",
        "{% set a = range(1000)|map(attribute='q', default=a)|list %}".repeat(9)
    );
    let batches = format!("{{% set a = 1 %}}{}{{{{ a }}}}", "{% set a = [1]|batch(1000, a)|list %}".repeat(9));
    let mut hostile = vec![
        nested("[ns.x]", ""),
        nested("{'a': ns.x}", ""),
        nested("(ns.x, 1)", "{{ ns.x }}"),
        nested("[ns.x]|list", "{{ ns.x == ns.x }}"),
        nested("ns.x ~ ns.x", ""),
        nested("ns.x + ns.x", ""),
        nested("ns.x|replace('a', 'aaaaaaaaaaaa')", ""),
        nested("[[ns.x]]|batch(1)|list", ""),
        nested("{ns.x: 1}", ""),
        straight,
        wide,
        defaults,
        batches,
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".into(),
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".into(),
        "{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f([n]) }}{% endmacro %}{{ f(0) }}".into(),
        "{{ 'a' * 999999999 }}".into(),
        "{{ [1] * 999999999 }}".into(),
        "{{ '%999999999d'|format(1) }}".into(),
        "{{ '{:>999999999}'.format('a') }}".into(),
        "{{ '{:>{}}'.format('a', 999999999) }}".into(),
        "{{ '%*d'|format(999999999, 1) }}".into(),
        "{{ 'a\n'|indent(999999999) }}".into(),
        "{{ [1]|batch(999999999, 'x')|list }}".into(),
        "{{ [1]|slice(999999999)|list }}".into(),
        "{{ range(999999999)|list }}".into(),
        "{{ 10 ** 10 ** 10 }}".into(),
    ];
    let uses =
        ["ns.x", "ns.x ~ 'a'", "ns.x|string", "ns.x == ns.y", "ns.x in [ns.y]", "[ns.x, ns.y]|sort", "ns.x|tojson"];
    hostile.extend(uses.map(twice));
    for text in hostile {
        // A stack as small as a thread of a server has.
        let ended = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
            let line = match ChatTemplate::new(ChatSource::of_text(&text)) {
                Ok(template) => template.render(&messages(HELLO)).map(|prompt| prompt.len()).unwrap_err().to_string(),
                Err(error) => error.to_string(),
            };
            assert!(!line.contains('\n'), "{line}");
        });
        ended.unwrap().join().unwrap();
    }
}

#[test]
fn templates_that_nest_are_compiled_or_refused() {
    let deep = |open: &str, close: &str| format!("{{{{ {}1{} }}}}", open.repeat(400), close.repeat(400));
    for text in [
        deep("(", ")"),
        deep("[", "]"),
        deep("not ", ""),
        deep("-", ""),
        deep("", "+1"),
        deep("", "|string"),
        deep("", ".a"),
        deep("", " if a else 1"),
        "{% if a %}".repeat(10_000),
        "{% if a %}1".to_owned() + &"{% elif a %}2".repeat(10_000) + "{% endif %}",
        "{% for a in b %}".repeat(1_000) + &"{% endfor %}".repeat(1_000),
        "{% if a %}{% else %}".repeat(2_000) + &"{% endif %}".repeat(2_000),
    ] {
        let end = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
            if let Ok(template) = ChatTemplate::new(ChatSource::of_text(&text)) {
                let _ = template.render(&messages(HELLO));
            }
        });
        end.unwrap().join().unwrap();
    }
}

#[test]
fn parts_become_a_text_unless_the_template_takes_parts() {
    let parts =
        r#"[{"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "input_text", "text": "Two."}]}]"#;
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let loops = [
        "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for p in m['content'] if p.text %}<{{ p['text'] }}>{% endfor %}{% endfor %}",
        "{% for m in messages %}{% set c = m.content %}{% for p in c %}<{{ p.text }}>{% endfor %}{% endfor %}",
        "{% macro show(c) %}{% for p in c %}<{{ p.text }}>{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    ];
    assert_eq!(template(plain).render_openai(&messages(parts)).unwrap(), "One.\nTwo.");
    for text in loops {
        assert_eq!(template(text).render_openai(&messages(parts)).unwrap(), "<One.><Two.>", "{text}");
    }
    let words = "{% for m in messages %}{% for w in m.content.split() %}{{ w }},{% endfor %}{% endfor %}";
    assert_eq!(template(words).render_openai(&messages(parts)).unwrap(), "One.,Two.,");
    for (content, words) in [
        (
            r#"[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]"#,
            "messages[0].content[1] is of type 'image_url'",
        ),
        (r#"[{"type": "text"}]"#, "messages[0].content[0] has no text"),
        (r#"[7]"#, "messages[0].content[0] has no type"),
        (r#"7"#, "messages[0].content is a number"),
    ] {
        let conversation = messages(&format!(r#"[{{"role": "user", "content": {content}}}]"#));
        let error = template(plain).render_openai(&conversation).unwrap_err();
        assert!(error.is_of_the_conversation() && error.to_string().starts_with(words), "{error}");
    }
}

#[test]
fn arguments_of_tool_calls_are_parsed() {
    let show =
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    let call = |arguments: &str| {
        messages(&format!(
            r#"[{{"role": "assistant", "content": null, "tool_calls": [{{"type": "function", "function": {{"name": "f"{arguments}}}}}]}}]"#
        ))
    };
    for (arguments, printed) in [
        (r#", "arguments": "{\"z\": 1, \"a\": [true, null]}""#, r#"{"z": 1, "a": [true, null]}"#),
        (r#", "arguments": {"z": 1, "a": 2}"#, r#"{"z": 1, "a": 2}"#),
        (r#", "arguments": """#, "{}"),
        (r#", "arguments": null"#, "{}"),
        ("", "{}"),
    ] {
        assert_eq!(template(show).render_openai(&call(arguments)).unwrap(), printed, "{arguments}");
    }
    for arguments in [r#", "arguments": "{""#, r#", "arguments": "[1]""#] {
        let error = template(show).render_openai(&call(arguments)).unwrap_err();
        let line = error.to_string();
        assert!(
            error.is_of_the_conversation() && line.starts_with("messages[0].tool_calls[0].function.arguments is"),
            "{line}"
        );
    }
}

#[test]
fn the_template_for_tools_is_used_with_tools() {
    let named = |names: &[(&str, &str)]| {
        let templates = names.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        ChatTemplate::new(ChatSource { templates, tokens: Vec::new() })
    };
    let both = named(&[("rag", "{{"), ("tool_use", "tools"), ("default", "plain")]).unwrap();
    let with_tools = Conversation { tools: Some(Vec::new()), ..messages(HELLO) };
    assert_eq!(both.render(&messages(HELLO)).unwrap(), "plain");
    assert_eq!(both.render(&with_tools).unwrap(), "tools");
    let one = named(&[("default", "plain")]).unwrap();
    assert_eq!(one.render(&with_tools).unwrap(), "plain");
    let line = named(&[("rag", "a")]).unwrap_err().to_string();
    assert!(line.contains("templates named rag"), "{line}");
    let line = named(&[("default", "a\n{% if %}")]).unwrap_err().to_string();
    assert!(line.starts_with("the chat template (default) cannot be used: line 2: syntax error"), "{line}");
}
