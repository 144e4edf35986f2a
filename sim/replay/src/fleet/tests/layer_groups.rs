//! Models whose layers forget: eviction within sequences, and sliding windows.

use trunkline_core::Keeps;
use trunkline_core::h2o::Mode;

use super::*;

/// A step takes a nanosecond for each token of KV that attention reads in a layer, on average over the layers.
struct ReadKv;

impl CostModel for ReadKv {
    fn name(&self) -> &str {
        "KV read"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        shape.prefill_kv_tokens + shape.decode_kv_tokens
    }
}

fn replay_kv(trace: &Trace, settings: &Settings) -> Report {
    replay(trace, settings, &ReadKv, &mut |_| {}).unwrap()
}

/// The 32 layers in four groups, of which the first keeps all tokens.
fn grouped(others: Keeps, device_blocks: u32) -> Settings {
    let mut settings = settings(16, device_blocks);
    settings.core.worker.groups = vec![Keeps::All, others, others, others];
    settings.group_sizes = vec![8; 4];
    settings.core.max_batch_tokens = 8192;
    settings
}

/// Three quarters of the layers keep a fourth of the tokens, and at least 32 + 64.
fn dropping(device_blocks: u32) -> Settings {
    let mut settings = grouped(Keeps::Scored, device_blocks);
    let h2o = &mut settings.core.h2o;
    (h2o.mode, h2o.ratio, h2o.recent, h2o.trigger) = (Mode::On, Some(4.0), 64, 256);
    settings
}

/// A prompt of 1,024 tokens and `n` to generate.
fn long(n: u32) -> Trace {
    trace(vec![request(0, 1024, n, &[1, 2])])
}

/// Tokens of KV read for a prompt and `n` tokens by layers that keep all: 1,024 by the prompt, one more by each decode.
fn all_read(n: u64) -> u64 {
    (1024..1024 + n).sum()
}

#[test]
fn layers_that_drop_tokens_read_fewer() {
    let (plain, trace) = (settings(16, 1000), long(400));
    assert_eq!((replay_kv(&trace, &plain).duration_s * 1e9).round() as u64, all_read(400));
    let report = replay_kv(&trace, &dropping(1000));
    let read = (report.duration_s * 1e9).round() as u64;
    // At the end 23 of 89 blocks are left in each of three groups. A sequence reads 7/16 of its tokens, and more until a plan is due.
    assert_eq!((read, report.counters.h2o.h2o_dropped_blocks), (227_536, 3 * (89 - 23)));
    assert!((0.44..0.47).contains(&(read as f64 / all_read(400) as f64)));
}

#[test]
fn a_window_is_read_and_no_more() {
    let report = replay_kv(&long(400), &grouped(Keeps::Window(256), 1000));
    // The prompt is one chunk and reads itself; each decode reads 255 tokens and itself in three quarters of the layers.
    let decodes: u64 = (1025..1024 + 400).map(|context: u64| (context - 1 + 3 * 256) / 4 + 1).sum();
    assert_eq!((report.duration_s * 1e9).round() as u64, 1024 + decodes);
}

#[test]
fn what_is_behind_a_window_serves_others_where_every_layer_has_one() {
    let trace = trace((0..16).map(|n| request(0, 1024, 400, &[2 * n, 2 * n + 1])).collect());
    // Room for two requests with all tokens. With windows, one group keeps them, and three keep 256 from the end of the prompt on.
    let mut windows = grouped(Keeps::Window(256), 180);
    windows.core.worker.groups[0] = Keeps::Window(256);
    let [all, few] = [grouped(Keeps::All, 180), windows].map(|settings| replay_kv(&trace, &settings));
    assert_eq!((all.completed, few.completed), (16, 16));
    let in_a_step = |report: &Report| (100.0 * report.batches.mean_batch).round() / 100.0;
    assert_eq!((in_a_step(&all), in_a_step(&few)), (2.0, 3.99));
}

#[test]
fn what_sequences_drop_serves_others() {
    // Room for two requests with all tokens.
    let trace = trace((0..16).map(|n| request(0, 1024, 400, &[2 * n, 2 * n + 1])).collect());
    let [all, few] = [replay_kv(&trace, &grouped(Keeps::All, 180)), replay_kv(&trace, &dropping(180))];
    assert_eq!((all.completed, few.completed), (16, 16));
    let in_a_step = |report: &Report| (100.0 * report.batches.mean_batch).round() / 100.0;
    assert_eq!((in_a_step(&all), in_a_step(&few)), (2.0, 3.8));
    assert!(few.duration_s < 0.6 * all.duration_s, "{} against {} s", few.duration_s, all.duration_s);
}

#[test]
fn the_pool_is_shared_by_groups_of_one_size() {
    let mut settings = dropping(1000);
    let whole = super::settings(16, 1000).fitting_device_blocks().unwrap();
    assert_eq!((settings.fitting_device_blocks().unwrap(), settings.block_bytes()), (whole, 16 * 131_072 / 4));
    // Groups of 8, 12 and 12 layers leave a ninth of the pool unused.
    settings.core.worker.groups.pop();
    settings.group_sizes = vec![8, 12, 12];
    assert_eq!(settings.fitting_device_blocks().unwrap(), (u64::from(whole) * 32 / 36) as u32);
    settings.group_sizes = vec![8, 12, 13];
    assert!(
        settings
            .validate()
            .unwrap_err()
            .to_string()
            .contains("33 layers or KV heads in 3 layer groups for a model of 32 layers and 256")
    );
}
