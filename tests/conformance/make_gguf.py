#!/usr/bin/env python3
"""Makes the GGUF files that src/worker/tests/gguf.rs compares the embedded worker with.

Each NAME.gguf is a model of random weights, and NAME.json has the fields of `expected.json` (see make_checkpoints.py)
and the field

    "texts": [{"text": text, "tokens": ids}]

Logits are those of Hugging Face transformers, which reads the GGUF file itself and computes in F32. Tokens are those
of the library that the vocabulary is made for: transformers, tokenizers, or sentencepiece.

The results are checked in, so tests need neither Python nor a network. To make them again:

    pip install torch transformers tokenizers accelerate gguf sentencepiece
    python tests/conformance/make_gguf.py [NAME...]
"""

import io
import itertools
import json
import sys

import gguf
import make_checkpoints as checkpoints
import numpy
import sentencepiece
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from make_checkpoints import HERE, SENTENCES, TooClose, expected_of, make_model, prompts_of
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM

TEXTS = [
    "The trunk line carries 1234567 branches, doesn't it?  WE'LL see:\n\n\tlines   and\r\n ends ",
    " Zürich and 東京 \U0001f600 are (cities); naïve café 3.14 + 22/7 = x2",
    "<|begin|>The <tool>trunk</tool> line<|end|>\n",
    "    four spaces, x = {'a': [1, 2], \"b\": -0.5e10} // §¶",
    "",
]
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL, USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED


def byte_level_vocabulary(words: list, normalizer, begins: bool, size: int = 320) -> tuple[Tokenizer, dict]:
    """Returns a tokenizer whose pre-tokenizer is a chain of `words`, and its metadata."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True)]
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
        )
    ids = tokenizer.get_vocab(with_added_tokens=True)
    names = sorted(ids, key=ids.get)
    assert len(names) == size
    kinds = [CONTROL, CONTROL] + [gguf.TokenType.NORMAL] * (size - 3) + [USER_DEFINED]
    merges = [" ".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]
    return tokenizer, {"model": "gpt2", "tokens": names, "kinds": kinds, "merges": merges, "begins": begins}


def regex_words(expression: str) -> list:
    return [
        pre_tokenizers.Split(Regex(expression), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def llama3_vocabulary():
    tokenizer, facts = byte_level_vocabulary(regex_words(LLAMA3_WORDS), None, True)
    tokenizer.model.ignore_merges = True
    # The BOS token is left to the default for this kind of vocabulary.
    return tokenizer, facts | {"pre": "llama-bpe", "begins": None}


def qwen2_vocabulary():
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    tokenizer, facts = byte_level_vocabulary(regex_words(PRETOKENIZE_REGEX), normalizers.NFC(), False)
    return tokenizer, facts | {"pre": "qwen2"}


def smollm_vocabulary():
    words = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer, facts = byte_level_vocabulary(words, None, False)
    return tokenizer, facts | {"pre": "smollm"}


class SentencePiece:
    """A trained SentencePiece model with the methods of a tokenizer that are used here."""

    def __init__(self, size: int):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES * 20),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            byte_fallback=True,
            character_coverage=0.98,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
        self.model = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

    def encode(self, text: str):
        ids = [self.model.bos_id()] + self.model.encode(text)
        return type("Encoding", (), {"ids": ids})


def sentence_piece_vocabulary():
    size = 384
    tokenizer = SentencePiece(size)
    model = tokenizer.model
    kind = gguf.TokenType
    of = lambda id: (  # noqa: E731
        kind.UNKNOWN if model.is_unknown(id) else kind.CONTROL if model.is_control(id)
        else kind.BYTE if model.is_byte(id) else kind.NORMAL
    )
    facts = {
        "model": "llama",
        "pre": "default",
        "tokens": [model.id_to_piece(id) for id in range(size)],
        "kinds": [of(id) for id in range(size)],
        "scores": [model.get_score(id) for id in range(size)],
        "begins": None,
    }
    return tokenizer, facts


def quantized(weight: torch.Tensor, kind: Kind, seed: int) -> numpy.ndarray:
    """Returns a matrix in `kind`. The K formats have no encoder here: their blocks are random, with the spread of `weight`."""
    values = weight.detach().to(torch.float32).numpy()
    if kind not in (Kind.Q4_K, Kind.Q6_K):
        return gguf.quants.quantize(values, kind)
    random = numpy.random.default_rng(seed)
    length, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (values.size // length, size), dtype=numpy.uint8)

    def with_factors(factor: float) -> numpy.ndarray:
        half = numpy.array([factor, factor * 7.5], dtype=numpy.float16).view(numpy.uint8)
        if kind == Kind.Q4_K:
            blocks[:, :4] = half
        else:
            blocks[:, 208:] = half[:2]
        return blocks.reshape(values.shape[0], -1)

    spread = gguf.quants.dequantize(with_factors(0.01), kind).std()
    return with_factors(0.01 * float(values.std() / spread))


def permuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Orders the rows of query and key heads as llama.cpp's converter does for the architecture llama."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


# Name: architecture, vocabulary, changes of the configuration, kinds of tensors by part of the name, rotary extras.
FILES = {
    "llama-k-quants": (
        "llama",
        llama3_vocabulary,
        {
            "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_key_value_heads": 1,
            "head_dim": 64, "tie_word_embeddings": True, "rope_parameters": checkpoints.LLAMA3_ROPE,
        },
        {
            "token_embd": Kind.Q6_K, "attn_q": Kind.Q4_K, "attn_k": Kind.Q4_K, "attn_v": Kind.Q6_K,
            "attn_output": Kind.Q8_0, "ffn_gate": Kind.Q4_0, "ffn_up": Kind.Q4_1, "ffn_down": Kind.Q4_K,
        },
    ),
    "qwen2-mixed": (
        "qwen2",
        qwen2_vocabulary,
        {
            "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2, "head_dim": None,
        },
        {
            "token_embd": Kind.Q8_0, "attn_q": Kind.Q8_0, "attn_k": Kind.Q4_0, "attn_v": Kind.Q4_1,
            "attn_output": Kind.F16, "ffn_gate": Kind.BF16, "ffn_down": Kind.Q4_1, "output": Kind.Q8_0,
        },
    ),
    "qwen3-bf16": (
        "qwen3",
        smollm_vocabulary,
        {
            "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
            "rope_parameters": checkpoints.YARN_ROPE,
        },
        {"blk": Kind.BF16, "token_embd": Kind.F16},
    ),
    "llama-sentencepiece": (
        "llama",
        sentence_piece_vocabulary,
        {
            "num_key_value_heads": 2, "vocab_size": 384,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
        {"blk": Kind.Q8_0, "output": Kind.F16},
    ),
}


def write(path, architecture: str, facts: dict, model, kinds: dict, seed: int) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model(facts["model"])
    writer.add_tokenizer_pre(facts["pre"])
    writer.add_token_list(facts["tokens"])
    writer.add_token_types(facts["kinds"])
    if "merges" in facts:
        writer.add_token_merges(facts["merges"])
    if "scores" in facts:
        writer.add_token_scores(facts["scores"])
        writer.add_unk_token_id(0)
    writer.add_bos_token_id(1 if facts["model"] == "llama" else 0)
    writer.add_eos_token_id(2 if facts["model"] == "llama" else 1)
    if facts["begins"] is not None:
        writer.add_add_bos_token(facts["begins"])
    rope = config.rope_parameters
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), config.num_hidden_layers
    )
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for index, (name, weight) in enumerate(model.state_dict().items()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, suffix = name.rsplit(".", 1)
        ours = names.get_name(stem)
        pairs = next((n for part, n in heads.items() if part in name), None)
        if architecture == "llama" and pairs:
            weight = permuted(weight, pairs)
        part = ours.split(".")[-1]
        kind = kinds.get(part) or kinds.get(ours.split(".")[0]) or Kind.F32
        if weight.dim() == 1:
            kind = Kind.F32
        writer.add_tensor(f"{ours}.{suffix}", quantized(weight, kind, seed * 100 + index), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(name: str, seed: int) -> None:
    architecture, vocabulary, changes, kinds = FILES[name]
    tokenizer, facts = vocabulary()
    folder = HERE / "gguf"
    folder.mkdir(mode=0o755, exist_ok=True)
    path = folder / f"{name}.gguf"
    source = make_model(seed, changes)
    write(path, architecture, facts, source, kinds, seed)

    def load(attention: str):
        # Tensors come from the file; not every key of a configuration does, in this version of transformers.
        return AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=path.name,
            config=type(source.config).from_dict(source.config.to_dict()),
            attn_implementation=attention,
            dtype=torch.float32,
        ).eval()

    model, other = load("eager"), load("sdpa")
    checkpoints.VOCAB = source.config.vocab_size
    expected = expected_of(model, other, prompts_of(tokenizer, seed, False))
    expected["texts"] = [{"text": text, "tokens": list(tokenizer.encode(text).ids)} for text in TEXTS]
    (folder / f"{name}.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    margins = ", ".join(f"{prompt['margin']:.4f}" for prompt in expected["prompts"])
    print(f"{name}: seed {seed}, {path.stat().st_size} bytes, implementations differ by "
          f"{expected['eager_and_sdpa_differ_by']:.1e}, margins {margins}")


def main() -> None:
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, sentencepiece {sentencepiece.__version__}")
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    for name in sys.argv[1:] or FILES:
        for seed in itertools.count(1):
            try:
                make(name, seed)
                break
            except TooClose as close:
                print(f"{name}: seed {seed} leads by {close} only")


if __name__ == "__main__":
    main()
