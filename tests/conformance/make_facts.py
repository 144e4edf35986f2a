#!/usr/bin/env python3
"""Makes facts.json: what llama.cpp and transformers say about the tokens of small models.

The tests of src/text build the same models from the same descriptions and compare. To make the file again, and to see that llama.cpp and
transformers still agree with it:

    pip install gguf transformers xllamacpp
    python tests/conformance/make_facts.py [--check]

llama.cpp is the one inside xllamacpp, called through its C interface: each GGUF model has random weights, which nothing computes with. transformers
needs no torch for tokenizers. Its tokens that end an answer are those of generate() and vLLM together: `eos_token_id` of config.json and of
generation_config.json, and the tokenizer's `eos_token`.
"""

import ctypes
import json
import pathlib
import sys
import tempfile

import gguf
import numpy
import transformers
import xllamacpp

HERE = pathlib.Path(__file__).parent
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Name: keys, and tokens with their kinds. The tokens come after the 256 bytes of a byte-level vocabulary.
BYTE_LEVEL = {
    "llama-3": ({"eos": "<|end_of_text|>"}, [("<|begin_of_text|>", 3), ("<|end_of_text|>", 3), ("<|eot_id|>", 3), ("<|eom_id|>", 3), ("<|start_header_id|>", 3)]),
    "qwen-2.5-coder": (
        {"eos": "<|im_end|>"},
        [("<|endoftext|>", 3), ("<|im_start|>", 3), ("<|im_end|>", 3), ("<|fim_prefix|>", 3), ("<|fim_middle|>", 3), ("<|fim_suffix|>", 3)]
        + [("<|fim_pad|>", 3), ("<|repo_name|>", 3), ("<|file_sep|>", 3), ("<tool_call>", 4)],
    ),
    "gpt-oss": (
        {"eos": "<|return|>"},
        [("<|startoftext|>", 3), ("<|endoftext|>", 3), ("<|return|>", 3), ("<|constrain|>", 3), ("<|channel|>", 3), ("<|start|>", 3), ("<|end|>", 3)]
        + [("<|message|>", 3), ("<|call|>", 3)],
    ),
    "solar": ({"eos": "<|flush|>"}, [("<|flush|>", 3), ("<|calls|>", 3), ("<|end|>", 3)]),
    "phi-3": ({"eos": "<|endoftext|>"}, [("<|endoftext|>", 3), ("<|end|>", 3), ("<|user|>", 3)]),
    "deepseek": ({"eos": "<｜end▁of▁sentence｜>"}, [("<｜begin▁of▁sentence｜>", 3), ("<｜end▁of▁sentence｜>", 3), ("<｜fim▁hole｜>", 3), ("<｜User｜>", 3)]),
    "kimi": ({"eos": "[EOS]"}, [("[BOS]", 3), ("[EOS]", 3), ("[EOT]", 3), ("[PAD]", 3)]),
    "granite": ({"eos": "<|end_of_text|>"}, [("<|end_of_text|>", 3), ("<fim_prefix>", 3), ("<fim_pad>", 3), ("<reponame>", 3), ("<|start_of_role|>", 3)]),
    "named-by-key": ({"eos": "<stop>", "eot": "<turn>", "eom": "<more>", "fim_pad": "<hole>"}, [("<stop>", 3), ("<turn>", 3), ("<more>", 3), ("<hole>", 3), ("<|fim_pad|>", 3)]),
    "wrong-kinds": ({"eos": "<stop>"}, [("<stop>", 3), ("<|im_end|>", 1), ("<|eot_id|>", 4), ("<|endoftext|>", 5), ("<PRE>", 1), ("<|file_sep|>", 4)]),
    "minimax": ({"eos": "[e~["}, [("[e~[", 3), ("]~b]", 3)]),
    "latin": ({"eos": "café"}, [("café", 3), ("đem", 4), ("ĠÃ©", 3), ("naïve é", 4), ("éa", 4), ("▁x", 4)]),
    "all-kinds": ({"eos": "<control>"}, [("<undefined>", 0), ("<normal>", 1), ("<unk>", 2), ("<control>", 3), ("<user>", 4), ("<unused>", 5), ("<0x41>", 6)]),
}
# The same for vocabularies of SentencePiece: behind <unk>, <s>, </s>, the bytes, and the letters below. Gemma 4 has </s> as a normal token.
SENTENCE_PIECE = {
    "mistral": ({"eos": "</s>"}, [("[INST]", 3), ("[/INST]", 3)]),
    "no-keys": ({}, [("[INST]", 3)]),
    "gemma-2": ({"eos": "<eos>"}, [("<eos>", 3), ("<start_of_turn>", 3), ("<end_of_turn>", 3), ("  ", 4)]),
    "gemma-4": ({"eos": "<eos>"}, [("<eos>", 3), ("<turn|>", 3), ("<|tool_response>", 3), ("<|turn>", 3)]),
    "code-llama": ({"eos": "</s>"}, [("▁<PRE>", 3), ("▁<SUF>", 3), ("▁<MID>", 3), ("▁<EOT>", 3)]),
    "latin": ({"eos": "</s>"}, [("café", 3), ("đem", 4), ("▁é", 4)]),
    "all-kinds": ({"eos": "<control>"}, [("<undefined>", 0), ("<normal>", 1), ("<unk2>", 2), ("<control>", 3), ("<user>", 4), ("<unused>", 5)]),
}
LETTERS = ["▁", "a", "b", "c"]
NORMAL_END = ["gemma-4"]

# Name: files of a folder. "tokenizer.json" has only the added tokens; the vocabulary is that of 256 bytes.
PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def token(content, special, **flags):
    return {"content": content, "special": special, **PLAIN, **flags}


def listed(id, content, special, **flags):
    return {"id": id, **token(content, special, **flags)}


# Folders with letters of Latin alphabets in added tokens, which transformers prints wrong (tokenizers#1392). The content is right.
MISPRINTED = ["latin"]

FOLDERS = {
    "config-number": {"tokenizer.json": [listed(256, "<e>", True)], "config.json": {"eos_token_id": 256}},
    "config-list": {"tokenizer.json": [listed(256, "<e>", True), listed(257, "<f>", True)], "config.json": {"eos_token_id": [257, 256]}},
    "generation-alone": {"tokenizer.json": [listed(256, "<e>", True)], "config.json": {"eos_token_id": None}, "generation_config.json": {"eos_token_id": 256}},
    "qwen-2.5": {
        "tokenizer.json": [listed(256, "<|endoftext|>", True), listed(257, "<|im_start|>", True), listed(258, "<|im_end|>", True), listed(259, "<tool_call>", False)],
        "config.json": {"eos_token_id": 258},
        "generation_config.json": {"eos_token_id": [258, 256]},
        "tokenizer_config.json": {
            "added_tokens_decoder": {"256": token("<|endoftext|>", True), "257": token("<|im_start|>", True), "258": token("<|im_end|>", True), "259": token("<tool_call>", False)},
            "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        },
    },
    "eos-text": {"tokenizer.json": [listed(256, "</s>", True)], "tokenizer_config.json": {"eos_token": "</s>"}},
    "eos-object": {"tokenizer.json": [listed(256, "</s>", True)], "tokenizer_config.json": {"eos_token": {"__type": "AddedToken", **token("</s>", True)}}},
    "special-tokens-map": {"tokenizer.json": [listed(256, "</s>", True)], "special_tokens_map.json": {"eos_token": token("</s>", True)}, "tokenizer_config.json": {}},
    "config-tokens": {
        "tokenizer.json": [],
        "tokenizer_config.json": {"added_tokens_decoder": {"256": token("<|im_start|>", True), "257": token("<think>", False), "258": token("<|im_end|>", True, rstrip=True)}, "eos_token": "<|im_end|>"},
    },
    "config-flags-win": {"tokenizer.json": [listed(256, "<tool>", False)], "tokenizer_config.json": {"added_tokens_decoder": {"256": token("<tool>", True)}}},
    "added-tokens-file": {"tokenizer.json": [], "added_tokens.json": {"<x>": 256, "<y>": 257}, "special_tokens_map.json": {"eos_token": "<y>"}, "tokenizer_config.json": {}},
    "role-without-id": {"tokenizer.json": [listed(256, "<e>", True)], "tokenizer_config.json": {"added_tokens_decoder": {"256": token("<e>", True)}, "pad_token": "<pad>", "eos_token": "<e>"}},
    "latin": {"tokenizer.json": [listed(256, "<café>", True), listed(257, "<đ>", False)], "tokenizer_config.json": {"eos_token": "<café>"}},
}


def byte_names():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(rest)) for b in range(256)]


def write_gguf(path, model, keys, names, end_kind):
    """Writes a model of one layer whose weights say nothing."""
    width, writer = 32, gguf.GGUFWriter(path, "llama")
    base = [(name, NORMAL) for name in byte_names()]
    if model == "llama":
        base = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", end_kind)]
        base += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)] + [(letter, NORMAL) for letter in LETTERS]
    tokens = base + names
    ids = {}
    for id, (name, _) in enumerate(tokens):
        ids[name] = id
    writer.add_context_length(64); writer.add_embedding_length(width); writer.add_block_count(1); writer.add_feed_forward_length(32)  # noqa: E702
    writer.add_head_count(2); writer.add_head_count_kv(2); writer.add_layer_norm_rms_eps(1e-6); writer.add_rope_dimension_count(16)  # noqa: E702
    writer.add_tokenizer_model(model); writer.add_token_list([name for name, _ in tokens]); writer.add_token_types([kind for _, kind in tokens])  # noqa: E702
    writer.add_add_bos_token(False)
    if model == "gpt2":
        writer.add_tokenizer_pre("gpt-2"); writer.add_token_merges(["a b"])  # noqa: E702
    else:
        writer.add_token_scores([0.0] * len(tokens))
    for key, name in keys.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", ids[name])
    zeros = lambda *shape: numpy.zeros(shape, numpy.float32)  # noqa: E731
    writer.add_tensor("token_embd.weight", zeros(len(tokens), width))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", zeros(width, width))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", zeros(width))
    writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()  # noqa: E702
    return tokens


class Opaque(ctypes.Structure):
    """Room for the parameters of a model, which are passed on unchanged."""

    _fields_ = [("bytes", ctypes.c_char * 512)]


class LlamaCpp:
    def __init__(self):
        self.lib = ctypes.CDLL(str(next(pathlib.Path(xllamacpp.__file__).parent.glob("*.so"))))
        pointer, text, number, flag = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_bool
        for name, result, arguments in [
            ("llama_model_default_params", Opaque, []),
            ("llama_model_load_from_file", pointer, [text, Opaque]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_vocab_is_eog", flag, [pointer, number]),
            ("llama_tokenize", number, [pointer, text, number, ctypes.POINTER(number), number, flag, flag]),
            ("llama_token_to_piece", number, [pointer, number, text, number, number, flag]),
        ]:
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments

    def load(self, path):
        model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self.vocab = self.lib.llama_model_get_vocab(model)

    def ends(self, n):
        return [id for id in range(n) if self.lib.llama_vocab_is_eog(self.vocab, id)]

    def tokens(self, text):
        text, out = text.encode(), (ctypes.c_int32 * 256)()
        return list(out[: self.lib.llama_tokenize(self.vocab, text, len(text), out, len(out), False, True)])

    def piece(self, id, special):
        out = ctypes.create_string_buffer(64)
        n = self.lib.llama_token_to_piece(self.vocab, id, out, len(out), 0, special)
        return out.raw[:n].decode("utf-8", "replace")


def ggufs(folder):
    llama, rows = LlamaCpp(), []
    for model, families in (("gpt2", BYTE_LEVEL), ("llama", SENTENCE_PIECE)):
        for name, (keys, names) in families.items():
            path = folder / f"{model}-{name}.gguf"
            try:
                end_kind = NORMAL if name in NORMAL_END else CONTROL
                tokens = write_gguf(path, model, keys, names, end_kind)
                llama.load(path)
            except RuntimeError as error:
                print(f"{model} {name}: {error}")
                continue
            first = len(tokens) - len(names)
            looked_at = [first + at for at in range(len(names))] + ([] if model == "gpt2" else [0, 1, 2])
            rows.append({
                "name": f"{model} {name}", "model": model, "keys": keys, "names": names, "end_kind": end_kind,
                "ends": llama.ends(len(tokens)),
                "tokens": [[tokens[id][0], llama.tokens(tokens[id][0])] for id in looked_at],
                "printed": [[id, llama.piece(id, False), llama.piece(id, True)] for id in looked_at],
            })
    return rows


def write_folder(folder, files):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "vocab": {name: id for id, name in enumerate(byte_names())}, "merges": []}  # fmt: skip
    for name, content in files.items():
        if name == "tokenizer.json":
            content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": content, "normalizer": None,
                       "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}  # fmt: skip
        if name == "config.json":
            content = {"model_type": "llama", **content}
        (folder / name).write_text(json.dumps(content))


def folders(root):
    rows = []
    for name, files in FOLDERS.items():
        folder = root / name
        folder.mkdir()
        write_folder(folder, files)
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        ends = set()
        if "config.json" in files:
            found = transformers.LlamaConfig.from_pretrained(folder).eos_token_id
            ends.update(found if isinstance(found, list) else [] if found is None else [found])
        if "generation_config.json" in files:
            found = transformers.GenerationConfig.from_pretrained(folder).eos_token_id
            ends.update(found if isinstance(found, list) else [] if found is None else [found])
        if tokenizer.eos_token_id is not None:
            ends.add(tokenizer.eos_token_id)
        added = sorted(tokenizer.added_tokens_decoder.items())
        text = lambda token, text: str(token) if name in MISPRINTED and text else text  # noqa: E731
        rows.append({
            "name": name, "files": files, "ends": sorted(ends),
            "tokens": [[str(token), tokenizer.encode(str(token), add_special_tokens=False)] for _, token in added],
            "printed": [
                [id, text(token, tokenizer.decode([id], skip_special_tokens=True)), text(token, tokenizer.decode([id]))] for id, token in added
            ],
        })
    return rows


def compact(made):
    """Returns JSON with one line for each model."""
    rows = lambda part: ",\n".join(json.dumps(row, ensure_ascii=False) for row in made[part])  # noqa: E731
    head = ", ".join(f"{json.dumps(key)}: {json.dumps(made[key])}" for key in ("llama.cpp", "transformers"))
    return f'{{{head}, "ggufs": [\n{rows("ggufs")}\n], "folders": [\n{rows("folders")}\n]}}\n'


def main():
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(temporary)
        made = {
            "llama.cpp": f"xllamacpp {xllamacpp.__version__}", "transformers": transformers.__version__,
            "ggufs": ggufs(root), "folders": folders(root),
        }
    path = HERE / "facts.json"
    if "--check" not in sys.argv:
        path.write_text(compact(made))
        return print(f"wrote {path}")
    known, differ = json.loads(path.read_text()), 0
    for part in ("ggufs", "folders"):
        for row in json.loads(json.dumps(made[part])):
            old = next((old for old in known[part] if old["name"] == row["name"]), None)
            differ += old != row
            if old != row:
                print(f"{row['name']}: was {old}\n  is {row}")
    print(f"{len(made['ggufs'])} files, {len(made['folders'])} folders, {differ} differ")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
