"""Plays a script of commands in a fresh sandbox of each kind that this machine can make."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Protocol

import pytest

from whippletree.errors import SandboxError
from whippletree.sandbox import SandboxLimits, open_sandboxes
from whippletree.sandbox.base import BARE, Furnishing, Scene
from whippletree.types import Sandbox

Script = Callable[[Sandbox], Awaitable[Any]]


class Play(Protocol):
    def __call__(
        self,
        script: Script,
        files: Mapping[str, str] | None = None,
        furnishing: Furnishing | None = None,
        scene: Scene = BARE,
        **limits: float,
    ) -> Any: ...


@cache
def why_not(kind: str) -> str | None:
    try:
        sandboxes = open_sandboxes(kind)
    except SandboxError as error:
        return str(error)
    asyncio.run(sandboxes.close())
    return None


def player(kind: str) -> Play:
    if reason := why_not(kind):
        pytest.skip(reason)

    def play(
        script: Script,
        files: Mapping[str, str] | None = None,
        furnishing: Furnishing | None = None,
        scene: Scene = BARE,
        **limits: float,
    ) -> Any:
        async def main() -> Any:
            sandboxes = open_sandboxes(kind, SandboxLimits(**{"command_timeout_s": 20.0, **limits}))
            try:
                return await script(await sandboxes.open(files or {}, furnishing, scene))
            finally:
                await sandboxes.close()

        return asyncio.run(main())

    return play


@pytest.fixture(params=["bubblewrap", "process"])
def play(request: pytest.FixtureRequest) -> Play:
    return player(request.param)


@pytest.fixture
def play_bubblewrap() -> Play:
    return player("bubblewrap")


@pytest.fixture
def play_process() -> Play:
    return player("process")
