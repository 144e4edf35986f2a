#!/usr/bin/env python3
"""Makes the checkpoints that src/worker/tests/conformance.rs compares the embedded worker with.

Each is a model of a few ten thousand random weights, saved by Hugging Face transformers, with a byte-level BPE
tokenizer trained on the sentences below, and an `expected.json` of what transformers computes from it in F32:

    {"transformers": version, "torch": version, "eager_and_sdpa_differ_by": largest difference of two implementations,
     "prompts": [{"text": text or null, "tokens": ids, "logits_at": positions, "logits": [one row each],
                  "greedy": ids generated after the prompt, "logprobs": the log probability of each of them,
                  "margin": smallest lead of a greedy token over the next}]}

The results are checked in, so tests need neither Python nor a network. To make them again, all or by name:

    pip install torch transformers tokenizers
    python tests/conformance/make_checkpoints.py [NAME...]

Weights are drawn with a spread at which attention matters and greedy text varies, from the first seed with which no
greedy token leads the next one by less than MARGIN_MIN: rounding could turn it.
"""

import itertools
import json
import shutil
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

HERE = Path(__file__).parent
VOCAB = 320
CONTEXT = 512
GREEDY_TOKENS = 40
MARGIN_MIN = 2e-3
# Logits are written with this many significant digits: far below the tolerance of the comparison, and small files.
DIGITS = 7

SENTENCES = [
    "The trunk line carries what the branches send it.",
    "A prefix that was computed once need not be computed again.",
    "Zürich, København, Málaga and São Paulo are cities; 東京 and 北京 are cities too.",
    "Blocks of sixteen tokens are hashed, chained, shared and freed.",
    "What the scheduler promises, the worker must keep: every token in its place.",
    "The quick brown fox jumps over the lazy dog 0123456789 times.",
]

PROMPTS = [
    "The trunk line",
    "Zürich and 東京 \U0001f600 are",
    "Blocks of sixteen tokens are hashed, chained, shared and freed. A prefix that was computed once need not be "
    "computed again. What the scheduler promises, the worker must keep: every token in its place.",
]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

# Name, differences from the common configuration, type on disk, shard size.
CHECKPOINTS = [
    ("mha-tied-f32", {"num_key_value_heads": 4, "tie_word_embeddings": True}, torch.float32, "5GB"),
    ("gqa-untied-bf16-sharded", {"num_key_value_heads": 2}, torch.bfloat16, "24KB"),
    ("gqa-llama3-rope-f16", {"num_key_value_heads": 1, "rope_parameters": LLAMA3_ROPE}, torch.float16, "5GB"),
    ("llama-biases-f32", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}, torch.float32, "5GB"),
    (
        "mistral-yarn-rope-bf16",
        {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None, "rope_parameters": YARN_ROPE},
        torch.bfloat16,
        "5GB",
    ),
    (
        "qwen2-tied-linear-rope-f32",
        {
            "model_type": "qwen2",
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "head_dim": None,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
        torch.float32,
        "5GB",
    ),
    (
        "qwen3-yarn-rope-f16",
        {
            "model_type": "qwen3",
            "num_key_value_heads": 2,
            "head_dim": 16,
            "attention_bias": True,
            "rope_parameters": YARN_ROPE
            | {"attention_factor": 1.25, "beta_fast": 24.0, "beta_slow": 1.5, "truncate": False},
        },
        torch.float16,
        "5GB",
    ),
]
# Checkpoints made before the others have the logits of every position of a prompt; the others have three rows.
ALL_POSITIONS = {name for name, *_ in CHECKPOINTS[:3]}


class TooClose(Exception):
    """A greedy token leads by less than MARGIN_MIN."""


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def make_model(seed: int, changes: dict) -> PreTrainedModel:
    common = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    keys = {key: value for key, value in (common | changes).items() if key != "head_dim" or value is not None}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**keys)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0.0, 0.3)
            elif weight.dim() == 1:
                weight.copy_(1.0 + 0.2 * torch.randn_like(weight))
            else:
                gain = 2.5 if "q_proj" in name or "k_proj" in name else 1.2
                weight.normal_(0.0, gain / weight.shape[1] ** 0.5)
    return model


@torch.no_grad()
def logits_of(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def expectation(model: PreTrainedModel, text: str | None, tokens: list[int], at: list[int]) -> dict:
    logits = logits_of(model, tokens)
    greedy, logprobs, margin = [], [], float("inf")
    for _ in range(GREEDY_TOKENS):
        # The whole text again for every token: nothing here depends on a cache.
        last = logits_of(model, tokens + greedy)[-1]
        first, second = last.topk(2).values.tolist()
        margin = min(margin, first - second)
        greedy.append(int(last.argmax()))
        logprobs.append(float(last.double().log_softmax(-1)[greedy[-1]]))
    if margin < MARGIN_MIN:
        raise TooClose(margin)
    return {
        "text": text,
        "tokens": tokens,
        "logits_at": at,
        "logits": [[float(f"{x:.{DIGITS}g}") for x in logits[i].tolist()] for i in at],
        "greedy": greedy,
        "logprobs": [float(f"{x:.{DIGITS}g}") for x in logprobs],
        "margin": margin,
    }


def expected_of(model: PreTrainedModel, other: PreTrainedModel, prompts: list[tuple]) -> dict:
    """Computes the contents of `expected.json` with `model`; `other` computes attention in another way."""
    difference = max(
        float((logits_of(model, tokens) - logits_of(other, tokens)).abs().max()) for _, tokens, _ in prompts
    )
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "eager_and_sdpa_differ_by": difference,
        "prompts": [expectation(model, *prompt) for prompt in prompts],
    }


def prompts_of(tokenizer: Tokenizer, seed: int, every: bool) -> list[tuple]:
    """Returns texts, tokens, and the positions whose logits are kept."""

    def ends(tokens: list[int]) -> list[int]:
        return sorted({0, len(tokens) // 2, len(tokens) - 1})

    prompts = []
    for i, text in enumerate(PROMPTS):
        tokens = tokenizer.encode(text).ids
        last = [len(tokens) - 1]
        prompts.append((text, tokens, (list(range(len(tokens))) if i == 1 else last) if every else ends(tokens)))
    generator = torch.Generator().manual_seed(seed)
    # Longer than the original context of the scaled models, and than several blocks.
    tokens = torch.randint(2, VOCAB, (200,), generator=generator).tolist()
    prompts.append((None, tokens, [len(tokens) - 1] if every else ends(tokens)))
    return prompts


def make(seed: int, name: str, changes: dict, dtype: torch.dtype, shard: str, tokenizer: Tokenizer) -> None:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    make_model(seed, changes).to(dtype).save_pretrained(folder, max_shard_size=shard)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)

    # Read back from disk: rounded to the type it is stored in, then computed in F32.
    load = {"dtype": torch.float32}
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **load).eval()
    other = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", **load).eval()
    expected = expected_of(model, other, prompts_of(tokenizer, seed, name in ALL_POSITIONS))
    difference = expected["eager_and_sdpa_differ_by"]
    (folder / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    size = sum(file.stat().st_size for file in folder.iterdir())
    margins = ", ".join(f"{prompt['margin']:.4f}" for prompt in expected["prompts"])
    distinct = [len(set(prompt["greedy"])) for prompt in expected["prompts"]]
    print(f"{name}: seed {seed}, {size} bytes, implementations differ by {difference:.1e}, margins {margins}, distinct {distinct}")


def main() -> None:
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, tokenizers {tokenizers.__version__}")
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    transformers.logging.disable_progress_bar()
    wanted = sys.argv[1:] or [name for name, *_ in CHECKPOINTS]
    for name, changes, dtype, shard in (checkpoint for checkpoint in CHECKPOINTS if checkpoint[0] in wanted):
        for seed in itertools.count(1):
            try:
                make(seed, name, changes, dtype, shard, tokenizer)
                break
            except TooClose as close:
                print(f"{name}: seed {seed} leads by {close} only")


if __name__ == "__main__":
    main()
