//! How many prompt tokens a step may take in while others decode, so that a step takes the time it should.
//!
//! A decode waits for the step it is in, so the longest step bounds the time between two of its tokens. What a token costs is
//! learned from the steps themselves: too long a step shortens the next chunk in proportion; one with time to spare lets it
//! grow by an eighth. (Sarathi-Serve, OSDI 2024, profiles a fixed budget; this one follows the load.)

/// Share by which the budget grows, one in so many.
const GROWTH: u32 = 8;
/// The budget grows only while steps take less than this many sixteenths of the target.
const SPARE_SIXTEENTHS: u64 = 14;

/// The budget of prompt tokens in a step that also decodes.
#[derive(Debug)]
pub(crate) struct Pace {
    target_ns: u64,
    least: u32,
    most: u32,
    tokens: u32,
}

impl Pace {
    /// Steps are to take `target_ns` (0: however long they like) with at least `least` and at most `most` prompt tokens.
    pub fn new(target_ns: u64, least: u32, most: u32) -> Self {
        Self { target_ns, least: least.min(most), most, tokens: most }
    }

    /// Prompt tokens the next step may take in beside decodes.
    pub fn tokens(&self) -> u32 {
        if self.target_ns == 0 { self.most } else { self.tokens }
    }

    /// A step with decodes and `prompt_tokens` prompt tokens took `took_ns`.
    pub fn observe(&mut self, prompt_tokens: u32, took_ns: u64) {
        if self.target_ns == 0 || prompt_tokens == 0 {
            return;
        }
        if took_ns > self.target_ns {
            let fit = u128::from(prompt_tokens) * u128::from(self.target_ns) / u128::from(took_ns);
            self.tokens = (fit as u32).clamp(self.least, self.tokens.max(self.least));
        } else if prompt_tokens + self.least > self.tokens && took_ns < self.target_ns / 16 * SPARE_SIXTEENTHS {
            let grown = self.tokens.saturating_add(self.least.max(self.tokens / GROWTH));
            self.tokens = grown.min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that takes a fixed time and so much a token.
    fn run(pace: &mut Pace, fixed_ns: u64, token_ns: u64, steps: u32) -> u64 {
        let mut took_ns = 0;
        for _ in 0..steps {
            let tokens = pace.tokens() / 16 * 16;
            took_ns = fixed_ns + u64::from(tokens) * token_ns;
            pace.observe(tokens, took_ns);
        }
        took_ns
    }

    #[test]
    fn steps_come_to_take_about_the_target_whatever_a_token_costs() {
        let mut pace = Pace::new(50_000, 16, 8192);
        for token_ns in [100, 10, 400] {
            let took_ns = run(&mut pace, 5_000, token_ns, 60);
            assert!((38_000..=52_000).contains(&took_ns), "{took_ns} ns at {token_ns} ns a token");
        }
    }

    #[test]
    fn prefills_always_get_a_block_and_no_target_means_no_limit() {
        let mut pace = Pace::new(10, 16, 2048);
        run(&mut pace, 1_000_000, 1000, 5);
        assert_eq!(pace.tokens(), 16);
        let mut none = Pace::new(0, 16, 2048);
        run(&mut none, 1_000_000, 1000, 5);
        assert_eq!(none.tokens(), 2048);
    }
}
