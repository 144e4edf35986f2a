//! Rows of a step with log probabilities of prompt tokens.

use trunkline_port::{PromptRows, Step};

use super::{Columns, Mirror, StepReason};
use crate::wire;

impl Mirror {
    /// Checks the rows of a step whose sequences are in order.
    pub(super) fn check_prompt_rows(&self, message: &wire::Step, columns: &Columns<'_>) -> Result<(), StepReason> {
        let n = message.slots.len();
        let mut next = 0;
        for rows in &message.prompt_rows {
            if !self.limits.prompt_logprobs {
                return Err(StepReason::Ability { field: "prompt_rows", ability: "prompt_logprobs" });
            }
            let index = rows.index as usize;
            if rows.index < next || index >= n {
                return Err(StepReason::Order { list: "prompt_rows", index: rows.index, n });
            }
            next = rows.index + 1;
            if rows.n == 0 {
                return Err(StepReason::Zero { index, field: "the number of prompt rows" });
            }
            let seq = columns.seq(index);
            let last = self.known(message, index).saturating_sub(1) as u64;
            let end = u64::from(rows.first) + u64::from(rows.n);
            for (field, value, most) in [
                ("the end of prompt rows", end, u64::from(seq.n_tokens)),
                ("the token behind prompt rows", u64::from(seq.computed) + end, last),
                ("top of prompt rows", rows.top.into(), self.limits.max_logprobs.into()),
            ] {
                if value > most {
                    return Err(StepReason::TooLarge { index, field, value, most });
                }
            }
        }
        Ok(())
    }

    /// Returns the number of tokens of a sequence that are known, with those of the step.
    fn known(&self, message: &wire::Step, index: usize) -> usize {
        let starts = &message.starts;
        match starts.binary_search_by_key(&(index as u32), |start| start.index) {
            Ok(at) => starts[at].tokens.len(),
            Err(_) => {
                let slot = self.slots.get(message.slots[index] as usize).and_then(Option::as_ref);
                slot.map_or(0, |slot| slot.tokens.len())
            }
        }
    }

    /// Adds the rows of a checked step whose sequences are there.
    pub(super) fn put_prompt_rows(&self, message: &wire::Step, out: &mut Step) {
        for rows in &message.prompt_rows {
            let seq = &out.seqs[rows.index as usize];
            let behind = seq.computed + rows.first + rows.n;
            let slot = self.slots.get(seq.slot as usize).and_then(Option::as_ref);
            let next = slot.and_then(|slot| slot.tokens.get(behind as usize)).copied().unwrap_or_default();
            let rows = PromptRows { seq: rows.index, first: rows.first, rows: rows.n, next, n_top: rows.top };
            out.prompt_rows.push(rows);
        }
    }
}
