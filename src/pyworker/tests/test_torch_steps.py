"""Steps of the torch engine without transformers: uploads, failures of a device, and memory that runs out."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from safetensors.torch import save_file  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from trunkline_worker.facts import KvFacts, Settings  # noqa: E402
from trunkline_worker.pipeline import portable  # noqa: E402
from trunkline_worker.proto import messages as pb  # noqa: E402
from trunkline_worker.results import EngineLost, Fault, StepError  # noqa: E402
from trunkline_worker.slots import SlotTable  # noqa: E402
from trunkline_worker.structures import Allowed  # noqa: E402
from trunkline_worker.torch_engine import (  # noqa: E402
    Torch,
    attention,
    failures,
    graphs,
    kernels,
    sampling,
    stages,
    weights,
)
from trunkline_worker.torch_engine import config as config_of  # noqa: E402
from trunkline_worker.torch_engine import runner as runner_of  # noqa: E402
from trunkline_worker.torch_engine.build import layer_groups, model_facts  # noqa: E402
from trunkline_worker.torch_engine.config import LlamaConfig, Rope  # noqa: E402

SETTINGS = Settings(block_size=8, blocks=24, steps_in_flight=2)
CONFIG = LlamaConfig(
    family="llama",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    max_context=64,
    norm_eps=1e-5,
    rope=Rope(10_000.0),
    tied=False,
    dtype="f32",
)


GROUPS = layer_groups((1,), 2)


def made(device="cpu", groups=GROUPS, **options):
    """An engine with random weights that has begun."""
    facts = model_facts(CONFIG, "random", "1", "f32", CONFIG.max_context, groups=groups)
    loaded = weights.random(CONFIG, torch.float32, torch.device("cpu"))
    for part in (loaded, *loaded.layers):
        vars(part).update({name: t.to(device) for name, t in vars(part).items() if isinstance(t, torch.Tensor)})
    found = runner_of.TorchEngine(CONFIG, loaded, facts, KvFacts((8,), 24 * 8, True), Torch.abilities, **options)
    found.begin(SETTINGS)
    return found


def step(number, rows, **columns):
    """A step that starts a sequence of `tokens` for each (slot, tokens), in blocks of its own, and samples."""
    n = len(rows)
    found = pb.Step(id=number, life=1, slots=[slot for slot, _ in rows], sample=[1] * n, **columns)
    for i, (slot, tokens) in enumerate(rows):
        entries = -(-len(tokens) // 8) + 1
        found.n_tokens.append(len(tokens))
        found.n_blocks.append(entries)
        # Both layer groups have blocks of their own.
        found.blocks.extend(range(slot * 8, slot * 8 + 2 * entries))
        start = found.starts.add(index=i, request=100 + slot, tokens=tokens, n_prompt=len(tokens))
        start.sampling.CopyFrom(pb.WorkerSampling(temperature=0.8, top_k=9, top_p=0.9, min_p=0.1, repetition_penalty=1.1))
        start.sampling.logprobs = 2
    return found


def table_of(runner):
    return SlotTable(runner.model, SETTINGS)


class Uploads(TorchDispatchMode):
    """Counts copies to the device, and those that wait for it."""

    def __init__(self):
        super().__init__()
        self.n, self.waiting = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("meta"):
            self.n += 1
            if not kwargs.get("non_blocking"):
                self.waiting.append(args[0].shape)
        return func(*args, **kwargs)


def test_nothing_that_a_step_uploads_is_waited_for():
    """A device without memory stands for a GPU: a copy that waits there would wait for the step before."""
    runner = made("meta")
    runner.own_samples = True
    table = table_of(runner)
    first = table.apply(step(1, [(0, [3, 4, 5, 6]), (1, [7])], scored_rows=[2, 1]))
    table.reserve(first)
    more = {"n_generated": [1, 1], "table_keep": [2, 2], "scored_rows": [1, 1], "kv_write_from": [4, 2]}
    second = table.apply(pb.Step(id=2, life=1, slots=[0, 1], computed=[4, 1], n_tokens=[1, 1], sample=[1, 1], **more))
    with Uploads() as uploads, torch.no_grad():
        for batch in (first, second):
            before = uploads.n
            rows = runner._rows(batch)
            assert uploads.n == before + 1
            scorers = attention.all_scorers(batch, runner.model, 8, runner.device)
            logits, _ = runner._llama.forward(rows, attention.over(batch, runner._cache, scorers))
            allowed = Allowed(np.array([1]), np.full((1, 8), 0x55, np.uint8), [])
            picked = sampling.sample(logits, batch, runner._seen_in(batch), allowed=allowed)
            runner._remember(batch, picked)
            sampling.log_probabilities(logits, picked, batch)
    assert uploads.n > 20 and uploads.waiting == []


def test_an_error_of_a_gpu_that_runs_nothing_after_it_ends_the_worker():
    """There is no GPU here, so every call of this one fails, as after an illegal access of a kernel."""
    runner = made()
    batch = table_of(runner).apply(step(1, [(0, [3, 4, 5])]))
    runner.device = torch.device("cuda:0")
    with pytest.raises(EngineLost, match="cuda:0 runs nothing any more, start this worker again: "):
        runner.submit(batch)


def test_an_error_of_a_device_that_still_answers_fails_the_step_alone(monkeypatch):
    error = torch.OutOfMemoryError("no memory")
    monkeypatch.setattr(failures, "answers", lambda device: True)
    assert failures.judged(error, torch.device("cuda:0")) is error
    monkeypatch.setattr(failures, "answers", lambda device: False)
    assert failures.judged(error, torch.device("cpu")) is error
    assert isinstance(failures.judged(error, torch.device("cuda:0")), EngineLost)
    refused = StepError("a bad step")
    assert failures.judged(refused, torch.device("cuda:0")) is refused


def gathered(q, keys, values, blocks, ends):
    """Stands for the kernel on a CPU."""
    n, heads, dim = q.shape
    k, v = (attention.gather(x, blocks) for x in (keys, values))
    mask = (torch.arange(k.shape[2]) < ends[:, None]) & (blocks >= 0).repeat_interleave(keys.shape[1], 1)
    grouped = q.view(n, keys.shape[2], -1, dim)
    return torch.nn.functional.scaled_dot_product_attention(grouped, k, v, attn_mask=mask[:, None, None]).reshape(n, heads, dim)


def failing(*_):
    raise RuntimeError("Failed to find C compiler.\nSpecify one by CC")


@pytest.mark.parametrize(
    ("kernel", "warning"),
    [
        (gathered, None),
        (failing, "which fails on cpu: Failed to find C compiler."),
        (lambda *given: gathered(*given) * 1.2, "which differs from PyTorch's attention by"),
        (lambda *given: gathered(*given) * torch.nan, "which differs from PyTorch's attention by nan"),
    ],
)
def test_a_kernel_that_does_not_work_is_found_at_the_start(monkeypatch, caplog, kernel, warning):
    monkeypatch.setattr(kernels, "usable", lambda like: True)
    monkeypatch.setattr(kernels, "paged_decode", kernel)
    runner = made(graphs=False)
    assert runner._cache.in_place == (warning is None)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (warning is not None) and all(warning in line for line in warnings)
    # Decodes run either way.
    table = table_of(runner)
    for message in (step(1, [(0, [3, 4, 5])]), decode(2, computed=[3])):
        batch = table.apply(message)
        result = runner.run(batch)
        table.reserve(batch)
        table.record(batch, table.starts[batch.slots], result.tokens)
    assert len(result.tokens) == 1


def decode(number, **columns):
    """A step that decodes in slot 0."""
    return pb.Step(id=number, life=1, slots=[0], n_tokens=[1], sample=[1], table_keep=[2], **columns)


def test_graphs_are_few_and_the_largest_comes_first():
    found = graphs.shapes(256, 8192)
    assert len(found) == len(set(found)) == 36 and found[0] == (256, 8192)
    assert {width for _, width in found} == {512, 2048, 8192}
    assert graphs.shapes(3, 5) == [(3, 5), (2, 5), (1, 5)]
    assert graphs.shapes(10_000, 1)[0] == (graphs.MOST_SEQUENCES, 1)


def test_a_batch_runs_in_the_smallest_graph_with_room_for_it():
    found = graphs.shapes(48, 64)
    assert graphs.fitting(found, 1, 1) == (1, 16)
    assert graphs.fitting(found, 17, 17) == (32, 64)
    assert graphs.fitting(found, 49, 1) is graphs.fitting(found, 1, 65) is graphs.fitting([], 1, 1) is None


class Repeated(graphs.DecodeGraphs):
    """Repeats the forward pass of a graph on a CPU, where none can be captured."""

    def _recorded(self, forward):
        out = forward()
        return (lambda: out.copy_(forward())), out


def decoded(monkeypatch, use_graphs, before=lambda runner: None):
    """Tokens of two sequences over three decodes, and the engine."""
    monkeypatch.setattr(kernels, "usable", lambda like: True)
    monkeypatch.setattr(kernels, "paged_decode", gathered)
    monkeypatch.setattr(runner_of, "DecodeGraphs", Repeated)
    runner = made(graphs=use_graphs)
    table, tokens = table_of(runner), []
    for i in range(4):
        columns = {"n_generated": [i, i], "computed": [2 + i, i]} if i else {}
        message = pb.Step(id=i + 1, life=1, slots=[0, 1], n_tokens=[1, 1], sample=[1, 1], table_keep=[2, 2], **columns)
        batch = table.apply(message if i else step(1, [(0, [3, 4, 5]), (1, [9])]))
        if i == 2:
            before(runner)
        tokens.append(runner.run(batch).tokens)
        table.reserve(batch)
        table.record(batch, table.starts[batch.slots], tokens[-1])
    return tokens, runner


def test_graphs_say_what_eager_steps_say(monkeypatch):
    eager, without = decoded(monkeypatch, use_graphs=False)
    found, runner = decoded(monkeypatch, use_graphs=True)
    assert without._graphs is None and len(runner._graphs._graphs) == len(graphs.shapes(256, 8))
    assert found == eager
    # A shape without a graph runs eagerly.
    assert decoded(monkeypatch, use_graphs=True, before=lambda runner: runner._graphs._graphs.clear())[0] == eager


def test_graphs_are_dropped_if_memory_runs_out_and_the_step_runs_again(monkeypatch):
    eager, _ = decoded(monkeypatch, use_graphs=False)

    def fail(runner):
        def run(batch, rows):
            runner._llama.layers(runner._llama.embed(rows), rows, attention.over(batch, runner._cache, [[], []]))
            raise torch.OutOfMemoryError("no memory")

        runner._graphs.run = run

    found, runner = decoded(monkeypatch, use_graphs=True, before=fail)
    assert found == eager and runner._graphs is None


def test_graphs_that_cannot_be_captured_leave_the_engine_eager(monkeypatch, caplog):
    monkeypatch.setattr(Repeated, "_recorded", failing)
    _, runner = decoded(monkeypatch, use_graphs=True)
    assert runner._graphs is None
    assert "decodes run without CUDA graphs: Failed to find C compiler." in caplog.text


def test_room_of_a_gpu_counts_the_graphs():
    facts = made().model
    other = graphs.memory(facts, 256, 8)
    free = stages.RESERVE + (1 << 30)
    assert graphs.WORKSPACE < other < graphs.WORKSPACE + (128 << 20)
    assert stages.room(facts, free) - stages.room(facts, free, other) == pytest.approx(
        other / (facts.kv_bytes_per_token / 2), abs=1
    )


def after(table, batch, tokens):
    """Enters what a batch sampled, and returns the tokens."""
    table.reserve(batch)
    table.record(batch, table.starts[batch.slots], tokens)
    return tokens


def spoiled(change, groups=GROUPS):
    """An engine whose model computes NaN for token 7, and the same without."""
    found = []
    for bad in (True, False):
        torch.manual_seed(5)
        runner = made(groups=groups)
        if bad:
            change(runner._llama.weights.embedding)
        found.append(runner)
    return found


def blank(embedding):
    embedding[7] = torch.nan


def test_a_sequence_that_is_not_finite_fails_alone_and_leaves_nothing_behind():
    runner, sound = spoiled(blank)
    table, alone = table_of(runner), table_of(sound)
    batch = table.apply(step(1, [(1, [3, 4, 5]), (0, [6, 7, 8, 9, 10]), (2, [9])], scored_rows=[1, 1, 0]))
    result = runner.run(batch)
    expected = sound.run(alone.apply(step(1, [(1, [3, 4, 5]), (2, [9])], scored_rows=[1, 0])))
    assert result.faults == {1: Fault.NOT_FINITE}
    assert ([result.tokens[0], result.tokens[2]], result.logprobs) == (expected.tokens, expected.logprobs)
    assert not runner._cache.data.isfinite().all()
    after(table, batch, result.tokens)
    # The next sequences take its blocks, and places behind their ends are gathered under a mask.
    for slot in (0, 3):
        begin = step(2, [(slot, [3, 4, 5])])
        begin.ClearField("blocks")
        begin.blocks.extend(range(4))
        batch = table.apply(begin)
        first = after(table, batch, runner.run(batch).tokens)
        decoded = runner.run(
            table.apply(pb.Step(id=3, life=1, slots=[slot], computed=[3], n_tokens=[1], sample=[1], table_keep=[2]))
        )
        assert (first, decoded.faults, len(decoded.tokens)) == (expected.tokens[:1], {}, 1)


def test_a_chunk_that_is_not_finite_is_found_before_a_token_is_sampled():
    runner, _ = spoiled(blank)
    table = table_of(runner)
    message = step(1, [(0, list(range(1, 12))), (1, [3, 4])])
    message.n_tokens[0], message.sample[0] = 8, 0
    batch = table.apply(message)
    assert runner.run(batch).faults == {0: Fault.NOT_FINITE}


def test_a_hole_reads_no_block_of_others():
    """What is gathered in the place of a dropped entry is hidden by a mask, which does not hide NaN."""
    runner, sound = spoiled(blank)
    tokens = list(range(8, 28))
    said = []
    for one in (runner, sound):
        table = table_of(one)
        # Block 0 is the failing sequence's.
        one.run(table.apply(step(1, [(0, [7, 8]), (2, tokens)])))
        columns = {"slots": [2], "table_keep": [4], "computed": [18], "sample": [1]}
        for n in (1, 2):
            batch = table.apply(
                pb.Step(
                    id=2,
                    life=1,
                    n_tokens=[n],
                    drops=[pb.Drop(index=0, group=1, first=1, n=1)],
                    **{**columns, "computed": [20 - n]},
                )
            )
            said.append(one.run(batch).tokens)
    assert said[:2] == said[2:]


def test_a_stage_fails_a_sequence_likewise(tmp_path):
    saved(tmp_path)
    facts = made().model
    stage = stages.TorchStage(tmp_path, CONFIG, facts, stages.Part(range(2), "cpu", 1))
    stage.begin(SETTINGS)
    stage._llama.weights.embedding[7] = torch.nan
    result = stage.run(portable(table_of(made()).apply(step(1, [(0, [6, 7, 8]), (1, [3])]))), None)
    assert result.faults == {0: Fault.NOT_FINITE} and len(result.logprobs) == 1


def named(found):
    """The tensors of a model by the names of Hugging Face."""
    tensors = {"model.embed_tokens.weight": found.embedding, "model.norm.weight": found.norm, "lm_head.weight": found.head}
    for i, layer in enumerate(found.layers):
        q, k, v = layer.qkv.split([32, 16, 16])
        gate, up = layer.gate_up.chunk(2)
        parts = {
            "input_layernorm": layer.norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.out,
            "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
        }
        tensors.update({f"model.layers.{i}.{name}.weight": part for name, part in parts.items()})
    return {name: part.clone() for name, part in tensors.items()}


def saved(folder, change=lambda tensors: None, name="model.safetensors"):
    """Saves a model at random in a folder, with a change."""
    tensors = named(weights.random(CONFIG, torch.float32, torch.device("cpu")))
    change(tensors)
    save_file(tensors, folder / name)


def loaded(folder, layers=None):
    return weights.load(folder, CONFIG, torch.float32, torch.device("cpu"), layers)


LAYER = "model.layers.1."


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: t.update({LAYER + "mlp.extra.weight": torch.ones(2)}), f"knows no tensor {LAYER}mlp.extra.weight"),
        (lambda t: t.update({LAYER + "self_attn.q_norm.weight": torch.ones(8)}), f"knows no tensor {LAYER}self_attn.q_norm"),
        (lambda t: t.update({"model.layers.2.norm.weight": torch.ones(2)}), "knows no tensor model.layers.2.norm.weight"),
        (lambda t: t.update({"model.embed_tokens.weight": torch.ones(63, 32)}), r"has shape \[63, 32\], and .* \[64, 32\]"),
        (lambda t: t.update({LAYER + "mlp.down_proj.bias": torch.ones(31)}), r"has shape \[31\], and .* \[32\]"),
        (lambda t: t.update({LAYER + "input_layernorm.weight": torch.ones(32).to(torch.int8)}), "is of torch.int8"),
        (lambda t: t.pop(LAYER + "mlp.up_proj.weight"), f"no tensor {LAYER}mlp.up_proj.weight"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_refused_by_name(tmp_path, change, what):
    saved(tmp_path, change)
    with pytest.raises(ValueError, match=what):
        loaded(tmp_path)


def test_weights_that_follow_from_others_or_belong_to_other_stages_are_left(tmp_path):
    saved(tmp_path, lambda t: t.update({LAYER + "self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert len(loaded(tmp_path).layers) == 2
    assert [len(loaded(tmp_path, range(i, i + 1)).layers) for i in range(2)] == [1, 1]


def test_layers_with_biases_add_them(tmp_path):
    biases = {LAYER + f"mlp.{name}_proj.bias": torch.randn(n) for name, n in (("gate", 48), ("up", 48), ("down", 32))}
    saved(tmp_path, lambda tensors: tensors.update(biases))
    layer = loaded(tmp_path).layers[1]
    assert torch.equal(layer.gate_up_bias, torch.cat(list(biases.values())[:2]))
    assert torch.equal(layer.down_bias, biases[LAYER + "mlp.down_proj.bias"])


def test_files_are_those_of_the_index(tmp_path):
    with pytest.raises(ValueError, match=r"no \*\.safetensors"):
        weights.files(tmp_path)
    saved(tmp_path, name="b.safetensors")
    assert [path.name for path in weights.files(tmp_path)] == ["b.safetensors"]
    saved(tmp_path)
    assert [path.name for path in weights.files(tmp_path)] == ["model.safetensors"]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "b.safetensors", "y": "b.safetensors"}}))
    assert [path.name for path in weights.files(tmp_path)] == ["b.safetensors"]
    for wrong in ({"weight_map": {"x": "c.safetensors"}}, {"weight_map": {"x": "../b.safetensors"}}, {}, []):
        index.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=r"index\.json: "):
            weights.files(tmp_path)


def test_windows_and_heads_are_those_of_the_family():
    def parsed(name, **fields):
        sizes = {"num_attention_heads": 32, "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 8, "intermediate_size": 8}
        return config_of.parse({"architectures": [f"{name}ForCausalLM"], **sizes, **fields})

    found = {name: parsed(name) for name in ("Llama", "Mistral", "Qwen2", "Qwen3")}
    assert [config.n_kv_heads for config in found.values()] == [32, 8, 32, 32]
    assert [config.head_dim for config in found.values()] == [2, 2, 2, 128]
    assert [config.max_context for config in found.values()] == [2048, 131_072, 32_768, 32_768]
    assert [config.window for config in found.values()] == [None, 4096, None, None]
    assert parsed("Mistral", num_key_value_heads=None, sliding_window=None).n_kv_heads == 32
    windowed = {"sliding_window": 99, "use_sliding_window": True}
    cases = [({"max_window_layers": 4}, None), ({"max_window_layers": 3}, 99), ({}, None), ({"use_sliding_window": False}, None)]
    cases += [({"layer_types": ["full_attention"] * 4}, None), ({"layer_types": ["sliding_attention"] * 4}, 99)]
    for fields, window in cases:
        assert parsed("Qwen3", **{**windowed, **fields}).window == window
    assert parsed("Llama", **windowed).window is parsed("Mistral", sliding_window=None).window is None


def test_log_probabilities_are_ranked_in_parts_as_at_once(monkeypatch):
    rows = [(slot, [3 + slot, 9]) for slot in range(3)]
    runner = made()
    # Equal tokens are ranked by their ids.
    runner._llama.weights.head[10:20] = runner._llama.weights.head[10]
    at_once = runner.run(table_of(runner).apply(step(1, rows)))
    sizes = []
    plain = sampling._ranked
    monkeypatch.setattr(sampling, "_ranked", lambda *given: sizes.append(len(given[2])) or plain(*given))
    monkeypatch.setattr(sampling, "DRAWN", 2 * CONFIG.vocab_size)
    assert runner.run(table_of(runner).apply(step(1, rows))) == at_once and sizes == [2, 1]


def test_room_of_a_gpu_counts_the_rows_of_the_largest_step():
    few, many = (stages.activations(CONFIG, n, "bf16") for n in (1, 1000))
    assert many == 1000 * few == 1000 * 2 * (3 * 48 + 2 * 32 + 4 * 32)


@pytest.mark.parametrize("kind", [pb.SCORE_KIND_MAX, pb.SCORE_KIND_MEAN])
def test_rows_are_scored_in_parts_as_at_once(monkeypatch, kind):
    runner = made()
    message = step(1, [(0, list(range(3, 60))), (1, [9])], scored_rows=[50, 1], score_kind=kind)
    # Blocks of their own for the longer sequence.
    del message.blocks[:]
    message.blocks.extend(range(2 * sum(message.n_blocks)))
    at_once = runner.run(table_of(runner).apply(message)).scores
    assert len(at_once) == 9 and max(at_once) > 0
    # Two rows of 64 positions and 4 heads.
    monkeypatch.setattr(attention, "SCORED", 2 * 64 * 4)
    assert runner.run(table_of(runner).apply(message)).scores == pytest.approx(at_once, abs=1e-6)
