//! Log probabilities, as lists for completions and token by token for chats.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::Serialize;
use trunkline_server::proto::TokenLogprob;
use trunkline_text::Tokenizer;

/// `logprobs` of a choice of `/v1/completions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Listed {
    tokens: Vec<String>,
    /// `None` for the first token of a prompt.
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Characters of the choice's text before each token.
    text_offset: Vec<usize>,
}

/// Returns the text of one token by itself, names of special tokens included.
pub(crate) fn spell(tokenizer: &Tokenizer, token: u32) -> String {
    // Behind another token, as a decoder leaves out a space in front of a text.
    let mut detokenizer = tokenizer.detokenizer_behind(&[token], false);
    let mut text = detokenizer.push(token);
    text.push_str(&detokenizer.finish());
    text
}

/// Returns the text of tokens, names of special tokens included.
pub(crate) fn spell_all(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let mut detokenizer = tokenizer.detokenizer(false);
    let mut text: String = tokens.iter().map(|token| detokenizer.push(*token)).collect();
    text.push_str(&detokenizer.finish());
    text
}

impl Listed {
    /// Lists the tokens of a prompt: the first has no log probability.
    pub(crate) fn of_prompt(
        tokenizer: &Tokenizer,
        first: u32,
        others: impl Iterator<Item = impl Borrow<TokenLogprob>>,
    ) -> Self {
        let text = spell(tokenizer, first);
        let offset = text.chars().count();
        let begin =
            Self { tokens: vec![text], token_logprobs: vec![None], top_logprobs: vec![None], text_offset: vec![0] };
        begin.with(tokenizer, others, offset)
    }

    /// Lists further tokens, behind `offset` characters.
    pub(crate) fn with(
        self,
        tokenizer: &Tokenizer,
        tokens: impl Iterator<Item = impl Borrow<TokenLogprob>>,
        mut offset: usize,
    ) -> Self {
        let mut listed = self;
        for token in tokens {
            let TokenLogprob { token_id, logprob, top } = token.borrow();
            let text = spell(tokenizer, *token_id);
            let mut alternatives: BTreeMap<String, f32> =
                top.iter().map(|other| (spell(tokenizer, other.token_id), other.logprob)).collect();
            if !top.is_empty() {
                // The token that was drawn is there in any case, as OpenAI has it.
                alternatives.insert(text.clone(), *logprob);
            }
            listed.text_offset.push(offset);
            offset += text.chars().count();
            listed.tokens.push(text);
            listed.token_logprobs.push(Some(*logprob));
            listed.top_logprobs.push(Some(alternatives));
        }
        listed
    }
}

/// `logprobs` of a choice of `/v1/chat/completions`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Spelled {
    pub(crate) content: Vec<Token>,
}

/// Log probability of a token, and of others in its place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Token {
    #[serde(flatten)]
    token: Likely,
    top_logprobs: Vec<Likely>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Likely {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// Returns the log probabilities of tokens.
pub(crate) fn spelled(tokenizer: &Tokenizer, tokens: &[TokenLogprob]) -> Spelled {
    let likely = |token_id: u32, logprob: f32| {
        let token = spell(tokenizer, token_id);
        Likely { bytes: token.clone().into_bytes(), token, logprob }
    };
    let token = |of: &TokenLogprob| Token {
        token: likely(of.token_id, of.logprob),
        top_logprobs: of.top.iter().map(|other| likely(other.token_id, other.logprob)).collect(),
    };
    Spelled { content: tokens.iter().map(token).collect() }
}

#[cfg(test)]
mod tests {
    use trunkline_server::proto::Alternative;

    use super::*;

    #[test]
    fn each_token_has_its_text_its_place_and_what_else_was_likely() {
        let tokenizer = Tokenizer::bytes();
        let token = |token_id: u32, top: &[(u32, f32)]| TokenLogprob {
            token_id,
            logprob: -1.0,
            top: top.iter().map(|(token_id, logprob)| Alternative { token_id: *token_id, logprob: *logprob }).collect(),
        };
        let tokens = [token(b'a'.into(), &[(b'b'.into(), -0.5)]), token(b'c'.into(), &[])];
        let listed = Listed::default().with(&tokenizer, tokens.iter(), 4);
        assert_eq!(
            serde_json::to_string(&listed).unwrap(),
            r#"{"tokens":["a","c"],"token_logprobs":[-1.0,-1.0],"top_logprobs":[{"a":-1.0,"b":-0.5},{}],"text_offset":[4,5]}"#
        );
        let listed = Listed::of_prompt(&tokenizer, b'h'.into(), tokens.iter());
        assert_eq!(
            serde_json::to_string(&listed).unwrap(),
            r#"{"tokens":["h","a","c"],"token_logprobs":[null,-1.0,-1.0],"top_logprobs":[null,{"a":-1.0,"b":-0.5},{}],"text_offset":[0,1,2]}"#
        );
        let chat = serde_json::to_string(&spelled(&tokenizer, &tokens[..1])).unwrap();
        assert_eq!(
            chat,
            r#"{"content":[{"token":"a","logprob":-1.0,"bytes":[97],"top_logprobs":[{"token":"b","logprob":-0.5,"bytes":[98]}]}]}"#
        );
        assert_eq!(spell_all(&tokenizer, &[104, 105, 257]), "hi<eos>");
    }
}
