"""Muon for the matrices of the layers, AdamW for the embedding and the norms.

Muon (Keller Jordan, 2024, https://kellerjordan.github.io/posts/muon/) replaces the momentum of a matrix by the nearest
matrix with equal singular values, computed by five Newton-Schulz iterations.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Returns the approximate orthogonal factors of a stack of matrices."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal; matrices of one shape are computed together."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        """Applies one update to every matrix with a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                by_shape[weight.shape].append((weight, weight.grad.lerp(state["momentum"], group["momentum"])))
            for shape, entries in by_shape.items():
                updates = orthogonalize(torch.stack([update for _, update in entries]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for (weight, _), update in zip(entries, updates, strict=True):
                    weight.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-scale)


def optimizers(model: nn.Module, matrix_lr: float, vector_lr: float) -> list[torch.optim.Optimizer]:
    """Returns the two optimizers of a model."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    embeddings = [p for name, p in model.named_parameters() if "embed" in name]
    norms = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": embeddings, "lr": vector_lr, "weight_decay": 0.0},
        {"params": norms, "lr": vector_lr / 10, "weight_decay": 0.0},
    ]
    return [Muon(matrices, matrix_lr), torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10)]
