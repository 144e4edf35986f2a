//! Block ids of a file as numbers up to [`HASH_ID_MAX`].
//!
//! Published traces number blocks from 0 on. A trace made of the cache events of an engine has hashes: numbers of 64 bits, also below 0, or
//! names. Numbers up to the greatest stay. Other ids get numbers in the order of appearance, from the greatest one down.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use super::{HASH_ID_MAX, TraceFault};

/// Block id as a file has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum BlockId {
    Number(u64),
    Below0(i64),
    Name(Box<str>),
}

/// First whole number from which floats skip some.
const EXACT: f64 = (1u64 << 53) as f64;

/// Fewest digits of a number that may not fit in 64 bits.
const DIGITS: usize = 20;

/// Returns a line of JSON with whole numbers of so many digits in quotes, since parsers of JSON make floats of them.
pub(super) fn with_long_ids_quoted(line: &[u8]) -> Cow<'_, [u8]> {
    let (mut out, mut done, mut at, mut strings) = (Vec::new(), 0, 0, Strings::default());
    while let Some(probe) = line.get(at + DIGITS - 1) {
        if !probe.is_ascii_digit() {
            at += DIGITS;
            continue;
        }
        let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let before = line[at..at + DIGITS - 1].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let mut begin = at + DIGITS - 1 - before;
        at += DIGITS + digits(&line[at + DIGITS..]);
        if at - begin < DIGITS {
            continue;
        }
        begin -= usize::from(begin > done && line[begin - 1] == b'-');
        let is_between = |byte: Option<&u8>| byte.is_none_or(|byte| b" \t,:[]}".contains(byte));
        let is_whole = is_between(begin.checked_sub(1).and_then(|it| line.get(it))) && is_between(line.get(at));
        if !strings.is_open_at(line, begin) && is_whole {
            out.extend_from_slice(&line[done..begin]);
            out.push(b'"');
            out.extend_from_slice(&line[begin..at]);
            out.push(b'"');
            done = at;
        }
    }
    if out.is_empty() {
        return Cow::Borrowed(line);
    }
    out.extend_from_slice(&line[done..]);
    Cow::Owned(out)
}

/// Strings of a line of JSON up to a place.
#[derive(Default)]
struct Strings {
    read: usize,
    is_open: bool,
}

impl Strings {
    /// Reads on to a place, and returns `true` if a string is open there.
    fn is_open_at(&mut self, line: &[u8], at: usize) -> bool {
        while self.read < at {
            match line[self.read] {
                b'\\' if self.is_open => self.read += 1,
                b'"' => self.is_open = !self.is_open,
                _ => {}
            }
            self.read += 1;
        }
        self.is_open
    }
}

/// Numbers of a file's block ids.
#[derive(Debug, Default)]
pub(super) struct BlockIds {
    numbers: HashMap<BlockId, u32>,
    /// Numbers given so far, from the greatest one down.
    given: u32,
    /// Greatest id that stayed.
    greatest: u32,
}

impl BlockIds {
    /// Returns the number of an id, equal for equal ids alone.
    ///
    /// # Errors
    ///
    /// [`TraceFault::HashIdsMeet`] if another id has the number.
    pub(super) fn number(&mut self, id: BlockId) -> Result<u32, TraceFault> {
        let small = match id {
            BlockId::Number(number) => u32::try_from(number).ok().filter(|number| *number <= HASH_ID_MAX),
            BlockId::Below0(_) | BlockId::Name(_) => None,
        };
        if let Some(small) = small {
            self.greatest = self.greatest.max(small);
            return if small <= HASH_ID_MAX - self.given {
                Ok(small)
            } else {
                Err(TraceFault::HashIdsMeet { id: small })
            };
        }
        if let Some(number) = self.numbers.get(&id) {
            return Ok(*number);
        }
        let number = self.next()?;
        self.numbers.insert(id, number);
        Ok(number)
    }

    /// Returns a number that no id of the file has, for a block whose content no other prompt has.
    ///
    /// # Errors
    ///
    /// [`TraceFault::HashIdsMeet`] if another id has the number.
    pub(super) fn next(&mut self) -> Result<u32, TraceFault> {
        let number = HASH_ID_MAX - self.given;
        if number <= self.greatest {
            return Err(TraceFault::HashIdsMeet { id: self.greatest });
        }
        self.given += 1;
        Ok(number)
    }
}

impl<'de> Deserialize<'de> for BlockId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyId)
    }
}

struct AnyId;

impl Visitor<'_> for AnyId {
    type Value = BlockId;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a whole number or a string")
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<BlockId, E> {
        Ok(BlockId::Number(id))
    }

    fn visit_i64<E: Error>(self, id: i64) -> Result<BlockId, E> {
        Ok(u64::try_from(id).map_or(BlockId::Below0(id), BlockId::Number))
    }

    fn visit_f64<E: Error>(self, id: f64) -> Result<BlockId, E> {
        if id.fract() != 0.0 || id.abs() >= EXACT {
            return Err(E::custom(format_args!("the id {id} is not exact; write ids as whole numbers or strings")));
        }
        self.visit_i64(id as i64)
    }

    fn visit_str<E: Error>(self, id: &str) -> Result<BlockId, E> {
        Ok(BlockId::Name(id.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of an id, or the id of the fault.
    fn number(ids: &mut BlockIds, json: &str) -> Result<u32, u32> {
        ids.number(serde_json::from_str(json).unwrap()).map_err(|fault| match fault {
            TraceFault::HashIdsMeet { id } => id,
            other => panic!("{other}"),
        })
    }

    #[test]
    fn ids_of_any_kind_have_numbers_of_their_own() {
        let mut ids = BlockIds::default();
        let mut of = |json| number(&mut ids, json).unwrap();
        assert_eq!([of("0"), of("7"), of("7")], [0, 7, 7]);
        let hashes = ["18446744073709551615", "-1", "\"7\"", "\"a1f0\"", "2147483648"];
        let numbers = hashes.map(&mut of);
        assert_eq!(numbers, [0, 1, 2, 3, 4].map(|n| HASH_ID_MAX - n), "in the order in which they come");
        assert_eq!(hashes.map(&mut of), numbers);
        assert_eq!(of("8"), 8);
        assert_eq!(ids.next().unwrap(), HASH_ID_MAX - 5);
        assert_eq!(number(&mut ids, "-2"), Ok(HASH_ID_MAX - 6));
        for json in ["1.5", "null", "[1]", "1e30"] {
            assert!(serde_json::from_str::<BlockId>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn whole_floats_are_numbers_and_others_are_named() {
        let id = |json: &str| serde_json::from_str::<BlockId>(json).map_err(|error| error.to_string());
        assert_eq!((id("12.0"), id("-3.0")), (Ok(BlockId::Number(12)), Ok(BlockId::Below0(-3))));
        for json in ["12.5", "9007199254740992.0", "1e30"] {
            assert!(id(json).unwrap_err().contains("write ids as whole numbers or strings"), "{json}");
        }
    }

    #[test]
    fn long_ids_are_quoted_outside_of_strings() {
        let of = |text: &str| String::from_utf8(with_long_ids_quoted(text.as_bytes()).into_owned()).unwrap();
        let long = "1267650600228229401496703205381";
        assert_eq!(of(&format!("[5, {long},-{long},{long}]")), format!("[5, \"{long}\",\"-{long}\",\"{long}\"]"));
        assert_eq!(of(&format!(r#"{{"id": {long}}}"#)), format!(r#"{{"id": "{long}"}}"#));
        for same in [
            String::new(),
            "[1234567890123456789, 7]".into(),
            format!(r#"{{"a": "{long}", "b\\": "x, {long}, \" {long} "}}"#),
            format!("[0.{long}, 1e{long}, {long}.5, {long}e5]"),
        ] {
            assert_eq!(of(&same), same);
        }
        assert_eq!(
            of(&format!(r#"{{"a": "x {long}", "b": {long}}}"#)),
            format!(r#"{{"a": "x {long}", "b": "{long}"}}"#)
        );
    }

    #[test]
    fn ids_that_would_meet_are_refused() {
        let greatest = HASH_ID_MAX.to_string();
        let mut ids = BlockIds::default();
        assert_eq!(number(&mut ids, &greatest), Ok(HASH_ID_MAX));
        assert_eq!(number(&mut ids, "-1"), Err(HASH_ID_MAX));
        let mut ids = BlockIds::default();
        assert_eq!(number(&mut ids, "-1"), Ok(HASH_ID_MAX));
        assert_eq!(number(&mut ids, &greatest), Err(HASH_ID_MAX));
        assert_eq!(number(&mut ids, "-2"), Err(HASH_ID_MAX), "the reader has ended");
    }
}
