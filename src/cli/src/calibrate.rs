//! `trunkline calibrate`: fit a cost model to a server.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use trunkline_sim_perf::cost::{CostChoice, Parallel, Residuals, Sample, StepErrors, Weights};
use trunkline_sim_perf::hardware::{self, Hardware};
use trunkline_sim_perf::model::{self, Model};
use trunkline_sim_replay::calibrate::{
    Calibration, LinkFit, Observed, PERIODS_MIN, calibrate, engine_overhead, fit_links, from_benchmark, from_recording,
    too_fast,
};
use trunkline_sim_replay::recorded::settings;

const EXAMPLES: &str = "\
Examples:
  From a recording of `trunkline serve`:
    trunkline calibrate --recorded server.jsonl.gz --hardware h100-80g --model llama-3.1-8b -o mine.toml

  From a benchmark of any server (vLLM: --save-detailed, SGLang: --output-details):
    trunkline calibrate --benchmark result.json --hardware h100-80g --model llama-3.1-8b -o mine.toml

  Replay on the calibrated hardware:
    trunkline replay trace.jsonl.gz --hardware mine.toml --model llama-3.1-8b

  What an engine adds to measured kernels, for other models and devices of that engine:
    trunkline calibrate --benchmark result.json --hardware a100-80g --model llama-3.1-8b --kernels table:FOLDER";

/// Fit step times to a server's recording, or to a benchmark of a server.
///
/// Writes a hardware file for `replay --hardware`: the device, with step times fitted for one model, and from a recording with copies of KV
/// blocks also the speed of the link between device and host.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    /// Recording of a server, from `trunkline serve --record`.
    #[arg(long, value_name = "FILE", required_unless_present = "benchmark", conflicts_with = "benchmark")]
    recorded: Option<PathBuf>,

    /// Results in JSON of a benchmark by vLLM or SGLang, with details, plain, gzip or Zstandard. Less exact: steps are reconstructed from what
    /// clients observed, and every prompt counts as computed. So benchmark without prefix cache
    /// (--no-enable-prefix-caching, --disable-radix-cache) or with prompts that share nothing, without speculative decoding, and with a
    /// stream interval of 1.
    #[arg(long, value_name = "FILE")]
    benchmark: Option<PathBuf>,

    /// Token budget of a step in the benchmarked server: vLLM's max_num_batched_tokens, SGLang's chunked_prefill_size.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(1..))]
    step_tokens: u64,

    /// Error of the time of all steps together, on steps left out of the fit, from which on the fit is refused.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    max_bias: f64,

    /// Device of the server: a preset or a file.
    #[arg(long, value_name = "NAME")]
    hardware: String,

    /// Model of the server: a preset, a Hugging Face folder, or its config.json.
    #[arg(long, value_name = "NAME")]
    model: String,

    /// Fit what the engine adds to these kernels, instead of whole steps, and print it for `--engine-overhead`: roofline, or
    /// table:FOLDER as for `replay --cost`.
    #[arg(long, value_name = "SPEC", conflicts_with = "output")]
    kernels: Option<CostChoice>,

    /// Devices of the server: tp2 for two in tensor parallel.
    #[arg(long, value_name = "SHAPE", default_value = "tp1")]
    parallel: Parallel,

    /// Hardware file to write; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// Median error of steps with prompts from which on their reconstruction is in doubt. Of engines with exactly linear step times, chunks in the
/// right steps were below 0.01, and in wrong ones from 0.19 to 0.48; real steps scatter by up to about 0.1.
const DOUBTFUL: f64 = 0.15;
/// Share of the steps faster than the device, at most.
const TOO_FAST: f64 = 0.5;
/// Difference between the slowest and the fastest tenth of a run on a steady machine, percent at most.
const STEADY: f64 = 10.0;

/// Runs the command.
///
/// # Errors
/// If a file cannot be read or written, a name is unknown, or there are too few steps.
pub fn run(args: &CalibrateArgs) -> anyhow::Result<()> {
    let base = hardware::find(&args.hardware)?;
    let model = model::find(&args.model)?;
    let (observed, source) = match (&args.recorded, &args.benchmark) {
        (Some(path), _) => (from_recording(path)?, path),
        (None, Some(path)) => {
            let steps = from_benchmark(path, args.step_tokens)?;
            (Observed { steps, ..Observed::default() }, path)
        }
        (None, None) => anyhow::bail!("name a recording with --recorded, or a benchmark with --benchmark"),
    };
    ensure!(
        args.parallel.data == 1,
        "parallel is {}; calibrate knows no ranks in lock step, so leave dp out",
        args.parallel
    );
    args.parallel.check(&model)?;
    check_speed(args, &observed.steps, &base, &model)?;
    if let Some(kernels) = &args.kernels {
        return fit_overhead(args, kernels, &base, &model, &observed.steps);
    }
    let found = calibrate(model.name, &observed.steps)?;
    let held_out = 100.0 * found.held_out_bias;
    check_bias(args, held_out)?;
    let against = format!("every fifth of {} steps of {} in {}", found.samples, model.name, source.display());
    let name = match args.output.file_stem() {
        Some(stem) if args.output.as_os_str() != "-" => stem.to_string_lossy().into_owned(),
        _ => format!("{}-calibrated", base.name),
    };
    let mut calibrated = found.hardware(&base, &model, args.parallel, &name, &against);
    let link_lines = match &args.recorded {
        Some(path) => links(path, &observed, &model, args.parallel, &mut calibrated)?,
        None => Vec::new(),
    };
    let text = hardware::file::to_toml(&calibrated);
    if args.output.as_os_str() == "-" {
        io::stdout().write_all(text.as_bytes())?;
    } else {
        fs::write(&args.output, text).with_context(|| format!("cannot write {}", args.output.display()))?;
    }
    let lines = [errors_line(&found, held_out), speed_line(found.drift)];
    let doubt = args.benchmark.as_ref().and_then(|_| doubt_line(&found.held_out, args.step_tokens));
    for line in lines.iter().chain(&doubt).chain(&link_lines) {
        writeln!(io::stderr(), "{line}")?;
    }
    Ok(())
}

fn errors_line(found: &Calibration, held_out: f64) -> String {
    let Residuals { median, p95, bias } = found.residuals;
    format!(
        "fitted to {} steps: median error {:.1} %, p95 {:.1} %, all steps together {:+.1} %; of every fifth step with a fit to the others, median / p95: {}; these together {held_out:+.1} %",
        found.samples,
        100.0 * median,
        100.0 * p95,
        100.0 * bias,
        found.held_out,
    )
}

/// Returns a line of doubt if steps with prompts do not fit at all: the prompts are then in other steps than the engine ran them in.
fn doubt_line(errors: &StepErrors, step_tokens: u64) -> Option<String> {
    let kinds = [("prompts alone", errors.prefill), ("prompts and decodes", errors.mixed)];
    let (kind, median) =
        kinds.into_iter().find_map(|(kind, errors)| Some((kind, errors?.median)).filter(|e| e.1 > DOUBTFUL))?;
    Some(format!(
        "warning: steps with {kind} are {:.0} % off in the median, so prompts did not run as assumed: give the server's token budget with --step-tokens (now {step_tokens}), and benchmark without prefix cache; until then times to the first token of a replay may be off by half",
        100.0 * median
    ))
}

/// Returns a line about the speed of the machine over the run, with advice if it varied by more than the error that a fit may have.
fn speed_line([least, most]: [f64; 2]) -> String {
    let [least, most] = [least, most].map(|ratio| 100.0 * (ratio - 1.0));
    let line = format!("tenths of the run took {least:+.1} to {most:+.1} % more than fitted");
    if most - least <= STEADY {
        line
    } else {
        format!(
            "{line}: the speed of the machine varied, or some sorts of steps do not fit; expect as much of a replay's step times"
        )
    }
}

/// Sets the host link of `hardware` to what the copies of the recording at `path` took. Returns a line about each link with copies. Links behind the
/// host are not part of a hardware file; their lines have the options of `replay`.
fn links(
    path: &Path,
    observed: &Observed,
    model: &Model,
    parallel: Parallel,
    hardware: &mut Hardware,
) -> anyhow::Result<Vec<String>> {
    let recorded = settings(path)?;
    let core = &recorded.engines[0].core;
    // Layer groups of a server are about equally large.
    let block_bytes = |token_bytes: u64| token_bytes * u64::from(core.block_size) / u64::from(core.n_groups());
    let mut lines = Vec::new();
    for fit in fit_links(&observed.periods) {
        let LinkFit { link, latency_s, block_s, periods, median_error } = fit;
        // Each device has a link to the host of its own.
        let token_bytes = if link == 0 { parallel.kv_bytes_per_token(model) } else { model.kv_bytes_per_token() };
        let (bytes_s, latency_us) = (block_bytes(token_bytes) as f64 / block_s, latency_s * 1e6);
        let (gb_s, error) = (bytes_s / 1e9, 100.0 * median_error);
        let fitted = format!("fitted to {periods} periods with copies, median error {error:.1} %");
        match core.tiers.get(link).map(|tier| tier.name.as_str()) {
            _ if link == 0 => {
                (hardware.host_link_bytes_s, hardware.host_link_latency_s) = (bytes_s, latency_s);
                lines.push(format!("host link: {gb_s:.3} GB/s after {latency_us:.0} us, {fitted}"));
            }
            Some(name @ ("disk" | "remote")) => {
                lines.push(format!("{name}: --{name}-gb-s {gb_s:.3} --{name}-latency-us {latency_us:.0}, {fitted}"));
            }
            _ => {}
        }
    }
    if lines.is_empty() && !observed.periods.is_empty() {
        let n = observed.periods.len();
        lines.push(format!("links: as in the device's description; {n} periods with copies are too few to fit to, it takes {PERIODS_MIN} for each link"));
    }
    Ok(lines)
}

/// Prints what an engine adds to the kernels of each step.
fn fit_overhead(
    args: &CalibrateArgs,
    kernels: &CostChoice,
    hardware: &Hardware,
    model: &Model,
    samples: &[Sample],
) -> anyhow::Result<()> {
    let kernels = kernels.make(hardware, model, args.parallel, Weights::Resident)?;
    let found = engine_overhead(&*kernels, samples)?;
    let held_out = 100.0 * found.held_out.bias;
    check_bias(args, held_out)?;
    writeln!(io::stdout(), "--engine-overhead {}:{}", found.overhead.step_us, found.overhead.sequence_us)?;
    writeln!(
        io::stderr(),
        "{} steps; by kernels alone, median error {:.1} %, all steps together {:+.1} %; with the overhead, of every fifth step with a fit to the others, median {:.1} %, p95 {:.1} %, together {held_out:+.1} %",
        found.samples,
        100.0 * found.kernels.median,
        100.0 * found.kernels.bias,
        100.0 * found.held_out.median,
        100.0 * found.held_out.p95,
    )?;
    Ok(())
}

/// Fails if most steps are faster than the devices can run the model.
fn check_speed(args: &CalibrateArgs, steps: &[Sample], base: &Hardware, model: &Model) -> anyhow::Result<()> {
    let share = too_fast(steps, base, model, args.parallel);
    let devices = match args.parallel {
        Parallel::ONE => format!("one {}", base.name),
        parallel => format!("{} {parallel}", base.name),
    };
    ensure!(
        share <= TOO_FAST,
        "{:.0} % of the steps are faster than {devices} can run {}: give the server's device with --hardware, its number of devices with --parallel, and its model, as quantised, with --model",
        100.0 * share,
        model.name
    );
    let with_prompts: Vec<Sample> = steps.iter().copied().filter(|step| step.shape.prefills > 0).collect();
    let share = too_fast(&with_prompts, base, model, args.parallel);
    ensure!(
        args.benchmark.is_none() || share <= TOO_FAST,
        "{:.0} % of the steps with prompts are faster than {devices} can compute these in {}: prompts were found in the prefix cache, or ran in smaller chunks; benchmark with --no-enable-prefix-caching (vLLM) or --disable-radix-cache (SGLang), or with a seed that the server has not seen, and give its token budget with --step-tokens (now {})",
        100.0 * share,
        model.name,
        args.step_tokens
    );
    Ok(())
}

/// Fails if the time of all held-out steps together is too far off, percent.
fn check_bias(args: &CalibrateArgs, held_out: f64) -> anyhow::Result<()> {
    ensure!(
        held_out.abs() <= args.max_bias,
        "with every fifth step left out, the fit is {held_out:+.1} % off their time together, more than {} %: record a longer or quieter run, or allow it with --max-bias",
        args.max_bias
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use trunkline_cluster::record::{self, Line};
    use trunkline_core::{Config, TierConfig, Write as TierWrite};
    use trunkline_sim_replay::calibrate::BusyPeriod;

    use super::*;

    #[test]
    fn a_run_faster_than_the_devices_is_refused() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: CalibrateArgs,
        }
        let words = "calibrate --benchmark b.json --hardware h100-80g --model llama-3.1-70b --parallel";
        let (base, model) = (hardware::find("h100-80g").unwrap(), model::find("llama-3.1-70b").unwrap());
        let steps = [Sample { shape: trunkline_sim_perf::cost::StepShape::decodes(4, 100), time_s: 0.012 }; 9];
        let check = |parallel| {
            let args = <Cli as clap::Parser>::parse_from(words.split(' ').chain([parallel])).args;
            check_speed(&args, &steps, &base, &model).map_err(|error| error.to_string())
        };
        let message = check("tp1").unwrap_err();
        assert!(
            message.starts_with("100 % of the steps are faster than one h100-80g can run llama-3.1-70b: "),
            "{message}"
        );
        assert!(check("tp2").unwrap_err().contains("faster than h100-80g tp2pp1 can run"));
        assert_eq!(check("tp4"), Ok(()));
    }

    #[test]
    fn a_benchmark_of_cached_prompts_is_refused() {
        use trunkline_sim_perf::cost::StepShape;
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: CalibrateArgs,
        }
        let (base, model) = (hardware::find("h100-80g").unwrap(), model::find("llama-3.1-8b").unwrap());
        // 2,000 tokens take 29 ms at the peak, but 400 of them, the rest found, may take 14. Decodes alone are slow enough.
        let steps = |time_s| {
            let decodes = [Sample { shape: StepShape::decodes(8, 500), time_s: 0.008 }; 9];
            let prompt = Sample { shape: StepShape::decodes(8, 500).and(StepShape::prefill(2000, 0)), time_s };
            [decodes.as_slice(), &[prompt]].concat()
        };
        let check = |source: &str, time_s| {
            let words = ["calibrate", source, "b.json", "--hardware", "h100-80g", "--model", "llama-3.1-8b"];
            let args = <Cli as clap::Parser>::parse_from(words).args;
            check_speed(&args, &steps(time_s), &base, &model).map_err(|error| error.to_string())
        };
        assert_eq!(check("--benchmark", 0.045), Ok(()));
        let message = check("--benchmark", 0.014).unwrap_err();
        assert!(
            message.starts_with("100 % of the steps with prompts are faster than one h100-80g can compute these in llama-3.1-8b: prompts were found in the prefix cache, or ran in smaller chunks; "),
            "{message}"
        );
        // A recording has the computed tokens.
        assert_eq!(check("--recorded", 0.014), Ok(()));
    }

    #[test]
    fn prompts_in_the_wrong_steps_are_doubted() {
        let of = |median| Some(Residuals { median, p95: 0.5, bias: 0.0 });
        let errors = |mixed| StepErrors { prefill: None, decode: of(0.3), mixed: of(mixed) };
        assert_eq!(doubt_line(&errors(0.08), 2048), None);
        let line = doubt_line(&errors(0.24), 2048).unwrap();
        assert!(
            line.starts_with("warning: steps with prompts and decodes are 24 % off in the median")
                && line.contains("(now 2048)"),
            "{line}"
        );
    }

    #[test]
    fn a_machine_whose_speed_varied_is_named() {
        assert_eq!(speed_line([0.96, 1.05]), "tenths of the run took -4.0 to +5.0 % more than fitted");
        let line = speed_line([0.87, 1.23]);
        assert!(line.starts_with("tenths of the run took -13.0 to +23.0 % more than fitted: the speed of"), "{line}");
    }

    #[test]
    fn the_host_link_goes_into_the_hardware_and_others_into_options() {
        let tier = |name: &str| TierConfig {
            name: name.into(),
            blocks: 100,
            write: TierWrite::Through,
            eviction: "lru".into(),
            shared: false,
        };
        let config = Config { tiers: vec![tier("host"), tier("disk")], ..Config::default() };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let header = Line::Header { trunkline_recording: record::VERSION, config: Box::new(config.clone()) };
        fs::write(&path, header.to_json() + "\n").unwrap();

        let model = model::by_name("llama-3.1-8b").unwrap();
        let block_bytes = (model.kv_bytes_per_token() * u64::from(config.block_size)) as f64;
        // 20 GB/s after 50 us, and 4 GB/s after 200 us.
        let period = |link, blocks: u64, gb_s: f64, latency_s: f64| BusyPeriod {
            link,
            blocks,
            time_s: latency_s + blocks as f64 * block_bytes / gb_s / 1e9,
        };
        let of = |n| (1..=n).flat_map(|blocks| [period(0, blocks, 20.0, 50e-6), period(1, blocks, 4.0, 200e-6)]);
        let observed = |n| Observed { periods: of(n).collect(), ..Observed::default() };

        let mut hardware = *hardware::by_name("h100-80g").unwrap();
        let lines = links(&path, &observed(40), model, Parallel::ONE, &mut hardware).unwrap();
        assert_eq!(
            lines,
            [
                "host link: 20.000 GB/s after 50 us, fitted to 40 periods with copies, median error 0.0 %",
                "disk: --disk-gb-s 4.000 --disk-latency-us 200, fitted to 40 periods with copies, median error 0.0 %",
            ]
        );
        assert!((hardware.host_link_bytes_s / 20e9 - 1.0).abs() < 1e-6, "{}", hardware.host_link_bytes_s);
        assert!((hardware.host_link_latency_s / 50e-6 - 1.0).abs() < 1e-6, "{}", hardware.host_link_latency_s);

        // Two devices that copy halves of a block at once have a link of half the rate each.
        let two = links(&path, &observed(40), model, Parallel::tensor(2), &mut hardware).unwrap();
        assert!(
            two[0].starts_with("host link: 10.000 GB/s") && two[1].starts_with("disk: --disk-gb-s 4.000 "),
            "{two:?}"
        );

        let mut unchanged = *hardware::by_name("h100-80g").unwrap();
        let before = unchanged;
        let lines = links(&path, &observed(10), model, Parallel::ONE, &mut unchanged).unwrap();
        assert_eq!(
            lines,
            [
                "links: as in the device's description; 20 periods with copies are too few to fit to, it takes 20 for each link"
            ]
        );
        assert_eq!(unchanged.host_link_bytes_s, before.host_link_bytes_s);
    }
}
