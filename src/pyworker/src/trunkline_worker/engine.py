"""The interface that engines implement: facts about the model, and one method that runs a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .slots import Batch

Int32s = npt.NDArray[np.int32]


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
    block_io: bool


def checked_kv_tokens(tokens: int, block_size: int) -> int:
    """Returns the room for KV that --kv-tokens asks for, in tokens.

    Raises:
        ValueError: a block does not fit.
    """
    if tokens < block_size:
        raise ValueError(f"--kv-tokens {tokens}: must be at least one block, which has {block_size} tokens")
    return tokens


@dataclass(frozen=True)
class Abilities:
    """Limits and abilities of an engine, as in `WorkerAbilities` of the protocol."""

    max_sequences: int
    max_tokens: int
    steps_in_flight: int = 2
    max_logprobs: int = 0
    partial_writes: bool = False
    scores: bool = False
    seeded_sampling: bool = False
    pipeline_stages: int = 1
    in_step_hits: bool = False
    scores_by_group: bool = False


@dataclass(frozen=True)
class Settings:
    """Settings that the server chose, from its Welcome."""

    block_size: int
    blocks: int
    steps_in_flight: int


@dataclass
class Logprob:
    """Log probability of a sampled token, and the most likely tokens with theirs, most likely first."""

    logprob: float
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


class Fault(IntEnum):
    """Reason for the failure of one sequence of a batch, as in `SequenceFault` of the protocol."""

    NOT_FINITE = 1
    """The model computed NaN or infinity."""
    UNSUPPORTED = 2
    """The engine cannot honour a parameter of the request."""


@dataclass
class Result:
    """Answer of an engine to a batch.

    `tokens` has one sampled token for each sequence with `sample`, in order; any one for a sequence that failed. `logprobs` has
    one entry for each sampling sequence that asked for log probabilities and has not failed. `scores` follows StepDone.scores.
    `faults` has the sequences that failed, by their index in the batch: the others are as good as without them.
    """

    tokens: list[int]
    logprobs: list[Logprob] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)


class StepError(Exception):
    """A step that cannot be run at all: the server hears the reason, and the worker drops every step until the next Reset.

    A failure of one sequence does not fail the step: see `Result.faults`.

    `request` is the request without which the step would have run, if known.
    """

    def __init__(self, reason: str, request: int | None = None) -> None:
        super().__init__(reason)
        self.request = request


@dataclass(frozen=True)
class LockStep:
    """Place of a worker in a group that runs each step of the model together."""

    group: str
    size: int
    rank: int


class EngineLost(Exception):
    """The engine cannot run again, for example after the death of one of its processes. The worker ends."""


class EngineHung(EngineLost):
    """A step or a copy does not end, so nothing of the engine can be waited for."""


class Engine(ABC):
    """Runs a model.

    It is made by a thread that has ended before anything is called. `begin`, `submit`, `run`, and `reset` are called by one
    thread, `read_block` and `write_block` by another one, at any time between the end of `begin` and the next `begin` or
    `reset`. A block that is read or written is in use by no step at that time.
    """

    program: str
    """Name and version of the engine, for logs: "torch 2.13.0"."""
    model: ModelFacts
    kv: KvFacts
    abilities: Abilities
    lock_step: LockStep | None = None
    """The group of a worker that does not run alone."""
    depth: int = 1
    """Batches submitted before the first is waited for, at most. Above 1, `submit` returns before the batch has run."""
    own_samples: bool = False
    """`True` if a batch may hold tokens not known yet (-1), which the engine takes from its own samples."""
    on_lost: Callable[[EngineLost], None] | None = None
    """Called by the engine if it is lost while nothing runs, on any thread."""

    @abstractmethod
    def begin(self, settings: Settings) -> None:
        """Prepares blocks of the size and number that the server chose. Blocks have no content yet."""

    @abstractmethod
    def run(self, batch: Batch) -> Result:
        """Runs a batch in one forward pass.

        Raises:
            StepError: the batch cannot be run.
        """

    def submit(self, batch: Batch) -> Callable[[], Result]:
        """Starts a batch, and returns a function that waits for the result. Batches run in the order of submission.

        The function is called on another thread if `depth` is above 1, and must not read the slots, which later batches change.
        """
        result = self.run(batch)
        return lambda: result

    @abstractmethod
    def reset(self) -> None:
        """Forgets all sequences. The contents of blocks are worthless from now on."""

    def idle(self) -> None:  # noqa: B027
        """Runs a step without sequences, while other workers of the group run a step. Nothing runs when it is called."""

    def forget_slots(self) -> None:  # noqa: B027
        """Forgets all sequences and keeps the contents of blocks, after a broken connection."""

    def read_block(self, block: int) -> bytes:
        """Returns the elements of a block, little-endian, as [layer][keys, values][token][head][dim]."""
        raise NotImplementedError(f"{self.program} cannot read blocks")

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces the contents of a block."""
        raise NotImplementedError(f"{self.program} cannot write blocks")

    def close(self) -> None:  # noqa: B027
        """Ends the engine's processes and frees memory."""
