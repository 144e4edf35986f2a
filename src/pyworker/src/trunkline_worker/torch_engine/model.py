"""The forward pass of the Llama family over rows of tokens, whatever sequences they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import LlamaConfig
from .weights import Layer, Weights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Takes a layer, and queries, keys and values of all rows; writes KV, and returns the attention of the rows."""


@dataclass
class Rows:
    """Input of a forward pass."""

    tokens: Tensor
    positions: Tensor
    sampled: Tensor
    """Rows whose logits are wanted."""


class Llama:
    """A model of the Llama family."""

    def __init__(self, config: LlamaConfig, weights: Weights, max_context: int) -> None:
        self.config = config
        self.weights = weights
        device = weights.embedding.device
        frequencies = torch.tensor(config.rope.frequencies(config.head_dim), dtype=torch.float32)
        angles = torch.arange(max_context + 1, dtype=torch.float32)[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        self._cos = angles.cos().to(device=device, dtype=weights.embedding.dtype)
        self._sin = angles.sin().to(device=device, dtype=weights.embedding.dtype)

    def forward(self, rows: Rows, attend: Attend) -> tuple[Tensor, Tensor]:
        """Returns the logits of the sampled rows, in f32, and all rows after the last layer."""
        x = self.layers(self.embed(rows), rows, attend)
        return self.logits(x, rows), x

    def embed(self, rows: Rows) -> Tensor:
        """Returns the embeddings of the rows."""
        return F.embedding(rows.tokens, self.weights.embedding)

    def layers(self, x: Tensor, rows: Rows, attend: Attend) -> Tensor:
        """Returns the rows after the layers that these weights have."""
        cos, sin = self._cos[rows.positions][:, None], self._sin[rows.positions][:, None]
        for i, layer in enumerate(self.weights.layers):
            x = x + self._attention(i, layer, self._norm(x, layer.norm), cos, sin, attend)
            gate, up = F.linear(self._norm(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)
        return x

    def logits(self, x: Tensor, rows: Rows) -> Tensor:
        """Returns the logits of the sampled rows, in f32, from the rows after the last layer."""
        return self.head(self.last(x, rows))

    def last(self, x: Tensor, rows: Rows) -> Tensor:
        """Returns the sampled rows after the last norm."""
        return self._norm(x[rows.sampled], self.weights.norm)

    def head(self, x: Tensor) -> Tensor:
        """Returns the logits of rows after the last norm, in f32."""
        return F.linear(x, self.weights.head).float()

    def _attention(self, i: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        config = self.config
        joined = F.linear(x, layer.qkv, layer.qkv_bias).view(len(x), -1, config.head_dim)
        q, k, v = joined.split([config.n_heads, config.n_kv_heads, config.n_kv_heads], 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        q, k = q * cos + _turned(q) * sin, k * cos + _turned(k) * sin
        out = attend(i, q, k, v)
        return F.linear(out.reshape(len(x), -1), layer.out, layer.out_bias)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.norm_eps)


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)
