"""Weights of a model of the Llama family, from safetensors or drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from .config import LlamaConfig

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
    down: Tensor


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
        ValueError: there are no such files, or a tensor is missing.
    """
    places: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            places.update(dict.fromkeys(file.keys(), path))
    if not places:
        raise ValueError(f"{folder}: no *.safetensors")

    def read(name: str) -> Tensor:
        if name not in places:
            raise ValueError(f"{folder}: no tensor {name}")
        with safe_open(places[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor.to(device=device, dtype=dtype)

    if layers is None:
        return _assemble(config, read, places.__contains__, range(config.n_layers))
    # The first stage embeds tokens, the last one has the head; an empty tensor stands for what a stage lacks.
    last = layers.stop == config.n_layers
    needed = {
        "model.embed_tokens.weight": layers.start == 0 or (last and config.tied),
        "model.norm.weight": last,
        "lm_head.weight": last,
    }
    none = torch.empty((0, config.hidden_size), dtype=dtype, device=device)
    return _assemble(config, lambda name: read(name) if needed.get(name, True) else none, places.__contains__, layers)


def random(config: LlamaConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Weights:
    """Draws weights at random, for measurements and tests."""
    generator = torch.Generator(device).manual_seed(seed)
    h, d = config.hidden_size, config.head_dim
    shapes = {
        "q_proj.weight": (config.n_heads * d, h),
        "k_proj.weight": (config.n_kv_heads * d, h),
        "v_proj.weight": (config.n_kv_heads * d, h),
        "o_proj.weight": (h, config.n_heads * d),
        "gate_proj.weight": (config.intermediate_size, h),
        "up_proj.weight": (config.intermediate_size, h),
        "down_proj.weight": (h, config.intermediate_size),
        "embed_tokens.weight": (config.vocab_size, h),
        "lm_head.weight": (config.vocab_size, h),
    }

    def draw(name: str) -> Tensor:
        for end, shape in shapes.items():
            if name.endswith(end):
                noise = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
                return (noise * shape[1] ** -0.5).to(dtype)
        return torch.ones(d if name.endswith(("q_norm.weight", "k_norm.weight")) else h, dtype=dtype, device=device)

    return _assemble(
        config, draw, lambda name: "norm" in name and (config.family == "qwen3" or "_norm" not in name), range(config.n_layers)
    )


def _assemble(config: LlamaConfig, read: Load, has: Callable[[str], bool], numbers: range) -> Weights:
    layers = []
    for i in numbers:
        at = f"model.layers.{i}."

        def optional(name: str, at: str = at) -> Tensor | None:
            return read(at + name) if has(at + name) else None

        def joined(names: list[str], kind: str, at: str = at) -> Tensor:
            return torch.cat([read(f"{at}{name}.{kind}") for name in names])

        qkv = [f"self_attn.{x}_proj" for x in "qkv"]
        layers.append(
            Layer(
                norm=read(at + "input_layernorm.weight"),
                qkv=joined(qkv, "weight"),
                qkv_bias=joined(qkv, "bias") if has(at + "self_attn.q_proj.bias") else None,
                q_norm=optional("self_attn.q_norm.weight"),
                k_norm=optional("self_attn.k_norm.weight"),
                out=read(at + "self_attn.o_proj.weight"),
                out_bias=optional("self_attn.o_proj.bias"),
                mlp_norm=read(at + "post_attention_layernorm.weight"),
                gate_up=joined(["mlp.gate_proj", "mlp.up_proj"], "weight"),
                down=read(at + "mlp.down_proj.weight"),
            )
        )
    embedding = read("model.embed_tokens.weight")
    head = embedding if config.tied else read("lm_head.weight")
    return Weights(embedding=embedding, layers=layers, norm=read("model.norm.weight"), head=head)
