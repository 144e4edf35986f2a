"""Failures of a device: after some of them a step may be tried again, after others nothing runs there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ..results import EngineLost, StepError


@contextlib.contextmanager
def judging(device: torch.device) -> Iterator[None]:
    """Raises the failure to report for an error of what runs inside; see `judged`."""
    try:
        yield
    except Exception as error:
        failure = judged(error, device)
        if failure is error:
            raise
        raise failure from error


def judged(error: Exception, device: torch.device) -> Exception:
    """Returns the failure to report for an error of a step.

    An error in a kernel, or of the hardware, ends the CUDA context of the process: every later call fails, so the engine is lost.
    """
    if isinstance(error, EngineLost | StepError) or device.type != "cuda" or answers(device):
        return error
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return EngineLost(f"{device} runs nothing any more, start this worker again: {reason}")


def answers(device: torch.device) -> bool:
    """Returns `True` if a GPU ends what is queued there, and then computes."""
    try:
        torch.cuda.synchronize(device)
        return bool(torch.ones(1, device=device).add_(1).item() == 2)
    except Exception:
        # PyTorch raises errors of several classes, by version and cause.
        return False
