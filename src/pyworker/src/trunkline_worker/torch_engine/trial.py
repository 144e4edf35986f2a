"""Runs the decode kernel on a small example before the first request, and compares it with PyTorch's attention."""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F

from . import attention, kernels

log = logging.getLogger(__name__)

ENDS = (1, 16, 17, 256, 257, 320)
"""Positions that the sequences of the example have: within a block, at its end, and for two programs that split a sequence."""
SIZE, WIDTH = 16, 20


def kernel_works(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> bool:
    """Returns `True` if decodes may run in the kernel; else they gather blocks, and a warning says why."""
    if not kernels.usable(torch.empty(1, dim, device=device, dtype=dtype)):
        return False
    try:
        found = difference(device, dtype, heads, kv_heads, dim)
    except Exception as error:
        # Triton fails in many ways: without a C compiler, on old cards, and for want of shared memory.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("decodes run without the Triton kernel, which fails on %s: %s", device, reason)
        return False
    # Numbers that are none compare as false.
    if found <= (5e-3 if dtype == torch.float32 else 5e-2):
        return True
    log.warning("decodes run without the Triton kernel, which differs from PyTorch's attention by %g on %s", found, device)
    return False


def difference(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> float:
    """Returns the largest difference of the decode kernel from PyTorch's attention."""
    draw = torch.Generator().manual_seed(1)
    n = len(ENDS)
    q = torch.randn(n, heads, dim, generator=draw).to(device, dtype)
    keys, values = (torch.randn(n * WIDTH, SIZE, kv_heads, dim, generator=draw).to(device, dtype) for _ in range(2))
    blocks = torch.randperm(n * WIDTH, generator=draw).view(n, WIDTH).to(device, torch.int32)
    ends = torch.tensor(ENDS, device=device, dtype=torch.int32)
    # Entries without a block are skipped.
    blocks[5, 3] = blocks[4, 1] = -1
    mask = torch.arange(WIDTH * SIZE, device=device) < ends[:, None]
    mask &= (blocks >= 0).repeat_interleave(SIZE, 1)
    found = kernels.paged_decode(q, keys, values, blocks, ends)
    k, v = (attention.gather(x, blocks).float() for x in (keys, values))
    grouped = q.view(n, kv_heads, heads // kv_heads, dim).float()
    expected = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask[:, None, None, :])
    return float((found.float() - expected.reshape(n, heads, dim)).abs().max())
