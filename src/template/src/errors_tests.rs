//! The texts of all errors of chat templates.

#[path = "../../../tests/harness/error_texts.rs"]
mod harness;

use std::io;

use harness::texts;
use trunkline_text::FactsError;

use crate::TemplateError;

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    let panicked = trunkline_foreign::call(|| std::panic::resume_unwind(Box::new(()))).unwrap_err();
    texts!(
        out,
        TemplateError {
            Files: TemplateError::Files(FactsError::Absent { path: "/model".into() }),
            Absent: TemplateError::Absent { path: "/model".into() },
            Template: TemplateError::Template {
                name: "default".into(),
                problem: "line 3: unknown tag `macroo`".into()
            },
            Refused: TemplateError::Refused { message: "roles must alternate".into() },
            Conversation: TemplateError::conversation("messages is empty; send at least one message"),
            Failed: TemplateError::Failed { problem: "line 3: undefined value".into() },
            TooMuchWork: TemplateError::TooMuchWork { fuel: 1_000_000 },
            NoMemory: TemplateError::NoMemory(io::Error::new(io::ErrorKind::OutOfMemory, "out of memory")),
            Panicked: TemplateError::Panicked(panicked),
        }
    );
    harness::compare(env!("CARGO_MANIFEST_DIR"), out);
}
