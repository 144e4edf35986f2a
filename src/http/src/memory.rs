//! Responses that are kept for a while in memory, so that a conversation goes on from one of them.
//!
//! Each has its own input and output, and a link to the response that it went on from: the items of a conversation are there once, however many
//! responses it has. The memory is bounded in all and for each client. Where room is needed, the response that was not used for the longest time goes;
//! use of a response is use of all that it went on from, so those that others need go after these.
//!
//! A response that is deleted is not found any more, and its items go with the last response that needs them. An item is found by its own id, too, as long
//! as a response that has it is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use trunkline_server::Client;

/// Memory for responses, bytes, by default.
const BYTES_DEFAULT: u64 = 64 << 20;
/// Time after which a response that was not used goes.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Bytes of an entry besides its texts, about.
const ENTRY_BYTES: u64 = 512;
/// Bytes of an item that is found by its id besides the text of the id, about.
const ITEM_BYTES: u64 = 128;

/// A response, as it is kept.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Items of the request's own input, a list of JSON.
    pub(crate) input: Bytes,
    /// The response in JSON, whole.
    pub(crate) response: Bytes,
    /// Ids of the items of both.
    pub(crate) ids: Vec<Arc<str>>,
}

/// The responses of a server.
pub(crate) struct Memory {
    /// Bytes in all, at most; half of them for one client.
    bytes: u64,
    state: Mutex<State>,
}

/// Owner of a response, by the name of its token, and its id. Without tokens an id is enough.
type Key = (Owner, String);
type Owner = Option<Arc<str>>;

#[derive(Default)]
struct State {
    entries: HashMap<u64, Entry>,
    ids: HashMap<Key, u64>,
    /// Items that are found, by owner and id, with the entries that have them.
    items: BTreeSet<(Owner, Arc<str>, u64)>,
    /// Entries by the time of their use, earliest first.
    order: BTreeMap<u64, u64>,
    clients: HashMap<Client, Share>,
    bytes: u64,
    /// Entries and uses so far.
    numbers: u64,
    uses: u64,
}

/// Entries of a client.
#[derive(Default)]
struct Share {
    bytes: u64,
    order: BTreeMap<u64, u64>,
}

struct Entry {
    client: Client,
    /// `None` once it is deleted.
    key: Option<Key>,
    /// Number of the response that it went on from.
    previous: Option<u64>,
    /// Responses that went on from this one, and requests that are about to.
    needed: u32,
    kept: Arc<Kept>,
    bytes: u64,
    /// Number of its last use, and the time.
    used: u64,
    used_at: Instant,
}

/// A response that was found, with those before it. They stay while this value does.
pub(crate) struct Found {
    /// Oldest first.
    pub(crate) all: Vec<Arc<Kept>>,
    memory: Arc<Memory>,
    number: u64,
}

impl Drop for Found {
    fn drop(&mut self) {
        self.memory.lock().release(self.number);
    }
}

fn owner(client: &Client) -> Owner {
    match client {
        Client::Token(name) => Some(name.clone()),
        Client::Peer(_) => None,
    }
}

fn key(client: &Client, id: &str) -> Key {
    (owner(client), id.to_owned())
}

impl Memory {
    /// Returns a memory of this many bytes; `None` for 0, and of some by default.
    pub(crate) fn new(bytes: Option<u64>) -> Option<Arc<Self>> {
        let bytes = bytes.unwrap_or(BYTES_DEFAULT);
        (bytes > 0).then(|| Arc::new(Self { bytes, state: Mutex::default() }))
    }

    /// Returns the bytes that a client may have.
    fn share(&self) -> u64 {
        self.bytes / 2
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a response of a client.
    pub(crate) fn find(self: &Arc<Self>, client: &Client, id: &str, now: Instant) -> Option<Found> {
        let mut state = self.lock();
        state.expire(now);
        let number = *state.ids.get(&key(client, id))?;
        let all = state.used(number, now);
        state.entries.get_mut(&number)?.needed += 1;
        Some(Found { all, memory: self.clone(), number })
    }

    /// Finds items of a client by their ids: the latest response that has each, with the number of that response. This is a use of the responses.
    pub(crate) fn find_items(&self, client: &Client, ids: &[Arc<str>], now: Instant) -> Vec<Option<(u64, Arc<Kept>)>> {
        let mut state = self.lock();
        state.expire(now);
        let owner = owner(client);
        let latest = |id: &Arc<str>| {
            let those = (owner.clone(), id.clone(), 0)..=(owner.clone(), id.clone(), u64::MAX);
            let (.., number) = state.items.range(those).next_back()?;
            Some((*number, state.entries.get(number)?.kept.clone()))
        };
        let found: Vec<_> = ids.iter().map(latest).collect();
        state.used_all(found.iter().flatten().map(|(number, _)| *number), now);
        found
    }

    /// Keeps a response that went on from `previous`, as the latest of its id; returns `false` if there is no room.
    pub(crate) fn keep(&self, client: &Client, id: &str, previous: Option<&Found>, kept: Kept, now: Instant) -> bool {
        let of_ids: u64 = kept.ids.iter().map(|id| id.len() as u64 + ITEM_BYTES).sum();
        let bytes = (kept.input.len() + kept.response.len() + id.len()) as u64 + ENTRY_BYTES + of_ids;
        let mut state = self.lock();
        state.expire(now);
        let key = key(client, id);
        if let Some(same) = state.ids.get(&key).copied() {
            state.unname(same);
        }
        while state.clients.get(client).map_or(0, |share| share.bytes) + bytes > self.share() {
            let first = state.clients.get(client).and_then(|share| state.first(&share.order));
            let Some(first) = first else { return false };
            state.remove(first);
        }
        while state.bytes + bytes > self.bytes {
            let Some(first) = state.first(&state.order) else { return false };
            state.remove(first);
        }
        let previous = previous.map(|found| found.number);
        state.insert(client.clone(), key, previous, kept, bytes, now);
        true
    }

    /// Deletes a response of a client; returns `false` if there is none.
    pub(crate) fn delete(&self, client: &Client, id: &str, now: Instant) -> bool {
        let mut state = self.lock();
        state.expire(now);
        let number = state.ids.get(&key(client, id)).copied();
        number.inspect(|number| state.unname(*number)).is_some()
    }
}

impl State {
    fn insert(&mut self, client: Client, key: Key, previous: Option<u64>, kept: Kept, bytes: u64, now: Instant) {
        let number = self.numbers;
        self.numbers += 1;
        if let Some(previous) = previous.and_then(|number| self.entries.get_mut(&number)) {
            previous.needed += 1;
        }
        self.ids.insert(key.clone(), number);
        self.items.extend(kept.ids.iter().map(|id| (key.0.clone(), id.clone(), number)));
        self.bytes += bytes;
        self.clients.entry(client.clone()).or_default().bytes += bytes;
        let kept = Arc::new(kept);
        // Its use has a number of its own as soon as it is used.
        let used = u64::MAX - number;
        let entry = Entry { client, key: Some(key), previous, needed: 0, kept, bytes, used, used_at: now };
        self.entries.insert(number, entry);
        self.used(number, now);
    }

    /// Notes the use of a response, and of all that it went on from after it; returns them, oldest first.
    fn used(&mut self, number: u64, now: Instant) -> Vec<Arc<Kept>> {
        let (mut all, mut next) = (Vec::new(), Some(number));
        while let Some(entry) = next.and_then(|number| self.note_use(number, now)) {
            all.push(entry.kept.clone());
            next = entry.previous;
        }
        all.reverse();
        all
    }

    /// Notes the use of responses, and of all that they went on from after them. O(n log n) in the number of these.
    fn used_all(&mut self, numbers: impl Iterator<Item = u64>, now: Instant) {
        let mut all = BTreeSet::new();
        for number in numbers {
            let mut next = Some(number);
            while let Some(number) = next.filter(|number| all.insert(*number)) {
                next = self.entries.get(&number).and_then(|entry| entry.previous);
            }
        }
        // A response has a greater number than those that it went on from.
        all.into_iter().rev().for_each(|number| _ = self.note_use(number, now));
    }

    fn note_use(&mut self, number: u64, now: Instant) -> Option<&Entry> {
        let entry = self.entries.get_mut(&number)?;
        let share = self.clients.entry(entry.client.clone()).or_default();
        for order in [&mut self.order, &mut share.order] {
            order.remove(&entry.used);
            order.insert(self.uses, number);
        }
        (entry.used, entry.used_at) = (self.uses, now);
        self.uses += 1;
        Some(entry)
    }

    /// Returns the entry that was not used for the longest time, of those that no other needs.
    fn first(&self, order: &BTreeMap<u64, u64>) -> Option<u64> {
        order.values().copied().find(|number| self.entries.get(number).is_some_and(|entry| entry.needed == 0))
    }

    /// Removes what was not used for too long.
    fn expire(&mut self, now: Instant) {
        while let Some(first) = self.first(&self.order) {
            let used_at = self.entries.get(&first).map_or(now, |entry| entry.used_at);
            if now.saturating_duration_since(used_at) < AGE_MAX {
                return;
            }
            self.remove(first);
        }
    }

    /// Deletes the entry of a response: it is not found any more, and goes as soon as no other needs it.
    fn unname(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if let Some(key) = entry.key.take() {
            self.ids.remove(&key);
            let kept = entry.kept.clone();
            self.leave_items(&key.0, &kept, number);
        }
        if self.entries.get(&number).is_some_and(|entry| entry.needed == 0) {
            self.remove(number);
        }
    }

    /// Lets nobody find the items of an entry by their ids there.
    fn leave_items(&mut self, owner: &Owner, kept: &Kept, number: u64) {
        for id in &kept.ids {
            self.items.remove(&(owner.clone(), id.clone(), number));
        }
    }

    /// Counts out what needs an entry, which goes if it is deleted and this was the last.
    fn release(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.needed -= 1;
        if entry.needed == 0 && entry.key.is_none() {
            self.remove(number);
        }
    }

    /// Removes an entry, and those before it that are deleted and that no other needs.
    fn remove(&mut self, number: u64) {
        let mut next = Some(number);
        while let Some((number, entry)) = next.take().and_then(|number| self.entries.remove_entry(&number)) {
            if let Some(key) = &entry.key {
                self.ids.remove(key);
                self.leave_items(&key.0, &entry.kept, number);
            }
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
            if let Some(share) = self.clients.get_mut(&entry.client) {
                share.bytes -= entry.bytes;
                share.order.remove(&entry.used);
                if share.order.is_empty() {
                    self.clients.remove(&entry.client);
                }
            }
            let Some(previous) = entry.previous else { return };
            let Some(before) = self.entries.get_mut(&previous) else { return };
            before.needed -= 1;
            next = (before.needed == 0 && before.key.is_none()).then_some(previous);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn token(name: &str) -> Client {
        Client::Token(name.into())
    }

    fn kept(len: usize) -> Kept {
        Kept { input: vec![b'x'; len].into(), response: Bytes::from_static(b"{}"), ids: Vec::new() }
    }

    /// A memory for so many entries of 500 bytes of input, of one client.
    fn memory(entries: u64) -> Arc<Memory> {
        Memory::new(Some(2 * entries * (500 + 2 + 1 + ENTRY_BYTES))).unwrap()
    }

    fn ids(memory: &Memory) -> String {
        let mut ids: Vec<String> = memory.lock().ids.keys().map(|(_, id)| id.clone()).collect();
        ids.sort();
        ids.concat()
    }

    #[test]
    fn a_conversation_is_found_by_each_of_its_responses_until_they_are_deleted() {
        let (memory, a, now) = (memory(9), token("a"), Instant::now());
        assert!(memory.keep(&a, "1", None, kept(500), now));
        let first = memory.find(&a, "1", now).unwrap();
        assert!(memory.keep(&a, "2", Some(&first), kept(500), now));
        assert!(memory.keep(&a, "3", Some(&first), kept(500), now));
        drop(first);
        let lens = |id: &str| memory.find(&a, id, now).map(|found| found.all.len());
        assert_eq!((lens("1"), lens("2"), lens("3"), lens("4")), (Some(1), Some(2), Some(2), None));
        assert!(memory.delete(&a, "1", now) && !memory.delete(&a, "1", now));
        assert_eq!((lens("1"), lens("2")), (None, Some(2)), "what others went on from stays for them");
        assert!(memory.delete(&a, "2", now) && memory.delete(&a, "3", now));
        let state = memory.lock();
        assert_eq!((state.bytes, state.entries.len(), state.clients.len()), (0, 0, 0));
    }

    #[test]
    fn the_holder_of_a_token_finds_no_response_of_another() {
        let (memory, now) = (memory(9), Instant::now());
        let peers = [1, 2].map(|n| Client::Peer(IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))));
        assert!(memory.keep(&token("a"), "1", None, kept(1), now));
        assert!(memory.keep(&peers[0], "2", None, kept(1), now));
        assert!(memory.find(&token("b"), "1", now).is_none() && !memory.delete(&token("b"), "1", now));
        assert!(memory.find(&peers[0], "1", now).is_none());
        assert!(memory.find(&token("a"), "1", now).is_some());
        assert!(memory.find(&peers[1], "2", now).is_some(), "without tokens the id is enough");
        // Each may have a response of the same id.
        assert!(memory.keep(&token("b"), "1", None, kept(7), now));
        assert_eq!(memory.find(&token("b"), "1", now).unwrap().all[0].input.len(), 7);
        assert_eq!(memory.find(&token("a"), "1", now).unwrap().all[0].input.len(), 1);
    }

    #[test]
    fn the_response_that_was_not_used_for_the_longest_time_goes_first() {
        let (memory, a, now) = (memory(3), token("a"), Instant::now());
        let keep = |id: &str, previous: Option<&Found>| memory.keep(&a, id, previous, kept(500), now);
        assert!(keep("1", None) && keep("2", None));
        assert!(keep("3", memory.find(&a, "1", now).as_ref()));
        // The second goes, then the third before the first, which it needs.
        assert!(keep("4", None));
        assert_eq!(ids(&memory), "134");
        assert!(keep("5", None));
        assert_eq!(ids(&memory), "145");
        // A response that a request goes on from stays, and one that is too long is not kept.
        let first = memory.find(&a, "1", now).unwrap();
        assert!(keep("6", None) && keep("7", None) && keep("8", Some(&first)));
        assert_eq!(ids(&memory), "178");
        assert!(!memory.keep(&a, "9", None, kept(5000), now));
    }

    #[test]
    fn a_client_has_half_of_the_memory_and_unused_responses_expire() {
        let (memory, now) = (memory(2), Instant::now());
        for (client, id) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "4"), ("b", "5"), ("c", "6")] {
            assert!(memory.keep(&token(client), id, None, kept(500), now));
        }
        assert_eq!(ids(&memory), "3456", "the first by the share of its client, the second by the bound of all");
        let later = now + AGE_MAX / 2;
        assert!(memory.find(&token("b"), "4", later).is_some());
        assert!(memory.find(&token("b"), "5", now + AGE_MAX).is_none());
        assert_eq!(ids(&memory), "4");
        assert!(Memory::new(Some(0)).is_none() && Memory::new(None).is_some());
    }

    fn with_items(len: usize, ids: &[&str]) -> Kept {
        Kept { ids: ids.iter().map(|id| Arc::from(*id)).collect(), ..kept(len) }
    }

    /// Lengths of the inputs of the responses that items are found in, by the ids of the items.
    fn lens_by_items<const N: usize>(memory: &Memory, client: &Client, ids: [&str; N]) -> [Option<usize>; N] {
        let found = memory.find_items(client, &ids.map(Arc::from), Instant::now());
        let lens: Vec<Option<usize>> = found.into_iter().map(|found| found.map(|(_, kept)| kept.input.len())).collect();
        lens.try_into().unwrap()
    }

    #[test]
    fn an_item_is_found_by_its_id_in_the_latest_response_that_has_it() {
        let (memory, a, now) = (memory(9), token("a"), Instant::now());
        assert!(memory.keep(&a, "1", None, with_items(11, &["x", "y"]), now));
        assert!(memory.keep(&a, "2", None, with_items(22, &["y", "z"]), now));
        let lens = |client: &str| lens_by_items(&memory, &token(client), ["x", "y", "z", "w"]);
        assert_eq!(lens("a"), [Some(11), Some(22), Some(22), None]);
        assert_eq!(lens("b"), [None; 4], "of another's token");
        assert!(memory.delete(&a, "2", now));
        assert_eq!(lens("a"), [Some(11), Some(11), None, None]);
        // A response of the same id replaces the one before, and its items.
        assert!(memory.keep(&a, "1", None, with_items(33, &["z"]), now));
        assert_eq!(lens("a"), [None, None, Some(33), None]);
        // What others went on from stays for them, and its items are not found.
        let first = memory.find(&a, "1", now);
        assert!(memory.keep(&a, "3", first.as_ref(), with_items(44, &["x"]), now) && memory.delete(&a, "1", now));
        drop(first);
        assert_eq!(lens("a"), [Some(44), None, None, None]);
        assert!(memory.delete(&a, "3", now));
        let state = memory.lock();
        assert_eq!((state.items.len(), state.entries.len()), (0, 0));
    }

    #[test]
    fn the_use_of_an_item_is_the_use_of_its_response_and_ids_take_room() {
        let (memory, a, now) = (memory(4), token("a"), Instant::now());
        assert!(memory.keep(&a, "1", None, with_items(1, &["x"]), now));
        let first = memory.find(&a, "1", now);
        assert!(memory.keep(&a, "2", first.as_ref(), with_items(1, &["y"]), now));
        drop(first);
        assert!(memory.keep(&a, "3", None, with_items(1, &["z"]), now));
        assert_eq!(lens_by_items(&memory, &a, ["x", "y"]), [Some(1); 2]);
        check(&memory, &[]);
        assert!(memory.keep(&a, "4", None, kept(1600), now) && memory.keep(&a, "5", None, kept(1), now));
        assert_eq!(ids(&memory), "1245", "the third is unused longest");
        let many: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(!memory.keep(&a, "6", None, with_items(0, &many), now), "40 ids are more than the share of a client");
    }

    #[derive(Clone, Debug)]
    enum Deed {
        Keep { client: u8, id: u8, previous: Option<u8>, len: usize },
        Hold { client: u8, id: u8 },
        Drop,
        Delete { client: u8, id: u8 },
        FindItem { client: u8, id: u8 },
        Wait,
    }

    fn deed() -> impl Strategy<Value = Deed> {
        let named = (0..3u8, 0..12u8);
        prop_oneof![
            4 => (named.clone(), proptest::option::of(0..12u8), 0..900usize)
                .prop_map(|((client, id), previous, len)| Deed::Keep { client, id, previous, len }),
            2 => named.clone().prop_map(|(client, id)| Deed::Hold { client, id }),
            2 => Just(Deed::Drop),
            1 => named.clone().prop_map(|(client, id)| Deed::Delete { client, id }),
            2 => named.prop_map(|(client, id)| Deed::FindItem { client, id }),
            1 => Just(Deed::Wait),
        ]
    }

    fn check(memory: &Memory, held: &[Found]) {
        let state = memory.lock();
        let sum: u64 = state.entries.values().map(|entry| entry.bytes).sum();
        assert_eq!((state.bytes, state.order.len()), (sum, state.entries.len()));
        assert!(state.bytes <= memory.bytes);
        for (client, share) in &state.clients {
            let own = || state.entries.values().filter(|entry| entry.client == *client);
            assert_eq!((share.bytes, share.order.len()), (own().map(|entry| entry.bytes).sum(), own().count()));
            assert!(share.bytes <= memory.share() && !share.order.is_empty());
        }
        for (number, entry) in &state.entries {
            let later = state.entries.values().filter(|other| other.previous == Some(*number)).count();
            let requests = held.iter().filter(|found| found.number == *number).count();
            assert_eq!(entry.needed as usize, later + requests);
            assert!(entry.key.is_some() || entry.needed > 0, "nobody needs what is deleted");
            assert_eq!(state.order.get(&entry.used), Some(number));
            let previous = entry.previous.map(|previous| &state.entries[&previous]);
            assert!(previous.is_none_or(|previous| previous.used > entry.used), "what is needed is used later");
        }
        assert!(state.ids.iter().all(|(key, number)| state.entries[number].key.as_ref() == Some(key)));
        let of_entry = |(number, entry): (&u64, &Entry)| {
            let owner = entry.key.as_ref().map(|key| key.0.clone());
            let items = entry.kept.ids.iter().zip(owner.into_iter().cycle());
            items.map(|(id, owner)| (owner, id.clone(), *number)).collect::<Vec<_>>()
        };
        let items: BTreeSet<_> = state.entries.iter().flat_map(of_entry).collect();
        assert_eq!(state.items, items);
    }

    proptest! {
        #[test]
        fn whatever_is_kept_held_and_deleted_the_counts_are_right(deeds in proptest::collection::vec(deed(), 1..80)) {
            let (memory, mut now, mut held) = (memory(4), Instant::now(), Vec::new());
            let client = |n: u8| token(&n.to_string());
            for deed in deeds {
                match deed {
                    Deed::Keep { client: n, id, previous, len } => {
                        let previous = previous.and_then(|id| memory.find(&client(n), &id.to_string(), now));
                        let kept = with_items(len, &[&id.to_string(), "x"]);
                        memory.keep(&client(n), &id.to_string(), previous.as_ref(), kept, now);
                    }
                    Deed::FindItem { client: n, id } => {
                        let found = memory.find_items(&client(n), &[id.to_string().into(), "x".into()], now);
                        let last = found[1].as_ref().map(|(number, _)| *number);
                        prop_assert!(found.iter().flatten().all(|(number, _)| Some(*number) <= last));
                    }
                    Deed::Hold { client: n, id } => held.extend(memory.find(&client(n), &id.to_string(), now)),
                    Deed::Drop => drop(held.pop()),
                    Deed::Delete { client: n, id } => drop(memory.delete(&client(n), &id.to_string(), now)),
                    Deed::Wait => now += AGE_MAX / 3,
                }
                check(&memory, &held);
            }
            held.clear();
            now += AGE_MAX;
            let mut state = memory.lock();
            state.expire(now);
            prop_assert_eq!((state.entries.len(), state.clients.len()), (0, 0));
        }
    }
}
