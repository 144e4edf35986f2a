//! Seats of attached workers: the engines without an embedded worker, and who sits there.
//!
//! ```text
//! Vacant --Attached--> Taken --Broke--> Broken --Lost--> Vacant
//!   ^                  ^  |               |
//!   |                  '--|----Resumed----'
//!   '--------Lost---------'
//! ```
//!
//! A worker whose connection breaks keeps its seat for a time ([`Absence`]), and continues with its KV if it comes back. A worker whose connection
//! was not yet seen to break resumes too: its new connection takes the place of the old one. A worker without the session waits until the
//! one of its name is silent, or leaves.

use std::time::Duration;

use trunkline_attach::wire::Welcome;
use trunkline_attach::{LockStep, Session};
use trunkline_cluster::{Absence, EngineId};
use trunkline_core::Config;

/// State of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeatState {
    /// Nobody is attached.
    Vacant,
    /// A worker is attached.
    Taken,
    /// The connection of the worker is broken; the seat waits for the worker.
    Broken,
}

/// Change of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeatEvent {
    /// A worker attached with a new session.
    Attached,
    /// The connection broke.
    Broke,
    /// The worker came back with its KV.
    Resumed,
    /// The worker left, was replaced, broke a rule, or did not come back in time.
    Lost,
}

/// All changes of state.
pub(crate) const TRANSITIONS: [(SeatEvent, SeatState, SeatState); 6] = {
    use SeatEvent::{Attached, Broke, Lost, Resumed};
    use SeatState::{Broken, Taken, Vacant};
    [
        (Attached, Vacant, Taken),
        (Broke, Taken, Broken),
        (Resumed, Taken, Taken),
        (Resumed, Broken, Taken),
        (Lost, Taken, Vacant),
        (Lost, Broken, Vacant),
    ]
};

impl SeatState {
    /// Returns the state after an event; `None` if the event has no place in the state.
    fn after(self, event: SeatEvent) -> Option<Self> {
        TRANSITIONS.iter().find(|(on, from, _)| (*on, *from) == (event, self)).map(|(_, _, to)| *to)
    }
}

/// Session that a worker wants to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resume {
    pub(crate) session: String,
    /// Life whose KV the worker holds.
    pub(crate) life: u64,
}

/// A worker in a seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Occupant {
    /// Name, unique among the workers of the server.
    pub(crate) name: String,
    /// Program and version.
    pub(crate) program: String,
    pub(crate) session: String,
    /// Number of the present or last connection.
    pub(crate) link: u64,
    /// Group of workers that run in lock step with this one.
    pub(crate) lock_step: Option<LockStep>,
    /// Maximum number of drafts of a sequence that the worker makes in one step.
    pub(crate) max_drafts: u32,
    /// End of the wait for a broken connection, nanoseconds.
    resume_until_ns: u64,
    /// `true` if the worker's end closed the broken connection.
    is_closed: bool,
}

impl Occupant {
    pub(crate) fn new(name: String, program: String, session: String, link: u64) -> Self {
        Self { name, program, session, link, lock_step: None, max_drafts: 0, resume_until_ns: 0, is_closed: false }
    }
}

/// The seat of an engine.
#[derive(Debug)]
struct Seat {
    engine: EngineId,
    state: SeatState,
    occupant: Option<Occupant>,
}

/// Place for a worker that wants to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A vacant seat.
    Take(EngineId),
    /// The seat of an older worker, which loses the seat: of the same name, or with a broken connection while no seat is vacant.
    Replace(EngineId),
    /// The worker's own seat, with its KV.
    Resume(EngineId),
    /// None: a worker of the same name has this seat, and was heard lately.
    NameTaken(EngineId),
}

/// Times and number of attached workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// Engines for attached workers: the last so many of the cluster. The others have embedded workers.
    pub engines: usize,
    /// Time without a message after which a connection counts as broken, at both ends. Each side sends some message in a fifth of it.
    pub silence: Duration,
    /// Time for which the KV of a worker with a broken connection is kept, and its requests wait for the worker.
    pub resume: Duration,
    /// Time for which requests wait for a worker if no engine has one. After that they end with an error, and new ones are refused until
    /// a worker attaches.
    pub wait: Duration,
    /// `true` to copy blocks through shared memory where a worker on this machine can.
    pub shared_memory: bool,
    /// `true` if requests are expected to ask for attention scores (`h2o`): the result of a step then has up to 1 GiB of scores, else 63 MiB.
    pub scores: bool,
}

impl Default for AttachOptions {
    /// No attached workers; 10 s of silence, 10 s to resume, 60 s to wait for a worker, shared memory, and no scores.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let (silence, resume, wait) = (seconds(10), seconds(10), seconds(60));
        Self { engines: 0, silence, resume, wait, shared_memory: true, scores: false }
    }
}

/// Returns the time between two messages, at most, given the time after which a connection counts as broken.
pub(crate) fn heartbeat(silence: Duration) -> Duration {
    silence / 5
}

/// The seats of a server, in the order of the engines.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    seats: Vec<Seat>,
    silence: Duration,
    resume: Duration,
    wait: Duration,
}

impl Seats {
    /// Makes vacant seats for the last engines of a cluster of `engines`.
    pub(crate) fn new(engines: usize, options: &AttachOptions) -> Self {
        let seat = |at: usize| Seat { engine: EngineId(at as u32), state: SeatState::Vacant, occupant: None };
        let first = engines.saturating_sub(options.engines);
        let AttachOptions { silence, resume, wait, .. } = *options;
        Self { seats: (first..engines).map(seat).collect(), silence, resume, wait }
    }

    /// Returns the time after which a worker without a message is no longer taken to be there: two heartbeats.
    pub(crate) fn presence(&self) -> Duration {
        2 * heartbeat(self.silence)
    }

    /// Returns the time for which requests wait if no engine has a worker.
    pub(crate) fn wait(&self) -> Duration {
        self.wait
    }

    /// Returns the welcome of a worker to an engine whose core has these limits.
    pub(crate) fn welcome(
        &self,
        engine: EngineId,
        worker: &Occupant,
        life: u64,
        core: &Config,
        resumed: bool,
    ) -> Welcome {
        let session = Session {
            name: worker.session.clone(),
            life,
            resumed,
            engine: engine.0,
            block_size: core.block_size,
            blocks: core.pool_blocks(),
            steps_in_flight: core.max_steps_in_flight,
            max_drafts: core.max_drafts.min(worker.max_drafts),
            heartbeat: heartbeat(self.silence),
            silence: self.silence,
            resume: self.resume,
            // The connection adds its own.
            shared_memory: None,
        };
        session.encode()
    }

    fn seat(&self, engine: EngineId) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.engine == engine)
    }

    /// Returns `true` if the engine is for an attached worker.
    pub(crate) fn has(&self, engine: EngineId) -> bool {
        self.seat(engine).is_some()
    }

    /// Returns the number of seats without a worker.
    pub(crate) fn vacant(&self) -> usize {
        self.seats.iter().filter(|seat| seat.state == SeatState::Vacant).count()
    }

    /// Returns the engines for attached workers.
    pub(crate) fn engines(&self) -> impl Iterator<Item = EngineId> {
        self.seats.iter().map(|seat| seat.engine)
    }

    /// Returns the state of an engine's seat; `None` for an engine with an embedded worker.
    pub(crate) fn state(&self, engine: EngineId) -> Option<SeatState> {
        self.seat(engine).map(|seat| seat.state)
    }

    /// Returns the worker of a seat.
    pub(crate) fn occupant(&self, engine: EngineId) -> Option<&Occupant> {
        self.seat(engine)?.occupant.as_ref()
    }

    /// Returns `true` if the seat has a worker, or waits for one with a broken connection.
    pub(crate) fn is_occupied(&self, engine: EngineId) -> bool {
        self.occupant(engine).is_some()
    }

    /// Returns `true` if a connection is the present one of an engine.
    pub(crate) fn is_present(&self, engine: EngineId, link: u64) -> bool {
        self.state(engine) == Some(SeatState::Taken) && self.occupant(engine).is_some_and(|worker| worker.link == link)
    }

    /// Chooses the place of a worker. `life` returns the life of an engine's worker, `heard_ns` the time of its last message, and `requests`
    /// the requests on an engine. A worker of the same name keeps its seat while its messages come: two with one name would take the seat
    /// from each other for ever. Of vacant seats, the one with the most waiting requests is taken. Without a vacant seat, a worker that is there goes before one that may come
    /// back: of broken connections, the one that broke first makes room. Returns `None` if all seats have a connected worker.
    pub(crate) fn place(
        &self,
        name: &str,
        resume: Option<&Resume>,
        life: impl Fn(EngineId) -> u64,
        heard: impl Fn(EngineId) -> bool,
        requests: impl Fn(EngineId) -> u32,
    ) -> Option<Place> {
        let own = self.seats.iter().find(|seat| seat.occupant.as_ref().is_some_and(|worker| worker.name == name));
        if let Some(Seat { engine, occupant: Some(worker), state }) = own {
            return Some(match resume.filter(|resume| resume.session == worker.session) {
                Some(resume) if resume.life == life(*engine) => Place::Resume(*engine),
                None if *state == SeatState::Taken && heard(*engine) => Place::NameTaken(*engine),
                _ => Place::Replace(*engine),
            });
        }
        let vacant = self.seats.iter().filter(|seat| seat.state == SeatState::Vacant);
        let most = vacant.max_by_key(|seat| (requests(seat.engine), std::cmp::Reverse(seat.engine)));
        let oldest = || self.next_end_ns().map(|(_, engine)| Place::Replace(engine));
        most.map(|seat| Place::Take(seat.engine)).or_else(oldest)
    }

    /// Changes a seat.
    ///
    /// # Panics
    /// If the event has no place in the state of the seat.
    fn change(&mut self, engine: EngineId, event: SeatEvent) -> &mut Option<Occupant> {
        let seat = self.seats.iter_mut().find(|seat| seat.engine == engine).expect("the engine has a seat");
        seat.state = seat.state.after(event).unwrap_or_else(|| panic!("{event:?} in a seat that is {:?}", seat.state));
        &mut seat.occupant
    }

    /// Notes a worker with a new session.
    pub(crate) fn attach(&mut self, engine: EngineId, worker: Occupant) {
        *self.change(engine, SeatEvent::Attached) = Some(worker);
    }

    /// Notes a worker that came back.
    pub(crate) fn resume(&mut self, engine: EngineId, worker: Occupant) {
        *self.change(engine, SeatEvent::Resumed) = Some(worker);
    }

    /// Notes a broken connection at `now_ns`, closed by the worker's end or not.
    pub(crate) fn note_broken(&mut self, engine: EngineId, is_closed: bool, now_ns: u64) {
        let limit_ns = nanos(self.resume);
        if let Some(worker) = self.change(engine, SeatEvent::Broke) {
            (worker.resume_until_ns, worker.is_closed) = (now_ns.saturating_add(limit_ns), is_closed);
        }
    }

    /// Shortens the wait for a broken connection: from `now_ns` on, the running requests could be computed again elsewhere in `again_ns`.
    pub(crate) fn limit_wait(&mut self, engine: EngineId, again_ns: Option<u64>, now_ns: u64) {
        let (limit_ns, heartbeat_ns) = (nanos(self.resume), nanos(heartbeat(self.silence)));
        let seat = self.seats.iter_mut().find(|seat| seat.engine == engine);
        if let Some(worker) = seat.and_then(|seat| seat.occupant.as_mut()) {
            let absence = Absence { limit_ns, heartbeat_ns, is_closed: worker.is_closed };
            let until_ns = now_ns.saturating_add(absence.patience_ns(again_ns));
            worker.resume_until_ns = worker.resume_until_ns.min(until_ns);
        }
    }

    /// Makes a seat vacant, and returns the worker that was there.
    pub(crate) fn vacate(&mut self, engine: EngineId) -> Option<Occupant> {
        self.change(engine, SeatEvent::Lost).take()
    }

    /// Returns the engines whose workers have broken connections.
    pub(crate) fn broken(&self) -> impl Iterator<Item = EngineId> {
        self.seats.iter().filter(|seat| seat.state == SeatState::Broken).map(|seat| seat.engine)
    }

    /// Returns the next end of the wait for a broken connection, with the engine, nanoseconds.
    pub(crate) fn next_end_ns(&self) -> Option<(u64, EngineId)> {
        self.broken().filter_map(|engine| Some((self.occupant(engine)?.resume_until_ns, engine))).min()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use SeatEvent::{Attached, Broke, Lost, Resumed};
    use SeatState::{Broken, Taken, Vacant};

    fn worker(name: &str, link: u64) -> Occupant {
        Occupant::new(name.into(), "test".into(), format!("session {link}"), link)
    }

    /// Engines 1 and 2 of three, and 5 s to resume.
    fn seats() -> Seats {
        Seats::new(3, &AttachOptions { engines: 2, resume: Duration::from_secs(5), ..AttachOptions::default() })
    }

    #[test]
    fn the_table_of_transitions_is_as_reviewed() {
        let mut table = String::new();
        for from in [Vacant, Taken, Broken] {
            let row = [Attached, Broke, Resumed, Lost].map(|event| match from.after(event) {
                Some(to) => format!("{event:?}>{to:?}"),
                None => format!("{event:?}!"),
            });
            table.push_str(&format!("{from:?}: {}\n", row.join(" ")));
        }
        let reviewed = "\
Vacant: Attached>Taken Broke! Resumed! Lost!
Taken: Attached! Broke>Broken Resumed>Taken Lost>Vacant
Broken: Attached! Broke! Resumed>Taken Lost>Vacant
";
        assert_eq!(table, reviewed);
    }

    #[test]
    fn a_worker_takes_the_vacant_seat_with_the_most_requests_or_its_own() {
        let mut seats = seats();
        assert!(!seats.has(EngineId(0)) && seats.has(EngineId(1)));
        let place = |seats: &Seats, name: &str, resume: Option<Resume>, waiting: [u32; 3]| {
            seats.place(name, resume.as_ref(), |_| 7, |_| false, |engine| waiting[engine.index()])
        };
        let resume = |session: &str, life| Some(Resume { session: session.into(), life });
        assert_eq!(place(&seats, "a", None, [9, 0, 0]), Some(Place::Take(EngineId(1))), "the first of equals");
        assert_eq!(place(&seats, "a", resume("session 1", 7), [9, 0, 1]), Some(Place::Take(EngineId(2))));
        seats.attach(EngineId(2), worker("a", 1));
        assert_eq!(place(&seats, "b", None, [0; 3]), Some(Place::Take(EngineId(1))));
        seats.attach(EngineId(1), worker("b", 2));
        assert_eq!(place(&seats, "c", None, [0; 3]), None, "all seats are taken");
        assert_eq!(place(&seats, "a", None, [0; 3]), Some(Place::Replace(EngineId(2))));
        assert_eq!(place(&seats, "a", resume("session 1", 7), [0; 3]), Some(Place::Resume(EngineId(2))));
        for other in [resume("session 1", 6), resume("session 2", 7)] {
            assert_eq!(place(&seats, "a", other, [0; 3]), Some(Place::Replace(EngineId(2))), "another life or session");
        }
        let place_of_a = |resume: Option<Resume>| seats.place("a", resume.as_ref(), |_| 7, |_| true, |_| 0);
        assert_eq!(place_of_a(resume("session 1", 7)), Some(Place::Resume(EngineId(2))));
        assert_eq!(place_of_a(resume("session 1", 6)), Some(Place::Replace(EngineId(2))), "the worker itself");
        assert_eq!(place_of_a(resume("session 2", 7)), Some(Place::NameTaken(EngineId(2))));
        assert_eq!(place_of_a(None), Some(Place::NameTaken(EngineId(2))));
        assert!(seats.is_present(EngineId(2), 1) && !seats.is_present(EngineId(2), 2));
    }

    #[test]
    fn a_broken_connection_keeps_its_seat_for_a_time() {
        let mut seats = seats();
        seats.attach(EngineId(1), worker("a", 1));
        assert_eq!(seats.next_end_ns(), None);
        seats.note_broken(EngineId(1), true, 1_000_000_000);
        assert_eq!(seats.next_end_ns(), Some((6_000_000_000, EngineId(1))));
        assert!(seats.is_occupied(EngineId(1)) && !seats.is_present(EngineId(1), 1));
        assert_eq!(seats.place("b", None, |_| 0, |_| true, |_| 0), Some(Place::Take(EngineId(2))), "the seat is kept");
        assert_eq!(
            seats.place("a", None, |_| 0, |_| true, |_| 0),
            Some(Place::Replace(EngineId(1))),
            "a broken connection"
        );
        seats.attach(EngineId(2), worker("b", 2));
        let newcomer = |seats: &Seats| seats.place("c", None, |_| 0, |_| true, |_| 0);
        assert_eq!(newcomer(&seats), Some(Place::Replace(EngineId(1))), "rather than a worker that may come back");
        seats.note_broken(EngineId(2), false, 900_000_000);
        assert_eq!(newcomer(&seats), Some(Place::Replace(EngineId(2))), "that connection broke first");
        seats.resume(EngineId(1), worker("a", 3));
        assert!(
            seats.is_present(EngineId(1), 3) && seats.next_end_ns().is_some_and(|(_, engine)| engine == EngineId(2))
        );
        assert_eq!(seats.vacate(EngineId(1)).map(|worker| worker.link), Some(3));
        assert!(!seats.is_occupied(EngineId(1)));
    }
}
