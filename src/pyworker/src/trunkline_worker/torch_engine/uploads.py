"""Copies from the host to the device that nothing waits for: a step is submitted while the one before it runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Returns values on a device, behind the work that is queued there.

    The copy starts in pinned memory: from other memory the driver may wait for the device first. PyTorch keeps that memory until
    the copy has ended.
    """
    host = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda" and host.numel():
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
