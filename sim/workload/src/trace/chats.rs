//! Answers in the prompts of later turns.
//!
//! An engine keeps the KV of its answers, so a chat's next prompt finds the answer before. The ids of traces name prompts
//! alone, and blocks with an answer and the words around have ids of their own. Where a prompt begins with the prompt of its
//! parent and is long enough for the answer, the answer takes its place between the two.

use std::collections::{HashMap, VecDeque};

use super::block_ids::BlockId;
use super::{GENERATED_FROM, Piece};

/// Maximum number of ids and pieces of the latest turns; the chat of an older turn begins again. Some 400 MB.
const KEPT_MAX: usize = 1 << 26;

/// A turn as its line says.
pub(super) struct ChatTurn {
    /// Id of the turn, unlike all others.
    pub chat: BlockId,
    /// Id of the turn before.
    pub parent: Option<BlockId>,
    /// Ids of the prompt's blocks.
    pub ids: Box<[u32]>,
    /// Tokens per id.
    pub block_tokens: u32,
}

struct Asked {
    number: u32,
    ids: Box<[u32]>,
    pieces: Box<[Piece]>,
    input_tokens: u32,
    output_tokens: u32,
}

impl Asked {
    fn n_kept(&self) -> usize {
        self.ids.len() + self.pieces.len()
    }
}

/// Turns before a later turn.
#[derive(Default)]
pub(super) struct Chats {
    turns: HashMap<BlockId, Asked>,
    oldest: VecDeque<BlockId>,
    /// Ids and pieces of all turns.
    n_kept: usize,
}

impl Chats {
    /// Returns the prompt of request `number`, with the answer before in its place.
    pub(super) fn prompt(
        &mut self,
        turn: ChatTurn,
        number: u32,
        input_tokens: u32,
        output_tokens: u32,
    ) -> Box<[Piece]> {
        let ChatTurn { chat, parent, ids, block_tokens } = turn;
        let parent = parent.and_then(|parent| self.turns.get(&parent)).filter(|parent| {
            let whole = (parent.input_tokens / block_tokens) as usize;
            ids.get(..whole) == parent.ids.get(..whole) && input_tokens > parent.input_tokens + parent.output_tokens
        });
        let mut pieces = parent.map(|parent| parent.pieces.to_vec()).unwrap_or_default();
        pieces.extend(parent.map(|of| Piece { content: GENERATED_FROM | of.number, tokens: of.output_tokens }));
        let mut at = parent.map_or(0, |parent| parent.input_tokens + parent.output_tokens);
        while at < input_tokens {
            let block = at / block_tokens;
            let end = ((block + 1) * block_tokens).min(input_tokens);
            pieces.push(Piece { content: ids[block as usize], tokens: end - at });
            at = end;
        }
        let pieces: Box<[Piece]> = pieces.into();
        let asked = Asked { number, ids, pieces: pieces.clone(), input_tokens, output_tokens };
        self.n_kept += asked.n_kept();
        match self.turns.insert(chat.clone(), asked) {
            Some(before) => self.n_kept -= before.n_kept(),
            None => self.oldest.push_back(chat),
        }
        while self.n_kept > KEPT_MAX
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.n_kept -= self.turns.remove(&oldest).map_or(0, |turn| turn.n_kept());
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(chat: u64, parent: i64, ids: &[u32]) -> ChatTurn {
        let parent = u64::try_from(parent).ok().map(BlockId::Number);
        ChatTurn { chat: BlockId::Number(chat), parent, ids: ids.into(), block_tokens: 16 }
    }

    fn shape(pieces: &[Piece]) -> Vec<(u32, u32)> {
        pieces.iter().map(|piece| (piece.content, piece.tokens)).collect()
    }

    #[test]
    fn an_answer_stands_between_the_prompt_and_the_next_question() {
        let mut chats = Chats::default();
        assert_eq!(shape(&chats.prompt(turn(5, -1, &[1, 2, 3]), 0, 40, 20)), [(1, 16), (2, 16), (3, 8)]);
        // 40 tokens of the prompt, 20 of the answer, and 30 of the question.
        let second = chats.prompt(turn(6, 5, &[1, 2, 7, 8, 9, 10]), 1, 90, 10);
        let answer = (GENERATED_FROM, 20);
        assert_eq!(shape(&second), [(1, 16), (2, 16), (3, 8), answer, (8, 4), (9, 16), (10, 10)]);
        // The third holds both answers, and what a second question of the first turn shares is the first.
        let third = chats.prompt(turn(7, 6, &[1, 2, 7, 8, 9, 11, 12]), 2, 101, 1);
        let both = [(1, 16), (2, 16), (3, 8), answer, (8, 4), (9, 16), (10, 10), (GENERATED_FROM | 1, 10), (12, 1)];
        assert_eq!(shape(&third), both);
        assert_eq!(shape(&chats.prompt(turn(8, 5, &[1, 2, 20, 21]), 3, 61, 1))[3..], [answer, (21, 1)]);
    }

    #[test]
    fn a_prompt_that_cannot_hold_the_answer_is_as_its_line_says() {
        let mut chats = Chats::default();
        chats.prompt(turn(5, -1, &[1, 2, 3]), 0, 40, 20);
        // Too short, another beginning, and a parent that is not there.
        for (parent, ids, input_tokens) in [(5, [1, 2, 7, 8], 60), (5, [1, 3, 7, 8], 64), (4, [1, 2, 7, 8], 64)] {
            let pieces = chats.prompt(turn(9, parent, &ids), 1, input_tokens, 1);
            assert_eq!(pieces.len(), 4);
            assert!(pieces.iter().zip(ids).all(|(piece, id)| piece.content == id));
        }
    }
}
