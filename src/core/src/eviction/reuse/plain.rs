//! Orders of LRU and S3-FIFO over the segments of the `reuse` policy, to follow while [`Guard`](super::guard::Guard) asks for one.
//!
//! Both orders are kept all the time, so that a switch takes effect at once. The queues of S3-FIFO hold segments ending with a
//! leaf, as the queues of `s3fifo` hold leaves; a segment counts as proven if its first block does.

use super::guard::Order;
use crate::eviction::parts::queue::Queues;

/// One part in so many of the cache may be idle blocks seen once before the main queue is spared, as in `s3fifo`.
const SMALL: u32 = 10;
/// Queues of S3-FIFO.
const UNPROVEN: usize = 0;
const PROVEN: usize = 1;

/// Segments in the orders of LRU and S3-FIFO.
#[derive(Debug)]
pub(in crate::eviction) struct PlainOrders {
    /// Segments in order of falling idle.
    by_age: Queues,
    /// Segments ending with a leaf, unproven and proven.
    queues: Queues,
    /// `true` for segments of blocks read or remembered by the ghost.
    proven: Vec<bool>,
    /// Idle blocks, and the ones of unproven segments.
    idle: u32,
    unproven: u32,
    /// Unproven idle blocks above which these are evicted first.
    small_max: u32,
    /// Queue of the last segment evicted from in the order of S3-FIFO. The parent, a leaf now, takes the place.
    popped: Option<usize>,
}

impl PlainOrders {
    pub fn new(capacity: u32) -> Self {
        Self {
            by_age: Queues::new(1),
            queues: Queues::new(2),
            proven: Vec::new(),
            idle: 0,
            unproven: 0,
            small_max: capacity / SMALL,
            popped: None,
        }
    }

    /// Forgets all segments.
    pub fn clear(&mut self) {
        self.by_age.clear();
        self.queues.clear();
        (self.idle, self.unproven, self.popped) = (0, 0, None);
    }

    /// Returns the number of idle blocks.
    pub fn idle(&self) -> u32 {
        self.idle
    }

    /// Takes note of a request leaving: no victim waits for its parent any more.
    pub fn settle(&mut self) {
        self.popped = None;
    }

    /// Adds a new segment without blocks.
    pub fn begin(&mut self, segment: u32) {
        let at = segment as usize;
        if self.proven.len() <= at {
            self.proven.resize(at + 1, false);
        }
        self.proven[at] = false;
        self.by_age.push_back(0, segment);
    }

    /// Adds a block before the `len` blocks of a segment.
    pub fn grow(&mut self, segment: u32, len: u32, proven: bool) {
        let was_proven = &mut self.proven[segment as usize];
        if proven && !*was_proven {
            *was_proven = true;
            self.unproven -= len;
            if self.queues.remove(segment) {
                self.queues.push_back(PROVEN, segment);
            }
        }
        self.unproven += u32::from(!*was_proven);
        self.idle += 1;
    }

    /// Takes one block out of a segment.
    pub fn shrink(&mut self, segment: u32) {
        self.unproven -= u32::from(!self.proven[segment as usize]);
        self.idle -= 1;
    }

    /// Removes a segment without blocks.
    pub fn end(&mut self, segment: u32) {
        self.by_age.remove(segment);
        self.queues.remove(segment);
    }

    /// Takes note of a segment ending with a leaf.
    pub fn leaf(&mut self, segment: u32) {
        if self.queues.queue_of(segment).is_some() {
            return;
        }
        let queue = usize::from(self.proven[segment as usize]);
        match self.popped {
            Some(from) if from == queue => self.queues.push_front(queue, segment),
            _ => self.queues.push_back(queue, segment),
        }
    }

    /// Takes note of an eviction from a segment.
    pub fn evicted_from(&mut self, segment: u32, order: Order) {
        self.popped = None;
        if order == Order::S3Fifo {
            self.queues.remove(segment);
            self.popped = Some(usize::from(self.proven[segment as usize]));
        }
    }

    /// Returns the segment to evict from in an order. `is_leaf` is `true` of segments ending with a leaf.
    pub fn first(&mut self, order: Order, is_leaf: impl Fn(u32) -> bool) -> Option<u32> {
        if order == Order::Lru {
            return self.by_age.front(0).filter(|oldest| is_leaf(*oldest));
        }
        self.drop_waiting(is_leaf);
        let [unproven, proven] = [UNPROVEN, PROVEN].map(|queue| self.queues.front(queue));
        if self.unproven > self.small_max { unproven.or(proven) } else { proven.or(unproven) }
    }

    /// Returns `true` if the next block of the segment evicted from, a leaf now, is the next victim.
    pub fn goes_on(&mut self, segment: u32, order: Order, is_leaf: impl Fn(u32) -> bool) -> bool {
        if order != Order::S3Fifo {
            return true;
        }
        self.drop_waiting(is_leaf);
        let first = if self.unproven > self.small_max { UNPROVEN } else { PROVEN };
        let queue = usize::from(self.proven[segment as usize]);
        queue == first || self.queues.is_empty(first)
    }

    /// Takes segments not ending with a leaf out of the front of the queues: the next block has other children. Such a segment returns
    /// with the last of these.
    fn drop_waiting(&mut self, is_leaf: impl Fn(u32) -> bool) {
        for queue in [UNPROVEN, PROVEN] {
            while self.queues.front(queue).is_some_and(|first| !is_leaf(first)) {
                self.queues.pop_front(queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a segment of `len` blocks ending with a leaf.
    fn add(orders: &mut PlainOrders, segment: u32, len: u32, proven: bool) {
        orders.begin(segment);
        (0..len).for_each(|before| orders.grow(segment, before, proven));
        orders.leaf(segment);
    }

    #[test]
    fn lru_takes_the_oldest_and_s3fifo_the_unproven_above_a_tenth() {
        let mut orders = PlainOrders::new(20);
        add(&mut orders, 0, 3, true);
        add(&mut orders, 1, 2, false);
        add(&mut orders, 2, 1, false);
        let all = |_| true;
        assert_eq!(orders.first(Order::Lru, all), Some(0));
        assert_eq!(orders.first(Order::S3Fifo, all), Some(1), "three of twenty are unproven");
        orders.shrink(1);
        assert_eq!(orders.first(Order::S3Fifo, all), Some(0), "two of twenty are");
        orders.shrink(0);
        orders.shrink(0);
        orders.shrink(0);
        orders.end(0);
        assert_eq!((orders.first(Order::S3Fifo, all), orders.idle()), (Some(1), 2));
    }

    #[test]
    fn a_segment_with_a_proven_block_is_proven_and_one_not_ending_with_a_leaf_waits() {
        let mut orders = PlainOrders::new(10);
        add(&mut orders, 0, 3, false);
        orders.grow(0, 3, true);
        add(&mut orders, 1, 1, false);
        assert_eq!(orders.first(Order::S3Fifo, |_| true), Some(0), "one of ten is unproven");
        assert_eq!(orders.first(Order::S3Fifo, |segment| segment == 1), Some(1));
        orders.leaf(0);
        assert_eq!(orders.first(Order::S3Fifo, |_| true), Some(0));
    }
}
