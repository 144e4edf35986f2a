//! Reasoning in the text of a model: `<think>…</think>` before the answer.

use std::str::FromStr;

use trunkline_quote::quoted;

/// Form in which a model writes its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningParser {
    /// `<think>…</think>`, of which the template may have written the first mark: `deepseek_r1` and `qwen3` of vLLM.
    Think,
}

/// Names of the form.
const NAMES: [&str; 2] = ["deepseek_r1", "qwen3"];

impl FromStr for ReasoningParser {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let wrong =
            || format!("{} is no parser; there are deepseek_r1 and qwen3, both for <think>…</think>", quoted(name));
        NAMES.contains(&name).then_some(Self::Think).ok_or_else(wrong)
    }
}

const BEGIN: &str = "<think>";
const END: &str = "</think>";

impl ReasoningParser {
    /// Returns `true` if a prompt ends with the mark that begins reasoning.
    pub(crate) fn is_open(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(BEGIN)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// White space in front of a mark, and a part of the mark.
    Front,
    Inside,
    Behind,
}

/// Reader of the reasoning in one answer.
#[derive(Debug)]
pub(crate) struct Reasoning {
    place: Place,
    /// Text that may be of a mark.
    held: String,
    /// `true` once reasoning has begun.
    has_begun: bool,
}

impl Reasoning {
    /// Begins an answer, within reasoning if `open`.
    pub(crate) fn new(open: bool) -> Self {
        Self { place: if open { Place::Inside } else { Place::Front }, held: String::new(), has_begun: open }
    }

    /// Returns `true` within reasoning.
    pub(crate) fn is_inside(&self) -> bool {
        self.place == Place::Inside
    }

    /// Returns `true` behind reasoning.
    pub(crate) fn is_over(&self) -> bool {
        self.has_begun && self.place == Place::Behind
    }

    /// Takes what the model wrote next: adds it to the reasoning and to the rest.
    pub(crate) fn push(&mut self, text: &str, reasoning: &mut String, rest: &mut String) {
        for (at, c) in text.char_indices() {
            match self.place {
                Place::Front => self.front(c, rest),
                Place::Inside => self.inside(c, reasoning),
                Place::Behind => return rest.push_str(&text[at..]),
            }
        }
    }

    /// Ends the text.
    pub(crate) fn finish(&mut self, reasoning: &mut String, rest: &mut String) {
        let to = if self.is_inside() { reasoning } else { rest };
        to.push_str(&std::mem::take(&mut self.held));
    }

    fn front(&mut self, c: char, rest: &mut String) {
        self.held.push(c);
        let begin = self.held.trim_start();
        if begin == BEGIN {
            (self.place, self.held, self.has_begun) = (Place::Inside, String::new(), true);
        } else if !BEGIN.starts_with(begin) {
            self.place = Place::Behind;
            rest.push_str(&std::mem::take(&mut self.held));
        }
    }

    fn inside(&mut self, c: char, reasoning: &mut String) {
        self.held.push(c);
        // The mark has no part that begins it but its first character.
        if !END.starts_with(&self.held) {
            self.held.pop();
            reasoning.push_str(&std::mem::take(&mut self.held));
            if END.starts_with(c) { self.held.push(c) } else { reasoning.push(c) }
        } else if self.held == END {
            (self.place, self.held) = (Place::Behind, String::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a text in chunks of so many characters.
    fn read(open: bool, text: &str, chunk: usize) -> (String, String) {
        let (mut reader, mut reasoning, mut rest) = (Reasoning::new(open), String::new(), String::new());
        let chars: Vec<char> = text.chars().collect();
        for part in chars.chunks(chunk) {
            reader.push(&part.iter().collect::<String>(), &mut reasoning, &mut rest);
        }
        reader.finish(&mut reasoning, &mut rest);
        (reasoning, rest)
    }

    #[test]
    fn reasoning_ends_with_its_mark_and_text_without_a_mark_is_none() {
        for (open, text, reasoning, rest) in [
            (false, "<think>\na<b</think>\n\nc", "\na<b", "\n\nc"),
            (false, " \n<think>a", "a", ""),
            (true, "a</think>c</think>", "a", "c</think>"),
            (true, "a</thin", "a</thin", ""),
            (true, "</</think>", "</", ""),
            (false, "a<think>b</think>", "", "a<think>b</think>"),
            (false, "<thin", "", "<thin"),
            (false, "  ", "", "  "),
        ] {
            for chunk in [1, 2, 3, 5, 100] {
                assert_eq!(read(open, text, chunk), (reasoning.into(), rest.into()), "{text} in chunks of {chunk}");
            }
        }
        assert!(ReasoningParser::Think.is_open("<|assistant|>\n<think>\n"));
        assert!(!ReasoningParser::Think.is_open("<|assistant|>\n<think>\n\n</think>\n\n"));
        assert!("gpt".parse::<ReasoningParser>().unwrap_err().contains("deepseek_r1 and qwen3"));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_whatever_the_chunks(
            pieces in prop::collection::vec(prop::sample::select(vec!["<think>", "</think>", "<", "/", "think", ">", " ", "é"]), 0..12),
            chunk in 1..9_usize,
            open: bool,
        ) {
            let text = pieces.concat();
            let (reasoning, rest) = read(open, &text, chunk);
            prop_assert_eq!(&(reasoning.clone(), rest.clone()), &read(open, &text, 1000));
            let marks = text.len() - reasoning.len() - rest.len();
            let most = BEGIN.len() + END.len() + text.len() - text.trim_start().len();
            prop_assert!(marks <= most, "{text}: {reasoning} {rest}");
        }
    }
}
