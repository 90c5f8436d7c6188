"""A policy that another server holds: tokens over the completions endpoint of vLLM and what speaks like it.

Invariant: only token ids travel, in both directions; text that the server makes of them is not looked at. Log-
probabilities are those of the sampling distribution if the server is started so (vLLM: `--logprobs-mode
processed_logprobs`); at temperature 1 without other sampling settings there is no difference.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np

from whippletree.errors import ContextOverflow, PolicyError
from whippletree.types import Ids, Json, Sampling, TokenSample

RETRIES = 3
"""After connection errors and status 429 or 5xx, with growing pauses."""


class RemoteSampler:
    """A `Sampler` over HTTP; an asynchronous context manager."""

    def __init__(self, base_url: str, model: str, *, max_context: int, api_key: str = "") -> None:
        self.max_context = max_context
        self.model = model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(base_url=base_url.rstrip("/"), headers=headers, timeout=None, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        room = self.max_context - len(prompt_ids)
        if room < 1:
            raise ContextOverflow(f"{session}: a prompt of {len(prompt_ids)} tokens, a context of {self.max_context}")
        body = {
            "model": self.model,
            "prompt": prompt_ids.tolist(),
            "max_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "seed": seed % (1 << 63),
            "stop_token_ids": list(stop_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        choice: dict[str, Json] = (await self.post("/completions", body))["choices"][0]
        ids: Json = choice.get("token_ids")
        logprobs: Json = choice["logprobs"]["token_logprobs"] if choice.get("logprobs") else None
        if ids is None or logprobs is None or len(ids) != len(logprobs):
            raise PolicyError(
                f"{self._client.base_url} returns no token ids with log-probabilities; use vLLM 0.10 or newer"
            )
        return TokenSample(
            ids=np.array(ids, dtype=np.int64),
            logprobs=np.array(logprobs, dtype=np.float32),
            finish_reason="stop" if len(ids) and ids[-1] in stop_ids else "length",
            policy_version=0,
        )

    async def returns_tokens(self) -> bool:
        """Whether the server gives token ids and log-probabilities; asks for one token. Raises PolicyError."""
        try:
            await self.sample(np.array([1]), Sampling(max_tokens=1), stop_ids=(), session="probe", seed=0)
        except PolicyError as error:
            if "returns no token ids" in str(error) or "status 4" in str(error):
                return False
            raise
        return True

    async def post(self, path: str, body: dict[str, Json]) -> dict[str, Any]:
        """Raises PolicyError where the server cannot be reached or refuses, with what it said."""
        problem = ""
        for attempt in range(RETRIES + 1):
            try:
                response = await self._client.post(path, json=body)
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    return response.json()
                problem = f"status {response.status_code}: {response.text[:300]}"
                if response.status_code < 500 and response.status_code != 429:
                    break
            if attempt < RETRIES:
                await asyncio.sleep(0.5 * 2**attempt)
        raise PolicyError(f"the model server at {self._client.base_url} failed: {problem}")
