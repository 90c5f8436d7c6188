"""A real agent program as a harness: started in the task's sandbox, talking to the gateway, judged by the grader alone.

Invariant: when `run` returns or is left, the program's session is closed, its calls have their kinds, and nothing of it
listens on the host. Its exit code says nothing: several harnesses exit with 0 after a failure.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from pathlib import Path

from whippletree.errors import HarnessError, SandboxError
from whippletree.gateway.kinds import classify
from whippletree.gateway.server import Gateway
from whippletree.gateway.wire import WireSession
from whippletree.rollout.adapters.base import Adapter, Place, Variant
from whippletree.rollout.adapters.launch import Launch, materialise
from whippletree.rollout.runner import Attempt, Outcome
from whippletree.sandbox.base import Furnishing, SandboxLimits
from whippletree.types import ExecResult, Sandbox, StopReason

LEAST_CONTEXT = 32_768
"""Tokens of context that programs are told at least, as some refuse to start with less; the gateway says what fits."""
GRACE_S = 30.0
"""How long a program may go on after its session is over."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run grants every program."""

    timeout_s: float
    """Wall seconds of one rollout."""
    idle_timeout_s: float
    """Seconds without a model call after which the program is stopped, and graded."""
    context: int
    """Tokens of the policy's context."""
    max_tokens: int
    """Of one completion."""
    model: str = "whippletree"


@dataclass(frozen=True, slots=True)
class BlackBox:
    """One installed harness in one variant."""

    adapter: Adapter
    variant: Variant
    installation: Path
    gateway: Gateway
    terms: Terms

    @property
    def furnishing(self) -> Furnishing:
        limits = SandboxLimits(
            command_timeout_s=self.terms.timeout_s,
            memory_mb=self.adapter.memory_mb,
            max_processes=self.adapter.max_processes,
            max_file_mb=1024,
        )
        return Furnishing(self.installation, limits)

    async def run(self, attempt: Attempt) -> Outcome:
        """Ends with the reason for which the session did, or HARNESS_EXIT; raises HarnessError where the program never
        called the model, and what the policy or the sandbox raises."""
        wire = WireSession(attempt.session)
        key = self.gateway.open(wire)
        try:
            listening = await attempt.sandbox.listen()
            server = await self.gateway.listen(listening)
            try:
                address = listening.getsockname()
                result = await self._act(attempt, wire, f"http://127.0.0.1:{address[1]}/s/{key}", key)
            finally:
                server.close()
        finally:
            self.gateway.close(key)
            await wire.settle()
            attempt.session.paths.counts.update(wire.counts)
            attempt.session.name_kinds(classify(attempt.session.calls, self.adapter.rules))
        if wire.failure is not None:
            raise wire.failure
        if not attempt.session.calls and wire.stop_reason is None:
            raise HarnessError(f"{self.adapter.name} made no model call{_last_words(result)}")
        return Outcome(wire.stop_reason or StopReason.HARNESS_EXIT)

    async def _act(self, attempt: Attempt, wire: WireSession, base_url: str, key: str) -> ExecResult | None:
        """Run the program until it exits or has to be stopped; None where it was stopped."""
        sandbox, terms = attempt.sandbox, self.terms
        place = Place(
            base_url=base_url,
            key=key,
            model=terms.model,
            instruction=attempt.task.instruction,
            prefix=sandbox.inside(self.installation),
            home=sandbox.inside(sandbox.home),
            context=max(terms.context, LEAST_CONTEXT),
            max_tokens=terms.max_tokens,
        )
        launch = materialise(self.adapter, self.variant, place)
        if tools := attempt.task.tools:
            launch.env["PATH"] = f"{sandbox.inside(tools)}/bin:{launch.env['PATH']}"
        sandbox.write_home(launch.files)
        running = asyncio.ensure_future(_run_all(sandbox, launch))
        watching = asyncio.ensure_future(_until_it_must_stop(wire, terms.idle_timeout_s))
        try:
            await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await sandbox.stop()
            return await running
        except SandboxError:
            if not watching.done():
                raise
            return None  # it was stopped
        finally:
            watching.cancel()
            running.cancel()


async def _run_all(sandbox: Sandbox, launch: Launch) -> ExecResult:
    """The program's commands, one after the other up to one that fails; the output is its last words."""
    settings = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in launch.env.items())])
    commands = (f"{settings} {shlex.join(command)} </dev/null" for command in (*launch.setup, launch.argv))
    return await sandbox.run(" && ".join(commands))


async def _until_it_must_stop(wire: WireSession, idle_timeout_s: float) -> None:
    """Until the program has been silent for too long, or does not end although its session is over."""
    loop = asyncio.get_running_loop()
    while not wire.over.is_set():
        quiet = 0.0 if wire.busy else loop.time() - wire.last_active
        if quiet >= idle_timeout_s:
            wire.end(StopReason.IDLE)
            return
        try:
            async with asyncio.timeout(idle_timeout_s - quiet):
                await wire.over.wait()
        except TimeoutError:
            continue
    await asyncio.sleep(GRACE_S)


def _last_words(result: ExecResult | None) -> str:
    if result is None:
        return " before it was stopped"
    return f"; it ended with exit code {result.exit_code} and said: {result.output.strip()[-800:] or '(nothing)'}"
