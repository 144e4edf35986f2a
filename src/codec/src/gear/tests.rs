//! Gear frames: the format at its edges, malformed frames, and any bytes.

use proptest::prelude::*;

use super::{DecodeError, EncodeError, Encoder, HASH_SEED, Method, Predictor, Predictors, Word, decode, hash, rle};

fn encode(word: Word, input: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    Encoder::new().encode(word, &vec![Predictors::ALL; word.bytes()], input, &mut frame).unwrap();
    frame
}

fn encoded(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    rle::encode(bytes, &mut out);
    assert_eq!(rle::encoded_len(bytes, usize::MAX), Some(out.len()));
    assert_eq!(rle::encoded_len(bytes, out.len()), None, "no shorter than itself");
    assert_eq!(rle::decode(&out, bytes.len()), Some(bytes.to_vec()));
    out
}

#[test]
fn runs_of_four_and_more_are_repeats() {
    assert_eq!(encoded(b"AAA"), b"\x02AAA");
    assert_eq!(encoded(b"AAAA"), b"\x80A");
    assert_eq!(encoded(b"ABCDDDDDEFG"), b"\x02ABC\x81D\x02EFG");
    assert_eq!(encoded(b"AAABBBCCCDDD"), b"\x0bAAABBBCCCDDD", "shorter runs are literals");
    assert_eq!(encoded(&[7; 131]), [0xff, 7]);
    assert_eq!(encoded(&[7; 132]), [0xff, 7, 0, 7]);
    assert_eq!(encoded(&[7; 262]), [0xff, 7, 0xff, 7]);
    let mut distinct: Vec<u8> = (0..=255).collect();
    assert_eq!(encoded(&distinct).len(), 256 + 2, "two full literals");
    // A run that begins within the last literals of a token ends the token.
    distinct.extend([255; 3]);
    assert_eq!(encoded(&distinct)[..2], [127, 0]);
    assert_eq!(encoded(&distinct)[129..], [&[126][..], &distinct[128..255], &[0x80, 255]].concat());
}

#[test]
fn malformed_runs_are_refused() {
    for (bad, len) in [
        (&b""[..], 0),
        (b"", 1),
        (b"\x00", 1),
        (b"\x80", 4),
        (b"\x01A", 2),
        (b"\x80A", 3),
        (b"\x80A", 5),
        (b"\x00A\x00B", 1),
    ] {
        assert_eq!(rle::decode(bad, len), None, "{bad:?}");
    }
}

#[test]
fn the_first_of_equal_candidates_is_chosen() {
    // Constant bytes: every predictor leaves a short payload, and RLE is tried before zstd.
    let mut out = Vec::new();
    let streams = decode(Word::F16, &encode(Word::F16, &[5; 200]), 200, &mut out).unwrap();
    assert!(
        streams.iter().all(|info| (info.predictor, info.method, info.payload_len) == (Predictor::Raw, Method::Rle, 2))
    );
    assert_eq!(out, [5; 200]);
}

#[test]
fn input_of_the_wrong_length_is_refused_and_nothing_is_written() {
    let mut out = vec![9];
    for (word, len) in [(Word::F16, 0), (Word::F16, 3), (Word::F32, 6)] {
        let refused = Encoder::new().encode(word, &vec![Predictors::ALL; word.bytes()], &vec![0; len], &mut out);
        assert_eq!(refused, Err(EncodeError::NoWholeWords { len, word: word.bytes() }));
    }
    let refused = Encoder::new().encode(Word::F32, &[Predictors::ALL; 2], &[0; 8], &mut out);
    assert_eq!(refused, Err(EncodeError::WrongPredictors { given: 2, word: 4 }));
    assert_eq!(out, [9]);
}

#[test]
fn each_fault_of_a_frame_is_named() {
    let frame = encode(Word::F16, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let refuse = |frame: &[u8], max_len| {
        let mut out = vec![9];
        let error = decode(Word::F16, frame, max_len, &mut out).unwrap_err();
        assert_eq!(out, [9], "nothing is written");
        error
    };
    for at in 0..frame.len() {
        assert!(matches!(refuse(&frame[..at], 8), DecodeError::Truncated { .. }), "{at}");
    }
    let changed = |at: usize, to: u8| {
        let mut frame = frame.clone();
        frame[at] = to;
        refuse(&frame, 1 << 40)
    };
    assert_eq!(refuse(&[0; 28], 8), DecodeError::Empty);
    assert_eq!(refuse(&frame, 7), DecodeError::TooLong { len: 8, limit: 7 });
    assert_eq!(changed(4, 3), DecodeError::UnknownPredictor { number: 3, at: 4 });
    assert_eq!(changed(5, 2), DecodeError::UnknownMethod { number: 2, at: 5 });
    assert_eq!(changed(9, 1), DecodeError::LengthMismatch { at: 4, raw_len: 4 + (1 << 24), words: 4 });
    assert_eq!(changed(14, 4), DecodeError::BadPayload { method: Method::Rle, at: 14 });
    assert_eq!(changed(5, 1), DecodeError::BadPayload { method: Method::Zstd, at: 14 });
    assert_eq!(refuse(&[&frame[..], &[0, 0]].concat(), 8), DecodeError::TrailingBytes { n: 2 });
}

#[test]
fn a_frame_that_lies_about_its_length_takes_little_memory() {
    // Four gigabytes are promised: 15 bytes of run-length encoding, or an empty zstd frame.
    for (method, payload) in [(0, &[0xffu8, 1][..]), (1, &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 0x01, 0x00, 0x00][..])] {
        let mut frame = u32::MAX.to_le_bytes().to_vec();
        frame.extend([0, method]);
        frame.extend(u32::MAX.to_le_bytes());
        frame.extend((payload.len() as u32).to_le_bytes());
        frame.extend(payload);
        let mut out = Vec::new();
        assert!(matches!(decode(Word::F16, &frame, usize::MAX, &mut out), Err(DecodeError::BadPayload { .. })));
        assert_eq!(out.capacity(), 0);
    }
}

#[test]
fn the_hash_is_that_of_the_reference() {
    assert_eq!(hash(b"", HASH_SEED), 0x1465_0fb0_739d_0383);
    assert_eq!(hash(b"a", HASH_SEED), 0x44bd_8ad4_73cd_9906);
    assert_eq!(hash(b"foobar", HASH_SEED), 0x88fa_d7c0_a8ff_07f2);
    assert_eq!(hash(b"bar", hash(b"foo", HASH_SEED)), 0x88fa_d7c0_a8ff_07f2);
}

proptest! {
    #[test]
    fn words_come_back(input in prop::collection::vec(prop_oneof![Just(0u8), Just(7), any::<u8>()], 4..600), set in 0usize..3) {
        let list = ["raw", "raw,delta_seq", "raw,delta_seq,xor_seq"][set];
        for word in [Word::F16, Word::F32] {
            let input = &input[..input.len() / word.bytes() * word.bytes()];
            let mut frame = Vec::new();
            let predictors = vec![Predictors::from_list(list); word.bytes()];
            Encoder::new().encode(word, &predictors, input, &mut frame).unwrap();
            let mut out = Vec::new();
            decode(word, &frame, input.len(), &mut out).unwrap();
            prop_assert_eq!(&out, input);
        }
    }

    #[test]
    fn no_bytes_do_harm(mut frame in prop::collection::vec(any::<u8>(), 0..80), flips in prop::collection::vec((0usize..200, any::<u8>()), 0..4)) {
        let mut out = Vec::new();
        let _ = decode(Word::F16, &frame, 1 << 16, &mut out);
        frame = encode(Word::F16, &[frame.as_slice(), &[1, 2][..2 - frame.len() % 2]].concat());
        for (at, to) in flips {
            let at = at % frame.len();
            frame[at] = to;
        }
        let _ = decode(Word::F16, &frame, 1 << 16, &mut out);
        prop_assert!(out.len() <= 2 << 16);
    }
}
