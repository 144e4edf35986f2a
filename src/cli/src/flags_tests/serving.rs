//! Proofs for flags of `serve` and `worker`.

use std::fmt::Write;

use clap::Args as _;
use trunkline_core::config::Kind;
use trunkline_server::Options;

use super::Entry;
use super::Proof::{Announces, Reaches, Test};
use crate::model::null_worker::WorkerKind;
use crate::model::weights_settings::Placement;
use crate::serve::tests::given;
use crate::settings::core_settings::CoreSettings;
use crate::settings::engines::Engines;
use crate::settings::serve_settings::{ServeFlags, Settings};
use crate::worker::tests::announced;

const EVENTS: &str = "src/cli/src/settings/events_settings.rs";
const HOSTILE: &str = "tests/hostile.rs";
const ACCESS: &str = "tests/access.rs";
const PROCESS: &str = "src/cli/tests/process.rs";
const WORKER: &str = "src/cli/src/worker.rs";
const H2O: &str = "src/cli/src/settings/h2o_settings.rs";

/// Flags of `serve`, but for those of the core, and of `worker`.
pub const ENTRIES: &[Entry] = &[
    ("serve", "config", Test("src/cli/src/settings/given.rs", "flags_win_over_variables_and_variables_over_the_file")),
    (
        "serve",
        "listen",
        Test(PROCESS, "a_server_in_a_process_logs_each_request_by_its_id_and_reads_files_again_at_sighup"),
    ),
    ("serve", "model", Test("src/cli/src/model/model_source.rs", "random_weights_are_asked_for_by_name")),
    (
        "serve",
        "kv-dtype",
        Test("src/cli/src/serve/kv_dtype_tests.rs", "prefixes_are_found_within_a_type_and_never_across_types"),
    ),
    (
        "serve",
        "record",
        Test("tests/grpc.rs", "a_recording_of_hundreds_of_requests_with_aborts_replays_to_the_same_digest"),
    ),
    (
        "serve",
        "requests",
        Test(PROCESS, "a_server_in_a_process_logs_each_request_by_its_id_and_reads_files_again_at_sighup"),
    ),
    ("serve", "otlp-traces-endpoint", Test(PROCESS, "requests_are_spans_of_their_clients_traces")),
    ("serve", "timeline", Test(PROCESS, "a_server_starts_serves_and_mends_its_weights_under_one_limit_of_memory")),
    ("serve", "log-format", Test(PROCESS, "a_log_in_json_has_an_object_a_line")),
    ("serve", "threads", Reaches("--threads=3", &[])),
    ("serve", "kv-resident", Reaches("--kv-resident=true", &[])),
    (
        "serve",
        "kernel",
        Test("src/cli/src/model/kernel.rs", "a_kernel_is_named_in_the_revision_unless_it_is_the_portable_one"),
    ),
    ("serve", "worker", Reaches("--worker=null:3ms", &[])),
    (
        "serve",
        "weights",
        Test("src/cli/src/serve/placement.rs", "the_built_in_model_streams_from_a_folder_that_is_named"),
    ),
    ("serve", "simulate", Reaches("--simulate=h100-80g", &[])),
    ("serve", "parallel", Reaches("--parallel=tp2", &["--simulate=h100-80g"])),
    ("serve", "cost", Reaches("--cost=roofline", &["--simulate=h100-80g"])),
    ("serve", "engine-overhead", Reaches("--engine-overhead=850", &["--simulate=h100-80g"])),
    ("serve", "simulate-text", Reaches("--simulate-text=echo", &["--simulate=h100-80g"])),
    ("serve", "workers", Reaches("--workers=3", &[])),
    ("serve", "router", Reaches("--router=random2", &["--workers=2"])),
    ("serve", "roles", Reaches("--roles=prefill,decode", &["--workers=2"])),
    ("serve", "share-cache", Reaches("--share-cache=true", &[])),
    ("serve", "step-timeout", Reaches("--step-timeout=7", &[])),
    ("serve", "attached-workers", Reaches("--attached-workers=2", &[])),
    ("serve", "worker-silence", Reaches("--worker-silence=3", &["--attached-workers=1"])),
    ("serve", "worker-resume", Reaches("--worker-resume=3", &["--attached-workers=1"])),
    ("serve", "worker-wait", Reaches("--worker-wait=3", &["--attached-workers=1"])),
    ("serve", "worker-shared-memory", Reaches("--worker-shared-memory=false", &["--attached-workers=1"])),
    ("serve", "host-mem", Reaches("--host-mem=64MiB", &[])),
    ("serve", "disk", Reaches("--disk=folder", &[])),
    ("serve", "disk-size", Reaches("--disk-size=1GiB", &["--disk=folder"])),
    ("serve", "shared-mem", Reaches("--shared-mem=64MiB", &[])),
    ("serve", "remote", Reaches("--remote=file:///folder", &[])),
    ("serve", "compression", Reaches("--compression=store", &["--host-mem=64MiB"])),
    ("serve", "compression-layers", Reaches("--compression-layers=full", &["--host-mem=64MiB"])),
    ("serve", "tier-write", Reaches("--tier-write=back", &["--host-mem=64MiB"])),
    ("serve", "tier-eviction", Reaches("--tier-eviction=lfu", &["--host-mem=64MiB"])),
    (
        "serve",
        "metrics",
        Test("src/cli/src/settings/network_settings.rs", "an_address_of_metrics_is_a_host_and_a_port_that_is_free"),
    ),
    (
        "serve",
        "metrics-names",
        Test("src/cli/src/settings/network_settings.rs", "metrics_have_our_names_or_those_of_vllm"),
    ),
    (
        "serve",
        "served-model-name",
        Test("src/cli/src/settings/http_settings.rs", "names_and_a_template_reach_the_door"),
    ),
    ("serve", "chat-template", Test("src/cli/src/settings/http_settings.rs", "names_and_a_template_reach_the_door")),
    ("serve", "tool-call-parser", Test("tests/chats.rs", "calls_and_reasoning_come_apart_from_the_text")),
    ("serve", "reasoning-parser", Test("tests/chats.rs", "calls_and_reasoning_come_apart_from_the_text")),
    (
        "serve",
        "response-bytes",
        Test("src/cli/src/settings/http_settings.rs", "the_memory_for_responses_reaches_the_door_and_has_a_least_size"),
    ),
    ("serve", "allowed-origins", Test("tests/http.rs", "pages_of_the_origins_that_are_allowed_read_answers")),
    ("serve", "kv-events", Test(EVENTS, "flags_reach_the_publisher")),
    ("serve", "kv-events-endpoint", Test(EVENTS, "flags_reach_the_publisher")),
    ("serve", "kv-events-replay-endpoint", Test(EVENTS, "flags_reach_the_publisher")),
    ("serve", "kv-events-snapshot-endpoint", Test(EVENTS, "flags_reach_the_publisher")),
    ("serve", "kv-events-topic", Test(EVENTS, "flags_reach_the_publisher")),
    ("serve", "kv-events-form", Test(EVENTS, "flags_reach_the_publisher")),
    ("serve", "kv-events-history", Test(EVENTS, "flags_reach_the_publisher")),
    ("serve", "token-file", Test(ACCESS, "roles_decide_and_a_changed_file_takes_effect")),
    ("serve", "admin", Test(HOSTILE, "administration_is_a_switch_without_tokens")),
    ("serve", "tls-cert", Test(ACCESS, "tls_protects_the_port")),
    ("serve", "tls-key", Test(ACCESS, "tls_protects_the_port")),
    ("serve", "tls-client-ca", Test(ACCESS, "a_client_needs_a_certificate_if_the_server_asks_for_one")),
    ("serve", "max-connections", Reaches("--max-connections=7", &[])),
    ("serve", "max-connections-per-peer", Reaches("--max-connections-per-peer=7", &[])),
    ("serve", "max-calls-per-connection", Reaches("--max-calls-per-connection=7", &[])),
    ("serve", "max-queue-per-client", Test("tests/fairness.rs", "one_client_fills_its_share_of_the_queue_and_no_more")),
    ("serve", "max-requests-per-client", Test("tests/fairness.rs", "one_client_has_so_many_open_requests_and_no_more")),
    ("serve", "first-request-timeout", Test(HOSTILE, "a_socket_without_a_request_and_a_request_without_a_message_end")),
    ("serve", "idle-timeout", Test(HOSTILE, "an_idle_connection_ends_and_the_client_connects_again")),
    (
        "serve",
        "unread-timeout",
        Test(HOSTILE, "streams_that_nobody_reads_end_by_time_and_the_others_say_what_they_say_alone"),
    ),
    (
        "serve",
        "drain-timeout",
        Test("tests/grpc.rs", "requests_that_outlast_a_drain_end_so_that_clients_send_them_again"),
    ),
    ("serve", "max-unread-bytes", Test(HOSTILE, "unread_output_is_bounded_in_bytes")),
    ("serve", "max-sessions", Test("tests/sessions.rs", "sessions_are_bounded_for_each_client_and_in_all")),
    ("serve", "max-sessions-per-client", Test("tests/sessions.rs", "sessions_are_bounded_for_each_client_and_in_all")),
    ("serve", "session-bytes", Reaches("--session-bytes=9000", &[])),
    ("serve", "session-ttl", Test("tests/sessions.rs", "an_unused_session_expires_and_makes_room")),
    ("serve", "h2o-layers", Reaches("--h2o-layers=1", &["--h2o=on"])),
    ("serve", "h2o-total", Test(H2O, "heads_that_lose_most_are_whole_unless_others_are_given")),
    ("serve", "h2o-choice", Reaches("--h2o-choice=shared", &["--h2o=on"])),
    ("serve", "h2o-scorer", Reaches("--h2o-scorer=tova", &["--h2o=on"])),
    ("serve", "h2o-ratio", Reaches("--h2o-ratio=1.5", &["--h2o=on"])),
    ("serve", "h2o-sink", Reaches("--h2o-sink=64", &["--h2o=on"])),
    ("serve", "h2o-recent", Reaches("--h2o-recent=64", &["--h2o=on"])),
    ("serve", "h2o-block", Reaches("--h2o-block=48", &["--h2o=on"])),
    ("serve", "h2o-trigger", Reaches("--h2o-trigger=64", &["--h2o=on"])),
    ("serve", "h2o-interval", Reaches("--h2o-interval=5", &["--h2o=on"])),
    ("serve", "h2o-alpha", Reaches("--h2o-alpha=0.5", &["--h2o=on"])),
    ("serve", "h2o-score-interval", Reaches("--h2o-score-interval=3", &["--h2o=on"])),
    (
        "worker",
        "connect",
        Test("tests/worker_end.rs", "the_texts_are_those_of_an_embedded_worker_and_the_worker_stops_in_order"),
    ),
    ("worker", "name", Announces("--name=w")),
    ("worker", "model", Announces("--model=random")),
    ("worker", "null", Announces("--null=5ms")),
    ("worker", "threads", Test(WORKER, "wrong_settings_are_reported_by_name")),
    ("worker", "kv-dtype", Announces("--kv-dtype=f16")),
    (
        "worker",
        "kernel",
        Test("src/cli/src/model/kernel.rs", "a_kernel_is_named_in_the_revision_unless_it_is_the_portable_one"),
    ),
    (
        "worker",
        "weights",
        Test("src/cli/src/serve/placement.rs", "the_built_in_model_streams_from_a_folder_that_is_named"),
    ),
    ("worker", "h2o", Announces("--h2o=on")),
    ("worker", "h2o-layers", Announces("--h2o-layers=1")),
    ("worker", "h2o-total", Test(WORKER, "flags_without_effect_are_named")),
    ("worker", "h2o-choice", Test(WORKER, "flags_without_effect_are_named")),
    ("worker", "device-blocks", Announces("--device-blocks=99")),
    ("worker", "kv-mem", Announces("--kv-mem=64MiB")),
    ("worker", "block-size", Announces("--block-size=24")),
    ("worker", "tls-ca", Test(ACCESS, "a_worker_attaches_over_tls_with_a_token_of_its_role_alone")),
    ("worker", "token-file", Test(ACCESS, "a_worker_attaches_over_tls_with_a_token_of_its_role_alone")),
    ("worker", "shared-memory", Announces("--shared-memory=false")),
    ("worker", "log-format", Test(PROCESS, "a_worker_goes_on_at_sighup_and_logs_in_json")),
    ("worker check", "timeout", Test(PROCESS, "a_check_without_a_worker_ends_after_its_timeout")),
];

/// Returns `true` for a flag of `serve` that is made from a setting of the core: all of these reach the limits, see below.
pub fn is_of_the_core(command: &str, flag: &str) -> bool {
    command == "serve" && CoreSettings::<ServeFlags>::flags().any(|(setting, _)| setting.flag == flag)
}

/// Shows everything that follows from settings before a model is read.
fn reached(settings: &Settings) -> String {
    let mut text = String::new();
    let mut options = Options::default();
    let engines = Engines::of(settings, 2).unwrap();
    let mut config = crate::serve::limits(settings, 1 << 12, 512).unwrap();
    settings.network.apply(&mut options).unwrap();
    settings.logs.apply(&mut options).unwrap();
    options.attach = settings.attach.options(engines.attached()).unwrap();
    options.sessions = settings.sessions.options().unwrap();
    options.step_timeout = crate::serve::step_timeout(settings.step_timeout).unwrap();
    options.share_cache = settings.share_cache.unwrap_or(false);
    let tiers = settings.tiers.tiers(1 << 12, engines.workers()).unwrap();
    let simulation = settings.simulate.simulation(settings.model.as_deref(), None).unwrap();
    let kind: WorkerKind = settings.worker.as_deref().unwrap_or("embedded").parse().unwrap();
    let model = trunkline_worker::Model::seeded(1);
    let model = settings.h2o.divide(model, None, &mut config).unwrap();
    let groups = model.info().groups;
    let placement = Placement::of(settings.weights.as_deref());
    write!(text, "{config:?} {options:?} {engines:?} {tiers:?} {simulation:?} {kind:?} {groups:?} {placement:?}")
        .unwrap();
    text
}

#[test]
fn flags_of_serve_reach_its_limits_and_options() {
    for (_, flag, proof) in ENTRIES.iter().filter(|(command, ..)| *command == "serve") {
        let Reaches(with, others) = proof else { continue };
        let without = reached(&given(others));
        assert_eq!(without, reached(&given(others)), "--{flag}: the same settings reach the same");
        assert_ne!(without, reached(&given(&[&[*with], *others].concat())), "{with} has no effect");
    }
}

#[test]
fn flags_of_the_core_reach_its_limits() {
    for (setting, _) in CoreSettings::<ServeFlags>::flags() {
        let value = match (setting.kind, setting.flag) {
            (_, "policy") => "fcfs",
            (_, "eviction") => "lfu",
            (_, "preemption") => "recompute",
            (_, "h2o") => "probe",
            (_, "max-step-logits") => "4096",
            (Kind::Bool, _) => "true",
            (Kind::F64 | Kind::Amount, _) => "2.5",
            (Kind::U32 | Kind::U64, "max-drafts" | "block-size") => "8",
            (Kind::U32 | Kind::U64, "pipeline-stages" | "max-steps-in-flight") => "3",
            (Kind::U32 | Kind::U64, _) => "999",
            (Kind::Text, flag) => panic!("give --{flag} a value here"),
        };
        // Parts of copies have an effect together with the copies.
        let others: &[&str] = if setting.flag.starts_with("reuse-") && setting.flag != "reuse-anywhere" {
            &["--reuse-anywhere=16"]
        } else {
            &[]
        };
        let others = if setting.flag == "pipeline-stages" { &["--max-steps-in-flight=4"] } else { others };
        let flag = format!("--{}={value}", setting.flag);
        let with = reached(&given(&[&[flag.as_str()], others].concat()));
        assert_ne!(reached(&given(others)), with, "{flag} has no effect");
    }
}

#[test]
fn flags_of_worker_are_announced() {
    for (_, flag, proof) in ENTRIES.iter().filter(|(command, ..)| *command == "worker") {
        let Announces(with) = proof else { continue };
        assert_ne!(announced(&[]), announced(&[with]), "--{flag} has no effect");
    }
}

/// Numbers beyond their ranges: refused in each kind of server, whatever else is set, before a model is read.
const NUMBERS: [&str; 16] = [
    "--worker-silence=-1",
    "--worker-resume=-1",
    "--worker-wait=-1",
    "--step-timeout=-1",
    "--session-ttl=-1",
    "--session-bytes=1",
    "--idle-timeout=-1",
    "--first-request-timeout=-1",
    "--unread-timeout=-1",
    "--drain-timeout=-1",
    "--max-unread-bytes=1",
    "--threads=0",
    "--max-connections=0",
    "--reuse-recompute=4000000000",
    "--swap-in-watermark=9999",
    "--host-blocks=4000000000",
];

#[test]
fn nonsense_is_refused_also_where_the_flag_has_no_effect() {
    let core = CoreSettings::<ServeFlags>::flags()
        .filter(|(setting, _)| setting.kind == Kind::Text)
        .map(|(setting, _)| setting.flag);
    let texts = [
        "kv-dtype",
        "worker",
        "router",
        "roles",
        "host-mem",
        "shared-mem",
        "compression",
        "compression-layers",
        "tier-write",
        "tier-eviction",
    ];
    let serve = crate::serve::ServeArgs::augment_args(clap::Command::new("serve"));
    let h2o = serve.get_arguments().filter_map(clap::Arg::get_long).filter(|flag| flag.starts_with("h2o-"));
    let flags: Vec<String> = core
        .chain(texts)
        .chain(h2o)
        .chain(["log-format", "weights", "simulate"])
        .map(|flag| format!("--{flag}=\u{2603}"))
        .collect();
    for kind in [&[][..], &["--worker=null"], &["--workers=0"], &["--max-sessions=0"]] {
        for flag in flags.iter().map(String::as_str).chain(NUMBERS) {
            if kind.iter().any(|of| of.split('=').next() == flag.split('=').next()) {
                continue;
            }
            let refused = crate::serve::check(&given(&[&[flag], kind].concat())).map(drop);
            assert!(refused.is_err(), "{flag} is accepted with {kind:?}");
        }
    }
    assert!(crate::serve::check(&given(&[])).is_ok());
}
