//! Tenants of a replay: those of the trace, or synthetic ones for traces without tenants.
//!
//! A hash of the request's number draws its tenant with the given shares: equal traces and shares give equal tenants under all
//! other settings. Tenants differ only in their share of the requests, and share one cache.

use std::str::FromStr;

use trunkline_core::draw::unit;
use trunkline_quote::quoted;

/// Stream of draws for tenants; see [`trunkline_core::draw`].
const TENANT_STREAM: u64 = 1;

/// Maximum number of tenants: fairness is measured for every pair of tenants.
pub const TENANTS_MAX: usize = 16;

/// Share of the requests of each tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    /// Shares by tenant, with a sum of 1.
    shares: Vec<f64>,
    /// `true` if requests have the tenants of the trace.
    traced: bool,
}

/// Invalid shares, with a remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("tenants are {spec}; give the share of each as a number above 0, at most {TENANTS_MAX}, such as 0.9,0.1", spec = quoted(spec))]
pub struct BadShares {
    /// Shares as given on input.
    pub spec: String,
}

impl Default for Shares {
    /// Returns the shares of a single tenant.
    fn default() -> Self {
        Self { shares: vec![1.0], traced: true }
    }
}

impl FromStr for Shares {
    type Err = BadShares;

    /// Parses numbers separated by commas, such as `3,1`, and scales them to a sum of 1.
    ///
    /// # Errors
    ///
    /// [`BadShares`] unless there are 1 to [`TENANTS_MAX`] finite numbers above 0.
    fn from_str(spec: &str) -> Result<Self, BadShares> {
        let bad = || BadShares { spec: spec.into() };
        let weights = spec.split(',').map(|text| text.trim().parse::<f64>());
        let weights = weights.collect::<Result<Vec<_>, _>>().map_err(|_| bad())?;
        let sum: f64 = weights.iter().sum();
        if weights.len() > TENANTS_MAX || !sum.is_finite() || weights.iter().any(|weight| *weight <= 0.0) {
            return Err(bad());
        }
        let traced = weights.len() == 1;
        Ok(Self { shares: weights.into_iter().map(|weight| weight / sum).collect(), traced })
    }
}

impl Shares {
    /// Returns the share of each tenant; the sum is 1.
    pub fn as_slice(&self) -> &[f64] {
        &self.shares
    }

    /// Returns equal shares for a trace with tenants numbered from 0 to `tenants - 1`. Those from [`TENANTS_MAX`] on are counted as the
    /// last.
    pub fn traced(tenants: u64) -> Self {
        let counted = tenants.clamp(1, TENANTS_MAX as u64) as usize;
        Self { shares: vec![1.0 / counted as f64; counted], traced: true }
    }

    /// Returns `true` if requests have the tenants of the trace.
    pub fn is_traced(&self) -> bool {
        self.traced
    }

    /// Returns the tenant under which request number `request` is counted; `tenant` is the request's own in the trace.
    pub fn tenant_of(&self, request: u64, tenant: u32) -> usize {
        if self.traced {
            return (tenant as usize).min(self.shares.len() - 1);
        }
        let drawn = unit(TENANT_STREAM, request, 0);
        let mut end = 0.0;
        let found = self.shares.iter().position(|share| {
            end += share;
            drawn < end
        });
        // Sums of shares may end a rounding error below 1.
        found.unwrap_or(self.shares.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_split_by_the_shares() {
        for (spec, expected) in [("0.9,0.1", vec![0.9, 0.1]), ("3, 1", vec![0.75, 0.25]), ("5", vec![1.0])] {
            let shares: Shares = spec.parse().unwrap();
            assert_eq!(shares.as_slice(), expected);
            let mut counts = vec![0u32; expected.len()];
            (0..100_000).for_each(|request| counts[shares.tenant_of(request, 0)] += 1);
            for (count, share) in counts.iter().zip(expected) {
                assert!((f64::from(*count) / 1e5 - share).abs() < 0.01, "{spec}: {counts:?}");
            }
        }
        assert_eq!(Shares::default(), "1".parse().unwrap());
    }

    #[test]
    fn what_is_no_share_is_refused_in_one_line() {
        let seventeen = ["1"; 17].join(",");
        for spec in ["", "x", "1,,1", "1,0", "1,-1", "inf,1", "nan", seventeen.as_str()] {
            let message = spec.parse::<Shares>().unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("tenants are '{spec}'; give")) && !message.contains('\n'),
                "{message}"
            );
        }
    }
}
