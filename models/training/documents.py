"""Documents of the corpus: stories, knowledge, lists, and recall; what the model reads is a sequence of them."""

from random import Random

import recall
import stories
import world
from recall import Measure
from spans import Span, plain


def qa(question: str, answer: str) -> str:
    """Returns a question with its answer."""
    return f"Question: {question}\nAnswer: {answer}\n"


def about_story(rng: Random) -> list[Span]:
    """Returns a story, mostly after a request for it, sometimes with questions."""
    told = stories.story(rng, set())
    text = ""
    kind = rng.random()
    if kind < 0.2:
        text = f"Tell a story about {told.hero}.\n"
    elif kind < 0.5:
        about = told.about if told.about[0].isupper() else stories.article(told.about)
        text = f"Tell a story about {about}.\n"
    elif kind < 0.6:
        text = f"Tell a story called {told.title}.\n"
    elif kind < 0.7:
        text = rng.choice(["Tell a story.\n", "Tell me a story.\n"])
    elif kind < 0.8:
        text = told.title + "\n"
    text += told.text + "\n"
    if rng.random() < 0.5:
        asked = rng.sample(told.ask, rng.randint(1, min(3, len(told.ask))))
        text += "".join(qa(q, a) for q, a in asked)
    return plain(text)


def known(rng: Random) -> tuple[str, str]:
    """Returns a question about what is always true, with its answer."""
    return rng.choices(
        [of_animal, of_job, of_thing, of_color, of_opposite, of_order, of_sum, of_truth], [5, 3, 3, 2, 2, 2, 2, 4]
    )[0](rng)


def of_animal(rng: Random) -> tuple[str, str]:
    """Returns a question about a kind of animal."""
    name = rng.choice(list(world.ANIMALS))
    plural, young, sound, home, food, does = world.ANIMALS[name]
    many, a = plural.capitalize(), stories.article(name)
    place = (
        f"in the {home}"
        if home not in ("hill", "plain", "pond", "beach", "farm")
        else {
            "hill": "on the hill",
            "plain": "on the plain",
            "pond": "by the pond",
            "beach": "on the beach",
            "farm": "on the farm",
        }[home]
    )
    return rng.choice(
        [
            (f"What does {a} eat?", f"{a.capitalize()} eats {food}."),
            (f"What do {plural} eat?", f"{many} eat {food}."),
            (f"What sound does {a} make?", f"{a.capitalize()} {sound}."),
            (f"Where does {a} live?", f"{a.capitalize()} lives {place}."),
            (f"What is a young {name} called?", f"A young {name} is called {stories.article(young)}."),
            (f"What can {plural} do?", f"{many} can {does}."),
            (f"Is {a} an animal?", f"Yes, {a} is an animal."),
        ]
    )


def of_job(rng: Random) -> tuple[str, str]:
    """Returns a question about a kind of work."""
    name = rng.choice(list(world.JOBS))
    does, _, needs = world.JOBS[name]
    a = stories.article(name)
    return rng.choice(
        [
            (f"What does {a} do?", f"{a.capitalize()} {does}."),
            (f"What does {a} need?", f"{a.capitalize()} needs {needs}."),
            (f"Who {does}?", f"{a.capitalize()} {does}."),
        ]
    )


def of_thing(rng: Random) -> tuple[str, str]:
    """Returns a question about a kind of thing."""
    name = rng.choice(list(world.THINGS))
    made, used = world.THINGS[name]
    a = stories.article(name)
    return rng.choice(
        [
            (f"What is {a} made of?", f"{a.capitalize()} is made of {made}."),
            (f"What is {a} for?", f"{a.capitalize()} is for {used}."),
            (f"Is {a} an animal?", f"No, {a} is a thing."),
        ]
    )


def of_color(rng: Random) -> tuple[str, str]:
    """Returns a question about a color."""
    name = rng.choice(list(world.COLORED))
    return f"What color is {name}?", f"{name[0].upper()}{name[1:]} is {world.COLORED[name]}."


def of_opposite(rng: Random) -> tuple[str, str]:
    """Returns a question about an opposite."""
    pair = rng.choice(list(world.OPPOSITES.items()))
    first, second = pair if rng.random() < 0.5 else (pair[1], pair[0])
    return f"What is the opposite of {first}?", f"The opposite of {first} is {second}."


def of_order(rng: Random) -> tuple[str, str]:
    """Returns a question about what comes next."""
    kind, items = rng.choice([("day", world.DAYS), ("month", world.MONTHS), ("number", world.NUMBERS)])
    at = rng.randrange(len(items) - 1)
    if rng.random() < 0.5:
        return f"Which {kind} comes after {items[at]}?", f"{items[at + 1].capitalize()} comes after {items[at]}."
    return f"Which {kind} comes before {items[at + 1]}?", f"{items[at].capitalize()} comes before {items[at + 1]}."


def of_sum(rng: Random) -> tuple[str, str]:
    """Returns a sum of two small numbers."""
    a, b = rng.randint(1, 6), rng.randint(1, 6)
    names = world.NUMBERS
    return f"What is {names[a - 1]} and {names[b - 1]}?", f"{names[a - 1].capitalize()} and {names[b - 1]} is {names[a + b - 1]}."


def of_truth(rng: Random) -> tuple[str, str]:
    """Returns something everybody knows."""
    if rng.random() < 0.15:
        season, what = rng.choice(list(world.SEASONS.items()))
        return f"What happens in {season}?", f"In {season}, {what}."
    return rng.choice(world.TRUTHS)


def knowledge(rng: Random) -> list[Span]:
    """Returns a few questions about what is always true."""
    return plain("".join(qa(*known(rng)) for _ in range(rng.choice([1, 1, 2, 3, 5, 8]))))


LISTS: dict[str, list[str]] = {
    "animals": list(world.ANIMALS),
    "colors": world.COLORS,
    "places": list(world.PLACES),
    "things": list(world.THINGS),
    "kinds of food": world.FOODS,
    "kinds of fruit": world.FRUITS,
    "jobs": list(world.JOBS),
    "names": world.NAMES_HER + world.NAMES_HIM,
    "things in a kitchen": "pot spoon knife cup table bottle kettle bowl plate pan".split(),
    "animals on a farm": "cow horse sheep goat pig hen duck goose donkey dog".split(),
    "animals that can fly": "owl crow bee parrot eagle duck swan goose".split(),
    "animals that live in water": "whale seal frog turtle duck swan".split(),
}
ORDERED: dict[str, list[str]] = {
    "the days of the week": world.DAYS,
    "the months of the year": world.MONTHS,
    "the seasons": list(world.SEASONS),
    "the numbers from one to ten": world.NUMBERS[:10],
}


def listed(rng: Random) -> list[Span]:
    """Returns a list that was asked for."""
    if rng.random() < 0.25:
        name, items = rng.choice(list(ORDERED.items()))
        opening = f"Write a list of {name}.\n"
    else:
        name, all_items = rng.choice(list(LISTS.items()))
        count = rng.randint(3, min(8, len(all_items)))
        items = rng.sample(all_items, count)
        opening = rng.choice(
            [f"Write a list of {world.NUMBERS[count - 1]} {name}.\n", f"Name {world.NUMBERS[count - 1]} {name}.\n"]
        )
    if opening.startswith("Write"):
        return plain(opening + "".join(f"- {item}\n" for item in items))
    text = stories.phrase(items)
    return plain(opening + text[0].upper() + text[1:] + ".\n")


def small(rng: Random) -> list[Span]:
    """Returns something short: knowledge, a list, or a copied line."""
    return rng.choices([knowledge, listed, recall.copied], [0.6, 0.2, 0.2])[0](rng)


def document(rng: Random, room: int, recall_share: float, copy_share: float, measure: Measure) -> list[Span]:
    """Returns a document; one of recall fits into `room` tokens, others may be longer."""
    if rng.random() < copy_share:
        return recall.copied(rng)
    kind = rng.random()
    if room > 90 and kind < recall_share:
        whole = room if rng.random() < 0.6 else rng.randint(90, room)
        return (
            recall.near(rng, whole, measure)
            if whole < 200 or (rng.random() < 0.4 and whole < 1200)
            else recall.far(rng, whole, measure)
        )
    if kind < recall_share + (1 - recall_share) * 0.25:
        return small(rng)
    return about_story(rng)
