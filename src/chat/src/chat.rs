//! A chat: the transcript, the prompts made from the transcript, and turns.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_port::Token;
use trunkline_quote::quoted;

use crate::layout::{Frame, Layout, Segment, SegmentKind};
use crate::limits::Limits;
use crate::notice::{News, Notice, Notices, Totals};
use crate::pending::Pending;
use crate::phase::{TurnEvent, TurnPhase};
use crate::turn::{Answer, Turn, bytes_of};

/// Reason for refusing an operation on a chat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A turn with the id is being generated.
    #[error("turn {} is still being generated", quoted(.0))]
    StillRunning(String),
    /// Another turn is being generated.
    #[error(
        "turn {} is being generated; a session generates one turn at a time, so try again when that one has ended",
        quoted(.0)
    )]
    Busy(String),
    /// The id names a turn with other input.
    #[error("turn_id {} names an earlier turn with other input, or without an answer", quoted(.0))]
    IdTaken(String),
    /// A turn to be appended has no token.
    #[error("input is missing; send text or token ids")]
    NoInput,
    /// There is nothing to continue.
    #[error("input is missing, and the session has no token to continue")]
    Empty,
    /// Pinned turns have too many tokens.
    #[error("pin: pinned turns would have {tokens} tokens; at most {most} are kept word for word")]
    Pins {
        /// Tokens of all pinned turns.
        tokens: u64,
        /// Tokens that may be pinned.
        most: u32,
    },
    /// Pinned turns have too many bytes.
    #[error("pin: pinned turns would have {bytes} bytes; at most {most}, a quarter of the transcript's, may be pinned")]
    PinBytes {
        /// Memory of all pinned turns, bytes.
        bytes: u64,
        /// Memory that pinned turns may have, bytes.
        most: u64,
    },
    /// No context can hold the turn.
    #[error(
        "the turn needs {needed} tokens with its answer; the session has room for {room} of {context}, without history"
    )]
    NeverFits {
        /// Tokens of input and answer.
        needed: u64,
        /// Tokens left by prefix, pins and summary.
        room: u64,
        /// Tokens of the context.
        context: u32,
    },
    /// No turn has this id.
    #[error("turn_id {} names no turn of the transcript", quoted(.0))]
    NoTurn(String),
    /// The turn was before the beginning of the transcript, or before a context that is no longer known.
    #[error("the transcript goes back to turn {first} only")]
    Forgotten {
        /// First turn that can be the last of a fork or rewound chat.
        first: u64,
    },
}

impl Refusal {
    /// Returns `true` if the same operation may be accepted once the running turn has ended.
    pub fn passes(&self) -> bool {
        matches!(self, Self::StillRunning(_) | Self::Busy(_))
    }
}

/// Beginning of a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Begun {
    /// The turn has this prompt, and runs from now on.
    Prompt {
        /// Name of the turn.
        id: String,
        /// Tokens that the model continues.
        prompt: Vec<Token>,
    },
    /// The turn was answered before.
    Stored(Arc<Turn>),
    /// The context is full: compact, or drop turns, and begin again.
    Full,
}

/// Turn added without an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Added {
    /// The turn is part of the transcript.
    Turn(Arc<Turn>),
    /// The context is full: compact, or drop turns, and add the turn again.
    Full,
}

/// Turn whose answer is being generated.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) id: String,
    pub(crate) input: Vec<Token>,
}

/// A chat: prefix, transcript, layouts, and work under way.
#[derive(Clone, Debug)]
pub struct Chat {
    pub(crate) prefix: Arc<[Token]>,
    pub(crate) frame: Frame,
    pub(crate) limits: Limits,
    /// Turns of the transcript, from number `forgotten` on.
    pub(crate) turns: VecDeque<Arc<Turn>>,
    /// Turns forgotten since the beginning.
    pub(crate) forgotten: u64,
    /// Pinned turns among the forgotten ones.
    pub(crate) old_pins: Vec<Arc<Turn>>,
    /// Layouts, oldest first; the last one is in use.
    pub(crate) layouts: Vec<Layout>,
    pub(crate) next_version: u64,
    pub(crate) turn_phase: TurnPhase,
    pub(crate) running: Option<Running>,
    pub(crate) pending: Pending,
    pub(crate) totals: Totals,
    pub(crate) notices: Notices,
}

impl Chat {
    /// Begins a chat whose prompts all begin with `prefix`.
    pub fn new(prefix: Vec<Token>, frame: Frame, limits: Limits) -> Self {
        Self {
            prefix: prefix.into(),
            frame,
            limits,
            turns: VecDeque::new(),
            forgotten: 0,
            old_pins: Vec::new(),
            layouts: vec![Layout::first()],
            next_version: 1,
            turn_phase: TurnPhase::default(),
            running: None,
            pending: Pending::default(),
            totals: Totals::default(),
            notices: Notices::default(),
        }
    }

    /// Returns the limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the number of turns since the beginning, forgotten ones included.
    pub fn n_turns(&self) -> u64 {
        self.forgotten + self.turns.len() as u64
    }

    /// Returns the turns of the transcript, oldest first.
    pub fn turns(&self) -> impl Iterator<Item = &Arc<Turn>> {
        self.turns.iter()
    }

    /// Returns the layouts that a rewind may need, oldest first; the last one is in use.
    pub fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Returns the layout in use.
    pub fn layout(&self) -> &Layout {
        self.layouts.last().expect("a chat has a layout")
    }

    /// Returns the latest notices, oldest first.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter()
    }

    /// Returns counts since the beginning.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the id of the turn being generated.
    pub fn running_turn(&self) -> Option<&str> {
        self.running.as_ref().map(|running| &running.id[..])
    }

    /// Returns the tokens of the context: every turn's prompt begins with them.
    pub fn context(&self) -> Vec<Token> {
        self.context_of(self.layout())
    }

    /// Returns the number of tokens of the context.
    pub fn context_tokens(&self) -> u32 {
        self.segments().iter().map(|segment| segment.tokens).fold(0, u32::saturating_add)
    }

    /// Returns the segments of the context, in order.
    pub fn segments(&self) -> [Segment; 4] {
        self.segments_of(self.layout())
    }

    /// Returns the segments of the context of a layout, in order.
    pub(crate) fn segments_of(&self, layout: &Layout) -> [Segment; 4] {
        let len = |tokens: &[Token]| u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let pins = self.pins_before(layout.first_recent).map(|turn| turn.len()).fold(0, u32::saturating_add);
        let segment = |kind, tokens, version| Segment { kind, tokens, version };
        [
            segment(SegmentKind::Prefix, len(&self.prefix), 0),
            segment(SegmentKind::Pins, pins, layout.version),
            segment(SegmentKind::Summary, self.framed_tokens(&layout.summary), layout.version),
            segment(SegmentKind::Recent, self.tokens_from(layout.first_recent), layout.version),
        ]
    }

    /// Returns the tokens of the recent turns.
    pub fn recent_tokens(&self) -> u32 {
        self.tokens_from(self.layout().first_recent)
    }

    /// Returns the tokens of the turns from number `first` on.
    fn tokens_from(&self, first: u64) -> u32 {
        self.recent(first).map(|turn| turn.len()).fold(0, u32::saturating_add)
    }

    /// Adds a turn without an answer, and returns the turn. An equal turn that is there already is returned as it is.
    ///
    /// # Errors
    /// If a turn is being generated, the id names another turn, or the pinned turns have too many tokens.
    pub fn append(&mut self, id: &str, input: &[Token], pinned: bool) -> Result<Added, Refusal> {
        if let Some(turn) = self.find(id) {
            let same = turn.input == input && turn.answer.is_none() && turn.pinned == pinned;
            return if same { Ok(Added::Turn(turn.clone())) } else { Err(Refusal::IdTaken(id.into())) };
        }
        self.check_quiet(id)?;
        if input.is_empty() {
            return Err(Refusal::NoInput);
        }
        let id = self.id_or_number(id);
        if pinned {
            self.check_pin(&id, input.len())?;
        }
        if !self.fits(input.len(), 0) {
            self.check_ever_fits(input.len(), 0)?;
            return Ok(Added::Full);
        }
        let turn = Arc::new(Turn { number: self.n_turns(), id, input: input.to_vec(), answer: None, pinned });
        self.turns.push_back(turn.clone());
        self.boundary();
        Ok(Added::Turn(turn))
    }

    /// Returns `true` if a turn of `input` tokens can be appended to the context, and `answer` tokens generated behind.
    pub fn fits(&self, input: usize, answer: u32) -> bool {
        let tokens = u64::from(self.context_tokens()) + input as u64 + u64::from(answer);
        let bytes = self.context_bytes(self.layout()) + bytes_of(input as u64 + u64::from(answer), 0);
        tokens <= self.limits.context.into() && bytes <= self.limits.bytes
    }

    /// Begins a turn with an answer of up to `answer` tokens. A turn answered before is returned as it is.
    ///
    /// # Errors
    /// If a turn is being generated, the id names another turn, there is nothing to continue, or no context can hold the turn.
    pub fn begin(&mut self, id: &str, input: &[Token], answer: u32) -> Result<Begun, Refusal> {
        if let Some(turn) = self.find(id) {
            let same = turn.input == input && turn.answer.is_some();
            return if same { Ok(Begun::Stored(turn.clone())) } else { Err(Refusal::IdTaken(id.into())) };
        }
        self.check_quiet(id)?;
        if !self.fits(input.len(), answer) {
            self.check_ever_fits(input.len(), answer)?;
            return Ok(Begun::Full);
        }
        let mut prompt = self.context();
        prompt.extend_from_slice(input);
        if prompt.is_empty() {
            return Err(Refusal::Empty);
        }
        let id = self.id_or_number(id);
        self.running = Some(Running { id: id.clone(), input: input.to_vec() });
        self.step(TurnEvent::Begun);
        Ok(Begun::Prompt { id, prompt })
    }

    /// Ends the running turn with an answer, and returns the turn.
    pub fn end(&mut self, answer: Answer) -> Option<Arc<Turn>> {
        let Running { id, input } = self.running.take()?;
        self.step(TurnEvent::Ended);
        self.totals.prompt += u64::from(answer.usage.prompt);
        self.totals.cached += u64::from(answer.usage.cached);
        self.totals.completion += u64::from(answer.usage.completion);
        let turn = Arc::new(Turn { number: self.n_turns(), id, input, answer: Some(answer), pinned: false });
        self.turns.push_back(turn.clone());
        self.boundary();
        Some(turn)
    }

    /// Gives up the running turn, which leaves nothing behind.
    pub fn give_up(&mut self) {
        if self.running.take().is_some() {
            self.step(TurnEvent::GivenUp);
            self.boundary();
        }
    }

    /// Returns the turn with an id.
    ///
    /// # Errors
    /// If no turn of the transcript and no pinned turn has the id.
    pub fn turn(&self, id: &str) -> Result<&Arc<Turn>, Refusal> {
        self.find(id).ok_or_else(|| Refusal::NoTurn(id.into()))
    }

    /// Returns a chat of its own with the first `turns` turns. The counts of the fork begin at 0.
    ///
    /// # Errors
    /// If the context after that turn is no longer known.
    pub fn fork(&self, turns: u64) -> Result<Self, Refusal> {
        let mut fork = self.clone();
        (fork.running, fork.turn_phase) = (None, TurnPhase::Quiet);
        fork.pending = Pending::default();
        fork.totals = Totals::default();
        fork.notices = Notices::default();
        fork.rewind(turns)?;
        Ok(fork)
    }

    /// Goes back to the state after the first `turns` turns: later turns are gone, and the context is the one of that time. Cancels a
    /// compaction under way.
    ///
    /// # Errors
    /// If a turn is being generated, or the context after that turn is no longer known.
    pub fn rewind(&mut self, turns: u64) -> Result<(), Refusal> {
        self.check_quiet("")?;
        if turns >= self.n_turns() {
            return Ok(());
        }
        let first = self.first_rewind();
        let at = self.layouts.iter().rposition(|layout| layout.since <= turns && layout.first_recent >= self.forgotten);
        let Some(at) = at.filter(|_| turns >= first) else { return Err(Refusal::Forgotten { first }) };
        self.cancel();
        self.layouts.truncate(at + 1);
        self.turns.truncate(usize::try_from(turns - self.forgotten).unwrap_or(usize::MAX));
        Ok(())
    }

    /// Returns the least number of turns that a rewind can leave.
    fn first_rewind(&self) -> u64 {
        let known = self.layouts.iter().find(|layout| layout.first_recent >= self.forgotten);
        known.map_or(self.n_turns(), |layout| layout.since.max(self.forgotten))
    }

    pub(crate) fn find(&self, id: &str) -> Option<&Arc<Turn>> {
        let mut newest_first = self.turns.iter().rev().chain(self.old_pins.iter().rev());
        newest_first.find(|turn| !id.is_empty() && turn.id == id)
    }

    /// Assembles the context of a layout from the transcript.
    pub(crate) fn context_of(&self, layout: &Layout) -> Vec<Token> {
        let mut out = self.prefix.to_vec();
        self.pins_before(layout.first_recent).for_each(|turn| out.extend(turn.tokens()));
        if !layout.summary.is_empty() {
            let parts = [&self.frame.before, &layout.summary, &self.frame.behind];
            parts.into_iter().for_each(|part| out.extend_from_slice(part));
        }
        self.recent(layout.first_recent).for_each(|turn| out.extend(turn.tokens()));
        out
    }

    /// Returns the tokens of a summary with its frame.
    pub(crate) fn framed_tokens(&self, summary: &[Token]) -> u32 {
        let parts = [&self.frame.before, summary, &self.frame.behind];
        let tokens: usize = parts.into_iter().map(<[Token]>::len).sum();
        if summary.is_empty() { 0 } else { u32::try_from(tokens).unwrap_or(u32::MAX) }
    }

    /// Returns the turns of the transcript from number `first` on.
    pub(crate) fn recent(&self, first: u64) -> impl DoubleEndedIterator<Item = &Arc<Turn>> {
        let skip = usize::try_from(first.saturating_sub(self.forgotten)).unwrap_or(usize::MAX);
        self.turns.iter().skip(skip)
    }

    /// Returns the pinned turns before number `end`, oldest first.
    pub(crate) fn pins_before(&self, end: u64) -> impl Iterator<Item = &Arc<Turn>> {
        let known = self.turns.iter().take_while(move |turn| turn.number < end).filter(|turn| turn.pinned);
        self.old_pins.iter().chain(known)
    }

    pub(crate) fn pinned_tokens(&self) -> u64 {
        self.pins_before(u64::MAX).map(|turn| u64::from(turn.len())).sum()
    }

    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pins_before(u64::MAX).map(|turn| turn.bytes()).sum()
    }

    fn prefix_bytes(&self) -> u64 {
        size_of_val(&*self.prefix) as u64
    }

    /// Returns the memory of the context of a layout, bytes.
    fn context_bytes(&self, layout: &Layout) -> u64 {
        let turns = self.pins_before(layout.first_recent).chain(self.recent(layout.first_recent));
        self.prefix_bytes() + layout.bytes() + turns.map(|turn| turn.bytes()).sum::<u64>()
    }

    /// Returns `true` if a layout leaves the context within the limits, with the turns there are.
    pub(crate) fn is_within(&self, layout: &Layout) -> bool {
        let tokens: u64 = self.segments_of(layout).iter().map(|segment| u64::from(segment.tokens)).sum();
        let bytes = self.context_bytes(layout) - self.uncounted_bytes(layout);
        tokens <= self.limits.context.into() && bytes <= self.limits.bytes
    }

    /// Returns the memory of the name and texts of the newest turn, if it is a recent one of a layout, bytes. These come on top of the limit: a
    /// turn is let in by its tokens, and its texts are known when it has ended.
    pub(crate) fn uncounted_bytes(&self, layout: &Layout) -> u64 {
        self.recent(layout.first_recent).next_back().map_or(0, |turn| turn.text_bytes())
    }

    /// Returns the memory of a chat without turns but the pinned ones, with the longest summary, bytes.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        self.prefix_bytes() + self.pinned_bytes() + Layout::bytes_of(self.limits.summary.into())
    }

    pub(crate) fn fixed_tokens(&self) -> u64 {
        let frame = self.frame.before.len() + self.frame.behind.len();
        (self.prefix.len() + frame) as u64 + u64::from(self.limits.summary)
    }

    /// Checks that a turn fits when all others have left the context.
    fn check_ever_fits(&self, input: usize, answer: u32) -> Result<(), Refusal> {
        let context = self.limits.context;
        let room = u64::from(context).saturating_sub(self.fixed_tokens() + self.pinned_tokens());
        let needed = input as u64 + u64::from(answer);
        let bytes = bytes_of(needed, 0);
        let fits = bytes <= self.limits.bytes / 2 && self.fixed_bytes() + bytes <= self.limits.bytes;
        if needed <= room && fits { Ok(()) } else { Err(Refusal::NeverFits { needed, room, context }) }
    }

    /// Checks that one more turn may be pinned.
    fn check_pin(&self, id: &str, input: usize) -> Result<(), Refusal> {
        let (tokens, most) = (self.pinned_tokens() + input as u64, self.limits.pins);
        if tokens > most.into() {
            return Err(Refusal::Pins { tokens, most });
        }
        let (bytes, most) = (self.pinned_bytes() + bytes_of(input as u64, id.len()), self.limits.pins_bytes());
        if bytes <= most { Ok(()) } else { Err(Refusal::PinBytes { bytes, most }) }
    }

    fn check_quiet(&self, id: &str) -> Result<(), Refusal> {
        match &self.running {
            Some(running) if running.id == id => Err(Refusal::StillRunning(id.into())),
            Some(running) => Err(Refusal::Busy(running.id.clone())),
            None => Ok(()),
        }
    }

    /// Returns the id of a new turn: the client's, or the turn's number.
    fn id_or_number(&self, id: &str) -> String {
        if !id.is_empty() {
            return id.into();
        }
        let mut numbers = (self.n_turns()..).map(|number| number.to_string());
        numbers.find(|id| self.find(id).is_none()).unwrap_or_default()
    }

    fn step(&mut self, event: TurnEvent) {
        self.turn_phase = self.turn_phase.after(event).expect("`running` says which events may come");
    }

    /// Does what is due between two turns: a new context takes effect, and old turns are forgotten.
    pub(crate) fn boundary(&mut self) {
        self.swap_if_ready();
        self.forget();
    }

    /// Returns the memory of the prefix, all turns and all layouts, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let turns = self.old_pins.iter().chain(&self.turns).map(|turn| turn.bytes());
        self.prefix_bytes() + turns.chain(self.layouts.iter().map(Layout::bytes)).sum::<u64>()
    }

    /// Forgets the oldest turns outside of the context while the transcript has too many bytes.
    fn forget(&mut self) {
        let first_recent = self.layout().first_recent;
        let before = self.forgotten;
        let mut bytes = self.bytes();
        while bytes > self.limits.bytes && self.forgotten < first_recent {
            let Some(turn) = self.turns.pop_front() else { break };
            self.forgotten += 1;
            match turn.pinned {
                true => self.old_pins.push(turn),
                false => bytes -= turn.bytes(),
            }
            // Contexts with the turn cannot be assembled any more. The one in use begins later.
            let unknown = self.layouts.iter().take_while(|layout| layout.first_recent < self.forgotten).count();
            bytes -= self.layouts.drain(..unknown).map(|layout| layout.bytes()).sum::<u64>();
        }
        let turns = self.forgotten - before;
        if turns > 0 {
            self.totals.forgotten += turns;
            self.notices.add(self.n_turns(), News::Forgotten { turns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Fixed, Wanted};
    use crate::turn::{End, Usage};

    /// A chat with a prefix of 10 tokens and a context of 256.
    fn chat(bytes: u64) -> Chat {
        let wanted = Wanted { summary: Some(8), pins: Some(20), high: Some(60), low: Some(10) };
        let limits = Limits::new(256, Fixed { prefix: 10, ..Fixed::default() }, wanted, bytes).unwrap();
        Chat::new(vec![1; 10], Frame::default(), limits)
    }

    fn answer(end: End) -> Answer {
        Answer { tokens: vec![5], text: "e".into(), end, usage: Usage::default() }
    }

    #[test]
    fn the_memory_of_a_chat_has_the_prefix_pins_and_stop_strings() {
        let mut chat = chat(1 << 20);
        let empty = chat.bytes();
        assert_eq!(empty, 10 * 4 + Layout::first().bytes());
        chat.append("pin", &[3; 5], true).unwrap();
        let with_pin = chat.bytes();
        assert_eq!(with_pin, empty + bytes_of(5, 3));
        let turn = chat.turns.pop_front().unwrap();
        chat.old_pins.push(turn);
        chat.forgotten = 1;
        assert_eq!(chat.bytes(), with_pin, "a pin outside of the transcript is still there");
        chat.begin("a", &[2], 4).unwrap();
        chat.end(answer(End::StopString("stop".into())));
        assert_eq!(chat.bytes(), with_pin + bytes_of(2, "a".len() + "e".len() + "stop".len()));
    }

    #[test]
    fn pins_take_a_quarter_of_the_memory_at_most() {
        let most = 3 * bytes_of(1, 1) - 1;
        let mut chat = chat(4 * most);
        chat.append("a", &[3], true).unwrap();
        chat.append("b", &[3], true).unwrap();
        let text = chat.append("c", &[3], true).unwrap_err().to_string();
        let most = format!("at most {most}, a quarter of the transcript's, may be pinned");
        assert_eq!(text, format!("pin: pinned turns would have {} bytes; {most}", 3 * bytes_of(1, 1)));
        assert!(chat.append("c", &[3], false).is_ok());
    }

    #[test]
    fn a_pinned_turn_sent_again_is_there_once_also_when_it_left_the_transcript() {
        let mut chat = chat(1 << 20);
        chat.append("pin", &[3; 5], true).unwrap();
        let turn = chat.turns.pop_front().unwrap();
        chat.old_pins.push(turn.clone());
        chat.forgotten = 1;
        assert_eq!(chat.append("pin", &[3; 5], true), Ok(Added::Turn(turn)));
        assert_eq!(chat.append("pin", &[4; 5], true), Err(Refusal::IdTaken("pin".into())));
        assert_eq!(chat.begin("pin", &[3; 5], 4), Err(Refusal::IdTaken("pin".into())));
        assert_eq!(chat.n_turns(), 1);
    }

    #[test]
    fn a_pin_too_many_is_refused_before_a_full_context_makes_room() {
        let mut chat = chat(1 << 20);
        chat.append("a", &[2; 230], false).unwrap();
        assert_eq!(chat.append("b", &[3; 20], true), Ok(Added::Full));
        assert_eq!(chat.append("b", &[3; 21], true), Err(Refusal::Pins { tokens: 21, most: 20 }));
    }

    #[test]
    fn a_turn_appended_before_is_found_while_another_is_generated() {
        let mut chat = chat(1 << 20);
        let added = chat.append("a", &[2], false);
        chat.begin("b", &[3], 4).unwrap();
        assert_eq!(chat.append("a", &[2], false), added);
        assert_eq!(chat.append("b", &[3], false), Err(Refusal::StillRunning("b".into())));
        assert_eq!(chat.append("c", &[3], false), Err(Refusal::Busy("b".into())));
    }
}
