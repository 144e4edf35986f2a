//! Tables by hand, tables from files, and how they are read in between.

use std::fs;
use std::path::Path;

use super::*;
use crate::columns::{Cell, Column, ColumnWriter, Kind};
use crate::model::Latent;
use crate::{hardware, model};

mod experts;
mod vidur_profile;

const DEEPSEEK: Latent =
    Latent { query_rank: 1536, kv_rank: 512, rope_dim: 64, nope_dim: 128, value_dim: 128, index: None };

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).unwrap();
}

/// Converts CSV with a header. A column of which every row is a whole number has the type of those, and so on.
fn as_parquet(csv: &Path, to: &Path) {
    let text = fs::read_to_string(csv).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let all = |at: usize, test: fn(&str) -> bool| rows[1..].iter().all(|row| test(row[at]));
    let kind = |at: usize| match () {
        () if all(at, |field| field.parse::<i64>().is_ok()) => Kind::Int,
        () if all(at, |field| field.parse::<f64>().is_ok()) => Kind::Real,
        () => Kind::Text,
    };
    let columns: Vec<Column> = rows[0].iter().enumerate().map(|(at, name)| Column::optional(*name, kind(at))).collect();
    let mut writer = ColumnWriter::create(to, columns.clone(), &[]).unwrap();
    for row in &rows[1..] {
        let cell = |(field, column): (&&str, &Column)| match column.kind {
            Kind::Int => Cell::Int(field.parse().unwrap()),
            Kind::Real => Cell::Real(field.parse().unwrap()),
            Kind::Text | Kind::Flag => Cell::Text(field.to_string()),
        };
        writer.push(row.iter().zip(&columns).map(cell)).unwrap();
    }
    writer.finish().unwrap();
}

/// Nanoseconds of a millisecond.
const MS_NS: u64 = 1_000_000;

fn a100() -> (&'static Hardware, &'static Model) {
    (hardware::by_name("a100-80g").unwrap(), model::by_name("llama-3.1-8b").unwrap())
}

/// Made-up times: linear in everything, and far above the limit.
fn attention_us(chunk: u64, computed: u64, n: u64, context: u64) -> f64 {
    (10 + chunk + 2 * computed + 3 * n + n * context) as f64
}

fn llmservingsim(folder: &Path) {
    let mut dense = String::from("layer,tokens,time_us\n");
    for operation in ["layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj"] {
        for tokens in [1, 512, 1024] {
            dense += &format!("{operation},{tokens},{}\n", 1000 + tokens);
        }
    }
    dense += "embedding,1,7\nembedding,512,7\nembedding,1024,7\nsomething_else,1,1e9\n";
    write(folder, "dense.csv", &dense);
    write(
        folder,
        "per_sequence.csv",
        "layer,sequences,time_us\nlm_head,1,100\nlm_head,64,100\nsampler,1,11\nsampler,64,74\n",
    );
    let mut attention = String::from("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n");
    for chunk in [0, 16, 1024] {
        for computed in [0, 16, 4096] {
            for n in [0, 1, 64] {
                for context in [0, 16, 4096] {
                    let measured = (chunk > 0 || computed == 0) && (n > 0) == (context > 0) && chunk + n > 0;
                    if measured && (chunk < 1024 || n < 64) {
                        let time = attention_us(chunk, computed, n, context);
                        attention += &format!("{chunk},{computed},{n},{context},{time}\n");
                    }
                }
            }
        }
    }
    write(folder, "attention.csv", &attention);
    write(folder, "skew_fit.csv", "pc,alpha,n_samples\n0,0.1,3\n0,-0.1,1\n16,0.3,4\n");
}

#[test]
fn a_mixed_table_adds_up_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    llmservingsim(folder.path());
    let (hardware, model) = a100();
    let table = Table::from_llmservingsim(folder.path(), hardware, model, Parallel::ONE, Skew::Share(0.0)).unwrap();
    let expected_us = |tokens: u64, sampled: u64, attention_us: f64| {
        32.0 * (8 * (1000 + tokens)) as f64 + 7.0 + 100.0 + (10 + sampled) as f64 + 32.0 * attention_us
    };
    let near = |shape: StepShape, expected_us: f64| {
        let found_us = table.step_s(&shape) * 1e6;
        assert!((found_us / expected_us - 1.0).abs() < 1e-9, "{shape:?}: {found_us} {expected_us}");
    };
    near(StepShape::decodes(1, 16), expected_us(1, 1, attention_us(0, 0, 1, 16)));
    near(StepShape::decodes(32, 1000), expected_us(32, 32, attention_us(0, 0, 32, 1000)));
    near(StepShape::prefill(500, 700), expected_us(500, 1, attention_us(500, 700, 0, 0)));
    let mixed = StepShape::prefill(16, 700).and(StepShape::decodes(40, 300));
    near(mixed, expected_us(56, 41, attention_us(16, 700, 40, 300)));
    near(StepShape::prefill(8, 16), expected_us(8, 1, attention_us(16, 16, 0, 0)));
    // Unequal contexts make no difference without skew; with it they do, in the share that was asked for.
    let uneven = StepShape { decode_kv_max: 900, ..StepShape::decodes(10, 100) };
    near(uneven, expected_us(10, 10, attention_us(0, 0, 10, 100)));
    let table = Table::from_llmservingsim(folder.path(), hardware, model, Parallel::ONE, Skew::Fitted).unwrap();
    let found_us = table.step_s(&uneven) * 1e6;
    let skewed = expected_us(10, 10, attention_us(0, 0, 10, 100) + 0.175 * 10.0 * 800.0);
    assert!((found_us / skewed - 1.0).abs() < 1e-9, "{found_us} {skewed}");
    assert_eq!(
        table.name(),
        "table of LLMServingSim (llama-3.1-8b on a100-80g; rows of dense not used: something_else)"
    );
}

/// Rewrites a line-wise CSV file of a folder.
fn rewrite(folder: &Path, name: &str, row: impl Fn(&str) -> Option<String>) {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    write(folder, name, &text.lines().filter_map(row).map(|line| line + "\n").collect::<String>());
}

#[test]
fn holes_of_a_union_of_grids_are_interpolated() {
    let folder = tempfile::tempdir().unwrap();
    let whole = tempfile::tempdir().unwrap();
    let (hardware, model) = a100();
    llmservingsim(folder.path());
    llmservingsim(whole.path());
    // A second grid of mixed calls, of other chunks and contexts: its rows share no chunk above 0 with the first grid.
    let mut second = String::new();
    for chunk in [64, 256] {
        for computed in [0, 16, 4096] {
            for n in [1, 64] {
                for context in [16, 1024, 4096] {
                    let time = attention_us(chunk, computed, n, context);
                    second += &format!("\n{chunk},{computed},{n},{context},{time}");
                }
            }
        }
    }
    rewrite(folder.path(), "attention.csv", |line| {
        Some(if line == "16,0,0,0,26" { format!("{line}{second}") } else { line.into() })
    });
    let read =
        |folder: &Path| Table::from_llmservingsim(folder, hardware, model, Parallel::ONE, Skew::Share(0.0)).unwrap();
    let (union, product) = (read(folder.path()), read(whole.path()));
    let Attention::Fused(attention) = &union.attention else { panic!("a fused table") };
    // Times are linear along each axis, so that interpolation between the grids is exact.
    for (chunk, computed, n, context) in
        [(100, 700, 0, 0), (100, 50, 1, 300), (900, 4096, 1, 3000), (20, 0, 30, 1024), (0, 0, 30, 700)]
    {
        let mut shape = StepShape::decodes(n, context);
        if chunk > 0 {
            shape = shape.and(StepShape::prefill(chunk, computed));
        }
        let (found, expected) = (attention.layer_s(&shape) * 1e6, attention_us(chunk, computed, n, context));
        assert!((found / expected - 1.0).abs() < 1e-9, "{shape:?}: {found} {expected}");
    }
    // A context of 1,024 for chunks of 16 and 1,024 and for decodes alone, and prefills alone of 64 and 256.
    assert!(union.name().ends_with("something_else; 17 points of attention interpolated)"), "{}", union.name());
    assert!(!product.name().contains("interpolated"), "{}", product.name());
}

#[test]
fn effective_keys_stand_for_computed_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let (hardware, model) = a100();
    llmservingsim(folder.path());
    // Time by pairs of query and key: 2 us for each key of an average query.
    let key_us = |chunk: u64, key: u64, n: u64, context: u64| (10 + chunk + 2 * key + 3 * n + n * context) as f64;
    let mut attention = String::from("layer,prefill_chunk,prefill_key,n_decode,kv_decode,decode_q_len,time_us\n");
    for (chunk, keys) in [(0, vec![0]), (16, vec![8, 1024, 4096]), (1024, vec![1024, 4096])] {
        for key in keys {
            for (n, context) in [(0, 0), (1, 16), (1, 4096), (64, 16), (64, 4096)] {
                if chunk + n > 0 {
                    let time = key_us(chunk, key, n, context);
                    attention += &format!("attention,{chunk},{key}.0,{n},{context},1,{time}\n");
                }
            }
        }
    }
    attention += "attention,16,8.0,1,16,4,1e9\nindexer,16,8.0,1,16,1,1e9\n";
    write(folder.path(), "attention.csv", &attention);
    let table = Table::from_llmservingsim(folder.path(), hardware, model, Parallel::ONE, Skew::Share(0.0)).unwrap();
    let near = |shape: StepShape, expected_us: f64| {
        let Attention::Fused(attention) = &table.attention else { panic!("a fused table") };
        let found_us = attention.layer_s(&shape) * 1e6;
        assert!((found_us / expected_us - 1.0).abs() < 1e-9, "{shape:?}: {found_us} {expected_us}");
    };
    near(StepShape::prefill(16, 0), 10.0 + 16.0 + 2.0 * 8.0);
    near(StepShape::prefill(1024, 1000), 10.0 + 1024.0 + 2.0 * 1512.0);
    // Chunks of 300 and 100 tokens after 2,000 and 600: (300 * 2150 + 100 * 650) / 400.
    let two = StepShape::prefill(300, 2000).and(StepShape::prefill(100, 600));
    near(two, 10.0 + 400.0 + 2.0 * 1775.0);
    near(StepShape::prefill(400, 1575).and(StepShape::decodes(64, 100)), 10.0 + 400.0 + 2.0 * 1775.0 + 192.0 + 6400.0);
    near(StepShape::decodes(1, 300), 10.0 + 3.0 + 300.0);
    // Keys below half a chunk cannot be, so that nothing possible was interpolated.
    assert!(
        table.name().ends_with("something_else; rows of attention not used: decode_q_len 4, layer indexer)"),
        "{}",
        table.name()
    );
}

#[test]
fn several_devices_have_their_tables_and_all_reduces() {
    let folder = tempfile::tempdir().unwrap();
    let (hardware, model) = a100();
    for degree in ["tp1", "tp2"] {
        fs::create_dir(folder.path().join(degree)).unwrap();
        llmservingsim(&folder.path().join(degree));
    }
    write(folder.path(), "meta.yaml", "skew_fit:\n  enabled: true\n  per_tp:\n    1:\n      alpha_default: 0.5\n");
    let read = |tensor| {
        Table::from_llmservingsim(folder.path(), hardware, model, Parallel::tensor(tensor), Skew::Published).unwrap()
    };
    let (one, two) = (read(1), read(2));
    for tokens in [1, 512, 1024] {
        let all_reduce_s =
            hardware.peer_link_latency_s + (tokens * 2 * model.hidden) as f64 / hardware.peer_link_bytes_s;
        let more_s = two.linear.at(tokens) - one.linear.at(tokens);
        assert!((more_s / (2.0 * 32.0 * all_reduce_s) - 1.0).abs() < 1e-9, "{tokens}: {more_s} {all_reduce_s}");
    }
    assert_eq!(
        two.name(),
        "table of LLMServingSim (llama-3.1-8b on a100-80g tp2pp1; rows of dense not used: something_else; meta.yaml \
         enables skew_fit without an alpha_default of 2 devices: skew not counted)"
    );
    // Half of the difference to a call in which all contexts are as long as the longest.
    let uneven = StepShape { decode_kv_max: 900, ..StepShape::decodes(10, 100) };
    let skew_s = one.step_s(&uneven) - one.step_s(&StepShape::decodes(10, 100));
    assert!((skew_s / (32.0 * 0.5 * 10.0 * 800e-6) - 1.0).abs() < 1e-9, "{skew_s}");
}

#[test]
fn a_norm_of_heads_counts_and_operations_may_differ_in_their_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (hardware, model) = a100();
    llmservingsim(folder.path());
    let read = || Table::from_llmservingsim(folder.path(), hardware, model, Parallel::ONE, Skew::Published).unwrap();
    let without = read();
    let text = fs::read_to_string(folder.path().join("dense.csv")).unwrap();
    write(folder.path(), "dense.csv", &format!("{text}qk_norm,1,11\nqk_norm,256,21\nqk_norm,1024,31\n"));
    let with = read();
    let more_us = |tokens| (with.linear.at(tokens) - without.linear.at(tokens)) * 1e6 / 32.0;
    for (tokens, us) in [(1, 11.0), (256, 21.0), (512, 21.0 + 10.0 / 3.0), (1024, 31.0)] {
        assert!((more_us(tokens) / us - 1.0).abs() < 1e-6, "{tokens}: {}", more_us(tokens));
    }
    assert!(with.name().ends_with("(llama-3.1-8b on a100-80g; rows of dense not used: something_else)"));
}

#[test]
fn beyond_a_table_the_share_of_the_peak_is_held() {
    let folder = tempfile::tempdir().unwrap();
    llmservingsim(folder.path());
    let (hardware, model) = a100();
    let table = Table::from_llmservingsim(folder.path(), hardware, model, Parallel::ONE, Skew::Share(0.0)).unwrap();
    let s = |shape| table.step_s(&shape);
    assert!(s(StepShape::prefill(4096, 0)) > 2.0 * s(StepShape::prefill(1024, 0)));
    assert!(s(StepShape::decodes(64, 40_960)) > 5.0 * s(StepShape::decodes(64, 4_096)));
    // Whatever the numbers are, physics holds: a table of nothing but zeros takes as long as the limit.
    rewrite(folder.path(), "dense.csv", |line| {
        let (operation, _) = line.rsplit_once(',').filter(|_| !line.starts_with("layer,"))?;
        Some(format!("{operation},0"))
    });
    let rows = fs::read_to_string(folder.path().join("dense.csv")).unwrap();
    write(folder.path(), "dense.csv", &format!("layer,tokens,time_us\n{rows}"));
    let zeros = Table::from_llmservingsim(folder.path(), hardware, model, Parallel::ONE, Skew::Share(0.0)).unwrap();
    let shape = StepShape::prefill(8192, 0);
    let limit = LowerBound::new(hardware, model, Parallel::ONE);
    assert!(zeros.step_ns(&shape) as f64 >= limit.step_s(&shape) * 1e9);
}

#[test]
fn faults_name_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let (hardware, model) = a100();
    let read = || {
        let fault = Table::from_llmservingsim(folder.path(), hardware, model, Parallel::ONE, Skew::Fitted).unwrap_err();
        fault.to_string().replace(&format!("{}/", folder.path().display()), "")
    };
    assert_eq!(read(), "dense.csv: no such file; check the path");
    llmservingsim(folder.path());
    write(folder.path(), "dense.csv", "layer,tokens\nqkv_proj,1\n");
    assert_eq!(read(), "dense.csv, line 1: the header has no column 'time_us'");
    write(folder.path(), "dense.csv", "layer,tokens,time_us\nqkv_proj,1,2\n\nqkv_proj,1\n");
    assert_eq!(read(), "dense.csv, line 4: the row has no column 'time_us'");
    write(folder.path(), "dense.csv", "layer,tokens,time_us\nqkv_proj,1.5,2\n");
    assert_eq!(read(), "dense.csv, line 2: tokens is '1.5'; it must be a number of at least 0");
    write(folder.path(), "dense.csv", "layer,tokens,time_us\nqkv_proj,1,-2\n");
    assert_eq!(read(), "dense.csv, line 2: time_us is '-2'; it must be a number of at least 0");
    let remedy = "measure it, or give --cost roofline";
    let matrices = "qkv_proj,1,2\no_proj,2,2\ngate_up_proj,1,2\ndown_proj,1,2\n";
    write(folder.path(), "dense.csv", &format!("layer,tokens,time_us\n{matrices}"));
    assert_eq!(read(), format!("dense.csv: the grid has no row for tokens that all operations have; {remedy}"));
    write(folder.path(), "dense.csv", "layer,tokens,time_us\n");
    assert_eq!(read(), format!("dense.csv: holds no row for qkv_proj, o_proj, gate_up_proj, down_proj; {remedy}"));
    write(folder.path(), "dense.csv", &format!("layer,tokens,time_us\n{}", matrices.replace("o_proj", "out_proj")));
    assert_eq!(read(), format!("dense.csv: holds no row for o_proj; {remedy}"), "a step without it would be too short");
    llmservingsim(folder.path());
    rewrite(folder.path(), "per_sequence.csv", |line| (!line.starts_with("lm_head")).then(|| line.into()));
    assert_eq!(read(), format!("per_sequence.csv: holds no row for lm_head; {remedy}"));
    llmservingsim(folder.path());
    // Without a call of one decode of any context there is nothing to interpolate mixed calls from.
    rewrite(folder.path(), "attention.csv", |line| {
        (!line.starts_with("16,") && !line.starts_with("1024,")).then(|| line.into())
    });
    assert_eq!(read(), format!("attention.csv: holds no row for chunks alone and decodes alone; {remedy}"));
    llmservingsim(folder.path());
    rewrite(folder.path(), "attention.csv", |line| {
        let mixed = !line.starts_with("0,") && line.split(',').nth(2) != Some("0");
        (!mixed || line.starts_with("prefill")).then(|| line.into())
    });
    assert_eq!(
        read(),
        format!(
            "attention.csv: the grid has no row for prefill_chunk 16, kv_prefill 0, n_decode 1, kv_decode 16; {remedy}"
        )
    );
}

#[test]
fn faults_of_parquet_name_file_and_row() {
    let folder = tempfile::tempdir().unwrap();
    let (hardware, model) = a100();
    let read = |text: &str| {
        llmservingsim(folder.path());
        write(folder.path(), "dense.csv", text);
        as_parquet(&folder.path().join("dense.csv"), &folder.path().join("dense.parquet"));
        fs::remove_file(folder.path().join("dense.csv")).unwrap();
        let fault = Table::from_llmservingsim(folder.path(), hardware, model, Parallel::ONE, Skew::Fitted).unwrap_err();
        fault.to_string().replace(&format!("{}/", folder.path().display()), "")
    };
    assert_eq!(read("layer,tokens\nqkv_proj,1\n"), "dense.parquet: there is no column 'time_us'");
    assert_eq!(
        read("layer,tokens,time_us\nqkv_proj,1,2\nqkv_proj,2,-2\n"),
        "dense.parquet: row 2: time_us is '-2'; it must be a number of at least 0"
    );
}

#[test]
fn vidurs_tables_are_put_together_as_vidur_does() {
    let folder = tempfile::tempdir().unwrap();
    let operations = "add,attn_kv_cache_save,attn_post_proj,attn_pre_proj,attn_rope,input_layernorm,mlp_act,mlp_down_proj,\
                      mlp_up_proj,post_attention_layernorm,all_reduce,send_recv";
    let mut linear = format!("num_tokens,{operations}\n");
    for n in 1..=64 {
        linear += &format!("{n},1,1,1,1,1,1,1,1,1,1,{n},1000\n");
    }
    write(folder.path(), "linear_ops_ms.csv", &linear);
    let (mut prefill, mut decode) = (
        String::from("kv_cache_size,prefill_chunk_size,ms_per_layer\n"),
        String::from("batch_size,kv_cache_size,ms_per_layer\n"),
    );
    for context in [0, 64, 128] {
        for n in 1..=64 {
            prefill += &format!("{context},{n},{}\n", context + n);
            decode += &format!("{n},{context},{}\n", context * n);
        }
    }
    write(folder.path(), "attn_prefill.csv", &prefill);
    write(folder.path(), "attn_decode.csv", &decode);
    let (hardware, model) = a100();
    let table = |tensor| Table::from_vidur(folder.path(), hardware, model, Parallel::tensor(tensor)).unwrap();
    let near = |tensor, shape: StepShape, layer_ms: f64| {
        let found_ms = table(tensor).step_s(&shape) * 1e3;
        assert!((found_ms / 32.0 / layer_ms - 1.0).abs() < 1e-9, "{shape:?}: {found_ms}");
    };
    near(1, StepShape::decodes(1, 1), 10.0 + 64.0);
    near(1, StepShape::decodes(3, 65), 10.0 + 1.1 * 3.0 * 128.0);
    near(1, StepShape::prefill(30, 60), 10.0 + 64.0 + 30.0);
    near(1, StepShape::prefill(3, 0).and(StepShape::prefill(4, 0)), 10.0 + 1.1 * 5.0);
    near(2, StepShape::prefill(30, 60), 10.0 + 64.0 + 30.0 + 2.0 * (32.0 + 0.02));
    // Four stages of eight layers; 30 tokens are looked up as 32.
    let staged = |parallel: &str| {
        let parallel = parallel.parse().unwrap();
        let table = Table::from_vidur(folder.path(), hardware, model, parallel).unwrap();
        let step = table.pipelined(&StepShape::prefill(30, 60));
        (step.stage_ns, step.last_ns, table.step_ns(&StepShape::prefill(30, 60)))
    };
    assert_eq!(staged("pp4"), (8 * 104 * MS_NS + 1000 * MS_NS, 8 * 104 * MS_NS, 32 * 104 * MS_NS + 3 * 1000 * MS_NS));
    let layers_us = 8 * (104_000 + 2 * 32_020);
    assert_eq!(staged("tp2pp4"), (layers_us * 1000 + 1000 * MS_NS, layers_us * 1000, layers_us * 4000 + 3000 * MS_NS));
    // Without a measurement, sending takes the peer link.
    let unsent = linear.replace(",send_recv", "").replace(",1000\n", "\n");
    write(folder.path(), "linear_ops_ms.csv", &unsent);
    let link_s = hardware.peer_link_latency_s + 30.0_f64.max(32.0) * 2.0 * 4096.0 / hardware.peer_link_bytes_s;
    assert_eq!(staged("pp4").0, 8 * 104 * MS_NS + (link_s * 1e9).ceil() as u64);
}

#[test]
fn the_last_stage_has_the_head() {
    let folder = tempfile::tempdir().unwrap();
    llmservingsim(folder.path());
    let (hardware, model) = a100();
    let table = |parallel: &str| {
        let parallel = parallel.parse().unwrap();
        Table::from_llmservingsim(folder.path(), hardware, model, parallel, Skew::Share(0.0)).unwrap()
    };
    let shape = StepShape::decodes(4, 16);
    let (one, four) = (table("tp1"), table("pp4"));
    let step = four.pipelined(&shape);
    let link_ns = 1e9 * (hardware.peer_link_latency_s + 4.0 * 8192.0 / hardware.peer_link_bytes_s);
    let (layers_ns, head_ns) = (one.layers_s(&shape) * 1e9, one.head_s(&shape) * 1e9);
    assert!(head_ns > 10.0 * link_ns, "the head is seen: {head_ns}");
    let near = |found: u64, expected: f64| assert!((found as f64 - expected).abs() < 2.0, "{found} {expected}");
    near(step.stage_ns, layers_ns / 4.0 + link_ns);
    near(step.last_ns, layers_ns / 4.0 + head_ns);
    near(four.step_ns(&shape), layers_ns + head_ns + 3.0 * link_ns);
    assert_eq!(one.pipelined(&shape), PipelinedStep::undivided(one.step_ns(&shape)));
}

#[test]
fn kernels_are_put_together_for_a_model() {
    let folder = tempfile::tempdir().unwrap();
    // Every product at half the peak of the A100, of one shape only.
    let (n, k) = (4096u64, 4096u64);
    let mut gemm = String::from("framework,gemm_dtype,m,n,k,latency\nx,fp8,1,1,1,1\n");
    let ideal_s = |m: f64, n: f64, k: f64| (2.0 * m * n * k / 312e12).max(2.0 * (n * k + m * (n + k)) / 2039e9);
    for m in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192] {
        let latency = 2e3 * ideal_s(f64::from(m), n as f64, k as f64);
        gemm += &format!("x,bfloat16,{m},{n},{k},{latency}\n");
    }
    write(folder.path(), "gemm_perf.csv", &gemm);
    let header = "batch_size,isl,num_heads,num_key_value_heads,head_dim,kv_cache_dtype,step,latency\n";
    write(
        folder.path(),
        "context_attention_perf.csv",
        &format!("{header}1,1,32,8,128,bfloat16,0,1\n1,101,32,8,128,bfloat16,0,2\n"),
    );
    let generation = format!(
        "{header}1,1,32,8,128,bfloat16,0,1\n4,1,32,8,128,bfloat16,0,4\n1,1,32,8,128,bfloat16,1023,2\n9,1,64,8,128,bfloat16,0,9\n"
    );
    write(folder.path(), "generation_attention_perf.csv", &generation);
    let (hardware, model) = a100();
    let table = Table::from_aiconfigurator(folder.path(), hardware, model, Parallel::ONE).unwrap();
    // At half the peak throughout: 1,024 tokens of 7.5 GFLOP each per layer pair, and 1 % of bytes for what is no product.
    let half_s = 2.0 * 1024.0 * 2.0 * model.layer_elements() as f64 / 312e12;
    let found_s = table.linear.at(1024);
    assert!((0.99..1.08).contains(&(found_s / half_s)), "{found_s} {half_s}");
    let Attention::Separate(apart) = &table.attention else { panic!("kernels apart") };
    let ms = |shape: StepShape| apart.layer_s(&shape) * 1e3;
    assert!((ms(StepShape::prefill(51, 0)) - 1.5).abs() < 0.01);
    assert!((ms(StepShape::decodes(1, 1)) - 1.0).abs() < 1e-9);
    assert!((ms(StepShape::decodes(4, 1024)) - 8.0).abs() < 1e-9, "goes on from the batch of one");
    // The same numbers as Parquet, which is how they are published, take as long to the nanosecond.
    let published = tempfile::tempdir().unwrap();
    for name in ["gemm_perf", "context_attention_perf", "generation_attention_perf"] {
        as_parquet(&folder.path().join(format!("{name}.csv")), &published.path().join(format!("{name}.parquet")));
    }
    let same = Table::from_aiconfigurator(published.path(), hardware, model, Parallel::ONE).unwrap();
    for shape in [StepShape::prefill(300, 0), StepShape::decodes(3, 700), StepShape::prefill(64, 512)] {
        assert_eq!(same.step_ns(&shape), table.step_ns(&shape), "{shape:?}");
    }
    let missing =
        Table::from_aiconfigurator(folder.path(), hardware, model, Parallel::tensor(2)).unwrap_err().to_string();
    assert!(missing.ends_with("custom_allreduce_perf.csv: no such file; check the path"), "{missing}");
    let latent = Model { latent: Some(DEEPSEEK), ..*model };
    let no_latent =
        Table::from_aiconfigurator(folder.path(), hardware, &latent, Parallel::ONE).unwrap_err().to_string();
    assert!(
        no_latent.ends_with("have no latent attention, which llama-3.1-8b has; give --cost roofline"),
        "{no_latent}"
    );
}

#[test]
fn operations_count_where_all_of_them_were_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (hardware, model) = a100();
    llmservingsim(folder.path());
    let read = || Table::from_llmservingsim(folder.path(), hardware, model, Parallel::ONE, Skew::Share(0.0)).unwrap();
    let whole = read();
    assert_eq!(whole.largest(0), Some(Largest { sequences: 64, tokens: 1024, context: Some(4096) }));
    // A hole inside is filled; the ends of the shortest operation are the ends of the table.
    rewrite(folder.path(), "dense.csv", |line| (!line.starts_with("o_proj,512,")).then(|| line.into()));
    assert!((read().linear.at(512) / whole.linear.at(512) - 1.0).abs() < 1e-9);
    assert_eq!(read().name(), whole.name());
    rewrite(folder.path(), "dense.csv", |line| (!line.starts_with("down_proj,1024,")).then(|| line.into()));
    let short = read();
    assert_eq!(short.largest(0), Some(Largest { sequences: 64, tokens: 512, context: Some(4096) }));
    assert!((short.linear.at(512) / whole.linear.at(512) - 1.0).abs() < 1e-9);
    assert!(short.name().contains("; tokens of dense from 1 to 512, as all operations have"), "{}", short.name());
    let matrices = |tokens| LowerBound::new(hardware, model, Parallel::ONE).step_s(&StepShape::prefill(tokens, 0));
    let growth = short.linear.at(1024) / short.linear.at(512);
    assert!((growth / (matrices(1024) / matrices(512)) - 1.0).abs() < 0.1, "as the device allows: {growth}");
    // Of decodes and the output matrix, the one with fewer sequences.
    rewrite(folder.path(), "per_sequence.csv", |line| (!line.starts_with("lm_head,64,")).then(|| line.into()));
    assert_eq!(read().largest(0), Some(Largest { sequences: 1, tokens: 512, context: Some(4096) }));
}

#[test]
fn holes_of_vidurs_tables_and_of_kernels_are_filled_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (mut prefill, mut decode) = (
        String::from("kv_cache_size,prefill_chunk_size,ms_per_layer\n"),
        String::from("batch_size,kv_cache_size,ms_per_layer\n"),
    );
    let header = "batch_size,isl,num_heads,num_key_value_heads,head_dim,kv_cache_dtype,step,latency\n";
    let (mut chunks, mut steps) = (String::from(header), String::from(header));
    for context in [0, 64, 128, 192] {
        for n in 1..=16 {
            prefill += &format!("{context},{n},{}\n", context + n);
            decode += &format!("{n},{context},{}\n", 10 + context * n);
            chunks += &format!("1,{},32,8,128,bfloat16,0,{}\n", n * 64, n);
            steps += &format!("{n},1,32,8,128,bfloat16,{},{}\n", context + 63, 10 + (context + 64) * n);
        }
    }
    let operations = "add,attn_kv_cache_save,attn_post_proj,attn_pre_proj,attn_rope,input_layernorm,mlp_act,mlp_down_proj,\
                      mlp_up_proj,post_attention_layernorm";
    let zeros = "0,".repeat(9) + "0";
    write(folder.path(), "linear_ops_ms.csv", &format!("num_tokens,{operations}\n1,{zeros}\n16,{zeros}\n"));
    write(folder.path(), "attn_prefill.csv", &prefill);
    write(folder.path(), "attn_decode.csv", &decode);
    let gemm: String = [1, 2, 4, 8, 16, 32, 64, 128].map(|m| format!("bfloat16,{m},4096,4096,1\n")).concat();
    write(folder.path(), "gemm_perf.csv", &format!("gemm_dtype,m,n,k,latency\n{gemm}"));
    write(folder.path(), "context_attention_perf.csv", &chunks);
    write(folder.path(), "generation_attention_perf.csv", &steps);
    let (hardware, model) = a100();
    let vidur = || Table::from_vidur(folder.path(), hardware, model, Parallel::ONE).unwrap();
    let kernels = || Table::from_aiconfigurator(folder.path(), hardware, model, Parallel::ONE).unwrap();
    let whole = (vidur(), kernels());
    assert_eq!(whole.0.largest(0), Some(Largest { sequences: 16, tokens: 16, context: Some(192) }));
    assert_eq!(whole.1.largest(0).map(|largest| largest.sequences), Some(16));
    let without = |name: &str, rows: &[&str]| {
        rewrite(folder.path(), name, |line| (!rows.iter().any(|row| line.starts_with(row))).then(|| line.into()));
    };
    without("attn_prefill.csv", &["64,3,", "128,3,", "0,7,"]);
    without("attn_decode.csv", &["4,64,", "1,128,"]);
    without("generation_attention_perf.csv", &["1,1,32,8,128,bfloat16,127,", "5,1,32,8,128,bfloat16,191,"]);
    let filled = (vidur(), kernels());
    assert!(
        filled.0.name().contains("3 points of attn_prefill.csv interpolated; 2 points of attn_decode.csv interpolated")
    );
    assert!(filled.1.name().contains("2 points of decode attention interpolated"), "{}", filled.1.name());
    // Times are linear along each axis, so that the filled points are exact.
    for shape in
        [StepShape::prefill(3, 64), StepShape::prefill(7, 0), StepShape::decodes(4, 64), StepShape::decodes(1, 128)]
    {
        assert!((filled.0.step_s(&shape) / whole.0.step_s(&shape) - 1.0).abs() < 1e-9, "{shape:?}");
    }
    for shape in [StepShape::decodes(1, 128), StepShape::decodes(5, 192), StepShape::decodes(6, 150)] {
        assert!((filled.1.step_s(&shape) / whole.1.step_s(&shape) - 1.0).abs() < 1e-9, "{shape:?}");
    }
}

#[test]
fn every_third_point_inside_an_axis_is_left_out() {
    let thinned = |n: u32| {
        let mut axis: Vec<u32> = (0..n).collect();
        Points::TwoOfThree.thin(&mut axis);
        axis
    };
    assert_eq!(thinned(9), [0, 1, 3, 4, 6, 7, 8]);
    assert_eq!((thinned(3), thinned(1), thinned(0)), (vec![0, 1, 2], vec![0], vec![]));
    let mut all = vec![0, 1, 2, 3, 4];
    Points::All.thin(&mut all);
    assert_eq!(all, [0, 1, 2, 3, 4]);
}
