//! Chats of words and numbers, and a client that notes when their answers begin.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::http_client;
use trunkline::h2o::numbers::Numbers;

/// Messages of a long chat, the first and the last of them the user's.
pub const MESSAGES: usize = 33;
/// Text with the words of all chats.
const PROSE: &str = include_str!("../../texts/prose.txt");
/// One of so many words is a number, below the other.
const NUMBERS: (usize, usize) = (8, 100_000);
/// Words of a line.
const LINE_WORDS: usize = 40;
/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;
/// Longest wait for an answer to go on.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the messages of chat number `number`, with so many words in each.
pub fn messages(number: u64, words: usize) -> Value {
    let mut numbers = Numbers::from_seed(number);
    let known: Vec<&str> = PROSE.split_whitespace().filter(|word| word.starts_with(char::is_alphabetic)).collect();
    let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
    (0..MESSAGES).map(|at| json!({"role": role(at), "content": text(&mut numbers, &known, words)})).collect()
}

fn text(numbers: &mut Numbers, known: &[&str], words: usize) -> String {
    let mut text = String::new();
    for at in 1..=words {
        if numbers.below(NUMBERS.0) == 0 {
            let _ = write!(text, "{}", numbers.below(NUMBERS.1));
        } else {
            text.push_str(known[numbers.below(known.len())]);
        }
        text.push(if at.is_multiple_of(LINE_WORDS) { '\n' } else { ' ' });
    }
    text
}

/// Times of an answer since the first byte of its request, milliseconds, and the tokens of its prompt.
pub struct Answer {
    pub first_byte: f64,
    pub first_token: f64,
    pub prompt_tokens: u64,
}

/// Sends a request on a connection of its own, and reads the answer to its end. `note` is called when the request is sent, and at the first byte
/// of the answer's body.
///
/// # Errors
/// If the server cannot be reached, or its answer is not a stream with a token and the usage.
pub fn ask(address: &str, request: &str, mut note: impl FnMut()) -> anyhow::Result<Answer> {
    let mut connection = TcpStream::connect(address).context("cannot connect")?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let begin = Instant::now();
    connection.write_all(request.as_bytes()).context("cannot send a chat")?;
    note();
    let (mut answer, mut bytes) = (Vec::new(), vec![0; READ_BYTES]);
    let (mut first_byte, mut first_token) = (None, None);
    loop {
        let n = connection.read(&mut bytes).context("cannot read an answer")?;
        if n == 0 {
            break;
        }
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        answer.extend_from_slice(&bytes[..n]);
        let text = String::from_utf8_lossy(&answer);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        if first_byte.is_none() && !body.is_empty() {
            first_byte = Some(ms);
            note();
        }
        // The first event has the role alone.
        if first_token.is_none() && body.matches("data: {").nth(1).is_some() {
            first_token = Some(ms);
        }
    }
    let text = String::from_utf8_lossy(&answer);
    ensure!(text.starts_with("HTTP/1.1 200"), "the server refused a chat: {text}");
    match (first_byte, first_token, http_client::usage(&text, "prompt_tokens")) {
        (Some(first_byte), Some(first_token), Some(prompt_tokens)) => {
            Ok(Answer { first_byte, first_token, prompt_tokens })
        }
        _ => bail!("an answer without a token or its usage: {text}"),
    }
}

/// Sends a long chat, and short ones one after another from when it is sent until its answer begins. Returns the times to the first byte of the
/// short ones, of one at least, milliseconds.
///
/// # Errors
/// As [`ask`].
pub fn ask_meanwhile(address: &str, long: &str, short: &str) -> anyhow::Result<Vec<f64>> {
    let (notes, noted) = mpsc::channel();
    thread::scope(|scope| {
        let long = scope.spawn(move || ask(address, long, || _ = notes.send(())));
        let mut times = Vec::new();
        if noted.recv().is_ok() {
            loop {
                times.push(ask(address, short, || {})?.first_byte);
                if noted.try_recv() != Err(TryRecvError::Empty) {
                    break;
                }
            }
        }
        long.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        Ok(times)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn chats_have_many_words_and_differ_by_number() {
        let chat = |number| messages(number, 200).to_string();
        assert_eq!(chat(1), chat(1));
        let (one, other) = (chat(1), chat(2));
        let words: BTreeSet<&str> = one.split(' ').collect();
        assert!(words.len() > 1000, "{} words", words.len());
        assert_ne!(one.get(..200), other.get(..200), "no common prefix for the cache");
    }
}
