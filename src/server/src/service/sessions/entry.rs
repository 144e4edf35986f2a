//! One session: a chat, its settings, and the work under way for the chat.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use trunkline_chat::{Answer, Chat, Phase, Turn};
use trunkline_core::RequestId;

use crate::access::caller::Owner;
use crate::network::clock::Clock;
use crate::network::shares::Share;
use crate::service::sessions::setup::Setup;

/// A session.
pub(crate) struct Entry {
    pub(crate) id: String,
    /// Caller who may use the session.
    pub(crate) owner: Owner,
    pub(crate) setup: Setup,
    /// Grows with every change for which somebody may wait: the end of a turn or of a compaction, and the deletion.
    pub(crate) changes: watch::Sender<u64>,
    state: Mutex<State>,
    /// Counts the session for its client.
    _share: Share,
}

/// Changing part of a session.
pub(crate) struct State {
    pub(crate) chat: Chat,
    /// `true` once the session was deleted.
    pub(crate) deleted: bool,
    /// Time of the last use.
    pub(crate) used_ns: u64,
    /// Request of the running turn, once the core has the request.
    pub(crate) request: Option<RequestId>,
    /// Task of the compaction under way.
    pub(crate) compaction: Option<CompactionTask>,
}

/// Task of a compaction.
pub(crate) struct CompactionTask {
    /// Number of the plan.
    pub(crate) number: u64,
    /// `true` if somebody waits for the compaction.
    pub(crate) urgent: bool,
    pub(crate) handle: AbortHandle,
}

impl Entry {
    pub(crate) fn new(id: String, owner: Owner, setup: Setup, chat: Chat, share: Share, now_ns: u64) -> Arc<Self> {
        let state = State { chat, deleted: false, used_ns: now_ns, request: None, compaction: None };
        let changes = watch::Sender::new(0);
        Arc::new(Self { id, owner, setup, changes, state: Mutex::new(state), _share: share })
    }

    /// Locks the state. The guard is never held across an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everyone who waits for a change.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Marks the session as deleted, and cancels its compaction. Returns the request of the running turn, to be aborted.
    pub(crate) fn delete(&self) -> Option<RequestId> {
        let mut state = self.lock();
        state.deleted = true;
        let request = state.request.take();
        state.cancel_compaction();
        drop(state);
        self.changed();
        request
    }
}

impl State {
    /// Cancels the compaction under way, with its request.
    pub(crate) fn cancel_compaction(&mut self) {
        self.chat.cancel();
        self.abort_task();
    }

    fn abort_task(&mut self) {
        if let Some(task) = self.compaction.take() {
            task.handle.abort();
        }
    }

    /// Hurries the compaction under way for a turn that waits: a new context takes effect without being computed ahead, and a summary
    /// that nobody waited for, at low priority, is cancelled. Returns `true` if a new context took effect, or does once the running turn ends.
    pub(crate) fn hurry(&mut self) -> bool {
        let has_context = self.chat.skip_warming();
        let is_late = self.compaction.as_ref().is_some_and(|task| !task.urgent);
        if has_context {
            self.abort_task();
        } else if is_late && self.chat.phase() == Phase::Summarising {
            self.cancel_compaction();
        }
        has_context
    }
}

/// The running turn of a session. Dropping the value before the answer is whole gives up the turn.
pub(crate) struct RunningTurn {
    entry: Arc<Entry>,
    /// Clock that notes the end as a use of the session.
    clock: Clock,
    ended: bool,
}

impl RunningTurn {
    /// Guards the turn that was just begun.
    pub(crate) fn new(entry: Arc<Entry>, clock: Clock) -> Self {
        Self { entry, clock, ended: false }
    }

    /// Returns the session.
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Ends the turn with an answer.
    pub(crate) fn end(&mut self, answer: Answer) -> Option<Arc<Turn>> {
        self.ended = true;
        let mut state = self.entry.lock();
        (state.request, state.used_ns) = (None, self.clock.now_ns());
        let turn = state.chat.end(answer);
        drop(state);
        self.entry.changed();
        turn
    }
}

impl Drop for RunningTurn {
    fn drop(&mut self) {
        if !self.ended {
            let mut state = self.entry.lock();
            // A turn may take longer than the time to live, also one that breaks off.
            (state.request, state.used_ns) = (None, self.clock.now_ns());
            state.chat.give_up();
            drop(state);
            self.entry.changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_chat::{Fixed, Frame, Limits, Usage, Want, Wanted};

    use super::*;
    use crate::access::caller::Caller;
    use crate::network::shares::Shares;
    use crate::proto::SessionSettings;

    /// A session with eight turns of ten tokens, and a compaction under way whose task never ends.
    async fn compacting(urgent: bool) -> (Arc<Entry>, u64) {
        let wanted = Wanted { summary: Some(8), pins: Some(20), high: Some(60), low: Some(10) };
        let limits = Limits::new(256, Fixed::default(), wanted, 1 << 20).unwrap();
        let mut chat = Chat::new(Vec::new(), Frame::default(), limits);
        (0..8).for_each(|_| drop(chat.append("", &[2; 10], false).unwrap()));
        let number = chat.plan(Want::default()).unwrap().number;
        let (settings, frame, instruction, lead) = Default::default();
        let setup = Setup { settings, frame, instruction, lead, sampled: false, context: 256, summary_context: 256 };
        let share = Shares::new(1).enter(Caller::local().client()).unwrap();
        let entry = Entry::new("id".into(), Owner::Anyone, setup, chat, share, 0);
        let handle = tokio::spawn(std::future::pending::<()>()).abort_handle();
        entry.lock().compaction = Some(CompactionTask { number, urgent, handle });
        (entry, number)
    }

    #[tokio::test]
    async fn a_turn_that_waits_cancels_a_summary_of_low_priority_alone() {
        let (entry, _) = compacting(false).await;
        assert!(!entry.lock().hurry());
        assert_eq!(entry.lock().chat.phase(), Phase::Idle);
        let (entry, _) = compacting(true).await;
        assert!(!entry.lock().hurry());
        assert_eq!(entry.lock().chat.phase(), Phase::Summarising);
        assert!(entry.lock().compaction.is_some());
    }

    #[tokio::test]
    async fn a_turn_that_waits_takes_the_new_context_before_it_is_computed() {
        for urgent in [false, true] {
            let (entry, number) = compacting(urgent).await;
            let mut state = entry.lock();
            state.chat.summarised(number, vec![7; 8], Usage::default()).unwrap();
            assert!(state.hurry());
            assert_eq!((state.chat.phase(), state.chat.totals().compactions), (Phase::Idle, 1));
            assert!(state.compaction.is_none(), "nobody needs the request for the new context");
        }
    }

    #[test]
    fn a_turn_that_breaks_off_is_a_use_of_its_session() {
        let limits = Limits::new(128, Fixed::default(), Wanted::default(), 1 << 20).unwrap();
        let (frame, settings) = (Frame::default(), SessionSettings::default());
        let mut chat = Chat::new(vec![1], frame.clone(), limits);
        chat.begin("", &[2], 4).unwrap();
        let setup = Setup {
            settings,
            frame,
            instruction: Vec::new(),
            lead: Vec::new(),
            sampled: false,
            context: 128,
            summary_context: 128,
        };
        let share = Shares::new(1).enter(Caller::local().client()).unwrap();
        let entry = Entry::new("id".into(), Owner::Anyone, setup, chat, share, 0);
        drop(RunningTurn::new(entry.clone(), Clock::start()));
        let state = entry.lock();
        assert_eq!(state.chat.running_turn(), None);
        assert!(state.used_ns > 0, "the session lives on from the end of the turn");
    }
}
