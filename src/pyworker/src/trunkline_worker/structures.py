"""Answers with a structure: which tokens may be next in each, found by threads alongside the steps.

What may follow depends on the answer so far alone, and not on the model. So it is looked for as soon as a token is known, while
the answer is on its way to the server and the model runs the next step; `Structures.masks` waits for what is left of that.

The library is llguidance, as in Trunkline's embedded worker, with the same texts and limits: the server has compiled each grammar
before it came here.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import gbnf, install, vocabulary
from .facts import ModelFacts
from .proto import messages as pb

log = logging.getLogger(__name__)

KEPT = 32
"""Compiled grammars that are kept."""
STACK = 64 << 20
"""Bytes of the stack of the thread that compiles: the library does so by recursion."""
COMPILE_FUEL, MOST_STATES = 200_000, 16_384
"""Fuel to compile a grammar, and states of one answer, at most: those of the embedded worker."""
WHITE_SPACE = r" |\n{1,2}[ \t]{0,20}"
"""White space between two parts of JSON, at most, unless a schema has its own rule: the embedded worker's."""
OPTIONS = "x-guidance"
NOT_FORCED = '\n%llguidance {"no_forcing": true}\n'
"""Tokens of a text are the model's choice, also where the grammar allows one text alone: as on the embedded worker."""
GOES_ON = ("NotStopped", "EndOfSentence", "NoExtension", "NoExtensionBias")
"""States of a matcher that is of use."""


@dataclass
class Answer:
    """One answer with a structure. The thread of the engine owns it; `matcher` and `row` belong to the thread of `job`."""

    n_prompt: int
    job: Future[None]
    """Finds what may follow the tokens known so far."""
    n_known: int
    """Generated tokens that are known."""
    matcher: Any = None
    row: npt.NDArray[np.uint8] | None = None
    """The tokens that may be next: token `n` is bit `n % 8` of byte `n // 8`. None: the answer cannot go on."""


@dataclass
class Allowed:
    """What may be next in the sequences of a batch that sample and have a structure."""

    rows: npt.NDArray[np.int64]
    """Their numbers among the sampling sequences."""
    bits: npt.NDArray[np.uint8]
    """For each, a bit for each token, as `Answer.row`; all of them where an answer cannot go on."""
    stuck: list[int]
    """Numbers in the batch of those that cannot go on."""


class Tokens:
    """Tokens of a vocabulary in the form that llguidance asks for."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, words: Sequence[bytes], end: int) -> None:
        self.tokens, self.eos_token_id = words, end

    def __call__(self, text: str) -> list[int]:
        """Is asked for the tokens of a text that is forced; none is."""
        raise NotImplementedError(f"tokens of {text!r}")


class Structures:
    """Compiles grammars for one vocabulary, and follows the answers."""

    def __init__(self, words: Sequence[bytes], ends: Sequence[int]) -> None:
        import llguidance
        from llguidance.numpy import fill_next_token_bitmask

        self._matcher, self._fill = llguidance.LLMatcher, fill_next_token_bitmask
        self._limits = llguidance.LLParserLimits(
            initial_lexer_fuel=COMPILE_FUEL, max_lexer_states=MOST_STATES, verbose_errors=False
        )
        slices = llguidance.LLTokenizer.json_slices()
        self._tokenizer = llguidance.LLTokenizer(Tokens(words, ends[0]), n_vocab=len(words), eos_token=list(ends), slices=slices)
        self._width = -(-len(words) // 32)
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()
        """Matchers at the beginning of an answer, the one used last at the end."""
        self._keeping = threading.Lock()
        # One thread, so that nothing meets a matcher twice at once. The library's own pool of threads took longer, by what it
        # takes to wake them, where the model computes on the same cores.
        self._masks = ThreadPoolExecutor(1, "grammar")
        self._compiler = ThreadPoolExecutor(1, "grammar-compiler")
        _start_deep(self._compiler)

    def begin(self, grammar: pb.WorkerGrammar, n_prompt: int, generated: Sequence[int]) -> Answer:
        """Returns a new answer, whose grammar is compiled by now or soon; a sequence that goes on has generated tokens."""
        kind = str(grammar.WhichOneof("text"))
        key = kind, str(getattr(grammar, kind))
        answer = Answer(n_prompt, Future(), len(generated))
        with self._keeping:
            thread = self._masks if key in self._kept else self._compiler
        answer.job = thread.submit(self._begin, answer, key, list(generated))
        return answer

    def take_in(self, answers: Iterable[tuple[Answer, int, int]]) -> None:
        """Takes in tokens of answers, each with its position in the sequence, unless they are known."""
        grown = [(answer, token) for answer, position, token in answers if position == answer.n_prompt + answer.n_known]
        if grown:
            job = self._masks.submit(self._advance, grown, [answer.job for answer, _ in grown])
            for answer, _ in grown:
                answer.n_known += 1
                answer.job = job

    def masks(self, answers: Sequence[Answer]) -> tuple[npt.NDArray[np.uint8], list[bool]]:
        """Returns what may be next in each answer, as a row of bits, and whether it cannot go on. Waits for the threads."""
        found = np.full((len(answers), 4 * self._width), 0xFF, np.uint8)
        stuck = []
        for row, answer in zip(found, answers, strict=True):
            answer.job.result()
            stuck.append(answer.row is None)
            if answer.row is not None:
                row[:] = answer.row
        return found, stuck

    # On the threads.

    def _begin(self, answer: Answer, key: tuple[str, str], generated: list[int]) -> None:
        answer.matcher = self._compiled(key)
        self._find([(answer, generated)])

    def _compiled(self, key: tuple[str, str]) -> Any:
        """Returns a matcher at the beginning of an answer; None if the library refuses the grammar."""
        with self._keeping:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key].deep_copy()
        try:
            made = self._matcher(self._tokenizer, source(*key), log_level=0, limits=self._limits)
            fault = made.get_error() if made.is_error() else ""
        except BaseException as error:
            # A panic of the library is no Exception.
            made, fault = None, str(error) or type(error).__name__
        if fault:
            log.warning("a grammar cannot be compiled: %s", fault.splitlines()[0])
            return None
        with self._keeping:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return made.deep_copy()

    def _advance(self, grown: list[tuple[Answer, int]], before: list[Future[None]]) -> None:
        for job in before:
            job.result()
        self._find([(answer, [token]) for answer, token in grown])

    def _find(self, grown: list[tuple[Answer, list[int]]]) -> None:
        """Takes in tokens of answers, and finds what may follow."""
        live = []
        for answer, tokens in grown:
            answer.row = None
            if answer.matcher is not None and self._consumed(answer.matcher, tokens):
                live.append(answer)
        masks = np.zeros((len(live), self._width), np.int32)
        for i, answer in enumerate(live):
            try:
                self._fill(answer.matcher, masks, i)
            except BaseException as error:
                log.warning("an answer cannot go on: %s", error)
                continue
            if self._goes_on(answer.matcher):
                answer.row = masks[i].view(np.uint8)

    def _consumed(self, matcher: Any, tokens: list[int]) -> bool:
        for token in tokens:
            # Behind the end of a grammar anything may follow: steps that were under way run a token more.
            if matcher.is_stopped() and not matcher.is_error():
                return True
            if not matcher.consume_token(token):
                break
        return self._goes_on(matcher)

    def _goes_on(self, matcher: Any) -> bool:
        return not matcher.is_error() and matcher.stop_reason() in GOES_ON


def _start_deep(pool: ThreadPoolExecutor) -> None:
    """Starts the thread of a pool with a deep stack."""
    before = threading.stack_size(STACK)
    try:
        pool.submit(int).result()
    finally:
        threading.stack_size(before)


def source(kind: str, text: str) -> str:
    """Returns a grammar of the protocol as llguidance takes it.

    Raises:
        ValueError: it is malformed.
    """
    if kind == "lark":
        lark = gbnf.to_lark(text) if gbnf.is_gbnf(text) else text
        grammars = [{"lark_grammar": lark + NOT_FORCED}]
    elif kind == "regex":
        import llguidance

        grammars = json.loads(llguidance.LLMatcher.grammar_from_regex(text))["grammars"]
        grammars[0]["lark_grammar"] += NOT_FORCED
    else:
        grammars = [
            {"lark_grammar": "start: @answer" + NOT_FORCED},
            {"name": "answer", "json_schema": _schema(json.loads(text))},
        ]
    return json.dumps({"grammars": grammars})


def _schema(schema: Any) -> Any:
    """Returns a schema with the rule for white space. `True` is any JSON."""
    schema = {} if schema is True else schema
    if not isinstance(schema, dict):
        return schema
    theirs = schema.get(OPTIONS)
    return schema | {OPTIONS: {"whitespace_pattern": WHITE_SPACE} | (theirs if isinstance(theirs, dict) else {})}


def of_folder(folder: Path, facts: ModelFacts) -> Structures | None:
    """Returns what follows answers of the model in a folder; None with a line in the log if that cannot be had."""
    ends = [end for end in facts.eos_token_ids if end < facts.vocab_size]
    why = None if ends else "no token ends a text of this model"
    try:
        import llguidance  # noqa: F401
    except ImportError:
        why = f"llguidance is not installed: {install.command('grammars')}"
    words = None if why else vocabulary.words(folder, facts.vocab_size)
    if words is None:
        log.info("no structured output: %s", why or "no tokenizer.json says which bytes a token stands for")
        return None
    return Structures(words, ends)
