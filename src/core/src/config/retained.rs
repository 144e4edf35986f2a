//! Bound of the blocks that retention hints keep: a parameter of the device's eviction, whatever the policy.

use crate::registry::RegistryError;
use crate::retention::RetainedBlocks;
use crate::spec::{NO_KEYS, Param, Spec, SpecError};

/// Share of the device's blocks that hints of all tenants may keep at least, per cent.
const ALL_PERCENT: u64 = 50;

const PARAMS: [Param; 1] = [Param {
    key: "retain_percent",
    about: "blocks above the default priority that the retention hints of one tenant may keep, per cent of the device",
    default: 25,
    min: 0,
    max: 100,
}];

/// Splits the spec of the device's eviction: the policy with own parameters, and the percentage of blocks that one tenant may retain.
///
/// # Errors
/// If the percentage is outside the range or given twice.
pub(super) fn split(spec: &str) -> Result<(String, u64), RegistryError> {
    let (name, params) = spec.split_once(':').unwrap_or((spec, ""));
    let is_own = |part: &&str| part.split_once('=').is_some_and(|(key, _)| key == PARAMS[0].key);
    let (own, rest): (Vec<&str>, Vec<&str>) = params.split(',').partition(is_own);
    if own.is_empty() {
        return Ok((spec.into(), PARAMS[0].default));
    }
    let values = Spec::new(&format!("{name}:{}", own.join(","))).values(&PARAMS);
    let values = values.map_err(|error| RegistryError::Parameter { kind: "eviction policy", error })?;
    let policy = if rest.is_empty() { name.into() } else { format!("{name}:{}", rest.join(",")) };
    Ok((policy, values[0]))
}

/// Adds the parameter of every policy to those that an error lists.
pub(super) fn with_own_key(mut error: RegistryError) -> RegistryError {
    if let RegistryError::Parameter {
        error: SpecError::UnknownKey { known, .. } | SpecError::NoValue { known, .. },
        ..
    } = &mut error
    {
        let own = PARAMS[0].key;
        *known = if known == NO_KEYS { own.into() } else { format!("{known}, {own}") };
    }
    error
}

/// Returns the bounds for a device of `blocks` blocks.
pub(super) fn bounds(blocks: u32, percent: u64) -> RetainedBlocks {
    let share = |percent: u64| (u64::from(blocks) * percent / 100) as u32;
    let of_all = if percent == 0 { 0 } else { share(percent.max(ALL_PERCENT)) };
    RetainedBlocks { of_tenant: share(percent), of_all }
}
