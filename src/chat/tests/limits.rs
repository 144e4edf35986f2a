//! Exports at each limit: whatever a chat was let in to, a chat with the same limits is restored from.

use proptest::prelude::*;
use trunkline_chat::{Added, Answer, Begun, Chat, End, Fixed, Frame, Limits, Usage, Want, Wanted};

/// Limits of a chat, drawn small.
fn limits() -> impl Strategy<Value = (usize, Limits)> {
    // A turn has a few hundred bytes, whatever its tokens.
    let bytes = prop_oneof![400_u64..2_500, Just(1 << 20)];
    let summary = prop_oneof![1_u32..9, 80_u32..160];
    let (context, wanted) = (90_u32..170, (summary, 0_u32..13, 16_u32..30, 0_u32..16));
    (bytes, context, wanted, 0_usize..20).prop_map(|(bytes, context, (summary, pins, high, low), prefix)| {
        let wanted = Wanted { summary: Some(summary), pins: Some(pins), high: Some(high), low: Some(low) };
        let fixed = Fixed { prefix: prefix as u32, frame: 2, instruction: 3 };
        (prefix, Limits::new(context + 2 * summary, fixed, wanted, bytes).unwrap())
    })
}

#[derive(Clone, Debug)]
enum Op {
    /// Tokens of the input, bytes of the id, and `true` to pin the turn.
    Append(usize, usize, bool),
    /// Tokens of input and answer, bytes of the id, of the text and of the stop string.
    Turn(usize, u32, [usize; 3]),
    /// Tokens kept, tokens of the summary, and turns added while the summary is written.
    Compact(Option<u32>, usize, u8),
    Rewind(u8),
    Fork(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1_usize..14, 0_usize..40, any::<bool>()).prop_map(|(n, id, pinned)| Op::Append(n, id, pinned)),
        4 => (0_usize..20, 1_u32..20, [0_usize..40, 0_usize..900, 0_usize..60])
            .prop_map(|(input, answer, texts)| Op::Turn(input, answer, texts)),
        3 => (prop::option::of(0_u32..40), prop_oneof![0_usize..12, 70_usize..160], 0_u8..3)
            .prop_map(|(keep, summary, turns)| Op::Compact(keep, summary, turns)),
        1 => any::<u8>().prop_map(Op::Rewind),
        1 => any::<u8>().prop_map(Op::Fork),
    ]
}

/// A chat, and a number for new ids.
struct Run {
    chat: Chat,
    next: usize,
}

impl Run {
    /// Returns a new id with so many bytes at least, or an empty one for none.
    fn id(&mut self, bytes: usize) -> String {
        self.next += 1;
        if bytes == 0 { String::new() } else { format!("{:x<bytes$}", format!("i{}-", self.next)) }
    }

    fn append(&mut self, n: usize, id: usize, pinned: bool) {
        let id = self.id(id);
        while let Ok(Added::Full) = self.chat.append(&id, &vec![5; n], pinned) {
            assert!(self.chat.drop_oldest(n as u64), "a full context can drop");
        }
    }

    fn turn(&mut self, input: usize, tokens: u32, [id, text, stop]: [usize; 3]) {
        let id = self.id(id);
        loop {
            match self.chat.begin(&id, &vec![4; input], tokens) {
                Ok(Begun::Full) => assert!(self.chat.drop_oldest(input as u64 + u64::from(tokens))),
                Ok(Begun::Prompt { .. }) => break,
                Ok(Begun::Stored(_)) | Err(_) => return,
            }
        }
        self.check();
        let end = if stop == 0 { End::Length } else { End::StopString("s".repeat(stop)) };
        let usage = Usage { prompt: 1, cached: 0, completion: tokens, preemptions: 0 };
        self.chat.end(Answer { tokens: vec![6; tokens as usize], text: "t".repeat(text), end, usage });
    }

    fn compact(&mut self, keep: Option<u32>, summary: usize, turns: u8) {
        let Some(plan) = self.chat.plan(Want { keep, room: 0 }) else { return };
        (0..turns).for_each(|_| self.turn(1, 2, [0, 30, 0]));
        self.chat.summarised(plan.number, vec![7; summary], Usage::default());
        self.chat.warmed(plan.number, Usage::default());
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Append(n, id, pinned) => self.append(n, id, pinned),
            Op::Turn(input, tokens, texts) => self.turn(input, tokens, texts),
            Op::Compact(keep, summary, turns) => self.compact(keep, summary, turns),
            Op::Rewind(to) => _ = self.chat.rewind(u64::from(to) % (self.chat.n_turns() + 1)),
            Op::Fork(at) => {
                if let Ok(fork) = self.chat.fork(u64::from(at) % (self.chat.n_turns() + 1)) {
                    self.chat = fork;
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        let saved = self.chat.save();
        let restored = Chat::restore(saved.clone(), *self.chat.limits());
        assert_eq!(restored.map(|chat| (chat.context(), chat.save())), Ok((self.chat.context(), saved)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn a_chat_is_restored_whatever_limit_it_has_reached((prefix, limits) in limits(), ops in prop::collection::vec(op(), 1..40)) {
        let frame = Frame { before: [1].into(), behind: [2].into() };
        let mut run = Run { chat: Chat::new(vec![3; prefix], frame, limits), next: 0 };
        run.check();
        ops.iter().for_each(|op| run.apply(op));
    }
}
