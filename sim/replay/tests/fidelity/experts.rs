//! How far the roofline's experts are from all kernels of experts in the tables of aiconfigurator, by the way the devices share them. No
//! number of the roofline is fitted to any of them, so every model is one left out.

use trunkline_sim_perf::columns::{self, Cell};
use trunkline_sim_perf::cost::{CostModel, Parallel, Roofline, StepShape};
use trunkline_sim_perf::hardware;
use trunkline_sim_perf::model::{Experts, Model, PRESETS};

use crate::data;

/// Kernel of the experts of one layer.
struct Kernel {
    tokens: u64,
    hidden: u64,
    experts: Experts,
    tensor: u32,
    expert: u32,
    time_s: f64,
}

/// Kernels in 16 bits with tokens by `distribution`.
fn kernels(folder: &str, distribution: &str) -> Vec<Kernel> {
    let path = data(&format!("profiles/aiconfigurator/{folder}/moe_perf.parquet"));
    let counts = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"];
    let names: Vec<&str> = counts.into_iter().chain(["moe_dtype", "distribution", "latency"]).collect();
    let found = columns::read_some(&path, &names).unwrap();
    let text = |column: usize, row: usize| Cell::to_text(&found.cells[column][row]);
    let rows = (0..found.rows()).filter(|row| text(7, *row) == "bfloat16" && text(8, *row) == distribution);
    rows.map(|row| {
        let count = |column: usize| text(column, row).parse::<u64>().unwrap();
        Kernel {
            tokens: count(0),
            hidden: count(1),
            experts: Experts {
                count: count(4),
                active: count(3),
                width: count(2),
                shared_width: 0,
                dense_layers: 0,
                latent_width: None,
            },
            tensor: count(5) as u32,
            expert: count(6) as u32,
            time_s: text(9, row).parse::<f64>().unwrap() / 1e3,
        }
    })
    .collect()
}

/// Time of the experts by roofline: a model of one layer less the same model without experts.
fn roofline_s(name: &str, kernel: &Kernel) -> f64 {
    let hardware = hardware::by_name(name).unwrap();
    let none = Model { layers: 1, hidden: kernel.hidden, intermediate: 0, ..PRESETS[0] };
    let with = Model { experts: Some(kernel.experts), ..none };
    // Ranks of one device, so that nothing but the experts is divided; links that take no time.
    let links = hardware::Hardware { peer_link_bytes_s: f64::INFINITY, peer_link_latency_s: 0.0, ..*hardware };
    let devices = kernel.tensor.max(kernel.expert);
    let parallel = Parallel { data: devices, expert: kernel.expert, ..Parallel::ONE };
    let shape = StepShape { tokens: kernel.tokens, ..StepShape::default() };
    let s =
        |model: &Model, parallel| Roofline::parallel(&links, model, parallel).lock_step_ns(0, &[shape]) as f64 / 1e9;
    s(&with, parallel) - s(&none, Parallel::ONE)
}

/// Median of the signed errors, and of the absolute ones.
fn medians(mut errors: Vec<f64>) -> [f64; 2] {
    let mut median = |key: fn(&f64) -> f64| {
        errors.sort_unstable_by(|a, b| key(a).total_cmp(&key(b)));
        key(&errors[errors.len() / 2])
    };
    [median(|error| *error), median(|error| error.abs())]
}

/// Condition on the devices of a kernel.
type Condition = fn(&Kernel) -> bool;

/// Prints the median errors of each way to share experts, for few, more and many tokens, and returns the signed ones.
fn errors_of(name: &str, folder: &str, distribution: &str) -> [[f64; 3]; 3] {
    let kernels = kernels(folder, distribution);
    assert!(kernels.len() > 2_000, "{} kernels", kernels.len());
    let ways: [(&str, Condition); 3] = [
        ("one device", |kernel| kernel.tensor == 1 && kernel.expert == 1),
        ("slices on 2 to 8", |kernel| (2..=8).contains(&kernel.tensor)),
        ("whole ones on 2 to 8", |kernel| (2..=8).contains(&kernel.expert)),
    ];
    ways.map(|(way, is_shared_so)| {
        [1..=64, 65..=1024, 1025..=u64::MAX].map(|tokens| {
            let some = kernels.iter().filter(|kernel| is_shared_so(kernel) && tokens.contains(&kernel.tokens));
            let errors: Vec<f64> = some.map(|kernel| roofline_s(name, kernel) / kernel.time_s - 1.0).collect();
            let n = errors.len();
            let [signed, absolute] = medians(errors);
            println!("{name}, {distribution}, {way}, {tokens:?} tokens: {signed:+.3}, absolute {absolute:.3}, of {n}");
            signed
        })
    })
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn experts_chosen_evenly_take_as_long_as_measured() {
    for (name, folder) in [("h100-80g", "h100_sxm"), ("h200-141g", "h200_sxm")] {
        let errors = errors_of(name, folder, "balanced");
        assert!(errors.iter().flatten().all(|error| error.abs() < 0.16), "{name}: {errors:?}");
    }
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn experts_chosen_unevenly_take_longer_where_they_are_whole() {
    for (name, folder) in [("h100-80g", "h100_sxm"), ("h200-141g", "h200_sxm"), ("a100-80g", "a100_sxm")] {
        let [one, slices, whole] = errors_of(name, folder, "power_law_1.2");
        assert!(whole[2] < slices[2] && whole[2] < one[2].min(-0.2), "{name}: {one:?} {slices:?} {whole:?}");
    }
}
