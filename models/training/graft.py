"""Gives a young checkpoint a head that copies from its context, by least squares: a head forms by itself, but late.

    python graft.py --state FOLDER --layer 1

The head finds the place before which the last few tokens stand, and adds the embedding of the token there. Its queries are the
best linear prediction of a code of the last tokens from the residual stream, its keys of the code of the tokens before, in the
pairs that hardly rotate within the context; the optimizer's momentum of the changed rows starts at zero.
"""

import argparse
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

import recall
from corpus import Corpus
from model import Llama, Shape
from spans import ANSWER

SEQUENCES, LENGTH = 160, 192
# Weights of the last token and of those before it in a match.
WEIGHTS = (1.2, 1.0, 1.0, 0.6)


def residual(model: Llama, tokens: Tensor, layer: int) -> Tensor:
    """Returns the normalised input of a layer's attention."""
    cos, sin = model.cos[: tokens.shape[1]], model.sin[: tokens.shape[1]]
    x = model.model.embed_tokens(tokens)
    for before in model.model.layers[:layer]:
        x = before(x, cos, sin)
    return model.model.layers[layer].input_layernorm(x)


def ridge(inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
    """Returns the matrix that predicts the targets from the inputs, and the share of their variance that it explains."""
    square = inputs.T @ inputs
    square += 1e-3 * square.diagonal().mean() * torch.eye(square.shape[0])
    matrix = torch.linalg.solve(square, inputs.T @ targets).T
    left = (targets - inputs @ matrix.T).var(dim=0).sum() / targets.var(dim=0).sum()
    return matrix, 1 - float(left)


def legible(inputs: Tensor, targets: Tensor, count: int) -> Tensor:
    """Returns the directions of the targets of which the inputs predict most."""
    predicted = inputs @ ridge(inputs, targets)[0].T
    return torch.linalg.eigh(predicted.T @ predicted).eigenvectors[:, -count:].T


@torch.no_grad()
def copy_loss(model: Llama, corpus: Corpus) -> float:
    """Returns the loss of secrets that were read before among others and are asked for, nats per token."""
    losses = []
    for index in range(12):
        spans = recall.near(Random(f"graft {index}"), 300, corpus.measure)
        ids, weights = corpus.tokens(spans)
        tokens = torch.tensor([[corpus.begin, *ids]])
        each = F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:], reduction="none")
        losses.append(float(each[torch.tensor(weights) == ANSWER].mean()))
    return sum(losses) / len(losses)


def samples(corpus: Corpus, vocab_size: int) -> Tensor:
    """Returns sequences of the corpus, and as many of random tokens."""
    rows = [corpus.sequence(index, LENGTH, 0.4, 0.2)[0][:LENGTH] for index in range(SEQUENCES // 2)]
    drawn = torch.randint(258, vocab_size, (SEQUENCES - len(rows), LENGTH), generator=torch.Generator().manual_seed(1))
    return torch.cat([torch.tensor(rows), drawn])


def codes(model: Llama, tokens: Tensor, inputs: Tensor, count: int) -> list[Tensor]:
    """Returns a code of each token of the vocabulary for each distance back, in the directions that the inputs tell best.

    The codes of two distances are turned against each other at random, so that their sum tells both.
    """
    centered = model.model.embed_tokens.weight - model.model.embed_tokens.weight.mean(dim=0)
    generator = torch.Generator().manual_seed(2)
    made = []
    for back in range(1, len(WEIGHTS) + 1):
        code = centered @ legible(inputs, centered[earlier(tokens, back)], count).T
        turn = torch.linalg.qr(torch.randn(count, count, generator=generator)).Q
        made.append(code / code.std(dim=0) / count**0.5 @ turn)
    return made


def earlier(tokens: Tensor, back: int) -> Tensor:
    """Returns the token `back` places before each place that has enough before it."""
    return tokens[:, len(WEIGHTS) - back : tokens.shape[1] - back].flatten()


@torch.no_grad()
def graft(model: Llama, corpus: Corpus, layer: int) -> None:
    """Replaces the first head of a layer; the other heads of its group start over without an effect."""
    shape, attention = model.shape, model.model.layers[layer].self_attn
    width, half = shape.head_dim, shape.head_dim // 2
    tokens = samples(corpus, shape.vocab_size)
    inputs = residual(model, tokens, layer)[:, len(WEIGHTS) :].flatten(0, 1)
    # Pairs that turn by less than about a quarter within the context.
    slow = torch.arange(half)[shape.rope_theta ** -(torch.arange(half) / half) * shape.max_position_embeddings < 1.6]
    slow = torch.cat([slow, slow + half])
    code = codes(model, tokens, inputs, len(slow))
    here = sum(w * c[earlier(tokens, back)] for back, (w, c) in enumerate(zip(WEIGHTS, code, strict=True)))
    before = sum(w * c[earlier(tokens, back + 1)] for back, (w, c) in enumerate(zip(WEIGHTS, code, strict=True)))
    centered = model.model.embed_tokens.weight - model.model.embed_tokens.weight.mean(dim=0)
    directions = legible(inputs, centered[earlier(tokens, 0)], width)
    query, fit_query = ridge(inputs, here)
    key, fit_key = ridge(inputs, before)
    value, fit_value = ridge(inputs, (centered @ directions.T)[earlier(tokens, 0)])
    print(f"layer {layer}: variance explained of queries {fit_query:.2f}, keys {fit_key:.2f}, values {fit_value:.2f}")
    group = shape.num_attention_heads // shape.num_key_value_heads
    attention.q_proj.weight[:width] = 0
    attention.k_proj.weight[:width] = 0
    attention.v_proj.weight[:width] = value
    attention.o_proj.weight[:, : group * width] = 0
    best = (float("inf"), 0.0, 0.0)
    for sharpness in (4.0, 8.0, 12.0, 16.0, 24.0):
        for strength in (0.5, 1.0, 2.0, 3.0):
            apply(attention, query, key, directions, slow, sharpness, strength)
            best = min(best, (copy_loss(model, corpus), sharpness, strength))
    apply(attention, query, key, directions, slow, best[1], best[2])
    print(f"loss of answers {best[0]:.3f} with sharpness {best[1]} and strength {best[2]}")


def apply(
    attention: torch.nn.Module, query: Tensor, key: Tensor, directions: Tensor, slow: Tensor, sharpness: float, strength: float
) -> None:
    """Writes queries, keys and output of the head: `sharpness` nats for a match, `strength` embeddings added."""
    width = directions.shape[0]
    scale = (sharpness * width**0.5) ** 0.5
    attention.get_parameter("q_proj.weight")[slow] = scale * query
    attention.get_parameter("k_proj.weight")[slow] = scale * key
    attention.get_parameter("o_proj.weight")[:, :width] = strength * directions.T


def main() -> None:
    """Changes the checkpoint in place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="folder of checkpoint and tokenizer")
    parser.add_argument("--layer", type=int, required=True, help="layer whose first group of heads is replaced")
    parser.add_argument("--threads", type=int, default=2, help="threads on the CPU")
    parser.add_argument("--try", dest="trial", action="store_true", help="write nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = args.state / "checkpoint.pt"
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model = Llama(Shape())
    model.load_state_dict(checkpoint["model"])
    corpus = Corpus(args.state / "tokenizer.json", "graft")
    print(f"loss of answers before: {copy_loss(model, corpus):.3f}")
    graft(model, corpus, args.layer)
    if args.trial:
        return
    # Muon's state is numbered in the order of the matrices.
    matrices = [name for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    for number, name in enumerate(matrices):
        momentum = checkpoint["optimizers"][0]["state"].get(number)
        if momentum and name.startswith(f"model.layers.{args.layer}.self_attn."):
            momentum["momentum"].zero_()
    checkpoint["model"] = model.state_dict()
    torch.save(checkpoint, path)


if __name__ == "__main__":
    main()
