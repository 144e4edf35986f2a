//! Block ids of a file as numbers up to [`HASH_ID_MAX`].
//!
//! Published traces number blocks from 0 on. A trace made of the cache events of an engine has hashes: numbers of 64 bits, also below 0, or
//! names. Numbers up to the greatest stay. Other ids get numbers in the order of appearance, from the greatest one down.

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
