//! The texts of errors of publishers.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use error_texts::texts;
use trunkline_events::PublisherError;

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut out = String::new();
    let endpoint = || "tcp://*:5557".to_owned();
    texts!(
        out,
        PublisherError {
            Endpoint: PublisherError::Endpoint { endpoint: "5557".into() },
            Socket: PublisherError::Socket { endpoint: endpoint(), message: "address in use".into() },
            NoZmq: PublisherError::NoZmq,
            System: PublisherError::System("no more threads".into()),
        }
    );
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), &out);
}
