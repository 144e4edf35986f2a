//! Inputs as people have them: units of time, ids and names of any length, rows without work, separators.

use tempfile::NamedTempFile;

use super::formats_tests::{BURSTGPT, VIDUR, fault, file, load, shape};
use super::*;

#[test]
fn chats_may_have_names_and_long_ids() {
    let line = |chat: &str, parent: &str, input: u32, ids: &[u32]| {
        format!(
            r#"{{"chat_id": {chat}, "parent_chat_id": {parent}, "timestamp": 1, "input_length": {input}, "output_length": 20, "hash_ids": {ids:?}}}"#
        )
    };
    let answered = |first: &str, parent: &str| {
        let lines = [line(first, "null", 40, &[1, 2, 3]), line("\"z\"", parent, 90, &[1, 2, 7, 8, 9, 10])];
        let options = ReaderOptions { reuse_answers: true, ..ReaderOptions::default() };
        let trace = Trace::load_selected(file(lines.join("\n")).path(), options, &Selection::default()).unwrap();
        trace.requests[1].prompt()[40] == generated_token(0, 0)
    };
    let long = "1267650600228229401496703205381";
    assert!(answered("\"a\"", "\"a\"") && answered(long, long) && answered("7", "7.0"));
    assert!(!answered(long, "1267650600228229401496703205382") && !answered("\"a\"", "\"b\""));
}

#[test]
fn ids_of_any_length_are_told_apart() {
    let line =
        |id: &str| format!(r#"{{"timestamp": 0, "input_length": 1024, "output_length": 4, "hash_ids": [12.0, {id}]}}"#);
    let ids = ["1267650600228229401496703205382", "1267650600228229401496703205383", "-18446744073709551616"];
    let trace = load(ids.map(line).join("\n"));
    let shared = |a: usize, b: usize| {
        let (a, b) = (trace.requests[a].prompt(), trace.requests[b].prompt());
        a.iter().zip(&b).take_while(|(a, b)| a == b).count()
    };
    assert_eq!((shared(0, 0), shared(0, 1), shared(1, 2)), (1024, 512, 512));
    assert!(fault(line("1e30")).contains("write ids as whole numbers or strings"), "{}", fault(line("1e30")));
    // Sessions whose ids a float does not tell apart.
    let turn = |id: &str| format!(r#"{{"session_id": {id}, "delay": 5, "input_length": 7, "output_length": 1}}"#);
    let two = load([turn(ids[0]), turn(ids[1]), turn(ids[0])].join("\n"));
    let sessions: Vec<u32> = two.requests.iter().map(|request| request.turn.unwrap().session).collect();
    assert_eq!(sessions.iter().filter(|session| **session == sessions[0]).count().min(2), 2);
    assert_eq!(sessions.iter().max(), Some(&1));
}

#[test]
fn results_of_simulators_have_seconds_and_lengths_alone() {
    let line = |name: &str, at: &str, input: u32| {
        format!(
            r#"{{"request_id": "{name}", "input_toks": {input}.0, "output_toks": 20, "arrival_time": {at}, "first_token_ts": 5.0}}"#
        )
    };
    let trace = load([line("b", "1790000001.5", 301), line("a", "1790000000.5", 300)].join("\n"));
    assert_eq!((trace.format, shape(&trace)), (formats::TOKENS, vec![(0, 300, 20), (1000, 301, 20)]));
    assert!(matches!(trace.requests[0].content, Content::Unique(0)));
}

#[test]
fn timestamps_have_the_unit_that_is_given() {
    let file = file("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,2\n1500,10,2\n");
    let at = |time_unit| {
        let options = ReaderOptions { time_unit, ..ReaderOptions::default() };
        let mut reader = TraceReader::open_with(file.path(), options).unwrap();
        let last = reader.by_ref().last().unwrap().unwrap().arrival_ns;
        (last, reader.remarks())
    };
    assert_eq!(at(None), (1_500_000_000_000, vec![]));
    assert_eq!(at(Some(TimeUnit::Milliseconds)), (1_500_000_000, vec![]));
    assert_eq!(at(Some(TimeUnit::Microseconds)), (1_500_000, vec![]));
    assert_eq!(at(Some(TimeUnit::Nanoseconds)), (1_500, vec![]));
    let turns = r#"{"session_id": "a", "timestamp": 2, "input_length": 7, "output_length": 1}
{"session_id": "a", "delay": 0.5, "input_length": 8, "output_length": 1}
{"session_id": "a", "delay_ms": 100, "input_length": 9, "output_length": 1}"#;
    let options = ReaderOptions { time_unit: Some(TimeUnit::Seconds), ..ReaderOptions::default() };
    let trace = Trace::load_selected(self::file(turns).path(), options, &Selection::default()).unwrap();
    assert_eq!(shape(&trace), [(0, 7, 1), (500, 8, 1), (600, 9, 1)]);
}

#[test]
fn times_of_token_ids_are_in_the_field_of_the_first_line() {
    let line = |time: &str| format!(r#"{{"{time}": 2, "input_toks": 3, "output_toks": 1}}"#);
    let bad = |first: &str, second: &str| fault([line(first), line(second)].join("\n"));
    for (first, second) in [("arrival_time", "arrival_time_ns"), ("arrival_time_ns", "arrival_time")] {
        let error = bad(first, second);
        let wanted = [", line 2: field '", first, "' is missing; a request has "].concat();
        assert!(error.starts_with(&wanted), "{error}");
    }
    let error = fault(line("arrival_time").replace('2', "-2"));
    assert!(error.starts_with(", line 1: arrival_time is -2; it must be seconds"), "{error}");
}

#[test]
fn a_delay_is_in_milliseconds_whatever_the_timestamps_look_like() {
    let turns = r#"{"session_id": "a", "timestamp": 1790000000, "input_length": 7, "output_length": 1}
{"session_id": "a", "delay": 500, "input_length": 8, "output_length": 1}
{"session_id": "a", "delay_ms": 100, "input_length": 9, "output_length": 1}"#;
    assert_eq!(shape(&load(turns)), [(0, 7, 1), (500, 8, 1), (600, 9, 1)]);
    let file = file(turns.replace("100", "-1"));
    let error = Trace::load(file.path(), None, None).unwrap_err().to_string();
    assert!(error.contains(", line 3: delay_ms is -1; it must be milliseconds"), "{error}");
}

#[test]
fn dates_in_seconds_are_read_as_seconds_with_a_remark() {
    let lines = |unit: f64| {
        let line = |n: u32| {
            let at = (1_790_000_000.0 + 0.75 * f64::from(n)) * unit;
            format!(r#"{{"timestamp": {at:?}, "input_length": 9, "output_length": 1}}"#)
        };
        file((0..30).map(line).collect::<Vec<_>>().join("\n"))
    };
    let read = |file: &NamedTempFile| {
        let mut reader = TraceReader::open(file.path(), None).unwrap();
        let last = reader.by_ref().last().unwrap().unwrap();
        (last.arrival_ns, reader.remarks())
    };
    let (last_ns, remarks) = read(&lines(1.0));
    assert_eq!(last_ns, 21_750_000_000);
    assert_eq!(
        remarks,
        [
            "the timestamps are read in seconds: only so are they dates of this century; --time-unit ms reads them in milliseconds"
        ]
    );
    assert_eq!(read(&lines(1000.0)), (21_750_000_000, vec![]));
}

#[test]
fn rows_without_work_are_left_out_in_every_format() {
    let of = |text: String| {
        let file = file(text);
        let mut reader = TraceReader::open(file.path(), None).unwrap();
        let lengths: Vec<u32> = reader.by_ref().map(|request| request.unwrap().input_tokens).collect();
        (reader.format(), lengths, reader.left_out())
    };
    let both = LeftOut { failed: 0, empty: 2 };
    let ids = [(10, 2), (0, 2), (10, 0), (30, 1)];
    let rows = |line: &dyn Fn(u32, u32) -> String| ids.map(|(input, output)| line(input, output)).join("\n");
    let json = |fields: &str| {
        rows(&|input, output| fields.replace("IN", &input.to_string()).replace("OUT", &output.to_string()))
    };
    for (text, format) in [
        (json(r#"{"timestamp": 1, "input_length": IN, "output_length": OUT}"#), formats::MOONCAKE),
        (json(r#"{"timestamp": 1, "input_length": IN, "output_length": OUT, "hash_ids": [7]}"#), formats::MOONCAKE),
        (
            json(r#"{"chat_id": 1, "timestamp": 1, "input_length": IN, "output_length": OUT, "hash_ids": [7, 8]}"#),
            formats::BAILIAN,
        ),
        (json(r#"{"arrival_time_ns": 1, "input_toks": IN, "output_toks": OUT}"#), formats::TOKENS),
        (format!("{VIDUR}{}", rows(&|input, output| format!("1,{input},{output}"))), formats::VIDUR),
        (format!("{BURSTGPT}{}", rows(&|input, output| format!("1,a,{input},{output},9,x"))), formats::BURSTGPT),
    ] {
        let text = if format == formats::BAILIAN { text.replacen("[7, 8]", "[7]", 3) } else { text };
        assert_eq!(of(text), (format, vec![10, 30], both), "{format}");
    }
}

#[test]
fn what_is_left_out_is_counted_in_words() {
    let said = |failed, empty| LeftOut { failed, empty }.to_string();
    assert_eq!(
        said(2, 1),
        "2 requests that failed, were cancelled, or were part of a warm-up, 1 request without input or output"
    );
    assert_eq!(said(1, 0), "1 request that failed, was cancelled, or was part of a warm-up");
}

#[test]
fn csv_may_be_separated_otherwise() {
    let lines = ["arrived_at,num_prefill_tokens,num_decode_tokens,note", "0,10,2,\"a,b\"", "1.5,20,3,"];
    for separator in [",", ";", "\t"] {
        let text = lines.map(|line| line.replace(',', separator)).join("\n");
        assert_eq!(shape(&load(text)), [(0, 10, 2), (1500, 20, 3)], "{separator}");
    }
    // Columns without a name or a value.
    let tabbed =
        "\tarrived_at\tnum_prefill_tokens\tnum_decode_tokens\tnote\t\n0\t0\t10\t2\t\t\"x\ty\"\n1\t1.5\t20\t3\t\t\n";
    assert_eq!(shape(&load(tabbed)), [(0, 10, 2), (1500, 20, 3)]);
}

#[test]
fn tenants_may_have_names() {
    let line =
        |tenant: &str| format!(r#"{{"timestamp": 0, "input_length": 1, "output_length": 1, "tenant": {tenant}}}"#);
    let file = file([line("\"b\""), line("\"a\""), line("\"b\"")].join("\n"));
    let mut reader = TraceReader::open(file.path(), None).unwrap();
    let tenants: Vec<u32> = reader.by_ref().map(|request| request.unwrap().terms.tenant).collect();
    assert_eq!(
        (tenants, reader.remarks()),
        (vec![0, 1, 0], vec!["tenants are numbered as they come: 0 'b', 1 'a'".into()])
    );
    let csv = load("arrived_at,num_prefill_tokens,num_decode_tokens,tenant\n0,1,1,x\n1,1,1,y\n");
    assert_eq!(csv.requests.iter().map(|request| request.terms.tenant).collect::<Vec<_>>(), [0, 1]);
}
