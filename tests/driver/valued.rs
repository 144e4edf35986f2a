//! Log probabilities of prompts: each token of a prompt is valued once, before the first token of the answer.

use trunkline_core::{RequestId, Step, Token};

use crate::Driver;
use crate::records::Known;

impl Driver {
    /// Checks that the rows of a step with log probabilities of prompts are what the requests ask for.
    pub(crate) fn check_prompt_rows(&self, step: &Step) {
        assert!(step.prompt_rows.is_sorted_by(|a, b| a.seq < b.seq), "the rows are in the order of the sequences");
        for rows in &step.prompt_rows {
            let seq = &step.seqs[rows.seq as usize];
            let request = &self.requests[&seq.request].request;
            assert!(rows.rows > 0 && rows.first + rows.rows <= seq.n_tokens, "the sequence runs the rows");
            assert_eq!(Some(rows.n_top), request.prompt_logprobs);
            let from = (seq.computed + rows.first) as usize;
            let behind: Vec<Token> = step.tokens_behind(rows).collect();
            assert_eq!(behind, request.prompt[from + 1..][..rows.rows as usize], "request {}", seq.request);
        }
    }

    /// Notes that tokens of a prompt were valued.
    pub(crate) fn note_valued(&mut self, id: RequestId, first: u32, n: u32) {
        self.requests.get_mut(&id).expect("the values of a known request").value(first, n);
    }
}

impl Known {
    /// Notes that `n` tokens of the prompt from position `first` on were valued.
    fn value(&mut self, first: u32, n: u32) {
        let id = self.request.id;
        assert!(!self.is_answered() && self.text.is_empty(), "request {id} has values behind its first token");
        if self.withdrawn && first == 1 {
            // Another core begins again.
            self.valued = 0;
        }
        assert_eq!(first, self.valued + 1, "request {id}: values come once, in order and without a gap");
        self.valued += n;
    }

    /// Adds a generated token.
    pub(crate) fn say(&mut self, token: Token) {
        let asked = if self.request.prompt_logprobs.is_some() { self.request.prompt.len() as u32 - 1 } else { 0 };
        assert!(
            !self.text.is_empty() || self.valued == asked,
            "request {} lacks values of its prompt",
            self.request.id
        );
        self.text.push(token);
    }
}
