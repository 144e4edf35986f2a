//! A proof for each field of requests to `trunkline.v1.Sessions`.

use std::sync::atomic::{AtomicU32, Ordering};

use tonic::{Code, Status};
use trunkline_server::proto::append_turn_request::Input as Appended;
use trunkline_server::proto::create_session_request::System;
use trunkline_server::proto::finish::StoppedBy;
use trunkline_server::proto::generate_turn_request::Input;
use trunkline_server::proto::{
    AppendTurnRequest, CompactSessionRequest, Compaction, CreateSessionRequest, DeleteSessionRequest,
    ExportSessionRequest, FinishReason, ForkSessionRequest, GenerateTurnRequest, GetSessionRequest,
    ImportSessionRequest, ListSessionsRequest, Output, RetentionHint, RewindSessionRequest, Sampling, Session,
    SessionExport, SessionSettings, Stopping, SummaryInput, Timings, TokenIds, TokenLogprob,
};
use trunkline_tests::server::collect;
use trunkline_tests::sessions::{Chat, create, settings, turn};

use crate::proofs::Proof::{self, Differs, Test};
use crate::proofs::{Results, Rig};

const KV_DTYPE: &str = "src/cli/src/serve/kv_dtype_tests.rs";
const SYSTEM: &str = "You are a guide.";

/// Returns three results of one function, of which the last one is made with the change.
macro_rules! with_change {
    ($of:expr) => {
        Differs(|rig| -> Results {
            Box::pin(async move {
                let of = $of;
                [of(rig.clone(), false).await, of(rig.clone(), false).await, of(rig, true).await]
            })
        })
    };
}

/// Creates a session, and shows it after three turns and a compaction.
macro_rules! created {
    ($change:expr) => {
        with_change!(async |rig: Rig, is_changed: bool| {
            let change: fn(&mut CreateSessionRequest) = $change;
            history(&rig, is_changed.then_some(change)).await
        })
    };
}

/// Changes a setting of a session.
macro_rules! set {
    ($change:expr) => {
        created!(|request| {
            let change: fn(&mut SessionSettings) = $change;
            change(request.settings.get_or_insert_default());
        })
    };
}

/// Changes a setting of a session's compaction.
macro_rules! compacted {
    ($change:expr) => {
        set!(|settings| {
            let change: fn(&mut Compaction) = $change;
            change(settings.compaction.get_or_insert_default());
        })
    };
}

/// Changes a request for a turn, after another turn.
macro_rules! turned {
    ($change:expr) => {
        with_change!(async |rig: Rig, is_changed: bool| {
            let change: fn(&mut GenerateTurnRequest) = $change;
            answered(&rig, is_changed.then_some(change)).await
        })
    };
}

/// Changes a turn without an answer.
macro_rules! appended {
    ($change:expr) => {
        with_change!(async |rig: Rig, is_changed: bool| {
            let change: fn(&mut AppendTurnRequest) = $change;
            told(&rig, is_changed.then_some(change)).await
        })
    };
}

/// Changes an export before its import.
macro_rules! imported {
    ($change:expr) => {
        with_change!(async |rig: Rig, is_changed: bool| {
            let change: fn(&mut ImportSessionRequest) = $change;
            moved(&rig, is_changed.then_some(change)).await
        })
    };
}

/// Changes the export of an import.
macro_rules! exported {
    ($change:expr) => {
        imported!(|request| {
            let change: fn(&mut SessionExport) = $change;
            change(request.session.get_or_insert_default());
        })
    };
}

/// Compares a call for a session that is there with one for another.
macro_rules! named {
    ($call:expr) => {
        with_change!(async |rig: Rig, is_changed: bool| {
            let chat = Chat::create(&rig.server, SYSTEM, settings(400, 120)).await;
            let id = if is_changed { "another".to_owned() } else { chat.id.clone() };
            let call: Result<(), Status> = ($call)(chat, id).await;
            format!("{:?}", call.map_or_else(|status| status.code(), |()| Code::Ok))
        })
    };
}

/// Fields with their proofs.
pub const PROOFS: &[(&str, Proof)] = &[
    (
        "CreateSessionRequest.text",
        created!(|request| request.system = Some(System::Text("Another system text.".into()))),
    ),
    (
        "CreateSessionRequest.token_ids",
        created!(|request| request.system = Some(System::TokenIds(TokenIds { ids: vec![1; 9] }))),
    ),
    ("CreateSessionRequest.add_special_tokens", created!(|request| request.add_special_tokens = Some(false))),
    ("CreateSessionRequest.settings", created!(|request| request.settings = None)),
    ("SessionSettings.tenant", with_change!(async |rig: Rig, is_changed: bool| tenant_of(&rig, is_changed).await)),
    (
        "SessionSettings.cache_salt",
        with_change!(async |rig: Rig, is_changed: bool| shared(&rig, is_changed, |settings| settings.cache_salt =
            "another".into())
        .await),
    ),
    (
        "SessionSettings.share_cache",
        with_change!(async |rig: Rig, is_changed: bool| shared(&rig, is_changed, |settings| {
            settings.tenant = "another".into();
            settings.share_cache = Some(true);
        })
        .await),
    ),
    ("SessionSettings.kv_dtype", set!(|settings| settings.kv_dtype = "q8_0".into())),
    ("SessionSettings.h2o", set!(|settings| settings.h2o = "on".into())),
    ("SessionSettings.priority", Test("tests/fields.rs", "priorities_of_sessions_and_summaries_are_recorded")),
    ("SessionSettings.compaction", set!(|settings| settings.compaction = None)),
    ("Compaction.recent_high", compacted!(|compaction| compaction.recent_high = Some(390))),
    ("Compaction.recent_low", compacted!(|compaction| compaction.recent_low = Some(110))),
    ("Compaction.summary_max", compacted!(|compaction| compaction.summary_max = Some(30))),
    ("Compaction.pins_max", compacted!(|compaction| compaction.pins_max = Some(50))),
    ("Compaction.input", compacted!(|compaction| compaction.input = SummaryInput::Context.into())),
    ("Compaction.sample_max", compacted!(|compaction| compaction.sample_max = Some(33))),
    ("Compaction.kv_dtype", Test(KV_DTYPE, "a_session_has_its_summaries_written_in_another_type")),
    ("Compaction.priority", Test("tests/fields.rs", "priorities_of_sessions_and_summaries_are_recorded")),
    (
        "Compaction.instruction",
        compacted!(|compaction| compaction.instruction = Some("Say it shorter than that:".into())),
    ),
    ("Compaction.summary_before", compacted!(|compaction| compaction.summary_before = Some("Once: ".into()))),
    ("Compaction.summary_behind", compacted!(|compaction| compaction.summary_behind = Some("; and now:".into()))),
    ("AppendTurnRequest.session_id", appended!(|request| request.session_id = "another".into())),
    ("AppendTurnRequest.turn_id", appended!(|request| request.turn_id = "mine".into())),
    ("AppendTurnRequest.text", appended!(|request| request.input = Some(Appended::Text("another turn".into())))),
    (
        "AppendTurnRequest.token_ids",
        appended!(|request| request.input = Some(Appended::TokenIds(TokenIds { ids: vec![1; 5] }))),
    ),
    ("AppendTurnRequest.pin", appended!(|request| request.pin = true)),
    ("GenerateTurnRequest.session_id", turned!(|request| request.session_id = "another".into())),
    ("GenerateTurnRequest.turn_id", turned!(|request| request.turn_id = "first".into())),
    ("GenerateTurnRequest.text", turned!(|request| request.input = Some(Input::Text("another turn".into())))),
    (
        "GenerateTurnRequest.token_ids",
        turned!(|request| request.input = Some(Input::TokenIds(TokenIds { ids: vec![1; 5] }))),
    ),
    (
        "GenerateTurnRequest.sampling",
        turned!(|request| request.sampling = Some(Sampling { seed: Some(9), ..Sampling::default() })),
    ),
    (
        "GenerateTurnRequest.stopping",
        turned!(|request| request.stopping = Some(Stopping { max_tokens: Some(3), ..Stopping::default() })),
    ),
    (
        "GenerateTurnRequest.output",
        turned!(|request| request.output = Some(Output { logprobs: Some(1), ..Output::default() })),
    ),
    (
        "GenerateTurnRequest.request_id",
        with_change!(async |rig: Rig, is_changed: bool| named_turn(&rig, is_changed).await),
    ),
    ("GenerateTurnRequest.retention", turned!(|request| request.retention = vec![RetentionHint::default()])),
    (
        "GenerateTurnRequest.timeout_ms",
        turned!(|request| {
            request.stopping = Some(Stopping { max_tokens: Some(250), ignore_eos: true, ..Stopping::default() });
            request.timeout_ms = 1;
        }),
    ),
    (
        "ForkSessionRequest.session_id",
        named!(async |mut chat: Chat, id| chat
            .client
            .fork(ForkSessionRequest { session_id: id, turn_id: None })
            .await
            .map(drop)),
    ),
    (
        "ForkSessionRequest.turn_id",
        with_change!(async |rig: Rig, is_changed: bool| {
            let mut chat = with_two_turns(&rig).await;
            let mut fork = chat.fork(is_changed.then_some("first")).await.expect("a session");
            state(&fork.get().await.expect("a session"))
        }),
    ),
    (
        "RewindSessionRequest.session_id",
        named!(async |mut chat: Chat, id| chat
            .client
            .rewind(RewindSessionRequest { session_id: id, turn_id: String::new() })
            .await
            .map(drop)),
    ),
    (
        "RewindSessionRequest.turn_id",
        with_change!(async |rig: Rig, is_changed: bool| {
            let mut chat = with_two_turns(&rig).await;
            state(&chat.rewind(if is_changed { "first" } else { "" }).await.expect("a session"))
        }),
    ),
    (
        "CompactSessionRequest.session_id",
        named!(async |mut chat: Chat, session_id| {
            chat.client
                .compact(CompactSessionRequest { session_id, ..CompactSessionRequest::default() })
                .await
                .map(drop)
        }),
    ),
    (
        "CompactSessionRequest.keep_tokens",
        with_change!(async |rig: Rig, is_changed: bool| {
            shortened(
                &rig,
                |request| request.keep_tokens = Some(0),
                |request| request.keep_tokens = Some(60),
                is_changed,
            )
            .await
        }),
    ),
    (
        "CompactSessionRequest.instruction",
        with_change!(async |rig: Rig, is_changed: bool| {
            let other = |request: &mut CompactSessionRequest| request.instruction = Some("Say it much shorter:".into());
            shortened(&rig, |request| request.keep_tokens = Some(0), other, is_changed).await
        }),
    ),
    (
        "ExportSessionRequest.session_id",
        named!(async |mut chat: Chat, id| chat.client.export(ExportSessionRequest { session_id: id }).await.map(drop)),
    ),
    ("ImportSessionRequest.session", imported!(|request| request.session = None)),
    ("ImportSessionRequest.tenant", imported!(|request| request.tenant = "acme".into())),
    ("SessionExport.model", exported!(|export| export.model = "another".into())),
    ("SessionExport.settings", exported!(|export| export.settings = None)),
    ("SessionExport.prefix", exported!(|export| export.prefix = Some(TokenIds { ids: vec![1; 9] }))),
    ("SessionExport.forgotten", exported!(|export| export.forgotten = 1)),
    (
        "SessionExport.old_pins",
        exported!(|export| {
            let mut pin = export.turns.remove(0);
            (pin.pinned, pin.id) = (true, "pin".into());
            (export.forgotten, export.layouts[0].since, export.layouts[0].first_recent) = (1, 1, 1);
            export.old_pins = vec![pin];
        }),
    ),
    ("SessionExport.turns", exported!(|export| export.turns.truncate(1))),
    ("SessionExport.layouts", exported!(|export| export.layouts.clear())),
    ("Turn.number", exported!(|export| export.turns[0].number = 7)),
    ("Turn.id", exported!(|export| export.turns[0].id = "another".into())),
    ("Turn.input", exported!(|export| export.turns[1].input = Some(TokenIds { ids: vec![1] }))),
    ("Turn.input_tokens", exported!(|export| export.turns[1].input_tokens = 2000)),
    ("Turn.answer", exported!(|export| (export.turns[0].answer, export.turns[0].finish) = (None, None))),
    ("Turn.finish", exported!(|export| export.turns[0].finish = None)),
    ("Turn.pinned", exported!(|export| export.turns[0].pinned = true)),
    ("Chunk.token_ids", exported!(|export| export.turns[0].answer.as_mut().expect("an answer").token_ids.push(1))),
    ("Chunk.text", exported!(|export| export.turns[0].answer.as_mut().expect("an answer").text.push('x'))),
    (
        "Chunk.logprobs",
        exported!(|export| export.turns[0].answer.as_mut().expect("an answer").logprobs = vec![TokenLogprob::default()]),
    ),
    (
        "Chunk.prompt_logprobs",
        exported!(|export| {
            export.turns[0].answer.as_mut().expect("an answer").prompt_logprobs = vec![TokenLogprob::default()];
        }),
    ),
    (
        "Finish.reason",
        exported!(|export| export.turns[0].finish.as_mut().expect("an end").reason = FinishReason::Abort.into()),
    ),
    ("Finish.usage", exported!(|export| export.turns[0].finish.as_mut().expect("an end").usage = None)),
    (
        "Finish.timings",
        exported!(|export| export.turns[0].finish.as_mut().expect("an end").timings = Some(Timings::default())),
    ),
    ("Finish.stop_token_id", exported!(|export| stopped_by(export, StoppedBy::StopTokenId(5)))),
    ("Finish.stop_string", exported!(|export| stopped_by(export, StoppedBy::StopString("x".into())))),
    ("Usage.prompt_tokens", exported!(|export| usage(export).prompt_tokens += 1)),
    ("Usage.cached_tokens", exported!(|export| usage(export).cached_tokens += 1)),
    ("Usage.completion_tokens", exported!(|export| usage(export).completion_tokens += 1)),
    ("Usage.preemptions", exported!(|export| usage(export).preemptions += 1)),
    ("Usage.copied_tokens", exported!(|export| usage(export).copied_tokens += 1)),
    ("Usage.loaded_tokens", exported!(|export| usage(export).loaded_tokens += 1)),
    ("Usage.pinned_tokens", exported!(|export| usage(export).pinned_tokens += 1)),
    ("Layout.version", exported!(|export| export.layouts[0].version = 8)),
    ("Layout.since", exported!(|export| export.layouts[0].since = 99)),
    ("Layout.first_recent", exported!(|export| export.layouts[0].first_recent = 99)),
    ("Layout.covered", exported!(|export| export.layouts[0].covered = 99)),
    ("Layout.summary", exported!(|export| export.layouts[0].summary = Some(TokenIds { ids: vec![70; 4] }))),
    (
        "GetSessionRequest.session_id",
        named!(async |mut chat: Chat, id| chat
            .client
            .get(GetSessionRequest { session_id: id, without_turns: false })
            .await
            .map(drop)),
    ),
    (
        "GetSessionRequest.without_turns",
        with_change!(async |rig: Rig, without_turns: bool| {
            let mut chat = with_two_turns(&rig).await;
            let request = GetSessionRequest { session_id: chat.id.clone(), without_turns };
            state(&chat.client.get(request).await.expect("a session").into_inner())
        }),
    ),
    (
        "DeleteSessionRequest.session_id",
        named!(async |mut chat: Chat, id| chat.client.delete(DeleteSessionRequest { session_id: id }).await.map(drop)),
    ),
];

fn usage(export: &mut SessionExport) -> &mut trunkline_server::proto::Usage {
    export.turns[0].finish.as_mut().expect("an end").usage.get_or_insert_default()
}

fn stopped_by(export: &mut SessionExport, by: StoppedBy) {
    let finish = export.turns[0].finish.as_mut().expect("an end");
    (finish.reason, finish.stopped_by) = (FinishReason::Stop.into(), Some(by));
}

/// Shows a session without what differs from one to the next.
fn state(session: &Session) -> String {
    // Contexts computed ahead depend on what else runs.
    let mut session = Session { session_id: String::new(), ..session.clone() };
    if let Some(totals) = &mut session.totals {
        (totals.ahead_prompt_tokens, totals.ahead_cached_tokens) = (0, 0);
        (totals.cached_tokens, totals.summary_cached_tokens) = (0, 0);
    }
    for turn in &mut session.turns {
        if let Some(usage) = turn.finish.as_mut().and_then(|finish| finish.usage.as_mut()) {
            usage.cached_tokens = 0;
        }
    }
    format!("{session:?}")
}

fn status(status: &Status) -> String {
    format!("{:?} {}", status.code(), status.message())
}

/// Returns settings with summaries from sampled text.
fn sampled() -> SessionSettings {
    let mut settings = settings(400, 120);
    let compaction = settings.compaction.get_or_insert_default();
    (compaction.input, compaction.sample_max) = (SummaryInput::Sampled.into(), Some(64));
    settings
}

async fn history(rig: &Rig, change: Option<fn(&mut CreateSessionRequest)>) -> String {
    let mut request = create(SYSTEM, sampled());
    if let Some(change) = change {
        change(&mut request);
    }
    let mut chat = Chat::create(&rig.server, SYSTEM, sampled()).await;
    chat.id = match chat.client.create(request).await {
        Ok(session) => session.into_inner().session_id,
        Err(refused) => return status(&refused),
    };
    for _ in 0..3 {
        if let Err(refused) = chat.say("tell me of the house and of its rooms", 20).await {
            return status(&refused);
        }
    }
    let compacted = chat.compact(Some(0)).await.map_err(|refused| status(&refused));
    format!("{compacted:?} {}", state(&chat.settled().await))
}

async fn with_two_turns(rig: &Rig) -> Chat {
    let mut chat = Chat::create(&rig.server, SYSTEM, sampled()).await;
    chat.say_as("first", "tell me of the house", 12).await.expect("an answer");
    chat.say_as("second", "tell me of its rooms", 12).await.expect("an answer");
    chat
}

async fn answered(rig: &Rig, change: Option<fn(&mut GenerateTurnRequest)>) -> String {
    let mut chat = Chat::create(&rig.server, SYSTEM, sampled()).await;
    chat.say_as("first", "tell me of the house", 12).await.expect("an answer");
    let mut request = turn(&chat.id, "", "tell me of its rooms", 12);
    if let Some(change) = change {
        change(&mut request);
    }
    let answer = match chat.client.generate(request).await {
        Ok(stream) => collect(stream.into_inner()).await,
        Err(refused) => Err(refused),
    };
    answer.map_or_else(
        |refused| status(&refused),
        |answer| format!("{:?} {:?} {:?}", answer.token_ids, answer.logprobs, answer.reason),
    )
}

/// Returns the id of the request of a turn, if it is the client's.
async fn named_turn(rig: &Rig, is_named: bool) -> String {
    let mut chat = Chat::create(&rig.server, SYSTEM, sampled()).await;
    let request_id = if is_named { "mine" } else { "" }.to_owned();
    let request = GenerateTurnRequest { request_id, ..turn(&chat.id, "", "tell me", 3) };
    let stream = chat.client.generate(request).await.expect("accepted").into_inner();
    (collect(stream).await.expect("an answer").request_id == "mine").to_string()
}

async fn told(rig: &Rig, change: Option<fn(&mut AppendTurnRequest)>) -> String {
    let mut chat = Chat::create(&rig.server, SYSTEM, sampled()).await;
    let input = Some(Appended::Text("the house has nine rooms".into()));
    let mut request = AppendTurnRequest { session_id: chat.id.clone(), input, ..AppendTurnRequest::default() };
    if let Some(change) = change {
        change(&mut request);
    }
    match chat.client.append(request).await {
        Ok(done) => format!("{:?} {}", done.into_inner(), state(&chat.get().await.expect("a session"))),
        Err(refused) => status(&refused),
    }
}

async fn moved(rig: &Rig, change: Option<fn(&mut ImportSessionRequest)>) -> String {
    let mut chat = with_two_turns(rig).await;
    let mut request = ImportSessionRequest { session: Some(chat.export().await), tenant: String::new() };
    // What a turn found in the cache is as it was.
    for turn in &mut request.session.as_mut().expect("an export").turns {
        turn.finish.as_mut().expect("an end").usage.as_mut().expect("a usage").cached_tokens = 3;
    }
    if let Some(change) = change {
        change(&mut request);
    }
    let imported = match chat.client.import(request).await {
        Ok(session) => session.into_inner(),
        Err(refused) => return status(&refused),
    };
    let mut copy = chat.with_id(imported.session_id.clone());
    let listed = chat.client.list(ListSessionsRequest {}).await.expect("a list").into_inner().sessions;
    let tenant = listed.into_iter().find(|session| session.session_id == imported.session_id);
    let tenant = tenant.map(|session| session.tenant);
    let export = copy.export().await;
    let summary = &imported.summary;
    format!("{tenant:?} {:?} {:?} {export:?} {summary}", imported.segments, imported.limits)
}

/// Returns the tenant of a session in the list of all.
async fn tenant_of(rig: &Rig, is_set: bool) -> String {
    let tenant = if is_set { "acme" } else { "" }.to_owned();
    let mut chat = Chat::create(&rig.server, SYSTEM, SessionSettings { tenant, ..sampled() }).await;
    let listed = chat.client.list(ListSessionsRequest {}).await.expect("a list").into_inner().sessions;
    listed.into_iter().find(|session| session.session_id == chat.id).expect("listed").tenant
}

/// Tokens that the first turn of a session finds of the same turn of another session.
async fn shared(rig: &Rig, is_changed: bool, change: fn(&mut SessionSettings)) -> String {
    // Each result has a cache of its own.
    static CALLS: AtomicU32 = AtomicU32::new(10);
    let system = format!("{} {SYSTEM}", CALLS.fetch_add(1, Ordering::Relaxed));
    let base = |tenant: &str| SessionSettings { tenant: tenant.into(), ..sampled() };
    let is_of_tenants = rig.field.ends_with("share_cache");
    let mut first = base(if is_of_tenants { "acme" } else { "" });
    first.share_cache = is_of_tenants.then_some(true);
    let mut second = base(if is_of_tenants { "another" } else { "" });
    if is_changed {
        change(&mut second);
    }
    let mut found = String::new();
    for settings in [first, second] {
        let mut chat = Chat::create(&rig.server, &system, settings).await;
        found = chat.say("tell me of the house", 4).await.expect("an answer").usage.cached_tokens.to_string();
    }
    found
}

async fn shortened(
    rig: &Rig,
    base: fn(&mut CompactSessionRequest),
    change: fn(&mut CompactSessionRequest),
    is_changed: bool,
) -> String {
    let mut chat = with_two_turns(rig).await;
    let mut request = CompactSessionRequest { session_id: chat.id.clone(), ..CompactSessionRequest::default() };
    base(&mut request);
    if is_changed {
        change(&mut request);
    }
    let done = chat.client.compact(request).await.map(tonic::Response::into_inner);
    let done = done.map_err(|refused| status(&refused));
    format!("{done:?} {}", state(&chat.settled().await))
}
