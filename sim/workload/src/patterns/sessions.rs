//! Prompts that grow turn by turn, and prompts that are sent again.

use super::Asked;
use super::scene::{Scene, Spread, behind};

/// Chats: some turns with long pauses, and many prompts without a second turn.
pub fn chats(scene: &mut Scene) -> Vec<Asked> {
    let first = scene.mean_length(30.0);
    let turn = scene.log_range(1.0, 12.0).min(first * 2.0).max(1.0);
    let turns = scene.log_range(1.5, 8.0);
    let one_off = scene.range(0.0, 0.8);
    let think = scene.capacity * scene.log_range(0.05, 3.0);
    sessions(scene, first, turn, turns, one_off, think)
}

/// Agents: many short turns, soon one after another.
pub fn agents(scene: &mut Scene) -> Vec<Asked> {
    let first = scene.mean_length(40.0);
    let turn = scene.log_range(1.0, 4.0);
    let turns = scene.log_range(8.0, 40.0);
    let one_off = scene.range(0.0, 0.3);
    let think = scene.capacity * scene.log_range(0.01, 0.6);
    sessions(scene, first, turn, turns, one_off, think)
}

/// Makes sessions whose first prompts have `first` blocks and whose turns add `turn`; times are in blocks computed at best.
fn sessions(scene: &mut Scene, first: f64, turn: f64, turns: f64, one_off: f64, think: f64) -> Vec<Asked> {
    let turns = turns.min((scene.capacity / 4.0 - first) / turn).max(1.5);
    let gap = first + (1.0 - one_off) * turns * turn;
    let (lengths, times) = (scene.spread(), scene.spread());
    let long_pause = if scene.chance(0.4) { 0.1 } else { 0.0 };
    let same_again = if scene.chance(0.3) { scene.range(0.0, 0.15) } else { 0.0 };
    let n_systems = scene.below(4);
    let systems = scene.contents(n_systems, first / 2.0, Spread::Fixed);
    let mut out = Vec::new();
    let (mut begins, mut blocks) = (0.0, 0.0);
    while blocks < scene.blocks {
        begins += scene.exponential(gap);
        let mut prompt = if systems.is_empty() { Vec::new() } else { systems[scene.below(systems.len())].clone() };
        let length = scene.length(first, lengths);
        prompt.extend(scene.new_blocks(length));
        let turns = if scene.chance(one_off) { 1 } else { 1 + scene.geometric(turns - 0.5) };
        let mut at = begins;
        for number in 0..turns {
            if number > 0 {
                let pause = scene.time(think, times);
                at += if scene.chance(long_pause) { pause * 10.0 } else { pause };
                if !scene.chance(same_again) {
                    let length = scene.length(turn, lengths);
                    prompt.extend(scene.new_blocks(length));
                }
            }
            if prompt.len() as f64 > scene.capacity / 3.0 {
                break;
            }
            blocks += prompt.len() as f64;
            out.push((at, prompt.clone()));
        }
    }
    out
}

/// Prompts sent once, or again after a while, with answers that do not return.
pub fn sent_again(scene: &mut Scene) -> Vec<Asked> {
    let mean = scene.mean_length(30.0);
    let (lengths, times) = (scene.spread(), scene.spread());
    let again = scene.range(0.2, 0.9);
    let gap = scene.capacity * scene.log_range(0.1, 4.0);
    let most = scene.whole(1, 4);
    let answer = scene.range(0.0, 3.0);
    let mut out = Vec::new();
    let (mut begins, mut blocks) = (0.0, 0.0);
    while blocks < scene.blocks {
        begins += scene.exponential(mean);
        let length = scene.length(mean, lengths);
        let prompt = scene.new_blocks(length);
        let mut at = begins;
        for number in 0..=most {
            if number > 0 {
                if !scene.chance(again) {
                    break;
                }
                at += scene.time(gap, times);
            }
            let answered = scene.around(answer);
            let asked = behind(&prompt, scene.new_blocks(answered));
            blocks += asked.len() as f64;
            out.push((at, asked));
        }
    }
    out
}
