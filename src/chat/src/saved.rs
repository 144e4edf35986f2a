//! Chats at rest: everything that decides later prompts, and nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;

use trunkline_port::Token;

use crate::chat::Chat;
use crate::layout::{Frame, Layout};
use crate::limits::Limits;
use crate::turn::Turn;

/// Largest number of a turn or version at rest: far beyond every chat, and sums of such numbers do not overflow.
const NUMBER_MAX: u64 = 1 << 53;

/// A chat at rest. A turn under way is not part of the chat, and neither are counts and notices.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// Fixed beginning of all prompts.
    pub prefix: Vec<Token>,
    /// Text around summaries in prompts.
    pub frame: Frame,
    /// Turns forgotten before the transcript.
    pub forgotten: u64,
    /// Pinned turns among the forgotten ones, oldest first.
    pub old_pins: Vec<Arc<Turn>>,
    /// Turns of the transcript, oldest first.
    pub turns: Vec<Arc<Turn>>,
    /// Layouts, oldest first.
    pub layouts: Vec<Layout>,
}

/// Reason for refusing a chat at rest: a field, and the rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedFault {
    /// A layout contradicts the transcript or the layout before.
    #[error("layouts[{0}] does not fit the turns or the layout before")]
    Layout(usize),
    /// There is no layout.
    #[error("layouts is empty; a session has at least one")]
    NoLayout,
    /// A turn has no id, no token, or the id or number of another.
    #[error("turns[{0}] has no token, no id of its own, or a number out of order")]
    Turn(usize),
    /// A pinned turn is not from before the transcript, or has no id, no token, or the id of another.
    #[error("old_pins[{0}] is not pinned, has no token, no id of its own, or a number out of order")]
    Pin(usize),
    /// A number is larger than that of any chat.
    #[error("{field} is {number}; at most {NUMBER_MAX} is allowed")]
    Number {
        /// Field, with its index.
        field: String,
        /// Number in the field.
        number: u64,
    },
    /// The transcript is beyond a limit.
    #[error("{field} has {size}; at most {most} are allowed")]
    TooLarge {
        /// Field, with unit.
        field: &'static str,
        /// Size of the field.
        size: u64,
        /// Size allowed.
        most: u64,
    },
}

impl Chat {
    /// Returns the chat at rest.
    pub fn save(&self) -> Saved {
        Saved {
            prefix: self.prefix.to_vec(),
            frame: self.frame.clone(),
            forgotten: self.forgotten,
            old_pins: self.old_pins.clone(),
            turns: self.turns.iter().cloned().collect(),
            layouts: self.layouts.clone(),
        }
    }

    /// Returns the chat that was saved, under limits that need not be those of the time.
    ///
    /// # Errors
    /// If the parts contradict each other or a limit.
    pub fn restore(saved: Saved, limits: Limits) -> Result<Self, SavedFault> {
        saved.check_turns()?;
        saved.check_layouts()?;
        let Saved { prefix, frame, forgotten, old_pins, turns, layouts } = saved;
        let next_version = layouts.last().ok_or(SavedFault::NoLayout)?.version + 1;
        let mut chat = Self::new(prefix, frame, limits);
        (chat.turns, chat.forgotten, chat.old_pins) = (turns.into(), forgotten, old_pins);
        (chat.layouts, chat.next_version) = (layouts, next_version);
        chat.check_sizes()?;
        Ok(chat)
    }

    fn check_sizes(&self) -> Result<(), SavedFault> {
        let summary = self.layouts.iter().map(|layout| layout.summary.len() as u64).max().unwrap_or(0);
        // A chat that was begun may have no room for a turn.
        let bytes = if self.n_turns() == 0 { 0 } else { self.bytes() - self.uncounted_bytes(self.layout()) };
        let sizes = [
            ("prefix and turns, in bytes,", bytes, self.limits.bytes),
            ("pinned turns, in tokens,", self.pinned_tokens(), self.limits.pins.into()),
            ("pinned turns, in bytes,", self.pinned_bytes(), self.limits.pins_bytes()),
            ("summary, in tokens,", summary, self.limits.summary.into()),
        ];
        let large = sizes.into_iter().find(|(_, size, most)| size > most);
        large.map_or(Ok(()), |(field, size, most)| Err(SavedFault::TooLarge { field, size, most }))
    }
}

impl Saved {
    fn check_turns(&self) -> Result<(), SavedFault> {
        check_number(|| "forgotten".into(), self.forgotten)?;
        let mut ids = BTreeSet::new();
        let numbers = self.forgotten..;
        for (at, (turn, number)) in self.turns.iter().zip(numbers).enumerate() {
            let is_new = !turn.id.is_empty() && ids.insert(&turn.id);
            if turn.number != number || turn.is_empty() || !is_new {
                return Err(SavedFault::Turn(at));
            }
        }
        let mut next = 0;
        for (at, turn) in self.old_pins.iter().enumerate() {
            let is_new = !turn.id.is_empty() && ids.insert(&turn.id);
            if !turn.pinned || turn.is_empty() || !is_new || !(next..self.forgotten).contains(&turn.number) {
                return Err(SavedFault::Pin(at));
            }
            next = turn.number + 1;
        }
        Ok(())
    }

    fn check_layouts(&self) -> Result<(), SavedFault> {
        let turns = self.forgotten + self.turns.len() as u64;
        let mut before: Option<&Layout> = None;
        for (at, layout) in self.layouts.iter().enumerate() {
            let Layout { version, since, first_recent, covered, .. } = *layout;
            let numbers =
                [("version", version), ("since", since), ("first_recent", first_recent), ("covered", covered)];
            for (name, number) in numbers {
                check_number(|| format!("layouts[{at}].{name}"), number)?;
            }
            let grows = before.is_none_or(|before| {
                before.version < layout.version
                    && before.since <= layout.since
                    && before.first_recent <= layout.first_recent
            });
            let ordered = [layout.covered, layout.first_recent, layout.since, turns].is_sorted();
            if !grows || !ordered || layout.first_recent < self.forgotten {
                return Err(SavedFault::Layout(at));
            }
            before = Some(layout);
        }
        Ok(())
    }
}

fn check_number(field: impl FnOnce() -> String, number: u64) -> Result<(), SavedFault> {
    if number <= NUMBER_MAX { Ok(()) } else { Err(SavedFault::Number { field: field(), number }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Fixed, Wanted};

    fn limits(bytes: u64) -> Limits {
        Limits::new(128, Fixed::default(), Wanted::default(), bytes).unwrap()
    }

    fn saved() -> Saved {
        let mut chat = Chat::new(vec![1], Frame::default(), limits(1 << 20));
        chat.append("a", &[2, 3], false).unwrap();
        chat.save()
    }

    /// Returns the fault of a chat at rest after a change.
    fn fault(change: impl FnOnce(&mut Saved)) -> String {
        let mut saved = saved();
        change(&mut saved);
        Chat::restore(saved, limits(1 << 20)).unwrap_err().to_string()
    }

    #[test]
    fn numbers_beyond_every_chat_are_refused() {
        assert!(Chat::restore(saved(), limits(1 << 20)).is_ok());
        let most = "; at most 9007199254740992 is allowed";
        let all_forgotten = fault(|saved| {
            (saved.forgotten, saved.turns) = (u64::MAX, Vec::new());
            (saved.layouts[0].since, saved.layouts[0].first_recent) = (u64::MAX, u64::MAX);
        });
        assert_eq!(all_forgotten, format!("forgotten is 18446744073709551615{most}"));
        let version = fault(|saved| saved.layouts[0].version = u64::MAX);
        assert_eq!(version, format!("layouts[0].version is 18446744073709551615{most}"));
        for (name, change) in [
            ("since", (|layout| layout.since = NUMBER_MAX + 1) as fn(&mut Layout)),
            ("first_recent", |layout| layout.first_recent = NUMBER_MAX + 1),
            ("covered", |layout| layout.covered = NUMBER_MAX + 1),
        ] {
            let text = fault(|saved| change(&mut saved.layouts[0]));
            assert_eq!(text, format!("layouts[0].{name} is 9007199254740993{most}"));
        }
    }

    fn pin(number: u64, id: &str) -> Arc<Turn> {
        Arc::new(Turn { number, id: id.into(), input: vec![4], answer: None, pinned: true })
    }

    /// A chat at rest that forgot `pins.len()` pinned turns.
    fn with_pins(pins: Vec<Arc<Turn>>) -> Saved {
        let (mut saved, forgotten) = (saved(), pins.len() as u64);
        saved.turns = vec![Arc::new(Turn { number: forgotten, ..(*saved.turns[0]).clone() })];
        (saved.layouts[0].since, saved.layouts[0].first_recent) = (forgotten, forgotten);
        Saved { forgotten, old_pins: pins, ..saved }
    }

    #[test]
    fn pins_need_tokens_an_id_of_their_own_and_room() {
        let restore = |pins, bytes| Chat::restore(with_pins(pins), limits(bytes)).map_err(|fault| fault.to_string());
        assert!(restore(vec![pin(0, "x"), pin(1, "y")], 1 << 20).is_ok());
        let empty = Arc::new(Turn { input: Vec::new(), ..(*pin(0, "x")).clone() });
        for wrong in [vec![pin(0, "")], vec![empty], vec![pin(0, "a")]] {
            let text = restore(wrong, 1 << 20).unwrap_err();
            assert_eq!(text, "old_pins[0] is not pinned, has no token, no id of its own, or a number out of order");
        }
        let pins = 2 * pin(0, "x").bytes();
        let large = restore(vec![pin(0, "x"), pin(1, "y")], 4 * pins - 4).unwrap_err();
        assert_eq!(large, format!("pinned turns, in bytes, has {pins}; at most {} are allowed", pins - 1));
        let large = restore(vec![pin(0, &"x".repeat(1000))], 1000).unwrap_err();
        assert!(large.starts_with("prefix and turns, in bytes, has 1"), "{large}");
    }
}
