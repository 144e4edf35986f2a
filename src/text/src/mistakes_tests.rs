//! Tests of what people give instead of a model.

use super::*;

#[test]
fn files_are_recognised_by_their_first_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    for (bytes, expected) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"[..], "a Git LFS pointer"),
        (b"", "an empty file"),
        (b"\n<!DOCTYPE html><html>", "a web page"),
        (b"<?xml version='1.0'?><Error>", "a web page"),
        (b"Entry not found", "an error of a web server"),
        (b"{\"error\":\"Repository not found\"}", "an error of a web server"),
        (b"PK\x03\x04\0\0archive/data.pkl", "a checkpoint of PyTorch"),
        (b"PK\x03\x04\0\0model/config.json", "a zip archive"),
        (b"\x1f\x8b\x08", "is compressed"),
        (b"\x28\xb5\x2f\xfd", "is compressed"),
        (b"\x80\x02}q\0", "a pickle of Python"),
        (b"tjgg\x03\0\0\0", "from before GGUF"),
        (b"GGUF\0\0\0\x03", "big-endian"),
        (b"\x89HDF\r\n", "a checkpoint of TensorFlow"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let message = Mistake::of_file(&path).unwrap().to_string();
        assert!(message.contains("model.gguf") && message.contains(expected) && !message.contains('\n'), "{message}");
        assert_eq!(Mistake::of_model(&path).unwrap().to_string(), message);
    }
    for bytes in [&b"GGUF\x03\0\0\0"[..], b"GG"] {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!((Mistake::of_file(&path), Mistake::of_model(&path)), (None, None), "left to the reader");
    }
    assert_eq!(Mistake::of_model(&dir.path().join("absent")), None);
}

#[test]
fn parts_of_a_model_are_no_model() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, expected) in [
        ("model.safetensors", &b"\x08\0\0\0\0\0\0\0{}      "[..], "give its folder"),
        ("weights", b"\x08\0\0\0\0\0\0\0{}      ", "give its folder"),
        ("config.json", b"{\"a\": 1}", "is a JSON file: give the folder"),
        ("model.onnx", b"\x08\x07\x12\x04", "is an ONNX model"),
        ("tokenizer.model", b"\n\x0e\n\x05<unk>", "a vocabulary of SentencePiece"),
        ("README.md", b"# A model", "neither a GGUF file nor a folder"),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let message = Mistake::of_model(&path).unwrap().to_string();
        assert!(message.contains(name) && message.contains(expected), "{message}");
    }
}

/// The mistake of a folder with these files.
fn folder(lacks: Lacks, names: &[&str]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = if *name == "adapter_config.json" { "{\"base_model_name_or_path\": \"org/base\"}" } else { "" };
        std::fs::write(path, text).unwrap();
    }
    let mistake = Mistake::of_folder(dir.path(), lacks).map(|mistake| mistake.to_string());
    mistake.inspect(|message| {
        assert!(message.starts_with(dir.path().to_str().unwrap()) && !message.contains('\n'), "{message}")
    })
}

#[test]
fn folders_are_recognised_by_the_names_in_them() {
    for (lacks, names, expected) in [
        (Lacks::Config, &[][..], "is an empty folder"),
        (Lacks::Tokenizer, &["a.gguf", "mmproj-a.gguf"], "give the file, a.gguf, instead"),
        (
            Lacks::Config,
            &["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"],
            "give the file, m-00001-of-00002.gguf or another of the 2",
        ),
        (Lacks::Weights, &["config.json", "a.gguf"], "give the file, a.gguf, instead"),
        (
            Lacks::Config,
            &["adapter_config.json", "adapter_model.safetensors"],
            "an adapter (LoRA) and not a whole model",
        ),
        (Lacks::Config, &["adapter_config.json"], "its base model, org/base, with"),
        (Lacks::Tokenizer, &["adapter_model.bin"], "an adapter (LoRA)"),
        (Lacks::Config, &["model_index.json", "unet/config.json"], "a pipeline of diffusers"),
        (
            Lacks::Config,
            &["params.json", "consolidated.00.pth", "tokenizer.model"],
            "in the format of its authors (consolidated.00.pth)",
        ),
        (
            Lacks::Weights,
            &["config.json", "model.safetensors.incomplete"],
            "a download that is not complete (model.safetensors.incomplete)",
        ),
        (
            Lacks::Weights,
            &["config.json", "pytorch_model-00001-of-00002.bin"],
            "pickles of PyTorch (pytorch_model-00001-of-00002.bin)",
        ),
        (Lacks::Weights, &["config.json", "weights.pt"], "pickles of PyTorch (weights.pt)"),
        (Lacks::Weights, &["config.json", "model.onnx"], "an ONNX model (model.onnx)"),
        (Lacks::Weights, &["config.json", "tf_model.h5"], "for TensorFlow or Flax (tf_model.h5)"),
        (Lacks::Weights, &["config.json", "weights.npz"], "a model of MLX (weights.npz)"),
        (Lacks::Weights, &["config.json", "openvino_model.xml"], "for another runtime"),
        (Lacks::Config, &["modules.json", "1_Pooling/pooling.json"], "a model of sentence-transformers"),
        (
            Lacks::Tokenizer,
            &["config.json", "model.safetensors", "tokenizer.model"],
            "has tokenizer.model, but no tokenizer.json",
        ),
        (
            Lacks::Tokenizer,
            &["config.json", "model.safetensors", "vocab.json", "merges.txt"],
            "has merges.txt, but no tokenizer.json",
        ),
        (Lacks::Config, &["inner/config.json", "inner/model.safetensors"], "give the folder"),
        (Lacks::Config, &["refs/main", "snapshots/abc/config.json"], "snapshots/abc"),
    ] {
        let message = folder(lacks, names).unwrap_or_else(|| panic!("{names:?} is no mistake"));
        assert!(message.contains(expected), "{names:?}: {message}");
    }
    for (lacks, names) in [
        (Lacks::Config, &["notes.txt"][..]),
        (Lacks::Tokenizer, &["config.json", "model.safetensors", "model-q4.gguf"]),
        (Lacks::Config, &["a/config.json", "b/config.json"]),
    ] {
        assert_eq!(folder(lacks, names), None, "{names:?}");
    }
}
