"""Picks tokens. The n-th token of a request follows from the model's logits and (seed, n) alone.

The arithmetic is that of Trunkline's embedded worker: one number is drawn for each token, the n-th of a SplitMix64 stream, and
the token is the one at which the running sum of probabilities passes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..draws import draws
from ..engine import Logprob, StepError
from ..slots import Batch
from .uploads import upload

DRAWN = 1 << 23
"""Elements of logits drawn from at once, at most: sorting and sums in f64 take about 40 bytes for each."""


def sample(logits: Tensor, batch: Batch, seen: Tensor | None) -> Tensor:
    """Returns a token for each sampling sequence of a batch, on the device of `logits` [sequence, vocabulary].

    `seen` has `True` for tokens that are in the sequence, for sequences with a repetition penalty.
    """
    table, slots = batch.table, batch.slots[batch.sample]
    temperature, penalty = table.temperature[slots], table.penalty[slots]
    if seen is not None:
        factor = _on(penalty, logits)[:, None]
        logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
    picked = logits.argmax(-1)
    hot = np.flatnonzero((temperature > 0) & (table.top_k[slots] != 1))
    if len(hot) == 0:
        return picked
    numbers = draws(table.seed[slots[hot]], batch.n_generated[batch.sample][hot])
    truncated = (table.top_k[slots[hot]] > 0) | (table.top_p[slots[hot]] < 1)
    most = max(1, DRAWN // logits.shape[1])
    for kind in (hot[~truncated], hot[truncated]):
        for part in (kind[i : i + most] for i in range(0, len(kind), most)):
            rows = _on(part, logits)
            number = _on(numbers[np.isin(hot, part)], logits)
            picked[rows] = _draw(logits[rows], batch, slots[part], number, sort=bool(truncated[hot == part[0]][0]))
    return picked


def _draw(logits: Tensor, batch: Batch, slots: npt.NDArray[np.int32], number: Tensor, sort: bool) -> Tensor:
    table = batch.table
    # `masked_fill` takes a number as it is; `torch.where` would copy it to the device and wait for that.
    maximum = logits.max(-1, keepdim=True).values
    # Shares of the most likely token's probability.
    shares = torch.exp((logits - maximum) / _on(table.temperature[slots], logits)[:, None])
    ids: Tensor | None = None
    if sort:
        # Stable: of equal shares the lower id comes first.
        shares, ids = shares.sort(dim=-1, descending=True, stable=True)
        k = np.where(table.top_k[slots] == 0, shares.shape[1], table.top_k[slots])
        places = torch.arange(shares.shape[1], device=shares.device)
        shares = shares.masked_fill(places >= _on(k, logits)[:, None], 0)
        before = shares.double().cumsum(-1)
        goal = before[:, -1:] * _on(table.top_p[slots].astype(np.float64), logits)[:, None]
        # The smallest set whose sum reaches the goal: tokens before which the sum is below it.
        shares = shares.masked_fill((before - shares.double() >= goal) & (places > 0), 0)
    shares = shares.masked_fill(shares < _on(table.min_p[slots], logits)[:, None], 0)
    sums = shares.double().cumsum(-1)
    at = (sums <= sums[:, -1:] * number[:, None]).sum(-1)
    last = (shares > 0).long() * torch.arange(1, shares.shape[1] + 1, device=shares.device)
    # Of logits that are no numbers no share is above 0, and an index below 0 would end the CUDA context.
    at = torch.minimum(at, last.max(-1).values - 1).clamp_min(0)
    return at if ids is None else ids.gather(-1, at[:, None])[:, 0]


def unfit(logits: Tensor) -> Tensor:
    """Returns `True` for each row with a logit that is no number or infinite: weights or KV behind it are wrong."""
    # A sum of finite numbers of 32 bits is finite in 64 bits.
    return ~logits.sum(-1, dtype=torch.float64).isfinite()


def check(found: Tensor, batch: Batch) -> None:
    """Checks what `unfit` found, on the host.

    Raises:
        StepError: the logits of a sequence are not finite.
    """
    rows = np.flatnonzero(found.numpy())
    if len(rows):
        request = int(batch.requests[batch.sample][rows[0]])
        reason = "the model computed logits that are not finite (weights trained in bf16 may need --dtype bf16 or f32)"
        raise NotFinite(f"step {batch.id}: {reason}", request)


class NotFinite(StepError):
    """The logits of a request are not finite, and neither may be the KV behind them."""


@dataclass
class Ranked:
    """Log probabilities of sampled tokens and of the most likely ones, on the device or on the host."""

    chosen: Tensor
    values: Tensor
    ids: Tensor
    wanted: list[int]
    """Most likely tokens to report, for each sequence that asked."""

    def moved(self, move: Callable[[Tensor], Tensor]) -> Ranked:
        """Returns these log probabilities with `move` applied to each tensor."""
        return Ranked(move(self.chosen), move(self.values), move(self.ids), self.wanted)

    def entries(self) -> list[Logprob]:
        """Returns the log probabilities to report."""
        chosen, values, ids = self.chosen.tolist(), self.values.tolist(), self.ids.tolist()
        return [Logprob(chosen[i], ids[i][:n], values[i][:n]) for i, n in enumerate(self.wanted)]


def log_probabilities(logits: Tensor, picked: Tensor, batch: Batch) -> Ranked | None:
    """Returns log probabilities for the sequences that asked for them, if any, from the model's own logits."""
    wanted = batch.logprobs[batch.sample]
    rows = np.flatnonzero(wanted >= 0)
    if len(rows) == 0:
        return None
    most, at_once = int(wanted[rows].max()), max(1, DRAWN // logits.shape[1])
    parts = [_ranked(logits, picked, rows[i : i + at_once], most) for i in range(0, len(rows), at_once)]
    chosen, values, ids = (torch.cat(part) for part in zip(*parts, strict=True))
    return Ranked(chosen, values, ids, wanted[rows].tolist())


def _ranked(logits: Tensor, picked: Tensor, rows: npt.NDArray[np.intp], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the log probability of the sampled token of each row, and the most likely ones with their tokens."""
    at = _on(rows, logits)
    logits = logits[at]
    logprobs = logits - logits.double().logsumexp(-1, keepdim=True).float()
    chosen = logprobs.gather(-1, picked[at][:, None])[:, 0]
    # Stable: of equal tokens the lower id comes first. Copies, so that the rest of the sorted rows is freed.
    ranked = logprobs.sort(dim=-1, descending=True, stable=True)
    return chosen, ranked.values[:, :most].clone(), ranked.indices[:, :most].clone()


def _on(values: npt.NDArray[np.generic], like: Tensor) -> Tensor:
    return upload(values, like.device)
