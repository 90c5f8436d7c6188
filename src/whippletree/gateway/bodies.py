"""The bodies of one session's requests as JSON, so that what was in the one before is not read again.

Invariant: what is returned equals the whole body, read at once; elements of a list that have the bytes of those in
their places in the body before are the same objects, by which the next room knows them without looking.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from whippletree.gateway.dialects.base import DialectError
from whippletree.types import Json

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder(Json)


class Bodies:
    def __init__(self) -> None:
        self._lists: dict[str, tuple[list[msgspec.Raw], list[Json]]] = {}
        """Of the body before, per key: bytes and values of the elements."""

    def read(self, data: bytes) -> dict[str, Json]:
        """Raises DialectError where it is no JSON object."""
        try:
            return {key: self._value(key, raw) for key, raw in _OBJECT.decode(data).items()}
        except (msgspec.DecodeError, RecursionError):
            return _leniently(data)

    def _value(self, key: str, raw: msgspec.Raw) -> Json:
        if memoryview(raw)[0] != ord("["):
            return _VALUE.decode(raw)
        parts = _LIST.decode(raw)
        known_parts, known = self._lists.get(key, ([], []))
        shared = _shared(parts, known_parts)
        elements = known[:shared] + [_VALUE.decode(part) for part in parts[shared:]]
        self._lists[key] = parts, elements
        return elements


def _shared(ours: Sequence[msgspec.Raw], theirs: Sequence[msgspec.Raw]) -> int:
    """How long the common beginning is."""
    length = min(len(ours), len(theirs))
    if ours[:length] == theirs[:length]:
        return length
    return next(i for i in range(length) if ours[i] != theirs[i])


def _leniently(data: bytes) -> dict[str, Json]:
    """JavaScript writes halves of surrogate pairs where it cuts a text, which strict parsers refuse."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DialectError(f"the body is no valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise DialectError(f"the body must be a JSON object, got {type(body).__name__}")
    return body  # pyright: ignore[reportUnknownVariableType]
