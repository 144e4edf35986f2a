"""The interface that engines implement: facts about the model, and one method that runs a batch."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from .facts import Abilities, KvFacts, LockStep, ModelFacts, Settings
from .results import EngineLost, Result
from .slots import Batch
from .structures import Structures


class Engine(ABC):
    """Runs a model.

    It is made by a thread that has ended before anything is called. `begin`, `submit`, `run`, and `reset` are called by one
    thread, `read_block` and `write_block` by another one, at any time between the end of `begin` and the next `begin` or
    `reset`. A block that is read or written is in use by no step at that time.
    """

    flags: ClassVar[tuple[str, ...]] = ()
    """Flags of the command line that the engine honours, of those in `flags.FLAGS`: ("--model", "--threads"). All others are
    refused."""
    abilities: Abilities = Abilities()
    """Abilities and limits: those of the class, which an engine that is made may narrow."""
    program: str
    """Name and version of the engine, for logs: "torch 2.13.0"."""
    model: ModelFacts
    kv: KvFacts
    lock_step: LockStep | None = None
    """The group of a worker that does not run alone."""
    depth: int = 1
    """Batches submitted before the first is waited for, at most. Above 1, `submit` returns before the batch has run."""
    own_samples: bool = False
    """`True` if a batch may hold tokens not known yet (-1), which the engine takes from its own samples."""
    structures: Structures | None = None
    """Follows answers with a structure, for engines with `Abilities.grammars`: their batches have `allowed`."""
    on_lost: Callable[[EngineLost], None] | None = None
    """Called by the engine if it is lost while nothing runs, on any thread."""

    @classmethod  # noqa: B027
    def add_flags(cls, group: argparse._ArgumentGroup) -> None:
        """Adds flags that this engine alone has to the command line, by `group.add_argument`."""

    @classmethod
    def build(cls, args: argparse.Namespace) -> Engine:
        """Returns an engine for the arguments of the command line: unless overridden, this class called with them.

        What takes long to import is best imported here: `--help` needs the class alone.

        Raises:
            ValueError: an argument or the model does not fit; one line says which.
        """
        return cls(args)  # type: ignore[call-arg]

    @abstractmethod
    def begin(self, settings: Settings) -> None:
        """Prepares blocks of the size and number that the server chose. Blocks have no content yet."""

    @abstractmethod
    def run(self, batch: Batch) -> Result:
        """Runs a batch in one forward pass.

        Raises:
            StepError: the batch cannot be run.
        """

    def submit(self, batch: Batch) -> Callable[[], Result]:
        """Starts a batch, and returns a function that waits for the result. Batches run in the order of submission.

        The function is called on another thread if `depth` is above 1, and must not read the slots, which later batches change.
        """
        result = self.run(batch)
        return lambda: result

    @abstractmethod
    def reset(self) -> None:
        """Forgets all sequences. The contents of blocks are worthless from now on."""

    def idle(self) -> None:  # noqa: B027
        """Runs a step without sequences, while other workers of the group run a step. Nothing runs when it is called."""

    def forget_slots(self) -> None:  # noqa: B027
        """Forgets all sequences and keeps the contents of blocks, after a broken connection."""

    def read_block(self, block: int) -> bytes:
        """Returns the elements of a block, little-endian, as [layer][keys, values][token][head][dim]."""
        raise NotImplementedError(f"{self.program} cannot read blocks")

    def write_block(self, block: int, data: bytes) -> None:
        """Replaces the contents of a block."""
        raise NotImplementedError(f"{self.program} cannot write blocks")

    def close(self) -> None:  # noqa: B027
        """Ends the engine's processes and frees memory."""
