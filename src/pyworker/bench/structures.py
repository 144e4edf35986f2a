"""Measures structured output: the time of masks, and what of it a step of the torch engine waits for.

    python bench/structures.py --model ../../models/small-world --streams 64
    python bench/structures.py --model ../../models/small-world --streams 64 --vocabulary 128000 --masks-alone

Needs llguidance, and PyTorch unless `--masks-alone`. All streams follow one schema, at random or as the model says. Words are
added to the vocabulary of the model until it has as many as `--vocabulary` asks for.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from trunkline_worker import vocabulary
from trunkline_worker.facts import Settings
from trunkline_worker.proto import messages as pb
from trunkline_worker.slots import SlotTable
from trunkline_worker.structures import Structures

SCHEMA = """{"type": "array", "minItems": 100, "items": {"type": "object", "properties": {"id": {"type": "integer"},
"name": {"type": "string", "maxLength": 40}, "kind": {"enum": ["first", "second", "third"]}},
"required": ["id", "name", "kind"], "additionalProperties": false}}"""
GRAMMAR = pb.WorkerGrammar(json_schema=SCHEMA)
BLOCK, STEPS = 16, 200


def masks_alone(model: Path, streams: int, n_words: int) -> None:
    """Prints the time from a token of each stream to its next mask, with nothing else at work."""
    words = vocabulary.words(model, 2048) or []
    draw = np.random.default_rng(1)
    while len(words) < n_words:
        words.append(b"".join(words[i] for i in draw.integers(10, 2048, 2)))
    begun = time.perf_counter()
    structures = Structures(words, [1])
    made = time.perf_counter() - begun
    answers = [structures.begin(GRAMMAR, 1, []) for _ in range(streams)]
    structures.masks(answers)
    times, work = [], []
    for position in range(1, STEPS + 1):
        bits, _ = structures.masks(answers)
        allowed = np.unpackbits(bits, axis=1, bitorder="little")
        tokens = [int(draw.choice(np.flatnonzero(row))) for row in allowed]
        begun, worked = time.perf_counter(), time.process_time()
        structures.take_in((answer, position, token) for answer, token in zip(answers, tokens, strict=True))
        structures.masks(answers)
        times.append(1e6 * (time.perf_counter() - begun) / streams)
        work.append(1e6 * (time.process_time() - worked) / streams)
    shown = f"{statistics.median(times):.1f} us, of it {statistics.median(work):.1f} us of work"
    print(f"{len(words)} words, tables in {made:.2f} s: a token and its mask take {shown}, with {streams} streams")


def steps(engine: Any, streams: int, sampling: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Returns the seconds of decodes of all streams together, and those of the waits for masks."""
    blocks = -(-(STEPS + 4) // BLOCK)
    table = SlotTable(engine.model, Settings(BLOCK, streams * blocks, 1), engine.structures)
    waits: list[float] = []
    plain = table.allowed

    def allowed(batch: Any) -> Any:
        begun = time.perf_counter()
        found = plain(batch)
        waits.append(time.perf_counter() - begun)
        return found

    table.allowed = allowed  # type: ignore[method-assign]
    slots, times = list(range(streams)), []
    for n in range(STEPS):
        step = pb.Step(id=n, slots=slots, sample=[1] * streams, n_generated=[n] * streams, n_tokens=[1] * streams)
        step.computed.extend([n] * streams)
        if n == 0:
            step.n_blocks.extend([blocks] * streams)
            step.blocks.extend(range(streams * blocks))
            for i in slots:
                start = step.starts.add(index=i, request=i, tokens=[i + 10], n_prompt=1)
                options = {"top_p": 1.0, "repetition_penalty": 1.0, "temperature": 1.0, "seed": i, **sampling}
                start.sampling.CopyFrom(pb.WorkerSampling(**options))
        else:
            step.table_keep.extend([blocks] * streams)
        begun = time.perf_counter()
        batch = table.apply(step)
        starts, wait = table.starts[batch.slots], engine.submit(batch)
        table.reserve(batch)
        table.record(batch, starts, wait().tokens)
        times.append(time.perf_counter() - begun)
    return times[20:], waits[20:]


def in_steps(model: Path, streams: int) -> None:
    """Prints the time of steps of the torch engine without and with structures, in turns."""
    from trunkline_worker.cli import build, parse

    blocks = -(-(STEPS + 4) // BLOCK) * streams
    engine = build(parse(["--engine", "torch", "--model", str(model), "--connect", "x:1", "--kv-tokens", str(blocks * BLOCK)]))
    engine.begin(Settings(BLOCK, blocks, 1))
    for turn in range(3):
        times = steps(engine, streams, {})[0], *steps(engine, streams, {"grammar": GRAMMAR})
        free, held, waits = (1e3 * statistics.median(seconds) for seconds in times)
        print(f"turn {turn}: a step takes {free:.2f} ms without structures, {held:.2f} ms with, of it {waits:.2f} ms waiting")


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--masks-alone", action="store_true")
    args = parser.parse_args()
    masks_alone(args.model, args.streams, args.vocabulary)
    if not args.masks_alone:
        in_steps(args.model, args.streams)


if __name__ == "__main__":
    main()
