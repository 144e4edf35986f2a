//! Autoscaling: policies for the number of replicas, one file each, found by name.
//!
//! A policy observes the fleet once in an interval ([`Observed`]) and answers with a number of replicas. [`Autoscaler`] applies the
//! limits common to all policies: the least and the most replicas, and a stabilisation window for scaling down, as in Kubernetes'
//! HorizontalPodAutoscaler. A replica ordered is usable after the start delay, with an empty cache. A replica taken out drains:
//! waiting requests move to other replicas, running requests end, and the memory is lost. A replica still draining is taken back
//! before another one is ordered.
//!
//! | name | scales on | source |
//! |---|---|---|
//! | `load` | waiting and running requests per replica | HorizontalPodAutoscaler of Kubernetes |
//! | `queue` | waiting requests per replica, and the age of the oldest | queue scalers of KEDA |
//! | `slo` | share of recent requests within limits of TTFT and TPOT | feedback on goodput, as in DistServe (Zhong et al., OSDI 2024) |
//!
//! To add one: write `autoscale/NAME.rs` with a type that implements [`ScalingPolicy`], and add a line to [`REGISTRY`].
//!
//! ```
//! use trunkline_sim_replay::autoscale::{Autoscaler, Observed};
//!
//! let mut scaler = Autoscaler::new("load:min=1,max=8,target=10", 2)?;
//! let busy = Observed { now_ns: 15_000_000_000, ready: 2, running: 45, ..Observed::default() };
//! assert_eq!(scaler.desired(&busy), 5);
//! # Ok::<(), trunkline_sim_replay::autoscale::AutoscaleError>(())
//! ```

mod load;
mod queue;
mod slo;

use std::collections::VecDeque;

use trunkline_core::names::registry::{Entry, Registry, RegistryError};
use trunkline_core::names::spec::Param;

use crate::group::REPLICAS_MAX;

const SECOND_NS: u64 = 1_000_000_000;
/// Longest time of a parameter, seconds: a day.
const DAY_S: u64 = 86_400;

/// Figures of a fleet at the end of an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Time of the observation, nanoseconds after the first arrival.
    pub now_ns: u64,
    /// Replicas that take new requests.
    pub ready: u32,
    /// Replicas ordered and not usable yet.
    pub starting: u32,
    /// Replicas that failed and will come back.
    pub failed: u32,
    /// Requests waiting to be admitted, on all replicas.
    pub waiting: u32,
    /// Other unfinished requests: running, loading or swapped out.
    pub running: u32,
    /// Time since the arrival of the oldest request that no step has run, nanoseconds; 0 if there is none.
    pub oldest_waiting_ns: u64,
    /// TTFT of each request with the first token in the interval, nanoseconds.
    pub ttft_ns: Vec<u64>,
    /// TPOT of each request completed in the interval with two tokens or more, nanoseconds.
    pub tpot_ns: Vec<u64>,
    /// Time since the arrival of each request without a token, nanoseconds.
    pub unserved_ns: Vec<u64>,
}

impl Observed {
    /// Returns the replicas ordered and not stopped: ready, starting and failed ones.
    pub fn provisioned(&self) -> u32 {
        self.ready + self.starting + self.failed
    }
}

/// A rule for the number of replicas.
///
/// An implementation MUST be a pure function of the observations and its own parameters: no clock, no randomness, no iteration in
/// hash order. State between calls MUST be bounded. An answer MUST NOT depend on the limits of [`Limits`], applied afterwards.
pub trait ScalingPolicy: Send + std::fmt::Debug {
    /// Returns the number of replicas wanted now, ready and starting ones together. Called once in each interval, in the order of
    /// time.
    ///
    /// The number MUST NOT fall when `waiting` alone grows. A policy without reason for a change MUST return
    /// [`Observed::provisioned`].
    fn desired(&mut self, observed: &Observed) -> u32;
}

/// Limits common to all policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Least number of replicas, at least 1.
    pub min: u32,
    /// Highest number of replicas, at least `min`.
    pub max: u32,
    /// Time between two observations, nanoseconds.
    pub interval_ns: u64,
    /// Time from the order of a replica to its first step, nanoseconds.
    pub start_delay_ns: u64,
    /// Time for which a lower number must be wanted before replicas stop, nanoseconds.
    pub stabilisation_ns: u64,
}

const MIN: Param = Param { key: "min", about: "least replicas", default: 1, min: 1, max: REPLICAS_MAX as u64 };
const MAX: Param = Param { key: "max", about: "most replicas", default: 10, min: 1, max: REPLICAS_MAX as u64 };
const INTERVAL: Param =
    Param { key: "interval_s", about: "time between two observations", default: 15, min: 1, max: 3600 };
const START_DELAY: Param =
    Param { key: "start_delay_s", about: "time from order to first step", default: 120, min: 0, max: DAY_S };
const STABILISATION: Param = Param {
    key: "stabilisation_s",
    about: "time for which fewer replicas must be wanted before one stops",
    default: 300,
    min: 0,
    max: DAY_S,
};

/// Parameters of every policy, before those of its own.
const LIMITS: [Param; 5] = [MIN, MAX, INTERVAL, START_DELAY, STABILISATION];

/// Returns the parameters of a policy: [`LIMITS`], then `own`. `N` MUST be the sum of both lengths.
const fn with_limits<const N: usize>(own: &[Param]) -> [Param; N] {
    assert!(N == LIMITS.len() + own.len(), "N is the number of all parameters");
    let mut all = [MIN; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < LIMITS.len() { LIMITS[at] } else { own[at - LIMITS.len()] };
        at += 1;
    }
    all
}

/// All policies, in the order of listings. A constructor receives the values of all parameters, [`Limits`] first.
pub static REGISTRY: Registry<Box<dyn ScalingPolicy>> = Registry::new(
    "autoscaling policy",
    &[
        Entry {
            name: "load",
            about: "enough replicas for `target` waiting and running requests each",
            params: &load::PARAMS,
            make: |values, ()| Box::new(load::Load::new(&values[LIMITS.len()..])),
        },
        Entry {
            name: "queue",
            about: "one replica more for every `target` waiting requests, and for one older than `age_ms`; one fewer if the others have \
                    room for the running requests",
            params: &queue::PARAMS,
            make: |values, ()| Box::new(queue::Queue::new(&values[LIMITS.len()..])),
        },
        Entry {
            name: "slo",
            about: "more replicas if fewer than `share_percent` of recent requests met `ttft_ms` and `tpot_ms`; one fewer if as many met \
                    `slack_percent` of both",
            params: &slo::PARAMS,
            make: |values, ()| Box::new(slo::Slo::new(&values[LIMITS.len()..])),
        },
    ],
);

/// Autoscaling of a fleet: a policy, and the replicas at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autoscale {
    /// Policy by name, with parameters if any, such as `load:max=8,target=24`.
    pub policy: String,
    /// Replicas up at the start, from [`Limits::min`] to [`Limits::max`].
    pub initial: u32,
}

/// Autoscaling that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AutoscaleError {
    /// Unknown policy, or a parameter unknown to the policy.
    #[error(transparent)]
    Policy(#[from] RegistryError),
    /// More replicas at least than at most.
    #[error("autoscaling from {min} to {max} replicas; min must be at most max")]
    Limits {
        /// Least number of replicas.
        min: u32,
        /// Highest number of replicas.
        max: u32,
    },
    /// Start outside the limits.
    #[error("{initial} replicas at the start, but autoscaling keeps {min} to {max}; change --replicas, or min and max")]
    Initial {
        /// Number of replicas at the start.
        initial: u32,
        /// Least number of replicas.
        min: u32,
        /// Highest number of replicas.
        max: u32,
    },
    /// Fleet of another size than the policy's most.
    #[error("autoscaling up to {max} replicas in a fleet of {replicas}; the two must be equal")]
    Fleet {
        /// Number of replicas of the fleet.
        replicas: u32,
        /// Highest number of replicas of the policy.
        max: u32,
    },
    /// Replicas of several kinds.
    #[error("autoscaling is for replicas of one kind; leave out --fleet")]
    Kinds,
    /// Replicas with roles.
    #[error("autoscaling is for replicas that prefill and decode; leave out --roles")]
    Roles,
    /// Autoscaling in a measurement of capacity.
    #[error("a fleet that is measured by sending all requests at once cannot be autoscaled")]
    AtOnce,
}

impl Autoscale {
    /// Returns the limits of the policy.
    ///
    /// # Errors
    ///
    /// [`AutoscaleError`] if the policy is unknown, a parameter is out of range, or the start is outside the limits.
    pub fn limits(&self) -> Result<Limits, AutoscaleError> {
        let limits = Limits::parse(&self.policy)?;
        let Limits { min, max, .. } = limits;
        if !(min..=max).contains(&self.initial) {
            return Err(AutoscaleError::Initial { initial: self.initial, min, max });
        }
        Ok(limits)
    }
}

impl Limits {
    /// Returns the limits in a policy with parameters, such as `queue:min=2`.
    ///
    /// # Errors
    ///
    /// [`AutoscaleError`] if the policy is unknown, a parameter is out of range, or `min` is above `max`.
    pub fn parse(spec: &str) -> Result<Self, AutoscaleError> {
        let (_, values) = REGISTRY.parse(spec)?;
        let [min, max, interval_s, start_delay_s, stabilisation_s] = values[..LIMITS.len()] else {
            unreachable!("every policy has the parameters of the limits first");
        };
        let (min, max) = (min as u32, max as u32);
        if min > max {
            return Err(AutoscaleError::Limits { min, max });
        }
        Ok(Self {
            min,
            max,
            interval_ns: interval_s * SECOND_NS,
            start_delay_ns: start_delay_s * SECOND_NS,
            stabilisation_ns: stabilisation_s * SECOND_NS,
        })
    }
}

/// A policy with limits and a stabilisation window.
#[derive(Debug)]
pub struct Autoscaler {
    limits: Limits,
    policy: Box<dyn ScalingPolicy>,
    /// Time and number of each answer within the stabilisation window, oldest first.
    recent: VecDeque<(u64, u32)>,
}

impl Autoscaler {
    /// Creates an autoscaler for a fleet of `initial` replicas. The number of replicas at the start counts as the first answer, so
    /// no replica stops within the first stabilisation window.
    ///
    /// # Errors
    ///
    /// [`AutoscaleError`] if the policy is unknown, a parameter is out of range, or `initial` is outside the limits.
    pub fn new(spec: &str, initial: u32) -> Result<Self, AutoscaleError> {
        let limits = Autoscale { policy: spec.into(), initial }.limits()?;
        Ok(Self { limits, policy: REGISTRY.make(spec, ())?, recent: VecDeque::from([(0, initial)]) })
    }

    /// Returns the limits of the policy.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the number of replicas wanted, within the limits. A number below the present one is the highest answer of the policy
    /// within the stabilisation window.
    pub fn desired(&mut self, observed: &Observed) -> u32 {
        let Limits { min, max, stabilisation_ns, .. } = self.limits;
        let wanted = self.policy.desired(observed).clamp(min, max);
        self.recent.retain(|(at_ns, _)| at_ns.saturating_add(stabilisation_ns) >= observed.now_ns);
        self.recent.push_back((observed.now_ns, wanted));
        let present = observed.provisioned().clamp(min, max);
        if wanted >= present {
            return wanted;
        }
        let highest = self.recent.iter().map(|(_, wanted)| *wanted).max().unwrap_or(wanted);
        highest.min(present)
    }
}

#[cfg(test)]
mod tests;
