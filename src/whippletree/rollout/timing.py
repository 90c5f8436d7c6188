"""Where a rollout's wall time goes: a sampler and a sandbox that say how long they were waited for."""

from __future__ import annotations

import socket
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from whippletree.types import ExecResult, Ids, Sampler, Sampling, Sandbox, TokenSample


@dataclass(slots=True)
class Stopwatch:
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("sandbox", "policy", "grade", "total"), 0.0)
    )

    @contextmanager
    def measure(self, account: str) -> Generator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[account] += time.perf_counter() - started


class TimedSampler:
    """The same sampler, on the account `policy`."""

    def __init__(self, sampler: Sampler, stopwatch: Stopwatch) -> None:
        self.max_context = sampler.max_context
        self._sampler, self._stopwatch = sampler, stopwatch

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        with self._stopwatch.measure("policy"):
            return await self._sampler.sample(prompt_ids, sampling, stop_ids=stop_ids, session=session, seed=seed)


class TimedSandbox:
    """The same sandbox, on the account `sandbox`."""

    def __init__(self, sandbox: Sandbox, stopwatch: Stopwatch) -> None:
        self.workspace: Path = sandbox.workspace
        self.home: Path = sandbox.home
        self._sandbox, self._stopwatch = sandbox, stopwatch

    async def run(self, command: str) -> ExecResult:
        with self._stopwatch.measure("sandbox"):
            return await self._sandbox.run(command)

    def inside(self, path: Path) -> str:
        return self._sandbox.inside(path)

    def write_home(self, files: Mapping[str, str]) -> None:
        self._sandbox.write_home(files)

    async def listen(self) -> socket.socket:
        with self._stopwatch.measure("sandbox"):
            return await self._sandbox.listen()

    async def stop(self) -> None:
        with self._stopwatch.measure("sandbox"):
            await self._sandbox.stop()

    async def close(self) -> None:
        with self._stopwatch.measure("sandbox"):
            await self._sandbox.close()
