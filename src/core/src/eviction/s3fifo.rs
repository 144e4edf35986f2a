//! S3-FIFO (Yang et al., SOSP 2023): a small queue for blocks seen once, a main queue for the rest, and a ghost for
//! blocks evicted from the small queue. See [`TwoLists`].

use crate::eviction::parts::two_lists::{Bound, TwoLists};
use crate::names::spec::Param;

pub(super) const PARAMS: [Param; 1] = [Param {
    key: "small_percent",
    about: "blocks seen once that may be idle before the main queue is spared, per cent of the cache",
    default: 10,
    min: 1,
    max: 90,
}];

/// Creates the policy with the value of its parameter.
pub(super) fn new(values: &[u64], capacity: u32) -> TwoLists {
    // Below the capacity, so it fits.
    TwoLists::new(Bound::Fixed((u64::from(capacity) * values[0] / 100) as u32), capacity)
}

#[cfg(test)]
mod tests {
    use super::super::REGISTRY;
    use crate::blocks::hash::BlockHash;
    use crate::blocks::nodes::Nodes;
    use crate::names::ids::BlockHandle;

    #[test]
    fn the_small_queue_is_evicted_from_once_it_exceeds_its_share() {
        let first_victim = |spec: &str| {
            let mut blocks = Nodes::default();
            blocks.open(2);
            let mut policy = REGISTRY.make(spec, 10).unwrap();
            let [proven, seen_once] = [0, 1].map(|index| {
                blocks.publish_first(index, BlockHash(u128::from(index)));
                let chain = [BlockHandle { index, generation: 1 }];
                policy.published(&chain, &blocks);
                policy.idle(&chain, &blocks);
                chain
            });
            policy.read(&proven, &blocks);
            policy.idle(&proven, &blocks);
            (policy.pop(&blocks) == Some(seen_once[0].index), policy.pop(&blocks).is_some())
        };
        assert_eq!(first_victim("s3fifo"), (false, true), "one block of ten is no more than a tenth");
        assert_eq!(first_victim("s3fifo:small_percent=9"), (true, true));
    }
}
