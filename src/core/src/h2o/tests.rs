//! Tests of the scorers, and of the state of a sequence from the first report to the holes.

use super::*;

const REQUEST: RequestId = RequestId(7);

/// 16 tokens in a block, a KV block of 4, floors of one block each, one of two kept.
fn small() -> Settings {
    let target = Target::Adaptive { lossy_ratio: 2.0 };
    Settings { block_tokens: 16, sink_tokens: 16, recent_tokens: 16, trigger_tokens: 64, target, ..Settings::default() }
}

fn scorer(spec: &str) -> Box<dyn Scorer> {
    REGISTRY.make(spec, small()).unwrap()
}

/// Makes the plan of a sequence of 96 tokens (6 blocks, 3 to keep) after one report.
fn planned(spec: &str, reported: &[f32], rows: Rows) -> Plan {
    let (scorer, settings) = (scorer(spec), small());
    let mut state = State::new(&scorer.needs(), 1);
    state.report(&*scorer, &settings, reported, 4, rows);
    state.count_steps(settings.interval_steps);
    state.plans(&*scorer, &[settings], REQUEST, 96).remove(0)
}

/// Returns the only block kept in addition to the floors, 0 and 5.
fn middle(plan: &Plan) -> u32 {
    let blocks: Vec<u32> = plan.reserve.iter().flat_map(|range| range.start / 16..range.end / 16).collect();
    let middle: Vec<u32> = blocks.into_iter().filter(|block| ![0, 5].contains(block)).collect();
    assert_eq!(middle.len(), 1, "{plan:?}");
    middle[0]
}

/// Scores of 24 KV blocks: 0 but for a few.
fn reported(scores: &[(usize, f32)]) -> Vec<f32> {
    let mut out = vec![0.0; 24];
    scores.iter().for_each(|(at, score)| out[*at] = *score);
    out
}

#[test]
fn one_decode_step_in_an_interval_is_scored_and_stands_for_the_others() {
    let settings = |score_interval| Settings { alpha: 0.5, interval_steps: 8, score_interval, ..Settings::default() };
    let rows = |name: &str, score_interval| {
        let scorer = REGISTRY.make(name, settings(score_interval)).unwrap();
        let (needs, mut state) = (scorer.needs(), State::new(&scorer.needs(), 1));
        (0..9).map(|_| state.begin_decode(&needs)).collect::<Vec<_>>()
    };
    assert_eq!(rows("h2o", 1), [1; 9]);
    assert_eq!(rows("h2o", 3), [1, 0, 0, 1, 0, 0, 1, 0, 0]);
    assert_eq!(rows("h2o", 100), rows("h2o", 8), "plans never lack scores");
    assert_eq!((rows("tova", 3), rows("streaming", 3)), (vec![1; 9], vec![0; 9]));
    // Three steps with the same scores, or one that stands for three.
    let observe = |score_interval, n| {
        let scorer = REGISTRY.make("h2o", settings(score_interval)).unwrap();
        let mut scores = Scores::default();
        (0..n).for_each(|_| scorer.observe(&mut scores, &[0.5, 0.25], Rows { n: 1, prefill: false }));
        scores
    };
    assert_eq!(observe(1, 3), observe(3, 1));
    assert_eq!(observe(1, 6), observe(3, 2));
}

#[test]
fn scores_of_kv_blocks_are_summed_and_maxima_are_not() {
    // Block 1 has four KV blocks of 0.1, block 3 one of 0.3.
    let scores = reported(&[(4, 0.1), (5, 0.1), (6, 0.1), (7, 0.1), (12, 0.3)]);
    let decode = Rows { n: 1, prefill: false };
    assert_eq!(middle(&planned("h2o", &scores, decode)), 1);
    assert_eq!(middle(&planned("tova", &scores, decode)), 1);
    assert_eq!(middle(&planned("hmax", &scores, decode)), 3);
    assert_eq!(middle(&planned("snapkv", &scores, Rows { n: 32, prefill: true })), 1);
    assert_eq!(middle(&planned("streaming", &scores, decode)), 4);
}

#[test]
fn a_state_by_group_plans_each_group_by_its_own_scores() {
    let (scorer, settings) = (scorer("h2o"), [small(), Settings { weight: 2.0, ..small() }]);
    let mut state = State::by_group(&scorer.needs(), 2);
    let lists = [reported(&[(4, 0.2), (12, 0.1)]), reported(&[(8, 0.2), (12, 0.1)])].concat();
    state.report(&*scorer, &settings[0], &lists, 4, Rows { n: 1, prefill: false });
    state.count_steps(settings[0].interval_steps);
    let plans = state.plans(&*scorer, &settings, REQUEST, 96);
    assert_eq!(middle(&plans[0]), 1);
    assert_eq!(plans[1].reserve, [0..16, 32..64, 80..96], "twice as much beyond the floors");
    // A second reading counts for all groups.
    let mut state = State::by_group(&scorer.needs(), 2);
    state.report_reread(&*scorer, &settings[0], &reported(&[(12, 0.5)]), 4);
    assert_eq!(state.scores()[0], state.scores()[1]);
}

#[test]
fn a_score_of_a_kv_block_that_is_no_number_does_not_spoil_its_neighbours() {
    let scores = reported(&[(4, f32::NAN), (5, 0.4), (9, -5.0), (10, 0.3), (11, 0.3)]);
    assert_eq!(middle(&planned("h2o", &scores, Rows { n: 1, prefill: false })), 2);
    let scores = reported(&[(4, f32::NAN), (5, 0.8), (10, 0.3), (11, 0.3)]);
    assert_eq!(middle(&planned("h2o", &scores, Rows { n: 1, prefill: false })), 1);
}

#[test]
fn scorers_differ_in_the_steps_they_remember() {
    let middle_after = |spec: &str, steps: &[(f32, f32)]| {
        let (scorer, settings) = (scorer(spec), small());
        let mut state = State::new(&scorer.needs(), 1);
        for (first, third) in steps {
            state.report(
                &*scorer,
                &settings,
                &reported(&[(4, *first), (12, *third)]),
                4,
                Rows { n: 1, prefill: false },
            );
        }
        state.count_steps(16);
        middle(&state.plans(&*scorer, &[settings], REQUEST, 96)[0])
    };
    let faded = [(0.9, 0.0), (0.1, 0.2), (0.1, 0.2)];
    assert_eq!(middle_after("h2o", &faded), 1, "0.9 * 0.81 + 0.19 * 0.1 is above 0.19 * 0.2");
    assert_eq!(middle_after("hmax", &faded), 1);
    assert_eq!(middle_after("tova", &faded), 3);
    let long_ago: Vec<(f32, f32)> = std::iter::once((0.9, 0.0)).chain([(0.0, 0.1); 40]).collect();
    assert_eq!(middle_after("h2o", &long_ago), 3);
    assert_eq!(middle_after("hmax", &long_ago), 1);
}

#[test]
fn a_window_of_the_prompt_over_two_chunks_counts_every_row_alike() {
    let (scorer, settings) = (scorer("snapkv:rows=32"), small());
    let needs = scorer.needs();
    // A prompt of 96 tokens in chunks of 80 and 16: 16 rows of each are in the window.
    assert_eq!(
        [needs.rows_of_chunk(0, 64, 96), needs.rows_of_chunk(0, 80, 96), needs.rows_of_chunk(80, 16, 96)],
        [0, 16, 16]
    );
    assert_eq!([needs.rows_of_chunk(0, 20, 20), needs.rows_of_chunk(64, 32, 96)], [20, 32]);
    let mut state = State::new(&needs, 1);
    state.report(&*scorer, &settings, &reported(&[(4, 0.5)]), 4, Rows { n: 24, prefill: true });
    state.report(&*scorer, &settings, &reported(&[(12, 0.9)]), 4, Rows { n: 8, prefill: true });
    assert_eq!(state.scores()[0].as_slice(), [0.0, 12.0, 0.0, 7.2, 0.0, 0.0]);
    // A decoded block that no prompt row read ranks above every block of the prompt.
    let plan = plan(&settings, 128, &Holes::default(), |block| scorer.rank(&state.scores()[0], REQUEST, block));
    assert_eq!(plan.reserve, [0..32, 96..128]);
}

#[test]
fn all_rows_of_a_prompt_are_scored_for_hmax_and_none_for_h2o() {
    assert_eq!(scorer("hmax").needs().rows_of_chunk(512, 256, 4096), 256);
    assert_eq!(scorer("h2o").needs().rows_of_chunk(512, 256, 768), 0);
    assert_eq!(scorer("tova").needs().rows_of_chunk(512, 256, 768), 1);
    assert_eq!(scorer("tova").needs().rows_of_chunk(512, 256, 769), 0, "the last row is in the next chunk");
}

#[test]
fn random_depends_on_seed_request_and_block_alone() {
    let ranks = |spec: &str, request: u64| -> Vec<f32> {
        let scores = Scores::default();
        (0..64).map(|block| scorer(spec).rank(&scores, RequestId(request), block)).collect()
    };
    assert_eq!(ranks("random", 1), ranks("random:seed=0", 1));
    assert_ne!(ranks("random", 1), ranks("random", 2));
    assert_ne!(ranks("random", 1), ranks("random:seed=1", 1));
    let mean = ranks("random", 1).iter().sum::<f32>() / 64.0;
    assert!((0.35..0.65).contains(&mean), "{mean}");
}

#[test]
fn the_first_plan_waits_for_an_interval_only_if_the_scorer_needs_decode_steps() {
    let specs = ["h2o", "streaming", "snapkv", "tova", "hmax", "kvzip", "random"];
    for (spec, at_once) in specs.map(|spec| (spec, spec != "h2o")) {
        let (scorer, settings) = (scorer(spec), small());
        let mut state = State::new(&scorer.needs(), 1);
        state.give_up_reread();
        assert_eq!(state.plans(&*scorer, &[settings], REQUEST, 96).len(), usize::from(at_once), "{spec}");
        state.count_steps(15);
        assert!(state.plans(&*scorer, &[settings], REQUEST, 111).is_empty(), "{spec}");
        state.count_steps(1);
        assert!(!state.plans(&*scorer, &[settings], REQUEST, 112).is_empty(), "{spec}");
    }
}

#[test]
fn a_sequence_under_repeated_plans_stays_within_a_block_of_the_target() {
    let settings = Settings { target: Target::Adaptive { lossy_ratio: 4.0 }, ..small() };
    for entry in REGISTRY.entries() {
        let scorer = REGISTRY.make(entry.name, settings).unwrap();
        let mut state = State::new(&scorer.needs(), 1);
        state.give_up_reread();
        let mut gone: Vec<u32> = Vec::new();
        for tokens in 256..768u32 {
            let scores: Vec<f32> = (0..tokens.div_ceil(4)).map(|n| (n * 7 % 13) as f32).collect();
            state.report(&*scorer, &settings, &scores, 4, Rows { n: 1, prefill: false });
            state.count_steps(1);
            let plans = state.plans(&*scorer, &[settings], REQUEST, tokens);
            if !plans.is_empty() {
                state.apply(&[settings], &plans);
                let (held, target) = (state.holes()[0].held_tokens(tokens, 16), tokens.div_ceil(4));
                assert!(held >= target && held < target + 16, "{}: {held} of {tokens}", entry.name);
            }
            assert!(gone.iter().all(|block| state.holes()[0].contains(*block)), "{}: a block came back", entry.name);
            gone = (0..tokens / 16).filter(|block| state.holes()[0].contains(*block)).collect();
        }
        assert!(gone.len() >= 28, "{}: {gone:?}", entry.name);
    }
}

#[test]
fn kvzip_waits_for_the_second_reading_and_keeps_what_it_read() {
    let (scorer, settings) = (scorer("kvzip"), small());
    let begin = || {
        let mut state = State::new(&scorer.needs(), 1);
        // A decode step that reads block 1 says nothing of the prompt.
        state.report(&*scorer, &settings, &reported(&[(4, 0.2)]), 4, Rows { n: 1, prefill: false });
        state.count_steps(settings.interval_steps);
        state
    };
    let mut state = begin();
    assert!(state.awaits_reread() && state.plans(&*scorer, &[settings], REQUEST, 96).is_empty());
    // One position of block 3 was read more than the four KV blocks of block 2 each.
    let scores = reported(&[(8, 0.4), (9, 0.4), (10, 0.4), (11, 0.4), (13, 0.5)]);
    state.report_reread(&*scorer, &settings, &scores, 4);
    assert_eq!(middle(&state.plans(&*scorer, &[settings], REQUEST, 96)[0]), 3);
    let mut state = begin();
    state.give_up_reread();
    assert_eq!(middle(&state.plans(&*scorer, &[settings], REQUEST, 96)[0]), 1, "what decode steps read");
}
