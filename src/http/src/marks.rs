//! Marks of clients for the prefix cache, as retention hints.
//!
//! A mark is a retention hint: the tokens up to it have a priority above those without a hint for the time of its `ttl`. Where in the prompt
//! it lies follows from the template: the prompt of the messages up to the mark, as far as it is a prefix of the whole prompt.

use axum::http::request::Parts;
use trunkline_server::proto::{RetentionHint, RetentionPart};
use trunkline_template::{Conversation, Value};

use crate::Shared;
use crate::failure::Failure;

/// Priority of marked tokens in the cache: the second class above tokens without a hint, so that a client's own hints can be stronger.
pub(crate) const PRIORITY: u32 = 60;
/// Priority of tokens without a hint.
const PRIORITY_DEFAULT: u32 = 35;

/// Returns hints for the tokens up to each mark, in their order; where two end at the same token, the longer time counts.
pub(crate) fn hints(ends: &[(u32, u64)]) -> Vec<RetentionHint> {
    let mut hints: Vec<RetentionHint> = Vec::new();
    // From the last mark to the first: an earlier token is under all marks behind it, and the longest time counts.
    let (mut from_next, mut ttl_ms) = (None, 0);
    for (end, ttl) in ends.iter().rev() {
        if *end == 0 {
            continue;
        }
        ttl_ms = ttl_ms.max(*ttl);
        if let Some(later) = hints.last_mut() {
            if from_next.is_some_and(|next| *end >= next) {
                later.ttl_ms = ttl_ms;
                continue;
            }
            later.from = *end;
        }
        hints.push(RetentionHint {
            from: 0,
            to: Some(*end),
            priority: Some(PRIORITY),
            ttl_ms,
            ..RetentionHint::default()
        });
        from_next = Some(*end);
    }
    hints.reverse();
    hints
}

/// Returns the token of the prompt up to which hints keep it longer than without them; the largest number for its end.
pub(crate) fn marked(hints: &[RetentionHint]) -> u32 {
    let keeps = |hint: &&RetentionHint| hint.priority > Some(PRIORITY_DEFAULT) && hint.part() != RetentionPart::Answer;
    hints.iter().filter(keeps).map(|hint| hint.to.unwrap_or(u32::MAX)).max().unwrap_or(0)
}

/// A conversation, and the tokens of its prompt.
#[derive(Clone, Copy)]
pub(crate) struct Rendered<'a> {
    pub(crate) conversation: &'a Conversation,
    pub(crate) add_special_tokens: bool,
    pub(crate) ids: &'a [u32],
}

impl Shared {
    /// Returns the tokens of a text.
    pub(crate) async fn tokens_of(&self, parts: &Parts, text: String, add: bool) -> Result<Vec<u32>, Failure> {
        match self.front.tokenize(&parts.extensions, text, add).await {
            Ok(ids) => Ok(ids),
            Err(status) => Err(self.refused(&status).await),
        }
    }

    /// Returns the token of a prompt up to which these messages reach, the first of its conversation.
    pub(crate) async fn end(&self, parts: &Parts, messages: Vec<Value>, prompt: Rendered<'_>) -> Result<u32, Failure> {
        let begin = Conversation {
            messages,
            add_generation_prompt: false,
            continue_final_message: false,
            ..prompt.conversation.clone()
        };
        let ids = self.tokens_of(parts, self.render(begin).await?, prompt.add_special_tokens).await?;
        let common = ids.iter().zip(prompt.ids).take_while(|(a, b)| a == b).count();
        Ok(u32::try_from(common).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_hints_for_the_tokens_before_them_with_the_longest_time_behind() {
        let shown = |ends: &[(u32, u64)]| {
            hints(ends).iter().map(|hint| (hint.from, hint.to.unwrap(), hint.ttl_ms)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&[(100, 9)]), [(0, 100, 9)]);
        assert_eq!(shown(&[(100, 9), (300, 5)]), [(0, 100, 9), (100, 300, 5)]);
        assert_eq!(shown(&[(100, 5), (300, 9)]), [(0, 100, 9), (100, 300, 9)]);
        assert_eq!(shown(&[(100, 9), (100, 5), (0, 7)]), [(0, 100, 9)]);
        assert!(shown(&[]).is_empty());
        assert_eq!(marked(&hints(&[(100, 9), (300, 5)])), 300);
        let part = RetentionPart::Answer.into();
        let answer = RetentionHint { part, priority: Some(80), ..RetentionHint::default() };
        let early = RetentionHint { priority: Some(0), ..RetentionHint::default() };
        assert_eq!(marked(&[early, answer]), 0);
    }
}
