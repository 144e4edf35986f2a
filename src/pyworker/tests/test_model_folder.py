"""Facts read from a model's folder: end tokens, and a revision that follows the weights."""

import json
from pathlib import Path

import numpy as np
import pytest

from trunkline_worker.model_folder import end_tokens, fingerprint


def safetensors(tensors):
    """The bytes of a file with tensors of bytes."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(tensors.values())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def revisions(folder, name, contents):
    found = []
    for content in contents:
        (folder / name).write_bytes(content)
        found.append(fingerprint(folder))
        # The same files have the same revision.
        assert fingerprint(folder) == found[-1]
    return found


def test_a_change_of_one_tensor_is_another_revision(folder):
    draw = np.random.default_rng(1)
    tensors = {f"layer.{i}": draw.bytes(40_000) for i in range(300)}
    changed = [{**tensors, name: draw.bytes(40_000)} for name in ("layer.0", "layer.17", "layer.155", "layer.299")]
    found = revisions(folder, "model.safetensors", map(safetensors, [tensors, *changed]))
    assert len(set(found)) == 5


def test_a_tensor_under_another_name_is_another_revision(folder):
    found = revisions(folder, "model.safetensors", map(safetensors, [{"a": b"same", "b": b"more"}, {"b": b"same", "a": b"more"}]))
    assert len(set(found)) == 2


@pytest.mark.parametrize("name", ["pytorch_model-00001-of-00002.bin", "consolidated.00.pt", "old.pth", "model.gguf"])
def test_other_files_with_weights_count(folder, name):
    assert len(set(revisions(folder, name, [b"one", b"two"]))) == 2


@pytest.mark.parametrize("content", [b"", b"short", (1 << 63).to_bytes(8, "little") + b"x", (2).to_bytes(8, "little") + b"[]"])
def test_a_malformed_file_has_a_revision(folder, content):
    assert len(set(revisions(folder, "model.safetensors", [content, content + b"x"]))) == 2


def test_other_files_do_not_count(folder):
    assert len(set(revisions(folder, "README.md", [b"one", b"two"]))) == 1


def test_end_tokens_are_those_of_both_configs(folder):
    assert end_tokens(folder, {}) == ()
    assert end_tokens(folder, {"eos_token_id": 7}) == (7,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 7, 3]}')
    assert end_tokens(folder, {"eos_token_id": 2}) == (2, 3, 7, 9)
    for text in ("[", '{"eos_token_id": "x"}'):
        (folder / "generation_config.json").write_text(text)
        with pytest.raises(ValueError, match=r"generation_config\.json"):
            end_tokens(folder, {})


FACTS = Path(__file__).parents[3] / "tests" / "conformance" / "facts.json"
"""Folders with the tokens of transformers and of the embedded worker."""


@pytest.mark.parametrize("row", json.loads(FACTS.read_text())["folders"], ids=lambda row: row["name"])
def test_end_tokens_are_those_of_transformers(folder, row):
    for name, content in row["files"].items():
        whole = {"added_tokens": content, "model": {"vocab": {"a": 0}}} if name == "tokenizer.json" else content
        (folder / name).write_text(json.dumps(whole))
    config = row["files"].get("config.json", {})
    assert end_tokens(folder, config) == tuple(row["ends"])
    assert end_tokens(folder, {**config, "vocab_size": 1000}) == tuple(row["ends"])


def test_an_end_beyond_the_model_is_left_out(folder):
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<e>", "added_tokens_decoder": {"300": {"content": "<e>"}}}')
    assert end_tokens(folder, {"vocab_size": 300}) == ()
    assert end_tokens(folder, {"vocab_size": 301}) == (300,)
