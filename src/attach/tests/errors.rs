//! The texts of all errors of the protocol for workers.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use std::io;

use error_texts::texts;
use trunkline_attach::done::{DoneFault, DoneReason};
use trunkline_attach::hello::HelloFault;
use trunkline_attach::loopback::LoopbackError;
use trunkline_attach::mirror::{StepFault, StepReason};
use trunkline_attach::sampling::SamplingFault;
use trunkline_attach::session::WelcomeFault;
use trunkline_attach::shared_memory::RegionFault;
use trunkline_attach::worker::WorkerError;

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "permission denied")
}

fn sampling() -> SamplingFault {
    SamplingFault { field: "top_p", value: 1.5, range: "above 0 and at most 1" }
}

fn answer() -> DoneFault {
    DoneFault { step: 7, reason: DoneReason::OtherStep { id: 8, life: 2 } }
}

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    connections(out);
    messages(out);
    steps(out);
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), out);
}

fn connections(out: &mut String) {
    texts!(
        out,
        WorkerError {
            Refused: WorkerError::Refused("the server has no room for another engine".into()),
            Thread: WorkerError::Thread(refused()),
        }
    );
    texts!(
        out,
        RegionFault {
            Create: RegionFault::Create(refused()),
            Range: RegionFault::Range { field: "slots", value: 0, range: "1 to 4096" },
            Open: RegionFault::Open { pid: 4711, source: refused() },
            OtherFile: RegionFault::OtherFile { pid: 4711, fd: 9 },
            Slot: RegionFault::Slot { slot: 8, slots: 8 },
            Length: RegionFault::Length { n_bytes: 9_000, slot_bytes: 8_192 },
            Copy: RegionFault::Copy(refused()),
        }
    );
    texts!(
        out,
        LoopbackError {
            Io: LoopbackError::Io(refused()),
            Done: LoopbackError::Done(answer()),
            Failed: LoopbackError::Failed { id: 7, reason: "no memory".into() },
            Copy: LoopbackError::Copy { block: 3, reason: "no such block".into() },
            Shared: LoopbackError::Shared(RegionFault::Slot { slot: 8, slots: 8 }),
            Gone: LoopbackError::Gone,
        }
    );
}

fn messages(out: &mut String) {
    texts!(
        out,
        HelloFault {
            Protocol: HelloFault::Protocol { version: 9 },
            Missing: HelloFault::Missing { field: "model" },
            Text: HelloFault::Text { field: "name", range: "1 to 256" },
            Range: HelloFault::Range { field: "model.n_layers", value: 0, range: "at least 1" },
            Layer: HelloFault::Layer { layer: 3 },
            Head: HelloFault::Head { head: 17 },
            Group: HelloFault::Group { group: 1, reason: "it has no layers" },
        }
    );
    texts!(out, WelcomeFault = WelcomeFault { field: "heartbeat_ms", value: 0, range: "at least 1" });
    texts!(out, SamplingFault = sampling());
}

fn steps(out: &mut String) {
    texts!(out, DoneFault = answer());
    texts!(
        out,
        DoneReason {
            OtherStep: DoneReason::OtherStep { id: 8, life: 2 },
            Length: DoneReason::Length { list: "tokens", len: 3, expected: 4 },
            Count: DoneReason::Count { index: 0, count: 5, least: 1, most: 4 },
            Token: DoneReason::Token { list: "tokens", token: 396, vocab_size: 300 },
            Fault: DoneReason::Fault { index: 0, fault: 9 },
            Drafts: DoneReason::Drafts { drafted: 2, accepted: 3, allowed: 4 },
        }
    );
    texts!(out, StepFault = StepFault { step: 7, reason: StepReason::ScoreKind { kind: 5 } });
    let (index, slot) = (2, 4);
    texts!(
        out,
        StepReason {
            Column: StepReason::Column { column: "slot", len: 3, n: 4 },
            TooLarge: StepReason::TooLarge { index, field: "slot", value: 9, most: 7 },
            Zero: StepReason::Zero { index, field: "n_tokens" },
            Size: StepReason::Size { value: 600, unit: "tokens", most: 512 },
            SlotTwice: StepReason::SlotTwice { index, slot },
            NotStarted: StepReason::NotStarted { index, slot },
            Order: StepReason::Order { list: "samples", index: 5, n: 4 },
            NoSampling: StepReason::NoSampling { index },
            Sampling: StepReason::Sampling { index, fault: sampling() },
            Unknown: StepReason::Unknown { index, end: 40, known: 32 },
            SampleInside: StepReason::SampleInside { index, end: 30, known: 32 },
            TableShort: StepReason::TableShort { index, room: 32, end: 40 },
            Blocks: StepReason::Blocks { len: 3, expected: 4 },
            ScoreKind: StepReason::ScoreKind { kind: 5 },
            Ability: StepReason::Ability { field: "drafts", ability: "max_drafts" },
        }
    );
}
