"""Text that means nothing, in the shapes of prose, code and tables: so that facts are found among any text."""

from collections.abc import Callable
from random import Random

import stories
import world

KEYWORDS = (
    "if for while return let fn match use impl struct def class import from else in not and or var int void true false".split()
)
LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
# Letters of English by their frequency, roughly.
FREQUENT = [26 - place for place in range(26)]
SIGNS = (" = ", " + ", " - ", " * ", " == ", " < ", " >= ", " && ", ".", "::", ", ", ": ", " -> ", "[", "] ", "(", ") ")


def strange(rng: Random) -> str:
    """Returns a word that is in no list."""
    kind = rng.random()
    if kind < 0.35:
        return stories.invented(rng).lower()
    if kind < 0.6:
        return "".join(rng.choices(LETTERS, weights=FREQUENT, k=rng.randint(3, 9)))
    # Beginning and end of two known words, or a known word with a letter changed.
    a, b = rng.sample(world.SECRET_WORDS, 2)
    if kind < 0.8:
        return a[: rng.randint(1, len(a))] + b[rng.randrange(len(b)) :]
    at = rng.randrange(len(a))
    return a[:at] + rng.choice(LETTERS) + a[at + rng.randrange(2) :]


def word(rng: Random) -> str:
    """Returns a word, mostly one that is in no list."""
    return rng.choice(world.SECRET_WORDS) if rng.random() < 0.2 else strange(rng)


def sentence(rng: Random) -> str:
    """Returns a sentence of such words, with small words between."""
    small = "the a of to and in is it that for with as on are not by be at or an from which has was but".split()
    words = [rng.choice(small) if rng.random() < 0.4 else word(rng) for _ in range(rng.randint(4, 18))]
    text = words[0].capitalize()
    for each in words[1:]:
        text += rng.choice([", ", ": "]) + each if rng.random() < 0.08 else " " + each
    return text + rng.choice("....?!")


def prose(rng: Random) -> list[str]:
    """Returns lines of sentences, with headings, lists and quotations."""
    lines = []
    for _ in range(rng.randint(2, 6)):
        kind = rng.random()
        text = " ".join(sentence(rng) for _ in range(rng.randint(1, 3)))
        if kind < 0.1:
            text = rng.choice(["# ", "## "]) + word(rng).capitalize()
        elif kind < 0.25:
            text = rng.choice(["* ", "- ", "1. "]) + text
        elif kind < 0.35:
            text = f'"{text}" said {rng.choice(world.NAMES_HER + world.NAMES_HIM)}.'
        elif kind < 0.45:
            text = f"{rng.choice(world.DAYS)}, {rng.randrange(24)}:{rng.randrange(10, 60)}. {text}"
        lines.append(text)
    return lines


def name(rng: Random) -> str:
    """Returns an identifier."""
    return "_".join(word(rng) for _ in range(rng.choice([1, 1, 2, 2, 3])))


def code(rng: Random) -> list[str]:
    """Returns lines of something like a program."""
    lines, depth = [], 0
    for _ in range(rng.randint(4, 14)):
        text = "    " * depth
        if rng.random() < 0.1:
            text += rng.choice(["// ", "# ", "/// "]) + sentence(rng)
        else:
            text += rng.choice(KEYWORDS) + " " if rng.random() < 0.6 else ""
            for _ in range(rng.randint(1, 4)):
                text += (name(rng) if rng.random() < 0.8 else str(rng.randrange(1000))) + rng.choice(SIGNS)
            text = text.rstrip() + rng.choice([";", "", ")", " {", ":"])
        depth = min(3, max(0, depth + rng.choice([-1, 0, 0, 1])))
        lines.append(text)
    return lines


def table(rng: Random) -> list[str]:
    """Returns rows of a table."""
    cells: tuple[Callable[[], str], ...] = (
        lambda: f"{rng.uniform(0, 1000):.{rng.randrange(3)}f}",
        lambda: f"`{name(rng)}`",
        lambda: word(rng),
        lambda: f"{rng.randrange(100)} %",
    )
    columns = [rng.choice(cells) for _ in range(rng.randint(2, 5))]
    return ["| " + " | ".join(cell() for cell in columns) + " |" for _ in range(rng.randint(3, 10))]
