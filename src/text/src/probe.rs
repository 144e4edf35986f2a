//! Texts that are tokenised and decoded when a tokenizer is read: a file that the library accepts may still panic at texts.

use std::sync::Arc;

use crate::codec::Codec;
use crate::detokenizer::decode_checked;
use crate::error::TokenizerError;
use crate::library::Fault;
use crate::parts::Parts;
use crate::shape;

/// Texts for each stage: none, blanks and lines, words and numbers with signs, letters of several bytes, of several characters and without
/// words, forms that normalizers take apart or drop, and names as SentencePiece and byte-level BPE write them.
const TEXTS: [&str; 10] = [
    "",
    " ",
    "a",
    "Hello, world! It's 12345 o'clock -- isn't it?",
    " \t two  spaces\r\n\n line ",
    "Z\u{FC}rich na\u{EF}ve e\u{301} \u{FB01} \u{1E9E}\u{130} \u{2126}",
    "\u{6771}\u{4EAC} \u{3053}\u{3093} \u{645}\u{631}\u{62D}\u{628}\u{627} \u{E2A}\u{E27}",
    "\u{1F600}\u{1F469}\u{200D}\u{1F680}\u{FE0F}",
    "\0\u{7}\u{AD}\u{200B}\u{FEFF}\u{FFFD}\u{E000}\u{A0}",
    "\u{2581}the \u{120}the ##ing <0x41> </s> [UNK]",
];
/// Letters of a word without an end.
const LONG: usize = 300;
/// Added tokens that are tried, at most: files with more have them all of one kind.
const ADDED_MAX: usize = 16;

/// Returns the codec if texts go to tokens and back.
pub(crate) fn run(codec: Codec) -> Result<Arc<Codec>, String> {
    let codec = Arc::new(codec);
    let added = codec.library.as_ref().map(|library| library.added(ADDED_MAX)).unwrap_or_default();
    let long = "ab".repeat(LONG / 2);
    let names: Vec<String> = added.iter().map(|name| format!("a {name} b")).collect();
    for text in TEXTS.into_iter().chain([long.as_str()]).chain(names.iter().map(String::as_str)) {
        for add_special_tokens in [false, true] {
            there_and_back(&codec, text, add_special_tokens)?;
        }
    }
    decode_each(&codec)?;
    Ok(codec)
}

/// Tokenises a text and decodes the tokens. A tokenizer may have no tokens for a text; it may not panic, nor have tokens of its own.
fn there_and_back(codec: &Arc<Codec>, text: &str, add_special_tokens: bool) -> Result<(), String> {
    let mut parts = Parts::new(Arc::clone(codec), text.to_owned(), add_special_tokens);
    loop {
        match parts.advance(usize::MAX) {
            Ok(true) => break,
            Ok(false) => {}
            Err(TokenizerError::Panicked(why)) => return Err(format!("it fails on the text {text:?}: {why}")),
            Err(_) => return Ok(()),
        }
    }
    let ids = parts.into_ids();
    if let Some(id) = ids.iter().find(|id| **id >= codec.vocab_size) {
        return Err(format!("it gives token {id} for the text {text:?}, and has {} tokens", codec.vocab_size));
    }
    if ids.len() > shape::grown_max(text.len()) {
        return Err(format!("it gives {} tokens for the text {text:?}", ids.len()));
    }
    decoded(codec, &ids).map_err(|why| format!("it fails on the tokens of the text {text:?}: {why}"))?;
    let failed = decode_checked(codec, &ids).1;
    failed.map_err(|why| format!("it fails on the tokens of the text {text:?}: {why}"))
}

/// Decodes each token by itself, if the library decodes.
fn decode_each(codec: &Codec) -> Result<(), String> {
    if codec.pieces.is_some() {
        return Ok(());
    }
    (0..codec.vocab_size)
        .try_for_each(|id| decoded(codec, &[id]).map_err(|why| format!("it fails on the token {id}: {why}")))
}

fn decoded(codec: &Codec, ids: &[u32]) -> Result<(), String> {
    let (Some(library), None) = (&codec.library, &codec.pieces) else { return Ok(()) };
    for skip_special in [false, true] {
        match library.decode(ids, skip_special) {
            Err(Fault::Panicked(why)) => return Err(why.to_string()),
            Err(Fault::Refused(_)) | Ok(_) => {}
        }
    }
    Ok(())
}
