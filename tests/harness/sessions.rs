//! A client of sessions, and the context of an export assembled independently of the server.

use tonic::transport::Channel;
use tonic::{Code, Status};
use trunkline_server::proto::create_session_request::System;
use trunkline_server::proto::generate_turn_request::Input;
use trunkline_server::proto::sessions_client::SessionsClient;
use trunkline_server::proto::{
    AppendTurnRequest, AppendTurnResponse, CompactSessionRequest, CompactSessionResponse, Compaction,
    CreateSessionRequest, DeleteSessionRequest, ExportSessionRequest, ForkSessionRequest, GenerateTurnRequest,
    GetSessionRequest, ImportSessionRequest, RewindSessionRequest, Sampling, Session, SessionExport, SessionSettings,
    Stopping, append_turn_request,
};

use crate::server::{Answer, TestServer, collect};

/// Times a session is asked for before a test gives up.
const ATTEMPTS_MAX: u32 = 50_000;

/// A session, and a connection to its server.
#[derive(Clone)]
pub struct Chat {
    /// Client of the service.
    pub client: SessionsClient<Channel>,
    /// Id of the session.
    pub id: String,
}

/// Returns settings with watermarks and a short instruction and frame, for a tokenizer of bytes.
pub fn settings(high: u32, low: u32) -> SessionSettings {
    let compaction = Compaction {
        recent_high: Some(high),
        recent_low: Some(low),
        summary_max: Some(40),
        instruction: Some("\nIn short:".into()),
        summary_before: Some("[Before: ".into()),
        summary_behind: Some("]\n".into()),
        ..Compaction::default()
    };
    SessionSettings { compaction: Some(compaction), ..SessionSettings::default() }
}

/// Returns the request of a session.
pub fn create(system: &str, settings: SessionSettings) -> CreateSessionRequest {
    let system = Some(System::Text(system.into()));
    CreateSessionRequest { system, settings: Some(settings), ..CreateSessionRequest::default() }
}

/// Returns the request of a greedy turn with exactly `max_tokens` tokens.
pub fn turn(id: &str, turn_id: &str, text: &str, max_tokens: u32) -> GenerateTurnRequest {
    GenerateTurnRequest {
        session_id: id.into(),
        turn_id: turn_id.into(),
        input: Some(Input::Text(text.into())),
        sampling: Some(Sampling { temperature: Some(0.0), ..Sampling::default() }),
        stopping: Some(Stopping { max_tokens: Some(max_tokens), ignore_eos: true, ..Stopping::default() }),
        ..GenerateTurnRequest::default()
    }
}

impl Chat {
    /// Begins a session.
    pub async fn create(server: &TestServer, system: &str, settings: SessionSettings) -> Self {
        let mut client = SessionsClient::new(server.channel().await);
        let id = client.create(create(system, settings)).await.expect("a session").into_inner().session_id;
        Self { client, id }
    }

    /// Returns another session with the same connection.
    pub fn with_id(&self, id: String) -> Self {
        Self { client: self.client.clone(), id }
    }

    /// Generates a turn.
    pub async fn say(&mut self, text: &str, max_tokens: u32) -> Result<Answer, Status> {
        self.say_as("", text, max_tokens).await
    }

    /// Generates a turn with an id.
    pub async fn say_as(&mut self, turn_id: &str, text: &str, max_tokens: u32) -> Result<Answer, Status> {
        let request = turn(&self.id, turn_id, text, max_tokens);
        collect(self.client.generate(request).await?.into_inner()).await
    }

    /// Adds a turn without an answer.
    pub async fn append(&mut self, turn_id: &str, text: &str, pin: bool) -> Result<AppendTurnResponse, Status> {
        let input = Some(append_turn_request::Input::Text(text.into()));
        let request = AppendTurnRequest { session_id: self.id.clone(), turn_id: turn_id.into(), input, pin };
        Ok(self.client.append(request).await?.into_inner())
    }

    /// The state of the session.
    pub async fn get(&mut self) -> Result<Session, Status> {
        Ok(self.client.get(GetSessionRequest { session_id: self.id.clone(), without_turns: false }).await?.into_inner())
    }

    /// The state of the session, once no compaction is under way.
    pub async fn settled(&mut self) -> Session {
        for _ in 0..ATTEMPTS_MAX {
            let session = self.get().await.expect("the session is there");
            if session.compaction_phase == "idle" {
                return session;
            }
        }
        panic!("the compaction does not end");
    }

    /// The session at rest.
    pub async fn export(&mut self) -> SessionExport {
        let request = ExportSessionRequest { session_id: self.id.clone() };
        self.client.export(request).await.expect("an export").into_inner()
    }

    /// Begins a session from an export.
    pub async fn import(&mut self, export: SessionExport) -> Result<Self, Status> {
        let request = ImportSessionRequest { session: Some(export), tenant: String::new() };
        let session = self.client.import(request).await?.into_inner();
        Ok(self.with_id(session.session_id))
    }

    /// Begins a session with the first turns of this one.
    pub async fn fork(&mut self, turn_id: Option<&str>) -> Result<Self, Status> {
        let request = ForkSessionRequest { session_id: self.id.clone(), turn_id: turn_id.map(Into::into) };
        let session = self.client.fork(request).await?.into_inner();
        Ok(self.with_id(session.session_id))
    }

    /// Goes back to the state after a turn.
    pub async fn rewind(&mut self, turn_id: &str) -> Result<Session, Status> {
        let request = RewindSessionRequest { session_id: self.id.clone(), turn_id: turn_id.into() };
        Ok(self.client.rewind(request).await?.into_inner())
    }

    /// Compacts the history.
    pub async fn compact(&mut self, keep_tokens: Option<u32>) -> Result<CompactSessionResponse, Status> {
        let request = CompactSessionRequest { session_id: self.id.clone(), keep_tokens, instruction: None };
        Ok(self.client.compact(request).await?.into_inner())
    }

    /// Deletes the session.
    pub async fn delete(&mut self) -> Result<(), Status> {
        self.client.delete(DeleteSessionRequest { session_id: self.id.clone() }).await.map(drop)
    }
}

/// Returns the code of a failed call.
pub fn code<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

/// Assembles the context of an export: the tokens before the next turn.
pub fn context(export: &SessionExport) -> Vec<u32> {
    let layout = export.layouts.last().expect("a layout");
    let mut out = export.prefix.clone().unwrap_or_default().ids;
    let tokens = |turn: &trunkline_server::proto::Turn| {
        let input = turn.input.clone().unwrap_or_default().ids;
        [input, turn.answer.clone().unwrap_or_default().token_ids].concat()
    };
    let early = export.old_pins.iter().chain(&export.turns).filter(|turn| turn.number < layout.first_recent);
    early.filter(|turn| turn.pinned).for_each(|turn| out.extend(tokens(turn)));
    let summary = layout.summary.clone().unwrap_or_default().ids;
    if !summary.is_empty() {
        let compaction = export.settings.clone().unwrap_or_default().compaction.unwrap_or_default();
        out.extend(compaction.summary_before.expect("a frame").bytes().map(u32::from));
        out.extend(summary);
        out.extend(compaction.summary_behind.expect("a frame").bytes().map(u32::from));
    }
    export.turns.iter().filter(|turn| turn.number >= layout.first_recent).for_each(|turn| out.extend(tokens(turn)));
    out
}
