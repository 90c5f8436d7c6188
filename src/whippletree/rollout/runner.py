"""What a harness is to the rest: given a task, a sandbox and a model endpoint, it acts until it stops."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from whippletree.gateway.capture import CaptureSession
from whippletree.sandbox.base import Furnishing
from whippletree.types import Sandbox, StopReason, Task


@dataclass(frozen=True, slots=True)
class Attempt:
    """One task in one sandbox, with the way to the policy."""

    task: Task
    sandbox: Sandbox
    session: CaptureSession
    rng: random.Random


@dataclass(frozen=True, slots=True)
class Outcome:
    stop_reason: StopReason


class Runner(Protocol):
    """A harness of any kind."""

    @property
    def furnishing(self) -> Furnishing | None:
        """What its sandbox needs besides the task's files."""
        ...

    async def run(self, attempt: Attempt) -> Outcome:
        """Act until the agent is done or a budget is spent. Cancelled at the rollout's time limit.

        Raises a WhippletreeError where the infrastructure fails: the rollout is then neither graded nor trained on.
        """
        ...
