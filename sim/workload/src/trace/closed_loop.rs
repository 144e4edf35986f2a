//! A closed loop: so many users, each of whom sends the next request when the one before has ended.
//!
//! Public benchmarks load a server this way (`--max-concurrency` of vLLM, `--concurrency` of GenAI-Perf). Arrival times of the trace do not count, its
//! order does: a user who is free takes the next request, or the next session, whose turns the user sends one after another. Of a turn that
//! states its delay after the turn before, the delay counts, of others the pause of the loop.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::{Format, Outcome, Source, TraceError, TraceRequest};

/// Users of a closed loop, at most.
pub const USERS_MAX: u32 = 1 << 20;
/// Longest pause, and longest beginning, seconds: a week.
pub const PAUSE_MAX_S: f64 = 7.0 * 86_400.0;

/// Shape of a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClosedLoop {
    /// Number of users, from 1 to 2^20; each has one request at a time.
    pub users: u32,
    /// Time from the end of an answer to the next request of the user, seconds.
    pub think_s: f64,
    /// Time over which the users begin, evenly, seconds; 0 for all at once.
    pub ramp_s: f64,
}

/// Closed loop out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ClosedLoopError {
    /// Number of users out of range.
    #[error("concurrency is {0}; it must be from 1 to {USERS_MAX}")]
    Users(u32),
    /// Time out of range.
    #[error("{name} is {seconds}; it must be from 0 to {PAUSE_MAX_S} seconds")]
    Time {
        /// Name of the time.
        name: &'static str,
        /// Time as given, seconds.
        seconds: f64,
    },
}

impl ClosedLoop {
    /// Checks the ranges.
    ///
    /// # Errors
    ///
    /// [`ClosedLoopError`] if a number is outside its range.
    pub fn validate(&self) -> Result<(), ClosedLoopError> {
        if !(1..=USERS_MAX).contains(&self.users) {
            return Err(ClosedLoopError::Users(self.users));
        }
        for (name, seconds) in [("think time", self.think_s), ("ramp", self.ramp_s)] {
            if !(0.0..=PAUSE_MAX_S).contains(&seconds) {
                return Err(ClosedLoopError::Time { name, seconds });
            }
        }
        Ok(())
    }
}

/// Requests of a source in a closed loop. The source is read as far as the users need it, and further where the next turn of a session lies
/// behind requests of others.
pub struct Looped<'a> {
    source: &'a mut dyn Source,
    think_ns: u64,
    /// Users that wait to send, by the time and by number.
    due: BTreeSet<(u64, u32)>,
    /// Session of each user of which turns may follow.
    sessions: Vec<Option<u32>>,
    /// Next turn of each user, if the user is in a session and the turn is read.
    next: Vec<Option<TraceRequest>>,
    /// User of each request in flight, by its number.
    in_flight: HashMap<u64, u32>,
    /// Requests that begin something new, read in search of a turn.
    fresh: VecDeque<TraceRequest>,
    /// Turns read in search of others, by session.
    turns: HashMap<u32, VecDeque<TraceRequest>>,
    /// Fault met in the search of a turn.
    fault: Option<TraceError>,
    n_given: u64,
}

impl<'a> Looped<'a> {
    /// Puts users before a source, of which nothing has been read.
    pub fn new(source: &'a mut dyn Source, shape: ClosedLoop) -> Self {
        source.wait_for_no_end();
        let begin_ns = |user: u32| (shape.ramp_s * 1e9 * f64::from(user) / f64::from(shape.users)) as u64;
        let users = shape.users as usize;
        Self {
            source,
            think_ns: (shape.think_s * 1e9) as u64,
            due: (0..shape.users).map(|user| (begin_ns(user), user)).collect(),
            sessions: vec![None; users],
            next: vec![None; users],
            in_flight: HashMap::new(),
            fresh: VecDeque::new(),
            turns: HashMap::new(),
            fault: None,
            n_given: 0,
        }
    }

    /// Returns the next turn of a session; `None` if the source has no more.
    fn turn_of(&mut self, session: u32) -> Result<Option<TraceRequest>, TraceError> {
        if let Some(turn) = self.turns.get_mut(&session).and_then(VecDeque::pop_front) {
            return Ok(Some(turn));
        }
        while let Some(request) = self.source.next_request()? {
            match request.turn {
                Some(turn) if turn.session == session => return Ok(Some(request)),
                _ => self.hold_back(request),
            }
        }
        Ok(None)
    }

    /// Keeps a request for later: the first of its session that was seen begins something new.
    fn hold_back(&mut self, request: TraceRequest) {
        match request.turn {
            Some(turn) if self.is_begun(turn.session) => {
                self.turns.entry(turn.session).or_default().push_back(request);
            }
            _ => {
                if let Some(turn) = request.turn {
                    self.turns.entry(turn.session).or_default();
                }
                self.fresh.push_back(request);
            }
        }
    }

    fn is_begun(&self, session: u32) -> bool {
        self.turns.contains_key(&session)
    }

    /// Returns the next request that begins something new; `None` if the source has no more.
    fn fresh(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        if let Some(request) = self.fresh.pop_front() {
            return Ok(Some(request));
        }
        while let Some(request) = self.source.next_request()? {
            self.hold_back(request);
            if let Some(request) = self.fresh.pop_front() {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    /// Takes what a user sends next: the turn that waits, or something new.
    fn take(&mut self, user: u32) -> Result<Option<TraceRequest>, TraceError> {
        match self.next[user as usize].take() {
            Some(turn) => Ok(Some(turn)),
            None => self.fresh(),
        }
    }

    /// Finds out what a user whose request ended at `now_ns` sends next, and when.
    fn go_on(&mut self, user: u32, now_ns: u64) -> Result<(), TraceError> {
        let mut pause_ns = self.think_ns;
        if let Some(session) = self.sessions[user as usize].take() {
            self.next[user as usize] = self.turn_of(session)?;
            let delay_ns = self.next[user as usize].as_ref().and_then(|next| next.turn).map_or(0, |turn| turn.delay_ns);
            if delay_ns > 0 {
                pause_ns = delay_ns;
            }
        }
        self.due.insert((now_ns.saturating_add(pause_ns), user));
        Ok(())
    }
}

impl Source for Looped<'_> {
    fn format(&self) -> Format {
        self.source.format()
    }

    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        // A user whom nothing is left for goes home; a turn that another user waits with is no one else's.
        while let Some((at_ns, user)) = self.due.first().copied() {
            if self.next[user as usize].is_some() {
                return Ok(Some(at_ns));
            }
            if let Some(request) = self.fresh()? {
                self.fresh.push_front(request);
                return Ok(Some(at_ns));
            }
            self.due.pop_first();
        }
        Ok(None)
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        let Some((at_ns, user)) = self.due.pop_first() else { return Ok(None) };
        let Some(mut request) = self.take(user)? else { return Ok(None) };
        request.arrival_ns = at_ns;
        if let Some(turn) = request.turn {
            self.sessions[user as usize] = Some(turn.session).filter(|_| !turn.is_last);
            if turn.is_last {
                self.turns.remove(&turn.session);
            }
        }
        self.in_flight.insert(self.n_given, user);
        self.n_given += 1;
        Ok(Some(request))
    }

    fn ended(&mut self, number: u64, now_ns: u64, _: Outcome) {
        let Some(user) = self.in_flight.remove(&number) else { return };
        if let Err(fault) = self.go_on(user, now_ns) {
            self.fault = Some(fault);
        }
    }

    fn waits_for_ends(&self) -> bool {
        true
    }

    fn earliest_arrival_ns(&mut self, _: usize, end_ns: u64) -> u64 {
        self.due.first().map_or(end_ns, |(at_ns, _)| end_ns.min(*at_ns))
    }

    fn requests_hint(&self) -> Option<u64> {
        self.source.requests_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sessions::Turn;
    use super::super::{Trace, formats};
    use super::*;

    const MS: u64 = 1_000_000;

    fn request(input_tokens: u32, turn: Option<(u32, u64, bool)>) -> TraceRequest {
        let turn = turn.map(|(session, delay_ms, is_last)| Turn { session, delay_ns: delay_ms * MS, is_last });
        TraceRequest { arrival_ns: u64::from(input_tokens) * 1_000 * MS, input_tokens, turn, ..TraceRequest::default() }
    }

    fn trace(requests: Vec<TraceRequest>) -> Trace {
        Trace { format: formats::MOONCAKE, requests }
    }

    /// Replays a loop in which a request of `n` tokens takes `n` milliseconds. Returns arrivals in milliseconds, and tokens.
    fn arrivals(trace: &Trace, users: u32, think_ms: u64, ramp_ms: u64) -> Vec<(u64, u32)> {
        let mut source = trace.source();
        let shape = ClosedLoop { users, think_s: think_ms as f64 / 1e3, ramp_s: ramp_ms as f64 / 1e3 };
        shape.validate().unwrap();
        let mut looped = Looped::new(&mut source, shape);
        let (mut seen, mut running) = (Vec::new(), BTreeSet::new());
        loop {
            let next = looped.next_arrival_ns().unwrap();
            if let Some((end_ns, number)) = running.first().copied()
                && next.is_none_or(|next| end_ns <= next)
            {
                running.pop_first();
                let earliest_ns = looped.earliest_arrival_ns(0, end_ns);
                looped.ended(number, end_ns, Outcome::Completed);
                assert!(earliest_ns <= looped.next_arrival_ns().unwrap().unwrap_or(u64::MAX));
                continue;
            }
            let Some(at_ns) = next else { return seen };
            let request = looped.next_request().unwrap().unwrap();
            assert_eq!(request.arrival_ns, at_ns);
            running.insert((at_ns + u64::from(request.input_tokens) * MS, seen.len() as u64));
            assert!(running.len() <= users as usize, "one request of each user");
            seen.push((at_ns / MS, request.input_tokens));
        }
    }

    #[test]
    fn the_next_request_arrives_when_one_ends() {
        let trace = trace([10, 30, 5, 7, 1].map(|tokens| request(tokens, None)).to_vec());
        assert_eq!(arrivals(&trace, 1, 0, 0), [(0, 10), (10, 30), (40, 5), (45, 7), (52, 1)]);
        assert_eq!(arrivals(&trace, 2, 0, 0), [(0, 10), (0, 30), (10, 5), (15, 7), (22, 1)]);
        assert_eq!(arrivals(&trace, 2, 3, 0), [(0, 10), (0, 30), (13, 5), (21, 7), (31, 1)]);
        // Users that begin one after another, and more users than requests.
        assert_eq!(arrivals(&trace, 2, 0, 8), [(0, 10), (4, 30), (10, 5), (15, 7), (22, 1)]);
        assert_eq!(arrivals(&trace, 9, 0, 0).iter().map(|(at, _)| *at).max(), Some(0));
    }

    #[test]
    fn a_user_sends_the_turns_of_a_session_in_order() {
        let requests = vec![
            request(10, Some((0, 0, false))),
            request(20, Some((1, 0, false))),
            request(30, None),
            request(11, Some((0, 0, false))),
            request(21, Some((1, 4, true))),
            request(12, Some((0, 0, true))),
        ];
        let one = arrivals(&trace(requests.clone()), 1, 2, 0);
        // Session 0 whole, then session 1 with its delay, then the request by itself.
        assert_eq!(one, [(0, 10), (12, 11), (25, 12), (39, 20), (63, 21), (86, 30)]);
        let two = arrivals(&trace(requests), 2, 0, 0);
        assert_eq!(two, [(0, 10), (0, 20), (10, 11), (21, 12), (24, 21), (33, 30)]);
        // A session that a slice cuts off ends where the slice does.
        let cut = vec![request(10, Some((0, 0, false))), request(5, None)];
        assert_eq!(arrivals(&trace(cut), 1, 0, 0), [(0, 10), (10, 5)]);
    }

    #[test]
    fn numbers_out_of_range_are_told() {
        let told = |users, think_s, ramp_s| ClosedLoop { users, think_s, ramp_s }.validate().unwrap_err().to_string();
        assert_eq!(told(0, 0.0, 0.0), "concurrency is 0; it must be from 1 to 1048576");
        assert_eq!(told(1, -1.0, 0.0), "think time is -1; it must be from 0 to 604800 seconds");
        assert_eq!(told(1, 0.0, f64::NAN), "ramp is NaN; it must be from 0 to 604800 seconds");
    }
}
