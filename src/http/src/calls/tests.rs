//! Calls are found whatever the chunks, and nothing else is taken for one.

use proptest::prelude::*;

use super::*;

/// Reads a text in chunks that end at these bytes.
fn read(parser: ToolCallParser, text: &str, ends: &[usize]) -> (String, Vec<(String, String)>) {
    let (mut calls, mut found, mut from) = (Calls::new(parser), Found::default(), 0);
    for end in ends.iter().copied().chain([text.len()]) {
        if end > from && text.is_char_boundary(end) {
            calls.push(&text[from..end], &mut found);
            from = end;
        }
    }
    calls.finish(&mut found);
    (found.text, found.calls.into_iter().map(|call| (call.name, call.arguments)).collect())
}

fn whole(parser: ToolCallParser, text: &str) -> (String, Vec<(String, String)>) {
    read(parser, text, &[])
}

fn calls(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect()
}

#[test]
fn calls_are_found_in_each_form() {
    use ToolCallParser::{Hermes, Llama3Json, Mistral};
    let add = ("add", r#"{"a": 1, "b": [2]}"#);
    for (parser, text, content, expected) in [
        (
            Hermes,
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call>",
            "",
            vec![add],
        ),
        (
            Hermes,
            "Let me see.\n<tool_call>{\"arguments\": {}, \"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>\nDone",
            "Let me see.\n\nDone",
            vec![("f", "{}"), ("g", "{}")],
        ),
        // A model that stops at the end of the object.
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "", vec![("f", "{}")]),
        (
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"</tool_call>\\\"}\"}}</tool_call>",
            "",
            vec![("f", "{\"x\": \"</tool_call>\\\"}\"}")],
        ),
        (
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call>",
            "",
            vec![("f", "{\"x\": 1}")],
        ),
        (Llama3Json, "\n{\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": [2]}}", "", vec![add]),
        (
            Llama3Json,
            "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": null}",
            "",
            vec![("f", "{}"), ("g", "{}")],
        ),
        (
            Mistral,
            "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}, {\"name\": \"f\"}]",
            "",
            vec![add, ("f", "{}")],
        ),
        (Mistral, "Yes[TOOL_CALLS]add{\"a\": 1, \"b\": [2]}[TOOL_CALLS]f[ARGS]{}", "Yes", vec![add, ("f", "{}")]),
    ] {
        assert_eq!(whole(parser, text), (content.to_owned(), calls(&expected)), "{text}");
    }
}

#[test]
fn what_only_looks_like_a_call_stays_text() {
    use ToolCallParser::{Hermes, Llama3Json, Mistral};
    for (parser, text) in [
        (Hermes, "<tool_call"),
        (Hermes, "a <tool_call>b</tool_call> c"),
        (Hermes, "<tool_call>{\"name\": 1}</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"f\" \"arguments\": {}}</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {"),
        (Hermes, "<tool_call>{\"name\": \"f\"} and more </tool_call>"),
        (Hermes, " \n "),
        (Llama3Json, "{\"a\": 1}"),
        (Llama3Json, "Here: {\"name\": \"f\", \"parameters\": {}}"),
        (Llama3Json, "{\"name\": \"f\", \"parameters\""),
        (Llama3Json, "  {"),
        (Mistral, "[TOOL_CALLS]"),
        (Mistral, "[TOOL_CALLS][1, 2]"),
        (Mistral, "[TOOL_CALLS][]"),
        (Mistral, "[TOOL_CALLS]f(1)"),
        (Mistral, "[TOOL_CALLS]f[ARG]{}"),
        (Mistral, "[TOOL_CALLS]f{]}"),
        (Mistral, "[TOOL_CALLS][{\"name\": \"f\""),
    ] {
        assert_eq!(whole(parser, text), (text.to_owned(), Vec::new()), "{text}");
    }
    // A call behind what was none.
    let text = "<tool_call>no<tool_call>{\"name\": \"f\"}</tool_call>";
    assert_eq!(whole(Hermes, text), ("<tool_call>no".to_owned(), calls(&[("f", "{}")])));
}

#[test]
fn a_list_without_its_mark_is_read_too_and_half_a_call_stays_text() {
    let read = |text: &str| {
        let (mut reader, mut found) = (Calls::of_list(), Found::default());
        text.chars().for_each(|c| reader.push(c.encode_utf8(&mut [0; 4]), &mut found));
        reader.finish(&mut found);
        (found.text, found.calls.into_iter().map(|call| (call.name, call.arguments)).collect::<Vec<_>>())
    };
    let text = "[{\"name\": \"add\", \"parameters\": {\"a\": \"]}\"}},\n {\"name\": \"f\", \"parameters\": {}}]";
    assert_eq!(read(text), (String::new(), calls(&[("add", "{\"a\": \"]}\"}"), ("f", "{}")])));
    let half = "[{\"name\": \"add\", \"parameters\": {\"a\"";
    assert_eq!(read(half), (half.to_owned(), Vec::new()));
    let more = ",{\"name\": \"f\"";
    assert_eq!(read(&format!("[{{\"name\": \"f\", \"parameters\": {{}}}}{more}")).1, calls(&[("f", "{}")]));
}

#[test]
fn parsers_go_by_the_names_of_vllm() {
    assert_eq!("hermes".parse(), Ok(ToolCallParser::Hermes));
    assert!(
        "qwen".parse::<ToolCallParser>().unwrap_err().contains("there are hermes (Qwen too), llama3_json and mistral")
    );
}

/// Texts of pieces that calls have, in any order.
fn pieces() -> impl Strategy<Value = String> {
    let pieces = [
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        ":",
        "\"",
        "\\",
        "\n",
        " ",
        "f",
        "é",
        "<",
        "</",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"\"}}",
        "{\"name\": \"g\", \"parameters\": {}}",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..14).prop_map(|of| of.concat())
}

proptest! {
    #[test]
    fn the_chunks_have_no_effect(text in pieces(), ends in prop::collection::vec(0..200_usize, 0..12), parser in 0..3_usize) {
        let parser = NAMES[parser].1;
        let mut ends: Vec<usize> = ends.into_iter().filter(|end| *end < text.len()).collect();
        ends.sort_unstable();
        let each: Vec<usize> = (0..text.len()).collect();
        prop_assert_eq!(read(parser, &text, &ends), whole(parser, &text));
        prop_assert_eq!(read(parser, &text, &each), whole(parser, &text));
    }

    #[test]
    fn text_without_a_call_comes_back_whole_and_with_calls_no_letter_is_lost(text in pieces(), parser in 0..3_usize) {
        let (content, calls) = whole(NAMES[parser].1, &text);
        if calls.is_empty() {
            prop_assert_eq!(content, text);
        } else {
            // What is in no call is in the content.
            let in_calls: usize = calls.iter().map(|(name, arguments)| [&**name, arguments].concat().matches('é').count()).sum();
            prop_assert_eq!(content.matches('é').count() + in_calls, text.matches('é').count());
        }
    }
}
