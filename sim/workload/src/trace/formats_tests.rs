//! Formats other than Mooncake and Azure, sources, and what becomes of traces that are converted.

use std::io::Write;
use std::num::NonZeroU32;
use std::path::Path;

use proptest::prelude::*;
use tempfile::NamedTempFile;
use trunkline_core::request::retention::TO_END;

use super::*;

pub(super) fn file(text: impl AsRef<[u8]>) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_ref()).unwrap();
    file
}

pub(super) fn load(text: impl AsRef<[u8]>) -> Trace {
    Trace::load(file(text).path(), None, None).unwrap()
}

/// The fault without the file's name, as `line: message`.
pub(super) fn fault(text: impl AsRef<[u8]>) -> String {
    let file = file(text);
    let message = Trace::load(file.path(), None, None).unwrap_err().to_string();
    assert!(!message.contains('\n'), "one line: {message}");
    message.strip_prefix(&file.path().display().to_string()).expect("begins with the file").to_string()
}

/// Arrival in milliseconds, and lengths.
pub(super) fn shape(trace: &Trace) -> Vec<(u64, u32, u32)> {
    trace.requests.iter().map(|it| (it.arrival_ns / 1_000_000, it.input_tokens, it.output_tokens)).collect()
}

pub(super) const BURSTGPT: &str = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n";
pub(super) const VIDUR: &str = "arrived_at,num_prefill_tokens,num_decode_tokens\n";

#[test]
fn burstgpt_of_two_releases() {
    let first = load(format!("{BURSTGPT}5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"));
    assert_eq!(first.format, formats::BURSTGPT);
    assert_eq!(shape(&first), [(0, 472, 18), (40_000, 1087, 230)]);
    let later = load(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
         19440110.0,1722ac82-0a46,43,GPT-4,906,446,1352,Conversation log\n\
         19440110.5,,2,ChatGPT,36,29,65,API log\n",
    );
    assert_eq!(shape(&later), [(0, 906, 446), (500, 36, 29)]);
    // As a spreadsheet writes it, with seconds since 1970.
    let quoted = load(
        "\"Timestamp\",\"Model\",\"Request tokens\",\"Response tokens\"\n\"1757000000\",\"a\",\"3\",\"4\"\n1757000001.5,a,5,6\n",
    );
    assert_eq!(shape(&quoted), [(0, 3, 4), (1500, 5, 6)]);
    assert_eq!(
        fault(format!("{BURSTGPT}5,a,472,18,490,x\n1757000000,a,3,3,6,x\n")),
        ", line 3: arrives more than 31 years after the first request; are all timestamps counted from the same time?"
    );
}

#[test]
fn requests_that_failed_are_left_out_and_counted() {
    let text = format!("{BURSTGPT}5,a,472,18,490,x\n6,a,0,0,0,x\n7,a,300,0,300,x\n8,a,1,1,2,x\n");
    let file = file(text);
    let mut reader = TraceReader::open(file.path(), None).unwrap();
    assert_eq!(reader.by_ref().map(|request| request.unwrap().input_tokens).collect::<Vec<_>>(), [472, 1]);
    assert_eq!(reader.left_out(), LeftOut { failed: 0, empty: 2 });
    assert_eq!(fault(format!("{BURSTGPT}6,a,0,0,0,x\n")), ": holds no request; a trace has at least one");
}

#[test]
fn faults_in_burstgpt_lines_are_named() {
    let row = |row: &str| fault(format!("{BURSTGPT}5,a,472,18,490,x\n{row}\n"));
    let at_most = "it must be a whole number from 0 to 16777216";
    assert_eq!(row("6,a,-1,3,3,x"), format!(", line 3: Request tokens is -1; {at_most}"));
    assert_eq!(row("6,a,,3,3,x"), format!(", line 3: Request tokens is empty; {at_most}"));
    assert_eq!(row("6,a,3,-3,0,x"), format!(", line 3: Response tokens is -3; {at_most}"));
    assert_eq!(
        row("noon,a,3,3,6,x"),
        ", line 3: Timestamp is noon; it must be seconds, not negative, before the year 2116 if counted from 1970"
    );
    assert_eq!(
        row("4,a,3,3,6,x"),
        ", line 3: the timestamp goes back by 1 s; sort the lines by their timestamps, or read N requests ahead with --reorder N"
    );
    assert_eq!(
        row("6,a,3,3"),
        ", line 3: not a line of the burstgpt format (4 fields where the header has 6); fix or remove it"
    );
    assert_eq!(
        fault("Timestamp,Model,Request tokens\n"),
        ", line 1: the header has no column 'Response tokens', only: Timestamp,Model,Request tokens; add it"
    );
}

#[test]
fn a_field_in_quotes_may_hold_line_ends() {
    let header = "arrived_at,\"the prompt,\nwith text\",num_prefill_tokens,num_decode_tokens\n";
    let text = format!("{header}1,\"a, \"\"b\"\"\r\n\r\n 5,6,7\",10,2\n2,c,20,3\n3,\"\n\"  ,30,4\n");
    assert_eq!(shape(&load(&text)), [(0, 10, 2), (1000, 20, 3), (2000, 30, 4)]);
    assert_eq!(
        fault(format!("{VIDUR}1,5,6\n2,\"7,8\n3,9,9\n")),
        ", line 4: not a line of the vidur format (the quote that is open in line 3 never ends); fix or remove it"
    );
}

#[test]
fn azure_of_2024() {
    let trace = load(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n\
         2024-05-10 00:00:00.017335+00:00,2399,6\n",
    );
    assert_eq!(trace.format, formats::AZURE);
    assert_eq!((trace.requests[1].arrival_ns, trace.requests[1].input_tokens), (7_405_000, 2399));
}

#[test]
fn vidur_lines() {
    let trace = load(format!("{VIDUR}0.25,100,7\n1.5e0,200,8\n"));
    assert_eq!((trace.format, shape(&trace)), (formats::VIDUR, vec![(0, 100, 7), (1250, 200, 8)]));
    let at_most = "it must be a whole number from 0 to 16777216";
    assert_eq!(fault(format!("{VIDUR}0,1,x\n")), format!(", line 2: num_decode_tokens is x; {at_most}"));
    assert_eq!(
        fault(format!("{VIDUR}-0.5,1,1\n")),
        ", line 2: arrived_at is -0.5; it must be seconds, not negative, before the year 2116 if counted from 1970"
    );
}

fn bailian(timestamp: &str, input: u32, ids: &[u32]) -> String {
    format!(
        r#"{{"chat_id": 159, "parent_chat_id": 55, "timestamp": {timestamp}, "input_length": {input}, "output_length": 13, "type": "text", "turn": 2, "hash_ids": {ids:?}}}"#
    ) + "\n"
}

#[test]
fn bailian_ids_stand_for_sixteen_tokens() {
    let trace = load(bailian("61.114", 40, &[7, 8, 9]) + &bailian("62", 48, &[7, 8, 10]));
    assert_eq!((trace.format, shape(&trace)), (formats::BAILIAN, vec![(0, 40, 13), (886, 48, 13)]));
    let [a, b] = &trace.requests[..] else { panic!("two requests") };
    assert_eq!(a.prompt()[..32], b.prompt()[..32]);
    assert!(a.prompt()[32..].iter().zip(&b.prompt()[32..]).all(|(a, b)| a != b));
    assert_eq!(
        fault(bailian("1", 50, &[7, 8])),
        ", line 1: 2 hash_ids for input_length 50; there must be 4, one for every 16 tokens or part of them"
    );
    assert_eq!(
        fault(bailian("\"1\"", 16, &[7])),
        ", line 1: timestamp is \"1\"; it must be seconds, not negative, before the year 2116 if counted from 1970"
    );
    assert_eq!(
        fault(bailian("1", 16, &[7]).replace("output_length", "length")),
        ", line 1: field 'output_length' is missing; a request has timestamp, input_length and output_length, and hash_ids for what prompts share"
    );
}

const TOKENS: &str = r#"{"input_toks": 3, "output_toks": 531, "arrival_time_ns": 46926808, "input_tok_ids": [5971, 2927, 220], "output_tok_ids": [40914]}"#;

#[test]
fn token_ids_are_the_prompt() {
    let trace = load(format!("{TOKENS}\n{}\n", TOKENS.replace("46926808", "47000000")));
    assert_eq!(trace.format, formats::TOKENS);
    let [a, b] = &trace.requests[..] else { panic!("two requests") };
    assert_eq!((a.prompt(), a.output_tokens), (vec![5971, 2927, 220], 531));
    assert_eq!((b.arrival_ns, b.content == a.content), (73_192, true));
    let with = |from: &str, to: &str| fault(TOKENS.replace(from, to));
    assert_eq!(
        with("\"input_toks\": 3", "\"input_toks\": 4"),
        ", line 1: 3 token ids where input_toks is 4; fix or remove the line"
    );
    assert_eq!(
        with("46926808", "-5"),
        ", line 1: arrival_time_ns is -5; it must be nanoseconds, not negative, before the year 2116 if counted from 1970"
    );
    assert_eq!(
        with("\"output_toks\"", "\"out\""),
        ", line 1: field 'output_toks' is missing; a request has arrival_time_ns or arrival_time, \
         input_tok_ids or input_toks, and output_toks"
    );
    assert_eq!(
        fault(TOKENS.replace("\"input_toks\": 3, ", "").replace("[5971, 2927, 220]", "[]")),
        ": holds no request; a trace has at least one"
    );
    assert!(with("220", "-220").starts_with(", line 1: not a line of the tokens format (invalid value"));
}

#[test]
#[cfg_attr(not(trunkline_profiles), ignore = "TRUNKLINE_DATA names no folder with profiles/")]
fn a_real_workload_with_token_ids() {
    let name = "llmservingsim/workload_sharegpt300.jsonl.gz";
    let folder = std::env::var_os("TRUNKLINE_DATA").expect("TRUNKLINE_DATA names the folder of data");
    let trace = Trace::load(&Path::new(&folder).join("profiles").join(name), None, None).unwrap();
    assert_eq!((trace.format, trace.requests.len()), (formats::TOKENS, 300));
    let first = &trace.requests[0];
    assert_eq!((first.input_tokens, first.output_tokens, &first.prompt()[..2]), (2358, 531, &[5971, 2927][..]));
}

#[test]
fn a_bounded_disorder_is_put_in_order_if_asked_for() {
    let text = format!("{VIDUR}1,1,1\n3,3,1\n2,2,1\n0.5,9,1\n4,4,1\n");
    let file = file(text);
    let read = |reorder_requests| {
        let options = ReaderOptions { reorder_requests, ..ReaderOptions::default() };
        TraceReader::open_with(file.path(), options).unwrap().collect::<Result<Vec<_>, _>>()
    };
    let message = |reorder| {
        let message = read(reorder).unwrap_err().to_string();
        message.strip_prefix(&file.path().display().to_string()).unwrap().to_string()
    };
    assert_eq!(
        message(0),
        ", line 4: the timestamp goes back by 1 s; sort the lines by their timestamps, or read N requests ahead with --reorder N"
    );
    assert_eq!(
        message(1),
        ", line 5: the timestamp goes back by 1.5 s, past the 1 requests that are put in order; sort the lines by their timestamps, or read N requests ahead with --reorder N"
    );
    let requests = read(3).unwrap();
    assert_eq!(requests.iter().map(|it| it.input_tokens).collect::<Vec<_>>(), [9, 1, 2, 3, 4]);
    assert_eq!((requests[0].arrival_ns, requests[1].arrival_ns), (0, 500_000_000));
    assert_eq!(read(1 << 20).unwrap(), requests);
}

/// All that a source gives, each when its time has come.
fn drain(source: &mut dyn Source) -> Result<Vec<TraceRequest>, TraceError> {
    let mut all = Vec::new();
    while let Some(at_ns) = source.next_arrival_ns()? {
        let request = source.next_request()?.expect("it was announced");
        assert_eq!(request.arrival_ns, at_ns);
        source.ended(all.len() as u64, at_ns, Outcome::Completed);
        all.push(request);
    }
    assert_eq!(source.next_request()?, None);
    Ok(all)
}

#[test]
fn a_file_and_a_loaded_trace_are_the_same_source() {
    let file = file(format!("{VIDUR}1,1,1\n2,2,1\n3,3,1\n4,4,1\n"));
    let trace = Trace::load(file.path(), None, None).unwrap();
    assert_eq!(drain(&mut trace.source()).unwrap(), trace.requests);
    let open = |selection| FileSource::open(file.path(), ReaderOptions::default(), &selection);
    let mut whole = open(Selection::default()).unwrap();
    assert_eq!((Source::format(&whole), whole.requests_hint()), (formats::VIDUR, None));
    assert_eq!(drain(&mut whole).unwrap(), trace.requests);
    let middle = Selection { slice: "1..3".parse().unwrap(), limit: 1, speed: 2.0, max_context: None };
    let requests = drain(&mut open(middle).unwrap()).unwrap();
    assert_eq!((requests.len(), requests[0].input_tokens, requests[0].arrival_ns), (1, 2, 0));
    assert_eq!(trace.select(&middle).requests, requests);
    let beyond = open(Selection { slice: "9..".parse().unwrap(), ..Selection::default() }).err().unwrap();
    assert!(beyond.to_string().ends_with(": holds no request in the slice 9..; the trace ends before it"), "{beyond}");
}

#[test]
fn a_source_stops_at_a_fault() {
    let file = file(format!("{VIDUR}1,1,1\n2,x,1\n3,3,1\n"));
    let mut source = FileSource::open(file.path(), ReaderOptions::default(), &Selection::default()).unwrap();
    let error = drain(&mut source).unwrap_err();
    assert_eq!(error.line, 3);
    assert_eq!(source.next_arrival_ns().unwrap(), None);
}

/// A trace as `from` would have it.
fn any_request(from: Format) -> impl Strategy<Value = TraceRequest> {
    let pieces = prop::collection::vec(0u32..5, 1..6);
    (0u64..5_000_000_000, 1u32..1500, 1u32..900, 0u32..4, pieces).prop_map(
        move |(arrival_ns, input, output, id, pieces)| {
            let content = match from.as_str() {
                "mooncake" => Content::Blocks((0..input.div_ceil(HASH_ID_TOKENS)).map(|i| id + i * 7).collect()),
                "bailian" => {
                    Content::Pieces(pieces.iter().map(|content| Piece { content: *content, tokens: 16 }).collect())
                }
                "tokens" => Content::Tokens(pieces.iter().flat_map(|id| [*id; 300]).collect()),
                _ => Content::Unique(0),
            };
            let input_tokens = match &content {
                Content::Pieces(pieces) => pieces.len() as u32 * 16,
                Content::Tokens(tokens) => tokens.len() as u32,
                _ => input,
            };
            TraceRequest { arrival_ns, input_tokens, output_tokens: output, content, ..TraceRequest::default() }
        },
    )
}

fn any_trace() -> impl Strategy<Value = Trace> {
    let formats = prop::sample::select(vec![formats::MOONCAKE, formats::BAILIAN, formats::TOKENS, formats::VIDUR]);
    formats.prop_flat_map(|format| {
        prop::collection::vec(any_request(format), 1..20).prop_map(move |mut requests| {
            requests.sort_by_key(|request| request.arrival_ns);
            let first_ns = requests[0].arrival_ns;
            for (number, request) in (0..).zip(&mut requests) {
                request.arrival_ns -= first_ns;
                if let Content::Unique(unique) = &mut request.content {
                    *unique = number;
                }
            }
            Trace { format, requests }
        })
    })
}

/// Writes a trace and reads it again.
fn through(trace: &Trace, to: Format, name: &str) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let conversion = convert(trace.requests.iter().cloned().map(Ok), trace.format, &path, to, &mut |_| {}).unwrap();
    assert_eq!(conversion.requests, trace.requests.len() as u64);
    let read = Trace::load(&path, None, None).unwrap();
    assert_eq!((read.format, std::fs::read_dir(folder.path()).unwrap().count()), (to, 1));
    read
}

/// For each request, how many leading blocks of `block_tokens` tokens each other request shares with it.
fn shared(trace: &Trace, block_tokens: usize) -> Vec<usize> {
    let prompts: Vec<_> = trace.requests.iter().map(TraceRequest::prompt).collect();
    let of = |a: &[Token], b: &[Token]| {
        a.chunks(block_tokens).zip(b.chunks(block_tokens)).take_while(|(a, b)| a == b).count()
    };
    prompts.iter().flat_map(|a| prompts.iter().map(|b| of(a, b))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn conversion_keeps_what_the_format_can_say(trace in any_trace()) {
        let times_and_lengths = |trace: &Trace| {
            trace.requests.iter().map(|it| (it.arrival_ns, it.input_tokens, it.output_tokens)).collect::<Vec<_>>()
        };
        let vidur = through(&trace, formats::VIDUR, "a.csv.gz");
        prop_assert_eq!(times_and_lengths(&vidur), times_and_lengths(&trace));
        let tokens = through(&trace, formats::TOKENS, "a.jsonl.zst");
        prop_assert_eq!(times_and_lengths(&tokens), times_and_lengths(&trace));
        for (a, b) in tokens.requests.iter().zip(&trace.requests) {
            prop_assert_eq!(a.prompt(), b.prompt());
        }
        let mooncake = through(&trace, formats::MOONCAKE, "a.jsonl");
        prop_assert_eq!(times_and_lengths(&mooncake), times_and_lengths(&trace));
        prop_assert_eq!(shared(&mooncake, 512), shared(&trace, 512));
        // What went through once comes through again unchanged.
        prop_assert_eq!(&through(&mooncake, formats::MOONCAKE, "b.jsonl.gz"), &mooncake);
        prop_assert_eq!(&through(&tokens, formats::TOKENS, "b.jsonl"), &tokens);
        prop_assert_eq!(&through(&vidur, formats::VIDUR, "b.csv"), &vidur);
    }
}

#[test]
fn losses_are_said() {
    let said = |from, to| losses(from, to).join("; ");
    assert!(said(formats::MOONCAKE, formats::VIDUR).contains("what prompts share is left out"));
    assert!(!said(formats::AZURE, formats::VIDUR).contains("share"));
    assert!(said(formats::TOKENS, formats::MOONCAKE).contains("tokens become ids of blocks of 512"));
    assert!(said(formats::BAILIAN, formats::MOONCAKE).contains("chats, turns and types are left out"));
    assert!(said(formats::BURSTGPT, formats::MOONCAKE).contains("requests that failed"));
    assert!(said(formats::MOONCAKE, formats::TOKENS).contains("token ids are made up"));
}

#[test]
fn a_mooncake_trace_of_small_blocks_loses_what_is_shared_of_less_than_a_large_one() {
    let folder = tempfile::tempdir().unwrap();
    let read = folder.path().join("small.jsonl");
    let line = |ids: &str| {
        format!("{{\"timestamp\": 0, \"input_length\": 32, \"output_length\": 1, \"hash_ids\": [{ids}]}}\n")
    };
    std::fs::write(&read, line("1, 2") + &line("1, 3")).unwrap();
    let said = |block_tokens: u32, to| {
        let options = ReaderOptions { block_tokens: NonZeroU32::new(block_tokens), ..ReaderOptions::default() };
        let path = folder.path().join("to.jsonl");
        convert_file(&read, options, &Selection::default(), &path, to, &mut |_| {}).unwrap().losses.join("; ")
    };
    assert!(said(16, formats::MOONCAKE).contains("ids become ids of blocks of 512 tokens"));
    assert!(!said(16, formats::TOKENS).contains("512"));
    std::fs::write(&read, line("1") + &line("1")).unwrap();
    assert!(!said(512, formats::MOONCAKE).contains("512"));
    // A large block is several of 512, and nothing is lost.
    let large = |ids: &str| line(ids).replace("32", "1500");
    std::fs::write(&read, large("1, 2") + &large("1, 3")).unwrap();
    assert!(!said(1024, formats::MOONCAKE).contains("512"));
    let written = std::fs::read_to_string(folder.path().join("to.jsonl")).unwrap();
    assert!(written.contains("[0, 1, 2]") && written.contains("[0, 1, 3]"), "{written}");
}

#[test]
#[cfg(unix)]
fn links_and_devices_are_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let [source, kept, link, device] =
        ["a.jsonl", "kept.jsonl", "link.jsonl", "device"].map(|name| folder.path().join(name));
    std::fs::write(&source, format!("{TOKENS}\n")).unwrap();
    std::fs::write(&kept, "old").unwrap();
    std::os::unix::fs::symlink(&kept, &link).unwrap();
    std::os::unix::fs::symlink("/dev/null", &device).unwrap();
    let write = |to: &std::path::Path| {
        convert_file(&source, ReaderOptions::default(), &Selection::default(), to, formats::TOKENS, &mut |_| {})
            .unwrap();
        std::fs::read_link(to).unwrap()
    };
    assert_eq!(write(&link), kept);
    assert_eq!(Trace::load(&kept, None, None).unwrap().requests.len(), 1);
    assert_eq!(write(&device), std::path::Path::new("/dev/null"));
    let (dangling, target) = (folder.path().join("dangling"), folder.path().join("target"));
    std::os::unix::fs::symlink("target", &dangling).unwrap();
    assert_eq!((write(&dangling), target.is_file()), ("target".into(), true));
    let error = Trace::load(&device, None, None).unwrap_err().to_string();
    assert!(error.ends_with("is a pipe or a device, and is read more than once; write it to a file first"), "{error}");
}

#[test]
fn what_cannot_be_written_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    std::fs::write(&path, format!("{TOKENS}\n")).unwrap();
    let all = Selection::default();
    let onto_itself =
        convert_file(&path, ReaderOptions::default(), &all, &path, formats::MOONCAKE, &mut |_| {}).unwrap_err();
    assert!(onto_itself.to_string().ends_with("is both what is read and what is written; name another file to write"));
    let azure = TraceWriter::create(&path, formats::AZURE).err().unwrap().to_string();
    assert!(azure.ends_with(": a trace of the azure format cannot be written; choose mooncake, vidur or tokens"));
    let nowhere = TraceWriter::create(&folder.path().join("no/a.csv"), formats::VIDUR).err().unwrap().to_string();
    assert!(nowhere.contains("cannot be written: "), "{nowhere}");

    let broken = folder.path().join("broken.jsonl");
    std::fs::write(&broken, format!("{TOKENS}\n{{\n")).unwrap();
    let to = folder.path().join("b.jsonl");
    let error = convert_file(&broken, ReaderOptions::default(), &all, &to, formats::MOONCAKE, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains(", line 2: "), "{error}");
    let mut names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.jsonl", "broken.jsonl"]);
}

#[test]
fn damaged_bytes_are_an_error_or_another_trace_but_never_a_panic() {
    let texts = [
        format!("{BURSTGPT}5,a,472,18,490,x\n6.5,b,1,1,2,y\n"),
        format!("{VIDUR}0.25,100,7\n1.5e0,200,8\n"),
        bailian("61.114", 40, &[7, 8, 9]) + &bailian("62", 48, &[7, 8, 10]),
        format!("{TOKENS}\n{TOKENS}\n"),
    ];
    let mut state = 1u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for text in texts {
        let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
        for whole in [text.into_bytes(), packed] {
            for _ in 0..200 {
                let mut bytes = whole.clone();
                for _ in 0..1 + below(3) {
                    let at = below(bytes.len());
                    match below(3) {
                        0 => bytes[at] = below(256) as u8,
                        1 => bytes[at] = b"0123456789-+.,:eE{}[]\"\n "[below(24)],
                        _ => bytes.truncate(at.max(1)),
                    }
                }
                let file = file(&bytes);
                for format in [None].into_iter().chain(formats::read().map(Some)) {
                    if let Ok(trace) = Trace::load(file.path(), format, None) {
                        assert!(trace.requests.is_sorted_by_key(|request| request.arrival_ns));
                        assert!(trace.requests.iter().all(|it| it.prompt().len() == it.input_tokens as usize));
                    }
                }
            }
        }
    }
}

#[test]
fn terms_and_outputs_are_kept_by_formats_that_have_a_place_for_them() {
    let terms = Terms {
        tenant: 3,
        namespace: 2,
        priority: -7,
        background: true,
        deadline_ns: Some(2_500_000_000),
        max_tokens: Some(9),
    };
    let request = TraceRequest {
        input_tokens: 3,
        output_tokens: 2,
        content: Content::Tokens([5, 6, 7].into()),
        output: Some([8, 9].into()),
        terms,
        ..TraceRequest::default()
    };
    let trace = Trace { format: formats::TOKENS, requests: vec![request] };
    assert_eq!(through(&trace, formats::TOKENS, "a.jsonl"), trace);
    let mooncake = through(&trace, formats::MOONCAKE, "a.jsonl.gz");
    assert_eq!((mooncake.requests[0].terms, mooncake.requests[0].output.as_ref()), (terms, None));
    assert_eq!(through(&trace, formats::VIDUR, "a.csv").requests[0].terms, Terms::default());
    let conversion = |to| {
        let folder = tempfile::tempdir().unwrap();
        let requests = trace.requests.iter().cloned().map(Ok);
        convert(requests, formats::TOKENS, &folder.path().join("a"), to, &mut |_| {}).unwrap().losses
    };
    let lost = |to| conversion(to).contains(&"tenants, namespaces, priorities and deadlines are left out");
    assert!(lost(formats::VIDUR) && !lost(formats::MOONCAKE));
}

#[test]
fn retention_hints_are_kept_by_json_formats() {
    let hint = |from, to, priority, ttl_ns| RetentionHint { from, to, priority, ttl_ns, demote: false, pin: false };
    let request = TraceRequest {
        input_tokens: 3,
        content: Content::Tokens([5, 6, 7].into()),
        retention: [hint(0, 2, 80, 1_500_000), hint(3, TO_END, 0, 0)].into(),
        ..TraceRequest::default()
    };
    let trace = Trace { format: formats::TOKENS, requests: vec![request] };
    let kept = |format, name| through(&trace, format, name).requests[0].retention == trace.requests[0].retention;
    assert!(kept(formats::TOKENS, "a.jsonl") && kept(formats::MOONCAKE, "a.jsonl"));
    let folder = tempfile::tempdir().unwrap();
    let requests = trace.requests.iter().cloned().map(Ok);
    let losses = convert(requests, formats::TOKENS, &folder.path().join("a.csv"), formats::VIDUR, &mut |_| {}).unwrap();
    assert!(losses.losses.contains(&"retention hints are left out"));
    let path = folder.path().join("a.jsonl");
    let line = r#"{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1], "retention": [{"priority": 3, "ttl_ms": 1}]}"#;
    std::fs::write(&path, line).unwrap();
    let error = Trace::load(&path, None, None).unwrap_err().to_string();
    assert!(error.ends_with("line 1: retention[0]: a priority below 35 has no time to live; leave it out"), "{error}");
}

#[test]
fn prefetches_are_kept_by_json_formats() {
    let content = Content::Tokens([5, 6, 7].into());
    let asked = TraceRequest { input_tokens: 3, content, ..TraceRequest::default() };
    let prefetch = TraceRequest { output_tokens: 0, ..asked.clone() };
    let trace = Trace { format: formats::TOKENS, requests: vec![asked, prefetch] };
    for format in [formats::TOKENS, formats::MOONCAKE] {
        let read: Vec<_> = through(&trace, format, "a.jsonl").requests.iter().map(TraceRequest::is_prefetch).collect();
        assert_eq!(read, [false, true], "{format}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let requests = trace.requests.iter().cloned().map(Ok);
    let losses = convert(requests, formats::TOKENS, &path, formats::VIDUR, &mut |_| {}).unwrap().losses;
    assert!(losses.contains(&"prefetches are left out"));
    assert_eq!(Trace::load(&path, None, None).unwrap().requests.len(), 1);
    let path = folder.path().join("a.jsonl");
    for (fields, fault) in [
        (r#""output_length": 1, "prefetch": true"#, "output_length is 1; it must be 0, or left out, for a prefetch"),
        (r#""output_length": 1, "prefetch": 1"#, "prefetch is 1; it must be true or false"),
        (r#""output_length": 0, "prefetch": false"#, "holds no request"),
    ] {
        std::fs::write(&path, format!(r#"{{"timestamp": 0, "input_length": 3, "hash_ids": [1], {fields}}}"#)).unwrap();
        let error = Trace::load(&path, None, None).unwrap_err().to_string();
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn csv_may_have_columns_of_terms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let header = "priority,arrived_at,num_prefill_tokens,num_decode_tokens,deadline_s,tenant\n";
    std::fs::write(&path, format!("{header}-1,0,10,2,1.5,4\n,1,10,2,,\n")).unwrap();
    let read = Trace::load(&path, None, None).unwrap();
    let terms = Terms { tenant: 4, priority: -1, deadline_ns: Some(1_500_000_000), ..Terms::default() };
    assert_eq!(read.requests.iter().map(|request| request.terms).collect::<Vec<_>>(), [terms, Terms::default()]);
    std::fs::write(&path, format!("{header}x,0,10,2,1.5,4\n")).unwrap();
    let error = Trace::load(&path, None, None).unwrap_err().to_string();
    assert!(error.contains("line 2: priority is x; it must be a whole number"), "{error}");
}

#[test]
fn chats_find_their_answers_if_asked_to() {
    let line = |chat: u32, parent: i64, input: u32, ids: &[u32]| {
        format!(
            r#"{{"chat_id": {chat}, "parent_chat_id": {parent}, "timestamp": {chat}, "input_length": {input}, "output_length": 20, "type": "text", "turn": 1, "hash_ids": {ids:?}}}"#
        )
    };
    let lines = [line(0, -1, 5, &[9]), line(1, -1, 40, &[1, 2, 3]), line(2, 1, 90, &[1, 2, 7, 8, 9, 10])];
    let file = file(lines.join("\n"));
    let options = ReaderOptions { reuse_answers: true, ..ReaderOptions::default() };
    let whole = Trace::load_selected(file.path(), options, &Selection::default()).unwrap();
    let output = |number: u64| (0..20).map(move |n| generated_token(number, n));
    assert!(whole.requests[2].prompt()[40..60].iter().copied().eq(output(1)));
    // In a part of the trace, requests have other numbers.
    let selection = Selection { slice: "1..".parse().unwrap(), ..Selection::default() };
    let part = Trace::load_selected(file.path(), options, &selection).unwrap();
    assert!(part.requests[1].prompt()[40..60].iter().copied().eq(output(0)));
    assert_eq!(part.requests, whole.select(&selection).requests);
    let as_it_stands = Trace::load(file.path(), None, None).unwrap();
    assert_ne!(as_it_stands.requests[2].prompt(), whole.requests[2].prompt());
    assert_eq!(as_it_stands.requests[1], whole.requests[1]);
    let azure = self::file("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n");
    let refused = Trace::load_selected(azure.path(), options, &Selection::default()).unwrap_err().to_string();
    assert!(
        refused.ends_with(": --reuse-answers is for Bailian traces, and this is one of the azure format; leave it out"),
        "{refused}"
    );
}

#[test]
fn lines_of_other_tools_are_read_and_their_faults_are_named() {
    let both = r#"{"timestamp": 1, "created_time": 5, "input_length": 64, "input_tokens": 70, "output_tokens": 3, "hash_ids": []}"#;
    assert_eq!(shape(&load(both)), [(0, 64, 3)], "the name of the format wins");
    // The line of a fault that shows only together with the others.
    let turn = |ms: u64| format!(r#"{{"session_id": "a", "timestamp": {ms}, "input_length": 7, "output_length": 1}}"#);
    let late = fault([turn(0), turn(2_000_000_000_000), turn(5)].join("\n"));
    assert!(late.starts_with(", line 2: arrives more than 31 years after"), "{late}");
    let chat = r#"{"chat_id": [1], "timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [1]}"#;
    let options = ReaderOptions { reuse_answers: true, ..ReaderOptions::default() };
    let file = file(chat);
    let refused = Trace::load_selected(file.path(), options, &Selection::default()).unwrap_err().to_string();
    assert!(refused.contains(", line 1: not a line of the bailian format (invalid type: sequence"), "{refused}");
}
