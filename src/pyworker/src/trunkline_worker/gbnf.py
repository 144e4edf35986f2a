"""Grammars in llama.cpp's form, GBNF, written in Lark's syntax, as the server writes them.

Rules keep their places and their order; `root` is Lark's `start`, and the others get names that Lark takes.
"""

from __future__ import annotations

import json
import re

_PART = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
    | (?P<text>"(?:\\.|[^"\\])*")
    | (?P<class>\[\^?(?:\\.|[^\\])(?:\\.|[^\]\\])*\])
    | (?P<is>::=)
    | (?P<repeat>[*+?]|\{[0-9 ,]+\})
    | (?P<sign>[()|.])
    | (?P<name>[A-Za-z0-9_-]+)""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(r"\\(?:x(..)|u(.{4})|U(.{8})|(.))|(.)", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


def is_gbnf(text: str) -> bool:
    """Says whether a grammar has this form: Lark has no `::=`."""
    return "::=" in text


def to_lark(text: str) -> str:
    """Returns a grammar in Lark's syntax.

    Raises:
        ValueError: it is malformed.
    """
    parts = _parts(text)
    names = {"root": "start"}
    for kind, part in parts:
        if kind == "name":
            names.setdefault(part, f"rule_{len(names)}")
    lark = ""
    for i, (kind, part) in enumerate(parts):
        if kind == "name" and i + 1 < len(parts) and parts[i + 1][0] == "is":
            lark += f"\n{names[part]}:"
        elif kind == "repeat":
            # It stands behind what it repeats.
            lark += part.replace(" ", "")
        elif kind != "is":
            lark += " " + _written(kind, part, names)
    return lark + "\n"


def _written(kind: str, part: str, names: dict[str, str]) -> str:
    if kind == "name":
        return names[part]
    if kind == "text":
        return _text(part)
    if kind == "class":
        return _class(part)
    return "/./s" if part == "." else part


def _parts(text: str) -> list[tuple[str, str]]:
    parts, at = [], 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None or found.lastgroup is None:
            raise ValueError(f"{text[at]!r} stands outside of a text")
        if found.lastgroup != "blank":
            parts.append((found.lastgroup, found[0]))
        at = found.end()
    return parts


def _characters(text: str) -> list[tuple[bool, str]]:
    """Returns the characters of a text or a class, and whether each was escaped."""
    found = []
    for x, u, long, named, plain in _CHARACTER.findall(text):
        digits = x or u or long
        found.append((not plain, plain or (chr(int(digits, 16)) if digits else _NAMED.get(named, named))))
    return found


def _text(part: str) -> str:
    return json.dumps("".join(character for _, character in _characters(part[1:-1])), ensure_ascii=False)


def _class(part: str) -> str:
    inner = part[1:-1]
    lark = "/["
    if inner.startswith("^"):
        lark, inner = lark + "^", inner[1:]
    characters = _characters(inner)
    for i, (escaped, character) in enumerate(characters):
        is_range = character == "-" and not escaped and 0 < i < len(characters) - 1
        lark += "-" if is_range else f"\\u{{{ord(character):X}}}"
    return lark + "]/"
