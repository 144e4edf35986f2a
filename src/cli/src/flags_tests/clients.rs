//! Proofs for flags of `generate` and `chat`, and of tools.

use clap::Parser;

use super::Entry;
use super::Proof::{Sends, Test, Tool};
use crate::{Cli, Command};

const ACCESS: &str = "tests/access.rs";
const PROCESS: &str = "src/cli/tests/process.rs";
const SWEEP: &str = "src/cli/src/sweep/tests.rs";

/// Flags of clients and tools.
pub const ENTRIES: &[Entry] = &[
    (
        "generate",
        "token-ids",
        Test(PROCESS, "a_server_in_a_process_logs_each_request_by_its_id_and_reads_files_again_at_sighup"),
    ),
    (
        "generate",
        "addr",
        Test(PROCESS, "a_server_in_a_process_logs_each_request_by_its_id_and_reads_files_again_at_sighup"),
    ),
    ("generate", "tls-ca", Test(ACCESS, "tls_protects_the_port")),
    ("generate", "tls-cert", Test(ACCESS, "a_client_needs_a_certificate_if_the_server_asks_for_one")),
    ("generate", "tls-key", Test(ACCESS, "a_client_needs_a_certificate_if_the_server_asks_for_one")),
    ("generate", "token-file", Test(PROCESS, "a_token_file_is_read_again_at_sighup")),
    ("generate", "no-special-tokens", Sends(&["--no-special-tokens"])),
    ("generate", "prefetch", Sends(&["--prefetch"])),
    ("generate", "max-tokens", Sends(&["--max-tokens=3"])),
    ("generate", "min-tokens", Sends(&["--min-tokens=3"])),
    ("generate", "stop", Sends(&["--stop=x"])),
    ("generate", "stop-token-ids", Sends(&["--stop-token-ids=3"])),
    ("generate", "ignore-eos", Sends(&["--ignore-eos"])),
    ("generate", "temperature", Sends(&["--temperature=0.5"])),
    ("generate", "seed", Sends(&["--seed=3"])),
    ("generate", "top-p", Sends(&["--top-p=0.5"])),
    ("generate", "top-k", Sends(&["--top-k=3"])),
    ("generate", "min-p", Sends(&["--min-p=0.5"])),
    ("generate", "repetition-penalty", Sends(&["--repetition-penalty=1.5"])),
    ("generate", "cache-salt", Sends(&["--cache-salt=x"])),
    ("generate", "tenant", Sends(&["--tenant=x"])),
    ("generate", "priority", Sends(&["--priority=3"])),
    ("generate", "h2o", Sends(&["--h2o=on"])),
    ("generate", "reuse", Sends(&["--reuse=anywhere"])),
    ("generate", "retain", Sends(&["--retain=prompt:priority=80"])),
    ("generate", "kv-dtype", Sends(&["--kv-dtype=f16"])),
    ("generate", "request-id", Sends(&["--request-id=x"])),
    ("generate", "timeout", Sends(&["--timeout=3"])),
    ("generate", "logprobs", Sends(&["--logprobs=3", "--json"])),
    (
        "generate",
        "json",
        Test(PROCESS, "a_server_in_a_process_logs_each_request_by_its_id_and_reads_files_again_at_sighup"),
    ),
    (
        "chat",
        "addr",
        Test(PROCESS, "a_server_in_a_process_logs_each_request_by_its_id_and_reads_files_again_at_sighup"),
    ),
    ("chat", "tls-ca", Test(ACCESS, "tls_protects_the_port")),
    ("chat", "tls-cert", Test(ACCESS, "a_client_needs_a_certificate_if_the_server_asks_for_one")),
    ("chat", "tls-key", Test(ACCESS, "a_client_needs_a_certificate_if_the_server_asks_for_one")),
    ("chat", "token-file", Test(PROCESS, "a_token_file_is_read_again_at_sighup")),
    (
        "chat",
        "session",
        Test(PROCESS, "a_server_in_a_process_logs_each_request_by_its_id_and_reads_files_again_at_sighup"),
    ),
    ("chat", "system", Sends(&["--system=x"])),
    ("chat", "template", Sends(&["--template=chatml"])),
    ("chat", "max-tokens", Sends(&["--max-tokens=3"])),
    ("chat", "stop", Sends(&["--stop=x"])),
    ("chat", "temperature", Sends(&["--temperature=0.5"])),
    ("chat", "seed", Sends(&["--seed=3"])),
    ("chat", "top-p", Sends(&["--top-p=0.5"])),
    ("chat", "top-k", Sends(&["--top-k=3"])),
    ("chat", "min-p", Sends(&["--min-p=0.5"])),
    ("chat", "repetition-penalty", Sends(&["--repetition-penalty=1.5"])),
    ("chat", "recent-high", Sends(&["--recent-high=300"])),
    ("chat", "recent-low", Sends(&["--recent-low=30"])),
    ("chat", "summary-max", Sends(&["--summary-max=30"])),
    ("sweep", "out", Test(SWEEP, "a_sweep_goes_on_where_it_was_stopped")),
    ("sweep", "shard", Test(SWEEP, "shards_are_the_sweep_in_parts")),
    ("sweep", "threads", Test(SWEEP, "the_number_of_threads_changes_nothing")),
    ("sweep", "limit-cells", Test(SWEEP, "a_sweep_goes_on_where_it_was_stopped")),
    ("sweep", "dry-run", Tool),
];

/// Shows the requests of a command line.
fn sent(command: &str, flags: &[&str]) -> String {
    let words: &[&str] =
        if command == "generate" { &["trunkline", "generate", "a prompt"] } else { &["trunkline", "chat"] };
    match Cli::try_parse_from([words, flags].concat()).unwrap().command {
        Command::Generate(args) => format!("{:?}", crate::client::generate::request(&args).unwrap()),
        Command::Chat(args) => format!("{:?} {:?}", args.session(), args.turn("of a session".into(), "a line", false)),
        _ => panic!("{command} sends no request"),
    }
}

#[test]
fn flags_of_clients_are_in_their_requests() {
    for (command, flag, proof) in ENTRIES {
        let Sends(with) = proof else { continue };
        let others: &[&str] = if with.contains(&"--json") { &["--json"] } else { &[] };
        assert_ne!(sent(command, others), sent(command, with), "{command} --{flag} has no effect");
    }
}
