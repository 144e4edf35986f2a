//! Requests one after another, for tests of what the cache finds.

use trunkline_core::Token;

use crate::Driver;

/// Returns `n` tokens that begin no prompt of another kind.
pub fn prompt(kind: u32, n: u32) -> Vec<Token> {
    (0..n).map(|at| kind * 1000 + at).collect()
}

impl Driver {
    /// Runs a request for one token to its end. Returns the tokens of its prompt found in the cache.
    pub fn ask(&mut self, id: u64, prompt: Vec<Token>) -> u32 {
        self.submit(id, prompt, 1);
        self.run_to_end();
        self.usages[&id].cached_tokens
    }
}
