"""Which stretches of an answer choose tools and which are arguments, one finder per convention of `toolcalls`.

Invariant: a finder is given text that the parser of the same convention has read as calls. The choice of a tool is the
opening of a call and its name; the arguments are their whole member of the call's object, its key included. What only
separates or closes is neither.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from whippletree.types import Part, Parts

_DECODER = json.JSONDecoder()


class Span(NamedTuple):
    start: int
    end: int
    part: Part


Finder = Callable[[str, int], list[Span]]
"""Spans of the calls in a text from a place on, in order."""


def none_spans(text: str, start: int) -> list[Span]:
    return []


def hermes_spans(text: str, start: int) -> list[Span]:
    found: list[Span] = []
    while (opened := text.find("<tool_call>", start)) >= 0:
        found += _call_spans(text, opened, "arguments", "parameters")
        start = text.index("</tool_call>", opened)
    return found


def llama_spans(text: str, start: int) -> list[Span]:
    opened = len(text) - len(text[start:].lstrip())
    return _call_spans(text, opened, "parameters", "arguments")


SPANS: dict[str, Finder] = {"none": none_spans, "hermes": hermes_spans, "llama": llama_spans}


def parts_of_tokens(spans: Sequence[Span], text: str, count: int, head: Callable[[int], str]) -> Parts:
    """From characters to tokens: the part of each of `count` tokens, of which the first k spell `head(k)`.

    A token belongs to the first span that it has a character of. Where several tokens spell one character, all do.
    """
    found = np.full(count, Part.OTHER, dtype=np.int8)

    def start(token: int) -> int:
        return _common(head(token), text)

    for span in spans:
        first = bisect_left(range(count), span.start, key=start)
        if first == count or start(first) > span.start:
            first -= 1
        stretch = found[first : bisect_right(range(count), span.end - 1, key=start)]
        stretch[stretch == Part.OTHER] = span.part
    return found


def _call_spans(text: str, opened: int, *keys: str) -> list[Span]:
    """Of one call that opens at `opened`; the arguments are under the first of `keys` that it has."""
    members = list(_members(text, text.index("{", opened)))
    names = {name for name, _, _ in members}
    arguments = next((key for key in keys if key in names), None)
    parts = {"name": Part.ACTION, arguments: Part.ARGUMENT}
    opening = Span(opened, members[0][1], Part.ACTION)
    return [opening, *(Span(start, end, parts[name]) for name, start, end in members if name in parts)]


def _members(text: str, brace: int) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of each member of the JSON object that begins at `brace`."""
    place = _past_space(text, brace + 1)
    while text[place] != "}":
        key, end = _DECODER.raw_decode(text, place)
        colon = _past_space(text, end)
        _, end = _DECODER.raw_decode(text, _past_space(text, colon + 1))
        yield key, place, end
        place = _past_space(text, end)
        if text[place] == ",":
            place = _past_space(text, place + 1)


def _past_space(text: str, place: int) -> int:
    while text[place] in " \t\n\r":
        place += 1
    return place


def _common(head: str, text: str) -> int:
    """Length of the common prefix: a head that ends inside a character ends with another one."""
    if text.startswith(head):
        return len(head)
    pairs = enumerate(zip(head, text, strict=False))
    return next((place for place, (one, other) in pairs if one != other), len(text))
