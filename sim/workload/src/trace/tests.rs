//! What is read, and what is refused in which words.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

use super::*;

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

fn file(text: impl AsRef<[u8]>) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_ref()).unwrap();
    file
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn load(text: impl AsRef<[u8]>) -> Trace {
    Trace::load(file(text).path(), None, None).unwrap()
}

/// The fault without the file's name, as `line: message`.
fn fault(text: impl AsRef<[u8]>, format: Option<Format>) -> String {
    let file = file(text);
    let error = Trace::load(file.path(), format, None).unwrap_err();
    let message = error.to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    message.strip_prefix(&file.path().display().to_string()).expect("begins with the file").to_string()
}

fn line(timestamp: u64, input: u32, output: u32, ids: &[u32]) -> String {
    format!(r#"{{"timestamp": {timestamp}, "input_length": {input}, "output_length": {output}, "hash_ids": {ids:?}}}"#)
}

#[test]
fn mooncake_lines_become_requests() {
    let text = [line(250, 513, 7, &[3, 9]), String::new(), line(1250, 512, 1, &[3])].join("\n");
    let trace = load(&text);
    assert_eq!(trace.format, formats::MOONCAKE);
    assert_eq!(trace.requests.len(), 2);
    let [a, b] = &trace.requests[..] else { unreachable!() };
    assert_eq!((a.arrival_ns, a.input_tokens, a.output_tokens), (0, 513, 7));
    assert_eq!((b.arrival_ns, b.input_tokens, b.output_tokens), (1_000_000_000, 512, 1));
    assert_eq!(a.prompt()[..512], b.prompt()[..]);
    assert_eq!(a.prompt()[..2], [3, 4]);
    assert_eq!(a.prompt()[512], 9);
    assert_eq!(load(gzip(&text)), trace);
}

#[test]
fn fractions_of_milliseconds_are_kept() {
    let text = line(1, 1, 1, &[0]) + "\n" + &line(2, 1, 1, &[0]).replace("\"timestamp\": 2", "\"timestamp\": 2.25");
    assert_eq!(load(text).requests[1].arrival_ns, 1_250_000);
}

#[test]
fn azure_lines_become_requests_unlike_each_other() {
    let text = "\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n\
                2023-11-16 18:15:50.9951690,374,109";
    let trace = load(text);
    assert_eq!(trace.format, formats::AZURE);
    let [a, b] = &trace.requests[..] else { panic!("two requests") };
    assert_eq!((a.arrival_ns, a.input_tokens, a.output_tokens), (0, 374, 44));
    assert_eq!((b.arrival_ns, b.input_tokens, b.output_tokens), (4_314_579_000, 374, 109));
    assert!(a.prompt().iter().zip(b.prompt()).all(|(a, b)| *a != b), "unlike in every place");
    assert_eq!(load(gzip(text)), trace);
}

#[test]
fn azure_columns_are_found_by_name() {
    let trace = load("GeneratedTokens, model ,TIMESTAMP,ContextTokens\n5,x,2023-11-16 18:15:46,9\n");
    assert_eq!((trace.requests[0].input_tokens, trace.requests[0].output_tokens), (9, 5));
}

#[test]
fn a_limit_leaves_the_rest_unread() {
    let text = line(0, 1, 1, &[0]) + "\nnot read\n";
    let file = file(text);
    assert_eq!(Trace::load(file.path(), None, Some(1)).unwrap().requests.len(), 1);
    assert!(Trace::load(file.path(), None, Some(2)).is_err());
}

#[test]
fn files_that_are_no_traces_are_refused() {
    let missing = Trace::load(Path::new("no/such/trace.jsonl"), None, None).unwrap_err();
    assert_eq!(missing.to_string(), "no/such/trace.jsonl: no such file; check the path");
    assert_eq!(fault("", None), ": holds no request; a trace has at least one");
    assert_eq!(fault("\n \n", None), ": holds no request; a trace has at least one");
    assert_eq!(fault(HEADER, None), ": holds no request; a trace has at least one");
    assert!(fault("hello\n", None).starts_with(", line 1: neither Mooncake JSON lines (first line begins with '{')"));
    assert!(fault([0u8, 159, 200, 10], None).starts_with(", line 1: neither"));
    let folder = tempfile::tempdir().unwrap();
    assert!(Trace::load(folder.path(), None, None).unwrap_err().to_string().contains("cannot be read"));
}

#[test]
fn files_that_look_like_traces_are_refused_with_a_remedy() {
    for (text, expected) in [
        (&b"\xfd7zXZ\0\0"[..], "is packed with xz; unpack it"),
        (b"PK\x03\x04\x14\0", "is packed with zip; unpack it"),
        (b"BZh91AY", "is packed with bzip2; unpack it"),
        (b"\xff\xfeT\0I\0", "is text in UTF-16; save it in UTF-8"),
        (b"[{\"timestamp\": 0}]", "is JSON without an object on each line; write one line for each request"),
        (
            b"{\"model\": 1, \"arrival\": {}}",
            "has the fields arrival, model, which are of no known format; a request has timestamp",
        ),
        (
            b"time;in;out",
            "the first line names no columns of a known format: time;in;out; name them arrived_at (seconds)",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n",
            "is a pointer of Git LFS, which stands for the large file; fetch",
        ),
        (b"<!DOCTYPE html>\n<html>", "is a web page, not a trace; download"),
        (b"<html lang=en>", "is a web page, not a trace; download"),
        (b"timestamp\rinput", "has lines that end in a carriage return alone; change them"),
        (b"{\"session_id\": 1, \"turns\": [{\"text\": \"a\"}]}", "holds texts, without numbers of tokens"),
        (b"a,\x01,b", "neither Mooncake JSON lines"),
        (b"5.5,10,20", "the first line names no columns of a known format: 5.5,10,20; name them"),
        (b"{}", "field 'timestamp' is missing"),
        (b"{\"input_length\": 5,", "not a line of the mooncake format"),
    ] {
        let found = fault(text, None);
        assert!(found.starts_with(&format!(", line 1: {expected}")), "{found}");
    }
}

#[test]
fn a_cut_off_gzip_is_refused() {
    let text: String = (0..2000).map(|i| line(i, 1 + (i as u32 * 7919) % 500, 1, &[i as u32]) + "\n").collect();
    let whole = gzip(&text);
    let message = fault(&whole[..whole.len() / 2], None);
    assert!(
        message.ends_with(": the gzip stream is cut off, or bytes follow its end; fetch or compress the file again"),
        "{message}"
    );
    assert!(message.starts_with(", line "), "{message}");
    let file = file(&whole[..whole.len() / 2]);
    let error = Trace::load(file.path(), None, None).unwrap_err();
    assert!(error.line > 1, "lines before the cut were read");
    assert!(matches!(error.fault, TraceFault::Line(LineFault::TruncatedGzip)));
}

#[test]
fn a_forced_format_is_not_second_guessed() {
    let twice = fault("TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n", None);
    assert_eq!(twice, ", line 1: the header has the column 'ContextTokens' twice; remove one");
    let missing_column = ", line 1: the header has no column 'TIMESTAMP', only: {\"timestamp\": 0";
    assert!(fault(line(0, 1, 1, &[0]), Some(formats::AZURE)).starts_with(missing_column));
    assert!(
        fault(HEADER, Some(formats::MOONCAKE))
            .starts_with(", line 1: not a line of the mooncake format (expected value")
    );
}

#[test]
fn faults_in_azure_lines_are_named() {
    let row = |row: &str| fault(format!("{HEADER}\n2023-11-16 18:15:46.6805900,374,44\n{row}\n"), None);
    assert_eq!(
        fault("TIMESTAMP,GeneratedTokens\n", None),
        ", line 1: the header has no column 'ContextTokens', only: TIMESTAMP,GeneratedTokens; add it"
    );
    let at_most = "it must be a whole number from 0 to 16777216";
    assert_eq!(row("2023-11-16 18:15:47,-3,44"), format!(", line 3: ContextTokens is -3; {at_most}"));
    assert_eq!(row("2023-11-16 18:15:47,3,many"), format!(", line 3: GeneratedTokens is many; {at_most}"));
    assert_eq!(row("2023-11-16 18:15:47,,3"), format!(", line 3: ContextTokens is empty; {at_most}"));
    assert_eq!(row("2023-11-16 18:15:47,3.5,44"), format!(", line 3: ContextTokens is 3.5; {at_most}"));
    assert_eq!(row("2023-11-16 18:15:47,99999999999,1"), format!(", line 3: ContextTokens is 99999999999; {at_most}"));
    assert_eq!(
        row("2023-11-16 18:15:47,3"),
        ", line 3: not a line of the azure format (2 fields where the header has 3); fix or remove it"
    );
    assert_eq!(row("noon,3,4"), ", line 3: TIMESTAMP is noon; it must be like 2023-11-16 18:15:46.6805900");
    assert_eq!(
        row("2023-11-16 18:15:46.1805900,3,4"),
        ", line 3: the timestamp goes back by 0.5 s; sort the lines by their timestamps, or read N requests ahead with --reorder N"
    );
}

#[test]
fn azure_lines_may_have_fractions_of_zeros_and_no_output() {
    let text =
        format!("{HEADER}\n2023-11-16 18:15:46.68,374.0,44.0\n2023-11-16 18:15:47,9,0\n2023-11-16 18:15:48,9,0.0\n");
    let read = load(text);
    assert_eq!(read.requests.iter().map(|r| (r.input_tokens, r.output_tokens)).collect::<Vec<_>>(), [(374, 44)]);
}

#[test]
fn faults_in_mooncake_lines_are_named() {
    let good = line(10, 600, 1, &[0, 1]);
    let second = |second: &str| fault(format!("{good}\n{second}\n"), None);
    let at_most = "it must be a whole number from 0 to 16777216";
    let with = |from: &str, to: &str| second(&good.replace(from, to));
    assert_eq!(with("600", "-600"), format!(", line 2: input_length is -600; {at_most}"));
    assert_eq!(with("600", "\"600\""), format!(", line 2: input_length is \"600\"; {at_most}"));
    assert_eq!(with("600", "600.5"), format!(", line 2: input_length is 600.5; {at_most}"));
    assert_eq!(with("output_length\": 1", "output_length\": -1"), format!(", line 2: output_length is -1; {at_most}"));
    assert_eq!(
        with("[0, 1]", "[0, 1, 2]"),
        ", line 2: 3 hash_ids for input_length 600; there must be 2, one for every 512 tokens or part of them; for blocks of 256 \
         tokens give --trace-block-size 256"
    );
    let meet = ", line 2: hash id 2147483647 is too large in a trace with ids above 2147483647, below 0 or of text; number the ids from 0 on";
    assert_eq!(with("[0, 1]", "[2147483647, 2147483648]"), meet);
    assert_eq!(
        with("\"timestamp\": 10", "\"timestamp\": 9"),
        ", line 2: the timestamp goes back by 0.001 s; sort the lines by their timestamps, or read N requests ahead with --reorder N"
    );
    assert_eq!(
        with("\"timestamp\": 10", "\"timestamp\": -1"),
        ", line 2: timestamp is -1; it must be milliseconds, not negative, before the year 2116 if counted from 1970"
    );
    let far = with("\"timestamp\": 10", "\"timestamp\": 18446744073709");
    assert!(far.starts_with(", line 2: timestamp is 18446744073709"), "{far}");
    assert!(with("hash_ids", "ids").starts_with(", line 2: field 'hash_ids' is missing"));
    assert!(with("[0, 1]", "[0, 1.5]").starts_with(", line 2: not a line of the mooncake format"));
    // The last line of a file that was cut off.
    assert!(second(&good[..good.len() / 2]).starts_with(", line 2: not a line of the mooncake format"));
}

#[test]
fn ids_may_be_hashes_and_those_of_full_blocks_alone() {
    let ids = |text: &str| line(0, 600, 1, &[0]).replace("[0]", text);
    let short = line(0, 100, 1, &[0]).replace("[0]", "[]");
    let hashes = ids("[-17, 18446744073709551615]");
    let text =
        [ids("[\"a\", 7]"), ids("[\"a\"]"), ids("[\"a\"]"), hashes.clone(), hashes, short.clone(), short].join("\n");
    let prompts: Vec<Vec<Token>> = load(text).requests.iter().map(|request| request.prompt()).collect();
    let common = |a: usize, b: usize| prompts[a].iter().zip(&prompts[b]).take_while(|(a, b)| a == b).count();
    assert_eq!([common(0, 1), common(1, 2), common(0, 2)], [512; 3], "a block without an id is like no other");
    assert_eq!([common(3, 4), common(0, 3), common(5, 6)], [600, 0, 0]);
    assert_eq!(prompts[1].len(), 600);
    // As many ids as a trace with larger blocks has.
    assert!(
        fault(ids("[1]").replace("600", "1100"), None).contains("1 hash_ids for input_length 1100; there must be 3")
    );
}

#[test]
fn contents_differ_in_every_place_and_prompts_from_what_is_generated() {
    let prompt = |content| {
        TraceRequest { arrival_ns: 0, input_tokens: 512, output_tokens: 1, content, ..TraceRequest::default() }.prompt()
    };
    let numbers = [0, 1, 511, 512, 1 << 30, HASH_ID_MAX - 1, HASH_ID_MAX];
    for a in numbers {
        let of_a = prompt(Content::Unique(a));
        assert_eq!(of_a, prompt(Content::Blocks(Box::new([a]))));
        assert!(of_a.iter().all(|token| *token < GENERATED_FROM));
        assert!((0..512).all(|n| generated_token(u64::from(a), n) >= GENERATED_FROM));
        for b in numbers.into_iter().filter(|b| *b != a) {
            assert!(of_a.iter().zip(prompt(Content::Unique(b))).all(|(a, b)| *a != b), "{a} {b}");
            let unlike = |n| generated_token(u64::from(a), n) != generated_token(u64::from(b), n);
            assert!((0..512).all(unlike), "{a} {b}");
        }
    }
}

#[test]
fn contents_share_no_two_tokens_in_a_row_wherever_they_begin() {
    let n = 3000;
    let request = |content, input_tokens| TraceRequest { input_tokens, content, ..TraceRequest::default() };
    let prompts = (0..40).chain(HASH_ID_MAX - 5..=HASH_ID_MAX).map(|a| request(Content::Unique(a), n).prompt());
    let answers = (0..40u64).map(|number| (0..n).map(|place| generated_token(number, place)).collect::<Vec<Token>>());
    let said = Piece { content: GENERATED_FROM + 7, tokens: n };
    let mut pairs = std::collections::HashSet::new();
    let mut n_pairs = 0;
    for tokens in prompts.chain(answers) {
        n_pairs += tokens.len() - 1;
        pairs.extend(tokens.windows(2).map(|pair| (pair[0], pair[1])));
    }
    assert_eq!(pairs.len(), n_pairs, "each pair in one place of one content");
    let quoted = request(Content::Pieces(Box::new([said])), n).prompt();
    assert!(quoted.windows(2).all(|pair| pairs.contains(&(pair[0], pair[1]))), "an answer in a prompt is that answer");
}

#[test]
fn prompts_of_more_tokens_in_all_than_there_are_ids() {
    let rows = "2023-11-16 18:15:47,16777216,16777216\n".repeat(300);
    let trace = load(format!("{HEADER}\n{rows}"));
    assert_eq!(trace.requests.len(), 300);
    assert_eq!(trace.requests[299].content, Content::Unique(299));
}

#[test]
fn an_unknown_format_names_those_there_are() {
    let error = "vllm".parse::<Format>().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "unknown trace format 'vllm'; there are: {}",
            formats::read().map(Format::as_str).collect::<Vec<_>>().join(", ")
        )
    );
}

#[test]
fn damaged_bytes_are_an_error_or_another_trace_but_never_a_panic() {
    let mooncake = [line(10, 600, 1, &[0, 1]), line(11, 5, 9, &[2])].join("\n");
    let azure = format!("{HEADER}\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16T18:15:47+01:00,3,4\n");
    let mut state = 1u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for text in [mooncake.clone().into_bytes(), azure.clone().into_bytes(), gzip(&mooncake), gzip(&azure)] {
        for _ in 0..500 {
            let mut bytes = text.clone();
            for _ in 0..1 + below(3) {
                let at = below(bytes.len());
                match below(4) {
                    0 => bytes[at] = below(256) as u8,
                    1 => bytes[at] = b"0123456789-+.,:ZT{}[]\"\n "[below(24)],
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, b"0123456789-+.,:ZT{}[]\"\n "[below(24)]),
                }
            }
            let file = file(&bytes);
            for format in [None, Some(formats::MOONCAKE), Some(formats::AZURE)] {
                if let Ok(trace) = Trace::load(file.path(), format, None) {
                    assert!(trace.requests.is_sorted_by_key(|request| request.arrival_ns));
                    assert!(trace.requests.iter().all(|r| r.prompt().len() == r.input_tokens as usize));
                }
            }
        }
    }
}
