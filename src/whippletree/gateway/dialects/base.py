"""What every wire protocol gives the gateway: requests read, replies written. Pure: JSON in, JSON and bytes out.

Invariant: `read` is a left-to-right scan whose only memory is the message that it is building. So messages that were
read from unchanged items stay valid, but for the last of them, and a long history is read once and not at every call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Protocol

from whippletree.errors import WhippletreeError
from whippletree.types import Completion, Json, Message, Tool


class DialectError(WhippletreeError):
    """A request body that the protocol does not allow; becomes status 400 in the protocol's own form."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """All of a request but its messages and tools."""

    model: str = ""
    stream: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    asked: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Model, temperature and whatever else bears on sampling, as it stood in the body."""
    extra: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """What the dialect itself needs to write the reply."""


class Dialect(Protocol):
    name: str
    keep_alive: bytes
    """A frame that may be sent any number of times before the events, and that clients ignore."""

    def items(self, body: Mapping[str, Json]) -> list[Json]:
        """The conversation as a flat list in order, instructions outside of the message list included.

        Raises DialectError where there is none.
        """
        ...

    def read(self, items: Sequence[Json], start: int) -> Iterator[tuple[Message, int]]:
        """Messages from item `start` on, each with the index after its last item. Raises DialectError.

        One message for one turn: neighbouring items of one assistant turn are joined; each tool result is a message of
        role `tool`. Content that is no text (images, files) is named in square brackets, such as `[image]`.
        """
        ...

    def raw_tools(self, body: Mapping[str, Json]) -> Json:
        """The part of the body that `tools` reads; equal parts give equal tools."""
        ...

    def tools(self, raw: Json) -> tuple[Tool, ...]:
        """Raises DialectError. Tools without a schema that the server should run are left out."""
        ...

    def wishes(self, body: Mapping[str, Json]) -> Wishes:
        """Raises DialectError."""
        ...

    def reply(self, wishes: Wishes, completion: Completion, id: str) -> Json:
        """The whole reply. `id` is unique and has letters and digits only."""
        ...

    def events(self, wishes: Wishes, completion: Completion, id: str) -> Iterator[bytes]:
        """The same as the frames of a proper event stream, the last one included."""
        ...

    def error(self, status: int, problem: str) -> Json:
        """A body in the protocol's own form. Status 400 with `CONTEXT_LENGTH` at its start means that the prompt is too
        long, and takes the form by which harnesses of this protocol know it."""
        ...

    def error_event(self, problem: str) -> bytes:
        """A frame that ends a stream which has already begun."""
        ...


CONTEXT_LENGTH = "prompt is too long"


# ---- reading JSON ------------------------------------------------------------------------------------------------


_DEPTH = 100
"""Levels of nesting that are kept; what writes JSON gives up somewhat further down."""


def shown(value: Json) -> str:
    """A value for a message, however large or deep it is."""
    plain = value is None or isinstance(value, str | int | float)
    return repr(value)[:60] if plain else f"a value of type {type(value).__name__}"


def text_of(value: Json, where: str) -> str:
    """Raises DialectError that names the place where it is no string."""
    if not isinstance(value, str):
        raise DialectError(f"{where} must be a string, got {shown(value)}")
    return value


def object_of(value: Json, where: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise DialectError(f"{where} must be an object, got {shown(value)}")
    return value  # pyright: ignore[reportUnknownVariableType]


def list_of(value: Json, where: str) -> list[Json]:
    if not isinstance(value, list):
        raise DialectError(f"{where} must be a list, got {shown(value)}")
    return value  # pyright: ignore[reportUnknownVariableType]


def texts_of(value: Json, where: str) -> tuple[str, ...]:
    """A list of strings, empty where there is none."""
    if value is None:
        return ()
    return tuple(text_of(each, f"{where}[{i}]") for i, each in enumerate(list_of(value, where)))


def count_of(value: Json, where: str) -> int | None:
    """A positive whole number, or None where there is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DialectError(f"{where} must be a whole number above 0, got {shown(value)}")
    return value


def flag_of(value: Json, where: str) -> bool:
    """False where there is none."""
    if value is not None and not isinstance(value, bool):
        raise DialectError(f"{where} must be true or false, got {shown(value)}")
    return bool(value)


def json_of(value: Json, where: str) -> Json:
    """Any value that is kept as it is. Raises DialectError where it could not be written again: no number (NaN,
    infinities), or nested too deeply."""
    level: list[Json] = [value]
    for _ in range(_DEPTH):
        if any(isinstance(node, float) and not isfinite(node) for node in level):
            raise DialectError(f"{where} holds a number that is not finite")
        lists: list[list[Json]] = [node for node in level if isinstance(node, list)]
        objects: list[dict[str, Json]] = [node for node in level if isinstance(node, dict)]
        level = [*chain.from_iterable(lists), *chain.from_iterable(node.values() for node in objects)]
        if not level:
            return value
    raise DialectError(f"{where} is nested deeper than {_DEPTH} levels")


# ---- arguments of tools, and JSON written -----------------------------------------------------------------------

_UNPARSED = "__unparsedToolInput"
"""The name under which claude-code, too, keeps arguments that are no JSON object."""
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_TEXT_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def ascii_json(value: Json) -> str:
    """Compact JSON that any client can decode: some split lines at U+2028, and half a surrogate pair has no bytes."""
    return _ENCODER.encode(value)


def arguments_object(text: str) -> dict[str, Json] | None:
    """Arguments of a tool call as an object, empty where there is no text; None where they are no JSON object that
    every client can read."""
    try:
        value = json_of(json.loads(text or "{}"), "arguments")
    except (ValueError, RecursionError, DialectError):
        return None
    return value if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType]


def unparsed(text: str) -> dict[str, Json]:
    """An object that stands for arguments that are none; `arguments_text` turns it back."""
    return {_UNPARSED: {"raw": text, "len": len(text)}}


def arguments_text(value: Json, where: str) -> str:
    """Arguments that were sent as an object, as compact JSON text. Raises DialectError."""
    arguments = object_of(json_of(value, where), where)
    kept = arguments.get(_UNPARSED)
    if len(arguments) == 1 and isinstance(kept, dict) and isinstance(raw := kept.get("raw"), str):  # pyright: ignore
        return raw
    return _TEXT_ENCODER.encode(arguments)
