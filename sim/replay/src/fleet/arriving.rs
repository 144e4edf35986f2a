//! Arrivals: as the source says, one after another, or all at once.

use trunkline_cluster::Input;
use trunkline_core::RequestId;
use trunkline_core::core::event::Event;

use super::{Fleet, Pending, engine};
use crate::fleet::ReplayError;
use crate::in_flight::InFlightRequest;
use crate::settings::Arrivals;
use trunkline_sim_report::report::TooLong;
use trunkline_sim_workload::trace::{Source, TraceError, TraceRequest};

/// Requests taken ahead per replica, above the number that a core may defer in the search for a request to admit.
const LOOK_AHEAD: usize = 64;

impl Fleet<'_> {
    /// Starts the arrivals that depend on no end.
    pub(super) fn begin_arrivals(&mut self) -> Result<(), ReplayError> {
        match self.pending.arrivals {
            Arrivals::Traced { .. } | Arrivals::Closed(_) => {
                self.pending.next_ns = self.pending.next_arrival_ns()?;
            }
            Arrivals::Serial => self.arrive_next()?,
            Arrivals::AtOnce => {
                // As many as can run, and as many again and some, so that no scheduling pass comes to the end of the queue.
                let batch = self.cluster.core(engine(0)).config().max_batch_size as usize;
                for _ in 0..2 * batch + LOOK_AHEAD {
                    for replica in 0..self.replicas.len() {
                        self.arrive_next_at_once(replica)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles the arrivals caused by ends of requests.
    pub(super) fn follow_up(&mut self) -> Result<(), ReplayError> {
        if self.pending.freed.is_empty() {
            return Ok(());
        }
        if self.pending.arrivals.is_timed() {
            self.pending.freed.clear();
            self.pending.next_ns = self.pending.next_arrival_ns()?;
            return Ok(());
        }
        // An arrival may be refused, and so free a place again.
        while let Some(replica) = self.pending.freed.pop() {
            match self.pending.arrivals {
                Arrivals::AtOnce => self.arrive_next_at_once(replica)?,
                _ => self.arrive_next()?,
            }
        }
        Ok(())
    }

    /// Handles the next arrival of the source, if any.
    pub(super) fn arrive_next(&mut self) -> Result<(), ReplayError> {
        let Some(number) = self.take()? else { return Ok(()) };
        if self.pending.arrivals.is_timed() {
            self.pending.next_ns = self.pending.next_arrival_ns()?;
        }
        self.arrive(number, None);
        Ok(())
    }

    /// Handles the next arrival of all that arrive at once, instead of a request that ended at a replica.
    fn arrive_next_at_once(&mut self, replica: usize) -> Result<(), ReplayError> {
        if self.pending.routes_at_once { self.arrive_next() } else { self.arrive_next_of(replica) }
    }

    /// Handles the next arrival in turn at one replica, if any.
    fn arrive_next_of(&mut self, replica: usize) -> Result<(), ReplayError> {
        while self.pending.ahead[replica].is_empty() {
            let Some(number) = self.take()? else { return Ok(()) };
            let turn = number % self.replicas.len() as u64;
            self.pending.ahead[turn as usize].push_back(number);
        }
        let number = self.pending.ahead[replica].pop_front().expect("one is there");
        self.arrive(number, Some(replica));
        Ok(())
    }

    /// Takes a request from the source. Its latencies count from now, or from the beginning if all requests arrive there.
    fn take(&mut self) -> Result<Option<u64>, ReplayError> {
        let Some(traced) = self.pending.next_request()? else { return Ok(None) };
        let asked_ns = if self.pending.arrivals == Arrivals::AtOnce { 0 } else { self.now_ns };
        let tenant = self.settings.tenants.tenant_of(self.totals.taken, traced.terms.tenant);
        if let Some(max_context) = self.settings.model.max_context {
            let tokens = u64::from(traced.input_tokens) + u64::from(traced.output_tokens);
            TooLong::add(&mut self.totals.too_long, tokens, max_context);
        }
        self.totals.unlimited += u64::from(traced.terms.max_tokens.is_none() && !traced.is_prefetch());
        let number = self.flights.push(InFlightRequest::new(traced, asked_ns, tenant));
        assert_eq!(number, self.totals.taken, "requests are numbered as they come");
        self.totals.taken += 1;
        Ok(Some(number))
    }

    /// A request arrives at one replica, or where the router sends it. Without hints a prefetch arrives nowhere.
    pub(super) fn arrive(&mut self, number: u64, replica: Option<usize>) {
        if !self.settings.hints && self.flights.get(number).traced.is_prefetch() {
            self.flights.remove(number);
            return self.end_prefetch(replica.unwrap_or(0), RequestId(number), 0);
        }
        let submit = Event::Submit(Box::new(self.request(number)));
        self.input(match replica {
            Some(replica) => Input::Engine(engine(replica), submit),
            None => Input::Client(submit),
        });
    }
}

impl Pending<'_> {
    /// Returns the time of the next arrival, if the source knows.
    fn next_arrival_ns(&mut self) -> Result<Option<u64>, TraceError> {
        match &mut self.turns {
            Some(turns) => turns.next_arrival_ns(&mut self.source),
            None => self.source.next_arrival_ns(),
        }
    }

    fn next_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        match &mut self.turns {
            Some(turns) => Ok(turns.next_request()),
            None => self.source.next_request(),
        }
    }
}
