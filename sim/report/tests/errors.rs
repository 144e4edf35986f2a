//! The texts of errors of reports.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use std::io;

use error_texts::texts;
use trunkline_sim_report::outcome::OutcomeError;
use trunkline_sim_report::slo::SloError;
use trunkline_sim_report::timeline::TimelineError;

fn full() -> io::Error {
    io::Error::other("no space left")
}

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    let spec = || "ttft_p98=2s".to_owned();
    texts!(
        out,
        SloError {
            Form: SloError::Form("ttft".into()),
            Metric: SloError::Metric { spec: spec(), metric: "tft".into() },
            Statistic: SloError::Statistic { spec: spec(), statistic: "p98".into() },
            Duration: SloError::Duration { spec: spec(), duration: "2 weeks".into() },
            EachItl: SloError::EachItl("itl=50ms".into()),
            Twice: SloError::Twice("ttft_p99".into()),
            Goodput: SloError::Goodput(1.5),
            NoGoodput: SloError::NoGoodput("ttft".into()),
            NothingPromised: SloError::NothingPromised,
            None: SloError::None,
        }
    );
    texts!(out, TimelineError = TimelineError { path: "steps.json".into(), fault: full() });
    texts!(out, OutcomeError = OutcomeError { path: "requests.csv".into(), fault: full() });
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), out);
}
