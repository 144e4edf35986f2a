//! Batches in MessagePack, as vLLM's publisher writes them.
//!
//! A batch is an array of time, events, rank and, for subscribers of snapshots, the publisher's identity. An event is a map with `type`, or, as
//! vLLM wrote it before, an array that begins with the type. What vLLM leaves out of maps at its default is left out here; an array has
//! all fields.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, SerializeTuple, Serializer};

use crate::event::{Batch, Event, Removed, Scope, Stored};

/// Identity of a publisher: another after a restart.
pub type PublisherId = [u8; 16];

/// Form of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Maps with the names of fields.
    #[default]
    Map,
    /// Arrays in the order of vLLM's fields, for subscribers that read no maps.
    Array,
}

impl Form {
    /// All forms, with the names that users write.
    pub const ALL: [(&'static str, Self); 2] = [("map", Self::Map), ("array", Self::Array)];
}

/// Returns a batch in MessagePack, with the publisher's identity if there is one.
pub fn encode(batch: &Batch, form: Form, publisher: Option<&PublisherId>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + batch.events.iter().map(size_hint).sum::<usize>());
    rmp_serde::encode::write(&mut bytes, &Encoded { batch, form, publisher }).expect("writing to memory does not fail");
    bytes
}

/// Returns about so many bytes as an event takes.
fn size_hint(event: &Event) -> usize {
    match event {
        Event::Stored(stored) => 200 + 9 * stored.hashes.len() + 5 * stored.tokens.len(),
        Event::Removed(removed) => 60 + 9 * removed.hashes.len(),
        Event::Cleared => 24,
    }
}

struct Encoded<'a> {
    batch: &'a Batch,
    form: Form,
    publisher: Option<&'a PublisherId>,
}

impl Serialize for Encoded<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(3 + usize::from(self.publisher.is_some()))?;
        tuple.serialize_element(&self.batch.ts)?;
        tuple.serialize_element(&Events(&self.batch.events, self.form))?;
        tuple.serialize_element(&self.batch.rank)?;
        if let Some(publisher) = self.publisher {
            tuple.serialize_element(&Bytes(publisher))?;
        }
        tuple.end()
    }
}

struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

struct Events<'a>(&'a [Event], Form);

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for event in self.0 {
            match self.1 {
                Form::Map => seq.serialize_element(&AsMap(event))?,
                Form::Array => seq.serialize_element(&AsArray(event))?,
            }
        }
        seq.end()
    }
}

struct AsMap<'a>(&'a Event);

impl Serialize for AsMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Event::Stored(stored) => stored_map(stored, serializer),
            Event::Removed(Removed { hashes, medium, group }) => {
                let mut map = serializer.serialize_map(Some(3 + usize::from(group.is_some())))?;
                map.serialize_entry("type", "BlockRemoved")?;
                map.serialize_entry("block_hashes", hashes)?;
                map.serialize_entry("medium", medium)?;
                if let Some(group) = group {
                    map.serialize_entry("group_idx", group)?;
                }
                map.end()
            }
            Event::Cleared => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("type", "AllBlocksCleared")?;
                map.end()
            }
        }
    }
}

fn stored_map<S: Serializer>(stored: &Stored, serializer: S) -> Result<S::Ok, S::Error> {
    let Stored { hashes, parent, tokens, block_size, medium, group, scope, session } = stored;
    let salt = scope.as_ref().map(|scope| &scope.salt).filter(|salt| !salt.is_empty());
    let extra_keys = ExtraKeys::of(stored);
    let of_group = group.map_or(0, |group| 2 + usize::from(group.window.is_some()));
    let others = [extra_keys.is_some(), session.is_some(), salt.is_some()];
    let n = 8 + of_group + others.iter().filter(|is_there| **is_there).count();
    let mut map = serializer.serialize_map(Some(n))?;
    map.serialize_entry("type", "BlockStored")?;
    map.serialize_entry("block_hashes", hashes)?;
    map.serialize_entry("parent_block_hash", parent)?;
    map.serialize_entry("token_ids", tokens)?;
    map.serialize_entry("block_size", block_size)?;
    map.serialize_entry("lora_id", &None::<u32>)?;
    map.serialize_entry("medium", medium)?;
    map.serialize_entry("lora_name", &None::<&str>)?;
    if let Some(keys) = &extra_keys {
        map.serialize_entry("extra_keys", keys)?;
    }
    if let Some(group) = group {
        map.serialize_entry("group_idx", &group.number)?;
        map.serialize_entry("kv_cache_spec_kind", group.kind)?;
        if let Some(window) = group.window {
            map.serialize_entry("kv_cache_spec_sliding_window", &window)?;
        }
    }
    if let Some(session) = session {
        map.serialize_entry("session_id", &**session)?;
    }
    // SGLang's name, for every block of the scope.
    if let Some(salt) = salt {
        map.serialize_entry("cache_salt", salt)?;
    }
    map.end()
}

struct AsArray<'a>(&'a Event);

impl Serialize for AsArray<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Event::Stored(stored) => {
                let Stored { hashes, parent, tokens, block_size, medium, group, .. } = stored;
                let mut tuple = serializer.serialize_tuple(12)?;
                tuple.serialize_element("BlockStored")?;
                tuple.serialize_element(hashes)?;
                tuple.serialize_element(parent)?;
                tuple.serialize_element(tokens)?;
                tuple.serialize_element(block_size)?;
                tuple.serialize_element(&None::<u32>)?;
                tuple.serialize_element(medium)?;
                tuple.serialize_element(&None::<&str>)?;
                tuple.serialize_element(&ExtraKeys::of(stored))?;
                tuple.serialize_element(&group.map(|group| group.number))?;
                tuple.serialize_element(&group.map(|group| group.kind))?;
                tuple.serialize_element(&group.and_then(|group| group.window))?;
                tuple.end()
            }
            Event::Removed(Removed { hashes, medium, group }) => {
                let mut tuple = serializer.serialize_tuple(4)?;
                tuple.serialize_element("BlockRemoved")?;
                tuple.serialize_element(hashes)?;
                tuple.serialize_element(medium)?;
                tuple.serialize_element(group)?;
                tuple.end()
            }
            Event::Cleared => {
                let mut tuple = serializer.serialize_tuple(1)?;
                tuple.serialize_element("AllBlocksCleared")?;
                tuple.end()
            }
        }
    }
}

/// Keys alongside the tokens that went into the hash of each block: those of the scope, into that of the first block of a prefix.
struct ExtraKeys<'a> {
    scope: &'a Scope,
    blocks: usize,
}

impl<'a> ExtraKeys<'a> {
    fn of(stored: &'a Stored) -> Option<Self> {
        let is_first = stored.parent.is_none() && !stored.tokens.is_empty();
        let scope = stored.scope.as_deref().filter(|_| is_first)?;
        Some(Self { scope, blocks: stored.hashes.len() })
    }
}

impl Serialize for ExtraKeys<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.blocks))?;
        seq.serialize_element(&self.scope.keys().collect::<Vec<_>>())?;
        for _ in 1..self.blocks {
            seq.serialize_element(&None::<&str>)?;
        }
        seq.end()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::Group;

    const BIG: u64 = 0xfedc_ba98_7654_3210;

    fn hex(events: Vec<Event>, form: Form) -> String {
        let batch = Batch { seq: 9, ts: 1.5, rank: 0, events };
        encode(&batch, form, None).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn plain() -> Stored {
        let (hashes, tokens) = (vec![BIG, 2], vec![1, 200, 70000, 4]);
        Stored { hashes, tokens, block_size: 2, medium: "GPU", ..Stored::default() }
    }

    fn behind(group: Group, medium: &'static str) -> Stored {
        let (hashes, parent, tokens) = (vec![2], Some(BIG), vec![5, 6]);
        Stored { hashes, parent, tokens, block_size: 2, medium, group: Some(group), ..Stored::default() }
    }

    fn events() -> [Vec<Event>; 6] {
        let window = Group { number: 1, kind: "sliding_window", window: Some(8) };
        let full = Group { number: 0, kind: "full_attention", window: None };
        let removed = [(vec![BIG, 2], "DISK", None), (vec![3], "GPU", Some(1))];
        let removed = removed.map(|(hashes, medium, group)| Event::Removed(Removed { hashes, medium, group }));
        [
            vec![Event::Stored(plain())],
            vec![Event::Stored(behind(window, "CPU"))],
            vec![Event::Stored(behind(full, "GPU"))],
            removed.to_vec(),
            vec![Event::Cleared],
            vec![],
        ]
    }

    /// Encoded by msgspec 0.23 from structs with the fields and options of vLLM's: maps, and a batch that is an array.
    const MAPS: [&str; 6] = [
        "93cb3ff80000000000009188a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cffedcba987654321002b1706172656e745f\
         626c6f636b5f68617368c0a9746f6b656e5f6964739401ccc8ce0001117004aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da347\
         5055a96c6f72615f6e616d65c000",
        "93cb3ff8000000000000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739102b1706172656e745f626c6f636b5f686173\
         68cffedcba9876543210a9746f6b656e5f696473920506aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f\
         6e616d65c0a967726f75705f69647801b26b765f63616368655f737065635f6b696e64ae736c6964696e675f77696e646f77bc6b765f63616368655f73\
         7065635f736c6964696e675f77696e646f770800",
        "93cb3ff8000000000000918aa474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739102b1706172656e745f626c6f636b5f686173\
         68cffedcba9876543210a9746f6b656e5f696473920506aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f\
         6e616d65c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00",
        "93cb3ff80000000000009283a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657392cffedcba987654321002a66d656469756d\
         a44449534b84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739103a66d656469756da3475055a967726f75705f69647801\
         00",
        "93cb3ff80000000000009181a474797065b0416c6c426c6f636b73436c656172656400",
        "93cb3ff80000000000009000",
    ];

    /// The same with events that are arrays.
    const ARRAYS: [&str; 6] = [
        "93cb3ff8000000000000919cab426c6f636b53746f72656492cffedcba987654321002c09401ccc8ce000111700402c0a3475055c0c0c0c0c000",
        "93cb3ff8000000000000919cab426c6f636b53746f7265649102cffedcba987654321092050602c0a3435055c0c001ae736c6964696e675f77696e646f\
         770800",
        "93cb3ff8000000000000919cab426c6f636b53746f7265649102cffedcba987654321092050602c0a3475055c0c000ae66756c6c5f617474656e74696f\
         6ec000",
        "93cb3ff80000000000009294ac426c6f636b52656d6f76656492cffedcba987654321002a44449534bc094ac426c6f636b52656d6f7665649103a34750\
         550100",
        "93cb3ff80000000000009191b0416c6c426c6f636b73436c656172656400",
        "93cb3ff80000000000009000",
    ];

    #[test]
    fn events_are_encoded_as_vllm_encodes_them() {
        for (form, expected) in [(Form::Map, MAPS), (Form::Array, ARRAYS)] {
            for (events, expected) in events().into_iter().zip(expected) {
                assert_eq!(hex(events, form), expected, "{form:?}");
            }
        }
    }

    #[test]
    fn a_scope_is_the_key_of_the_first_block_and_the_publisher_stands_behind_the_rank() {
        let scope = Scope { salt: "salt".into(), others: vec!["tenant".into()] };
        let tokens = vec![1, 2, 3, 4];
        let stored = Stored { tokens, scope: Some(Arc::new(scope)), session: Some("s".into()), ..plain() };
        let maps = "93cb3ff8000000000000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cffedcba987654321002b1706172\
                    656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d65646975\
                    6da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739292a473616c74a674656e616e74c0aa73657373696f6e5f6964a173aa63\
                    616368655f73616c74a473616c7400";
        assert_eq!(hex(vec![Event::Stored(stored.clone())], Form::Map), maps);
        let arrays = "93cb3ff8000000000000919cab426c6f636b53746f72656492cffedcba987654321002c0940102030402c0a3475055c09292a473616c74a674\
                      656e616e74c0c0c0c000";
        assert_eq!(hex(vec![Event::Stored(stored)], Form::Array), arrays);
        let id: PublisherId = std::array::from_fn(|at| at as u8);
        let beat = encode(&Batch { seq: 0, ts: 1.5, rank: 3, events: vec![] }, Form::Map, Some(&id));
        let beat: String = beat.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(beat, "94cb3ff80000000000009003c410000102030405060708090a0b0c0d0e0f");
    }
}
