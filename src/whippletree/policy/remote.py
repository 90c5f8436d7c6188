"""A policy that another server holds: tokens over the completions endpoint of vLLM and what speaks like it.

Invariant: only token ids travel, in both directions; text that the server makes of them is not looked at. Log-
probabilities are those of the sampling distribution if the server is started so (vLLM: `--logprobs-mode
processed_logprobs`); at temperature 1 without other sampling settings there is no difference.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
import numpy as np
import orjson

from whippletree.errors import ContextOverflow, PolicyError
from whippletree.types import Ids, Json, Sampling, TokenSample

RETRIES = 3
"""After connection errors and status 429 or 5xx, with growing pauses."""
FIRST_PAUSE_S = 0.5
CONNECT_S = 30.0
"""For a connection; sampling may take as long as it likes."""


class _Refused(PolicyError):
    """Status 4xx other than 429."""

    def __init__(self, problem: str, status: int) -> None:
        super().__init__(problem)
        self.status = status


class _TextOnly(PolicyError):
    """A reply without tokens."""


class RemoteSampler:
    """A `Sampler` over HTTP; an asynchronous context manager."""

    def __init__(self, base_url: str, model: str, *, max_context: int, api_key: str = "") -> None:
        self.max_context = max_context
        self.model = model
        self._url = base_url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            trust_env=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.close()

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        room = self.max_context - len(prompt_ids)
        if room < 1:
            raise ContextOverflow(f"{session}: a prompt of {len(prompt_ids)} tokens, a context of {self.max_context}")
        body = {
            "model": self.model,
            "prompt": np.ascontiguousarray(prompt_ids),
            "max_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "seed": seed % (1 << 63),
            "stop_token_ids": list(stop_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        told = await self.post("/completions", body)
        nothing: dict[str, Json] = {}
        choice: dict[str, Json] = (told.get("choices") or [nothing])[0]
        ids: Json = choice.get("token_ids")
        logprobs: Json = (choice.get("logprobs") or nothing).get("token_logprobs")
        if ids is None or logprobs is None or len(ids) != len(logprobs):
            raise _TextOnly(f"{self._url} returns no token ids with log-probabilities; use vLLM 0.10 or newer")
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
        except _TextOnly:
            return False
        except _Refused as refused:  # it may have no such endpoint, or not for this model
            if refused.status in (401, 403):
                raise
            return False
        return True

    async def stated_context(self) -> int | None:
        """Tokens of prompt and completion together, where the server lists its model with them, as vLLM does."""
        try:
            listed: Json = (await self._ask("GET", "/models")).get("data")
        except PolicyError:
            return None  # such a list is optional, and what is really wrong shows in the first completion
        for model in listed or ():
            if model.get("id") == self.model:
                return model.get("max_model_len")
        return None

    async def post(self, path: str, body: dict[str, Json]) -> dict[str, Any]:
        """Raises PolicyError where the server cannot be reached or refuses, with what it said."""
        return await self._ask("POST", path, orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))

    async def _ask(self, method: Literal["GET", "POST"], path: str, data: bytes | None = None) -> dict[str, Any]:
        problem = ""
        for attempt in range(RETRIES + 1):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                async with self._http.request(method, self._url + path, data=data) as response:
                    said = await response.read()
            except (aiohttp.ClientError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if response.ok:
                return self._read(said)
            problem = f"status {response.status}: {said[:300].decode(errors='replace')}"
            if response.status < 500 and response.status != 429:
                raise _Refused(f"the model server at {self._url} refused: {problem}", response.status)
        raise PolicyError(f"the model server at {self._url} failed {RETRIES + 1} times, at last: {problem}")

    def _read(self, said: bytes) -> dict[str, Any]:
        try:
            return dict(orjson.loads(said))
        except (ValueError, TypeError) as error:
            shown = said[:100].decode(errors="replace")
            raise PolicyError(f"{self._url} answers with no JSON object but '{shown}'; check the base URL") from error
