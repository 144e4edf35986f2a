"""A toy engine without a model: the KV of a position is its token and its place, and each token follows from all KV before it.

So any lost, stale or misplaced block shows as a wrong token. It needs nothing but numpy, and is the shortest
example of an engine.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from .engine import Engine
from .facts import Abilities, KvFacts, ModelFacts, Settings
from .flags import LOCK_STEP, checked_kv_tokens
from .pipeline import Pipeline, Stage, StageBatch
from .results import Result, StepError
from .slots import HOLE, Batch

VOCABULARY = 512
MAX_CONTEXT = 8192

Places = npt.NDArray[np.int64]


def next_token(tokens: Places, places: Places | None = None) -> int:
    """Returns the token that the toy model says after `tokens`, whose KV was read with these places."""
    places = np.arange(len(tokens), dtype=np.int64) if places is None else places
    return int(((tokens + 1) * ((places + 1) * 7_919 % 10_007)).sum() % (VOCABULARY - 8)) + 4


class ToyEngine(Engine):
    """Runs the toy model."""

    flags = (
        *("--model-name", "--revision", "--block-size", "--kv-tokens", "--max-context", "--max-sequences", "--max-tokens"),
        *("--pipeline-parallel", *LOCK_STEP, "--shared-memory"),
    )
    abilities = Abilities(partial_writes=True, in_step_hits=True)
    program = "toy"

    def __init__(self, tokens: int = 4096) -> None:
        self.model = ModelFacts(
            name="toy",
            revision="1",
            vocab_size=VOCABULARY,
            max_context=MAX_CONTEXT,
            eos_token_ids=(2,),
            n_layers=1,
            hidden_size=1,
            n_heads=1,
            n_kv_heads=1,
            head_dim=1,
            kv_dtype="f32",
            kv_bytes_per_token=8,
        )
        self.kv = KvFacts(block_sizes=(16, 32, 8), tokens=tokens, block_io=True)
        self._kv = np.zeros((0, 2, 16), np.float32)

    @classmethod
    def build(cls, args: argparse.Namespace) -> Engine:
        """Returns the engine that the command line's arguments ask for.

        Raises:
            ValueError: they leave no room for a block.
        """
        one, n = cls(), args.pipeline_parallel
        sizes = (args.block_size,) if args.block_size else one.kv.block_sizes
        tokens = checked_kv_tokens(args.kv_tokens or one.kv.tokens, sizes[0])
        made = staged(tokens, n) if n > 1 else one
        made.kv = replace(made.kv, block_sizes=sizes, tokens=tokens)
        made.model = replace(
            made.model,
            name=args.model_name or made.model.name,
            revision=made.model.revision if args.revision is None else args.revision,
            max_context=min(args.max_context or MAX_CONTEXT, MAX_CONTEXT),
        )
        made.abilities = replace(made.abilities, max_sequences=args.max_sequences, max_tokens=args.max_tokens)
        return made

    def begin(self, settings: Settings) -> None:
        """Prepares blocks."""
        self._kv = np.full((settings.blocks, 2, settings.block_size), -1, np.float32)

    def reset(self) -> None:
        """Fills all blocks with nonsense."""
        self._kv[:] = -1

    def run(self, batch: Batch) -> Result:
        """Runs a batch: writes KV, then samples from the KV read through the block tables."""
        return Result([token for i in range(len(batch)) if (token := self._run(batch, i)) is not None])

    def _run(self, batch: Batch, i: int) -> int | None:
        """Runs one sequence, and returns the token after it if one is to be sampled."""
        size = self._kv.shape[2]
        places = np.arange(batch.ends[i])
        table = batch.table.tables[0, batch.slots[i]]
        new = places[max(batch.computed[i], batch.kv_write_from[i]) :]
        blocks = table[new // size]
        if (blocks == HOLE).any():
            raise StepError(f"slot {batch.slots[i]}: a token is run in a place without a block")
        self._kv[blocks, 0, new % size] = batch.tokens_of(i)[new - batch.computed[i]]
        self._kv[blocks, 1, new % size] = new
        if not batch.sample[i]:
            return None
        read = self._kv[table[places // size], :, places % size].astype(np.int64)
        return next_token(read[:, 0], read[:, 1])

    def read_block(self, block: int) -> bytes:
        """Returns the bytes of a block."""
        return bytes(self._kv[block].astype("<f4").tobytes())

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces a block."""
        self._kv[block] = np.frombuffer(data, "<f4").reshape(self._kv.shape[1:])


class ToyStage(Stage):
    """A layer of the toy model in a process of its own. The last one says a token if all layers agree on it, else the token 3."""

    def __init__(self, is_last: bool) -> None:
        self._layer = ToyEngine()
        self._is_last = is_last

    def begin(self, settings: Settings) -> None:
        """Prepares blocks."""
        self._layer.begin(settings)

    def run(self, batch: StageBatch, before: list[list[int]] | None) -> Result | list[list[int]]:
        """Runs the layer."""
        found = [*(before or []), self._layer.run(batch).tokens]
        if not self._is_last:
            return found
        return Result([said[0] if len(set(said)) == 1 else 3 for said in zip(*found, strict=True)])

    def read_block(self, block: int) -> bytes:
        """Returns the bytes of a block in this layer."""
        return self._layer.read_block(block)

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces a block in this layer."""
        self._layer.write_block(block, data)


def staged(tokens: int, n: int) -> Pipeline:
    """Returns the toy model with `n` layers, each in a process of its own."""
    one = ToyEngine(tokens)
    model = replace(one.model, n_layers=n, kv_bytes_per_token=8 * n)
    stages = [(f"stage {i}", partial(ToyStage, i == n - 1)) for i in range(n)]
    return Pipeline("toy", model, one.kv, one.abilities, stages, [8] * n)
