"""Steps in the words of vLLM: builds a SchedulerOutput from a batch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..draws import draws
from ..slots import Batch, SlotTable

log = logging.getLogger(__name__)

MAX_TEMPERATURE = 2.0
"""Highest temperature that vLLM's sampling parameters take. Its samplers take any."""


@dataclass
class Live:
    """A sequence that vLLM's model runner knows."""

    request: str
    start: int
    n_given: int
    """Tokens handed over at the start; later ones were sampled by vLLM, and it has them."""
    refused: bool = False
    """vLLM refuses the sampling parameters: the sequence runs with others, and is answered as failed."""


class Batches:
    """Builds SchedulerOutputs, and remembers which sequences vLLM's model runner knows."""

    def __init__(self, tells_tokens: bool = False, runner_v2: bool = False) -> None:
        self._tells_tokens = tells_tokens
        """Stages before the last one never see what is sampled, and are told the tokens to run."""
        self._runner_v2 = runner_v2
        """vLLM's model runner V2: it takes a cut block table with a new request alone, and seeds from requests."""
        from vllm import SamplingParams
        from vllm.v1.core.sched import output

        self._output = output
        self._params = SamplingParams
        self._live: dict[int, Live] = {}
        self._finished: set[str] = set()
        self._count = 0

    def forget(self) -> None:
        """Reports all sequences as finished with the next batch."""
        self._finished.update(live.request for live in self._live.values())
        self._live.clear()

    def requests(self, batch: Batch) -> list[str]:
        """Returns vLLM's names of the sequences of a batch."""
        return [self._live[slot].request for slot in batch.slots.tolist()]

    def refused(self, batch: Batch) -> list[int]:
        """Returns the sequences of a batch whose sampling parameters vLLM refuses."""
        return [i for i, slot in enumerate(batch.slots.tolist()) if self._live[slot].refused]

    def seeds(self, batch: Batch) -> dict[str, int]:
        """Returns a seed for each sequence of a batch that draws its next token: it follows from (seed, n) alone.

        The model runner V2 gets none: it derives each draw from the seed of the request and the position.
        """
        if self._runner_v2:
            return {}
        table = batch.table
        rows = np.flatnonzero(batch.sample & (table.temperature[batch.slots] > 0))
        if len(rows) == 0:
            return {}
        numbers = draws(table.seed[batch.slots[rows]], batch.n_generated[rows]) * float(1 << 53)
        names = self.requests(batch)
        return {names[i]: int(number) for i, number in zip(rows.tolist(), numbers.tolist(), strict=True)}

    def temperatures(self, batch: Batch) -> dict[str, float]:
        """Returns the temperature of each sequence that vLLM gets as a new request, if it is beyond vLLM's parameters."""
        rows = sorted({*batch.starts, *batch.cut})
        hot = {self._live[slot].request: float(batch.table.temperature[slot]) for slot in batch.slots[rows].tolist()}
        return {name: temperature for name, temperature in hot.items() if temperature > MAX_TEMPERATURE}

    def build(self, batch: Batch) -> Any:
        """Returns the SchedulerOutput of a batch."""
        table, slots = batch.table, batch.slots.tolist()
        computed, n_tokens = batch.computed.tolist(), batch.n_tokens.tolist()
        starts, cut = set(batch.starts), set(batch.cut)
        new, cached = [], self._output.CachedRequestData.make_empty()
        for i, slot in enumerate(slots):
            if i in starts:
                new.append(self._start(table, slot, computed[i]))
                continue
            live = self._live[slot]
            if self._runner_v2 and i in cut:
                # V2 only appends to the tables of requests that it knows; a new request of the same name takes the place of one.
                new.append(self._new(table, slot, live, computed[i]))
                continue
            cached.req_ids.append(live.request)
            cached.num_computed_tokens.append(computed[i])
            cached.num_output_tokens.append(int(table.n_tokens[slot]) - live.n_given)
            if self._tells_tokens:
                cached.new_token_ids.append(batch.tokens_of(i).tolist())
            length = int(table.table_len[slot])
            if i in cut:
                # The model runner only appends to block tables: a cut one is sent again, as after a preemption.
                cached.resumed_req_ids.add(live.request)
                cached.all_token_ids[live.request] = table.tokens[slot, : table.n_tokens[slot]].tolist()
                cached.new_block_ids.append(_blocks(table, slot, 0, length))
            else:
                n = int(batch.n_blocks[i])
                cached.new_block_ids.append(_blocks(table, slot, length - n, length) if n else None)
        finished, self._finished = self._finished, set()
        return self._output.SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=dict(zip(self.requests(batch), n_tokens, strict=True)),
            total_num_scheduled_tokens=sum(n_tokens),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            finished_req_ids=finished,
            free_encoder_mm_hashes=[],
        )

    def _start(self, table: SlotTable, slot: int, computed: int) -> Any:
        if slot in self._live:
            self._finished.add(self._live[slot].request)
        self._count += 1
        live = Live(f"{self._count}", int(table.starts[slot]), int(table.n_tokens[slot]))
        self._live[slot] = live
        return self._new(table, slot, live, computed)

    def _new(self, table: SlotTable, slot: int, live: Live, computed: int) -> Any:
        tokens = table.tokens[slot, : table.n_tokens[slot]].tolist()
        return self._output.NewRequestData(
            req_id=live.request,
            prompt_token_ids=tokens[: live.n_given],
            mm_features=[],
            sampling_params=self._sampling(table, slot, live),
            pooling_params=None,
            block_ids=_blocks(table, slot, 0, int(table.table_len[slot])),
            num_computed_tokens=computed,
            lora_request=None,
            prefill_token_ids=tokens,
        )

    def _sampling(self, table: SlotTable, slot: int, live: Live) -> Any:
        try:
            return self._parameters(table, slot)
        except ValueError as error:
            log.warning("vLLM refuses the sampling parameters of request %d: %s", table.request[slot], error)
            live.refused = True
            return self._params(temperature=0.0, ignore_eos=True, detokenize=False, max_tokens=1 << 30)

    def _parameters(self, table: SlotTable, slot: int) -> Any:
        logprobs = int(table.logprobs[slot])
        hot = float(table.temperature[slot]) > 0
        return self._params(
            temperature=min(float(table.temperature[slot]), MAX_TEMPERATURE),
            top_k=int(table.top_k[slot]) if hot else 0,
            top_p=float(table.top_p[slot]) if hot else 1.0,
            min_p=float(table.min_p[slot]) if hot else 0.0,
            repetition_penalty=float(table.penalty[slot]),
            logprobs=logprobs if logprobs >= 0 else None,
            ignore_eos=True,
            detokenize=False,
            max_tokens=1 << 30,
            # vLLM keeps a seed as a signed number, and takes -1 for none.
            seed=int(table.seed[slot]) & ((1 << 63) - 1) if hot and self._runner_v2 else None,
        )


def _blocks(table: SlotTable, slot: int, first: int, last: int) -> tuple[list[int], ...]:
    """Returns entries of a block table: block 0 of vLLM is its null block, so all numbers move by one."""
    return ((table.tables[0, slot, first:last] + 1).tolist(),)
