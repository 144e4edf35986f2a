//! `POST /tokenize` and `/detokenize`, as vLLM has them.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::{Deserialize, Serialize};
use trunkline_quote::quoted;

use crate::Context;
use crate::asked::{Asked, Prompt, Prompts};
use crate::body::{json_of, read};
use crate::failure::Failure;
use crate::logprobs::{spell, spell_all};

#[derive(Serialize)]
struct Tokens<'a> {
    count: usize,
    max_model_len: u32,
    tokens: &'a [u32],
    token_strs: Option<Vec<String>>,
}

/// Answers with the tokens of a text, or of a chat as its template renders it.
pub(crate) async fn tokenize(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let mut asked: Asked = read(&shared.front, body).await?;
    shared.check_model(asked.model.as_deref())?;
    // A rendered template has its special tokens.
    let (text, add) = match asked.prompt.take() {
        Some(prompt) if asked.messages.is_none() => (one_text(prompt)?, true),
        Some(_) => return Err(Failure::invalid("prompt", "prompt and messages exclude each other")),
        None => (shared.prompt(&mut asked).await?, false),
    };
    let add = asked.add_special_tokens.unwrap_or(add);
    let front = &shared.front;
    let of = |status| Failure::of(&status);
    let tokens = front.tokenize(&parts.extensions, text, add).await.map_err(of)?;
    let tokenizer = front.tokenizer().map_err(of)?;
    let strings =
        (asked.return_token_strs == Some(true)).then(|| tokens.iter().map(|token| spell(tokenizer, *token)).collect());
    let max_model_len = front.max_context().map_err(of)?;
    Ok(json_of(&Tokens { count: tokens.len(), max_model_len, tokens: &tokens, token_strs: strings }))
}

fn one_text(prompt: Prompts) -> Result<String, Failure> {
    match <[Prompt; 1]>::try_from(prompt.0) {
        Ok([Prompt::Text(text)]) => Ok(text),
        _ => Err(Failure::invalid("prompt", "prompt is not one text")),
    }
}

#[derive(Deserialize)]
pub(crate) struct IdsAsked {
    model: Option<String>,
    tokens: Vec<u32>,
}

#[derive(Serialize)]
struct Text {
    prompt: String,
}

/// Answers with the text of tokens.
pub(crate) async fn detokenize(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let asked: IdsAsked = read(&shared.front, body).await?;
    shared.front.note(&parts.extensions);
    shared.check_model(asked.model.as_deref())?;
    let of = |status| Failure::of(&status);
    let vocab_size = shared.front.model().map_err(of)?.vocab_size;
    if let Some(id) = asked.tokens.iter().find(|id| **id >= vocab_size) {
        let message = format!("tokens has {}; the model has token ids below {vocab_size}", quoted(&id.to_string()));
        return Err(Failure::invalid("tokens", message));
    }
    let tokenizer = shared.front.tokenizer().map_err(of)?;
    Ok(json_of(&Text { prompt: spell_all(tokenizer, &asked.tokens) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    #[test]
    fn one_text_is_tokenized_and_nothing_else() {
        let text = |json: &str| one_text(parse::<Asked>(json.as_bytes()).unwrap().prompt.unwrap());
        assert_eq!(text(r#"{"prompt": "a"}"#).unwrap(), "a");
        assert_eq!(text(r#"{"prompt": ["a"]}"#).unwrap(), "a");
        for wrong in [r#"{"prompt": ["a", "b"]}"#, r#"{"prompt": [1]}"#, r#"{"prompt": []}"#] {
            assert!(text(wrong).unwrap_err().json().contains(r#""param":"prompt""#), "{wrong}");
        }
    }
}
