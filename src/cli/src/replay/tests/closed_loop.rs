//! Flags of a closed loop.

use super::*;

#[test]
fn so_many_users_replace_the_times_of_the_trace() {
    let report = json(&["--concurrency", "3", "--think-time", "0.5", "--ramp", "2"]);
    let settings = &report["settings"];
    assert_eq!(settings["closed_loop"], serde_json::json!({"concurrency": 3, "think_s": 0.5, "ramp_s": 2.0}));
    assert_eq!((&settings["speed"], &settings["serial"]), (&serde_json::Value::Null, &false.into()));
    assert_eq!(report["completed"], 40);
    // At most three at a time, with half a second after each.
    assert!(report["requests_s"].as_f64().unwrap() < 6.0, "{report}");
    let told = settings_of("t --concurrency 3").arrivals.closed().unwrap();
    assert_eq!((told.users, told.think_s, told.ramp_s), (3, 0.0, 0.0));
}

#[test]
fn what_does_not_go_with_users_is_refused() {
    for words in [&["t", "--concurrency", "3", "--serial"][..], &["t", "--concurrency", "3", "--load", "0.5"]] {
        assert_eq!(parse(words).unwrap_err().kind(), ErrorKind::ArgumentConflict, "{words:?}");
    }
    assert_eq!(parse(&["t", "--concurrency", "3", "--speed", "2"]).unwrap_err().kind(), ErrorKind::ArgumentConflict);
    assert_eq!(parse(&["t", "--ramp", "2"]).unwrap_err().kind(), ErrorKind::MissingRequiredArgument);
    assert_eq!(fault(&["t", "--concurrency", "0"]), "concurrency is 0; it must be from 1 to 1048576");
    assert_eq!(
        fault(&["t", "--concurrency", "2", "--think-time", "-1"]),
        "think time is -1; it must be from 0 to 604800 seconds"
    );
}
