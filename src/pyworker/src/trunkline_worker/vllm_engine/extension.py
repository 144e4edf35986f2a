"""Methods that vLLM's worker processes get: whole steps, copies of blocks, and seeds of random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .. import cpu_blocks
from . import cpu_experts


class Extension:
    """Mixed into vLLM's worker class; names begin with `trunkline_`, so that none meets a method of vLLM."""

    device: Any
    model_runner: Any
    parallel_config: Any
    rank: int
    execute_model: Any
    sample_tokens: Any
    execute_dummy_batch: Any
    trunkline_output: Any
    """What `execute_model` said in a step that has not sampled yet."""

    def trunkline_enter(self) -> None:
        """Prepares the thread, which may not be the thread that loaded the model."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        else:
            # OpenMP keeps a number of threads for each thread that begins parallel work; asking makes it PyTorch's. Without,
            # vLLM's attention may be planned for one number and run with another, which it refuses.
            torch.get_num_threads()

    def trunkline_step(self, step: Any, seeds: dict[str, int], temperatures: dict[str, float]) -> Any:
        """Runs a step, and returns what vLLM says about it: on the first worker of the last stage, None on others.

        All workers answer, so that a failure in any of them is heard. `temperatures` are those of new requests that vLLM's
        parameters do not take, neither when they are made nor on the way to another process.
        """
        self.trunkline_forward(step, temperatures)
        return self._sampled(seeds, None)

    def trunkline_forward(self, step: Any, temperatures: dict[str, float]) -> None:
        """Runs the first part of a step, the model; `trunkline_sample` runs the rest."""
        self.trunkline_enter()
        for new in step.scheduled_new_reqs:
            if new.req_id in temperatures:
                new.sampling_params.temperature = temperatures[new.req_id]
        self.trunkline_output = self.execute_model(step)

    def trunkline_sample(self, seeds: dict[str, int], allowed: tuple[list[str], npt.NDArray[np.uint8]] | None) -> Any:
        """Runs the rest of a step, and returns what `trunkline_step` does.

        `allowed` has requests with a structure and for each a row of bits, one for each token that may be next.
        """
        self.trunkline_enter()
        return self._sampled(seeds, allowed)

    def _sampled(self, seeds: dict[str, int], allowed: tuple[list[str], npt.NDArray[np.uint8]] | None) -> Any:
        output, self.trunkline_output = self.trunkline_output, None
        if seeds:
            self._seed(seeds)
        if output is None:
            with self._masked(allowed):
                output = self.sample_tokens(None)
        config = self.parallel_config
        return output if self.rank == config.world_size - config.tensor_parallel_size else None

    def trunkline_idle(self) -> None:
        """Runs an empty step, in which the experts of this worker compute for the others of its group."""
        self.trunkline_enter()
        self.execute_dummy_batch()

    @contextlib.contextmanager
    def _masked(self, allowed: tuple[list[str], npt.NDArray[np.uint8]] | None) -> Iterator[None]:
        """Lets vLLM's sampler pick tokens that may be next.

        A bitmask of vLLM's scheduler would change the logits before their log probabilities are taken, which are those of the
        model; so the mask goes where a request's own list of tokens is.
        """
        if allowed is None or self.model_runner.execute_model_state is None:
            yield
            return
        batch = self.model_runner.input_batch
        outside = np.zeros((batch.num_reqs, batch.vocab_size), np.bool_)
        for name, bits in zip(*allowed, strict=True):
            outside[batch.req_id_to_index[name]] = np.unpackbits(~bits, bitorder="little")[: batch.vocab_size]
        batch.sampling_metadata.allowed_token_ids_mask = torch.from_numpy(outside).to(self.device)
        try:
            yield
        finally:
            # vLLM makes it again only for another batch.
            batch.sampling_metadata.allowed_token_ids_mask = None

    def trunkline_masks_work(self) -> bool:
        """Returns `True` if the sampler takes a mask for each step."""
        batch = getattr(self.model_runner, "input_batch", None)
        metadata = getattr(batch, "sampling_metadata", None)
        return hasattr(metadata, "allowed_token_ids_mask") and hasattr(self.model_runner, "execute_model_state")

    def _seed(self, seeds: dict[str, int]) -> None:
        """Gives each of these requests a generator with this seed for the token to be sampled now, and others none."""
        batch = self.model_runner.input_batch
        batch.generators.clear()
        for request, seed in seeds.items():
            generator = torch.Generator(self.model_runner.device)
            generator.manual_seed(seed)
            batch.generators[batch.req_id_to_index[request]] = generator

    def trunkline_seeds_work(self) -> bool:
        """Returns `True` if the model runner keeps a generator or a seed for each request."""
        runner = self.model_runner
        if hasattr(runner, "req_states"):
            # V2 hashes the seed of the request and the position.
            return hasattr(getattr(runner.sampler, "sampling_states", None), "seeds")
        batch = getattr(runner, "input_batch", None)
        return hasattr(batch, "generators") and hasattr(batch, "req_id_to_index")

    def trunkline_caches(self) -> list[tuple[tuple[int, ...], str]]:
        """Returns shape and element type of the KV tensor of each layer that this worker runs."""
        return [(tuple(cache.shape), str(cache.dtype)) for cache in self.model_runner.kv_caches]

    def trunkline_read(self, block: int) -> bytes:
        """Returns the bytes of a block in the layers of this worker, each as [head, token, content]."""
        self.trunkline_enter()
        with torch.inference_mode():
            if self.device.type == "cpu":
                return b"".join(cpu_blocks.elements(cache[block]).tobytes() for cache in self.model_runner.kv_caches)
            layers = [cache[block].contiguous().reshape(-1).view(torch.uint8) for cache in self.model_runner.kv_caches]
            return bytes(torch.cat(layers).cpu().numpy().tobytes())

    def trunkline_write(self, block: int, parts: list[bytes]) -> None:
        """Replaces a block: `parts` has the bytes for each worker."""
        self.trunkline_enter()
        with torch.inference_mode():
            source = memoryview(bytearray(parts[self.rank]))
            at = 0
            for cache in self.model_runner.kv_caches:
                place = cache[block]
                size = place.numel() * place.element_size()
                part = source[at : at + size]
                if self.device.type == "cpu":
                    cpu_blocks.replace(place, part)
                else:
                    place.copy_(torch.frombuffer(part, dtype=place.dtype).view(place.shape))
                at += size
            if place.is_cuda:
                torch.cuda.synchronize()

    def trunkline_lend_cpu_experts(self) -> None:
        """Gives vLLM what experts divided among workers need on a CPU."""
        cpu_experts.lend()

    def trunkline_recover(self) -> None:
        """Makes the model runner forget all requests and the half of a step that it may hold, after a step that failed."""
        self.trunkline_enter()
        runner = self.model_runner
        if hasattr(runner, "execute_model_state") and hasattr(runner, "req_states"):
            # V2: what the failed step wrote down for the device goes there now, before later steps write the same rows.
            runner.execute_model_state = None
            runner.req_states.apply_staged_writes()
            runner.block_tables.apply_staged_writes()
            for request in list(runner.req_states.req_id_to_index):
                runner._remove_request(request)
            return
        if not hasattr(runner, "execute_model_state") or not hasattr(runner, "requests"):
            raise RuntimeError(f"{type(runner).__name__} keeps its requests in another way")
        runner.execute_model_state = None
        runner.requests.clear()
        for request in list(runner.input_batch.req_id_to_index):
            runner.input_batch.remove_request(request)
