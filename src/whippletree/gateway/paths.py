"""What one rollout has said so far: message histories and the exact ids that they stand for.

Invariant: an assistant message that was sampled here is always rendered from its sampled ids; text is encoded once.
Messages are compared canonically: role, content (of assistants without the white space around it), tool names, and tool
arguments as parsed JSON. Ids of tool calls, reasoning, spacing and key order of arguments do not count.
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


class Tape:
    """Ids of one path in room that grows, so that a longer prompt costs only what is new and shares its memory."""

    __slots__ = ("_room", "length")

    def __init__(self, ids: Ids) -> None:
        self._room = np.empty(max(256, 2 * len(ids)), dtype=np.int64)
        self._room[: len(ids)] = ids
        self.length = len(ids)

    def append(self, ids: Ids) -> None:
        end = self.length + len(ids)
        if end > len(self._room):
            # A new array: what was given out stays as it is.
            self._room = np.concatenate([self._room[: self.length], np.empty(2 * end - self.length, dtype=np.int64)])
        self._room[self.length : end] = ids
        self.length = end

    def head(self, length: int) -> Ids:
        """The first ids; later appends do not change them."""
        view = self._room[:length]
        view.flags.writeable = False
        return view


@dataclass(frozen=True, slots=True)
class End:
    """Where a sampled message ends: the ids up to there, and the call that sampled it."""

    tape: Tape
    length: int
    completion_ids: Ids
    call: int
    reply: Message


@dataclass(slots=True, eq=False)
class Turn:
    """A message in a history; `end` is set where it was sampled here."""

    next: dict[Hashable, Turn] = field(default_factory=dict[Hashable, "Turn"])
    end: End | None = None
    asked: int = 0
    """Requests that ended here."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request in ids, and its place."""

    ids: Ids
    tape: Tape
    turn: Turn
    after: int | None
    """The call whose reply the request continues."""
    start: int
    """Messages of the request that come before and with that reply."""


class Paths:
    """A trie of canonical messages, one root per set of tools.

    `counts` says how requests met it. `continuation`: extends the end of a path; `realigned`: of these, the echoed
    reply was written otherwise than it was given (arguments, ids apart), and was recognised. Forks leave a known path:
    `fork:retry` asks the same again, `fork:branch` continues a reply that was already continued, `fork:edit` follows it
    and then tells it otherwise. Roots share no sampled turn: `root:start` is the first, `root:tools` has other tools,
    `root:system` another beginning, `root:reply` an assistant message where another was sampled, `root:edit` another
    history. `reencoded`: assistant messages that were not sampled here, or were edited, and are context now.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._roots: list[tuple[Sequence[Tool], Turn]] = []
        self._sampled: dict[Hashable, Ids] = {}
        self._trail: tuple[Turn | None, list[tuple[Message, Turn]]] = (None, [])
        self.counts: Counter[str] = Counter()

    def prompt(self, request: Request) -> Prompt:
        """The ids to sample after, shape (T,), and where in the trie the request ends."""
        root, new_root = self._root(request.tools)
        trail, left = self._walk(root, request.messages)
        turn = trail[-1][1] if trail else root
        last = next((i for i in range(len(trail) - 1, -1, -1) if trail[i][1].end is not None), None)
        end = None if last is None else trail[last][1].end
        start = 0 if last is None else last + 1
        self._count(trail, last, left, root, new_root)
        turn.asked += 1
        rest = self._rest(request, start, end is None)
        if end is None:
            tape = Tape(np.concatenate(rest))
        else:
            tape = end.tape if end.tape.length == end.length else Tape(end.tape.head(end.length))
            for ids in (self._renderer.closing(end.completion_ids), *rest):
                tape.append(ids)
        return Prompt(tape.head(tape.length), tape, turn, None if end is None else end.call, start)

    def record(self, prompt: Prompt, completion_ids: Ids, message: Message, call: int) -> None:
        """Remember that `message` was sampled as `completion_ids` after `prompt`, in call number `call`."""
        tape = prompt.tape if prompt.tape.length == len(prompt.ids) else Tape(prompt.ids)
        tape.append(completion_ids)
        key = _key(message)
        prompt.turn.next.setdefault(key, Turn()).end = End(tape, tape.length, completion_ids, call, message)
        self._sampled[key] = completion_ids

    def _root(self, tools: tuple[Tool, ...]) -> tuple[Turn, bool]:
        for known, root in self._roots:
            if known is tools or known == tools:
                return root, False
        root = Turn()
        self._roots.append((tools, root))
        return root, True

    def _walk(self, root: Turn, messages: Sequence[Message]) -> tuple[list[tuple[Message, Turn]], Turn | None]:
        """The turns of the messages, and the turn at which they leave what was known where others go on from there."""
        last_root, last_trail = self._trail
        trail: list[tuple[Message, Turn]] = []
        if last_root is root:  # histories grow: the same objects are the same turns
            shared = 0
            for message, (known, _) in zip(messages, last_trail, strict=False):
                if message is not known:
                    break
                shared += 1
            trail = last_trail[:shared]
        turn = trail[-1][1] if trail else root
        left = None
        for message in messages[len(trail) :]:
            key = _key(message)
            following = turn.next.get(key)
            if following is None:
                if left is None and turn.next:
                    left = turn
                following = turn.next[key] = Turn()
            turn = following
            trail.append((message, turn))
        self._trail = (root, trail)
        return trail, left

    def _count(
        self,
        trail: list[tuple[Message, Turn]],
        last: int | None,
        left: Turn | None,
        root: Turn,
        new_root: bool,
    ) -> None:
        final = trail[-1][1] if trail else None
        if last is not None:
            message, turn = trail[last]
            assert turn.end is not None
            if final is not None and final.asked:
                self.counts["fork:retry"] += 1
            elif left is turn:
                self.counts["fork:branch"] += 1
            elif left is not None:
                self.counts["fork:edit"] += 1
            else:
                self.counts["continuation"] += 1
            if _differs(message, turn.end.reply):
                self.counts["realigned"] += 1
        elif final is not None and final.asked:
            self.counts["fork:retry"] += 1
        elif not any(name.startswith("root:") for name in self.counts):
            self.counts["root:start"] += 1
        elif new_root:
            self.counts["root:tools"] += 1
        elif left is None or left is root:
            self.counts["root:system"] += 1
        else:
            told = next(message for message, turn in trail if turn in left.next.values())
            sampled = any(turn.end is not None for turn in left.next.values())
            self.counts["root:reply" if told.role == "assistant" and sampled else "root:edit"] += 1

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
                if message.role == "assistant":
                    self.counts["reencoded"] += 1
                run.append(message)
                continue
            flush()
            parts += [self._renderer.opening, sampled, self._renderer.closing(sampled)]
        flush()
        return [*parts, self._renderer.opening]


def _key(message: Message) -> Hashable:
    if message.role != "assistant":
        return message.role, message.content
    calls = tuple((call.name, _canonical(call.arguments)) for call in message.tool_calls)
    return message.role, message.content.strip(), calls


def _differs(echoed: Message, reply: Message) -> bool:
    if echoed is reply:
        return False
    arguments = [call.arguments for call in echoed.tool_calls]
    return echoed.content != reply.content or arguments != [call.arguments for call in reply.tool_calls]


@lru_cache(8192)
def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
