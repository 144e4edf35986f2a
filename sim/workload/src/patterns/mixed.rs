//! Patterns made of others.

use super::scene::Scene;
use super::{Asked, documents, in_order, part, sessions};

/// Traffic of the day, and a batch of prompts every night that is about the same as the night before.
pub fn night_batches(scene: &mut Scene) -> Vec<Asked> {
    let day = scene.capacity * scene.log_range(0.5, 8.0);
    let mean = scene.mean_length(20.0);
    let batch_blocks = scene.capacity * scene.log_range(0.1, 2.5);
    let lengths = scene.spread();
    let same = scene.range(0.5, 1.0);
    let n = ((batch_blocks / mean) as usize).max(1);
    let mut batch = scene.contents(n, mean, lengths);
    let times = scene.whole(1, 2);
    let blocks = scene.blocks;
    scene.blocks /= 1.0 + times as f64 * batch_blocks / day;
    let make = [sessions::chats, documents::popular, sessions::agents][scene.below(3)];
    let traffic = make(scene);
    scene.blocks = blocks;
    let mut prompts = Vec::new();
    let mut today = 0.0;
    for prompt in in_order(traffic) {
        today += prompt.len() as f64;
        prompts.push(prompt);
        if today >= day {
            today = 0.0;
            for content in &mut batch {
                if !scene.chance(same) {
                    *content = scene.new_blocks(content.len());
                }
            }
            (0..times).for_each(|_| prompts.extend(batch.iter().cloned()));
        }
    }
    numbered(prompts)
}

/// Two to four patterns, one after another.
pub fn one_after_another(scene: &mut Scene) -> Vec<Asked> {
    let n = scene.whole(2, 4);
    let blocks = scene.blocks;
    scene.blocks /= n as f64;
    let prompts = (0..n).flat_map(|_| in_order(part(scene)).collect::<Vec<_>>()).collect();
    scene.blocks = blocks;
    numbered(prompts)
}

/// Share of a part's blocks that are asked for in the common time: long pauses at its end would bunch all others at the beginning.
const IN_TIME: f64 = 0.95;

/// Two or three patterns over the same time, each for a part of the cache.
pub fn at_once(scene: &mut Scene) -> Vec<Asked> {
    let n = scene.whole(2, 3);
    let (blocks, capacity) = (scene.blocks, scene.capacity);
    let mut out = Vec::new();
    for _ in 0..n {
        let share = scene.range(0.3, 1.0) / n as f64;
        (scene.blocks, scene.capacity) = (blocks * share, capacity * share.max(0.3));
        let asked = part(scene);
        let end = end(&asked);
        out.extend(asked.into_iter().map(|(at, prompt)| (at / end, prompt)));
    }
    (scene.blocks, scene.capacity) = (blocks, capacity);
    out
}

/// Returns the time by which [`IN_TIME`] of the blocks are asked for.
fn end(part: &[Asked]) -> f64 {
    let mut asked: Vec<_> = part.iter().map(|(at, prompt)| (*at, prompt.len())).collect();
    asked.sort_by(|a, b| a.0.total_cmp(&b.0));
    let blocks: usize = asked.iter().map(|(_, blocks)| blocks).sum();
    let mut left = (IN_TIME * blocks as f64) as usize;
    let last = asked.iter().find(|(_, blocks)| {
        let is_last = *blocks > left;
        left = left.saturating_sub(*blocks);
        is_last
    });
    last.map_or(1.0, |(at, _)| at.max(f64::MIN_POSITIVE))
}

/// Two patterns in turns; each goes on where it left off.
pub fn in_turns(scene: &mut Scene) -> Vec<Asked> {
    let blocks = scene.blocks;
    scene.blocks /= 2.0;
    let mut parts = [(); 2].map(|()| in_order(part(scene)).collect::<Vec<_>>().into_iter());
    scene.blocks = blocks;
    let turn = scene.capacity * scene.log_range(0.5, 10.0);
    let mut prompts = Vec::new();
    for number in 0.. {
        let mut asked = 0.0;
        while asked < turn {
            let Some(prompt) = parts[number % 2].next() else { return numbered(prompts) };
            asked += prompt.len() as f64;
            prompts.push(prompt);
        }
    }
    unreachable!("one of the two ends")
}

/// Returns the prompts in this order.
fn numbered(prompts: Vec<Vec<u32>>) -> Vec<Asked> {
    prompts.into_iter().enumerate().map(|(number, prompt)| (number as f64, prompt)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pause_at_the_end_does_not_bunch_the_rest() {
        let asked = |at: f64| (at, vec![0; 5]);
        let mut part: Vec<_> = (0..99).map(|n| asked(f64::from(n))).collect();
        assert_eq!(end(&part), 94.0);
        part.insert(0, asked(1e6));
        assert_eq!(end(&part), 95.0);
        assert_eq!(end(&[]), 1.0);
    }

    #[test]
    fn night_batches_leave_room_for_both_readings_of_a_batch() {
        for number in 0..20 {
            let mut scene = Scene::new(number);
            (scene.capacity, scene.blocks) = (1_000.0, 50_000.0);
            let blocks: usize = night_batches(&mut scene).iter().map(|(_, prompt)| prompt.len()).sum();
            assert!(blocks < 62_000, "{number}: {blocks}");
        }
    }
}
