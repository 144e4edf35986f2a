"""Bytes of the tokens of a folder."""

import json
from pathlib import Path

import pytest

from trunkline_worker.vocabulary import words

MODEL = Path(__file__).parents[3] / "models/small-world"


def written(folder, decoder, vocab, added=(), **settings):
    tokenizer = {"decoder": decoder, "model": {"vocab": vocab}, "added_tokens": list(added)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def added(id, content, special):
    return {"id": id, "content": content, "special": special}


def test_the_words_of_a_model_spell_its_texts():
    found = words(MODEL, 2050)
    assert found[:2] == [b"\xff<s>", b"\xff</s>"] and found[2048:] == [b"", b""]
    assert len({bytes([byte]) for byte in range(256)} - set(found)) == 0
    assert b" the" in found and "Ġthe".encode() not in found


def test_byte_level_names_stand_for_bytes_and_added_tokens_for_themselves(tmp_path):
    vocab = {"Ġa": 0, "ÃŁ": 1, "日": 2, "beyond": 9}
    folder = written(tmp_path, {"type": "ByteLevel"}, vocab, [added(3, "<x>", True), added(4, "Ġ", False)])
    assert words(folder, 6) == [b" a", "ß".encode(), "日".encode(), b"\xff<x>", "Ġ".encode(), b""]


FALLBACK = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def test_sentencepiece_has_spaces_and_bytes(tmp_path):
    vocab = [["<unk>", 0.0], ["▁a", -1.0], ["<0x0A>", -1.0], ["▁▁", -1.0], ["b▁", -1.0]]
    folder = written(tmp_path, FALLBACK, vocab, [added(0, "<unk>", True), added(3, "▁▁", False), added(5, "▁c", False)])
    assert words(folder, 6) == [b"\xff<unk>", b" a", b"\n", b"  ", b"b ", "▁c".encode()]


def test_the_settings_of_the_tokenizer_win(tmp_path):
    settings = {"eos_token": {"content": "b"}, "added_tokens_decoder": {"1": added(1, "c", True)}}
    folder = written(tmp_path, {"type": "ByteLevel"}, {"a": 0}, [added(1, "c", False), added(2, "b", False)], **settings)
    assert words(folder, 3) == [b"a", b"\xffc", b"\xffb"]


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece"}, {"type": "Sequence", "decoders": [{"type": "Fuse"}]}])
def test_tokens_that_depend_on_others_have_no_bytes(tmp_path, decoder):
    assert words(written(tmp_path, decoder, {"a": 0}), 1) is None


def test_a_folder_without_a_tokenizer_has_none_and_a_broken_one_is_named(tmp_path):
    assert words(tmp_path, 1) is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        words(tmp_path, 1)
