"""The torch engine: equal to transformers under chunks, batches, shared blocks, preemption and swap."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from attached import Attached, greet  # noqa: E402
from scheduler import NO_BLOCK, greedy  # noqa: E402

from trunkline_worker.cli import build, parse  # noqa: E402
from trunkline_worker.proto import messages as pb  # noqa: E402
from trunkline_worker.torch_engine import attention, kernels, sampling, stages  # noqa: E402
from trunkline_worker.torch_engine import config as config_of  # noqa: E402
from trunkline_worker.torch_engine.build import parse_layers  # noqa: E402

VOCABULARY = 256
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"rope_theta": 10000.0}),
    "llama3": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "linear": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, "tie_word_embeddings": True},
    ),
    "biases": ("LlamaConfig", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": None}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 32}),
}


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Saves random models of all families, and returns their folders and the models."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    made = {}

    def make(family):
        if family not in made:
            config_class, model_class, fields = FAMILIES[family]
            config = getattr(transformers, config_class)(
                **{
                    "vocab_size": VOCABULARY,
                    "hidden_size": 96,
                    "intermediate_size": 160,
                    "num_hidden_layers": 3,
                    "num_attention_heads": 6,
                    "num_key_value_heads": 2,
                    "max_position_embeddings": 512,
                    "eos_token_id": 2,
                    **fields,
                }
            )
            torch.manual_seed(1)
            model = getattr(transformers, model_class)(config).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    # Random models of the usual spread say one token again and again.
                    parameter.mul_(3.0) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.2)
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            made[family] = folder, model
        return made[family]

    return make


def engine_of(folder, *arguments):
    return build(parse(["--engine", "torch", "--model", str(folder), "--connect", "x:1", "--device", "cpu", *arguments]))


def alone(model, prompt, n):
    """What transformers says, one sequence at a time."""
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=True
        )
    return out[0].tolist()


def prompts(n, seed=3):
    draw = np.random.default_rng(seed)
    shared = [draw.integers(4, VOCABULARY, 70).tolist() for _ in range(2)]
    made = [(shared[i % 2] if i % 3 == 0 else []) + draw.integers(4, VOCABULARY, 3 + 7 * i % 120).tolist() for i in range(n)]
    # Two prompts that are cached to their end.
    made[-2:] = [shared[0][:64]] * min(n, 2)
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_24_prompts_are_equal_to_transformers(folder_of, family):
    folder, model = folder_of(family)
    with Attached(engine_of(folder)) as worker:
        scheduler = greet(worker, blocks=48)
        scheduler.welcome()
        for prompt in prompts(24):
            scheduler.add(prompt, 24)
        for seq in scheduler.run(every=4):
            assert seq.tokens == alone(model, seq.prompt, 24)
        assert min(scheduler.counts.values()) > 3, scheduler.counts


@pytest.mark.parametrize("family", ["llama", "linear", "qwen3"])
def test_24_prompts_are_equal_to_transformers_over_two_stages(folder_of, family):
    folder, model = folder_of(family)
    engine = engine_of(folder, "--pipeline-parallel", "2", "--threads", "2")
    with Attached(engine) as worker:
        scheduler = greet(worker, blocks=48)
        assert scheduler.hello.abilities.pipeline_stages == 2
        scheduler.welcome()
        for prompt in prompts(24):
            scheduler.add(prompt, 24)
        for seq in scheduler.run(every=4):
            assert seq.tokens == alone(model, seq.prompt, 24)
        assert min(scheduler.counts.values()) > 3, scheduler.counts
    engine.close()


def test_stages_sample_report_and_score_as_one_process_does(folder_of):
    folder, _ = folder_of("llama")

    def said(*arguments):
        engine = engine_of(folder, "--scored-layers", "1-2", *arguments)
        with Attached(engine) as worker:
            scheduler = greet(worker, blocks=40)
            scheduler.welcome()
            tokens = prompts(1)[0][:40]
            step = pb.Step(id=1, life=1, slots=[0], computed=[0], n_tokens=[40], sample=[1], n_blocks=[3], scored_rows=[4])
            step.blocks.extend(range(6))
            step.starts.add(index=0, request=1, tokens=tokens, n_prompt=40, sampling=hot(4, logprobs=3))
            scheduler.peer.send(step=step)
            done = scheduler.peer.receive("step_done")
        engine.close()
        return done

    one, two = said(), said("--pipeline-parallel", "2")
    assert list(one.tokens) == list(two.tokens) and len(one.scores) == 3
    assert list(one.scores) == pytest.approx(list(two.scores), abs=1e-5)
    assert one.logprobs[0].logprob == pytest.approx(two.logprobs[0].logprob, abs=1e-4)
    assert list(one.logprobs[0].top_ids) == list(two.logprobs[0].top_ids)


def test_sampled_tokens_do_not_depend_on_the_number_of_stages(folder_of):
    folder, _ = folder_of("llama")
    requests = [(prompt, hot(i // 2)) for i, prompt in enumerate(prompts(8))]
    one, two = (run(folder, requests, blocks=40, every=3, arguments=["--pipeline-parallel", n]) for n in "12")
    assert [s.tokens for s in one] == [s.tokens for s in two]


def hot(seed, **fields):
    return greedy(
        **{"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2, "seed": seed, **fields}
    )


def run(folder, requests, every=0, arguments=(), **options):
    engine = engine_of(folder, *arguments)
    with Attached(engine) as worker:
        scheduler = greet(worker, **options)
        scheduler.welcome()
        for prompt, sampling_of in requests:
            scheduler.add(prompt, 16, sampling_of)
        found = scheduler.run(every=every)
    engine.close()
    return found


def test_sampled_tokens_do_not_depend_on_batching_preemption_or_swap(folder_of):
    folder, _ = folder_of("llama")
    requests = [(prompt, hot(i // 2)) for i, prompt in enumerate(prompts(12))]
    quiet = run(folder, requests, blocks=200, max_running=1)
    loud = run(folder, requests, blocks=40, every=3)
    assert [s.tokens for s in quiet] == [s.tokens for s in loud]
    # Different seeds say different things.
    assert quiet[-1].prompt == quiet[-2].prompt
    other = run(folder, [(requests[-1][0], hot(77))])
    assert other[0].tokens != quiet[-1].tokens


def test_log_probabilities_are_those_of_the_model(folder_of):
    folder, model = folder_of("qwen2")
    seq, plain = run(folder, [(prompts(3)[0], greedy(logprobs=5)), (prompts(3)[1], greedy())])
    assert not plain.logprobs and len(seq.logprobs) == 16
    with torch.inference_mode():
        logits = model(torch.tensor([seq.tokens])).logits[0, len(seq.prompt) - 1 : -1]
    expected = logits.log_softmax(-1)
    for row, token, found in zip(expected, seq.tokens[len(seq.prompt) :], seq.logprobs, strict=True):
        assert found.logprob == pytest.approx(row[token].item(), abs=1e-3)
        assert list(found.top_ids) == row.topk(5).indices.tolist()
        assert list(found.top_logprobs) == pytest.approx(row.topk(5).values.tolist(), abs=1e-3)


def test_shares_of_drawn_tokens_are_the_models():
    """Draws tokens of one distribution many times, with each kind of truncation."""
    logits = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.08, 0.02]))
    for fields, expected in [
        ({}, [0.5, 0.25, 0.15, 0.08, 0.02]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0, 0]),
        ({"top_p": 0.8}, [5 / 9, 2.5 / 9, 1.5 / 9, 0, 0]),
        ({"min_p": 0.1}, [0.5 / 0.98, 0.25 / 0.98, 0.15 / 0.98, 0.08 / 0.98, 0]),
        ({"temperature": 0.5}, [x * x / 0.3454 for x in (0.5, 0.25, 0.15, 0.08, 0.02)]),
    ]:
        n = 4000
        batch = FakeBatch(n, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **fields})
        found = np.bincount(sampling.sample(logits.repeat(n, 1), batch, None).numpy(), minlength=5) / n
        assert found == pytest.approx(expected, abs=0.03), fields


class FakeBatch:
    def __init__(self, n, **fields):
        self.table = self
        self.slots = np.arange(n)
        self.sample = np.ones(n, bool)
        self.n_generated = np.arange(n, dtype=np.int32)
        self.seed = np.full(n, 9, np.uint64)
        self.penalty = np.ones(n, np.float32)
        self.frequency, self.presence = np.zeros(n, np.float32), np.zeros(n, np.float32)
        self.bias = {}
        for name, value in fields.items():
            setattr(self, name, np.full(n, value, np.int32 if name == "top_k" else np.float32))


def test_seen_tokens_get_the_penalty():
    batch = FakeBatch(2, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    batch.penalty[:] = 2.0
    logits = torch.tensor([[3.0, 2.0, -1.0], [-1.0, -3.0, -1.5]])
    seen = torch.tensor([[True, False, False], [True, False, False]])
    assert sampling.sample(logits, batch, seen).tolist() == [1, 2]


def test_generated_tokens_get_their_penalties_and_biases_come_first():
    batch = FakeBatch(3, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    batch.frequency[:], batch.presence[:] = [0.6, 0.0, 0.0], [0.0, 1.5, 0.0]
    logits = torch.tensor([[3.0, 2.0, 1.0]] * 3)
    said = torch.tensor([0, 0])
    assert sampling.sample(logits, batch, None, {0: said, 1: said}).tolist() == [1, 1, 0]
    assert sampling.sample(logits, batch, None, {0: said[:1], 1: said[:0]}).tolist() == [0, 0, 0]
    batch.bias = {0: {2: 100.0}, 2: {0: -100.0, 2: 1.5}}
    assert sampling.sample(logits, batch, None, {0: said, 1: said}).tolist() == [2, 1, 2]
    assert logits[0].tolist() == [3.0, 2.0, 1.0], "log probabilities are those of the model"


def test_scores_add_up_and_dropped_blocks_are_not_read(folder_of):
    """Layers 1 and 2 form a second group: their blocks are scored, then one of them is dropped."""
    folder, _ = folder_of("llama")
    with Attached(engine_of(folder, "--scored-layers", "1-2")) as worker:
        scheduler = greet(worker, blocks=20, block_size=16)
        assert [list(g.layers) for g in scheduler.hello.model.groups] == [[0], [1, 2]]
        assert scheduler.hello.model.kv_bytes_per_token == 2 * 2 * 2 * 2 * 16 * 4
        scheduler.welcome()
        tokens = prompts(1)[0][:40]
        step = pb.Step(id=1, life=1, slots=[0], computed=[0], n_tokens=[40], sample=[1], n_blocks=[3], scored_rows=[4])
        step.blocks.extend([0, 1, 2, 3, 4, 5])
        step.starts.add(index=0, request=1, tokens=tokens, n_prompt=40, sampling=greedy())
        scheduler.peer.send(step=step)
        scores = list(scheduler.peer.receive("step_done").scores)
        assert len(scores) == 3 and sum(scores) == pytest.approx(1.0, abs=1e-4) and min(scores) > 0
        # Block 4 goes; what it holds is nonsense from now on, and nobody may notice.
        nonsense = np.full(20 * 16, np.nan, np.float32).tobytes()
        size = scheduler.hello.model.kv_bytes_per_token // 2 * 16
        scheduler.peer.send(write_block=pb.WriteBlock(id=1, life=1, block=4, data=(nonsense * 100)[:size]))
        assert not scheduler.peer.receive("block_written").error
        step = pb.Step(id=2, life=1, slots=[0], computed=[40], n_tokens=[1], sample=[1], n_generated=[1], table_keep=[3])
        step.drops.add(index=0, group=1, first=1, n=1)
        step.scored_rows.append(1)
        step.score_kind = pb.SCORE_KIND_MAX
        scheduler.peer.send(step=step)
        scores = list(scheduler.peer.receive("step_done").scores)
        # Positions nearer than 32 do not count, and dropped ones have none.
        assert len(scores) == 3 and scores[0] > 0 and scores[1:] == [0, 0]
        # A hole that arrives in a new table is the same as a dropped entry.
        step = pb.Step(id=3, life=1, slots=[1], computed=[40], n_tokens=[1], sample=[0], n_blocks=[3])
        step.blocks.extend([0, 1, 2, 3, NO_BLOCK, 5])
        step.starts.add(index=0, request=2, tokens=[*tokens, 7, 8], n_prompt=40, sampling=greedy())
        scheduler.peer.send(step=step)
        assert not scheduler.peer.receive("step_done").tokens


def test_bf16_blocks_travel_as_they_are(folder_of):
    folder, _ = folder_of("llama")
    with Attached(engine_of(folder, "--dtype", "bf16")) as worker:
        scheduler = greet(worker)
        assert scheduler.hello.model.kv_dtype == "bf16"
        scheduler.welcome()
        scheduler.add(prompts(1)[0], 4)
        scheduler.step()
        block = scheduler.running[0].blocks[0]
        data = scheduler.read(block)
        scheduler.write(39, data)
        assert scheduler.read(39) == data and any(data)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, "sliding window"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor is 0.25"),
        ({"num_attention_heads": None}, "num_attention_heads is None; it must be a number"),
        ({"architectures": ["MistralForCausalLM"]}, "one of 4096 tokens: give --max-context 4096 or less"),
    ],
)
def test_models_that_do_not_fit_are_refused_by_name(tmp_path, change, what):
    base = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8,
        "num_attention_heads": 2,
        "vocab_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps({**base, **change}))
    with pytest.raises(ValueError, match=what):
        engine_of(tmp_path)


def test_room_below_a_block_is_refused(folder_of):
    folder, _ = folder_of("llama")
    with pytest.raises(ValueError, match=r"--kv-tokens 31: must be at least one block, which has 32 tokens"):
        engine_of(folder, "--kv-tokens", "31", "--block-size", "32")


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no model configuration"):
        engine_of(tmp_path)


def test_layers_are_named_by_ranges():
    assert parse_layers("1,3-4", 6) == (1, 3, 4)
    for wrong in ("0-5", "6", "3-2", "1,3-2", "2-99999999999"):
        with pytest.raises(ValueError, match="--scored-layers"):
            parse_layers(wrong, 6)
    for malformed in ("2-", "-2", "x", "1,", "1-2-3"):
        with pytest.raises(ValueError, match="numbers and ranges of layers are wanted"):
            parse_layers(malformed, 6)


def test_a_chunk_behind_a_computed_part_needs_no_mask():
    """The way taken on GPUs, where flash attention aligns the diagonal itself; here PyTorch makes the mask."""
    torch.manual_seed(2)
    rows, n, computed = torch.randn(6, 4, 16), 6, 21
    keys, values = torch.randn(2, 5, 8, 2, 16).unbind(0)
    blocks = torch.tensor([4, 0, 2, 3])
    mask = torch.arange(32) <= torch.arange(computed, computed + n)[:, None]
    masked = attention.Chunk(0, n, blocks, mask, causal=False, end=computed + n, hidden=None)
    aligned = attention.Chunk(0, n, blocks, None, causal=True, end=computed + n, hidden=None)
    found = [attention._attend_chunk(rows, keys, values, chunk) for chunk in (masked, aligned)]
    assert torch.allclose(*found, atol=1e-6)


def test_rows_are_drawn_in_parts_as_at_once(monkeypatch):
    logits = torch.randn(9, 40)
    batch = FakeBatch(9, temperature=1.0, top_k=0, top_p=0.9, min_p=0.0)
    batch.top_p[::2] = 1.0
    at_once = sampling.sample(logits, batch, None)
    monkeypatch.setattr(sampling, "DRAWN", 80)
    assert sampling.sample(logits, batch, None).tolist() == at_once.tolist()


def test_room_of_a_gpu_counts_the_blocks_of_all_groups(folder_of):
    folder, _ = folder_of("llama")
    one = engine_of(folder).model
    two = engine_of(folder, "--scored-layers", "1-2").model
    free = stages.RESERVE + (1 << 30)
    # Blocks of two layers, instead of blocks of three.
    assert stages.room(two, free) == pytest.approx(stages.room(one, free) * 3 / 2, rel=1e-5)
    assert stages.room(one, 1 << 20) == 0


def test_kernels_are_left_alone_on_the_cpu():
    assert not kernels.usable(torch.zeros(1, 64))
    assert config_of.Rope(10000.0).frequencies(8) == pytest.approx([1, 0.1, 0.01, 0.001])
