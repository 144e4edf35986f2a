"""Measures a checkpoint: loss on documents of another seed, recall by distance, and samples.

python evaluate.py --state FOLDER --contexts 512 1024 2048 4096
"""

import argparse
import json
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

import documents
import recall
from corpus import Corpus
from model import Llama, Shape
from spans import ANSWER, Span

PROMPTS = (
    "Once upon a time",
    "Tell a story about a fox.\n",
    "Question: What do bees make?\nAnswer:",
    "Question: What is the opposite of hot?\nAnswer:",
    "Write a list of five animals.\n",
    "The secret words of the tiger are: river lamp onion queen.\nThe secret words of Anna are: moon egg rope salt.\n"
    "Question: What are the secret words of the tiger?\nAnswer:",
)


def load(state: Path, device: str) -> tuple[Llama, Corpus]:
    """Returns the model of a checkpoint, and its corpus with a seed of its own."""
    model = Llama(Shape()).to(device)
    checkpoint = torch.load(state / "checkpoint.pt", map_location=device, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    return model.eval(), Corpus(state / "tokenizer.json", "held out")


@torch.no_grad()
def held_out(model: Llama, corpus: Corpus, length: int, count: int, device: str) -> dict[str, float]:
    """Returns the mean loss of stories, and of short documents, in nats per token."""
    kinds = {"stories": documents.about_story, "short": documents.small}
    result = {}
    for name, make in kinds.items():
        losses: list[float] = []
        for index in range(count):
            ids, weights = corpus.tokens(make(Random(f"held out {name} {index}")))
            ids = [corpus.begin, *ids, corpus.end][: length + 1]
            kept = torch.tensor([*weights, 1.0][: len(ids) - 1], device=device) >= 1.0
            tokens = torch.tensor([ids], device=device)
            each = F.cross_entropy(model(tokens[:, :-1])[0].float(), tokens[0, 1:], reduction="none")
            losses += each[kept].tolist()
        result[name] = sum(losses) / len(losses)
    return result


def planted(corpus: Corpus, rng: Random, length: int, count: int) -> tuple[list[Span], list[recall.Fact]]:
    """Returns secrets planted evenly among stories, up to `length` tokens with their questions, and the secrets."""
    known: dict[str, recall.Fact] = {}
    while len(known) < count:
        name, fact = recall.secret(rng)
        known.setdefault(name, fact)
    facts = list(known.values())
    room = length - 2 - 40 * count
    spans: list[Span] = []
    lines: list[Span] = []
    used = 0
    for number, fact in enumerate(facts):
        while used < room * number // count:
            lines = lines or recall.filler(rng)
            line = lines.pop(0)
            used += corpus.measure(line.text)
            spans.append(line)
        stated = [Span(fact.before, 0.5), Span(fact.value, 0.0), Span(fact.after + "\n", 0.5)]
        used += corpus.measure("".join(span.text for span in stated))
        spans += stated
    return spans, facts


@torch.no_grad()
def recalled(model: Llama, corpus: Corpus, length: int, texts: int, device: str) -> dict[str, float]:
    """Returns the share of values given right, token by token and whole, and that of the oldest half."""
    right: list[bool] = []
    tokens_right: list[bool] = []
    oldest: list[bool] = []
    for index in range(texts):
        rng = Random(f"recall {length} {index}")
        count = max(4, min(8, length // 120))
        spans, facts = planted(corpus, rng, length, count)
        order = list(range(count))
        rng.shuffle(order)
        for number in order:
            spans += facts[number].asked(rng)
        ids, weights = corpus.tokens(spans)
        ids = [corpus.begin, *ids]
        tokens = torch.tensor([ids], device=device)
        logits = model(tokens[:, :-1])[0] if len(ids) <= 4097 else None
        assert logits is not None, "the text is longer than the context"
        hit = logits.argmax(-1) == tokens[0, 1:]
        answers = runs(torch.tensor(weights) == ANSWER)
        assert len(answers) == count
        for (start, end), number in zip(answers, order, strict=True):
            each = hit[start:end].tolist()
            tokens_right += each
            right.append(all(each))
            if number < count // 2:
                oldest.append(all(each))
    return {name: sum(of) / len(of) for name, of in (("whole", right), ("tokens", tokens_right), ("oldest half", oldest))}


def runs(mask: Tensor) -> list[tuple[int, int]]:
    """Returns begin and end of each run of true values."""
    found: list[tuple[int, int]] = []
    start = -1
    for at, value in enumerate([*mask.tolist(), False]):
        if value and start < 0:
            start = at
        elif not value and start >= 0:
            found.append((start, at))
            start = -1
    return found


@torch.no_grad()
def generate(model: Llama, corpus: Corpus, prompt: str, count: int, temperature: float, seed: int, device: str) -> str:
    """Returns the prompt with the text that follows; a temperature of 0 takes the likeliest token."""
    draw = torch.Generator().manual_seed(seed)
    ids = corpus.tokenizer.encode(prompt).ids
    for _ in range(count):
        logits = model(torch.tensor([ids], device=device))[0, -1].float().cpu()
        if temperature == 0.0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw))
        if token == corpus.end:
            break
        ids.append(token)
    return corpus.tokenizer.decode(ids)


def main() -> None:
    """Prints the measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="folder of checkpoint and tokenizer")
    parser.add_argument("--contexts", type=int, nargs="*", default=[512, 1024, 2048, 4096], help="lengths of recall, tokens")
    parser.add_argument("--texts", type=int, default=8, help="texts for each length")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads on the CPU")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, corpus = load(args.state, args.device)
    print(json.dumps({"loss": held_out(model, corpus, 1024, 8 * args.texts, args.device)}), flush=True)
    for length in args.contexts:
        print(json.dumps({"recall at": length, **recalled(model, corpus, length, args.texts, args.device)}), flush=True)
    for prompt in PROMPTS:
        for temperature in (0.0, 0.7):
            print("-----", temperature)
            print(generate(model, corpus, prompt, 100, temperature, 1, args.device), flush=True)


if __name__ == "__main__":
    main()
