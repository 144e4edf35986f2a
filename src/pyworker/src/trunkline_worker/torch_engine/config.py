"""The shape of a model of the Llama family, read from a Hugging Face config."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

ACTIVATIONS = ("silu", "swish")
"""Names of the activation `x * sigmoid(x)`."""


@dataclass(frozen=True)
class Family:
    """Defaults of keys that a config lacks: those of the family's class in Hugging Face transformers."""

    name: str
    max_context: int
    n_kv_heads: int | None = None
    """None: as many as query heads."""
    head_dim: int | None = None
    """None: the hidden size divided by the number of heads."""


FAMILIES = {
    "LlamaForCausalLM": Family("llama", 2048),
    "MistralForCausalLM": Family("mistral", 131_072, n_kv_heads=8),
    "Qwen2ForCausalLM": Family("qwen2", 32_768, n_kv_heads=32),
    "Qwen3ForCausalLM": Family("qwen3", 32_768, n_kv_heads=32, head_dim=128),
}


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: the base, and how frequencies are scaled."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def frequencies(self, dim: int) -> list[float]:
        """Returns the angle of one position for each pair of elements of a head of `dim` elements."""
        plain = [self.theta ** (-2 * i / dim) for i in range(dim // 2)]
        if self.kind == "linear":
            return [f / self.factor for f in plain]
        if self.kind != "llama3":
            return plain

        def scaled(frequency: float) -> float:
            # Long waves are stretched, short ones kept, and between them is a straight line.
            turns = self.original * frequency / (2 * math.pi)
            kept = min(1.0, max(0.0, (turns - self.low) / (self.high - self.low)))
            return (1 - kept) * frequency / self.factor + kept * frequency

        return [scaled(f) for f in plain]


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and variants of a model."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_context: int
    norm_eps: float
    rope: Rope
    tied: bool
    dtype: str
    window: int | None = None
    """Positions that some layer attends to, if it does not attend to all."""


def parse(config: dict[str, Any]) -> LlamaConfig:
    """Returns the shape that a config describes.

    Raises:
        ValueError: the model is of another family, or has a part that this engine lacks.
    """
    names = config.get("architectures") or ["none"]
    family = FAMILIES.get(names[0])
    if family is None:
        raise ValueError(f"--engine torch runs {', '.join(FAMILIES)}; this is {names[0]} (try --engine vllm)")
    if config.get("quantization_config"):
        raise ValueError("--engine torch runs no quantised weights (try --engine vllm)")
    if config.get("hidden_act", "silu") not in ACTIVATIONS:
        raise ValueError(f"--engine torch has no activation {config['hidden_act']!r}")
    heads, hidden, layers = (_count(config, name) for name in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    return LlamaConfig(
        family=family.name,
        vocab_size=_count(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_count(config, "intermediate_size"),
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=int(config.get("num_key_value_heads", family.n_kv_heads) or heads),
        head_dim=int(config.get("head_dim") or family.head_dim or hidden // heads),
        max_context=int(config.get("max_position_embeddings") or family.max_context),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config),
        tied=bool(config.get("tie_word_embeddings", False)),
        dtype=_dtype(config),
        window=_window(config, family.name, layers),
    )


def _count(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {name} is {value}; it must be a number of at least 1")
    return value


def _window(config: dict[str, Any], family: str, layers: int) -> int | None:
    """Returns the window of the layers that have one, by the rules of the family's class in transformers."""
    if family == "mistral":
        # A config without the key has the default of the class; null is no window.
        window, windowed = config.get("sliding_window", 4096), True
    elif family == "llama" or not config.get("use_sliding_window"):
        return None
    elif config.get("layer_types"):
        window, windowed = config.get("sliding_window", 4096), "sliding_attention" in config["layer_types"]
    else:
        window, windowed = config.get("sliding_window", 4096), int(config.get("max_window_layers", 28)) < layers
    return int(window) if window and windowed else None


def _rope(config: dict[str, Any]) -> Rope:
    # Newer configs keep all parameters in rope_parameters, older ones the base outside of rope_scaling.
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for partial in (config.get("partial_rotary_factor"), found.get("partial_rotary_factor")):
        if partial not in (None, 1, 1.0):
            raise ValueError(f"--engine torch rotates whole heads, and partial_rotary_factor is {partial} (try --engine vllm)")
    theta = float(found.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, float(found["factor"]))
    if kind == "llama3":
        return Rope(
            theta,
            kind,
            float(found["factor"]),
            float(found["low_freq_factor"]),
            float(found["high_freq_factor"]),
            int(found["original_max_position_embeddings"]),
        )
    raise ValueError(f"--engine torch has no rope scaling {kind!r} (try --engine vllm)")


def _dtype(config: dict[str, Any]) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}.get(name.removeprefix("torch."), "f32")
