//! Results of benchmarks as traces: made results with the fields of the real ones.

use std::io::Write;

use tempfile::NamedTempFile;

use super::*;

fn file(text: impl AsRef<[u8]>) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_ref()).unwrap();
    file
}

/// Format, requests as arrival in milliseconds and lengths, and the number of those left out.
fn read(text: impl AsRef<[u8]>) -> (Format, Vec<(u64, u32, u32)>, u64) {
    let file = file(text);
    let mut reader = TraceReader::open(file.path(), None).unwrap();
    let requests: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
    assert!((0..).zip(&requests).all(|(number, request)| request.content == Content::Unique(number)));
    let shape = requests.iter().map(|it| (it.arrival_ns / 1_000_000, it.input_tokens, it.output_tokens));
    let shape = shape.collect();
    (reader.format(), shape, reader.left_out().failed + reader.left_out().empty)
}

fn fault(text: impl AsRef<[u8]>) -> String {
    let file = file(text);
    let message = Trace::load(file.path(), None, None).unwrap_err().to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    message.strip_prefix(&file.path().display().to_string()).expect("begins with the file").to_string()
}

/// Request of a report of GuideLLM 0.4 and later.
fn guidellm_request(start: f64, prompt: &str, output: &str) -> String {
    format!(
        r#"{{"type_": "generative_request_stats", "request_id": "a", "output": "x \" {{", "info": {{"timings": {{"request_start": {start}}}}},
        "request_start_time": {start}, "prompt_tokens": {prompt}, "output_tokens": {output}}}"#
    )
}

fn guidellm_benchmark(successful: &[String], totals: usize) -> String {
    format!(
        r#"{{"type_": "generative_benchmark", "requests": {{"successful": [{}], "incomplete": [{{"prompt_tokens": 5}}], "errored": [{{}}, {{}}],
        "total": null}}, "metrics": {{"request_totals": {{"successful": {totals}, "incomplete": 1, "errored": 2, "total": 9}}, "itl": NaN}}}}"#,
        successful.join(", ")
    )
}

fn guidellm_report(benchmarks: &[String]) -> String {
    format!(r#"{{"metadata": {{"version": 1}}, "args": {{"rate": [2.0]}}, "benchmarks": [{}]}}"#, benchmarks.join(", "))
}

#[test]
fn a_report_of_guidellm_in_one_line_or_many() {
    let requests = [
        guidellm_request(1757000002.25, "128", "16"),
        guidellm_request(1757000001.0, "256", "32"),
        guidellm_request(1757000003.0, "9", "0"),
    ];
    let report = guidellm_report(&[guidellm_benchmark(&requests, 3)]);
    let expected = (formats::GUIDELLM, vec![(0, 256, 32), (1250, 128, 16)], 4);
    assert_eq!(read(report.replace('\n', " ")), expected);
    assert_eq!(read(report.replace("{\"metadata\"", "{\n  \"metadata\"")), expected);
    assert_eq!(read(format!("\u{feff}{}\r\n", report.replace('\n', " "))), expected);
    assert_eq!(read(zstd::encode_all(report.replace('\n', " ").as_bytes(), 3).unwrap()), expected);
}

#[test]
fn reports_of_earlier_releases_have_starts_in_other_places() {
    let report = |start: &str| {
        let request = format!(r#"{{{start}, "prompt_tokens": 128, "output_tokens": 16}}"#);
        format!(r#"{{"benchmarks": [{{"requests": {{"successful": [{request}]}}}}]}}"#)
    };
    let expected = (formats::GUIDELLM, vec![(0, 128, 16)], 0);
    assert_eq!(read(report(r#""start_time": 1757000002.25, "end_time": 1757000003.0"#)), expected);
    assert_eq!(read(report(r#""scheduler_info": {"request_timings": {"request_start": 1757000002.25}}"#)), expected);
    assert_eq!(
        fault(report(r#""scheduler_info": {}"#)),
        ": request 0 of the result: request_start_time is null; it must be seconds, not negative, before the year 2116 if counted from 1970"
    );
}

#[test]
fn faults_in_reports_of_guidellm_are_named() {
    let benchmark = |prompt, totals| guidellm_benchmark(&[guidellm_request(5.0, prompt, "16")], totals);
    let message = |benchmarks: &[String]| fault(guidellm_report(benchmarks).replace('\n', " "));
    assert_eq!(
        message(&[benchmark("1", 1), benchmark("1", 1)]),
        ": has 2 benchmarks, one after another; keep one of them, as `jq -c '.benchmarks |= [.[0]]'` does with the first"
    );
    assert_eq!(
        message(&[benchmark("1", 7)]),
        ": has 1 of 7 successful requests, a sample; a trace needs all: run the benchmark without a sample size"
    );
    assert_eq!(
        message(&[benchmark("null", 1)]),
        ": request 0 of the result: prompt_tokens is null; it must be a whole number from 0 to 16777216"
    );
    assert!(message(&["{}".into()]).starts_with(": is not a result of the guidellm format (missing field `requests`"));
    assert_eq!(message(&[]), ": holds no request; a trace has at least one");
}

/// Details of a run with three requests, of which the second failed.
const DETAILS: &str = r#"{"date": "20260101", "backend": "vllm", "request_rate": 5.0, "max_concurrency": null, "duration": 1.5, "completed": 2,
"total_input_tokens": 30, "input_lens": [10, 99, 20], "output_lens": [3, 0, 4], "start_times": [6.5, 6.25, 6.0], "ttfts": [0.1, 0.0, 0.2],
"itls": [[0.1, 0.1], [], [0.1]], "generated_texts": ["a", "", "b"], "errors": ["", "Traceback\n", ""]}"#;

#[test]
fn details_of_a_serving_benchmark() {
    let line = DETAILS.replace('\n', " ");
    let expected = (formats::BENCH_SERVE, vec![(0, 20, 4), (500, 10, 3)], 1);
    assert_eq!(read(&line), expected);
    // A request may fail after some tokens, and a list of nulls names no failure.
    assert_eq!(read(line.replace("[3, 0, 4]", "[3, 2, 4]")), expected);
    assert_eq!(read(line.replace(r#"["", "Traceback\n", ""]"#, "[null, null, null]")), expected);
    // Sent at once, as SGLang's default is; its lines have no starts.
    let at_once = line.replace("5.0", "Infinity").replace("\"start_times\": [6.5, 6.25, 6.0], ", "");
    assert_eq!(read(&at_once), (formats::BENCH_SERVE, vec![(0, 10, 3), (0, 20, 4)], 1));
    let limited = at_once.replace("\"max_concurrency\": null", "\"max_concurrency\": 8");
    assert!(
        fault(limited).starts_with(": does not say when requests started; use a benchmark that writes start_times")
    );
    assert_eq!(
        fault(format!("{line}\n{line}\n")),
        ": has 2 runs, a line each; keep one of them, as `tail -n 1` does with the last"
    );
    assert_eq!(fault(line.replace("[6.5, 6.25, 6.0]", "[6.5]")), ": start_times is of 1 requests, input_lens of 3");
    assert_eq!(
        fault(line.replace("6.5", "-6.5")),
        ": request 0 of the result: start_times is -6.5; it must be seconds, not negative, before the year 2116 if counted from 1970"
    );
    let without = line.replace("\"output_lens\": [3, 0, 4], ", "");
    assert!(fault(without).starts_with(": is not a result of the bench-serve format (missing field `output_lens`"));
}

fn aiperf(start_ns: u64, phase: &str, output: &str, error: &str) -> String {
    format!(
        r#"{{"metadata": {{"session_num": 1, "request_start_ns": {start_ns}, "request_end_ns": 9, "benchmark_phase": "{phase}", "was_cancelled": false}}, "metrics": {{"input_sequence_length": {{"value": 550, "unit": "tokens"}}{output}}}, "error": {error}}}"#
    ) + "\n"
}

const OUTPUT: &str = r#", "output_sequence_length": {"value": 31, "unit": "tokens"}"#;

#[test]
fn lines_of_aiperf_come_as_requests_ended() {
    let at = 1_757_000_000_000_000_000;
    let lines = [
        aiperf(at - 9, "warmup", OUTPUT, "null"),
        aiperf(at + 3_000_000, "profiling", OUTPUT, "null"),
        aiperf(at, "profiling", OUTPUT, "null"),
        aiperf(at + 1, "profiling", "", r#"{"code": 500, "type": "E", "message": "m"}"#),
        aiperf(at + 1, "profiling", OUTPUT, "null").replace("\"was_cancelled\": false", "\"was_cancelled\": true"),
        aiperf(at + 1, "profiling", &OUTPUT.replace("31", "0"), "null"),
    ];
    let expected = (formats::AIPERF, vec![(0, 550, 31), (3, 550, 31)], 4);
    assert_eq!(read(lines.concat()), expected);
    assert_eq!(
        fault(lines[1].clone() + &aiperf(at, "profiling", "", "null")),
        ", line 2: field 'metrics.output_sequence_length' is missing; a request has metadata.request_start_ns, and \
         metrics.input_sequence_length and metrics.output_sequence_length"
    );
    assert_eq!(fault(&lines[0]), ": holds no request; a trace has at least one");
}

#[test]
fn a_part_of_a_result_is_taken_and_converted() {
    let folder = tempfile::tempdir().unwrap();
    let read = folder.path().join("result.json");
    std::fs::write(&read, DETAILS.replace('\n', " ")).unwrap();
    let selection = Selection { slice: "1..".parse().unwrap(), ..Selection::default() };
    let path = folder.path().join("trace.csv");
    let conversion =
        convert_file(&read, ReaderOptions::default(), &selection, &path, formats::VIDUR, &mut |_| {}).unwrap();
    assert_eq!((conversion.requests, conversion.left_out.failed), (1, 1));
    assert!(!conversion.losses.iter().any(|loss| loss.contains("share")), "{:?}", conversion.losses);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,3\n");
}

#[test]
fn an_object_in_the_first_line_may_be_longer_than_other_lines() {
    let padding = " ".repeat(crate::lines::LINE_BYTES_MAX as usize);
    let line = DETAILS.replace('\n', " ");
    assert_eq!(read(line.replacen("{", &format!("{{{padding}"), 1)).1.len(), 2);
    let later = format!(r#"{{"timestamp": 0, "input_length": 3, "output_length": 1}}{}{{{padding}}}"#, '\n');
    assert!(fault(later).starts_with(", line 2: a line is longer than 67108864 bytes"));
}

#[test]
fn what_is_no_trace_is_named() {
    for (text, expected) in [
        (
            &br#"{"request_throughput": 3.5, "mean_ttft_ms": NaN}"#[..],
            "is the summary of a benchmark, without its requests",
        ),
        (b"{\n  \"input_config\": {},\n  \"ttft\": {}\n}\n", "is the summary of a benchmark, without its requests"),
        (br#"{"custom_id": "1", "method": "POST", "body": {}}"#, "holds texts, without numbers of tokens or arrivals"),
        (
            br#"{"session_id": "a", "input": [], "output_length": 10, "pre_gap": 0.5}"#,
            "holds texts, without numbers of tokens",
        ),
        (b"[\n  {\n    \"id\": \"x\",\n    \"conversations\": []\n  }\n]", "holds texts, without numbers of tokens"),
        (b"[{\"timestamp\": 0}]", "is JSON without an object on each line"),
        (b"{\n  \"timestamp\": 0\n}\n{\n  \"timestamp\": 1\n}\n", "is JSON without an object on each line"),
        (b"args:\n  rate: 1\n", "is a report of GuideLLM in YAML or CSV; write it as JSON"),
        (b"Run Info,Run Info,Benchmark\n", "is a report of GuideLLM in YAML or CSV"),
        (b"PAR1\x15\x04\x15\0", "is a table in Parquet; write it as CSV or JSON lines"),
    ] {
        let found = fault(text);
        assert!(found.starts_with(&format!(", line 1: {expected}")), "{found}");
    }
}
