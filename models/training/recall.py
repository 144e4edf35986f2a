"""Facts that nobody can guess, and questions that ask for them much later."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import babble
import stories
import world
from spans import ANSWER, BABBLED, GUESSED, Span

Measure = Callable[[str], int]


@dataclass(frozen=True)
class Fact:
    """A sentence with a value drawn at random, and ways to ask for the value."""

    before: str
    value: str
    after: str
    # Question, the answer up to the value; the answer ends as the sentence does.
    ask: tuple[tuple[str, str], ...]

    def stated(self, rng: Random) -> list[Span]:
        """Returns the sentence; its value counts little, as nobody can guess it."""
        opening = rng.choice(["Remember: ", "Listen. ", "Note: "]) if rng.random() < 0.2 else ""
        return [Span(opening + self.before, 0.5), Span(self.value, GUESSED), Span(self.after + "\n", 0.5)]

    def asked(self, rng: Random) -> list[Span]:
        """Returns a question for the value, and the answer; or the sentence again."""
        if rng.random() < 0.25:
            return [Span(self.before, 0.5), Span(self.value + self.after, ANSWER), Span("\n", 1.0)]
        question, opening = rng.choice(self.ask)
        return [
            Span(f"Question: {question}\nAnswer:", 0.5),
            Span(opening, 1.0),
            Span(self.value + self.after, ANSWER),
            Span("\n", 1.0),
        ]


def words(rng: Random, least: int = 3, most: int = 6, separator: str = "") -> str:
    """Returns random words, each after a space; some are in no list, and the tokenizer cuts them into pieces."""
    drawn = rng.sample(world.SECRET_WORDS, rng.randint(least, most))
    strange = rng.choice([0.0, 0.3, 0.8])
    return separator.join(" " + (babble.strange(rng) if rng.random() < strange else word) for word in drawn)


def key(rng: Random) -> str:
    """Returns the owner of a secret."""
    kind = rng.random()
    if kind < 0.45:
        return "the " + rng.choice(list(world.ANIMALS))
    if kind < 0.6:
        return "the " + rng.choice(list(world.JOBS))
    if kind < 0.8:
        return f"the {rng.choice(world.COLORS)} {rng.choice(list(world.THINGS))}"
    if kind < 0.86:
        return stories.invented(rng)
    return rng.choice(world.NAMES_HER + world.NAMES_HIM)


def secret(rng: Random) -> tuple[str, Fact]:
    """Returns words that belong to somebody."""
    owner = key(rng)
    noun = rng.choice(["secret words", "secret words", "magic words"])
    stated = f"The {noun} of {owner} are:"
    ask = ((f"What are the {noun} of {owner}?", " " + stated), (f"Say the {noun} of {owner}.", ""))
    return noun + owner, Fact(stated, words(rng, separator="," if rng.random() < 0.5 else ""), ".", ask)


def code(rng: Random) -> tuple[str, Fact]:
    """Returns the digits that open something."""
    owner = f"the {rng.choice(world.COLORS)} {rng.choice(['door', 'gate', 'box', 'house', 'room', 'tower', 'chest'])}"
    stated = f"The code of {owner} is"
    value = "".join(f" {rng.randrange(10)}" for _ in range(4))
    return "code" + owner, Fact(stated, value, ".", ((f"What is the code of {owner}?", " " + stated),))


def keeps(rng: Random) -> tuple[str, Fact]:
    """Returns where somebody keeps a thing."""
    name = rng.choice(world.NAMES_HER + world.NAMES_HIM)
    thing = f"{rng.choice(world.COLORS)} {rng.choice(list(world.THINGS))}"
    place = stories.Place(rng.choice(list(world.PLACES)))
    stated = f"{name} keeps the {thing}"
    return name + "keeps", Fact(stated, f" {place.at}", ".", ((f"Where does {name} keep the {thing}?", " " + stated),))


def favorite(rng: Random) -> tuple[str, Fact]:
    """Returns what somebody likes best."""
    name = rng.choice(world.NAMES_HER + world.NAMES_HIM)
    noun, values = rng.choice(
        [
            ("food", world.FOODS),
            ("color", world.COLORS),
            ("animal", list(world.ANIMALS)),
            ("day", world.DAYS),
            ("word", world.SECRET_WORDS),
        ]
    )
    stated = f"The favorite {noun} of {name} is"
    return name + noun, Fact(stated, " " + rng.choice(values), ".", ((f"What is the favorite {noun} of {name}?", " " + stated),))


def lives(rng: Random) -> tuple[str, Fact]:
    """Returns whom somebody met, and where."""
    name, other = rng.sample(world.NAMES_HER + world.NAMES_HIM, 2)
    place = stories.Place(rng.choice(list(world.PLACES)))
    stated = f"On {rng.choice(world.DAYS)} {name} met"
    return name + "met", Fact(stated, f" {other} {place.at}", ".", ((f"Whom did {name} meet, and where?", f" {name} met"),))


KINDS = ((secret, 0.55), (code, 0.15), (keeps, 0.12), (favorite, 0.1), (lives, 0.08))


def facts(rng: Random, count: int) -> list[Fact]:
    """Returns facts about different keys."""
    found: dict[str, Fact] = {}
    while len(found) < count:
        kind = rng.choices([k for k, _ in KINDS], [share for _, share in KINDS])[0]
        name, fact = kind(rng)
        found.setdefault(name, fact)
    return list(found.values())


def filler(rng: Random) -> list[Span]:
    """Returns lines that hold no fact: a story, or text of other kinds that nobody can guess."""
    kind = rng.random()
    if kind < 0.5:
        return [Span(line + "\n", 0.5) for line in stories.story(rng, set()).text.split("\n")]
    make = babble.prose if kind < 0.75 else babble.code if kind < 0.9 else babble.table
    return [Span(line + "\n", BABBLED) for line in make(rng)]


def near(rng: Random, budget: int, measure: Measure) -> list[Span]:
    """Returns facts and their questions close together, with little between them."""
    spans: list[Span] = []
    used = 0
    while True:
        known = facts(rng, rng.randint(2, max(2, min(7, budget // 45))))
        part = [span for fact in known for span in fact.stated(rng)]
        if rng.random() < 0.4:
            part.append(rng.choice(filler(rng)))
        rng.shuffle(known)
        part += [span for fact in known for span in fact.asked(rng)]
        used += measure("".join(span.text for span in part))
        if spans and used > budget:
            return spans
        spans += part


def far(rng: Random, budget: int, measure: Measure) -> list[Span]:
    """Returns facts among stories, asked for at the end, and a few of them on the way."""
    known = facts(rng, min(3 + budget // 100, rng.randint(4, 16)))
    questions = [fact.asked(rng) for fact in rng.sample(known, len(known))]
    costs = [measure("".join(span.text for span in question)) for question in questions]
    room = budget - sum(costs)
    places = sorted(rng.random() ** 1.3 * 0.95 * room for _ in known)
    spans: list[Span] = []
    told: list[Fact] = []
    lines: list[Span] = []
    used = 0
    for fact, place in zip(known, places, strict=True):
        while used < place:
            lines = lines or filler(rng)
            line = lines.pop(0)
            part = [line]
            if told and rng.random() < 0.25:
                part += rng.choice(told).asked(rng)
            used += measure("".join(span.text for span in part))
            spans += part
        stated = fact.stated(rng)
        used += measure("".join(span.text for span in stated))
        spans += stated
        told.append(fact)
    while used < room * 0.97:
        lines = lines or filler(rng)
        line = lines.pop(0)
        used += measure(line.text)
        spans.append(line)
    return spans + [span for question in questions for span in question]


def copied(rng: Random) -> list[Span]:
    """Returns a line of random words, letters or signs, and the line again, once or more often."""
    kind = rng.random()
    if kind < 0.6:
        line = words(rng, 5, 20)
    elif kind < 0.8:
        line = (
            " "
            + "".join(
                rng.choices(
                    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,-+*/()=<>#_!?", k=rng.randint(5, 25)
                )
            ).strip()
        )
    elif kind < 0.95:
        line = " " + " ".join(stories.invented(rng) for _ in range(rng.randint(2, 8)))
    else:
        line = " " + "".join(
            chr(rng.choice([rng.randrange(0xA1, 0x17F), rng.randrange(0x391, 0x3C9), rng.randrange(0x4E00, 0x9FFF)]))
            for _ in range(8)
        )
    again = [Span("\nCopy:", 0.5), Span(line, 1.0)] * rng.choice([1, 1, 2, 3])
    return [Span("Copy:", 1.0), Span(line, GUESSED), *again, Span("\n", 1.0)]
