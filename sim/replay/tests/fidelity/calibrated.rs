//! Step times fitted to light traffic against the profile of a device under heavy traffic: what a calibration says of loads that it has not seen.

use trunkline_sim_perf::cost::table::Skew;
use trunkline_sim_perf::cost::{CostModel, Parallel, Sample, StepErrors, StepShape, Table};
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::calibrate::calibrate;

use crate::data;

/// Draws numbers below a bound, always the same ones.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % bound
    }

    /// Draws a number between `least` and `most`, each doubling as often as another.
    fn of_each_size(&mut self, least: u64, most: u64) -> u64 {
        let share = self.below(1 << 20) as f64 / f64::from(1 << 20);
        (least as f64 * (most as f64 / least as f64).powf(share)) as u64
    }
}

/// Returns `n` steps of `decodes` sequences at most, one of four with a chunk of up to `chunk` tokens, as long as the table says but for 5 %.
fn steps(table: &Table, n: usize, decodes: [u64; 2], chunk: u64) -> Vec<Sample> {
    let mut draws = Draws(0x2545_f491_4f6c_dd1d);
    let mut step = || {
        let mut shape = StepShape::decodes(draws.of_each_size(decodes[0], decodes[1]), 64 + draws.below(2000));
        if draws.below(4) == 0 {
            let chunk = StepShape::prefill(draws.of_each_size(16, chunk), draws.below(1024));
            shape = if draws.below(3) == 0 { chunk } else { shape.and(chunk) };
        }
        let noise = 0.95 + 0.1 * draws.below(1000) as f64 / 1000.0;
        Sample { shape, time_s: noise * table.step_ns(&shape) as f64 / 1e9 }
    };
    (0..n).map(|_| step()).collect()
}

/// Median errors of prefills, decodes, and both.
fn medians(errors: &StepErrors) -> [f64; 3] {
    [errors.prefill, errors.decode, errors.mixed].map(|of| of.unwrap().median)
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn light_traffic_says_what_heavy_traffic_takes() {
    let model = model::by_name("llama-3.1-8b").unwrap();
    let kernels = |name, folder: &str| {
        let folder = data(&format!("profiles/aiconfigurator/{folder}"));
        Table::from_aiconfigurator(&folder, hardware::by_name(name).unwrap(), model, Parallel::ONE).unwrap()
    };
    let (rtx4090, profile) = (hardware::by_name("rtx4090-24g").unwrap(), data("profiles/llmservingsim/RTX4090"));
    let (a100, vidur) = (hardware::by_name("a100-80g").unwrap(), data("profiles/vidur/llama3_8b_tp1"));
    let tables = [
        Table::from_llmservingsim(&profile, rtx4090, model, Parallel::ONE, Skew::Published).unwrap(),
        Table::from_vidur(&vidur, a100, model, Parallel::ONE).unwrap(),
        kernels("a100-80g", "a100_sxm"),
        kernels("h100-80g", "h100_sxm"),
        kernels("h200-141g", "h200_sxm"),
    ];
    for table in tables {
        let light = steps(&table, 3000, [1, 16], 512);
        let time = calibrate(model.name, &light).unwrap().time;
        println!("{}", table.name());
        println!("  up to 16 decodes, chunks of 512: {}", StepErrors::of(&light, |shape| time.step_s(shape)));
        for (decodes, chunk, most) in [([16, 32], 1024, 0.1), ([32, 64], 2048, 0.12), ([64, 128], 2048, 0.2)] {
            let heavy = steps(&table, 3000, decodes, chunk);
            let errors = StepErrors::of(&heavy, |shape| time.step_s(shape));
            println!("  {} to {} decodes, chunks of {chunk}: {errors}", decodes[0], decodes[1]);
            assert!(medians(&errors).iter().all(|median| *median < most), "{}: {errors}", table.name());
        }
    }
}
