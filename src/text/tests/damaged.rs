//! Damaged `tokenizer.json`: whatever is wrong with a file, it is refused in one line, or its tokenizer answers each text.
//!
//! Made files of all kinds of models and stages are damaged in seeded ways, as bytes and as JSON with wrong contents. `TRUNKLINE_SEEDS=N` damages
//! each file N times instead of the few times of the gate.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use trunkline_text::{Tokenizer, TokenizerError};

/// Damages of each file in the gate.
const DAMAGES: u64 = 400;
/// Memory of the whole test, at most, MiB: files have some kilobytes, texts less than one.
const MEMORY_MIB_MAX: u64 = 300;

const TEXTS: [&str; 6] = [
    "The quick (brown) fox, 1234 times; it's n\u{E4}ive.",
    "\u{6771}\u{4EAC}\u{3068}\u{FF21}\u{3000}\u{1F469}\u{200D}\u{1F680} \u{B4}",
    "<s> [CLS] a b</s>  \n\t ",
    "zz##zz \u{2581}\u{2581} \u{120}a \u{301}\u{301}",
    "",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// Types of stages, of which some belong to several.
const TYPES: [&str; 42] = [
    "Sequence",
    "BertNormalizer",
    "Strip",
    "StripAccents",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Lowercase",
    "Nmt",
    "Precompiled",
    "Replace",
    "Prepend",
    "ByteLevel",
    "BertPreTokenizer",
    "Delimiter",
    "Metaspace",
    "Whitespace",
    "WhitespaceSplit",
    "CharDelimiterSplit",
    "Split",
    "Punctuation",
    "Digits",
    "UnicodeScripts",
    "FixedLength",
    "BertProcessing",
    "RobertaProcessing",
    "TemplateProcessing",
    "BPEDecoder",
    "WordPiece",
    "CTC",
    "Fuse",
    "ByteFallback",
    "BPE",
    "Unigram",
    "WordLevel",
    "Right",
    "LongestFirst",
    "BatchLongest",
    "Isolated",
    "always",
    "never",
];

/// Numbers in a row that seem drawn (splitmix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn letters(names: &[&str]) -> Map<String, Value> {
    let names = names.iter().map(|name| (*name).to_owned()).chain(('a'..='z').map(String::from));
    names.enumerate().map(|(id, name)| (name, json!(id))).collect()
}

fn special(id: u32, content: &str) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
    })
}

/// Files with the models and stages that tokenizers are made of.
fn files() -> [Value; 5] {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let regex =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let template = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    });
    // A trie of 256 empty nodes, and no replacements.
    let charsmap = format!("AAQA{}AAA=", "AAAA".repeat(341));
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let metaspace = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    [
        json!({
            "version": "1.0", "truncation": {"direction": "Right", "max_length": 64, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"},
            "added_tokens": [special(0, "<s>"), special(40, "</s>")], "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [regex(r"\p{N}{1,3}| ?\p{L}+|\s+(?!\S)"), byte_level]},
            "post_processor": {"type": "Sequence", "processors": [byte_level, template]}, "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
                "vocab": letters(&["<s>", "\u{120}", "ab", "abc"]), "merges": [["a", "b"], ["ab", "c"]],
            },
        }),
        json!({
            "version": "1.0", "added_tokens": [special(0, "<unk>")],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}, replace(" ", "\u{2581}")]},
            "post_processor": template,
            "decoder": {"type": "Sequence", "decoders": [
                replace("\u{2581}", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {
                "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                "vocab": letters(&["<unk>", "<s>", "\u{2581}", "<0x41>", "\u{2581}a"]), "merges": ["\u{2581} a"],
            },
        }),
        json!({
            "version": "1.0", "added_tokens": [special(0, "[UNK]"), special(1, "[CLS]"), special(2, "[SEP]")],
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
            "model": {
                "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                "vocab": letters(&["[UNK]", "[CLS]", "[SEP]", "##a", "##b", "the"]),
            },
        }),
        json!({
            "version": "1.0", "added_tokens": [special(0, "<unk>"), special(1, "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": charsmap}, {"type": "Nmt"}, {"type": "NFKD"}, {"type": "StripAccents"},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            ]},
            "pre_tokenizer": metaspace,
            "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<unk>", 0], "trim_offsets": true, "add_prefix_space": false},
            "decoder": {"type": "Sequence", "decoders": [metaspace, {"type": "Strip", "content": "a", "start": 1, "stop": 0}]},
            "model": {
                "type": "Unigram", "unk_id": 0, "byte_fallback": false,
                "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["\u{2581}", -2.0], ["a", -3.0], ["b", -3.5], ["\u{2581}a", -1.5], ["ab", -2.5]],
            },
        }),
        json!({
            "version": "1.0", "added_tokens": [special(0, "<s>")],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Strip", "strip_left": true, "strip_right": true}, {"type": "Lowercase"}, {"type": "ByteLevel"},
            ]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}, {"type": "Digits", "individual_digits": true},
                {"type": "UnicodeScripts"}, {"type": "FixedLength", "length": 5}, {"type": "CharDelimiterSplit", "delimiter": "-"},
            ]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}, {"type": "BPEDecoder", "suffix": "</w>"},
            ]},
            "model": {"type": "WordLevel", "unk_token": "<s>", "vocab": letters(&["<s>", "the", "fox"])},
        }),
    ]
}

/// Returns a pointer to each value of a file.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(i, value)| places(value, &format!("{at}/{i}"), found));
        }
        Value::Object(values) => values.iter().for_each(|(key, value)| {
            places(value, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found);
        }),
        _ => {}
    }
}

/// Returns a place to damage: a stage as often as the vocabulary, which has the most places.
fn place(file: &Value, draws: &mut Draws) -> String {
    let mut all = Vec::new();
    places(file, "", &mut all);
    let stages = ["/normalizer", "/pre_tokenizer", "/post_processor", "/decoder", "/model", "/added_tokens", ""];
    let stage = stages[draws.below(stages.len())];
    all.retain(|at| at.starts_with(stage) && (stage.is_empty() || !at.starts_with("/model/vocab/")));
    if all.is_empty() { String::new() } else { all.swap_remove(draws.below(all.len())) }
}

/// Puts a wrong content in a place: mostly one of the same type, as others are refused early.
fn spoil(file: &mut Value, draws: &mut Draws) {
    let other = file.pointer(&place(file, draws)).cloned().unwrap_or_default();
    let at = place(file, draws);
    let Some(value) = file.pointer_mut(&at) else { return };
    let texts = ["", "zz", "\u{E9}\u{6771}", " ", "##", "A", "$A", "<s>"];
    let wrong = [
        json!(null),
        json!(true),
        json!(""),
        json!("a".repeat(300)),
        json!([]),
        json!({}),
        json!([[]]),
        json!(["zz", 7]),
        json!({"String": ""}),
        json!({"Regex": "(?=a)*"}),
        json!({"Regex": ""}),
        json!(1e308),
        other,
    ];
    let numbers = [0, 1, 2, 40, 1000, 4_000_000_000, u64::MAX];
    *value = match (draws.below(8), &mut *value) {
        (0, _) => wrong[draws.below(wrong.len())].clone(),
        (1, Value::Object(values)) if !values.is_empty() => {
            let key = values.keys().nth(draws.below(values.len())).cloned().unwrap_or_default();
            values.remove(&key);
            value.take()
        }
        (1..=3, Value::String(_)) => json!(TYPES[draws.below(TYPES.len())]),
        (_, Value::String(_)) => json!(texts[draws.below(texts.len())]),
        (_, Value::Number(_)) => json!(numbers[draws.below(numbers.len())]),
        (_, Value::Bool(is)) => json!(!*is),
        (_, Value::Array(values)) if !values.is_empty() => {
            let i = draws.below(values.len());
            let gone = values.remove(i);
            match draws.below(3) {
                0 => {}
                1 => values.extend([gone.clone(), gone]),
                _ => values.insert(draws.below(values.len() + 1), other_or(gone, draws)),
            }
            value.take()
        }
        (2, _) => json!({"type": TYPES[draws.below(TYPES.len())]}),
        (_, Value::Object(values)) if values.contains_key("type") => {
            values.insert("type".to_owned(), json!(TYPES[draws.below(TYPES.len())]));
            value.take()
        }
        (3, _) => wrong[draws.below(wrong.len())].clone(),
        _ => value.take(),
    };
}

/// Returns a step without its settings at times, or the step.
fn other_or(step: Value, draws: &mut Draws) -> Value {
    if draws.below(2) == 0 { json!({"type": TYPES[draws.below(TYPES.len())]}) } else { step }
}

/// Damages the bytes of a file.
fn damage(bytes: &mut Vec<u8>, draws: &mut Draws) {
    let (at, n) = (draws.below(bytes.len()), draws.below(20));
    let end = (at + n).min(bytes.len());
    match draws.below(4) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << draws.below(8),
        2 => drop(bytes.drain(at..end)),
        _ => bytes.extend_from_within(at..end),
    }
}

/// Returns a file's text with one to three faults.
fn damaged(file: &Value, seed: u64) -> Vec<u8> {
    let mut draws = Draws(seed);
    let (mut file, is_bytes) = (file.clone(), draws.below(8) == 0);
    let faults = 1 + draws.below(6) / 4;
    if !is_bytes {
        (0..faults).for_each(|_| spoil(&mut file, &mut draws));
    }
    let mut bytes = file.to_string().into_bytes();
    if is_bytes {
        (0..faults).for_each(|_| damage(&mut bytes, &mut draws));
    }
    bytes
}

/// Checks all that is done with a tokenizer. Returns the text at which the library panicked.
fn use_it(tokenizer: &Tokenizer) -> Result<(), String> {
    let vocab = tokenizer.vocab_size();
    assert!(tokenizer.tokens_beyond(vocab) == 0);
    for text in TEXTS {
        for special in [false, true] {
            let ids = match tokenizer.encode_with(text, special) {
                Ok(ids) => ids,
                Err(TokenizerError::Panicked(why)) => return Err(format!("{text:?}: {why}")),
                Err(error) => {
                    assert!(!error.to_string().contains('\n'), "{error}");
                    continue;
                }
            };
            tokenizer.decode(&ids);
            for skip in [false, true] {
                let mut stream = tokenizer.detokenizer(skip);
                for id in ids.iter().copied().chain([0, vocab - 1, vocab, u32::MAX]) {
                    stream.left_out(id);
                    stream.push(id);
                }
                stream.finish();
                stream.check().map_err(|why| format!("{text:?}: {why}"))?;
            }
        }
    }
    Ok(())
}

/// Most memory that the process had, MiB.
fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() >> 10
}

#[test]
fn damaged_files_are_refused_in_one_line_or_answer_each_text() {
    let n = std::env::var("TRUNKLINE_SEEDS").map_or(DAMAGES, |n| n.parse().expect("TRUNKLINE_SEEDS is a number"));
    let (mut loaded, mut refused, mut caught, mut late) = (0, 0, 0, String::new());
    for (kind, file) in files().iter().enumerate() {
        let whole = Tokenizer::from_json("whole", file.to_string().as_bytes());
        assert_eq!(use_it(&whole.unwrap_or_else(|error| panic!("{kind}: {error}"))), Ok(()), "{kind}");
        for seed in 0..n {
            let before = trunkline_foreign::panics();
            match Tokenizer::from_json("model", &damaged(file, seed)) {
                Err(error) => {
                    let line = error.to_string();
                    assert!(
                        !line.contains('\n') && line.starts_with("model/tokenizer.json"),
                        "{kind} {seed}: {line:?}"
                    );
                    refused += 1;
                    caught += u64::from(trunkline_foreign::panics() > before);
                }
                Ok(tokenizer) => {
                    loaded += 1;
                    if let Err(text) = use_it(&tokenizer) {
                        writeln!(late, "{kind} {seed}: {text}").unwrap();
                    }
                }
            }
        }
    }
    println!("{loaded} loaded, {refused} refused, {caught} of them at a panic; {} MiB", memory_mib());
    assert_eq!(late, "", "files that panic at texts, and not at load");
    assert!(loaded > n && caught > n / 100, "the damage is of no use");
    assert!(memory_mib() < MEMORY_MIB_MAX, "{} MiB", memory_mib());
}

/// The two files of the report that first showed the fault.
#[test]
fn a_cut_decoder_and_a_template_without_its_token_are_refused_with_the_reason() {
    let [mut file, ..] = files();
    let text = file.to_string();
    let cut = text.find(r#""decoder":{"#).unwrap() + r#""decoder":{"ty"#.len();
    let refused = |json: &[u8]| Tokenizer::from_json("model", json).err().expect("refused").to_string();
    let line = refused(&text.as_bytes()[..cut]);
    assert!(line.contains("EOF while parsing"), "{line}");
    file["post_processor"] = json!({
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "zz", "type_id": 0}}], "pair": [], "special_tokens": {},
    });
    let line = refused(file.to_string().as_bytes());
    assert!(line.contains("it fails on the text") && line.contains("processors/template.rs:"), "{line}");
}
