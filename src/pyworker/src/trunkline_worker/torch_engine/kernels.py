"""Triton kernels for GPUs. Without Triton or without a GPU, `usable` is false and nothing here runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover - Triton comes with PyTorch's CUDA builds alone.
    triton = tl = None

LEAST_SPLIT = 256
"""Positions that one program reads, at least: long sequences are split among several programs."""
MOST_SPLITS = 64
"""Programs that share a sequence and a key/value head, at most: one program merges what they found, in registers."""
PROGRAMS = 4096
"""Programs of a batch, about, beyond which splitting gains nothing: it would only cost memory for what is to be merged."""


def usable(like: Tensor) -> bool:
    """Returns `True` if kernels are there for the device and the width of this tensor; `trial` finds out if they work."""
    return triton is not None and like.is_cuda and like.shape[-1] in (32, 64, 128, 256)


def split_of(positions: int, lanes: int) -> int:
    """Returns the positions that one program reads, of a batch with `lanes` pairs of a sequence and a key/value head."""
    most = min(MOST_SPLITS, max(4, PROGRAMS // lanes))
    return max(LEAST_SPLIT, 1 << (-(-positions // most) - 1).bit_length())


def paged_decode(q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, ends: Tensor) -> Tensor:
    """Returns the attention of one row for each sequence over its blocks.

    `q` is [sequence, head, element], `keys` and `values` are [block, position, head, element], `blocks` [sequence, entry] with -1
    for an entry without a block, and `ends` the positions to read.
    """
    n, heads, dim = q.shape
    size, kv_heads = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    positions = blocks.shape[1] * size
    split = split_of(positions, n * kv_heads)
    splits = max(1, -(-positions // split))
    q = q.contiguous()
    out = torch.empty_like(q)
    partial = torch.empty((n, heads, splits, dim), dtype=torch.float32, device=q.device)
    weight = torch.empty((n, heads, splits, 2), dtype=torch.float32, device=q.device)
    padded = max(16, triton.next_power_of_2(group))
    _decode[(n, kv_heads, splits)](
        *(q, keys, values, blocks, ends, partial, weight, dim**-0.5),
        *(blocks.stride(0), keys.stride(0), keys.stride(1), keys.stride(2), splits),
        SIZE=size,
        GROUP=group,
        PADDED=padded,
        DIM=dim,
        SPLIT_=split,
        TILE=64,
        num_warps=4,
    )
    _merge[(n, heads)](partial, weight, out, splits, DIM=dim, SPLITS=triton.next_power_of_2(splits), num_warps=4)
    return out


# Triton resolves the annotations of a kernel, and knows no names but its own: only constants have one.


def _decode_kernel(
    q,
    keys,
    values,
    blocks,
    ends,
    partial,
    weight,
    scale,
    table_stride,
    block_stride,
    place_stride,
    head_stride,
    splits,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT_: tl.constexpr,
    TILE: tl.constexpr,
):
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    end = tl.load(ends + row)
    members = tl.arange(0, PADDED)
    elements = tl.arange(0, DIM)
    heads = tl.num_programs(1) * GROUP
    q_at = (row * heads + head * GROUP + members).to(tl.int64)
    mine = members < GROUP
    rows = tl.load(q + q_at[:, None] * DIM + elements[None, :], mask=mine[:, None], other=0.0)
    best = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    summed = tl.zeros([PADDED, DIM], tl.float32)
    first = split * SPLIT_
    last = tl.minimum(first + SPLIT_, end)
    for at in range(first, last, TILE):
        places = at + tl.arange(0, TILE)
        inside = places < last
        block = tl.load(blocks + row.to(tl.int64) * table_stride + places // SIZE, mask=inside, other=-1).to(tl.int64)
        held = inside & (block >= 0)
        offset = block * block_stride + (places % SIZE) * place_stride + head * head_stride
        k = tl.load(keys + offset[:, None] + elements[None, :], mask=held[:, None], other=0.0)
        logits = tl.dot(rows, tl.trans(k), input_precision="ieee") * scale
        logits = tl.where(held[None, :], logits, float("-inf"))
        now = tl.maximum(best, tl.max(logits, 1))
        # A tile without any held position leaves everything as it is.
        safe = tl.where(now == float("-inf"), 0.0, now)
        shares = tl.exp(logits - safe[:, None])
        kept = tl.exp(best - safe)
        v = tl.load(values + offset[:, None] + elements[None, :], mask=held[:, None], other=0.0)
        summed = summed * kept[:, None] + tl.dot(shares.to(v.dtype), v, input_precision="ieee")
        total = total * kept + tl.sum(shares, 1)
        best = now
    out_at = q_at * splits + split
    tl.store(partial + out_at[:, None] * DIM + elements[None, :], summed, mask=mine[:, None])
    tl.store(weight + out_at * 2, best, mask=mine)
    tl.store(weight + out_at * 2 + 1, total, mask=mine)


def _merge_kernel(partial, weight, out, splits, DIM: tl.constexpr, SPLITS: tl.constexpr):
    at = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    parts = tl.arange(0, SPLITS)
    elements = tl.arange(0, DIM)
    real = parts < splits
    best = tl.load(weight + (at * splits + parts) * 2, mask=real, other=float("-inf"))
    total = tl.load(weight + (at * splits + parts) * 2 + 1, mask=real, other=0.0)
    factor = tl.exp(best - tl.max(best, 0))
    sums = tl.load(partial + (at * splits + parts)[:, None] * DIM + elements[None, :], mask=real[:, None], other=0.0)
    merged = tl.sum(sums * factor[:, None], 0) / tl.sum(total * factor, 0)
    tl.store(out + at * DIM + elements, merged.to(out.dtype.element_ty))


def _compiled() -> tuple[Any, Any]:
    return (None, None) if triton is None else (triton.jit(_decode_kernel), triton.jit(_merge_kernel))


_decode, _merge = _compiled()
