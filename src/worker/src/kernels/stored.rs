//! Elements of a packed matrix: in memory of their own, or in a part of memory filled from a file.
//!
//! Kernels see a slice, as of a vector: where the memory comes from costs nothing at the time of use.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;
use trunkline_files::Aligned;

/// Alignment of the elements of a matrix within a group of weights, bytes: a line of the cache.
pub(crate) const RUN_ALIGN: usize = 64;

/// Elements of a packed matrix.
///
/// **Invariant:** `at` and `len` describe initialised elements in the memory of `owner`, or no elements. The memory neither moves nor changes while
/// `owner` holds it: a vector is not touched until it is dropped, and memory behind an `Arc` changes through [`Arc::get_mut`] alone, which fails while
/// `owner` has a share.
pub(crate) struct Stored<T> {
    at: NonNull<T>,
    len: usize,
    /// Elements that the matrix has, here or not.
    n: usize,
    owner: Owner<T>,
}

/// Memory after the elements; kept for the sake of its drop.
enum Owner<T> {
    /// Memory of their own.
    Vec(#[expect(dead_code, reason = "holds the memory")] Vec<T>),
    /// A share of memory filled from a file.
    Memory(#[expect(dead_code, reason = "holds the memory")] Arc<Aligned>),
    /// The elements are not in memory.
    None,
}

// SAFETY: the elements are reached by shared and exclusive references to the whole value alone, as those of a `Vec<T>` and of an `Arc<Aligned>`, which are
// `Send` and `Sync` for elements that are.
#[expect(unsafe_code, reason = "a pointer into memory that the value owns")]
unsafe impl<T: Send + Sync> Send for Stored<T> {}
// SAFETY: as for `Send`; shared references only read.
#[expect(unsafe_code, reason = "a pointer into memory that the value owns")]
unsafe impl<T: Send + Sync> Sync for Stored<T> {}

impl<T> From<Vec<T>> for Stored<T> {
    fn from(mut elements: Vec<T>) -> Self {
        let at = NonNull::new(elements.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { at, len: elements.len(), n: elements.len(), owner: Owner::Vec(elements) }
    }
}

impl<T> Stored<T> {
    /// Describes `n` elements that are not in memory.
    pub(crate) fn absent(n: usize) -> Self {
        Self { at: NonNull::dangling(), len: 0, n, owner: Owner::None }
    }
}

impl<T> Deref for Stored<T> {
    type Target = [T];

    #[inline(always)]
    #[expect(unsafe_code, reason = "a slice of the memory that the value owns")]
    fn deref(&self) -> &[T] {
        // SAFETY: by the invariant of the type the elements are initialised, and stay where they are and as they are while `self` is borrowed. Without
        // elements the pointer is dangling but aligned.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Stored<T> {
    /// Returns the elements, for changes while a matrix is packed; none if they lie in shared memory.
    #[expect(unsafe_code, reason = "a slice of the memory that the value owns")]
    fn deref_mut(&mut self) -> &mut [T] {
        match &self.owner {
            // SAFETY: the vector is of this value alone, which is borrowed exclusively; the pointer comes from `as_mut_ptr` and the vector was not
            // touched since.
            Owner::Vec(_) => unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.len) },
            Owner::Memory(_) | Owner::None => &mut [],
        }
    }
}

impl<T> fmt::Debug for Stored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} elements", self.len, self.n)
    }
}

/// One of the arrays of a packed matrix, whatever its elements.
pub(crate) trait Run {
    /// Returns the bytes of the array, in memory or not.
    fn n_bytes(&self) -> usize;

    /// Returns the elements in memory, as in a file.
    fn bytes(&self) -> &[u8];

    /// Takes the elements from `memory`, from byte `from` on, a multiple of [`RUN_ALIGN`].
    ///
    /// # Panics
    /// If `memory` is shorter.
    fn bind(&mut self, memory: &Arc<Aligned>, from: usize);

    /// Gives up the memory.
    fn release(&mut self);
}

impl<T: Pod> Run for Stored<T> {
    fn n_bytes(&self) -> usize {
        self.n * size_of::<T>()
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn bind(&mut self, memory: &Arc<Aligned>, from: usize) {
        let bytes = &memory.as_slice()[from..from + self.n_bytes()];
        let elements: &[T] = bytemuck::cast_slice(bytes);
        (self.at, self.len) = (NonNull::from(elements).cast(), elements.len());
        self.owner = Owner::Memory(Arc::clone(memory));
    }

    fn release(&mut self) {
        *self = Self::absent(self.n);
    }
}

#[cfg(test)]
mod tests {
    use trunkline_files::PAGE;

    use super::*;

    #[test]
    fn elements_are_those_of_the_vector_wherever_the_value_goes() {
        let mut stored = Stored::from(vec![1u16, 2, 3]);
        stored[1] = 7;
        let mut moved = Box::new(stored);
        assert_eq!((&moved[..], moved.bytes(), moved.n_bytes()), (&[1, 7, 3][..], &[1, 0, 7, 0, 3, 0][..], 6));
        moved.release();
        assert_eq!((moved.len(), moved.n_bytes()), (0, 6));
        assert!(Stored::from(Vec::<u32>::new()).is_empty());
    }

    #[test]
    fn shared_memory_cannot_change_while_elements_lie_there() {
        let mut memory = Arc::new(Aligned::with_capacity(PAGE));
        let bytes = Arc::get_mut(&mut memory).unwrap();
        bytes.resize(PAGE);
        bytes.as_mut_slice()[RUN_ALIGN..RUN_ALIGN + 8].copy_from_slice(&[1, 0, 0, 0, 0, 0, 128, 63]);
        let (mut words, mut floats) = (Stored::<u32>::absent(1), Stored::<f32>::absent(1));
        words.bind(&memory, RUN_ALIGN);
        floats.bind(&memory, RUN_ALIGN + 4);
        assert_eq!((&words[..], &floats[..]), (&[1][..], &[1.0][..]));
        assert!(words.deref_mut().is_empty(), "shared memory is not changed through an array");
        words.release();
        assert!(Arc::get_mut(&mut memory).is_none(), "the floats lie there");
        let moved = std::thread::spawn(move || floats[0]).join().unwrap();
        assert_eq!((moved, Arc::get_mut(&mut memory).is_some()), (1.0, true));
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn elements_beyond_the_memory_are_refused() {
        Stored::<f32>::absent(3).bind(&Arc::new(Aligned::from(vec![0; 8])), 0);
    }
}
