//! Doubly linked queues over one array of links: a block is in at most one queue.

use crate::blocks::prefetch::prefetch;

const NIL: u32 = u32::MAX;
const NO_QUEUE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Ends {
    front: u32,
    back: u32,
    len: u32,
}

/// Ends of a queue without blocks.
const EMPTY: Ends = Ends { front: NIL, back: NIL, len: 0 };

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
    queue: u16,
}

/// Doubly linked queues over the same blocks. All operations are O(1), except [`Self::iter`].
#[derive(Debug)]
pub struct Queues {
    ends: Vec<Ends>,
    links: Vec<Link>,
}

impl Queues {
    /// Creates `n` empty queues.
    pub fn new(n: usize) -> Self {
        Self::with_capacity(n, 0)
    }

    /// Creates `n` empty queues, with memory reserved for `blocks`.
    pub fn with_capacity(n: usize, blocks: usize) -> Self {
        assert!(n < usize::from(NO_QUEUE));
        Self { ends: vec![EMPTY; n], links: trunkline_pages::with_capacity(blocks) }
    }

    /// Empties all queues.
    pub fn clear(&mut self) {
        self.ends.fill(EMPTY);
        self.links.clear();
    }

    /// Returns the number of blocks in a queue.
    pub fn len(&self, queue: usize) -> u32 {
        self.ends[queue].len
    }

    /// Returns `true` if a queue has no block.
    pub fn is_empty(&self, queue: usize) -> bool {
        self.ends[queue].len == 0
    }

    /// Returns the first block of a queue.
    pub fn front(&self, queue: usize) -> Option<u32> {
        (self.ends[queue].front != NIL).then_some(self.ends[queue].front)
    }

    /// Returns the last block of a queue.
    pub fn back(&self, queue: usize) -> Option<u32> {
        (self.ends[queue].back != NIL).then_some(self.ends[queue].back)
    }

    /// Returns the queue that holds a block.
    pub fn queue_of(&self, block: u32) -> Option<usize> {
        let queue = self.links.get(block as usize)?.queue;
        (queue != NO_QUEUE).then_some(usize::from(queue))
    }

    /// Requests the links of the block behind a block of a queue from memory.
    pub fn request(&self, block: u32) {
        let next = self.links[block as usize].next;
        prefetch(self.links.get(next as usize).map_or(&[], std::slice::from_ref));
    }

    /// Adds a block at the end of a queue. The block MUST NOT be in any queue.
    pub fn push_back(&mut self, queue: usize, block: u32) {
        let back = self.ends[queue].back;
        self.link(queue, block, back, NIL);
    }

    /// Adds a block at the beginning of a queue. The block MUST NOT be in any queue.
    pub fn push_front(&mut self, queue: usize, block: u32) {
        let front = self.ends[queue].front;
        self.link(queue, block, NIL, front);
    }

    /// Takes a block out of its queue. Returns `false` if the block was in none.
    pub fn remove(&mut self, block: u32) -> bool {
        let Some(queue) = self.queue_of(block) else { return false };
        let Link { next, prev, .. } = self.links[block as usize];
        match prev {
            NIL => self.ends[queue].front = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NIL => self.ends[queue].back = prev,
            next => self.links[next as usize].prev = prev,
        }
        self.links[block as usize].queue = NO_QUEUE;
        self.ends[queue].len -= 1;
        true
    }

    /// Takes out and returns the first block of a queue.
    pub fn pop_front(&mut self, queue: usize) -> Option<u32> {
        let block = self.front(queue)?;
        self.remove(block);
        Some(block)
    }

    /// Iterates over the blocks of a queue, first to last. For checks: O(blocks).
    pub fn iter(&self, queue: usize) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.front(queue), |at| {
            let next = self.links[*at as usize].next;
            (next != NIL).then_some(next)
        })
    }

    fn link(&mut self, queue: usize, block: u32, prev: u32, next: u32) {
        let at = block as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, Link { next: NIL, prev: NIL, queue: NO_QUEUE });
        }
        debug_assert_eq!(self.links[at].queue, NO_QUEUE, "block {block} is in a queue already");
        self.links[at] = Link { next, prev, queue: queue as u16 };
        match prev {
            NIL => self.ends[queue].front = block,
            prev => self.links[prev as usize].next = block,
        }
        match next {
            NIL => self.ends[queue].back = block,
            next => self.links[next as usize].prev = block,
        }
        self.ends[queue].len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn queues_behave_like_vectors(ops in prop::collection::vec((0u32..12, 0usize..3, 0u8..4), 0..200)) {
            let mut queues = Queues::new(3);
            let mut model: [Vec<u32>; 3] = Default::default();
            for (block, queue, op) in ops {
                let was = model.iter().position(|queue| queue.contains(&block));
                prop_assert_eq!(queues.queue_of(block), was);
                match op {
                    0 | 1 => {
                        model.iter_mut().for_each(|queue| queue.retain(|other| *other != block));
                        prop_assert_eq!(queues.remove(block), was.is_some());
                        if op == 0 {
                            model[queue].push(block);
                            queues.push_back(queue, block);
                        } else {
                            model[queue].insert(0, block);
                            queues.push_front(queue, block);
                        }
                    }
                    2 => {
                        model.iter_mut().for_each(|queue| queue.retain(|other| *other != block));
                        prop_assert_eq!(queues.remove(block), was.is_some());
                    }
                    _ => {
                        let first = (!model[queue].is_empty()).then(|| model[queue].remove(0));
                        prop_assert_eq!(queues.pop_front(queue), first);
                    }
                }
                for (queue, model) in model.iter().enumerate() {
                    prop_assert_eq!(queues.iter(queue).collect::<Vec<_>>(), model.clone());
                    prop_assert_eq!(queues.len(queue) as usize, model.len());
                    prop_assert_eq!((queues.front(queue), queues.back(queue)), (model.first().copied(), model.last().copied()));
                }
            }
        }
    }
}
