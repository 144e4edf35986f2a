"""What vLLM 0.32 and 0.33 lack for experts divided among workers on a CPU: two collectives, and experts of other workers.

Without them vLLM's CPU backend raises NotImplementedError, or reads behind the weights of its own experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed


def lend() -> None:
    """Completes vLLM's classes for CPUs, as far as vLLM does not do so itself."""
    from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    for call in (all_gatherv, reduce_scatterv):
        name = call.__name__
        if getattr(CpuCommunicator, name) is getattr(DeviceCommunicatorBase, name):
            setattr(CpuCommunicator, name, call)
    if CPUUnquantizedExperts.apply.__name__ != apply_own_experts.__name__:
        CPUUnquantizedExperts.apply = apply_own_experts(CPUUnquantizedExperts.apply)


def apply_own_experts(plain: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that runs the experts of this worker alone: others count nothing here."""

    def apply(self: Any, *, topk_weights: Any, topk_ids: Any, expert_map: Any, **named: Any) -> None:
        if expert_map is not None:
            here = expert_map[topk_ids.long()]
            topk_weights = torch.where(here < 0, 0, topk_weights).contiguous()
            topk_ids = here.clamp(min=0).to(topk_ids.dtype).contiguous()
        plain(self, topk_weights=topk_weights, topk_ids=topk_ids, expert_map=None, **named)

    apply.__name__ = apply_own_experts.__name__
    return apply


def all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """Returns the rows of all ranks, `sizes` of each, one rank after another; for a list of tensors a list."""
    if isinstance(input_, list):
        return [all_gatherv(self, one, dim, sizes) for one in input_]
    if dim != 0:
        raise NotImplementedError("rows are gathered along the first dimension alone")
    sizes = sizes or [input_.shape[0]] * self.world_size
    # Gloo gathers tensors of one size.
    padded = input_.new_zeros((max(sizes), *input_.shape[1:]))
    padded[: input_.shape[0]] = input_
    found = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(found, padded, group=self.device_group)
    return torch.cat([rows[:n] for rows, n in zip(found, sizes, strict=True)])


def reduce_scatterv(self: Any, input_: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    """Returns the sum over all ranks of this rank's rows, of which each rank has `sizes`."""
    if dim not in (0, -input_.dim()):
        raise NotImplementedError("rows are scattered along the first dimension alone")
    sizes = sizes or [input_.shape[0] // self.world_size] * self.world_size
    whole = input_.contiguous().clone()
    torch.distributed.all_reduce(whole, group=self.device_group)
    first = sum(sizes[: self.rank_in_group])
    return whole[first : first + sizes[self.rank_in_group]]
