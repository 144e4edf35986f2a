//! Calls of the code of others on the data of others.
//!
//! Parsers of files and of answers have an `expect` where the authors saw no other case, and a user's file then ends the program with a backtrace, or a
//! request without a status. [`call`] runs such a parser, and turns a panic into an error of one line. Nothing is printed: the caller has the line. All
//! panics of the process count in [`panics`], also the uncaught.
//!
//! An abort (no memory, no stack) cannot be caught: callers check sizes first.
//!
//! ```
//! let first = |bytes: Vec<u8>| trunkline_foreign::call(|| bytes[0]);
//! assert_eq!(first(vec![7]), Ok(7));
//! let fault = first(Vec::new()).unwrap_err().to_string();
//! assert!(fault.starts_with("index out of bounds"), "{fault}");
//! assert_eq!(trunkline_foreign::panics(), 1);
//! ```
//!
//! **Boundary:** this crate depends on no other crate of Trunkline and knows no format.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Characters of a panic's message that are kept.
const MESSAGE_CHARS_MAX: usize = 200;

/// Code that panicked, in one line: the message, and the place in the source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Panicked(String);

// A build that aborts at a panic would end at a damaged file.
const _: () = assert!(cfg!(panic = "unwind"), "panics must unwind: remove panic = \"abort\" from the profile");

static PANICS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// `true` while the thread runs a call whose caller reports the panics.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
    /// The last such panic.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `run`, and returns the result or the panic. The caller drops what `run` may have changed in part.
///
/// # Errors
///
/// `run` panicked.
pub fn call<T>(run: impl FnOnce() -> T) -> Result<T, Panicked> {
    count();
    let outer = CAUGHT.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    CAUGHT.set(outer);
    result.map_err(|payload| {
        drop(payload);
        let line = LAST.with_borrow_mut(Option::take);
        Panicked(line.unwrap_or_else(|| "a panic without a message".to_owned()))
    })
}

/// Counts panics from now on, as the first [`call`] does, too. A program that shows the count starts with this.
pub fn count() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            // A thread that ends has no such values any more; its panics are printed.
            if CAUGHT.try_with(Cell::get).unwrap_or(false) {
                LAST.set(Some(line(info)));
            } else {
                print(info);
            }
        }));
    });
}

/// Returns the number of panics in this process since [`count`].
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

fn line(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("a panic without a message");
    let message: String =
        message.chars().take(MESSAGE_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let place = info.location().map(|at| {
        let file = at.file().rsplit('/').take(3).collect::<Vec<_>>();
        let file = file.into_iter().rev().collect::<Vec<_>>().join("/");
        format!(" ({file}:{})", at.line())
    });
    message + &place.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line_and_counts_and_calls_go_on() {
        assert_eq!(call(|| 7), Ok(7));
        let before = panics();
        let long = "a\nb".to_owned() + &"\u{E9}".repeat(1000);
        let told = call(|| -> u32 { panic!("{long}") }).unwrap_err().to_string();
        assert!(told.starts_with("a b\u{E9}\u{E9}") && told.ends_with(')') && told.contains("lib.rs:"), "{told}");
        assert!(told.chars().count() < 250 && !told.contains('\n'), "{told}");
        // A call within a call, and a payload that is not text.
        let told = call(|| {
            let inner = call(|| panic!("inner")).unwrap_err().to_string();
            assert!(inner.starts_with("inner ("), "{inner}");
            panic::panic_any(7)
        });
        let told: Panicked = told.map(|(): ()| ()).unwrap_err();
        assert!(told.to_string().starts_with("a panic without a message ("), "{told}");
        assert!(panics() >= before + 3);
        assert_eq!(call(|| 7), Ok(7));
    }
}
