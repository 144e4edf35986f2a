//! Plans of the reference (MNN, `CPUAttention::onExecute`): ours select the same blocks from the same scores.

use std::ops::Range;
use std::path::PathBuf;

use serde::Deserialize;
use trunkline_core::h2o::{Holes, Plan, Ratios, Scores, Settings, Target, plan};

#[derive(Deserialize)]
struct Vectors {
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    ties_in_scores: bool,
    params: Params,
    kv_len: u32,
    scores_in: Vec<f32>,
    block_acc: Vec<f32>,
    expect: Expect,
}

#[derive(Deserialize)]
struct Params {
    block_tokens: u32,
    sink_tokens: u32,
    recent_tokens: u32,
    target_mode: u32,
    target_keep_ratio: f32,
    target_lossy_ratio: f32,
    ema_alpha: f32,
    update_interval: u32,
    trigger_min_tokens: u32,
    num_head: u32,
    kv_num_head: u64,
    head_dim: u64,
    bytes: u64,
    seq_len: u32,
    global_step: u32,
    global_last_trigger_step: u32,
    prev_keep_ratio: f32,
    prev_lossy_ratio: f32,
}

impl Params {
    fn settings(&self) -> Settings {
        Settings {
            sink_tokens: self.sink_tokens,
            recent_tokens: self.recent_tokens,
            block_tokens: self.block_tokens,
            trigger_tokens: self.trigger_min_tokens,
            interval_steps: self.update_interval,
            alpha: self.ema_alpha,
            score_interval: 1,
            target: match self.target_mode {
                0 => Target::Static { keep_ratio: self.target_keep_ratio },
                _ => Target::Adaptive { lossy_ratio: self.target_lossy_ratio },
            },
            weight: 1.0,
        }
    }
}

#[derive(Deserialize)]
struct Expect {
    triggered: bool,
    scores_after_ema: Vec<f32>,
    final_keep_tokens: u32,
    scores_out: Vec<f32>,
    #[serde(flatten)]
    plan: Option<ExpectedPlan>,
}

#[derive(Deserialize)]
struct ExpectedPlan {
    keep_blocks: Vec<u32>,
    reserve_pairs: Vec<(u32, u32)>,
    plan_ready: bool,
    evicted_tokens: u32,
    keep_ratio_out: f32,
    lossy_ratio_out: f32,
    floor_tokens: u32,
    target_before_floor: u32,
    floor_dominates: bool,
    quantized_keep_tokens: u32,
    keep_tokens_selected: u32,
}

fn vectors() -> Vec<Vector> {
    let folder = PathBuf::from(std::env::var_os("TRUNKLINE_DATA").expect("the test is ignored without data"));
    let path = folder.join("golden/planner.json");
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    serde_json::from_slice::<Vectors>(&text).expect("vectors of this form").vectors
}

fn blocks_of(ranges: &[Range<u32>], size: u32) -> Vec<u32> {
    ranges.iter().flat_map(|range| range.start / size..range.end.div_ceil(size)).collect()
}

/// Compares all numbers of a plan that do not depend on the order of equal scores.
fn check_counts(vector: &Vector, expected: &ExpectedPlan, plan: &Plan) {
    let name = &vector.name;
    let counts = [
        (plan.floor, expected.floor_tokens),
        (plan.target, expected.target_before_floor),
        (plan.quantised, expected.quantized_keep_tokens),
        (plan.selected, expected.keep_tokens_selected),
        (plan.dropped(), expected.evicted_tokens),
        (plan.final_keep(), vector.expect.final_keep_tokens),
        (plan.drops.iter().map(|range| range.end - range.start).sum(), expected.evicted_tokens),
    ];
    for (at, (ours, theirs)) in counts.into_iter().enumerate() {
        assert_eq!(ours, theirs, "{name}, count {at}");
    }
    assert_eq!(plan.dominates, expected.floor_dominates, "{name}");
    assert_eq!(!plan.drops.is_empty(), expected.plan_ready, "{name}");
    let params = &vector.params;
    let mut ratios = Ratios { keep: params.prev_keep_ratio, lossy: params.prev_lossy_ratio };
    ratios.note(plan, params.kv_num_head * params.head_dim * params.bytes * 2);
    assert_eq!(ratios.keep, expected.keep_ratio_out, "{name}");
    // The bytes of a plan depend on its number of ranges, and so on the order of equal scores.
    let as_many = plan.reserve.len() == expected.reserve_pairs.len();
    assert!(as_many || vector.ties_in_scores, "{name}");
    assert!(
        !as_many || ratios.lossy == expected.lossy_ratio_out,
        "{name}: {} for {}",
        ratios.lossy,
        expected.lossy_ratio_out
    );
}

/// Checks our order of equal scores: each kept block outside the floors has a higher score than each dropped one, or an equal
/// score and a later place.
fn check_order(plan: &Plan, scores: &Scores, settings: &Settings) {
    let size = settings.block_tokens;
    let kept = blocks_of(&plan.reserve, size);
    let in_floor = |block: &u32| {
        block * size < settings.sink_tokens || *block >= (plan.tokens - settings.recent_tokens.min(plan.tokens)) / size
    };
    let dropped = blocks_of(&plan.drops, size);
    assert!(!dropped.is_empty());
    for stays in kept.into_iter().filter(|block| !in_floor(block)) {
        for leaves in &dropped {
            let (high, low) = (scores.get(stays).unwrap(), scores.get(*leaves).unwrap());
            assert!(high > low || high == low && stays > *leaves, "{stays} ({high}) stays, {leaves} ({low}) leaves");
        }
    }
}

#[test]
#[cfg_attr(not(trunkline_golden), ignore = "TRUNKLINE_DATA names no folder with golden/")]
fn plans_are_those_of_the_reference() {
    let (mut equal, mut ties, mut dominated, mut not_due) = (0, 0, 0, 0);
    for vector in vectors() {
        let (name, params, expect) = (&vector.name, &vector.params, &vector.expect);
        let settings = params.settings();
        let rows = (params.num_head * params.seq_len) as f32;
        let mut scores = Scores::new(vector.scores_in.iter().copied());
        scores.average(settings.alpha, &vector.block_acc.iter().map(|mass| mass / rows).collect::<Vec<f32>>());
        assert_eq!(scores.as_slice(), expect.scores_after_ema, "{name}");
        let due = settings.is_due(vector.kv_len, params.global_step - params.global_last_trigger_step);
        assert_eq!(due, expect.triggered, "{name}");
        if !due {
            // Without a plan all held tokens stay.
            assert_eq!(expect.final_keep_tokens, vector.kv_len, "{name}");
            not_due += 1;
            continue;
        }
        let plan = plan(&settings, vector.kv_len, &Holes::default(), |block| scores.get(block).unwrap());
        let expected = expect.plan.as_ref().expect("a plan where one was due");
        check_counts(&vector, expected, &plan);
        dominated += usize::from(plan.dominates);
        if vector.ties_in_scores {
            check_order(&plan, &scores, &settings);
            assert_eq!(plan.reserve.iter().map(|range| range.end - range.start).sum::<u32>(), plan.selected, "{name}");
            ties += 1;
            continue;
        }
        assert_eq!(blocks_of(&plan.reserve, settings.block_tokens), expected.keep_blocks, "{name}");
        let pairs: Vec<_> = plan.reserve.iter().map(|range| (range.start, range.end - range.start)).collect();
        assert_eq!(pairs, expected.reserve_pairs, "{name}");
        // The reference moves the scores of kept blocks together if it drops anything; ours stay at their places.
        let stay: Vec<u32> = if plan.drops.is_empty() {
            (0..settings.n_blocks(vector.kv_len)).collect()
        } else {
            expected.keep_blocks.clone()
        };
        let out: Vec<f32> = stay.into_iter().map(|block| scores.get(block).unwrap()).collect();
        assert_eq!(out, expect.scores_out, "{name}");
        equal += 1;
    }
    eprintln!(
        "{equal} plans are equal, {ties} differ in the order of equal scores alone; floors dominate {dominated} of them, and {not_due} are not due"
    );
    assert!(equal >= 15 && ties >= 2 && dominated >= 2 && not_due >= 1, "the vectors are the known ones");
}
