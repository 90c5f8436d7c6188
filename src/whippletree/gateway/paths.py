"""What one rollout has said so far: message histories and the exact ids that they stand for.

Invariant: an assistant message that was sampled here is always rendered from its sampled ids; text is encoded once.
Messages are compared canonically: role, content, tool names, and tool arguments as parsed JSON. Ids of tool calls,
spacing and key order of arguments do not count.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from whippletree.chat.base import Renderer
from whippletree.types import Ids, Message, Request, Tool


@dataclass(slots=True, eq=False)
class Turn:
    """A message in a history; `ids` are those of prompt and completion where the message was sampled after it."""

    next: dict[Hashable, Turn] = field(default_factory=dict[Hashable, "Turn"])
    ids: tuple[Ids, Ids] | None = None


class Paths:
    """A trie of canonical messages, one root per set of tools."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._roots: list[tuple[Sequence[Tool], Turn]] = []
        self._sampled: dict[Hashable, Ids] = {}
        self.counts: Counter[str] = Counter(continuations=0, forks=0, roots=0, reencoded=0)
        """`continuations`: requests that extend the end of a path; `forks`: that leave a known path elsewhere or ask
        again; `roots`: that share no turn; `reencoded`: assistant messages that were not sampled here or were edited.
        """

    def prompt(self, request: Request) -> tuple[Ids, Turn]:
        """The ids to sample after, shape (T,), and where in the trie the request ends."""
        turn = self._root(request.tools)
        end, start, grown, extended = None, 0, False, False
        for position, message in enumerate(request.messages):
            key = _key(message)
            following = turn.next.get(key)
            if following is None:
                grown = True
                following = turn.next[key] = Turn()
            elif following.ids is not None:
                end, start, extended = following.ids, position + 1, bool(following.next)
            turn = following
        repeated = bool(request.messages) and not grown
        kind = ("forks" if extended else "continuations") if end is not None else "forks" if repeated else "roots"
        self.counts[kind] += 1
        return np.concatenate([*self._spliced(end), *self._rest(request, start, end is None)]), turn

    def record(self, turn: Turn, prompt_ids: Ids, completion_ids: Ids, message: Message) -> None:
        """Remember that `message` was sampled as `completion_ids` after the history that ends in `turn`."""
        key = _key(message)
        turn.next.setdefault(key, Turn()).ids = (prompt_ids, completion_ids)
        self._sampled[key] = completion_ids

    def _root(self, tools: tuple[Tool, ...]) -> Turn:
        for known, root in self._roots:
            if known is tools or known == tools:
                return root
        root = Turn()
        self._roots.append((tools, root))
        return root

    def _spliced(self, end: tuple[Ids, Ids] | None) -> list[Ids]:
        return [*end, self._renderer.closing(end[1])] if end is not None else []

    def _rest(self, request: Request, start: int, from_start: bool) -> list[Ids]:
        """What is new from message `start` on, the opening of the answer included."""
        parts: list[Ids] = []
        run: list[Message] = []

        def flush() -> None:
            if from_start and not parts:
                parts.append(self._renderer.encode_head(run, request.tools))
            elif run:
                parts.append(self._renderer.encode_messages(run))
            run.clear()

        for message in request.messages[start:]:
            sampled = self._sampled.get(_key(message)) if message.role == "assistant" else None
            if sampled is None:
                self.counts["reencoded"] += message.role == "assistant"
                run.append(message)
                continue
            flush()
            parts += [self._renderer.opening, sampled, self._renderer.closing(sampled)]
        flush()
        return [*parts, self._renderer.opening]


def _key(message: Message) -> Hashable:
    calls = tuple((call.name, _canonical(call.arguments)) for call in message.tool_calls)
    return message.role, message.content, calls


@lru_cache(8192)
def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
