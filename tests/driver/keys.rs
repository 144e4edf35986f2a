//! Keys of transfers, checked: one key stands for one contents, wherever and whenever it is copied.

use std::collections::BTreeMap;

use trunkline_core::{Place, Token, Transfer};

/// Contents of every key seen so far.
#[derive(Debug, Default)]
pub struct Keys(BTreeMap<u128, Vec<u64>>);

impl Keys {
    /// Compares the keys and tokens of a transfer with `prefixes`: for each cell of its sources, a number for the whole prefix up to the
    /// cell. `next` returns the number of a prefix with one token more. If `may_lack`, a source may hold nothing: storage was said to have
    /// a block and has not.
    ///
    /// # Panics
    /// If a copy from or to a tier lacks keys, a key stood for other contents before, or the tokens are not those of the contents.
    pub fn check(&mut self, transfer: &Transfer, may_lack: bool, prefixes: &[u64], next: impl Fn(u64, Token) -> u64) {
        let id = transfer.id;
        let has_tier = [transfer.from, transfer.to].iter().any(|place| matches!(place, Place::Tier(_)));
        let keys = transfer.keys.len();
        let is_named = match (transfer.to, has_tier) {
            (Place::Host, _) => keys <= transfer.pairs.len() && transfer.tokens.is_empty(),
            (_, true) => keys == transfer.pairs.len(),
            _ => keys == 0,
        };
        assert!(is_named, "transfer {id} names {keys} blocks of {}", transfer.pairs.len());
        for (at, key) in transfer.keys.iter().enumerate() {
            let block_size = prefixes.len() / transfer.pairs.len();
            let cells = &prefixes[at * block_size..][..block_size];
            // Even numbers stand for no contents.
            if may_lack && cells.iter().all(|cell| cell % 2 == 0) {
                continue;
            }
            let known = self.0.entry(key.hash).or_insert_with(|| cells.to_vec());
            assert_eq!(known, cells, "transfer {id} names block {at} by a key of other contents");
            assert_eq!(key.first_token as usize % block_size, 0, "transfer {id}: block {at} begins inside a block");
            for (cells, token) in cells.windows(2).zip(transfer.tokens_of(at).iter().skip(1)) {
                assert_eq!(next(cells[0], *token), cells[1], "transfer {id} names block {at} by other tokens");
            }
        }
    }
}
