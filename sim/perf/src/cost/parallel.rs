//! Tensor, pipeline and expert parallelism, and attention in data-parallel ranks.
//!
//! The names and their meaning are those of vLLM (`--tensor-parallel-size`, `--data-parallel-size`, `--enable-expert-parallel`,
//! `--pipeline-parallel-size`): the matrices that every token passes through are divided among `tensor` devices and repeated in
//! each of `data` ranks; experts are divided among all `tensor * data` devices, each expert in slices, or as whole experts with
//! `expert`. A rank holds the KV of its own requests alone. All ranks run a step at the same time, because the tokens of each layer
//! meet at the experts: see [`crate::cost::CostModel::lock_step_ns`].

use std::fmt;
use std::str::FromStr;

use trunkline_quote::quoted;

use crate::model::{Model, Precision};

/// Devices that hold one copy of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Tensor parallelism: devices that each hold a share of every matrix, with two all-reduces per layer.
    pub tensor: u32,
    /// Pipeline parallelism: stages that each hold a share of the layers. Tokens pass through the stages in turn.
    pub pipeline: u32,
    /// Data-parallel attention: ranks of `tensor` devices with requests of their own and experts in common, in lock step.
    pub data: u32,
    /// Expert parallelism: devices that hold whole experts, all of a group; 1 if each device holds a slice of every expert.
    pub expert: u32,
}

/// Maximum number of devices of a replica.
const DEVICES_MAX: u32 = 1024;

/// Impossible way to spread a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParallelError {
    /// Text of another form.
    #[error(
        "parallel is {}; it must be of tpN, dpN, epN and ppN, each at most once, as in tp2, tp2pp2 or dp4ep4, with numbers from 1 to \
         {DEVICES_MAX}"
    , quoted(.0))]
    Malformed(String),
    /// Experts divided in a model without experts.
    #[error("{what} divides experts, and {model} has none; {remedy}")]
    NoExperts {
        /// Part of the text that needs experts.
        what: String,
        /// Name of the model.
        model: &'static str,
        /// Parallelism to use instead.
        remedy: &'static str,
    },
    /// Whole experts on another number of devices than the experts have.
    #[error("ep{expert} is not all devices of the experts, which are tp{tensor} * dp{data}; give ep{} or leave ep out", tensor * data)]
    ExpertDevices {
        /// Devices requested for whole experts.
        expert: u32,
        /// Devices of a rank.
        tensor: u32,
        /// Ranks of a group.
        data: u32,
    },
    /// More devices than experts.
    #[error("ep{expert} is more devices than {model} has experts, which is {count}")]
    Experts {
        /// Devices requested for whole experts.
        expert: u32,
        /// Number of experts per layer.
        count: u64,
        /// Name of the model.
        model: &'static str,
    },
    /// Data-parallel attention in a pipeline.
    #[error("dp{data} with pp{pipeline} is not modelled; give one of them")]
    DataPipeline {
        /// Ranks of a group.
        data: u32,
        /// Number of stages of the pipeline.
        pipeline: u32,
    },
    /// Heads not divisible by the devices.
    #[error("tp{tensor} does not divide the {heads} query heads of {model}")]
    Heads {
        /// Number of devices of a stage.
        tensor: u32,
        /// Number of query heads.
        heads: u64,
        /// Name of the model.
        model: &'static str,
    },
    /// KV heads that the devices can neither share out nor copy evenly.
    #[error("tp{tensor} neither divides the {kv_heads} KV heads of {model} nor is a multiple of them")]
    KvHeads {
        /// Number of devices of a stage.
        tensor: u32,
        /// Number of KV heads.
        kv_heads: u64,
        /// Name of the model.
        model: &'static str,
    },
    /// More stages than layers.
    #[error("pp{pipeline} is more stages than {model} has layers, which is {layers}")]
    Layers {
        /// Number of stages of the pipeline.
        pipeline: u32,
        /// Number of layers of the model.
        layers: u64,
        /// Name of the model.
        model: &'static str,
    },
}

impl Parallel {
    /// Single device, without any parallelism.
    pub const ONE: Self = Self { tensor: 1, pipeline: 1, data: 1, expert: 1 };

    /// Returns tensor parallelism alone.
    pub const fn tensor(tensor: u32) -> Self {
        Self { tensor, ..Self::ONE }
    }

    /// Returns the number of devices of a replica, which is one rank of a group with data-parallel attention.
    pub fn devices(self) -> u32 {
        self.tensor * self.pipeline
    }

    /// Returns the number of devices that share the experts of a layer.
    pub fn expert_devices(self) -> u32 {
        self.tensor * self.data
    }

    /// Checks that `model` can be spread like this.
    ///
    /// # Errors
    ///
    /// [`ParallelError`] if query or KV heads cannot be shared out evenly, a stage would have no layer, or experts are divided that are not there.
    pub fn check(self, model: &Model) -> Result<(), ParallelError> {
        let (tensor, pipeline, model_name) = (self.tensor, self.pipeline, model.name);
        if tensor == 0 || !model.heads.is_multiple_of(u64::from(tensor)) {
            return Err(ParallelError::Heads { tensor, heads: model.heads, model: model_name });
        }
        let (kv_heads, shares) = (model.kv_heads, u64::from(tensor));
        if model.latent.is_none() && !kv_heads.is_multiple_of(shares) && !shares.is_multiple_of(kv_heads) {
            return Err(ParallelError::KvHeads { tensor, kv_heads, model: model_name });
        }
        if pipeline == 0 || u64::from(pipeline) > model.layers {
            return Err(ParallelError::Layers { pipeline, layers: model.layers, model: model_name });
        }
        self.check_experts(model)
    }

    fn check_experts(self, model: &Model) -> Result<(), ParallelError> {
        let Self { tensor, pipeline, data, expert } = self;
        let Some(moe) = model.experts else {
            let none = |what, remedy| Err(ParallelError::NoExperts { what, model: model.name, remedy });
            return match (data, expert) {
                (1, 1) => Ok(()),
                (1, _) => none(format!("ep{expert}"), "leave ep out"),
                _ => none(format!("dp{data}"), "give more replicas instead"),
            };
        };
        if data > 1 && pipeline > 1 {
            return Err(ParallelError::DataPipeline { data, pipeline });
        }
        if expert > 1 && expert != tensor * data {
            return Err(ParallelError::ExpertDevices { expert, tensor, data });
        }
        if u64::from(expert) > moe.count {
            return Err(ParallelError::Experts { expert, count: moe.count, model: model.name });
        }
        Ok(())
    }

    /// Returns the KV bytes of one token on the fullest device. With fewer KV heads than devices, several devices hold a copy of a
    /// head.
    pub fn kv_bytes_per_token(self, model: &Model) -> u64 {
        let layers = model.kv_layers().div_ceil(self.pipeline.into());
        let layer_bytes = model.kv_bytes_per_token() / model.kv_layers();
        layers * layer_bytes.div_ceil(self.kv_shares(model))
    }

    /// Returns the number of shares that the KV of a layer is divided into: `n` devices with fewer shares hold copies. A latent cache has
    /// no heads to share out.
    pub(super) fn kv_shares(self, model: &Model) -> u64 {
        if model.latent.is_some() { 1 } else { model.kv_heads.min(self.tensor.into()) }
    }

    /// Returns the number of layers in the largest stage of `model`.
    pub(super) fn stage_layers(self, model: &Model) -> u64 {
        model.layers.div_ceil(u64::from(self.pipeline))
    }

    /// Returns the bytes of weights on the fullest device. The matrices that every token passes through are on each rank.
    pub fn weight_bytes(self, model: &Model) -> u64 {
        let (tensor, pipeline) = (u64::from(self.tensor), u64::from(self.pipeline));
        let common = model.common_elements();
        let experts = (model.layer_elements() - common) / model.layers;
        let experts_here = match (model.experts, self.expert) {
            (Some(moe), 2..) => experts / moe.count * moe.count.div_ceil(self.expert.into()),
            _ => experts.div_ceil(self.expert_devices().into()),
        };
        let stage_layers = self.stage_layers(model);
        let layers = (stage_layers * (common / model.layers)).div_ceil(tensor);
        let head = model.head_elements();
        // Embedding and output matrix are on the first and the last stage.
        let ends = if pipeline == 1 && !model.tied { 2 * head } else { head };
        let Precision { attention, recurrent, feed_forward, experts: of_experts, ends: of_ends, .. } = model.precision;
        let mixers = (stage_layers * (model.mixer_elements() / model.layers)).div_ceil(tensor).min(layers);
        let of_states = (stage_layers * (model.recurrent_elements() / model.layers)).div_ceil(tensor).min(mixers);
        let of_layers = attention.bytes(mixers - of_states)
            + recurrent.bytes(of_states)
            + feed_forward.bytes(layers - mixers)
            + of_experts.bytes(stage_layers * experts_here);
        of_layers + of_ends.bytes(ends.div_ceil(tensor)) + model.extras.tower_bytes.div_ceil(tensor)
    }

    /// Returns the bytes of the recurrent states of one sequence on the fullest device; their heads are shared out.
    pub fn state_bytes(self, model: &Model) -> u64 {
        let Some(hybrid) = model.hybrid else { return 0 };
        let layers = hybrid.recurrent_layers.div_ceil(self.pipeline.into());
        layers * hybrid.state_bytes().div_ceil(self.tensor.into())
    }
}

impl fmt::Display for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tp{}", self.tensor)?;
        if self.data > 1 {
            write!(f, "dp{}", self.data)?;
        }
        if self.expert > 1 {
            write!(f, "ep{}", self.expert)?;
        }
        write!(f, "pp{}", self.pipeline)
    }
}

impl FromStr for Parallel {
    type Err = ParallelError;

    fn from_str(text: &str) -> Result<Self, ParallelError> {
        let fault = || ParallelError::Malformed(text.into());
        let mut parallel = Self { tensor: 0, pipeline: 0, data: 0, expert: 0 };
        let mut rest = text;
        while !rest.is_empty() {
            let (name, numbered) = rest.split_at_checked(2).ok_or_else(fault)?;
            let digits = numbered.find(|c: char| !c.is_ascii_digit()).unwrap_or(numbered.len());
            let field = match name {
                "tp" => &mut parallel.tensor,
                "dp" => &mut parallel.data,
                "ep" => &mut parallel.expert,
                "pp" => &mut parallel.pipeline,
                _ => return Err(fault()),
            };
            match numbered[..digits].parse() {
                Ok(n @ 1..=DEVICES_MAX) if *field == 0 => *field = n,
                _ => return Err(fault()),
            }
            rest = &numbered[digits..];
        }
        if text.is_empty() {
            return Err(fault());
        }
        let Self { tensor, pipeline, data, expert } = parallel;
        Ok(Self { tensor: tensor.max(1), pipeline: pipeline.max(1), data: data.max(1), expert: expert.max(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn written_and_read() {
        let of = |tensor, pipeline, data, expert| Parallel { tensor, pipeline, data, expert };
        for (text, expected) in [
            ("tp2", of(2, 1, 1, 1)),
            ("pp4", of(1, 4, 1, 1)),
            ("tp8pp2", of(8, 2, 1, 1)),
            ("tp2ep2", of(2, 1, 1, 2)),
            ("dp4ep4", of(1, 1, 4, 4)),
            ("ep4dp2tp2", of(2, 1, 2, 4)),
            ("dp2", of(1, 1, 2, 1)),
        ] {
            let parallel: Parallel = text.parse().unwrap();
            assert_eq!(parallel, expected, "{text}");
            assert_eq!(parallel.to_string().parse(), Ok(parallel));
        }
        for text in [
            "",
            "2",
            "tp",
            "tp0",
            "pp0",
            "tp2pp",
            "tp-1",
            "tp2pp2pp2",
            "tp9999",
            "xtp2",
            "dp0",
            "ep",
            "tp2tp2",
            "zp2",
            "tp2é",
        ] {
            assert_eq!(text.parse::<Parallel>(), Err(ParallelError::Malformed(text.into())), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_divided_is_refused() {
        let llama = model::by_name("llama-3.1-8b").unwrap();
        assert_eq!(Parallel { tensor: 32, pipeline: 32, ..Parallel::ONE }.check(llama), Ok(()));
        let error = |text: &str| text.parse::<Parallel>().unwrap().check(llama).unwrap_err().to_string();
        assert_eq!(error("tp3"), "tp3 does not divide the 32 query heads of llama-3.1-8b");
        let five = Model { heads: 40, kv_heads: 5, ..*llama };
        let check = |tensor| Parallel::tensor(tensor).check(&five).map_err(|error| error.to_string());
        assert_eq!((check(5), check(10)), (Ok(()), Ok(())), "heads are shared out, or copied");
        assert_eq!(
            check(2),
            Err("tp2 neither divides the 5 KV heads of llama-3.1-8b nor is a multiple of them".into())
        );
        assert_eq!(error("pp33"), "pp33 is more stages than llama-3.1-8b has layers, which is 32");
    }

    #[test]
    fn each_device_holds_its_share() {
        let llama = model::by_name("llama-3.1-70b").unwrap();
        let of = |tensor, pipeline| {
            let parallel = Parallel { tensor, pipeline, ..Parallel::ONE };
            (parallel.weight_bytes(llama), parallel.kv_bytes_per_token(llama))
        };
        assert_eq!(of(1, 1), (llama.weight_bytes(), 327_680));
        assert_eq!(of(2, 1), (llama.weight_bytes() / 2, 163_840));
        assert_eq!(of(16, 1).1, 40_960, "eight heads cannot be shared out to sixteen");
        assert_eq!(of(1, 3).1, 27 * 4096);
        assert!(of(1, 2).0 < llama.weight_bytes() * 52 / 100);
    }
    #[test]
    fn experts_are_divided_among_all_devices_and_the_rest_among_those_of_a_rank() {
        let mixtral = model::by_name("mixtral-8x7b").unwrap();
        let bytes = |text: &str| text.parse::<Parallel>().unwrap().weight_bytes(mixtral);
        let experts = 32 * 8 * 3 * 4096 * 14_336 * 2;
        let rest = mixtral.weight_bytes() - experts;
        assert_eq!(bytes("tp1"), rest + experts);
        assert_eq!(bytes("tp4"), (rest + experts) / 4);
        assert_eq!(bytes("tp4ep4"), (rest + experts) / 4);
        assert_eq!(bytes("dp4ep4"), rest + experts / 4);
        assert_eq!(bytes("dp4"), rest + experts / 4, "slices of all experts are as large as whole ones of some");
        assert_eq!(bytes("tp2dp2ep4"), rest / 2 + experts / 4);
        assert_eq!(
            bytes("tp1dp3ep3"),
            rest + experts * 3 / 8,
            "the fullest of three devices has three experts of eight"
        );
        let kv = |text: &str| text.parse::<Parallel>().unwrap().kv_bytes_per_token(mixtral);
        assert_eq!((kv("tp1"), kv("tp4"), kv("dp4ep4"), kv("tp2dp2ep4")), (131_072, 32_768, 131_072, 65_536));
    }

    #[test]
    fn experts_that_cannot_be_divided_are_refused() {
        let error = |text: &str, name| {
            let model = model::by_name(name).unwrap();
            text.parse::<Parallel>().unwrap().check(model).err().map(|error| error.to_string())
        };
        let mixtral = |text| error(text, "mixtral-8x7b");
        for text in ["tp2ep2", "dp8ep8", "tp2dp4ep8", "dp2", "tp2pp2ep2"] {
            assert_eq!(mixtral(text), None, "{text}");
        }
        assert_eq!(
            mixtral("tp2ep4").unwrap(),
            "ep4 is not all devices of the experts, which are tp2 * dp1; give ep2 or leave ep out"
        );
        assert_eq!(mixtral("dp16ep16").unwrap(), "ep16 is more devices than mixtral-8x7b has experts, which is 8");
        assert_eq!(mixtral("dp2pp2").unwrap(), "dp2 with pp2 is not modelled; give one of them");
        let llama = |text| error(text, "llama-3.1-8b").unwrap();
        assert_eq!(llama("dp2"), "dp2 divides experts, and llama-3.1-8b has none; give more replicas instead");
        assert_eq!(llama("tp2ep2"), "ep2 divides experts, and llama-3.1-8b has none; leave ep out");
    }
}
