"""The assignment strategies of Harness Scaling and its ablations (Tables 3, 10 and Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from whippletree.schedule.base import ANCHORS, INDEPENDENT, TIES, BlockScheduler, Plan
from whippletree.types import Scheduler

StepsPerTask = Annotated[int, Field(ge=1, description="Consecutive steps on the same tasks (K).")]


class Single(BaseModel):
    """Every task meets the first harness of the training set: ordinary reinforcement learning."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: Literal["single"] = "single"

    def open(self, plan: Plan) -> Scheduler:
        return BlockScheduler(plan, 1, lambda plan, block, visit: [plan.harnesses[0]] * plan.batch_size)


class RandomAssign(BaseModel):
    """Every (task, step) draws a harness of the training set independently (Table 3, "Random Assign.")."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: Literal["random"] = "random"
    steps_per_task: StepsPerTask = 2

    def open(self, plan: Plan) -> Scheduler:
        def pick(plan: Plan, block: int, visit: int) -> Sequence[str]:
            rng = plan.rng(INDEPENDENT, block, visit)
            drawn: list[int] = rng.integers(len(plan.harnesses), size=plan.batch_size).tolist()
            return [plan.harnesses[index] for index in drawn]

        return BlockScheduler(plan, self.steps_per_task, pick)


class Repeat(BaseModel):
    """K steps on the same tasks, each under the same anchor (Table 10, "Repeat-2, Same Anchor")."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: Literal["repeat"] = "repeat"
    steps_per_task: StepsPerTask = 2

    def open(self, plan: Plan) -> Scheduler:
        return BlockScheduler(plan, self.steps_per_task, lambda plan, block, visit: anchors(plan, block))


class Locality(BaseModel):
    """K steps on the same tasks, the first under a sampled anchor, then under its nearest neighbours.

    Anchors cycle through the training set in balance, so that coverage is global; the neighbours are the nearest by
    Hamming distance, so that what varies for one task is controlled. The placement of the K visits on consecutive steps
    is our reading of the paper's "two-step task schedule" (Table 10).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: Literal["locality"] = "locality"
    steps_per_task: StepsPerTask = 2

    def open(self, plan: Plan) -> Scheduler:
        def pick(plan: Plan, block: int, visit: int) -> Sequence[str]:
            return [
                neighbours(plan, anchor, block * plan.batch_size + slot)[visit % len(plan.harnesses)]
                for slot, anchor in enumerate(anchors(plan, block))
            ]

        return BlockScheduler(plan, self.steps_per_task, pick)


class All(BaseModel):
    """Every task meets every harness of the training set, one after the other."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: Literal["all"] = "all"

    def open(self, plan: Plan) -> Scheduler:
        def pick(plan: Plan, block: int, visit: int) -> Sequence[str]:
            count = len(plan.harnesses)
            return [plan.harnesses[(plan.harnesses.index(anchor) + visit) % count] for anchor in anchors(plan, block)]

        return BlockScheduler(plan, len(plan.harnesses), pick)


Strategy = Annotated[Single | RandomAssign | Repeat | Locality | All, Field(discriminator="type")]


def anchors(plan: Plan, block: int) -> list[str]:
    """The anchor of each task of a block: shuffled copies of the training set, one after the other."""
    return [plan.harnesses[index] for index in plan.balanced(len(plan.harnesses), block, stream=ANCHORS)]


def neighbours(plan: Plan, anchor: str, place: int) -> list[str]:
    """The training set by distance from the anchor, itself first; ties are in an order drawn for the place."""
    tie = plan.rng(TIES, place).permutation(len(plan.harnesses))
    distances = [plan.distance(anchor, name) for name in plan.harnesses]
    order = sorted(range(len(plan.harnesses)), key=lambda index: (distances[index], tie[index]))
    return [plan.harnesses[index] for index in order]
