"""A session in front of a server that gives text only: what was said is captured, and no token.

Invariant: its calls have no ids, so that nothing of it can be trained on by accident.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from whippletree.chat.template import message_as_dict, tool_as_dict
from whippletree.gateway.paths import Paths
from whippletree.types import (
    CallKind,
    Completion,
    Exchange,
    FinishReason,
    Ids,
    Json,
    Message,
    ModelCall,
    Request,
    Sampling,
    Tool,
    ToolCall,
)

_NOTHING: Ids = np.empty(0, np.int64)
Post = Callable[[str, dict[str, Json]], Awaitable[dict[str, Json]]]


class _NoTokens:
    """A renderer for which everything is empty: `Paths` then still knows who continues whom."""

    stop_ids: tuple[int, ...] = ()
    opening = _NOTHING

    def encode_head(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        return _NOTHING

    def encode_messages(self, messages: Sequence[Message]) -> Ids:
        return _NOTHING

    def closing(self, completion_ids: Ids) -> Ids:
        return _NOTHING


class TextSession:
    """As `CaptureSession`, over a chat completions endpoint; `post(path, body)` reaches it."""

    def __init__(self, rollout_id: str, model: str, sampling: Sampling, post: Post) -> None:
        self.rollout_id = rollout_id
        self.calls: list[ModelCall] = []
        self.paths = Paths(_NoTokens())  # pyright: ignore[reportArgumentType] (it asks for no more than these)
        self._model, self._sampling, self._post = model, sampling, post

    async def complete(self, request: Request) -> Completion:
        """Raises what `post` raises."""
        prompt = self.paths.prompt(request)
        limit = min(self._sampling.max_tokens, request.max_tokens or self._sampling.max_tokens)
        body: dict[str, Json] = {
            "model": self._model,
            "messages": [message_as_dict(message, lambda call: call.arguments) for message in request.messages],
            "temperature": self._sampling.temperature,
            "max_tokens": limit,
        }
        if request.tools:
            body["tools"] = [tool_as_dict(tool) for tool in request.tools]
        if request.stop:
            body["stop"] = list(request.stop)
        choice = (await self._post("/chat/completions", body))["choices"][0]
        message = _message(choice["message"])
        reason = choice.get("finish_reason")
        finish: FinishReason = "tool_calls" if message.tool_calls else "length" if reason == "length" else "stop"
        completion = Completion(message, finish, _NOTHING, _NOTHING, np.empty(0, np.float32), 0)
        self.paths.record(prompt, _NOTHING, message, len(self.calls))
        new = request.messages[prompt.start :]
        said = Exchange(prompt.after, new, message, request.tools, request.asked)
        call = ModelCall(len(self.calls), "main", _NOTHING, _NOTHING, completion.logprobs, 0, finish, exchange=said)
        self.calls.append(replace(call, temperature=self._sampling.temperature))
        return completion

    def count_tokens(self, request: Request) -> int:
        """A guess: four characters a token."""
        return sum(len(message.content) for message in request.messages) // 4

    def name_kinds(self, kinds: Sequence[CallKind]) -> None:
        """Give every captured call its kind, in order."""
        self.calls[:] = [replace(call, kind=kind) for call, kind in zip(self.calls, kinds, strict=True)]


def _message(told: dict[str, Json]) -> Message:
    calls = tuple(
        ToolCall(str(call.get("id", "")), call["function"]["name"], call["function"].get("arguments") or "{}")
        for call in told.get("tool_calls") or ()
    )
    return Message("assistant", told.get("content") or "", calls, reasoning=told.get("reasoning_content") or "")
