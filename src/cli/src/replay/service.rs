//! Replicas that start, stop and fail by a policy or at random, and their price: flags, and the settings made from them.

use std::fmt::Write;

use anyhow::{Context, bail, ensure};
use clap::Args;
use trunkline_quote::quoted;
use trunkline_sim_replay::Settings;
use trunkline_sim_replay::autoscale::{Autoscale, Limits, REGISTRY};
use trunkline_sim_replay::random_failures::RandomFailures;

/// Value of `--autoscale` for a fleet of a fixed size, to compare.
const FIXED: &str = "none";

/// Autoscaling, failures at random, and prices.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServiceArgs {
    /// Policies for the number of replicas; `none` for a fleet of a fixed size.
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["fleet", "roles"], help = autoscale_help())]
    pub(crate) autoscale: Vec<String>,

    /// Fail replicas at random: mean time in service between two failures of a replica (MTBF), hours. Requests move to other
    /// replicas, with the tokens so far; the replica comes back with an empty cache.
    #[arg(long, value_name = "HOURS", allow_negative_numbers = true)]
    mtbf: Option<f64>,

    /// Mean time to repair a replica that failed at random (MTTR), minutes [default: 10].
    #[arg(long, value_name = "MINUTES", requires = "mtbf", allow_negative_numbers = true)]
    mttr: Option<f64>,

    /// Seed of the failures at random [default: 0].
    #[arg(long, value_name = "SEED", requires = "mtbf")]
    fault_seed: Option<u64>,

    /// Price of one device for an hour, in any currency, such as h100-80g=2.5; a replica of four devices costs four times as much. May be
    /// given more than once.
    #[arg(long, value_name = "HARDWARE=PRICE")]
    pub(crate) price: Vec<String>,
}

/// Mean time to repair, minutes, unless given. An assumption: a restart with a load of the weights.
const MTTR_MINUTES_DEFAULT: f64 = 10.0;

fn autoscale_help() -> String {
    let mut help = String::from(
        "Change the number of replicas by a policy; --replicas is the number at the start [default: min]. A replica that stops drains; \
         one that starts has an empty cache. Give it more than once to compare, `none` for a fixed fleet:",
    );
    for entry in REGISTRY.entries() {
        let params: Vec<String> = entry.params.iter().map(|param| format!("{}={}", param.key, param.default)).collect();
        // Writing to a string cannot fail.
        let _ = write!(help, "\n- {}:{}: {}", entry.name, params.join(","), entry.about);
    }
    help
}

impl ServiceArgs {
    /// Returns `true` if the number of replicas changes by a policy.
    pub(crate) fn is_autoscaled(&self) -> bool {
        self.autoscale.iter().any(|spec| spec != FIXED)
    }

    /// Returns the failures at random.
    pub(super) fn random_failures(&self) -> Option<RandomFailures> {
        let mtbf_hours = self.mtbf?;
        let mttr_minutes = self.mttr.unwrap_or(MTTR_MINUTES_DEFAULT);
        Some(RandomFailures { mtbf_hours, mttr_minutes, seed: self.fault_seed.unwrap_or(0) })
    }

    /// Returns the settings with each of the policies; `replicas` is the number at the start, if given.
    ///
    /// # Errors
    /// If a policy is unknown, or a parameter outside the range.
    pub(super) fn scaled(&self, settings: &Settings, replicas: Option<u32>) -> anyhow::Result<Vec<Settings>> {
        let with = |spec: &String| {
            let mut settings = settings.clone();
            if spec != FIXED {
                let Limits { min, max, .. } = Limits::parse(spec)?;
                let initial = replicas.unwrap_or(min);
                settings.routing.autoscale = Some(Autoscale { policy: spec.clone(), initial });
                settings.replicas = max;
            }
            Ok(settings)
        };
        match &self.autoscale[..] {
            [] => Ok(vec![settings.clone()]),
            specs => specs.iter().map(with).collect(),
        }
    }

    /// Returns the price of a replica of each kind for an hour, with all its devices; empty if no kind has one.
    ///
    /// # Errors
    /// If a price is malformed, or missing for one kind of several.
    pub(super) fn prices_of(&self, settings: &Settings) -> anyhow::Result<Vec<f64>> {
        let prices = self.prices()?;
        let price_of = |name: &str| prices.iter().rev().find(|(known, _)| *known == name).map(|(_, price)| *price);
        if hardware_names(settings).all(|name| price_of(name).is_none()) {
            return Ok(Vec::new());
        }
        let price = |name: &str| {
            let price = price_of(name)
                .with_context(|| format!("price of {name} is missing; the fleet has it too", name = quoted(name)))?;
            ensure!(price > 0.0 && price.is_finite(), "price of {name} is {price}; it must be a number above 0");
            Ok(price)
        };
        let groups = settings.others.iter().map(|group| group.parallel);
        let devices = std::iter::once(settings.parallel).chain(groups).map(|parallel| f64::from(parallel.devices()));
        hardware_names(settings).zip(devices).map(|(name, devices)| Ok(devices * price(name)?)).collect()
    }

    /// Checks that every price is of a kind of replica in `fleets`.
    ///
    /// # Errors
    /// If a price is malformed, or of other hardware.
    pub(crate) fn check_prices(&self, known: &[&str]) -> anyhow::Result<()> {
        for (name, _) in self.prices()? {
            if !known.contains(&name) {
                bail!("price of {name}, which is not planned with; name it in --hardware", name = quoted(name));
            }
        }
        Ok(())
    }

    fn prices(&self) -> anyhow::Result<Vec<(&str, f64)>> {
        let parse = |spec: &'_ str| {
            let parsed = spec.split_once('=').and_then(|(name, price)| Some((name.len(), price.parse::<f64>().ok()?)));
            parsed.with_context(|| {
                format!("price is {spec}; give HARDWARE=PRICE, such as h100-80g=2.5", spec = quoted(spec))
            })
        };
        self.price.iter().map(|spec| parse(spec).map(|(end, price)| (&spec[..end], price))).collect()
    }
}

/// Returns the hardware of each kind of replica.
pub(crate) fn hardware_names(fleet: &Settings) -> impl Iterator<Item = &'static str> {
    std::iter::once(fleet.hardware.name).chain(fleet.others.iter().map(|group| group.hardware.name))
}
