"""Answers with a structure from the torch engine: a model with random weights keeps to it, whatever batch, restart or device."""

import dataclasses
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

from test_torch_steps import CONFIG  # noqa: E402

from trunkline_worker.facts import KvFacts, Settings  # noqa: E402
from trunkline_worker.pipeline import portable  # noqa: E402
from trunkline_worker.proto import messages as pb  # noqa: E402
from trunkline_worker.results import Fault  # noqa: E402
from trunkline_worker.slots import SlotTable  # noqa: E402
from trunkline_worker.structures import Structures  # noqa: E402
from trunkline_worker.torch_engine import Torch, weights  # noqa: E402
from trunkline_worker.torch_engine import runner as runner_of  # noqa: E402
from trunkline_worker.torch_engine.build import model_facts  # noqa: E402

EOS, CONTEXT, BLOCKS = 257, 192, 24
BYTES = dataclasses.replace(CONFIG, vocab_size=258, max_context=CONTEXT)
SETTINGS = Settings(block_size=8, blocks=50 * BLOCKS, steps_in_flight=2)
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1, "maximum": 999},
        "kind": {"enum": ["buy", "sell"]},
        "notes": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
    },
    "required": ["id", "kind", "notes"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine():
    torch.set_num_threads(1)
    facts = model_facts(BYTES, "random", "1", "f32", CONTEXT, eos=(EOS,))
    loaded = weights.random(BYTES, torch.float32, torch.device("cpu"))
    structures = Structures([bytes([byte]) for byte in range(256)] + [b"\xff<s>", b"\xff</s>"], [EOS])
    kv = KvFacts((8,), SETTINGS.blocks * 8, True)
    made = runner_of.TorchEngine(BYTES, loaded, facts, kv, Torch.abilities, structures=structures)
    made.begin(SETTINGS)
    return made


class Driver:
    """Runs sequences in slots with blocks of their own, as the worker's threads do."""

    def __init__(self, engine):
        self.engine, self.n = engine, 0
        self.table = SlotTable(engine.model, SETTINGS, engine.structures)
        self.lengths = {}

    def start(self, slots, prompts, said=None, **sampling):
        """A batch that begins sequences; `said` are tokens that each has generated already."""
        step = pb.Step(id=self.n, slots=slots, sample=[1] * len(slots))
        for i, (slot, prompt) in enumerate(zip(slots, prompts, strict=True)):
            generated = said[i] if said else []
            start = step.starts.add(index=i, request=slot, tokens=[*prompt, *generated], n_prompt=len(prompt))
            options = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "seed": slot, **sampling}
            start.sampling.CopyFrom(pb.WorkerSampling(**options))
            step.n_tokens.append(len(start.tokens))
            step.n_generated.append(len(generated))
            step.n_blocks.append(BLOCKS)
            step.blocks.extend(range(slot * BLOCKS, (slot + 1) * BLOCKS))
            self.lengths[slot] = (len(start.tokens), len(generated))
        return self.table.apply(step)

    def decode(self, slots):
        step = pb.Step(
            id=self.n, slots=slots, sample=[1] * len(slots), n_tokens=[1] * len(slots), table_keep=[BLOCKS] * len(slots)
        )
        for slot in slots:
            length, generated = self.lengths[slot]
            step.computed.append(length)
            step.n_generated.append(generated + 1)
            self.lengths[slot] = (length + 1, generated + 1)
        return self.table.apply(step)

    def submit(self, batch):
        starts, wait = self.table.starts[batch.slots], self.engine.submit(batch)
        self.table.reserve(batch)
        self.n += 1

        def answered():
            result = wait()
            self.table.record(batch, starts, result.tokens)
            return result

        return answered

    def run(self, batch):
        return self.submit(batch)()

    def texts(self, slots, prompts, most=150, said=None, **sampling):
        """What each slot says until its end."""
        found = {slot: list(said[i]) if said else [] for i, slot in enumerate(slots)}
        live, batch = list(slots), self.start(slots, prompts, said, **sampling)
        while True:
            for slot, token in zip(live, self.run(batch).tokens, strict=True):
                found[slot].append(token)
            live = [slot for slot in live if found[slot][-1] != EOS and len(found[slot]) < most]
            if not live:
                return [found[slot] for slot in slots]
            batch = self.decode(live)


def prompt_of(slot):
    return [(7 * slot + i) % 250 for i in range(5)]


def schema(**more):
    return {"grammar": pb.WorkerGrammar(json_schema=json.dumps(ORDER | more))}


def test_all_of_two_hundred_random_answers_keep_to_a_schema(engine):
    for seed in range(4):
        slots = list(range(50))
        said = Driver(engine).texts(slots, [[seed, *prompt_of(slot)] for slot in slots], **schema())
        for tokens in said:
            assert tokens[-1] == EOS
            order = json.loads(bytes(tokens[:-1]))
            assert set(order) == {"id", "kind", "notes"} and order["kind"] in ("buy", "sell")
            assert 1 <= order["id"] <= 999 and all(len(note) <= 4 for note in order["notes"]) and len(order["notes"]) <= 3


def test_an_answer_is_the_same_alone_in_a_batch_and_after_a_restart(engine):
    slots = [3, 8, 21]
    prompts = [prompt_of(slot) for slot in slots]
    penalties = {"frequency_penalty": 0.5, "top_k": 40, "logit_bias": {ord("9"): 3.0}, **schema()}
    together = Driver(engine).texts(slots, prompts, **penalties)
    for slot, prompt, tokens in zip(slots, prompts, together, strict=True):
        assert Driver(engine).texts([slot], [prompt], **penalties)[0] == tokens
        for n in (1, len(tokens) // 2, len(tokens) - 1):
            assert Driver(engine).texts([slot], [prompt], said=[tokens[:n]], **penalties)[0] == tokens


def test_sequences_without_a_structure_stay_as_they_are(engine):
    driver = Driver(engine)
    plain = [driver.texts([slot], [prompt_of(slot)], most=12)[0] for slot in (1, 2)]
    mixed = Driver(engine)
    batch = mixed.start([1, 2], [prompt_of(1), prompt_of(2)])
    free = mixed.table.apply(with_structure(4, {"regex": "(ab)+"}))
    said = {slot: [token] for slot, token in zip([1, 2], mixed.run(batch).tokens, strict=True)}
    structured = [mixed.run(free).tokens[0]]
    mixed.lengths[4] = (1, 0)
    for _ in range(11):
        tokens = mixed.run(mixed.decode([1, 4, 2])).tokens
        said[1].append(tokens[0])
        structured.append(tokens[1])
        said[2].append(tokens[2])
    assert list(said.values()) == plain
    assert bytes(token for token in structured if token != EOS).startswith(b"ab")


def with_structure(slot, grammar):
    step = pb.Step(id=99, slots=[slot], sample=[1], n_tokens=[1], n_blocks=[BLOCKS], n_generated=[0])
    step.blocks.extend(range(slot * BLOCKS, (slot + 1) * BLOCKS))
    start = step.starts.add(index=0, request=slot, tokens=[65], n_prompt=1)
    start.sampling.CopyFrom(pb.WorkerSampling(top_p=1.0, repetition_penalty=1.0, grammar=pb.WorkerGrammar(**grammar)))
    return step


def test_a_sequence_whose_structure_cannot_go_on_fails_alone(engine):
    driver = Driver(engine)
    batch = driver.start([5, 6], [prompt_of(5), prompt_of(6)], temperature=0.0, logprobs=1, grammar=pb.WorkerGrammar(regex="a+"))
    driver.table.answers[5] = engine.structures.begin(pb.WorkerGrammar(regex="("), 5, [])
    result = driver.run(batch)
    assert result.faults == {0: Fault.UNSUPPORTED} and result.tokens[1] == ord("a")
    # The log probability is that of the model's own logits.
    assert len(result.logprobs) == 1 and result.logprobs[0].logprob < -1
    # A step that was under way runs on.
    assert driver.run(driver.decode([5, 6])).faults == {0: Fault.UNSUPPORTED}


def test_a_slot_that_another_request_takes_has_its_structure_alone(engine):
    driver = Driver(engine)
    driver.texts([7], [prompt_of(7)], grammar=pb.WorkerGrammar(regex="x{3}"))
    free = driver.texts([7], [prompt_of(7)], most=3)
    assert driver.table.answers == {} and free != [[ord("x")] * 3]
    assert driver.texts([7], [prompt_of(7)], grammar=pb.WorkerGrammar(regex="y{3}")) == [[ord("y")] * 3 + [EOS]]


def test_a_batch_for_stages_takes_its_masks_along(engine):
    driver = Driver(engine)
    batch = driver.start([0, 1], [prompt_of(0), prompt_of(1)], grammar=pb.WorkerGrammar(regex="[pq]"))
    sent = portable(batch)
    driver.start([0], [prompt_of(0)])
    allowed = sent.allowed()
    assert allowed.rows.tolist() == [0, 1] and allowed.stuck == []
    assert [np.flatnonzero(np.unpackbits(row, bitorder="little")).tolist() for row in allowed.bits] == [[112, 113]] * 2


def test_a_step_behind_one_that_still_runs_waits_for_its_samples_alone(engine, monkeypatch):
    """An engine that takes its own samples, as on a GPU: the second step is submitted before the first is answered."""
    alone = Driver(engine).texts([2, 9], [prompt_of(2), prompt_of(9)], **schema())
    events = []

    class Event:
        def record(self):
            self.passes = engine.passes

        def synchronize(self):
            events.append(engine.passes - self.passes)

    forward = engine._forward

    def counted(batch):
        engine.passes += 1
        return forward(batch)

    monkeypatch.setattr(engine, "passes", 0, raising=False)
    monkeypatch.setattr(engine, "_forward", counted)
    monkeypatch.setattr(engine, "own_samples", True)
    monkeypatch.setattr(engine, "_sent", lambda values: values)
    monkeypatch.setattr(engine, "_on_device", runner_of.contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    driver = Driver(engine)
    before = driver.submit(driver.start([2, 9], [prompt_of(2), prompt_of(9)], **schema()))
    said = []
    for _ in range(24):
        after = driver.submit(driver.decode([2, 9]))
        # The pass of the second step was submitted before the end of the first was waited for.
        assert events[-1] == 1
        said.append(before().tokens)
        before = after
    for row, tokens in enumerate(alone):
        assert [step[row] for step in said][: len(tokens)] == tokens[:24]
