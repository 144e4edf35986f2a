//! Retention hints of a trace, followed or left out.

use super::*;

/// A prompt that is asked for again and again with a hint, among others that are asked for once: the cache holds few of them.
fn trace() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for i in 0..60 {
        let (id, hint) = match i % 10 {
            0 => (1, r#", "retention": [{"priority": 80}]"#),
            _ => (100 + i, ""),
        };
        writeln!(
            file,
            r#"{{"timestamp": {}, "input_length": 512, "output_length": 4, "hash_ids": [{id}]{hint}}}"#,
            i * 500
        )
        .unwrap();
    }
    file
}

#[test]
fn hints_are_followed_or_left_out_and_a_table_says_what_they_did() {
    let (trace, out) = (trace(), tempfile::NamedTempFile::new().unwrap());
    let paths = [trace.path().to_str().unwrap(), "--json", out.path().to_str().unwrap()];
    let flags = ["--device-blocks=160", "--hints=true", "--hints=false"];
    run(parse(&[&paths[..], &flags].concat()).unwrap()).unwrap();
    let reports: serde_json::Value = serde_json::from_str(&fs::read_to_string(out.path()).unwrap()).unwrap();
    let hints = |at: usize| reports[at]["hints"].clone();
    assert_eq!((&hints(0)["followed"], &hints(1)["followed"]), (&true.into(), &false.into()));
    for at in 0..2 {
        assert_eq!((&hints(at)["hinted"]["requests"], &hints(at)["others"]["requests"]), (&6.into(), &54.into()));
    }
    let found = |at: usize| hints(at)["hinted"]["prefix_hit_tokens"].as_u64().unwrap();
    assert!(found(0) > found(1), "{} and {}", found(0), found(1));
    // One run has what all have by default.
    let one = |words: &[&str]| settings(words).unwrap()[0].hints;
    assert_eq!((one(&["t"]), one(&["t", "--hints", "false"])), (true, false));
}
