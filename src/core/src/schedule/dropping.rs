//! Eviction within sequences: feeds reported scores to the planner, and drops the planned entries of block tables.
//!
//! The planner is in [`crate::h2o`]. A plan is made at the end of a step and changes the tables at once; the worker is notified with the
//! next step of the sequence. Steps in flight may still read the dropped blocks, so these are freed when the last of such steps ends. A
//! dropped block that others read, or that is cached, keeps its contents: the sequence only stops to read it.
//!
//! KV computed after a drop depends on what was dropped. A sequence that dropped a block therefore publishes no more blocks.

use std::ops::Range;

use crate::h2o::{Mode, Plan, Rows};
use crate::journal::digest::Decision;
use crate::request::sequence::{Phase, Sequence};
use crate::schedule::state::State;
use crate::schedule::steps::{Part, Picked};

/// Hands the scores of a step's sequences to their planners, and drops what is due. MUST follow the publication of the step's blocks.
pub(crate) fn end_step(state: &mut State, picked: &Picked, scores: &[f32]) {
    if !state.planners.is_used {
        return;
    }
    let (mut rest, mut scored) = (scores, picked.scored.iter().peekable());
    for (at, part) in (0..).zip(&picked.parts) {
        let Some(asked) = scored.next_if(|scored| scored.part == at) else {
            report(state, *part, 0, &[]);
            continue;
        };
        // A worker that cannot score reports none: blocks rank equally, and the later ones stay.
        let (own, others) = rest.split_at((asked.n_scores as usize).min(rest.len()));
        rest = others;
        report(state, *part, asked.rows, own);
    }
}

/// Hands the scores of one sequence to its planner, and drops what is due.
fn report(state: &mut State, part: Part, rows: u32, scores: &[f32]) {
    let State { sequences, planners, rereads, .. } = state;
    if sequences.get(part.slot()).is_some_and(Sequence::has_bad_kv) {
        return;
    }
    if let Some(seq) = sequences.get(part.slot()).filter(|seq| seq.id.is_inner()) {
        return rereads.observe(seq.id, scores, planners.n_lists(), part.sample);
    }
    let Some(seq) = sequences.get_mut(part.slot()).filter(|seq| seq.ending.is_none()) else { return };
    let is_decode = matches!(seq.phase, Phase::Decode);
    let id = seq.id;
    let Some(planner) = &mut seq.cold.planner else { return };
    if !scores.is_empty() {
        let (rows, scores) = (Rows { n: rows, prefill: !part.decodes }, planners.evicting(scores));
        planner.state.report(&*planners.scorer, &planners.settings[0], scores, planners.block_size, rows);
    }
    if !is_decode {
        return;
    }
    planner.state.count_steps(u32::from(part.decodes));
    let plans = planner.state.plans(&*planners.scorer, &planners.settings, id, seq.computed);
    if !plans.is_empty() {
        apply(state, part.slot(), &plans);
    }
}

/// Drops the entries of plans, one for each of the settings, from the tables of the groups that evict, or in mode `probe` counts them.
fn apply(state: &mut State, slot: usize, plans: &[Plan]) {
    let State { sequences, planners, kv, journal, .. } = state;
    let seq = &mut sequences[slot];
    let Some(planner) = &mut seq.cold.planner else { return };
    let counters = &mut journal.stats.h2o;
    counters.h2o_plans += 1;
    counters.h2o_floor_plans += u64::from(plans.iter().all(|plan| plan.dominates));
    let is_probe = planner.mode == Mode::Probe || planners.groups.is_empty();
    let dropped = planners.dropped_tokens(plans);
    // What a probe would have dropped before is not dropped again.
    let n_tokens = if is_probe { dropped.saturating_sub(planner.dropped_tokens) } else { dropped };
    counters.h2o_dropped_tokens += u64::from(n_tokens);
    planner.dropped_tokens += n_tokens;
    if is_probe || plans.iter().all(|plan| plan.drops.is_empty()) {
        return;
    }
    planner.state.apply(&planners.settings, plans);
    for plan in plans.iter().filter(|plan| !plan.drops.is_empty()) {
        journal.decide(Decision::Drop, seq.id.0, u64::from(plan.held) << 32 | u64::from(plan.final_keep()));
    }
    seq.unpublishable = true;
    let last_step = seq.last_step(journal.stats.steps);
    let entries: Vec<Vec<Range<usize>>> = plans.iter().map(|plan| entries_of(plan, planners.block_size)).collect();
    kv.save_dropped(seq, &union(&entries), journal);
    for (at, (plan, entries)) in plans.iter().zip(&entries).enumerate() {
        let groups = planners.groups_of(at);
        for (Range { start, end }, entries) in plan.drops.iter().zip(entries) {
            journal.digest.fold(u64::from(*start) << 32 | u64::from(*end));
            for (group, _) in groups {
                kv.drop_entries(seq, *group, entries.start, entries.len(), last_step);
                journal.stats.h2o.h2o_dropped_blocks += entries.len() as u64;
            }
        }
    }
}

/// Returns the entries of a block table dropped by a plan.
fn entries_of(plan: &Plan, block_size: u32) -> Vec<Range<usize>> {
    let entry = |position: u32| (position / block_size) as usize;
    plan.drops.iter().map(|drop| entry(drop.start)..entry(drop.end)).collect()
}

/// Returns the entries in any of the lists, ascending and without overlap.
fn union(lists: &[Vec<Range<usize>>]) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = lists.iter().flatten().cloned().collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut out: Vec<Range<usize>> = Vec::with_capacity(all.len());
    for range in all {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::union;

    #[test]
    fn entries_dropped_by_several_plans_are_saved_once() {
        assert_eq!(union(&[vec![2..4, 8..9], vec![1..2, 3..6, 10..11]]), [1..6, 8..9, 10..11]);
        assert_eq!(union(&[Vec::new(), vec![4..5, 7..8]]), [4..5, 7..8]);
    }
}
