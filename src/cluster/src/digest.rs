//! Digest of a cluster's decisions.
//!
//! The digest of each core already covers the requests of the core: arrivals, order and ends. Placement therefore needs no digest
//! of its own. Decisions outside every core are folded here: refusals for want of an engine, moves and hand-overs. A cluster of one
//! engine without any such decision has the digest of the core.

/// Kinds of decisions outside every core. The numbers are part of recordings: never reuse one.
pub(crate) mod decision {
    pub const REFUSE: u64 = 1;
    pub const MOVE: u64 = 2;
    pub const GIVE_UP: u64 = 3;
    pub const CONVICT: u64 = 4;
}

/// Digest of the decisions outside every core; 0 before the first decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterDigest(u64);

impl ClusterDigest {
    /// Folds a decision: the kind, the request, and the engine or reason.
    pub fn decide(&mut self, kind: u64, request: u64, detail: u64) {
        for value in [kind, request, detail] {
            self.0 = fold(self.0, value);
        }
    }

    /// Returns the joint digest of the cluster and the cores, in the order of the engines.
    pub fn with(self, cores: impl Iterator<Item = u64>) -> u64 {
        let joint = cores.reduce(fold).expect("at least one engine");
        if self.0 == 0 { joint } else { fold(joint, self.0) }
    }
}

fn fold(digest: u64, next: u64) -> u64 {
    (digest.rotate_left(23) ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_is_itself_and_every_decision_counts() {
        let none = ClusterDigest::default();
        assert_eq!(none.with([7].into_iter()), 7);
        assert_ne!(none.with([7, 8].into_iter()), none.with([8, 7].into_iter()));
        let mut moved = none;
        moved.decide(decision::MOVE, 1, 2);
        assert_ne!(moved.with([7].into_iter()), 7);
        let mut other = none;
        other.decide(decision::MOVE, 2, 1);
        assert_ne!(moved, other);
        // Recordings carry digests, so the fold must not change between versions unnoticed.
        assert_eq!(none.with([1, 2, 3].into_iter()), 8_780_183_272_583_376_251);
    }
}
