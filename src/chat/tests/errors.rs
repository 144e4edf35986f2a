//! The texts of all errors of a chat.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use error_texts::texts;
use trunkline_chat::{LimitFault, Refusal, SavedFault};

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    let id = || "turn-7".to_owned();
    texts!(
        out,
        Refusal {
            StillRunning: Refusal::StillRunning(id()),
            Busy: Refusal::Busy(id()),
            IdTaken: Refusal::IdTaken(id()),
            NoInput: Refusal::NoInput,
            Empty: Refusal::Empty,
            Pins: Refusal::Pins { tokens: 900, most: 512 },
            PinBytes: Refusal::PinBytes { bytes: 9_000, most: 4_096 },
            NeverFits: Refusal::NeverFits { needed: 5_000, room: 3_000, context: 4_096 },
            NoTurn: Refusal::NoTurn(id()),
            Forgotten: Refusal::Forgotten { first: 12 },
        }
    );
    texts!(
        out,
        LimitFault {
            NoRoom: LimitFault::NoRoom { prefix: 4_000, room: 5, context: 4_096 },
            NoSummary: LimitFault::NoSummary,
            High: LimitFault::High { high: 9_000, most: 3_072 },
            Low: LimitFault::Low { low: 3_000, high: 2_000 },
        }
    );
    texts!(
        out,
        SavedFault {
            Layout: SavedFault::Layout(2),
            NoLayout: SavedFault::NoLayout,
            Turn: SavedFault::Turn(3),
            Pin: SavedFault::Pin(0),
            Number: SavedFault::Number { field: "turns[1].number".into(), number: u64::MAX },
            TooLarge: SavedFault::TooLarge { field: "transcript_bytes", size: 70_000, most: 65_536 },
        }
    );
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), out);
}
