//! Tokenizers whose texts may be cut into parts, and the special tokens around a text.
//!
//! [`crate::parts`] explains why the tokens of the parts are the tokens of the whole.

use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// Patterns of pre-tokenizers that end a match at every space between two ASCII letters, and depend on nothing behind the space:
/// GPT-2, Llama 3, Qwen 2, GPT-4o. Byte-level pre-tokenizers have the first built in.
pub(crate) const PATTERNS: [&str; 4] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];
/// Patterns that match numbers alone, and leave letters and spaces together.
pub(crate) const NUMBERS: [&str; 2] = [r"\p{N}{1,3}", r"\p{N}"];

/// Special tokens around a text, of a tokenizer whose texts may be cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
}

impl Around {
    /// Returns the special tokens around a text; `None` if texts must not be cut.
    pub(crate) fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let is_exact = is_bpe(tokenizer)
            && matches!(tokenizer.get_normalizer(), None | Some(NormalizerWrapper::NFC(_)))
            && tokenizer.get_pre_tokenizer().and_then(cuts_words).unwrap_or(false)
            && added_tokens_stand_alone(tokenizer);
        if !is_exact {
            return None;
        }
        let around = Self::by_trial(tokenizer, "a")?;
        (Self::by_trial(tokenizer, "b c")? == around).then_some(around)
    }

    /// Finds the special tokens around one text.
    fn by_trial(tokenizer: &tokenizers::Tokenizer, text: &str) -> Option<Self> {
        let plain = tokenizer.encode_fast(text, false).ok()?;
        let whole = tokenizer.encode_fast(text, true).ok()?;
        let (plain, whole) = (plain.get_ids(), whole.get_ids());
        if plain.is_empty() {
            return whole.is_empty().then(Self::default);
        }
        let at = whole.windows(plain.len()).position(|window| window == plain)?;
        Some(Self { before: whole[..at].to_vec(), after: whole[at + plain.len()..].to_vec() })
    }
}

/// Returns `true` for BPE that merges equal bytes equally.
fn is_bpe(tokenizer: &tokenizers::Tokenizer) -> bool {
    matches!(tokenizer.get_model(), ModelWrapper::BPE(bpe) if bpe.dropout.is_none())
}

/// Returns `true` if a pre-tokenizer cuts at every space between two letters, and `None` if it may cut differently in a part of a text.
fn cuts_words(pre_tokenizer: &PreTokenizerWrapper) -> Option<bool> {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(bytes) if !bytes.add_prefix_space => Some(bytes.use_regex),
        PreTokenizerWrapper::Digits(_) => Some(false),
        PreTokenizerWrapper::Split(split) if !split.invert && split.behavior == SplitDelimiterBehavior::Isolated => {
            match &split.pattern {
                SplitPattern::Regex(regex) if PATTERNS.contains(&regex.as_str()) => Some(true),
                SplitPattern::Regex(regex) if NUMBERS.contains(&regex.as_str()) => Some(false),
                _ => None,
            }
        }
        PreTokenizerWrapper::Sequence(sequence) => {
            let each: Option<Vec<bool>> = sequence.as_ref().iter().map(cuts_words).collect();
            Some(each?.contains(&true))
        }
        _ => None,
    }
}

/// Returns `true` if no added token spans a cut or looks at its neighbours.
fn added_tokens_stand_alone(tokenizer: &tokenizers::Tokenizer) -> bool {
    let spans =
        |content: &str| content.as_bytes().windows(2).any(|pair| pair[0].is_ascii_alphabetic() && pair[1] == b' ');
    let added = tokenizer.get_added_tokens_decoder();
    added.values().all(|token| !(token.lstrip || token.rstrip || token.single_word || spans(&token.content)))
}
