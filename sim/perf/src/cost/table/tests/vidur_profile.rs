//! Profiles of Vidur's profiler, made by formulas.

use super::*;

const STATISTICS: [&str; 5] = ["min", "max", "mean", "median", "std"];

/// Header with five statistics of each operation, then `columns`.
fn header(operations: &[&str], columns: &str) -> String {
    let all = operations.iter().flat_map(|name| STATISTICS.map(|statistic| format!("time_stats.{name}.{statistic},")));
    all.collect::<String>() + columns + "\n"
}

/// Statistics of an operation whose median is `ms`, so that only the median gives the time; empty fields where it was not measured.
fn statistics(ms: Option<f64>) -> String {
    ms.map_or(",,,,,".into(), |ms| format!("77,88,99,{ms},66,"))
}

const MATRICES: [&str; 9] = [
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
];
const ATTENTION: [&str; 3] = ["attn_kv_cache_save", "attn_prefill", "attn_decode"];

/// Milliseconds of each of the nine operations on `devices`.
fn operation_ms(tokens: u64, devices: u64) -> f64 {
    (100 + tokens) as f64 / devices as f64
}

/// Writes a profile of llama-3.1-8b on one and on two devices, and one of a model of another shape.
fn write_profile(folder: &Path) {
    let mut mlp =
        header(&MATRICES, "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,num_tokens,num_tensor_parallel_workers");
    for (devices, hidden) in [(2, 4096), (1, 4096), (1, 5120)] {
        for tokens in [512, 256, 64, 8, 1] {
            let factor = if hidden == 4096 { 1.0 } else { 1000.0 };
            let ms = factor * operation_ms(tokens, devices);
            // Two rows of a point, and their mean.
            for ms in [ms - 1.0, ms + 1.0] {
                mlp += &MATRICES.map(|_| statistics(Some(ms))).concat();
                mlp += &format!("32,8,{hidden},14336,128256,{tokens},{devices}\n");
            }
        }
    }
    write(folder, "mlp.csv", &mlp);
    let shape = "n_embd,n_q_head,n_kv_head,block_size,num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,is_prefill";
    let mut attention = header(&ATTENTION, shape);
    for devices in [1, 2] {
        for context in [0, 64, 128, 256] {
            for n in [1, 8, 64, 512] {
                let prefill = [Some(0.5), Some((context + n) as f64), None].map(statistics).concat();
                attention += &format!("{prefill}4096,32,8,16,{devices},1,{n},{context},True\n");
                let decode = [Some(0.5), None, Some((10 + context * n) as f64)].map(statistics).concat();
                attention += &format!("{decode}4096,32,8,16,{devices},{n},0,{context},False\n");
            }
        }
    }
    write(folder, "attention.csv", &attention);
}

/// Writes the exchanges of a network, whose times are linear in the bytes.
fn write_network(folder: &Path) {
    let columns = "rank,num_workers,size,collective,devices_per_node,max_devices_per_node";
    for (name, ms_per_token) in [("all_reduce", 1.0), ("send_recv", 3.0)] {
        let mut text = String::from(",") + &header(&[name], columns);
        for (workers, within) in [(2, 2), (2, 1), (4, 4)] {
            for tokens in [0.25, 100.0, 1000.0] {
                let ms = ms_per_token * tokens * if (workers, within) == (2, 2) { 1.0 } else { 50.0 };
                text += &format!("0,{}0,{workers},{},{name},{within},8\n", statistics(Some(ms)), 8192.0 * tokens);
            }
        }
        write(folder, &format!("{name}.csv"), &text);
    }
}

fn read(folder: &Path, parallel: &str) -> Result<Table, String> {
    let (hardware, model) = a100();
    let read = Table::from_vidur(folder, hardware, model, parallel.parse().unwrap());
    read.map_err(|error| error.to_string().replace(&format!("{}/", folder.display()), ""))
}

fn near(table: &Table, shape: StepShape, layer_ms: f64) {
    let found_ms = table.step_s(&shape) * 1e3 / 32.0;
    assert!((found_ms / layer_ms - 1.0).abs() < 1e-9, "{shape:?}: {found_ms} {layer_ms}");
}

#[test]
fn medians_of_the_models_shape_and_number_of_devices_are_put_together_as_vidur_does() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path());
    let one = read(folder.path(), "tp1").unwrap();
    assert_eq!(one.name(), "table of Vidur (llama-3.1-8b on a100-80g)");
    assert_eq!(one.largest(0), Some(Largest { sequences: 512, tokens: 512, context: Some(256) }));
    // Operations, one of them for two norms and the sum, the cache, and attention; 30 tokens are looked up as 32.
    near(&one, StepShape::prefill(30, 60), 9.0 * operation_ms(32, 1) + 0.5 + 64.0 + 30.0);
    near(&one, StepShape::decodes(36, 65), 9.0 * operation_ms(40, 1) + 0.5 + 1.1 * (10 + 128 * 36) as f64);
    // Two devices without a network: all-reduces over the link of the hardware file.
    let two = read(folder.path(), "tp2").unwrap();
    assert_eq!(
        two.name(),
        "table of Vidur (llama-3.1-8b on a100-80g tp2pp1; all-reduces over the links of the hardware file)"
    );
    let (hardware, _) = a100();
    let link_ms = 1e3 * (hardware.peer_link_latency_s + 256.0 * 8192.0 / hardware.peer_link_bytes_s);
    near(&two, StepShape::prefill(256, 0), 9.0 * operation_ms(256, 2) + 0.5 + 256.0 + 2.0 * link_ms);
}

#[test]
fn exchanges_of_a_network_beside_the_profile_are_read() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path());
    write_network(folder.path());
    let two = read(folder.path(), "tp2").unwrap();
    assert_eq!(two.name(), "table of Vidur (llama-3.1-8b on a100-80g tp2pp1)");
    near(&two, StepShape::prefill(256, 0), 9.0 * operation_ms(256, 2) + 0.5 + 256.0 + 2.0 * (256.0 + 0.02));
    // Two stages of sixteen layers; sending 64 tokens takes 192 ms.
    let staged = read(folder.path(), "pp2").unwrap().pipelined(&StepShape::prefill(64, 0));
    let layer_ms = 9.0 * operation_ms(64, 1) + 0.5 + 64.0;
    let of_ns = |ns: u64, ms: f64| assert!((ns as f64 / (ms * 1e6) - 1.0).abs() < 1e-6, "{ns} {ms}");
    of_ns(staged.stage_ns, 16.0 * layer_ms + 192.0);
    of_ns(staged.last_ns, 16.0 * layer_ms);
}

#[test]
fn a_profile_without_rows_of_the_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path());
    assert_eq!(
        read(folder.path(), "tp4").unwrap_err(),
        "mlp.csv: holds no row for n_head 32, n_kv_head 8, n_embd 4096, n_expanded_embd 14336, num_tensor_parallel_workers 4; \
         measure it, or give --cost roofline"
    );
    write_network(folder.path());
    let network = fs::read_to_string(folder.path().join("all_reduce.csv")).unwrap();
    let four: String = network.lines().filter(|line| !line.contains(",2,")).map(|line| format!("{line}\n")).collect();
    write(folder.path(), "all_reduce.csv", &four);
    assert_eq!(
        read(folder.path(), "tp2").unwrap_err(),
        "all_reduce.csv: holds no row for num_workers 2, devices_per_node 2; measure it, or give --cost roofline"
    );
    rewrite(folder.path(), "attention.csv", |line| Some(line.replace("4096,32,8", "4096,40,8")));
    assert!(
        read(folder.path(), "tp1").unwrap_err().starts_with("attention.csv: holds no row for n_q_head 32, n_kv_head 8")
    );
    let (hardware, _) = a100();
    let mixtral = model::by_name("mixtral-8x7b").unwrap();
    let error = Table::from_vidur(folder.path(), hardware, mixtral, Parallel::ONE).unwrap_err().to_string();
    assert!(error.ends_with("these kernels have no experts, which mixtral-8x7b has; give --cost roofline"), "{error}");
}

#[test]
fn norms_and_the_cache_may_be_missing_and_every_third_point_may_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    write_profile(folder.path());
    for (file, names) in [("mlp.csv", &["layernorm", "add"][..]), ("attention.csv", &["attn_kv_cache_save"][..])] {
        rewrite(folder.path(), file, |line| {
            Some(
                names.iter().fold(line.to_owned(), |line, name| {
                    line.replace(&format!("{name}.median"), &format!("{name}.other"))
                }),
            )
        });
    }
    let table = read(folder.path(), "tp1").unwrap();
    near(&table, StepShape::prefill(64, 0), 6.0 * operation_ms(64, 1) + 64.0);
    let (hardware, model) = a100();
    let thinned = Table::read_vidur(folder.path(), hardware, model, Parallel::ONE, Points::TwoOfThree).unwrap();
    // 64 tokens lie on the line between 8 and 256, and a chunk of 64 between those of 8 and 512.
    near(&thinned, StepShape::prefill(64, 0), 6.0 * operation_ms(64, 1) + 64.0);
}
