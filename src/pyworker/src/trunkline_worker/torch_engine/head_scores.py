"""Scores over layer groups of single KV heads: of each group by itself, or of all together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..slots import Batch
from .head_places import HeadPlaces, Numbers


class HeadScores:
    """Scores of the sequences of a batch that ask for them.

    Each sequence has a list for each group, or one for all; a list has a score for each entry of the block table.
    """

    def __init__(self, batch: Batch, places: HeadPlaces, per_head: int, block_size: int, device: torch.device) -> None:
        asking = batch.scored_rows > 0
        self.use_max = batch.score_max
        self._entries = -(-batch.ends[asking] // block_size)
        self._width = int(self._entries.max())
        self._numbers = np.where(asking, np.cumsum(asking) - 1, -1)
        """For each sequence of the batch its number among those that ask; -1 for others."""
        self.lists: Numbers = places.scored if batch.by_group else np.minimum(places.scored, 0)
        """List of each head, [layer, KV head]; -1 for heads that do not count."""
        self._n_lists = int(self.lists.max()) + 1
        counts = self.lists >= 0
        weights = counts.astype(np.float64) if batch.by_group or not places.weight.any() else places.weight
        sums = np.bincount(self.lists[counts], weights[counts], self._n_lists)
        self.shares = weights / (per_head * sums[np.maximum(self.lists, 0)])
        """Part of one query head in the average of its list, [layer, KV head]."""
        self.nowhere = len(self._entries) * self._n_lists * self._width
        """Place of what does not count."""
        self.total: Tensor | None = torch.zeros(self.nowhere + 1, device=device)

    def first_places(self, sequences: Numbers, lists: Numbers) -> Numbers:
        """Returns the places of the first entries of lists; -1 if the sequence or the head does not count."""
        numbers = self._numbers[sequences]
        found: Numbers = np.where((numbers >= 0) & (lists >= 0), (numbers * self._n_lists + lists) * self._width, -1)
        return found

    def add(self, places: Tensor, values: Tensor) -> None:
        """Adds scores at places of `total`."""
        assert self.total is not None
        places, values = places.reshape(-1), values.reshape(-1)
        if self.use_max:
            self.total.scatter_reduce_(0, places, values, "amax")
        else:
            self.total.index_add_(0, places, values)

    def scores(self) -> list[float]:
        """Returns the scores of each sequence, list by list."""
        assert self.total is not None
        lists = self.total[:-1].view(len(self._entries), self._n_lists, self._width)
        parts = [of[:, :n].reshape(-1) for of, n in zip(lists, self._entries.tolist(), strict=True)]
        found: list[float] = torch.cat(parts).tolist()
        return found
