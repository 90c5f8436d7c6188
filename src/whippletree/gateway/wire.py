"""One rollout's session as a harness reaches it over HTTP: reads requests, keeps to the budget, ends politely.

Invariant: whatever a harness sends or drops, each sampled reply is captured once. A request that repeats one whose
reply could not be delivered gets that reply. When the session is over, every further request gets a normal closing
reply: an error would be retried.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from whippletree.errors import BudgetSpent, ContextOverflow
from whippletree.gateway.bodies import Bodies
from whippletree.gateway.capture import Session
from whippletree.gateway.dialects.base import Dialect, Wishes
from whippletree.gateway.histories import Histories
from whippletree.types import Completion, Json, Message, Request, StopReason

CLOSING = "This session is over: its budget is spent."
_KEYS = ("x-api-key", "x-goog-api-key", "x-stainless-", "x-forwarded-")
_NOTHING = np.empty(0, np.int64)
_CLOSED = Completion(Message("assistant", CLOSING), "stop", _NOTHING, _NOTHING, np.empty(0, np.float32), 0)


@dataclass(slots=True, eq=False)
class Answer:
    """A request that is being answered."""

    request: Request
    wishes: Wishes
    task: asyncio.Task[Completion]
    abandoned: bool = False
    """The client went away before it had the reply."""


class WireSession:
    """`told_overflows` is how many prompts that are too long are refused with the protocol's own error, on which some
    harnesses compact their context, before the session ends."""

    def __init__(self, session: Session, *, told_overflows: int = 2) -> None:
        self.session = session
        self.stop_reason: StopReason | None = None
        """Why the session is over, None while it goes on."""
        self.failure: Exception | None = None
        """What broke it, where `stop_reason` is ERROR."""
        self.over = asyncio.Event()
        self.counts: Counter[str] = Counter()
        """`wire:refused` (bad bodies), `wire:abandoned`, `wire:redelivered`, `wire:overflow`, `wire:closing`."""
        self.last_active = asyncio.get_running_loop().time()
        self.bodies = Bodies()
        self._histories = Histories()
        self._told_overflows = told_overflows
        self._answers: list[Answer] = []

    @property
    def busy(self) -> bool:
        return any(not answer.task.done() for answer in self._answers)

    def ask(self, dialect: Dialect, body: Mapping[str, Json], headers: Mapping[str, str]) -> Answer:
        """Begin to answer; the task raises ContextOverflow where the harness is to be told. Raises DialectError."""
        self.last_active = asyncio.get_running_loop().time()
        wishes = dialect.wishes(body)
        request = self.read(dialect, body)
        asked = {**wishes.asked, "headers": _telling(headers)}
        request = replace(request, max_tokens=wishes.max_tokens, stop=wishes.stop, asked=asked)
        for answer in self._answers:
            if answer.abandoned and _same(answer.request, request):
                answer.abandoned = False
                self.counts["wire:redelivered"] += 1
                return Answer(request, wishes, answer.task)
        answer = Answer(request, wishes, asyncio.ensure_future(self._complete(request)))
        self._answers.append(answer)
        return answer

    def read(self, dialect: Dialect, body: Mapping[str, Json]) -> Request:
        """The conversation of a body. Raises DialectError."""
        return Request(self._histories.messages(dialect, body), self._histories.tools(dialect, body))

    def count_tokens(self, dialect: Dialect, body: Mapping[str, Json]) -> int:
        """Of a request that is not made. Raises DialectError."""
        return self.session.count_tokens(self.read(dialect, body))

    def delivered(self, answer: Answer) -> None:
        self.last_active = asyncio.get_running_loop().time()
        self._answers = [kept for kept in self._answers if kept.task is not answer.task]

    def abandon(self, answer: Answer) -> None:
        """The client is gone; sampling goes on, and the reply is kept for a retry."""
        self.counts["wire:abandoned"] += 1
        for kept in self._answers:
            kept.abandoned |= kept.task is answer.task

    def end(self, reason: StopReason, failure: Exception | None = None) -> None:
        """Answer no more; the first reason stays."""
        if self.stop_reason is None:
            self.stop_reason, self.failure = reason, failure
            self.over.set()

    async def settle(self) -> None:
        """End, give up what is still being sampled, and return when nothing is."""
        self.over.set()
        tasks = [answer.task for answer in self._answers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._answers.clear()

    async def _complete(self, request: Request) -> Completion:
        if self.over.is_set():
            return self._closing()
        try:
            return await self.session.complete(request)
        except BudgetSpent as spent:
            self.end(StopReason.MAX_TURNS if spent.of == "calls" else StopReason.MAX_TOKENS)
        except ContextOverflow:
            self.counts["wire:overflow"] += 1
            if self.counts["wire:overflow"] <= self._told_overflows:
                raise
            self.end(StopReason.CONTEXT_OVERFLOW)
        except Exception as failure:  # whoever opened the session raises it: the harness could only ask again
            self.end(StopReason.ERROR, failure)
        return self._closing()

    def _closing(self) -> Completion:
        self.counts["wire:closing"] += 1
        return _CLOSED


def _telling(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that may tell threads and purposes apart; no keys, nothing that every client sends."""
    return {name: value for name, value in headers.items() if name.startswith("x-") and not name.startswith(_KEYS)}


def _same(one: Request, other: Request) -> bool:
    return one.messages == other.messages and one.tools == other.tools
