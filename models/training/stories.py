"""Stories of the small world: casts, plots told in varied words, and questions. Everything follows from one random stream."""

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import plots
import world

CHOICE = re.compile(r"\[([^\[\]]*)\]")
OPENS = re.compile(r'(^|[.!?:] |[.!?]" (?=[A-Z])|"|\n)([a-z])')


def article(noun: str) -> str:
    """Returns the noun with "a" or "an"."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def a_few(rng: Random, items: list[str], few: int) -> str:
    """Returns `few` of the items as a phrase: "salt, bread, and tea"."""
    return phrase(rng.sample(items, few))


def phrase(items: list[str]) -> str:
    """Returns the items as a phrase of English."""
    if len(items) < 3:
        return " and ".join(items)
    return ", ".join(items[:-1]) + ", and " + items[-1]


@dataclass(frozen=True)
class Person:
    """A person or an animal with a name."""

    name: str
    female: bool
    kind: str

    def __str__(self) -> str:
        return self.name

    @property
    def he(self) -> str:
        return "she" if self.female else "he"

    @property
    def him(self) -> str:
        return "her" if self.female else "him"

    @property
    def his(self) -> str:
        return "her" if self.female else "his"

    @property
    def He(self) -> str:  # noqa: N802 (templates name the capital letter)
        return self.he.capitalize()

    @property
    def His(self) -> str:  # noqa: N802
        return self.his.capitalize()

    @property
    def his_name(self) -> str:
        return self.name + "'s"


@dataclass(frozen=True)
class Noun:
    """A thing or an animal."""

    noun: str
    adjective: str = ""

    def __str__(self) -> str:
        return self.noun

    @property
    def a(self) -> str:
        return article(f"{self.adjective} {self.noun}".strip())

    @property
    def A(self) -> str:  # noqa: N802
        text = self.a
        return text[0].upper() + text[1:]

    @property
    def the(self) -> str:
        return "the " + self.noun


@dataclass(frozen=True)
class Place:
    """A place with its prepositions."""

    noun: str

    def __str__(self) -> str:
        return self.noun

    @property
    def at(self) -> str:
        return f"{world.PLACES[self.noun]} the {self.noun}"

    @property
    def to(self) -> str:
        return "to the " + self.noun

    @property
    def the(self) -> str:
        return "the " + self.noun


def invented(rng: Random) -> str:
    """Returns a name that is in no list."""
    text = "".join(rng.choices(world.SYLLABLES, k=rng.randint(2, 3)))
    return (text + rng.choice(world.ENDINGS) if rng.random() < 0.5 else text).capitalize()


def person(rng: Random, taken: set[str], animal_share: float = 0.2) -> Person:
    """Returns somebody whose name is not taken, and takes the name."""
    female = rng.random() < 0.5
    while True:
        name = invented(rng) if rng.random() < 0.15 else rng.choice(world.NAMES_HER if female else world.NAMES_HIM)
        if name not in taken:
            break
    taken.add(name)
    if rng.random() < animal_share:
        kind = rng.choice(list(world.ANIMALS))
    elif rng.random() < 0.25:
        kind = rng.choice(list(world.JOBS))
    else:
        kind = rng.choice(["girl", "woman", "princess", "queen"] if female else ["boy", "man", "prince", "king"])
    return Person(name, female, kind)


def thing(rng: Random) -> Noun:
    """Returns a thing, mostly with an adjective."""
    noun = rng.choice(list(world.THINGS))
    adjective = rng.choice([*world.ADJECTIVES, *world.COLORS]) if rng.random() < 0.7 else ""
    return Noun(noun, adjective)


def cast(rng: Random, taken: set[str]) -> dict[str, Any]:
    """Returns everything that the templates of a story name."""
    places = [Place(p) for p in rng.sample(list(world.PLACES), 5)]
    animals = [Noun(a, rng.choice(["", "", "small", "big", "young", "old"])) for a in rng.sample(list(world.ANIMALS), 4)]
    hero = person(rng, taken)
    things: list[Noun] = []
    while len(things) < 2:
        new = thing(rng)
        if all(new.noun != other.noun for other in things):
            things.append(new)
    food = rng.sample(world.FOODS, 2)
    return {
        "h": hero, "f": person(rng, taken, 0.1), "o": things[0], "o2": things[1], "thing": rng.choice(list(world.THINGS)),
        "p": places[0], "q": places[1], "r": places[2], "q2": places[3], "a": animals[0], "b": animals[1],
        "animal": animals[2].noun, "pet": animals[3].noun, "e": food[0], "e2": food[1], "job": rng.choice(list(world.JOBS)),
        "trait": rng.choice(world.TRAITS), "trait2": rng.choice(world.TRAITS), "feeling": rng.choice(world.FEELINGS),
        "color": rng.choice(world.COLORS), "color2": rng.choice(world.COLORS),
        "season": rng.choice(list(world.SEASONS)),
        "day": rng.choice(world.DAYS), "day2": rng.choice(world.DAYS),
        "fruit": rng.choice(world.FRUITS), "NUM": rng.choice(world.NUMBERS[1:]),
    }  # fmt: skip


def tell(rng: Random, template: str, names: dict[str, Any]) -> str:
    """Returns the template with its choices made and its names filled in."""
    while match := CHOICE.search(template):
        template = template[: match.start()] + rng.choice(match[1].split("|")) + template[match.end() :]
    capitals = {
        "O": str(names["o"]).title(),
        "A": str(names["a"]).title(),
        "A2": str(names["b"]).title(),
        "Fruit": names["fruit"].capitalize(),
    }
    text = template.format(**names, **capitals)
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return OPENS.sub(lambda m: m[1] + m[2].upper(), text)


@dataclass(frozen=True)
class Story:
    """A story and the questions about it."""

    title: str
    hero: str
    about: str
    text: str
    ask: list[tuple[str, str]]


def story(rng: Random, taken: set[str], episodes: int | None = None) -> Story:
    """Returns a story of one to three episodes about one hero and one friend."""
    names = cast(rng, taken)
    if episodes is None:
        episodes = rng.choices([1, 2, 3], [0.65, 0.25, 0.1])[0]
    told = rng.sample(plots.PLOTS, episodes)
    sentences = [tell(rng, rng.choice(plots.OPENINGS), names)]
    sentences += [tell(rng, d, names) for d in rng.sample(plots.DETAILS, rng.choice([0, 1, 1, 2]))]
    paragraphs, ask = [], []
    title = tell(rng, told[0].title, names)
    about = (
        names["o"].noun
        if "{o" in "".join(told[0].beats)
        else names["a"].noun
        if "{a" in "".join(told[0].beats)
        else names["f"].name
    )
    for number, plot in enumerate(told):
        if number:
            names = {
                **cast(rng, taken),
                "h": names["h"],
                "f": names["f"],
                "r": names["r"],
                "trait2": names["trait2"],
                "feeling": names["feeling"],
            }
            sentences = [tell(rng, rng.choice(plots.LINKS), names)]
        for beat in plot.beats:
            if beat.startswith("?") and rng.random() < 0.5:
                continue
            sentences.append(tell(rng, beat.lstrip("?"), names))
        ask += [(tell(rng, q, names), tell(rng, a, names)) for q, a in plot.ask]
        paragraphs.append(" ".join(sentences))
    if rng.random() < 0.8:
        paragraphs[-1] += " " + tell(rng, rng.choice(plots.ENDINGS_OF_STORIES), names)
    hero = article(names["h"].kind) + " named " + names["h"].name
    return Story(title, hero, about, "\n".join(paragraphs), ask)
