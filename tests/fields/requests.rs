//! A proof for each field of requests to `trunkline.v1.Inference`.

use std::sync::{Arc, Mutex};

use trunkline_core::Config;
use trunkline_port::{DeviceBlocks, Step, StepError, StepOutput, StepRunner};
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::{
    AbortRequest, GenerateRequest, Output, RetentionHint, RetentionPart, Sampling, Stopping, TokenIds,
};
use trunkline_tests::server::{TestServer, collect, gated, greedy};

use crate::proofs::Proof::{self, Changes, Differs, Finds, Refused, Test};
use crate::proofs::Rig;

/// Tests of fields that need a server of another kind.
const H2O: &str = "tests/h2o.rs";
const REUSE: &str = "tests/reuse.rs";
const STRUCTURED: &str = "tests/structured.rs";
const KV_DTYPE: &str = "src/cli/src/serve/kv_dtype_tests.rs";

fn sampling(request: &mut GenerateRequest) -> &mut Sampling {
    request.sampling.get_or_insert_default()
}

fn stopping(request: &mut GenerateRequest) -> &mut Stopping {
    request.stopping.get_or_insert_default()
}

fn output(request: &mut GenerateRequest) -> &mut Output {
    request.output.get_or_insert_default()
}

fn nothing(_: &mut GenerateRequest) {}

/// Lets a request end at the first token that the model has for an end of text, or at one of `stop_token_ids`.
fn may_end(request: &mut GenerateRequest) {
    stopping(request).ignore_eos = false;
}

/// Fields with their proofs.
pub const PROOFS: &[(&str, Proof)] = &[
    ("GenerateRequest.request_id", Differs(|rig| Box::pin(request_id(rig)))),
    ("GenerateRequest.text", Changes(nothing, |request| request.prompt = Some(Prompt::Text("another text".into())))),
    ("GenerateRequest.token_ids", Changes(nothing, |request| request.prompt = Some(ids(&[1, 2, 3])))),
    ("GenerateRequest.add_special_tokens", Changes(nothing, |request| request.add_special_tokens = Some(false))),
    (
        "GenerateRequest.sampling",
        Changes(nothing, |request| request.sampling = Some(Sampling { temperature: Some(0.0), ..Sampling::default() })),
    ),
    ("GenerateRequest.stopping", Changes(nothing, |request| request.stopping = None)),
    (
        "GenerateRequest.output",
        Changes(nothing, |request| request.output = Some(Output { logprobs: Some(1), ..Output::default() })),
    ),
    ("GenerateRequest.cache_salt", Finds(nothing, |request| request.cache_salt = "another".into())),
    ("GenerateRequest.tenant", Finds(nothing, |request| request.tenant = "another".into())),
    ("GenerateRequest.share_cache", Differs(|rig| Box::pin(share_cache(rig)))),
    (
        "GenerateRequest.adapter",
        Refused(|request| request.adapter = "lora".into(), "adapter is 'lora'; this model serves no adapters"),
    ),
    ("GenerateRequest.extra_keys", Finds(nothing, |request| request.extra_keys = vec!["image".into()])),
    ("GenerateRequest.priority", Differs(|_| Box::pin(priority()))),
    ("GenerateRequest.background", Differs(|_| Box::pin(background()))),
    ("GenerateRequest.h2o", Test(H2O, "a_request_chooses_its_mode_and_others_find_the_prompt_whole")),
    (
        "GenerateRequest.kv_dtype",
        Test(KV_DTYPE, "a_request_chooses_the_type_of_its_kv_and_finds_prefixes_of_that_type_alone"),
    ),
    ("GenerateRequest.retention", Differs(|_| Box::pin(retained(None, Some(keep()))))),
    (
        "GenerateRequest.prefetch",
        Test("tests/tiers.rs", "a_prefetched_prompt_is_on_the_device_before_its_request_and_the_recording_replays"),
    ),
    ("GenerateRequest.reuse", Test(REUSE, "copies_are_asked_for_only_where_the_server_makes_some")),
    (
        "GenerateRequest.timeout_ms",
        Changes(|request| stopping(request).max_tokens = Some(400), |request| request.timeout_ms = 1),
    ),
    ("RetentionHint.from", Differs(|_| Box::pin(retained(Some(keep()), Some(RetentionHint { from: 200, ..keep() }))))),
    ("RetentionHint.to", Differs(|_| Box::pin(retained(Some(keep()), Some(RetentionHint { to: Some(32), ..keep() }))))),
    (
        "RetentionHint.part",
        Differs(|_| {
            let first = RetentionHint { to: Some(32), ..keep() };
            let of_answer = RetentionHint { part: RetentionPart::Answer.into(), ..first };
            Box::pin(retained(Some(first), Some(of_answer)))
        }),
    ),
    ("RetentionHint.priority", Differs(|_| Box::pin(retained(Some(hint(35)), Some(hint(80)))))),
    (
        "RetentionHint.ttl_ms",
        Differs(|_| Box::pin(retained(Some(keep()), Some(RetentionHint { ttl_ms: 1, ..keep() })))),
    ),
    (
        "RetentionHint.demote",
        Test("tests/tiers.rs", "a_demoted_request_leaves_the_device_at_once_and_its_recording_replays"),
    ),
    ("RetentionHint.pin", Test("tests/retention.rs", "a_pin_outlives_hints_and_the_answer_says_what_is_pinned")),
    (
        "TokenIds.ids",
        Changes(|request| request.prompt = Some(ids(&[1, 2, 3])), |request| request.prompt = Some(ids(&[1, 2, 4]))),
    ),
    ("Sampling.temperature", Changes(nothing, |request| sampling(request).temperature = Some(0.0))),
    ("Sampling.top_p", Changes(nothing, |request| sampling(request).top_p = Some(0.01))),
    ("Sampling.top_k", Changes(nothing, |request| sampling(request).top_k = 1)),
    ("Sampling.min_p", Changes(nothing, |request| sampling(request).min_p = 1.0)),
    (
        "Sampling.repetition_penalty",
        Changes(
            |request| sampling(request).temperature = Some(0.0),
            |request| sampling(request).repetition_penalty = Some(50.0),
        ),
    ),
    (
        "Sampling.frequency_penalty",
        Changes(
            |request| sampling(request).temperature = Some(0.0),
            |request| sampling(request).frequency_penalty = -2.0,
        ),
    ),
    (
        "Sampling.presence_penalty",
        Changes(
            |request| sampling(request).temperature = Some(0.0),
            |request| sampling(request).presence_penalty = -2.0,
        ),
    ),
    (
        "Sampling.logit_bias",
        Changes(
            |request| sampling(request).temperature = Some(0.0),
            |request| sampling(request).logit_bias = [(3, 100.0)].into(),
        ),
    ),
    ("Sampling.json_schema", Test(STRUCTURED, "all_answers_are_valid_while_64_run_at_once")),
    ("Sampling.regex", Test(STRUCTURED, "each_kind_of_structure_holds_and_ends_its_answer")),
    ("Sampling.grammar", Test(STRUCTURED, "each_kind_of_structure_holds_and_ends_its_answer")),
    ("Sampling.choice", Test(STRUCTURED, "each_kind_of_structure_holds_and_ends_its_answer")),
    ("Choices.texts", Test(STRUCTURED, "each_kind_of_structure_holds_and_ends_its_answer")),
    ("Sampling.seed", Changes(nothing, |request| sampling(request).seed = Some(6))),
    ("Stopping.max_tokens", Changes(nothing, |request| stopping(request).max_tokens = Some(3))),
    ("Stopping.min_tokens", Changes(may_end, |request| stopping(request).min_tokens = 12)),
    (
        "Stopping.stop",
        Changes(
            |request| output(request).skip_special_tokens = Some(false),
            |request| stopping(request).stop = vec!["|>".into()],
        ),
    ),
    ("Stopping.stop_token_ids", Changes(nothing, |request| stopping(request).stop_token_ids = (128..192).collect())),
    ("Stopping.ignore_eos", Changes(nothing, may_end)),
    ("Output.logprobs", Changes(nothing, |request| output(request).logprobs = Some(2))),
    ("Output.prompt_logprobs", Changes(nothing, |request| output(request).prompt_logprobs = Some(2))),
    ("Output.skip_special_tokens", Changes(nothing, |request| output(request).skip_special_tokens = Some(false))),
    (
        "Output.include_stop_string",
        Changes(
            |request| {
                output(request).skip_special_tokens = Some(false);
                stopping(request).stop = vec!["|>".into()];
            },
            |request| output(request).include_stop_string = true,
        ),
    ),
    ("AbortRequest.request_ids", Differs(|_| Box::pin(abort()))),
];

fn ids(ids: &[u32]) -> Prompt {
    Prompt::TokenIds(TokenIds { ids: ids.to_vec() })
}

/// The client's id is in each message, and the server's is another one each time.
async fn request_id(rig: Rig) -> [String; 3] {
    let mut ids = Vec::new();
    for id in ["", "", "mine"] {
        let request = GenerateRequest { request_id: id.into(), ..rig.request("id") };
        ids.push(rig.server.client().await.ask(request).await.expect("an answer").request_id);
    }
    [(ids[0] == "mine").to_string(), (ids[1] == "mine").to_string(), (ids[2] == "mine").to_string()]
}

/// Tokens that a tenant finds of another one's prompt, by the wishes of the second.
async fn share_cache(rig: Rig) -> [String; 3] {
    let mut found = Vec::new();
    for (part, share) in [("first", None), ("again", None), ("shared", Some(true))] {
        let request =
            |tenant: &str, share_cache| GenerateRequest { tenant: tenant.into(), share_cache, ..rig.request(part) };
        let mut client = rig.server.client().await;
        client.ask(request("a", Some(true))).await.expect("an answer");
        found.push(client.ask(request("b", share)).await.expect("an answer").usage.cached_tokens.to_string());
    }
    found.try_into().expect("three")
}

/// Order in which requests have their first step.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<u64>>>);

struct Noted(Box<dyn StepRunner>, Order);

impl StepRunner for Noted {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let mut order = self.1.0.lock().expect("no panic");
        order.extend(step.seqs.iter().filter(|seq| seq.start).map(|seq| seq.request.0));
        drop(order);
        self.0.run(step)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        self.0.blocks()
    }

    fn reset(&mut self) {
        self.0.reset();
    }
}

/// Order of three requests on a server that runs one at a time, with the second and the last as given.
async fn order(second: GenerateRequest, last: GenerateRequest) -> String {
    let order = Order::default();
    let (wrap, gate) = gated();
    let noted = order.clone();
    let config = Config { max_batch_size: 1, policy: "priority".into(), ..Config::default() };
    let server = TestServer::start_with(config, None, |worker| Box::new(Noted(wrap(worker), noted))).await;
    let mut client = server.client().await;
    let mut streams = Vec::new();
    for request in [greedy("a", 1), second, last] {
        streams.push(client.open(request).await.expect("accepted"));
    }
    drop(gate);
    for stream in streams {
        collect(stream).await.expect("an answer");
    }
    server.drain().await;
    let order = order.0.lock().expect("no panic");
    format!("{order:?}")
}

async fn priority() -> [String; 3] {
    let asked = || greedy("a", 1);
    let urgent = GenerateRequest { priority: -1, ..asked() };
    [order(asked(), asked()).await, order(asked(), asked()).await, order(asked(), urgent).await]
}

async fn background() -> [String; 3] {
    let asked = || greedy("a", 1);
    let patient = GenerateRequest { priority: -1, background: true, ..asked() };
    [order(asked(), asked()).await, order(asked(), asked()).await, order(patient, asked()).await]
}

fn hint(priority: u32) -> RetentionHint {
    RetentionHint { priority: Some(priority), ..RetentionHint::default() }
}

fn keep() -> RetentionHint {
    hint(80)
}

/// Tokens of a prompt and of its answer that are found after a flood of other prompts, by a hint of the prompt.
async fn found(hint: Option<RetentionHint>) -> String {
    let server = TestServer::start(Config { device_blocks: 24, ..Config::default() }).await;
    let mut client = server.client().await;
    let text = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";
    let asked = GenerateRequest { retention: hint.into_iter().collect(), ..greedy(text, 40) };
    let answer = client.ask(asked).await.expect("an answer");
    for n in 0..12 {
        let text = format!("{n} is a number of a prompt that is sent once and never again, to fill it.");
        client.ask(greedy(&text, 4)).await.expect("an answer");
    }
    let whole: Vec<u32> = text.bytes().map(u32::from).chain(answer.token_ids).collect();
    let again = GenerateRequest { prompt: Some(ids(&whole)), ..greedy("", 4) };
    let found = client.ask(again).await.expect("an answer").usage.cached_tokens;
    server.drain().await;
    found.to_string()
}

async fn retained(without: Option<RetentionHint>, with: Option<RetentionHint>) -> [String; 3] {
    [found(without).await, found(without).await, found(with).await]
}

/// Number of requests that an abort finds.
async fn abort() -> [String; 3] {
    let (wrap, gate) = gated();
    let server = TestServer::start_with(Config::default(), None, wrap).await;
    let mut client = server.client().await;
    let stream = client.open(GenerateRequest { request_id: "mine".into(), ..greedy("a", 4) }).await.expect("accepted");
    let mut found = Vec::new();
    for ids in [vec![], vec!["another"], vec!["mine"]] {
        let request = AbortRequest { request_ids: ids.into_iter().map(String::from).collect() };
        found.push(client.0.abort(request).await.expect("an answer").into_inner().found.to_string());
    }
    drop((gate, stream));
    server.drain().await;
    found.try_into().expect("three")
}
