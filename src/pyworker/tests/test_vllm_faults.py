"""Sequences that fail alone under vLLM, without vLLM."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from trunkline_worker.facts import Settings
from trunkline_worker.proto import messages as pb
from trunkline_worker.results import EngineLost, Fault, Logprob
from trunkline_worker.slots import SlotTable
from trunkline_worker.toy import ToyEngine
from trunkline_worker.vllm_engine.batches import Batches
from trunkline_worker.vllm_engine.runner import _result


class SamplingParams(SimpleNamespace):
    """Parameters of a vLLM that takes no min_p."""

    def __init__(self, min_p=0.0, **fields):
        if min_p:
            raise ValueError("min_p is gone")
        super().__init__(**fields)


class Cached(SimpleNamespace):
    """Sequences that go on."""

    @classmethod
    def make_empty(cls):
        lists = ("req_ids", "num_computed_tokens", "num_output_tokens", "new_token_ids", "new_block_ids")
        return cls(**{name: [] for name in lists}, resumed_req_ids=set(), all_token_ids={})


@pytest.fixture
def batches(monkeypatch):
    """Batches for a vLLM of plain records."""
    names = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.core.sched.output")
    modules = {name: ModuleType(name) for name in names}
    modules["vllm"].SamplingParams = SamplingParams
    output = modules["vllm.v1.core.sched.output"]
    output.CachedRequestData, output.NewRequestData, output.SchedulerOutput = Cached, SimpleNamespace, SimpleNamespace
    modules["vllm.v1.core.sched"].output = output
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return Batches()


def test_parameters_that_vllm_refuses_fail_their_sequence_and_no_step(batches):
    table = SlotTable(ToyEngine().model, Settings(16, 8, 2))
    step = pb.Step(id=1, life=1, slots=[0, 1], n_tokens=[2, 2], sample=[1, 1], n_blocks=[1, 1], blocks=[0, 1])
    for i in range(2):
        sampling = pb.WorkerSampling(temperature=0.5, top_p=1, repetition_penalty=1, min_p=0.25 * i, logprobs=1)
        step.starts.add(index=i, request=7 + i, tokens=[5, 6], n_prompt=2, sampling=sampling)
    batch = table.apply(step)
    built = batches.build(batch)
    assert [new.sampling_params.temperature for new in built.scheduled_new_reqs] == [0.5, 0.0]
    assert batches.refused(batch) == [1]
    # It runs on until the server hears, and another sequence takes its slot.
    table.reserve(batch)
    decode = pb.Step(id=2, life=1, slots=[1], computed=[2], n_tokens=[1], sample=[1], table_keep=[1])
    assert batches.refused(table.apply(decode)) == [0]
    step.starts[1].sampling.min_p = 0
    batch = table.apply(step)
    batches.build(batch)
    assert batches.refused(batch) == []


def said(**more):
    lists = SimpleNamespace(logprob_token_ids=[[4, 4], [5, 5], [6, 6]], logprobs=[[-1.0, -1.0]] * 3)
    index = {"a": 0, "b": 1, "c": 2}
    return SimpleNamespace(req_id_to_index=index, sampled_token_ids=[[4], [5], [6]], logprobs=lists, **more)


def test_sequences_with_nan_and_refused_ones_are_named():
    wanted = {0: ("a", 1), 2: ("b", 1), 3: ("c", 1)}
    one = Logprob(-1.0, [4], [-1.0])
    found = _result(said(num_nans_in_logits={"a": 0, "b": 7}), wanted, [3])
    assert (found.tokens, found.logprobs) == ([4, 5, 6], [one])
    assert found.faults == {2: Fault.NOT_FINITE, 3: Fault.UNSUPPORTED}
    for output in (said(), said(num_nans_in_logits=None)):
        assert _result(output, wanted, []).faults == {}
    with pytest.raises(EngineLost, match="sampled 0 tokens"):
        _result(SimpleNamespace(req_id_to_index={"a": 0}, sampled_token_ids=[[]]), {0: ("a", -1)}, [])
