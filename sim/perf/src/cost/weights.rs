//! Placement of a model's weights: resident on the device, or streamed in every step.
//!
//! | choice | weights |
//! |---|---|
//! | `resident` | all on the device |
//! | `stream` | pinned layers are spread evenly between streamed layers, the best placement |
//! | `stream_first` | the first layers are pinned, the rest come from the disk |
//!
//! `stream` and `stream_first` take the parameters [`PARAMS`]. Embedding, norms and output matrix always stay on the device. With `memory_mib`, `stream` is the
//! embedded worker's: groups of a layer read from a disk into the memory in which they are computed with; the parameters are [`WINDOW_PARAMS`].

use std::fmt;
use std::str::FromStr;

use trunkline_core::names::spec::{Param, Spec, SpecError};

use super::{Order, Resident, StreamingPlan, Windowed};
use crate::hardware::Hardware;
use crate::model::Model;
use trunkline_sim_workload::UnknownName;

/// Value for all layers not on the device; more than any model has.
const ALL_OTHERS: u64 = 4096;
const KNOWN: [&str; 3] = ["resident", "stream", "stream_first"];

/// Parameters of `stream` and `stream_first`, in this order.
pub const PARAMS: [Param; 6] = [
    Param { key: "device_layers", about: "layers that stay on the device", default: 0, min: 0, max: ALL_OTHERS },
    Param {
        key: "host_layers",
        about: "layers that stay in the host's memory; 4096 is all that are not on the device",
        default: ALL_OTHERS,
        min: 0,
        max: ALL_OTHERS,
    },
    // An assumption: what --disk-gb-s assumes of the disk behind a prefix cache.
    Param { key: "disk_mb_s", about: "what the disk reads, MB/s", default: 6_000, min: 1, max: 10_000_000 },
    Param {
        key: "link_mb_s",
        about: "what the link to the device carries, MB/s; 0 is what the hardware's file says",
        default: 0,
        min: 0,
        max: 10_000_000,
    },
    Param {
        key: "device_window",
        about: "layers the device has room for in addition to those that stay",
        default: 2,
        min: 1,
        max: ALL_OTHERS,
    },
    Param { key: "host_window", about: "layers that the disk may read ahead", default: 4, min: 1, max: ALL_OTHERS },
];

/// Parameter that selects the streaming of the embedded worker.
const MEMORY: &str = "memory_mib";

/// Parameters of `stream` with a memory for weights, in this order: those of `serve --weights`, the rate of the disk, and how much shorter weights are on it.
pub const WINDOW_PARAMS: [Param; 5] = [
    Param { key: MEMORY, about: "memory for weights, MiB", default: 1, min: 1, max: 1 << 30 },
    Param { key: "ahead", about: "groups of weights read ahead of the one in use", default: 2, min: 1, max: 64 },
    Param {
        key: "prefill_ahead",
        about: "the same in steps that run prompts; 0 is ahead",
        default: 0,
        min: 0,
        max: 64,
    },
    Param { key: "disk_mb_s", about: "what the disk reads, MB/s", default: 6_000, min: 1, max: 10_000_000 },
    Param { key: "disk_percent", about: "bytes on the disk of 100 bytes of weights", default: 100, min: 1, max: 100 },
];

/// Placement of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// All weights on the device.
    #[default]
    Resident,
    /// Weights streamed to the device in every step.
    Streamed(Streamed),
    /// Weights streamed into the memory of the embedded worker.
    Windowed(Windowed),
}

/// Parameters of streaming weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streamed {
    /// Positions of the pinned layers.
    pub order: Order,
    /// Layers pinned on the device.
    pub device_layers: u32,
    /// Layers pinned in the host's memory; `None` for all layers not on the device.
    pub host_layers: Option<u32>,
    /// Read rate of the disk, MB/s.
    pub disk_mb_s: u32,
    /// Rate of the link to the device, MB/s; `None` for the hardware's host link.
    pub link_mb_s: Option<u32>,
    /// Room on the device for streamed layers, layers.
    pub device_window: u32,
    /// Read-ahead of the disk, layers.
    pub host_window: u32,
}

/// Placement of the weights that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// Name of no known placement.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// Invalid parameter of a placement.
    #[error("weights {0}")]
    Spec(#[from] SpecError),
}

impl Streamed {
    /// Returns the plan for one device.
    pub fn plan(&self, hardware: &Hardware, model: &Model) -> StreamingPlan {
        let others = (model.layers as u32).saturating_sub(self.device_layers);
        let host = self.host_layers.unwrap_or(others);
        let resident = Resident { device: self.device_layers, host, order: self.order };
        StreamingPlan {
            disk_bytes_s: f64::from(self.disk_mb_s) * 1e6,
            link_bytes_s: self.link_mb_s.map_or(hardware.host_link_bytes_s, |mb_s| f64::from(mb_s) * 1e6),
            host_window: self.host_window,
            device_slots: self.device_layers.saturating_add(self.device_window),
            ..StreamingPlan::new(model, resident)
        }
    }

    /// Returns the bytes of weights in the host's memory at any time: layers that stay there, and layers that the disk reads ahead.
    pub fn host_bytes(&self, model: &Model) -> u64 {
        let others = model.layers.saturating_sub(self.device_layers.into());
        let host = self.host_layers.map_or(others, u64::from).min(others);
        Self::layer_bytes(model) * (host + u64::from(self.host_window).min(others - host))
    }

    fn layer_bytes(model: &Model) -> u64 {
        StreamingPlan::new(model, Resident::all_in_host(model)).layer_bytes
    }

    /// Returns the bytes of weights on the device at any time.
    pub fn device_bytes(&self, model: &Model) -> u64 {
        let layer_bytes = Self::layer_bytes(model);
        let slots = model.layers.min(u64::from(self.device_layers) + u64::from(self.device_window));
        model.weight_bytes() - layer_bytes * (model.layers - slots)
    }
}

impl FromStr for Weights {
    type Err = WeightsError;

    fn from_str(text: &str) -> Result<Self, WeightsError> {
        let spec = Spec::new(text);
        let order = match spec.name {
            "resident" => {
                spec.values(&[])?;
                return Ok(Self::Resident);
            }
            "stream" if text.contains(MEMORY) => {
                let values = spec.values(&WINDOW_PARAMS)?;
                let at = |i: usize| values[i] as u32;
                let prefill_ahead = if values[2] == 0 { at(1) } else { at(2) };
                return Ok(Self::Windowed(Windowed {
                    memory_mib: at(0),
                    ahead: at(1),
                    prefill_ahead,
                    disk_mb_s: at(3),
                    disk_percent: at(4),
                }));
            }
            "stream" => Order::Interleaved,
            "stream_first" => Order::First,
            name => {
                return Err(UnknownName { kind: "place of weights", name: name.into(), known: KNOWN.into() }.into());
            }
        };
        // Every value is within its range, which fits.
        let values = spec.values(&PARAMS)?;
        let at = |i: usize| values[i] as u32;
        Ok(Self::Streamed(Streamed {
            order,
            device_layers: at(0),
            host_layers: (values[1] < ALL_OTHERS).then(|| at(1)),
            disk_mb_s: at(2),
            link_mb_s: (values[3] > 0).then(|| at(3)),
            device_window: at(4),
            host_window: at(5),
        }))
    }
}

impl fmt::Display for Weights {
    /// Writes the placement with all parameters, including defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streamed = match self {
            Self::Resident => return f.write_str("resident"),
            Self::Streamed(streamed) => streamed,
            Self::Windowed(Windowed { memory_mib, ahead, prefill_ahead, disk_mb_s, disk_percent }) => {
                write!(f, "stream:{MEMORY}={memory_mib},ahead={ahead},prefill_ahead={prefill_ahead},")?;
                return write!(f, "disk_mb_s={disk_mb_s},disk_percent={disk_percent}");
            }
        };
        let name = if streamed.order == Order::First { "stream_first" } else { "stream" };
        let values = [
            streamed.device_layers,
            streamed.host_layers.unwrap_or(ALL_OTHERS as u32),
            streamed.disk_mb_s,
            streamed.link_mb_s.unwrap_or(0),
            streamed.device_window,
            streamed.host_window,
        ];
        let params: Vec<_> = PARAMS.iter().zip(values).map(|(param, value)| format!("{}={value}", param.key)).collect();
        write!(f, "{name}:{}", params.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hardware, model};

    fn streamed(text: &str) -> Streamed {
        match text.parse().unwrap() {
            Weights::Streamed(streamed) => streamed,
            other => panic!("{text} is {other}"),
        }
    }

    #[test]
    fn written_and_read() {
        for text in [
            "resident",
            "stream",
            "stream:memory_mib=64,ahead=3,disk_percent=67",
            "stream_first:host_layers=0",
            "stream:device_layers=4,link_mb_s=64000",
        ] {
            let weights: Weights = text.parse().unwrap();
            assert_eq!(weights.to_string().parse(), Ok(weights), "{weights}");
        }
        assert_eq!("resident".parse(), Ok(Weights::Resident));
        assert_eq!(streamed("stream").order, Order::Interleaved);
        assert_eq!(streamed("stream_first").order, Order::First);
    }

    #[test]
    fn a_memory_for_weights_selects_the_streaming_of_the_embedded_worker() {
        let weights: Weights = "stream:memory_mib=64,prefill_ahead=4".parse().unwrap();
        let windowed = Windowed { memory_mib: 64, ahead: 2, prefill_ahead: 4, disk_mb_s: 6000, disk_percent: 100 };
        assert_eq!(weights, Weights::Windowed(windowed));
        let error = "stream:memory_mib=64,host_layers=3".parse::<Weights>().unwrap_err().to_string();
        assert!(error.starts_with("weights 'stream' has no parameter 'host_layers'"), "{error}");
    }

    #[test]
    fn what_is_left_out_follows_from_model_and_hardware() {
        let (rtx, llama) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-70b").unwrap());
        let plan = streamed("stream:device_layers=4").plan(rtx, llama);
        assert_eq!((plan.resident.device, plan.resident.host, plan.device_slots), (4, 76, 6));
        assert_eq!((plan.link_bytes_s, plan.disk_bytes_s), (25e9, 6e9));
        let plan = streamed("stream:host_layers=50,disk_mb_s=3000,link_mb_s=64000").plan(rtx, llama);
        assert_eq!((plan.resident.host, plan.link_bytes_s, plan.disk_bytes_s), (50, 64e9, 3e9));
    }

    #[test]
    fn the_device_holds_what_stays_and_a_window() {
        let llama = model::by_name("llama-3.1-70b").unwrap();
        let bytes = |text: &str| streamed(text).device_bytes(llama);
        let layer = bytes("stream:device_layers=1") - bytes("stream");
        assert_eq!(layer, llama.layer_elements() / 80 * 2);
        assert_eq!(bytes("stream:device_layers=1,device_window=3"), bytes("stream") + 2 * layer);
        assert_eq!(bytes("stream:device_layers=80"), llama.weight_bytes());
        assert_eq!(bytes("stream:device_window=4096"), llama.weight_bytes());
    }

    #[test]
    fn what_is_not_understood_is_told_in_one_line() {
        let error = |text: &str| text.parse::<Weights>().unwrap_err().to_string();
        assert_eq!(error("ssd"), "unknown place of weights 'ssd'; there are: resident, stream, stream_first");
        assert_eq!(error("resident:disk_mb_s=1"), "weights 'resident' has no parameter 'disk_mb_s'; it has: none");
        assert_eq!(
            error("stream:disk_mb_s=0"),
            "weights 'stream': disk_mb_s is '0'; it must be a whole number between 1 and 10000000"
        );
    }
}
