//! Tests of split GGUF files.

use gguf_rs_lib::prelude::MetadataValue;

use super::*;
use crate::facts::ModelFacts;
use crate::model_rig::{byte_level_gguf, gguf_bytes};
use crate::tokenizer::Tokenizer;

/// Writes part `no` of `count`, from 0; the first has the tokens.
fn write(path: &Path, no: u16, count: u16) {
    let mut entries = if no == 0 { byte_level_gguf(&[("<|im_end|>", 3)]) } else { Vec::new() };
    entries.push(("split.no", MetadataValue::U16(no)));
    entries.push(("split.count", MetadataValue::U16(count)));
    std::fs::write(path, gguf_bytes(&entries)).unwrap();
}

/// A folder with the parts of a model.
fn parts(count: u16) -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (1..=count).map(|n| dir.path().join(format!("m-1-{n:05}-of-{count:05}.gguf"))).collect();
    (0..count).zip(&paths).for_each(|(no, path)| write(path, no, count));
    (dir, paths)
}

#[test]
fn any_part_stands_for_the_model() {
    let (_dir, paths) = parts(3);
    for path in &paths {
        assert_eq!(gguf_parts(path).unwrap(), paths);
        assert_eq!(gguf_name(path), "m-1");
        assert_eq!(ModelFacts::read(path).unwrap().end_ids(), [256]);
        assert_eq!(Tokenizer::load(path).unwrap().vocab_size(), 257);
    }
}

#[test]
fn a_file_alone_is_whole_whatever_its_name() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.gguf", "a-00001-of-00002.gguf"] {
        let path = dir.path().join(name);
        std::fs::write(&path, gguf_bytes(&byte_level_gguf(&[]))).unwrap();
        assert_eq!(gguf_parts(&path).unwrap(), std::slice::from_ref(&path));
        ModelFacts::read(&path).unwrap();
    }
    assert_eq!(
        (gguf_name(Path::new("x/a.b.gguf")), gguf_name(Path::new("a-1-of-2.gguf"))),
        ("a.b".into(), "a-1-of-2".into())
    );
    // A file that is none is left to its reader.
    let path = dir.path().join("b-00001-of-00002.gguf");
    assert_eq!(gguf_parts(&path).unwrap(), [path]);
}

#[test]
fn missing_and_renamed_parts_are_named() {
    let refused = |path: &Path| {
        let message = ModelFacts::read(path).unwrap_err().to_string();
        assert!(!message.contains('\n'), "{message}");
        message
    };
    let (_dir, paths) = parts(2);
    std::fs::remove_file(&paths[1]).unwrap();
    let message = refused(&paths[0]);
    assert!(
        message.contains("part 1 of 2 of a split model, of which part 2, m-1-00002-of-00002.gguf, is missing"),
        "{message}"
    );
    let renamed = paths[0].with_file_name("m.gguf");
    std::fs::rename(&paths[0], &renamed).unwrap();
    let message = refused(&renamed);
    assert!(
        message.contains("m.gguf: part 1 of 2 of a split model, but its name does not end in -00001-of-00002.gguf"),
        "{message}"
    );
    let (_dir, paths) = parts(2);
    write(&paths[1], 0, 2);
    let message = refused(&paths[0]);
    assert!(message.contains("m-1-00002-of-00002.gguf: part 1 of 2"), "{message}");
}
