//! Parameters of the device's eviction, whatever the policy: what retention hints keep at most, and what tenants keep at least.

use crate::names::registry::RegistryError;
use crate::names::spec::{NO_KEYS, Param, Spec, SpecError};
use crate::request::retention::RetainedBlocks;

/// Share of the device's blocks that hints of all tenants may keep at least, per cent.
const ALL_PERCENT: u64 = 50;

const PARAMS: [Param; 2] = [
    Param {
        key: "retain_percent",
        about: "blocks above the default priority that the retention hints of one tenant may keep, per cent of the device",
        default: 25,
        min: 0,
        max: 100,
    },
    Param {
        key: "floor_percent",
        about: "blocks that all tenants keep together whatever one of them sends, in equal parts, per cent of the device and of each tier",
        // As much as hints: half is left to who uses it most.
        default: 50,
        min: 0,
        max: 100,
    },
];

/// Values of the parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceEviction {
    pub retain_percent: u64,
    /// `None` if not given.
    pub floor_percent: Option<u64>,
}

/// Splits the spec of the device's eviction: the policy with own parameters, and those of every policy.
///
/// # Errors
/// If a percentage is outside the range or given twice.
pub(super) fn split(spec: &str) -> Result<(String, DeviceEviction), RegistryError> {
    let (name, params) = spec.split_once(':').unwrap_or((spec, ""));
    let has_key = |part: &&str, param: &Param| part.split_once('=').is_some_and(|(key, _)| key == param.key);
    let is_own = |part: &&str| PARAMS.iter().any(|param| has_key(part, param));
    let (own, rest): (Vec<&str>, Vec<&str>) = params.split(',').partition(is_own);
    if own.is_empty() {
        return Ok((spec.into(), DeviceEviction { retain_percent: PARAMS[0].default, floor_percent: None }));
    }
    let values = Spec::new(&format!("{name}:{}", own.join(","))).values(&PARAMS);
    let values = values.map_err(|error| RegistryError::Parameter { kind: "eviction policy", error })?;
    let policy = if rest.is_empty() { name.into() } else { format!("{name}:{}", rest.join(",")) };
    let has_floor = own.iter().any(|part| has_key(part, &PARAMS[1]));
    Ok((policy, DeviceEviction { retain_percent: values[0], floor_percent: has_floor.then_some(values[1]) }))
}

/// Adds the parameters of every policy to those that an error lists.
pub(super) fn with_own_key(mut error: RegistryError) -> RegistryError {
    if let RegistryError::Parameter {
        error: SpecError::UnknownKey { known, .. } | SpecError::NoValue { known, .. },
        ..
    } = &mut error
    {
        let own = PARAMS.map(|param| param.key).join(", ");
        *known = if known == NO_KEYS { own } else { format!("{known}, {own}") };
    }
    error
}

/// Returns the bounds of hints for a device of `blocks` blocks.
pub(super) fn bounds(blocks: u32, percent: u64) -> RetainedBlocks {
    let share = |percent: u64| (u64::from(blocks) * percent / 100) as u32;
    let of_all = if percent == 0 { 0 } else { share(percent.max(ALL_PERCENT)) };
    RetainedBlocks { of_tenant: share(percent), of_all }
}

/// Returns the floors of all tenants together for a device or tier of `blocks` blocks: none unless asked for or if requests are not ordered by tenant.
pub(super) fn floors(blocks: u32, percent: Option<u64>, orders_tenants: bool) -> u32 {
    let default = if orders_tenants { PARAMS[1].default } else { 0 };
    (u64::from(blocks) * percent.unwrap_or(default) / 100) as u32
}
