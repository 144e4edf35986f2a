//! `serve --simulate`, end to end through gRPC, under a clock that passes at once.

use tonic::transport::{Channel, Endpoint};
use trunkline_cluster::Role;
use trunkline_server::Outcome;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{GenerateRequest, Sampling, Stopping, TokenIds};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_sim_replay::{Arrivals, Settings as Fleet};
use trunkline_sim_workload::Trace;
use trunkline_sim_workload::trace::{Content, TraceRequest, formats};

use super::tests::given;
use super::*;
use crate::model::simulated::clock::{Clock, ManualTime};
use crate::replay::settings::MAX_BATCH_TOKENS;

/// Cost of a token that look-ups save.
const RECOMPUTE_TOKEN_NS: u64 = 1_000_000_000;

/// Answer to a request: text, number of tokens, cached tokens of the prompt.
type Answer = (String, u32, u32);

/// Serves with `flags`, asks for all prompts one after another, `max_tokens` each, and stops. Returns the answers, the end of the run, and the
/// simulated time.
fn run(flags: &[&str], prompts: &[&[u32]], max_tokens: u32) -> (Vec<Answer>, Outcome, u64) {
    let settings = given(flags);
    let engines = Engines::of(&settings, 1).unwrap();
    let clock = Arc::new(ManualTime::default());
    let simulation =
        settings.simulate.simulation(settings.model.as_deref(), settings.weights.as_deref()).unwrap().unwrap();
    refuse_beside_simulation(&settings, &engines).unwrap();
    let mut made = simulated(&settings, engines.workers(), simulation, clock.clone()).unwrap();
    // Waiting for the first look-up always pays.
    made.0[0].recompute_token_ns = RECOMPUTE_TOKEN_NS;
    let options = Options { record: settings.logs.record.clone(), ..Options::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (answers, outcome) = runtime.block_on(async {
        let listener = listen("127.0.0.1:0").await.unwrap();
        let server = with_embedded(listener, &settings, &engines, made, options).await.unwrap();
        let (address, handle) = (format!("http://{}", server.local_addr()), server.handle());
        let serving = tokio::spawn(server.run());
        let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
        let mut answers = Vec::new();
        for prompt in prompts {
            answers.push(ask(InferenceClient::new(channel.clone()), prompt, max_tokens).await);
        }
        handle.drain().await;
        (answers, serving.await.unwrap().unwrap())
    });
    (answers, outcome, clock.now_ns())
}

async fn ask(mut client: InferenceClient<Channel>, prompt: &[u32], max_tokens: u32) -> Answer {
    let request = GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids: prompt.to_vec() })),
        stopping: Some(Stopping { max_tokens: Some(max_tokens), ..Stopping::default() }),
        sampling: Some(Sampling { seed: Some(11), ..Sampling::default() }),
        ..GenerateRequest::default()
    };
    let (mut text, mut tokens, mut cached) = (String::new(), 0, 0);
    let mut stream = client.generate(request).await.unwrap().into_inner();
    while let Some(message) = stream.message().await.unwrap() {
        match message.event {
            Some(Event::Chunk(chunk)) => {
                text += &chunk.text;
                tokens += chunk.token_ids.len() as u32;
            }
            Some(Event::Finish(finished)) => cached = finished.usage.unwrap().cached_tokens,
            _ => {}
        }
    }
    (text, tokens, cached)
}

fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 97 + (seed + i) % 26).collect()
}

#[test]
fn a_simulated_server_answers_and_its_recording_replays() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let flag = format!("--record={}", record.display());
    let (one, other) = (prompt(0, 200), prompt(5, 100));
    let (answers, outcome, took_ns) = run(&["--simulate=h100-80g", &flag], &[&one, &other, &one], 30);
    assert!(answers.iter().all(|(text, tokens, _)| *tokens == 30 && *text == answers[0].0), "{answers:?}");
    assert_eq!(answers.iter().map(|(.., cached)| *cached).collect::<Vec<_>>(), [0, 0, 192]);
    let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    // 90 steps, each of which reads 16 GB of weights at no more than 3.35 TB/s.
    assert!(took_ns > 90 * 4_700_000, "{took_ns}");
}

#[derive(clap::Parser)]
struct ReplayCli {
    #[command(flatten)]
    args: crate::replay::ReplayArgs,
}

#[test]
fn a_recording_is_replayed_under_other_settings() {
    use clap::Parser;

    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let flag = format!("--record={}", path("run.jsonl"));
    let long = prompt(0, 200);
    let (.., outcome, _) =
        run(&["--simulate=h100-80g", "--policy=fcfs", "--device-blocks=99", &flag], &[&long, &long], 30);
    let replay = |flags: &[&str]| -> serde_json::Value {
        let (recording, report) = (path("run.jsonl"), path("report.json"));
        let args = [&["replay", &recording, "--json", &report], flags].concat();
        crate::replay::run(ReplayCli::try_parse_from(args).unwrap().args).unwrap();
        serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap()
    };
    let same = replay(&[]);
    assert_eq!(same["baseline"]["digest"], format!("{:016x}", outcome.digest));
    assert_eq!(same["baseline"]["digest_equal"], true);
    assert_eq!(same["requests"], 2);
    assert_eq!((&same["settings"]["policy"], &same["settings"]["device_blocks"]), (&"fcfs".into(), &99.into()));
    assert_eq!((&same["prefix_hit_tokens"], &same["output_tokens"]), (&192.into(), &60.into()));
    let other = replay(&["--policy=sjf", "--device-blocks=20", "--replicas=2", "--router=round_robin"]);
    assert_eq!((&other["settings"]["device_blocks"], &other["settings"]["replicas"]), (&20.into(), &2.into()));
    assert_eq!(
        (&other["baseline"]["simulated"], &other["prefix_hit_tokens"]),
        (&same["baseline"]["simulated"], &0.into())
    );
}

#[test]
fn blocks_fit_the_device_and_costs_are_those_of_replay() {
    let made = |flags: &[&str]| {
        let settings = given(flags);
        let simulation =
            settings.simulate.simulation(settings.model.as_deref(), settings.weights.as_deref()).unwrap().unwrap();
        simulated(&settings, 1, simulation, Arc::new(ManualTime::default())).unwrap()
    };
    let (config, backend) = made(&["--simulate=h100-80g"]);
    assert_eq!(
        (config[0].device_blocks, config[0].max_batch_tokens, config[0].swap_block_ns),
        (29_043, MAX_BATCH_TOKENS, 38_131)
    );
    assert_eq!((backend.model.name.as_str(), backend.model.vocab_size), ("llama-3.1-8b", 128_256));
    let (config, backend) = made(&["--simulate=h100-80g", "--device-blocks=77", "--host-mem=1GiB"]);
    // Blocks of 2 MiB: half a thousand in host memory.
    let config = &config[0];
    assert_eq!((config.device_blocks, config.host_blocks, config.tiers[0].blocks), (77, 512, 512));
    assert_eq!(backend.stores.len(), 1);
}

#[test]
fn an_echo_ends_with_the_prompt() {
    let (answers, ..) = run(&["--simulate=l4-24g", "--simulate-text=echo"], &[&prompt(0, 20), &prompt(3, 20)], 25);
    let texts: Vec<&str> = answers.iter().map(|(text, ..)| text.as_str()).collect();
    assert_eq!(texts, ["abcdefghijklmnopqrst", "defghijklmnopqrstuvw"]);
}

#[test]
fn preempted_and_moved_requests_have_the_same_text() {
    let long = prompt(0, 160);
    let (plain, ..) = run(&["--simulate=h100-80g"], &[&long], 60);
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let flag = format!("--record={}", record.display());
    let flags = ["--simulate=h100-80g", "--roles=prefill,decode", "--shared-mem=1GiB", &flag];
    let (apart, outcome, _) = run(&flags, &[&long, &long], 60);
    assert_eq!((&apart[0].0, &apart[1].0), (&plain[0].0, &plain[0].0));
    let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    let (swapped, ..) = run(&["--simulate=h100-80g", "--workers=2", "--host-mem=1GiB"], &[&long, &long], 60);
    assert_eq!((&swapped[0].0, &swapped[1].0), (&plain[0].0, &plain[0].0));
}

#[test]
fn prefill_and_decode_apart_decide_in_a_replay_as_they_do_live() {
    let prompts = [prompt(0, 160), prompt(5, 100), [prompt(0, 160), prompt(9, 70)].concat(), prompt(5, 100)];
    let n_tokens = 20;
    let flags = ["--simulate=h100-80g", "--policy=fcfs", "--roles=prefill,decode", "--shared-mem=1GiB"];
    let settings = given(&flags);
    let simulation = settings.simulate.simulation(None, None).unwrap().unwrap();
    let (core, _) = simulated(&settings, 2, simulation.clone(), Arc::new(ManualTime::default())).unwrap();
    let core = Config { recompute_token_ns: RECOMPUTE_TOKEN_NS, ..core[0].clone() };
    let mut fleet = Fleet { core, replicas: 2, arrivals: Arrivals::Serial, shared_memory: true, ..simulation.fleet };
    fleet.routing.roles = vec![Role::Prefill, Role::Decode];
    let traced = |prompt: &Vec<u32>| TraceRequest {
        arrival_ns: 0,
        input_tokens: prompt.len() as u32,
        output_tokens: n_tokens,
        content: Content::Tokens(prompt.as_slice().into()),
        ..TraceRequest::default()
    };
    let trace = Trace { format: formats::TOKENS, requests: prompts.iter().map(traced).collect() };
    let cost = fleet.cost_model().unwrap();
    let replayed = trunkline_sim_replay::replay(&trace, &fleet, &*cost, &mut |_| {}).unwrap();

    // Real copies take as long as they take while the clock stands still, and what they took is learned: on a busy machine a run may compute a block
    // instead of waiting for it. Such a run has other steps, and is not compared.
    let prompts = prompts.each_ref().map(Vec::as_slice);
    let mut runs = (0..20).map(|_| run(&flags, &prompts, n_tokens));
    let same = runs.find(|(_, live, _)| live.stats.steps == replayed.batches.steps);
    let (answers, live, _) = same.expect("a run with the steps of the replay");

    let cached: u64 = answers.iter().map(|(.., cached)| u64::from(*cached)).sum();
    let stats = live.stats;
    assert_eq!((replayed.completed, replayed.tokens.prefix_hit_tokens), (4, cached));
    assert_eq!((replayed.tokens.prefix_blocks, replayed.tokens.prefix_runs), (stats.prefix_blocks, stats.prefix_runs));
    // Blocks stored after the last answer are left out: a live server stops meanwhile.
    assert_eq!(replayed.tiers[0].hit_blocks, stats.tiers[0].hit_blocks);
    // Ten blocks, six blocks, and the four blocks of the third prompt that the decode replica does not have.
    assert_eq!(replayed.tiers[0].hit_blocks, 10 + 6 + 4);
}

#[test]
fn a_model_that_does_not_fit_is_served_with_a_number_of_blocks_as_it_is_replayed() {
    let made = |flags: &[&str]| {
        let settings = given(&[&["--simulate=l4-24g", "--model=llama-3.1-70b"], flags].concat());
        let simulation = settings.simulate.simulation(settings.model.as_deref(), None).unwrap().unwrap();
        let made = simulated(&settings, 1, simulation, Arc::new(ManualTime::default()));
        made.map(|(core, _)| core[0].device_blocks).map_err(|error| error.to_string())
    };
    let refused = made(&[]).unwrap_err();
    assert!(refused.starts_with("llama-3.1-70b does not fit on l4-24g: "), "{refused}");
    assert_eq!(made(&["--device-blocks=100"]), Ok(100));
}

#[test]
fn what_a_simulated_device_cannot_have_is_refused_in_one_line() {
    let refused = |flag: &str| {
        let settings = given(&["--simulate=h100-80g", flag]);
        let engines = Engines::of(&settings, 1).unwrap();
        refuse_beside_simulation(&settings, &engines).unwrap_err().to_string()
    };
    assert_eq!(refused("--worker=null"), "worker does not go with simulate: simulate names the workers");
    assert_eq!(
        refused("--attached-workers=1"),
        "attached-workers does not go with simulate: all workers are simulated"
    );
    assert_eq!(refused("--h2o=on"), "h2o does not go with simulate: a simulated device has no attention scores");
    for flag in ["--threads=2", "--kv-dtype=f16", "--disk=/d", "--remote=file:///r", "--compression=full"] {
        assert!(refused(flag).contains(" does not go with simulate: "), "{flag}");
    }
}
