//! Tables shared by a tokenizer and the tokenizer's detokenizers: the library's tokenizer, and the bytes of each token.

use serde::{Deserialize, Serialize};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, Decoder, DecoderWrapper, Model};

use crate::library::Library;
use crate::shape;

/// Token ids beyond this are a mistake in the file, not a vocabulary.
const VOCAB_MAX: usize = 1 << 24;
/// Token ids below this may be in any file. A larger one needs a file with as many bytes: tables are by id, and a file of a few bytes with one
/// large id would take the memory of a large vocabulary.
const IDS_FREE: usize = 1 << 20;
/// BOS token of the byte tokenizer, after the bytes 0 to 255.
pub(crate) const BOS: u32 = 256;
/// End token of the byte tokenizer.
pub(crate) const EOS: u32 = 257;

/// The bytes of every token.
#[derive(Default)]
pub(crate) struct Pieces {
    /// Of token 0, token 1 and so on, without gaps.
    bytes: Vec<u8>,
    /// End of each token's bytes.
    ends: Vec<usize>,
    special: Vec<bool>,
    /// Spaces to drop at the very beginning of a text.
    pub(crate) strip: usize,
}

impl Pieces {
    /// Adds the next token.
    pub(crate) fn push(&mut self, bytes: &[u8], special: bool) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.special.push(special);
    }

    /// Returns `true` for a special token.
    pub(crate) fn is_special(&self, token: u32) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }

    /// Returns the length of the longest token, bytes.
    fn longest(&self) -> usize {
        (0..self.ends.len()).map(|at| self.of(at as u32, false).len()).max().unwrap_or(0)
    }

    /// Returns the bytes of a token; none for an unknown token, and for a special token to be skipped.
    pub(crate) fn of(&self, token: u32, skip_special: bool) -> &[u8] {
        let at = token as usize;
        match self.ends.get(at) {
            Some(end) if !(skip_special && self.special[at]) => {
                let begin = if at == 0 { 0 } else { self.ends[at - 1] };
                &self.bytes[begin..*end]
            }
            _ => &[],
        }
    }
}

/// A token found in a text before anything else, with the fields that `tokenizer.json` and `tokenizer_config.json` give it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Added {
    /// In `tokenizer_config.json` the id is a key.
    #[serde(default)]
    pub(crate) id: u32,
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) special: bool,
    #[serde(default)]
    pub(crate) single_word: bool,
    #[serde(default)]
    pub(crate) lstrip: bool,
    #[serde(default)]
    pub(crate) rstrip: bool,
    pub(crate) normalized: Option<bool>,
}

impl Added {
    /// Returns a token found as it is written.
    pub(crate) fn new(id: u32, content: &str, special: bool) -> Self {
        let content = content.to_owned();
        Self { id, content, special, single_word: false, lstrip: false, rstrip: false, normalized: Some(false) }
    }

    /// Returns a token of which a file has no more than this.
    pub(crate) fn legacy(id: u32, content: &str, special: bool) -> Self {
        Self { normalized: Some(!special), ..Self::new(id, content, special) }
    }

    /// Returns the token without the id; special tokens are found in text that is not normalised unless the file says otherwise.
    fn of_library(&self) -> AddedToken {
        AddedToken {
            content: self.content.clone(),
            single_word: self.single_word,
            lstrip: self.lstrip,
            rstrip: self.rstrip,
            normalized: self.normalized.unwrap_or(!self.special),
            special: self.special,
        }
    }
}

/// Both directions, shared with the detokenizers.
pub(crate) struct Codec {
    /// `None`: one token for each byte.
    pub(crate) library: Option<Library>,
    /// The bytes of each token; `None` if a token's text depends on the neighbours of the token.
    pub(crate) pieces: Option<Pieces>,
    /// Number of token ids, counted up to the largest.
    pub(crate) vocab_size: u32,
    /// Maximum number of bytes of text that one token stands for.
    pub(crate) longest_piece: u32,
}

/// Rule for the bytes of a token, given the token's name.
enum Naming<'a> {
    /// Each character of a name stands for one byte.
    ByteLevel,
    /// Names are text after some replacements; names of the form `<0xNN>` are bytes.
    ByteFallback { replacements: Vec<&'a DecoderWrapper>, strip: usize },
}

impl Codec {
    /// Reads the text of a `tokenizer.json`, with the tokens `added` instead of the ones that the text adds, and the texts `pieces` of
    /// tokens instead of the decoder's. Truncation and padding are switched off.
    pub(crate) fn new(json: &[u8], added: &[Added], pieces: Option<Pieces>) -> Result<Self, String> {
        shape::check(json)?;
        let library = Library::load(|| {
            let mut tokenizer = with_added(tokenizers::Tokenizer::from_bytes(json)?, added)?;
            tokenizer.with_truncation(None)?;
            tokenizer.with_padding(None);
            Ok(tokenizer)
        })?;
        let names = library.call(|tokenizer| Ok(tokenizer.get_vocab(true))).map_err(|fault| fault.to_string())?;
        let last = names.values().copied().max().ok_or("the vocabulary is empty")?;
        let id_max = VOCAB_MAX.min(json.len().max(IDS_FREE));
        if last as usize >= id_max {
            return Err(format!(
                "token id {last} is not below {id_max}: ids have no gaps larger than their file, of {} bytes",
                json.len()
            ));
        }
        let decoded = |tokenizer: &tokenizers::Tokenizer| {
            Ok(naming(tokenizer.get_decoder()).map(|naming| pieces_of(tokenizer, last, &naming)))
        };
        let pieces = match pieces {
            Some(pieces) => Some(pieces),
            None => library.call(decoded).map_err(|fault| fault.to_string())?,
        };
        let longest_piece = match &pieces {
            Some(pieces) => pieces.longest(),
            None => names.keys().map(String::len).max().unwrap_or(0),
        };
        Ok(Self {
            library: Some(library),
            pieces,
            vocab_size: last + 1,
            longest_piece: u32::try_from(longest_piece).unwrap_or(u32::MAX).max(1),
        })
    }

    /// Makes the codec with byte `b` as token `b`.
    pub(crate) fn bytes() -> Self {
        let mut pieces = Pieces::default();
        for byte in 0..=u8::MAX {
            pieces.push(&[byte], false);
        }
        // In the order of BOS and EOS.
        pieces.push(b"<bos>", true);
        pieces.push(b"<eos>", true);
        debug_assert_eq!((BOS, EOS), (256, 257));
        Self { library: None, pieces: Some(pieces), vocab_size: EOS + 1, longest_piece: 1 }
    }
}

/// Returns the tokenizer with the tokens `added`, each with its own id. The library numbers tokens by itself: in a list with gaps, or if the name
/// of an added token is also that of a byte, by other numbers than the model was trained with.
fn with_added(tokenizer: tokenizers::Tokenizer, added: &[Added]) -> tokenizers::Result<tokenizers::Tokenizer> {
    let known = tokenizer.get_added_tokens_decoder();
    let is_known = |token: &Added| known.get(&token.id) == Some(&token.of_library());
    if known.len() == added.len() && added.iter().all(is_known) {
        return Ok(tokenizer);
    }
    // The library numbers added tokens as the model does that is there when the tokens are added.
    let ids: Vocab = added.iter().map(|token| (token.content.clone(), token.id)).collect();
    let mut numbered = tokenizers::Tokenizer::new(BPE::builder().vocab_and_merges(ids, Vec::new()).build()?);
    numbered.with_normalizer(tokenizer.get_normalizer().cloned())?;
    numbered.add_tokens(added.iter().map(Added::of_library))?;
    numbered.with_pre_tokenizer(tokenizer.get_pre_tokenizer().cloned());
    numbered.with_post_processor(tokenizer.get_post_processor().cloned());
    numbered.with_decoder(tokenizer.get_decoder().cloned());
    numbered.with_model(tokenizer.get_model().clone());
    Ok(numbered)
}

/// Recognises the two decoders of Llama's generations, byte-level BPE and SentencePiece with byte fallback. The text of
/// other tokenizers is decoded as a whole.
fn naming(decoder: Option<&DecoderWrapper>) -> Option<Naming<'_>> {
    let steps = match decoder? {
        DecoderWrapper::ByteLevel(_) => return Some(Naming::ByteLevel),
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
        _ => return None,
    };
    if let [DecoderWrapper::ByteLevel(_)] = steps {
        return Some(Naming::ByteLevel);
    }
    let (mut replacements, mut strip) = (Vec::new(), 0);
    let (mut fallback, mut fused) = (false, false);
    for step in steps {
        match step {
            DecoderWrapper::Replace(_) if !fallback && !fused => replacements.push(step),
            DecoderWrapper::ByteFallback(_) if !fused => fallback = true,
            DecoderWrapper::Fuse(_) => fused = true,
            DecoderWrapper::Strip(cut) if fused && cut.content == ' ' && cut.stop == 0 && strip == 0 => {
                strip = cut.start;
            }
            _ => return None,
        }
    }
    (fallback && fused).then_some(Naming::ByteFallback { replacements, strip })
}

/// Returns the text of every token. That of an added token is its content, but for words of SentencePiece: there some vocabularies have runs of
/// spaces as added tokens, spelt as in other words.
fn pieces_of(tokenizer: &tokenizers::Tokenizer, last: u32, naming: &Naming<'_>) -> Pieces {
    let (alphabet, model) = (byte_level_alphabet(), tokenizer.get_model());
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    let mut pieces = Pieces::default();
    if let Naming::ByteFallback { strip, .. } = naming {
        pieces.strip = *strip;
    }
    for id in 0..=last {
        let token = added.get(&id);
        let is_special = token.is_some_and(|token| token.special);
        let is_word = |token: &AddedToken| !token.special && model.token_to_id(&token.content) == Some(id);
        let bytes = match (token, naming) {
            (Some(token), Naming::ByteLevel) => token.content.clone().into_bytes(),
            (Some(token), Naming::ByteFallback { .. }) if !is_word(token) => token.content.clone().into_bytes(),
            (_, Naming::ByteLevel) => byte_level_bytes(&model.id_to_token(id).unwrap_or_default(), &alphabet),
            (_, Naming::ByteFallback { replacements, .. }) => {
                let name = model.id_to_token(id).unwrap_or_default();
                match fallback_byte(&name) {
                    Some(byte) => vec![byte],
                    None => replaced(name, replacements).into_bytes(),
                }
            }
        };
        pieces.push(&bytes, is_special);
    }
    pieces
}

/// Returns the byte for a name such as `<0x0A>`.
pub(crate) fn fallback_byte(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

fn replaced(name: String, replacements: &[&DecoderWrapper]) -> String {
    replacements.iter().fold(name, |name, step| match step.decode_chain(vec![name.clone()]) {
        Ok(names) => names.concat(),
        Err(_) => name,
    })
}

/// Returns the bytes that a byte-level name stands for. A name with characters outside of the alphabet stands for itself.
pub(crate) fn byte_level_bytes(name: &str, alphabet: &[Option<u8>]) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = name.chars().map(|c| alphabet.get(c as usize).copied().flatten()).collect();
    bytes.unwrap_or_else(|| name.as_bytes().to_vec())
}

/// Returns the byte for each character of a byte-level name, by code point. Printable characters of Latin-1 stand for themselves;
/// the other bytes, in order, are the code points from 256 on.
pub(crate) fn byte_level_alphabet() -> Vec<Option<u8>> {
    let mut byte_of = vec![None; 256];
    for byte in 0..=u8::MAX {
        if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            byte_of[byte as usize] = Some(byte);
        } else {
            byte_of.push(Some(byte));
        }
    }
    byte_of
}
