//! Tests of the planner: made cases, and properties that hold for all inputs.

use proptest::prelude::*;

use super::*;
use crate::h2o::Target;

fn settings(block_tokens: u32, sink_tokens: u32, recent_tokens: u32, lossy_ratio: f32) -> Settings {
    let target = Target::Adaptive { lossy_ratio };
    Settings { block_tokens, sink_tokens, recent_tokens, target, ..Settings::default() }
}

fn made(settings: &Settings, tokens: u32, holes: &Holes, scores: &[f32]) -> Plan {
    plan(settings, tokens, holes, |block| scores[block as usize])
}

/// Returns the holes of blocks marked `true`.
fn holes(dropped: &[bool]) -> Holes {
    Holes { dropped: dropped.to_vec() }
}

fn pairs(ranges: &[Range<u32>]) -> Vec<(u32, u32)> {
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

fn total(ranges: &[Range<u32>]) -> u32 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[test]
fn blocks_of_high_scores_stay_and_inverted_scores_keep_the_others() {
    let settings = settings(4, 4, 4, 2.0);
    // 32 tokens in 8 blocks, 16 to keep: the floors are blocks 0 and 7, and two of the six others stay.
    let scores = [0.0, 0.9, 0.1, 0.2, 0.8, 0.3, 0.4, 0.0];
    let plan = made(&settings, 32, &Holes::default(), &scores);
    assert_eq!(plan.reserve, [0..8, 16..20, 28..32]);
    assert_eq!(plan.drops, [8..16, 20..28]);
    assert_eq!((plan.floor, plan.target, plan.quantised, plan.selected), (8, 16, 16, 16));
    let inverted = made(&settings, 32, &Holes::default(), &scores.map(|score| 1.0 - score));
    assert_eq!(inverted.reserve, [0..4, 8..16, 28..32]);
}

#[test]
fn ratios_count_the_bytes_of_the_plan_too() {
    let scores = [0.0, 0.9, 0.1, 0.2, 0.8, 0.3, 0.4, 0.0];
    let plan = made(&settings(4, 4, 4, 2.0), 32, &Holes::default(), &scores);
    let mut ratios = Ratios::default();
    ratios.note(&plan, 10);
    assert_eq!(
        ratios,
        Ratios { keep: 0.5, lossy: 320.0 / 184.0 },
        "16 of 32 tokens of 10 bytes, and 3 ranges of 8 bytes"
    );
}

#[test]
fn a_weight_multiplies_what_is_kept_beyond_the_floors() {
    // 80 tokens in 20 blocks, 40 to keep on average: the floors hold 8 of them, and 32 are beyond.
    let with = |weight| {
        let plan = made(&Settings { weight, ..settings(4, 4, 4, 2.0) }, 80, &Holes::default(), &[0.5; 20]);
        (plan.floor, plan.target, plan.final_keep(), plan.dominates)
    };
    assert_eq!(with(1.0), (8, 40, 40, false));
    assert_eq!(with(0.0), (8, 8, 8, false));
    assert_eq!(with(0.3), (8, 18, 20, false), "32 times 0.3 is 9.6");
    assert_eq!(with(1.75), (8, 64, 64, false));
    assert_eq!(with(64.0), (8, 80, 80, false));
    // What earlier plans dropped makes the target no smaller.
    let low = Settings { weight: 0.3, ..settings(4, 4, 4, 2.0) };
    let first = made(&low, 80, &Holes::default(), &[0.5; 20]);
    let mut gone = Holes::default();
    first.drops.iter().for_each(|drop| gone.drop_positions(drop, 4));
    assert_eq!(made(&low, 80, &gone, &[0.5; 20]).dropped(), 0);
    // Floors dominate at the same length whatever the weight.
    let short =
        |weight| made(&Settings { weight, ..settings(4, 8, 8, 2.0) }, 24, &Holes::default(), &[0.5; 6]).dominates;
    assert_eq!([0.0, 1.0, 9.0].map(short), [true; 3]);
}

#[test]
fn of_equal_ranks_the_later_block_stays_and_bad_ranks_count_as_zero() {
    let settings = settings(4, 4, 4, 2.0);
    let equal = made(&settings, 32, &Holes::default(), &[0.5; 8]);
    assert_eq!(equal.reserve, [0..4, 20..32]);
    let bad = [0.0, f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -1.0, -0.0, f32::NAN, 0.0];
    assert_eq!(made(&settings, 32, &Holes::default(), &bad), equal);
    let mut one = bad;
    one[2] = f32::MIN_POSITIVE;
    assert_eq!(made(&settings, 32, &Holes::default(), &one).reserve, [0..4, 8..12, 24..32]);
}

#[test]
fn a_target_counts_tokens_of_the_sequence_and_holes_count_as_dropped() {
    let settings = settings(4, 4, 4, 2.0);
    let scores = [0.0, 0.9, 0.1, 0.2, 0.8, 0.3, 0.4, 0.0];
    let mut holes = Holes::default();
    let first = made(&settings, 32, &holes, &scores);
    first.drops.iter().for_each(|range| holes.drop_positions(range, 4));
    assert_eq!(holes.held_tokens(32, 4), 16);
    // At once again: the target is met already, so nothing goes. A target of half of the 16 held tokens would drop both others.
    let again = made(&settings, 32, &holes, &scores);
    assert_eq!((again.held, again.target, again.dropped()), (16, 16, 0));
    assert_eq!(again.reserve, first.reserve);
    // Eight tokens later, 24 are held and 20 are to stay. Block 7 has left the floor and has the lowest score.
    let scores = [0.0, 0.9, 1.0, 1.0, 0.8, 1.0, 1.0, 0.1, 0.2, 0.0];
    let later = made(&settings, 40, &holes, &scores);
    assert_eq!((later.held, later.target, later.selected), (24, 20, 20));
    assert_eq!(pairs(&later.drops), [(28, 32)], "blocks dropped before are not dropped again, whatever their scores");
    assert_eq!(later.reserve, [0..8, 16..20, 32..40]);
}

#[test]
fn floors_that_reach_the_target_drop_nothing_and_leave_the_ratios() {
    let settings = settings(4, 8, 8, 2.0);
    let mut ratios = Ratios { keep: 0.5, lossy: 1.9 };
    let plan = made(&settings, 32, &Holes::default(), &[1.0; 8]);
    assert!(plan.dominates, "16 tokens in floors, 16 to keep");
    assert_eq!((plan.final_keep(), plan.dropped(), plan.drops.len()), (32, 0, 0));
    assert_eq!(plan.reserve, [0..8, 24..32]);
    ratios.note(&plan, 512);
    assert_eq!(ratios, Ratios { keep: 0.5, lossy: 1.9 });
    let plan = made(&settings, 36, &Holes::default(), &[1.0; 9]);
    assert!(!plan.dominates && plan.dropped() > 0);
    ratios.note(&plan, 512);
    assert_eq!(ratios.keep, 20.0 / 36.0);
}

#[test]
fn a_partial_last_block_stays_even_without_floors() {
    let settings = settings(4, 0, 0, 64.0);
    let plan = made(&settings, 10, &Holes::default(), &[9.0, 9.0, 0.0]);
    assert!(plan.dominates, "two tokens in a partial block reach a target of one");
    let plan = made(
        &Settings { target: Target::Static { keep_ratio: 0.5 }, ..settings },
        10,
        &Holes::default(),
        &[1.0, 2.0, 0.0],
    );
    assert_eq!(pairs(&plan.drops), [(0, 4)]);
    // A last block that is full may go.
    let plan = made(&settings, 8, &Holes::default(), &[1.0, 0.0]);
    assert_eq!(pairs(&plan.drops), [(4, 8)]);
}

#[test]
#[should_panic(expected = "only whole blocks")]
fn a_part_of_a_block_is_never_a_hole() {
    Holes::default().drop_positions(&(0..3), 4);
}

#[derive(Debug, Clone)]
struct Case {
    settings: Settings,
    tokens: u32,
    holes: Holes,
    scores: Vec<f32>,
}

impl Case {
    fn plan(&self) -> Plan {
        made(&self.settings, self.tokens, &self.holes, &self.scores)
    }

    fn with_ratio(&self, lossy_ratio: f32) -> Plan {
        Self { settings: Settings { target: Target::Adaptive { lossy_ratio }, ..self.settings }, ..self.clone() }.plan()
    }

    fn in_floor(&self, position: u32) -> bool {
        position < self.settings.sink_tokens || position + self.settings.recent_tokens >= self.tokens
    }

    fn is_hole(&self, position: u32) -> bool {
        self.holes.contains(position / self.settings.block_tokens)
    }
}

fn score() -> impl Strategy<Value = f32> {
    // Few values, so that many are equal, and some that are no scores.
    prop_oneof![8 => (0u8..6).prop_map(|n| f32::from(n) / 8.0), 1 => Just(f32::NAN), 1 => Just(-1.0)]
}

fn cases() -> impl Strategy<Value = Case> {
    let numbers = (1u32..20, 0u32..60, 0u32..90, 1u32..400, 1.0f32..12.0);
    numbers.prop_flat_map(|(block, sink, recent, tokens, ratio)| {
        let n = tokens.div_ceil(block) as usize;
        let dropped = proptest::collection::vec(proptest::bool::weighted(0.3), n);
        (Just(settings(block, sink, recent, ratio)), Just(tokens), dropped, proptest::collection::vec(score(), n))
            .prop_map(|(settings, tokens, mut dropped, scores)| {
                // A partial block is never dropped.
                if !tokens.is_multiple_of(settings.block_tokens) {
                    dropped.pop();
                }
                Case { settings, tokens, holes: holes(&dropped), scores }
            })
    })
}

proptest! {
    #[test]
    fn reserve_drops_and_holes_part_the_positions(case in cases()) {
        let plan = case.plan();
        let marks = |ranges: &[Range<u32>]| {
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "ascending and merged: {ranges:?}");
            let mut marks = vec![false; case.tokens as usize];
            ranges.iter().for_each(|range| marks[range.start as usize..range.end as usize].fill(true));
            Ok(marks)
        };
        let (reserved, dropped) = (marks(&plan.reserve)?, marks(&plan.drops)?);
        for position in 0..case.tokens {
            let (reserved, dropped) = (reserved[position as usize], dropped[position as usize]);
            let hole = case.is_hole(position);
            prop_assert!(u32::from(reserved) + u32::from(dropped) + u32::from(hole) <= 1);
            prop_assert!(plan.dominates || reserved || dropped || hole, "{position} is nowhere");
            prop_assert!(hole || !case.in_floor(position) || reserved, "{position} is in a floor and not selected");
        }
        prop_assert_eq!(total(&plan.reserve), plan.selected);
        prop_assert_eq!(total(&plan.drops), plan.dropped());
        prop_assert_eq!(plan.held, case.holes.held_tokens(case.tokens, case.settings.block_tokens));
    }

    #[test]
    fn the_target_is_met_with_less_than_a_block_too_many(case in cases()) {
        let plan = case.plan();
        prop_assume!(plan.held > 0);
        let wanted = (case.settings.target.keep_ratio() * case.tokens as f32).ceil() as u32;
        prop_assert_eq!(plan.target, wanted.clamp(1, plan.held));
        prop_assert!(plan.final_keep() >= plan.target);
        prop_assert_eq!(plan.dominates, plan.floor >= plan.target);
        if !plan.dominates {
            prop_assert!(plan.final_keep() < plan.target + case.settings.block_tokens);
        }
    }

    #[test]
    fn a_higher_ratio_selects_a_part_of_the_same_blocks(case in cases(), more in 1.0f32..4.0) {
        let Target::Adaptive { lossy_ratio } = case.settings.target else { unreachable!("made above") };
        let (low, high) = (case.plan(), case.with_ratio(lossy_ratio * more));
        let inside = |range: &Range<u32>| low.reserve.iter().any(|outer| outer.start <= range.start && range.end <= outer.end);
        prop_assert!(high.reserve.iter().all(inside), "{:?} in {:?}", high.reserve, low.reserve);
        prop_assert!(high.dominates || high.final_keep() <= low.final_keep());
    }

    #[test]
    fn equal_inputs_give_equal_plans_and_a_plan_repeated_drops_nothing(case in cases()) {
        let plan = case.plan();
        prop_assert_eq!(&plan, &case.plan());
        let mut after = case.clone();
        plan.drops.iter().for_each(|range| after.holes.drop_positions(range, case.settings.block_tokens));
        prop_assert_eq!(after.holes.held_tokens(case.tokens, case.settings.block_tokens), plan.final_keep());
        prop_assert_eq!(after.plan().dropped(), 0);
    }

    #[test]
    fn of_two_blocks_outside_the_floors_the_higher_rank_stays(case in cases()) {
        let plan = case.plan();
        let size = case.settings.block_tokens;
        let blocks = |ranges: &[Range<u32>]| -> Vec<u32> {
            ranges.iter().flat_map(|range| range.start / size..range.end.div_ceil(size)).collect()
        };
        let floor = |block: &u32| (block * size..((block + 1) * size).min(case.tokens)).any(|position| case.in_floor(position));
        let of = |block: u32| sound(case.scores[block as usize]);
        let dropped = blocks(&plan.drops);
        for stays in blocks(&plan.reserve).into_iter().filter(|block| !floor(block)) {
            for leaves in &dropped {
                let (high, low) = (of(stays), of(*leaves));
                let in_recent_block = stays >= case.tokens.saturating_sub(case.settings.recent_tokens) / size;
                prop_assert!(in_recent_block || high > low || high == low && stays > *leaves);
            }
        }
    }
}
