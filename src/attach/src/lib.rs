//! The protocol between a server and model workers that attach over gRPC (`proto/trunkline/v1/worker.proto`).
//!
//! [`wire`] has the generated messages. The rest converts between messages and the plain values of `trunkline-port`, in both directions:
//!
//! | value | server | worker |
//! |---|---|---|
//! | [`Hello`] | [`Hello::decode`] checks the announcement | [`Hello::encode`] |
//! | [`Session`] | [`Session::encode`] | [`Hello::accept`] checks the answer |
//! | step | [`StepEncoder::encode`] sends each token once | [`Mirror::decode`] restores the step from the tokens of each slot |
//! | output | [`SentStep::decode`] checks the answer against the sent step | [`encode_done`] |
//!
//! Every message that arrives is checked in full before any part of it counts, so nonsense of one side never harms the other: the result is
//! a typed error, one clear line.
//!
//! **Boundary:** no scheduling, no model, and no crate of Trunkline but the port.

#![forbid(unsafe_code)]

pub mod check;
pub mod done;
pub mod encoder;
pub mod fake;
pub mod hello;
pub mod loopback;
pub mod mirror;
pub mod sampling;
pub mod session;
pub mod shared_memory;
pub mod worker;

/// Generated messages and services of the protocol.
#[expect(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes,
    clippy::large_enum_variant,
    reason = "generated code has its own style; worker.proto has the documentation"
)]
pub mod wire {
    tonic::include_proto!("trunkline.v1");
}

pub use crate::done::{DoneFault, SentSeq, SentStep, encode_done};
pub use crate::encoder::StepEncoder;
pub use crate::hello::{Abilities, Hello, HelloFault, KvRoom, LockStep, Resume};
pub use crate::mirror::{Mirror, StepFault, StepLimits};
pub use crate::sampling::{decode_sampling, encode_sampling};
pub use crate::session::{Session, WelcomeFault};
pub use crate::shared_memory::{Region, RegionFault};

/// Version of the protocol, [`wire::Hello::protocol`].
pub const PROTOCOL: u32 = 1;
