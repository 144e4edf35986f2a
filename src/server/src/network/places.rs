//! Places for connections: which connection gives its place to another, and which clients may go to work on further ones.
//!
//! | a connection is | if | gives its place to another |
//! |---|---|---|
//! | a stranger | no caller with rights got an answer on it yet, and none has a whole message in it | while there are at least as many strangers as acquaintances |
//! | an acquaintance | a caller with rights got an answer on it, and none has a whole message in it now | while there are fewer strangers |
//! | at work | a caller with rights has a whole message in it | never |
//!
//! So what is not at work is halved between strangers and acquaintances, and neither a flood of the one nor of the other keeps anyone out. Within its
//! half, the address with the most connections gives up the oldest of them: a client of another address has the time to become an
//! acquaintance, however many connections one address opens. Health, reflection, and calls whose message is not there hold no place.
//!
//! Connections at work never give way, so the last eighth of all places is for clients with less than an equal part of those at work. The calls of
//! one connection, on which a gateway has many holders of tokens, are shared in the same way.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::network::limits::NetworkLimits;
use crate::network::shares::Client;

/// The part of all places, and of the calls of a connection, that is kept for clients with few of them: one in so many.
const KEPT: u32 = 8;

/// What a connection has done for its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Stranger,
    Acquaintance,
    AtWork,
}

/// A connection that may have to give up its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) number: u64,
    pub(crate) peer: IpAddr,
    pub(crate) standing: Standing,
    /// Time of the beginning of a stranger, and of the last work of an acquaintance.
    pub(crate) since_ns: u64,
}

/// Returns the number of the connection that is to give up its place; `None` if all are at work.
pub(crate) fn first_to_go(held: impl IntoIterator<Item = Held>) -> Option<u64> {
    let held: Vec<Held> = held.into_iter().filter(|held| held.standing != Standing::AtWork).collect();
    let strangers = held.iter().filter(|held| held.standing == Standing::Stranger).count();
    let goes = if 2 * strangers >= held.len() { Standing::Stranger } else { Standing::Acquaintance };
    let mut of_peer = BTreeMap::<IpAddr, usize>::new();
    for held in held.iter().filter(|held| held.standing == goes) {
        *of_peer.entry(held.peer).or_default() += 1;
    }
    let going = held.iter().filter(|held| held.standing == goes);
    going.min_by_key(|held| (Reverse(of_peer[&held.peer]), held.since_ns, held.number)).map(|held| held.number)
}

/// Connections at work, by the client of the call that began the work.
#[derive(Default)]
pub(crate) struct Workplaces(Mutex<Parts>);

/// What clients have of something that is shared: connections at work, or calls of one connection.
#[derive(Default)]
struct Parts(HashMap<Client, u32>);

impl Parts {
    /// Counts in one of a client; returns `false` if only the kept ones of `all` are left, and the client has an equal part of those in use.
    fn enter(&mut self, client: &Client, all: u32) -> bool {
        let in_use: u32 = self.0.values().sum();
        let mine = self.0.get(client).copied().unwrap_or_default();
        let clients = self.0.len() as u32 + u32::from(mine == 0);
        let are_kept = in_use >= all - all / KEPT;
        if are_kept && mine > 0 && (mine + 1).saturating_mul(clients) > in_use {
            return false;
        }
        self.0.insert(client.clone(), mine + 1);
        true
    }

    fn leave(&mut self, client: &Client) {
        if let Some(count) = self.0.get_mut(client) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(client);
            }
        }
    }
}

/// Why a call may not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// The client has its part of all connections at work.
    Connections,
    /// The client, one of the holders of tokens on this connection, has its part of the calls.
    Calls,
}

/// The place of one connection.
#[derive(Default)]
pub(crate) struct Place(Mutex<State>);

#[derive(Default)]
struct State {
    /// Calls with a whole message of a caller with rights.
    calls: u32,
    /// Those of holders of tokens.
    of_tokens: Parts,
    /// The client to whom the connection counts while it is at work.
    client: Option<Client>,
    /// Time of the last answer or end of such a call, once there was an answer.
    answered_ns: Option<u64>,
}

impl Place {
    /// Returns the standing, and since when the connection has waited if it is an acquaintance.
    pub(crate) fn standing(&self) -> (Standing, Option<u64>) {
        let state = lock(&self.0);
        match (state.calls, state.answered_ns) {
            (0, None) => (Standing::Stranger, None),
            (0, since_ns) => (Standing::Acquaintance, since_ns),
            (_, since_ns) => (Standing::AtWork, since_ns),
        }
    }

    /// Returns the number of calls at work.
    pub(crate) fn calls(&self) -> u32 {
        lock(&self.0).calls
    }

    /// Begins a call with a whole message, within the client's part of the connections at work and of the calls of this one: `limits` has
    /// the number of both. Without tokens a connection is of one client.
    ///
    /// # Errors
    /// What the client has its part of.
    pub(crate) fn begin(
        &self,
        client: &Client,
        workplaces: &Workplaces,
        limits: &NetworkLimits,
    ) -> Result<(), Crowded> {
        let mut state = lock(&self.0);
        let has_token = matches!(client, Client::Token(_));
        if has_token && !state.of_tokens.enter(client, limits.calls_per_connection) {
            return Err(Crowded::Calls);
        }
        if state.calls == 0 {
            if !lock(&workplaces.0).enter(client, limits.connections) {
                state.of_tokens.leave(client);
                return Err(Crowded::Connections);
            }
            state.client = Some(client.clone());
        }
        state.calls += 1;
        Ok(())
    }

    /// Notes an answer.
    pub(crate) fn answer(&self, now_ns: u64) {
        lock(&self.0).answered_ns = Some(now_ns);
    }

    /// Ends a call of a client that has begun.
    pub(crate) fn end(&self, client: &Client, now_ns: u64, workplaces: &Workplaces) {
        let mut state = lock(&self.0);
        state.of_tokens.leave(client);
        state.calls -= 1;
        state.answered_ns = state.answered_ns.map(|_| now_ns);
        if state.calls == 0
            && let Some(client) = state.client.take()
        {
            lock(&workplaces.0).leave(&client);
        }
    }
}

/// Locks counts whose changes are whole even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::Standing::{Acquaintance, AtWork, Stranger};
    use super::*;

    /// Returns who goes of connections numbered from 0, each with the last byte of its address, its standing and its time.
    fn goes(held: &[(u8, Standing, u64)]) -> Option<u64> {
        let held = (0..).zip(held).map(|(number, (peer, standing, since_ns))| Held {
            number,
            peer: [10, 0, 0, *peer].into(),
            standing: *standing,
            since_ns: *since_ns,
        });
        first_to_go(held)
    }

    #[test]
    fn the_address_with_the_most_of_the_larger_half_gives_up_its_oldest() {
        assert_eq!(goes(&[]), None);
        assert_eq!(goes(&[(1, AtWork, 0), (2, AtWork, 1)]), None);
        assert_eq!(goes(&[(1, Stranger, 5), (2, Stranger, 4), (3, AtWork, 0)]), Some(1));
        assert_eq!(goes(&[(1, Stranger, 1), (2, Stranger, 9), (2, Stranger, 8)]), Some(2), "one address has two");
        assert_eq!(goes(&[(1, Acquaintance, 0), (2, Stranger, 9)]), Some(1), "as many strangers as acquaintances");
        assert_eq!(goes(&[(1, Acquaintance, 3), (1, Acquaintance, 2), (2, Stranger, 0)]), Some(1));
        assert_eq!(goes(&[(1, Acquaintance, 0), (2, Acquaintance, 4), (2, Acquaintance, 3)]), Some(2));
    }

    #[test]
    fn the_last_places_are_for_clients_with_less_than_an_equal_part() {
        let (workplaces, limits) = (Workplaces::default(), NetworkLimits { connections: 16, ..Default::default() });
        let [big, other, small] = ["big", "other", "small"].map(|name| Client::Token(name.into()));
        let begin = |client: &Client| {
            let place = Place::default();
            place.begin(client, &workplaces, &limits).ok().map(|()| place)
        };
        let mut held: Vec<Place> = (0..14).map(|_| begin(&big).unwrap()).collect();
        assert!(begin(&big).is_none(), "two of sixteen are kept");
        held.push(begin(&other).unwrap());
        assert!(begin(&big).is_none() && begin(&small).is_some());
        let first = held.swap_remove(0);
        assert_eq!(first.begin(&big, &workplaces, &limits), Ok(()), "a connection at work takes further calls");
        first.end(&big, 1, &workplaces);
        assert_eq!((first.calls(), first.standing()), (1, (AtWork, None)));
        assert!(begin(&big).is_none());
        first.end(&big, 2, &workplaces);
        assert_eq!(first.standing(), (Stranger, None), "there was no answer");
        held[..13].iter().for_each(|place| place.end(&big, 3, &workplaces));
        held[13].end(&other, 3, &workplaces);
        assert!(lock(&workplaces.0).0.keys().eq([&small]));
    }

    #[test]
    fn the_last_calls_of_a_connection_are_for_others_behind_the_gateway() {
        let (workplaces, limits) =
            (Workplaces::default(), NetworkLimits { calls_per_connection: 16, ..Default::default() });
        let [big, small] = ["big", "small"].map(|name| Client::Token(name.into()));
        let place = Place::default();
        let begin = |client: &Client| place.begin(client, &workplaces, &limits);
        assert!((0..14).all(|_| begin(&big).is_ok()));
        assert_eq!(begin(&big), Err(Crowded::Calls), "two of sixteen are kept");
        assert_eq!([begin(&small), begin(&small), begin(&big)], [Ok(()), Ok(()), Err(Crowded::Calls)]);
        assert_eq!(place.calls(), 16);
        place.end(&big, 1, &workplaces);
        assert_eq!([begin(&big), begin(&small)], [Err(Crowded::Calls), Ok(())], "the last ones go to who has few");
        // Nobody else is behind an address without tokens.
        let (place, peer) = (Place::default(), Client::Peer([127, 0, 0, 1].into()));
        assert!((0..16).all(|_| place.begin(&peer, &workplaces, &limits).is_ok()));
    }

    #[test]
    fn a_call_without_a_place_counts_for_nothing() {
        let (workplaces, limits) = (Workplaces::default(), NetworkLimits { connections: 1, ..Default::default() });
        let client = Client::Token("alice".into());
        let (one, other) = (Place::default(), Place::default());
        assert_eq!(one.begin(&client, &workplaces, &limits), Ok(()));
        assert_eq!(other.begin(&client, &workplaces, &limits), Err(Crowded::Connections));
        assert!(lock(&other.0).of_tokens.0.is_empty());
    }

    #[test]
    fn an_answer_makes_an_acquaintance() {
        let (workplaces, place) = (Workplaces::default(), Place::default());
        let client = Client::Token("alice".into());
        assert_eq!(place.begin(&client, &workplaces, &NetworkLimits::default()), Ok(()));
        place.answer(5);
        assert_eq!(place.standing(), (AtWork, Some(5)));
        place.end(&client, 7, &workplaces);
        assert_eq!(place.standing(), (Acquaintance, Some(7)));
    }
}
