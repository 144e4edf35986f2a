//! Reasoning, text and calls of tools in what a model writes: a reader for each answer.

use std::hash::{BuildHasher, RandomState};

use serde::Serialize;
use trunkline_text::Tokenizer;

use crate::calls::{Call, Calls, Found, ToolCallParser};
use crate::reasoning::{Reasoning, ReasoningParser};

/// What is to be read in the answers to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// `true` where the prompt has begun the reasoning already; `None` to leave reasoning in the text.
    pub(crate) reasoning: Option<bool>,
    /// `None` to leave calls in the text.
    pub(crate) calls: Option<ToolCallParser>,
    /// The whole answer is a list of calls, as [`crate::tool_choice`] forces it.
    pub(crate) forced: bool,
    /// Report the first call alone.
    pub(crate) one_call: bool,
    /// Leave out the name of a special token that ends the text: special tokens are shown for the marks of calls alone.
    pub(crate) hides_stop: bool,
}

impl Reading {
    /// Returns the reading of answers to a prompt, with the parsers of the server and the tools of the request, if it has some.
    pub(crate) fn of(
        (reasoning, calls): (Option<ReasoningParser>, Option<ToolCallParser>),
        prompt: &str,
        has_tools: bool,
    ) -> Self {
        let calls = calls.filter(|_| has_tools);
        let hides_stop = calls.is_some_and(ToolCallParser::needs_special_tokens);
        let reasoning = reasoning.map(|parser| parser.is_open(prompt));
        Self { reasoning, calls, forced: false, one_call: false, hides_stop }
    }

    /// Returns the reading of answers that have a structure from their first token, which may be that of forced calls.
    pub(crate) fn structured(self, forced: bool) -> Self {
        Self { reasoning: None, forced, hides_stop: self.hides_stop && !forced, ..self }
    }

    fn is_any(&self) -> bool {
        self.reasoning.is_some() || self.calls.is_some() || self.forced
    }
}

/// A part of an answer, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Read {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<ToolCall>,
}

/// Call of a tool in OpenAI's form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ToolCall {
    /// Place among the calls of an answer that is streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<usize>,
    pub(crate) id: String,
    r#type: &'static str,
    pub(crate) function: Function,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// Reader of one answer.
pub(crate) struct Reader {
    reasoning: Option<Reasoning>,
    calls: Option<Calls>,
    reading: Reading,
    n_calls: usize,
    /// Name of a special token at the end of the text so far.
    last_special: String,
    /// Tokens so far, and those up to the end of the reasoning.
    tokens: usize,
    reasoning_tokens: usize,
    /// Bytes behind the reasoning in the text that was read last.
    rest_len: usize,
    ids: RandomState,
}

impl Reader {
    /// Returns a reader; `None` if nothing is to be read.
    pub(crate) fn new(reading: Reading) -> Option<Self> {
        reading.is_any().then(|| Self {
            reasoning: reading.reasoning.map(Reasoning::new),
            calls: if reading.forced { Some(Calls::of_list()) } else { reading.calls.map(Calls::new) },
            reading,
            n_calls: 0,
            last_special: String::new(),
            tokens: 0,
            reasoning_tokens: 0,
            rest_len: 0,
            ids: RandomState::new(),
        })
    }

    /// Takes the text of these tokens.
    pub(crate) fn push(&mut self, text: &str, tokens: &[u32], tokenizer: &Tokenizer) -> Read {
        let mut all = std::mem::take(&mut self.last_special);
        all.push_str(text);
        if self.reading.hides_stop
            && let Some(token) = tokens.last()
        {
            let detokenizer = tokenizer.detokenizer(true);
            let name = detokenizer.left_out(*token);
            if !name.is_empty() && all.ends_with(name) {
                self.last_special = all.split_off(all.len() - name.len());
            }
        }
        let was_over = self.reasoning.as_ref().is_some_and(Reasoning::is_over);
        let read = self.read(&all, false);
        match &self.reasoning {
            Some(reasoning) if reasoning.is_inside() => self.reasoning_tokens = self.tokens + tokens.len(),
            Some(reasoning) if reasoning.is_over() && !was_over => {
                let len = all.len().saturating_sub(self.rest_len);
                self.reasoning_tokens = self.tokens + self.tokens_of(len, tokens, tokenizer);
            }
            _ => {}
        }
        self.tokens += tokens.len();
        read
    }

    /// Ends the answer, with the token that stopped it.
    pub(crate) fn finish(&mut self, stopped_by_token: bool) -> Read {
        let last = std::mem::take(&mut self.last_special);
        self.read(if stopped_by_token { "" } else { &last }, true)
    }

    /// Returns how many of these tokens the first `len` bytes of their text are of.
    fn tokens_of(&self, len: usize, tokens: &[u32], tokenizer: &Tokenizer) -> usize {
        let mut detokenizer = tokenizer.detokenizer(!self.reading.hides_stop);
        let mut so_far = 0;
        let is_behind = |token: &u32| {
            so_far += detokenizer.push(*token).len();
            so_far >= len
        };
        tokens.iter().position(is_behind).map_or(tokens.len(), |at| at + 1)
    }

    /// Returns the tokens of the reasoning so far, with its marks.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Returns `true` if the answer has calls.
    pub(crate) fn has_calls(&self) -> bool {
        self.n_calls > 0
    }

    fn read(&mut self, text: &str, ends: bool) -> Read {
        let (mut read, mut rest) = (Read::default(), String::new());
        match &mut self.reasoning {
            Some(reasoning) => {
                reasoning.push(text, &mut read.reasoning, &mut rest);
                if ends {
                    reasoning.finish(&mut read.reasoning, &mut rest);
                }
            }
            None => rest.push_str(text),
        }
        self.rest_len = rest.len();
        let Some(calls) = &mut self.calls else {
            read.text = rest;
            return read;
        };
        let mut found = Found::default();
        calls.push(&rest, &mut found);
        if ends {
            calls.finish(&mut found);
        }
        read.text = found.text;
        for call in found.calls {
            let call = self.numbered(call);
            if !self.reading.one_call || call.index == Some(0) {
                read.calls.push(call);
            }
        }
        read
    }

    fn numbered(&mut self, Call { name, arguments }: Call) -> ToolCall {
        let index = self.n_calls;
        self.n_calls += 1;
        // Mistral's templates take ids of nine characters alone.
        let random = self.ids.hash_one(index);
        let id = match self.reading.calls {
            Some(ToolCallParser::Mistral) => format!("{:09x}", random >> 28),
            _ => format!("call_{random:016x}"),
        };
        ToolCall { index: Some(index), id, r#type: "function", function: Function { name, arguments } }
    }
}

impl Read {
    /// Adds what came next.
    pub(crate) fn add(&mut self, next: Self) {
        self.reasoning.push_str(&next.reasoning);
        self.text.push_str(&next.text);
        self.calls.extend(next.calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_reasoning_then_text_then_calls_and_not_the_name_of_its_last_token() {
        let tokenizer = Tokenizer::bytes();
        let parsers = (Some(ReasoningParser::Think), Some(ToolCallParser::Mistral));
        let reading = Reading::of(parsers, "bot:<think>\n", true);
        let mut reader = Reader::new(reading).unwrap();
        let tokens = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        let mut all = reader.push("why</thi", &tokens("why</thi"), &tokenizer);
        let last = [tokens("nk>so[TOOL_CALLS]f{}"), vec![257]].concat();
        all.add(reader.push("nk>so[TOOL_CALLS]f{}<eos>", &last, &tokenizer));
        all.add(reader.finish(true));
        assert_eq!(
            (all.reasoning.as_str(), all.text.as_str(), reader.reasoning_tokens()),
            ("why", "so", "why</think>".len())
        );
        assert_eq!((all.calls.len(), all.calls[0].function.name.as_str(), all.calls[0].id.len()), (1, "f", 9));
        // Another token ends the text: the name was text.
        let mut reader = Reader::new(Reading { reasoning: None, ..reading }).unwrap();
        let mut all = reader.push("a<eos>", &[257], &tokenizer);
        all.add(reader.push("b<eos>", &[98, 257], &tokenizer));
        all.add(reader.finish(false));
        assert_eq!(all.text, "a<eos>b<eos>");
        assert!(Reader::new(Reading::of((None, Some(ToolCallParser::Hermes)), "", false)).is_none(), "no tools");
    }
}
