//! Conformance checks of a worker: the check plays the server, the worker dials.
//!
//! The checks know nothing about the model. A worker is compared with itself: a few prompts are computed alone, then again in chunks, in
//! batches, in other blocks, after preemption, swapping and reconnection; the texts must be equal, and log probabilities equal up to rounding.

mod cases;
mod faults;
mod peer;
mod player;
mod shape;
mod shared;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::TcpListener;

use self::cases::Expected;
use self::peer::{Door, Failure, Peer};
use self::shape::Shape;

/// Outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The worker does as the protocol says.
    Pass,
    /// The worker does not; one line says why.
    Fail(String),
    /// The worker did not announce the ability, so nothing was checked.
    NotOffered(&'static str),
}

/// A check and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRow {
    /// Name of the check.
    pub name: &'static str,
    /// Outcome of the check.
    pub verdict: Verdict,
}

type CaseFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// Name of an ability, and the field with it.
type Ability = (&'static str, fn(&Peer) -> bool);

/// A check: its name, the ability it needs, and its steps.
struct Case {
    name: &'static str,
    needs: Option<Ability>,
    run: for<'a> fn(&'a mut Peer, &'a Expected) -> CaseFuture<'a>,
}

macro_rules! case {
    ($name:literal, $run:path) => {
        Case { name: $name, needs: None, run: |peer, expected| Box::pin($run(peer, expected)) }
    };
    ($name:literal, $run:path, $ability:literal, $has:expr) => {
        Case { name: $name, needs: Some(($ability, $has)), run: |peer, expected| Box::pin($run(peer, expected)) }
    };
}

/// All checks behind the first two, in order.
const CASES: [Case; 22] = [
    case!("heartbeats", faults::heartbeats),
    case!("prefill in chunks", cases::chunks),
    case!("batch equals alone", cases::batch, "max_sequences above 1", |peer| peer.hello.abilities.max_sequences > 1),
    case!("scattered blocks", cases::scattered),
    case!("shared prefix", cases::shared_prefix),
    case!("prefix of the same step", cases::in_step_hits, "in_step_hits and max_sequences above 1", |peer| {
        let can = &peer.hello.abilities;
        can.in_step_hits && can.max_sequences > 1 && can.max_tokens > 1
    }),
    case!("partial writes", cases::partial_writes, "partial_writes", |peer| peer.hello.abilities.partial_writes),
    case!("cut block tables", cases::table_cut),
    case!("dropped blocks", cases::dropped_blocks, "block_io with a layer group that drops blocks so early", |peer| {
        cases::can_drop(&peer.hello)
    }),
    case!("slots used again", cases::slot_reuse),
    case!("two steps in flight", cases::two_in_flight, "steps_in_flight above 1", |peer| {
        peer.hello.abilities.steps_in_flight > 1
    }),
    case!("preemption at any token", cases::restart),
    case!("idle steps", cases::idle, "lock_step", |peer| peer.hello.lock_step.is_some()),
    case!("swap out and in", faults::swap, "block_io", |peer| peer.hello.kv.block_io),
    case!("shared memory", shared::copies, "shared_memory, block_io, and this machine", shared::can_share),
    case!("reset", faults::reset),
    case!("seeded sampling", cases::seeded_sampling, "seeded_sampling", |peer| peer.hello.abilities.seeded_sampling),
    case!("penalties and biases", cases::penalties, "penalties", |peer| peer.hello.abilities.penalties),
    case!("log probabilities", cases::logprobs, "max_logprobs above 0", |peer| peer.hello.abilities.max_logprobs > 0),
    case!("failed steps", faults::step_failure),
    case!("nonsense", faults::nonsense),
    case!("reconnection with KV", faults::resume, "sessions that resume: a lock_step group has none", resumes),
];

/// Check behind all others: its session is a new one.
const LAST: Case =
    case!("reconnection without KV", faults::new_session, "sessions that resume: a lock_step group has none", resumes);

fn resumes(peer: &Peer) -> bool {
    peer.hello.lock_step.is_none()
}

/// Waits for a worker to dial `listener`, and checks the worker. Each message of the worker is awaited for `patience`. `report` is called
/// with each outcome as soon as it is known.
pub async fn run(listener: TcpListener, patience: Duration, mut report: impl FnMut(&CheckRow)) -> Vec<CheckRow> {
    let mut rows = Vec::new();
    let mut note = |name, verdict| {
        let row = CheckRow { name, verdict };
        report(&row);
        rows.push(row);
    };
    let begun = async {
        let peer = Peer::accept(Door::open(listener, patience)).await?;
        let shape = Shape::new(&peer)?;
        Ok::<_, Failure>((peer, shape))
    };
    let (mut peer, shape) = match begun.await {
        Ok(begun) => begun,
        Err(failure) => {
            note("hello", Verdict::Fail(failure.0));
            return rows;
        }
    };
    note("hello", Verdict::Pass);
    let expected = match cases::alone(&mut peer, &shape).await {
        Ok(expected) => expected,
        Err(failure) => {
            note("the same twice", Verdict::Fail(failure.0));
            return rows;
        }
    };
    note("the same twice", Verdict::Pass);
    for case in CASES.iter().chain([&LAST]) {
        let verdict = check(case, &mut peer, &expected).await;
        let failed = matches!(verdict, Verdict::Fail(_));
        note(case.name, verdict);
        // The next check begins again, on a new connection if need be.
        if failed && peer.reset().await.is_err() && peer.reconnect(false).await.is_err() {
            note("the rest", Verdict::Fail("the worker neither answers nor comes back".into()));
            break;
        }
    }
    rows
}

async fn check(case: &Case, peer: &mut Peer, expected: &Expected) -> Verdict {
    match case.needs {
        Some((ability, has)) if !has(peer) => Verdict::NotOffered(ability),
        _ => match (case.run)(peer, expected).await {
            Ok(()) => Verdict::Pass,
            Err(failure) => Verdict::Fail(failure.0),
        },
    }
}
