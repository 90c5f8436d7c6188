"""One rollout from sandbox to grade. The one place where a failure becomes data.

An infrastructure error makes a rollout without a reward, which enters neither statistics nor loss; a timeout and a
spent budget are graded like any other ending. Everything random in a rollout follows from the run's seed and the
rollout's id.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from whippletree.errors import WhippletreeError
from whippletree.gateway.capture import CaptureSession
from whippletree.harness.spec import HarnessSpec
from whippletree.policy.base import Policy
from whippletree.rollout.timing import Stopwatch, TimedSampler, TimedSandbox
from whippletree.rollout.whitebox import Outcome
from whippletree.rollout.whitebox import run as run_whitebox
from whippletree.sandbox.base import Sandboxes
from whippletree.types import Assignment, Reward, Rollout, Sampling, StopReason, TaskSource


@dataclass(frozen=True, slots=True)
class World:
    """All that a rollout needs besides its assignment."""

    policy: Policy
    sandboxes: Sandboxes
    tasks: TaskSource
    harness: Callable[[str], HarnessSpec]
    sampling: Sampling
    seed: int
    max_calls: int
    max_tokens: int
    timeout_s: float


async def roll_out_once(world: World, assignment: Assignment, rollout_id: str) -> Rollout:
    """Act, stop, grade, clean up."""
    stopwatch = Stopwatch()
    digest = hashlib.sha256(f"{world.seed}/{rollout_id}".encode()).digest()
    seed = int.from_bytes(digest[:6], "big")
    session = CaptureSession(
        rollout_id,
        TimedSampler(world.policy, stopwatch),
        world.policy.renderer,
        world.sampling,
        seed=seed,
        max_calls=world.max_calls,
        max_tokens=world.max_tokens,
    )
    error = None
    with stopwatch.measure("total"):
        try:
            outcome, reward = await _attempt(world, assignment, session, random.Random(seed), stopwatch)
        except (WhippletreeError, OSError) as failure:
            outcome, reward = Outcome(StopReason.ERROR, _num_turns(session)), None
            error = f"{type(failure).__name__}: {failure}"
    return Rollout(
        id=rollout_id,
        task_id=assignment.task.id,
        task_kind=assignment.task.kind,
        harness=assignment.harness,
        step=assignment.step,
        purpose=assignment.purpose,
        calls=tuple(session.calls),
        reward=reward,
        stop_reason=outcome.stop_reason,
        error=error,
        num_turns=outcome.num_turns,
        timings_s=stopwatch.seconds,
    )


async def _attempt(
    world: World, assignment: Assignment, session: CaptureSession, rng: random.Random, stopwatch: Stopwatch
) -> tuple[Outcome, Reward]:
    """Act in a sandbox that is closed whatever happens, and grade what is left in it."""
    task, spec = assignment.task, world.harness(assignment.harness)
    with stopwatch.measure("sandbox"):
        sandbox = TimedSandbox(await world.sandboxes.open(task.files), stopwatch)
    limit = asyncio.timeout(world.timeout_s)
    try:
        try:
            async with limit:
                outcome = await run_whitebox(spec, task, sandbox, session, rng)
        except TimeoutError:
            if not limit.expired():
                raise
            outcome = Outcome(StopReason.TIMEOUT, _num_turns(session))
        await sandbox.stop()
        with stopwatch.measure("grade"):
            return outcome, world.tasks.grade(task, sandbox.workspace)
    finally:
        await sandbox.close()


def _num_turns(session: CaptureSession) -> int:
    """Assistant messages of the main conversation so far."""
    return sum(call.kind == "main" for call in session.calls)
