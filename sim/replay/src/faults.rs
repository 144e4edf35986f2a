//! Failing and slow replicas.
//!
//! A replica fails at a given time and may return later. A failure destroys its KV on device and host, and interrupts its step and
//! copies. If the replica returns, the requests stay in the core, keep all tokens, and are recomputed after the return. Otherwise
//! its requests move to other replicas and start over; clients receive no token twice. New requests go to replicas that are up; if
//! none is, they go to one that will return, and wait there. No request is lost.

use std::fmt;
use std::str::FromStr;

use trunkline_quote::quoted;

/// Latest failure, seconds: 30 years, far below the limit of the clock.
const TIME_S_MAX: f64 = 1e9;

/// Failure of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number of the replica, from 0.
    pub replica: u32,
    /// Time of the failure, nanoseconds after the first arrival.
    pub at_ns: u64,
    /// Time of the return, later than the failure; `None` for a permanent failure.
    pub back_ns: Option<u64>,
}

/// Slow replica, throughout a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// Number of the replica, from 0.
    pub replica: u32,
    /// Factor on the duration of the steps; finite and above 0.
    pub factor: f64,
}

/// Invalid failure or slowness.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultError {
    /// Failure of another form than `REPLICA@SECONDS..SECONDS`.
    #[error("failure is {}; give REPLICA@SECONDS, or REPLICA@SECONDS..SECONDS if it comes back, such as 2@30..60", quoted(.0))]
    BadFailure(String),
    /// Slowness of another form than `REPLICA:FACTOR`.
    #[error("slowness is {}; give REPLICA:FACTOR with a factor above 0, such as 2:1.5", quoted(.0))]
    BadSlow(String),
    /// Number of no replica in the fleet.
    #[error("replica {replica} is to {what}, but there are {replicas}, numbered from 0")]
    NoReplica {
        /// Number of the replica.
        replica: u32,
        /// Fault of the replica: `fail` or `be slow`.
        what: &'static str,
        /// Number of replicas in the fleet.
        replicas: u32,
    },
    /// Failure of a replica that is down.
    #[error("replica {0} is to fail while it is already down")]
    Overlap(u32),
    /// Two factors for one replica.
    #[error("replica {0} is to be slow twice")]
    SlowTwice(u32),
    /// Permanent failure of every replica.
    #[error("every replica is to fail and none to come back; leave one")]
    NoneLeft,
    /// Failures in a measurement of capacity.
    #[error("a fleet that is measured by sending all requests at once cannot have failures")]
    AtOnce,
}

impl FromStr for Failure {
    type Err = FaultError;

    fn from_str(spec: &str) -> Result<Self, FaultError> {
        let parse = || {
            let (replica, times) = spec.split_once('@')?;
            let (at, back) = match times.split_once("..") {
                Some((at, back)) => (at, Some(back)),
                None => (times, None),
            };
            let at_ns = time_ns(at)?;
            let back_ns = match back {
                Some(back) => Some(time_ns(back).filter(|back_ns| *back_ns > at_ns)?),
                None => None,
            };
            Some(Self { replica: replica.trim().parse().ok()?, at_ns, back_ns })
        };
        parse().ok_or_else(|| FaultError::BadFailure(spec.into()))
    }
}

fn time_ns(text: &str) -> Option<u64> {
    let seconds = text.trim().parse::<f64>().ok().filter(|seconds| (0.0..=TIME_S_MAX).contains(seconds))?;
    Some((seconds * 1e9).round() as u64)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.replica, self.at_ns as f64 / 1e9)?;
        self.back_ns.map_or(Ok(()), |back_ns| write!(f, "..{}", back_ns as f64 / 1e9))
    }
}

impl FromStr for Slow {
    type Err = FaultError;

    fn from_str(spec: &str) -> Result<Self, FaultError> {
        let parse = || {
            let (replica, factor) = spec.split_once(':')?;
            let factor = factor.trim().parse::<f64>().ok().filter(|factor| *factor > 0.0 && factor.is_finite())?;
            Some(Self { replica: replica.trim().parse().ok()?, factor })
        };
        parse().ok_or_else(|| FaultError::BadSlow(spec.into()))
    }
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.replica, self.factor)
    }
}

/// Checks that all faults are possible in a fleet of `replicas` replicas.
pub(crate) fn validate(replicas: u32, failures: &[Failure], slow: &[Slow]) -> Result<(), FaultError> {
    let known = |replica, what| match replica < replicas {
        true => Ok(()),
        false => Err(FaultError::NoReplica { replica, what, replicas }),
    };
    let mut failures = failures.to_vec();
    failures.sort_by_key(|failure| (failure.replica, failure.at_ns));
    failures.iter().try_for_each(|failure| known(failure.replica, "fail"))?;
    for pair in failures.windows(2).filter(|pair| pair[0].replica == pair[1].replica) {
        if pair[0].back_ns.is_none_or(|back_ns| back_ns >= pair[1].at_ns) {
            return Err(FaultError::Overlap(pair[0].replica));
        }
    }
    if failures.iter().filter(|failure| failure.back_ns.is_none()).count() == replicas as usize {
        return Err(FaultError::NoneLeft);
    }
    for (at, one) in slow.iter().enumerate() {
        known(one.replica, "be slow")?;
        if slow[..at].iter().any(|other| other.replica == one.replica) {
            return Err(FaultError::SlowTwice(one.replica));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_written() {
        let failure: Failure = "2@30..60.5".parse().unwrap();
        assert_eq!(failure, Failure { replica: 2, at_ns: 30_000_000_000, back_ns: Some(60_500_000_000) });
        let slow: Slow = "1:1.5".parse().unwrap();
        assert_eq!(slow, Slow { replica: 1, factor: 1.5 });
        assert_eq!((failure.to_string(), slow.to_string()), ("2@30..60.5".into(), "1:1.5".into()));
        assert_eq!("0@1".parse::<Failure>().unwrap().to_string(), "0@1");
    }

    #[test]
    fn what_is_no_fault_is_refused_in_one_line() {
        for spec in ["", "1", "1@", "x@1", "1@-1", "1@5..5", "1@5..4", "1@nan", "1@1..", "-1@1", "1@1e99"] {
            let message = spec.parse::<Failure>().unwrap_err().to_string();
            assert_eq!(
                message,
                format!(
                    "failure is '{spec}'; give REPLICA@SECONDS, or REPLICA@SECONDS..SECONDS if it comes back, such as 2@30..60"
                )
            );
        }
        for spec in ["", "1", "1:", "1:0", "1:-2", "1:inf", "x:2"] {
            let message = spec.parse::<Slow>().unwrap_err().to_string();
            assert_eq!(
                message,
                format!("slowness is '{spec}'; give REPLICA:FACTOR with a factor above 0, such as 2:1.5")
            );
        }
    }

    #[test]
    fn what_cannot_be_is_told() {
        let told = |replicas, failures: &[&str], slow: &[&str]| {
            let failures: Vec<Failure> = failures.iter().map(|spec| spec.parse().unwrap()).collect();
            let slow: Vec<Slow> = slow.iter().map(|spec| spec.parse().unwrap()).collect();
            validate(replicas, &failures, &slow).map_err(|error| error.to_string())
        };
        assert_eq!(told(2, &["1@5", "0@1..2", "0@3..4"], &["0:2", "1:0.5"]), Ok(()));
        assert_eq!(told(2, &["2@5"], &[]), Err("replica 2 is to fail, but there are 2, numbered from 0".into()));
        assert_eq!(told(2, &[], &["7:2"]), Err("replica 7 is to be slow, but there are 2, numbered from 0".into()));
        let down = Err("replica 0 is to fail while it is already down".into());
        assert_eq!(told(2, &["0@3", "0@1..3"], &[]), down);
        assert_eq!(told(2, &["0@1", "0@2"], &[]), down);
        assert_eq!(
            told(2, &["0@1", "1@2"], &[]),
            Err("every replica is to fail and none to come back; leave one".into())
        );
        assert_eq!(told(2, &[], &["0:2", "0:3"]), Err("replica 0 is to be slow twice".into()));
    }
}
