"""Places of the KV of single heads, and the blocks that sequences hold in their groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..facts import ModelFacts
from ..slots import HOLE

Numbers = npt.NDArray[np.int64]


@dataclass
class HeadPlaces:
    """Where the KV of each head is, [layer, KV head]."""

    group: Numbers
    row: Numbers
    """Number of the first block of the head's keys, if the blocks of all keys and values are counted in the order of memory."""
    scored: Numbers
    """Number of the head's group among those with scores; -1 without. If no group has scores, all heads count as one."""
    weight: npt.NDArray[np.float64]
    """Weight of the head in scores of all groups together."""

    @classmethod
    def of(cls, model: ModelFacts, blocks: int) -> HeadPlaces:
        """Returns the places of a model whose groups have heads."""
        n = model.n_layers * model.n_kv_heads
        group, row, scored = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1)
        weight = np.zeros(n)
        weighs = any(g.weight for g in model.groups)
        if not any(g.scored for g in model.groups):
            scored[:], weight[:] = 0, 1.0
        n_scored = 0
        for g, of in enumerate(model.groups):
            heads = list(of.heads)
            group[heads], row[heads] = g, 2 * blocks * np.arange(len(heads))
            if of.scored:
                scored[heads], weight[heads] = n_scored, (of.weight / 1000) ** 2 if weighs else 1.0
                n_scored += 1
        shape = model.n_layers, model.n_kv_heads
        return cls(group.reshape(shape), row.reshape(shape), scored.reshape(shape), weight.reshape(shape))


@dataclass
class Held:
    """The blocks that sequences hold in each layer group, [group, sequence, entry]: held ones first, in order."""

    blocks: Numbers
    entries: Numbers
    """Places in the block table; beyond `counts` there are none."""
    counts: Numbers
    """Number of blocks, [group, sequence]."""
    lengths: Numbers
    """Number of positions, [group, sequence]."""

    @classmethod
    def of(cls, tables: npt.NDArray[np.int32], ends: npt.NDArray[np.int32], size: int) -> Held:
        """Returns what tables [group, sequence, entry] hold below the ends of their sequences."""
        filled = -(-ends // size)
        width = int(filled.max())
        tables = tables[:, :, :width]
        held = (tables != HOLE) & (np.arange(width) < filled[:, None])
        counts = held.sum(-1)
        last = np.take_along_axis(held, (filled - 1)[None, :, None].repeat(len(tables), 0), 2)[..., 0]
        lengths = counts * size - last * (filled * size - ends)
        most = int(counts.max())
        if bool((counts == most).all()) and most == width:
            entries = np.broadcast_to(np.arange(width), tables.shape)
            return cls(tables.astype(np.int64), entries, counts, lengths)
        blocks, entries = (np.zeros((*counts.shape, most), np.int64) for _ in range(2))
        group, sequence, entry = np.nonzero(held)
        starts = np.cumsum(counts.reshape(-1)) - counts.reshape(-1)
        at = np.arange(len(entry)) - np.repeat(starts, counts.reshape(-1))
        blocks[group, sequence, at] = tables[group, sequence, entry]
        entries[group, sequence, at] = entry
        return cls(blocks, entries, counts, lengths)
