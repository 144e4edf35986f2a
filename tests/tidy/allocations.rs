//! Memory for a number of things: the number is a length of something that is there, is capped in the call, or has a bound named here.
//!
//! A number from a flag or a file may be a billion. Memory of that size is not there, and asking for it ends the program. So a cap of so many blocks
//! is no reason for memory for all of them at once: arrays grow with what is in them, up to a cap.

use crate::source::{code_of, without_tests};

/// Folders with programs that are run by hand.
const BY_HAND: [&str; 2] = ["src/bench/", "src/codec/fuzz/"];
/// Folders of the core and the simulator, where `resize` makes room for the index of a thing that is there.
const GROWING: [&str; 2] = ["src/core/", "sim/"];
/// Calls that take a number of things to have memory for.
const CALLS: [&str; 7] = [
    "with_capacity(",
    "with_capacity_and_hasher(",
    ".reserve(",
    ".reserve_exact(",
    ".resize(",
    ".resize_with(",
    "vec![",
];
/// Parts of an argument that is a length, or capped.
const CAPPED: [&str; 3] = [".len()", ".min(", "reserved_blocks("];

/// Arguments with a bound, by file or folder; no arguments stand for all.
#[rustfmt::skip]
const BOUNDED: &[(&str, &[&str], &str)] = &[
    ("sim/perf/src/cost/streaming.rs", &["layers", "layers * PASSES"], "layers of a model"),
    ("sim/replay/src/calibrate/benchmark.rs", &["expected"], "requests that are there"),
    ("sim/replay/src/calibrate/least_squares.rs", &["self.width", "n * n", "n"], "terms of a formula"),
    ("sim/replay/src/fleet.rs", &["request.prompt.capacity() / self.block_size as usize"], "a prompt that is there"),
    ("sim/replay/src/fleet/lock_step.rs", &["settings.n_replicas() as usize"], "REPLICAS_MAX"),
    ("sim/replay/src/fleet/pipeline.rs", &["stages"], "64 stages"),
    ("sim/replay/src/meters.rs", &["n_tenants", "replicas"], "TENANTS_MAX, REPLICAS_MAX"),
    ("sim/report/src/sample.rs", &["n"], "sessions that are there"),
    ("sim/replay/src/rerun/run.rs", &["n"], "requests of a recording that is there"),
    ("sim/workload/src/trace/closed_loop.rs", &["users"], "USERS_MAX"),
    ("sim/perf/src/model/config/modules.rs", &["layers.max(1) as usize"], "layers of a model"),
    ("src/cli/src/replay/pages.rs", &["groups as usize"], "LAYER_GROUPS_MAX"),
    ("sim/report/src/completed_steps.rs", &["replicas as usize"], "REPLICAS_MAX"),
    ("sim/report/src/fairness.rs", &["n", "n * n"], "TENANTS_MAX"),
    ("sim/report/src/series.rs", &["n as usize"], "REPLICAS_MAX"),
    ("sim/report/src/service.rs", &["replicas as usize"], "REPLICAS_MAX"),
    ("sim/report/src/timeline.rs", &["shape.replicas() as usize"], "REPLICAS_MAX"),
    ("sim/workload/src/tenants.rs", &["counted"], "tenants that are there"),
    ("sim/workload/src/trace.rs", &["(self.input_tokens + self.output_tokens) as usize"], "LENGTH_TOKENS_MAX"),
    ("sim/workload/src/trace/formats/bench_serve.rs", &["expected"], "requests that are there"),
    ("sim/workload/src/trace/stats/cache.rs", &["n_nodes as usize", "n_nodes as usize + 1", "n + 1"], "blocks that are there"),
    ("sim/workload/src/trace/formats/mooncake.rs", &["request.input_tokens.div_ceil(HASH_ID_TOKENS) as usize"], "LENGTH_TOKENS_MAX"),
    ("src/attach/src/check/shared.rs", &["n_bytes as usize"], "BLOCK_BYTES_MAX"),
    ("src/attach/src/done.rs", &["expected", "n_faults"], "sequences of a step, and entries that are there"),
    ("src/attach/src/encoder.rs", &["at + 1"], "sequences that are there"),
    ("src/attach/src/fake.rs", &["at + 1", "1 + self.config.scored_groups as usize"], "the worker of tests"),
    ("src/attach/src/hello.rs", &["n_members"], "LIST_MAX, HEADS_MAX"),
    ("src/attach/src/mirror.rs", &["at + 1"], "SLOTS_MAX"),
    ("src/attach/src/worker/copies.rs", &["n_bytes"], "bytes of a block of this worker"),
    ("src/cli/src/settings/engines.rs", &["all"], "WORKERS_MAX"),
    ("src/cli/src/h2o/head_loss.rs", &["n_all", "rig.n_lists()"], "heads of a model that is loaded"),
    ("src/cli/src/h2o/rig.rs", &["blocks as usize"], "blocks of a text that the model reads"),
    ("src/cli/src/model/null_worker.rs", &["slot + 1"], "sequences that are there"),
    ("src/cli/src/serve/steps_timeline.rs", &["engines"], "ENGINES_MAX"),
    ("src/cli/src/serve.rs", &["model.info().block_shape().0 as usize"], "layers of a model that is loaded"),
    ("src/cli/src/model/simulated/worker.rs", &["at + 1"], "sequences that are there"),
    ("src/cli/src/settings/sizes.rs", &["n"], "tiers"),
    ("src/cluster/src/cluster.rs", &["n"], "ENGINES_MAX"),
    ("src/cluster/src/deadlines.rs", &["engines"], "ENGINES_MAX"),
    ("src/events/src/msgpack.rs", &["64 + batch.events.iter().map(size_hint).sum::<usize>()"], "events that are there"),
    ("src/server/src/driver/listening.rs", &["cluster.n_engines()"], "ENGINES_MAX"),
    ("src/worker/src/worker/past.rs", &["word + 1"], "tokens of the vocabulary"),
    ("src/cluster/src/placement.rs", &["engines"], "ENGINES_MAX"),
    ("src/cluster/src/router/prefix_affinity.rs", &["context.engines.len()"], "ENGINES_MAX"),
    ("src/cluster/src/router/added_time.rs", &["engines.len()", "costs.len()"], "ENGINES_MAX"),
    ("src/codec/src/coded.rs", &[], "a block that is there"),
    ("src/codec/src/fixed.rs", &[], "a block that is there"),
    ("src/codec/src/frame.rs", &["n", "begin + len", "begin + HEADER"], "a block that is there, max_len"),
    ("src/codec/src/gear.rs", &["lanes", "start + len as usize"], "bytes of a word, max_len"),
    ("src/codec/src/predicted.rs", &[], "a block that is there"),
    ("src/codec/src/quantised.rs", &[], "a block that is there"),
    ("src/codec/src/side_table.rs", &["layers", "channels", "2 * usize::from(shape.layers) * shape.channels()"], "the shape of a model that is loaded"),
    ("src/codec/src/streams.rs", &["room * STREAMS"], "symbols of a block"),
    ("src/core/src/schedule/admission.rs", &["config.block_size"], "tokens of a block"),
    ("src/core/src/blocks/block_index.rs", &["(buckets + 1) * WORDS"], "ROOM_MAX, then blocks that are there"),
    ("src/core/src/eviction/parts/ghost.rs", &["n"], "BUCKETS_MAX"),
    ("src/core/src/eviction/parts/queue.rs", &["n", "blocks"], "queues of a policy, reserved_blocks"),
    ("src/core/src/blocks/extents.rs", &["last"], "the slot of a sequence"),
    ("src/core/src/h2o/plan.rs", &["n_blocks as usize"], "blocks of a sequence"),
    ("src/core/src/h2o/state.rs", &["n"], "blocks of a sequence"),
    ("src/core/src/blocks/nodes.rs", &["blocks"], "ROOM_MAX"),
    ("src/core/src/blocks/run_bits.rs", &["slots.div_ceil(BITS)"], "ROOM_MAX"),
    ("src/core/src/schedule/state.rs", &["self.config.block_size"], "tokens of a block"),
    ("src/core/src/schedule/swap.rs", &["swap_in.copied as usize"], "blocks that are there"),
    ("src/core/src/cache/tier", &["contents"], "one slot for some contents"),
    ("src/core/src/cache/tree.rs", &["room"], "ROOM_MAX"),
    ("src/core/src/cache/classes.rs", &["opened as usize"], "blocks that are there"),
    ("src/core/src/cache/tree/contents.rs", &["capacity"], "ROOM_MAX"),
    ("src/core/src/cache/tree/striking.rs", &["self.pool.opened() as usize"], "blocks that are there"),
    ("src/files/src/aligned.rs", &[], "the caller's number, whose bound is there"),
    ("src/pages/src/lib.rs", &[], "the caller's number, whose bound is there"),
    ("src/server/src/driver.rs", &["cluster.n_engines()"], "ENGINES_MAX"),
    ("src/store/src/answer.rs", &["n as usize"], "pairs of a transfer"),
    ("src/store/src/arena.rs", &["size"], "bytes of a block"),
    ("src/store/src/copying.rs", &["self.device.block_bytes()", "begin + self.device.block_bytes()", "begin"], "bytes of a block"),
    ("src/store/src/disk/", &[], "bytes of a record, TABLE_MAX"),
    ("src/port/src/streaming/times.rs", &["streamed * PASSES"], "layers of a model"),
    ("src/text/src/parts.rs", &["bytes"], "words of a text that is there"),
    ("src/text/src/stop_strings.rs", &["longest"], "a stop string that is there"),
    ("src/worker/src/layers/attention.rs", &[], "rows of a step"),
    ("src/worker/src/kv/block_tables.rs", &["n_groups"], "layer groups of a model"),
    ("src/worker/src/config.rs", &["self.n_layers as usize"], "DIMENSION_MAX"),
    ("src/worker/src/files/gguf/tensors.rs", &["len"], "half of DIMENSION_MAX"),
    ("src/worker/src/kv.rs", &["memory.n_blocks() as usize"], "blocks that are there"),
    ("src/worker/src/kv/arena.rs", &["n_blocks as usize"], "reserved by try_reserve_exact"),
    ("src/worker/src/kv/moved.rs", &["dim"], "DIMENSION_MAX"),
    ("src/worker/src/kernels/amx.rs", &["rows * steps(inputs)"], "rows of a step"),
    ("src/worker/src/kernels/matrix.rs", &[], "weights that are there"),
    ("src/worker/src/kernels/matrix/", &[], "weights that are there"),
    ("src/worker/src/model.rs", &[], "rows of a step, of a model that is loaded"),
    ("src/worker/src/model/streamed.rs", &[], "groups of weights that are there"),
    ("src/worker/src/stream/packed.rs", &["(bytes as usize).next_multiple_of(PAGE)", "bytes as usize"], "MANIFEST_MAX, a group that is there"),
    ("src/worker/src/stream/packed/learned.rs", &["part"], "bytes of a group that is there"),
    ("src/worker/src/stream/packed/writing.rs", &["all - surplus"], "bytes of a group that is there"),
    ("src/worker/src/layers/pair.rs", &["bytes", "at + run.n_bytes()"], "weights that are there"),
    ("src/worker/src/worker/past.rs", &["word + 1"], "tokens of a vocabulary"),
    ("src/worker/src/layers/scores.rs", &[], "rows of a step"),
    ("src/worker/src/model/seeded.rs", &["hidden"], "DIMENSION_MAX"),
    ("src/worker/src/files/shards.rs", &["header_len as usize", "to - from"], "HEADER_MAX, reserved by try_reserve_exact"),
    ("src/worker/src/stream.rs", &[], "groups of weights that are there"),
    ("src/worker/src/files/weights.rs", &["len"], "a tensor that is there"),
    ("src/worker/src/worker.rs", &["step.n_tokens() as usize"], "tokens of a step"),
];

/// Returns the text up to the bracket that closes what was opened before, and to the last `;` outside of inner brackets.
fn argument(text: &str) -> &str {
    let (mut depth, mut from) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return text[from..at].trim(),
            ')' | ']' | '}' => depth -= 1,
            ';' if depth == 0 => from = at + 1,
            _ => {}
        }
    }
    ""
}

/// Returns the numbers of things that the code of a file asks memory for; by `resize`, only unless it `grows` arrays by that.
fn numbers(text: &str, grows: bool) -> Vec<&str> {
    let mut out = Vec::new();
    for call in CALLS {
        for (at, _) in text.match_indices(call) {
            let rest = &text[at + call.len()..];
            let is_list = call == "vec![";
            let all = argument(rest);
            if call.starts_with(".resize") && grows {
                continue;
            }
            // A list of values has as many as are written down. `reserve` is also the name of methods that take other things.
            if is_list && !rest[..rest.find(all).unwrap_or(0)].contains(';') {
                continue;
            }
            let of_hasher = if is_list { all } else { all.split(", ").next().unwrap_or(all) };
            out.push(of_hasher);
        }
    }
    out
}

fn is_number_or_constant(argument: &str) -> bool {
    argument.chars().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase() || " _*+<".contains(c))
}

/// Returns `true` for the declaration of such a function, and for a method of ours that takes no number.
fn is_none(argument: &str) -> bool {
    argument.contains(": ") || argument.starts_with('&') || argument.is_empty()
}

/// Returns the rows of [`BOUNDED`] without a number in the sources.
pub fn unused(sources: &[(String, String)]) -> Vec<String> {
    let is_used = |place: &str, argument: Option<&str>| {
        let mut of_place = sources.iter().filter(|(name, _)| name.starts_with(place));
        of_place.any(|(_, text)| argument.is_none_or(|argument| text.contains(argument)))
    };
    let rows = BOUNDED.iter().filter(|(place, arguments, _)| {
        !is_used(place, None) || arguments.iter().any(|argument| !is_used(place, Some(argument)))
    });
    rows.map(|(place, ..)| (*place).to_owned()).collect()
}

/// Returns a line for each number without a bound.
pub fn unbounded(sources: &[(String, String)]) -> Vec<String> {
    let mut out = Vec::new();
    for (name, text) in sources {
        let is_in = |folders: &[&str]| folders.iter().any(|folder| name.starts_with(folder));
        if !is_in(&["src/", "sim/"]) || is_in(&BY_HAND) || name.ends_with("tests.rs") || name.contains("/tests/") {
            continue;
        }
        let code = code_of(&without_tests(text));
        let bounded = |argument: &str| {
            let mut of_file = BOUNDED.iter().filter(|(place, ..)| name.starts_with(place));
            of_file.any(|(_, arguments, _)| arguments.is_empty() || arguments.contains(&argument))
        };
        for argument in numbers(&code, is_in(&GROWING)) {
            let is_capped = CAPPED.iter().any(|part| argument.contains(part)) || is_number_or_constant(argument);
            if !is_capped && !is_none(argument) && !bounded(argument) {
                out.push(format!("{name} asks for memory for `{argument}` things"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_wherever_memory_is_asked_for() {
        let found = |code: &str| unbounded(&[("src/core/src/a.rs".to_owned(), code.to_owned())]).len();
        for code in [
            "let a = vec![Bucket::default(); capacity as usize];",
            "let a: Vec<u8> = Vec::with_capacity(config.device_blocks as usize);",
            "let a = HashMap::with_capacity_and_hasher(2 * capacity, Default::default());",
            "a.reserve(n);",
            "a.reserve_exact(2 * n);",
        ] {
            assert_eq!(found(code), 1, "{code}");
        }
        for code in [
            "let a = vec![0; b.len()];",
            "let a = vec![1, n, 3];",
            "let a = Vec::with_capacity(capacity.min(ROOM_MAX) as usize);",
            "let a = vec![0; 1 << 20];",
            "// vec![0; n]",
            "#[cfg(test)]\nmod tests {\n    fn a() {\n        vec![0; n];\n    }\n}\n",
        ] {
            assert_eq!(found(code), 0, "{code}");
        }
    }
}
