//! Chats against a simple model: after any operations, the context is token for token as the model has it.
//!
//! The model keeps the literal context behind every number of turns, so that a rewind is a look-up, and knows nothing of layouts.

use proptest::prelude::*;
use trunkline_chat::{Added, Answer, Begun, Chat, End, Fixed, Frame, Limits, News, Phase, Plan, Usage, Want, Wanted};

const PREFIX: [u32; 3] = [1, 2, 3];
const FRAME: [u32; 2] = [7, 8];

fn frame() -> Frame {
    Frame { before: FRAME[..1].into(), behind: FRAME[1..].into() }
}

fn limits(bytes: u64) -> Limits {
    let wanted = Wanted { summary: Some(6), pins: Some(12), high: Some(60), low: Some(20) };
    Limits::new(128, Fixed { prefix: 3, frame: 2, instruction: 4 }, wanted, bytes).unwrap()
}

fn chat(bytes: u64) -> Chat {
    Chat::new(PREFIX.to_vec(), frame(), limits(bytes))
}

fn answer(tokens: Vec<u32>) -> Answer {
    let usage = Usage { prompt: 5, cached: 3, completion: tokens.len() as u32, preemptions: 0 };
    Answer { tokens, text: "text".into(), end: End::Length, usage }
}

/// The model: literal contexts, and the turns.
struct Model {
    /// Context after each number of turns.
    contexts: Vec<Vec<u32>>,
    /// Tokens of each turn, and `true` if the turn is pinned.
    turns: Vec<(Vec<u32>, bool)>,
    first_recent: Vec<usize>,
}

impl Model {
    fn new() -> Self {
        Self { contexts: vec![PREFIX.to_vec()], turns: Vec::new(), first_recent: vec![0] }
    }

    fn add(&mut self, tokens: Vec<u32>, pinned: bool) {
        let context = [self.contexts.last().unwrap(), &tokens[..]].concat();
        self.contexts.push(context);
        self.first_recent.push(*self.first_recent.last().unwrap());
        self.turns.push((tokens, pinned));
    }

    /// The context after a change to `first` recent turns, with a summary.
    fn compact(&mut self, first: usize, summary: &[u32]) {
        let mut context = PREFIX.to_vec();
        for (tokens, pinned) in &self.turns[..first] {
            context.extend(tokens.iter().filter(|_| *pinned));
        }
        if !summary.is_empty() {
            context.push(FRAME[0]);
            context.extend_from_slice(summary);
            context.push(FRAME[1]);
        }
        self.turns[first..].iter().for_each(|(tokens, _)| context.extend_from_slice(tokens));
        *self.contexts.last_mut().unwrap() = context;
        *self.first_recent.last_mut().unwrap() = first;
    }

    fn rewind(&mut self, turns: usize) {
        self.contexts.truncate(turns + 1);
        self.first_recent.truncate(turns + 1);
        self.turns.truncate(turns);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Append(u32, bool),
    Turn(u32, u32),
    GiveUp(u32),
    Begin(u32),
    End(u32),
    Plan(Option<u32>),
    Summary(u32),
    Warm,
    Fail,
    Rewind(u8),
    Save,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1_u32..30, any::<bool>()).prop_map(|(n, pinned)| Op::Append(n, pinned)),
        5 => (0_u32..20, 1_u32..20).prop_map(|(input, output)| Op::Turn(input, output)),
        1 => (0_u32..20).prop_map(Op::GiveUp),
        1 => (0_u32..20).prop_map(Op::Begin),
        2 => (1_u32..20).prop_map(Op::End),
        3 => prop::option::of(0_u32..70).prop_map(Op::Plan),
        3 => (0_u32..9).prop_map(Op::Summary),
        3 => Just(Op::Warm),
        1 => Just(Op::Fail),
        1 => any::<u8>().prop_map(Op::Rewind),
        1 => Just(Op::Save),
    ]
}

/// A chat, its model, and the numbers for new tokens.
struct Run {
    chat: Chat,
    model: Model,
    next: u32,
    plan: Option<Plan>,
    running: Option<Vec<u32>>,
}

impl Run {
    fn fresh(&mut self, n: u32) -> Vec<u32> {
        let from = self.next;
        self.next += n;
        (from..self.next).collect()
    }

    /// Begins a turn, drops turns if the context is full, and checks the prompt.
    fn begin(&mut self, input: &[u32], answer: u32) {
        loop {
            match self.chat.begin("", input, answer) {
                Ok(Begun::Prompt { prompt, .. }) => {
                    assert_eq!(prompt, [self.model.contexts.last().unwrap(), input].concat());
                    self.running = Some(input.to_vec());
                    return;
                }
                Ok(Begun::Full) => self.drop_for(input.len() as u64 + u64::from(answer)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn drop_for(&mut self, needed: u64) {
        let summary = self.chat.layout().summary.to_vec();
        assert!(self.chat.drop_oldest(needed), "a full context can drop");
        self.model.compact(self.chat.layout().first_recent as usize, &summary);
    }

    /// Follows a layout that took effect.
    fn follow(&mut self, version: u64) {
        let layout = self.chat.layout().clone();
        if layout.version != version {
            self.model.compact(layout.first_recent as usize, &layout.summary);
        }
    }

    fn end(&mut self, n: u32) {
        let Some(input) = self.running.take() else { return };
        let (output, version) = (self.fresh(n), self.chat.layout().version);
        self.chat.end(answer(output.clone())).unwrap();
        self.model.add([input, output].concat(), false);
        self.follow(version);
    }

    fn apply(&mut self, op: Op) {
        let version = self.chat.layout().version;
        match op {
            Op::Append(n, pinned) if self.running.is_none() => {
                let tokens = self.fresh(n);
                loop {
                    match self.chat.append("", &tokens, pinned) {
                        Ok(Added::Turn(_)) => break self.model.add(tokens, pinned),
                        Ok(Added::Full) => self.drop_for(n.into()),
                        Err(_) => break assert!(pinned, "only pins are bounded so low"),
                    }
                }
            }
            Op::Turn(input, output) if self.running.is_none() => {
                let input = self.fresh(input);
                self.begin(&input, 20);
                self.end(output);
            }
            Op::GiveUp(n) if self.running.is_none() => {
                let input = self.fresh(n);
                self.begin(&input, 20);
                let version = self.chat.layout().version;
                self.chat.give_up();
                self.running = None;
                self.follow(version);
            }
            Op::Begin(n) if self.running.is_none() => {
                let input = self.fresh(n);
                self.begin(&input, 20);
            }
            Op::End(n) => self.end(n),
            Op::Plan(keep) => {
                let plan = self.chat.plan(Want { keep, room: 0 });
                if let Some(plan) = plan {
                    assert_eq!(&plan.context, self.model.contexts.last().unwrap());
                    self.plan = Some(plan);
                }
            }
            Op::Summary(n) => {
                let summary = self.fresh(n);
                let number = self.plan.as_ref().map_or(0, |plan| plan.number);
                self.chat.summarised(number, summary, Usage::default());
            }
            Op::Warm => {
                self.chat.warmed(self.plan.as_ref().map_or(0, |plan| plan.number), Usage::default());
                self.follow(version);
            }
            Op::Fail => self.chat.failed(self.plan.as_ref().map_or(0, |plan| plan.number), "as the test wants"),
            Op::Rewind(to) if self.running.is_none() => {
                let turns = usize::from(to) % (self.model.turns.len() + 1);
                if self.chat.rewind(turns as u64).is_ok() {
                    self.model.rewind(turns);
                }
            }
            Op::Save if self.running.is_none() => {
                let saved = self.chat.save();
                self.chat = Chat::restore(saved.clone(), *self.chat.limits()).unwrap();
                assert_eq!(self.chat.save(), saved);
                self.plan = None;
            }
            _ => {}
        }
    }

    fn check(&self) {
        let chat = &self.chat;
        assert_eq!(&chat.context(), self.model.contexts.last().unwrap());
        assert_eq!(chat.n_turns() as usize, self.model.turns.len());
        assert_eq!(chat.layout().first_recent as usize, *self.model.first_recent.last().unwrap());
        let segments = chat.segments();
        assert_eq!(segments.iter().map(|segment| segment.tokens).sum::<u32>() as usize, chat.context().len());
        assert!(segments[1].tokens <= 12 && segments[2].tokens <= 8, "pins and summary are bounded: {segments:?}");
        assert!(chat.context_tokens() <= 128);
        let fork = chat.fork(chat.n_turns()).unwrap();
        assert_eq!(fork.context(), chat.context());
    }
}

proptest! {
    #[test]
    fn the_context_is_token_for_token_that_of_the_model(
        ops in prop::collection::vec(op(), 1..120),
        small in any::<bool>(),
    ) {
        let chat = chat(if small { 6000 } else { 1 << 20 });
        let mut run = Run { chat, model: Model::new(), next: 100, plan: None, running: None };
        for op in ops {
            run.apply(op);
            run.check();
        }
    }
}

/// Turns of ten tokens until a compaction is due; returns their number.
fn fill(chat: &mut Chat) -> u64 {
    while !chat.is_long() {
        assert!(matches!(chat.begin("", &[9; 4], 6), Ok(Begun::Prompt { .. })));
        chat.end(answer(vec![5; 6]));
    }
    chat.n_turns()
}

#[test]
fn a_chat_is_compacted_from_the_high_to_the_low_watermark_and_in_use_meanwhile() {
    let mut chat = chat(1 << 20);
    assert_eq!(fill(&mut chat), 7, "70 tokens are above 60");
    let plan = chat.plan(Want::default()).unwrap();
    assert_eq!((plan.context.len(), plan.dropped.len()), (73, 50), "20 tokens are kept");
    assert_eq!(plan.context_prompt(&[4; 4]).len(), 77);
    assert_eq!(plan.sampled_prompt(&[1], 8, &[4; 4]).len(), 13);
    assert!(!chat.is_long(), "one compaction at a time");
    assert_eq!(chat.plan(Want::default()), None);
    let Ok(Begun::Prompt { prompt, .. }) = chat.begin("later", &[9; 4], 6) else { panic!() };
    assert_eq!(prompt[..73], plan.context, "the old context is in use");
    let context = chat.summarised(plan.number, vec![6; 9], Usage::default()).unwrap();
    assert_eq!(context.len(), 3 + 8 + 20, "a summary of 6 tokens with a frame of 2");
    chat.warmed(plan.number, Usage::default());
    assert_eq!(chat.phase(), Phase::Ready, "a turn is running");
    chat.end(answer(vec![5; 6]));
    assert_eq!((chat.phase(), chat.context_tokens()), (Phase::Idle, 41));
    let notice = chat.notices().last().unwrap();
    assert_eq!(notice.news, News::Compacted { version: 1, before: 83, after: 41, turns: 5 });
}

#[test]
fn a_failed_compaction_keeps_the_context_and_a_full_one_drops_its_oldest_turns() {
    let mut chat = chat(1 << 20);
    fill(&mut chat);
    let before = chat.context();
    let plan = chat.plan(Want::default()).unwrap();
    chat.failed(plan.number, "the worker failed");
    assert_eq!(chat.context(), before);
    assert_eq!(chat.summarised(plan.number, vec![6], Usage::default()), None, "too late");
    assert!(chat.is_long(), "the next turn tries again");
    let plan = chat.plan(Want::default()).unwrap();
    assert_eq!(chat.summarised(plan.number, vec![], Usage::default()), None, "an empty summary is none");
    assert_eq!(chat.begin("", &[9; 50], 6), Ok(Begun::Full));
    assert!(chat.drop_oldest(56));
    assert!(matches!(chat.begin("", &[9; 50], 6), Ok(Begun::Prompt { .. })));
    let news: Vec<_> = chat.notices().map(|notice| &notice.news).collect();
    assert!(matches!(news[..], [News::Failed { .. }, News::Failed { .. }, News::Dropped { turns: 3, tokens: 30 }]));
    assert_eq!((chat.totals().failed, chat.totals().dropped), (2, 3));
}

#[test]
fn turns_with_an_id_are_answered_once() {
    let mut chat = chat(1 << 20);
    assert!(matches!(chat.begin("a", &[9], 6), Ok(Begun::Prompt { .. })));
    let busy = |chat: &mut Chat, id: &str| chat.begin(id, &[9], 6).unwrap_err().to_string();
    assert_eq!(busy(&mut chat, "a"), "turn 'a' is still being generated");
    assert!(busy(&mut chat, "b").starts_with("turn 'a' is being generated; a session generates one turn"));
    let turn = chat.end(answer(vec![5])).unwrap();
    assert_eq!(chat.begin("a", &[9], 6), Ok(Begun::Stored(turn)));
    assert!(chat.begin("a", &[8], 6).unwrap_err().to_string().starts_with("turn_id 'a' names an earlier turn"));
    assert!(matches!(chat.append("", &[9], false), Ok(Added::Turn(turn)) if turn.id == "1"));
    let again = chat.append("1", &[9], false);
    assert!(matches!(again, Ok(Added::Turn(turn)) if turn.number == 1), "no second turn");
    assert!(chat.begin("", &[9; 200], 1).unwrap_err().to_string().starts_with("the turn needs 201 tokens"));
}

#[test]
fn a_full_transcript_forgets_turns_outside_of_the_context_and_keeps_pins() {
    let mut chat = chat(4000);
    assert!(chat.append("fact", &[4; 5], true).is_ok());
    for _ in 0..6 {
        fill(&mut chat);
        let plan = chat.plan(Want::default()).unwrap();
        chat.summarised(plan.number, vec![6], Usage::default()).unwrap();
        chat.warmed(plan.number, Usage::default());
    }
    assert!(chat.totals().forgotten > 0 && chat.totals().compactions == 6);
    assert_eq!(chat.context()[..8], [1, 2, 3, 4, 4, 4, 4, 4], "the pinned turn is there");
    assert!(chat.rewind(0).unwrap_err().to_string().starts_with("the transcript goes back to turn "));
    assert!(chat.append("big", &[4; 8], true).unwrap_err().to_string().starts_with("pin: pinned turns would have 13"));
}
