//! How far rooflines are from tables of the same device, and the shares of the peaks that bring them nearest. The files in
//! `sim/hardware/` say what was found here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use trunkline_sim_perf::cost::table::Skew;
use trunkline_sim_perf::cost::{CostModel, Roofline, StepShape, Table};
use trunkline_sim_perf::hardware::{self, Hardware};
use trunkline_sim_perf::model::{self, Model};
use trunkline_sim_replay::calibrate::{Residuals, Sample, calibrate};

use crate::data;

/// Steps of all kinds that engines run, the same ones each time: decodes, chunks, and both, up to `tokens_max` tokens.
fn shapes(tokens_max: u64) -> Vec<StepShape> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % below
    };
    let decodes = [0, 1, 2, 4, 8, 16, 32, 64, 128];
    let chunks = [0, 0, 64, 128, 256, 512, 1024, tokens_max];
    let mut shapes = Vec::new();
    while shapes.len() < 600 {
        let n = decodes[draw(9) as usize];
        let mut shape = StepShape::decodes(n, 64 + draw(3500));
        let chunk = chunks[draw(8) as usize].min(tokens_max - n);
        if chunk > 1 {
            shape = shape.and(StepShape::prefill(chunk, 512 * draw(6)));
        }
        if shape.tokens > 0 {
            shapes.push(shape);
        }
    }
    shapes
}

fn samples(table: &Table, tokens_max: u64) -> Vec<Sample> {
    let of = |shape: StepShape| Sample { shape, time_s: table.step_ns(&shape) as f64 / 1e9 };
    shapes(tokens_max).into_iter().map(of).collect()
}

fn residuals(hardware: &Hardware, model: &Model, samples: &[Sample]) -> Residuals {
    let roofline = Roofline::new(hardware, model);
    Residuals::of(samples, |shape| roofline.step_ns(shape) as f64 / 1e9)
}

type Field = fn(&mut Hardware) -> &mut f64;

/// What is fitted, and its bounds. Overheads could stand in for slow reading of weights, so they are kept to what launches take.
const FIELDS: [(&str, Field, f64, f64); 6] = [
    ("linear_flops", |h| &mut h.efficiency.linear_flops, 0.05, 1.0),
    ("attention_flops", |h| &mut h.efficiency.attention_flops, 0.05, 0.75),
    ("weight_bandwidth", |h| &mut h.efficiency.weight_bandwidth, 0.05, 1.0),
    ("kv_bandwidth", |h| &mut h.efficiency.kv_bandwidth, 0.05, 1.0),
    ("step_us", |h| &mut h.step_overhead_s, 1e-6, 0.3e-3),
    ("layer_us", |h| &mut h.layer_overhead_s, 0.1e-6, 20e-6),
];

/// Fitted only to tables of calls that mix.
const MIXED_ROWS: (&str, Field, f64, f64) = ("mixed_rows", |h| &mut h.efficiency.mixed_rows, 1.0, 128.0);

/// Of each in turn the value that makes the mean of the squared errors' logarithms least, in ever smaller steps.
fn fit(start: &Hardware, model: &Model, samples: &[Sample], mixed: bool) -> Hardware {
    let loss = |hardware: &Hardware| {
        let roofline = Roofline::new(hardware, model);
        let error = |s: &Sample| (roofline.step_ns(&s.shape) as f64 / 1e9 / s.time_s).ln().powi(2);
        samples.iter().map(error).sum::<f64>()
    };
    let (mut best, mut factor) = (*start, 1.5f64);
    let mut least = loss(&best);
    while factor > 1.002 {
        let before = least;
        for (_, field, min, max) in FIELDS.into_iter().chain(mixed.then_some(MIXED_ROWS)) {
            for step in [factor, 1.0 / factor] {
                let mut other = best;
                *field(&mut other) = (*field(&mut other) * step).clamp(min, max);
                let loss = loss(&other);
                if loss < least {
                    (best, least) = (other, loss);
                }
            }
        }
        if least > before * 0.9999 {
            factor = factor.sqrt();
        }
    }
    best
}

/// What looking up a step takes, nanoseconds, and how near a linear model of steps can come.
fn print_others(table: &Table, samples: &[Sample]) {
    let started = Instant::now();
    let rounds = 1000;
    let sum: u64 = (0..rounds).flat_map(|_| samples).map(|sample| table.step_ns(&sample.shape)).sum();
    let each_ns = started.elapsed().as_nanos() as f64 / (rounds * samples.len()) as f64;
    println!("  {}: {each_ns:.0} ns to look up a step ({sum})", table.name());
    let linear = calibrate("llama-3.1-8b", samples).unwrap();
    println!("  linear: {:?}", linear.residuals);
}

/// Fits a preset to a table and prints what came out; the preset's own error must be what its file says.
fn check(name: &str, model: &str, tokens_max: u64, table: impl Fn(&Hardware, &Model) -> Table) {
    let (hardware, model) = (hardware::by_name(name).unwrap(), model::by_name(model).unwrap());
    let table = table(hardware, model);
    let samples = samples(&table, tokens_max);
    print_others(&table, &samples);
    let found = residuals(hardware, model, &samples);
    println!("{name} as it is: {found:?}, {:?}", hardware.fit);
    let mixed = name == "rtx4090-24g";
    let mut fitted = fit(hardware, model, &samples, mixed);
    for (what, field, ..) in FIELDS.into_iter().chain([MIXED_ROWS]) {
        let value = *field(&mut fitted);
        println!("  {what} = {:.3}", if what.ends_with("_us") { value * 1e6 } else { value });
    }
    println!("{name} fitted: {:?}", residuals(&fitted, model, &samples));
    if let Some(said) = hardware.fit {
        assert!((found.median - said.median_error).abs() < 2e-3, "{name}: {found:?}");
        assert!((found.p95 - said.p95_error).abs() < 5e-3, "{name}: {found:?}");
    }
}

fn aiconfigurator(folder: &str) -> PathBuf {
    data(&format!("profiles/aiconfigurator/{folder}"))
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn rtx_4090() {
    check("rtx4090-24g", "llama-3.1-8b", 2048, |hardware, model| {
        let folder = data("profiles/llmservingsim/RTX4090");
        Table::from_llmservingsim(&folder, hardware, model, 1, Skew::Share(0.0)).unwrap()
    });
}

/// A measured grid of which every second chunk and every second context is left out of mixed calls, in turn, against the whole one.
#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn rtx_4090_with_holes() {
    let folder = data("profiles/llmservingsim/RTX4090");
    let (hardware, model) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
    let read = |path: &Path| Table::from_llmservingsim(path, hardware, model, 1, Skew::Published).unwrap();
    let whole = read(&folder);
    assert_eq!(whole.name(), "table of LLMServingSim (llama-3.1-8b on rtx4090-24g)", "every row is used");
    let holed = tempfile::tempdir().unwrap();
    for file in ["dense.csv", "per_sequence.csv", "meta.yaml"] {
        fs::copy(folder.join(file), holed.path().join(file)).unwrap();
    }
    let text = fs::read_to_string(folder.join("attention.csv")).unwrap();
    let kept = |line: &&str| {
        let numbers: Vec<u64> = line.split(',').take(4).filter_map(|field| field.parse().ok()).collect();
        let [chunk, _, decodes, context] = numbers[..] else { return true };
        chunk == 0 || decodes == 0 || (chunk.ilog2() + context.ilog2()).is_multiple_of(2)
    };
    let rows: Vec<&str> = text.lines().filter(kept).collect();
    fs::write(holed.path().join("attention.csv"), rows.join("\n")).unwrap();
    let holed = read(holed.path());
    assert!(holed.name().ends_with(" points of attention interpolated)"), "{}", holed.name());
    let samples: Vec<Sample> =
        samples(&whole, 2048).into_iter().filter(|s| s.shape.prefills > 0 && s.shape.decodes > 0).collect();
    let found = Residuals::of(&samples, |shape| holed.step_ns(shape) as f64 / 1e9);
    println!("with holes: {found:?}, {}", holed.name());
    assert!(found.median < 0.005 && found.p95 < 0.05, "{found:?}");
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn a100() {
    check("a100-80g", "llama-3.1-8b", 2048, |hardware, model| {
        Table::from_aiconfigurator(&aiconfigurator("a100_sxm"), hardware, model, 1).unwrap()
    });
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn h100() {
    check("h100-80g", "llama-3.1-8b", 2048, |hardware, model| {
        Table::from_aiconfigurator(&aiconfigurator("h100_sxm"), hardware, model, 1).unwrap()
    });
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn h200() {
    check("h200-141g", "llama-3.1-8b", 2048, |hardware, model| {
        Table::from_aiconfigurator(&aiconfigurator("h200_sxm"), hardware, model, 1).unwrap()
    });
}

/// The kernels of aiconfigurator put together against Vidur's measurements of the same model and device: two profiles, two engines.
#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn two_profiles_of_one_device() {
    let (hardware, model) = (hardware::by_name("a100-80g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
    let (kernels, vidur) = (aiconfigurator("a100_sxm"), data("profiles/vidur/llama3_8b_tp1"));
    let kernels = Table::from_aiconfigurator(&kernels, hardware, model, 1).unwrap();
    let vidur = Table::from_vidur(&vidur, hardware, model, 1).unwrap();
    // Vidur leaves out the output matrix, so here nothing is sampled.
    let mut samples = samples(&vidur, 2048);
    samples.iter_mut().for_each(|sample| sample.shape.sampled = 0);
    let found = Residuals::of(&samples, |shape| kernels.step_ns(shape) as f64 / 1e9);
    println!("kernels against Vidur: {found:?}");
    let fitted = residuals(hardware, model, &samples);
    println!("roofline against Vidur: {fitted:?}");
}
