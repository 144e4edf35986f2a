"""Sequences of tokens for training: documents one after the other, each begun and ended by a token of its own."""

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

import documents
from spans import Span

BEGIN, END = "<s>", "</s>"


def train_tokenizer(seed: int, vocab_size: int, texts: int = 30_000) -> Tokenizer:
    """Returns a byte-level BPE tokenizer of the documents that `seed` makes; digits stand alone, and every byte has a token."""
    rng = Random(f"tokenizer {seed}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made = ("".join(s.text for s in documents.document(rng, 400, 0.4, 0.0, lambda text: len(text) // 5)) for _ in range(texts))
    tokenizer.train_from_iterator(made, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    return tokenizer


class Corpus:
    """All sequences of a seed; sequence `index` is the same in every run."""

    def __init__(self, tokenizer: Path, seed: str) -> None:
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        self.begin, self.end = self.tokenizer.token_to_id(BEGIN), self.tokenizer.token_to_id(END)
        self.seed = seed

    def measure(self, text: str) -> int:
        """Returns the number of tokens of a text."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def tokens(self, spans: list[Span]) -> tuple[list[int], list[float]]:
        """Returns the tokens of a document, and their weights."""
        encoding = self.tokenizer.encode("".join(span.text for span in spans), add_special_tokens=False)
        ends = list(accumulate(len(span.text) for span in spans))
        weights = [spans[bisect_right(ends, start)].weight for start, _ in encoding.offsets]
        return encoding.ids, weights

    def sequence(self, index: int, length: int, recall_share: float, copy_share: float) -> tuple[list[int], list[float]]:
        """Returns `length + 1` tokens and their weights."""
        rng = Random(f"{self.seed} {index} {length}")
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) <= length:
            room = length - 2 - len(ids)
            more, of = self.tokens(documents.document(rng, room, recall_share, copy_share, self.measure))
            ids += [self.begin, *more, self.end]
            weights += [0.0, *of, 1.0]
        return ids[: length + 1], weights[: length + 1]

    def batch(self, step: int, count: int, length: int, recall_share: float, copy_share: float) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the inputs, the targets and the weights of a step."""
        rows = [self.sequence(step * 1024 + row, length, recall_share, copy_share) for row in range(count)]
        ids = torch.tensor([row[0] for row in rows])
        weights = torch.tensor([row[1] for row in rows])
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weights[:, 1:].contiguous()
