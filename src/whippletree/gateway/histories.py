"""The conversations of one session as they came over the wire, so that each item is read once.

Invariant: what is returned equals what the dialect reads from the whole body; equal beginnings give the same objects,
by which the next room knows them without looking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from whippletree.gateway.dialects.base import Dialect
from whippletree.types import Json, Message, Tool

_KEPT = 8
"""Conversations that a session remembers: a main one, and sub-agents at work at the same time."""


@dataclass(frozen=True, slots=True)
class _Read:
    dialect: Dialect
    items: list[Json]
    messages: tuple[Message, ...]
    ends: list[int]
    """Per message the index after its last item."""


class Histories:
    def __init__(self) -> None:
        self._read: list[_Read] = []
        """The latest last."""
        self._tools: list[tuple[Dialect, Json, tuple[Tool, ...]]] = []

    def messages(self, dialect: Dialect, body: Mapping[str, Json]) -> tuple[Message, ...]:
        """Raises DialectError."""
        items = dialect.items(body)
        known, shared = self._closest(dialect, items)
        # The last message may go on in what is new.
        kept = max(0, sum(end <= shared for end in known.ends) - 1) if known else 0
        messages, ends = (list(known.messages[:kept]), known.ends[:kept]) if known else ([], [])
        for message, end in dialect.read(items, ends[-1] if ends else 0):
            place = len(messages)
            if known and end <= shared and place < len(known.messages) and known.messages[place] == message:
                message = known.messages[place]
            messages.append(message)
            ends.append(end)
        found = _Read(dialect, items, tuple(messages), ends)
        if known and shared == len(known.items):
            self._read.remove(known)
        self._read = [*self._read[1 - _KEPT :], found]
        return found.messages

    def tools(self, dialect: Dialect, body: Mapping[str, Json]) -> tuple[Tool, ...]:
        """Raises DialectError."""
        raw = dialect.raw_tools(body)
        for known_dialect, known_raw, tools in self._tools:
            if known_dialect is dialect and _same(known_raw, raw):
                return tools
        tools = dialect.tools(raw)
        self._tools = [*self._tools[1 - _KEPT :], (dialect, raw, tools)]
        return tools

    def _closest(self, dialect: Dialect, items: list[Json]) -> tuple[_Read | None, int]:
        """The conversation with the longest common beginning, and how many items it is; the latest of equals."""
        best, most = None, 0
        for known in reversed(self._read):
            if known.dialect is not dialect or len(known.items) <= most:
                continue
            shared = 0
            for ours, theirs in zip(items, known.items, strict=False):
                if not _same(ours, theirs):
                    break
                shared += 1
            if shared > most:
                best, most = known, shared
        return best, most


def _same(one: Json, other: Json) -> bool:
    try:
        return one is other or one == other
    except RecursionError:
        return False
