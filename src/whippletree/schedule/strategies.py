"""The assignment strategies of Harness Scaling and its ablations (Tables 3, 10 and Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from whippletree.schedule.bandit import Bandit
from whippletree.schedule.base import ANCHORS, CYCLES, INDEPENDENT, TIES, BlockScheduler, Plan, Scheduler
from whippletree.schedule.external import FORM, External
from whippletree.types import Json

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


class Mixed(BaseModel):
    """Every step meets all harnesses equally often, to within one, in groups of one task and one harness each.

    Mix-harness training as in ClawGym II (section 3.3), with the draw in balance.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: Literal["mixed"] = "mixed"

    def open(self, plan: Plan) -> Scheduler:
        count = len(plan.harnesses)
        cycle = math.lcm(plan.batch_size, count)

        def pick(plan: Plan, block: int, visit: int) -> Sequence[str]:
            first = block * plan.batch_size
            order: list[str] = plan.rng(CYCLES, first // cycle).permutation(plan.harnesses).tolist()
            return [order[place % count] for place in range(first, first + plan.batch_size)]

        return BlockScheduler(plan, 1, pick)


def kind(value: object) -> str | None:
    """Which member of `Strategy` a table of the configuration, or an instance, belongs to."""
    named: object = cast(Json, value).get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return FORM if isinstance(named, str) and ":" in named else named if isinstance(named, str) else None


Strategy = Annotated[
    Annotated[Single, Tag("single")]
    | Annotated[RandomAssign, Tag("random")]
    | Annotated[Repeat, Tag("repeat")]
    | Annotated[Locality, Tag("locality")]
    | Annotated[All, Tag("all")]
    | Annotated[Mixed, Tag("mixed")]
    | Annotated[Bandit, Tag("bandit")]
    | Annotated[External, Tag(FORM)],
    Discriminator(kind),
]


def anchors(plan: Plan, block: int) -> list[str]:
    """The anchor of each task of a block: shuffled copies of the training set, one after the other."""
    return [plan.harnesses[index] for index in plan.balanced(len(plan.harnesses), block, stream=ANCHORS)]


def neighbours(plan: Plan, anchor: str, place: int) -> list[str]:
    """The training set by distance from the anchor, itself first; ties are in an order drawn for the place."""
    tie = plan.rng(TIES, place).permutation(len(plan.harnesses))
    distances = [plan.distance(anchor, name) for name in plan.harnesses]
    order = sorted(range(len(plan.harnesses)), key=lambda index: (distances[index], tie[index]))
    return [plan.harnesses[index] for index in order]
