//! What can be chosen, what is found in a folder, and what is refused.

use std::fs;
use std::path::Path;

use super::*;
use crate::hardware;

fn device(name: &str) -> &'static Hardware {
    hardware::by_name(name).unwrap()
}

fn llama() -> &'static Model {
    model::by_name("llama-3.1-8b").unwrap()
}

/// A folder as LLMServingSim writes it, of a device that takes `factor` times what the roofline of the RTX 4090 says.
fn profile(factor: f64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let roofline = Roofline::new(device("rtx4090-24g"), llama());
    let us = |tokens: u64| {
        let shape = StepShape { sampled: 0, ..StepShape::prefill(tokens, 0) };
        // Attention is free: all of it is in the one operation, which is run once in each of 32 layers.
        factor * roofline.step_ns(&shape) as f64 / 1e3 / 32.0
    };
    let rows: String = [1, 2, 1024, 2048]
        .map(|n| format!("qkv_proj,{n},{}\no_proj,{n},0\ngate_up_proj,{n},0\ndown_proj,{n},0\n", us(n)))
        .concat();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("dense.csv", &format!("layer,tokens,time_us\n{rows}"));
    write("per_sequence.csv", "layer,sequences,time_us\nlm_head,1,0\nlm_head,64,0\n");
    let mut attention = String::from("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n");
    for point in ["0,0,1,16", "0,0,64,16", "2048,0,0,0", "2048,0,1,16", "2048,0,64,16"] {
        attention += &format!("{point},0\n");
    }
    write("attention.csv", &attention);
    folder
}

fn make(spec: &str, hardware: &Hardware, model: &Model, parallel: &str, weights: &str) -> Result<String, String> {
    let choice: CostChoice = spec.parse().unwrap();
    let made = choice.make(hardware, model, parallel.parse().unwrap(), weights.parse().unwrap());
    made.map(|cost| cost.name().to_owned()).map_err(|error| error.to_string())
}

#[test]
fn written_and_read() {
    for text in ["auto", "roofline", "fitted", "table:a:b/c", "llmservingsim:x", "vidur:x", "aiconfigurator:/x y"] {
        assert_eq!(text.parse::<CostChoice>().unwrap().to_string(), text);
    }
    let error = |text: &str| text.parse::<CostChoice>().unwrap_err().to_string();
    for text in ["magic", "roofline:x", "auto:"] {
        assert_eq!(
            error(text),
            format!(
                "unknown cost model '{text}'; there are: auto, roofline, fitted, table:PATH, llmservingsim:PATH, vidur:PATH, \
                 aiconfigurator:PATH"
            )
        );
    }
    assert_eq!(error("table"), "cost model 'table' needs a folder, as in table:PATH");
    assert_eq!(error("vidur:"), "cost model 'vidur' needs a folder, as in vidur:PATH");
}

#[test]
fn a_roofline_can_be_had_where_steps_were_measured() {
    let time = super::super::StepTime { model: "llama-3.1-8b", constant_s: 0.1, ..Default::default() };
    let measured = Hardware { step_time: Some(time), ..*device("rtx4090-24g") };
    let made = |spec, parallel| make(spec, &measured, llama(), parallel, "resident");
    assert!(made("auto", "tp1").unwrap().starts_with("fitted (error not measured"));
    assert_eq!(made("auto", "tp1"), made("fitted", "tp1"));
    assert!(made("roofline", "tp1").unwrap().starts_with("roofline (held-out error, "));
    assert!(made("auto", "tp2").unwrap().starts_with("roofline tp2"));
    let none = |parallel| {
        format!(
            "rtx4090-24g has no measured step times of llama-3.1-8b {parallel}; make a file that has, with calibrate"
        )
    };
    assert_eq!(made("fitted", "tp2").unwrap_err(), none("tp2pp1"));
    assert_eq!(make("fitted", device("rtx4090-24g"), llama(), "tp1", "resident").unwrap_err(), none("tp1pp1"));
}

#[test]
fn fitted_times_are_of_a_model_of_the_same_size_and_spread() {
    let llama = llama();
    let time = super::super::StepTime {
        model: "llama-3.1-8b",
        model_bytes: Some(llama.size()),
        parallel: "tp2pp1",
        constant_s: 0.1,
        ..Default::default()
    };
    let measured = Hardware { step_time: Some(time), ..*device("h100-80g") };
    let name = |model: &Model, parallel: &str| make("auto", &measured, model, parallel, "resident").unwrap();
    assert!(name(llama, "tp2").starts_with("fitted "));
    assert!(name(&Model { name: "Llama-3.1-8B-Instruct", ..*llama }, "tp2").starts_with("fitted "));
    assert!(name(&Model { kv_dtype_bytes: 1, ..*llama }, "tp2").starts_with("fitted "));
    let smaller = name(&Model { layers: 2, ..*llama }, "tp2");
    assert!(smaller.starts_with("roofline tp2"), "{smaller}");
    assert!(smaller.ends_with("; the file has step times of another model: llama-3.1-8b on tp2pp1)"), "{smaller}");
    let alone = name(llama, "tp1");
    assert!(
        alone.ends_with("; the file has step times of the model spread otherwise: llama-3.1-8b on tp2pp1)"),
        "{alone}"
    );
}

#[test]
fn the_layout_of_a_folder_is_found() {
    let folder = profile(1.1);
    let path = folder.path().display();
    for spec in [format!("table:{path}"), format!("llmservingsim:{path}")] {
        let name = make(&spec, device("rtx4090-24g"), llama(), "tp1", "resident").unwrap();
        assert!(
            name.starts_with("table of LLMServingSim (llama-3.1-8b on rtx4090-24g); error of interpolation"),
            "{name}"
        );
    }
    let error = |spec: &str| make(spec, device("rtx4090-24g"), llama(), "tp1", "resident").unwrap_err();
    assert!(error(&format!("vidur:{path}")).ends_with("linear_ops_ms.csv: no such file; check the path"));
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(
        error(&format!("table:{}", empty.path().display())),
        format!(
            "{}: holds no table; one of llmservingsim has dense.csv, one of vidur has mlp.csv, one of vidur has linear_ops_ms.csv, \
             one of aiconfigurator has gemm_perf.csv",
            empty.path().display()
        )
    );
    assert_eq!(error("table:no/such"), "no/such: no such folder; check the path");
    fs::write(empty.path().join("linear_ops_ms.csv"), "num_tokens,add\n1,2\n").unwrap();
    let column = error(&format!("table:{}", empty.path().display()));
    assert!(column.ends_with("linear_ops_ms.csv, line 1: the header has no column 'attn_kv_cache_save'"), "{column}");
    fs::write(empty.path().join("gemm_perf.csv"), "m,n,k\n1,1,1\n").unwrap();
    let column = error(&format!("aiconfigurator:{}", empty.path().display()));
    assert!(column.ends_with("gemm_perf.csv, line 1: the header has no column 'gemm_dtype'"), "{column}");
}

#[test]
fn a_table_of_something_else_is_refused() {
    let folder = profile(1.0);
    let spec = format!("table:{}", folder.path().display());
    let error = |hardware: &str, model: &str, parallel: &str| {
        let error = make(&spec, device(hardware), model::by_name(model).unwrap(), parallel, "resident").unwrap_err();
        error.replace(&format!("{}", folder.path().display()), "it")
    };
    let other = error("h100-80g", "llama-3.1-8b", "tp1");
    assert!(
        other.starts_with("it: a prefill of 2048 tokens takes 19") && other.contains("on h100-80g tp1pp1; it is of an"),
        "{other}"
    );
    assert!(error("rtx4090-24g", "llama-3.2-1b", "tp1").contains("the roofline of llama-3.2-1b"));
    assert!(error("rtx4090-24g", "llama-3.1-70b", "tp1").contains("the roofline of llama-3.1-70b"));
    let two = error("rtx4090-24g", "llama-3.1-8b", "tp2");
    assert_eq!(two, "it: a table of llmservingsim is of one device, but parallel is tp2pp1");
    fs::write(folder.path().join("meta.yaml"), "gpu: x\nmodel: meta-llama/Llama-3.2-3B\n").unwrap();
    let named = error("rtx4090-24g", "llama-3.1-8b", "tp1");
    assert_eq!(named, "it: was measured for meta-llama/Llama-3.2-3B, which is not of the shape of llama-3.1-8b");
    // A preset of one shape and another name, or a model that is not a preset, is not refused for its name.
    for model in ["meta-llama/Llama-3.1-8B", "somebody/Their-8B"] {
        fs::write(folder.path().join("meta.yaml"), format!("model: {model}\n")).unwrap();
        assert!(make(&spec, device("rtx4090-24g"), llama(), "tp1", "resident").is_ok());
    }
    // What is a little slower or faster than the roofline is its device's.
    for factor in [0.7, 1.5] {
        let folder = profile(factor);
        let spec = format!("table:{}", folder.path().display());
        assert!(make(&spec, device("rtx4090-24g"), llama(), "tp1", "resident").is_ok(), "{factor}");
    }
    let fast = profile(0.5);
    let fast = make(&format!("table:{}", fast.path().display()), device("rtx4090-24g"), llama(), "tp1", "resident");
    assert!(fast.unwrap_err().contains("a prefill of 2048 tokens"), "faster than the device can be");
}

#[test]
fn a_published_profile_has_tables_for_its_numbers_of_devices() {
    let (flat, folder) = (profile(1.0), tempfile::tempdir().unwrap());
    for degree in ["tp1", "tp2"] {
        fs::create_dir(folder.path().join(degree)).unwrap();
        for file in ["dense.csv", "per_sequence.csv", "attention.csv"] {
            fs::copy(flat.path().join(file), folder.path().join(degree).join(file)).unwrap();
        }
    }
    // Two devices take half of the time for the matrices.
    let dense = fs::read_to_string(flat.path().join("dense.csv")).unwrap();
    let halved: Vec<String> = dense
        .lines()
        .map(|line| match line.rsplit_once(',').and_then(|(rest, us)| Some((rest, us.parse::<f64>().ok()?))) {
            Some((rest, us)) => format!("{rest},{}", us / 2.0),
            None => line.to_owned(),
        })
        .collect();
    fs::write(folder.path().join("tp2/dense.csv"), halved.join("\n")).unwrap();
    let made = |path: &Path, parallel| {
        make(&format!("table:{}", path.display()), device("rtx4090-24g"), llama(), parallel, "resident")
    };
    let at = |parallel| made(folder.path(), parallel);
    let stated = |text: &str| text.split_once("; error of ").map(|(name, _)| name.to_owned()).unwrap();
    assert_eq!(stated(&at("tp1").unwrap()), "table of LLMServingSim (llama-3.1-8b on rtx4090-24g)");
    assert_eq!(stated(&at("tp2").unwrap()), "table of LLMServingSim (llama-3.1-8b on rtx4090-24g tp2pp1)");
    assert_eq!(made(&folder.path().join("tp2"), "tp2"), at("tp2"));
    assert!(
        at("tp4").unwrap_err().ends_with("a table of llmservingsim is of 1 and of 2 devices, but parallel is tp4pp1")
    );
    let other = made(&folder.path().join("tp2"), "tp1").unwrap_err();
    assert!(other.ends_with("a table of llmservingsim is of 2 devices, but parallel is tp1pp1"), "{other}");
    assert_eq!(stated(&at("pp2").unwrap()), "table of LLMServingSim (llama-3.1-8b on rtx4090-24g tp1pp2)");
    assert!(at("tp4pp2").unwrap_err().ends_with("is of 1 and of 2 devices, but parallel is tp4pp2"));
    // The description is next to the folders of tables.
    fs::write(folder.path().join("meta.yaml"), "model: meta-llama/Llama-3.2-3B\n").unwrap();
    assert!(at("tp1").unwrap_err().contains("was measured for meta-llama/Llama-3.2-3B"));
    assert!(made(&folder.path().join("tp2"), "tp2").unwrap_err().contains("was measured for meta-llama/Llama-3.2-3B"));
}

#[test]
fn weights_stream_with_any_of_them() {
    let folder = profile(1.0);
    let spec = format!("table:{}", folder.path().display());
    let made = |spec: &str, parallel, weights| make(spec, device("rtx4090-24g"), llama(), parallel, weights);
    let name = made(&spec, "tp1", "stream").unwrap();
    let expected =
        "0 layers streamed from disk, 32 from the host, table of LLMServingSim (llama-3.1-8b on rtx4090-24g); ";
    assert!(name.starts_with(expected), "{name}");
    let name = made("roofline", "tp1", "stream:host_layers=3,device_layers=2").unwrap();
    assert!(name.starts_with("27 layers streamed from disk, 3 from the host, roofline (held-out error"), "{name}");
    assert_eq!(made("auto", "tp2", "stream").unwrap_err(), "weights stream to one device only, but parallel is tp2pp1");
    let many = made("auto", "tp1", "stream:device_layers=30,host_layers=9").unwrap_err();
    assert_eq!(many, "39 layers are to stay in memory, the model has 32");
}

#[test]
fn a_model_too_large_for_its_device_takes_as_long_as_its_disk_and_link_do() {
    let (rtx, llama) = (device("rtx4090-24g"), model::by_name("llama-3.1-70b").unwrap());
    let step_s = |weights: &str| {
        let cost = CostChoice::Auto.make(rtx, llama, Parallel::ONE, weights.parse().unwrap()).unwrap();
        cost.step_ns(&StepShape::decodes(1, 1_000)) as f64 / 1e9
    };
    // Exact recurrences of a made-up device that computes a layer in 1.78 ms; this one takes 2.1.
    for (weights, seconds) in [
        ("stream:host_layers=50,device_layers=4,disk_mb_s=3000,link_mb_s=64000", 14.86),
        ("stream:host_layers=50,device_layers=4,disk_mb_s=12000,link_mb_s=52000", 3.74),
        ("stream:link_mb_s=64000,device_window=6", 2.14),
        ("stream:device_layers=4,link_mb_s=52000", 2.51),
    ] {
        assert!((step_s(weights) / seconds - 1.0).abs() < 0.005, "{weights}: {}", step_s(weights));
    }
    // The link of its own file, 25 GB/s, carries 80 layers of 1.71 GB.
    assert!((step_s("stream") / (80.0 * 1.711 / 25.0) - 1.0).abs() < 0.005, "{}", step_s("stream"));
}
