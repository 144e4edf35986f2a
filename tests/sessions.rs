//! Sessions, through the server's port: long chats over several compactions, and everything that can happen to them.

use std::fs;
use std::time::Duration;

use tonic::{Code, Request};
use trunkline_core::Config;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::sessions_client::SessionsClient;
use trunkline_server::proto::{
    FinishReason, GenerateRequest, GetSessionRequest, ListSessionsRequest, Session, SessionSettings, Stopping,
    SummaryInput, TokenIds, session_notice::News,
};
use trunkline_server::{Options, SUMMARY_INSTRUCTION, SessionOptions};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::gateway::Gateway;
use trunkline_tests::scripted::unwilling;
use trunkline_tests::server::{TestServer, collect, gated, greedy};
use trunkline_tests::sessions::{Chat, code, context, create, settings, turn};

const SYSTEM: &str = "You are the keeper of a small lighthouse. You like short sentences and old maps.\n";
const BLOCK: u32 = 16;
/// Path of the call that generates a turn.
const SAY: &str = "/trunkline.v1.Sessions/Generate";

fn config() -> Config {
    Config { block_size: BLOCK, device_blocks: 512, max_context: 1024, ..Config::default() }
}

async fn server_with(edit: impl FnOnce(&mut SessionOptions)) -> TestServer {
    let mut sessions = SessionOptions::default();
    edit(&mut sessions);
    let edit = |options: &mut Options| options.sessions = sessions;
    TestServer::start_options(config(), edit, |worker| Box::new(worker)).await
}

fn input(n: u32) -> String {
    format!("Turn {n}: what do you see from the window?\n")
}

/// The request without a session that a turn must equal.
fn plain(prompt: Vec<u32>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest { prompt: Some(Prompt::TokenIds(TokenIds { ids: prompt })), ..greedy("", max_tokens) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_chat_finds_its_context_in_the_cache_at_every_turn_and_is_that_of_plain_requests() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl.gz");
    let server = TestServer::start_with(config(), Some(record.clone()), |worker| Box::new(worker)).await;
    let mut plain_client = server.client().await;
    let mut chat = Chat::create(&server, SYSTEM, settings(400, 120)).await;
    let (mut found, mut compactions) = (0, 0);
    // Tokens of the context with KV in the cache: the system text is computed with the first turn.
    let mut known = 0;
    for n in 0..40 {
        let before = context(&chat.export().await);
        let text = input(n);
        let answer = chat.say(&text, 30).await.unwrap();
        let prompt = [before, text.bytes().map(u32::from).collect()].concat();
        assert_eq!(answer.usage.prompt_tokens as usize, prompt.len());
        assert_eq!(answer.usage.cached_tokens, known / BLOCK * BLOCK, "turn {n}");
        found += answer.usage.cached_tokens;
        let same = plain_client.ask(plain(prompt, 30)).await.unwrap();
        assert_eq!(same.token_ids, answer.token_ids, "turn {n}");
        let session = chat.settled().await;
        // The last token of an answer has no KV. A context computed ahead has KV for all tokens.
        known = session.context_tokens - 1;
        let totals = session.totals.unwrap();
        if totals.compactions > compactions {
            compactions = totals.compactions;
            known = session.context_tokens;
            let summary = session.segments.iter().find(|segment| segment.name == "summary").unwrap();
            assert_eq!(summary.tokens, 40 + 9 + 2, "a summary of the longest length, in its frame");
            assert!(session.segments[3].tokens <= 120, "{:?}", session.segments);
        }
        assert!(session.context_tokens < 82 + 51 + 400 + 80);
    }
    let session = chat.settled().await;
    let totals = session.totals.unwrap();
    assert!(totals.compactions >= 6 && totals.failed_compactions + totals.dropped_turns == 0, "{totals:?}");
    assert_eq!(u64::from(found), totals.cached_tokens);
    // The history after the instruction is in the cache, and so is the system text of each new context.
    let missed = totals.summary_prompt_tokens - totals.summary_cached_tokens;
    assert!(missed <= totals.compactions * u64::from("\nIn short:".len() as u32 + BLOCK), "{totals:?}");
    assert_eq!(totals.ahead_cached_tokens, totals.compactions * 80, "the system text has five whole blocks");
    let outcome = server.drain().await;
    let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_rewound_chats_and_imports_into_another_server_answer_alike() {
    let (server, other) = (server_with(|_| ()).await, server_with(|_| ()).await);
    let mut chat = Chat::create(&server, SYSTEM, settings(300, 100)).await;
    assert_eq!(chat.append("fact", "The lamp is green.\n", true).await.unwrap().tokens, 19);
    let mut answers = Vec::new();
    for n in 0..12 {
        answers.push(chat.say_as(&format!("t{n}"), &input(n), 20).await.unwrap().token_ids);
        chat.settled().await;
    }
    let session = chat.get().await.unwrap();
    assert!(session.totals.unwrap().compactions >= 2);
    assert_eq!(session.segments[1].tokens, 19, "the pinned turn left the recent ones and stays");
    let export = chat.export().await;
    let mut imported = Chat::create(&other, "", settings(300, 100)).await.import(export).await.unwrap();
    let mut fork = chat.fork(None).await.unwrap();
    let next = chat.say_as("t12", &input(12), 20).await.unwrap().token_ids;
    assert_eq!(fork.say_as("t12", &input(12), 20).await.unwrap().token_ids, next);
    assert_eq!(imported.say_as("t12", &input(12), 20).await.unwrap().token_ids, next);
    chat.settled().await;
    // Back before the first compaction, whose old context is assembled again.
    for back in [9, 1] {
        let mut early = chat.fork(Some(&format!("t{back}"))).await.unwrap();
        let again = early.say_as("", &input(back + 1), 20).await.unwrap().token_ids;
        assert_eq!(again, answers[back as usize + 1], "as in the original");
    }
    let session = chat.rewind("t5").await.unwrap();
    assert_eq!(session.turns.last().unwrap().id, "t5");
    assert_eq!(chat.say_as("t6", &input(6), 20).await.unwrap().token_ids, answers[6]);
    assert_eq!(code(chat.rewind("t9").await), Code::InvalidArgument, "that turn is gone");
    assert_eq!(chat.rewind("").await.unwrap().context_tokens as usize, SYSTEM.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_sent_again_gets_the_stored_answer() {
    let server = server_with(|_| ()).await;
    let mut chat = Chat::create(&server, SYSTEM, settings(300, 100)).await;
    let mut request = turn(&chat.id, "once", &input(0), 30);
    request.stopping = Some(Stopping { max_tokens: Some(30), stop: vec!["e".into()], ..Stopping::default() });
    let first = collect(chat.client.generate(request.clone()).await.unwrap().into_inner()).await.unwrap();
    let steps = server.client().await.settled().await.counters.unwrap().steps;
    let response = chat.client.generate(request.clone()).await.unwrap();
    assert_eq!(response.metadata().get("trunkline-turn-id").unwrap(), "once");
    let again = collect(response.into_inner()).await.unwrap();
    assert_eq!((&again.token_ids, &again.text), (&first.token_ids, &first.text));
    assert_eq!((again.reason, again.usage, again.stopped_by), (first.reason, first.usage, first.stopped_by));
    assert_eq!(server.client().await.settled().await.counters.unwrap().steps, steps, "nothing was computed");
    let status = chat.say_as("once", "other input", 30).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    let whole = chat.get().await.unwrap();
    assert_eq!(whole.turns.len(), 1);
    let request = GetSessionRequest { session_id: chat.id.clone(), without_turns: true };
    let short = chat.client.get(request).await.unwrap().into_inner();
    assert_eq!(short, Session { turns: Vec::new(), ..whole });
}

#[tokio::test(flavor = "multi_thread")]
async fn without_summaries_the_chat_goes_on_and_its_oldest_turns_leave() {
    let server = server_with(|options| options.compaction = Duration::ZERO).await;
    let mut chat = Chat::create(&server, SYSTEM, settings(400, 120)).await;
    for n in 0..30 {
        chat.say(&input(n), 30).await.unwrap();
    }
    let session = chat.settled().await;
    let totals = session.totals.unwrap();
    assert_eq!(totals.compactions, 0);
    assert!(totals.failed_compactions > 3 && totals.dropped_turns > 10, "{totals:?}");
    let failed = |news: &Option<News>| matches!(news, Some(News::Failed(reason)) if reason.starts_with("time was up"));
    assert!(session.notices.iter().any(|notice| failed(&notice.news)), "{:?}", session.notices);
    assert!(session.notices.iter().any(|notice| matches!(notice.news, Some(News::Dropped(_)))));
    let status = chat.compact(None).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    assert_eq!(status.message(), "the compaction failed, and the context stays: time was up");
    server.client().await.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_too_long_for_the_context_waits_for_a_compaction_that_makes_room() {
    let server = server_with(|_| ()).await;
    let mut chat = Chat::create(&server, SYSTEM, settings(400, 120)).await;
    for n in 0..4 {
        chat.say(&input(n), 30).await.unwrap();
    }
    let before = chat.get().await.unwrap();
    assert_eq!(before.totals.unwrap().compactions, 0);
    let long = "x".repeat(650);
    assert!(before.context_tokens + 650 + 30 > 1024);
    let answer = chat.say(&long, 30).await.unwrap();
    let notices = chat.settled().await.notices;
    let Some(News::Compacted(first)) = &notices[0].news else { panic!("{notices:?}") };
    assert_eq!((first.before_tokens, first.turns), (before.context_tokens, 3), "one turn stays");
    assert_eq!(answer.usage.prompt_tokens, first.after_tokens + 650);
    let after = notices.iter().filter_map(|notice| match &notice.news {
        Some(News::Compacted(done)) => Some(u64::from(done.after_tokens)),
        _ => None,
    });
    let ahead = chat.get().await.unwrap().totals.unwrap().ahead_prompt_tokens;
    assert_eq!(ahead, after.skip(1).sum::<u64>(), "the turn that waits computes the new context itself");
    assert!(notices.iter().all(|notice| !matches!(notice.news, Some(News::Dropped(_)))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_session_takes_its_turn_and_its_compaction_along() {
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), |options| options.network.cancelled = Duration::ZERO, wrap).await;
    let mut chat = Chat::create(&server, SYSTEM, settings(300, 100)).await;
    chat.append("", &input(0).repeat(8), false).await.unwrap();
    assert_eq!(chat.get().await.unwrap().compaction_phase, "summarising", "the gate is closed");
    let mut running = chat.clone();
    let stream = running.client.generate(turn(&chat.id, "busy", &input(1), 30)).await.unwrap().into_inner();
    let status = chat.say_as("other", &input(2), 5).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert_eq!(code(chat.rewind("").await), Code::Aborted);
    assert_eq!(code(chat.append("more", "text", false).await), Code::Aborted);
    assert_eq!(code(chat.say_as("busy", &input(1), 30).await), Code::AlreadyExists);
    chat.delete().await.unwrap();
    assert_eq!(code(chat.get().await), Code::NotFound);
    drop(gate);
    assert_eq!(collect(stream).await.unwrap().reason, FinishReason::Abort);
    let info = server.client().await.settled().await;
    assert_eq!(info.counters.unwrap().finished, 2, "the turn and the summary");
    assert_eq!(info.counters.unwrap().accepted, 2, "and no new context");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_leaves_no_turn_and_the_id_is_free() {
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), |_| (), wrap).await;
    let mut chat = Chat::create(&server, SYSTEM, settings(300, 100)).await;
    drop(chat.client.generate(turn(&chat.id, "a", &input(0), 30)).await.unwrap());
    drop(gate);
    while !chat.get().await.unwrap().running_turn_id.is_empty() {}
    assert_eq!(chat.get().await.unwrap().turns.len(), 0);
    chat.say_as("a", &input(0), 5).await.unwrap();
    assert_eq!(chat.get().await.unwrap().turns.len(), 1);
}

/// A client that stops an answer and asks again is faster than its own cancellation: the next turn is at the server first.
#[tokio::test(flavor = "multi_thread")]
async fn the_turn_behind_a_cancelled_one_is_answered() {
    const ROUNDS: u32 = 12;
    let (wrap, gate) = gated();
    let never = |options: &mut Options| options.network.cancelled = Duration::from_secs(24 * 3600);
    let server = TestServer::start_options(config(), never, wrap).await;
    let mut chat = Chat::create(&server, SYSTEM, SessionSettings::default()).await;
    let mut alone = chat.fork(None).await.unwrap();
    let mut gateway = Gateway::connect(server.addr()).await;
    let mut previous = gateway.open_call(SAY, &turn(&chat.id, "stopped 0", &input(0), 200)).await;
    for round in 1..ROUNDS {
        // Every other time it is the same turn that is sent again.
        let id = format!("stopped {}", round / 2);
        let next = gateway.raw.call(SAY, &turn(&chat.id, &id, &input(round / 2), 200)).await.unwrap();
        gateway.raw.reset(previous).await.unwrap();
        gateway.begun(next).await;
        previous = next;
    }
    let rewind = tokio::spawn({
        let mut chat = chat.clone();
        async move { chat.rewind("").await.map(drop) }
    });
    gateway.raw.reset(previous).await.unwrap();
    rewind.await.unwrap().unwrap();
    let last = gateway.open_call(SAY, &turn(&chat.id, "last", &input(99), 20)).await;
    drop(gate);
    let text = gateway.ended(last).await.text_and_cached().0;
    assert_eq!(text, alone.say_as("last", &input(99), 20).await.unwrap().text, "nothing of the cancelled turns");
    let turns = chat.get().await.unwrap().turns;
    assert_eq!(turns.iter().map(|turn| &turn.id[..]).collect::<Vec<_>>(), ["last"]);
    server.client().await.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_at_will_and_from_sampled_text() {
    let server = server_with(|_| ()).await;
    let mut sampled = settings(400, 120);
    let compaction = sampled.compaction.as_mut().unwrap();
    (compaction.input, compaction.sample_max) = (SummaryInput::Sampled.into(), Some(64));
    let mut chat = Chat::create(&server, SYSTEM, sampled).await;
    assert!(!chat.compact(None).await.unwrap().compacted, "there is nothing yet");
    for n in 0..4 {
        chat.say(&input(n), 30).await.unwrap();
    }
    let before = chat.get().await.unwrap().context_tokens;
    let done = chat.compact(Some(0)).await.unwrap();
    assert!(done.compacted && !done.summary.is_empty());
    assert_eq!((done.before_tokens, done.after_tokens, done.version), (before, SYSTEM.len() as u32 + 51, 1));
    let totals = chat.get().await.unwrap().totals.unwrap();
    assert_eq!(totals.summary_prompt_tokens, 64 + 10, "64 tokens of the history and the instruction");
    chat.say(&input(5), 30).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_summary_is_asked_for_again_without_an_end() {
    let server = TestServer::start_options(config(), |_| (), unwilling).await;
    let mut chat = Chat::create(&server, SYSTEM, settings(400, 120)).await;
    for n in 0..20 {
        chat.say(&input(n), 30).await.unwrap();
        chat.settled().await;
    }
    let session = chat.settled().await;
    let totals = session.totals.unwrap();
    assert!(totals.compactions >= 2 && totals.failed_compactions == 0, "{totals:?}");
    let summary = session.segments.iter().find(|segment| segment.name == "summary").unwrap();
    assert_eq!(summary.tokens, 40 + 9 + 2, "a beginning of 16 tokens, and the rest");
    assert_eq!(totals.summary_completion_tokens, 41 * totals.compactions, "and the end token before");
    assert!(!session.summary.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_for_a_summary_has_the_marks_of_the_model() {
    let mut asked = Vec::new();
    let marks = ("<u>".to_owned(), "</u><a>".to_owned());
    for marks in [None, Some(marks.clone())] {
        let server = server_with(|options| options.marks = marks).await;
        let mut settings = settings(400, 120);
        settings.compaction.as_mut().unwrap().instruction = None;
        let mut chat = Chat::create(&server, SYSTEM, settings).await;
        while chat.settled().await.totals.unwrap().compactions == 0 {
            chat.say(&input(0), 30).await.unwrap();
        }
        asked.push(chat.settled().await.totals.unwrap().summary_prompt_tokens as usize);
    }
    let marked = marks.0.len() + SUMMARY_INSTRUCTION.trim().len() + marks.1.len();
    assert_eq!(asked[1] - marked, asked[0] - SUMMARY_INSTRUCTION.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_bounded_for_each_client_and_in_all() {
    let server = server_with(|options| (options.sessions, options.per_client) = (3, Some(2))).await;
    let mut mine = Chat::create(&server, SYSTEM, SessionSettings::default()).await;
    mine.fork(None).await.unwrap();
    let status = mine.client.create(create("", SessionSettings::default())).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "this client has 2 sessions, which is the limit; delete one, or try again later");
    let endpoint = |last| {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.addr())).unwrap();
        endpoint.local_address(Some([127, 0, 0, last].into()))
    };
    let mut other = SessionsClient::new(endpoint(2).connect().await.unwrap());
    other.create(create("", SessionSettings::default())).await.unwrap();
    let status = other.create(create("", SessionSettings::default())).await.unwrap_err();
    assert!(status.message().starts_with("the server has 3 sessions"), "{status}");
    mine.delete().await.unwrap();
    other.create(create("", SessionSettings::default())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_session_expires_and_makes_room() {
    let server = server_with(|options| (options.ttl, options.sessions) = (Duration::ZERO, 1)).await;
    let mut chat = Chat::create(&server, SYSTEM, SessionSettings::default()).await;
    let status = chat.get().await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(
        status.message(),
        format!("session_id '{}' names no session of this caller; it may have expired", chat.id)
    );
    Chat::create(&server, SYSTEM, SessionSettings::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_its_callers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    let tokens = ["admin-0123456789", "alice-0123456789", "bob---0123456789"];
    let [ops, alice, bob] = tokens;
    fs::write(&path, format!("{ops} admin ops\n{alice} generate alice\n{bob} generate bob\n")).unwrap();
    let edit = |options: &mut Options| options.token_file = Some(path);
    let server = TestServer::start_options(config(), edit, |worker| Box::new(worker)).await;
    let mut client = SessionsClient::new(server.channel().await);
    fn with<T>(token: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        request
    }
    let mut of_bob = create("", SessionSettings { tenant: "bob".into(), ..SessionSettings::default() });
    assert_eq!(code(client.create(with(alice, of_bob.clone())).await), Code::PermissionDenied);
    of_bob.settings = None;
    let id = client.create(with(alice, of_bob)).await.unwrap().into_inner().session_id;
    let get = |id: &str| GetSessionRequest { session_id: id.into(), without_turns: false };
    assert_eq!(code(client.get(with(bob, get(&id))).await), Code::NotFound);
    assert_eq!(code(client.generate(with(bob, turn(&id, "", "hello", 3))).await), Code::NotFound);
    assert_eq!(code(client.get(with(ops, get(&id))).await), Code::Ok);
    assert_eq!(code(client.get(get(&id)).await), Code::Unauthenticated);
    for (token, n) in [(alice, 1), (bob, 0), (ops, 1)] {
        let listed = client.list(with(token, ListSessionsRequest {})).await.unwrap().into_inner().sessions;
        assert_eq!(listed.len(), n);
        assert!(listed.iter().all(|session| session.tenant == "alice" && session.session_id == id));
    }
    collect(client.generate(with(alice, turn(&id, "", "hello", 3))).await.unwrap().into_inner()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_fields_are_refused_by_name() {
    let server = server_with(|_| ()).await;
    let mut chat = Chat::create(&server, SYSTEM, settings(300, 100)).await;
    let long = "x".repeat(300);
    let cases = [
        (chat.say_as(&long, "a", 5).await, "turn_id has 300 bytes; at most 256 are allowed"),
        (chat.say_as("a\nb", "a", 5).await, "turn_id has a control character; use letters, digits and signs"),
        (
            chat.say(&"x".repeat(1000), 30).await,
            "the turn needs 1030 tokens with its answer; the session has room for 892 of 1024, without history",
        ),
        (chat.say("a", 0).await, "max_tokens is 0; ask for at least one token"),
    ];
    for (result, message) in cases {
        let status = result.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
    let status = chat.append("", &"x".repeat(70), true).await.unwrap_err();
    assert_eq!(status.message(), "pin: pinned turns would have 70 tokens; at most 64 are kept word for word");
    let with = |edit: fn(&mut SessionSettings)| {
        let mut settings = settings(300, 100);
        edit(&mut settings);
        create(SYSTEM, settings)
    };
    let create = [
        (
            with(|settings| settings.kv_dtype = "q8_0".into()),
            "kv_dtype is 'q8_0'; the workers of this server have: f32",
        ),
        (
            with(|settings| settings.compaction.as_mut().unwrap().kv_dtype = "q4_0".into()),
            "compaction.kv_dtype is 'q4_0'; the workers of this server have: f32",
        ),
        (
            with(|settings| settings.compaction.as_mut().unwrap().recent_low = Some(300)),
            "recent_low is 300; it must be below recent_high, 300",
        ),
        (
            with(|settings| settings.compaction.as_mut().unwrap().input = 7),
            "compaction.input is 7, which means nothing",
        ),
        (
            with(|settings| settings.h2o = "yes".into()),
            "h2o is 'yes'; it must be off, probe or on, or empty for the server's mode",
        ),
    ];
    for (request, message) in create {
        let status = chat.client.create(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
    let mut export = chat.export().await;
    export.layouts[0].first_recent = 5;
    let status = chat.import(export).await.err().unwrap();
    assert_eq!(status.message(), "session.layouts[0] does not fit the turns or the layout before");
    let mut export = chat.export().await;
    export.model = "another".into();
    assert_eq!(code(chat.import(export).await), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_ends_turns_and_begins_none() {
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), |_| (), wrap).await;
    let mut chat = Chat::create(&server, SYSTEM, settings(300, 100)).await;
    let mut other = chat.fork(None).await.unwrap();
    let stream = chat.client.generate(turn(&chat.id, "", &input(0), 30)).await.unwrap().into_inner();
    server.handle().drain().await;
    let status = other.say("a", 5).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(other.get().await.unwrap().turns.len(), 0);
    // A session that is made or changed now would be gone at its next turn.
    let export = other.export().await;
    assert_eq!(code(other.append("", "a", false).await), Code::Unavailable);
    assert_eq!(code(other.fork(None).await), Code::Unavailable);
    assert_eq!(code(other.compact(None).await), Code::Unavailable);
    assert_eq!(code(other.import(export).await), Code::Unavailable);
    assert_eq!(code(other.client.create(create(SYSTEM, settings(300, 100))).await), Code::Unavailable);
    drop(gate);
    assert_eq!(collect(stream).await.unwrap().token_ids.len(), 30);
    server.stopped().await;
}
