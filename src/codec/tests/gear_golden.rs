//! Frames made by the reference encoder: each decodes to its input, and ours are the same bytes wherever zstd is not involved.

use std::path::PathBuf;

use serde::Deserialize;
use trunkline_codec::gear::{self, Encoder, Method, Predictors, Word};

#[derive(Deserialize)]
struct Manifest {
    malformed_fp16_frames: Vec<Malformed>,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Malformed {
    name: String,
    file: String,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    kind: String,
    predictors_lo: String,
    predictors_hi: String,
    input: String,
    encode_fails: bool,
    frame: Option<String>,
    zstd_dependent: Option<bool>,
}

fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("TRUNKLINE_DATA").expect("the test is ignored without data")).join("golden/codec")
}

fn read(file: &str) -> Vec<u8> {
    std::fs::read(folder().join(file)).unwrap_or_else(|error| panic!("cannot read {file}: {error}"))
}

fn manifest() -> Manifest {
    serde_json::from_slice(&read("manifest.json")).expect("a manifest of this form")
}

#[test]
#[cfg_attr(not(trunkline_golden), ignore = "TRUNKLINE_DATA names no folder with golden/")]
fn frames_of_the_reference_are_read_and_written() {
    let (mut equal, mut close, mut refused) = (0, 0, 0);
    for vector in manifest().vectors {
        let input = read(&vector.input);
        let word = if vector.kind == "fp16" { Word::F16 } else { Word::F32 };
        let [lo, hi] = [&vector.predictors_lo, &vector.predictors_hi].map(|list| Predictors::from_list(list));
        // The reference has one list for byte 0 and one for all others.
        let predictors: Vec<Predictors> = (0..word.bytes()).map(|byte| if byte == 0 { lo } else { hi }).collect();
        let mut ours = Vec::new();
        let encoded = Encoder::new().encode(word, &predictors, &input, &mut ours);
        assert_eq!(encoded.is_err(), vector.encode_fails, "{}", vector.name);
        let Some(file) = vector.frame else {
            refused += 1;
            continue;
        };
        let theirs = read(&file);
        let mut out = Vec::new();
        let streams =
            gear::decode(word, &theirs, input.len(), &mut out).unwrap_or_else(|e| panic!("{}: {e}", vector.name));
        assert_eq!(out, input, "{}", vector.name);
        let uses_zstd = streams.iter().any(|stream| stream.method == Method::Zstd);
        if vector.zstd_dependent == Some(false) {
            assert!(!uses_zstd);
            assert_eq!(ours, theirs, "{}", vector.name);
            equal += 1;
        } else {
            // Another version of zstd may find another payload.
            let ratio = ours.len() as f64 / theirs.len() as f64;
            assert!((0.98..1.02).contains(&ratio), "{}: {} bytes for {}", vector.name, ours.len(), theirs.len());
            close += usize::from(ours != theirs);
        }
    }
    eprintln!(
        "{equal} frames must be equal and are, {close} others differ by the version of zstd, {refused} inputs are refused"
    );
    assert!(equal >= 11 && refused >= 3);
}

#[test]
#[cfg_attr(not(trunkline_golden), ignore = "TRUNKLINE_DATA names no folder with golden/")]
fn malformed_frames_are_refused() {
    let frames = manifest().malformed_fp16_frames;
    assert!(frames.len() >= 8);
    for Malformed { name, file } in frames {
        let mut out = Vec::new();
        let error = gear::decode(Word::F16, &read(&file), 1 << 20, &mut out).expect_err(&name);
        eprintln!("{name}: {error}");
        assert!(out.is_empty());
    }
}
