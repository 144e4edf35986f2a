//! The gRPC service `trunkline.v1.Sessions`: chats kept by the server.
//!
//! A session is a [`trunkline_chat::Chat`] behind a lock that no await holds. The prompt of a turn is assembled from tokens and
//! submitted like any other request (`submission`), so limits, policies, recordings and draining hold for sessions as for all requests.
//! Summaries are written alongside the turns, by a task of each session (`compactor`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time;
use tonic::{Request, Response, Status};
use trunkline_chat::{Added, Begun, Chat, News, Phase, Refusal, Saved, Want};
use trunkline_core::{Refusal as Refused, Token};
use trunkline_quote::quoted;

mod asked_again;
mod compactor;
mod counts;
mod entry;
mod messages;
mod setup;
mod table;
mod turn_stream;

pub use self::asked_again::{beginning_of_summary, rest_of_summary};
pub use self::setup::{SUMMARY_BEFORE, SUMMARY_INSTRUCTION};
pub use self::table::SessionOptions;

pub(crate) use self::counts::SessionCounts;
pub(crate) use self::table::SessionTable;

use self::compactor::{Compactor, Waiting};
use self::entry::{Entry, RunningTurn, State};
use self::messages::{check_turn_id, refused};
use self::setup::{Setup, tokens_of};
use self::table::no_session;
use self::turn_stream::TurnStream;
use crate::access::caller::Caller;
use crate::driver::commands::Command;
use crate::network::Network;
use crate::proto;
use crate::proto::sessions_server::Sessions;
use crate::service::REQUEST_ID;
use crate::service::stream::Generation;
use crate::service::submission::{Rejection, Submitter};
use crate::service::validate::{self, Invalid, MAX_TOKENS_DEFAULT};

/// Header of a response with the turn's id.
const TURN_ID: &str = "trunkline-turn-id";
/// Largest share of the context for an answer without `max_tokens`.
const ANSWER_SHARE: u32 = 4;

/// Maximum number of tries to make room for a turn.
const TRIES_MAX: u32 = 8;

/// The gRPC service `trunkline.v1.Sessions`.
pub(crate) struct SessionService {
    submitter: Arc<Submitter>,
    network: Arc<Network>,
    table: Arc<SessionTable>,
    counts: Arc<SessionCounts>,
    compactor: Arc<Compactor>,
    /// Request for a summary, by default.
    instruction: String,
    /// Memory of one session, at most, bytes; of one with a long context more.
    bytes: u64,
}

impl SessionService {
    pub(crate) fn new(submitter: Arc<Submitter>, network: Arc<Network>, options: SessionOptions) -> Self {
        let counts = Arc::<SessionCounts>::default();
        let compactor = Compactor { submitter: submitter.clone(), timeout: options.compaction, counts: counts.clone() };
        let (bytes, instruction) = (options.bytes, setup::instruction(options.marks.as_ref()));
        let table = Arc::new(SessionTable::new(options));
        Self { submitter, network, table, counts, compactor: Arc::new(compactor), instruction, bytes }
    }

    /// Returns the table of the sessions and the counts, for metrics.
    pub(crate) fn figures(&self) -> (Arc<SessionTable>, Arc<SessionCounts>) {
        (self.table.clone(), self.counts.clone())
    }

    fn now_ns(&self) -> u64 {
        self.submitter.driver.clock().now_ns()
    }

    /// Returns the time left before a deadline.
    fn left(&self, deadline_ns: Option<u64>) -> Duration {
        deadline_ns.map_or(Duration::MAX, |at_ns| Duration::from_nanos(at_ns.saturating_sub(self.now_ns())))
    }

    fn find(&self, caller: &Caller, id: &str) -> Result<Arc<Entry>, Status> {
        self.table.find(caller, id, self.now_ns())
    }

    /// Finds a session that the call changes; refused while the server drains, because the session would be gone before its next turn.
    fn find_to_change(&self, caller: &Caller, id: &str) -> Result<Arc<Entry>, Status> {
        self.ensure_serving()?;
        self.find(caller, id)
    }

    fn ensure_serving(&self) -> Result<(), Status> {
        let is_stopping = self.submitter.driver.is_stopping();
        if is_stopping { Err(Rejection::Refused(Refused::Draining).into()) } else { Ok(()) }
    }

    fn session(&self, entry: &Entry) -> Response<proto::Session> {
        Response::new(messages::session(entry, &self.submitter.tokenizer, true))
    }

    /// Returns the tokens of a text or of token ids; none for neither.
    async fn tokens(
        &self,
        caller: &Caller,
        text: Option<String>,
        ids: Option<proto::TokenIds>,
        deadline_ns: Option<u64>,
    ) -> Result<Vec<Token>, Status> {
        if let Some(proto::TokenIds { ids }) = ids {
            validate::ensure_ids("token_ids", &ids, self.submitter.model.vocab_size)?;
            return Ok(ids);
        }
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Vec::new()) };
        Ok(self.submitter.tokens_in_time(&caller.client(), text, false, deadline_ns).await?)
    }

    /// Makes room in a full context for a turn of `needed` tokens: waits for the compaction under way, else for a new one, and if
    /// that is not enough, drops the oldest turns. `tried` counts the tries of the turn.
    async fn make_room(
        &self,
        entry: &Arc<Entry>,
        caller: &Caller,
        needed: u64,
        (changes, tried): (&mut watch::Receiver<u64>, &mut u32),
        deadline_ns: Option<u64>,
    ) -> Result<(), Status> {
        // Nobody would get the summary, and the turns would be gone from an export.
        self.ensure_serving()?;
        let is_idle = {
            let mut state = entry.lock();
            if *tried == 0 && state.hurry() && state.chat.phase() == Phase::Idle {
                return Ok(());
            }
            state.chat.phase() == Phase::Idle
        };
        if is_idle {
            let want = Want { keep: None, room: needed };
            let started = *tried == 0 && self.compactor.start(entry, caller, want, (Waiting::Turn, None));
            // Another call may have begun a compaction, or made room, meanwhile.
            let dropped = {
                let mut state = entry.lock();
                let is_idle = !started && state.chat.phase() == Phase::Idle;
                *tried += u32::from(started || is_idle);
                is_idle && state.chat.drop_oldest(needed)
            };
            if !started {
                let defect = || Status::internal("the context is full, and no turn can be dropped");
                return if dropped || *tried < TRIES_MAX { Ok(()) } else { Err(defect()) };
            }
        }
        let left = self.left(deadline_ns);
        let late = |_| Status::deadline_exceeded("time was up while the history was being compacted");
        // The entry holds the sender.
        let _ = time::timeout(left, changes.changed()).await.map_err(late)?;
        Ok(())
    }

    /// Runs `attempt` until the context is not full and no other turn runs. Another turn that runs may be a cancelled one whose end is
    /// still on the way: the wait for it is short.
    async fn with_room<T>(
        &self,
        entry: &Arc<Entry>,
        caller: &Caller,
        needed: u64,
        deadline_ns: Option<u64>,
        mut attempt: impl FnMut(&mut State) -> Result<Option<T>, Refusal>,
    ) -> Result<T, Status> {
        let (mut changes, mut tried) = (entry.changes.subscribe(), 0);
        let patience = self.left(deadline_ns).min(self.network.limits.cancelled);
        let patience = time::sleep(patience);
        tokio::pin!(patience);
        loop {
            changes.mark_unchanged();
            let attempted = {
                let mut state = entry.lock();
                if state.deleted {
                    return Err(no_session(&entry.id));
                }
                // A turn that waits for room uses the session.
                state.used_ns = self.now_ns();
                attempt(&mut state)
            };
            match attempted {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(refusal) if refusal.passes() => {
                    tokio::select! {
                        biased;
                        _ = changes.changed() => continue,
                        () = &mut patience => return Err(refused(refusal)),
                    }
                }
                Err(refusal) => return Err(refused(refusal)),
            }
            self.make_room(entry, caller, needed, (&mut changes, &mut tried), deadline_ns).await?;
        }
    }

    /// Submits the prompt of a turn that has begun.
    async fn run_turn(
        &self,
        turn: RunningTurn,
        caller: Caller,
        request: proto::GenerateRequest,
        (arrival_ns, timeout): (u64, Option<Duration>),
    ) -> Result<Response<TurnStream>, Status> {
        let submitter = &self.submitter;
        let mut checked = turn.entry().setup.check(submitter, request)?;
        checked.session.clone_from(&turn.entry().id);
        let (stop, min_tokens) = (std::mem::take(&mut checked.stop), checked.request.min_tokens);
        let skip_special_tokens = checked.skip_special_tokens;
        let submitted = submitter.submit(&caller, checked, arrival_ns, timeout).await.inspect_err(|rejection| {
            self.network.counters.refusals.count(rejection.reason());
        })?;
        {
            let mut state = turn.entry().lock();
            if state.deleted {
                return Err(no_session(&turn.entry().id));
            }
            state.request = Some(submitted.id());
        }
        self.counts.note_turn();
        let detokenizer = submitter.tokenizer.detokenizer_behind(submitted.prompt_end(), skip_special_tokens);
        let request_id = submitted.client_id().parse().ok();
        let generation = Generation::new(submitted, detokenizer, stop.strings, min_tokens).with_stop(stop.is_sent);
        let mut response = Response::new(TurnStream::running(generation, turn, caller, self.compactor.clone()));
        if let Some(request_id) = request_id {
            response.metadata_mut().insert(REQUEST_ID, request_id);
        }
        Ok(response)
    }

    /// Reads an export.
    async fn read_export(
        &self,
        caller: &Caller,
        export: proto::SessionExport,
        tenant: String,
    ) -> Result<(Setup, Chat), Status> {
        let submitter = &self.submitter;
        let model = &submitter.model;
        if export.model != model.name {
            let (theirs, ours) = (&export.model, &model.name);
            return Err(Status::invalid_argument(format!(
                "session.model is {theirs}; the tokens of a session mean nothing to this model, {ours}",
                theirs = quoted(theirs),
                ours = quoted(ours)
            )));
        }
        let settings = export.settings.unwrap_or_default();
        if !settings.tenant.is_empty() {
            let message = "session.settings.tenant is set; an export has no tenant: set the tenant of the request";
            return Err(Status::invalid_argument(message));
        }
        let settings = proto::SessionSettings { tenant, ..settings };
        let setup = Setup::of(submitter, &caller.client(), settings, &self.instruction).await?;
        let prefix = export.prefix.unwrap_or_default().ids;
        validate::ensure_ids("session.prefix.ids", &prefix, model.vocab_size)?;
        let turns = |name: &str, turns: Vec<proto::Turn>| {
            let turns = turns.into_iter().enumerate();
            let read = |(at, turn)| messages::read_turn(&format!("session.{name}[{at}]"), turn, model.vocab_size);
            turns.map(read).collect::<Result<Vec<_>, Invalid>>()
        };
        let layouts = export.layouts.into_iter().enumerate();
        let layout = |(at, layout)| messages::read_layout(&format!("session.layouts[{at}]"), layout, model.vocab_size);
        let limits = setup.limits(prefix.len(), self.bytes)?;
        let saved = Saved {
            prefix,
            frame: setup.frame.clone(),
            forgotten: export.forgotten,
            old_pins: turns("old_pins", export.old_pins)?,
            turns: turns("turns", export.turns)?,
            layouts: layouts.map(layout).collect::<Result<Vec<_>, Invalid>>()?,
        };
        Ok((setup, Chat::restore(saved, limits).map_err(Invalid::from)?))
    }
}

#[tonic::async_trait]
impl Sessions for SessionService {
    type GenerateStream = TurnStream;

    async fn create(&self, request: Request<proto::CreateSessionRequest>) -> Result<Response<proto::Session>, Status> {
        let caller = Caller::of(request.extensions());
        let message = request.into_inner();
        self.ensure_serving()?;
        let mut settings = message.settings.unwrap_or_default();
        settings.tenant = caller.tenant(settings.tenant)?;
        let setup = Setup::of(&self.submitter, &caller.client(), settings, &self.instruction).await?;
        use proto::create_session_request::System;
        let prefix = match message.system {
            Some(System::TokenIds(proto::TokenIds { ids })) => {
                validate::ensure_ids("token_ids", &ids, self.submitter.model.vocab_size)?;
                ids
            }
            system => {
                let text = if let Some(System::Text(text)) = system { text } else { String::new() };
                let special = message.add_special_tokens.unwrap_or(true);
                self.submitter.tokens_in_time(&caller.client(), text, special, None).await?
            }
        };
        let limits = setup.limits(prefix.len(), self.bytes)?;
        let chat = Chat::new(prefix, setup.frame.clone(), limits);
        let entry = self.table.add(&caller, setup, chat, self.now_ns())?;
        Ok(self.session(&entry))
    }

    async fn append(
        &self,
        request: Request<proto::AppendTurnRequest>,
    ) -> Result<Response<proto::AppendTurnResponse>, Status> {
        use proto::append_turn_request::Input;
        let caller = Caller::of(request.extensions());
        let message = request.into_inner();
        let entry = self.find_to_change(&caller, &message.session_id)?;
        check_turn_id(&message.turn_id)?;
        let (text, ids) = match message.input {
            Some(Input::Text(text)) => (Some(text), None),
            Some(Input::TokenIds(ids)) => (None, Some(ids)),
            None => (None, None),
        };
        let input = self.tokens(&caller, text, ids, None).await?;
        let (id, pin) = (message.turn_id, message.pin);
        let append = |state: &mut State| match state.chat.append(&id, &input, pin)? {
            Added::Turn(turn) => Ok(Some((turn, state.chat.context_tokens()))),
            Added::Full => Ok(None),
        };
        let (turn, context_tokens) = self.with_room(&entry, &caller, input.len() as u64, None, append).await?;
        self.compactor.start_if_long(&entry, &caller);
        let tokens = turn.len();
        Ok(Response::new(proto::AppendTurnResponse { turn_id: turn.id.clone(), tokens, context_tokens }))
    }

    async fn generate(&self, request: Request<proto::GenerateTurnRequest>) -> Result<Response<TurnStream>, Status> {
        use proto::generate_turn_request::Input;
        let caller = Caller::of(request.extensions());
        let arrival_ns = self.now_ns();
        let call_timeout = validate::call_timeout(request.metadata());
        let message = request.into_inner();
        let entry = self.find(&caller, &message.session_id)?;
        check_turn_id(&message.turn_id)?;
        let own = (message.timeout_ms > 0).then(|| Duration::from_millis(message.timeout_ms.into()));
        let timeout = [call_timeout, own].into_iter().flatten().min();
        let deadline_ns = timeout.and_then(|timeout| arrival_ns.checked_add(u64::try_from(timeout.as_nanos()).ok()?));
        let (text, ids) = match message.input {
            Some(Input::Text(text)) => (Some(text), None),
            Some(Input::TokenIds(ids)) => (None, Some(ids)),
            None => (None, None),
        };
        let input = self.tokens(&caller, text, ids, deadline_ns).await?;
        if message.output.as_ref().is_some_and(|output| output.prompt_logprobs.is_some()) {
            let line = "output.prompt_logprobs is set; a turn continues what is cached, and reports none of its prompt";
            return Err(Status::invalid_argument(line));
        }
        let mut stopping = message.stopping.unwrap_or_default();
        let answer =
            *stopping.max_tokens.get_or_insert(MAX_TOKENS_DEFAULT.min(entry.setup.context / ANSWER_SHARE).max(1));
        let mut request = proto::GenerateRequest {
            request_id: message.request_id,
            sampling: message.sampling,
            stopping: Some(stopping),
            output: message.output,
            retention: message.retention,
            ..entry.setup.request(vec![0])
        };
        // Wrong fields are refused before anything waits.
        entry.setup.check(&self.submitter, request.clone())?;
        let id = message.turn_id;
        let begin = |state: &mut State| match state.chat.begin(&id, &input, answer)? {
            Begun::Full => Ok(None),
            begun => Ok(Some(begun)),
        };
        let needed = input.len() as u64 + u64::from(answer);
        let (id, mut response) = match self.with_room(&entry, &caller, needed, deadline_ns, begin).await? {
            Begun::Prompt { id, prompt } => {
                let turn = RunningTurn::new(entry, self.submitter.driver.clock());
                request.prompt = Some(proto::generate_request::Prompt::TokenIds(proto::TokenIds { ids: prompt }));
                (id, self.run_turn(turn, caller, request, (arrival_ns, timeout)).await?)
            }
            Begun::Stored(turn) => (turn.id.clone(), Response::new(TurnStream::stored(&turn))),
            Begun::Full => return Err(Status::internal("a full context was taken for a turn")),
        };
        if let Ok(id) = id.parse() {
            response.metadata_mut().insert(TURN_ID, id);
        }
        Ok(response)
    }

    async fn fork(&self, request: Request<proto::ForkSessionRequest>) -> Result<Response<proto::Session>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::ForkSessionRequest { session_id, turn_id } = request.into_inner();
        let entry = self.find_to_change(&caller, &session_id)?;
        let chat = {
            let chat = &entry.lock().chat;
            let turns = turn_id.map_or(Ok(chat.n_turns()), |id| behind(chat, &id));
            turns.and_then(|turns| chat.fork(turns)).map_err(refused)?
        };
        let fork = self.table.add(&caller, entry.setup.clone(), chat, self.now_ns())?;
        Ok(self.session(&fork))
    }

    async fn rewind(&self, request: Request<proto::RewindSessionRequest>) -> Result<Response<proto::Session>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::RewindSessionRequest { session_id, turn_id } = request.into_inner();
        let entry = self.find_to_change(&caller, &session_id)?;
        let rewind = |state: &mut State| {
            state.chat.rewind(behind(&state.chat, &turn_id)?)?;
            state.cancel_compaction();
            Ok(Some(()))
        };
        self.with_room(&entry, &caller, 0, None, rewind).await?;
        entry.changed();
        Ok(self.session(&entry))
    }

    async fn compact(
        &self,
        request: Request<proto::CompactSessionRequest>,
    ) -> Result<Response<proto::CompactSessionResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::CompactSessionRequest { session_id, keep_tokens, instruction } = request.into_inner();
        let entry = self.find_to_change(&caller, &session_id)?;
        let instruction = match instruction {
            Some(text) => Some(tokens_of(&self.submitter, &caller.client(), "instruction", &text).await?),
            None => None,
        };
        let mut changes = entry.changes.subscribe();
        let (before_tokens, done, failed) = {
            let state = entry.lock();
            if state.chat.phase() != Phase::Idle {
                return Err(Status::failed_precondition("a compaction of the session is under way"));
            }
            let totals = state.chat.totals();
            (state.chat.context_tokens(), totals.compactions, totals.failed)
        };
        let started =
            self.compactor.start(&entry, &caller, Want { keep: keep_tokens, room: 0 }, (Waiting::Caller, instruction));
        loop {
            {
                let mut state = entry.lock();
                if state.deleted {
                    return Err(no_session(&entry.id));
                }
                state.used_ns = self.now_ns();
                if state.chat.totals().failed != failed {
                    let news = state.chat.notices().last().map(|notice| &notice.news);
                    let reason = if let Some(News::Failed { reason }) = news { reason } else { "no summary" };
                    return Err(Status::aborted(format!("the compaction failed, and the context stays: {reason}")));
                }
                if state.chat.phase() == Phase::Idle || !started {
                    let (layout, compacted) = (state.chat.layout(), state.chat.totals().compactions != done);
                    if started && !compacted {
                        return Err(Status::aborted("the compaction was cancelled by another call"));
                    }
                    return Ok(Response::new(proto::CompactSessionResponse {
                        compacted,
                        before_tokens,
                        after_tokens: state.chat.context_tokens(),
                        version: layout.version,
                        summary: self.submitter.tokenizer.decode(&layout.summary),
                    }));
                }
            }
            // The entry holds the sender.
            let _ = changes.changed().await;
        }
    }

    async fn export(
        &self,
        request: Request<proto::ExportSessionRequest>,
    ) -> Result<Response<proto::SessionExport>, Status> {
        let caller = Caller::of(request.extensions());
        let entry = self.find(&caller, &request.into_inner().session_id)?;
        let saved = entry.lock().chat.save();
        Ok(Response::new(proto::SessionExport {
            model: self.submitter.model.name.clone(),
            settings: Some(proto::SessionSettings { tenant: String::new(), ..entry.setup.settings.clone() }),
            prefix: Some(proto::TokenIds { ids: saved.prefix }),
            forgotten: saved.forgotten,
            old_pins: saved.old_pins.iter().map(|turn| messages::turn(turn, true)).collect(),
            turns: saved.turns.iter().map(|turn| messages::turn(turn, true)).collect(),
            layouts: saved.layouts.iter().map(|layout| messages::layout(layout, true)).collect(),
        }))
    }

    async fn import(&self, request: Request<proto::ImportSessionRequest>) -> Result<Response<proto::Session>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::ImportSessionRequest { session, tenant } = request.into_inner();
        self.ensure_serving()?;
        let tenant = caller.tenant(tenant)?;
        let export = session.ok_or_else(|| Status::invalid_argument("session is missing; set an export"))?;
        let (setup, chat) = self.read_export(&caller, export, tenant).await?;
        let entry = self.table.add(&caller, setup, chat, self.now_ns())?;
        Ok(self.session(&entry))
    }

    async fn get(&self, request: Request<proto::GetSessionRequest>) -> Result<Response<proto::Session>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::GetSessionRequest { session_id, without_turns } = request.into_inner();
        let entry = self.find(&caller, &session_id)?;
        Ok(Response::new(messages::session(&entry, &self.submitter.tokenizer, !without_turns)))
    }

    async fn list(
        &self,
        request: Request<proto::ListSessionsRequest>,
    ) -> Result<Response<proto::ListSessionsResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let now_ns = self.now_ns();
        let summary = |entry: &Arc<Entry>| {
            let state = entry.lock();
            proto::SessionSummary {
                session_id: entry.id.clone(),
                tenant: entry.setup.settings.tenant.clone(),
                turns: state.chat.n_turns(),
                context_tokens: state.chat.context_tokens(),
                idle_s: now_ns.saturating_sub(state.used_ns) as f64 * 1e-9,
            }
        };
        let sessions = self.table.list(&caller, now_ns).iter().map(summary).collect();
        Ok(Response::new(proto::ListSessionsResponse { sessions }))
    }

    async fn delete(
        &self,
        request: Request<proto::DeleteSessionRequest>,
    ) -> Result<Response<proto::DeleteSessionResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let entry = self.find(&caller, &request.into_inner().session_id)?;
        self.table.remove(&entry.id);
        if let Some(request) = entry.delete()
            && !self.submitter.driver.send_patiently(Command::Abort(vec![request])).await
        {
            return Err(Rejection::Stopped.into());
        }
        Ok(Response::new(proto::DeleteSessionResponse {}))
    }
}

/// Returns the number of turns up to the one with an id; 0 for an empty id.
fn behind(chat: &Chat, id: &str) -> Result<u64, Refusal> {
    if id.is_empty() { Ok(0) } else { chat.turn(id).map(|turn| turn.number + 1) }
}
