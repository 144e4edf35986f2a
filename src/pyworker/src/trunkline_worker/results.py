"""How a batch ends: with the answer of an engine, or with an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


@dataclass
class Logprob:
    """Log probability of a sampled token, and the most likely tokens with theirs, most likely first."""

    logprob: float
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


class Fault(IntEnum):
    """Reason for the failure of one sequence of a batch, as in `SequenceFault` of the protocol."""

    NOT_FINITE = 1
    """The model computed NaN or infinity."""
    UNSUPPORTED = 2
    """The engine cannot honour a parameter of the request."""


@dataclass
class Result:
    """Answer of an engine to a batch.

    `tokens` has one sampled token for each sequence with `sample`, in order; any one for a sequence that failed. `logprobs` has
    one entry for each sampling sequence that asked for log probabilities and has not failed. `scores` follows StepDone.scores.
    `faults` has the sequences that failed, by their index in the batch: the others are as good as without them.
    """

    tokens: list[int]
    logprobs: list[Logprob] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)


class StepError(Exception):
    """A step that cannot be run at all: the server hears the reason, and the worker drops every step until the next Reset.

    A failure of one sequence does not fail the step: see `Result.faults`.

    `request` is the request without which the step would have run, if known.
    """

    def __init__(self, reason: str, request: int | None = None) -> None:
        super().__init__(reason)
        self.request = request


class EngineLost(Exception):
    """The engine cannot run again, for example after the death of one of its processes. The worker ends."""


class EngineHung(EngineLost):
    """A step or a copy does not end, so nothing of the engine can be waited for."""
