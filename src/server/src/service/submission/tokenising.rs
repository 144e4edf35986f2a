//! Room and turns for texts tokenised part by part, with a share of both for each client.
//!
//! | bound | for all | for one client |
//! |---|---|---|
//! | text being tokenised, or waiting for it | [`TEXT_KIB_MAX`], of which one text takes half of what is left at most: long texts are refused first | half of it |
//! | parts with a thread, or in the queue for one | | half of the processors |
//! | parts of [`LARGE_PART_BYTES`] and more, which a tokenizer cannot cut further, as while it splits a text into words | one | |
//!
//! The threads take parts in the order in which they come, so with a bound for each client the parts of clients take turns, however many texts one of them
//! sends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::network::shares::Client;

/// Text being tokenised part by part, or waiting for it, at most, KiB. This text is in no queue of the core's, so `max_queue` does not
/// bound it.
pub(crate) const TEXT_KIB_MAX: usize = 64 << 10;
/// Parts of this many bytes and more are tokenised one at a time.
pub(super) const LARGE_PART_BYTES: usize = 128 << 10;

/// Room and turns of all texts.
pub(crate) struct Tokenising {
    /// One permit for each KiB of text.
    pub(crate) room: Arc<Semaphore>,
    /// The permit for a large part.
    large: Arc<Semaphore>,
    /// Parts of one client at once.
    turns: usize,
    /// Shares of clients with texts, and some without any more.
    clients: Mutex<HashMap<Client, Weak<Share>>>,
}

/// What one client may take.
struct Share {
    room: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

/// Room of a text.
pub(crate) struct Room {
    share: Arc<Share>,
    /// Of the client, and of all.
    _taken: [OwnedSemaphorePermit; 2],
}

/// The turn of a part.
pub(crate) struct Turn {
    /// Of the client, and for a large part of all.
    _taken: [Option<OwnedSemaphorePermit>; 2],
}

impl Default for Tokenising {
    fn default() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Tokenising {
    /// Creates room for texts on a machine with so many processors.
    pub(crate) fn new(processors: usize) -> Self {
        let (room, large) = (Arc::new(Semaphore::new(TEXT_KIB_MAX)), Arc::new(Semaphore::new(1)));
        Self { room, large, turns: (processors / 2).max(1), clients: Mutex::default() }
    }

    /// Takes room for a text of a client: at most half of what is left, so that long texts leave room for short ones, and within the client's half
    /// of all. A text above the half counts as that: the room alone bounds no single text.
    pub(crate) fn take_room(&self, client: &Client, bytes: usize) -> Option<Room> {
        let kib = bytes.div_ceil(1 << 10).min(TEXT_KIB_MAX / 2);
        let fits = kib <= self.room.available_permits() / 2;
        let permits = u32::try_from(kib).ok().filter(|_| fits)?;
        let share = self.share(client);
        let own = share.room.clone().try_acquire_many_owned(permits).ok()?;
        let all = self.room.clone().try_acquire_many_owned(permits).ok()?;
        Some(Room { share, _taken: [own, all] })
    }

    /// Waits for the turn of a part of a text.
    pub(crate) async fn turn(&self, room: &Room, bytes: usize) -> Turn {
        let own = room.share.turns.clone().acquire_owned().await.ok();
        let is_large = bytes >= LARGE_PART_BYTES;
        let large = if is_large { self.large.clone().acquire_owned().await.ok() } else { None };
        Turn { _taken: [own, large] }
    }

    fn share(&self, client: &Client) -> Arc<Share> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = clients.get(client).and_then(Weak::upgrade) {
            return share;
        }
        // Texts take room, which bounds the clients that have some.
        clients.retain(|_, share| share.strong_count() > 0);
        let room = Arc::new(Semaphore::new(TEXT_KIB_MAX / 2));
        let share = Arc::new(Share { room, turns: Arc::new(Semaphore::new(self.turns)) });
        clients.insert(client.clone(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn client(name: &str) -> Client {
        Client::Token(name.into())
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_client_has_half_of_the_processors_and_others_have_theirs() {
        for (processors, turns) in [(1, 1), (2, 1), (9, 4)] {
            let tokenising = Tokenising::new(processors);
            let rooms = ["mallory", "mallory", "alice"].map(|name| tokenising.take_room(&client(name), 9000).unwrap());
            let mut held: Vec<_> = (0..turns).map(|n| now(tokenising.turn(&rooms[n % 2], 8192)).unwrap()).collect();
            assert!(now(tokenising.turn(&rooms[0], 8192)).is_none() && now(tokenising.turn(&rooms[1], 8192)).is_none());
            assert!(now(tokenising.turn(&rooms[2], 8192)).is_some(), "{processors} processors");
            held.pop();
            assert!(now(tokenising.turn(&rooms[1], 8192)).is_some());
        }
    }

    #[test]
    fn large_parts_take_turns_with_those_of_others() {
        let tokenising = Tokenising::new(8);
        let [one, other] = ["one", "other"].map(|name| tokenising.take_room(&client(name), 1 << 20).unwrap());
        let large = now(tokenising.turn(&one, LARGE_PART_BYTES)).unwrap();
        assert!(now(tokenising.turn(&other, LARGE_PART_BYTES)).is_none());
        assert!(now(tokenising.turn(&other, LARGE_PART_BYTES - 1)).is_some());
        drop(large);
        assert!(now(tokenising.turn(&other, LARGE_PART_BYTES)).is_some());
    }

    #[test]
    fn one_client_leaves_half_of_the_room_and_nothing_behind() {
        let tokenising = Tokenising::new(2);
        let mut held = Vec::new();
        while let Some(room) = tokenising.take_room(&client("mallory"), 1 << 20) {
            held.push(room);
        }
        assert_eq!((held.len(), tokenising.room.available_permits()), (32, TEXT_KIB_MAX / 2));
        assert!(tokenising.take_room(&client("mallory"), 9000).is_none());
        assert!(tokenising.take_room(&client("alice"), 15 << 20).is_some());
        held.clear();
        assert!(tokenising.take_room(&client("bob"), 9000).is_some());
        assert_eq!(tokenising.clients.lock().unwrap().len(), 1, "those without texts are gone");
        assert_eq!(tokenising.room.available_permits(), TEXT_KIB_MAX);
    }
}
