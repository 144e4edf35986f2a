//! The state of one long chat: a prompt that grows by turns, and a history that is compacted when it grows too long.
//!
//! The crate is pure: no I/O, clock, thread or randomness. A server asks [`Chat::begin`] for the prompt of a turn, has the prompt
//! continued by the model, and reports the answer ([`Chat::end`]). All operations are deterministic, and none fails halfway.
//!
//! ```text
//!  context   | Prefix | Pins | Summary | Recent                 | input of the next turn
//!  changes   | never  | at a compaction  | grows by whole turns   |
//! ```
//!
//! * **Append only.** Between two compactions a prompt begins with the prompt and the answer before, so a prefix cache has
//!   all of it but the last block.
//! * **Watermarks.** More recent tokens than [`Limits::high`] begin a compaction ([`Chat::plan`]), which leaves at most
//!   [`Limits::low`], whole turns. A window that slides by a turn would change the beginning of Recent, and so compute all of it
//!   again, at every turn.
//! * **The old context stays in use** until the new one is ready: summarised, and computed into the prefix cache. The exchange
//!   takes place between two turns. A compaction that fails changes nothing.
//! * **A full context** without a summary drops its oldest turns ([`Chat::drop_oldest`]), which is counted and noted.
//! * **The transcript stays**, as tokens, within [`Limits::bytes`]: for [`Chat::rewind`], [`Chat::fork`] and [`Chat::save`].
//!
//! # Example
//!
//! ```
//! use trunkline_chat::{Answer, Begun, Chat, End, Fixed, Frame, Limits, Usage, Wanted};
//!
//! let limits = Limits::new(512, Fixed { prefix: 2, ..Fixed::default() }, Wanted::default(), 1 << 20).unwrap();
//! let mut chat = Chat::new(vec![1, 2], Frame::default(), limits);
//! let Ok(Begun::Prompt { prompt, .. }) = chat.begin("", &[3, 4], 8) else { panic!() };
//! assert_eq!(prompt, [1, 2, 3, 4]);
//! chat.end(Answer { tokens: vec![5], text: "e".into(), end: End::Length, usage: Usage::default() });
//! let Ok(Begun::Prompt { prompt, .. }) = chat.begin("", &[6], 8) else { panic!() };
//! assert_eq!(prompt, [1, 2, 3, 4, 5, 6]);
//! ```

mod chat;
mod compaction;
mod layout;
mod limits;
mod notice;
mod pending;
mod phase;
mod sample;
mod saved;
mod turn;

pub use crate::chat::{Added, Begun, Chat, Refusal};
pub use crate::compaction::{Plan, Want, kept_turns, newest_kept};
pub use crate::layout::{Frame, Layout, Segment, SegmentKind};
pub use crate::limits::{Fixed, LimitFault, Limits, Wanted};
pub use crate::notice::{NOTICES_MAX, News, Notice, Totals};
pub use crate::phase::{Phase, PhaseEvent, TRANSITIONS, TURN_TRANSITIONS, TurnEvent, TurnPhase};
pub use crate::sample::{SPAN_TOKENS, sample};
pub use crate::saved::{Saved, SavedFault};
pub use crate::turn::{Answer, End, Turn, Usage};
