//! How far rooflines are from tables of the same device, and the shares of the peaks that bring them nearest. The files in
//! `sim/perf/hardware/` state the errors found here: after a change of rooflines or tables,
//!
//! ```sh
//! TRUNKLINE_DATA=… cargo test -p trunkline-sim-replay --test fidelity errors_of -- --nocapture
//! ```
//!
//! prints the part of each file that the change makes wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use trunkline_sim_perf::columns::{self, Cell};
use trunkline_sim_perf::cost::errors::usual_steps;
use trunkline_sim_perf::cost::table::Skew;
use trunkline_sim_perf::cost::{CostModel, Parallel, Residuals, Roofline, Sample, StepErrors, StepShape, Table};
use trunkline_sim_perf::hardware::{self, Hardware};
use trunkline_sim_perf::model::{self, Model};
use trunkline_sim_replay::calibrate::calibrate;

use crate::data;

fn samples(table: &Table, tokens_max: u64) -> Vec<Sample> {
    let of = |shape: StepShape| Sample { shape, time_s: table.step_ns(&shape) as f64 / 1e9 };
    usual_steps(tokens_max).into_iter().map(of).collect()
}

/// Steps of one model on as many devices.
struct Case {
    model: &'static Model,
    parallel: Parallel,
    samples: Vec<Sample>,
}

impl Case {
    fn one(model: &'static Model, samples: Vec<Sample>) -> Self {
        Self { model, parallel: Parallel::ONE, samples }
    }

    fn name(&self) -> String {
        let whole = if self.parallel.expert > 1 { ", whole experts" } else { "" };
        format!("{} tp{}{whole}", self.model.name, self.parallel.tensor)
    }

    fn residuals(&self, hardware: &Hardware) -> Residuals {
        let roofline = Roofline::parallel(hardware, self.model, self.parallel);
        Residuals::of(&self.samples, |shape| roofline.step_ns(shape) as f64 / 1e9)
    }

    fn errors(&self, hardware: &Hardware) -> StepErrors {
        let roofline = Roofline::parallel(hardware, self.model, self.parallel);
        StepErrors::of(&self.samples, |shape| roofline.step_ns(shape) as f64 / 1e9)
    }

    /// The sum of the squared errors' logarithms.
    fn loss(&self, hardware: &Hardware) -> f64 {
        let roofline = Roofline::parallel(hardware, self.model, self.parallel);
        let error = |s: &Sample| (roofline.step_ns(&s.shape) as f64 / 1e9 / s.time_s).ln().powi(2);
        self.samples.iter().map(error).sum()
    }
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
fn fit<'a>(start: &Hardware, cases: impl Iterator<Item = &'a Case> + Clone, mixed: bool) -> Hardware {
    let loss = |hardware: &Hardware| cases.clone().map(|case| case.loss(hardware)).sum::<f64>();
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

/// Fits a preset to a table of llama-3.1-8b and prints what came out.
fn check(name: &str, tokens_max: u64, table: impl Fn(&Hardware, &Model) -> Table) {
    let (hardware, model) = (hardware::by_name(name).unwrap(), model::by_name("llama-3.1-8b").unwrap());
    let table = table(hardware, model);
    let case = Case::one(model, samples(&table, tokens_max));
    print_others(&table, &case.samples);
    println!("{name} as it is: {:?}", case.residuals(hardware));
    let mixed = name == "rtx4090-24g";
    let mut fitted = fit(hardware, std::iter::once(&case), mixed);
    for (what, field, ..) in FIELDS.into_iter().chain([MIXED_ROWS]) {
        let value = *field(&mut fitted);
        println!("  {what} = {:.3}", if what.ends_with("_us") { value * 1e6 } else { value });
    }
    let found = case.residuals(&fitted);
    println!("{name} fitted: {found:?}");
    assert!(case.residuals(hardware).median < found.median + 0.01, "the factors of the file are those fitted");
}

/// Tables of all models that fit a device and whose kernels were measured.
fn cases(hardware: &Hardware, folder: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for tensor in [1, 2, 4, 8] {
        let slices = model::PRESETS.iter().map(|model| (model, Parallel::tensor(tensor)));
        let whole = Parallel { expert: tensor, ..Parallel::tensor(tensor) };
        let has_experts = |model: &&Model| model.experts.is_some() && tensor > 1;
        let with_whole = model::PRESETS.iter().filter(has_experts).map(|model| (model, whole));
        for (model, parallel) in slices.chain(with_whole) {
            let fits = parallel.weight_bytes(model) < hardware.memory.total_bytes * 9 / 10;
            if !fits || parallel.check(model).is_err() {
                continue;
            }
            match Table::from_aiconfigurator(&aiconfigurator(folder), hardware, model, parallel) {
                Ok(table) => cases.push(Case { model, parallel, samples: samples(&table, 2048) }),
                Err(error) => println!("{} {} {parallel}: {}", hardware.name, model.name, error.fault),
            }
        }
    }
    cases
}

/// The file's factors were fitted to llama-3.1-8b on one device: its own error is that of factors fitted to all other dense cases. No factor is
/// fitted to a model with experts.
fn errors_of(name: &str, folder: &str) {
    let hardware = hardware::by_name(name).unwrap();
    let cases = cases(hardware, folder);
    assert!(cases.len() > 8, "{} cases", cases.len());
    let is_own = |case: &&Case| case.name() == "llama-3.1-8b tp1";
    let by_others = fit(hardware, cases.iter().filter(|case| !is_own(case) && case.model.experts.is_none()), false);
    let found = |case: &Case| match is_own(&case) {
        true => case.errors(&by_others),
        false => case.errors(hardware),
    };
    let found: Vec<(&Case, StepErrors)> = cases.iter().map(|case| (case, found(case))).collect();
    compare(hardware, &found);
}

/// Prints the errors as the file of the device has them, and compares them with the file.
fn compare(hardware: &Hardware, found: &[(&Case, StepErrors)]) {
    let figures = |errors: Option<Residuals>| {
        errors.map_or("none".into(), |Residuals { median, p95, bias }| format!("[{median:.3}, {p95:.3}, {bias:.3}]"))
    };
    for (case, StepErrors { prefill, decode, mixed }) in found {
        let (name, tensor) = (case.model.name, case.parallel.tensor);
        let expert = match case.parallel.expert {
            1 => String::new(),
            expert => format!(", expert = {expert}"),
        };
        let [prefill, decode, mixed] = [prefill, decode, mixed].map(|errors| figures(*errors));
        println!(
            "    {{ model = \"{name}\", tensor = {tensor}{expert}, prefill = {prefill}, decode = {decode}, mixed = {mixed} }},"
        );
    }
    assert_eq!(hardware.errors.len(), found.len(), "{} states all errors", hardware.name);
    let near = |a: Option<Residuals>, b: Option<Residuals>| match (a, b) {
        (Some(a), Some(b)) => [a.median - b.median, a.p95 - b.p95, a.bias - b.bias].iter().all(|d| d.abs() < 2e-3),
        (a, b) => a.is_none() && b.is_none(),
    };
    for (case, errors) in found {
        let roofline = Roofline::parallel(hardware, case.model, case.parallel);
        let stated = roofline.errors(0);
        let pairs = [(stated.prefill, errors.prefill), (stated.decode, errors.decode), (stated.mixed, errors.mixed)];
        assert!(pairs.into_iter().all(|(a, b)| near(a, b)), "{}: {stated:?} {errors:?}", case.name());
    }
}

fn aiconfigurator(folder: &str) -> PathBuf {
    data(&format!("profiles/aiconfigurator/{folder}"))
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn rtx_4090() {
    check("rtx4090-24g", 2048, |hardware, model| {
        let folder = data("profiles/llmservingsim/RTX4090");
        Table::from_llmservingsim(&folder, hardware, model, Parallel::ONE, Skew::Share(0.0)).unwrap()
    });
}

/// A measured grid of which every second chunk and every second context is left out of mixed calls, in turn, against the whole one.
#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn rtx_4090_with_holes() {
    let folder = data("profiles/llmservingsim/RTX4090");
    let (hardware, model) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
    let read = |path: &Path| Table::from_llmservingsim(path, hardware, model, Parallel::ONE, Skew::Published).unwrap();
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
    check("a100-80g", 2048, |hardware, model| {
        Table::from_aiconfigurator(&aiconfigurator("a100_sxm"), hardware, model, Parallel::ONE).unwrap()
    });
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn h100() {
    check("h100-80g", 2048, |hardware, model| {
        Table::from_aiconfigurator(&aiconfigurator("h100_sxm"), hardware, model, Parallel::ONE).unwrap()
    });
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn h200() {
    check("h200-141g", 2048, |hardware, model| {
        Table::from_aiconfigurator(&aiconfigurator("h200_sxm"), hardware, model, Parallel::ONE).unwrap()
    });
}

/// The kernels of aiconfigurator put together against Vidur's measurements of the same model and device: two profiles, two engines.
#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn two_profiles_of_one_device() {
    let (hardware, model) = (hardware::by_name("a100-80g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
    let (kernels, vidur) = (aiconfigurator("a100_sxm"), data("profiles/vidur/llama3_8b_tp1"));
    let kernels = Table::from_aiconfigurator(&kernels, hardware, model, Parallel::ONE).unwrap();
    let vidur = Table::from_vidur(&vidur, hardware, model, Parallel::ONE).unwrap();
    // Vidur leaves out the output matrix, so here nothing is sampled.
    let mut samples = samples(&vidur, 2048);
    samples.iter_mut().for_each(|sample| sample.shape.sampled = 0);
    let found = Residuals::of(&samples, |shape| kernels.step_ns(shape) as f64 / 1e9);
    println!("kernels against Vidur: {found:?}");
    let fitted = Case::one(model, samples).residuals(hardware);
    println!("roofline against Vidur: {fitted:?}");
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn errors_of_a100() {
    errors_of("a100-80g", "a100_sxm");
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn errors_of_h100() {
    errors_of("h100-80g", "h100_sxm");
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn errors_of_h200() {
    errors_of("h200-141g", "h200_sxm");
}

/// One model on one device was measured, so there is none to leave out: the factors are fitted to every second step, and tried on the others.
#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn errors_of_rtx_4090() {
    let (hardware, model) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
    let folder = data("profiles/llmservingsim/RTX4090");
    let table = Table::from_llmservingsim(&folder, hardware, model, Parallel::ONE, Skew::Share(0.0)).unwrap();
    let every_second = |parity: usize| {
        let all = samples(&table, 2048).into_iter().enumerate();
        Case::one(model, all.filter(|(at, _)| at % 2 == parity).map(|(_, sample)| sample).collect())
    };
    let (seen, held_out) = (every_second(0), every_second(1));
    let errors = held_out.errors(&fit(hardware, std::iter::once(&seen), true));
    compare(hardware, &[(&held_out, errors)]);
}

/// The share of the FP8 peak in the files is the median of large products of more than 512 tokens, of both scalings.
#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn products_in_8_bits_reach_the_share_of_the_files() {
    for (name, folder) in [("h100-80g", "h100_sxm"), ("h200-141g", "h200_sxm")] {
        let hardware = hardware::by_name(name).unwrap();
        let path = data(&format!("profiles/aiconfigurator/{folder}/gemm_perf.parquet"));
        let found = columns::read_some(&path, &["gemm_dtype", "m", "n", "k", "latency"]).unwrap();
        let share = |row: usize| {
            let text = |column: usize| Cell::to_text(&found.cells[column][row]);
            let number = |column: usize| text(column).parse::<f64>().unwrap();
            let (m, n, k) = (number(1), number(2), number(3));
            let counts = text(0).starts_with("fp8") && m > 512.0 && n.min(k) >= 1024.0 && n * k >= 16e6;
            counts.then(|| 2.0 * m * n * k / (number(4) / 1e3) / hardware.narrow.float8_s)
        };
        let mut shares: Vec<f64> = (0..found.rows()).filter_map(share).collect();
        assert!(shares.len() > 5_000, "{} products", shares.len());
        shares.sort_unstable_by(f64::total_cmp);
        let median = shares[shares.len() / 2];
        println!("{name}: {median:.3} of the FP8 peak in the median of {} products", shares.len());
        assert!((median / hardware.efficiency.narrow_flops - 1.0).abs() < 0.02, "{name}: {median}");
    }
}
