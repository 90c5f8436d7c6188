"""The boundary: one rollout's way to the policy, messages outside and tokens inside.

Invariant: each completion that is returned is recorded once, with the ids that were sampled after exactly the prompt
ids that are recorded with it. Every harness, in-process or over HTTP, reaches the policy through `complete`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from whippletree.chat.base import Renderer
from whippletree.errors import BudgetSpent
from whippletree.gateway.paths import Paths, Prompt
from whippletree.types import (
    CallKind,
    Completion,
    Exchange,
    Message,
    ModelCall,
    Request,
    Sampler,
    Sampling,
    TokenSample,
)


class Session(Protocol):
    """The model boundary for one rollout."""

    async def complete(self, request: Request) -> Completion: ...

    def count_tokens(self, request: Request) -> int: ...


class CaptureSession:
    """Captures the model calls of one rollout. Concurrent `complete` calls in one event loop are safe.

    `sampling` is the run's: a request may lower `max_tokens` and add `stop`. `max_calls` counts attempts, `max_tokens`
    sampled tokens of the whole rollout.
    """

    def __init__(
        self,
        rollout_id: str,
        sampler: Sampler,
        renderer: Renderer,
        sampling: Sampling,
        *,
        seed: int,
        max_calls: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.rollout_id = rollout_id
        self.calls: list[ModelCall] = []
        """In the order in which they ended, so that `calls[i].index == i`."""
        self.paths = Paths(renderer)
        self._sampler, self._renderer, self._sampling = sampler, renderer, sampling
        self._seed, self._max_calls, self._max_tokens = seed, max_calls, max_tokens
        self._attempts = 0
        self._tool_calls = 0
        self._tokens = 0

    @property
    def sampled_tokens(self) -> int:
        return self._tokens

    async def complete(self, request: Request) -> Completion:
        """Sample the next assistant message.

        Raises BudgetSpent where the rollout's calls or tokens are used up, ContextOverflow (the sampler's) where the
        prompt leaves no room. Malformed output is no error: see `Completion.parse_error`.
        """
        self._check_budgets()
        attempt, self._attempts = self._attempts, self._attempts + 1
        prompt = self.paths.prompt(request)
        sampling = self._allowed(request, len(prompt.ids))
        sample = await self._sampler.sample(
            prompt.ids,
            sampling,
            stop_ids=self._renderer.stop_ids,
            session=self.rollout_id,
            seed=call_seed(self._seed, attempt),
        )
        sample, stop = self._cut(sample, request.stop)
        message, parse_error = self._renderer.parse(sample.ids, request.tools)
        message = self._with_ids(message if stop is None else _before(message, stop))
        self.paths.record(prompt, sample.ids, message, len(self.calls))
        finish_reason = "tool_calls" if message.tool_calls and sample.finish_reason == "stop" else sample.finish_reason
        completion = Completion(
            message=message,
            finish_reason=finish_reason,
            prompt_ids=prompt.ids,
            completion_ids=sample.ids,
            logprobs=sample.logprobs,
            policy_version=sample.policy_version,
            parse_error=parse_error,
            cached_tokens=sample.cached_tokens,
            stop=stop,
            updates=sample.updates,
        )
        self._record(request, prompt, completion)
        return completion

    def count_tokens(self, request: Request) -> int:
        """Tokens of a request that is not made, encoded from its text."""
        return len(self._renderer.encode_head(request.messages, request.tools)) + len(self._renderer.opening)

    def name_kinds(self, kinds: Sequence[CallKind]) -> None:
        """Give every captured call its kind, in order."""
        self.calls[:] = [replace(call, kind=kind) for call, kind in zip(self.calls, kinds, strict=True)]

    def _check_budgets(self) -> None:
        if self._max_calls is not None and self._attempts >= self._max_calls:
            raise BudgetSpent(f"rollout {self.rollout_id} has made its {self._max_calls} model calls", "calls")
        if self._max_tokens is not None and self._tokens >= self._max_tokens:
            raise BudgetSpent(
                f"rollout {self.rollout_id} has sampled {self._tokens} of {self._max_tokens} tokens", "tokens"
            )

    def _allowed(self, request: Request, prompt_tokens: int) -> Sampling:
        """The run's sampling within the request, the context and the rollout's budget (at least one token)."""
        limits = [self._sampling.max_tokens, self._sampler.max_context - prompt_tokens]
        if self._max_tokens is not None:
            limits.append(self._max_tokens - self._tokens)
        if request.max_tokens is not None:
            limits.append(request.max_tokens)
        return replace(self._sampling, max_tokens=max(min(limits), 1))

    def _cut(self, sample: TokenSample, stops: tuple[str, ...]) -> tuple[TokenSample, str | None]:
        """`sample` up to the token that completes a stop string, as if the sampler had stopped there."""
        text = self._renderer.text(sample.ids) if stops else ""
        found = [stop for stop in stops if stop and stop in text]
        if not found:
            return sample, None

        def stopped(length: int) -> bool:
            head = self._renderer.text(sample.ids[:length])
            return any(stop in head for stop in found)

        length = bisect_left(range(len(sample.ids)), True, key=stopped)
        head = self._renderer.text(sample.ids[:length])
        first = min((stop for stop in found if stop in head), key=head.index)
        cut = replace(
            sample,
            ids=sample.ids[:length],
            logprobs=sample.logprobs[:length],
            finish_reason="stop",
            updates=tuple((place, version) for place, version in sample.updates if place < length),
        )
        return cut, first

    def _with_ids(self, message: Message) -> Message:
        """Tool calls named `call_<n>`, n unique in the rollout."""
        if not message.tool_calls:
            return message
        first, self._tool_calls = self._tool_calls, self._tool_calls + len(message.tool_calls)
        calls = tuple(replace(call, id=f"call_{first + i}") for i, call in enumerate(message.tool_calls))
        return replace(message, tool_calls=calls)

    def _record(self, request: Request, prompt: Prompt, completion: Completion) -> None:
        self._tokens += len(completion.completion_ids)
        new = request.messages[prompt.start :]
        call = ModelCall(
            index=len(self.calls),
            kind=request.kind,
            prompt_ids=completion.prompt_ids,
            completion_ids=completion.completion_ids,
            logprobs=completion.logprobs,
            policy_version=completion.policy_version,
            finish_reason=completion.finish_reason,
            temperature=self._sampling.temperature,
            parse_error=completion.parse_error,
            cached_tokens=completion.cached_tokens,
            exchange=Exchange(prompt.after, new, completion.message, request.tools, request.asked),
            parts=self._renderer.parts(completion.completion_ids, completion.message),
            updates=completion.updates,
        )
        self.calls.append(call)


def call_seed(seed: int, attempt: int) -> int:
    """A seed in [0, 2**63) for one call, the same in every process."""
    digest = hashlib.blake2b(f"{seed}:{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def _before(message: Message, stop: str) -> Message:
    return replace(message, content=message.content.partition(stop)[0])
