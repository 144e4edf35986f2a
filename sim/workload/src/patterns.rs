//! Synthetic traces for comparing eviction policies: prompts as lists of blocks, asked for in patterns known from serving.
//!
//! The number of a [`Case`] decides everything in it: the pattern, the capacity of the cache, and the parameters of the pattern, such
//! as think times in terms of the capacity, lengths, popularity and shares of prompts that never return. A case in which a policy finds
//! little can be looked at again by its number.
//!
//! ```
//! use trunkline_sim_workload::patterns::{Case, names};
//!
//! let case = Case::new(6);
//! assert_eq!((case.pattern, names().nth(6)), ("loops", Some("loops")));
//! assert!(case.prompts.iter().all(|prompt| 2 * prompt.len() <= case.capacity as usize));
//! ```

use self::scene::Scene;

mod documents;
mod mixed;
mod scene;
mod sessions;

/// Prompt and the time at which it is asked for, in any unit.
type Asked = (f64, Vec<u32>);

/// Makes about [`Scene::blocks`] blocks of prompts, in any order.
type Make = fn(&mut Scene) -> Vec<Asked>;

/// Patterns by name. The first [`PARTS`] are also parts of the others.
const PATTERNS: [(&str, Make); 14] = [
    ("sessions", sessions::chats),
    ("agents", sessions::agents),
    ("documents-zipf", documents::popular),
    ("documents-uniform", documents::uniform),
    ("templates", documents::templates),
    ("search", documents::search),
    ("loops", documents::loops),
    ("sent-again", sessions::sent_again),
    ("night-batches", mixed::night_batches),
    ("turnover", documents::turnover),
    ("scans", documents::scans),
    ("one-after-another", mixed::one_after_another),
    ("at-once", mixed::at_once),
    ("in-turns", mixed::in_turns),
];

/// Patterns that the last ones put together.
const PARTS: usize = 11;

/// Capacities of caches, blocks.
const CAPACITIES: (f64, f64) = (100.0, 20_000.0);

/// Times that a trace asks for as many blocks as the cache has.
const ROUNDS: (f64, f64) = (10.0, 80.0);

/// Blocks of all prompts together: small caches get longer traces, large ones shorter ones.
const BLOCKS: (f64, f64) = (8_000.0, 350_000.0);

/// Synthetic trace, and the cache for it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the pattern, one of [`names`].
    pub pattern: &'static str,
    /// Capacity of the cache, blocks.
    pub capacity: u32,
    /// Prompts in the order in which they are asked for; each has at most half of the capacity. A number is the content of a block,
    /// so prompts share the blocks in which their numbers, and all numbers before, are equal.
    pub prompts: Vec<Vec<u32>>,
}

impl Case {
    /// Makes the case of this number. Case 0 has the first of [`names`], and each further one the next, in turns.
    pub fn new(number: u64) -> Self {
        let (pattern, make) = PATTERNS[(number % PATTERNS.len() as u64) as usize];
        let mut scene = Scene::new(number);
        let capacity = scene.log_range(CAPACITIES.0, CAPACITIES.1);
        let blocks = (capacity * scene.log_range(ROUNDS.0, ROUNDS.1)).clamp(BLOCKS.0, BLOCKS.1);
        (scene.capacity, scene.blocks) = (capacity, blocks);
        let mut asked = 0;
        let prompts = in_order(make(&mut scene))
            .filter(|prompt| !prompt.is_empty() && 2.0 * prompt.len() as f64 <= capacity.floor())
            .take_while(|prompt| {
                let go_on = f64::from(asked) <= 1.2 * blocks;
                asked += prompt.len() as u32;
                go_on
            })
            .collect();
        Self { pattern, capacity: capacity as u32, prompts }
    }
}

/// Returns the names of all patterns.
pub fn names() -> impl Iterator<Item = &'static str> {
    PATTERNS.iter().map(|(name, _)| *name)
}

/// Returns the prompts by time, those of one time in the order given.
fn in_order(mut asked: Vec<Asked>) -> impl Iterator<Item = Vec<u32>> {
    asked.sort_by(|a, b| a.0.total_cmp(&b.0));
    asked.into_iter().map(|(_, prompt)| prompt)
}

/// Makes one of the first [`PARTS`] patterns, drawn.
fn part(scene: &mut Scene) -> Vec<Asked> {
    let make = PATTERNS[scene.below(PARTS)].1;
    make(scene)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_pattern_asks_for_what_its_cache_can_hold_and_for_some_of_it_again() {
        for number in 0..2 * PATTERNS.len() as u64 {
            let case = Case::new(number);
            let asked: usize = case.prompts.iter().map(Vec::len).sum();
            let distinct: HashSet<&[u32]> =
                case.prompts.iter().flat_map(|prompt| (1..=prompt.len()).map(|end| &prompt[..end])).collect();
            assert!((4_000..450_000).contains(&asked), "{number} {}: {asked} blocks", case.pattern);
            assert!(distinct.len() < asked, "{number} {}: nothing returns", case.pattern);
            assert!(case.prompts.iter().all(|prompt| !prompt.is_empty() && prompt.len() * 2 <= case.capacity as usize));
        }
    }

    /// A case must stay what it is, or figures of two versions could not be compared.
    #[test]
    fn cases_do_not_change() {
        let case = Case::new(0);
        let asked: usize = case.prompts.iter().map(Vec::len).sum();
        assert_eq!((case.pattern, case.capacity, case.prompts.len(), asked), ("sessions", 656, 1_369, 33_149));
        let case = Case::new(13);
        let asked: usize = case.prompts.iter().map(Vec::len).sum();
        assert_eq!((case.pattern, case.capacity, case.prompts.len(), asked), ("in-turns", 4_868, 5_746, 60_971));
    }
}
