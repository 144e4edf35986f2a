//! Events as subscribers see them: blocks by 64-bit hash, places by medium, namespaces by what clients sent.

use std::sync::Arc;

use trunkline_core::{BlockHash, CacheEvent, Keeps, Place, RemovedBlocks, RequestId, StoredBlocks, Token};

/// Events of one publisher under one number.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Number of the batch; counts up from 0, without a gap.
    pub seq: u64,
    /// Time of publication, seconds since 1970.
    pub ts: f64,
    /// Number of the engine, as vLLM numbers its data-parallel ranks.
    pub rank: u32,
    /// The events; none in a heartbeat.
    pub events: Vec<Event>,
}

impl Batch {
    /// Returns the number of tokens and hashes in the events.
    pub(crate) fn numbers(&self) -> usize {
        self.events.iter().map(Event::numbers).sum()
    }
}

/// A change of an engine's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks are cached in a medium from now on.
    Stored(Stored),
    /// Blocks are cached in a medium no longer.
    Removed(Removed),
    /// No block is cached on the device any more, and none in tiers but for those whose removal follows in the batch.
    Cleared,
}

impl Event {
    /// Returns the number of tokens and hashes.
    pub(crate) fn numbers(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.hashes.len() + stored.tokens.len(),
            Self::Removed(removed) => removed.hashes.len(),
            Self::Cleared => 1,
        }
    }
}

/// Blocks that are cached from now on, each behind the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Hash of each block.
    pub hashes: Vec<u64>,
    /// Hash of the block before the first one; `None` for the first of a prefix, or without tokens.
    pub parent: Option<u64>,
    /// Tokens of all blocks; none if the hashes say all that is known.
    pub tokens: Vec<Token>,
    /// Tokens of a block.
    pub block_size: u32,
    /// Medium of the blocks.
    pub medium: &'static str,
    /// Layer group of the blocks, if the model has several.
    pub group: Option<Group>,
    /// Scope of the prefix; `None` for the one that all requests without a salt share.
    pub scope: Option<Arc<Scope>>,
    /// Session of the request that computed the blocks.
    pub session: Option<Arc<str>>,
}

/// Blocks that are cached no longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Hash of each block, in the order in which the blocks left: tail first.
    pub hashes: Vec<u64>,
    /// Medium of the blocks.
    pub medium: &'static str,
    /// Number of the layer group, if the model has several.
    pub group: Option<u32>,
}

/// A layer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number of the group, from 0.
    pub number: u32,
    /// Kind of attention, in vLLM's words.
    pub kind: &'static str,
    /// Tokens of a sliding window.
    pub window: Option<u32>,
}

/// Scope within which requests share prefixes, alongside the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Salt as the client sent it; empty for none.
    pub salt: String,
    /// Whatever else sets the scope apart: the tenant, keys of the client. Not empty if the scope is unknown.
    pub others: Vec<String>,
}

impl Scope {
    /// Returns the scope of a namespace that nobody has named, as of blocks on a disk from before a restart: its hash keeps it apart from
    /// all others.
    pub fn unknown(root: u128) -> Self {
        Self { salt: String::new(), others: vec![format!("root:{:?}", BlockHash(root))] }
    }

    /// Returns the keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.salt).filter(|salt| !salt.is_empty()).chain(&self.others).map(String::as_str)
    }
}

/// Names behind numbers of the core.
pub(crate) trait Names {
    /// Returns the scope of the namespace with a root; `None` for the one that all requests without a salt share.
    fn scope(&self, root: u128) -> Option<Arc<Scope>>;

    /// Returns the session of a request that is a turn.
    fn session(&self, request: RequestId) -> Option<Arc<str>>;
}

/// Facts about an engine's cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheFacts {
    /// Tokens of a block.
    pub block_size: u32,
    /// Positions kept by each layer group; at most one for a model without groups.
    pub groups: Vec<Keeps>,
    /// Names of the tiers, nearest first.
    pub tiers: Vec<String>,
}

impl CacheFacts {
    /// Returns the medium of a place, in the words of the field.
    pub fn medium(&self, place: Place) -> &'static str {
        let Place::Tier(tier) = place else { return "GPU" };
        match self.tiers.get(usize::from(tier)).map(String::as_str) {
            Some("disk") => "DISK",
            Some("remote") => "EXTERNAL",
            // `host`, and `shared` among the workers of one machine.
            _ => "CPU",
        }
    }

    /// Returns a layer group, if there are several.
    pub fn group(&self, number: u8) -> Option<Group> {
        let keeps = self.groups.get(usize::from(number)).filter(|_| self.groups.len() > 1)?;
        let (kind, window) = match keeps {
            Keeps::Window(window) => ("sliding_window", Some(*window)),
            Keeps::All | Keeps::Scored => ("full_attention", None),
        };
        Some(Group { number: number.into(), kind, window })
    }

    /// Returns an event as subscribers see it.
    pub(crate) fn event(&self, event: &CacheEvent, names: &dyn Names) -> Event {
        match event {
            CacheEvent::Stored(StoredBlocks { place, group, root, parent, hashes, tokens, request }) => {
                Event::Stored(Stored {
                    hashes: hashes.iter().copied().map(short).collect(),
                    parent: parent.map(short),
                    tokens: tokens.clone(),
                    block_size: self.block_size,
                    medium: self.medium(*place),
                    group: self.group(*group),
                    scope: names.scope(*root),
                    session: request.and_then(|request| names.session(request)),
                })
            }
            CacheEvent::Removed(RemovedBlocks { place, group, hashes }) => Event::Removed(Removed {
                hashes: hashes.iter().copied().map(short).collect(),
                medium: self.medium(*place),
                group: self.group(*group).map(|group| group.number),
            }),
            CacheEvent::Cleared => Event::Cleared,
        }
    }
}

/// Returns the hash of a block as subscribers see it: as vLLM's integer hashes, the low 64 bits of a SHA-256.
pub(crate) fn short(hash: u128) -> u64 {
    hash as u64
}
