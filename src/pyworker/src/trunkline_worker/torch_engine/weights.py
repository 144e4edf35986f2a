"""Weights of a model of the Llama family, from safetensors or drawn at random."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from .config import LlamaConfig

TYPES = (torch.float32, torch.bfloat16, torch.float16)
Load = Callable[[str], Tensor]


@dataclass
class Layer:
    """Weights of one layer; projections that read one input are joined."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass
class Weights:
    """Weights of a model."""

    embedding: Tensor
    layers: list[Layer]
    norm: Tensor
    head: Tensor


def load(folder: Path, config: LlamaConfig, dtype: torch.dtype, device: torch.device, layers: range | None = None) -> Weights:
    """Reads the weights from the safetensors files of a folder, those of some layers alone if `layers` is given.

    Raises:
        ValueError: there are no such files, or a tensor is missing, unknown, or of another shape or type than expected.
    """
    places: dict[str, Path] = {}
    for path in files(folder):
        with safe_open(path, "pt") as file:
            places.update(dict.fromkeys(file.keys(), path))
    expected = shapes(config)
    taken: set[str] = set()

    def read(name: str) -> Tensor:
        if name not in places:
            raise ValueError(f"{folder}: no tensor {name}")
        with safe_open(places[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name)
        shape = _of(expected, name)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{places[name]}: {name} has shape {list(tensor.shape)}, and config.json describes {list(shape)}")
        if tensor.dtype not in TYPES:
            raise ValueError(f"{places[name]}: {name} is of {tensor.dtype}; --engine torch reads f32, bf16 and f16")
        taken.add(name)
        return tensor.to(device=device, dtype=dtype)

    weights = _some(config, read, places.__contains__, layers, dtype, device)
    unknown = sorted(name for name in places.keys() - taken if not _is_left(name, config, layers))
    if unknown:
        raise ValueError(f"{places[unknown[0]]}: --engine torch knows no tensor {unknown[0]} (try --engine vllm)")
    return weights


def files(folder: Path) -> list[Path]:
    """Returns the safetensors files of a folder: those that the index names, or the one of the usual name, or all.

    Raises:
        ValueError: there are none, or one is missing.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.exists():
        found = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
        if not found:
            raise ValueError(f"{folder}: no *.safetensors")
        return found
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: no index of tensors: {type(error).__name__}: {error}") from error
    for name in names:
        if Path(name).name != name or not (folder / name).exists():
            raise ValueError(f"{index}: names {name}, which is not in the folder; download every shard")
    return [folder / name for name in names]


def _is_left(name: str, config: LlamaConfig, layers: range | None) -> bool:
    """Returns `True` for a tensor that is rightly not read: derived from others, or of another stage."""
    if name.endswith("rotary_emb.inv_freq") or name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        return True
    number = re.match(r"model\.layers\.(\d+)\.", name)
    return number is not None and layers is not None and int(number[1]) in range(config.n_layers) and int(number[1]) not in layers


def shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of tensors by the end of their names; the first end that fits counts."""
    h, d = config.hidden_size, config.head_dim
    q, kv, inner = config.n_heads * d, config.n_kv_heads * d, config.intermediate_size
    projections = {
        "q_proj": (q, h),
        "k_proj": (kv, h),
        "v_proj": (kv, h),
        "o_proj": (h, q),
        "gate_proj": (inner, h),
        "up_proj": (inner, h),
        "down_proj": (h, inner),
    }
    found: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in projections.items()}
    found |= {f"{name}.bias": shape[:1] for name, shape in projections.items()}
    found |= {"embed_tokens.weight": (config.vocab_size, h), "lm_head.weight": (config.vocab_size, h)}
    return found | {"q_norm.weight": (d,), "k_norm.weight": (d,), "norm.weight": (h,)}


def _of(shapes: dict[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
    return next(shape for end, shape in shapes.items() if name.endswith(end))


def _some(
    config: LlamaConfig,
    read: Load,
    has: Callable[[str], bool],
    layers: range | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Weights:
    """Reads all weights, or those of some layers with what else their stage needs."""
    if layers is None:
        return _assemble(config, read, has, range(config.n_layers))
    # The first stage embeds tokens, the last one has the head; an empty tensor stands for what a stage lacks.
    last = layers.stop == config.n_layers
    needed = {
        "model.embed_tokens.weight": layers.start == 0 or (last and config.tied),
        "model.norm.weight": last,
        "lm_head.weight": last,
    }
    none = torch.empty((0, config.hidden_size), dtype=dtype, device=device)
    return _assemble(config, lambda name: read(name) if needed.get(name, True) else none, has, layers)


def random(config: LlamaConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Weights:
    """Draws weights at random, for measurements and tests."""
    generator = torch.Generator(device).manual_seed(seed)
    known = shapes(config)

    def draw(name: str) -> Tensor:
        shape = _of(known, name)
        if len(shape) == 1:
            return torch.full(shape, float("norm" in name), dtype=dtype, device=device)
        noise = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        return (noise * shape[1] ** -0.5).to(dtype)

    return _assemble(config, draw, lambda name: False, range(config.n_layers))


def _assemble(config: LlamaConfig, read: Load, has: Callable[[str], bool], numbers: range) -> Weights:
    layers = []
    for i in numbers:
        at = f"model.layers.{i}."

        def optional(name: str, at: str = at) -> Tensor | None:
            return read(at + name) if has(at + name) else None

        def joined(names: list[str], kind: str, at: str = at) -> Tensor:
            return torch.cat([read(f"{at}{name}.{kind}") for name in names])

        qkv, gate_up = [f"self_attn.{x}_proj" for x in "qkv"], ["mlp.gate_proj", "mlp.up_proj"]
        biased = config.family == "qwen2" or has(at + "self_attn.q_proj.bias")
        normed = config.family == "qwen3"
        layers.append(
            Layer(
                norm=read(at + "input_layernorm.weight"),
                qkv=joined(qkv, "weight"),
                qkv_bias=joined(qkv, "bias") if biased else None,
                q_norm=read(at + "self_attn.q_norm.weight") if normed else None,
                k_norm=read(at + "self_attn.k_norm.weight") if normed else None,
                out=read(at + "self_attn.o_proj.weight"),
                out_bias=optional("self_attn.o_proj.bias"),
                mlp_norm=read(at + "post_attention_layernorm.weight"),
                gate_up=joined(gate_up, "weight"),
                gate_up_bias=joined(gate_up, "bias") if has(at + "mlp.gate_proj.bias") else None,
                down=read(at + "mlp.down_proj.weight"),
                down_bias=optional("mlp.down_proj.bias"),
            )
        )
    embedding = read("model.embed_tokens.weight")
    head = embedding if config.tied else read("lm_head.weight")
    return Weights(embedding=embedding, layers=layers, norm=read("model.norm.weight"), head=head)
