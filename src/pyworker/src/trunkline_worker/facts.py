"""What a worker announces to a server, and what the server chooses from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerGroup:
    """Layers, or single KV heads, that share block tables. The first group of a model keeps all positions."""

    layers: tuple[int, ...]
    window: int = 0
    scored: bool = False
    heads: tuple[int, ...] = ()
    """KV heads, `layer * n_kv_heads + head`; if one group has heads, all have heads and none has layers."""
    weight: int = 0
    """Tokens kept under H2O, as in `WorkerLayerGroup`."""


@dataclass(frozen=True)
class ModelFacts:
    """Name and shape of a model, as announced to the server."""

    name: str
    revision: str
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    kv_dtype: str
    kv_bytes_per_token: int
    groups: tuple[LayerGroup, ...] = ()

    @property
    def n_groups(self) -> int:
        """Number of layer groups, at least 1."""
        return max(1, len(self.groups))

    @property
    def has_head_groups(self) -> bool:
        """`True` if groups have single KV heads."""
        return any(group.heads for group in self.groups)

    @property
    def block_shape(self) -> tuple[int, int]:
        """Layers of a block, and KV heads of each; in groups of single heads each counts as a layer."""
        largest = max((len(group.layers) + len(group.heads) for group in self.groups), default=self.n_layers)
        return largest, 1 if self.has_head_groups else self.n_kv_heads


@dataclass(frozen=True)
class KvFacts:
    """KV blocks of an engine: sizes in tokens, preferred first, and the room in tokens for all blocks together."""

    block_sizes: tuple[int, ...]
    tokens: int
    block_io: bool = False
    """Blocks can be copied, by `read_block` and `write_block`."""


@dataclass(frozen=True)
class Abilities:
    """Limits and abilities of an engine, as in `WorkerAbilities` of the protocol."""

    max_sequences: int = 256
    max_tokens: int = 2048
    steps_in_flight: int = 2
    max_logprobs: int = 0
    partial_writes: bool = False
    scores: bool = False
    seeded_sampling: bool = False
    penalties: bool = False
    pipeline_stages: int = 1
    in_step_hits: bool = False
    scores_by_group: bool = False
    grammars: bool = False


@dataclass(frozen=True)
class Settings:
    """Settings that the server chose, from its Welcome."""

    block_size: int
    blocks: int
    steps_in_flight: int


@dataclass(frozen=True)
class LockStep:
    """Place of a worker in a group that runs each step of the model together."""

    group: str
    size: int
    rank: int
