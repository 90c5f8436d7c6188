"""One rollout from sandbox to grade. The one place where a failure becomes data.

An infrastructure error makes a rollout without a reward, which enters neither statistics nor loss; a timeout and a
spent budget are graded like any other ending. Everything random in a rollout follows from the run's seed and the
rollout's id.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from whippletree.errors import WhippletreeError
from whippletree.gateway.capture import CaptureSession
from whippletree.harness.spec import HarnessSpec
from whippletree.policy.base import Policy
from whippletree.rollout.whitebox import Outcome
from whippletree.rollout.whitebox import run as run_whitebox
from whippletree.sandbox.base import Sandboxes
from whippletree.types import Assignment, Rollout, Sampling, StopReason, TaskSource


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
    started = time.perf_counter()
    seed = int.from_bytes(hashlib.sha256(f"{world.seed}/{rollout_id}".encode()).digest()[:6], "big")
    session = CaptureSession(
        rollout_id,
        world.policy,
        world.policy.renderer,
        world.sampling,
        seed=seed,
        max_calls=world.max_calls,
        max_tokens=world.max_tokens,
    )
    outcome, reward, error = Outcome(StopReason.ERROR, 0), None, None
    grade_s = 0.0
    try:
        sandbox = await world.sandboxes.open(assignment.task.files)
        try:
            spec = world.harness(assignment.harness)
            try:
                async with asyncio.timeout(world.timeout_s):
                    outcome = await run_whitebox(
                        spec, assignment.task, sandbox, session, world.sampling, random.Random(seed)
                    )
            except TimeoutError:
                outcome = Outcome(StopReason.TIMEOUT, _num_turns(session))
            await sandbox.stop()
            grading = time.perf_counter()
            reward = world.tasks.grade(assignment.task, sandbox.workspace)
            grade_s = time.perf_counter() - grading
        finally:
            await sandbox.close()
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
        timings_s={"total": time.perf_counter() - started, "grade": grade_s},
    )


def _num_turns(session: CaptureSession) -> int:
    """Assistant messages of the main conversation so far."""
    return sum(call.kind == "main" for call in session.calls)
