"""Answers with a structure: what may follow, found by threads of their own."""

import json
import logging
import re
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="llguidance is not installed")

from trunkline_worker import vocabulary
from trunkline_worker.proto import messages as pb
from trunkline_worker.structures import KEPT, Structures

MODEL = Path(__file__).parents[3] / "models/small-world"
BOS, EOS = 256, 257
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def of_bytes():
    return Structures([bytes([byte]) for byte in range(256)] + [b"\xff<s>", b"\xff</s>"], [EOS])


@pytest.fixture(scope="module")
def of_model():
    return Structures(vocabulary.words(MODEL, 2048), [1])


def ids(text):
    return list(text.encode())


def following(structures, answer):
    """The tokens that may be next; None if the answer cannot go on."""
    bits, stuck = structures.masks([answer])
    found = np.flatnonzero(np.unpackbits(bits[0], bitorder="little")).tolist()
    return None if stuck[0] else found


def take_in(structures, answer, position, text):
    for n, token in enumerate(ids(text)):
        structures.take_in([(answer, position + n, token)])


def test_tokens_are_taken_in_once_however_steps_divide_them(of_bytes):
    def behind(generated, *parts):
        answer = of_bytes.begin(pb.WorkerGrammar(regex="abcd"), 3, ids(generated))
        for position, text in parts:
            take_in(of_bytes, answer, position, text)
        return following(of_bytes, answer)

    assert behind("") == ids("a")
    assert behind("ab") == ids("c")
    assert behind("a", (4, "b"), (4, "b"), (5, "c")) == ids("d")
    assert behind("", (3, "abcd")) == [EOS]
    assert behind("b") is None and behind("a", (4, "x")) is None
    # A step that was under way ran a token more.
    assert behind("", (3, "abcd"), (7, "zz")) == [EOS]


@pytest.mark.parametrize(
    ("grammar", "first"),
    [
        ({"json_schema": "true"}, '"-0123456789[ftn{'),
        ({"json_schema": '{"enum": [7, "x"]}'}, '"7'),
        ({"lark": 'start: "x" | /[yz]/'}, "xyz"),
        ({"lark": 'root ::= item+\nitem ::= [a-c] "-"'}, "abc"),
        ({"regex": "/?[ab]/"}, "/ab"),
    ],
)
def test_each_kind_of_grammar(of_bytes, grammar, first):
    assert following(of_bytes, of_bytes.begin(pb.WorkerGrammar(**grammar), 1, [])) == sorted(ids(first))


def test_white_space_is_bounded_unless_a_schema_has_its_own(of_bytes):
    def spaces(schema):
        answer = of_bytes.begin(pb.WorkerGrammar(json_schema=json.dumps(schema)), 1, ids("[1, "))
        return ord(" ") in following(of_bytes, answer)

    numbers = {"type": "array", "items": {"type": "integer"}}
    assert not spaces(numbers)
    assert spaces(numbers | {"x-guidance": {"whitespace_pattern": " *"}})


def test_all_tokens_that_spell_a_text_may_spell_it(of_model):
    words = vocabulary.words(MODEL, 2048)
    answer = of_model.begin(pb.WorkerGrammar(regex=" the end"), 1, [])
    assert {words[token] for token in following(of_model, answer)} == {
        word for word in words if word and b" the end".startswith(word)
    }


def test_a_hundred_random_answers_keep_to_a_schema(of_model):
    words, draw = vocabulary.words(MODEL, 2048), np.random.default_rng(3)
    for _ in range(100):
        answer, text, position = of_model.begin(pb.WorkerGrammar(json_schema=json.dumps(PERSON)), 5, []), b"", 5
        while (token := pick(following(of_model, answer), words, draw, len(text))) != 1:
            text += words[token]
            of_model.take_in([(answer, position, token)])
            position += 1
        person = json.loads(text)
        assert set(person) == {"name", "age", "tags"} and isinstance(person["age"], int), text
        assert set(person["tags"]) <= {"a", "b"}


def pick(allowed, words, draw, length):
    """A token at random; in a long text one that ends a part, if it may be next."""
    ends = [token for token in allowed if token == 1 or words[token] in (b'"', b"]", b"}")]
    return int(draw.choice(ends if ends and length > 60 else allowed))


def test_what_the_library_refuses_stops_no_other_answer(of_bytes, caplog):
    good = of_bytes.begin(pb.WorkerGrammar(regex="a"), 1, [])
    with caplog.at_level(logging.WARNING):
        bad = [of_bytes.begin(pb.WorkerGrammar(**grammar), 1, []) for grammar in ({"regex": "("}, {"lark": "root ::= ["})]
        bits, stuck = of_bytes.masks([*bad, good])
    assert stuck == [True, True, False]
    # Nothing is masked where nothing is known.
    assert (bits[:2] == 0xFF).all() and np.unpackbits(bits[2]).sum() == 1
    assert len(caplog.records) == 2 and all("\n" not in record.getMessage() for record in caplog.records)


def test_an_answer_beyond_the_limits_cannot_go_on(of_bytes):
    hard = pb.WorkerGrammar(lark="start: A\nA: /(.*a.{12}){3}/")
    answer, draw = of_bytes.begin(hard, 1, []), np.random.default_rng(0)
    for position in range(1, 1 << 15):
        if following(of_bytes, answer) is None:
            break
        of_bytes.take_in([(answer, position, int(draw.choice(ids("ab"))))])
    else:
        pytest.fail("the states of the answer had no limit")
    assert following(of_bytes, of_bytes.begin(pb.WorkerGrammar(regex="a"), 1, [])) == ids("a")


def test_few_compiled_grammars_are_kept_and_one_is_used_again(of_bytes):
    for n in range(KEPT + 5):
        of_bytes.masks([of_bytes.begin(pb.WorkerGrammar(regex=f"a{{{n + 1}}}"), 1, [])])
    assert len(of_bytes._kept) == KEPT
    first, again = (of_bytes.begin(pb.WorkerGrammar(regex="a{30}"), 1, ids("a" * n)) for n in (30, 29))
    assert (following(of_bytes, first), following(of_bytes, again)) == ([EOS], ids("a"))
    assert len(of_bytes._kept) == KEPT


def test_threads_do_the_work(of_bytes):
    seen = set()
    plain = of_bytes._find
    of_bytes._find = lambda grown: (seen.add(threading.current_thread().name), plain(grown))
    try:
        answer = of_bytes.begin(pb.WorkerGrammar(regex="thread+"), 1, [])
        take_in(of_bytes, answer, 1, "t")
        assert following(of_bytes, answer) == ids("h")
    finally:
        del of_bytes._find
    assert len(seen) == 2 and all(re.match("grammar", name) for name in seen)
