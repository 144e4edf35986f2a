"""Calls of vLLM's processes, from several threads: sent one after another, and answered in that order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

Lock = contextlib.AbstractContextManager[Any]


class Calls:
    """Calls methods of vLLM's workers. Each process runs its calls in the order of sending."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.is_one_process = type(executor).__name__ == "UniProcExecutor"
        # In one process a call is over when it is sent, and copies may touch memory that no step uses alongside a step.
        self._sending: Lock = contextlib.nullcontext() if self.is_one_process else threading.Lock()
        self._answering: Lock = contextlib.nullcontext() if self.is_one_process else threading.Lock()

    @property
    def has_failed(self) -> bool:
        """One of vLLM's processes has ended."""
        return bool(getattr(self._executor, "is_failed", False))

    def send(self, method: str, *args: Any) -> Callable[[], list[Any]]:
        """Sends a call to all workers, and returns a function that waits for the answer of each."""
        with self._sending:
            future = self._executor.collective_rpc(method, args=args, non_block=True)

        def answer() -> list[Any]:
            # vLLM's futures take the answers to earlier calls on their way, so one thread waits at a time.
            with self._answering:
                answers: list[Any] = future.result()
                return answers

        return answer

    def __call__(self, method: str, *args: Any) -> list[Any]:
        """Calls a method of all workers, and returns the answer of each."""
        return self.send(method, *args)()
