//! When requests come: as their source says, one after another, or all at once.

use trunkline_core::{Request, RequestId};

use super::Fleet;
use crate::fleet::ReplayError;
use crate::flights::Flight;
use crate::router::Pick;
use crate::settings::Arrivals;
use trunkline_sim_workload::trace::Source;

/// More requests than a core may leave aside when it looks for one to admit.
const LOOK_AHEAD: usize = 64;

impl Fleet<'_> {
    /// The arrivals that wait for nothing.
    pub(super) fn begin_arrivals(&mut self) -> Result<(), ReplayError> {
        match self.arrivals {
            Arrivals::Traced { .. } => self.next_arrival_ns = self.source.next_arrival_ns()?,
            Arrivals::Serial => self.arrive_next()?,
            Arrivals::AtOnce => {
                // As many as can run, and as many again and some, so that no scheduling pass comes to the end of the queue.
                let batch = self.replicas[0].core.config().max_batch_size as usize;
                for _ in 0..2 * batch + LOOK_AHEAD {
                    for replica in 0..self.replicas.len() {
                        self.arrive_next_of(replica)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The arrivals that the ends of requests bring about.
    pub(super) fn follow_up(&mut self) -> Result<(), ReplayError> {
        if self.freed.is_empty() {
            return Ok(());
        }
        if matches!(self.arrivals, Arrivals::Traced { .. }) {
            self.freed.clear();
            self.next_arrival_ns = self.source.next_arrival_ns()?;
            return Ok(());
        }
        // An arrival may be refused, and so free a place again.
        while let Some(replica) = self.freed.pop() {
            match self.arrivals {
                Arrivals::AtOnce => self.arrive_next_of(replica)?,
                _ => self.arrive_next()?,
            }
        }
        Ok(())
    }

    /// The next request of the source arrives, if it has one.
    pub(super) fn arrive_next(&mut self) -> Result<(), ReplayError> {
        let Some(number) = self.take()? else { return Ok(()) };
        if matches!(self.arrivals, Arrivals::Traced { .. }) {
            self.next_arrival_ns = self.source.next_arrival_ns()?;
        }
        let request = self.request(number);
        let pick = self.pick(number, &request);
        self.arrive(number, request, pick);
        Ok(())
    }

    /// The next request whose turn it is at one replica arrives, if there is one.
    fn arrive_next_of(&mut self, replica: usize) -> Result<(), ReplayError> {
        while self.ahead[replica].is_empty() {
            let Some(number) = self.take()? else { return Ok(()) };
            let turn = number % self.replicas.len() as u64;
            self.ahead[turn as usize].push_back(number);
        }
        let number = self.ahead[replica].pop_front().expect("one is there");
        let request = self.request(number);
        self.arrive(number, request, Pick { replica, known_tokens: 0 });
        Ok(())
    }

    /// Takes a request from the source. Its latencies count from now, or from the beginning if all are there then.
    fn take(&mut self) -> Result<Option<u64>, ReplayError> {
        let Some(traced) = self.source.next_request()? else { return Ok(None) };
        let asked_ns = if self.arrivals == Arrivals::AtOnce { 0 } else { self.now_ns };
        let tenant = self.settings.tenants.tenant_of(self.taken);
        let number = self.flights.push(Flight::new(traced, asked_ns, tenant));
        assert_eq!(number, self.taken, "requests are numbered as they come");
        self.taken += 1;
        Ok(Some(number))
    }

    fn arrive(&mut self, number: u64, request: Request, pick: Pick) {
        debug_assert_eq!(request.id, RequestId(number));
        let flight = self.flights.get(number);
        self.meters.submit(flight, self.now_ns, pick.replica);
        let tenant = u64::from(flight.tenant);
        self.place(pick, Request { tenant, ..request });
    }
}
