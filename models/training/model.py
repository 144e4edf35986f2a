"""The Llama architecture in PyTorch: RMSNorm, rotary positions, grouped-query attention, SwiGLU, a tied output head.

Names of the parameters are those of Hugging Face checkpoints, so that `export.py` renames nothing.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Standard deviation of the embedding of an untrained model: as much as the layers add, so that tokens are not drowned.
EMBEDDING_STD = 1.0
# Weight of the last norm of an untrained model: the embedding is the output head too, and logits start small.
LAST_NORM = 0.05
# Weight of the constant column in queries and keys that look back: about eight nats between neighboring offsets.
SHARPNESS = 3.0
# Weight of what a head that looks back finds.
LOOKED_BACK = 1.0


@dataclass(frozen=True)
class Shape:
    """Dimensions and constants of the model; the defaults are those of the shipped model."""

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 384
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 4096
    rope_theta: float = 10_000_000.0
    rms_norm_eps: float = 1e-5

    def config(self, bos: int, eos: int) -> dict[str, Any]:
        """Returns the contents of `config.json`."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rope_scaling": None,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "bos_token_id": bos,
            "eos_token_id": eos,
            **asdict(self),
        }


def orthogonal(rows: int, columns: int) -> Tensor:
    """Returns random rows that are orthogonal to each other, of length 1."""
    return torch.linalg.qr(torch.randn(columns, rows)).Q.T


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the two halves of every head by the angles of its position."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Causal attention whose query heads share key and value heads in groups."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor | None = None) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.width).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.width).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.width).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One transformer layer, normalised before each half."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)


class Llama(nn.Module):
    """The whole model; the output head is the embedding."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        angles = torch.arange(shape.max_position_embeddings, dtype=torch.float64)[:, None] * shape.rope_theta**-half
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self.start()

    @property
    def own(self) -> int:
        """Returns the columns of the residual stream that start with the token itself; others start with tokens before it."""
        return self.shape.hidden_size // 2

    @torch.no_grad()
    def start(self) -> None:
        """Sets the weights of an untrained model: what adds to the residual stream starts at zero, but for `look_back`."""
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)
            elif weight.ndim == 2:
                scale = EMBEDDING_STD if "embed" in name else weight.shape[1] ** -0.5
                nn.init.normal_(weight, std=scale)
        embedding = self.model.embed_tokens.weight
        embedding[:, self.own :] *= 0.1
        # All tokens start equally long, or `look_back` would look at the longest.
        embedding[:, 0] = 0
        embedding *= EMBEDDING_STD * self.own**0.5 / embedding.norm(dim=1, keepdim=True)
        embedding[:, 0] = 3 * EMBEDDING_STD
        self.model.norm.weight.fill_(LAST_NORM)
        self.look_back()

    @torch.no_grad()
    def look_back(self) -> None:
        """Lets the heads of the first layer look 1, 2, ... tokens back, one each.

        Copying from the context needs a head that matches the last tokens with those before another one; it forms many times
        as fast if each position already knows the tokens before it. The heads see their own offset through a column of the
        embedding that starts equal for all tokens, and the rotation of the fast pairs.
        """
        attention, width = self.model.layers[0].self_attn, self.shape.head_dim
        half = width // 2
        pairs = torch.arange(half // 2)
        speeds = self.shape.rope_theta ** -(pairs.double() / half)
        # The fastest pairs tell neighbors apart, the others only offsets far away.
        sharpness = torch.where(pairs < 4, SHARPNESS, SHARPNESS / 2)
        # What a head finds goes to columns of its own.
        free = (self.shape.hidden_size - self.own) // self.shape.num_attention_heads
        attention.k_proj.weight.zero_()
        for group in range(self.shape.num_key_value_heads):
            attention.k_proj.weight[group * width + pairs, 0] = sharpness
        for head in range(self.shape.num_attention_heads):
            rows = slice(head * width, (head + 1) * width)
            query = attention.q_proj.weight[rows]
            query.zero_()
            query[pairs, 0] = (sharpness * torch.cos(speeds * (head + 1))).float()
            query[pairs + half, 0] = (-sharpness * torch.sin(speeds * (head + 1))).float()
            attention.o_proj.weight[self.own + head * free : self.own + (head + 1) * free, rows] = LOOKED_BACK * orthogonal(
                free, width
            )

    def forward(self, tokens: Tensor, positions: Tensor | None = None, visible: list[Tensor | None] | None = None) -> Tensor:
        """Returns the logits of the next token at every position; without `positions` they are 0, 1, 2, ...

        `visible` says for each layer which keys a query sees, `[batch, head, query, key]`; `None` is all before it.
        """
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        cos, sin = self.cos[positions], self.sin[positions]
        x = self.model.embed_tokens(tokens)
        for layer, seen in zip(self.model.layers, visible or [None] * len(self.model.layers), strict=True):
            x = layer(x, cos, sin, seen)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)
