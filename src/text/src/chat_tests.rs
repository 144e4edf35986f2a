//! Chat templates in folders and in GGUF files.

use serde_json::json;

use super::*;

fn read(files: &[(&str, Value)]) -> Result<Option<ChatSource>, FactsError> {
    let bytes: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(name, value)| (*name, value.as_str().map_or_else(|| value.to_string(), str::to_owned).into_bytes()))
        .collect();
    let files: Vec<(&str, &[u8])> = bytes.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    ChatSource::of_files(Files::Memory("model", &files))
}

#[test]
fn the_first_file_with_a_template_counts() {
    let config = (CONFIG, json!({ "chat_template": "config", "bos_token": "<s>" }));
    let json = ("chat_template.json", json!({ "chat_template": "json" }));
    let text = ("chat_template.jinja", json!("text\n"));
    let default = |files: &[(&str, Value)]| read(files).unwrap().unwrap().templates[0].1.clone();
    assert_eq!(default(&[config.clone(), json.clone(), text]), "text\n");
    assert_eq!(default(&[config.clone(), json]), "json");
    assert_eq!(default(&[config]), "config");
    assert_eq!(read(&[(CONFIG, json!({ "chat_template": null }))]).unwrap(), None);
    assert_eq!(read(&[]).unwrap(), None);
}

#[test]
fn templates_have_names_and_tokens_have_roles() {
    let config = json!({
        "chat_template": [{ "name": "default", "template": "a" }, { "name": "tool_use", "template": "b" }],
        "bos_token": "<s>",
        "eos_token": { "__type": "AddedToken", "content": "</s>", "lstrip": false },
        "pad_token": null,
        "image_token": "<image>",
        "added_tokens_decoder": {},
    });
    let roles = json!({ "bos_token": "ignored" });
    let source = read(&[(CONFIG, config), ("special_tokens_map.json", roles)]).unwrap().unwrap();
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    };
    assert_eq!(source.templates, pairs(&[("default", "a"), ("tool_use", "b")]));
    assert_eq!(source.tokens, pairs(&[("bos_token", "<s>"), ("eos_token", "</s>"), ("image_token", "<image>")]));
}

#[test]
fn a_malformed_template_is_named_by_its_file() {
    for template in [json!(7), json!([{ "name": "default" }]), json!(["a"])] {
        let line = read(&[(CONFIG, json!({ "chat_template": template }))]).unwrap_err().to_string();
        assert!(line.starts_with("model/tokenizer_config.json: chat_template must be a text"), "{line}");
    }
}
