"""Methods of vLLM's worker processes, without vLLM."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from trunkline_worker.vllm_engine.extension import Extension  # noqa: E402
from trunkline_worker.vllm_engine.start import start_alone  # noqa: E402


class Worker(Extension):
    """A worker that has a GPU other than the first, and notes what happens."""

    device = torch.device("cuda:1")
    rank = 0
    parallel_config = SimpleNamespace(world_size=1, tensor_parallel_size=1)
    model_runner = SimpleNamespace(kv_caches=[torch.zeros(2, 4)], execute_model_state=None, requests={})

    def __init__(self, seen):
        self.seen = seen
        self.model_runner.input_batch = SimpleNamespace(req_id_to_index={})

    def execute_model(self, step):
        self.seen.append("step")
        return "said"

    def execute_dummy_batch(self):
        self.seen.append("idle")


def test_calls_of_any_thread_run_on_the_gpu_of_the_worker(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    worker = Worker(seen)
    params = SimpleNamespace(temperature=2.0)
    step = SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id="1", sampling_params=params)])
    assert worker.trunkline_step(step, {}, {"1": 9.0, "2": 5.0}) == "said" and params.temperature == 9.0
    worker.trunkline_idle()
    worker.trunkline_write(0, [bytes(range(16))])
    assert worker.trunkline_read(0) == bytes(range(16))
    worker.trunkline_recover()
    gpu = torch.device("cuda:1")
    assert seen == [gpu, "step", gpu, "idle", gpu, gpu, gpu]
    # On a CPU there is no device to choose.
    seen.clear()
    worker.device = torch.device("cpu")
    worker.trunkline_idle()
    assert seen == ["idle"]


def test_a_rank_takes_the_first_gpu_that_it_sees():
    parallel = SimpleNamespace(data_parallel_rank=1, data_parallel_rank_local=None)
    start_alone(parallel, 29_501)
    assert (parallel.data_parallel_rank_local, parallel.data_parallel_master_port) == (0, 29_501)
