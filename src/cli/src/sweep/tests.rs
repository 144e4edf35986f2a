//! What is swept, what is found, and what is said when it makes no sense.

use std::collections::BTreeMap;
use std::fs;

use clap::{CommandFactory, Parser};
use tempfile::TempDir;
use trunkline_sim_perf::columns::{self, Cell as Value};
use trunkline_sim_report::figures::Direction;

use super::effects::{Paired, effects, front};
use super::join::{Joined, Row, load};
use super::report::Metric;
use super::*;

/// A folder with a trace of 30 requests that share a prompt now and then.
fn place() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let line = |i: u32| {
        let (at_ms, id) = (i * 50, i % 7);
        format!("{{\"timestamp\": {at_ms}, \"input_length\": 512, \"output_length\": 20, \"hash_ids\": [{id}]}}\n")
    };
    fs::write(folder.path().join("t.jsonl"), (0..30).map(line).collect::<String>()).unwrap();
    folder
}

fn spec(place: &TempDir, text: &str) -> anyhow::Result<Spec> {
    let path = place.path().join("s.toml");
    fs::write(&path, text).unwrap();
    Spec::load(&path)
}

fn cells_of(place: &TempDir, text: &str) -> anyhow::Result<Vec<Cell>> {
    cells::cells(&spec(place, text)?)
}

/// What is said of a spec, without the name of its file.
fn fault(text: &str) -> String {
    let place = place();
    let message = format!("{:#}", cells_of(&place, text).unwrap_err());
    assert!(!message.contains('\n'), "one line: {message}");
    message.replace(&format!("{}/", place.path().display()), "")
}

const GRID: &str = "trace = 't.jsonl'\n[fixed]\ndevice-blocks = 64\n[grid]\npolicy = ['fcfs', 'sjf']\nblock-size = [16, 32]\n\
                    host-mem = ['none', '1GB']\n";

/// Plans and runs the cells of a shard.
fn run_shard(place: &TempDir, text: &str, out: &str, shard: &str, limit: usize, threads: usize) -> Done {
    let (spec, out) = (spec(place, text).unwrap(), place.path().join(out));
    let cells = cells::cells(&spec).unwrap();
    Plan::of(&spec, &cells).save(&out).unwrap();
    let shard: Shard = shard.parse().unwrap();
    let mine = shard.part(&cells);
    sweep(&mine, &out, limit, threads).unwrap()
}

fn joined(place: &TempDir, outs: &[&str]) -> Joined {
    load(&outs.iter().map(|out| place.path().join(out)).collect::<Vec<_>>()).unwrap()
}

/// Rows without what the machine they ran on decides.
fn without_wall_time(mut joined: Joined) -> Joined {
    let wall = trunkline_sim_report::figures::columns().iter().position(|(column, _)| column.name == "wall_s").unwrap();
    joined.rows.iter_mut().for_each(|row| row.figures[wall] = Value::None);
    joined
}

fn values(joined: &Joined) -> Vec<String> {
    let of = |row: &Row| (0..row.values.len()).map(|parameter| row.value(parameter)).collect::<Vec<_>>().join(" ");
    joined.rows.iter().map(of).collect()
}

#[test]
fn a_flag_that_takes_true_or_false_is_given_either() {
    let place = place();
    let text = "trace = 't.jsonl'\n[grid]\nprefix-caching = [false, true]\nreserve-prompts = [true, false, 'none']\n";
    let cells = cells_of(&place, text).unwrap();
    let found = cells.iter().map(|cell| {
        let settings = &cell.ready.as_ref().unwrap().settings;
        (cell.parameters[2].1.as_str(), settings.prefix_caching, settings.core.reserve_prompts)
    });
    let expected = [("true", true), ("false", false), ("none", true)];
    let expected =
        [false, true].into_iter().flat_map(|caching| expected.map(|(label, reserve)| (label, caching, reserve)));
    assert!(found.eq(expected));
}

#[test]
fn a_cell_without_a_tier_leaves_the_flags_of_tiers_out() {
    let place = place();
    let text = "trace = 't.jsonl'\n[grid]\nhost-mem = ['none', '64GB']\n[fixed]\ntier-write = 'back'\n\
                disk-size = 'none'\ncompression = 0.5\n";
    let cells = cells_of(&place, text).unwrap();
    let tiers = |cell: &Cell| cell.ready.as_ref().unwrap().settings.core.tiers.len();
    assert_eq!(cells.iter().map(tiers).collect::<Vec<_>>(), [0, 1]);
    let unnamed = cells_of(&place, "trace = 't.jsonl'\n[fixed]\ntier-write = 'back'\n").err().unwrap();
    let unnamed = format!("{unnamed:#}");
    assert!(unnamed.contains("tier-write"), "{unnamed}");
}

#[test]
fn the_last_axis_changes_fastest_and_zips_go_together() {
    let place = place();
    let text = "trace = 't.jsonl'\n[grid]\npolicy = ['fcfs', 'sjf']\nserial = [false, true]\n[[zip]]\n\
                hardware = ['a100-80g', 'h100-80g']\nreplicas = [8, 4]\n[fixed]\nmax-batch-size = 128\nspeed = 'none'\n";
    let cells = cells_of(&place, text).unwrap();
    let parameters: Vec<&str> = cells[0].parameters.iter().map(|(parameter, _)| parameter.as_str()).collect();
    assert_eq!(parameters, ["trace", "max-batch-size", "speed", "policy", "serial", "hardware", "replicas"]);
    let varied =
        |cell: &Cell| cell.parameters[3..].iter().map(|(_, value)| value.clone()).collect::<Vec<_>>().join(" ");
    let expected = ["none a100-80g 8", "none h100-80g 4", "true a100-80g 8", "true h100-80g 4"];
    let expected: Vec<String> =
        ["fcfs", "sjf"].iter().flat_map(|policy| expected.map(|rest| format!("{policy} {rest}"))).collect();
    assert_eq!(cells.iter().map(varied).collect::<Vec<_>>(), expected);
    let ready = cells[3].ready.as_ref().unwrap();
    assert_eq!((ready.settings.hardware.name, ready.settings.replicas), ("h100-80g", 4));
    assert_eq!(
        (ready.settings.core.max_batch_size, ready.settings.arrivals),
        (128, trunkline_sim_replay::Arrivals::Serial)
    );
}

#[test]
fn several_traces_are_the_slowest_axis_and_a_flag_may_be_given_twice() {
    let place = place();
    fs::copy(place.path().join("t.jsonl"), place.path().join("u.jsonl")).unwrap();
    let text = "trace = ['t.jsonl', 'u.jsonl']\n[fixed]\nreplicas = 3\n[grid]\nfail = [[], ['1@3', '2@4..5']]\n";
    let cells = cells_of(&place, text).unwrap();
    let values = |cell: &Cell| cell.parameters.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>().join(", ");
    assert_eq!(
        cells.iter().map(values).collect::<Vec<_>>(),
        ["3, t.jsonl, none", "3, t.jsonl, 1@3 2@4..5", "3, u.jsonl, none", "3, u.jsonl, 1@3 2@4..5"]
    );
    assert_eq!(cells[1].ready.as_ref().unwrap().settings.routing.failures.len(), 2);
}

#[test]
fn a_bad_spec_is_refused_in_one_line() {
    assert_eq!(fault("[grid]\nseed = [1]\n"), "sweep s.toml: there is no trace; write trace = \"FILE\"");
    assert!(fault("trace = 't.jsonl'\n[grid\n").starts_with("sweep s.toml: line 2: "));
    let unknown = "sweep s.toml: unknown key 'gird'; there are: trace, [fixed], [grid], [[zip]]; parameters stand in one of those";
    assert_eq!(fault("trace = 't.jsonl'\n[gird]\npolicy = ['fcfs']\n"), unknown);
    let told = |rest: &str| fault(&format!("trace = 't.jsonl'\n{rest}"));
    assert_eq!(
        told("[grid]\npolicy = 'fcfs'\n"),
        "sweep s.toml: grid.policy is not a list; write [grid] values in brackets, or put a single one into [fixed]"
    );
    assert_eq!(told("[grid]\npolicy = []\n"), "sweep s.toml: grid.policy is empty; give at least one value");
    assert_eq!(told("[grid]\nreplicas = [1, 2, 1]\n"), "sweep s.toml: grid.replicas has '1' twice");
    assert_eq!(
        told("[fixed]\nreplicas = 1\n[grid]\nreplicas = [1]\n"),
        "sweep s.toml: grid.replicas is set elsewhere too; set each parameter once"
    );
    assert_eq!(
        told("[[zip]]\nreplicas = [1, 2]\nspeed = [1]\n"),
        "sweep s.toml: zip.speed has 1 values and zip.replicas has 2"
    );
    assert_eq!(
        told("[fixed]\nreplicas = {a = 1}\n"),
        "sweep s.toml: fixed.replicas: it holds a table; give text, a number, true or false"
    );
    let many =
        format!("[grid]\nlimit = {:?}\nreplicas = {:?}\n", (1..400).collect::<Vec<_>>(), (1..400).collect::<Vec<_>>());
    assert_eq!(told(&many), "sweep s.toml: there are more than 100000 cells; sweep less at once");
    assert!(fault("trace = 'none.jsonl'\n").starts_with("cannot read the trace none.jsonl: "));
}

#[test]
fn an_unknown_parameter_is_refused_with_the_known_ones() {
    let told = |rest: &str| fault(&format!("trace = 't.jsonl'\n{rest}"));
    let unknown = told("[grid]\npolcy = ['fcfs']\n");
    assert!(
        unknown.starts_with("sweep s.toml: unknown parameter grid.polcy; there are: trace, align-chunks, "),
        "{unknown}"
    );
    assert!(!unknown.contains("requests"), "{unknown}");
    for output in ["json", "requests", "recorded"] {
        let refused = told(&format!("[fixed]\n{output} = 'x'\n"));
        assert!(
            refused.starts_with(&format!("sweep s.toml: fixed.{output} is not a parameter: --{output} decides")),
            "{refused}"
        );
    }
    let policy = told("[grid]\nreplicas = [1, 2]\npolicy = ['fcfs', 'magic']\n");
    assert!(
        policy.starts_with("sweep s.toml: grid.policy = 'magic': unknown policy 'magic'; there are: fcfs"),
        "{policy}"
    );
    let replicas = told("[grid]\nreplicas = [1, 'x']\npolicy = ['fcfs', 'sjf']\n");
    let expected = "sweep s.toml: grid.replicas = 'x': invalid value 'x' for '--replicas <N>': ";
    assert!(replicas.starts_with(expected), "{replicas}");
    let size = told("[[zip]]\nblock-size = [16, 0]\nreplicas = [1, 2]\n");
    assert_eq!(size, "sweep s.toml: zip.block-size = '0': block_size is 0; it must be between 1 and 4096");
    assert_eq!(told("[fixed]\nserial = 'yes'\n"), "sweep s.toml: fixed.serial is 'yes'; give true or false");
    assert!(told("[fixed]\nreplicas = true\n").starts_with("sweep s.toml: fixed.replicas is true, but takes a value"));
    assert!(
        told("[fixed]\nload = -1\n").starts_with("sweep s.toml: fixed.load = '-1': load is -1; it must be above 0")
    );
    let several = told("[fixed]\npolicy = ['fcfs', 'sjf']\n");
    assert!(several.ends_with("a cell is one replay, but this compares 2; put the values into [grid]"), "{several}");
    let together = told("[fixed]\nserial = true\nspeed = 2\n");
    assert!(
        together.starts_with("sweep s.toml: no cell can be run: the argument '--serial' cannot be used"),
        "{together}"
    );
}

#[test]
fn every_flag_of_replay_is_a_parameter_or_refused() {
    // What is refused must be there, or be planned: a name that is misspelt would let the flag through.
    let replay = <cells::ReplayCli as CommandFactory>::command();
    let outputs: Vec<&str> = replay
        .get_arguments()
        .filter(|flag| flag.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "FILE")))
        .filter_map(|flag| flag.get_long())
        // Read, not written.
        .filter(|name| *name != "engine-log")
        .collect();
    assert!(outputs.contains(&"json") && outputs.contains(&"requests"), "{outputs:?}");
    for output in outputs {
        let refused = fault(&format!("trace = 't.jsonl'\n[fixed]\n{output} = 'x'\n"));
        assert!(refused.contains(" is not a parameter: "), "{refused}");
    }
}

#[test]
fn values_that_only_do_not_go_together_are_rows_that_failed() {
    let place = place();
    let text = "trace = 't.jsonl'\n[fixed]\ndevice-blocks = 64\n[grid]\nhost-mem = ['none', '1GB']\ndisk-size = ['none', '1TB']\n";
    let done = run_shard(&place, text, "out", "1/1", usize::MAX, 2);
    assert_eq!(done, Done { tally: Tally { ok: 3, failed: 1 }, found: 0, left: 0 });
    let joined = joined(&place, &["out"]);
    let failed: Vec<_> = joined.rows.iter().filter(|row| !row.ok()).collect();
    assert_eq!((failed.len(), failed[0].status.as_str()), (1, "failed"));
    assert!(failed[0].error.as_ref().unwrap().contains("--host-mem"), "{:?}", failed[0].error);
    let told = report::text(&joined, &[Metric::find("ttft_p99").unwrap()], None, &[], &[]).unwrap();
    assert!(told.contains("failed:\n  host-mem=none disk-size=1TB: "), "{told}");
    // What failed is tried again, the rest is not.
    let again = run_shard(&place, text, "out", "1/1", usize::MAX, 1);
    assert_eq!(again, Done { tally: Tally { ok: 0, failed: 1 }, found: 3, left: 0 });
    // So is a model too large for a device, whatever else is swept.
    let large = "trace = 't.jsonl'\n[grid]\nmodel = ['llama-3.1-8b', 'llama-3.1-70b']\n";
    assert_eq!(run_shard(&place, large, "large", "1/1", usize::MAX, 1).tally, Tally { ok: 1, failed: 1 });
}

#[test]
fn cells_that_refuse_requests_are_never_best() {
    let place = place();
    // Prompts of 512 tokens and answers of 20 take 34 blocks.
    let text = "trace = 't.jsonl'\n[grid]\ndevice-blocks = [20, 64, 128]\n";
    run_shard(&place, text, "out", "1/1", usize::MAX, 1);
    let joined = joined(&place, &["out"]);
    let [ttft, completed] = ["ttft_p99", "completed"].map(|name| Metric::find(name).unwrap());
    let shown = |pareto: &[Metric]| {
        let text = report::text(&joined, std::slice::from_ref(&ttft), Some(&ttft), &[], pareto).unwrap();
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let all = shown(&[]);
    let row = all.iter().position(|line| line == "20 - 30").expect("no latency, and 30 refused");
    assert!(row > all.iter().position(|line| line.starts_with("128 ")).unwrap(), "sorted behind the others: {all:?}");
    let warning = "warning: 1 cell refuses requests as too large for the device";
    assert!(all.iter().any(|line| line.starts_with(warning)), "{all:?}");
    let front = shown(&[ttft.clone(), completed]);
    assert!(!front[3..6].iter().any(|line| line.starts_with("20 ")), "{front:?}");
}

#[test]
fn a_sweep_goes_on_where_it_was_stopped() {
    let place = place();
    let first = run_shard(&place, GRID, "out", "1/1", 3, 1);
    assert_eq!(first, Done { tally: Tally { ok: 3, failed: 0 }, found: 0, left: 5 });
    let half = joined(&place, &["out"]);
    assert_eq!((half.rows.len(), half.missing.len()), (3, 5));
    let told = report::text(&half, &[Metric::find("ttft_p99").unwrap()], None, &[], &[]).unwrap();
    assert!(told.contains("3 ok, 5 missing"), "{told}");
    assert!(told.contains("missing:\n  policy=fcfs block-size=32 host-mem=1GB\n"), "{told}");
    // A file that was cut off is not a result.
    let cells = cells_of(&place, GRID).unwrap();
    let row = folder::path(&place.path().join("out"), &cells[1].id);
    fs::write(&row, &fs::read(&row).unwrap()[..100]).unwrap();
    let second = run_shard(&place, GRID, "out", "1/1", usize::MAX, 2);
    assert_eq!(second, Done { tally: Tally { ok: 6, failed: 0 }, found: 2, left: 0 });
    let third = run_shard(&place, GRID, "out", "1/1", usize::MAX, 2);
    assert_eq!(third, Done { tally: Tally { ok: 0, failed: 0 }, found: 8, left: 0 });
    run_shard(&place, GRID, "whole", "1/1", usize::MAX, 1);
    let (parts, whole) = (joined(&place, &["out"]), joined(&place, &["whole"]));
    assert_eq!(without_wall_time(parts), without_wall_time(whole));
    let unfinished = fs::read_dir(place.path().join("out/cells"))
        .unwrap()
        .filter(|file| file.as_ref().unwrap().path().extension().is_none_or(|it| it != "parquet"));
    assert_eq!(unfinished.count(), 0);
}

#[test]
fn a_result_of_something_else_is_not_mistaken_for_this() {
    let place = place();
    run_shard(&place, GRID, "out", "1/1", usize::MAX, 2);
    // One more value: the cells that were there are not run again.
    let more = GRID.replace("'sjf'", "'sjf', 'lpm'");
    let done = run_shard(&place, &more, "out", "1/1", usize::MAX, 2);
    assert_eq!(done, Done { tally: Tally { ok: 4, failed: 0 }, found: 8, left: 0 });
    // Another value of what is fixed: none of them is this sweep's.
    let other = GRID.replace("device-blocks = 64", "device-blocks = 96");
    let done = run_shard(&place, &other, "out", "1/1", 1, 1);
    assert_eq!(done, Done { tally: Tally { ok: 1, failed: 0 }, found: 0, left: 7 });
    let joined = joined(&place, &["out"]);
    assert_eq!((joined.rows.len(), joined.missing.len(), joined.strays), (1, 7, 12));
    // The same names, but the trace says something else.
    let mut trace = fs::read_to_string(place.path().join("t.jsonl")).unwrap();
    trace.truncate(trace.trim_end().rfind('\n').unwrap() + 1);
    fs::write(place.path().join("t.jsonl"), trace).unwrap();
    assert_eq!(run_shard(&place, &other, "out", "1/1", 0, 1).found, 0);
    // A hardware file counts by what is in it.
    let hardware = |bandwidth: &str| {
        let text =
            fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../sim/perf/hardware/l4-24g.toml")).unwrap();
        fs::write(place.path().join("mine.toml"), text.replace("latency_us = 10.0", bandwidth)).unwrap();
        cells_of(&place, "trace = 't.jsonl'\n[fixed]\nhardware = 'mine.toml'\n").unwrap()[0].id.clone()
    };
    assert_ne!(hardware("latency_us = 10.0"), hardware("latency_us = 20.0"));
}

#[test]
fn shards_are_the_sweep_in_parts() {
    let place = place();
    run_shard(&place, GRID, "whole", "1/1", usize::MAX, 1);
    let counts: Vec<usize> = (1..=3)
        .map(|index| {
            // Into one folder, and each into its own.
            run_shard(&place, GRID, "shared", &format!("{index}/3"), usize::MAX, 1);
            run_shard(&place, GRID, &format!("own{index}"), &format!("{index}/3"), usize::MAX, 4).tally.ok
        })
        .collect();
    assert_eq!(counts, [3, 3, 2]);
    let whole = without_wall_time(joined(&place, &["whole"]));
    assert_eq!((whole.rows.len(), whole.missing.len()), (8, 0));
    assert_eq!(without_wall_time(joined(&place, &["shared"])), whole);
    assert_eq!(without_wall_time(joined(&place, &["own1", "own2", "own3"])), whole);
    let part = joined(&place, &["own3"]);
    assert_eq!((part.rows.len(), part.missing.len()), (2, 6));
    for bad in ["0/3", "4/3", "1", "a/b", "1/0"] {
        assert!(bad.parse::<Shard>().is_err(), "{bad}");
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let place = place();
    for (out, threads) in [("one", 1), ("five", 5)] {
        assert_eq!(run_shard(&place, GRID, out, "1/1", usize::MAX, threads).tally.ok, 8);
    }
    let [one, five] = ["one", "five"].map(|out| without_wall_time(joined(&place, &[out])));
    assert_eq!(one, five);
    assert_eq!(values(&one)[1], "t.jsonl 64 fcfs 16 1GB");
}

#[test]
fn a_cell_equals_a_replay_at_a_load_too() {
    let place = place();
    let text = "trace = 't.jsonl'\n[grid]\nload = [0.5, 0.8]\n";
    run_shard(&place, text, "out", "1/1", usize::MAX, 2);
    let joined = joined(&place, &["out"]);
    let trace = place.path().join("t.jsonl");
    for (row, load) in joined.rows.iter().zip(["0.5", "0.8"]) {
        let to = place.path().join("report.json");
        let words = ["replay", trace.to_str().unwrap(), "--load", load, "--json", to.to_str().unwrap()];
        crate::replay::run(cells::ReplayCli::try_parse_from(words).unwrap().args).unwrap();
        let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&to).unwrap()).unwrap();
        let is_equal = |reported: &serde_json::Value, name: &str| {
            let (reported, figure) = (reported.as_f64().unwrap(), Metric::find(name).unwrap().of(row).unwrap());
            // Reading JSON may change the last bit.
            assert!((reported - figure).abs() <= figure.abs() * 1e-15, "{name} at {load}: {reported} and {figure}");
        };
        is_equal(&report["ttft_s"]["p99"], "ttft_p99");
        is_equal(&report["load"]["capacity_requests_s"], "capacity_requests_s");
        is_equal(&report["load"]["speed"], "speed");
    }
}

#[test]
fn joined_rows_are_written_and_read_again() {
    let place = place();
    run_shard(&place, GRID, "out", "1/1", usize::MAX, 2);
    let failing = "trace = 't.jsonl'\n[grid]\nmodel = ['llama-3.1-70b']\n";
    run_shard(&place, failing, "other", "1/1", usize::MAX, 2);
    let outs = ["out", "other"].map(|out| place.path().join(out));
    let (merged, table) = (place.path().join("all.parquet"), place.path().join("all.csv"));
    let args = |paths: &[PathBuf]| {
        let mut words = vec!["report".to_string()];
        words.extend(paths.iter().map(|path| path.display().to_string()));
        words.extend(["--parquet".into(), merged.display().to_string(), "--csv".into(), table.display().to_string()]);
        words.extend(["--json".into(), place.path().join("all.json").display().to_string()]);
        ReportCli::try_parse_from(words).unwrap().args
    };
    report::run(&args(&outs)).unwrap();
    let both = load(&outs).unwrap();
    assert_eq!(both.parameters, ["trace", "device-blocks", "policy", "block-size", "host-mem", "model"]);
    let again = load(std::slice::from_ref(&merged)).unwrap();
    assert_eq!((again.rows.len(), &again.parameters), (9, &both.parameters));
    let by_id =
        |joined: &Joined| joined.rows.iter().map(|row| (row.id.clone(), row.clone())).collect::<BTreeMap<_, _>>();
    assert_eq!(by_id(&again), by_id(&both));
    // The file's columns are those of each cell's, parameters apart.
    let columns = columns::read(&merged).unwrap();
    let cell = columns::read(&fs::read_dir(outs[0].join("cells")).unwrap().next().unwrap().unwrap().path()).unwrap();
    assert!(cell.names.iter().all(|name| columns.names.contains(name)));
    let csv = fs::read_to_string(&table).unwrap();
    assert_eq!(csv.lines().count(), 10);
    assert!(csv.starts_with("cell,status,error,version,trace_digest,param.trace,param.device-blocks,"), "{csv}");
    // A message with a comma is quoted.
    assert!(csv.contains(",failed,\"llama-3.1-70b does not fit"), "{csv}");
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(place.path().join("all.json")).unwrap()).unwrap();
    assert_eq!((json[0]["param.policy"].as_str(), json[0]["completed"].as_u64()), (Some("fcfs"), Some(30)));
    let nothing = load(&[place.path().join("t.jsonl")]).unwrap_err().to_string();
    assert!(nothing.starts_with(&place.path().join("t.jsonl").display().to_string()), "{nothing}");
}

#[derive(Parser)]
struct ReportCli {
    #[command(flatten)]
    args: ReportArgs,
}

/// A row made by hand: two parameters, TTFT p99 and the ratio of hits.
fn by_hand(policy: &str, size: &str, ttft: f64, hits: f64) -> Row {
    let columns = trunkline_sim_report::figures::columns();
    let figure = |name: &str| match name {
        "ttft_p99" => Value::Real(ttft),
        "prefix_hit_ratio" => Value::Real(hits),
        "evicted_blocks" => Value::Int(0),
        _ => Value::None,
    };
    Row {
        id: format!("{policy}{size}"),
        status: "ok".into(),
        error: None,
        version: "0".into(),
        trace_digest: "0".into(),
        values: vec![Some(policy.into()), Some(size.into())],
        figures: columns.iter().map(|(column, _)| figure(&column.name)).collect(),
    }
}

fn four() -> Joined {
    Joined {
        parameters: vec!["policy".into(), "block-size".into()],
        axes: vec![vec![0], vec![1]],
        rows: vec![
            by_hand("fcfs", "16", 2.0, 0.5),
            by_hand("fcfs", "64", 4.0, 0.4),
            by_hand("sjf", "16", 1.0, 0.6),
            by_hand("sjf", "64", 5.0, 0.7),
        ],
        ..Joined::default()
    }
}

#[test]
fn effects_are_means_and_differences_of_pairs() {
    let mut four = four();
    let metric = Metric::find("ttft_p99").unwrap();
    let of = |joined: &Joined, axis: usize| {
        let rows: Vec<&Row> = joined.rows.iter().collect();
        let found = effects(&rows, &[axis], |row| metric.of(row));
        found.into_iter().map(|it| (it.value.join(" "), it.cells, it.mean, it.paired)).collect::<Vec<_>>()
    };
    let pair = |pairs, difference, base| Some(Paired { pairs, difference, base });
    assert_eq!(of(&four, 0), [("fcfs".into(), 2, 3.0, None), ("sjf".into(), 2, 3.0, pair(2, 0.0, 3.0))]);
    assert_eq!(of(&four, 1), [("16".into(), 2, 1.5, None), ("64".into(), 2, 4.5, pair(2, 3.0, 1.5))]);
    // A cell without its counterpart counts in the average and in no pair.
    four.rows.remove(1);
    assert_eq!(of(&four, 0), [("fcfs".into(), 1, 2.0, None), ("sjf".into(), 2, 3.0, pair(1, -1.0, 2.0))]);
}

#[test]
fn tables_mark_the_best_and_keep_the_order_asked_for() {
    let four = four();
    let [ttft, hits] = ["ttft_p99", "prefix_hit_ratio"].map(|name| Metric::find(name).unwrap());
    let both = [ttft.clone(), hits.clone()];
    let lines = |text: String| {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let told = lines(report::text(&four, &both, None, &[], &[]).unwrap());
    assert_eq!(
        told[..8],
        [
            "cells 4 ok",
            "",
            "policy block-size ttft_p99 prefix_hit_ratio",
            "fcfs 16 2.0000 50.00 %",
            "fcfs 64 4.0000 40.00 %",
            "sjf 16 * 1.0000 60.00 %",
            "sjf 64 5.0000 * 70.00 %",
            "",
        ]
    );
    assert!(told.contains(&"64 2 4.5000 +200.0 % 55.00 % +0.0 %".to_string()), "{told:?}");
    let sorted = lines(report::text(&four, &both, Some(&hits), &[], &[]).unwrap());
    assert_eq!(sorted[3], "sjf 64 5.0000 * 70.00 %");
    assert_eq!(sorted[6], "fcfs 64 4.0000 40.00 %");
    let grouped = lines(report::text(&four, &both, None, &[0], &[]).unwrap());
    assert_eq!(
        grouped[2..5],
        ["policy cells ttft_p99 prefix_hit_ratio", "fcfs 2 * 3.0000 45.00 %", "sjf 2 * 3.0000 * 65.00 %"]
    );
    let front = lines(report::text(&four, &both, None, &[], &both).unwrap());
    assert_eq!(front[3..6], ["sjf 16 * 1.0000 60.00 %", "sjf 64 5.0000 * 70.00 %", ""]);
    // A figure that is 0 has no share to differ by.
    let evicted = Metric::find("evicted_blocks").unwrap();
    let told = report::text(&four, std::slice::from_ref(&evicted), None, &[], &[]).unwrap();
    assert!(told.contains("+0.0000"), "{told}");
    let neither = report::text(&four, &both, None, &[], &[ttft, evicted]).unwrap_err().to_string();
    assert_eq!(neither, "no value of evicted_blocks is better than another, so it has no Pareto front");
    assert!(Metric::find("ttft").unwrap_err().to_string().starts_with("unknown metric 'ttft'; there are: requests, "));
}

#[test]
fn a_front_holds_the_points_that_nothing_beats() {
    let points = [(1.0, 1.0), (2.0, 2.0), (2.0, 1.0), (1.0, 1.0), (0.5, 0.5)];
    assert_eq!(front(&points, [Direction::Lower, Direction::Higher]), [true, true, false, true, true]);
    assert_eq!(front(&points, [Direction::Lower, Direction::Lower]), [false, false, false, false, true]);
    assert_eq!(front(&[], [Direction::Lower, Direction::Lower]), Vec::<bool>::new());
}

#[test]
fn examples_are_right() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sweeps/policies.toml");
    let cells = cells::cells(&Spec::load(&path).unwrap()).unwrap();
    assert_eq!(cells.len(), 24);
    assert!(cells.iter().all(|cell| cell.ready.is_ok()));
}
