"""One rollout from sandbox to grade. The one place where a failure becomes data.

An infrastructure error makes a rollout without a reward, which enters neither statistics nor loss; a timeout and a
spent budget are graded like any other ending. Everything random in a rollout follows from the run's seed and the
rollout's id.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from whippletree.errors import WhippletreeError
from whippletree.gateway.capture import CaptureSession
from whippletree.policy.base import Policy
from whippletree.rollout.runner import Attempt, Outcome, Runner
from whippletree.rollout.timing import Stopwatch, TimedSampler, TimedSandbox
from whippletree.sandbox.base import Sandboxes, Scene
from whippletree.tasks.base import Ending, TaskSource
from whippletree.types import Assignment, Reward, Rollout, Sampling, StopReason


def seed_of(world: World, rollout_id: str) -> int:
    digest = hashlib.sha256(f"{world.seed}/{rollout_id}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def policy_session(world: World, assignment: Assignment, rollout_id: str, stopwatch: Stopwatch) -> CaptureSession:
    """The model boundary of one rollout, with the policy behind it."""
    return CaptureSession(
        rollout_id,
        TimedSampler(world.policy, stopwatch),
        world.policy.renderer,
        world.sampling,
        seed=seed_of(world, rollout_id),
        max_calls=world.max_calls,
        max_tokens=world.max_tokens,
    )


@dataclass(frozen=True, slots=True)
class World:
    """All that a rollout needs besides its assignment."""

    policy: Policy
    sandboxes: Sandboxes
    tasks: TaskSource
    harness: Callable[[str], Runner]
    sampling: Sampling
    seed: int
    max_calls: int
    max_tokens: int
    timeout_s: float
    session: Callable[[World, Assignment, str, Stopwatch], CaptureSession] = policy_session
    """Where a scripted agent may take the policy's place."""


async def roll_out_once(world: World, assignment: Assignment, rollout_id: str) -> Rollout:
    """Act, stop, grade, clean up."""
    stopwatch = Stopwatch()
    session = world.session(world, assignment, rollout_id, stopwatch)
    rng = random.Random(seed_of(world, rollout_id))
    error = None
    with stopwatch.measure("total"):
        try:
            outcome, reward = await _attempt(world, assignment, session, rng, stopwatch)
            if not any(call.kind == "main" and len(call.completion_ids) for call in session.calls):
                outcome, reward, error = Outcome(StopReason.ERROR), None, _nothing_to_train(session, outcome)
        except (WhippletreeError, OSError) as failure:
            outcome, reward = Outcome(StopReason.ERROR), None
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
        num_turns=sum(call.kind == "main" for call in session.calls),
        timings_s=stopwatch.seconds,
        counts=dict(session.paths.counts),
    )


async def _attempt(
    world: World, assignment: Assignment, session: CaptureSession, rng: random.Random, stopwatch: Stopwatch
) -> tuple[Outcome, Reward]:
    """Act in a sandbox that is closed whatever happens, and grade what is left in it."""
    task, runner = assignment.task, world.harness(assignment.harness)
    with stopwatch.measure("sandbox"):
        scene = Scene(task.tree, task.workspace_at, task.tools)
        sandbox = TimedSandbox(await world.sandboxes.open(task.files, runner.furnishing, scene), stopwatch)
    limit = asyncio.timeout(min(world.timeout_s, task.timeout_s or world.timeout_s))
    try:
        try:
            async with limit:
                outcome = await runner.run(Attempt(task, sandbox, session, rng))
        except TimeoutError:
            if not limit.expired():
                raise
            outcome = Outcome(StopReason.TIMEOUT)
        await sandbox.stop()
        with stopwatch.measure("grade"):
            ending = Ending(sandbox.workspace, tuple(session.calls), world.sandboxes)
            return outcome, await world.tasks.grade(task, ending)
    finally:
        await sandbox.close()


def _nothing_to_train(session: CaptureSession, outcome: Outcome) -> str:
    """A grade without a token that could be trained must not pass silently."""
    if not session.calls:
        hint = " (does the first prompt leave room in policy.max_context?)"
        return f"no_model_call: the harness ended with {outcome.stop_reason} before a token was sampled{hint}"
    kinds = dict(Counter(call.kind for call in session.calls))
    return (
        f"no_trainable_token: none of the rollout's calls is a main call with a sampled token; calls by kind: {kinds}"
    )
