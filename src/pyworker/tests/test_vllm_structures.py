"""Answers with a structure from the vllm engine: vLLM's sampler gets the masks of the worker's threads."""

import json
import os

import numpy as np
import pytest

os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import torch  # noqa: E402

from trunkline_worker.cli import build, parse  # noqa: E402
from trunkline_worker.facts import Settings  # noqa: E402
from trunkline_worker.proto import messages as pb  # noqa: E402
from trunkline_worker.results import Fault  # noqa: E402
from trunkline_worker.slots import SlotTable  # noqa: E402
from trunkline_worker.vocabulary import _BYTE_OF as BYTE_OF  # noqa: E402

EOS = 256
SETTINGS = Settings(block_size=32, blocks=36, steps_in_flight=1)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 99}, "kind": {"enum": ["buy", "sell"]}},
    "required": ["n", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with random weights and a token for each byte."""
    made = tmp_path_factory.mktemp("bytes")
    shape = {"hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        vocab_size=257, num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=EOS, **shape
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(made)
    vocab = dict(BYTE_OF)
    added = [{"id": EOS, "content": "</s>", "special": True}]
    tokenizer = {"decoder": {"type": "ByteLevel"}, "model": {"vocab": vocab}, "added_tokens": added}
    (made / "tokenizer.json").write_text(json.dumps(tokenizer))
    return made


@pytest.fixture(scope="module")
def engine(folder):
    arguments = ["--engine", "vllm", "--model", str(folder), "--connect", "x:1", "--eager", "--kv-tokens", "1280"]
    made = build(parse([*arguments, "--threads", "1"]))
    made.begin(SETTINGS)
    yield made
    made.close()


class Driver:
    def __init__(self, engine):
        self.engine, self.table, self.n, self.said = engine, SlotTable(engine.model, SETTINGS, engine.structures), 0, {}
        engine.reset()

    def run(self, step):
        batch = self.table.apply(step)
        starts, wait = self.table.starts[batch.slots], self.engine.submit(batch)
        self.table.reserve(batch)
        result = wait()
        self.table.record(batch, starts, result.tokens)
        for slot, token in zip(batch.slots.tolist(), result.tokens, strict=True):
            self.said[slot].append(token)
        return result

    def start(self, samplings):
        """Begins a sequence with a prompt of its own and four blocks in each slot."""
        self.n += 1
        step = pb.Step(id=self.n, slots=list(samplings), sample=[1] * len(samplings))
        for i, (slot, sampling) in enumerate(samplings.items()):
            start = step.starts.add(index=i, request=slot, tokens=[slot + 65, 66, 67], n_prompt=3)
            start.sampling.CopyFrom(pb.WorkerSampling(**{"top_p": 1.0, "repetition_penalty": 1.0, "seed": slot, **sampling}))
            step.n_tokens.append(3)
            step.n_blocks.append(4)
            step.blocks.extend(range(slot * 4, slot * 4 + 4))
            self.said[slot] = []
        return self.run(step)

    def decode(self, slots):
        self.n += 1
        step = pb.Step(id=self.n, slots=slots, sample=[1] * len(slots), n_tokens=[1] * len(slots), table_keep=[4] * len(slots))
        step.computed.extend(2 + len(self.said[slot]) for slot in slots)
        step.n_generated.extend(len(self.said[slot]) for slot in slots)
        return self.run(step)


def grammar(**of):
    return {"grammar": pb.WorkerGrammar(**of)}


def test_it_is_announced(engine):
    assert engine.abilities.grammars


def test_all_of_two_hundred_random_answers_keep_to_a_schema(engine):
    for turn in range(25):
        driver, slots = Driver(engine), list(range(8))
        sampling = {"temperature": 1.0, **grammar(json_schema=json.dumps(SCHEMA))}
        driver.start({slot: sampling | {"seed": 8 * turn + slot} for slot in slots})
        while slots := [slot for slot in slots if driver.said[slot][-1] != EOS and len(driver.said[slot]) < 120]:
            driver.decode(slots)
        for said in driver.said.values():
            order = json.loads(bytes(said[:-1]))
            assert said[-1] == EOS and set(order) == {"n", "kind"} and 1 <= order["n"] <= 99


def test_others_in_the_batch_stay_as_they_are(engine):
    plain = Driver(engine)
    plain.start({0: {}, 2: {}})
    for _ in range(13):
        plain.decode([0, 2])
    mixed = Driver(engine)
    mixed.start({0: {}, 1: grammar(regex="(ab){20}"), 2: {}})
    for _ in range(12):
        # The order of the batch in vLLM is its own.
        mixed.decode([2, 1, 0])
    # Without the structured one the rest goes on without its mask.
    mixed.decode([0, 2])
    assert (mixed.said[0], mixed.said[2]) == (plain.said[0], plain.said[2])
    assert bytes(mixed.said[1]) == b"abababababababababababababab"[:13]


def test_log_probabilities_are_those_of_the_model(engine):
    free = Driver(engine).start({3: {"logprobs": 5}}).logprobs[0]
    held = Driver(engine).start({3: {"logprobs": 5, **grammar(regex="[xyz]")}})
    assert held.tokens[0] in b"xyz"
    assert held.logprobs[0].top_ids == free.top_ids
    assert np.allclose(held.logprobs[0].top_logprobs, free.top_logprobs)


def test_a_sequence_whose_structure_cannot_go_on_fails_alone(engine):
    driver = Driver(engine)
    result = driver.start({4: grammar(regex="("), 5: grammar(regex="a+")})
    assert result.faults == {0: Fault.UNSUPPORTED} and result.tokens[1] == ord("a")
    assert driver.decode([5]).faults == {}
