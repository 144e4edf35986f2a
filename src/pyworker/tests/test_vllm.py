"""The vllm engine: equal to transformers under chunks, batches, shared blocks, preemption, swap and cut tables."""

import os
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest

os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
pytest.importorskip("torch", reason="PyTorch is not installed")
# The model runner V2 needs Triton, whose interpreter runs on a CPU. vLLM asks for a backend, which is not used then.
V2 = os.environ.get("TRUNKLINE_TEST_V2") == "1"
if V2:
    os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
    backends = pytest.importorskip("triton.backends", reason="Triton is not installed").backends
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False))
pytest.importorskip("vllm", reason="vLLM is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import torch  # noqa: E402
from attached import Attached, greet  # noqa: E402
from scheduler import Scheduler, greedy  # noqa: E402

from trunkline_worker.cli import build, parse  # noqa: E402
from trunkline_worker.proto import messages as pb  # noqa: E402
from trunkline_worker.results import EngineLost  # noqa: E402
from trunkline_worker.vllm_engine.start import has_runner_v2  # noqa: E402

VOCABULARY = 256
TENSOR_PARALLEL = os.environ.get("TRUNKLINE_TEST_TP", "1")


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=2,
    )
    torch.manual_seed(1)
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            # Random models of the usual spread say one token again and again.
            if parameter.dim() > 1:
                parameter.mul_(3.0)
    made.folder = tmp_path_factory.mktemp("llama")
    made.save_pretrained(made.folder)
    return made


@pytest.fixture(scope="session")
def engines(model):
    """Builds an engine for a number of stages, once for each."""
    made = {}

    def build_once(stages):
        if stages not in made:
            arguments = ["--engine", "vllm", "--model", str(model.folder), "--connect", "x:1", "--eager", "--kv-tokens", "1280"]
            # A number that OpenMP does not start with: PyTorch is loaded already. Each thread that runs steps must use it.
            parallel = ["--tensor-parallel", TENSOR_PARALLEL, "--pipeline-parallel", str(stages), "--threads", "1"]
            made[stages] = build(parse([*arguments, *parallel]))
        return made[stages]

    yield build_once
    for engine in made.values():
        engine.close()


@pytest.fixture(params=[1] if V2 else [1, 2], ids=["one stage"] if V2 else ["one stage", "two stages"])
def engine(request, engines):
    return engines(request.param)


@pytest.fixture
def one(engines):
    return engines(1)


@pytest.fixture
def staged(engines):
    if V2:
        pytest.skip("the model runner V2 runs in no stages")
    return engines(2)


def alone(model, prompt, n):
    with torch.inference_mode():
        out = model.generate(torch.tensor([prompt]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)
    return out[0].tolist()


def prompts(n, seed=3):
    draw = np.random.default_rng(seed)
    shared = [draw.integers(4, VOCABULARY, 70).tolist() for _ in range(2)]
    made = [(shared[i % 2] if i % 3 == 0 else []) + draw.integers(4, VOCABULARY, 3 + 7 * i % 120).tolist() for i in range(n)]
    # Two prompts that are cached to their end.
    made[-2:] = [shared[0][:64]] * min(n, 2)
    return made


def test_what_the_engine_announces(engine):
    assert engine.kv.block_io and engine.kv.block_sizes == (32,) and engine.kv.tokens == 1280
    assert engine.model.kv_bytes_per_token == 3 * 2 * 2 * 32 * 4
    assert not engine.abilities.partial_writes and engine.abilities.seeded_sampling
    stages = engine.abilities.pipeline_stages
    assert (
        engine.abilities.steps_in_flight == 2 * stages and sum(engine._parts.layers) == 3 and len(engine._parts.layers) == stages
    )
    assert has_runner_v2(engine._config) == V2
    # By `--threads 1`; other processes take it from the environment.
    assert torch.get_num_threads() == 1 or engine._executor.vllm_config.parallel_config.world_size > 1
    # The order of elements on the wire is known, not assumed.
    assert engine._parts.layout is not None


@pytest.mark.parametrize("attempt", ["first", "again with the same engine"])
def test_24_prompts_are_equal_to_transformers(engine, model, attempt):
    with Attached(engine) as worker:
        scheduler = greet(worker, blocks=30, block_size=32)
        scheduler.welcome(session=attempt)
        for prompt in prompts(24):
            scheduler.add(prompt, 24)
        for seq in scheduler.run(every=4):
            assert seq.tokens == alone(model, seq.prompt, 24)
        assert min(scheduler.counts.values()) > 3, scheduler.counts


def test_tables_that_are_cut_are_sent_again(engine, model):
    """A running sequence gets other blocks for its first ones, as when a duplicate of a shared block is let go."""
    with Attached(engine) as worker:
        scheduler = greet(worker, blocks=30, block_size=32)
        scheduler.welcome()
        seq, neighbour = (scheduler.add(prompt, 20) for prompt in prompts(24)[20:22])
        while len(seq.tokens) < len(seq.prompt) + 8:
            scheduler.step()
        data = [scheduler.read(block) for block in seq.blocks]
        old, seq.blocks = seq.blocks, [scheduler._take() for _ in seq.blocks]
        for block, content in zip(seq.blocks, data, strict=True):
            scheduler.write(block, content)
        # The worker keeps nothing of the old table, whose blocks are written over.
        for block in old:
            scheduler.write(block, bytes(scheduler.block_bytes))
        seq.sent_len = 0
        scheduler.run()
        assert seq.tokens == alone(model, seq.prompt, 20) and neighbour.tokens == alone(model, neighbour.prompt, 20)


def hot(seed, **fields):
    return greedy(
        **{"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2, "seed": seed, **fields}
    )


@pytest.fixture
def truncation(monkeypatch):
    """Lets `top_k` and `top_p` run: Triton's interpreter does not run vLLM's kernel for these two."""
    if V2:
        from vllm.v1.sample.ops import topk_topp_sampler

        monkeypatch.setattr(topk_topp_sampler, "HAS_TRITON", False)


@pytest.mark.usefixtures("truncation")
def test_sampled_tokens_do_not_depend_on_batching_preemption_or_swap(engine):
    requests = [(prompt, hot(i // 2) if i % 4 else greedy()) for i, prompt in enumerate(prompts(12))]

    def run(every=0, **options):
        with Attached(engine) as worker:
            scheduler = greet(worker, **{"blocks": 30, "block_size": 32, **options})
            scheduler.welcome()
            for prompt, sampling in requests:
                scheduler.add(prompt, 16, sampling)
            return [seq.tokens for seq in scheduler.run(every=every)]

    quiet = run(max_running=1, chunk=512)
    assert quiet == run(every=3)
    assert quiet[-2] != quiet[-1] or requests[-2][1].seed == requests[-1][1].seed


@pytest.mark.usefixtures("truncation")
def test_parameters_at_their_limits_fail_no_step(engine):
    """Whatever the server lets through: vLLM's own limits are narrower, and a failed step costs all requests their KV."""
    limits = [
        {"temperature": 100.0, "seed": (1 << 64) - 1, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {
            "temperature": 100.0,
            "top_k": (1 << 32) - 1,
            "top_p": 1e-30,
            "min_p": 1e-30,
            "repetition_penalty": 0.01,
            "logprobs": 20,
        },
        {"temperature": 0.01, "min_p": 1.0, "repetition_penalty": 100.0, "logprobs": 0},
    ]
    with Attached(engine) as worker:
        scheduler = greet(worker, blocks=30, block_size=32)
        scheduler.welcome()
        seqs = [scheduler.add(prompts(3)[0], 24, hot(**{"seed": 7, **fields})) for fields in limits]
        cool = scheduler.add(prompts(3)[0], 24, hot(**{**limits[0], "temperature": 2.0}))
        scheduler.run()
    assert all(len(seq.tokens) == len(seq.prompt) + 24 for seq in seqs)
    assert len(set(seqs[0].tokens[-24:])) > 16 and seqs[0].tokens != cool.tokens, "the temperature counts"


def test_log_probabilities_are_those_of_the_model(engine, model):
    with Attached(engine) as worker:
        scheduler = greet(worker, blocks=30, block_size=32)
        scheduler.welcome()
        seq = scheduler.add(prompts(3)[0], 12, greedy(logprobs=5))
        plain = scheduler.add(prompts(3)[1], 12)
        few = scheduler.add(prompts(3)[1], 12, greedy(logprobs=2))
        scheduler.run()
    assert not plain.logprobs and {len(found.top_ids) for found in few.logprobs} == {2}
    with torch.inference_mode():
        logits = model(torch.tensor([seq.tokens])).logits[0, len(seq.prompt) - 1 : -1]
    for row, token, found in zip(logits.log_softmax(-1), seq.tokens[len(seq.prompt) :], seq.logprobs, strict=True):
        assert found.logprob == pytest.approx(row[token].item(), abs=1e-3)
        assert list(found.top_ids) == row.topk(5).indices.tolist()
        assert list(found.top_logprobs) == pytest.approx(row.topk(5).values.tolist(), abs=1e-3)


def test_kv_survives_a_broken_connection(engine, model):
    with Attached(engine) as worker:
        scheduler = greet(worker, blocks=30, block_size=32)
        scheduler.welcome()
        seq = scheduler.add(prompts(24)[21], 16)
        while len(seq.tokens) < len(seq.prompt) + 5:
            scheduler.step()
        scheduler.peer.hang_up()
        scheduler.peer = worker.server.accept()
        assert scheduler.peer.receive("hello").resume.session == "s1"
        scheduler.welcome(resumed=True)
        seq.started, seq.sent_len = False, 0
        scheduler.run()
        assert seq.tokens == alone(model, seq.prompt, 16) and scheduler.counts["preemptions"] == 0


@pytest.mark.parametrize("half", ["execute_model", "sample_tokens"])
def test_a_step_that_vllm_fails_is_answered_and_the_next_life_says_the_same(one, model, half, monkeypatch):
    with Attached(one) as worker:
        scheduler = fail_the_second_step(worker, one, half, monkeypatch)
        scheduler.peer.send(reset=pb.Reset(life=2))
        assert scheduler.peer.receive("reset_done").life == 2
        say_the_same(scheduler.peer, scheduler.hello, model)


@pytest.mark.parametrize("half", ["execute_model", "sample_tokens"])
def test_a_server_that_is_gone_after_a_failed_step_is_greeted_anew(one, model, half, monkeypatch):
    """No reset arrives: the Welcome of the next connection begins the life in which vLLM must have forgotten the step."""
    with Attached(one) as worker:
        scheduler = fail_the_second_step(worker, one, half, monkeypatch)
        scheduler.peer.hang_up()
        peer = worker.server.accept()
        hello = peer.receive("hello")
        assert not hello.HasField("resume")
        fresh = Scheduler(peer, hello, blocks=30, block_size=32)
        fresh.welcome(life=2, session="s2")
        say_the_same(peer, hello, model)


def fail_the_second_step(worker, engine, half, monkeypatch):
    """Fails a step before or after the model has run, and returns the scheduler that was told so."""
    if TENSOR_PARALLEL != "1":
        pytest.skip("processes that work together end after a failed step")
    runner = engine._executor.driver_worker.worker.model_runner
    plain, calls = getattr(runner, half), []

    def fails(*arguments, **named):
        calls.append(half)
        if len(calls) == 2:
            raise RuntimeError("no memory for this")
        return plain(*arguments, **named)

    scheduler = greet(worker, blocks=30, block_size=32)
    scheduler.welcome()
    monkeypatch.setattr(runner, half, fails)
    scheduler.add(prompts(24)[20], 8)
    scheduler.step()
    step, _ = scheduler.plan()
    scheduler.peer.send(step=step)
    failed = scheduler.peer.receive("step_failed")
    assert failed.id == step.id and "no memory for this" in failed.reason
    assert engine._failed
    return scheduler


def say_the_same(peer, hello, model):
    """Runs sequences in life 2, which say what transformers says."""
    fresh = Scheduler(peer, hello, blocks=30, block_size=32)
    fresh.life = 2
    for prompt in prompts(24)[18:22]:
        fresh.add(prompt, 12)
    for seq in fresh.run(every=4):
        assert seq.tokens == alone(model, seq.prompt, 12)


def test_a_vllm_that_says_another_thing_after_a_failed_step_ends_the_worker(one, monkeypatch):
    monkeypatch.setattr(one, "_expected", [1, 2, 3, 4])
    monkeypatch.setattr(one, "_failed", True)
    with pytest.raises(EngineLost, match="said \\[1, 2, 3, 4\\] at the start"):
        one.reset()


def test_a_step_enters_while_another_is_under_way(staged, model, monkeypatch):
    """No answer of vLLM is taken before the second step is sent."""
    first, second = prompts(24)[20:22]
    sent, plain = threading.Semaphore(0), staged._calls.send

    def send(method, *arguments):
        answer = plain(method, *arguments)
        sent.release()
        return answer

    with Attached(staged) as worker:
        scheduler = greet(worker, blocks=30, block_size=32)
        scheduler.welcome()
        scheduler.step_id = 1
        monkeypatch.setattr(staged._calls, "send", send)
        with staged._calls._answering:
            for step, (slot, prompt) in enumerate(((0, first), (1, second)), start=1):
                blocks = -(-len(prompt) // 32)
                columns = {"slots": [slot], "n_tokens": [len(prompt)], "sample": [1], "n_blocks": [blocks]}
                message = pb.Step(id=step, life=1, blocks=range(10 * slot, 10 * slot + blocks), **columns)
                message.starts.add(index=0, request=slot + 1, tokens=prompt, n_prompt=len(prompt), sampling=greedy())
                scheduler.peer.send(step=message)
            assert sent.acquire(timeout=60) and sent.acquire(timeout=60)
        said = [list(scheduler.peer.receive("step_done").tokens) for _ in range(2)]
    assert said == [alone(model, prompt, 1)[-1:] for prompt in (first, second)]


def test_blocks_of_all_stages_are_those_of_one_process(one, staged):
    """The layers of the first stage, then those of the second: workers of both kinds may share a tier."""
    blocks = []
    for engine in (one, staged):
        engine._trial_prompt(steps=1)
        blocks.append(np.frombuffer(engine.read_block(0), "<f4").reshape(3, -1))
    assert np.abs(blocks[0]).max() > 0.1 and np.allclose(blocks[0], blocks[1], atol=1e-4)
    assert not np.allclose(blocks[0][0], blocks[0][1], atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--block-size", "16"], "--block-size 16: vLLM needs a multiple of 32"),
        (["--kv-tokens", "16"], "--kv-tokens 16: must be at least one block, which has 32 tokens"),
        (["--kv-tokens", "63", "--block-size", "64"], "--kv-tokens 63: must be at least one block, which has 64 tokens"),
        (
            ["--max-context", "512", "--kv-tokens", "511"],
            "--max-context 512: the KV has room for fewer tokens; give --kv-tokens as many",
        ),
        (["--pipeline-parallel", "4"], "--pipeline-parallel 4: choose from 1 to 3, the layers of the model"),
        (["--pipeline-parallel", "0"], "--pipeline-parallel/--pipeline-stages: must be at least 1, not 0"),
        (
            ["--data-parallel-group", "g", "--data-parallel-size", "2", "--pipeline-parallel", "2"],
            "--pipeline-parallel 2: not together with --data-parallel-group; use --tensor-parallel",
        ),
        (["--data-parallel-address", "here"], "--data-parallel-address here: HOST:PORT is wanted, as in 127.0.0.1:29500"),
        (
            ["--data-parallel-group", "g", "--data-parallel-size", "2"],
            "--data-parallel-group g: llama has no experts to divide; start each worker "
            "without --data-parallel-*, and the server balances them",
        ),
    ],
)
def test_what_vllm_lacks_is_refused_with_one_line(model, flags, line):
    arguments = ["--engine", "vllm", "--model", str(model.folder), "--model-name", "llama", "--connect", "x:1", *flags]
    with pytest.raises(ValueError) as refused:
        build(parse(arguments))
    assert str(refused.value) == line


def test_a_context_beyond_the_room_for_kv_is_cut(model):
    arguments = ["--engine", "vllm", "--model", str(model.folder), "--connect", "x:1", "--eager", "--kv-tokens", "250"]
    engine = build(parse(arguments))
    try:
        assert (engine.model.max_context, engine.kv.tokens) == (224, 224)
    finally:
        engine.close()


@pytest.mark.skipif(not V2, reason="TRUNKLINE_TEST_V2 is not 1")
def test_stages_are_refused_for_the_model_runner_v2(model):
    arguments = ["--engine", "vllm", "--model", str(model.folder), "--connect", "x:1", "--pipeline-parallel", "2"]
    with pytest.raises(ValueError, match="--pipeline-parallel: not with vLLM's model runner V2: set VLLM_USE_V2_MODEL_RUNNER=0"):
        build(parse(arguments))


def test_a_process_of_vllm_that_dies_ends_the_worker_with_one_line(staged):
    """Runs last: the engine is lost."""
    with Attached(staged) as worker:
        greet(worker, blocks=30, block_size=32).welcome()
        os.kill(staged._executor.workers[0].proc.pid, signal.SIGKILL)
        worker.thread.join(60)
        assert isinstance(worker.failure, EngineLost)
        assert str(worker.failure) == "a process of vLLM ended; its KV is lost"
