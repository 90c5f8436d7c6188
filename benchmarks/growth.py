"""How the cost of a whole step grows: with rollouts per step, with turns per rollout, and with the context's length.

`python benchmarks/growth.py` writes benchmarks/growth.json. Each point is a step of GRPO with nano through the engine:
real sampling, real learning, real sandboxes; scripted are the lengths alone, so that a point is what it says: every
reply has the same number of tokens, and after each the same command runs. One quantity grows at a time.
CPU seconds are those of this process and of its sandboxes, as a run counts them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from gateway_servers import words
from record import keep, machine

from whippletree.algorithms.grpo import GRPO
from whippletree.analysis.growth import exponent, leaves_linear
from whippletree.config import PolicySection
from whippletree.gateway.capture import CaptureSession
from whippletree.policy.local import LocalPolicy
from whippletree.rollout.engine import roll_out
from whippletree.rollout.lifecycle import World, seed_of
from whippletree.rollout.runner import Attempt, Outcome
from whippletree.rollout.timing import Stopwatch
from whippletree.run import Clock, open_policy
from whippletree.sandbox import Sandboxes, open_sandboxes
from whippletree.sandbox.base import Furnishing
from whippletree.tasks.base import Ending
from whippletree.types import (
    Assignment,
    Ids,
    Message,
    Request,
    Reward,
    Sampling,
    StopReason,
    Task,
    TokenSample,
)

GROUP = 8
POSITIONS = 4096
COMMAND = "wc -l data.txt; sort data.txt | tail -n 2"
FILES = {"data.txt": "".join(f"line {i}\n" for i in range(50))}


@dataclass(frozen=True)
class Shape:
    """Of a step."""

    rollouts: int = 32
    turns: int = 1
    prompt: int = 128
    """Words of the first prompt, each a token, the same in a group."""
    reply: int = 32
    """Tokens of each reply."""


SWEEPS: dict[str, tuple[str, list[Shape]]] = {
    "rollouts": ("rollouts per step", [Shape(rollouts=n, turns=2) for n in (16, 32, 64, 128, 256)]),
    "turns": ("turns per rollout", [Shape(turns=n, reply=16) for n in (1, 2, 4, 8, 16)]),
    "context": ("tokens of context", [Shape(prompt=n) for n in (128, 256, 512, 1024, 2048)]),
}


class FixedLengths:
    """The policy's sampler, which no token stops."""

    def __init__(self, policy: LocalPolicy) -> None:
        self.policy, self.max_context = policy, policy.max_context

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        return await self.policy.sample(prompt_ids, sampling, stop_ids=(), session=session, seed=seed)


@dataclass(frozen=True)
class FixedTurns:
    """A harness that runs the same command after each reply, whatever it said."""

    turns: int
    furnishing: Furnishing | None = None

    async def run(self, attempt: Attempt) -> Outcome:
        messages = [Message("user", attempt.task.instruction)]
        for _ in range(self.turns):
            completion = await attempt.session.complete(Request(tuple(messages)))
            told = (await attempt.sandbox.run(COMMAND)).output
            messages += [completion.message, Message("user", told)]
        return Outcome(StopReason.FINISHED)


class Drawn:
    """Tasks whose rewards are drawn, so that every group has a signal."""

    name = "drawn"

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def tasks(self, split: str) -> Sequence[Task]:
        return ()

    async def grade(self, task: Task, ending: Ending) -> Reward:
        return Reward(float(self._rng.random()))


@dataclass
class Bench:
    """What stays open between the points."""

    policy: LocalPolicy
    sandboxes: Sandboxes
    algorithm: GRPO = field(default_factory=GRPO)

    def world(self, shape: Shape) -> World:
        def session(world: World, assignment: Assignment, rollout_id: str, stopwatch: Stopwatch) -> CaptureSession:
            sampler = FixedLengths(self.policy)
            return CaptureSession(
                rollout_id, sampler, self.policy.renderer, world.sampling, seed=seed_of(world, rollout_id)
            )

        return World(
            policy=self.policy,
            sandboxes=self.sandboxes,
            tasks=Drawn(),
            harness=lambda _: FixedTurns(shape.turns),
            sampling=Sampling(1.0, shape.reply),
            seed=0,
            max_calls=1 << 20,
            max_tokens=1 << 20,
            timeout_s=3600.0,
            session=session,
        )

    def assignment(self, shape: Shape, number: int) -> Assignment:
        said = " ".join(np.random.default_rng(number).choice(words(), shape.prompt))
        task = Task(f"t{number}", "drawn", "train", "drawn", 1, said, FILES)
        return Assignment(0, task, "fixed", GROUP)

    async def step(self, shape: Shape) -> dict[str, float]:
        """CPU seconds of one step, and of its parts."""
        assignments = [self.assignment(shape, number) for number in range(shape.rollouts // GROUP)]
        clock = Clock(self.policy)
        groups = await roll_out(self.world(shape), assignments, concurrency=128)
        credit = await self.algorithm.appraise(self.policy, self.algorithm.credit(groups))
        await self.policy.forward_backward(credit.samples, self.algorithm.loss(0))
        await self.policy.optim_step(lr=1e-6, max_grad_norm=1.0)
        await self.policy.publish()
        spent = {"total": clock.cpu_s, **clock.split()}
        calls = [call for group in groups for rollout in group.rollouts for call in rollout.calls]
        assert len(calls) == shape.rollouts * shape.turns, "a rollout broke"
        assert {len(call.completion_ids) for call in calls} == {shape.reply}
        return spent | {"context": max(len(call.prompt_ids) for call in calls) + shape.reply}


async def measure(repeats: int) -> dict[str, Any]:
    policy = open_policy(PolicySection(max_context=POSITIONS, max_positions=POSITIONS + 1))
    sandboxes = open_sandboxes("bubblewrap")
    bench = Bench(policy, sandboxes)
    curves: dict[str, Any] = {}
    try:
        await bench.step(Shape(turns=2))  # what the first step loads
        for name, (label, shapes) in SWEEPS.items():
            points: list[dict[str, float]] = []
            for shape in shapes:
                found = [await bench.step(shape) for _ in range(repeats)]
                best = min(found, key=lambda spent: spent["total"])
                size = best["context"] if name == "context" else getattr(shape, name)
                points.append({"size": size} | {part: round(value, 3) for part, value in best.items()})
                print(f"{label}: {points[-1]}", file=sys.stderr)
            costs = [(point["size"], point["total"]) for point in points]
            curves[name] = {
                "label": label,
                "points": points,
                "exponent": round(exponent(costs), 2),
                "exponent_at_end": round(exponent(costs[-2:]), 2),
                "leaves_linear_at": leaves_linear(costs),
                "first": asdict(shapes[0]),
            }
    finally:
        await sandboxes.close()
        await policy.close()
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2, help="of each point; the cheapest counts")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    curves = asyncio.run(measure(arguments.repeats))
    result = {
        "curves": curves,
        "what": {"a step": "roll out (sample, run commands in sandboxes, grade), weigh, learn, update, publish"},
        "command": f"python benchmarks/growth.py {' '.join(sys.argv[1:])}".strip(),
        "settings": {"model": "nano", "group": GROUP, "repeats": arguments.repeats, "threads": 1},
        "machine": machine(load),
    }
    keep(__file__, result)


if __name__ == "__main__":
    main()
