//! Paces: the requests of an engine that decodes more slowly than another.
//!
//! Requests that are sent to `n` engines in turn spend their time on each in proportion to its step time. If one engine takes `r` times as long as the
//! others, the mean time is `(n - 1 + r) / n` of theirs, and as clients wait for answers before they ask again, throughput falls by as much. Without the
//! engine it falls to `(n - 1) / n` at most. So from `r = (2n - 1) / (n - 1)` on, which is between 2 and 3, turns cost more than the engine is
//! worth. Such an engine gets no more of the requests than its share of the tokens: bounded loads (Mirrokni, Thorup and Zadimoghaddam, *Consistent
//! Hashing with Bounded Loads*, SODA 2018) with bounds by pace. It always gets one, which shows whether it is still slow.
//!
//! Steps of decodes alone compare. An engine with many more requests than another may take longer for that reason; it is full too, until they are more
//! alike.

use crate::engine::EngineId;

/// Pace of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub engine: EngineId,
    /// Time of a step of decodes alone, nanoseconds.
    pub step_ns: u64,
    /// Unfinished requests on it.
    pub requests: u32,
}

/// Returns the engines that are far slower than another and have their share of the requests. Never all of them.
pub(crate) fn full(paces: impl Iterator<Item = Pace> + Clone) -> Vec<EngineId> {
    let n = paces.clone().count() as f64;
    let fastest_ns = paces.clone().map(|pace| pace.step_ns).min().unwrap_or_default() as f64;
    let is_slow = |pace: &Pace| pace.step_ns as f64 * (n - 1.0) > fastest_ns * (2.0 * n - 1.0);
    // As good as always.
    if !paces.clone().any(|pace| is_slow(&pace)) {
        return Vec::new();
    }
    let tokens = |pace: &Pace| 1.0 / pace.step_ns.max(1) as f64;
    let all_tokens: f64 = paces.clone().map(|pace| tokens(&pace)).sum();
    let requests: u32 = paces.clone().map(|pace| pace.requests).sum();
    let is_full = |pace: &Pace| {
        let most = tokens(pace) / all_tokens * f64::from(requests + 1);
        is_slow(pace) && f64::from(pace.requests + 1) > most.max(1.0)
    };
    paces.filter(is_full).map(|pace| pace.engine).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u32; 0] = [];

    /// Returns the full ones of engines with such a time of a step, and so many requests.
    fn full_of(engines: &[(u64, u32)]) -> Vec<u32> {
        let engines = engines.iter().zip(0..);
        let paces = engines.map(|((step_ns, requests), at)| Pace {
            engine: EngineId(at),
            step_ns: *step_ns,
            requests: *requests,
        });
        full(paces).into_iter().map(|engine| engine.0).collect()
    }

    #[test]
    fn an_engine_gets_its_share_once_turns_cost_more_than_it_is_worth() {
        // Three times of two, two and a half of three, about twice of many.
        for (n, least) in [(2, 300), (3, 250), (11, 210)] {
            let engines = |slow_ns| (0..n).map(|at| (if at == 0 { slow_ns } else { 100 }, 4)).collect::<Vec<_>>();
            assert_eq!(full_of(&engines(least)), NONE, "{n}");
            assert_eq!(full_of(&engines(least + 1)), [0], "{n}");
        }
        assert_eq!(full_of(&[(900_000, 90)]), NONE, "alone");
        assert_eq!(full_of(&[]), NONE);
    }

    #[test]
    fn a_share_is_that_of_the_tokens_and_one_at_least() {
        // A third as fast as each of two others: a seventh of all.
        let with = |requests| full_of(&[(300, requests), (100, 13), (100, 13)]);
        assert_eq!((with(2), with(3), with(4)), (vec![], vec![], vec![0]));
        assert_eq!(full_of(&[(90_000, 0), (100, 2), (100, 3)]), NONE, "one shows whether it is still slow");
        assert_eq!(full_of(&[(90_000, 1), (100, 2), (100, 3)]), [0]);
        assert_eq!(full_of(&[(900, 4), (900, 4), (100, 4)]), [0, 1]);
    }
}
