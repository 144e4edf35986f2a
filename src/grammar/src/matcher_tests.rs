//! What a compiled grammar lets through, what is refused, and what hostile grammars cost.

use trunkline_port::{Grammar, GrammarKind, Token};
use trunkline_text::Tokenizer;

use crate::{Grammars, Matcher};

const END: Token = 257;

fn grammars() -> Grammars {
    Grammars::new(Tokenizer::bytes(), 300, vec![END])
}

fn matcher(kind: GrammarKind, text: &str) -> Result<Matcher, String> {
    let compiled = grammars().compile(&Grammar::new(kind, text)).map_err(|error| error.to_string())?;
    Ok(compiled.matcher())
}

/// Returns `true` if the text is an answer with the structure: each byte may follow, and at the end the end may.
fn fits(kind: GrammarKind, structure: &str, text: &str) -> bool {
    let mut matcher = matcher(kind, structure).unwrap();
    let goes_on = text.bytes().all(|byte| {
        let token = Token::from(byte);
        matcher.allowed().unwrap().has(token) && matcher.push(token).is_ok()
    });
    goes_on && matcher.allowed().unwrap().has(END)
}

/// The grammars of the HTTP door for answers whose calls are strict.
#[test]
fn text_is_free_until_a_call_begins() {
    let call = r##"{"anyOf":[{"type":"object","properties":{"name":{"const":"f"},"arguments":{"$ref":"#/$defs/0"}},"required":["name","arguments"],"additionalProperties":false}],"$defs":{"0":{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false}}}"##;
    let hermes = format!(
        "start: call* TEXT\ncall: head SPACE? object SPACE? \"</tool_call>\"\nhead[lazy]: TEXT \"<tool_call>\"\nobject: %json {call}\n\
        SPACE: /[ \\t\\r\\n]{{1,8}}/\nTEXT: /(\\n|.)*/\n"
    );
    let good = r#"{"name": "f", "arguments": {"a": 1}}"#;
    let wrong = good.replace('1', "true");
    for (text, is_one) in [
        (String::new(), true),
        ("Let me think.\nIt is <tool_cal".into(), true),
        (format!("Let me.\n<tool_call>\n{good}\n</tool_call>"), true),
        (format!("<tool_call>{good}</tool_call> and\n<tool_call>{good}</tool_call> so \u{E9}"), true),
        (format!("<tool_call>{wrong}</tool_call>"), false),
        (format!("<tool_call>{}</tool_call>", good.replace("\"f\"", "\"g\"")), false),
        (format!("a <tool_call>{good}</tool_call> b <tool_call>{wrong}</tool_call>"), false),
        ("<tool_call>".into(), false),
        ("<tool_call> is what begins a call".into(), false),
    ] {
        assert_eq!(fits(GrammarKind::Lark, &hermes, &text), is_one, "{text}");
    }
    let llama = format!(
        "start: LEAD? | SPACE? tag? call (SPACE? \";\" SPACE? call)*\ntag: \"<|python_tag|>\" SPACE?\ncall: %json {}\n\
        LEAD: /[ \\t\\r\\n]*[^{{ \\t\\r\\n](\\n|.)*/\nSPACE: /[ \\t\\r\\n]{{1,8}}/\nTEXT: /(\\n|.)*/\n",
        call.replace("arguments", "parameters")
    );
    let (good, wrong) = (good.replace("arguments", "parameters"), wrong.replace("arguments", "parameters"));
    for (text, is_one) in [
        (String::new(), true),
        ("It is {".into(), true),
        (format!("{good}; {good}"), true),
        (format!("\n<|python_tag|>{good}"), true),
        (wrong.clone(), false),
        (format!("{good};{wrong}"), false),
        (format!("{good} and more"), false),
    ] {
        assert_eq!(fits(GrammarKind::Lark, &llama, &text), is_one, "{text}");
    }
}

#[test]
fn calls_of_mistral_are_a_list_or_names_with_arguments() {
    let arguments = r#"{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false}"#;
    let call = format!(
        r##"{{"anyOf":[{{"type":"object","properties":{{"name":{{"const":"f"}},"arguments":{{"$ref":"#/$defs/0"}}}},"required":["name","arguments"],"additionalProperties":false}}],"$defs":{{"0":{arguments}}}}}"##
    );
    let grammar = format!(
        "start: TEXT | head SPACE? (list | call (SPACE? \"[TOOL_CALLS]\" SPACE? call)*) SPACE?\nhead[lazy]: TEXT \"[TOOL_CALLS]\"\n\
        list: \"[\" SPACE? object (SPACE? \",\" SPACE? object)* SPACE? \"]\"\nobject: %json {call}\ncall: call0 | call1\nargs: \"[ARGS]\"\n\
        call0: \"f\" args? SPACE? object0\nobject0: %json {arguments}\ncall1: \"f2\" args? SPACE? object1\nobject1: %json {{\"type\":\"object\"}}\n\
        SPACE: /[ \\t\\r\\n]{{1,8}}/\nTEXT: /(\\n|.)*/\n"
    );
    for (text, is_one) in [
        ("", true),
        ("A list: [1]", true),
        (r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]"#, true),
        (r#"So: [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {}}]"#, true),
        (r#"[TOOL_CALLS]f{"a": 1}"#, true),
        (r#"[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f2[ARGS] {"a": true}"#, true),
        (r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": true}}]"#, false),
        (r#"[TOOL_CALLS][{"name": "g", "arguments": {}}]"#, false),
        (r#"[TOOL_CALLS]f{"a": true}"#, false),
        (r#"[TOOL_CALLS]f2{}[TOOL_CALLS]f{"b": 1}"#, false),
        ("[TOOL_CALLS]", false),
        ("[TOOL_CALLS][]", false),
        ("[TOOL_CALLS] is what begins a call", false),
    ] {
        assert_eq!(fits(GrammarKind::Lark, &grammar, text), is_one, "{text}");
    }
}

#[test]
fn answers_fit_their_grammar_whole_and_others_do_not() {
    use GrammarKind::{JsonSchema, Lark, Regex};
    let person = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"], "additionalProperties": false}"#;
    let list = "start: \"[\" (INT (\",\" INT)*)? \"]\"\n%import common.INT";
    let sql = r#"root ::= select-list where?
select-list ::= "SELECT " column (", " column)*
column ::= [a-z_]{1,3} | "\"" [^"\\]+ "\""
where ::= " WHERE " column " = " [0-9]+ # the end
"#;
    for (kind, structure, good, bad) in [
        (
            Lark,
            sql,
            &["SELECT a", "SELECT a_b, \"\u{E9}-\" WHERE c = 10"][..],
            &["SELECT", "SELECT abcd", "SELECT a WHERE b"][..],
        ),
        (Regex, "a+b?", &["a", "aab"], &["", "b", "ab ", "abb"]),
        (Regex, "\u{E9}|\u{1F600}", &["\u{E9}", "\u{1F600}"], &["e", "\u{E8}"]),
        (Lark, list, &["[]", "[1,22]"], &["[", "[1,]", "1"]),
        (
            JsonSchema,
            person,
            &[r#"{"name":"a"}"#, "{\"name\": \"\\n\",\n  \"age\": -7}", "{ \"name\" : \"\u{1F600}\" }"],
            &[
                "{}",
                r#"{"name":"a"}x"#,
                r#"{"name":"a","age":1.5}"#,
                r#"{"name":"a","b":1}"#,
                r#"{"name":"a""#,
                " {\"name\":\"a\"}",
            ],
        ),
        (JsonSchema, "true", &["null", "[1, {\"a\": true}]"], &["nul", "[1,]"]),
    ] {
        for text in good {
            assert!(fits(kind, structure, text), "{structure}: {text}");
        }
        for text in bad {
            assert!(!fits(kind, structure, text), "{structure}: {text}");
        }
    }
    // White space has an end, so that no answer is white space alone.
    let spaced = |n: usize| format!("{{\n{}\"name\":\"a\"}}", " ".repeat(n));
    assert!(fits(JsonSchema, person, &spaced(20)) && !fits(JsonSchema, person, &spaced(21)));
}

#[test]
fn behind_the_end_of_a_grammar_only_the_end_follows() {
    let mut matcher = matcher(GrammarKind::Regex, "ab").unwrap();
    for token in [97, 98] {
        assert_eq!(matcher.allowed().unwrap().tokens().collect::<Vec<_>>(), [token]);
        matcher.push(token).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(matcher.allowed().unwrap().tokens().collect::<Vec<_>>(), [END]);
        matcher.push(END).unwrap();
    }
    // Special tokens are no text, whatever they are called: 256 is <bos>.
    let mut named = self::matcher(GrammarKind::Regex, "<bos>|x").unwrap();
    assert_eq!(named.allowed().unwrap().tokens().collect::<Vec<_>>(), [u32::from(b'<'), u32::from(b'x')]);
}

#[test]
fn a_matcher_is_at_the_same_place_however_it_came_there() {
    let grammars = grammars();
    let schema = r#"{"type": "array", "items": {"type": "string", "maxLength": 3}}"#;
    let compiled = grammars.compile(&Grammar::new(GrammarKind::JsonSchema, schema)).unwrap();
    let text = br#"["ab", "c", "\n"]"#.map(Token::from);
    let mut one = compiled.matcher();
    assert_eq!(one.allowed().unwrap(), *compiled.first());
    for n in 0..text.len() {
        one.allowed().unwrap();
        one.push(text[n]).unwrap();
        // Another one takes in the tokens at once, without a mask in between.
        let again = grammars.compile(&Grammar::new(GrammarKind::JsonSchema, schema)).unwrap();
        let mut other = again.matcher();
        text[..=n].iter().for_each(|token| other.push(*token).unwrap());
        assert_eq!(other.allowed(), one.allowed(), "behind {n}");
    }
    // A token that does not go with it, and one that the vocabulary does not have.
    for wrong in [u32::from(b'x'), 299, 300, u32::MAX] {
        let mut matcher = compiled.matcher();
        assert!(matcher.push(wrong).is_err() && matcher.allowed().is_err(), "{wrong}");
    }
}

#[test]
fn compiled_grammars_are_kept_and_the_oldest_leaves_first() {
    let grammars = grammars();
    let regex = |n: usize| Grammar::new(GrammarKind::Regex, format!("a{{{}}}", n + 1));
    for n in 0..40 {
        grammars.compile(&regex(n)).unwrap();
        assert!(grammars.kept(&regex(0)).is_some(), "it is in use");
    }
    let kept: Vec<usize> = (0..40).filter(|n| grammars.kept(&regex(*n)).is_some()).collect();
    assert_eq!(kept.len(), 32);
    assert_eq!((kept[0], kept[1]), (0, 9));
    assert!(grammars.kept(&Grammar::new(GrammarKind::Lark, "a{1}")).is_none(), "another language");
}

#[test]
fn vocabularies_without_ends_or_without_texts_are_refused() {
    let of = |tokenizer: Tokenizer, ends: Vec<Token>| {
        let grammars = Grammars::new(tokenizer, 258, ends);
        grammars.compile(&Grammar::new(GrammarKind::Regex, "a")).map(drop).unwrap_err().to_string()
    };
    assert!(of(Tokenizer::bytes(), vec![]).starts_with("this model has no token that ends an answer"));
    assert!(of(Tokenizer::bytes(), vec![300]).starts_with("this model has no token that ends an answer"));
    let words = br###"{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "a": 1}}}"###;
    let words = Tokenizer::from_json("words", words).unwrap();
    assert!(of(words, vec![1]).starts_with("the text of this model's tokens depends on their neighbours"));
}

/// Grammars that would take for ever, all memory, or the program with them.
#[test]
fn hostile_grammars_end_in_one_line() {
    use GrammarKind::{JsonSchema, Lark, Regex};
    let list = |n: usize, each: fn(usize) -> String| (0..n).map(each).collect::<Vec<_>>();
    let nested = |open: &str, close: &str, n: usize| format!("{}{}{}", open.repeat(n), "\"a\"", close.repeat(n));
    let cases = [
        (Regex, "(a+)+$b".to_owned()),
        (Regex, "(?=a)b".into()),
        (Regex, "(".repeat(30_000) + &")".repeat(30_000)),
        (Regex, "[^\\s\\S]".into()),
        (Regex, "a{1000000000000}".into()),
        (JsonSchema, "[".repeat(30_000)),
        (JsonSchema, r#"{"type": "integer", "multipleOf": 1000003}"#.into()),
        (JsonSchema, format!(r#"{{"allOf": [{}]}}"#, list(24, |i| format!(r#"{{"pattern": ".*{i}.*"}}"#)).join(","))),
        (JsonSchema, format!(r#"{{"allOf": [{}]}}"#, list(30, |i| format!(r#"{{"anyOf": [{{"properties": {{"a{i}": {{"const": 1}}}}}}, {{"properties": {{"a{i}": {{"const": 2}}}}}}]}}"#)).join(","))),
        (JsonSchema, r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##.into()),
        (JsonSchema, r#"{"$ref": "https://example.com/x.json"}"#.into()),
        (JsonSchema, r#"{"not": {"type": "string"}}"#.into()),
        (JsonSchema, format!(r#"{{"type": {{"{}": 1}}}}"#, "\u{E9}".repeat(80))),
        (JsonSchema, "3".into()),
        (Lark, nested("start: (", ")", 20_000)),
        (Lark, format!("start: {}", nested("(", ")", 20_000))),
        (Lark, format!("start: T0\n{}T200: \"a\"\n", list(200, |i| format!("T{i}: T{n} T{n}\n", n = i + 1)).concat())),
        (Lark, format!("start: T\nT: {}", list(500, |i| format!("/.*{i}.*/")).join(" & "))),
        (Lark, format!("start: {}", "%json {} ".repeat(129))),
        (Lark, "start: %json {\"not\": {}}".into()),
        (Lark, "start: <[9999999]> @x".into()),
        (Lark, "start: other".into()),
        (Lark, String::from("\u{0}\u{FFFD}")),
    ];
    for (kind, text) in cases {
        let line = matcher(kind, &text).err().unwrap_or_else(|| panic!("accepted: {}", &text[..text.len().min(100)]));
        assert!(!line.contains('\n') && line.chars().count() < 400, "{line}");
    }
}

/// These are compiled, and some cannot be followed to their end: then they say so.
#[test]
fn large_grammars_are_followed_or_end_in_one_line() {
    use GrammarKind::{JsonSchema, Lark, Regex};
    let cases = [
        (Regex, "(a{1000}){1000}"),
        (Regex, "(((a{0,100}){0,100}){0,100}){0,100}"),
        (Regex, ".*a.{1000}"),
        (Regex, "(.*a.{12}b.{14}c){10}"),
        (Regex, "(a|a)*(a|a)*(a|aa)*(.*a){20}"),
        (JsonSchema, r#"{"type": "string", "pattern": "^(.*a.*){50}$", "maxLength": 1000}"#),
        (JsonSchema, r#"{"type": "string", "minLength": 1000000}"#),
        (JsonSchema, r#"{"type": "array", "items": {"type": "object"}, "minItems": 1000000}"#),
        (JsonSchema, r#"{"type": "object", "minProperties": 100000}"#),
        (Lark, "start: ((((\"a\"{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"),
        (Lark, "start: start start start | \"a\" |"),
        (Lark, "start: \"a\"{2147483646,2147483647}"),
    ];
    for (kind, text) in cases {
        let mut matcher = matcher(kind, text).unwrap();
        let mut state = 7_u64;
        for _ in 0..60 {
            let allowed = match matcher.allowed() {
                Ok(allowed) => allowed.tokens().collect::<Vec<_>>(),
                Err(stuck) => {
                    assert!(!stuck.to_string().contains('\n'), "{stuck}");
                    break;
                }
            };
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if matcher.push(allowed[(state >> 33) as usize % allowed.len()]).is_err() {
                break;
            }
        }
    }
}
