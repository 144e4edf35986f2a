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
from ..results import Fault, Logprob
from ..slots import Batch
from ..structures import Allowed
from .uploads import upload

LEAST = torch.finfo(torch.float32).min
"""Lowest log probability."""
DRAWN = 1 << 23
"""Elements of logits drawn from at once, at most: sorting and sums in f64 take about 40 bytes for each."""


def sample(
    logits: Tensor,
    batch: Batch,
    seen: Tensor | None,
    generated: dict[int, Tensor] | None = None,
    allowed: Allowed | None = None,
) -> Tensor:
    """Returns a token for each sampling sequence of a batch, on the device of `logits` [sequence, vocabulary].

    `seen` has `True` for tokens that are in the sequence, for sequences with a repetition penalty. `generated` has the generated
    tokens of sequences with a frequency or presence penalty, by their number among the sampling ones. `allowed` has the tokens
    that may be next in sequences with a structure.
    """
    table, slots = batch.table, batch.slots[batch.sample]
    temperature, penalty = table.temperature[slots], table.penalty[slots]
    if allowed is not None:
        logits = _masked(logits, allowed)
    logits = _biased(logits, batch, slots)
    if seen is not None:
        factor = _on(penalty, logits)[:, None]
        changed = torch.where(logits > 0, logits / factor, logits * factor)
        # However large the penalty, a token is not left out.
        changed = torch.where(logits > -torch.inf, changed.clamp_min(torch.finfo(logits.dtype).min), changed)
        logits = torch.where(seen, changed, logits)
    if generated:
        logits = _penalised(logits, batch, slots, generated)
    picked = logits.argmax(-1)
    hot = np.flatnonzero((temperature > 0) & (table.top_k[slots] != 1))
    if len(hot) == 0:
        return picked
    numbers = draws(table.seed[slots[hot]], batch.n_generated[batch.sample][hot])
    # Where all tokens stay, they are in the order of their ids, whatever `top_k` says: a draw finds the token that it finds on
    # the embedded worker.
    top_k = table.top_k[slots[hot]]
    truncated = ((top_k > 0) & (top_k < logits.shape[1])) | (table.top_p[slots[hot]] < 1)
    most = max(1, DRAWN // logits.shape[1])
    for kind in (hot[~truncated], hot[truncated]):
        for part in (kind[i : i + most] for i in range(0, len(kind), most)):
            rows = _on(part, logits)
            number = _on(numbers[np.isin(hot, part)], logits)
            picked[rows] = _draw(logits[rows], batch, slots[part], number, sort=bool(truncated[hot == part[0]][0]))
    return picked


def _masked(logits: Tensor, allowed: Allowed) -> Tensor:
    """Returns the logits with minus infinity for tokens that would leave the structure of the answer."""
    rows, packed = _on(allowed.rows, logits), _on(allowed.bits, logits)
    bits = _on(np.array([1 << n for n in range(8)], np.uint8), logits)
    outside = (packed[:, :, None] & bits == 0).flatten(1)[:, : logits.shape[1]]
    return logits.index_copy(0, rows, logits[rows].masked_fill_(outside, -torch.inf))


def _biased(logits: Tensor, batch: Batch, slots: npt.NDArray[np.int32]) -> Tensor:
    """Returns the logits with the biases of requests that have some; log probabilities are those of the logits without."""
    bias = batch.table.bias
    biases = [(row, token, value) for row, slot in enumerate(slots.tolist()) for token, value in bias.get(slot, {}).items()]
    if not biases:
        return logits
    rows, tokens, values = (np.array(column) for column in zip(*biases, strict=True))
    places = (_on(rows, logits), _on(tokens, logits))
    return logits.index_put(places, _on(values.astype(np.float32), logits), accumulate=True)


def _penalised(logits: Tensor, batch: Batch, slots: npt.NDArray[np.int32], generated: dict[int, Tensor]) -> Tensor:
    """Returns the logits with frequency and presence penalties; counts are whole, so that their order changes nothing."""
    at = np.array(list(generated))
    counts = logits.new_zeros(len(at), logits.shape[1])
    for row, tokens in zip(counts, generated.values(), strict=True):
        row.index_put_((tokens,), torch.ones_like(tokens, dtype=row.dtype), accumulate=True)
    frequency, presence = (_on(of[slots[at]], logits)[:, None] for of in (batch.table.frequency, batch.table.presence))
    rows = _on(at, logits)
    changed = logits[rows] - counts * frequency - (counts > 0) * presence
    return logits.index_copy(0, rows, changed)


def _draw(logits: Tensor, batch: Batch, slots: npt.NDArray[np.int32], number: Tensor, sort: bool) -> Tensor:
    table = batch.table
    # `masked_fill` takes a number as it is; `torch.where` would copy it to the device and wait for that.
    maximum = logits.max(-1, keepdim=True).values
    # Shares of the most likely token's probability, whose own is 1 however small the temperature.
    shares = torch.exp((logits - maximum) / _on(table.temperature[slots], logits)[:, None])
    shares.masked_fill_(logits == maximum, 1)
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
    # Of logits that are not numbers no share is above 0, and an index below 0 would end the CUDA context.
    at = torch.minimum(at, last.max(-1).values - 1).clamp_min(0)
    return at if ids is None else ids.gather(-1, at[:, None])[:, 0]


def unfit(rows: Tensor) -> Tensor:
    """Returns `True` for each row with a number that is NaN or infinite: the weights, or the KV behind it, are wrong."""
    # A sum of finite numbers of 32 bits is finite in 64 bits.
    return ~rows.sum(-1, dtype=torch.float64).isfinite()


def failed(rows: Tensor, logits: Tensor, batch: Batch, allowed: Allowed | None = None) -> dict[int, Fault]:
    """Returns the sequences of a batch that fail, given what `unfit` found, on the host, in all rows and in those of logits.

    A sequence whose structure cannot go on fails, too.
    """
    firsts = np.cumsum(batch.n_tokens) - batch.n_tokens
    bad = np.logical_or.reduceat(rows.numpy(), firsts) if len(rows) else np.zeros(len(batch), bool)
    bad[batch.sample] |= logits.numpy()
    stuck = dict.fromkeys(allowed.stuck if allowed else [], Fault.UNSUPPORTED)
    return stuck | dict.fromkeys(np.flatnonzero(bad).tolist(), Fault.NOT_FINITE)


@dataclass
class Ranked:
    """Log probabilities of sampled tokens and of the most likely ones, on the device or on the host."""

    chosen: Tensor
    values: Tensor
    ids: Tensor
    wanted: dict[int, int]
    """Most likely tokens to report, for each sequence that asked, by its index in the batch."""

    def moved(self, move: Callable[[Tensor], Tensor]) -> Ranked:
        """Returns these log probabilities with `move` applied to each tensor."""
        return Ranked(move(self.chosen), move(self.values), move(self.ids), self.wanted)

    def entries(self, faults: dict[int, Fault]) -> list[Logprob]:
        """Returns the log probabilities to report: none of sequences that failed."""
        chosen, values, ids = self.chosen.tolist(), self.values.tolist(), self.ids.tolist()
        rows = enumerate(self.wanted.items())
        return [Logprob(chosen[row], ids[row][:n], values[row][:n]) for row, (i, n) in rows if i not in faults]


def log_probabilities(logits: Tensor, picked: Tensor, batch: Batch) -> Ranked | None:
    """Returns log probabilities for the sequences that asked for them, if any, from the model's own logits."""
    wanted = batch.logprobs[batch.sample]
    rows = np.flatnonzero(wanted >= 0)
    if len(rows) == 0:
        return None
    most, at_once = int(wanted[rows].max()), max(1, DRAWN // logits.shape[1])
    parts = [_ranked(logits, picked, rows[i : i + at_once], most) for i in range(0, len(rows), at_once)]
    chosen, values, ids = (torch.cat(part) for part in zip(*parts, strict=True))
    sampling = np.flatnonzero(batch.sample)[rows]
    return Ranked(chosen, values, ids, dict(zip(sampling.tolist(), wanted[rows].tolist(), strict=True)))


def _ranked(logits: Tensor, picked: Tensor, rows: npt.NDArray[np.intp], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the log probability of the sampled token of each row, and the most likely ones with their tokens."""
    at = _on(rows, logits)
    logits = logits[at]
    total = logits.double().logsumexp(-1, keepdim=True)
    # Stable: of equal tokens the lower id comes first. A copy, so that the rest of the sorted rows is freed.
    ranked = logits.sort(dim=-1, descending=True, stable=True).indices[:, :most].clone()
    # Finite logits can lie further apart than the numbers of 32 bits reach.
    chosen, values = ((logits.gather(-1, ids).double() - total).float().clamp_min(LEAST) for ids in (picked[at][:, None], ranked))
    return chosen[:, 0], values, ranked


def _on(values: npt.NDArray[np.generic], like: Tensor) -> Tensor:
    return upload(values, like.device)
