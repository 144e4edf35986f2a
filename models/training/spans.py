"""Pieces of text with the weight of their tokens in the loss."""

from dataclasses import dataclass

# Weight of values drawn at random: next to nothing can be learned from them.
GUESSED = 0.05
# Weight of text that means nothing: its letters are learned, its words cannot be.
BABBLED = 0.15
# Weight of values in answers.
ANSWER = 1.5


@dataclass(frozen=True)
class Span:
    """Text whose tokens weigh equally in the loss."""

    text: str
    weight: float


def plain(text: str, weight: float = 1.0) -> list[Span]:
    """Returns the text as one span."""
    return [Span(text, weight)]
