"""The torch engine draws, and answers, what the embedded worker does: both read the files of tests/conformance."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from test_draws import GOLDEN, golden  # noqa: E402

from trunkline_worker.cli import build, parse  # noqa: E402
from trunkline_worker.facts import Settings  # noqa: E402
from trunkline_worker.proto import messages as pb  # noqa: E402
from trunkline_worker.slots import SlotTable  # noqa: E402
from trunkline_worker.torch_engine import sampling  # noqa: E402

FOLDER = GOLDEN.parent
TOLERANCE = 2e-4
"""Largest difference of log probabilities."""
CHECKPOINTS = sorted(path.parent.name for path in FOLDER.glob("*/expected.json") if "yarn" not in path.parent.name)
"""The engine refuses YaRN by name."""


class Draws:
    """A batch that draws one token for each golden draw of a case."""

    def __init__(self, case, vocabulary):
        n = len(case["draws"])
        self.table = self
        self.slots, self.sample = np.arange(n), np.ones(n, bool)
        self.n_generated = np.array([n for n, _ in case["draws"]], np.int32)
        self.seed = np.full(n, case["seed"], np.uint64)
        self.top_k = np.full(n, min(case["top_k"], vocabulary), np.int32)
        self.penalty = np.full(n, case["repetition_penalty"], np.float32)
        for name in ("temperature", "top_p", "min_p"):
            setattr(self, name, np.full(n, case[name], np.float32))
        changes = case.get("changes", {})
        self.frequency = np.full(n, changes.get("frequency_penalty", 0), np.float32)
        self.presence = np.full(n, changes.get("presence_penalty", 0), np.float32)
        self.bias = {i: dict(changes.get("logit_bias", [])) for i in range(n)}
        self.generated = {i: torch.tensor(changes["generated"], dtype=torch.int64) for i in range(n) if changes}


def test_draws_are_golden():
    found = golden()
    for case in found["cases"]:
        logits = torch.from_numpy(found["logits"][case["logits"]])
        batch = Draws(case, len(logits))
        rows = logits.repeat(len(case["draws"]), 1)
        seen = torch.zeros_like(rows, dtype=torch.bool)
        seen[:, case["seen"]] = True
        with np.errstate(over="ignore"):
            picked = sampling.sample(rows, batch, seen if case["repetition_penalty"] != 1 else None, batch.generated)
        assert picked.tolist() == [token for _, token in case["draws"]], case


def engine_of(name):
    arguments = ["--engine", "torch", "--model", str(FOLDER / name), "--connect", "x:1", "--device", "cpu", "--dtype", "f32"]
    engine = build(parse(arguments))
    engine.begin(SETTINGS)
    return engine


SETTINGS = Settings(block_size=16, blocks=64, steps_in_flight=1)


def said(engine, prompt, n, chunk=32, **parameters):
    """Tokens after a prompt, run alone in chunks, with their log probabilities."""
    # As `work.py` does for each new table, whose starts count from 1 again: else tokens of the run before get the penalty.
    engine.forget_slots()
    table = SlotTable(engine.model, SETTINGS)
    tokens, logprobs, computed, step = list(prompt), [], 0, 0
    while len(tokens) < len(prompt) + n:
        step, end = step + 1, min(computed + chunk, len(tokens))
        message = pb.Step(id=step, slots=[0], computed=[computed], n_tokens=[end - computed], sample=[int(end == len(tokens))])
        message.n_generated.append(len(tokens) - len(prompt))
        if step == 1:
            start = message.starts.add(index=0, tokens=prompt, n_prompt=len(prompt))
            start.sampling.CopyFrom(pb.WorkerSampling(logprobs=3, **parameters))
            message.n_blocks.append(-(-(len(prompt) + n) // 16))
            message.blocks.extend(range(message.n_blocks[0]))
        else:
            message.table_keep.append(-(-(len(prompt) + n) // 16))
        batch = table.apply(message)
        result = engine.run(batch)
        assert not result.faults
        table.reserve(batch)
        table.record(batch, table.starts[batch.slots], result.tokens)
        tokens, logprobs, computed = tokens + result.tokens, logprobs + result.logprobs, end
    return tokens[len(prompt) :], logprobs


def test_steps_are_golden():
    cases = json.loads((FOLDER / "steps.json").read_text())["cases"]
    engines = {name: engine_of(name) for name in {case["model"] for case in cases}}
    for case in cases:
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        tokens, logprobs = said(
            engines[case["model"]], case["prompt"], len(case["tokens"]), **{name: case[name] for name in names}
        )
        assert tokens == case["tokens"], case
        assert [entry.top_ids for entry in logprobs] == case["top"], case
        assert [entry.logprob for entry in logprobs] == pytest.approx(case["logprobs"], abs=TOLERANCE)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_are_those_of_transformers(name):
    """The greedy text and the log probabilities that the embedded worker is compared with, too."""
    engine = engine_of(name)
    for prompt in json.loads((FOLDER / name / "expected.json").read_text())["prompts"]:
        tokens, logprobs = said(engine, prompt["tokens"], len(prompt["greedy"]), top_p=1, repetition_penalty=1)
        assert tokens == prompt["greedy"]
        expected = prompt.get("logprobs", [])
        assert [entry.logprob for entry in logprobs][: len(expected)] == pytest.approx(expected, abs=TOLERANCE)
