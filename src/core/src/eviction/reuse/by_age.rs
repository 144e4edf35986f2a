//! Classes of segments, each in order of age.
//!
//! Most segments enter a class as the youngest: a list per class takes them in, in O(1). The others enter late, when the blocks
//! behind have been evicted and the segment is a leaf, and mostly in order of age too: a second list takes those in, and a heap the
//! few that are in no order, in O(log n). A segment at the end of a list that is not its place would hide older ones, and segments long
//! dead would stay in the cache.

use crate::eviction::parts::queue::Queues;

/// Classes at most: one bit of a word each.
const CLASSES_MAX: usize = 128;
/// Lists of a class: of the segments that entered as the youngest, and of the late.
const LISTS: usize = 2;
const NONE: u32 = u32::MAX;

/// A segment in a class.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Clock at which the segment fell idle.
    idle_at: u32,
    segment: u32,
}

impl Entry {
    /// Returns `true` if the segment leaves before another. The clock may have wrapped around in between.
    fn is_before(self, other: Self) -> bool {
        match self.idle_at.wrapping_sub(other.idle_at) as i32 {
            0 => self.segment < other.segment,
            apart => apart < 0,
        }
    }
}

/// Place of a segment.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Clock at which the segment fell idle.
    idle_at: u32,
    /// Index in the heap of the class, or [`NONE`].
    in_heap: u32,
}

/// Segments by class and age. Segments are numbers.
#[derive(Debug)]
pub(in crate::eviction) struct ByAge {
    /// [`LISTS`] of each class, oldest first.
    lists: Queues,
    /// Segments that fit in no list, a binary heap per class with the oldest on top.
    heaps: Vec<Vec<Entry>>,
    places: Vec<Place>,
    /// Classes with segments, a bit each.
    occupied: u128,
}

impl ByAge {
    /// Creates `classes` empty classes.
    pub fn new(classes: usize) -> Self {
        assert!(classes <= CLASSES_MAX);
        Self { lists: Queues::new(classes * LISTS), heaps: vec![Vec::new(); classes], places: Vec::new(), occupied: 0 }
    }

    /// Empties all classes.
    pub fn clear(&mut self) {
        self.lists.clear();
        self.heaps.iter_mut().for_each(Vec::clear);
        self.places.clear();
        self.occupied = 0;
    }

    /// Iterates over the classes with segments.
    pub fn occupied(&self) -> impl Iterator<Item = usize> + use<> {
        let mut rest = self.occupied;
        std::iter::from_fn(move || {
            let class = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (class < CLASSES_MAX).then_some(class)
        })
    }

    /// Returns the oldest segment of a class.
    pub fn oldest(&self, class: usize) -> Option<u32> {
        let mut oldest = self.heaps[class].first().copied();
        for list in lists(class) {
            if let Some(segment) = self.lists.front(list) {
                let entry = Entry { idle_at: self.idle_at(segment), segment };
                oldest = oldest.filter(|oldest| oldest.is_before(entry)).or(Some(entry));
            }
        }
        oldest.map(|oldest| oldest.segment)
    }

    /// Returns the youngest of the segments of a class that did not enter late.
    pub fn youngest(&self, class: usize) -> Option<u32> {
        self.lists.back(class * LISTS)
    }

    /// Returns `true` if a segment is in a class.
    pub fn contains(&self, segment: u32) -> bool {
        self.lists.queue_of(segment).is_some() || self.heap_place(segment).is_some()
    }

    /// Adds a segment idle since `idle_at` to a class. The segment MUST NOT be in any class.
    pub fn insert(&mut self, class: usize, segment: u32, idle_at: u32) {
        let at = segment as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, Place { idle_at: 0, in_heap: NONE });
        }
        self.occupied |= 1 << class;
        self.places[at] = Place { idle_at, in_heap: NONE };
        let fits = |list: &usize| {
            let youngest = self.lists.back(*list);
            youngest.is_none_or(|youngest| self.idle_at(youngest).wrapping_sub(idle_at) as i32 <= 0)
        };
        if let Some(list) = lists(class).find(fits) {
            self.lists.push_back(list, segment);
        } else {
            self.heaps[class].push(Entry { idle_at, segment });
            self.rise(class, self.heaps[class].len() - 1);
        }
    }

    /// Takes a segment out of its class. Returns `false` if the segment is in none; `class` MUST be the class otherwise.
    pub fn remove(&mut self, class: usize, segment: u32) -> bool {
        if let Some(at) = self.heap_place(segment) {
            self.remove_from_heap(class, at);
        } else if !self.lists.remove(segment) {
            return false;
        }
        if self.heaps[class].is_empty() && lists(class).all(|list| self.lists.is_empty(list)) {
            self.occupied &= !(1 << class);
        }
        true
    }

    /// Requests the links of the segment behind a segment of a list from memory.
    pub fn request(&self, segment: u32) {
        if self.lists.queue_of(segment).is_some() {
            self.lists.request(segment);
        }
    }

    fn idle_at(&self, segment: u32) -> u32 {
        self.places[segment as usize].idle_at
    }

    /// Returns the place of a segment in the heap of its class.
    fn heap_place(&self, segment: u32) -> Option<usize> {
        let at = self.places.get(segment as usize)?.in_heap;
        (at != NONE).then_some(at as usize)
    }

    fn remove_from_heap(&mut self, class: usize, at: usize) {
        let removed = self.heaps[class].swap_remove(at);
        self.places[removed.segment as usize].in_heap = NONE;
        if at < self.heaps[class].len() {
            self.sink(class, at);
            self.rise(class, at);
        }
    }

    /// Moves an entry of a heap up to its place.
    fn rise(&mut self, class: usize, mut at: usize) {
        let entry = self.heaps[class][at];
        while at > 0 && entry.is_before(self.heaps[class][(at - 1) / 2]) {
            self.put(class, at, self.heaps[class][(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        self.put(class, at, entry);
    }

    /// Moves an entry of a heap down to its place.
    fn sink(&mut self, class: usize, mut at: usize) {
        let entry = self.heaps[class][at];
        loop {
            let heap = &self.heaps[class];
            let mut child = 2 * at + 1;
            if heap.get(child + 1).is_some_and(|right| right.is_before(heap[child])) {
                child += 1;
            }
            match heap.get(child) {
                Some(below) if below.is_before(entry) => self.put(class, at, *below),
                _ => break,
            }
            at = child;
        }
        self.put(class, at, entry);
    }

    fn put(&mut self, class: usize, at: usize, entry: Entry) {
        self.heaps[class][at] = entry;
        self.places[entry.segment as usize].in_heap = at as u32;
    }
}

/// Returns the lists of a class.
fn lists(class: usize) -> std::ops::Range<usize> {
    class * LISTS..(class + 1) * LISTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_segment_entering_late_hides_no_older_one() {
        let mut classes = ByAge::new(3);
        for (segment, idle_at) in [(0, 10), (1, 20), (2, 15), (3, 5), (4, 20)] {
            classes.insert(1, segment, idle_at);
        }
        assert_eq!((classes.youngest(1), classes.occupied().collect::<Vec<_>>()), (Some(4), vec![1]));
        let mut order = Vec::new();
        while let Some(oldest) = classes.oldest(1) {
            assert!(classes.remove(1, oldest));
            order.push(oldest);
        }
        assert_eq!(order, [3, 0, 2, 1, 4]);
        assert!(!classes.remove(1, 3) && !classes.contains(3) && classes.occupied().next().is_none());
    }

    #[test]
    fn the_clock_may_wrap_around() {
        let mut classes = ByAge::new(1);
        for (segment, idle_at) in [(0, 3), (1, u32::MAX - 1), (2, u32::MAX - 4)] {
            classes.insert(0, segment, idle_at);
        }
        assert_eq!((classes.oldest(0), classes.youngest(0)), (Some(2), Some(0)));
        assert!(classes.remove(0, 2));
        assert_eq!(classes.oldest(0), Some(1));
    }

    proptest! {
        #[test]
        fn the_oldest_is_always_found(ops in prop::collection::vec((0u32..24, 0usize..2, 0u32..40), 0..300)) {
            let mut classes = ByAge::new(2);
            let mut model = std::collections::BTreeMap::new();
            for (segment, class, idle_at) in ops {
                prop_assert_eq!(classes.contains(segment), model.contains_key(&segment));
                match model.remove(&segment) {
                    Some((class, _)) => prop_assert!(classes.remove(class, segment)),
                    None => {
                        prop_assert!(!classes.remove(class, segment));
                        classes.insert(class, segment, idle_at);
                        model.insert(segment, (class, idle_at));
                    }
                }
                for class in 0..2 {
                    let ages = || model.values().filter(|entry| entry.0 == class).map(|entry| entry.1);
                    let oldest = classes.oldest(class).map(|oldest| model[&oldest]);
                    prop_assert_eq!(oldest, ages().min().map(|idle_at| (class, idle_at)));
                    prop_assert_eq!(classes.occupied().any(|other| other == class), oldest.is_some());
                }
            }
        }
    }
}
