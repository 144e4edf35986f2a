//! A format is declared in one file: nothing else names it, and a format that is declared is read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::format::clock::Clock;
use super::format::csv::{Dialect, Times};
use super::format::row::{Row, length, object, present};
use super::format::{Field, FileFacts, LineParser, Opened, Order, Parsed, Reading, Shares, TraceFormat};
use super::*;

/// Crates that read traces, or name what does.
const CRATES: [&str; 5] = ["sim/workload", "sim/replay", "sim/report", "src/cli", "src/bench"];
/// The folder of the formats, and the file with the registry.
const FOLDER: &str = "sim/workload/src/trace/formats";
/// Lines with a name that is not of a format.
const OTHERS: [(&str, &str); 2] = [
    ("src/cli/src/replay/settings.rs", "step times measured by LLMServingSim, Vidur"),
    ("sim/workload/src/trace/stats.rs", "the Mooncake paper counts this way"),
];

/// Returns the files of product code below a folder, by their paths in the workspace.
fn sources(root: &Path, folder: &str) -> Vec<String> {
    let mut out = Vec::new();
    for entry in fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        let is_tests = path.trim_end_matches(".rs").ends_with("tests");
        match entry.file_type().unwrap().is_dir() {
            _ if is_tests => {}
            true => out.extend(sources(root, &path)),
            false => out.extend(path.ends_with(".rs").then_some(path)),
        }
    }
    out
}

/// Returns `true` if a line has a word, whose neighbours are not letters, digits or `_`.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

/// Returns the words by which code would name a format: its name, its module, its constant, and its name in sentences.
fn words(format: Format) -> Vec<String> {
    let module = format.as_str().replace('-', "_");
    let constant = format!("formats::{}", module.to_uppercase());
    match format.as_str() {
        // A word of every second line.
        "tokens" => vec![constant, "format tokens".into(), "tokens::TOKENS".into(), format.0.title.into()],
        name => vec![name.into(), module.to_uppercase(), module, format.0.title.into()],
    }
}

#[test]
fn a_format_is_named_in_its_own_file_and_in_one_line_of_the_registry() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files: Vec<String> = CRATES.iter().flat_map(|folder| sources(&root, &format!("{folder}/src"))).collect();
    assert!(files.len() > 200, "the sources are there: {}", files.len());
    for format in formats::read() {
        let (words, own) = (words(format), format!("{FOLDER}/{}.rs", format.as_str().replace('-', "_")));
        let mut places = Vec::new();
        for file in files.iter().filter(|file| **file != own) {
            let text = fs::read_to_string(root.join(file)).unwrap();
            let product = text.split("\n#[cfg(test)]").next().unwrap();
            let is_other = |line: &str| OTHERS.iter().any(|(of, part)| file.starts_with(of) && line.contains(part));
            let named = product.lines().filter(|line| words.iter().any(|word| has_word(line, word)) && !is_other(line));
            places.extend(named.map(|line| format!("{file}: {}", line.trim())));
        }
        let module = format.as_str().replace('-', "_");
        assert_eq!(places, [format!("{FOLDER}.rs: {module}::{},", module.to_uppercase())], "{format}");
    }
}

#[test]
fn declarations_are_whole_and_do_not_meet() {
    let all = || formats::REGISTRY.iter().copied();
    let names: BTreeSet<&str> = all().map(Format::as_str).collect();
    let titles: BTreeSet<&str> = all().map(|it| it.0.title).collect();
    assert_eq!((names.len(), titles.len()), (formats::REGISTRY.len(), formats::REGISTRY.len()), "names are unique");
    let suffixes: Vec<&str> =
        all().filter_map(|it| it.0.writing.as_ref()).flat_map(|it| it.suffixes).copied().collect();
    assert_eq!(suffixes.iter().collect::<BTreeSet<_>>().len(), suffixes.len(), "a suffix is of one format");
    for format in all() {
        let about = format.0.about;
        assert!(!about.contains('|') && about.split_whitespace().count() <= 30, "{format}: a cell of the table");
        let required = |field: &Field| !matches!(field, Field::Optional(_));
        assert_eq!(
            format.fields().iter().any(required),
            format.row().is_some(),
            "{format} is recognised by its fields"
        );
    }
}

/// CSV that no other file of the project knows.
const ACME: Format = Format(&TraceFormat {
    name: "acme",
    title: "Acme",
    about: "CSV: `sent_s`, `in`, `out`",
    shares: Shares::Nothing,
    options: &[],
    loses: Some("the colours are left out"),
    lookalikes: &[],
    reading: Reading::Csv(Dialect { time: "sent_s", input: "in", output: "out", times: Times::In(TimeUnit::Seconds) }),
    writing: None,
});

/// JSON lines that no other file of the project knows.
const ACME_LOG: Format = Format(&TraceFormat {
    name: "acme-log",
    title: "Acme's log",
    about: "JSON: `sent_ns`, `in`, `out`",
    shares: Shares::Nothing,
    options: &[],
    loses: None,
    lookalikes: &[],
    reading: Reading::Lines {
        fields: &[Field::Required(&["sent_ns"]), Field::Prompt(&["in"]), Field::Required(&["out"])],
        open: |_: &[u8], options: &ReaderOptions| {
            let clock = Some(Clock::new(TimeUnit::Nanoseconds, options.time_unit));
            Opened { parser: Box::new(Log(FileFacts { clock, ..FileFacts::default() })), order: Order::Any }
        },
    },
    writing: None,
});

struct Log(FileFacts);

impl LineParser for Log {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, TraceFault> {
        let fields: serde_json::Map<String, serde_json::Value> = object(line, ACME_LOG)?;
        let value = |name: &'static str| present("sent_ns, in and out", name, fields.get(name));
        let tokens = |name: &'static str| length(name, &value(name)?.to_string());
        let at_ns = self.0.time_ns("sent_ns", value("sent_ns")?)?;
        Ok(Parsed::Request(Row::without_content(at_ns, tokens("in")?, tokens("out")?)))
    }
}

const WITH_ACME: &[Format] = &[formats::MOONCAKE, formats::AZURE, formats::BAILIAN, formats::VIDUR, ACME, ACME_LOG];

/// Arrival in milliseconds, and lengths.
type Shape = (u64, u32, u32);

/// Format and requests of a file of one of the formats.
fn read(text: &str, format: Option<Format>) -> Result<(Format, Vec<Shape>), String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let options = ReaderOptions { format, ..ReaderOptions::default() };
    let fault = |error: TraceError| error.fault.to_string();
    let mut reader = TraceReader::open_among(file.path(), options, WITH_ACME).map_err(fault)?;
    let requests = reader.by_ref().collect::<Result<Vec<_>, _>>().map_err(fault)?;
    let shape = requests.iter().map(|it| (it.arrival_ns / 1_000_000, it.input_tokens, it.output_tokens));
    Ok((reader.format(), shape.collect()))
}

#[test]
fn a_format_that_is_declared_is_detected_and_read() {
    let csv = "out,sent_s,note,in\n5,0.5,x,7\n6,2,\"y,\nz\",8\n";
    assert_eq!(read(csv, None).unwrap(), (ACME, vec![(0, 7, 5), (1500, 8, 6)]));
    assert_eq!(read(csv, Some(ACME)), read(csv, None));
    let log = "{\"sent_ns\": 3000000, \"in\": 7, \"out\": 5}\n{\"in\": 8, \"out\": 6, \"sent_ns\": 1000000}\n";
    assert_eq!(read(log, None).unwrap(), (ACME_LOG, vec![(0, 8, 6), (2, 7, 5)]));
    assert_eq!(
        read("sent_s,in,out\n1,-1,3\n", None).unwrap_err(),
        "in is -1; it must be a whole number from 0 to 16777216"
    );
    assert_eq!(ACME.row().unwrap(), "| `acme` | CSV: `sent_s`, `in`, `out` | unknown |");
    assert!(losses(ACME, formats::VIDUR).contains(&"the colours are left out"));
    assert!(
        read("hello", None).unwrap_err().contains("force one of mooncake, azure, bailian, vidur, acme, acme-log if")
    );
    let block_size = ReaderOptions { block_tokens: 16.try_into().ok(), ..ReaderOptions::default() };
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), csv).unwrap();
    let fault = TraceReader::open_among(file.path(), block_size, WITH_ACME).err().unwrap().fault.to_string();
    assert_eq!(fault, "--trace-block-size is for Mooncake traces, and this is one of the acme format; leave it out");
    let unit = ReaderOptions { time_unit: Some(TimeUnit::Seconds), ..ReaderOptions::default() };
    let fault = TraceReader::open_among(file.path(), unit, WITH_ACME).err().unwrap().fault.to_string();
    assert!(fault.starts_with("--time-unit is for Mooncake, BurstGPT,"), "{fault}");
}

#[test]
fn the_format_with_the_most_matching_fields_is_taken() {
    let of = |text: &str| read(text, None);
    let line = r#"{"timestamp": 1, "input_length": 3, "output_length": 2, "hash_ids": [1], "in": 4"#;
    assert_eq!(of(&format!("{line}}}")).unwrap().0, formats::MOONCAKE);
    assert_eq!(of(&format!("{line}, \"chat_id\": 5}}")).unwrap().0, formats::BAILIAN);
    // Columns of several formats: the first format that has all of its own.
    let both = "TIMESTAMP,arrived_at,num_prefill_tokens,num_decode_tokens\nx,1,2,3\n";
    assert_eq!(of(both).unwrap().0, formats::VIDUR);
    // Nearly all fields: the parser names the one that is missing.
    let nearly = of(r#"{"chat_id": 5, "timestamp": 1, "input_length": 3, "output_length": 2}"#).unwrap_err();
    assert!(nearly.starts_with("field 'hash_ids' is missing; a request has timestamp"), "{nearly}");
    // A line that is cut off is of the format whose names it has.
    assert!(of(r#"{"sent_ns": 5, "in": 3, "ou"#).unwrap_err().starts_with("not a line of the acme-log format (EOF"));
}

#[test]
fn the_fields_that_the_nearest_formats_lack_are_named() {
    let fault = |text: &str| read(text, None).unwrap_err();
    let end = "; add what is missing, or name the format with --format";
    assert_eq!(
        fault(r#"{"timestamp": 0, "model": "a"}"#),
        format!(
            "has the fields model, timestamp, but no format in full: mooncake also has input_length and output_length; bailian also has chat_id, \
             input_length, output_length and hash_ids{end}"
        )
    );
    assert_eq!(
        fault("sent_s,length\n1,2\n"),
        format!("has the fields sent_s,length, but no format in full: acme also has in and out{end}")
    );
    assert_eq!(
        fault("sent_s,in,arrived_at,num_prefill_tokens\n1,2,3,4\n"),
        format!(
            "has the fields sent_s,in,arrived_at,num_prefill_tokens, but no format in full: vidur also has num_decode_tokens; acme also has \
             out{end}"
        )
    );
}
