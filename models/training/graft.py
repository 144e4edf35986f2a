"""Gives a young checkpoint a head that copies from its context, by least squares: a head forms by itself, but late.

    python graft.py --state FOLDER --layer 1

The head finds the place whose token before is the current token, and adds the embedding of the token there. Its queries are the
best linear prediction of a code of the current token from the residual stream, its keys of the code of the token before, in the
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

SEQUENCES, LENGTH = 160, 192


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
    """Returns the loss of words that were all read before, nats."""
    losses = []
    for index in range(16):
        words = recall.words(Random(f"copy {index}"), 12, 12)
        ids = [corpus.begin, *corpus.tokenizer.encode(f"Copy:{words}\nCopy:{words}", add_special_tokens=False).ids]
        tokens = torch.tensor([ids])
        logits = model(tokens[:, :-1])[0, -11:]
        losses.append(float(F.cross_entropy(logits, tokens[0, -11:])))
    return sum(losses) / len(losses)


@torch.no_grad()
def graft(model: Llama, corpus: Corpus, layer: int) -> None:
    """Replaces the first head of a layer; the other heads of its group start over without an effect."""
    shape, attention = model.shape, model.model.layers[layer].self_attn
    width, half = shape.head_dim, shape.head_dim // 2
    generator = torch.Generator().manual_seed(1)
    rows = [corpus.sequence(index, LENGTH, 0.4, 0.2)[0][:LENGTH] for index in range(SEQUENCES // 2)]
    drawn = torch.randint(258, shape.vocab_size, (SEQUENCES - len(rows), LENGTH), generator=generator)
    tokens = torch.cat([torch.tensor(rows), drawn])
    inputs = residual(model, tokens, layer)[:, 1:].flatten(0, 1)
    here, before = tokens[:, 1:].flatten(), tokens[:, :-1].flatten()
    embedding = model.model.embed_tokens.weight
    centered = embedding - embedding.mean(dim=0)
    slow = torch.arange(half * 9 // 16, half)
    slow = torch.cat([slow, slow + half])
    code = centered @ legible(inputs, centered[before], len(slow)).T
    code = code / code.std(dim=0) / len(slow) ** 0.5
    directions = legible(inputs, centered[here], width)
    query, fit_query = ridge(inputs, code[here])
    key, fit_key = ridge(inputs, code[before])
    value, fit_value = ridge(inputs, (centered @ directions.T)[here])
    print(f"layer {layer}: variance explained of queries {fit_query:.2f}, keys {fit_key:.2f}, values {fit_value:.2f}")
    group = shape.num_attention_heads // shape.num_key_value_heads
    attention.q_proj.weight[:width] = 0
    attention.k_proj.weight[:width] = 0
    attention.v_proj.weight[:width] = value
    attention.o_proj.weight[:, : group * width] = 0
    best = (float("inf"), 0.0, 0.0)
    for sharpness in (8.0, 16.0, 24.0, 32.0):
        for strength in (0.5, 1.0, 2.0, 3.0):
            apply(attention, query, key, directions, slow, sharpness, strength)
            best = min(best, (copy_loss(model, corpus), sharpness, strength))
    apply(attention, query, key, directions, slow, best[1], best[2])
    print(f"copy loss {best[0]:.3f} with sharpness {best[1]} and strength {best[2]}")


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
    print(f"copy loss before: {copy_loss(model, corpus):.3f}")
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
